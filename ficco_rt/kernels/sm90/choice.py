"""Chooses the variant of the Hopper kernel for a launch's works, and its configuration, by the cost model.

The model counts K in 2 bytes, so that a step of fp8 operands, 128 deep, is a step: it takes as long as one of bf16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile

from ..signature import Promoted, Signature
from ..tile_table import WHOLE_K, SplitK, band_of, count
from ..tiles import Matrix, MatrixWork, depth_of, pieces_of
from . import cost
from .cost import WaitGroup
from .variants import VARIANTS, Variant

# Rows of clusters' tiles that are walked together: of fp8 operands, at most, and twice as many in several waves if
# such a band's left operand has no more than _BAND_LEFT; and of single blocks that are all at work at once, where
# these divide the rows, else at most; and so few tiles across are walked row by row. Some 16 blocks that start one
# after another run in the same group of an H200's multiprocessors (GPC), which merges their loads: 104 × 64 for 785 ×
# 960 × 4864 takes 16.1 µs in bands of 4, and 20.4 of 8; 80 × 128 for 1217 × 512 × 12160 26.3 row by row, and 31.5 in
# bands of 16; 128 × 128 for 3000 × 576 × 7168 (fp8) 24.4, 24.8 of 4, 25.6 of 8, 29.6 of 16; but 64 × 160 for 534 ×
# 2176 × 2048 14.2 of 4, 4 and 1, and 11.2 of 5 and 4. Several waves, scales of blocks, in bands of 8 and 16: 8192 ×
# 24576 × 1536 468 and 464 µs, 8192 × 7168 × 2048 186 and 184, 8192 × 5120 × 5120 302 and 301, 8192 × 2560 × 8192 240
# and 241.
_FP8_BAND, _QUARTER, _EVEN, _ACROSS = 8, 4, 7, 5
_BAND_LEFT = 16 * 256 * 5120  # bytes

# Bytes of K from which blocks drift apart if one of them has less to load, and clusters if they make several tiles. On
# an H200, with level tiles and without: 270 × 2304 × 5824 by 96 × 64 takes 15.1 and 17.4 µs, 785 × 960 × 4864 by 104 ×
# 64 14.0 and 15.9, 1460 × 704 × 14912 by 128 × 64 46.7 and 78.8; with K of 64 to 1536 up to 2 % longer. In lockstep
# 8192 × 53248 × 16384 takes 7 to 11 % less, 8192 × 28672 × 8192 3 to 7 %, 16384 × 14336 × 4096 2 %, 8192 × 8192 × 2048
# 0.3 %; 32768 × 4096 × 1024 0.1 % more.
LEVEL = 4096


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration that `ranked` found: to be passed to `build`, or printed."""

    variant: Variant
    tail_splits: int
    stages: int
    estimate: float  # microseconds, for ranking only


def band(v: Variant, works: Sequence[MatrixWork], transposed: tuple[bool, bool], sms: int, item: int = 2) -> int | None:
    """Rows of clusters' tiles that are best walked together; None: so many that a wave is about square."""
    square = band_of(v.clusters(sms), v.cluster_tile)
    if v.throttled and depth_of(works, transposed) * item // 2 <= cost.SHORT:
        return max(1, square // 2)
    found = pieces_of(works[0], transposed)
    high, wide = (sum(-(-n // side) for *_, n in axis) for axis, side in zip(found, v.tile, strict=True))
    if len(works) == v.together == 1 and high >= _EVEN and high * wide <= sms:
        return 1 if wide <= _ACROSS else _QUARTER if high % _QUARTER == 0 else -(-high // -(-high // _EVEN))
    if item != 1:
        return None
    narrow = min(_FP8_BAND, square)
    little = 2 * narrow * v.cluster_tile[0] * depth_of(works, transposed) <= _BAND_LEFT
    return 2 * narrow if high * wide > sms and little else narrow


def level(
    v: Variant, works: Sequence[MatrixWork], signature: Signature, clusters: int, split_k: SplitK
) -> tuple[bool, bool]:
    """Whether the last tiles of rows, and of columns, begin in those before, to be as large; see `tile_table.table`.
    Single blocks that are all at work at once then stay in step, and L2 merges what neighbours load. Nothing is added
    to what is stored twice, and all its sums are made alike."""
    if v.together > 1 or v.throttled or v.pingpong or signature.left_transposed or split_k != WHOLE_K:
        return False, False
    short = depth_of(works, signature.transposed) * signature.item < LEVEL
    waves = count(works, v.tile, signature.transposed, groups=clusters, step=signature.step) > clusters
    if short or waves or any(w.accumulate or w.out in [t.operand.matrix for t in w.addends] for w in works):
        return False, False
    pieces = [pieces_of(w, signature.transposed) for w in works]
    rows, columns = ([n for axes in pieces for *_, n in axes[axis]] for axis in (0, 1))
    (high, wide), along_k = v.tile, signature.right_transposed and not signature.blocks
    return (
        any(n > high and n % high for n in rows),
        along_k and max(rows) > high and any(n > wide and n % wide for n in columns),
    )


def lockstep(v: Variant, works: Sequence[MatrixWork], signature: Signature, clusters: int, split_k: SplitK) -> bool:
    """Whether clusters wait at each of their tiles until all have begun as many. If they walk along K together, they
    find in L2 what others have loaded. Those of one wave begin together anyway, and so do parts of K in a cluster."""
    deep = depth_of(works, signature.transposed) * signature.item // min(split_k.works, default=1)
    tiles = count(works, v.tile, signature.transposed, groups=clusters, cluster=v.cluster, across=v.shares_left,
                  step=signature.step, split_k=split_k)  # fmt: skip
    return v.parts == 1 and deep >= LEVEL and tiles > clusters * v.cluster


def split_k_of(
    v: Variant,
    works: Sequence[MatrixWork],
    columns: Sequence[int],
    k: int,
    sms: int,
    item: int = 2,
    right_transposed: bool = False,
    promoted: Promoted = None,
) -> SplitK:
    """How K of the works' tiles is best split, `item` bytes an element, `promoted` as `cost.alone` has it.
    Works that wait for flags come one after another, and one that makes few tiles leaves multiprocessors idle until the
    next has come: then all are split, if what a split costs is hidden. Works that signal are split where all tiles are
    at work at once, and wait for the same flags, or for none: they end together. A flag goes up behind the last part of
    the last tile."""
    addends = max(len(w.addends) for w in works)
    found = wait_groups(works, k, item=item)
    k = k * item // 2
    rows = [n for group in found for n in group.rows]
    plain = not addends and len(found) == 1
    lines = whole_lines(works, item)
    tail = SplitK(tail=cost.alone(v, rows, columns, k, sms, addends, plain, lines, right_transposed, promoted)[1])
    clusters, tiles = v.clusters(sms), cost.cluster_tiles(v, rows, columns)
    if v.parts > 1:
        return tail if plain else WHOLE_K
    if any(w.signals for w in works) and not (plain and tiles <= clusters):
        # works of several waves end one by one, and those that signal are not split; what follows them is
        after = [s.size for w in takewhile(lambda w: not w.signals, reversed(works)) for s in w.out_rows]
        return tail if tiles % clusters <= cost.cluster_tiles(v, after, columns) else WHOLE_K
    _, parts = cost.staggered(v, found, tuple(columns), k, sms, addends, promoted)
    if any(n > 1 for n in parts):
        groups = [list(group) for _, group in groupby(works, key=_awaited)]
        return SplitK(works=tuple(n for n, group in zip(parts, groups, strict=True) for _ in group))
    return tail


def _awaited(work: MatrixWork) -> tuple[int, ...]:
    """What its first flags are."""
    return work.waits or work.addend_waits


def whole_lines(works: Sequence[MatrixWork], item: int = 2) -> tuple[bool, bool]:
    """Whether rows of all left operands, and of all right ones, start at whole lines of 128 bytes."""

    def whole(m: Matrix) -> bool:
        return m.pitch * item % 128 == m.address % 128 == 0

    return all(whole(w.left) for w in works), all(whole(w.right) for w in works)


def wait_groups(
    works: Sequence[MatrixWork], k: int, arrival: float | None = None, item: int = 2
) -> tuple[WaitGroup, ...]:
    """Works in the order in which they wait. What they wait for comes one after another, at the pace of the links, or
    evenly until `arrival`."""
    found, at = [], 0.0
    for waits, group in groupby(works, key=_awaited):
        members = list(group)
        rows = tuple(s.size for w in members for s in w.out_rows)
        if not waits:
            found.append(WaitGroup(rows, at, at))
            continue
        if members[0].addend_waits:  # what is added at the end
            at += 2 * sum(rows) * sum(s.size for s in members[0].out_columns) / cost.ARRIVING + cost.PIECE
            found.append(WaitGroup(rows, 0.0, at, 0.0))
            continue
        places = [place for place, _ in members[-1].depth_waits]
        time = item * sum(rows) * k / cost.ARRIVING + cost.PIECE * (1 + len(places))
        first, last = at + time * (places[0] if places else k) / k, at + time
        found.append(WaitGroup(rows, first, last, (k - places[-1]) / k if places else 1.0))
        at = last
    scale = 1.0 if arrival is None or not at else arrival / at
    return tuple(replace(p, first=p.first * scale, last=p.last * scale) for p in found)


def ranked(
    rows: Sequence[int],
    columns: Sequence[int],
    k: int,
    sms: int,
    right_transposed: bool,
    smem: int = 232448 - 1024,
    late: Sequence[WaitGroup] = (),
    addends: int = 0,
    throttled: bool = False,
    variants: Sequence[Variant] = VARIANTS,
    lines: tuple[bool, bool] = cost.LINES,
    scaling: str | None = None,
    promoted: Promoted = None,
) -> list[Choice]:
    """Variants, each with the splits of the last wave, from the one that the estimate finds fastest for pieces of these
    sizes. `addends` are added to each; `late`: the wait groups of a launch whose works wait; `throttled`: whether to
    take variants of that kind if one fits. `lines` and `promoted` as `cost.alone` has them; `scaling`: of fp8 operands.
    None fits `smem`, or as many blocks of a cluster: there is none."""
    plain = not late and not addends
    together = not addends and len(late) <= 1
    fitting = [
        v
        for v in variants
        if v.stages(smem, right_transposed, scaling) >= 2
        and v.together <= sms
        and not (v.pingpong and addends)
        and (not v.odd or plain)
    ]
    found: list[tuple[float, Choice]] = []
    least = math.inf
    for v in worthwhile(
        [v for v in fitting if v.throttled is throttled] or fitting, rows, columns, sms, right_transposed
    ):
        handicap = cost.handicap(v, rows, columns, k, sms) if together else 1.0
        if v.odd and plain and found and cost.least(v, rows, columns, k, sms, promoted) * handicap > least:
            continue
        alone, parts_of_tail = cost.alone(
            v, rows, columns, k, sms, addends, together, lines, right_transposed, promoted
        )
        estimate = alone
        if late:
            start = cost.start(v)
            span, parts = cost.staggered(v, tuple(late), tuple(columns), k, sms, addends, promoted)
            if any(n > 1 for n in parts):
                estimate = start + span
            else:
                last = late[-1]
                after = (
                    last.share
                    * cost.alone(
                        v, last.rows, columns, k, sms, addends, together, cost.LINES, right_transposed, promoted
                    )[0]
                )
                estimate = max(estimate, start + span, last.last + after)
        alone, estimate = alone * handicap, estimate * handicap
        stages = v.stages(smem, right_transposed, scaling)
        if plain:
            stages = cost.stages(v, rows, columns, parts_of_tail, sms, stages)
        found.append((alone, Choice(v, parts_of_tail, stages, estimate)))
        least = min(least, estimate)
    # of those that wait for what comes last, all as long, the one that is fastest when nothing is late, and loads less
    found.sort(key=lambda c: (c[1].estimate > least + cost.CLOSE, c[0], c[1].variant.loads))
    return [made for _, made in found]


def worthwhile(
    variants: Sequence[Variant], rows: Sequence[int], columns: Sequence[int], sms: int, right_transposed: bool
) -> list[Variant]:
    """Those that may be the best: of odd ones that cut a product into as many tiles, the smallest."""
    found: dict[object, Variant] = {}
    for v in variants:
        if not v.odd:
            found[v.name] = v
            continue
        fixed, free = reversed(v.tile) if v.swapped else v.tile
        tiles = cost.cluster_tiles(v, rows, columns)
        if v.parts > 1 and tiles * v.parts > v.clusters(sms):
            continue
        if not (right_transposed or v.adds or v.tile[1] % 64 == 0):
            continue
        key = (v.swapped, fixed, v.cluster, v.parts, tiles)
        if key not in found or free < found[key].tile[0 if v.swapped else 1]:
            found[key] = v
    return list(found.values())
