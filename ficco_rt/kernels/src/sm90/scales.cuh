// Scales of fp8 operands: those of blocks, which a warp brings into the ring's stages; those of rows, which are applied to
// finished sums; and promotion, by which the sums of a step are added to a tile's.
#pragma once
#include "flags.cuh"

#if SCALES
__device__ __forceinline__ const OperandScales& scales_of(const Parameters& p, int operands) {
    return ((const OperandScales*)(p.addend_maps + 2))[operands];
}
__device__ __forceinline__ float load_scale(const float* p) {   // past L1, as load_partial
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}
#endif

// ---------------------------------------------------------------- scales of blocks: the warp that brings them

#if SCALES == 2
// A warp that fills each stage's scales: of each row of the tile the products of its scale with those of the blocks of
// columns. It copies four steps of 128 at a time, 16 bytes of a row, to shared memory, ahead of their use.
struct ScaleFeeder {
    static constexpr int ROWS = TILE_M / 32;   // of a lane

    const Parameters& p;
    const SharedMemory& memory;
    const int lane = threadIdx.x & 31;
    const u32 four = memory.scales + p.stages * SCALE_BYTES + lane * 16;   // of its rows, four steps; and as many that come next
    int turn = 0;
    RingPlace ring = {0, 1};
    int waited = -1;           // see Feeder
    int addends_waited = -1;
    u32 waits = 0;
    bool begun = false;
    // of a tile
    const float *left, *column;   // its first row's; those of its columns, as the lane reads them
    int left_pitch, rows, right_last;

    __device__ __forceinline__ ScaleFeeder(const Parameters& p, const SharedMemory& memory) : p(p), memory(memory) {}

    __device__ __forceinline__ void wait() {
        if (!begun) wait_launch_before();
        begun = true;
        if (lane == 0)
            while (load_acquire_shared(memory.seen) < waits) __nanosleep(32);
        __syncwarp();
    }

    // Four steps of the lane's rows; behind the tile's last row that one again.
    __device__ __forceinline__ void copy(int group, int buffer) const {
#pragma unroll 2
        for (int r = 0; r < ROWS; ++r) {
            const int row = max(0, min(lane + 32 * r, rows - 1));
            copy_async(four + (buffer * ROWS + r) * 512, left + (long long)row * left_pitch + 4 * group);
        }
        commit_copies();
    }

    __device__ __forceinline__ void fill_stage(int left_k, float right, int right_k) {
        float of_column[SPANNED];
#pragma unroll
        for (int c = 0; c < SPANNED; ++c) of_column[c] = __shfl_sync(~0u, right, 4 * c + right_k % 4);
        float scale[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) load_shared(four + (turn * ROWS + r) * 512 + left_k % 4 * 4, scale[r]);
        barrier_wait(memory.empty + 8 * ring.stage, ring.parity);
        const u32 to = memory.scales + ring.stage * SCALE_BYTES + lane * 4 * SPANNED;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if constexpr (SPANNED == 2)
                store_shared(to + 32 * r * 8, scale[r] * of_column[0], scale[r] * of_column[SPANNED - 1]);
            else
                store_shared(to + 32 * r * 4, scale[r] * of_column[0]);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive_here(memory.full + 8 * ring.stage);
        ring.advance(p.stages);
    }

    // `blocks` steps from these on, up or down.
    __device__ __forceinline__ void feed_piece(int left_k, int right_k, int on, int blocks) {
        int held_left = -1, held_right = -1, ahead = -1;   // which four are held, and which come next
        float right = 0.0f;
        for (; blocks > 0; --blocks, left_k += on, right_k += on) {
            if (right_k / 4 != held_right) {
                held_right = right_k / 4;
                right = load_scale(column + min(4 * held_right + (lane & 3), right_last));
            }
            if (left_k / 4 != held_left) {
                held_left = left_k / 4;
                if (ahead != held_left) copy(held_left, turn ^ 1);
                turn ^= 1;
                ahead = held_left + on;
                wait_copies();
                if (on > 0 ? left_k % 4 + blocks > 4 : left_k % 4 + 1 < blocks) copy(ahead, turn ^ 1);
            }
            fill_stage(left_k, right, right_k);
        }
    }

    __device__ __forceinline__ void feed_tile(int index) {
        const Tile* t = p.table.tiles + index;
        const Quad place = load_quad(t), size = load_quad(&t->rows), wait_for = load_quad(&t->operands);
        const OperandScales& s = scales_of(p, wait_for.x);
        const bool read_only = p.infos[wait_for.x].read_only == 3;
        if (wait_for.w > 0 && wait_for.z != waited) ++waits, waited = wait_for.z;
        if (!read_only) wait();
        left = s.left + place.x * s.left_pitch, left_pitch = (int)s.left_pitch, rows = size.x;
        // lanes 0 to 3 and 4 to 7 read those of a block of columns each
        const long long block = min(place.y / 128 + (lane >> 2 & 1), (place.y + size.y - 1) / 128);
        column = s.right + block * s.right_pitch, right_last = (int)s.right_pitch - 1;
        int piece = size.z;
        for (int b = 0; b < size.w; ++piece) {
            const Quad depth = load_quad(p.table.depths + piece);
            if (p.depth_waits && !read_only && load_pair(p.depth_waits + piece).y > 0) ++waits, wait();
            const int blocks = min(depth.z, size.w - b);
            feed_piece(depth.x / TILE_K, depth.y / TILE_K, depth.w < 0 ? -1 : 1, blocks);
            b += blocks;
        }
        if constexpr (ADDENDS) {   // their stages have no scales
            const Pair flags = load_pair(&p.tile_addends[index].wait_first);
            if (flags.y > 0 && flags.x != addends_waited) ++waits, addends_waited = flags.x;
            for (int left = load_quad(p.tile_addends + index).y * ADDEND_STEPS; left > 0; --left) {
                barrier_wait(memory.empty + 8 * ring.stage, ring.parity);
                if (lane == 0) barrier_arrive_here(memory.full + 8 * ring.stage);
                ring.advance(p.stages);
            }
        }
    }
};

__device__ __forceinline__ void feed_scales(const Parameters& p, const SharedMemory& memory) {
    ScaleFeeder feeder(p, memory);
    for (int index = blockIdx.x; index < p.tile_count; index += gridDim.x) feeder.feed_tile(index);
}
#else
__device__ __forceinline__ void feed_scales(const Parameters& p, const SharedMemory& memory) {}
#endif

// ---------------------------------------------------------------- promotion

// The scales of a thread's two rows of 64 in a step, for each block of columns.
struct RowScales {
    float upper[SPANNED], lower[SPANNED];

    __device__ __forceinline__ void load(u32 from, int row) {
        if constexpr (SPANNED == 2) {
            load_shared(from + row * 8, upper[0], upper[SPANNED - 1]);
            load_shared(from + (row + 8) * 8, lower[0], lower[SPANNED - 1]);
        } else {
            load_shared(from + row * 4, upper[0]);
            load_shared(from + (row + 8) * 4, lower[0]);
        }
    }
};

// Sums of a step to those of a tile. The second block of columns begins at column `edge` of the tile.
__device__ __forceinline__ void promote(float (&d)[ACC], const float (&step)[ACC], const RowScales& scales, int edge) {
#pragma unroll
    for (int j = 0; j < ACC / 4; ++j) {
        if constexpr (BLOCK_SCALES) {
            const bool behind = SPANNED == 2 && 8 * j / UNIFORM * UNIFORM >= edge;
            const float upper = behind ? scales.upper[SPANNED - 1] : scales.upper[0];
            const float lower = behind ? scales.lower[SPANNED - 1] : scales.lower[0];
            d[4 * j] += upper * step[4 * j];
            d[4 * j + 1] += upper * step[4 * j + 1];
            d[4 * j + 2] += lower * step[4 * j + 2];
            d[4 * j + 3] += lower * step[4 * j + 3];
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) d[4 * j + i] += step[4 * j + i];
        }
    }
}

// NOTE the compiler knows no dependency of a value that wgmma makes on the wait for it
__device__ __forceinline__ void hold(float (&step)[ACC]) {
#pragma unroll
    for (int i = 0; i < ACC; ++i) asm volatile("" : "+f"(step[i])::"memory");
}

// ---------------------------------------------------------------- scales of rows

// They are applied to a group's sums of a tile.
__device__ __forceinline__ void scale_sums(const Parameters& p, const Tile& t, float (&d)[BLOCKS_M][ACC], int group) {
#if SCALES == 1
    const OperandScales& s = scales_of(p, t.operands);
    const int lane = threadIdx.x & 31, column = (lane & 3) * 2;
    const int first = group * 64 * BLOCKS_M + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    float of_row[BLOCKS_M][2];
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = t.left_row + max(0, min(first + 64 * m + 8 * h, t.rows - 1));
            of_row[m][h] = load_scale(s.left + row);
        }
#pragma unroll
    for (int j = 0; j < ACC / 4; ++j) {
        float2 v = {0.0f, 0.0f};
        if (8 * j < t.cols) v = __ldcg((const float2*)(s.right + t.right_col + 8 * j + column));
#pragma unroll
        for (int m = 0; m < BLOCKS_M; ++m) {
            d[m][4 * j] *= of_row[m][0] * v.x;
            d[m][4 * j + 1] *= of_row[m][0] * v.y;
            d[m][4 * j + 2] *= of_row[m][1] * v.x;
            d[m][4 * j + 3] *= of_row[m][1] * v.y;
        }
    }
#endif
}
