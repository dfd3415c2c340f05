// Ranks of a communicator in several processes: they meet in a file in memory, which nothing but its descriptor names.
// Its first page says of each rank where it stands. Then each rank has two places, for what it gives to two collectives
// in a row: who begins a collective has ended the one before, and so has everybody who has begun that one.
#define _GNU_SOURCE
#include "standin.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, PLACE = 1 << 20, MAGIC = 0xA9A27, PARCELS = 64 };
typedef struct { uint64_t id; int magic, pid, file, ranks; } Name;   // of the 128 bytes of an ncclUniqueId
typedef struct { int stands[MAX_DEVICES], pids[MAX_DEVICES]; } Front;
typedef struct {
    uint64_t number;                 // of the collective, from 1; stored last
    int kind, type, count;           // count: of its parcels
    uint64_t elements;
    struct { int peer; uint64_t bytes, at; } parcels[PARCELS];
    char data[];
} Place;
struct Apart { Front *front; int ranks, file; };

bool apart_made(void *unique, uint64_t id) {
    Name name = {id, MAGIC, getpid(), memfd_create("stand-in ranks", MFD_CLOEXEC), 0};
    if (name.file < 0 || ftruncate(name.file, PAGE + 2LL * MAX_DEVICES * PLACE)) return false;
    memcpy(unique, &name, sizeof name);
    return true;
}

Apart *apart_joined(const void *unique, int ranks) {
    Name name;
    char path[64];
    memcpy(&name, unique, sizeof name);
    if (name.magic != MAGIC) return NULL;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name.pid, name.file);
    int file = name.pid == getpid() ? name.file : open(path, O_RDWR | O_CLOEXEC);
    void *at = file < 0 ? MAP_FAILED : mmap(NULL, (size_t)(PAGE + 2 * ranks * PLACE), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0 && name.pid != getpid()) close(file), file = -1;
    if (at == MAP_FAILED) return NULL;
    Apart *a = malloc(sizeof *a);
    *a = (Apart){at, ranks, file};
    return a;
}

void apart_left(Apart *a) {
    munmap(a->front, (size_t)(PAGE + 2 * a->ranks * PLACE));
    if (a->file >= 0) close(a->file);
    free(a);
}

void apart_stands(Apart *a, int rank, Stands where) {
    a->front->pids[rank] = getpid();
    __atomic_store_n(&a->front->stands[rank], where, __ATOMIC_RELEASE);
    if (a->file < 0) return;
    for (int r = 0; r < a->ranks; r++)
        if (apart_where(a, r) == AWAY) return;
    close(a->file), a->file = -1;    // all have opened it
}

// Whether a process has ended; nobody may have asked yet how.
static bool ended(int pid) {
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    if (file) fclose(file);
    return state == 'Z' || state == 'X';
}

Stands apart_where(const Apart *a, int rank) {
    Stands where = __atomic_load_n(&a->front->stands[rank], __ATOMIC_ACQUIRE);
    return where == THERE && ended(a->front->pids[rank]) ? LOST : where;
}

bool apart_all(const Apart *a, bool leaving) {
    for (int r = 0; r < a->ranks; r++)
        if (apart_where(a, r) == (leaving ? THERE : AWAY)) return false;
    return true;
}

bool apart_any_lost(const Apart *a) {
    for (int r = 0; r < a->ranks; r++)
        if (apart_where(a, r) == LOST) return true;
    return false;
}

static Place *place_of(const Apart *a, int rank, uint64_t number) {
    return (Place *)((char *)a->front + PAGE + (2 * (uint64_t)rank + number % 2) * PLACE);
}

void apart_give(Apart *a, int rank, uint64_t number, int kind, int type, uint64_t elements, const Parcel *parcels, int count) {
    Place *p = place_of(a, rank, number);
    uint64_t at = 0;
    p->kind = kind, p->type = type, p->elements = elements, p->count = 0;
    for (int i = 0; i < count; i++) {
        if (i == PARCELS || at + parcels[i].bytes > PLACE - sizeof *p) {
            violation("a collective of ranks in several processes is too large for the stand-in");
            break;
        }
        memcpy(p->data + at, parcels[i].data, parcels[i].bytes);
        p->parcels[i].peer = parcels[i].peer, p->parcels[i].bytes = parcels[i].bytes, p->parcels[i].at = at;
        at += parcels[i].bytes;
        p->count++;
    }
    __atomic_store_n(&p->number, number + 1, __ATOMIC_RELEASE);
}

bool apart_given(const Apart *a, uint64_t number) {
    for (int r = 0; r < a->ranks; r++)
        if (__atomic_load_n(&place_of(a, r, number)->number, __ATOMIC_ACQUIRE) != number + 1) return false;
    return true;
}

bool apart_alike(const Apart *a, uint64_t number, int kind, int type, uint64_t elements) {
    for (int r = 0; r < a->ranks; r++) {
        const Place *p = place_of(a, r, number);
        if (p->kind != kind || p->type != type || p->elements != elements) return false;
    }
    return true;
}

const void *apart_parcel(const Apart *a, int rank, uint64_t number, int peer, int nth, uint64_t bytes) {
    const Place *p = place_of(a, rank, number);
    for (int i = 0; i < p->count; i++)
        if ((peer < 0 || p->parcels[i].peer == peer) && !nth--) return p->parcels[i].bytes == bytes ? p->data + p->parcels[i].at : NULL;
    return NULL;
}
