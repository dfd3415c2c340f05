// The epilogue: a warp stores its part of a tile, 16 rows of each 64-row block.
//
// Four ways, by the variant: staged in shared memory and stored as boxes by TMA; staged and THROTTLED, where boxes leave
// one by one among the next tile's steps; or, with STAGING 0, straight from registers; SWAPPED: turned in
// shared memory. Where a piece of the output ends
// inside a box, or other splits store some of its rows, staged rows are copied instead.
#pragma once
#include "../half_floats.cuh"
#include "ptx.cuh"

// THROTTLED: boxes of a warp's part of a tile that are still to be stored.
struct Boxes {
    u32 left;               // a bit for each buffer
    const TensorMap* map;   // where they go: the output, and the first one's column and row
    int x, y;

    // All lanes call it: the first box leaves.
    __device__ __forceinline__ void send(u32 staging) {
        const int i = __ffs(left) - 1;
        left &= left - 1;
        if ((threadIdx.x & 31) == 0)
            store_box(map, x + i % CHUNKS * CHUNK_COLS, y + i / CHUNKS * 64, staging + i * CHUNK_BYTES);
        __syncwarp();
    }
    __device__ __forceinline__ void send_all(u32 staging) {
        while (left) send(staging);
    }
};

typedef float Sums[BLOCKS_M][ACC];

// 16 rows of a warp, and where they go.
struct OutRows {
    int rows, cols;    // how many are stored
    u8* corner;        // address of the first element
    long long pitch;   // bytes
    u32 lanes;         // a bit for each of those lanes whose rows are stored
};

// What the output holds, to the accumulators: a lane's are 2 neighbours of rows r and r + 8 in every 8 columns.
__device__ __forceinline__ void add_output(float (&d)[ACC], const OutRows& to) {
    const int lane = lane_again(), r = lane >> 2, c = (lane & 3) * 2;
    const bool mine = to.lanes >> lane & 1;
    const u8* const row = to.corner + r * to.pitch;
#pragma unroll
    for (int j = 0; j < ACC / 4; ++j) {
        if (mine && 8 * j + c < to.cols) {
            const u8* at = row + (8 * j + c) * OUT_ITEM;
            if constexpr (OUT_FP32) {
                if (r < to.rows) {
                    const float2 v = __ldcg((const float2*)at);
                    d[4 * j] += v.x;
                    d[4 * j + 1] += v.y;
                }
                if (r + 8 < to.rows) {
                    const float2 v = __ldcg((const float2*)(at + 8 * to.pitch));
                    d[4 * j + 2] += v.x;
                    d[4 * j + 3] += v.y;
                }
            } else {
                if (r < to.rows) add_packed(d[4 * j], d[4 * j + 1], __ldcg((const u32*)at));
                if (r + 8 < to.rows) add_packed(d[4 * j + 2], d[4 * j + 3], __ldcg((const u32*)(at + 8 * to.pitch)));
            }
        }
    }
}

// Straight from registers, 16 bytes a lane where the output is not fp32.
__device__ __forceinline__ void store_from_registers(const float (&d)[ACC], const OutRows& to) {
    const int lane = threadIdx.x & 31;
    const bool mine = to.lanes >> lane & 1;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int r = (lane >> 2) + 8 * h, q = lane & 3;
        u8* const row = to.corner + r * to.pitch;
        if constexpr (OUT_FP32) {
#pragma unroll
            for (int j = 0; j < ACC / 4; ++j)
                if (mine && r < to.rows && 8 * j < to.cols)
                    *(float2*)(row + (8 * j + 2 * q) * OUT_ITEM) = make_float2(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]);
        } else {
#pragma unroll
            for (int j = 0; j < ACC / 4; j += 4) {
                u32 v[4];
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    v[i] = 4 * (j + i) < ACC ? pack(d[4 * (j + i) + 2 * h], d[4 * (j + i) + 2 * h + 1]) : 0;
                transpose_in_quad(v, q);
                const int col = (j + q) * 8;
                if (mine && r < to.rows && col < to.cols)
                    *(uint4*)(row + col * OUT_ITEM) = make_uint4(v[0], v[1], v[2], v[3]);
            }
        }
    }
}

// Chunk c of 16 rows to a buffer: 128 bytes of each row, swizzled as TMA wants it.
__device__ __forceinline__ void stage_chunk(const float (&d)[ACC], int c, u32 buffer, int lane) {
    if constexpr (OUT_FP32) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int k = (4 * c + j) * 4;
            if (k >= ACC) break;
            const u32 r = lane >> 2, unit = 2 * j + ((lane & 3) >> 1), half = (lane & 1) * 8;
            const u32 at = buffer + r * 128 + ((unit ^ r) << 4) + half;
            store_shared(at, d[k], d[k + 1]);
            store_shared(at + 1024, d[k + 2], d[k + 3]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const int k = (8 * c + j) * 4;
            if (k >= ACC) break;
            const u32 r = lane & 15, unit = j + (lane >> 4);
            const u32 at = buffer + r * 128 + ((unit ^ (r & 7)) << 4);
            const bool pair = k + 4 < ACC;   // known when compiled: not behind the last 8 columns of some tiles
            store_matrices(at, pack(d[k], d[k + 1]), pack(d[k + 2], d[k + 3]), pair ? pack(d[k + 4], d[k + 5]) : 0,
                           pair ? pack(d[k + 6], d[k + 7]) : 0);
        }
    }
}

// Of a staged chunk, `cols` columns of those rows that are this warp's to store.
__device__ __forceinline__ void copy_chunk(const OutRows& to, int c, int cols, u32 buffer) {
    const int lane = lane_again();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const u32 r = (lane >> 3) + 4 * i, unit = lane & 7;
        if (r < to.rows && unit * (16 / OUT_ITEM) < cols && (to.lanes >> 4 * (r & 7) & 1)) {
            const uint4 v = load_shared(buffer + r * 128 + ((unit ^ (r & 7)) << 4));
            *(uint4*)(to.corner + r * to.pitch + c * 128 + unit * 16) = v;
        }
    }
}

// Through shared memory. `turn` is the buffer to write next. THROTTLED: whole boxes stay in their buffers, and their bits
// are set in `turn`.
__device__ __forceinline__ void store_staged(const float (&d)[ACC], const OutRows& to, const TensorMap* map, int out_row,
                                             int out_col, u32 staging, u32& turn) {
    constexpr int BUFFERS = STAGING > 0 ? STAGING : 1;
    const int lane = lane_again();
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int cols = uniform(min(CHUNK_COLS, to.cols - c * CHUNK_COLS));
        if (cols <= 0) break;
        const u32 buffer = staging + (THROTTLED ? c : turn) * CHUNK_BYTES;
        if constexpr (!THROTTLED) {
            turn = (turn + 1) % BUFFERS;
            if (lane == 0) wait_stores_read<BUFFERS - 1>();
            __syncwarp();
        }
        stage_chunk(d, c, buffer, lane);
        fence_async_shared();
        __syncwarp();
        if (!GROUP_BOXES && to.rows == 16 && cols == CHUNK_COLS && to.lanes == ~0u) {
            if (THROTTLED) turn |= 1u << c;
            else if (lane == 0) store_box(map, out_col + c * CHUNK_COLS, out_row, buffer);
        } else {   // a piece ends inside, or other splits store the rest
            copy_chunk(to, c, cols, buffer);
            // NOTE an empty group keeps the count of groups equal to the count of chunks
            if (!THROTTLED && lane == 0) commit_no_stores();
            __syncwarp();
        }
    }
}

// GROUP_BOXES: a group's part of a tile that ends nowhere inside it, or false. `staging`: the warp's buffers; those of its
// group are free. NOTE in boxes of 16 rows, each stored by a warp, storing takes a multiprocessor 70 cycles a box
__device__ __forceinline__ bool store_whole(const Parameters& p, const Tile& t, const Sums& d, int group, int warp,
                                            u32 staging) {
    const int row = group * 64 * BLOCKS_M;
    if (t.rows < row + 64 * BLOCKS_M || t.cols != TILE_N || t.splits > 1 || t.accumulate) return false;
    const int lane = lane_again();
    const u32 boxes = staging - warp * (STAGING * CHUNK_BYTES), own = boxes + warp * CHUNK_BYTES;
#pragma unroll
    for (int i = 0; i < STAGING; ++i) stage_chunk(d[i / CHUNKS], i % CHUNKS, own + i * 4 * CHUNK_BYTES, lane);
    fence_async_shared();
    named_barrier_sync<128>(1 + group);
    if (lane == 0 && warp < STAGING)
        store_box(&p.operands[t.operands].out, t.out_col + warp % CHUNKS * CHUNK_COLS, t.out_row + row + warp / CHUNKS * 64,
                  boxes + warp * 4 * CHUNK_BYTES);
    __syncwarp();
    return true;
}

// 16 rows of a warp, from `row` of the tile on. `lanes`: a bit for each lane whose rows are stored; `turn` as above.
__device__ __forceinline__ void store_rows(const Parameters& p, const Tile& t, float (&d)[ACC], int row, u32 lanes,
                                           u32 staging, u32& turn) {
    const OperandInfo& info = p.infos[t.operands];
    const int out_row = t.out_row + row, rows = uniform(min(min(16, t.rows - row), info.rows - out_row));
    if (rows <= 0 || lanes == 0) return;
    u8* const corner = info.out + ((long long)out_row * info.out_pitch + t.out_col) * OUT_ITEM;
    const OutRows to = {rows, t.cols, corner, info.out_pitch * OUT_ITEM, lanes};
    if (t.accumulate) add_output(d, to);
    if constexpr (STAGING == 0) store_from_registers(d, to);
    else store_staged(d, to, &p.operands[t.operands].out, out_row, t.out_col, staging, turn);
}

// SWAPPED: a group's columns, whose rows lie along wgmma's columns. It turns some rows of 64 columns at a time in its buffer:
// each warp brings 16 columns. IN_LINES, they store whole lines; otherwise, or where warps may differ in `mine`, each stores
// its own columns. `mine`: a bit for each split of K whose share of `shares` is stored.
__device__ __forceinline__ void store_turned(const Parameters& p, const Tile& t, const float (&d)[BLOCKS_M][ACC], int group,
                                             int warp, u32 shares, u32 mine, u32 staging) {
    const OperandInfo& info = p.infos[t.operands];
    const int lane = threadIdx.x & 31, rows = min(t.rows, info.rows - t.out_row);
    const long long pitch = info.out_pitch * OUT_ITEM;
    const bool apart = !IN_LINES || (PARTS == 1 && t.splits > 1);
    auto meet = [&] {
        if (apart) __syncwarp();
        else named_barrier_sync<128>(1 + group);
    };
    // rows of 128 bytes, swizzled. Of 16 of them, a lane stores 16 bytes of one; apart: in an order without bank conflicts
    const u32 buffer = staging - warp * CHUNK_BYTES, row_of_8 = lane & 7;
    const int own = (lane >> 1 & 3) * 2 + (lane >> 3 & 1) + (lane >> 4) * 8, within = apart ? own : warp * 4 + (lane >> 3);
    const int unit = apart ? warp * 2 + (lane & 1) : lane & 7;
    const u32 to = buffer + ((lane >> 4) * 8 + row_of_8) * 128 + (((warp * 2 + (lane >> 3 & 1)) ^ row_of_8) << 4);
    const u32 from = buffer + within * 128 + ((unit ^ (within & 7)) << 4);
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m) {
        const int col = (group * BLOCKS_M + m) * 64 + 8 * unit;
        u8* const corner = info.out + (t.out_row + within) * pitch + (long long)(t.out_col + col) * OUT_ITEM;
#pragma unroll
        for (int c = 0; c < ACC / 4; c += TURNED / 8) {
            if (8 * c >= rows) break;
#pragma unroll
            for (int i = 0; i < TURNED / 8 && c + i < ACC / 4; i += 2) {
                const int k = 4 * (c + i);
                const bool pair = k + 4 < ACC;
                store_matrices_turned(to + 1024 * i, pack(d[m][k], d[m][k + 1]), pack(d[m][k + 2], d[m][k + 3]),
                                      pair ? pack(d[m][k + 4], d[m][k + 5]) : 0, pair ? pack(d[m][k + 6], d[m][k + 7]) : 0);
            }
            meet();
#pragma unroll
            for (int i = 0; i < TURNED / 8 && c + i < ACC / 4; i += 2) {
                const int row = 8 * (c + i) + within;
                const uint4 v = load_shared(from + 1024 * i);
                if (row < rows && col < t.cols && mine >> (row / 8 * shares / (ACC / 4)) & 1)
                    *(uint4*)(corner + 8 * (c + i) * pitch) = v;
            }
            meet();   // all have read it
        }
    }
}
