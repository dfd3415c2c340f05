// The Hopper GEMM (ficco_rt/kernels/src/sm90_gemm.cu), from the table of tiles and the tensor maps of its parameters.
#include "standin.h"
#include "tensor_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned char left[128], right[128], out_map[128]; uint64_t out; int64_t out_pitch; uint64_t unused[6]; } Operands;
typedef struct {
    int left_row, right_col, out_row, out_col, rows, cols, k_first, k_blocks, operands, accumulate;
    int wait_first, wait_count, signal, splits, split, slot;
} Tile;
typedef struct { int left, right, blocks, unused; } Depth;
typedef struct { uint32_t target, flag_first, flag_count, unused; } Signal;
typedef struct {
    Operands operands[4];
    const Tile *tiles;
    const Depth *depths;
    const uint64_t *flags;
    const Signal *signals;
    uint32_t *signal_counts, *split_counts;
    float *partials;
    const uint32_t *epoch, *abort;
    int tile_count, stages;
} Parameters;

enum { TILE_K = 64, PARAMETER_BYTES = 1920 };
typedef struct { int tile_m, tile_n, warps; Type in, out; bool left_t, right_t; } State;

static int type_of(const char *name) {
    return !strncmp(name, "bf16", 4) ? BF16 : !strncmp(name, "fp16", 4) ? FP16 : !strncmp(name, "fp32", 4) ? FP32 : -1;
}

static int open_tiles(Launch *l) {
    State *s = l->state = calloc(1, sizeof *s);
    char in[5] = "", out[5] = "", layout[3] = "";
    int cluster = 0;
    int n = sscanf(l->function->name, "sm90_gemm_%dx%d_c%d_%4[a-z0-9]_%4[a-z0-9]_%2[nt]", &s->tile_m, &s->tile_n, &cluster,
                   in, out, layout);
    if (n != 6 || type_of(in) < 0 || type_of(out) < 0 || cluster != l->cluster) {
        violation("kernel %s: launched with clusters of %d, or no such name", l->function->name, l->cluster);
        return LAUNCH_FAILED;
    }
    s->in = (Type)type_of(in), s->out = (Type)type_of(out);
    s->left_t = layout[0] == 't', s->right_t = layout[1] == 't';
    s->warps = 4 * (l->block / 128 - 1);
    const Parameters *p = (const Parameters *)l->arguments;
    return memory_reach(l->device, (uint64_t)p->tiles, (uint64_t)p->tile_count * sizeof(Tile));
}

static int tile_of(Launch *l, int block, int round) {
    int64_t tile = (int64_t)round * l->grid + block;
    return tile < ((const Parameters *)l->arguments)->tile_count ? (int)tile : -1;
}

static bool ready(Launch *l, int tile) {
    const Parameters *p = (const Parameters *)l->arguments;
    const Tile *t = p->tiles + tile;
    uint32_t goal = p->epoch ? *p->epoch : 1;
    for (int i = 0; i < t->wait_count; i++) {
        uint64_t flag = p->flags[t->wait_first + i];
        if (memory_reach(l->device, flag, 4)) return true;  // `run` reports it
        if ((int32_t)(__atomic_load_n((uint32_t *)flag, __ATOMIC_ACQUIRE) - goal) < 0 && !(p->abort && *p->abort))
            return false;
    }
    return true;
}

// Element (row, column) as stored, 0 outside of the map as TMA fills it.
static int element(const Launch *l, const TensorMap *map, Type type, int64_t row, int64_t column, float *value) {
    *value = 0;
    if (row < 0 || column < 0 || (uint64_t)row >= map->rows || (uint64_t)column >= map->columns) return OK;
    uint64_t at = map->address + (uint64_t)row * map->pitch + (uint64_t)column * (uint64_t)type_bytes(type);
    int code = memory_reach(l->device, at, (uint64_t)type_bytes(type));
    if (!code) *value = number_load(type, (void *)at);
    return code;
}

static int multiply(const Launch *l, const Tile *t, float *sums) {
    const Parameters *p = (const Parameters *)l->arguments;
    const State *s = l->state;
    const Operands *o = p->operands + t->operands;
    const TensorMap *left = (const TensorMap *)o->left, *right = (const TensorMap *)o->right;
    if (left->magic != TENSOR_MAP || right->magic != TENSOR_MAP) return LAUNCH_FAILED;
    int depth = t->k_blocks * TILE_K, code = OK;
    float *a = calloc((size_t)(s->tile_m + s->tile_n) * (size_t)depth, sizeof *a), *b = a + (size_t)s->tile_m * (size_t)depth;
    const Depth *piece = p->depths + t->k_first;
    for (int k = 0, within = 0; k < depth && !code; k++, within++) {
        if (within == piece->blocks * TILE_K) within = 0, piece++;
        int64_t ka = piece->left + within, kb = piece->right + within;
        for (int i = 0; i < t->rows && !code; i++)
            code = s->left_t ? element(l, left, s->in, ka, t->left_row + i, &a[i * depth + k])
                             : element(l, left, s->in, t->left_row + i, ka, &a[i * depth + k]);
        for (int j = 0; j < t->cols && !code; j++)
            code = s->right_t ? element(l, right, s->in, t->right_col + j, kb, &b[j * depth + k])
                              : element(l, right, s->in, kb, t->right_col + j, &b[j * depth + k]);
    }
    for (int i = 0; i < t->rows && !code; i++)
        for (int j = 0; j < t->cols; j++) {
            float sum = 0;
            for (int k = 0; k < depth; k++) sum += a[i * depth + k] * b[j * depth + k];
            sums[i * s->tile_n + j] = sum;
        }
    free(a);
    return code;
}

static int store(const Launch *l, const Tile *t, const float *sums) {
    const State *s = l->state;
    const Operands *o = ((const Parameters *)l->arguments)->operands + t->operands;
    uint64_t item = (uint64_t)type_bytes(s->out);
    for (int i = 0; i < t->rows; i++) {
        uint64_t row = o->out + (uint64_t)((t->out_row + i) * o->out_pitch + t->out_col) * item;
        if (t->cols && memory_reach(l->device, row, (uint64_t)t->cols * item)) return ILLEGAL_ADDRESS;
        for (int j = 0; j < t->cols; j++) {
            void *to = (void *)(row + (uint64_t)j * item);
            float value = sums[i * s->tile_n + j] + (t->accumulate ? number_load(s->out, to) : 0);
            number_store(s->out, to, value);
        }
    }
    return OK;
}

static int raise_flags(const Launch *l, const Tile *t) {
    const Parameters *p = (const Parameters *)l->arguments;
    if (t->signal < 0) return OK;
    const Signal *s = p->signals + t->signal;
    uint32_t *count = p->signal_counts + t->signal;
    *count += (uint32_t)((const State *)l->state)->warps;
    if (*count != s->target) return OK;
    *count = 0;
    for (uint32_t i = 0; i < s->flag_count; i++) {
        uint64_t flag = p->flags[s->flag_first + i];
        if (memory_reach(l->device, flag, 4)) return ILLEGAL_ADDRESS;
        __atomic_store_n((uint32_t *)flag, p->epoch ? *p->epoch : 1, __ATOMIC_RELEASE);
    }
    return OK;
}

static int run(Launch *l, int tile) {
    const Parameters *p = (const Parameters *)l->arguments;
    const State *s = l->state;
    const Tile *t = p->tiles + tile;
    size_t elements = (size_t)s->tile_m * (size_t)s->tile_n;
    float *sums = calloc(elements, sizeof *sums);
    int code = multiply(l, t, sums);
    if (!code && t->splits > 1) {  // parts are added in their order by who comes last
        memcpy(p->partials + (size_t)(t->slot + t->split) * elements, sums, elements * sizeof *sums);
        uint32_t *count = p->split_counts + t->slot * s->warps;
        if (++*count != (uint32_t)t->splits) {
            free(sums);
            return OK;
        }
        *count = 0;
        memset(sums, 0, elements * sizeof *sums);
        for (int part = 0; part < t->splits; part++)
            for (size_t i = 0; i < elements; i++) sums[i] += p->partials[(size_t)(t->slot + part) * elements + i];
    }
    if (!code) code = store(l, t, sums);
    free(sums);
    return code ? code : raise_flags(l, t);
}

const KernelCode sm90_kernels[] = {
    {"sm90_gemm_", true, {PARAMETER_BYTES}, open_tiles, tile_of, ready, run},
    {0},
};
