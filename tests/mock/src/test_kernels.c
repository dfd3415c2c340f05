// Kernels that tests declare in their schedules: (float *out, const float *in, int count), all by block 0.
#include "standin.h"

#include <string.h>


static int open_nothing(Launch *l) {
    (void)l;
    return OK;
}
static int once(Launch *l, int block, int round) {
    (void)l;
    return round ? -1 : block;
}
static bool always(Launch *l, int tile) {
    (void)l, (void)tile;
    return true;
}
static bool never(Launch *l, int tile) {
    (void)l, (void)tile;
    return false;
}
static int run_double(Launch *l, int tile) {
    if (tile) return OK;
    uint64_t out = ((uint64_t *)l->arguments)[0], in = ((uint64_t *)l->arguments)[1];
    int count = (int)((uint64_t *)l->arguments)[2];
    if (memory_reach(l->device, out, 4 * (uint64_t)count) || memory_reach(l->device, in, 4 * (uint64_t)count))
        return ILLEGAL_ADDRESS;
    for (int i = 0; i < count; i++) ((float *)out)[i] = 2 * ((float *)in)[i];
    return OK;
}
static int run_fault(Launch *l, int tile) {
    (void)l, (void)tile;
    return ILLEGAL_ADDRESS;
}

// (int *seen, const int *word, int value): until the word has come to the value, which the host may write too
static bool is_up(Launch *l, int tile) {
    return tile || *(volatile const int *)((uint64_t *)l->arguments)[1] >= (int)((uint64_t *)l->arguments)[2];
}
static int run_seen(Launch *l, int tile) {
    if (!tile) *(int *)((uint64_t *)l->arguments)[0] = (int)((uint64_t *)l->arguments)[2];
    return OK;
}

// (uint4 *to, const uint4 *from, long long units, long long pause), of tests/simt/on_gpus.py
static int run_before(Launch *l, int tile) {
    const uint64_t *a = (const uint64_t *)l->arguments;
    (void)tile;
    if (memory_reach(l->device, a[0], 16 * a[2]) || memory_reach(l->device, a[1], 16 * a[2])) return ILLEGAL_ADDRESS;
    memcpy((void *)a[0], (void *)a[1], 16 * a[2]);
    return OK;
}
static bool lets_at_once(const Launch *l, bool ended) {
    (void)l, (void)ended;
    return true;
}

const KernelCode test_kernels[] = {
    {"before", false, {8, 8, 8, 8}, open_nothing, once, always, run_before, false, lets_at_once, NULL},
    {"double_it", false, {8, 8, 4}, open_nothing, once, always, run_double, false, NULL, NULL},
    {"faults", false, {8, 8, 4}, open_nothing, once, always, run_fault, false, NULL, NULL},
    {"until_up", false, {8, 8, 4}, open_nothing, once, is_up, run_seen, false, NULL, NULL},
    {"never_ends", false, {8, 8, 4}, open_nothing, once, never, run_double, false, NULL, NULL},
    {0},
};
