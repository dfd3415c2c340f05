// Who knows of which writes: the memory model of PTX for the kernels of `nvidia.h`, by vector clocks.
//
// A write has its thread and a number. A thread has for every thread the number up to which that one's writes are
// ordered before what it does next. Whoever releases passes this on, whoever acquires takes it over. A read of what is
// not ordered before it is a fault, whatever the memory holds by then: a missing fence is seen in every order of threads.
//
// Numbers are kept twice: for accesses by instructions, and for those of TMA, the async proxy, which only a proxy fence
// brings up to the others. And a relaxed store passes on what a fence before it has covered, in its scope.
#pragma once
#include "fibers.h"

#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

namespace simt {

enum Scope { CTA, GPU, SYS };
enum Order { RELAXED, ACQUIRE, RELEASE, ACQ_REL };

constexpr int OTHERS = 32;   // who else writes: other devices, the launch before
static int width;            // threads of the launch and OTHERS
static int progress;         // passes of the scheduler since anything went on
static char fault[512];      // the first thing that was wrong
static char hint[512];       // the first thing that is wrong if the numbers are: a load may bring more than is used

__attribute__((format(printf, 2, 3))) static void found(char (&where)[512], const char* format, ...) {
    if (where[0]) return;
    va_list list;
    va_start(list, format);
    vsnprintf(where, sizeof where, format, list);
    va_end(list);
}

// ---------------------------------------------------------------- what a thread knows

static char* arena;          // of one launch
static size_t arena_used;
static void* of_launch(size_t bytes) {   // zeroed
    constexpr size_t room = 4ull << 30;
    if (!arena) arena = (char*)mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void* at = arena + arena_used;
    arena_used += (bytes + 63) / 64 * 64;
    return memset(at, 0, bytes);
}

struct Known {
    uint32_t *all = nullptr, *tma = nullptr;   // by instructions, by the async proxy

    void make() {
        if (!all) all = (uint32_t*)of_launch(8 * (size_t)width), tma = all + width;
    }
    void clear() {
        if (all) memset(all, 0, 8 * (size_t)width);
    }
    void take(const Known& other) {
        if (!other.all) return;
        make();
        for (int i = 0; i < 2 * width; ++i) all[i] = all[i] > other.all[i] ? all[i] : other.all[i];
    }
    void copy(const Known& other) {
        make();
        memcpy(all, other.all, 8 * (size_t)width);
    }
    bool has(int who, uint32_t number, bool by_tma) const { return all && (by_tma ? tma : all)[who] >= number; }
};

struct Thread {
    Known known, fenced[2];      // fenced: by a fence of the GPU, of the system
    Known seen;                  // what relaxed reads have come by, until a fence
};
static Thread* threads;

// Threads that meet tell each other what they know. NOTE and what they have fenced: PTX speaks of the fence and the store
// behind it of one thread only; on GPUs a fence is over when all before it is there for its scope, whoever stores then.
struct Told {
    Known known, fenced[2];

    void by(int me) {
        Thread& t = threads[me];
        known.make();
        known.take(t.known);
        ++t.known.all[me];
        for (int s = 0; s < 2; ++s)
            if (t.fenced[s].all) fenced[s].make(), fenced[s].take(t.fenced[s]);
    }
    void to(int me) const {
        Thread& t = threads[me];
        t.known.take(known);
        for (int s = 0; s < 2; ++s)
            if (fenced[s].all) t.fenced[s].make(), t.fenced[s].take(fenced[s]);
    }
    // what is told now is for those who have met; it begins anew
    void turn(Told& gone) {
        const Told old = gone;
        gone = *this, *this = old;
        known.clear();
        for (Known& k : fenced) k.clear();
    }
};

static void fence(int me, Scope scope) {
    Thread& t = threads[me];
    t.known.take(t.seen);
    for (int s = 0; s < (scope == SYS ? 2 : 1); ++s) t.fenced[s].copy(t.known);
    ++t.known.all[me];           // what comes next is not covered
}
static void fence_proxy(int me) {
    Known& k = threads[me].known;
    memcpy(k.tma, k.all, 4 * (size_t)width);
    ++k.all[me];
}

// ---------------------------------------------------------------- words of memory by which threads and devices meet

struct Word { const void* at; Known released[2]; };   // within the GPU, to all of the system
enum { WORDS = 4096 };
static Word words[WORDS];

static Word& word_at(const void* p) {
    for (uint64_t i = (uint64_t)p >> 2;; ++i) {
        Word& w = words[i % WORDS];
        if (w.at == p || !w.at) return w.at = p, w;
    }
}

static void acquired(int me, const void* p, Order order, Scope scope) {
    Word& w = word_at(p);
    Known& to = order == ACQUIRE || order == ACQ_REL ? threads[me].known : threads[me].seen;
    to.make();
    to.take(w.released[0]);
    if (scope == SYS) to.take(w.released[1]);
}
// `over`: a store, which ends what was released before; an atomic operation carries it on
static void released(int me, void* p, Order order, Scope scope, bool over) {
    Thread& t = threads[me];
    Word& w = word_at(p);
    const bool release = order == RELEASE || order == ACQ_REL;
    for (int s = 0; s < 2; ++s) {
        if (over) w.released[s].clear();
        w.released[s].take(release ? (s == 0 || scope == SYS ? t.known : t.fenced[s]) : t.fenced[s]);
    }
    ++t.known.all[me];
}

// ---------------------------------------------------------------- memory whose writes are told apart

struct Written { int who; uint32_t number; };   // −1: nobody yet
struct Region {
    uint64_t base, bytes;
    uint32_t item;               // bytes that one number is of
    int after;                   // who must have ended before it is written; −1: nobody
    Written* written;
};
static Region regions[64];
static int region_count;
static uint64_t lowest = ~0ull, highest;
constexpr uint32_t NOT_YET = ~0u;   // TMA's stores, until a fence behind their end

static Region* region_of(uint64_t at) {
    if (at < lowest || at >= highest) return nullptr;
    for (int i = 0; i < region_count; ++i)
        if (at - regions[i].base < regions[i].bytes) return &regions[i];
    return nullptr;
}

static bool check_read(int me, uint64_t at, uint64_t bytes, bool by_tma, const char* what, char (&where)[512]) {
    const Region* r = region_of(at);
    if (!r || !bytes) return true;
    for (uint64_t i = (at - r->base) / r->item; i <= (at + bytes - 1 - r->base) / r->item; ++i) {
        const Written w = r->written[i];
        if (w.who >= 0 && w.who != me && !threads[me].known.has(w.who, w.number, by_tma)) {
            if (w.who >= width - OTHERS) found(where, "%s reads what another device writes (%d), not ordered behind it", what, w.who - width + OTHERS);
            else found(where, "%s reads what thread %d has written, not ordered behind it", what, w.who);
            return false;
        }
    }
    return true;
}

static void check_write(int me, const Region* r, const char* what) {
    if (r->after >= 0 && !threads[me].known.has(width - OTHERS + r->after, 1, false))
        found(fault, "%s writes before the launch before has ended", what);
}
static void mark(uint64_t at, uint64_t bytes, int who, uint32_t number) {
    const Region* r = region_of(at);
    if (!r || !bytes) return;
    for (uint64_t i = (at - r->base) / r->item; i <= (at + bytes - 1 - r->base) / r->item; ++i) r->written[i] = {who, number};
}
// ---------------------------------------------------------------- other devices

struct Rows { uint64_t to, from, pitch, from_pitch, rows, bytes; int who; };   // what `who` writes when it goes on
struct Raise { uint32_t* flag; uint32_t value; int who; };
struct Promise { const uint32_t* flag; uint64_t at, pitch, rows, bytes, values; };   // what must be there when it is up
struct Place { uint64_t at, pitch, rows, bytes; int who; };                     // `who` reads there until it goes on
static Place places[64];
static uint32_t* lowered[64];        // flags that are up when the launch begins; the launch before takes them down
static int place_count, lowered_count;
static Rows gives[256];
static Raise raises[256];
static Promise promises[256];
static int give_count, raise_count, promise_count, other_count;
static bool gone[OTHERS];

// Device `who` writes what it has for this one, and then raises its flags for all of the system to see.
static void other_goes(int who) {
    gone[who] = true;
    progress = 0;
    for (int i = 0; who == 0 && i < lowered_count; ++i) *lowered[i] = 0;
    for (int i = 0; i < give_count; ++i)
        for (uint64_t r = 0; gives[i].who == who && r < gives[i].rows; ++r)
            memcpy((void*)(gives[i].to + r * gives[i].pitch), (void*)(gives[i].from + r * gives[i].from_pitch), gives[i].bytes);
    for (int i = 0; i < raise_count; ++i)
        if (raises[i].who == who) {
            Word& w = word_at(raises[i].flag);
            w.released[1].make();
            w.released[1].all[width - OTHERS + who] = 1;
            *raises[i].flag = raises[i].value;
        }
}
static void check_free(uint64_t at, uint64_t bytes, const char* what) {
    for (int i = 0; i < place_count; ++i) {
        const Place& p = places[i];
        const uint64_t row = at < p.at ? p.rows : (at - p.at) / p.pitch;
        if (!gone[p.who] && row < p.rows && at - p.at - row * p.pitch < p.bytes)
            found(fault, "%s writes %d bytes where another device (%d) still reads", what, (int)bytes, p.who);
    }
}
static void note_write(int me, const void* to, uint64_t bytes, const char* what) {
    if (const Region* r = region_of((uint64_t)to)) {
        check_write(me, r, what);
        check_free((uint64_t)to, bytes, what);
        mark((uint64_t)to, bytes, me, threads[me].known.all[me]);
    }
}

static bool others_wait() {   // for a flag that is not up yet
    for (int i = 0; i < raise_count; ++i)
        if (!gone[raises[i].who]) return true;
    return false;
}

// A flag goes up: another device that acquires it finds all that was promised.
static void keep_promises(const uint32_t* flag) {
    const Known& to = word_at(flag).released[1];
    for (int i = 0; i < promise_count; ++i) {
        const Promise& p = promises[i];
        if (p.flag != flag) continue;
        for (uint64_t r = 0; r < p.rows; ++r) {
            const Region* region = region_of(p.at + r * p.pitch);
            if (memcmp((void*)(p.at + r * p.pitch), (void*)(p.values + r * p.bytes), p.bytes))
                return found(fault, "a flag is up before row %llu is what it stands for", (unsigned long long)r);
            if (!region) continue;   // writes are not told apart there
            const uint64_t first = (p.at + r * p.pitch - region->base) / region->item;
            for (uint64_t n = first; n < first + p.bytes / region->item; ++n) {
                const Written w = region->written[n];
                if (w.who < 0) found(fault, "a flag is up before row %llu is written", (unsigned long long)r);
                else if (!to.has(w.who, w.number, false))
                    found(fault, "a flag is up, and what thread %d wrote to row %llu need not be seen with it", w.who, (unsigned long long)r);
                if (fault[0]) return;
            }
        }
    }
}

// ---------------------------------------------------------------- what a test sets

extern "C" {
void simt_region(uint64_t base, uint64_t bytes, int item, int after) {
    regions[region_count++] = {base, bytes, (uint32_t)item, after, (Written*)malloc(bytes / (uint64_t)item * sizeof(Written))};
    lowest = base < lowest ? base : lowest;
    highest = base + bytes > highest ? base + bytes : highest;
}
void simt_gives(int who, uint64_t to, uint64_t pitch, uint64_t from, uint64_t from_pitch, uint64_t rows, uint64_t bytes) {
    gives[give_count++] = {to, from, pitch, from_pitch, rows, bytes, who};
    other_count = who >= other_count ? who + 1 : other_count;
}
void simt_raises(int who, uint64_t flag, uint32_t value) {
    raises[raise_count++] = {(uint32_t*)flag, value, who};
    other_count = who >= other_count ? who + 1 : other_count;
}
void simt_reads(int who, uint64_t at, uint64_t pitch, uint64_t rows, uint64_t bytes) {
    places[place_count++] = {at, pitch, rows, bytes, who};
}
void simt_lowers(uint64_t flag) { lowered[lowered_count++] = (uint32_t*)flag; }
void simt_promises(uint64_t flag, uint64_t at, uint64_t pitch, uint64_t rows, uint64_t bytes, uint64_t values) {
    promises[promise_count++] = {(uint32_t*)flag, at, pitch, rows, bytes, values};
}
void simt_forget() {
    for (int i = 0; i < region_count; ++i) free(regions[i].written);
    place_count = lowered_count = 0;
    region_count = give_count = raise_count = promise_count = other_count = 0;
    lowest = ~0ull, highest = 0;
}
const char* simt_fault() { return fault; }
const char* simt_hint() { return hint; }
}

static void order_begins(int count) {
    width = count + OTHERS;
    fault[0] = hint[0] = 0;
    progress = 0;
    memset(gone, 0, sizeof gone);
    arena_used = 0;
    memset((void*)words, 0, sizeof words);
    threads = (Thread*)of_launch((size_t)count * sizeof *threads);
    for (int i = 0; i < count; ++i) {
        threads[i].known.make();
        threads[i].known.all[i] = 1;
    }
    for (int i = 0; i < region_count; ++i)
        for (uint64_t n = 0; n < regions[i].bytes / regions[i].item; ++n) regions[i].written[n] = {-1, 0};
    for (int i = 0; i < give_count; ++i)
        for (uint64_t r = 0; r < gives[i].rows; ++r)
            mark(gives[i].to + r * gives[i].pitch, gives[i].bytes, width - OTHERS + gives[i].who, 1);
}

}  // namespace simt
