"""The variants of `src/sm90_gemm.cu`: one compilation each, and the resources of its blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ...types import ACCUMULATOR
from ..signature import Signature
from ..tile_table import of_cluster

SOURCE = Path(__file__).parents[1] / "src" / "sm90_gemm.cu"
ARCH = "sm_90a"
MAX_STAGES = 16
STATIC_BYTES = 272  # of shared memory: barriers, and how much has been waited for
ALIGN_BYTES = 1024  # the ring starts on a swizzle atom
CHUNK_BYTES = 2048  # a storing warp's buffer: 16 rows of 128 bytes
TURNED_BYTES = 1024  # … swapped: a quarter of 32 rows
ADDEND_GAP = 4  # steps of K from an addend's step to the next, at most, where another consumer multiplies meanwhile
ADDEND_REGISTERS = (72, 216)  # of producer and consumers: a producer with addends has more to do
FITTING = {3: 39, 4: 30, 6: 17, 8: 15}  # clusters of so many blocks that 132 multiprocessors of an H200 hold
LEAN_ADDEND_REGISTERS = (72, 152)


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of the source, for a choice of tile."""

    name: str
    tile: tuple[int, int]  # rows, columns of a block's tile
    blocks_m: int  # 64-row blocks a consumer; swapped: 64-column blocks
    consumers: int
    cluster: int  # blocks that share the right operand, their tiles one below another
    staging: int = 2  # buffers of a storing warp; 0: it stores from registers
    throttled: bool = False  # a buffer for each of a warp's boxes, which leave among the next tile's steps
    odd: bool = False  # taken only for products without waits and terms, where it is faster than others
    pingpong: bool = False  # consumers take a block's tiles alternately: while one stores, the other multiplies
    swapped: bool = False  # wgmma makes the transposed tile: rows are any multiple of 8; the plain product alone
    producer_registers: int = 56
    consumer_registers: int = 224
    launch_registers: int = 0  # of a thread, where a block leaves some to blocks of other kernels; 0: it takes all
    adds: bool = True  # it takes works with addends
    shares_left: bool = False  # … or the left one, their tiles side by side; of fp8 operands
    parts: int = 1  # of K, of a tile, that the blocks of a cluster make and add up in shared memory; swapped

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    def clusters(self, sms: int) -> int:
        """At work at once on so many multiprocessors; of those whose blocks have parts of K, blocks."""
        fit = FITTING.get(self.parts, 132 // self.parts)
        return max(1, sms // self.cluster * fit // 132) * self.parts

    @property
    def together(self) -> int:
        """Blocks that are launched as a cluster."""
        return self.cluster * self.parts

    @property
    def warps(self) -> int:
        """Number of warps that store a tile."""
        return 4 if self.pingpong else 4 * self.consumers

    @property
    def registers(self) -> int:
        """Registers of a thread at launch, before warp groups trade them: what the block's threads can share at
        most."""
        return self.launch_registers or min(65536 // self.threads // 8 * 8, self.consumer_registers)

    def stage_bytes(self, right_transposed: bool) -> int:
        rows, columns = self.tile
        return 128 * (rows + (columns if right_transposed else -(-columns // 64) * 64))

    @property
    def cluster_tile(self) -> tuple[int, int]:
        """Rows, columns of a cluster's tiles."""
        return of_cluster(self.tile, self.cluster, self.shares_left)

    @property
    def loads(self) -> float:
        """Rows of the left operand and columns of the right one that a block loads itself."""
        return sum(self.cluster_tile) / self.cluster

    @property
    def left_boxes(self) -> int:
        """In which the rows of the left operand are loaded: a block of the cluster loads one for all."""
        return self.cluster if self.shares_left else 1

    @property
    def right_slice(self) -> int:
        """Columns of a right operand `[N, K]` that a block loads for all of its cluster: whole swizzle atoms."""
        return self.tile[1] if self.shares_left else -(-self.tile[1] // self.cluster // 8) * 8

    def loaded_bytes(self, right_transposed: bool) -> int:
        """Bytes that loads bring into a stage: some columns come twice where a cluster's blocks cannot share them
        evenly."""
        loaders = 1 if self.shares_left else self.cluster
        twice = self.right_slice * loaders - self.tile[1] if right_transposed else 0
        return self.stage_bytes(right_transposed) + 128 * twice

    def trade(self, addends: bool) -> tuple[int, int]:
        """Registers of a producer's and of a consumer's thread, for works with addends or without."""
        with_addends = LEAN_ADDEND_REGISTERS if self.launch_registers else ADDEND_REGISTERS
        return with_addends if addends else (self.producer_registers, self.consumer_registers)

    @property
    def addend_steps(self) -> int:
        """Stages that the tile's rows of an addend take; one of two holds those of a consumer, or of a 64-row block."""
        rows, columns = self.tile
        return 1 if rows * -(-columns // 64) <= rows + columns else self.consumers

    @property
    def addend_gap(self) -> int:
        """Steps of K from one of these to the next, at most; 0: all of them stand behind the last of K."""
        return 0 if self.pingpong else ADDEND_GAP

    @property
    def boxes(self) -> int:
        """Of 64 rows, in which a group of consumers stores a whole tile with scales of blocks, each warp one at most;
        0: it does not."""
        found = self.blocks_m * self.tile[1] // 64
        plain = not (self.throttled or self.pingpong or self.swapped or self.launch_registers)
        return found if plain and self.tile[1] % 64 == 0 and found <= 4 else 0

    def buffers(self, scaling: str | None) -> int:
        """Of a storing warp."""
        return (self.boxes if scaling == "1x128" else 0) or self.staging

    def box_rows(self, signature: Signature) -> int:
        """Rows of a box that is stored."""
        return 64 if signature.blocks and signature.out_item == 2 and self.boxes else 16

    @property
    def part_bytes(self) -> int:
        """Where the sums of the cluster's other blocks come, of a block's share of the tile's rows."""
        eighths = self.tile[0] // 8
        return (self.parts - 1) * 32 * self.tile[1] * -(-eighths // min(self.parts, eighths))

    def stores(self, out_dtype: str) -> bool:
        """Whether it is made for outputs of this type: of fp32 a tile's boxes take too many buffers, or
        its turned rows."""
        return not (self.throttled or self.swapped) or out_dtype != ACCUMULATOR

    def promotes(self, blocks: bool) -> bool:
        """Whether sums of a step of fp8 operands fit beside those of a tile, of 64 rows a time; swapped, with scales of
        `blocks`: and all rows' scales."""
        if self.swapped and blocks:
            return self.blocks_m == 1 and self.consumers < 3 and self.tile[0] <= 128
        accumulators = (self.blocks_m + 1) * self.tile[0 if self.swapped else 1] // 2
        most = 128 if self.consumers == 3 else 192
        return accumulators <= most and not (self.pingpong or self.launch_registers)

    def crowded(self, fast: bool) -> bool:
        """Swapped: whether sums leave too few registers for scales of rows."""
        rows = self.tile[0]
        return self.blocks_m == 2 and rows > 136 if fast else self.consumers == 2 and self.parts > 4 and rows > 144

    def takes(self, signature: Signature) -> bool:
        """Whether it is made for these types and scales."""
        if signature.addends and (not self.adds or (signature.fp8 and self.tile[1] > 160)):  # they would spill
            return False
        if self.shares_left and (not signature.fp8 or signature.fast):
            return False
        if signature.fp8 and self.launch_registers:
            return False
        if signature.fp8 and not (signature.fast or self.promotes(signature.blocks)):
            return False
        if signature.blocks and self.odd and not (self.adds or self.swapped):
            return False
        if signature.blocks and self.consumers == 1 and self.tile[1] > 160:  # it would spill
            return False
        if signature.scaling == "row" and self.swapped and self.crowded(signature.fast):  # likewise
            return False
        if signature.blocks and self.tile == (128, 64):  # 64 x 128 is as fast, or up to 23 % faster
            return False
        return self.stores(signature.out_dtype)

    def scale_slots(self, scaling: str | None) -> int:
        """For the scales of rows and columns of a tile; or for those of blocks of some steps."""
        return 0 if scaling is None else 2

    @property
    def scale_steps(self) -> int:
        """Scales of blocks that a box brings of each row."""
        return 16 if self.tile[0] <= 64 else 8

    def scale_bytes(self, scaling: str | None) -> int:
        """Of all of them."""
        rows, columns = self.tile
        slot = self.scale_steps * (4 * rows + 8) + 16 if scaling == "1x128" else 4 * (rows + columns)
        return self.scale_slots(scaling) * slot

    def smem(self, stages: int, right_transposed: bool, scaling: str | None = None) -> int:
        """Dynamic shared memory of a block, of operands with such scales."""
        buffer = TURNED_BYTES if self.swapped else CHUNK_BYTES
        buffers = 4 * self.consumers * self.buffers(scaling) * buffer
        others = self.scale_bytes(scaling) + buffers + self.part_bytes
        return ALIGN_BYTES + stages * self.stage_bytes(right_transposed) + others

    def stages(self, budget: int, right_transposed: bool, scaling: str | None = None) -> int:
        """The deepest pipeline that `budget` bytes of dynamic shared memory hold; under 2 the variant cannot run."""
        left = budget - self.smem(0, right_transposed, scaling)
        return min(MAX_STAGES - self.scale_slots(scaling), left // self.stage_bytes(right_transposed))

    def options(self, signature: Signature) -> tuple[str, ...]:
        """What the source is compiled with."""
        producer, consumers = self.trade(signature.addends)
        if signature.blocks and self.consumers == 1:  # which leaves registers: the warp that brings scales would spill
            producer = 96
        elif signature.blocks and self.swapped:
            producer, consumers = 72, 216
        elif signature.blocks and self.consumers == 2 and (self.blocks_m + 1) * self.tile[1] <= 256:  # likewise
            producer, consumers = ADDEND_REGISTERS
        defines = {
            "TILE_N": self.tile[1],
            "BLOCKS_M": self.blocks_m,
            "CONSUMERS": self.consumers,
            "CLUSTER": self.cluster,
            "STAGING": self.buffers(signature.scaling),
            "THROTTLED": int(self.throttled),
            "PINGPONG": int(self.pingpong),
            "PRODUCER_REGS": producer,
            "CONSUMER_REGS": consumers,
        }
        if self.swapped:
            defines["TILE_ROWS"] = self.tile[0]
            defines["PARTS"] = self.parts
        if self.shares_left:
            defines["LEFT_SHARED"] = 1
        if self.box_rows(signature) != 16:
            defines["BOX_ROWS"] = self.box_rows(signature)
        if self.launch_registers:
            defines["LAUNCH_REGS"] = self.launch_registers
        return signature.options(self.name, ARCH, defines)


def variant(rows: int, columns: int, blocks_m: int, consumers: int, cluster: int, staging: int = 2) -> Variant:
    """A compilation for a tile of so many rows and columns."""
    assert rows == 64 * blocks_m * consumers
    return Variant(f"sm90_gemm_{rows}x{columns}_c{cluster}", (rows, columns), blocks_m, consumers, cluster, staging)


VARIANTS: tuple[Variant, ...] = (
    variant(128, 256, 1, 2, 2),
    variant(256, 128, 2, 2, 2),
    variant(256, 160, 2, 2, 2, 0),  # no buffer, a stage more
    variant(128, 192, 1, 2, 2),
    variant(128, 160, 1, 2, 2),
    variant(128, 128, 1, 2, 2),
    variant(128, 128, 1, 2, 1),
    variant(128, 256, 1, 2, 1),  # of an odd number of rows of tiles
    variant(128, 192, 1, 2, 1),
    variant(128, 64, 1, 2, 1),
    variant(64, 192, 1, 1, 1),
    variant(64, 128, 1, 1, 1),
    variant(64, 64, 1, 1, 1),
    replace(variant(128, 216, 1, 2, 2), odd=True),
    replace(variant(256, 168, 2, 2, 2, 0), odd=True),
)
_COMMON = {(v.tile, v.cluster) for v in VARIANTS}

# Of fp8 operands alone: a step of both takes less from L2.
BESIDE: tuple[Variant, ...] = (
    replace(variant(256, 128, 2, 2, 2), name="sm90_gemm_256x128_c1x2", shares_left=True),
    replace(
        variant(192, 128, 1, 3, 2, 1),
        name="sm90_gemm_192x128_c1x2",
        shares_left=True,
        consumer_registers=152,
        adds=False,
    ),
)

# Tiles of any width, which fill a wave that others leave half empty. Where they start inside lines of a right operand
# `[K, N]`, they read too much.
WIDE: tuple[Variant, ...] = tuple(
    replace(variant(64 * blocks * consumers, columns, blocks, consumers, cluster, staging), odd=True, adds=False)
    for blocks, consumers, cluster, staging, widths in (
        (1, 1, 1, 2, range(40, 257, 8)),
        (1, 2, 1, 2, range(48, 257, 8)),
        (1, 2, 2, 2, range(136, 257, 8)),
        (2, 2, 1, 0, range(96, 169, 8)),
        (2, 2, 2, 0, range(96, 169, 8)),
    )
    for columns in widths
    if ((64 * blocks * consumers, columns), cluster) not in _COMMON
)


# NOTE a multiprocessor whose stores queue for a link loads nothing meanwhile: these spread them over the next tile
VARIANTS += tuple(
    replace(v, name=f"{v.name}_paced", staging=v.blocks_m * -(-v.tile[1] // 64), throttled=True)
    for v in VARIANTS
    if v.tile in ((128, 128), (64, 128)) or v is VARIANTS[0]
)

# Each consumer makes a tile of its own: one buffer of a warp less is a stage more for 128 × 160, not for 128 × 128. The
# sums of 128 × 192 leave no registers for addends.
VARIANTS += tuple(
    replace(v, name=f"{v.name}_pp", blocks_m=2, staging=staging, pingpong=True)
    for tile, staging in (((128, 160), 1), ((128, 128), 2))
    for v in VARIANTS
    if v.tile == tile and v.cluster == 2 and not v.throttled
)
VARIANTS += (
    replace(
        variant(128, 192, 2, 1, 2, 1),
        name="sm90_gemm_128x192_c2_pp",
        consumers=2,
        pingpong=True,
        adds=False,
        producer_registers=40,
        consumer_registers=232,
    ),
)

# Tiles of any height, for few rows or where 64-row blocks fill no wave: 128 tiles of 160 × 256 make 5000 × 1000.
SWAPPED: tuple[Variant, ...] = tuple(
    Variant(
        f"sm90_gemm_{rows}x{64 * blocks * consumers}_c{cluster}_swapped",
        (rows, 64 * blocks * consumers),
        blocks,
        consumers,
        cluster,
        1,
        odd=True,
        swapped=True,
        consumer_registers=152 if consumers == 3 else 224,
        adds=False,
    )
    for blocks, consumers, cluster, heights in (
        (1, 1, 1, range(8, 257, 8)),
        (1, 2, 1, range(8, 257, 8)),
        (1, 3, 1, range(8, 193, 8)),
        (2, 2, 1, range(8, 169, 8)),
        (2, 2, 2, range(80, 169, 8)),
    )
    for rows in heights
)

# Blocks of a cluster that have a part of K each, for products of few tiles.
PARTED: tuple[Variant, ...] = tuple(
    replace(v, name=v.name.replace("_c1_swapped", f"_c{parts}_parts"), parts=parts)
    for v in SWAPPED
    if v.cluster == v.blocks_m == 1 and v.consumers < 3 and v.tile[0] in (*range(8, 65, 8), *range(80, 193, 16))
    for parts in (2, 3, 4, 6, 8)
)

ODD = (*WIDE, *SWAPPED, *PARTED)

# Blocks that leave room for others: of two warp groups, with 112 registers a thread. Beside NCCL's 9 or 12 warps of 96
# registers each part of a multiprocessor then takes its two warps. NOTE one group has the sums of 128 × 128, so that
# works with addends would spill.
LEAN: tuple[Variant, ...] = tuple(
    replace(
        v,
        name=f"{v.name}_lean",
        producer_registers=40,
        consumer_registers=184,
        launch_registers=112,
        adds=v.blocks_m == 1,
    )
    for v in (
        variant(128, 128, 2, 1, 2, 1),
        variant(128, 128, 2, 1, 1, 1),
        variant(64, 128, 1, 1, 1),
        variant(64, 64, 1, 1, 1),
    )
)
