// What the stand-in writes into the 128 bytes of a tensor map, for its own kernels to read.
#pragma once
#include <stdint.h>

#define TENSOR_MAP 0x70616D726F736E74ull
typedef struct {
    uint64_t magic, address, columns, rows, pitch;   // elements; pitch: bytes
    uint32_t box_columns, box_rows, type, swizzle;
} EncodedMap;
