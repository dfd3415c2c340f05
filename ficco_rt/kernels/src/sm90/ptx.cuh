// PTX instructions of Hopper, a function each. Which are volatile and which clobber memory decides what the compiler may
// move across them.
#pragma once
#include "../memory_order.h"
#include "config.cuh"

// ---------------------------------------------------------------- barriers in shared memory (mbarrier)

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(u32 bar, u32 count) {   // one lane of the warp, all of which call it
    asm volatile(
        "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n@one mbarrier.init.shared::cta.b64 [%0], %1;\n}"
        ::"r"(bar), "r"(count)
        : "memory");
}
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// One lane of the warp, all of which call it. NOTE so the compiler keeps addresses in uniform registers: in a branch of one
// lane it moves each of them there, in a loop, which a launch of few rows shows.
__device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
    asm volatile(
        "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n"
        "@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n}" ::"r"(bar), "r"(bytes)
        : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(bar), "r"(parity)
        : "memory");
}
__device__ __forceinline__ void barrier_arrive_here(u32 bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// Arrive on the same barrier of block `cta` of the cluster.
// NOTE no `.release.cluster`: it costs a fence of the whole GPU. Only reads are released, and those are complete.
__device__ __forceinline__ void barrier_arrive(u32 bar, u32 cta) {
    if constexpr (CLUSTER > 1) {
        asm volatile(
            "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(bar), "r"(cta)
            : "memory");
    } else {
        barrier_arrive_here(bar);
    }
}

// COUNT threads meet at a numbered barrier of the block; those that only arrive do not wait there.
template <int COUNT> __device__ __forceinline__ void named_barrier_sync(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(COUNT) : "memory");
}
template <int COUNT> __device__ __forceinline__ void named_barrier_arrive(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(COUNT) : "memory");
}

__device__ __forceinline__ u32 block_in_cluster() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
__device__ __forceinline__ void sync_cluster() {
    if constexpr (CLUSTER * PARTS > 1)
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    else __syncthreads();
}

// A value that is the same in all lanes, as the compiler then knows. NOTE it keeps a loop's values in uniform registers only
// if each branch around the loop is known to be uniform, and no lane goes through a loop of its own before it: what loads,
// and what multiplies, would otherwise move every address into a uniform register at each step.
__device__ __forceinline__ u32 uniform(u32 x) { return __shfl_sync(~0u, x, 0); }

// The thread's lane. GROUP_BOXES: made here. NOTE else what follows from it is made ahead of all tiles, and spilled.
__device__ __forceinline__ u32 lane_again() {
    if constexpr (!GROUP_BOXES) return threadIdx.x & 31;
    u32 thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread & 31;
}

// ---------------------------------------------------------------- tensor maps (TMA)

// All lanes of the warp call it, and one of them loads.
__device__ __forceinline__ void load_box(u32 dst, const TensorMap* map, int x, int y, u32 bar) {
    asm volatile(
        "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n@one "
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\n}"
        ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar)
        : "memory");
}
__device__ __forceinline__ void load_box_for_all(u32 dst, const TensorMap* map, int x, int y, u32 bar) {
    if constexpr (CLUSTER > 1) {
        asm volatile(
            "{\n.reg .pred one;\nelect.sync _|one, 0xffffffff;\n@one "
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
            " [%0], [%1, {%2, %3}], [%4], %5;\n}"
            ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar), "h"((u16)((1 << CLUSTER) - 1))
            : "memory");
    } else {
        load_box(dst, map, x, y, bar);
    }
}
__device__ __forceinline__ void store_box(const TensorMap* map, int x, int y, u32 src) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(map), "r"(x), "r"(y), "r"(src)
                 : "memory");
}
__device__ __forceinline__ void commit_no_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most N groups of this thread's stores still read shared memory.
template <int N> __device__ __forceinline__ void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
__device__ __forceinline__ void wait_stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
__device__ __forceinline__ void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---------------------------------------------------------------- launches (programmatic stream serialization)

// A launch may begin before the launch before it on its stream has ended. This waits for its end, and for what it wrote.
__device__ __forceinline__ void wait_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next launch may begin when every block has called this or ended.
__device__ __forceinline__ void let_next_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

template <int REGISTERS> __device__ __forceinline__ void give_up_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---------------------------------------------------------------- memory order

__device__ __forceinline__ u32 load_acquire_gpu(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u32 count_up(u32* p) {
    u32 old;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(p) : "memory");
    return old;
}
// A word of shared memory. Both are atomic: compute-sanitizer's racecheck takes atomics for no race.
__device__ __forceinline__ u32 load_acquire_shared(u32 at) {
    u32 v;
    asm volatile("atom.acquire.cta.shared::cta.or.b32 %0, [%1], 0;" : "=r"(v) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ void count_up_shared(u32 at) {
    asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(at) : "memory");
}
// Between accesses by instructions and by TMA, which belong to two proxies of memory.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---------------------------------------------------------------- loads and stores

// Of memory that nobody writes while the launch runs. Volatile: the load stays where it stands, ahead of its use.
struct Pair { int x, y; };
__device__ __forceinline__ Pair load_pair(const void* p) {
    Pair q;
    asm volatile("ld.global.nc.v2.s32 {%0, %1}, [%2];" : "=r"(q.x), "=r"(q.y) : "l"(p));
    return q;
}
struct Quad { int x, y, z, w; };
__device__ __forceinline__ Quad load_quad(const void* p) {
    Quad q;
    asm volatile("ld.global.nc.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(q.x), "=r"(q.y), "=r"(q.z), "=r"(q.w) : "l"(p));
    return q;
}
// Not through L1: another multiprocessor has written it. Zeros, if not `there`: a branch would hold the next load up.
__device__ __forceinline__ float4 load_partial(const float4* p, bool there) {
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    asm volatile(
        "{\n.reg .pred there;\nsetp.ne.u32 there, %5, 0;\n@there ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n}"
        : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w) : "l"(p), "r"((u32)there));
    return v;
}
__device__ __forceinline__ void store_shared(u32 at, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void store_shared(u32 at, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}
__device__ __forceinline__ void load_shared(u32 at, float& x, float& y) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_shared(u32 at, float& x) {
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory");
}
__device__ __forceinline__ uint4 load_shared(u32 at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ float4 load_sums(u32 at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}
// To the same place of block `cta` of the cluster, and count the bytes on its barrier.
__device__ __forceinline__ void store_there(u32 at, u32 bar, u32 cta, float a, float b, float c, float d) {
    asm volatile(
        "{\n.reg .b32 there, done;\nmapa.shared::cluster.u32 there, %0, %2;\nmapa.shared::cluster.u32 done, %1, %2;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, [done];\n}"
        ::"r"(at), "r"(bar), "r"(cta), "f"(a), "f"(b), "f"(c), "f"(d)
        : "memory");
}
// Four 8×8 matrices between a warp's registers and shared memory; each lane gives the address of a row.
__device__ __forceinline__ void store_matrices(u32 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// Each 8×8 matrix transposed.
__device__ __forceinline__ void store_matrices_turned(u32 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void load_matrices(u32 (&v)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at) : "memory");
}
