// out (+)= left · right on Hopper: bf16 or fp16 operands, fp32 accumulation, output in either. Or, with ADDENDS,
// out = left · right + addends, all added in fp32.
//
// Two warps of one warp group feed shared memory by TMA, a third one looks for flags ahead of them, and a fourth one
// brings scales of fp8 operands; CONSUMERS other groups multiply with wgmma and store. The grid is persistent: cluster c
// makes the tiles c, c + clusters, … of a table that the host writes (kernels/tile_table.py). So the order of tiles, the
// pieces of a fused operand, the direction in which K is walked, splits of K and what a tile waits for are data, not code.
//
//   sm90/config.cuh     shapes of the variant, layout of shared memory
//   sm90/ptx.cuh        instructions, a function each; sm90/wgmma.cuh the multiplication
//   sm90/producer.cuh   the warps that feed the ring, the warp that looks for flags
//   sm90/consumer.cuh   the main loop
//   sm90/scales.cuh     scales of fp8 operands, promotion of their sums
//   sm90/first_tile.cuh a block's first tile, told without the table
//   sm90/epilogue.cuh   stores; sm90/addends.cuh, sm90/split_k.cuh, sm90/flags.cuh what their names say
//
// Compiled once for each variant, with
//   ENTRY                      the kernel's name
//   TILE_N                     columns of a block's tile, a multiple of 16 up to 256
//   BLOCKS_M                   64-row blocks that a consumer makes; the tile has 64 · BLOCKS_M · CONSUMERS rows
//   CONSUMERS                  consumer warp groups, 1 to 3
//   TILE_ROWS                  if it is defined, wgmma's rows are columns of the output: BLOCKS_M counts 64-column blocks,
//                              and the tile has as many rows as this says, a multiple of 8
//   PINGPONG                   1: the two consumers take the block's tiles in turn, of 64 · BLOCKS_M rows: while one
//                              stores, the other multiplies
//   PARTS                      so many blocks of a cluster make a tile together, each of a part of K; with TILE_ROWS
//   CLUSTER                    1, or 2 blocks whose tiles share the right operand: each loads half of it for both
//   LEFT_SHARED                1, of fp8: they lie side by side, and share the left operand
//   HALF                       1: fp16, 0: bf16
//   OUT_FP32                   1: the output is fp32, 0: as HALF says
//   FP8                        1: the operands are fp8, along K: e5m2 where LEFT_E5M2 or RIGHT_E5M2 is 1, otherwise e4m3; 0,
//                              as if not defined: they are as HALF says. The tensor core keeps some 14 bits of a sum of
//                              fp8 products, so that the sums of every 128 of K are added up in fp32
//   SCALES                     of fp8: 1: one for each stored row of either operand, 2: one for 128 of K of a left row, and
//                              for 128 x 128 of the right operand
//   FAST                       1: fp8 products are added up by the tensor core alone
//   LEFT_T, RIGHT_T            1: the operand is stored transposed, left [K, M], right [N, K]
//   ADDENDS                    1: works may have addends, of the operands' type
//   STAGING                    buffers of a storing warp, 1 or 2; 0: it stores from registers, which leaves memory for
//                              one more stage
//   THROTTLED                  1: outputs may lie on peers. STAGING is then as many buffers as a warp's part of the tile
//                              takes. They leave one by one among the next tile's steps: loads get through between
//   PRODUCER_REGS, CONSUMER_REGS   registers of a thread, for setmaxnreg
//   LAUNCH_REGS                registers of a thread at the launch, if the block leaves some to others' blocks; if not
//                              defined, it takes all
//   MARKS                      1: it tells when its tiles waited, began and ended (marks.h)
//
// Limits, checked on the host: 16-byte bases and pitches, column pieces in multiples of 8 elements, K pieces in
// multiples of 128 bytes except one that ends where the operand does. Rows are free.

#include "sm90/consumer.cuh"
#include "sm90/producer.cuh"

#ifdef LAUNCH_REGS
#define LAUNCH_BOUNDS __maxnreg__(LAUNCH_REGS)
#else
#define LAUNCH_BOUNDS __launch_bounds__(THREADS, 1)
#endif

extern "C" __global__ void LAUNCH_BOUNDS ENTRY(const __grid_constant__ Parameters p IF_MARKS(, Mark* marks)) {
    extern __shared__ u8 dynamic[];
    __shared__ alignas(8) u64 barriers[2 * MAX_STAGES + (PARTS > 1)];
    __shared__ u32 waits_seen;
    SharedMemory memory;
    memory.ring = (shared_address(dynamic) + 1023) & ~1023u;
    memory.staging = memory.ring + p.stages * STAGE_BYTES;
    memory.scales = memory.staging + 4 * CONSUMERS * STAGING * CHUNK_BYTES;
    memory.parts = memory.scales + SCALE_BYTES;
    memory.full = shared_address(barriers);
    memory.empty = memory.full + 8 * MAX_STAGES;
    memory.come = memory.empty + 8 * MAX_STAGES;
    memory.seen = shared_address(&waits_seen);
    IF_MARKS(memory.marks = marks;)
    if constexpr (!PROMOTED && (ADDENDS || !(PINGPONG || PRODUCER_REGS == 40))) memory.keep_in_registers();   // other consumers have no registers for that
    if (threadIdx.x == 128) {
        prefetch_map(&p.operands[0].left);
        prefetch_map(&p.operands[0].right);
        prefetch_map(&p.operands[0].out);
        if constexpr (ADDENDS) prefetch_map(p.addend_maps);
#if SCALES == 2
        prefetch_map(p.left_scales);
#endif
    }
    {   // NOTE lanes of a warp would make theirs one after another
        if (threadIdx.x == 0) waits_seen = 0;
        const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);   // as the compiler knows it to be the warp's
        if (PARTS > 1 && warp == 3) {
            const int me = (int)block_in_cluster();
            int held = 0;
            for (int i = 0; i < EIGHTS; ++i) held += i * PART_SHARES / EIGHTS == me;
            barrier_init(memory.come, 1);
            barrier_expect(memory.come, (PARTS - 1) * WARPS * BLOCKS_M * held * 512);
        }
        constexpr int each = (MAX_STAGES * 32 + THREADS - 1) / THREADS;   // NOTE a loop until p.stages takes 0.1 µs a turn
        const u32 first = memory.full + 8 * each * warp;
#pragma unroll
        for (int i = 0; i < each; ++i) {
            if (MAX_STAGES * 32 % THREADS && first + 8 * i >= memory.empty) break;
            // the last ones, which no stage has, belong to scales
            const bool of_scales = SCALES && (int)(each * warp + i) >= MAX_STAGES - SLOTS;
            barrier_init(first + 8 * i, 1);
            barrier_init(first + 8 * i + (memory.empty - memory.full), of_scales ? WARPS : GROUPS * CLUSTER);
        }
        fence_barrier_init();
    }
    sync_cluster();
    const u32 warp = uniform(threadIdx.x / 32);
    if (EARLY && warp < 4 && p.first.steps > 0 && blockIdx.x < p.tile_count) {
        const u32 me = CLUSTER > 1 ? block_in_cluster() : 0;
        const Foreseen tile(p.first, me);
        if (warp < 2) {
            if (warp == 1) load_first<true>(p, memory, tile, me);
            else load_first_scales(p, memory, tile), load_first<false>(p, memory, tile, me);
        }
    }
    if (warp < 4) {
        give_up_registers<PRODUCER_REGS>();
        if (warp == 0) feed<false>(p, memory);
        else if (warp == 1) feed<true>(p, memory);
        else if (warp == 2) look_for_flags(p, memory);
        else feed_scales(p, memory);
    } else {
        take_registers<CONSUMER_REGS>();
        consume(p, memory);
    }
    if constexpr (CLUSTER * PARTS > 1) {
        __syncwarp();
        sync_cluster();   // a block must not end while its neighbour still arrives on its barriers, or sends sums
    }
}
