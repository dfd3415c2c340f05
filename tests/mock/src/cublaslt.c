// The face of libcublasLt.so: what nvmath.bindings.cublasLt asks for, by name.
#include "gemms.h"

#include <string.h>

enum { NOT_THERE = 1, BAD = 7, FAILED = 13, INTERNAL = 14, UNSUPPORTED = 15 };
static int status(int code) {
    return code == GEMM_OK ? 0 : code == GEMM_BAD ? BAD : code == GEMM_UNSUPPORTED ? UNSUPPORTED : FAILED;
}
#define LT(function)                                                                       \
    static Called called_ = {.name = #function};                                           \
    Call call_ __attribute__((cleanup(leave))) = enter(&called_);                          \
    if (call_.code) return INTERNAL
#define LT_CLOSED(done) int done_ = status(done); return call_.code ? INTERNAL : done_

Device *cuda_here(void);

typedef struct { Algorithm algorithm; char rest[48]; } Lt;
typedef struct { Lt algorithm; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;

size_t cublasLtGetVersion(void) { return 130100; }
size_t cublasLtGetCudartVersion(void) { return 13000; }
const char *cublasLtGetStatusName(int code) {
    switch (code) {
    case NOT_THERE: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case BAD: return "CUBLAS_STATUS_INVALID_VALUE";
    case FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case INTERNAL: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case UNSUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "CUBLAS_STATUS_???";
}
const char *cublasLtGetStatusString(int code) { return cublasLtGetStatusName(code); }

int cublasLtCreate(void **made) {
    LT(cublasLtCreate);
    return status(library_new(cuda_here(), made));
}
int cublasLtDestroy(void *handle) {
    CLOSING(cublasLtDestroy);
    LT_CLOSED(library_gone(handle, called_.name));
}
int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t pitch) {
    LT(cublasLtMatrixLayoutCreate);
    return status(layout_new(type, rows, columns, pitch, made));
}
int cublasLtMatrixLayoutDestroy(void *handle) {
    CLOSING(cublasLtMatrixLayoutDestroy);
    LT_CLOSED(descriptor_gone(handle, called_.name));
}
int cublasLtMatmulDescCreate(void **made, int compute, int scale) {
    LT(cublasLtMatmulDescCreate);
    return compute == 68 && scale == 0 ? status(product_new(made)) : UNSUPPORTED;  // sums and factors in fp32
}
int cublasLtMatmulDescDestroy(void *handle) {
    CLOSING(cublasLtMatmulDescDestroy);
    LT_CLOSED(descriptor_gone(handle, called_.name));
}
int cublasLtMatmulDescSetAttribute(void *handle, int attribute, const void *value, size_t bytes) {
    LT(cublasLtMatmulDescSetAttribute);
    Product *p = object_of(DESCRIPTOR, handle, called_.name);
    if (p && attribute == 15 && bytes == 4) return *(const int *)value > 0 ? 0 : BAD;  // SM_COUNT_TARGET
    if (p && (attribute == 7 || attribute == 8)) return status(product_told(p, attribute == 8, value, bytes));
    if (p && (attribute == 17 || attribute == 18) && bytes == 8) return memcpy(&p->scales[attribute - 17], value, 8), 0;
    if (p && attribute == 25 && bytes == 1) return p->fast = *(const signed char *)value, 0;   // FAST_ACCUM
    if (p && (attribute == 31 || attribute == 32) && bytes == 4) {                             // A_SCALE_MODE, B_…
        int mode = p->mode[attribute - 31] = *(const int *)value;
        return mode == 0 || (mode >= 3 && mode <= 5) ? 0 : BAD;
    }
    if (!p || bytes != 4 || (attribute != 3 && attribute != 4)) return BAD;  // TRANSA, TRANSB
    p->transposed[attribute - 3] = *(const int *)value;
    return 0;
}
int cublasLtMatrixTransformDescCreate(void **made, int scale) {
    LT(cublasLtMatrixTransformDescCreate);
    return scale == 0 ? status(transform_new(made)) : UNSUPPORTED;
}
int cublasLtMatrixTransformDescDestroy(void *handle) {
    CLOSING(cublasLtMatrixTransformDescDestroy);
    LT_CLOSED(descriptor_gone(handle, called_.name));
}
int cublasLtMatrixTransformDescSetAttribute(void *handle, int attribute, const void *value, size_t bytes) {
    LT(cublasLtMatrixTransformDescSetAttribute);
    Transform *t = object_of(DESCRIPTOR, handle, called_.name);
    if (!t || attribute != 2 || bytes != 4) return BAD;                      // TRANSA
    t->turned = *(const int *)value;
    return 0;
}
int cublasLtMatrixTransform(void *library, void *transform, const float *alpha, const void *a, void *la,
                            const float *beta, const void *b, void *lb, void *c, void *lc, void *stream) {
    LT(cublasLtMatrixTransform);
    if (*alpha != 1 || *beta != 0 || b || lb) violation("%s: alpha, beta or B", called_.name);
    void *const layouts[] = {la, lc};
    return status(transform_submitted(library, transform, (uint64_t)a, (uint64_t)c, layouts, cuda_here(), stream, called_.name));
}
int cublasLtMatmulPreferenceCreate(void **made) {
    LT(cublasLtMatmulPreferenceCreate);
    return status(preference_new(made));
}
int cublasLtMatmulPreferenceDestroy(void *handle) {
    CLOSING(cublasLtMatmulPreferenceDestroy);
    LT_CLOSED(descriptor_gone(handle, called_.name));
}
int cublasLtMatmulPreferenceSetAttribute(void *handle, int attribute, const void *value, size_t bytes) {
    LT(cublasLtMatmulPreferenceSetAttribute);
    Preference *p = object_of(DESCRIPTOR, handle, called_.name);
    if (p && attribute == 1 && bytes == 8) return memcpy(&p->workspace, value, 8), 0;  // MAX_WORKSPACE_BYTES
    if (p && attribute == 3 && bytes == 4) return memcpy(&p->reductions, value, 4), 0;   // REDUCTION_SCHEME_MASK
    if (!p || attribute < 5 || attribute > 8 || bytes != 4) return BAD;                // MIN_ALIGNMENT_A_BYTES …
    return memcpy(&p->alignment[attribute - 5], value, 4), 0;
}
int cublasLtMatmulAlgoGetHeuristic(void *library, void *product, void *a, void *b, void *c, void *d, void *preference,
                                   int wanted, Heuristic *found, int *count) {
    LT(cublasLtMatmulAlgoGetHeuristic);
    if (wanted < 1) return BAD;
    memset(found, 0, sizeof *found);
    void *const layouts[] = {a, b, c, d};
    int code = algorithm_found(library, product, layouts, preference, &found->algorithm.algorithm, called_.name);
    found->workspace = found->algorithm.algorithm.workspace;
    *count = !code && found->algorithm.algorithm.kind;
    if (*count && wanted > 1 && algorithm_other(&found->algorithm.algorithm, &found[1].algorithm.algorithm)) {
        found[1].workspace = found->workspace;
        found[1].state = 0;
        *count = 2;
    }
    return code ? status(code) : *count ? 0 : UNSUPPORTED;
}
int cublasLtMatmul(void *library, void *product, const void *alpha, const void *a, void *la, const void *b, void *lb,
                   const void *beta, const void *c, void *lc, void *d, void *ld, const Lt *algorithm, void *workspace,
                   size_t bytes, void *stream) {
    LT(cublasLtMatmul);
    const uint64_t at[] = {(uint64_t)a, (uint64_t)b, (uint64_t)c, (uint64_t)d};
    void *const layouts[] = {la, lb, lc, ld};
    return status(product_submitted(library, product, alpha, beta, at, layouts, &algorithm->algorithm,
                                    (uint64_t)workspace, bytes, cuda_here(), stream, true, called_.name));
}
