// Memory that several processes use: a file in memory, which each of them maps. The last page of the file tells whose
// device it is of, by the device's number among all (its UUID), and how large it is.
#define _GNU_SOURCE
#include "standin.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, MAGIC = 0x0F1CC0 };
typedef struct { uint64_t magic, bytes; int uuid; bool fine; } Label;
typedef struct { int magic, pid, file; uint64_t bytes; } Ipc;   // of the 64 bytes of a handle
typedef struct { int magic, pid, file, channel; } Fabric;       // likewise

static uint64_t whole(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

int shared_file(uint64_t bytes, int home, bool fine) {
    int file = memfd_create("stand-in", MFD_CLOEXEC);
    Label label = {MAGIC, bytes, world.uuid + home, fine};
    if (file < 0) return -1;
    if (ftruncate(file, (off_t)(whole(bytes) + PAGE)) ||
        pwrite(file, &label, sizeof label, (off_t)whole(bytes)) != sizeof label)
        return close(file), -1;
    return file;
}

static bool label_of(int file, Label *label) {
    struct stat found;
    return !fstat(file, &found) && found.st_size > PAGE &&
           pread(file, label, sizeof *label, found.st_size - PAGE) == sizeof *label && label->magic == MAGIC;
}

// NOTE a device that this process does not see is its last one, which has no ordinal that anybody asks for.
static Device *home_of(int uuid) {
    int ordinal = uuid - world.uuid;
    return &devices[ordinal >= 0 && ordinal < world.devices ? ordinal : MAX_DEVICES - 1];
}

static Physical *physical_of(int file, uint64_t bytes, Device *home, bool fine, bool ours, int kinds) {
    Physical *p = calloc(1, sizeof *p);
    *p = (Physical){.file = file, .bytes = bytes, .home = home, .refs = 1, .fine = fine, .ours = ours, .kinds = kinds};
    p->handle = handle_of(PHYSICAL, p);
    return p;
}

Physical *physical_create(Device *d, uint64_t bytes, bool fine, int kinds) {
    int file = shared_file(bytes, d->ordinal, fine);
    if (file < 0) return NULL;
    d->used += bytes;
    return physical_of(file, bytes, d, fine, true, kinds);
}

Physical *physical_import(int file) {
    Label label;
    if (!label_of(file, &label)) return NULL;
    int own = fcntl(file, F_DUPFD_CLOEXEC, 0);
    return own < 0 ? NULL : physical_of(own, label.bytes, home_of(label.uuid), label.fine, false, 0);
}

static void dropped_one(Physical *p) {   // by a handle or a mapping
    if (--p->refs) return;
    if (p->ours) p->home->used -= p->bytes;
    close(p->file);
    free(p);
}

void physical_release(Physical *p) {
    handle_gone(p->handle);
    dropped_one(p);
}

int physical_file(const Physical *p) { return fcntl(p->file, F_DUPFD_CLOEXEC, 0); }

Physical *physical_again(const Physical *p) {
    int file = physical_file(p);
    return file < 0 ? NULL : physical_of(file, p->bytes, p->home, p->fine, false, p->kinds);
}

// A fabric handle is data: it keeps no memory, and nobody opens it whose IMEX channel is another one. When the memory is
// given back, or its process has ended, the handle names nothing.
void fabric_export(const Physical *p, void *handle) {
    Fabric fabric = {MAGIC, getpid(), p->file, world.fabric};
    memset(handle, 0, 64), memcpy(handle, &fabric, sizeof fabric);
}

int fabric_import(const void *handle, Physical **made) {
    Fabric fabric;
    char path[64];
    memcpy(&fabric, handle, sizeof fabric);
    if (fabric.magic != MAGIC) return INVALID_VALUE;
    if (fabric.channel != world.fabric) return NOT_PERMITTED;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", fabric.pid, fabric.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    *made = file < 0 ? NULL : physical_import(file);
    if (file >= 0) close(file);
    return *made ? OK : INVALID_VALUE;
}

int physical_map(Physical *p, uint64_t address, uint64_t bytes) {
    if (bytes != p->bytes || address % PAGE) return INVALID_VALUE;
    void *at = mmap((void *)address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, p->file, 0);
    if (at == MAP_FAILED) return INVALID_VALUE;
    p->refs++;
    memory_insert(p->home, address, bytes, true, !p->ours, p->fine, p);
    world.live[MAPPING]++;
    return OK;
}

int shared_reserve(uint64_t bytes, uint64_t *address) {
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *address = (uint64_t)at, at == MAP_FAILED ? OUT_OF_MEMORY : OK;
}

int shared_unreserve(uint64_t address, uint64_t bytes) {
    uint64_t base = 0, size = 0;
    if (memory_place(address, &base, &size)) {
        violation("addresses given back: %llu bytes at %#llx are mapped", (unsigned long long)bytes, (unsigned long long)address);
        return INVALID_VALUE;
    }
    return OK;
}

int shared_unmap(uint64_t address, uint64_t bytes) {
    for (uint64_t at = address; at < address + bytes;) {
        uint64_t base = 0, size = 0;
        Physical *p = memory_physical(at);
        if (!p || !memory_place(at, &base, &size) || base != at) {
            violation("unmapped: no mapping at %#llx", (unsigned long long)at);
            return INVALID_VALUE;
        }
        memory_gone(at, size);
        world.live[MAPPING]--;
        dropped_one(p);
        at += size;
    }
    return OK;
}

// ---------------------------------------------------------------- IPC memory: ordinary allocations

int shared_handle(uint64_t base, void *handle) {
    Ipc ipc = {.magic = MAGIC, .pid = getpid(), .file = memory_file(base)};
    uint64_t begin = 0;
    if (ipc.file < 0 || !memory_place(base, &begin, &ipc.bytes) || begin != base) return INVALID_VALUE;
    return memset(handle, 0, 64), memcpy(handle, &ipc, sizeof ipc), OK;
}

int shared_open(const void *handle, uint64_t *address) {
    Ipc ipc;
    Label label;
    char path[64];
    memcpy(&ipc, handle, sizeof ipc);
    if (ipc.magic != MAGIC) return INVALID_VALUE;
    if (ipc.pid == getpid()) return INVALID_CONTEXT;   // as the driver's: a process does not open its own
    snprintf(path, sizeof path, "/proc/%d/fd/%d", ipc.pid, ipc.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return INVALID_VALUE;
    void *at = label_of(file, &label) ? mmap(NULL, whole(ipc.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    close(file);
    if (at == MAP_FAILED) return INVALID_VALUE;
    memory_insert(home_of(label.uuid), (uint64_t)at, ipc.bytes, false, true, label.fine, NULL);
    world.live[OPENED]++;
    return *address = (uint64_t)at, OK;
}

int shared_close(uint64_t address) {
    uint64_t base = 0, bytes = 0;
    if (!memory_place(address, &base, &bytes) || base != address) return INVALID_VALUE;
    world.live[OPENED]--;
    return memory_gone(address, bytes);
}
