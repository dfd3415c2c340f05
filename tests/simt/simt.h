// Blocks of a HIP kernel on the CPU: every thread is a fiber, so that a kernel's indices, barriers and matrix
// instructions can be seen to be right without a GPU. Put before the kernel's source; clang compiles the whole.
//
// Fibers go on in an order drawn from a seed: between two barriers no thread can count on another's pace, not even
// within a wave, which is stricter than the hardware. Blocks run one after another. Memory order is not modelled.

#include "fibers.h"

#define __HIP__ 1
#define __global__
#define __device__
#define __shared__ thread_local  // one OS thread runs one block at a time: all fibers share it
#define __launch_bounds__(...)
#define __forceinline__ inline
#define amdgpu_flat_work_group_size(...)
#define amdgpu_waves_per_eu(...)
#define address_space(n)

namespace simt {

constexpr int MOST = 1024, WAVE = 64;

struct Meeting { int arrived, passed; };

struct Lane : Fiber { Meeting* at; int passed; };

static Lane lanes[MOST];
static int count, current, block, grid;
static Meeting everyone, waves[MOST / WAVE];
static char given[2][MOST][16];  // what lanes bring to a collective; the other half is still being read
static int turn[MOST];           // collectives that a thread has been through

static void meet(Meeting& m, int of) {
    Lane& me = lanes[current];
    const int passed = m.passed;
    if (++m.arrived == of) {
        m.arrived = 0;
        ++m.passed;
        return;
    }
    me.at = &m;
    me.passed = passed;
    yield();
    me.at = nullptr;
}

// false: the block came to a stop, its threads at different barriers
static bool block_runs(int number) {
    block = number;
    everyone = {};
    memset(waves, 0, sizeof waves);
    memset(turn, 0, sizeof turn);
    for (int i = 0; i < count; ++i) {
        lanes[i].at = nullptr;
        make_ready(lanes[i]);
    }
    for (;;) {
        int left = 0, went = 0;
        const int first = (int)draw((uint32_t)count), step = 2 * (int)draw((uint32_t)count / 2) + 1;
        for (int i = 0; i < count; ++i) {  // count is a power of two: an odd step comes by all
            current = (first + i * step) % count;
            Lane& f = lanes[current];
            if (f.ended) continue;
            ++left;
            if (f.at && f.at->passed == f.passed) continue;
            ++went;
            go_on(f);
        }
        if (!left) return true;
        if (!went) return false;
    }
}

// Give a value to the lanes of the wave, and wait until all have given theirs.
template <class T> static const char (*exchange(const T& value))[16] {
    const int half = turn[current]++ % 2;
    memcpy(given[half][current], &value, sizeof value);
    meet(waves[current / WAVE], WAVE);
    return given[half] + current / WAVE * WAVE;
}

template <class T> static T first_lane(T value) {
    T v;
    memcpy(&v, exchange(value)[0], sizeof v);
    return v;
}

// v_mfma_f32_{S}x{S}x{8 or 16}: AMD Instinct MI300 ISA, "Matrix Arithmetic Instructions". Lane l brings row l % S of
// the first operand and column l % S of the second, four of depth from 4 · (l / S).
template <int S, class V, class D> static D mfma(V a, V b, D d) {
    struct Both { V a, b; };
    const int lane = current % WAVE;
    const char(*all)[16] = exchange(Both{a, b});
    for (int i = 0; i < S * S / WAVE; ++i) {
        const int row = i / 4 * (4 * WAVE / S) + lane / S * 4 + i % 4;
        for (int group = 0; group < WAVE / S; ++group) {
            Both left, right;
            memcpy(&left, all[group * S + row], sizeof left);
            memcpy(&right, all[group * S + lane % S], sizeof right);
            for (int k = 0; k < 4; ++k) {
                float x, y;
                if constexpr (__is_same(decltype(a[0] + a[0]), _Float16)) {
                    x = (float)left.a[k], y = (float)right.b[k];
                } else {
                    x = __builtin_bit_cast(float, (uint32_t)(uint16_t)left.a[k] << 16);
                    y = __builtin_bit_cast(float, (uint32_t)(uint16_t)right.b[k] << 16);
                }
                d[i] += x * y;
            }
        }
    }
    return d;
}

template <class T> static T add(T* p, T v) {
    const T old = *p;
    *p += v;
    return old;
}

}  // namespace simt

// names that hipRTC knows
struct SimtIndex { struct { int (*at)(); operator int() const { return at(); } } x; };
static const SimtIndex threadIdx{{[] { return simt::current; }}};
static const SimtIndex blockIdx{{[] { return simt::block; }}};
static const SimtIndex gridDim{{[] { return simt::grid; }}};
#define __syncthreads() simt::meet(simt::everyone, simt::count)
#define __threadfence_system()
#define atomicAdd(p, v) simt::add(p, v)
#define __uint_as_float(x) __builtin_bit_cast(float, (uint32_t)(x))
#define __float_as_uint(x) __builtin_bit_cast(uint32_t, (float)(x))
#define fmaf __builtin_fmaf

#define __builtin_amdgcn_workitem_id_x() (simt::current)
#define __builtin_amdgcn_workgroup_id_x() (simt::block)
#define __builtin_amdgcn_grid_size_x() (simt::grid * simt::count)
#define __builtin_amdgcn_readfirstlane(v) simt::first_lane(v)
#define __builtin_amdgcn_s_barrier() simt::meet(simt::everyone, simt::count)
#define __builtin_amdgcn_fence(order, scope)
#define __builtin_amdgcn_sched_barrier(mask)
#define __builtin_amdgcn_rcpf(x) (1.0f / (x))
#define __builtin_amdgcn_s_sleep(n) simt::yield()
#define __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, d, x, y, z) simt::mfma<32>(a, b, d)
#define __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, d, x, y, z) simt::mfma<32>(a, b, d)
#define __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, d, x, y, z) simt::mfma<16>(a, b, d)
#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, d, x, y, z) simt::mfma<16>(a, b, d)
#define __HIP_MEMORY_SCOPE_SYSTEM 0
#define __HIP_MEMORY_SCOPE_AGENT 0
#define __hip_atomic_load(p, order, scope) (*(p))
#define __hip_atomic_store(p, v, order, scope) (*(p) = (v))
#define __hip_atomic_fetch_add(p, v, order, scope) simt::add(p, v)

// Run `grid` blocks of `threads` (a power of two): KERNEL(*parameters).
#define SIMT_LAUNCH(KERNEL, PARAMETERS)                                                             \
    static const PARAMETERS* simt_parameters;                                                       \
    extern "C" int simt_launch(const void* parameters, int grid, int threads, uint64_t seed) {      \
        simt_parameters = (const PARAMETERS*)parameters;                                            \
        simt::body = [] { KERNEL(*simt_parameters); };                                              \
        simt::count = threads;                                                                      \
        simt::grid = grid;                                                                          \
        simt::state = seed;                                                                         \
        for (int b = 0; b < grid; ++b)                                                              \
            if (!simt::block_runs(b)) return b + 1;                                                 \
        return 0;                                                                                   \
    }
