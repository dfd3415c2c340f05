// The naive GEMM, sum and copy (ficco_rt/kernels/src/naive.cu), from the tables that a launch is given.
#include "../../../ficco_rt/kernels/src/works.h"
#include "../../../ficco_rt/kernels/src/copy_rows.h"
#include "../../../ficco_rt/kernels/src/device_barrier.h"
#include "standin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 128, REDUCE_TILE = 512, BLOCK_TILE = 32 };
typedef struct { Type in, right, out; bool scaled; Applied function; } State;

static const char *const type_names[TYPES] = {"bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2"};

static int type_at(const char *name, const char **rest) {
    for (int t = 0; t < TYPES; t++)
        if (!strncmp(name, type_names[t], strlen(type_names[t]))) return *rest = name + strlen(type_names[t]), t;
    return -1;
}

static int open_table(Launch *l) {
    const Table *t = (const Table *)l->arguments;
    return memory_reach(l->device, t->works, 1) || memory_reach(l->device, t->counters, 8) ? ILLEGAL_ADDRESS : OK;
}

// The types stand in the entry's name, and the function of sums: naive_gemm_<in>[_<right>]_<out>[_scaled][_gelu],
// naive_reduce_<out>[_gelu], naive_quantize_<in>_<out>[_gelu].
static int open_types(Launch *l, const char *rest, bool two) {
    State *s = l->state = malloc(sizeof *s);
    int in = type_at(rest, &rest), right = in, out = two && *rest == '_' ? type_at(rest + 1, &rest) : in;
    const char *more = rest;
    int third = two && *rest == '_' ? type_at(rest + 1, &more) : -1;
    if (third >= 0) rest = more, right = out, out = third;
    if ((s->scaled = !strncmp(rest, "_scaled", 7))) rest += 7;
    s->function = function_named(kernel_name(l));
    if (in < 0 || out < 0 || !*rest == !!s->function) {
        violation("kernel %s: its name tells no types", l->function->name);
        return LAUNCH_FAILED;
    }
    s->in = (Type)in, s->right = (Type)right;
    s->out = (Type)out;
    return open_table(l);
}
static int open_gemm(Launch *l) { return open_types(l, kernel_name(l) + strlen("naive_gemm_"), true); }
static int open_reduce(Launch *l) { return open_types(l, kernel_name(l) + strlen("naive_reduce_"), false); }

static int open_quantize(Launch *l) { return open_types(l, kernel_name(l) + strlen("naive_quantize_"), true); }

static int tile_of(Launch *l, int block, int round) {
    const Table *t = (const Table *)l->arguments;
    uint32_t *counters = (uint32_t *)t->counters;
    int64_t tile = t->ordered ? counters[0]++ : (int64_t)round * l->grid + block;
    if (tile < t->tiles) return (int)tile;
    if ((t->ordered || t->reset_count) && ++counters[1] == (uint32_t)l->grid) {
        counters[0] = counters[1] = 0;
        const uint64_t *flags = (const uint64_t *)t->flags + t->reset_first;
        for (int i = 0; i < t->reset_count; i++) launch_lowers(l, flags[i]);
    }
    return -1;
}

static uint64_t resolve(const Table *t, uint64_t place) {
    if (place >> PLACE_BITS >= sizeof t->bases / sizeof *t->bases) return violation("naive kernel: no base of number %d", (int)(place >> PLACE_BITS)), 0;
    return t->bases[place >> PLACE_BITS] + (place & ((1ull << PLACE_BITS) - 1));
}

static const Gemm *gemm_of(const Table *t, int tile) {
    const Gemm *w = (const Gemm *)t->works;
    int i = t->count - 1;
    while (i && w[i].first_tile > tile) i--;
    return w + i;
}
static const Reduce *reduce_of(const Table *t, int tile) {
    const Reduce *w = (const Reduce *)t->works;
    int i = t->count - 1;
    while (i && w[i].first_tile > tile) i--;
    return w + i;
}

static const Quantize *quantize_of(const Table *t, int tile) {
    const Quantize *w = (const Quantize *)t->works;
    int i = t->count - 1;
    while (i && w[i].first_tile > tile) i--;
    return w + i;
}

static bool flags_up(const Launch *l, const Sync *s) {
    const Table *t = (const Table *)l->arguments;
    const uint64_t *flags = (const uint64_t *)t->flags + s->first_wait;
    for (int i = 0; i < s->waits; i++)
        if (memory_reach(l->device, flags[i], 4)) return true;  // `run` faults
        else if (!launch_sees(l, flags[i], 1)) return false;
    return true;
}
static int flags_reached(const Launch *l, const Sync *s) {
    const uint64_t *flags = (const uint64_t *)((const Table *)l->arguments)->flags + s->first_wait;
    for (int i = 0; i < s->waits; i++)
        if (memory_reach(l->device, flags[i], 4)) return ILLEGAL_ADDRESS;
    return OK;
}
static bool gemm_ready(Launch *l, int tile) { return flags_up(l, &gemm_of((const Table *)l->arguments, tile)->sync); }
static bool reduce_ready(Launch *l, int tile) {
    return flags_up(l, &reduce_of((const Table *)l->arguments, tile)->sync);
}
static bool quantize_ready(Launch *l, int tile) {
    return flags_up(l, &quantize_of((const Table *)l->arguments, tile)->sync);
}
static bool copy_ready(Launch *l, int tile) {
    const Table *t = (const Table *)l->arguments;
    return flags_up(l, &((const Copy *)t->works)[tile].sync);
}

static int tile_done(const Launch *l, const Sync *s, int counter, int tiles) {
    const Table *t = (const Table *)l->arguments;
    if (!s->signals) return OK;
    uint32_t *done = (uint32_t *)t->counters + 2 + counter;
    if (++*done != (uint32_t)tiles) return OK;
    *done = 0;
    const uint64_t *flags = (const uint64_t *)t->flags + s->first_signal;
    for (int i = 0; i < s->signals; i++) {
        if (memory_reach(l->device, flags[i], 4)) return ILLEGAL_ADDRESS;
        __atomic_store_n((uint32_t *)flags[i], 1, __ATOMIC_RELEASE);
    }
    return OK;
}

static int64_t place(const Table *t, Map map, int64_t index) {
    const Run *r = (const Run *)t->runs + map.first;
    for (int i = 1; i < map.count && index >= r->end; i++) r++;
    return index + r->shift;
}

// A sum with one more term; the last one may be the function's factor.
static float with_term(Applied function, float sum, float term, bool last) {
    return function == SILU_MUL && last ? number_applied(function, sum) * term : sum + term;
}
static float stored(Applied function, float sum) { return function == SILU_MUL ? sum : number_applied(function, sum); }

// What an element of a scaled operand is multiplied by: `mn` counts rows or columns of the result, k along K.
static int scale_of(const Launch *l, const Scales *s, int mn, int k, float *scale) {
    const Table *t = (const Table *)l->arguments;
    int64_t at = place(t, s->map_mn, mn >> s->by) * s->mn + place(t, s->map_k, k >> s->by_k) * s->k;
    uint64_t from = resolve(t, s->place) + (uint64_t)(at * 4);
    if (memory_reach(l->device, from, 4)) return ILLEGAL_ADDRESS;
    *scale = *(const float *)from;
    return OK;
}

static int gemm_run(Launch *l, int tile) {
    const Table *t = (const Table *)l->arguments;
    const State *types = l->state;
    const Gemm *w = gemm_of(t, tile);
    int in = type_bytes(types->in), of = type_bytes(types->right), out = type_bytes(types->out);
    const Scales *scales = (const Scales *)((const Addend *)t->terms + w->first_addend + w->addends);
    float scale = 1;
    if (w->scaled != types->scaled * 2) return violation("%s: a table of %d scaled operands", l->function->name, w->scaled), LAUNCH_FAILED;
    int row = (tile - w->first_tile) / w->columns * TILE, column = (tile - w->first_tile) % w->columns * TILE;
    int rows = w->m - row < TILE ? w->m - row : TILE, columns = w->n - column < TILE ? w->n - column : TILE;
    float *left = malloc(sizeof(float) * (size_t)w->k * 2 * TILE), *right = left + (size_t)w->k * TILE;
    int code = flags_reached(l, &w->sync);
    for (int i = 0; i < rows && !code; i++) {
        int64_t at = place(t, w->map_left_m, row + i) * w->left_m;
        for (int k = 0; k < w->k; k++) {
            uint64_t from = resolve(t, w->left) + (uint64_t)((at + place(t, w->map_left_k, k) * w->left_k) * in);
            if ((code = memory_reach(l->device, from, (uint64_t)in))) break;
            if (w->scaled && (code = scale_of(l, scales, row + i, k, &scale))) break;
            left[(size_t)i * (size_t)w->k + (size_t)k] = number_load(types->in, (void *)from) * scale;
        }
    }
    for (int j = 0; j < columns && !code; j++) {
        int64_t at = place(t, w->map_right_n, column + j) * w->right_n;
        for (int k = 0; k < w->k; k++) {
            uint64_t from = resolve(t, w->right) + (uint64_t)((at + place(t, w->map_right_k, k) * w->right_k) * of);
            if ((code = memory_reach(l->device, from, (uint64_t)of))) break;
            if (w->scaled && (code = scale_of(l, scales + 1, column + j, k, &scale))) break;
            right[(size_t)k * TILE + (size_t)j] = number_load(types->right, (void *)from) * scale;
        }
    }
    for (int i = 0; i < rows && !code; i++) {
        float sums[TILE] = {0};
        for (int k = 0; k < w->k; k++)  // columns inside, which the compiler adds several at a time
            for (int j = 0; j < columns; j++) sums[j] += left[(size_t)i * (size_t)w->k + (size_t)k] * right[(size_t)k * TILE + (size_t)j];
        for (int j = 0; j < columns; j++) {
            float sum = sums[j];
            int64_t element = place(t, w->map_out_m, row + i) * w->out_m + place(t, w->map_out_n, column + j) * w->out_n;
            uint64_t to = resolve(t, w->out) + (uint64_t)(element * out);
            if ((code = memory_reach(l->device, to, (uint64_t)out))) break;
            if (w->accumulate || w->addends) memory_settle();   // its own writes
            if (w->accumulate) sum += number_load(types->out, (void *)to);
            const Addend *a = (const Addend *)t->terms + w->first_addend;
            for (int s = 0; s < w->addends && !code; s++, a++) {
                Type type = (Type)a->type;
                int64_t at = place(t, a->map_m, row + i) * a->m + place(t, a->map_n, column + j) * a->n;
                uint64_t from = resolve(t, a->place) + (uint64_t)(at * type_bytes(type));
                if (!(code = memory_reach(l->device, from, (uint64_t)type_bytes(type))))
                    sum = with_term(types->function, sum, number_load(type, (void *)from), s == w->addends - 1);
            }
            if (code) break;
            kernel_store(l, types->out, to, stored(types->function, sum));
        }
    }
    free(left);
    return code ? code : tile_done(l, &w->sync, w->counter, w->tiles);
}

static int reduce_run(Launch *l, int tile) {
    const Table *t = (const Table *)l->arguments;
    const State *types = l->state;
    const Reduce *w = reduce_of(t, tile);
    const Term *terms = (const Term *)t->terms + w->first_term;
    int item = type_bytes(types->out);
    if (flags_reached(l, &w->sync)) return ILLEGAL_ADDRESS;
    int64_t each = REDUCE_TILE * abs(w->vector), first = (tile - w->first_tile) * each;
    int64_t last = first + each < w->rows * w->columns ? first + each : w->rows * w->columns;
    for (int64_t i = first; i < last; i++) {
        int64_t row = i / w->columns, column = i % w->columns;
        float sum = 0;
        for (int s = 0; s < w->terms; s++) {
            Type type = (Type)terms[s].type;
            uint64_t from = resolve(t, terms[s].place) + (uint64_t)((row * terms[s].pitch + column) * type_bytes(type));
            if (memory_reach(l->device, from, (uint64_t)type_bytes(type))) return ILLEGAL_ADDRESS;
            sum = with_term(types->function, sum, number_load(type, (void *)from), s == w->terms - 1);
        }
        uint64_t to = resolve(t, w->out) + (uint64_t)((row * w->out_pitch + column) * item);
        if (memory_reach(l->device, to, (uint64_t)item)) return ILLEGAL_ADDRESS;
        kernel_store(l, types->out, to, stored(types->function, sum));
    }
    return tile_done(l, &w->sync, w->counter, w->work_tiles);
}

static float scale_for(const Quantize *w, float size, float largest) {
    float scale = w->across ? fmaxf(size, 1e-10f) / largest : fmaxf(size / largest, 1 / (largest * 512));
    return w->pow2 ? exp2f(ceilf((float)log2(fmaxf(scale, 1e-10f)))) : scale;
}

// Elements of a row that have one scale, from the `first` on.
static int quantize_part(Launch *l, const Quantize *w, int64_t row, int first, int count, uint64_t scale_at) {
    const Table *t = (const Table *)l->arguments;
    const State *types = l->state;
    const Term *terms = (const Term *)t->terms + w->first_term;
    float *x = malloc(sizeof *x * (size_t)count), size = 0, largest = types->out == FP8_E4M3 ? 448 : 57344, scale;
    int code = OK;
    for (int i = 0; i < count && !code; i++) {
        float sum = -0.0f;
        for (int s = 0; s < w->terms && !code; s++) {
            Type type = (Type)terms[s].type;
            uint64_t from = resolve(t, terms[s].place) + (uint64_t)((row * terms[s].pitch + first + i) * type_bytes(type));
            if (!(code = memory_reach(l->device, from, (uint64_t)type_bytes(type))))
                sum = with_term(types->function, sum, number_load(type, (void *)from), s == w->terms - 1);
        }
        x[i] = stored(types->function, sum);
        size = fmaxf(size, fabsf(x[i]));
    }
    if (!code && w->given && memory_reach(l->device, resolve(t, w->by), 4)) code = ILLEGAL_ADDRESS;
    if (!code && memory_reach(l->device, scale_at, 4)) code = ILLEGAL_ADDRESS;
    if (!code) kernel_store(l, FP32, scale_at, scale = w->given ? *(const float *)resolve(t, w->by) : scale_for(w, size, largest));
    for (int i = 0; i < count && !code; i++) {
        float q = w->given ? x[i] * (1 / scale) : x[i] / scale;
        q = w->across && !w->given ? fminf(fmaxf(q, -largest), largest) : fmaxf(fminf(q, largest), -largest);
        uint64_t to = resolve(t, w->out) + (uint64_t)(row * w->out_pitch + first + i);
        if (!(code = memory_reach(l->device, to, 1))) kernel_store(l, types->out, to, q);
    }
    free(x);
    return code;
}

static int quantize_run(Launch *l, int tile) {
    const Table *t = (const Table *)l->arguments;
    const Quantize *w = quantize_of(t, tile);
    int blocks = w->across ? (w->columns + w->across - 1) / w->across : 1, each = w->across ? BLOCK_TILE * 4 / type_bytes(((State *)l->state)->in) : 1;
    int64_t first = (int64_t)(tile - w->first_tile) * each, count = (int64_t)w->rows * blocks;
    int code = flags_reached(l, &w->sync);
    for (int64_t i = first; i < first + each && i < count && !code; i++) {
        int64_t row = i / blocks;
        int block = (int)(i % blocks), width = w->across ? w->across : w->columns, left = w->columns - block * width;
        uint64_t line = resolve(t, w->scales) + (uint64_t)(row * w->scale_pitch * 4);
        code = quantize_part(l, w, row, block * width, left < width ? left : width, line + (uint64_t)block * 4);
        for (int pad = blocks; block == blocks - 1 && pad < w->scale_columns && !code; pad++)
            if (!(code = memory_reach(l->device, line + (uint64_t)pad * 4, 4))) kernel_store(l, FP32, line + (uint64_t)pad * 4, 0);
    }
    return code ? code : tile_done(l, &w->sync, w->work, w->work_tiles);
}

static int copy_run(Launch *l, int tile) {
    const Table *t = (const Table *)l->arguments;
    const Copy *w = (const Copy *)t->works + tile;
    if (flags_reached(l, &w->sync)) return ILLEGAL_ADDRESS;
    uint64_t bytes = (uint64_t)w->units * (uint64_t)w->unit;
    for (int row = 0; row < w->rows; row++) {
        uint64_t to = resolve(t, w->to) + (uint64_t)(row * w->to_pitch), from = resolve(t, w->from) + (uint64_t)(row * w->from_pitch);
        if (to % (uint64_t)w->unit || from % (uint64_t)w->unit) return ILLEGAL_ADDRESS;  // a misaligned access faults
        if (memory_reach(l->device, to, bytes) || memory_reach(l->device, from, bytes)) return ILLEGAL_ADDRESS;
        memory_write(l->device, to, (void *)from, bytes);
    }
    return tile_done(l, &w->sync, w->work, w->work_tiles);
}

// ---------------------------------------------------------------- device_barrier.cu: a step is a tile

static const BarrierList *list_of(const Launch *l) { return (const BarrierList *)l->arguments; }
static uint32_t *runs_of(const Launch *l) { return (uint32_t *)list_of(l)->runs; }
static int open_steps(Launch *l) {
    if (list_of(l)->count > (int)(sizeof list_of(l)->steps / sizeof *list_of(l)->steps)) return LAUNCH_FAILED;
    return memory_reach(l->device, list_of(l)->runs, 4) ? ILLEGAL_ADDRESS : OK;
}
static int step_of(Launch *l, int block, int round) {
    (void)block;
    return round < list_of(l)->count ? round : -1;
}
static bool step_ready(Launch *l, int tile) {
    const BarrierStep *s = list_of(l)->steps + tile;
    for (int i = 0; s->kind == BARRIER_WAIT && i < s->count; i++) {
        uint64_t semaphore = s->address + 4 * (uint64_t)i;
        if (memory_reach(l->device, semaphore, 4)) return true;  // `run` faults
        if (!launch_sees(l, semaphore, *runs_of(l)) && !(*(uint32_t *)semaphore & 1)) return false;
    }
    return true;
}
static int step_run(Launch *l, int tile) {
    const BarrierStep *s = list_of(l)->steps + tile;
    if (memory_reach(l->device, s->address, 4 * (uint64_t)s->count)) return ILLEGAL_ADDRESS;
    for (int i = 0; i < s->count; i++) {
        uint32_t *semaphore = (uint32_t *)s->address + i;
        if (s->kind == BARRIER_SIGNAL) __atomic_store_n(semaphore, *runs_of(l), __ATOMIC_RELEASE);
        if (s->kind == BARRIER_RESET) launch_lowers(l, (uint64_t)semaphore);
        if (s->kind == BARRIER_COUNT) *semaphore += BARRIER_RUN;
    }
    return OK;
}

// ---------------------------------------------------------------- copy_rows.cu: a row is a tile

static const CopyRows *rows_of(const Launch *l) { return (const CopyRows *)l->arguments; }
static int open_rows(Launch *l) {
    const CopyRows *c = rows_of(l);
    return c->rows && !(c->width && c->to && c->from) ? LAUNCH_FAILED : OK;
}
static int row_of(Launch *l, int block, int round) {
    return block == 0 && (u64)round < rows_of(l)->rows ? round : -1;
}
static bool row_ready(Launch *l, int tile) {
    (void)l, (void)tile;
    return true;
}
static int row_run(Launch *l, int tile) {
    const CopyRows *c = rows_of(l);
    uint64_t to = c->to + (u64)tile * c->to_pitch, from = c->from + (u64)tile * c->from_pitch;
    if (memory_reach(l->device, to, c->width) || memory_reach(l->device, from, c->width)) return ILLEGAL_ADDRESS;
    memory_write(l->device, to, (void *)from, c->width);
    return OK;
}

// Blocks let the next launch begin as they begin themselves, where none of them may wait.
static bool lets(const Launch *l, bool ended) {
    (void)ended;
    return !((const Table *)l->arguments)->waits;
}

const KernelCode naive_kernels[] = {
    {"device_barrier", false, {sizeof(BarrierList)}, open_steps, step_of, step_ready, step_run, false, NULL, NULL},
    {"copy_rows", false, {sizeof(CopyRows)}, open_rows, row_of, row_ready, row_run, false, NULL, NULL},
    {"naive_gemm_", true, {sizeof(Table)}, open_gemm, tile_of, gemm_ready, gemm_run, true, lets, NULL},
    {"naive_reduce_", true, {sizeof(Table)}, open_reduce, tile_of, reduce_ready, reduce_run, true, lets, NULL},
    {"naive_quantize_", true, {sizeof(Table)}, open_quantize, tile_of, quantize_ready, quantize_run, true, lets, NULL},
    {"naive_copy", false, {sizeof(Table)}, open_table, tile_of, copy_ready, copy_run, true, lets, NULL},
    {0},
};
