// See gemms.h.
#include "gemms.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64, NO_TYPE = -1 };

typedef struct {                     // the kernel's one argument
    uint64_t at[4], workspace;       // A, B, C, D
    MatrixLayout layout[4];
    int transposed[2];
    float beta;
    uint64_t bias;                   // 0: none
    bool gelu;
    int mode[2];
    uint64_t scales[2];              // 0: none
} Call_;
typedef struct { uint64_t at[2]; MatrixLayout layout[2]; int turned; } Transform_;

static int type_at(int type) {
    switch (type) {
    case 14: return BF16;
    case 2: return FP16;
    case 0: return FP32;
    case 28: return FP8_E4M3;
    case 29: return FP8_E5M2;
    }
    return NO_TYPE;
}
static bool is_fp8(const MatrixLayout *l) { return l->type == 28 || l->type == 29; }

// ---------------------------------------------------------------- descriptors

static int made_of(Kind kind, void *object, void **handle_in_object, void **made) {
    *made = *handle_in_object = handle_of(kind, object);
    return GEMM_OK;
}
int library_new(Device *d, void **made) {
    if (!d) return GEMM_FAILED;
    Library *l = calloc(1, sizeof *l);
    l->device = d;
    return made_of(LIBRARY, l, &l->handle, made);
}
int library_gone(void *handle, const char *who) {
    Library *l = object_of(LIBRARY, handle, who);
    if (!l) return GEMM_BAD;
    handle_gone(handle);
    free(l);
    return GEMM_OK;
}
int layout_new(int type, uint64_t rows, uint64_t columns, int64_t pitch, void **made) {
    if (type_at(type) == NO_TYPE || !rows || !columns || pitch < (int64_t)rows) return GEMM_BAD;
    MatrixLayout *l = calloc(1, sizeof *l);
    l->type = type, l->rows = rows, l->columns = columns, l->pitch = pitch;
    return made_of(DESCRIPTOR, l, &l->handle, made);
}
int product_new(void **made) {
    Product *p = calloc(1, sizeof *p);
    return made_of(DESCRIPTOR, p, &p->handle, made);
}
int product_told(Product *p, bool bias, const void *value, size_t bytes) {
    if (bias) return bytes == 8 ? memcpy(&p->bias, value, 8), GEMM_OK : GEMM_BAD;
    if (bytes != 4) return GEMM_BAD;
    memcpy(&p->epilogue, value, 4);
    return p->epilogue == 1 || p->epilogue == 4 || p->epilogue == 32 || p->epilogue == 36 ? GEMM_OK : GEMM_BAD;
}
int transform_new(void **made) {
    Transform *t = calloc(1, sizeof *t);
    return made_of(DESCRIPTOR, t, &t->handle, made);
}
int preference_new(void **made) {
    Preference *p = calloc(1, sizeof *p);
    p->reductions = 7;               // cuBLASLt: none; in place, in the output's type; in the computation's; in the output's
    for (int i = 0; i < 4; i++) p->alignment[i] = 256;   // as cuBLASLt takes it where nobody says
    return made_of(DESCRIPTOR, p, &p->handle, made);
}
int descriptor_gone(void *handle, const char *who) {
    void *object = object_of(DESCRIPTOR, handle, who);
    if (!object) return GEMM_BAD;
    handle_gone(handle);
    free(object);
    return GEMM_OK;
}

// ---------------------------------------------------------------- algorithms

static bool all_of(void *product, void *const layouts[4], const char *who, Product **p, MatrixLayout *l[4]) {
    *p = object_of(DESCRIPTOR, product, who);
    for (int i = 0; i < 4; i++) l[i] = object_of(DESCRIPTOR, layouts[i], who);
    return *p && l[0] && l[1] && l[2] && l[3];
}

// Whether matrices of these layouts can be multiplied: their extents, and the types that both libraries take.
static int fitting(const Product *p, MatrixLayout *const l[4]) {
    uint64_t m = p->transposed[0] ? l[0]->columns : l[0]->rows, k = p->transposed[0] ? l[0]->rows : l[0]->columns;
    uint64_t n = p->transposed[1] ? l[1]->rows : l[1]->columns, depth = p->transposed[1] ? l[1]->columns : l[1]->rows;
    if (k != depth || l[3]->rows != m || l[3]->columns != n) return GEMM_BAD;
    if (l[2]->rows != m || l[2]->columns != n || l[2]->type != l[3]->type) return GEMM_BAD;
    if (is_fp8(l[0]) && is_fp8(l[1])) {   // as cuBLASLt 13.1 on an H200
        bool blocks = p->mode[0] > 3, outer = p->mode[0] == 3;
        if (!p->transposed[0] || p->transposed[1] || (l[0]->type == 29 && l[1]->type == 29) || is_fp8(l[3])) return GEMM_UNSUPPORTED;
        if (p->mode[1] > 3 ? !blocks || p->mode[0] + p->mode[1] == 10 : blocks || outer != (p->mode[1] == 3)) return GEMM_UNSUPPORTED;
        if (k % 16 || m * (uint64_t)type_bytes((Type)type_at(l[3]->type)) % 16) return GEMM_UNSUPPORTED;
        if (blocks && (p->fast || m % 4 || n % 4)) return GEMM_UNSUPPORTED;
        return p->epilogue & 4 && !l[3]->type ? GEMM_UNSUPPORTED : GEMM_OK;
    }
    if (l[0]->type != l[1]->type || p->fast || p->mode[0] || p->mode[1]) return GEMM_UNSUPPORTED;
    return l[3]->type == l[0]->type || l[3]->type == 0 ? GEMM_OK : GEMM_UNSUPPORTED;
}

static uint16_t hash_of(const Product *p, MatrixLayout *const l[4]) {
    uint64_t h = (uint64_t)(p->transposed[0] + 2 * p->transposed[1] + 4 * p->epilogue) + 1;
    h += (uint64_t)(p->mode[0] + 8 * p->mode[1] + 64 * p->fast) << 16;
    for (int i = 0; i < 4; i++) {
        const uint64_t parts[] = {(uint64_t)l[i]->type, l[i]->rows, l[i]->columns, (uint64_t)l[i]->pitch};
        for (int j = 0; j < 4; j++) h = (h ^ parts[j]) * 0x100000001B3ull;
    }
    return (uint16_t)(h >> 32);
}

int algorithm_found(void *library, void *product, void *const layouts[4], void *preference, Algorithm *found,
                    const char *who) {
    const Library *l = object_of(LIBRARY, library, who);
    const Preference *wanted = object_of(DESCRIPTOR, preference, who);
    Product *p;
    MatrixLayout *matrices[4];
    if (!l || !wanted || !all_of(product, layouts, who, &p, matrices)) return GEMM_BAD;
    memset(found, 0, sizeof *found);
    int code = fitting(p, matrices);
    if (code == GEMM_UNSUPPORTED || wanted->workspace < TOKENS) return GEMM_OK;
    if (code) return code;
    if (wanted->reductions & 5 && matrices[3]->type) violation("%s: partial sums may be rounded", who);
    *found = (Algorithm){(uint16_t)l->device->ordinal, hash_of(p, matrices), {0}, 1, TOKENS};
    for (int i = 0; i < 3; i++) found->alignment[i] = (uint16_t)wanted->alignment[i < 2 ? i : 3];
    return GEMM_OK;
}

bool algorithm_other(const Algorithm *first, Algorithm *other) {
    *other = *first;
    other->kind = 2;
    return world.gemm[1][0] > 0;
}

// ---------------------------------------------------------------- the kernel

static int open_call(Launch *l) {
    const Call_ *c = (const Call_ *)l->arguments;
    uint64_t *token = l->state = malloc(sizeof *token);
    *token = drawn(1ull << 32) << 1 | 1;
    return memory_reach(l->device, c->workspace, TOKENS) ? ILLEGAL_ADDRESS : OK;
}
static int part_of(Launch *l, int block, int round) {
    (void)l, (void)block;
    return round < 3 ? round : -1;
}
static bool always(Launch *l, int tile) { return (void)l, (void)tile, true; }

static int element(const Launch *l, const Call_ *c, int side, uint64_t row, uint64_t column, uint64_t *at) {
    const MatrixLayout *m = &c->layout[side];
    int item = type_bytes((Type)type_at(m->type));
    *at = c->at[side] + (row + column * (uint64_t)m->pitch) * (uint64_t)item;
    return memory_reach(l->device, *at, (uint64_t)item) ? ILLEGAL_ADDRESS : OK;
}

// The scale of an element at a place of K, in a column of the stored matrix.
static int scale_at(const Launch *l, const Call_ *c, int side, uint64_t k, uint64_t column, uint64_t depth, float *scale) {
    uint64_t columns = c->layout[side].columns, pitch = ((depth + 127) / 128 + 3) / 4 * 4, at = c->scales[side];
    *scale = 1;
    if (!at) return OK;
    at += 4 * (c->mode[side] == 0 ? 0 : c->mode[side] == 3 ? column : c->mode[side] == 4 ? column + k / 128 * columns
                                                                                         : k / 128 + column / 128 * pitch);
    if (memory_reach(l->device, at, 4)) return ILLEGAL_ADDRESS;
    *scale = *(const float *)at;
    return OK;
}

static int multiply(Launch *l, const Call_ *c) {
    const MatrixLayout *a = &c->layout[0], *d = &c->layout[3];
    Type in = (Type)type_at(a->type), other = (Type)type_at(c->layout[1].type), out = (Type)type_at(d->type);
    uint64_t depth = c->transposed[0] ? a->rows : a->columns, at;
    memory_settle();   // a kernel that begins sees what came before it
    for (uint64_t j = 0; j < d->columns; j++)
        for (uint64_t i = 0; i < d->rows; i++) {
            float sum = 0;
            for (uint64_t k = 0; k < depth; k++) {
                if (element(l, c, 0, c->transposed[0] ? k : i, c->transposed[0] ? i : k, &at)) return ILLEGAL_ADDRESS;
                float x = number_load(in, (void *)at);
                if (element(l, c, 1, c->transposed[1] ? j : k, c->transposed[1] ? k : j, &at)) return ILLEGAL_ADDRESS;
                float first = 1, second = 1;
                if (c->scales[0] && (scale_at(l, c, 0, k, i, depth, &first) || scale_at(l, c, 1, k, j, depth, &second)))
                    return ILLEGAL_ADDRESS;
                sum += x * number_load(other, (void *)at) * first * second;
            }
            if (c->beta != 0) {
                if (element(l, c, 2, i, j, &at)) return ILLEGAL_ADDRESS;
                sum += c->beta * number_load(out, (void *)at);
            }
            if (c->bias) {
                at = c->bias + i * (uint64_t)type_bytes(out);
                if (memory_reach(l->device, at, (uint64_t)type_bytes(out))) return ILLEGAL_ADDRESS;
                sum += number_load(out, (void *)at);
            }
            if (element(l, c, 3, i, j, &at)) return ILLEGAL_ADDRESS;
            kernel_store(l, out, at, c->gelu ? number_applied(GELU_TANH, sum) : sum);
        }
    return OK;
}

static int run_part(Launch *l, int part) {
    const Call_ *c = (const Call_ *)l->arguments;
    uint64_t *workspace = (uint64_t *)c->workspace;
    if (part == 0) *workspace = *(uint64_t *)l->state;
    if (part == 2 && *workspace != *(uint64_t *)l->state) violation("products at work at once share a workspace");
    return part == 1 ? multiply(l, c) : OK;
}

static const KernelCode code_of_calls = {
    "library_matmul", false, {sizeof(Call_)}, open_call, part_of, always, run_part, false, NULL, NULL};

static int open_transform(Launch *l) { return (void)l, OK; }
static int one_part(Launch *l, int block, int round) { return (void)l, (void)block, round ? -1 : 0; }
static int transform(Launch *l, int part) {
    const Transform_ *c = (const Transform_ *)l->arguments;
    (void)part;
    memory_settle();
    for (uint64_t j = 0; j < c->layout[1].columns; j++)
        for (uint64_t i = 0; i < c->layout[1].rows; i++) {
            uint64_t row = c->turned ? j : i, column = c->turned ? i : j;
            uint64_t from = c->at[0] + 4 * (row + column * (uint64_t)c->layout[0].pitch);
            uint64_t to = c->at[1] + 4 * (i + j * (uint64_t)c->layout[1].pitch);
            if (memory_reach(l->device, from, 4) || memory_reach(l->device, to, 4)) return ILLEGAL_ADDRESS;
            kernel_store(l, FP32, to, *(const float *)from);
        }
    return OK;
}

static const KernelCode code_of_transforms = {
    "library_transform", false, {sizeof(Transform_)}, open_transform, one_part, always, transform, false, NULL, NULL};
enum { TRANSFORMS = 3 };

static Function *function_of(Device *d, int kind) {
    static Module modules[MAX_DEVICES];
    static Function functions[MAX_DEVICES][3];
    Function *f = &functions[d->ordinal][kind - 1];
    if (kind < TRANSFORMS) {
        f->registers = world.gemm[kind - 1][0];
        f->dynamic_smem = world.gemm[kind - 1][1];
    }
    modules[d->ordinal].device = d;
    f->module = &modules[d->ordinal];
    f->code = kind == TRANSFORMS ? &code_of_transforms : &code_of_calls;
    f->lazy = 1u << kind;
    strcpy(f->name, f->code->name);
    return f;
}

static int kernel_submitted(Stream *s, int kind, void *call, bool lazy, const char *who) {
    Function *f = function_of(s->device, kind);
    if (lazy && !s->capture && !(s->device->loaded & f->lazy)) {
        if (!stream_idle(s)) violation("%s: it loads its kernel, which may wait for the work before it", who);
        s->device->loaded |= f->lazy;
    }
    void *values[] = {call};
    Launch *made = NULL;
    if (launch_new(f, s, 1, 128, (int)f->dynamic_smem, 1, NULL, values, NULL, 0, &made)) return GEMM_FAILED;
    launch_noted(made, false);
    Command *c = command_new(LAUNCH, s->device);
    c->launch = made;
    return stream_submit(s, c) ? GEMM_FAILED : GEMM_OK;
}

int transform_submitted(void *library, void *transform, uint64_t source, uint64_t target, void *const layouts[2],
                        Device *current, void *stream, const char *who) {
    const Library *library_ = object_of(LIBRARY, library, who);
    Stream *s = object_of(STREAM, stream, who);
    const Transform *t = object_of(DESCRIPTOR, transform, who);
    const MatrixLayout *from = object_of(DESCRIPTOR, layouts[0], who), *to = object_of(DESCRIPTOR, layouts[1], who);
    if (!library_ || !s || !t || !from || !to || from->type || to->type) return GEMM_BAD;
    if (s->device->sick) return GEMM_FAILED;
    if (library_->device != s->device || current != s->device)
        violation("%s: the handle, the stream and the current device are not of one device", who);
    if (to->rows != (t->turned ? from->columns : from->rows) || to->columns != (t->turned ? from->rows : from->columns))
        return GEMM_BAD;
    Transform_ call = {{source, target}, {*from, *to}, t->turned};
    return kernel_submitted(s, TRANSFORMS, &call, true, who);
}

int product_submitted(void *library, void *product, const float *alpha, const float *beta, uint64_t const at[4],
                      void *const layouts[4], const Algorithm *algorithm, uint64_t workspace, uint64_t bytes, Device *current,
                      void *stream, bool lazy, const char *who) {
    const Library *library_ = object_of(LIBRARY, library, who);
    Stream *s = object_of(STREAM, stream, who);
    Product *p;
    MatrixLayout *l[4];
    if (!library_ || !s || !all_of(product, layouts, who, &p, l)) return GEMM_BAD;
    if (s->device->sick) return GEMM_FAILED;
    if (library_->device != s->device || current != s->device)
        violation("%s: the handle, the stream and the current device are not of one device", who);
    if (!algorithm || algorithm->kind < 1 || algorithm->kind > 2 || algorithm->ld_hash != hash_of(p, l) ||
        algorithm->device != s->device->ordinal || bytes < algorithm->workspace || fitting(p, l))
        return GEMM_BAD;
    for (int i = 0; i < 3; i++)   // of A, B and D
        if (at[i < 2 ? i : 3] % algorithm->alignment[i]) violation("%s: an operand is aligned less than was said", who);
    if (*alpha != 1 || (*beta != 0 && *beta != 1) || (*beta == 0 && at[2] != at[3])) violation("%s: alpha, beta or C", who);
    uint64_t bias = p->epilogue & 4 ? p->bias : 0;
    if (p->epilogue & 4 && (!bias || bias % algorithm->alignment[2])) violation("%s: the bias's address", who);
    for (int i = 0; i < 2; i++)
        if (p->scales[i] % (p->mode[i] ? 16 : 4)) violation("%s: the address of scales", who);
    Call_ call = {{at[0], at[1], at[2], at[3]}, workspace, {{0}}, {p->transposed[0], p->transposed[1]}, *beta, bias,
                  (p->epilogue & 32) != 0, {p->mode[0], p->mode[1]}, {p->scales[0], p->scales[1]}};
    for (int i = 0; i < 4; i++) call.layout[i] = *l[i];
    return kernel_submitted(s, algorithm->kind, &call, lazy, who);
}
