// Scales of fp8 operands: those of blocks, which a warp brings into the ring's stages; those of rows, which are applied to
// finished sums; and promotion, by which the sums of a step are added to a tile's.
#pragma once
#include "first_tile.cuh"
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

// SCALES 1: where those of a tile are, the `number`th of the block's.
struct TileScales {
    u32 rows, columns, come, read, parity;

    __device__ __forceinline__ TileScales(const SharedMemory& memory, int number) {
        const int buffer = number & 1;
        parity = number >> 1 & 1;
        rows = memory.scales + buffer * (TILE_M + TILE_N) * 4, columns = rows + TILE_M * 4;
        come = memory.full + 8 * (MAX_STAGES + buffer - 2), read = memory.empty + 8 * (MAX_STAGES + buffer - 2);
    }
};

// SCALES 2: where those of some steps of a tile are: of each row, and of each block of columns. `order` is a word: where
// the first step's are in a row, how many steps there may be, and where the next one's are, bytes from one to the other.
struct ScaleSlot {
    u32 rows, columns, order, come, read;

    __device__ __forceinline__ ScaleSlot(const SharedMemory& memory, int slot) {
        rows = memory.scales + slot * TILE_M * SLOT_PITCH;
        columns = memory.scales + SLOTS * TILE_M * SLOT_PITCH + slot * ORDER_BYTES, order = columns + 8 * SLOT_STEPS;
        come = memory.full + 8 * (MAX_STAGES - SLOTS + slot), read = memory.empty + 8 * (MAX_STAGES - SLOTS + slot);
    }
    __device__ __forceinline__ u32 of_row(int row, u32 at) const {   // what is `at` bytes from a row's start
        return rows + row * SLOT_PITCH + (SLOT_PITCH == 64 ? at ^ (row & 6) << 3 : at);
    }
};

// ---------------------------------------------------------------- the warp that brings them

#if SCALES
// What the warp waits for, as the left operand's Feeder: both operands' scales come before what they scale.
struct ScaleWaits {
    const Parameters& p;
    const SharedMemory& memory;
    const int lane = threadIdx.x & 31;
    int waited = -1;
    int addends_waited = -1;
    u32 waits = 0;
    bool begun = false;

    __device__ __forceinline__ ScaleWaits(const Parameters& p, const SharedMemory& memory) : p(p), memory(memory) {}

    __device__ __forceinline__ void wait() {
        if (!begun) wait_launch_before();
        begun = true;
        if (lane == 0)
            while (load_acquire_shared(memory.seen) < waits) __nanosleep(32);
        __syncwarp();
    }
    __device__ __forceinline__ bool begin_tile(const Quad& wait_for) {   // whether its pieces of K may wait, too
        if (wait_for.w > 0 && wait_for.z != waited) ++waits, waited = wait_for.z;
        if (p.infos[wait_for.x].read_only == 3) return false;
        wait();
        return true;
    }
    __device__ __forceinline__ void end_tile(int index) {
        if constexpr (ADDENDS) {
            const Pair flags = load_pair(&p.tile_addends[index].wait_first);
            if (flags.y > 0 && flags.x != addends_waited) ++waits, addends_waited = flags.x;
        }
    }
};
#endif

#if SCALES == 2
// A warp that brings the scales of up to SLOT_STEPS steps of 128 at a time, ahead of their use: a box of the left ones.
// NOTE when a stage is given back, consumers add up what they have multiplied: a warp that wakes up at each step takes its
// cycles from those of its part of the multiprocessor
struct ScaleFeeder : ScaleWaits {
    RingPlace ring = {0, 1};   // of slots
    // of a tile
    int operands, row, rows;
    const float* column;       // those of its columns, as the lane reads them
    int right_last;
    // of a piece of K: its next step, in each operand, up or down, and how many are left
    int piece, left_k, right_k, on, remain;

    __device__ __forceinline__ ScaleFeeder(const Parameters& p, const SharedMemory& memory) : ScaleWaits(p, memory) {}

    __device__ __forceinline__ void walk(const Quad& depth) {
        left_k = depth.x / TILE_K, right_k = depth.y / TILE_K, remain = depth.z, on = depth.w < 0 ? -1 : 1;
    }
    __device__ __forceinline__ void begin_piece(bool waiting) {
        const Quad depth = load_quad(p.table.depths + piece);
        if (waiting && p.depth_waits && load_pair(p.depth_waits + piece).y > 0) ++waits, wait();
        walk(depth);
        ++piece;
    }

    // Steps that the next slot has room for: a box starts at a multiple of four.
    __device__ __forceinline__ int room() const {
        return (left_k + (on < 0)) % 4 ? SLOT_STEPS - 4 : SLOT_STEPS;
    }
    // The rows' of the next `steps`, all of a piece; where the first step's are.
    __device__ __forceinline__ int copy_rows(const ScaleSlot& slot, int steps) const {
        const int low = min(left_k, left_k + on * (steps - 1)) & ~3;
        load_box(slot.rows, p.left_scales + operands, low, row, slot.come);
        return left_k - low;
    }
    // Those of columns, of which the lane copies one; then the slot has all, but for `bytes` that TMA brings.
    __device__ __forceinline__ void end_slot(const ScaleSlot& slot, int of_column, int first, int step, int most,
                                             u32 bytes) const {
        if (lane < SLOT_STEPS * SPANNED)
            store_shared(slot.columns + 4 * lane, load_scale(column + max(0, min(of_column, right_last))));
        if (lane == 0) store_shared(slot.order, __uint_as_float(4 * first | most << 8 | 4 * step << 16));
        __syncwarp();
        barrier_expect(slot.come, bytes);
    }
    // Behind the rows' of the next `steps`, all of a piece.
    __device__ __forceinline__ void end_steps(const ScaleSlot& slot, int first, int steps, int most) {
        end_slot(slot, right_k + on * (lane % SLOT_STEPS), first, on, most, p.infos[operands].scale_bytes);
        left_k += on * steps, right_k += on * steps, remain -= steps;
        ring.advance(SLOTS);
    }

    // The next steps of a tile that has `left`, on their way to the next slot; how many.
    __device__ __forceinline__ int copy_slot(int left, bool waiting) {
        const ScaleSlot slot(memory, ring.stage);
        if (remain == 0) begin_piece(waiting);
        barrier_wait(slot.read, ring.parity);
        const int most = room(), steps = min(most, left);
        if (steps <= remain) {
            end_steps(slot, copy_rows(slot, steps), steps, most);
            return steps;
        }
        const OperandScales& s = scales_of(p, operands);
        int of_column = 0;
#pragma unroll 1
        for (int i = 0; i < steps; ++i) {
            if (remain == 0) begin_piece(waiting);
#pragma unroll 1
            for (int r = lane; r < min(TILE_M, rows); r += 32)
                store_shared(slot.of_row(r, 4 * i), load_scale(s.left + (row + r) * s.left_pitch + left_k));
            if (lane % SLOT_STEPS == i) of_column = right_k;
            left_k += on, right_k += on, --remain;
        }
        fence_async_shared();   // a box comes to the same place later
        end_slot(slot, of_column, 0, 1, most, 0);
        ring.advance(SLOTS);
        return steps;
    }
    // A tile that starts at `from` and `col`; `below`, `right`: where it may end at most.
    __device__ __forceinline__ void begin_steps(int which, int from, int col, int below, int right) {
        operands = which, row = from, rows = below - from;
        const OperandScales& s = scales_of(p, operands);
        // the first and the next SLOT_STEPS lanes read those of a block of columns each
        const long long block = min(col / 128 + lane / SLOT_STEPS, (right - 1) / 128);
        column = s.right + block * s.right_pitch, right_last = (int)s.right_pitch - 1;
    }

    __device__ __forceinline__ void begin_foreseen(const Foreseen& tile) {
        if (p.infos[0].read_only != 3) wait_launch_before();
        begun = true;
        walk(tile.depth);
        begin_steps(0, tile.left_row, tile.right_col, p.first.left_rows, p.first.right_rows);
    }
    __device__ __forceinline__ void foresee_tile() {
        const Foreseen tile(p.first, CLUSTER > 1 ? block_in_cluster() : 0);
        begin_foreseen(tile);
        int b = 0;
        if constexpr (EARLY) {   // load_first_scales has loaded a slot's box
            b = min(room(), tile.depth.z);
            end_steps(ScaleSlot(memory, 0), left_k % 4, b, room());
        }
        while (b < tile.depth.z) b += copy_slot(tile.depth.z - b, false);
    }

    __device__ __forceinline__ void feed_tile(int index) {
        const Tile* t = p.table.tiles + index;
        const Quad place = load_quad(t), size = load_quad(&t->rows), wait_for = load_quad(&t->operands);
        const bool waiting = begin_tile(wait_for);
        piece = size.z, remain = 0;
        begin_steps(wait_for.x, place.x, place.y, place.x + size.x, place.y + size.y);
        for (int b = 0; b < size.w;) b += copy_slot(size.w - b, waiting);
        end_tile(index);
    }
};

// The left ones of the first steps of a block's first tile, ahead of what load_first loads: boxes come in their order.
__device__ __forceinline__ void load_first_scales(const Parameters& p, const SharedMemory& memory, const Foreseen& tile) {
    if (!(p.infos[0].read_only & 2)) wait_launch_before();
    const ScaleSlot slot(memory, 0);
    load_box(slot.rows, p.left_scales, tile.depth.x / TILE_K & ~3, tile.left_row, slot.come);
}

__device__ __forceinline__ void feed_scales(const Parameters& p, const SharedMemory& memory) {
    ScaleFeeder feeder(p, memory);
    int index = blockIdx.x;
    // NOTE the last blocks of a cluster that makes parts of K may have no tile
    if (!ADDENDS && p.first.steps > 0 && index < p.tile_count) feeder.foresee_tile(), index += gridDim.x;
    for (; index < p.tile_count; index += gridDim.x) feeder.feed_tile(index);
}
#elif SCALES == 1
// A warp that brings the scales of each tile's rows and columns, for two tiles at a time.
__device__ __forceinline__ void feed_scales(const Parameters& p, const SharedMemory& memory) {
    ScaleWaits waits(p, memory);
    int number = 0;
    for (int index = blockIdx.x; index < p.tile_count; index += gridDim.x, ++number) {
        const Tile* t = p.table.tiles + index;
        const Quad place = load_quad(t), size = load_quad(&t->rows), wait_for = load_quad(&t->operands);
        const OperandScales& s = scales_of(p, wait_for.x);
        if (waits.begin_tile(wait_for) && p.depth_waits) {
            int steps = size.w;   // pieces of K may wait for more
            for (int piece = size.z; steps > 0; ++piece) {
                if (load_pair(p.depth_waits + piece).y > 0) ++waits.waits;
                steps -= load_quad(p.table.depths + piece).z;
            }
        }
        const TileScales to(memory, number);
        barrier_wait(to.read, to.parity ^ 1);
        for (int r = waits.lane; r < TILE_M; r += 32)
            store_shared(to.rows + 4 * r, load_scale(s.left + place.x + max(0, min(r, size.x - 1))));
        for (int c = waits.lane; c < TILE_N; c += 32)
            store_shared(to.columns + 4 * c, load_scale(s.right + place.y + max(0, min(c, size.y - 1))));
        __syncwarp();
        if (waits.lane == 0) barrier_arrive_here(to.come);
        waits.end_tile(index);
    }
}
#else
__device__ __forceinline__ void feed_scales(const Parameters& p, const SharedMemory& memory) {}
#endif
#if SCALES != 2
__device__ __forceinline__ void load_first_scales(const Parameters& p, const SharedMemory& memory, const Foreseen& tile) {}
#endif

// ---------------------------------------------------------------- promotion

// The scales of a thread's sums of a step, 64 rows of wgmma: of both its rows, for each block of columns; SWAPPED: of its
// two columns in every eight, the rows of the tile.
struct StepScales {
    static constexpr int COUNT = SWAPPED ? ACC / 4 : SPANNED;
    float first[COUNT], second[COUNT];

    // `row` of the tile, the first; `step`: number in the slot; `at`: where this is in a row.
    __device__ __forceinline__ void load(const ScaleSlot& slot, int row, int step, u32 at) {
        const u32 from = slot.of_row(row, at);
        float one, other, column;
        if constexpr (SWAPPED) {
            load_shared(slot.columns + 4 * step, column);
#pragma unroll
            for (int j = 0; j < COUNT; ++j) {
                load_shared(from + 8 * j * SLOT_PITCH, one);
                load_shared(from + (8 * j + 1) * SLOT_PITCH, other);
                first[j] = one * column, second[j] = other * column;
            }
        } else {
            load_shared(from, one);
            load_shared(from + 8 * SLOT_PITCH, other);
#pragma unroll
            for (int c = 0; c < SPANNED; ++c) {
                load_shared(slot.columns + 4 * SLOT_STEPS * c + 4 * step, column);
                first[c] = one * column, second[c] = other * column;
            }
        }
    }
};

// Sums of a step to those of a tile. The second block of columns begins at column `edge` of the tile.
__device__ __forceinline__ void promote(float (&d)[ACC], const float (&step)[ACC], const StepScales& scales, int edge) {
#pragma unroll
    for (int j = 0; j < ACC / 4; ++j) {
        if constexpr (BLOCK_SCALES) {
            const int from = 8 * j / UNIFORM * UNIFORM;   // of those columns that have one scale; edge: UNIFORM to 128
            const bool behind = !SWAPPED && SPANNED == 2 && from >= UNIFORM && (from >= 128 || from >= edge);
            const int c = SWAPPED ? j : 0;
            const float first = behind ? scales.first[SPANNED - 1] : scales.first[c];
            const float second = behind ? scales.second[SPANNED - 1] : scales.second[c];
            d[4 * j] += first * step[4 * j];
            d[4 * j + 1] += (SWAPPED ? second : first) * step[4 * j + 1];
            d[4 * j + 2] += (SWAPPED ? first : second) * step[4 * j + 2];
            d[4 * j + 3] += second * step[4 * j + 3];
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

// They are applied to a group's sums of the tile that is `number` of the block's: first the columns', then the rows', as
// cuBLASLt does, whose results are then the same to the last bit where K is short.
__device__ __forceinline__ void scale_sums(const SharedMemory& memory, int number, float (&d)[BLOCKS_M][ACC], int group) {
#if SCALES == 1
    const TileScales from(memory, number);
    const int lane = threadIdx.x & 31, row = group * 64 * BLOCKS_M + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
    barrier_wait(from.come, from.parity);
    // of wgmma's rows and columns; SWAPPED, those are the tile's columns and rows
    const u32 down = SWAPPED ? from.columns : from.rows, across = SWAPPED ? from.rows : from.columns;
    float of_row[BLOCKS_M][2];
#pragma unroll
    for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) load_shared(down + 4 * (row + 64 * m + 8 * h), of_row[m][h]);
#pragma unroll
    for (int j = 0; j < ACC / 4; ++j) {
        float of_column[2];
        load_shared(across + 32 * j + (lane & 3) * 8, of_column[0], of_column[1]);
#pragma unroll
        for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float first = SWAPPED ? of_row[m][i / 2] : of_column[i % 2];
                const float second = SWAPPED ? of_column[i % 2] : of_row[m][i / 2];
                d[m][4 * j + i] = d[m][4 * j + i] * first * second;
            }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive_here(from.read);
#endif
}
