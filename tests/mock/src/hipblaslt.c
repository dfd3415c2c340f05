// The face of libhipblaslt.so: what hip.hipblaslt asks for, by name.
#include "gemms.h"

#include <string.h>

enum { BAD = 3, INTERNAL = 6, FAILED = 5, UNSUPPORTED = 7 };   // hipblasStatus_t
enum { OP_N = 111, OP_T = 112, SUMS = 2 };                     // hipblasOperation_t, HIPBLAS_COMPUTE_32F
static int status(int code) {
    return code == GEMM_OK ? 0 : code == GEMM_BAD ? BAD : code == GEMM_UNSUPPORTED ? UNSUPPORTED : FAILED;
}
#define LT(function)                                                                       \
    static Called called_ = {.name = #function};                                           \
    Call call_ __attribute__((cleanup(leave))) = enter(&called_);                          \
    if (call_.code) return INTERNAL
#define LT_CLOSED(done) int done_ = status(done); return call_.code ? INTERNAL : done_

Device *hip_here(void);

typedef struct { Algorithm algorithm; size_t workspace; } Lt;
typedef struct { Lt algorithm; size_t workspace; int state; float waves; int reserved[4]; } Heuristic;

int hipblasLtGetVersion(void *handle, int *version) {
    LT(hipblasLtGetVersion);
    return object_of(LIBRARY, handle, called_.name) ? (*version = 100100, 0) : BAD;
}
int hipblasLtCreate(void **made) {
    LT(hipblasLtCreate);
    return status(library_new(hip_here(), made));
}
int hipblasLtDestroy(void *handle) {
    CLOSING(hipblasLtDestroy);
    LT_CLOSED(library_gone(handle, called_.name));
}
int hipblasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t pitch) {
    LT(hipblasLtMatrixLayoutCreate);
    return status(layout_new(type, rows, columns, pitch, made));
}
int hipblasLtMatrixLayoutDestroy(void *handle) {
    CLOSING(hipblasLtMatrixLayoutDestroy);
    LT_CLOSED(descriptor_gone(handle, called_.name));
}
int hipblasLtMatmulDescCreate(void **made, int compute, int scale) {
    LT(hipblasLtMatmulDescCreate);
    return compute == SUMS && scale == 0 ? status(product_new(made)) : UNSUPPORTED;
}
int hipblasLtMatmulDescDestroy(void *handle) {
    CLOSING(hipblasLtMatmulDescDestroy);
    LT_CLOSED(descriptor_gone(handle, called_.name));
}
int hipblasLtMatmulDescSetAttribute(void *handle, int attribute, const void *value, size_t bytes) {
    LT(hipblasLtMatmulDescSetAttribute);
    Product *p = object_of(DESCRIPTOR, handle, called_.name);
    if (p && (attribute == 2 || attribute == 3)) return status(product_told(p, attribute == 3, value, bytes));
    int operation = *(const int *)value;
    if (!p || bytes != 4 || (attribute != 0 && attribute != 1) || (operation != OP_N && operation != OP_T)) return BAD;
    p->transposed[attribute] = operation == OP_T;
    return 0;
}
int hipblasLtMatmulPreferenceCreate(void **made) {
    LT(hipblasLtMatmulPreferenceCreate);
    int code = status(preference_new(made));
    if (!code) {
        Preference *p = object_of(DESCRIPTOR, *made, called_.name);
        for (int i = 0; i < 4; i++) p->alignment[i] = 2;   // of an element: nobody can say more
        p->reductions = 2;
    }
    return code;
}
int hipblasLtMatmulPreferenceDestroy(void *handle) {
    CLOSING(hipblasLtMatmulPreferenceDestroy);
    LT_CLOSED(descriptor_gone(handle, called_.name));
}
int hipblasLtMatmulPreferenceSetAttribute(void *handle, int attribute, const void *value, size_t bytes) {
    LT(hipblasLtMatmulPreferenceSetAttribute);
    Preference *p = object_of(DESCRIPTOR, handle, called_.name);
    if (!p || attribute != 1 || bytes != 8) return BAD;   // MAX_WORKSPACE_BYTES
    return memcpy(&p->workspace, value, 8), 0;
}
int hipblasLtMatmulAlgoGetHeuristic(void *library, void *product, void *a, void *b, void *c, void *d, void *preference,
                                    int wanted, Heuristic *found, int *count) {
    LT(hipblasLtMatmulAlgoGetHeuristic);
    if (wanted < 1) return BAD;
    memset(found, 0, sizeof *found);
    void *const layouts[] = {a, b, c, d};
    int code = algorithm_found(library, product, layouts, preference, &found->algorithm.algorithm, called_.name);
    found->workspace = found->algorithm.workspace = found->algorithm.algorithm.workspace;
    *count = !code && found->algorithm.algorithm.kind;
    return code ? status(code) : *count ? 0 : UNSUPPORTED;
}
int hipblasLtMatmul(void *library, void *product, const void *alpha, const void *a, void *la, const void *b, void *lb,
                    const void *beta, const void *c, void *lc, void *d, void *ld, const Lt *algorithm, void *workspace,
                    size_t bytes, void *stream) {
    LT(hipblasLtMatmul);
    const uint64_t at[] = {(uint64_t)a, (uint64_t)b, (uint64_t)c, (uint64_t)d};
    void *const layouts[] = {la, lb, lc, ld};
    return status(product_submitted(library, product, alpha, beta, at, layouts, &algorithm->algorithm,
                                    (uint64_t)workspace, bytes, hip_here(), stream, false, called_.name));
}
