// What the kernel `copy_rows` copies.
#pragma once

#include "integers.h"

enum { COPY_THREADS = 256, COPY_LOADS = 4 };

typedef struct CopyRows {
    u64 to, from;              // addresses of the first rows
    u64 width, rows;           // bytes of a row
    u64 to_pitch, from_pitch;  // bytes from row to row
} CopyRows;
