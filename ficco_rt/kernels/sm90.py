"""The host's half of `src/sm90_gemm.cu`: variants, the table of tiles, tensor maps, and the kernel's parameters.

Numbers only: nothing here touches a device. A driver

1. picks a variant (`choose`), compiles it (`source`, `options`, `entry`; see `compiler`),
2. calls `build` with the works' geometry,
3. puts `Table.constants` into device memory, and `Table.scratch_bytes` zeroed bytes beside it,
4. encodes `Table.maps` in order (cuTensorMapEncodeTiled: 2-D, 128-byte swizzle, zero fill), and
5. launches with `Table.parameters(…)`, the kernel's only argument. It may be launched again and again, one
   launch of a table at a time: each leaves the scratch as it found it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..region import Interval, Region

SOURCE = Path(__file__).with_name("src") / "sm90_gemm.cu"
ARCH = "sm_90a"
DEPTH = 64  # elements of K in a step of the pipeline: 128 bytes, one swizzle row
MAX_OPERANDS = 4  # different (left, right, out) triples in one launch
MAX_STAGES = 16
BARRIER_BYTES = 256  # static shared memory
ALIGN_BYTES = 1024  # the ring starts on a swizzle atom
CHUNK_BYTES = 2048  # a storing warp's buffer: 16 rows of 128 bytes
PARAMETER_BYTES = 1920
OPERAND_BYTES = 448

TILE = np.dtype(
    [
        (name, np.int32)
        for name in (
            "left_row",
            "right_col",
            "out_row",
            "out_col",
            "rows",
            "cols",
            "k_first",
            "k_blocks",
            "operands",
            "accumulate",
            "wait_first",
            "wait_count",
            "signal",
            "splits",
            "split",
            "slot",
        )
    ]
)
DEPTHS = np.dtype([(name, np.int32) for name in ("left", "right", "blocks", "unused")])
SIGNAL = np.dtype([(name, np.uint32) for name in ("target", "flag_first", "flag_count", "unused")])

Rows = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of the source, for a choice of tile."""

    name: str
    tile: tuple[int, int]  # rows, columns of a block's tile
    blocks_m: int  # 64-row blocks a consumer
    consumers: int
    cluster: int  # blocks that share the right operand
    staging: int = 2  # buffers of a storing warp
    producer_registers: int = 56
    consumer_registers: int = 224

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def warps(self) -> int:
        """Those that store."""
        return 4 * self.consumers

    @property
    def registers(self) -> int:
        """Of a thread at launch, before warp groups trade them: what the block's threads can share at most."""
        return min(65536 // self.threads // 8 * 8, self.consumer_registers)

    def stage_bytes(self, right_transposed: bool) -> int:
        rows, columns = self.tile
        return 128 * (rows + (columns if right_transposed else -(-columns // 64) * 64))

    def smem(self, stages: int, right_transposed: bool) -> int:
        """Dynamic shared memory of a block."""
        return ALIGN_BYTES + stages * self.stage_bytes(right_transposed) + self.warps * self.staging * CHUNK_BYTES

    def stages(self, budget: int, right_transposed: bool) -> int:
        """The deepest pipeline that `budget` bytes of dynamic shared memory hold; under 2 the variant cannot run."""
        left = budget - ALIGN_BYTES - self.warps * self.staging * CHUNK_BYTES
        return min(MAX_STAGES, left // self.stage_bytes(right_transposed))


def _variant(rows: int, columns: int, blocks_m: int, consumers: int, cluster: int, staging: int = 2) -> Variant:
    assert rows == 64 * blocks_m * consumers
    return Variant(f"sm90_gemm_{rows}x{columns}_c{cluster}", (rows, columns), blocks_m, consumers, cluster, staging)


VARIANTS: tuple[Variant, ...] = (
    _variant(128, 256, 1, 2, 2),
    _variant(256, 128, 2, 2, 2),
    _variant(256, 160, 2, 2, 2, 1),  # a buffer less, a stage more
    _variant(128, 192, 1, 2, 2),
    _variant(128, 160, 1, 2, 2),
    _variant(128, 128, 1, 2, 2),
    _variant(128, 128, 1, 2, 1),
    _variant(128, 64, 1, 2, 1),
    _variant(64, 128, 1, 1, 1),
    _variant(64, 64, 1, 1, 1),
)


def variant(name: str) -> Variant:
    return next(v for v in VARIANTS if v.name == name)


def entry(variant: Variant, dtype: str, out_dtype: str, left_transposed: bool, right_transposed: bool) -> str:
    """The kernel's name: of the entry point, the catalogue, the trace and the cache alike."""
    layout = ("t" if left_transposed else "n") + ("t" if right_transposed else "n")
    return f"{variant.name}_{dtype}_{out_dtype}_{layout}"


def options(
    variant: Variant, dtype: str, out_dtype: str, left_transposed: bool, right_transposed: bool
) -> tuple[str, ...]:
    """What the source is compiled with."""
    values = {
        "ENTRY": entry(variant, dtype, out_dtype, left_transposed, right_transposed),
        "TILE_N": variant.tile[1],
        "BLOCKS_M": variant.blocks_m,
        "CONSUMERS": variant.consumers,
        "CLUSTER": variant.cluster,
        "HALF": int(dtype == "fp16"),
        "OUT_FP32": int(out_dtype == "fp32"),
        "LEFT_T": int(left_transposed),
        "RIGHT_T": int(right_transposed),
        "STAGING": variant.staging,
        "PRODUCER_REGS": variant.producer_registers,
        "CONSUMER_REGS": variant.consumer_registers,
    }
    return ("-std=c++17", f"-arch={ARCH}", *(f"-D{name}={value}" for name, value in values.items()))


@dataclass(frozen=True, slots=True)
class Matrix:
    """A row-major matrix in device memory, as it is stored; `pitch` in elements."""

    address: int
    rows: int
    columns: int
    pitch: int


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix, and the pieces of its rows and columns that a work takes, in their logical order."""

    matrix: Matrix
    rows: tuple[Interval, ...]
    columns: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """out (+)= left · right over pieces, in the coordinates of the stored matrices; pieces of one axis follow
    each other in the logical operand. A transposed left is stored [K, M], a transposed right [N, K].

    `waits` and `signals` are addresses of 32-bit flags: up before the work reads, raised when all is written.
    """

    left: Matrix
    right: Matrix
    out: Matrix
    left_rows: tuple[Interval, ...]
    left_columns: tuple[Interval, ...]
    right_rows: tuple[Interval, ...]
    right_columns: tuple[Interval, ...]
    out_rows: tuple[Interval, ...]
    out_columns: tuple[Interval, ...]
    accumulate: bool = False
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        left: Operand,
        right: Operand,
        out: Operand,
        accumulate: bool,
        waits: tuple[int, ...] = (),
        signals: tuple[int, ...] = (),
    ) -> Work:
        """The work on three operands."""
        pieces = (left.rows, left.columns, right.rows, right.columns, out.rows, out.columns)
        return cls(left.matrix, right.matrix, out.matrix, *pieces, accumulate, waits, signals)


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
class Table:
    """A launch, ready but for device addresses."""

    variant: Variant
    stages: int
    smem: int
    grid: int
    tiles: Rows
    depths: Rows
    flags: Rows
    signals: Rows
    maps: tuple[TensorMap, ...]
    outs: tuple[tuple[int, int], ...]  # address and pitch of each operand triple's out
    partials: int  # tiles of fp32 that splits of K leave
    constants: bytes = field(repr=False)
    offsets: tuple[int, int, int, int] = field(repr=False)  # of tiles, depths, flags, signals in constants

    @property
    def _counters(self) -> tuple[int, int]:
        """Bytes of the signals' and of the splits' counters."""
        up = 256
        return (-(-4 * len(self.signals) // up) * up, -(-4 * self.partials * self.variant.warps // up) * up)

    @property
    def counter_bytes(self) -> int:
        """Of the scratch, from its start: what a launch that was given up may leave other than zero."""
        return sum(self._counters)

    @property
    def scratch_bytes(self) -> int:
        """Device memory that starts as zeros and belongs to this table alone."""
        rows, columns = self.variant.tile
        return sum(self._counters) + 4 * self.partials * rows * columns

    def parameters(
        self, constants: int, scratch: int, encoded: Sequence[bytes], epoch: int = 0, abort: int = 0
    ) -> bytes:
        """The kernel's argument. `encoded` are `maps`, encoded; `epoch` and `abort` addresses of 32-bit words or 0:
        an up flag holds at least *epoch (else 1); waiting ends when *abort is not 0."""
        block = np.zeros(PARAMETER_BYTES, np.uint8)
        for m, data in zip(self.maps, encoded, strict=True):
            block[m.offset : m.offset + 128] = np.frombuffer(data, np.uint8)
        for i, (address, pitch) in enumerate(self.outs):
            at = i * OPERAND_BYTES + 384
            block[at : at + 16] = np.array([address, pitch], np.uint64).view(np.uint8)
        signal_bytes, split_bytes = self._counters
        pointers = [constants + at for at in self.offsets]
        pointers += [scratch, scratch + signal_bytes, scratch + signal_bytes + split_bytes, epoch, abort]
        at = MAX_OPERANDS * OPERAND_BYTES
        block[at : at + 72] = np.array(pointers, np.uint64).view(np.uint8)
        block[at + 72 : at + 80] = np.array([len(self.tiles), self.stages], np.int32).view(np.uint8)
        return block.tobytes()


def operand(region: Region, shape: tuple[int, ...], address: int, item: int) -> Operand | None:
    """A region of a dense row-major tensor at `address` as a matrix and its pieces; None if its second dimension
    is not the tensor's last: then columns are not side by side."""
    if len(region.kept) != 2 or region.kept[1] != len(shape) - 1:
        return None
    strides = [prod(shape[d + 1 :]) for d in range(len(shape))]
    fixed = sum(a.segments[0].start * n for a, n in zip(region.axes, strides, strict=True) if a.dropped)
    row, column = region.kept
    matrix = Matrix(address + fixed * item, shape[row], shape[column], strides[row])
    return Operand(matrix, region.axes[row].segments, region.axes[column].segments)


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
        for a, b, n in _common(*_depths(w, left_transposed, right_transposed)):
            if n % DEPTH and (a + n != ends[w.left] or b + n != ends[w.right]):
                return f"a piece of K of {n} elements ends before another of the same operand"
    if len({(w.left, w.right, w.out) for w in works}) > MAX_OPERANDS:
        return f"more than {MAX_OPERANDS} different triples of operands in one launch"
    return None


def _ends(works: Sequence[Work], left_transposed: bool, right_transposed: bool) -> dict[Matrix, int]:
    """Where K ends in each operand: a piece of K may end anywhere if the tensor map ends there too."""
    ends: dict[Matrix, int] = {}
    for w in works:
        for matrix, spans in zip((w.left, w.right), _depths(w, left_transposed, right_transposed), strict=True):
            ends[matrix] = max(ends.get(matrix, 0), *(s.stop for s in spans))
    return ends


def fits(work: Work, item: int, out_item: int, left_transposed: bool, right_transposed: bool) -> str | None:
    """Why the work cannot run here, or None. Rows of the output are free; the rest has the limits of TMA."""
    if left_transposed:
        return "the left operand is stored transposed"
    for name, matrix, bytes_ in (("left", work.left, item), ("right", work.right, item), ("out", work.out, out_item)):
        if matrix.address % 16 or matrix.pitch * bytes_ % 16:
            return f"the {name} operand's address or pitch is no multiple of 16 bytes"
    for s in work.out_columns if right_transposed else (*work.out_columns, *work.right_columns):
        if s.start % 8 or s.size % 8:
            return f"columns {s.start}:{s.stop} do not start and end at multiples of 8"
    for a, b, n in _common(*_depths(work, left_transposed, right_transposed)):
        if a % 8 or (right_transposed and b % 8):
            return "a piece of K does not start at a multiple of 8"
        if n % DEPTH and len(_common(*_depths(work, left_transposed, right_transposed))) > 1:
            return f"one of several pieces of K has {n} elements, no multiple of {DEPTH}"
    return None


def _depths(
    work: Work, left_transposed: bool, right_transposed: bool
) -> tuple[tuple[Interval, ...], tuple[Interval, ...]]:
    return (
        work.left_rows if left_transposed else work.left_columns,
        work.right_columns if right_transposed else work.right_rows,
    )


def _common(a: Sequence[Interval], b: Sequence[Interval]) -> list[tuple[int, int, int]]:
    """Two ways to cut one logical axis, cut by both: (start in a, start in b, size)."""
    pieces = []
    i = j = used_a = used_b = 0
    while i < len(a) and j < len(b):
        n = min(a[i].size - used_a, b[j].size - used_b)
        if n:
            pieces.append((a[i].start + used_a, b[j].start + used_b, n))
        used_a += n
        used_b += n
        if used_a == a[i].size:
            i, used_a = i + 1, 0
        if used_b == b[j].size:
            j, used_b = j + 1, 0
    return pieces


def _cut(pieces: Sequence[tuple[int, int, int]], step: int) -> Rows:
    """Tiles of one axis: rows of (start in a, start in b, size ≤ step)."""
    tiles = []
    for a, b, n in pieces:
        at = np.arange(0, n, step)
        tiles.append(np.stack([a + at, b + at, np.minimum(step, n - at)], 1))
    return np.concatenate(tiles)


def _grid(rows: int, columns: int, band: int) -> tuple[Rows, Rows]:
    """The order of tiles: bands of `band` rows, down each column of the band, so that the tiles at work at one
    time read few rows and few columns."""
    n = rows * columns
    i = np.arange(n)
    first = i // (band * columns) * band
    high = np.minimum(band, rows - first)
    within = i - first * columns
    return first + within % high, within // high


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
    tail_splits: int = 1,
    band: int | None = None,
) -> Table:
    """The launch that makes `works`, in their order, on `sms` multiprocessors.

    tail_splits: into how many parts K of the tiles of the last, incomplete wave is cut (see `choose`).
    band: rows of tiles (of clusters) that are walked together; the default makes a wave about square.
    """
    tile_m, tile_n = variant.tile
    cluster = variant.cluster
    clusters = max(1, sms // cluster)
    maps: list[TensorMap] = []
    triples: dict[tuple[object, ...], int] = {}
    outs: list[tuple[int, int]] = []
    depth_rows: list[tuple[int, int, int, int]] = []
    flags: list[int] = []
    signals: list[tuple[int, int, int, int]] = []
    parts: list[Rows] = []
    reason = refusal(works, dtype, out_dtype, left_transposed, right_transposed)
    if reason is not None:
        raise ValueError(reason)
    ends = _ends(works, left_transposed, right_transposed)
    for w in works:
        k_pieces = _common(*_depths(w, left_transposed, right_transposed))
        key = (w.left, w.right, w.out)
        if key not in triples:
            index = triples[key] = len(triples)
            at = index * OPERAND_BYTES
            maps += _maps(key, variant, dtype, out_dtype, left_transposed, right_transposed, ends, at)
            outs.append((w.out.address, w.out.pitch))
        left_axis = w.left_columns if left_transposed else w.left_rows
        right_axis = w.right_rows if right_transposed else w.right_columns
        rows = _cut(_common(left_axis, w.out_rows), tile_m)
        columns = _cut(_common(right_axis, w.out_columns), tile_n)
        if len(rows) % cluster:  # a neighbour with nothing to store
            rows = np.concatenate([rows, np.repeat(rows[-1:] * [[1, 1, 0]], cluster - len(rows) % cluster, 0)])
        high = len(rows) // cluster
        walk = band or max(1, min(high, round(sqrt(clusters * tile_n / (tile_m * cluster)))))
        r, c = _grid(high, len(columns), walk)
        r = (r[:, None] * cluster + np.arange(cluster)).ravel()
        c = np.repeat(c, cluster)
        part = np.zeros(len(r), TILE)
        part["left_row"], part["out_row"], part["rows"] = rows[r].T
        part["right_col"], part["out_col"], part["cols"] = columns[c].T
        part["k_first"] = len(depth_rows)
        part["k_blocks"] = sum(ceil(n / DEPTH) for _, _, n in k_pieces)
        depth_rows += [(a, b, ceil(n / DEPTH), 0) for a, b, n in k_pieces]
        part["operands"] = triples[key]
        part["accumulate"] = w.accumulate
        part["wait_first"], part["wait_count"] = len(flags), len(w.waits)
        flags += w.waits
        part["signal"] = -1
        if w.signals:
            part["signal"] = len(signals)
            signals.append((len(part) * variant.warps, len(flags), len(w.signals), 0))
            flags += w.signals
        part["splits"] = 1
        parts.append(part)
    tiles = np.concatenate(parts)
    partials = 0
    tail = len(tiles) // cluster % clusters * cluster
    if tail_splits > 1 and tail:
        whole, rest = tiles[: len(tiles) - tail], tiles[len(tiles) - tail :]
        cut, partials = _split(rest, tail_splits, cluster, depth_rows)
        tiles = np.concatenate([whole, cut])
    arrays = [
        tiles,
        np.array(depth_rows, np.int32).reshape(-1, 4).ravel(),
        np.array(flags, np.uint64),
        np.array(signals, np.uint32).ravel(),
    ]
    blob = bytearray()
    offsets = []
    for array in arrays:
        offsets.append(len(blob))
        blob += array.tobytes()
        blob += bytes(-len(blob) % 64)
    return Table(
        variant=variant,
        stages=stages,
        smem=max(smem or 0, variant.smem(stages, right_transposed)),
        grid=min(clusters * cluster, len(tiles)),
        tiles=tiles,
        depths=np.array(depth_rows, np.int32).reshape(-1, 4).view(DEPTHS).ravel(),
        flags=arrays[2],
        signals=np.array(signals, np.uint32).reshape(-1, 4).view(SIGNAL).ravel(),
        maps=tuple(maps),
        outs=tuple(outs),
        partials=partials,
        constants=bytes(blob),
        offsets=(offsets[0], offsets[1], offsets[2], offsets[3]),
    )


def _split(rest: Rows, splits: int, cluster: int, depths: list[tuple[int, int, int, int]]) -> tuple[Rows, int]:
    """Cut K of each tile into parts, the parts of one share of all tiles together; how many partials that leaves."""
    out = []
    made: dict[tuple[int, int], list[tuple[int, int]]] = {}  # pieces of K → (first, blocks) of each part
    slot = 0
    groups = rest.reshape(-1, cluster)
    cuts = []
    for group in groups:
        key = (int(group[0]["k_first"]), int(group[0]["k_blocks"]))
        if key not in made:
            parts = min(splits, key[1])
            edges = [key[1] * s // parts for s in range(parts + 1)]
            made[key] = []
            for low, high in pairwise(edges):
                made[key].append((len(depths), high - low))
                at, i = 0, key[0]
                while at < high:
                    left, right, blocks, _ = depths[i]
                    a, b = max(low, at), min(high, at + blocks)
                    if a < b:
                        depths.append((left + (a - at) * DEPTH, right + (a - at) * DEPTH, b - a, 0))
                    at, i = at + blocks, i + 1
        cuts.append(made[key])
    slots = []
    for cut in cuts:
        slots.append(slot)
        slot += len(cut) * cluster
    for s in range(splits):
        for group, cut, base in zip(groups, cuts, slots, strict=True):
            if s < len(cut):
                part = group.copy()
                part["k_first"], part["k_blocks"] = cut[s]
                part["splits"], part["split"] = len(cut), s
                part["slot"] = base + np.arange(cluster) * len(cut)
                out.append(part)
    return np.concatenate(out), slot


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
    left_box = (64, DEPTH) if left_transposed else (DEPTH, rows)
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


# For ranking; fitted to H100 (tools/gemm_bench.py --explore). µs of a step of 64 of K on one multiprocessor …
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
_TILE = 1.7  # … that a 128 × 256 tile's start and store add
_LAUNCH = 6.0
_CLUSTER = 0.8  # blocks of a cluster start and end together
_BANDWIDTH = 3.0e6  # bytes of memory a µs
_SPLIT = (1.0, 2.3)  # once, and for each partial of 128 × 256 that a multiprocessor leaves or adds


def choose(
    rows: Sequence[int], columns: Sequence[int], k: int, sms: int, right_transposed: bool, smem: int = 232448 - 1024
) -> Choice:
    """The variant, and the splits of the last wave, that the estimate finds fastest for pieces of these sizes."""
    best: Choice | None = None
    m, n = sum(rows), sum(columns)
    moved = 2 * (m * k + k * n + m * n) / _BANDWIDTH
    for v in VARIANTS:
        if v.stages(smem, right_transposed) < 2:
            continue
        m, n = v.tile
        size = m * n / (128 * 256)
        high = ceil(sum(ceil(r / m) for r in rows) / v.cluster)
        tiles = high * sum(ceil(c / n) for c in columns)
        clusters = max(1, sms // v.cluster)
        waves, tail = divmod(tiles, clusters)
        depth = ceil(k / DEPTH)
        for splits in {1, *(s for s in range(2, 17) if tail and tail * s <= clusters and depth // s >= 4)}:
            busy = waves * (depth * _STEP[v.tile] + _TILE * size)
            if tail:
                busy += ceil(depth / splits) * _STEP[v.tile] + _TILE * size
            cost = _LAUNCH + _CLUSTER * (v.cluster - 1) + max(busy, moved) + 0.15 * min(busy, moved)
            if splits > 1:
                cost += _SPLIT[0] + _SPLIT[1] * splits * size
            if best is None or cost < best.estimate:
                best = Choice(v, splits, cost)
    assert best is not None
    return best
