// The vendors' libraries of GEMMs: what cuBLASLt and hipBLASLt have in common, for launches that call them. Matrices are
// stored column by column. A product is a kernel of one block: it takes its workspace, multiplies, and finds its
// workspace as it has left it. So two products that share one show.
#pragma once
#include "standin.h"

typedef struct { void *handle; Device *device; } Library;
typedef struct { void *handle; int type; uint64_t rows, columns; int64_t pitch; } MatrixLayout;
typedef struct {                     // epilogue 4: a bias, 32: GELU; modes of scales as cuBLASLt numbers them
    void *handle;
    int transposed[2], epilogue, mode[2], fast;
    uint64_t bias, scales[2];
} Product;
typedef struct { void *handle; int turned; } Transform;
typedef struct { void *handle; uint64_t workspace; uint32_t alignment[4], reductions; } Preference;
typedef struct {                     // what an algorithm was found for: it serves nothing else
    uint16_t device, ld_hash, alignment[3];
    uint16_t kind;
    uint32_t workspace;
} Algorithm;                         // 16 bytes: as hipBLASLt has them

int library_new(Device *d, void **made);
int library_gone(void *handle, const char *who);
int layout_new(int type, uint64_t rows, uint64_t columns, int64_t pitch, void **made);
int product_new(void **made);
int product_told(Product *p, bool bias, const void *value, size_t bytes);   // its epilogue, or its bias's address
int transform_new(void **made);
int preference_new(void **made);
int descriptor_gone(void *handle, const char *who);
// `kind` 0: nothing is known for it
int algorithm_found(void *library, void *product, void *const layouts[4], void *preference, Algorithm *found,
                    const char *who);
bool algorithm_other(const Algorithm *first, Algorithm *other);   // whether there is one that is liked less
int product_submitted(void *library, void *product, const float *alpha, const float *beta, uint64_t const at[4],
                      void *const layouts[4], const Algorithm *algorithm, uint64_t workspace, uint64_t bytes, Device *current,
                      void *stream, bool lazy, const char *who);   // lazy: a kernel is loaded when it is called first
int transform_submitted(void *library, void *transform, uint64_t source, uint64_t target, void *const layouts[2],
                        Device *current, void *stream, const char *who);   // of fp32
enum { GEMM_OK, GEMM_BAD, GEMM_UNSUPPORTED, GEMM_FAILED };  // a face has its own codes for these
