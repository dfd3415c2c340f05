// Device memory: pages of the host, with a home. Freed memory keeps its addresses, so that its use is seen.
#define _GNU_SOURCE
#include "standin.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// `ranged`: a mapping of a range of addresses, `pooled`: of a pool. Of both `access` says which devices may touch them;
// other memory is touched by the devices that have access to its home's.
typedef struct { uint64_t base, bytes; Device *home; bool live, mapped, fine, ranged, pooled, foreign; uint64_t access, number; void *physical; int file; bool elsewhere; uint64_t gone; } Block;
static Block *blocks;   // by base
static size_t count, room;
static Block *last;     // found
static uint64_t numbers, goings;

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

static void insert(Block block) {
    if (count == room) {
        room = room ? 2 * room : 256;
        blocks = realloc(blocks, room * sizeof *blocks);
    }
    size_t place = count++;
    while (place && blocks[place - 1].base > block.base) {
        blocks[place] = blocks[place - 1];
        place--;
    }
    block.number = ++numbers;
    blocks[place] = block;
    last = NULL;
}

// What was freed last of such memory: the next one gets its addresses, if the library gives them again.
static Block *freed(const Device *d, uint64_t bytes, bool mapped) {
    Block *found = NULL;
    for (size_t i = 0; i < count && world.reuse; i++) {
        Block *b = &blocks[i];
        bool fits = !b->live && b->home == d && b->bytes == bytes && b->mapped == mapped && !b->ranged && !b->pooled && !b->foreign;
        if (fits && (!found || b->gone > found->gone)) found = b;
    }
    return found;
}

int memory_alloc(Device *d, uint64_t bytes, bool fine, uint64_t *address) {
    if (!bytes) return INVALID_VALUE;
    if (bytes > d->memory - d->used) return OUT_OF_MEMORY;
    void *at = NULL;
    int file = -1;
    bool mapped = bytes >= BIG || world.shared;
    Block *again = freed(d, bytes, mapped);
    int fixed = again ? MAP_FIXED : 0;
    if (again) at = (void *)again->base;
    if (world.shared) {
        uint64_t all = (bytes + 4095) / 4096 * 4096;
        file = shared_file(bytes, d->ordinal, fine);
        at = file < 0 ? MAP_FAILED : mmap(at, all, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, file, 0);
        if (at == MAP_FAILED) return OUT_OF_MEMORY;
        memset(at, 0x5A, bytes);
    } else if (mapped) {
        at = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
        if (at == MAP_FAILED) return OUT_OF_MEMORY;
    } else {
        if (!at) at = aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
        if (!at) return OUT_OF_MEMORY;
        memset(at, 0x5A, bytes);  // undefined content: large numbers, so that whoever waits for such a word waits no more
    }
    Block made = {.base = (uint64_t)at, .bytes = bytes, .home = d, .live = true, .mapped = mapped, .fine = fine,
                  .file = file + 1};
    if (again) made.number = ++numbers, *again = made;
    else insert(made);
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
    b->live = false, b->gone = ++goings;
    if (b->file) close(b->file - 1);
    b->file = 0;
    b->home->used -= b->bytes;
    world.live[ALLOCATION]--;
    return OK;
}

Device *memory_home(uint64_t address, uint64_t bytes) {
    Block *b = find(address);
    Device *home = b && b->live ? b->home : NULL;
    while (home && bytes > b->base + b->bytes - address) {  // mappings lie side by side
        bytes -= b->base + b->bytes - address;
        address = b->base + b->bytes;
        b = b->ranged ? find(address) : NULL;
        if (!b || !b->live || !b->ranged || b->home != home) home = NULL;
    }
    return home;
}

bool memory_was_device(uint64_t address) { return find(address) != NULL; }

bool memory_is_fine(uint64_t address) {
    Block *b = find(address);
    return b && b->fine;
}

bool memory_is_foreign(uint64_t address) {
    Block *b = find(address);
    return b && b->foreign;
}

int memory_reach(const Device *d, uint64_t address, uint64_t bytes) {
    const Device *home = bytes ? memory_home(address, bytes) : d;
    if (!home) return ILLEGAL_ADDRESS;
    const Block *b = bytes ? find(address) : NULL;
    if (b && b->foreign && !b->ranged) return OK;   // whoever opens another process's memory is given access to it
    if (b && b->elsewhere) return home == d ? OK : ILLEGAL_ADDRESS;
    if (!b || !(b->ranged || b->pooled)) return home == d || d->enabled[home->ordinal] ? OK : ILLEGAL_ADDRESS;
    for (uint64_t end = address + bytes; address < end; address = b->base + b->bytes) {
        b = find(address);
        if (!(b->access >> d->ordinal & 1)) return ILLEGAL_ADDRESS;
    }
    return OK;
}

// ---------------------------------------------------------------- mapped ranges and pools, which callers may have

bool memory_is_plain(uint64_t address) {
    const Block *b = find(address);
    return b && !b->ranged && !b->pooled;
}

bool memory_mapping(uint64_t address, uint64_t *base, uint64_t *bytes) {
    const Block *b = find(address);
    if (!b || !b->live || !b->ranged) return false;
    return *base = b->base, *bytes = b->bytes, true;
}

int memory_may(uint64_t address, int device, bool *may) {
    const Block *b = find(address);
    if (!b || !b->live || !b->ranged || device < 0 || device >= world.devices) return INVALID_VALUE;
    return *may = b->access >> device & 1, OK;
}

int memory_let(uint64_t address, uint64_t bytes, int device) {
    uint64_t end = address + bytes;
    if (device < 0 || device >= world.devices) return INVALID_DEVICE;
    while (address < end) {  // whole mappings
        Block *b = find(address);
        if (!b || !b->live || !b->ranged || b->base != address || address + b->bytes > end) return INVALID_VALUE;
        if (device != b->home->ordinal && !devices[device].links[b->home->ordinal]) return NOT_SUPPORTED;
        b->access |= 1ull << device;
        address += b->bytes;
    }
    return OK;
}

Device *memory_pool_of(uint64_t address) {
    const Block *b = find(address);
    return b && b->live && b->pooled ? b->home : NULL;
}

int memory_pool_let(const Device *home, int device) {
    if (device < 0 || device >= world.devices || !devices[device].links[home->ordinal]) return INVALID_DEVICE;
    for (size_t i = 0; i < count; i++)
        if (blocks[i].pooled && blocks[i].home == home) blocks[i].access |= 1ull << device;
    return OK;
}

uint64_t memory_number(uint64_t address) {
    const Block *b = find(address);
    return b && b->live ? b->number : 0;
}
bool memory_place(uint64_t address, uint64_t *base, uint64_t *bytes) {
    const Block *b = find(address);
    return b && b->live ? *base = b->base, *bytes = b->bytes, true : false;
}
void memory_insert(Device *home, uint64_t base, uint64_t bytes, bool ranged, bool foreign, bool fine,
                   void *physical) {
    insert((Block){.base = base, .bytes = bytes, .home = home, .live = true, .mapped = true, .fine = fine, .ranged = ranged,
                   .foreign = foreign, .physical = physical});
}
int memory_file(uint64_t address) {
    const Block *b = find(address);
    return b && b->live ? b->file - 1 : -1;
}
void *memory_physical(uint64_t address) {
    const Block *b = find(address);
    return b && b->live ? b->physical : NULL;
}
// NOTE the addresses stay taken, so that the use of what is gone is seen.
int memory_gone(uint64_t base, uint64_t bytes) {
    for (uint64_t at = base; at < base + bytes;) {
        Block *b = find(at);
        if (!b || !b->live || b->base != at || at + b->bytes > base + bytes) return INVALID_VALUE;
        b->live = false;
        mmap((void *)at, b->bytes, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        at += b->bytes;
    }
    return OK;
}

// Memory as a caller's allocator maps it, in pieces side by side, for its own device alone.
uint64_t standin_mapped(int device, uint64_t bytes, int pieces) {
    char *at = mmap(NULL, bytes * (uint64_t)pieces, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 0;
    for (int i = 0; i < pieces; i++)
        insert((Block){.base = (uint64_t)at + bytes * (uint64_t)i, .bytes = bytes, .home = &devices[device], .live = true,
                       .mapped = true, .ranged = true, .access = 1ull << device});
    return (uint64_t)at;
}
// The mapping is made anew at its address: for its own device alone.
void standin_remapped(uint64_t address) {
    Block *b = find(address);
    b->access = 1ull << b->home->ordinal, b->number = ++numbers;
}
// Memory of another context than the device's primary one.
bool memory_is_elsewhere(uint64_t address) {
    const Block *b = find(address);
    return b && b->elsewhere;
}
uint64_t standin_elsewhere(int device, uint64_t bytes) {
    uint64_t address = 0;
    if (memory_alloc(&devices[device], bytes, true, &address)) return 0;
    world.live[ALLOCATION]--;
    find(address)->elsewhere = true;
    return address;
}
// Memory of a device's pool.
uint64_t standin_pooled(int device, uint64_t bytes) {
    uint64_t address = 0;
    if (memory_alloc(&devices[device], bytes, true, &address)) return 0;
    world.live[ALLOCATION]--;
    Block *b = find(address);
    b->pooled = true, b->access = 1ull << device;
    return address;
}

typedef struct Post { uint64_t dst, bytes, room; const Device *writer; unsigned char *data; struct Post *next; } Post;
static Post *first_post, *last_post;   // writes on their way, in their order

static void deliver(void) {
    Post *p = first_post;
    if (memory_home(p->dst, p->bytes)) memcpy((void *)p->dst, p->data, p->bytes);
    first_post = p->next;
    if (!first_post) last_post = NULL;
    free(p->data);
    free(p);
}
void memory_settle(void) {
    while (first_post) deliver();
}
void memory_drift(void) {
    if (first_post && !drawn(8)) deliver();
}

void memory_write(const Device *writer, uint64_t dst, const void *src, uint64_t bytes) {
    const Device *home = world.flush ? memory_home(dst, bytes) : NULL;
    const Block *b = home ? find(dst) : NULL;
    // NOTE what this process holds back no other one can flush: it brings such writes at once
    if (!home || home == writer || b->foreign) {
        memmove((void *)dst, src, bytes);
        return;
    }
    Post *p = last_post;
    if (!p || p->writer != writer || p->dst + p->bytes != dst) {
        p = calloc(1, sizeof *p);
        p->dst = dst, p->writer = writer;
        if (last_post) last_post->next = p;
        else first_post = p;
        last_post = p;
    }
    if (p->bytes + bytes > p->room) p->data = realloc(p->data, p->room = 2 * (p->bytes + bytes));
    memcpy(p->data + p->bytes, src, bytes);
    p->bytes += bytes;
}

void memory_reset(void) {
    memory_settle();
    for (size_t i = 0; i < count; i++)
        if (blocks[i].file) close(blocks[i].file - 1);
    for (size_t i = 0; i < count; i++)
        if (blocks[i].mapped) munmap((void *)blocks[i].base, blocks[i].bytes);
        else free((void *)blocks[i].base);
    count = 0;
    last = NULL;
}
