// What one device tells others through words of memory, step by step: the list that the kernel `meet` goes through.
#pragma once

#include "integers.h"

// Runs are counted in twos, so that every count is even. A word that is odd was forced up: nobody waits for it.
enum { MEET_RAISE = 0, MEET_WAIT = 1, MEET_RESET = 2, MEET_COUNT = 3, MEET_RUN = 2 };

typedef struct MeetStep {
    u64 address;  // of the first word
    int count;    // words side by side
    int kind;
} MeetStep;

typedef struct MeetList {
    u64 runs;     // the device's count of runs
    int count;    // steps
    int unused;
    MeetStep steps[32];
} MeetList;
