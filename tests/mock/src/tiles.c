// The GEMMs of tensor and matrix cores, from the table of tiles that they share (ficco_rt/kernels/): the Hopper one,
// whose operands are tensor maps, and those that are given addresses and pitches.
#include "../../../ficco_rt/kernels/src/tiles.h"
#include "standin.h"
#include "tensor_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_COLUMNS = 512 };   // of a tile
typedef struct {
    const Table *table;
    const MappedOperands *mapped;    // with infos, or
    const OperandInfo *infos;
    const PitchedOperands *pitched;
    const TileAddends *tile_addends; // null where no work has addends
    const DepthWait *depth_waits;    // null where no piece of K waits
    const Addend *addends;
    const TensorMap *maps;           // or
    const PitchedMatrix *matrices;
    int tile_count, tile_m, tile_n, warps;
    const OperandScales *scales;     // null where operands have none
    Type in, right, out;
    int step;                        // elements of K
    bool blocks;                     // scales of blocks, not of rows
    Applied function;
    bool left_t, right_t;
} State;
typedef struct { uint64_t address, pitch, rows, columns; } Matrix;   // as it is stored; pitch: bytes

static int type_of(const char *name) {
    return !strncmp(name, "bf16", 4) ? BF16 : !strncmp(name, "fp16", 4) ? FP16 : !strncmp(name, "fp32", 4) ? FP32 : -1;
}

// …_<in>[_<right>][_<scaling>][_fast]_<out>_<layout>; only fp8 has what is in brackets.
static bool named_types(State *s, const char *name, const char *end) {
    const char *fp8 = strstr(name, "_fp8_"), *other = fp8 ? strstr(fp8 + 1, "_fp8_") : NULL;
    int in = fp8 ? (fp8[6] == '4' ? FP8_E4M3 : FP8_E5M2) : type_of(end - 12), out = type_of(end - 7);
    if (in < 0 || out < 0) return false;
    s->in = (Type)in, s->out = (Type)out;
    s->right = other ? (other[6] == '4' ? FP8_E4M3 : FP8_E5M2) : s->in;
    s->step = 128 / type_bytes(s->in);
    s->blocks = fp8 && strstr(fp8, "_1x128_");
    return true;
}
static bool scaled(const char *name) { return strstr(name, "_1x128_") || strstr(name, "_row_"); }

// <family>_<rows>x<columns>…[_gelu][_sum]<types>
static int open_tiles(Launch *l, int warps) {
    State *s = l->state = calloc(1, sizeof *s);
    const char *name = l->function->name, *end = name + strlen(name), *digits = strpbrk(strstr(name, "_gemm_"), "123456789");
    if (end - name < 20 || sscanf(digits, "%dx%d", &s->tile_m, &s->tile_n) != 2 || s->tile_n > MAX_COLUMNS
        || !named_types(s, name, end)) {
        violation("kernel %s: its name tells no tile and types", name);
        return LAUNCH_FAILED;
    }
    s->left_t = end[-2] == 't', s->right_t = end[-1] == 't';
    s->function = function_named(name);
    s->warps = warps;
    return OK;
}
static int open_checked(Launch *l) {
    State *s = l->state;
    if (!strstr(l->function->name, "_sum_")) s->tile_addends = NULL;
    else if (memory_reach(l->device, (uint64_t)s->tile_addends, (uint64_t)s->tile_count * sizeof(TileAddends))) return ILLEGAL_ADDRESS;
    return memory_reach(l->device, (uint64_t)s->table->tiles, (uint64_t)s->tile_count * sizeof(Tile));
}
// A launch with less shared memory than its stages take.
static void check_smem(const Launch *l, int stages, bool atoms) {
    const State *s = l->state;
    int columns = atoms && !s->right_t ? (s->tile_n + 63) / 64 * 64 : s->tile_n;
    int needed = stages * 128 * (s->tile_m + columns) + (atoms ? 1024 : 0);
    if (l->smem < needed) violation("%s: %d stages take %d bytes of shared memory, the launch has %d", l->function->name, stages, needed, l->smem);
}
static int open_mapped(Launch *l) {
    // four warps of each consumer store a tile; of one, where consumers take turns
    int code = open_tiles(l, strstr(l->function->name, "_pp_") ? 4 : 4 * (l->block / 128 - 1)), cluster = 0;
    const char *mark = strstr(l->function->name, "_c");
    if (code) return code;
    if (!mark || sscanf(mark, "_c%d", &cluster) != 1 || cluster != l->cluster) {
        violation("kernel %s: launched in clusters of %d", l->function->name, l->cluster);
        return LAUNCH_FAILED;
    }
    State *s = l->state;
    const MappedParameters *p = (const MappedParameters *)l->arguments;
    s->table = &p->table, s->mapped = p->operands, s->infos = p->infos, s->tile_count = p->tile_count;
    s->tile_addends = p->tile_addends, s->addends = p->addends, s->maps = p->addend_maps, s->depth_waits = p->depth_waits;
    if (scaled(l->function->name)) s->scales = (const OperandScales *)(p->addend_maps + 2);
    check_smem(l, p->stages, true);
    return open_checked(l);
}
static int open_pitched(Launch *l, int lanes) {
    int code = open_tiles(l, l->block / lanes);
    if (code) return code;
    State *s = l->state;
    const PitchedParameters *p = (const PitchedParameters *)l->arguments;
    s->table = &p->table, s->pitched = p->operands, s->tile_count = p->tile_count;
    s->tile_addends = p->tile_addends, s->addends = p->addends, s->matrices = p->addend_matrices;
    return open_checked(l);
}
static int open_warps(Launch *l) {
    int code = open_pitched(l, 32);
    if (!code) check_smem(l, ((const PitchedParameters *)l->arguments)->stages, false);
    return code;
}
static int open_waves(Launch *l) { return open_pitched(l, 64); }

static int tile_of(Launch *l, int block, int round) {
    int64_t tile = (int64_t)round * l->grid + block;
    const State *s = l->state;
    if (tile < s->tile_count) return (int)tile;
    const MappedParameters *p = s->mapped ? (const MappedParameters *)l->arguments : NULL;
    if (p && p->reset_count && ++*p->ended == (uint32_t)l->grid) {   // of every block a warp that looks for flags
        *p->ended = 0;
        for (int i = 0; i < p->reset_count; i++) launch_lowers(l, s->table->flags[p->reset_first + i]);
    }
    return -1;
}

static bool up(const Launch *l, int first, int count) {
    const Table *table = ((const State *)l->state)->table;
    uint32_t goal = table->epoch ? *table->epoch : 1;
    for (int i = 0; i < count; i++) {
        uint64_t flag = table->flags[first + i];
        if (memory_reach(l->device, flag, 4)) return true;  // `run` faults
        if (!launch_sees(l, flag, goal) && !(table->abort && *table->abort)) return false;
    }
    return true;
}
static bool ready(Launch *l, int tile) {
    const State *s = l->state;
    const Tile *t = s->table->tiles + tile;
    for (int i = t->k_first, steps = 0; s->depth_waits && steps < t->k_blocks; steps += s->table->depths[i++].blocks)
        if (!up(l, s->depth_waits[i].first, s->depth_waits[i].count)) return false;
    return up(l, t->wait_first, t->wait_count)
           && (!s->tile_addends || up(l, s->tile_addends[tile].wait_first, s->tile_addends[tile].wait_count));
}

static Matrix of_map(const TensorMap *map) {
    const EncodedMap *m = (const EncodedMap *)map;
    return (Matrix){m->magic == TENSOR_MAP ? m->address : 0, m->pitch, m->rows, m->columns};
}

// Elements of a stored row from `column` on, each `apart` floats behind the one before. What is outside of the matrix stays
// as it is: 0, as TMA fills it.
static int load(const Launch *l, const Matrix *m, Type type, int64_t row, int64_t column, int count, float *to, int apart) {
    if (row < 0 || (uint64_t)row >= m->rows) return OK;
    int64_t first = column < 0 ? -column : 0, last = count;
    if (column + last > 0 && (uint64_t)(column + last) > m->columns) last = (int64_t)m->columns - column;
    if (first >= last) return OK;
    uint64_t item = (uint64_t)type_bytes(type), at = m->address + (uint64_t)row * m->pitch + (uint64_t)(column + first) * item;
    if (memory_reach(l->device, at, (uint64_t)(last - first) * item)) return ILLEGAL_ADDRESS;
    for (int64_t i = first; i < last; i++, at += item) to[i * apart] = number_load(type, (void *)at);
    return OK;
}

// Rows of a tile that are there; of one whose operands are tensor maps these tell.
static int rows_of(const State *s, const Tile *t) {
    if (s->mapped || t->out_row + t->rows <= s->pitched[t->operands].rows) return t->rows;
    return s->pitched[t->operands].rows > t->out_row ? s->pitched[t->operands].rows - t->out_row : 0;
}

enum { LEFT = 2, RIGHT = 1 };   // as in OperandInfo.read_only
static size_t left_floats(const State *s, const Tile *t) { return (size_t)s->tile_m * (size_t)t->k_blocks * (size_t)s->step; }
static size_t right_floats(const State *s, const Tile *t) { return (size_t)s->tile_n * (size_t)t->k_blocks * (size_t)s->step; }

// Elements that share a scale times that.
static int scale(const Launch *l, const float *at, float *to, int count, int apart) {
    if (memory_reach(l->device, (uint64_t)at, sizeof *at)) return ILLEGAL_ADDRESS;
    for (int i = 0; i < count; i++) to[i * apart] *= *at;
    return OK;
}

// A tile's operands, `sides` of them: rows of the left one to `a`, steps of the right one to `b`, `tile_n` floats each.
static int read_operands(const Launch *l, const Tile *t, int sides, float *a, float *b) {
    const State *s = l->state;
    Matrix left, right;
    if (s->mapped) {
        left = of_map(&s->mapped[t->operands].left), right = of_map(&s->mapped[t->operands].right);
    } else {
        const PitchedOperands *o = s->pitched + t->operands;
        left = (Matrix){o->left, (uint64_t)o->left_pitch, UINT64_MAX, UINT64_MAX};
        right = (Matrix){o->right, (uint64_t)o->right_pitch, UINT64_MAX, UINT64_MAX};
    }
    const OperandScales *o = s->scales ? s->scales + t->operands : NULL;
    int step = s->step, depth = t->k_blocks * step, wide = s->tile_n, code = OK, k = 0;
    for (const Depth *piece = s->table->depths + t->k_first; k < depth && !code; piece++)
        for (int block = 0; block < piece->blocks && k < depth && !code; block++, k += step) {
            int from = piece->size < 0 ? -block * step : block * step;   // below 0: backwards
            int steps = s->mapped || piece->size - from > step ? step : piece->size - from;
            int64_t ka = piece->left + from, kb = piece->right + from;
            for (int r = 0; sides & LEFT && !s->left_t && r < rows_of(s, t) && !code; r++) {
                int64_t row = t->left_row + r;
                code = load(l, &left, s->in, row, ka, steps, &a[r * depth + k], 1);
                if (o && !code) code = scale(l, o->left + row * o->left_pitch + (s->blocks ? ka / 128 : 0), &a[r * depth + k], steps, 1);
            }
            for (int i = 0; sides & LEFT && s->left_t && i < steps && !code; i++)
                code = load(l, &left, s->in, ka + i, t->left_row, t->rows, &a[k + i], depth);
            for (int c = 0; sides & RIGHT && s->right_t && c < t->cols && !code; c++) {
                int64_t row = t->right_col + c;
                code = load(l, &right, s->right, row, kb, steps, &b[k * wide + c], wide);
                if (o && !code)
                    code = scale(l, o->right + (s->blocks ? row / 128 * o->right_pitch + kb / 128 : row * o->right_pitch), &b[k * wide + c], steps, wide);
            }
            for (int i = 0; sides & RIGHT && !s->right_t && i < steps && !code; i++)
                code = load(l, &right, s->in, kb + i, t->right_col, t->cols, &b[(k + i) * wide], 1);
        }
    return code;
}

// Operands that nothing writes are read before the tile is ready. NOTE a left one that waits for flags is not: somebody may
// still read where the tile is stored.
static int sides_ahead(const State *s, const Tile *t) {
    if (!s->mapped) return 0;
    int sides = (int)s->infos[t->operands].read_only;
    return t->wait_count ? sides & RIGHT : sides;
}
static void read_ahead(Launch *l, int at) {
    const State *s = l->state;
    const Tile *t = s->table->tiles + l->running[at].tile;
    int sides = sides_ahead(s, t);
    if (!sides) return;
    float *a = l->running[at].ahead = calloc(left_floats(s, t) + right_floats(s, t), sizeof *a);
    if (read_operands(l, t, sides, a, a + left_floats(s, t))) free(a), l->running[at].ahead = NULL;   // `run` faults
}

static int multiply(const Launch *l, const Tile *t, float *sums) {
    const State *s = l->state;
    float *a = l->running[l->chosen].ahead;
    int sides = a ? (LEFT | RIGHT) & ~sides_ahead(s, t) : LEFT | RIGHT, depth = t->k_blocks * s->step;
    bool mine = !a;
    if (!a) a = calloc(left_floats(s, t) + right_floats(s, t), sizeof *a);
    float *b = a + left_floats(s, t);
    int code = read_operands(l, t, sides, a, b);
    for (int r = 0; r < t->rows && !code; r++) {   // columns inside, which the compiler adds several at a time
        float *row = sums + r * s->tile_n;
        for (int i = 0; i < depth; i++)
            for (int c = 0; c < t->cols; c++) row[c] += a[r * depth + i] * b[i * s->tile_n + c];
    }
    if (mine) free(a);
    return code;
}

static int add_addends(const Launch *l, int tile, float *sums) {
    const State *s = l->state;
    const Tile *t = s->table->tiles + tile;
    const TileAddends *added = s->tile_addends + tile;
    const Addend *first = s->addends + added->first;
    int code = memory_reach(l->device, (uint64_t)first, (uint64_t)added->count * sizeof(Addend));
    for (const Addend *a = first; !code && a < first + added->count; a++) {
        const PitchedMatrix *m = s->mapped ? NULL : s->matrices + a->matrix;
        Matrix from = m ? (Matrix){m->address, (uint64_t)m->pitch, UINT64_MAX, UINT64_MAX} : of_map(&s->maps[a->matrix]);
        Type type = m && m->item == 4 ? FP32 : type_bytes(s->in) == 1 ? s->out : s->in;
        for (int r = 0; r < rows_of(s, t) && !code; r++) {
            float values[MAX_COLUMNS] = {0}, *row = sums + r * s->tile_n;
            code = load(l, &from, type, a->row + r, a->col, t->cols, values, 1);
            bool factor = s->function == SILU_MUL && a == first + added->count - 1;
            for (int c = 0; c < t->cols; c++)
                row[c] = factor ? number_applied(s->function, row[c]) * values[c] : row[c] + values[c];
        }
    }
    return code;
}

static int store(const Launch *l, const Tile *t, const float *sums) {
    const State *s = l->state;
    uint64_t item = (uint64_t)type_bytes(s->out);
    uint64_t out = s->mapped ? (uint64_t)s->infos[t->operands].out : s->pitched[t->operands].out;
    uint64_t pitch = s->mapped ? (uint64_t)s->infos[t->operands].out_pitch * item : (uint64_t)s->pitched[t->operands].out_pitch;
    for (int r = 0; r < rows_of(s, t) && (!s->mapped || t->out_row + r < s->infos[t->operands].rows); r++) {
        uint64_t row = out + (uint64_t)(t->out_row + r) * pitch + (uint64_t)t->out_col * item;
        if (t->cols && memory_reach(l->device, row, (uint64_t)t->cols * item)) return ILLEGAL_ADDRESS;
        for (int c = 0; c < t->cols; c++) {
            void *to = (void *)(row + (uint64_t)c * item);
            if (t->accumulate) memory_settle();   // its own writes
            float value = sums[r * s->tile_n + c] + (t->accumulate ? number_load(s->out, to) : 0);
            kernel_store(l, s->out, (uint64_t)to, s->function == SILU_MUL ? value : number_applied(s->function, value));
        }
    }
    return OK;
}

static int raise_flags(const Launch *l, const Tile *t) {
    const State *state = l->state;
    const Table *table = state->table;
    if (t->signal < 0) return OK;
    const Signal *s = table->signals + t->signal;
    uint32_t *count = table->signal_counts + t->signal;
    *count += (uint32_t)state->warps;
    if (*count != s->target) return OK;
    *count = 0;
    for (uint32_t i = 0; i < s->flag_count; i++) {
        uint64_t flag = table->flags[s->flag_first + i];
        if (memory_reach(l->device, flag, 4)) return ILLEGAL_ADDRESS;
        __atomic_store_n((uint32_t *)flag, table->epoch ? *table->epoch : 1, __ATOMIC_RELEASE);
    }
    return OK;
}

static int run(Launch *l, int tile) {
    const State *s = l->state;
    const Table *table = s->table;
    const Tile *t = table->tiles + tile;
    for (int i = 0; i < t->wait_count; i++)
        if (memory_reach(l->device, table->flags[t->wait_first + i], 4)) return ILLEGAL_ADDRESS;
    size_t elements = (size_t)s->tile_m * (size_t)s->tile_n;
    float *sums = calloc(elements, sizeof *sums);
    int code = multiply(l, t, sums);
    if (!code && s->tile_addends && s->mapped) code = add_addends(l, tile, sums);
    if (!code && t->splits > 1) {  // parts are added in their order by who comes last
        memcpy(table->partials + (size_t)(t->slot + t->split) * elements, sums, elements * sizeof *sums);
        uint32_t *count = table->split_counts + t->slot * s->warps;
        if (++*count != (uint32_t)t->splits) {
            free(sums);
            return s->mapped ? raise_flags(l, t) : OK;   // there each split stores a share, and counts
        }
        *count = 0;
        memset(sums, 0, elements * sizeof *sums);
        for (int part = 0; part < t->splits; part++)
            for (size_t i = 0; i < elements; i++) sums[i] += table->partials[(size_t)(t->slot + part) * elements + i];
    }
    if (!code && s->tile_addends && !s->mapped) code = add_addends(l, tile, sums);
    if (!code) code = store(l, t, sums);
    free(sums);
    return code ? code : raise_flags(l, t);
}

// A block lets the next launch begin when the loads of its last tile have been asked for.
static bool lets(const Launch *l, bool ended) {
    if (!ended) return false;
    for (int i = 0; i < l->count; i++) {
        int tile = l->running[i].tile;
        if (tile + l->grid < ((const State *)l->state)->tile_count || !ready((Launch *)l, tile)) return false;
    }
    return true;
}

const KernelCode tiled_kernels[] = {
    {"sm90_gemm_", true, {sizeof(MappedParameters)}, open_mapped, tile_of, ready, run, true, lets, read_ahead},
    {"sm80_gemm_", true, {sizeof(PitchedParameters)}, open_warps, tile_of, ready, run, false, NULL, NULL},
    {"mfma_gemm_", true, {sizeof(PitchedParameters)}, open_waves, tile_of, ready, run, false, NULL, NULL},
    {0},
};
