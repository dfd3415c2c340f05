// Rows of bytes inside a device, copied by multiprocessors at the priority of the launch. A graph's own copies have no
// priority: they begin behind all blocks of other kernels.

#include "copy_rows.h"

#ifdef __HIP__
#define CONSTANT
#else
#define CONSTANT __grid_constant__
#endif

template <typename Unit> __device__ void copy(const CopyRows &c) {
    const u64 columns = c.width / sizeof(Unit), step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < columns * c.rows; i += step) {
        const u64 row = i / columns, column = i % columns * sizeof(Unit);
        *(Unit *)(c.to + row * c.to_pitch + column) = *(const Unit *)(c.from + row * c.from_pitch + column);
    }
}

extern "C" __global__ void __launch_bounds__(COPY_THREADS) copy_rows(const CONSTANT CopyRows c) {
    const u64 all = c.to | c.from | c.width | c.to_pitch | c.from_pitch;  // of which each is a multiple of the unit
    if (all % 16 == 0) copy<uint4>(c);
    else if (all % 4 == 0) copy<unsigned>(c);
    else if (all % 2 == 0) copy<unsigned short>(c);
    else copy<unsigned char>(c);
}
