// Device memory: pages of the host, with a home. Freed memory keeps its addresses, so that its use is seen.
#define _GNU_SOURCE
#include "standin.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct { uint64_t base, bytes; Device *home; bool live, mapped, fine; } Block;
static Block *blocks;   // by base
static size_t count, room;
static Block *last;     // found

enum { ALIGN = 256, BIG = 1 << 20 };

static Block *find(uint64_t address) {
    if (last && address - last->base < last->bytes) return last;
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].base <= address) low = middle + 1;
        else high = middle;
    }
    if (!low || address - blocks[low - 1].base >= blocks[low - 1].bytes) return NULL;
    return last = &blocks[low - 1];
}

int memory_alloc(Device *d, uint64_t bytes, bool fine, uint64_t *address) {
    if (!bytes) return INVALID_VALUE;
    if (bytes > d->memory - d->used) return OUT_OF_MEMORY;
    void *at = NULL;
    bool mapped = bytes >= BIG;
    if (mapped) {
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED) return OUT_OF_MEMORY;
    } else {
        at = aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
        if (!at) return OUT_OF_MEMORY;
        memset(at, 0xA5, bytes);  // undefined content
    }
    if (count == room) {
        room = room ? 2 * room : 256;
        blocks = realloc(blocks, room * sizeof *blocks);
    }
    size_t place = count++;
    while (place && blocks[place - 1].base > (uint64_t)at) {
        blocks[place] = blocks[place - 1];
        place--;
    }
    blocks[place] = (Block){(uint64_t)at, bytes, d, true, mapped, fine};
    last = NULL;
    d->used += bytes;
    world.live[ALLOCATION]++;
    *address = (uint64_t)at;
    return OK;
}

int memory_free(uint64_t address, const char *who) {
    Block *b = find(address);
    if (!b || b->base != address || !b->live) {
        violation("%s: %#llx %s", who, (unsigned long long)address, b && !b->live ? "was freed" : "is no allocation");
        return INVALID_VALUE;
    }
    b->live = false;
    b->home->used -= b->bytes;
    world.live[ALLOCATION]--;
    return OK;
}

Device *memory_home(uint64_t address, uint64_t bytes) {
    Block *b = find(address);
    return b && b->live && bytes <= b->bytes - (address - b->base) ? b->home : NULL;
}

bool memory_was_device(uint64_t address) { return find(address) != NULL; }

bool memory_is_fine(uint64_t address) {
    Block *b = find(address);
    return b && b->fine;
}

int memory_reach(const Device *d, uint64_t address, uint64_t bytes) {
    const Device *home = bytes ? memory_home(address, bytes) : d;
    if (!home) return ILLEGAL_ADDRESS;
    return home == d || d->enabled[home->ordinal] ? OK : ILLEGAL_ADDRESS;
}

void memory_reset(void) {
    for (size_t i = 0; i < count; i++)
        if (blocks[i].mapped) munmap((void *)blocks[i].base, blocks[i].bytes);
        else free((void *)blocks[i].base);
    count = 0;
    last = NULL;
}
