// The consumers: groups of four warps that multiply what the producer loads, and store the tiles.
#pragma once
#include "../functions.cuh"
#include "addends.cuh"
#include "epilogue.cuh"
#include "flags.cuh"
#include "scales.cuh"
#include "split_k.cuh"
#include "wgmma.cuh"

// ---------------------------------------------------------------- PINGPONG: two groups take a block's tiles in turn
//
// NOTE A group reads the ring only after the other group has seen the last step of the previous tile arrive. A wait on a
// barrier tests the parity of its phase only, so a barrier that is one phase behind would look complete. At that point all
// steps before the group's own have arrived, one by one, since each group sees all of its own steps in order. So a full
// barrier is at most one phase behind the group, and never ahead: its stage is filled again only after the group has
// given the stage back.
//
// No group waits for ever. A group gets the turn for a tile with the last load of the previous tile. That load waits for
// stages of earlier tiles, which are given back at the end of each tile's loop, and for flags. It waits for the stores of a
// tile only through a signal, and a group counts a signal right after the stores of its tile, without waiting for a turn
// or a load in between. If a block has a tile i + 1, one group waits for it once, and the other announces it once. A group
// cannot announce a tile twice, because it waits for a turn of its own in between. All blocks of a cluster make the same
// number of tiles, with the same number of steps each (kernels/tile_table.py). So the groups that give a stage back are
// the groups that read it, one in each block.
__device__ __forceinline__ void wait_turn(int group) { named_barrier_sync<256>(3 + group); }
__device__ __forceinline__ void give_turn(int group) { named_barrier_arrive<256>(4 - group); }

// Steps of the ring that a tile takes; 0: there is no such tile.
__device__ __forceinline__ int steps_of(const Parameters& p, int index) {
    if (index >= p.tile_count) return 0;
    const int blocks = __ldg(&p.table.tiles[index].k_blocks);
    if constexpr (ADDENDS) return blocks + __ldg(&p.tile_addends[index].count) * ADDEND_STEPS;
    else return blocks;
}

// ---------------------------------------------------------------- the main loop

// A tile's entry, on its way from memory.
struct TileEntry {
    Quad place, size, rest, end;

    __device__ __forceinline__ void load(const Tile* t) {
        place = load_quad(t), size = load_quad(&t->rows);
        rest = load_quad(&t->operands), end = load_quad(&t->signal);
    }
    __device__ __forceinline__ Tile tile() const {
        return {place.x, place.y, place.z, place.w, size.x, size.y, size.z, size.w,
                rest.x,  rest.y,  rest.z,  rest.w,  end.x,  end.y,  end.z,  end.w};
    }
};

// A thread of a consumer group: its position, and the state that it keeps from tile to tile.
struct Consumer {
    const Parameters& p;
    const SharedMemory& memory;
    const int thread, lane;   // of the consumers; of its warp
    const int self;           // its consumer group
    const int group, warp;    // of those that make a tile together
    const u32 staging;        // its warp's buffers
    const u32 left_base;      // where its group's rows of the left operand start in the first stage; SWAPPED: its columns
                              // of the right one
    RingPlace ring;
    RingPlace slots;          // the same of the scales', and the order of the slot that is read
    u32 slot_first, slot_step;
    int opened, most;         // steps of that slot that are done, in fours, and that it may have
    u32 turn;                 // the buffer to write next
    Boxes boxes;
    int number;               // of its block's tiles
    int pending;              // the signal of a stored tile that is not counted yet, or -1: its stores end after the loads
                              // of the next tile

    // Give a stage back to the producers of all blocks of the cluster: one thread of the group a block.
    __device__ __forceinline__ void give_back(int stage) const {
        if ((thread & 127) < CLUSTER) barrier_arrive(memory.empty + 8 * stage, thread & 127);
    }

    __device__ __forceinline__ void count_pending() {
        if constexpr (THROTTLED) boxes.send_all(staging);
        signal_stored(p, pending, lane);
        __syncwarp();
        pending = -1;
    }

    // Add a step of K to the sums; `b` is its number. At its end the previous step has been read.
    // `first`, `second`: where what comes first and second in the instruction starts in the first stage, in 16 bytes.
    __device__ __forceinline__ void multiply(Sums& d, int b, u32 first, u32 second) const {
        // bytes, from one instruction's to the next one's, in what comes first and second in the instruction
        constexpr u32 left_step = (SWAPPED ? !RIGHT_T : LEFT_T) ? 2048 : 32, right_step = SWAPPED || RIGHT_T ? 32 : 2048;
        const u32 at = ring.stage * (STAGE_BYTES >> 4);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int m = 0; m < BLOCKS_M; ++m)
                wgmma(d[m], DESCRIPTOR | (first + at + m * (ATOM >> 4) + k * (left_step >> 4)),
                      DESCRIPTOR | (second + at + k * (right_step >> 4)), k > 0 ? 1 : b);
        wgmma_commit();
        wgmma_wait<1>();
    }

    // BLOCK_SCALES: wait for the scales of the next steps.
    __device__ __forceinline__ void open_slot() {
        const ScaleSlot slot(memory, slots.stage);
        barrier_wait(slot.come, slots.parity);
        float order;
        load_shared(slot.order, order);
        const u32 word = uniform(__float_as_uint(order));
        slot_first = word & 255, slot_step = (int)word >> 16, most = word >> 8 & 255, opened = 0;
    }
    // Of 64 rows; `number`: of four steps.
    __device__ __forceinline__ StepScales scales_of_step(int number, int m) const {
        StepScales scales;
        number += opened;
        if constexpr (BLOCK_SCALES)
            scales.load(ScaleSlot(memory, slots.stage),
                        SWAPPED ? 2 * (lane & 3) : (group * BLOCKS_M + m) * 64 + (warp & 3) * 16 + (lane >> 2), number,
                        slot_first + number * slot_step);
        return scales;
    }
    __device__ __forceinline__ void close_slot() {
        __syncwarp();
        if (lane == 0) barrier_arrive_here(ScaleSlot(memory, slots.stage).read);
        slots.advance(SLOTS);
    }
    // Behind the scales of four steps: whether they were the slot's last.
    __device__ __forceinline__ bool four_done() { return (opened += 4) == most; }

    // PROMOTED: wait for a step, add it to the sums, by registers of its own for 64 rows at a time, and give the stage back.
    // `left` and `right` are where the operands start in the first stage, in 16 bytes. The second block of scaled columns
    // begins at column `edge` of the tile. `number`: of the four steps whose scales come together; `last` of the tile.
    __device__ __forceinline__ void multiply_apart(Sums& d, u32 left, u32 right, int edge, int number, bool last) {
        const int stage = ring.stage;
        left += stage * (STAGE_BYTES >> 4), right += stage * (STAGE_BYTES >> 4);
        // NOTE ahead of the wait: among the multiplications they would come late, because these read all the time, and hold
        // those behind them up
        StepScales scales[BLOCKS_M];
        if constexpr (BLOCK_SCALES) {
#pragma unroll
            for (int m = 0; m < BLOCKS_M; ++m) scales[m] = scales_of_step(number, m);
        }
        barrier_wait(memory.full + 8 * stage, ring.parity);
        ring.advance(p.stages);
#pragma unroll
        for (int m = 0; m < BLOCKS_M; ++m) {
            float step[ACC];
            hold(step);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; ++k)
                wgmma(step, DESCRIPTOR | (left + m * (ATOM >> 4) + 2 * k), DESCRIPTOR | (right + 2 * k), k > 0);
            wgmma_commit();
            hold(step);
            if constexpr (BLOCK_SCALES) {
                if (m == 0 && (last || (number == 3 && four_done()))) {
                    close_slot();
                    if (!last) open_slot();
                }
            }
            wgmma_wait<0>();
            hold(step);
            if (m == BLOCKS_M - 1) give_back(stage);
            promote(d[m], step, scales[m], edge);
        }
    }

    // OVERLAPPED: all steps of a tile: while one is multiplied, the one before is added. `left`, `right` and `edge` as in
    // multiply_apart. NOTE no step's multiplication stands in a branch: the compiler would wait for each instruction's end
    __device__ __forceinline__ void multiply_overlapped(float (&d)[ACC], u32 left, u32 right, int edge, int blocks) {
        float even[ACC], odd[ACC];
        int stage = ring.stage;   // of the step that is added
        auto begin = [&](float (&step)[ACC]) {
            const u32 at = ring.stage * (STAGE_BYTES >> 4);
            barrier_wait(memory.full + 8 * ring.stage, ring.parity);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < 4; ++k)
                wgmma(step, DESCRIPTOR | (left + at + 2 * k), DESCRIPTOR | (right + at + 2 * k), k > 0);
            wgmma_commit();
            ring.advance(p.stages);
        };
        auto add = [&](float (&step)[ACC], const StepScales& scales) {
            hold(step);
            give_back(stage);
            stage = stage + 1 == p.stages ? 0 : stage + 1;
            promote(d, step, scales, edge);
        };
        auto both = [&](float (&step)[ACC], float (&next)[ACC], int number) {
            const StepScales scales = scales_of_step(number, 0);
            const bool done = BLOCK_SCALES && number == 3 && four_done();
            if (done) close_slot();
            begin(next);
            if (done) open_slot();
            wgmma_wait<1>();
            add(step, scales);
        };
        auto last = [&](float (&step)[ACC], int number) {
            const StepScales scales = scales_of_step(number, 0);
            if constexpr (BLOCK_SCALES) close_slot();
            wgmma_wait<0>();
            add(step, scales);
        };
        begin(even);
        int b = 0;
#pragma unroll 1
        for (; b + 4 < blocks; b += 4) both(even, odd, 0), both(odd, even, 1), both(even, odd, 2), both(odd, even, 3);
        b = blocks - b;
        if (b > 2) both(even, odd, 0), both(odd, even, 1);
        const int number = b > 2 ? 2 : 0;
        if ((b & 1) == 0) {
            both(even, odd, number);
            last(odd, number + 1);
        } else {
            last(even, number);
        }
    }

    // The stages of addends that stand behind step b of K. `before` is the stage that is to be given back, or -1.
    __device__ __forceinline__ void add_due(Sums& d, AddendSteps& steps, int b, int& before) {
        for (; steps.due(b); steps.advance()) {
            if (ADDEND_STEPS == 1 || steps.part() == group) {
                wgmma_wait<0>();
                if (before >= 0) give_back(before);
                before = -1;
                barrier_wait(memory.full + 8 * ring.stage, ring.parity);
                const u32 own = ADDEND_STEPS == 1 ? group * BLOCKS_M * ATOM : 0;   // where this group's rows start
                const u32 rows = memory.ring + ring.stage * STAGE_BYTES + own;
#pragma unroll
                for (int m = 0; m < BLOCKS_M; ++m) add_addend(d[m], rows, m);
            } else {
                if (steps.gap == 0 || p.stages == 2) {   // NOTE the next step of K may come to the stage that is kept
                    wgmma_wait<0>();
                    if (before >= 0) give_back(before);
                    before = -1;
                }
                // NOTE give it back only after it has arrived: barriers count phases
                barrier_wait(memory.full + 8 * ring.stage, ring.parity);
            }
            // all warps of the group have read it. NOTE or seen it arrive: a warp that counted a signal in between would
            // find the barrier two phases ahead, and wait for ever
            named_barrier_sync<128>(1 + group);
            give_back(ring.stage);
            ring.advance(p.stages);
        }
    }

    // PINGPONG: the tile's addends, which all stand behind its last step of K. `ahead` of their stages have come before
    // the other group has its turn.
    __device__ __forceinline__ void add_behind(Sums& d, AddendSteps& steps, int ahead, bool others) {
        while (steps.left > 0) {
#pragma unroll
            for (int part = ADDEND_STEPS - 1; part >= 0; --part, --steps.left) {   // as AddendSteps::part counts them
                barrier_wait(memory.full + 8 * ring.stage, ring.parity);
                if (steps.left == ahead) {
                    RingPlace last = ring;
#pragma unroll 1
                    for (int i = 1; i < ahead; ++i) {
                        last.advance_by(1, p.stages);
                        barrier_wait(memory.full + 8 * last.stage, last.parity);
                    }
                    if (others) give_turn(self);
                }
                const u32 rows = memory.ring + ring.stage * STAGE_BYTES;
#pragma unroll
                for (int m = 0; m < BLOCKS_M / ADDEND_STEPS; ++m) add_addend(d[part + m], rows, m);
                named_barrier_sync<128>(1 + self);   // all warps of the group have read it
                give_back(ring.stage);
                ring.advance_by(1, p.stages);
            }
        }
    }

    // A tile's product: `blocks` steps of K, and the addends among them. `before`: the stage that is left to give back.
    // The tile before is counted behind step `count_at`. `edge`: see multiply_apart.
    __device__ __forceinline__ void multiply_tile(Sums& d, int blocks, int count_at, int edge,
                                                  AddendSteps& steps, int& before) {
        // as a DESCRIPTOR has them. NOTE addresses begin with the block's number in its cluster
        constexpr u32 lead = (ATOM >> 4) << 16;
        const u32 left = uniform((left_base & 0x3ffff) >> 4 | lead);
        const u32 right = uniform(((memory.ring + (SWAPPED ? 0 : LEFT_BYTES)) & 0x3ffff) >> 4 | lead);
        blocks = uniform(blocks);
        ring = {(int)uniform(ring.stage), uniform(ring.parity)};
        if constexpr (PROMOTED) {
            slots = {(int)uniform(slots.stage), uniform(slots.parity)};
            if constexpr (BLOCK_SCALES) open_slot();
#pragma unroll
            for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
                for (int i = 0; i < ACC; ++i) d[m][i] = 0.0f;
        }
        const int interval = THROTTLED ? max(1, blocks / max(1, STAGING)) : 0;   // steps of K from one box to the next
        int send_at = 0;
        int b = 0;
        auto step = [&](int number, bool last) {
            multiply_apart(d, left, right, edge, number, last);
            ++b;
        };
        if constexpr (UNROLLED) {   // NOTE what else is in the loop would cost registers
            if (pending >= 0) {
#pragma unroll 1
                for (const int until = min(blocks - LAST_APART, 4); b < until;) step(b, !LAST_APART && b + 1 == blocks);
                count_pending();
            }
            if constexpr (OVERLAPPED) {
                if (b < blocks) multiply_overlapped(d[0], left, right, edge, blocks - b);
                b = blocks;
            }
#pragma unroll 1
            while (b + 4 <= blocks - LAST_APART)
#pragma unroll
                for (int i = 0; i < 4; ++i) step(i, !LAST_APART && b + 1 == blocks);
            int i = LAST_APART ? b & 3 : 0;
#pragma unroll 1
            for (; b < blocks - LAST_APART; ++i) step(i, !LAST_APART && b + 1 == blocks);
            if (LAST_APART && b < blocks) step(i, true);
        }
        for (; !UNROLLED && b < blocks; ++b) {
            if constexpr (PROMOTED) {
                multiply_apart(d, left, right, edge, b & 3, b + 1 == blocks);
            } else {
                barrier_wait(memory.full + 8 * ring.stage, ring.parity);
                multiply(d, b, left, right);
                if (ADDENDS ? before >= 0 : b > 0) give_back(before);
                before = ring.stage;
                ring.advance(p.stages);
            }
            if constexpr (THROTTLED) {
                if (boxes.left && b >= send_at) {
                    boxes.send(staging);
                    send_at += interval;
                }
            }
            if (!PINGPONG && b == count_at && pending >= 0) count_pending();
            if (SCALES == 1 && ADDENDS && b + 1 == blocks) {   // all addends of fp8 operands stand behind the steps of K
                wgmma_wait<0>();
                scale_sums(memory, number, d, group);
            }
            if constexpr (ADDENDS && !PINGPONG) add_due(d, steps, b, before);
        }
    }

    // The warp's part of a tile, or the lanes of it that are this split's to store; SWAPPED: the shares.
    __device__ __forceinline__ void store_part(const Tile& t, Sums& d, u32 lanes) {
        if constexpr (!ADDENDS) scale_sums(memory, number, d, group);
        if constexpr (FUNCTION) {
#pragma unroll
            for (int m = 0; m < BLOCKS_M; ++m)
#pragma unroll
                for (int i = 0; i < ACC; ++i) d[m][i] = apply(d[m][i]);
        }
        if constexpr (THROTTLED) {
            if (lane == 0) wait_stores_read<0>();
            __syncwarp();
            boxes.map = &p.operands[t.operands].out;
            boxes.x = t.out_col, boxes.y = t.out_row + group * 64 * BLOCKS_M + (warp & 3) * 16;
        }
        if constexpr (GROUP_BOXES) {
            if (lane == 0) wait_stores_read<0>();
            named_barrier_sync<128>(1 + group);   // no store reads the group's buffers any more
            if (store_whole(p, t, d, group, warp & 3, staging)) return;
        }
        if constexpr (SWAPPED)
            store_turned(p, t, d, group, warp & 3, min(t.splits, SHARES), lanes, staging);
#pragma unroll
        for (int m = 0; m < BLOCKS_M && !SWAPPED; ++m) {
            if constexpr (THROTTLED) turn = 0;
            store_rows(p, t, d[m], (group * BLOCKS_M + m) * 64 + (warp & 3) * 16, lanes,
                       staging + (THROTTLED ? m * CHUNKS * CHUNK_BYTES : 0), turn);
            if constexpr (THROTTLED) boxes.left |= turn << (m * CHUNKS);
        }
        __syncwarp();   // all lanes' stores, before lane 0 counts them
    }

    // Whether the block's tile `next` waits, or there is none.
    __device__ __forceinline__ int waits_of(int next) const {
        int waits = next >= p.tile_count;   // blocks of a cluster load for each other: any of their tiles counts
#pragma unroll
        for (int c = 0, first = next - next % CLUSTER; c < CLUSTER; ++c)
            if (first + c < p.tile_count) waits |= __ldg(&p.table.tiles[first + c].wait_count);
        return waits;
    }

    // Make the tiles `start`, `start` + `stride`, … of the table.
    __device__ __forceinline__ void run(u32 start, u32 stride) {
        int blocks = start < p.tile_count ? __ldg(&p.table.tiles[start].k_blocks) : 0;
        for (int index = start; index < p.tile_count; index += stride) {
            Sums d;
            const int next = index + stride;
            // load now for use after the loop. PINGPONG: load during the last step's multiplication, because registers
            // are scarce; PROMOTED, if not OVERLAPPED: behind it
            TileEntry entry;
            const Tile* at = p.table.tiles + index;
            if constexpr (!(PINGPONG || PROMOTED) || OVERLAPPED) entry.load(at);
            int next_blocks = 0;
            if (!(PINGPONG || GROUP_BOXES) && next < p.tile_count) next_blocks = __ldg(&p.table.tiles[next].k_blocks);
            int others = 0;   // PINGPONG: steps of the other group's next tile; 0: there is none
            if constexpr (PINGPONG) {
                others = steps_of(p, index + gridDim.x);
                if (index >= gridDim.x) wait_turn(self);
            }
            int next_waits = 0;
            if constexpr (!GROUP_BOXES) next_waits = waits_of(next);
            // the step of K after which the previous tile is counted: its stores have ended by then, or will soon. NOTE
            // count before waiting for the first addend: the addend may wait for this very signal
            int count_at = THROTTLED ? blocks - 1 : 3;
            AddendSteps steps;
            int before = ADDENDS || PROMOTED ? -1 : 0;   // the stage that is to be given back, or -1
            if constexpr (ADDENDS) {
                steps.start(load_quad(p.tile_addends + index));
                if (__ldg(&p.tile_addends[index].wait_count) > 0) count_at = min(count_at, steps.at - 1);
            }

            const int edge = BLOCK_SCALES && SPANNED == 2 ? 128 - __ldg(&at->right_col) % 128 : 0;
            multiply_tile(d, blocks, count_at, edge, steps, before);

            int ahead = 0;   // the last stages of addends: all of these have come before the first of them is added
            if constexpr (PINGPONG) {
                if constexpr (ADDENDS) ahead = min(steps.left, p.stages / 2);
                if (ahead == 0 && others > 0) give_turn(self);   // the last step is still being multiplied
                if constexpr (!ADDENDS) entry.load(at);
            }
            if constexpr (PROMOTED && !OVERLAPPED) entry.load(at);
            // NOTE at the tile's start the loop would wait for it
            if (GROUP_BOXES && next < p.tile_count) next_blocks = load_pair(&p.table.tiles[next].k_first).y;
            wgmma_wait<0>();
            if (!(ADDENDS || PROMOTED) || before >= 0) give_back(before);
            if constexpr (PINGPONG) {
                if constexpr (ADDENDS) {
                    add_behind(d, steps, ahead, others > 0);
                    entry.load(at);
                }
                ring.advance_by(others, p.stages);
            }
            blocks = next_blocks;
            if constexpr (THROTTLED) boxes.send_all(staging);
            if (!PINGPONG && pending >= 0) count_pending();   // too few steps to do it among them

            const Tile t = entry.tile();
            if (index == start) wait_launch_before();   // NOTE it may still read or write what is written from here on
            u32 lanes = ~0u;
            if (t.splits > 1) {
                const int high = (SWAPPED ? t.cols : t.rows) - group * 64 * BLOCKS_M - (warp & 3) * 16;
                if constexpr (PARTS > 1) lanes = add_parts(memory, d, warp);
                else if (high > 0) lanes = add_splits(p, t, d, warp, high);
            }
            if (!SWAPPED && t.accumulate && t.wait_count > 0) {   // what it adds to may have been written in this very launch
                wait_flags(p, t.wait_first, t.wait_count, lane);
                __syncwarp();
            }
            store_part(t, d, lanes);
            IF_MARKS(if (lane == 0) mark_end(memory.marks + index);)
            number += 1 + PINGPONG;
            pending = uniform(t.signal);
            // NOTE if the next tile waits for flags, it may wait for this very signal: then count it now. PINGPONG: always
            // count now, because the other group multiplies in between, and its tile comes next
            if (pending >= 0 && (PINGPONG || (GROUP_BOXES ? waits_of(next) : next_waits) > 0)) count_pending();
            // PINGPONG: only now, because registers are scarce
            if (PINGPONG && next < p.tile_count) blocks = __ldg(&p.table.tiles[next].k_blocks);
        }
        if constexpr (THROTTLED) boxes.send_all(staging);
        if (lane == 0) {   // the launch's end waits for the rest. NOTE on peers not proven
            if constexpr (THROTTLED || OUT_FP32) wait_stores_done();
            else wait_stores_read<0>();
        }
    }
};

__device__ __forceinline__ void consume(const Parameters& p, const SharedMemory& memory) {
    const int thread = threadIdx.x - 128, self = uniform(thread >> 7);
    const int group = PINGPONG ? 0 : self, warp = uniform(PINGPONG ? thread >> 5 & 3 : thread >> 5);
    Consumer consumer{p, memory, thread, thread & 31, self, group, warp,
                      memory.staging + (thread >> 5) * STAGING * CHUNK_BYTES,
                      memory.ring + (SWAPPED ? LEFT_BYTES : 0) + group * BLOCKS_M * ATOM,
                      {0, 0}, {0, 0}, 0, 0, 0, 0, 0, {}, self * PINGPONG, -1};
    if constexpr (PINGPONG)
        if (self > 0) consumer.ring.advance_by(steps_of(p, blockIdx.x), p.stages);
    consumer.run(blockIdx.x + (PINGPONG ? self * gridDim.x : 0), (PINGPONG ? 2 : 1) * gridDim.x);
}
