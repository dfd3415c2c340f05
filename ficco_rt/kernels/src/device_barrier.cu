// A barrier between devices: a device signals semaphores of others and waits for its own, in the order of a list.
//
// A device counts the runs in a semaphore of its own. To signal a semaphore is to write this count to it; to wait for a
// semaphore is to wait until it has reached this count. So no such semaphore is ever reset, a device may signal a
// semaphore again before another one has looked, and a replayed graph needs no number of the host's. Counts may wrap
// around: 32 bits tell which of two is ahead as long as they are less than 2^31 apart, and of runs that are counted no
// device is ever more than one ahead.
//
// One warp: it must find room on a multiprocessor beside anything. What the device did before the launch is seen by
// whoever has seen a semaphore that is signalled here (release); what others did before they signalled a semaphore is
// seen by what the device does behind the launch (acquire).

#include "device_barrier.h"
#include "memory_order.h"

#ifdef __HIP__
#define CONSTANT
__device__ __forceinline__ void together() { __syncthreads(); }
#else
#define CONSTANT __grid_constant__
__device__ __forceinline__ void together() { __syncwarp(); }
#endif

__device__ __forceinline__ bool reached(unsigned semaphore, unsigned run) { return (int)(semaphore - run) >= 0 || (semaphore & 1); }

extern "C" __global__ void __launch_bounds__(32) device_barrier(const CONSTANT BarrierList list) {
    const int lane = threadIdx.x;
    unsigned *runs = (unsigned *)list.runs;
    unsigned run = load_acquire(runs);
    for (int first = 0, end; first < list.count; first = end) {
        const int kind = list.steps[first].kind;
        for (end = first + 1; end < list.count && list.steps[end].kind == kind;) end++;
        together();  // whatever stands before a step is done before it
        if (kind == BARRIER_COUNT) {
            run += BARRIER_RUN;
            if (lane == 0) store_relaxed(runs, run);
        } else if (kind == BARRIER_RESET) {
            for (int s = first; s < end; s++)
                for (int w = lane; w < list.steps[s].count; w += 32)
                    store_relaxed((unsigned *)list.steps[s].address + w, 0u);
        } else {  // steps of a kind have no order: each lane takes some
            for (int s = first + lane; s < end; s += 32)
                for (int w = 0; w < list.steps[s].count; w++) {
                    unsigned *semaphore = (unsigned *)list.steps[s].address + w;
                    if (kind == BARRIER_SIGNAL) store_release(semaphore, run);
                    else
                        while (!reached(load_acquire(semaphore), run)) nap();
                }
        }
    }
}
