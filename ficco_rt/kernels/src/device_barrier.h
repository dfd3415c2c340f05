// The steps of a barrier between devices: the list that the kernel `device_barrier` goes through.
#pragma once

#include "integers.h"

// Runs are counted in twos, so that every count is even. A semaphore that is odd was forced up: nobody waits for it.
enum { BARRIER_SIGNAL = 0, BARRIER_WAIT = 1, BARRIER_RESET = 2, BARRIER_COUNT = 3, BARRIER_RUN = 2 };

typedef struct BarrierStep {
    u64 address;  // of the first semaphore
    int count;    // semaphores side by side
    int kind;
} BarrierStep;

typedef struct BarrierList {
    u64 runs;     // the device's count of runs
    int count;    // steps
    int unused;
    BarrierStep steps[32];
} BarrierList;
