// What one device tells others through words of memory, step by step: the list that the kernel `meet` goes through.
#pragma once

#include "integers.h"

enum { MEET_RAISE = 0, MEET_WAIT = 1, MEET_RESET = 2 };

typedef struct MeetStep {
    u64 address;  // of the first word
    int count;    // words side by side
    int kind;
} MeetStep;
