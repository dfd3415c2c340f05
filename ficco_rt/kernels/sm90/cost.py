"""Cost model of `src/sm90_gemm.cu`: an estimate that ranks variants and decides where to split K.

Pure functions. Their numbers were fitted on GPUs by `python -m tools.gemm_bench`: on an H100 with `--explore`, unless a
comment says otherwise. Units are microseconds and bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from ...machine.durations import gemm_rate
from ...machine.model import Device
from ...types import TYPES
from ..pace import Pace
from ..shared_costs import BESIDE, best_splits
from ..signature import Promoted
from ..tile_table import MAX_SPLITS
from ..tiles import DEPTH
from .variants import Variant

# What the best variant reaches between the ends of its tiles, of a machine's rate of large GEMMs, which counts these
# ends: waves of 66 × 2 tiles of 128 × 256 with K = 8192 take 86 µs on an H200 (docs/results/bench.md, "Where the time
# goes"), of which 1.7 are a tile's ends: 840 TFLOP/s, the profile says 760.
PIPELINE = 1.105

# A step of 64 of K on one multiprocessor …
_STEP = {
    (128, 256): 0.57,
    (256, 128): 0.58,
    (256, 160): 0.72,
    (128, 192): 0.44,
    (128, 160): 0.375,
    (128, 128): 0.325,
    (128, 64): 0.18,
    (64, 192): 0.28,
    (64, 128): 0.20,
    (64, 64): 0.165,
    # rows of 432 and 336 bytes start inside sectors of L2; with --odd, in the ratio of an H200's times
    (128, 216): 0.52,
    (256, 168): 0.79,
}
# … and where consumers alternate; with it the share of a tile's other costs (start, store, addends, split) that the
# other consumer's steps do not hide, but for the last tile; on an H200, with --pieces. 128 × 192 by products of 17
# sizes, beside 128 × 256: 777 and 899 µs of 32768 × 16384 × 512, 1349 and 1354 of 16384 × 8192 × 4096, 1166 and 1157
# of 4096 × 21504 × 5376, 864 and 847 of 8192 × 5120 × 8192, 3116 and 3000 of 8192 × 9216 × 16384
_PINGPONG = {
    (128, 192): (0.4375, 0.3),
    (128, 160): (0.375, 0.7),
    (128, 128): (0.325, 0.7),
}
# … as `pace` has it: on an H200 these tiles of a product of many rows take as long an element as 128 × 256
_PACE_STEP = {(128, 128): 0.29}
# … and of transposed tiles, for each element: as 128 × 192. On an H200, with --odd --tries, a step is 0.94 of that at
# 5000 × 1000 × 3000 in whole lines, and 1.01 at 3000 × 2304 × 7168. The estimate is within 11 % of all nine times.
_SWAPPED = 0.44 / (128 * 192)
# … times as long in fp8, as `pace` has it: where the tensor core adds up all of K; where sums of each step are
# promoted, with scales of rows or none; and with those of blocks. 8192 × 2560 × 8192 on an H200: 225, 232 and 240 µs.
# Of four all-gathers with scales of blocks the model then says 0.98 to 1.01 of the time (docs/results/bench.md)
FP8 = (0.97, 1.0, 1.03)
# … but of these tiles, not transposed, promotion is hidden behind the next step's multiplication, in launches of few
# waves: 512 × 7168 × 4096 on an H200 27.7 µs, 3000 × 576 × 7168 24.8. In 10 waves power takes that back: 4096 × 5120 ×
# 5120 171
_HIDDEN = (128, 128)
_SHORT_WAVES = 2
_TILE = 1.7  # … that a 128 × 256 tile's start and store add
_ADDEND = 1.8  # … and each of its addends
_LAUNCH = 6.0
_STREAM = 3.0  # of that, what the stream pays: a machine's `launch_time`
_CLUSTER = 0.8  # blocks of a cluster start and end together
_BANDWIDTH = 3.0e6  # bytes of memory a µs
_CACHE = 1.0e7  # bytes of L2 a µs, for all multiprocessors
# … and where rows of an operand start inside lines of 128 bytes, so that each 128 bytes come as five sectors of 32. On
# an H200, from ten times of --odd, within 8 %: the loads of the whole device, each row of 128 bytes as 160.
_SECTORS = 8.0e6
_LOADS = 1.15e7  # … as `pace` has it: fitted to whole runs (docs/internals/model.md)
_PORT = 9.0e4  # … bytes of L2 a µs for one multiprocessor, however few are at work
# … from when a stage of the ring is asked for until its data have come out of memory, µs: a right operand that no
# other cluster loads at the same time comes no faster than the ring's stages hide this.
_LATENCY = 2.0
_CLOCK = 1755.0  # cycles a µs
# Bytes of the right operand that are best on their way from memory: on an H200 more of them only queue. In 495 launches
# of one row of tiles, full rings take 2.3 % more than the best number of stages, and this 0.8 %; 4 × 8704 × 6464 takes
# 31.5 µs in 8 stages of 8 × 128, and 36.8 in 12.
_ON_THE_WAY = 9.0e6
_L2 = 5.0e7  # bytes: a right operand up to this size stays there from product to product
_SPLIT = (3.0, 1.3)  # once, and for each part of 128 × 256 that is left or added


@dataclass(frozen=True, slots=True)
class _Plain:
    """What a launch costs that adds nothing, and whose works wait for the same or for nothing: all its tiles may be at
    work at once."""

    start: float  # of the launch
    memory: float  # bytes of the right operand a µs that all blocks read, each row of tiles the same ones
    cache: float  # bytes of L2 a µs
    norm: float  # a step is this norm of what it takes to multiply, and to read from memory and L2
    end: float  # start and store of a tile …
    tile: float  # … and of 128 × 256, beyond that
    shown: float  # of these, before the last wave, where consumers alternate
    split: tuple[float, float]  # once, and for each part of 128 × 256
    parts: tuple[float, float]  # … of parts in a cluster
    multiply: tuple[float, float]  # of a step, and times what its instructions take
    cluster: float  # … and beyond that, where blocks share an operand
    apart: float  # times what it loads from L2, where neighbours read other parts of K: L2 merges no loads of theirs
    # … and of fp8 sums with scales of blocks, for each column of a tile, or row of a transposed one: additions; scales.
    # Fitted on an H200 to 141 launches of 16 to 1003 rows, which take 3 % more in the mean, with a spread of 6 %
    adds: float
    scales: float


# Fitted on an H200 to 189 products of 1 to 8192 rows, most of random sizes, in both layouts, not chained: for each the
# variants that an earlier fit found best, with several splits of K. What is chosen takes 1.0 % more than the best of
# these in the mean, and 18 % more at most. `apart`, and that transposed tiles cost no more, by 280 times at 65 to 1024
# rows with addresses in uniform registers: what is chosen takes 0.4 % more than the best.
_PLAIN = _Plain(
    start=3.39,
    memory=4.54e6,
    cache=3.1e7,
    norm=2.8,
    end=0.28,
    tile=1.34,
    shown=0.3,
    split=(1.79, 1.22),
    parts=(0.62, 0.42),
    multiply=(0.032, 1.095),
    cluster=0.017,
    apart=3.0,
    adds=0.0005,
    scales=0.0009,
)
_LOADED = 1.25  # times the step where a device is at work for long, and what comes beside it is no slower for that
ARRIVING = 3.86e5  # bytes a µs that come from other devices …
PIECE = 6.0  # … and what each piece that is waited for adds
ODD = 0.97  # times the estimate of any other variant: where one of an odd width is taken …
# … and one of `_doubted`: on an H200 its time may be a third longer than the estimate. 317 × 5248 × 13568 took 89.5 µs
# by 64 × 208, and 67.3 by transposed 112 × 128; 97 × 6272 × 6080 27.4 by 64 × 96, and 24.2 by transposed 104 × 64.
DOUBTED = 0.91
NARROW, LONG, FULL = 128 * 128, 10000, 0.85  # elements of a tile; of K; and the share of its rows that there are
FEW = 16  # … but not where so few rows are a transposed tile: its estimate holds
# … and times that of tiles of 128 × 256 in clusters of two, where these are taken, of so many waves. Alone on an H200,
# single blocks are up to 0.7 % faster; beside copies 2 to 5 % slower: `ag_gemm` of two ranks that share the GPU, 4096 ×
# 28672 × 8192 and 8192 × 14336 × 4096 of a rank (tools.beside).
STEADY, WAVES = 1.03, 4
# … and times that of tiles of 128 × 192 whose consumers alternate, in as many waves over no more of K: as fast as 128 ×
# 256 at 4096 of K, and 3 to 4 % faster where power holds the clocks down (2742 and 2845 µs of 16384 × 14336 × 4096).
POWER, POWER_K = 1.045, 4096
CLOSE = 1.0  # µs: estimates this close are alike
SHORT = 1024  # so little of K that a tile's stores take as long as its steps: among the next one's they are hidden
# … where a tile of 128 × 256 adds to what its output holds: its end reads that, and nothing hides the way. From four
# rows of `uniform_fused_2d` in two pieces (docs/results/bench.md), which agree within 0.5; no kernel's own measurement.
_ADDS = 12.5
LINES = (True, True)  # rows of both operands start at whole lines
_PARTIALS = 1 << 27  # bytes that works that come one by one leave at most
_FIRST = 4  # so many of the last groups may stay whole where the first ones are split


def cluster_tiles(v: Variant, rows: Sequence[int], columns: Sequence[int]) -> int:
    """The tiles of pieces of outputs of so many rows and columns; those that a cluster makes at once count as one."""
    m, n = v.cluster_tile
    return sum(ceil(r / m) for r in rows) * sum(ceil(c / n) for c in columns)


@dataclass(frozen=True, slots=True)
class WaitGroup:
    """Works that wait for the same. Their operands come from `first` to `last`, µs; the last are `share` of K, 0 where
    it is what is added at the end."""

    rows: tuple[int, ...]  # of the pieces of their outputs
    first: float
    last: float
    share: float = 1.0


def _step(v: Variant) -> tuple[float, float]:
    """A step, and the share of a tile's other costs that each tile shows."""
    if v.swapped:
        return _SWAPPED * v.tile[0] * v.tile[1], 1.0
    return _PINGPONG[v.tile] if v.pingpong else (_STEP.get(v.tile) or 0.03 + 0.95 * _instructions(v), 1.0)


def _instructions(v: Variant) -> float:
    """What the multiplications of a step take at least, each of 64 × n × 16: on tensor cores, or of shared memory."""
    n, blocks = (v.tile[0], v.tile[1] // 64) if v.swapped else (v.tile[1], v.tile[0] // 64)
    return 4 * blocks * max(n / 2, 16 + n / 4) / _CLOCK


def _sectors(v: Variant, lines: tuple[bool, bool]) -> float:
    """Bytes that a block asks L2 for in a step, as whole sectors. `lines`: whether the rows of the left operand, and
    those of the right one, start at whole lines of 128 bytes."""
    m, n = v.tile[0] / v.left_boxes, 64 * ceil(v.tile[1] / 64) / v.cluster * v.left_boxes
    return sum(n * (128 if whole else 160) for n, whole in zip((m, n), lines, strict=True))


@dataclass(frozen=True, slots=True)
class _Costs:
    """What a tile of a product costs, µs."""

    tiles: int  # of clusters
    clusters: int  # at work at once
    steps: int
    step: float
    tile: float
    split: tuple[float, float]
    moved: float  # the memory's time
    shown: float  # the share of `tile` and `split` that each tile costs; the last one costs all


def _costs(
    v: Variant,
    rows: Sequence[int],
    columns: Sequence[int],
    k: int,
    sms: int,
    addends: int,
    lines: tuple[bool, bool] = LINES,
    promoted: Promoted = None,
) -> _Costs:
    """`lines` as in `_sectors`, `promoted` as in `alone`."""
    m, n = v.tile
    size = m * n / (128 * 256)
    tiles = cluster_tiles(v, rows, columns)
    clusters = max(1, sms // v.cluster)
    step, shown = _step(v)
    if v.swapped or not all(lines):
        step = max(step, sms * _sectors(v, lines) / _SECTORS)
    # all at work: what a step loads, the right operand shared in a cluster, comes out of L2. NOTE not of fp8, in narrow
    # bands: 4096 × 4608 × 7168 of `ag_gemm`, 128 × 192, takes 208 µs by single blocks, and 211 by clusters of two
    if tiles > 2 * clusters and promoted is None:
        step = max(step, sms * 2 * DEPTH * v.loads / _CACHE)
    read, written = sum(rows) * k + k * sum(columns), (1 + addends) * sum(rows) * sum(columns)
    once, each = _SPLIT
    moved = 2 * (read + written) / _BANDWIDTH
    return _Costs(
        tiles=tiles,
        clusters=clusters,
        steps=ceil(k / DEPTH),
        step=step,
        tile=(_TILE + _ADDEND * addends) * size,
        split=(once, each * size),
        moved=moved,
        shown=shown,
    )


def pace(v: Variant, clusters: int, tiles: int, stages: int, device: Device, dtype: str, fp8: float = 1.0) -> Pace:
    """What the tiles of a launch take on a device whose tensor cores may be slower or faster than those of the GPU on
    which the steps above were measured: the steps keep their ratios, and the best variant's reach the device's rate.
    `fp8`: of FP8."""
    m, n = v.tile
    size = m * n / (128 * 256)
    step, shown = _step(v)
    step = _PACE_STEP.get(v.tile, step)
    best = min(time / (a * b) for (a, b), time in _STEP.items())
    depth = 2 * DEPTH // TYPES[dtype].bytes
    multiply = 2.0 * m * n * depth * device.sms / (gemm_rate(device, dtype) * PIPELINE) * step / (m * n) / best * fp8
    # what their steps load comes out of L2, the right operand shared in a cluster
    busy, loaded = min(tiles, clusters * v.cluster), 2 * DEPTH * v.loads
    step = max(multiply, busy * loaded / _LOADS, loaded / _PORT)
    return Pace(
        groups=clusters,
        step=step,
        fetched=max(step, _LATENCY / stages),
        cache=_L2,
        ends=_TILE * size,
        shown=shown,
        adding=_ADDS * size,
        split=(_SPLIT[0], _SPLIT[1] * size),
        start=start(v) - _STREAM,
        addend_steps=v.addend_steps,
        addend_gap=v.addend_gap if depth == DEPTH else 0,
        depth=depth,
    )


def start(v: Variant) -> float:
    """The time that starting a launch takes."""
    return _LAUNCH + _CLUSTER * (v.cluster - 1)


def alone(
    v: Variant,
    rows: Sequence[int],
    columns: Sequence[int],
    k: int,
    sms: int,
    addends: int,
    plain: bool = False,
    lines: tuple[bool, bool] = LINES,
    right_transposed: bool = False,
    promoted: Promoted = None,
) -> tuple[float, int]:
    """The least time, and the splits of the last wave that give it. `plain`: nothing is added, and all works wait for
    the same flags, or for none; `lines`: whether rows of the left and the right operand start at whole lines of 128
    bytes; `promoted`: what of fp8 operands is done with the sums of each step."""
    if plain:
        return _plain(v, rows, columns, k, sms, lines, right_transposed, promoted)
    c = _costs(v, rows, columns, k, sms, addends, lines, promoted)
    cost, splits = best_splits(c.tiles, c.clusters, c.steps, c.step, c.tile * c.shown, c.split, c.moved, BESIDE)
    return start(v) + cost + c.tile * (1 - c.shown), splits


def _multiply(v: Variant, promoted: Promoted, tiles: int, clusters: int) -> float:
    """A step's multiplication, as `_plain` has it, and what promotion adds, of so many tiles of clusters."""
    p = _PLAIN
    time = p.multiply[0] + p.multiply[1] * _instructions(v) + p.cluster * (v.cluster - 1)
    hidden = promoted == "scales" and v.tile == _HIDDEN and not v.swapped and tiles <= _SHORT_WAVES * clusters
    return time + (_promotion(v, promoted) if promoted and not hidden else 0.0)


def _promotion(v: Variant, promoted: Promoted) -> float:
    """What a step's promotion adds: the additions of a consumer, of which half are hidden if there are two (on an H200
    not if there are three); swapped: and that all read the scales of each row."""
    p, side = _PLAIN, v.tile[0] if v.swapped else v.tile[1]
    adds = p.adds * v.blocks_m * side / (1 + (v.consumers == 2))
    return adds + p.scales * side * v.consumers if v.swapped and promoted == "scales" else adds


def handicap(v: Variant, rows: Sequence[int], columns: Sequence[int], k: int, sms: int) -> float:
    """What the estimate of a plain product is multiplied by where variants are compared."""
    if v.odd:
        if v.swapped and max(rows) <= min(FEW, v.tile[0]):
            return 1.0
        return 1 / (DOUBTED if _doubted(v, max(rows), k) else ODD)
    spares = v.pingpong and v.tile == (128, 192) and k <= POWER_K
    steady = v.tile == (128, 256) and v.cluster == 2 and not v.throttled
    if k > SHORT and (spares or steady) and cluster_tiles(v, rows, columns) > WAVES * v.clusters(sms):
        return 1 / (POWER if spares else STEADY)
    return 1.0


def _doubted(v: Variant, rows: int, k: int) -> bool:
    """Whether a tile is transposed, of 64 columns, and high, or over much of K with others below it; or small, not
    transposed, and those below it come apart, because they are many, one has less to load, or over much of K: L2 then
    merges no loads of theirs."""
    m, n = v.tile
    high = ceil(rows / m)
    if v.swapped:
        return n == 64 and v.parts == 1 and (m > 128 or (high > 1 and k > LONG))
    return high > 1 and m * n <= NARROW and (high > 2 or k > LONG or rows < FULL * high * m)


def least(
    v: Variant, rows: Sequence[int], columns: Sequence[int], k: int, sms: int, promoted: Promoted = None
) -> float:
    """What the estimate of a plain product exceeds: the multiplications, on all multiprocessors."""
    tiles, clusters = cluster_tiles(v, rows, columns), v.clusters(sms)
    return tiles * ceil(k / DEPTH) * _multiply(v, promoted, tiles, clusters) / clusters


def _plain(
    v: Variant,
    rows: Sequence[int],
    columns: Sequence[int],
    k: int,
    sms: int,
    lines: tuple[bool, bool],
    right_transposed: bool,
    promoted: Promoted,
) -> tuple[float, int]:
    """As `alone`, where nothing is added, and all works wait for the same or for nothing."""
    (m, n), p = v.tile, _PLAIN
    size, steps, clusters = m * n / (128 * 256), ceil(k / DEPTH), v.clusters(sms)
    tall, across = v.cluster_tile
    high, wide = sum(ceil(r / tall) for r in rows), sum(ceil(c / across) for c in columns)
    right = 2 * DEPTH * across
    left = tall // m * min(m, max(rows))
    loads = 2 * DEPTH * (left + (across if right_transposed else 64 * ceil(n / 64))) / p.cache
    if not all(lines):
        loads = v.cluster * _sectors(v, lines) / _SECTORS
    if v.parts > 1 and high > 1:
        loads *= p.apart
    multiply, end = _multiply(v, promoted, high * wide, clusters), p.end + p.tile * size

    def step(at_work: int) -> float:
        """Of so many clusters."""
        memory = at_work / high * right / p.memory
        return float((multiply**p.norm + (at_work * loads) ** p.norm + memory**p.norm) ** (1 / p.norm))

    waves, tail = divmod(high * wide, clusters)
    whole = p.start + waves * (steps * step(clusters) + end * (p.shown if v.pingpong else 1.0))
    if not tail:
        return whole, 1
    found = [(whole + steps * step(tail) + end, 1)]
    once, each = p.split if v.parts == 1 else p.parts
    for splits in range(2, MAX_SPLITS + 1) if v.parts == 1 else (v.parts,):
        if tail * splits <= clusters and steps // splits >= 4:
            time = ceil(steps / splits) * step(tail * splits) + end + once + each * splits * size
            found.append((whole + time, splits))
    return min(found)


def stages(v: Variant, rows: Sequence[int], columns: Sequence[int], splits: int, sms: int, most: int) -> int:
    """Of `most` stages those that a plain product fills whose blocks all read other parts of the right operand."""
    tiles = cluster_tiles(v, rows, columns)
    if tiles > sum(ceil(c / v.cluster_tile[1]) for c in columns):
        return most
    at_work = min(tiles * splits, v.clusters(sms))
    return min(most, max(4, round(_ON_THE_WAY / (at_work * 2 * DEPTH * v.cluster_tile[1]))))


@lru_cache(maxsize=256)
def staggered(
    v: Variant,
    groups: tuple[WaitGroup, ...],
    columns: tuple[int, ...],
    k: int,
    sms: int,
    addends: int,
    promoted: Promoted = None,
) -> tuple[float, tuple[int, ...]]:
    """The least time of groups, each of which may begin when its operands come, and into how many parts K of each one's
    tiles is split: of none, of all that make few tiles, or of the first of these."""
    costs = [_costs(v, group.rows, columns, k, sms, addends, LINES, promoted) for group in groups]
    whole = [1] * len(groups)
    few = [c.clusters // c.tiles > 1 for c in costs]
    if len(groups) == 1:
        return 0.0, tuple(whole)
    splits = [best_splits(c.tiles, c.clusters, c.steps, c.step, c.tile, c.split, 0.0)[1] if f else 1
           for c, f in zip(costs, few, strict=True)]  # fmt: skip
    # NOTE partials are kept for each tile of a launch: only the last products are split if they are many
    left = _PARTIALS // (4 * v.tile[0] * v.tile[1] * v.cluster)
    for i in reversed(range(len(splits))):
        left -= costs[i].tiles * splits[i] if splits[i] > 1 else 0
        if left < 0:
            splits[i] = 1
    rows = [n for group in groups for n in group.rows]
    every = alone(v, rows, columns, k, sms, addends, promoted=promoted)[1]
    tail = sum(c.tiles for c in costs) % costs[0].clusters
    if not any(few):
        return _makespan(costs, groups, whole, tail, every), tuple(whole)
    best = (_makespan(costs, groups, whole, tail, every), whole)
    first = max(1, len(splits) - _FIRST)
    begun = _Clusters([0.0] * costs[0].clusters)
    for i in range(first):
        begun.take(costs[i], groups[i], costs[i].tiles, splits[i])
    for n in range(first, len(splits) + 1):
        choice, clusters = splits[:n] + whole[n:], begun.copy()
        for i in range(first, len(splits)):
            clusters.take(costs[i], groups[i], costs[i].tiles, choice[i])
        best = min(best, (clusters.end, choice))
    return best[0], tuple(best[1])


@dataclass(slots=True)
class _Clusters:
    """Clusters that take tiles, and parts of tiles, one after another in turn."""

    free: list[float]  # when each has done what it has taken
    next: int = 0  # cluster
    hides: float = 0.0  # what the last tile's end takes beyond that

    @property
    def end(self) -> float:
        return round(max(self.free) + self.hides, 6)  # equal times are equal: then the least is split

    def copy(self) -> _Clusters:
        return _Clusters(self.free[:], self.next, self.hides)

    def take(self, c: _Costs, group: WaitGroup, tiles: int, parts: int) -> None:
        """So many tiles of a group, each in so many parts."""
        if not tiles:
            return
        ends = c.tile + (c.split[0] + c.split[1] * parts if parts > 1 else 0.0)
        time = ceil(c.steps / parts) * c.step * _LOADED + ends * c.shown
        soonest, first = group.last + min(1.0, group.share * parts) * time, group.first + time
        free, count = self.free, len(self.free)
        rounds, over = divmod(tiles * parts, count)
        for i in range(count if rounds else over):  # a cluster's first of them may have to wait, no other
            at = (self.next + i) % count
            free[at] = max(free[at] + time, first, soonest) + (rounds - 1 + (i < over)) * time
        self.next = (self.next + over) % count
        self.hides = ends * (1 - c.shown)


def _makespan(
    costs: Sequence[_Costs], groups: Sequence[WaitGroup], parts: Sequence[int], tail: int, tail_parts: int
) -> float:
    """The time of all groups; the last `tail` tiles are split into parts of their own."""
    clusters = _Clusters([0.0] * costs[0].clusters)
    after = sum(c.tiles for c in costs)
    for c, group, n in zip(costs, groups, parts, strict=True):
        after -= c.tiles
        last = max(0, min(c.tiles, tail - after))
        clusters.take(c, group, c.tiles - last, n)
        clusters.take(c, group, last, tail_parts)
    return clusters.end
