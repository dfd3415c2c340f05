// A device raises words of other devices, waits for words of its own and resets them, in the order of a list.
//
// One warp: it must find room on a multiprocessor beside anything. What the device did before the launch is seen by
// whoever has seen a word that is raised here; what others did before they raised a word is seen by what the device
// does behind the launch.

#include "meet.h"

#ifdef __HIP__
__device__ __forceinline__ unsigned load_acquire(const unsigned *p) {
    return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
__device__ __forceinline__ void store_release(unsigned *p, unsigned v) {
    __hip_atomic_store(p, v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
__device__ __forceinline__ void together() { __syncthreads(); }
__device__ __forceinline__ void nap() { __builtin_amdgcn_s_sleep(2); }
#else
__device__ __forceinline__ unsigned load_acquire(const unsigned *p) {
    unsigned v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_release(unsigned *p, unsigned v) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void together() { __syncwarp(); }
__device__ __forceinline__ void nap() { __nanosleep(64); }
#endif

extern "C" __global__ void __launch_bounds__(32) meet(const MeetStep *steps, int count) {
    __threadfence_system();
    for (int i = 0; i < count; i++) {
        const MeetStep step = steps[i];
        unsigned *words = (unsigned *)step.address;
        for (int w = threadIdx.x; w < step.count; w += 32) {
            if (step.kind == MEET_RAISE) store_release(words + w, 1u);
            else if (step.kind == MEET_RESET) store_release(words + w, 0u);
            else
                while (load_acquire(words + w) == 0) nap();
        }
        together();
    }
}
