// The producer: two warps that fill the ring by TMA, and a warp that looks for flags ahead of them.
#pragma once
#include "addends.cuh"
#include "first_tile.cuh"
#include "flags.cuh"

// ---------------------------------------------------------------- the flag warp

// It makes the waits of the block, in the order in which the tiles need them: for the flags of a tile, of its pieces of K,
// and of its addends, unless the previous wait was for the same flags. It counts in `memory.seen` how many of these waits
// have ended. One look takes one to two microseconds, even if the flag is up. The feeding warps save that time where a
// flag is up early.
__device__ __forceinline__ void look_for_flags(const Parameters& p, const SharedMemory& memory) {
    const int lane = threadIdx.x & 31;
    bool begun = false;
    auto look = [&](int first, int flags) {
        if (!begun) wait_launch_before();
        begun = true;
        wait_flags(p, first, flags, lane);
        __syncwarp();   // all lanes have acquired theirs
        fence_async_proxy();   // NOTE TMA reads by the async proxy, which acquiring alone does not order
        if (lane == 0) count_up_shared(memory.seen);
    };
    int waited = -1, addends_waited = -1;
    for (int index = blockIdx.x; index < p.tile_count; index += gridDim.x) {
        const Tile* t = p.table.tiles + index;
        const Quad wait = load_quad(&t->operands);   // operands · wait_first wait_count
        if (wait.w > 0 && wait.z != waited) look(waited = wait.z, wait.w);
        if (p.depth_waits) {
            const Quad more = load_quad(&t->rows);   // · · k_first k_blocks
            for (int piece = more.z, left = more.w; left > 0; ++piece) {
                const Pair w = load_pair(p.depth_waits + piece);
                if (w.y > 0) look(w.x, w.y);
                left -= load_quad(p.table.depths + piece).z;
            }
        }
        if constexpr (ADDENDS) {
            const Pair flags = load_pair(&p.tile_addends[index].wait_first);
            if (flags.y > 0 && flags.x != addends_waited) look(addends_waited = flags.x, flags.y);
        }
    }
    if (lane == 0) reset_flags(p);
}

// Until `count` of the block's waits have ended.
__device__ __forceinline__ void wait_seen(const SharedMemory& memory, u32 count) {
    if (count == 0) return;
    while (true) {   // all lanes: see `uniform`
        u32 seen = 0;
        if ((threadIdx.x & 31) == 0) seen = load_acquire_shared(memory.seen);
        if (uniform(seen) >= count) break;
        __nanosleep(32);
    }
    __syncwarp();   // what lane 0 has seen, all have
}

// ---------------------------------------------------------------- the feeding warps

// This block's slice of a step of the right operand, for all blocks of its cluster. LEFT_SHARED: its own columns.
__device__ __forceinline__ void load_right(const TensorMap& map, u32 to, int col, int k, u32 me, u32 bar) {
    if constexpr (LEFT_SHARED) {
        load_box(to, &map, k, col, bar);
    } else if constexpr (RIGHT_T) {   // a slice is some of the columns
        constexpr int apart = TILE_N - RIGHT_SLICE;
        load_box_for_all(to + me * apart * 128, &map, k, col + me * apart, bar);
    } else if constexpr (RIGHT_ATOMS % CLUSTER == 0) {   // a slice is some of the 64-column atoms
        constexpr int slice = RIGHT_ATOMS / CLUSTER;
#pragma unroll
        for (int i = 0; i < slice; ++i)
            load_box_for_all(to + (me * slice + i) * ATOM, &map, col + 64 * (me * slice + i), k, bar);
    } else {                                             // a slice is some of the depth of each atom
        constexpr int slice = TILE_K / CLUSTER;
#pragma unroll
        for (int i = 0; i < RIGHT_ATOMS; ++i)
            load_box_for_all(to + i * ATOM + me * slice * 128, &map, col + 64 * i, k + me * slice, bar);
    }
}

// A step of the left operand. LEFT_SHARED: some of its rows, for all blocks of the cluster.
__device__ __forceinline__ void load_left(const TensorMap& map, u32 to, int row, int k, u32 me, u32 bar) {
    if constexpr (LEFT_SHARED) {
        constexpr int slice = TILE_M / CLUSTER;
        load_box_for_all(to + me * slice * 128, &map, k, row + me * slice, bar);
    } else if constexpr (LEFT_T) {
#pragma unroll
        for (int i = 0; i < TILE_M / 64; ++i) load_box(to + i * ATOM, &map, row + 64 * i, k, bar);
    } else {
        load_box(to, &map, k, row, bar);
    }
}

// A warp that fills the ring: one for the right operand, and one for the left operand and the addends. Neither warp waits for the other, so that a read-only right operand is on its way while the left one's
// flags are not yet up.
template <bool RIGHT> struct Feeder {
    const Parameters& p;
    const SharedMemory& memory;
    const u32 me = CLUSTER > 1 ? block_in_cluster() : 0;
    const int lane = threadIdx.x & 31;
    RingPlace ring = {0, 1};
    int waited = -1;           // the first of the flags that were waited for last; of the addends'
    int addends_waited = -1;
    u32 waits = 0;             // how many of the block's waits stand before this step
    bool begun = false;        // data that the previous launch has written may be read
    int loaded = 0;            // steps of the next tile
    IF_MARKS(Mark* mark;)      // of the tile; the left operand's warp writes it, which waits for all flags

    // The tile that comes next. It is read a tile ahead: memory takes longer than the ring lasts.
    Quad place;    // left_row right_col · ·
    Quad more;     // · · k_first k_blocks
    Quad wait;     // operands · wait_first wait_count
    Quad depth;    // its first piece of K
    Quad added;    // first count at gap, as in TileAddends
    Quad addend;   // matrix row col ·: its first one

    __device__ __forceinline__ Feeder(const Parameters& p, const SharedMemory& memory) : p(p), memory(memory) {}

    // NOTE no fence between proxies: the end of a launch orders what it wrote for TMA too, and the fence takes a microsecond
    __device__ __forceinline__ void begin() {
        wait_launch_before();
        begun = true;
    }

    // What all lanes have read alike.
    __device__ __forceinline__ static Quad same(Quad q) {
        if constexpr (ADDENDS) return q;
        else return {(int)uniform(q.x), (int)uniform(q.y), (int)uniform(q.z), (int)uniform(q.w)};
    }
    __device__ __forceinline__ void read_tile(int index) {
        const Tile* t = p.table.tiles + index;
        place = load_quad(t), more = load_quad(&t->rows), wait = load_quad(&t->operands);
        if constexpr (ADDENDS) added = load_quad(p.tile_addends + index);
    }
    __device__ __forceinline__ void read_first_pieces() {
        depth = load_quad(p.table.depths + more.z);
        if constexpr (ADDENDS && !RIGHT)
            if (added.y > 0) addend = load_quad(p.addends + added.x);
    }

    __device__ __forceinline__ void foresee_tile() {
        const Foreseen tile(p.first, me);
        place = {tile.left_row, tile.right_col, 0, 0}, depth = tile.depth;
        more = {0, 0, 0, depth.z}, wait = {0, 0, 0, 0};
        if constexpr (EARLY) {   // load_first has loaded as many as there are stages
            loaded = min(p.stages, depth.z);
            depth.x += loaded * TILE_K, depth.y += loaded * TILE_K, depth.z -= loaded;
            ring.advance_by(loaded, p.stages);
        }
    }

    // Stages of the tile's addends that stand behind step b of K. `now` is the addend of the next of them.
    __device__ __forceinline__ void feed_addends(AddendSteps& steps, int b, int& record, Quad& now) {
        for (; steps.due(b); steps.advance()) {
            if (!RIGHT) {
                if (!begun) begin();
                IF_MARKS(const u64 from = device_time();)
                wait_seen(memory, waits);
                IF_MARKS(if (lane == 0) mark_wait(mark, from);)
            }
            // NOTE both warps wait, and consumers wait for both: a wait on a barrier tests only the parity of its phase
            barrier_wait(memory.empty + 8 * ring.stage, ring.parity);
            if (RIGHT) {
                barrier_expect(memory.full + 8 * ring.stage, ADDEND_BYTES);
            } else {
#pragma unroll
                for (int i = 0; i < ADDEND_ATOMS; ++i)
                    load_box(memory.ring + ring.stage * STAGE_BYTES + i * ADDEND_ROWS * 128, p.addend_maps + now.x,
                             now.z + 64 * i, now.y + steps.part() * ADDEND_ROWS, memory.full + 8 * ring.stage);
                if (steps.part() == 0 && steps.left > 1) now = load_quad(p.addends + ++record);
            }
            ring.advance(p.stages);
        }
    }

    // The tile that was read ahead: all its steps, while the next one is read.
    __device__ __forceinline__ void feed_tile(int& index) {
        place = same(place), more = same(more), wait = same(wait), depth = same(depth);
        if (RIGHT && PARTS == 1 && p.lockstep && me == 0) keep_lockstep(p, index, more.w, lane);
        const MappedOperands* o = p.operands + wait.x;
        const OperandInfo* info = p.infos + wait.x;
        const u32 bytes = info->stage_bytes;   // both operands'
        const bool read_only = info->read_only & (RIGHT ? 1 : 2);
        const bool waits_here = wait.w > 0 && wait.z != waited;
        if (waits_here) ++waits, waited = wait.z;
        IF_MARKS(mark = memory.marks + index; u64 came = device_time();)
        // NOTE a tile with a read-only left operand waits too: another work may still read the place that it stores to
        if (!read_only || (!RIGHT && wait.w > 0)) {
            if (!begun) begin();
            IF_MARKS(came = device_time();)
            wait_seen(memory, waits);
        }
        IF_MARKS(if (!RIGHT && lane == 0) mark_begin(mark, came);)
        const int left_row = place.x, right_col = place.y, blocks = more.w;
        int piece = more.z, left_k = depth.x, right_k = depth.y, remain = depth.z, on = depth.w < 0 ? -TILE_K : TILE_K;
        bool looks = p.depth_waits && !read_only;   // whether flags are to be looked for before the next step
        AddendSteps steps;
        int record;
        Quad now;
        if constexpr (ADDENDS) {
            steps.start(added);
            record = added.x;
            now = addend;
            // NOTE pieces of K of a tile that has addends wait for none
            const Pair flags = load_pair(&p.tile_addends[index].wait_first);
            if (flags.y > 0 && flags.x != addends_waited) ++waits, addends_waited = flags.x;
        }
        index += gridDim.x;
        const bool another = index < p.tile_count;
        if (another) read_tile(index);
        int read_at = another ? min(4, blocks - 1) : -1;   // the step at which the next tile's pieces are read
        if (EARLY && another && loaded > read_at) {
            read_at = -1;
            read_first_pieces();
        }
        for (int b = EARLY ? loaded : 0; b < blocks;) {
            if (remain == 0) {
                const Quad d = same(load_quad(p.table.depths + ++piece));
                left_k = d.x;
                right_k = d.y;
                remain = d.z;
                on = d.w < 0 ? -TILE_K : TILE_K;
                looks = p.depth_waits && !read_only;
            }
            if (looks) {
                IF_MARKS(const u64 from = device_time();)
                if (uniform(load_pair(p.depth_waits + piece).y > 0)) wait_seen(memory, ++waits);
                IF_MARKS(if (!RIGHT && lane == 0) mark_wait(mark, from, b == 0);)
                looks = false;
            }
            if (b == read_at) read_first_pieces();
            int until = min(b + remain, blocks);
            if (b < read_at) until = min(until, read_at);
            remain -= until - b;
#pragma unroll 1
            for (; b < until; ++b) {
                const u32 bar = memory.full + 8 * ring.stage, left = memory.ring + ring.stage * STAGE_BYTES;
                barrier_wait(memory.empty + 8 * ring.stage, ring.parity);
                if (RIGHT) {
                    barrier_expect(bar, bytes);
                    load_right(o->right, left + LEFT_BYTES, right_col, right_k, me, bar);
                    right_k += on;
                } else {
                    load_left(o->left, left, left_row, left_k, me, bar);
                    left_k += on;
                }
                ring.advance(p.stages);
                if constexpr (ADDENDS) feed_addends(steps, b, record, now);
            }
        }
        if constexpr (EARLY) loaded = 0;
        __syncwarp();
    }
};

// The first steps of a block's first tile, before all else.
template <bool RIGHT>
__device__ __forceinline__ void load_first(const Parameters& p, const SharedMemory& memory, const Foreseen& tile, u32 me) {
    const int steps = min(p.stages, tile.depth.z);
    int k = RIGHT ? tile.depth.y : tile.depth.x;
    if (!(p.infos[0].read_only & (RIGHT ? 1 : 2))) wait_launch_before();
    u32 bar = memory.full, left = memory.ring;
#pragma unroll 1
    for (int i = 0; i < steps; ++i, bar += 8, left += STAGE_BYTES, k += TILE_K) {
        if (RIGHT) {
            barrier_expect(bar, (u32)p.infos[0].stage_bytes);
            load_right(p.operands[0].right, left + LEFT_BYTES, tile.right_col, k, me, bar);
        } else {
            load_left(p.operands[0].left, left, tile.left_row, k, me, bar);
        }
    }
}

template <bool RIGHT> __device__ __forceinline__ void feed(const Parameters& p, SharedMemory memory) {
    if constexpr (!ADDENDS && PRODUCER_REGS > 40) {   // NOTE otherwise the compiler makes them again at each use
        memory.ring = uniform(memory.ring), memory.full = uniform(memory.full);
        memory.empty = memory.full + 8 * MAX_STAGES;
    }
    Feeder<RIGHT> feeder(p, memory);
    int index = blockIdx.x;
    if (!ADDENDS && p.first.steps > 0) {
        feeder.foresee_tile();
    } else if (index < p.tile_count) {
        feeder.read_tile(index);
        feeder.read_first_pieces();
    }
    while (index < p.tile_count) feeder.feed_tile(index);
    if (!RIGHT) let_next_launch();   // NOTE not earlier: the next launch takes multiprocessors that the work awaited here may need
}
