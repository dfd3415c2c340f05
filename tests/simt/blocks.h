// The blocks of a launch: their threads, how these meet, shared memory and its barriers. `nvidia.h` has the rest.
#pragma once
#include "order.h"

#include "../mock/src/tensor_map.h"

#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __grid_constant__
#define __align__(n)

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

namespace simt {

// ---------------------------------------------------------------- blocks and threads

constexpr int SHARED = 256 << 10, FIXED = 4 << 10, DYNAMIC = FIXED + 128;   // the dynamic part begins at no atom of TMA
struct Meeting { int arrived, passed; Told coming, gone; };
struct Barrier { u64 at; u32 expected, pending, phase; long long bytes; Told coming, gone; };   // mbarrier
struct Product { u64 left, right; int use, given; float* sums[128]; };                           // wgmma
struct Block {
    char* shared;
    Written* stored;                 // who wrote each word of it
    Meeting everyone, numbered[16];
    Barrier barriers[64];
    Meeting cluster;                 // the cluster's is its first block's
    int left;                        // threads that have not ended
    bool let;                        // it has let the next launch begin
    bool begun;
};
struct Group {                       // warp group
    Product* products;
    int room, done;
};
struct Lane : Fiber {
    int block, thread;
    bool (*ready)(void*);
    void* what;
    int given, turn;                 // wgmma: of its group's products; collectives of its warp
    int commits[256], committed;     // wgmma: products up to each group's end
    struct Store { const EncodedMap* map; int x, y; u32 from; int group; bool read, done; } stores[64];
    int store_count, store_groups;   // TMA's stores, and their groups
    struct Copy { u32 to; const u8* from; int size, group; bool done, unordered; } copies[128];
    int copy_count, copy_groups;     // cp.async
};
struct Load { const EncodedMap* map; int x, y, block, cluster; u32 to, barrier, mask; bool done; u32 unordered[256]; };   // of rows

static Lane* lanes;
static Block* blocks;
static Group* groups;
static Meeting* warps;
static char (*brought)[2][16];       // what lanes bring to a collective; the other half is still being read
enum { LOADS = 1 << 14 };
static Load* loads;
static int load_count, load_first;
static int per_block, grid, cluster_size, resident, started, lag;
static int let_count;

static Lane& me() { return *(Lane*)running; }
static int number() { return (int)(&me() - lanes); }
static Thread& knows() { return threads[number()]; }
static Block& block() { return blocks[me().block]; }
static int warp() { return number() / 32; }

template <class F> static void wait_until(F ready) {
    while (!ready()) {
        me().ready = [](void* f) { return (*(F*)f)(); };
        me().what = &ready;
        yield();
    }
    me().ready = nullptr;
    progress = 0;
}

// `come`: it waits for the others; else it only arrives
static void meet(Meeting& m, int of, bool come = true, bool orders = true) {
    const int passed = m.passed;
    if (orders) m.coming.by(number());
    if (++m.arrived == of) {
        m.arrived = 0;
        ++m.passed;
        if (orders) m.coming.turn(m.gone);
    }
    if (!come) return;
    wait_until([&] { return m.passed != passed; });
    if (orders) m.gone.to(number());
}

static void yield_now() { me().ready = nullptr, yield(); }

// Give a value to the warp's lanes, and wait until all have given theirs.
template <class T> static T* exchange(const T& value, T (&all)[32]) {
    const int half = me().turn++ % 2;
    memcpy(brought[number()][half], &value, sizeof value);
    meet(warps[warp()], 32, true, false);
    for (int i = 0; i < 32; ++i) memcpy(&all[i], brought[number() / 32 * 32 + i][half], sizeof value);
    return all;
}

// ---------------------------------------------------------------- shared memory: 32-bit addresses, block + 1 in the top byte

static Block& block_of(u32 address, int from) { return blocks[address >> 24 ? from / cluster_size * cluster_size + (int)(address >> 24) - 1 : from]; }
static char* shared_at(u32 address, int from) { return block_of(address, from).shared + (address & 0xffffff); }
static char* shared_at(u32 address) { return shared_at(address, me().block); }
static u32 swizzled(u32 address, u32 wide = 128) { return wide ? address ^ (address >> 7 & (wide / 16 - 1)) << 4 : address; }

static u32 variables = 0;            // bytes that they have
// A variable in shared memory: the first thread of all to come gives it a place, alike in every block.
template <class T> static T& variable(int& place) {
    if (place < 0) {
        place = (int)variables;
        variables += (sizeof(T) + 15) / 16 * 16;
        if (variables > FIXED) abort();
    }
    return *(T*)(block().shared + place);
}
static u8* dynamic_shared() { return (u8*)block().shared + DYNAMIC; }
static u32 address_of(const void* p) { return (u32)((const char*)p - block().shared); }

static void stored_shared(u32 address, u32 bytes) {
    for (u32 i = 0; i < bytes; i += 4)
        block().stored[((address & 0xffffff) + i) / 4] = {number(), knows().known.all[number()]};
}

// ---------------------------------------------------------------- mbarrier

static Barrier& barrier_at(Block& b, u32 address) {
    for (Barrier& x : b.barriers)
        if (x.at == (address & 0xffffff) + 1 || !x.at) return x.at = (address & 0xffffff) + 1, x;
    abort();
}
static Barrier& usable_barrier(Block& b, u32 address) {
    Barrier& x = barrier_at(b, address);
    if (!x.expected) found(fault, "an mbarrier is used before it is made");
    if (!b.left) found(fault, "an mbarrier of a block that has ended is used");
    return x;
}
static void check_phase(Barrier& b) {
    if (b.pending || b.bytes) return;
    ++b.phase;
    b.pending = b.expected;
    b.coming.turn(b.gone);
    progress = 0;
}
static void barrier_init(u32 at, u32 count) {
    Barrier& b = barrier_at(block(), at);
    b.expected = b.pending = count, b.phase = 0, b.bytes = 0;
}
static void barrier_arrive(u32 at, u32 bytes) {
    Barrier& b = usable_barrier(block_of(at, me().block), at);
    b.coming.by(number());
    if (!b.pending) found(fault, "an mbarrier is arrived at more often than its count");
    --b.pending;
    b.bytes += bytes;
    check_phase(b);
}
static void meet_cluster() { meet(blocks[me().block / cluster_size * cluster_size].cluster, cluster_size * per_block); }
static void barrier_wait(u32 at, u32 parity) {
    Barrier& b = usable_barrier(block(), at);
    yield_now();
    wait_until([&] { return (b.phase & 1) != parity; });
    b.gone.to(number());
}

}  // namespace simt
