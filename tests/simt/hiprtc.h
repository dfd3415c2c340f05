// What hipRTC knows before a source begins, for clang alone: as much of it as our sources use.

#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define __forceinline__ inline __attribute__((always_inline))

struct Index {
    template <unsigned (*AT)()> struct Of {
        __device__ operator unsigned() const { return AT(); }
    };
};
static __device__ inline unsigned thread_x() { return __builtin_amdgcn_workitem_id_x(); }
static __device__ inline unsigned block_x() { return __builtin_amdgcn_workgroup_id_x(); }
static __device__ inline unsigned blocks_x() {
    return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}
static __device__ const struct { Index::Of<thread_x> x; } threadIdx{};
static __device__ const struct { Index::Of<block_x> x; } blockIdx{};
static __device__ const struct { Index::Of<blocks_x> x; } gridDim{};

static __device__ inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
static __device__ inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
static __device__ inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static __device__ inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static __device__ inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
static __device__ inline float fabsf(float x) { return __builtin_fabsf(x); }
static __device__ inline void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
static __device__ inline void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
static __device__ inline unsigned atomicAdd(unsigned* p, unsigned v) {
    return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
