"""The host's half of `src/sm90_gemm.cu`: variants, what they can take, tensor maps, and the kernel's parameters.

Numbers only: nothing here touches a device. A driver

1. compiles the variant that the plan names, as `choose` found it (`SOURCE`, `options`, `entry`; see `compiler`),
2. calls `build` with the works' geometry (see `tiles`), K cut as `cuts_of` says, and the flags to be taken down,
3. puts `table.constants` into device memory, and `table.scratch_bytes` zeroed bytes beside it,
4. encodes `maps` in order (cuTensorMapEncodeTiled: 2-D, 128-byte swizzle, zero fill), and
5. launches `grid` blocks in the variant's clusters with `parameters(…)`, the kernel's only argument. It may be launched
   again and again, one launch of a table at a time: each leaves the scratch as it found it. Behind another table's
   launch on its stream it may begin early (programmatic stream serialization): it waits itself for what that writes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from math import ceil
from pathlib import Path

from .tiles import (
    DEPTH,
    TERM_GAP,
    UNCUT,
    Cuts,
    Matrix,
    Table,
    Work,
    band_of,
    best_splits,
    common,
    defines,
    depth_of,
    depths_of,
    entry_of,
    table,
)

SOURCE = Path(__file__).with_name("src") / "sm90_gemm.cu"
ARCH = "sm_90a"
MAX_OPERANDS = 8  # different (left, right, out) triples in one launch
MAX_TERMS = 4  # different matrices that terms lie in
MAX_STAGES = 16
STATIC_BYTES = 272  # of shared memory: barriers, and how much has been waited for
ALIGN_BYTES = 1024  # the ring starts on a swizzle atom
CHUNK_BYTES = 2048  # a storing warp's buffer: 16 rows of 128 bytes
PARAMETER_BYTES = 3968  # of 4096 that a launch's may have
OPERAND_BYTES = 384  # three tensor maps
SIDES_AT = MAX_OPERANDS * OPERAND_BYTES
SIDES = struct.Struct("<4Q")  # struct OperandInfo
POINTERS_AT = SIDES_AT + MAX_OPERANDS * SIDES.size
POINTERS = struct.Struct("<9Q2i3Q2iQ")  # of struct MappedParameters, from `table` to `depth_waits`
TERM_MAPS_AT = 3456
TERM_REGISTERS = (72, 216)  # of producer and consumers: a producer with terms has more to do


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of the source, for a choice of tile."""

    name: str
    tile: tuple[int, int]  # rows, columns of a block's tile
    blocks_m: int  # 64-row blocks a consumer
    consumers: int
    cluster: int  # blocks that share the right operand
    staging: int = 2  # buffers of a storing warp; 0: it stores from registers
    paced: bool = False  # a buffer for each of a warp's boxes, which leave among the next tile's steps
    pingpong: bool = False  # consumers take a block's tiles by turns: while one stores, the other multiplies
    producer_registers: int = 56
    consumer_registers: int = 224

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def warps(self) -> int:
        """Those that store a tile."""
        return 4 if self.pingpong else 4 * self.consumers

    @property
    def registers(self) -> int:
        """Of a thread at launch, before warp groups trade them: what the block's threads can share at most."""
        return min(65536 // self.threads // 8 * 8, self.consumer_registers)

    def stage_bytes(self, right_transposed: bool) -> int:
        rows, columns = self.tile
        return 128 * (rows + (columns if right_transposed else -(-columns // 64) * 64))

    def trade(self, terms: bool) -> tuple[int, int]:
        """Registers of a producer's and of a consumer's thread, for works with terms or without."""
        return TERM_REGISTERS if terms else (self.producer_registers, self.consumer_registers)

    @property
    def term_steps(self) -> int:
        """Stages that the tile's rows of a term take; one of two holds those of a consumer, or of a 64-row block."""
        rows, columns = self.tile
        return 1 if rows * -(-columns // 64) <= rows + columns else self.consumers

    @property
    def staging_bytes(self) -> int:
        """Buffers of all storing warps."""
        return 4 * self.consumers * self.staging * CHUNK_BYTES

    def stores(self, out_dtype: str) -> bool:
        """Whether it is made for outputs of this type: of fp32 a tile's boxes take too many buffers."""
        return not self.paced or out_dtype != "fp32"

    def smem(self, stages: int, right_transposed: bool) -> int:
        """Dynamic shared memory of a block."""
        return ALIGN_BYTES + stages * self.stage_bytes(right_transposed) + self.staging_bytes

    def stages(self, budget: int, right_transposed: bool) -> int:
        """The deepest pipeline that `budget` bytes of dynamic shared memory hold; under 2 the variant cannot run."""
        left = budget - ALIGN_BYTES - self.staging_bytes
        return min(MAX_STAGES, left // self.stage_bytes(right_transposed))


def _variant(rows: int, columns: int, blocks_m: int, consumers: int, cluster: int, staging: int = 2) -> Variant:
    assert rows == 64 * blocks_m * consumers
    return Variant(f"sm90_gemm_{rows}x{columns}_c{cluster}", (rows, columns), blocks_m, consumers, cluster, staging)


VARIANTS: tuple[Variant, ...] = (
    _variant(128, 256, 1, 2, 2),
    _variant(256, 128, 2, 2, 2),
    _variant(256, 160, 2, 2, 2, 0),  # no buffer, a stage more
    _variant(128, 192, 1, 2, 2),
    _variant(128, 160, 1, 2, 2),
    _variant(128, 128, 1, 2, 2),
    _variant(128, 128, 1, 2, 1),
    _variant(128, 64, 1, 2, 1),
    _variant(64, 128, 1, 1, 1),
    _variant(64, 64, 1, 1, 1),
)


# NOTE a multiprocessor whose stores queue for a link loads nothing meanwhile: these spread them over the next tile
VARIANTS += tuple(
    replace(v, name=f"{v.name}_paced", staging=v.blocks_m * -(-v.tile[1] // 64), paced=True)
    for v in VARIANTS
    if v.tile in ((128, 256), (128, 128), (64, 128))
)

# Each consumer makes a tile of its own: one buffer of a warp less is a stage more for 128 x 160, not for 128 x 128.
VARIANTS += tuple(
    replace(v, name=f"{v.name}_pp", blocks_m=2, staging=1 if v.tile == (128, 160) else 2, pingpong=True)
    for v in VARIANTS
    if v.tile in ((128, 160), (128, 128)) and v.cluster == 2 and not v.paced
)


def variant(name: str) -> Variant:
    return next(v for v in VARIANTS if v.name == name)


def entry(
    variant: Variant, dtype: str, out_dtype: str, left_transposed: bool, right_transposed: bool, terms: bool = False
) -> str:
    """The kernel's name: of the entry point, the catalogue, the trace and the cache alike."""
    return entry_of(variant.name, dtype, out_dtype, left_transposed, right_transposed, terms)


def options(
    variant: Variant,
    dtype: str,
    out_dtype: str,
    left_transposed: bool,
    right_transposed: bool,
    arch: str = ARCH,
    terms: bool = False,
) -> tuple[str, ...]:
    """What the source is compiled with."""
    producer, consumers = variant.trade(terms)
    name = entry(variant, dtype, out_dtype, left_transposed, right_transposed, terms)
    values = {
        **defines(name, dtype, out_dtype, (left_transposed, right_transposed), terms),
        "TILE_N": variant.tile[1],
        "BLOCKS_M": variant.blocks_m,
        "CONSUMERS": variant.consumers,
        "CLUSTER": variant.cluster,
        "STAGING": variant.staging,
        "THROTTLED": int(variant.paced),
        "PINGPONG": int(variant.pingpong),
        "PRODUCER_REGS": producer,
        "CONSUMER_REGS": consumers,
    }
    return ("-std=c++17", f"-arch={arch}", *(f"-D{key}={value}" for key, value in values.items()))


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What cuTensorMapEncodeTiled is given; rank 2, element strides 1, no interleave, 128-byte swizzle."""

    address: int
    dtype: str
    dims: tuple[int, int]  # elements; the contiguous one first
    pitch: int  # bytes
    box: tuple[int, int]
    offset: int  # where its 128 bytes go in the parameters


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch, ready but for device addresses."""

    variant: Variant
    table: Table
    stages: int
    smem: int
    grid: int
    right_transposed: bool
    maps: tuple[TensorMap, ...]
    constant: tuple[bool, bool]  # see `build`

    def parameters(
        self, constants: int, scratch: int, encoded: Sequence[bytes], epoch: int = 0, abort: int = 0
    ) -> bytes:
        """The kernel's argument. `encoded` are `maps`, encoded; `epoch` and `abort` addresses of 32-bit words or 0:
        an up flag holds at least *epoch (else 1); waiting ends when *abort is not 0."""
        block, table = bytearray(PARAMETER_BYTES), self.table
        left, right = self.constant
        for m, data in zip(self.maps, encoded, strict=True):
            block[m.offset : m.offset + 128] = data
        for i, (_, _, out) in enumerate(table.operands):
            short = self.variant.tile[0] - self.maps[3 * i].box[1]  # rows that the left box lacks
            loaded = self.variant.stage_bytes(self.right_transposed) - 128 * short
            SIDES.pack_into(block, SIDES_AT + i * SIDES.size, out.address, out.pitch, loaded, right + 2 * left)
        POINTERS.pack_into(
            block, POINTERS_AT, *table.pointers(constants, scratch, epoch, abort), len(table.tiles), self.stages,
            *table.term_pointers(constants), *table.lowering(scratch), table.depth_wait_pointer(constants),
        )  # fmt: skip
        assert len(block) == PARAMETER_BYTES
        return bytes(block)


def refusal(
    works: Sequence[Work], dtype: str, out_dtype: str, left_transposed: bool, right_transposed: bool
) -> str | None:
    """Why these works cannot be one launch of this kernel, or None."""
    if dtype not in ("bf16", "fp16"):
        return f"operands are {dtype}"
    item, out_item = 2, 4 if out_dtype == "fp32" else 2
    ends = _ends(works, left_transposed, right_transposed)
    for w in works:
        reason = fits(w, item, out_item, left_transposed, right_transposed)
        if reason is not None:
            return reason
        for a, b, n in common(*depths_of(w, left_transposed, right_transposed)):
            if n % DEPTH and (a + n != ends[w.left] or b + n != ends[w.right]):
                return f"a piece of K of {n} elements ends before another of the same operand"
    if len({(w.left, w.right, w.out) for w in works}) > MAX_OPERANDS:
        return f"more than {MAX_OPERANDS} different triples of operands in one launch"
    terms = [t for w in works for t in w.terms]
    if terms and out_dtype != dtype:
        return f"terms are added, and the output is {out_dtype}"
    for t in terms:
        if t.dtype != dtype:
            return f"operands are {dtype}, a term is {t.dtype}"
    if len({t.operand.matrix for t in terms}) > MAX_TERMS:
        return f"terms in more than {MAX_TERMS} different matrices in one launch"
    return None


def _ends(works: Sequence[Work], left_transposed: bool, right_transposed: bool) -> dict[Matrix, int]:
    """Where K ends in each operand: a piece of K may end anywhere if the tensor map ends there too."""
    ends: dict[Matrix, int] = {}
    for w in works:
        for matrix, spans in zip((w.left, w.right), depths_of(w, left_transposed, right_transposed), strict=True):
            ends[matrix] = max(ends.get(matrix, 0), *(s.stop for s in spans))
    return ends


def fits(work: Work, item: int, out_item: int, left_transposed: bool, right_transposed: bool) -> str | None:
    """Why the work cannot run here, or None. Rows of the output are free; the rest has the limits of TMA."""
    if left_transposed:
        return "the left operand is stored transposed"
    for name, matrix, bytes_ in (("left", work.left, item), ("right", work.right, item), ("out", work.out, out_item)):
        if matrix.address % 16 or matrix.pitch * bytes_ % 16:
            return f"the {name} operand's address or pitch is no multiple of 16 bytes"
    for t in work.terms:
        if t.operand.matrix.address % 16 or t.operand.matrix.pitch * item % 16:
            return "a term's address or pitch is no multiple of 16 bytes"
        if any(s.start % 8 or s.size % 8 for s in t.operand.columns):
            return "a term's columns do not start and end at multiples of 8"
    for s in work.out_columns if right_transposed else (*work.out_columns, *work.right_columns):
        if s.start % 8 or s.size % 8:
            return f"columns {s.start}:{s.stop} do not start and end at multiples of 8"
    for a, b, n in common(*depths_of(work, left_transposed, right_transposed)):
        if a % 8 or (right_transposed and b % 8):
            return "a piece of K does not start at a multiple of 8"
        if n % DEPTH and len(common(*depths_of(work, left_transposed, right_transposed))) > 1:
            return f"one of several pieces of K has {n} elements, no multiple of {DEPTH}"
    return None


def build(
    works: Sequence[Work],
    variant: Variant,
    dtype: str,
    out_dtype: str,
    left_transposed: bool,
    right_transposed: bool,
    *,
    sms: int,
    stages: int,
    smem: int | None = None,
    cuts: Cuts = UNCUT,
    band: int | None = None,
    constant: tuple[bool, bool] = (False, False),
    lowers: Sequence[int] = (),
) -> Launch:
    """The launch that makes `works`, in their order, on `sms` multiprocessors; see `tiles.table`. `constant`: nothing
    writes the left, or the right operands while the plan runs, so that they may be read before the launch before this
    one has ended, and the right ones before what the works wait for is there.
    `lowers`: flags that the launch takes down; none where a work accumulates, whose storing warps wait too."""
    reason = refusal(works, dtype, out_dtype, left_transposed, right_transposed)
    if reason is not None:
        raise ValueError(reason)
    assert not (lowers and any(w.accumulate for w in works))
    cluster = variant.cluster
    clusters = max(1, sms // cluster)
    if band is None and variant.paced and depth_of(works, (left_transposed, right_transposed)) <= _SHORT:
        band = max(1, band_of(clusters, variant.tile, cluster) // 2)
    made = table(
        works,
        variant.tile,
        variant.warps,
        left_transposed,
        right_transposed,
        groups=clusters,
        cluster=cluster,
        cuts=cuts,
        shared=True,
        band=band,
        term_steps=variant.term_steps,
        term_gap=0 if variant.pingpong else TERM_GAP,
        turns=True,
        lowers=lowers,
    )
    ends = _ends(works, left_transposed, right_transposed)
    maps: list[TensorMap] = []
    for i, key in enumerate(made.operands):
        at = i * OPERAND_BYTES
        maps += _maps(key, variant, dtype, out_dtype, left_transposed, right_transposed, ends, at)
    box = (64, variant.tile[0] // variant.term_steps)
    for i, m in enumerate(made.matrices):
        at = TERM_MAPS_AT + 128 * i
        maps.append(TensorMap(m.address, dtype, (m.columns, m.rows), m.pitch * 2, box, at))
    return Launch(
        variant=variant,
        table=made,
        stages=stages,
        smem=max(smem or 0, variant.smem(stages, right_transposed)),
        grid=min(clusters * cluster, len(made.tiles)),
        right_transposed=right_transposed,
        maps=tuple(maps),
        # NOTE a left operand that is not waited for is not waited for along K either
        constant=(constant[0] and not any(w.depth_waits for w in works), constant[1]),
    )


def _maps(
    key: tuple[Matrix, Matrix, Matrix],
    variant: Variant,
    dtype: str,
    out_dtype: str,
    left_transposed: bool,
    right_transposed: bool,
    ends: dict[Matrix, int],
    at: int,
) -> list[TensorMap]:
    left, right, out = key
    rows, columns = variant.tile
    left_dims = (left.columns, ends[left]) if left_transposed else (ends[left], left.rows)
    # NOTE no more rows than there are: rows outside cost as much as others, and are not stored
    left_box = (64, DEPTH) if left_transposed else (DEPTH, min(rows, -(-left.rows // 8) * 8))
    right_dims = (ends[right], right.rows) if right_transposed else (right.columns, ends[right])
    if right_transposed:
        right_box = (DEPTH, columns // variant.cluster)
    else:  # whole atoms for each block of the cluster, or a part of the depth of each
        right_box = (64, DEPTH if -(-columns // 64) % variant.cluster == 0 else DEPTH // variant.cluster)
    out_item = 4 if out_dtype == "fp32" else 2
    return [
        TensorMap(left.address, dtype, left_dims, left.pitch * 2, left_box, at),
        TensorMap(right.address, dtype, right_dims, right.pitch * 2, right_box, at + 128),
        TensorMap(
            out.address, out_dtype, (out.columns, out.rows), out.pitch * out_item, (128 // out_item, 16), at + 256
        ),
    ]


@dataclass(frozen=True, slots=True)
class Choice:
    """What `choose` found best: to be passed to `build`, or printed."""

    variant: Variant
    tail_splits: int
    estimate: float  # microseconds, for ranking only


# For ranking; fitted to H100 (python -m tools.gemm_bench --explore). µs of a step of 64 of K on one multiprocessor …
_STEP = {
    (128, 256): 0.57,
    (256, 128): 0.58,
    (256, 160): 0.72,
    (128, 192): 0.44,
    (128, 160): 0.375,
    (128, 128): 0.325,
    (128, 64): 0.18,
    (64, 128): 0.20,
    (64, 64): 0.165,
}
# … and where consumers take turns; with it the share of a tile's other costs (start, store, terms, cut) that the other
# consumer's steps do not hide, but for the last tile; fitted to H200 (python -m tools.gemm_bench --pieces)
_PINGPONG = {
    (128, 160): (0.375, 0.7),
    (128, 128): (0.325, 0.7),
}
_TILE = 1.7  # … that a 128 × 256 tile's start and store add
_TERM = 1.8  # … and each of its terms
_LAUNCH = 6.0
_CLUSTER = 0.8  # blocks of a cluster start and end together
_BANDWIDTH = 3.0e6  # bytes of memory a µs
_CACHE = 1.0e7  # bytes of L2 a µs, for all multiprocessors
_SPLIT = (3.0, 1.3)  # once, and for each part of 128 × 256 that is left or added
_LOADED = 1.25  # times the step where a device is at work for long, and what comes beside it is no slower for that
_PACE = 3.86e5  # bytes a µs that come from other devices …
_PIECE = 6.0  # … and what each piece that is waited for adds
_CLOSE = 1.0  # µs: estimates this close are alike
_SHORT = 1024  # so little of K that a tile's stores take as long as its steps: among the next one's they are hidden
_PARTIALS = 1 << 27  # bytes that works that come one by one leave at most
_FIRST = 4  # so many of the last phases may stay whole where the first ones are cut


def cuts_of(v: Variant, works: Sequence[Work], columns: Sequence[int], k: int, sms: int) -> Cuts:
    """How K of the works' tiles is best cut. Works that wait for flags come one after another, and one that makes few
    tiles leaves multiprocessors idle until the next has come: then all are cut, if what a cut costs is hidden."""
    terms = max(len(w.terms) for w in works)
    found = phases(works, k)
    rows = [n for phase in found for n in phase.rows]
    tail = Cuts(tail=_best(v, rows, columns, k, sms, terms)[1])
    if any(w.signals for w in works):  # these come to an end one by one, and are never cut; what stands behind them is
        behind = [s.size for w in takewhile(lambda w: not w.signals, reversed(works)) for s in w.out_rows]
        over = _clusters(v, rows, columns) % max(1, sms // v.cluster)
        return tail if over <= _clusters(v, behind, columns) else UNCUT
    _, parts = _in_turn(v, found, columns, k, sms, terms)
    if any(n > 1 for n in parts):
        groups = [list(group) for _, group in groupby(works, key=_awaited)]
        return Cuts(works=tuple(n for n, group in zip(parts, groups, strict=True) for _ in group))
    return tail


def _awaited(work: Work) -> tuple[int, ...]:
    """What its first flags are."""
    return work.waits or work.term_waits


def _clusters(v: Variant, rows: Sequence[int], columns: Sequence[int]) -> int:
    """The tiles of pieces of outputs of so many rows and columns; those that a cluster makes at once count as one."""
    return sum(ceil(r / v.tile[0] / v.cluster) for r in rows) * sum(ceil(c / v.tile[1]) for c in columns)


@dataclass(frozen=True, slots=True)
class Phase:
    """Works that wait for the same. Their operands come from `first` to `last`, µs; the last are `share` of K, 0 where
    it is what is added at the end."""

    rows: tuple[int, ...]  # of the pieces of their outputs
    first: float
    last: float
    share: float = 1.0


def phases(works: Sequence[Work], k: int, arrival: float | None = None) -> tuple[Phase, ...]:
    """Works in the order in which they wait. What they wait for comes one after another, at the pace of the links, or
    evenly until `arrival`."""
    found, at = [], 0.0
    for waits, group in groupby(works, key=_awaited):
        members = list(group)
        rows = tuple(s.size for w in members for s in w.out_rows)
        if not waits:
            found.append(Phase(rows, at, at))
            continue
        if members[0].term_waits:  # what is added at the end
            at += 2 * sum(rows) * sum(s.size for s in members[0].out_columns) / _PACE + _PIECE
            found.append(Phase(rows, 0.0, at, 0.0))
            continue
        places = [place for place, _ in members[-1].depth_waits]
        time = 2 * sum(rows) * k / _PACE + _PIECE * (1 + len(places))
        first, last = at + time * (places[0] if places else k) / k, at + time
        found.append(Phase(rows, first, last, (k - places[-1]) / k if places else 1.0))
        at = last
    scale = 1.0 if arrival is None or not at else arrival / at
    return tuple(replace(p, first=p.first * scale, last=p.last * scale) for p in found)


@dataclass(frozen=True, slots=True)
class _Costs:
    """What a tile of a product costs, µs."""

    tiles: int  # of clusters
    groups: int  # clusters at work at once
    steps: int
    step: float
    tile: float
    split: tuple[float, float]
    moved: float  # the memory's time
    shown: float  # the share of `tile` and `split` that each tile costs; the last one costs all


def _costs(v: Variant, rows: Sequence[int], columns: Sequence[int], k: int, sms: int, terms: int) -> _Costs:
    m, n = v.tile
    size = m * n / (128 * 256)
    tiles = _clusters(v, rows, columns)
    groups = max(1, sms // v.cluster)
    step, shown = _PINGPONG[v.tile] if v.pingpong else (_STEP[v.tile], 1.0)
    if tiles > 2 * groups:  # all at work: what a step loads, the right operand shared in a cluster, comes out of L2
        step = max(step, sms * 2 * DEPTH * (m + n / v.cluster) / _CACHE)
    return _Costs(
        tiles=tiles,
        groups=groups,
        steps=ceil(k / DEPTH),
        step=step,
        tile=(_TILE + _TERM * terms) * size,
        split=(_SPLIT[0], _SPLIT[1] * size),
        moved=2 * (sum(rows) * k + k * sum(columns) + (1 + terms) * sum(rows) * sum(columns)) / _BANDWIDTH,
        shown=shown,
    )


def _best(v: Variant, rows: Sequence[int], columns: Sequence[int], k: int, sms: int, terms: int) -> tuple[float, int]:
    """The least time, and the splits of the last wave that give it."""
    c = _costs(v, rows, columns, k, sms, terms)
    cost, cut = best_splits(c.tiles, c.groups, c.steps, c.step, c.tile * c.shown, c.split, c.moved)
    return _LAUNCH + _CLUSTER * (v.cluster - 1) + cost + c.tile * (1 - c.shown), cut


def _in_turn(
    v: Variant, phases: Sequence[Phase], columns: Sequence[int], k: int, sms: int, terms: int
) -> tuple[float, list[int]]:
    """The least time of phases, each of which may begin when its operands come, and into how many parts K of each one's
    tiles is cut: of none, of all that make few tiles, or of the first of these."""
    costs = [_costs(v, phase.rows, columns, k, sms, terms) for phase in phases]
    whole = [1] * len(phases)
    few = [c.groups // c.tiles > 1 for c in costs]
    if len(phases) == 1:
        return 0.0, whole
    cut = [best_splits(c.tiles, c.groups, c.steps, c.step, c.tile, c.split, 0.0)[1] if f else 1
           for c, f in zip(costs, few, strict=True)]  # fmt: skip
    # NOTE partials are kept for each tile of a launch: only the last products are cut if they are many
    room = _PARTIALS // (4 * v.tile[0] * v.tile[1] * v.cluster)
    for i in reversed(range(len(cut))):
        room -= costs[i].tiles * cut[i] if cut[i] > 1 else 0
        if room < 0:
            cut[i] = 1
    every = _best(v, [n for phase in phases for n in phase.rows], columns, k, sms, terms)[1]
    tail = sum(c.tiles for c in costs) % costs[0].groups
    if not any(few):
        return _makespan(costs, phases, whole, tail, every), whole
    best = (_makespan(costs, phases, whole, tail, every), whole)
    first = max(1, len(cut) - _FIRST)
    begun = _Clusters([0.0] * costs[0].groups)
    for i in range(first):
        begun.take(costs[i], phases[i], costs[i].tiles, cut[i])
    for n in range(first, len(cut) + 1):
        choice, clusters = cut[:n] + whole[n:], begun.copy()
        for i in range(first, len(cut)):
            clusters.take(costs[i], phases[i], costs[i].tiles, choice[i])
        best = min(best, (clusters.end, choice))
    return best


@dataclass(slots=True)
class _Clusters:
    """Clusters that take tiles, and parts of them, by turns."""

    free: list[float]  # when each has done what it has taken
    turn: int = 0
    hides: float = 0.0  # what the last tile's end takes beyond that

    @property
    def end(self) -> float:
        return round(max(self.free) + self.hides, 6)  # equal times are equal: then the least is cut

    def copy(self) -> _Clusters:
        return _Clusters(self.free[:], self.turn, self.hides)

    def take(self, c: _Costs, phase: Phase, tiles: int, parts: int) -> None:
        """So many tiles of a phase, each in so many parts."""
        if not tiles:
            return
        ends = c.tile + (c.split[0] + c.split[1] * parts if parts > 1 else 0.0)
        time = ceil(c.steps / parts) * c.step * _LOADED + ends * c.shown
        soonest, first = phase.last + min(1.0, phase.share * parts) * time, phase.first + time
        free, count = self.free, len(self.free)
        rounds, over = divmod(tiles * parts, count)
        for i in range(count if rounds else over):  # a cluster's first of them may have to wait, no other
            at = (self.turn + i) % count
            free[at] = max(free[at] + time, first, soonest) + (rounds - 1 + (i < over)) * time
        self.turn = (self.turn + over) % count
        self.hides = ends * (1 - c.shown)


def _makespan(
    costs: Sequence[_Costs], phases: Sequence[Phase], parts: Sequence[int], tail: int, tail_parts: int
) -> float:
    """The time of all phases; the last `tail` tiles are cut into parts of their own."""
    clusters = _Clusters([0.0] * costs[0].groups)
    behind = sum(c.tiles for c in costs)
    for c, phase, n in zip(costs, phases, parts, strict=True):
        behind -= c.tiles
        last = max(0, min(c.tiles, tail - behind))
        clusters.take(c, phase, c.tiles - last, n)
        clusters.take(c, phase, last, tail_parts)
    return clusters.end


def choose(
    rows: Sequence[int],
    columns: Sequence[int],
    k: int,
    sms: int,
    right_transposed: bool,
    smem: int = 232448 - 1024,
    late: Sequence[Phase] = (),
    terms: int = 0,
    paced: bool | None = None,
) -> Choice:
    """The variant, and the splits of the last wave, that the estimate finds fastest for pieces of these sizes.
    `terms` are added to each; `late`: the phases of a launch whose works wait; `paced`: whether to take a variant of
    that kind if one fits; None: where it pays. ValueError: none fits `smem`."""
    turns = bool(late) and not terms  # taken by turns, smaller tiles pay where they are cut, and in nothing else
    fitting = [
        v for v in VARIANTS if v.stages(smem, right_transposed) >= 2 and v.cluster <= sms and (turns or not v.pingpong)
    ]
    if not fitting:
        raise ValueError(f"no variant fits {smem} bytes of shared memory")
    found: list[tuple[float, Choice]] = []
    for v in [v for v in fitting if v.paced is bool(paced)] or fitting:
        alone, cut = _best(v, rows, columns, k, sms, terms)
        cost = alone
        if late:
            start = _LAUNCH + _CLUSTER * (v.cluster - 1)
            span, parts = _in_turn(v, late, columns, k, sms, terms)
            if any(n > 1 for n in parts):
                cost = start + span
            else:
                last = late[-1]
                cost = max(cost, start + span, last.last + last.share * _best(v, last.rows, columns, k, sms, terms)[0])
        found.append((alone, Choice(v, cut, cost)))
    # of those that wait for what comes last, all as long, the one that is fastest when nothing is late
    least = min(choice.estimate for _, choice in found)
    best = min((c for c in found if c[1].estimate <= least + _CLOSE), key=lambda c: c[0])[1]
    often = k <= _SHORT and not late and not terms
    if paced is None and often and _clusters(best.variant, rows, columns) > 4 * (sms // best.variant.cluster):
        twins = (v for v in fitting if v.paced and (v.tile, v.cluster) == (best.variant.tile, best.variant.cluster))
        return replace(best, variant=next(twins, best.variant))
    return best
