"""The table of tiles that the blocks of a tensor-core GEMM read, built from the works of a launch.

This module computes numbers and touches no device. The families add whatever else their kernels need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..geometry.cells import common
from ..geometry.region import Interval
from ..geometry.rows import cut_by_blocks, placed
from .tiles import DEPTH, Matrix, MatrixWork, depths_of, pieces_of

MAX_SPLITS = 16  # of a tile's K; `sm90_gemm` counts no further than 31


def _record(names: str, of: type[np.generic] = np.int32) -> np.dtype[Any]:
    return np.dtype([(name, of) for name in names.split()])


TILE = _record(
    "left_row right_col out_row out_col rows cols k_first k_blocks operands accumulate wait_first wait_count signal "
    "splits split slot"
)
# What is added to a tile's product. In a pipeline the first of the addends' steps comes behind `at` steps of K, and
# each other `gap` steps of K further on.
TILE_ADDENDS = _record("first count at gap wait_first wait_count unused_0 unused_1")
# ordered and split together, then written apart; `work` is the number of the work that the tile belongs to
_BOTH = np.dtype([("tile", TILE), ("addends", TILE_ADDENDS), ("work", np.int32)])
ADDEND = _record("matrix row col unused")
DEPTHS = _record("left right blocks size")
DEPTH_WAITS = _record("first count")  # of flags
SIGNAL = _record("target flag_first flag_count unused", np.uint32)

Rows = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Table:
    """The work of a launch's blocks, complete except for addresses of device memory.

    `constants` holds tiles, depths, flags, signals, the tiles' addends, addends and the depths' waits at `offsets`,
    in this order.
    """

    tile: tuple[int, int]  # rows, columns of a block's tile
    warps: int  # those that store
    tiles: Rows
    tile_works: Rows  # the numbers of their works
    depths: Rows
    flags: Rows
    signals: Rows
    tile_addends: Rows  # one for each tile, if any has addends
    addends: Rows
    depth_waits: Rows  # one for each of `depths`
    operands: tuple[tuple[Matrix, Matrix, Matrix], ...]  # left, right, out; a tile names one triple
    matrices: tuple[Matrix, ...]  # that addends name
    partials: int  # tiles of fp32 that splits of K leave
    resets: tuple[int, int]  # the first of `flags` that the launch resets, and how many
    constants: bytes = field(repr=False)
    offsets: tuple[int, ...] = field(repr=False)

    @property
    def _counters(self) -> tuple[int, int]:
        """Bytes of the signals' counters, with one of blocks that have ended and one of tiles that have begun behind
        them, and of the splits'."""
        up = 256
        return (-(-4 * (len(self.signals) + 2) // up) * up, -(-4 * self.partials * self.warps // up) * up)

    @property
    def counter_bytes(self) -> int:
        """Bytes of the scratch, from its start, that a given-up launch may leave other than zero."""
        return sum(self._counters)

    @property
    def partial_bytes(self) -> int:
        """Bytes of the partial sums: what other launches of a stream leave there does not matter."""
        rows, columns = self.tile
        return 4 * self.partials * rows * columns

    @property
    def scratch_bytes(self) -> int:
        """Device memory of counters, which start as zeros and belong to this table alone, and partial sums behind
        them."""
        return self.counter_bytes + self.partial_bytes

    def pointers(self, constants: int, scratch: int, epoch: int, abort: int, partials: int | None = None) -> list[int]:
        """What both kernels' parameters begin with, but for a vendor's descriptors: tiles, depths, flags, signals, the
        signals' and the splits' counters, partials, epoch and abort. `partials`: their address, if they do not lie
        behind the counters."""
        signal_bytes, split_bytes = self._counters
        pointers = [constants + at for at in self.offsets[:4]]
        splits = scratch + signal_bytes
        return [*pointers, scratch, splits, splits + split_bytes if partials is None else partials, epoch, abort]

    def resetting(self, scratch: int) -> tuple[int, int, int]:
        """The address of the counter of ended blocks, and the first and the count of the flags to be reset."""
        return (scratch + 4 * len(self.signals), *self.resets)

    def addend_pointers(self, constants: int) -> list[int]:
        """The addresses of the tiles' addends, and of the addends."""
        return [constants + at for at in self.offsets[4:6]]

    def depth_wait_pointer(self, constants: int) -> int:
        """The address of the waits of pieces of K; 0: no piece waits."""
        return constants + self.offsets[6] if self.depth_waits["count"].any() else 0


def _cut(pieces: Sequence[tuple[int, ...]], step: int, level: bool = False) -> Rows:
    """Tiles of one axis: rows of (start in each, size ≤ step). `level`: as `table` has it."""
    tiles = []
    for *starts, n in pieces:
        at = np.arange(0, n, step)
        if level and n > step:
            at = np.minimum(at, n - step)
        tiles.append(np.stack([*(a + at for a in starts), np.minimum(step, n - at)], 1))
    return np.concatenate(tiles)


def _given(tiles: Rows, matrices: Sequence[Matrix]) -> Rows:
    """Tiles of rows where they lie, of those rows that are there. NOTE a tile without rows stays: it signals. It starts
    at a row that is there, since kernels may read one."""
    for matrix, starts in zip(matrices, tiles.T, strict=False):
        if matrix.block is not None:
            assert (starts % matrix.block.planned + tiles[:, -1] <= matrix.block.planned).all()  # device/fewer_rows
            left = np.maximum(0, matrix.block.given - starts % matrix.block.planned)
            tiles[:, -1] = np.minimum(tiles[:, -1], left)
    for matrix, starts in zip(matrices, tiles.T, strict=False):
        if matrix.block is not None:
            planned, there = matrix.block
            starts[:] = np.where(tiles[:, -1] > 0, starts // planned * there + starts % planned, 0)
    return tiles


def _given_depths(pieces: Sequence[tuple[int, ...]], matrices: Sequence[Matrix]) -> list[tuple[int, ...]]:
    """Pieces of K where they lie, of those rows that are there. NOTE a tile without any has a step of zeros."""
    blocks = [matrix.block for matrix in matrices]
    found = []
    for *starts, size in pieces:
        cut = cut_by_blocks([[Interval(at, at + size)] for at in starts], blocks)
        found += [(*map(placed, at, blocks), there) for at, _, there in cut if there]
    return found or [(*map(placed, pieces[0], blocks), 0)]


def _grid(rows: int, columns: int, band: int) -> tuple[Rows, Rows]:
    """The order of tiles: bands of `band` rows, down each column of the band, so that the tiles at work at one
    time read few rows and few columns."""
    n = rows * columns
    i = np.arange(n)
    first = i // (band * columns) * band
    high = np.minimum(band, rows - first)
    within = i - first * columns
    return first + within % high, within // high


@dataclass(frozen=True, slots=True)
class SplitK:
    """Into how many parts K is split: of the tiles of the last, incomplete wave, or of each work's, if that is said."""

    tail: int = 1
    works: tuple[int, ...] = ()


WHOLE_K = SplitK()


def of_cluster(tile: tuple[int, int], cluster: int, across: bool) -> tuple[int, int]:
    """Rows and columns of the tiles of a cluster, one below another or, `across`, side by side."""
    return (tile[0], tile[1] * cluster) if across else (tile[0] * cluster, tile[1])


def band_of(groups: int, side: tuple[int, int]) -> int:
    """Rows of clusters' tiles, each of such sides, that are walked together so that a wave of `groups` is about
    square."""
    return max(1, round(sqrt(groups * side[1] / side[0])))


def _whole(tiles: Rows, cluster: int) -> Rows:
    """Tiles of an axis for whole clusters: a neighbour may have nothing to store."""
    nothing = tiles[-1:].copy()
    nothing[:, -1] = 0
    return np.concatenate([tiles, np.repeat(nothing, -len(tiles) % cluster, 0)])


class _Depth(NamedTuple):
    """A piece of K: where it starts in each operand, steps, elements (negative: the steps go backwards from there), and
    what it waits for: first flag, flags."""

    left: int
    right: int
    blocks: int
    size: int
    waits: tuple[int, int]


@dataclass(slots=True)
class _Parts:
    """What a table's tiles point to, as works are added one by one."""

    matrices: dict[Matrix, int]  # that addends lie in, and their numbers
    triples: dict[tuple[Matrix, Matrix, Matrix], int] = field(default_factory=dict)
    depths: list[_Depth] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    signals: list[tuple[int, int]] = field(default_factory=list)  # first flag, flags
    works: int = 0
    addends: list[Rows] = field(default_factory=lambda: [np.zeros(0, ADDEND)])
    count: int = 0  # of addends

    def add(
        self,
        w: MatrixWork,
        tile: tuple[int, int],
        transposed: tuple[bool, bool],
        groups: int,
        cluster: int,
        across: bool,
        band: int | None,
        step: int,
        level: tuple[bool, bool],
    ) -> Rows:
        """A work's tiles; see `table`."""
        k_pieces, by_rows = common(*depths_of(w, *transposed)), (w.left, w.out)
        if transposed[0]:
            k_pieces, by_rows = _given_depths(k_pieces, (w.left, w.right)), (replace(w.left, block=None), w.out)
        assert w.addends or not w.addend_waits
        assert k_pieces
        assert not w.addends or not w.depth_waits  # a kernel checks the flags of both when it reaches a tile
        rows, columns = map(_cut, pieces_of(w, transposed), tile, level)
        rows = _given(rows, (*by_rows, *(addend.operand.matrix for addend in w.addends)))
        below, beside = of_cluster((1, 1), cluster, across)
        rows, columns = _whole(rows, below), _whole(columns, beside)
        high = len(rows) // below
        walk = band or max(1, min(high, band_of(groups, of_cluster(tile, cluster, across))))
        r, c = (np.repeat(i, cluster) for i in _grid(high, len(columns) // beside, walk))
        me = np.arange(len(r)) % cluster
        r, c = (r, c * cluster + me) if across else (r * cluster + me, c)
        both = np.zeros(len(r), _BOTH)
        both["work"] = self.works
        self.works += 1
        part = both["tile"]
        part["left_row"], part["out_row"], *from_rows, part["rows"] = rows[r].T
        part["right_col"], part["out_col"], *from_columns, part["cols"] = columns[c].T
        part["k_first"] = len(self.depths)
        part["k_blocks"] = sum(max(1, ceil(n / step)) for _, _, n in k_pieces)
        late = {at: self._flags(waits) for at, waits in w.depth_waits}
        starts = accumulate((n for _, _, n in k_pieces), initial=0)
        self.depths += [
            _Depth(a, b, max(1, ceil(n / step)), n, late.get(at, (0, 0)))
            for at, (a, b, n) in zip(starts, k_pieces, strict=False)
        ]
        part["operands"] = self.triples.setdefault((w.left, w.right, w.out), len(self.triples))
        part["accumulate"] = w.accumulate
        part["wait_first"], part["wait_count"] = self._flags(w.waits)
        part["signal"] = -1
        if w.signals:
            part["signal"] = len(self.signals)
            self.signals.append(self._flags(w.signals))
        part["splits"] = 1
        if w.addends:
            self._add_addends(both["addends"], w, from_rows, from_columns)
        return both

    def _flags(self, addresses: Sequence[int]) -> tuple[int, int]:
        """Appended: the first one's number, and how many."""
        first = len(self.flags)
        self.flags += addresses
        return first, len(addresses)

    def _add_addends(self, tiles: Rows, w: MatrixWork, from_rows: Sequence[Rows], from_columns: Sequence[Rows]) -> None:
        records = np.zeros((len(tiles), len(w.addends)), ADDEND)
        for i, addend in enumerate(w.addends):
            records["matrix"][:, i] = self.matrices[addend.operand.matrix]
            records["row"][:, i], records["col"][:, i] = from_rows[i], from_columns[i]
        tiles["first"], tiles["count"] = self.count + np.arange(len(tiles)) * len(w.addends), len(w.addends)
        tiles["wait_first"], tiles["wait_count"] = self._flags(w.addend_waits)
        self.addends.append(records.ravel())
        self.count += records.size


def table(
    works: Sequence[MatrixWork],
    tile: tuple[int, int],
    warps: int,
    transposed: tuple[bool, bool],
    *,
    groups: int,
    cluster: int = 1,
    across: bool = False,
    split_k: SplitK = WHOLE_K,
    shared: bool = False,
    band: int | None = None,
    addend_steps: int = 0,
    addend_gap: int = 0,
    serpentine: bool = False,
    together: bool = False,
    resets: Sequence[int] = (),
    step: int = DEPTH,
    level: tuple[bool, bool] = (False, False),
) -> Table:
    """The table of `works`, in their order, for `groups` clusters of blocks at work at once.

    across: a cluster's tiles lie side by side; otherwise one below another.
    shared: all parts of a tile whose K is split store a share of it, and count for signals; otherwise one of them does.
    band: rows of tiles (of clusters) that are walked together; the default makes a wave about square.
    addend_steps: steps of the pipeline that an addend takes; 0: it is added where the tile is stored.
    addend_gap: steps of K from one of those to the next, at most; 0: all of them stand behind the last of K.
    serpentine: every other wave walks K backwards, where none of its pieces is waited for.
    together: the parts of a tile stand one after another.
    resets: addresses of flags that the launch resets when nothing of it waits any more.
    step: elements of K in a step of the pipeline.
    level: of rows, and of columns, whether the last tile of a piece is as large as all others: it begins in the one
        before, and both store what they share. Their sums are made alike.
    """
    parts = _Parts({m: i for i, m in enumerate(dict.fromkeys(t.operand.matrix for w in works for t in w.addends))})
    whole = [parts.add(w, tile, transposed, groups, cluster, across, band, step, level) for w in works]
    both, partials = _split_all(whole, split_k, groups, cluster, parts.depths, step, together)
    _place_addends(both, addend_steps, addend_gap)
    tiles = np.ascontiguousarray(both["tile"])
    if serpentine:
        _serpentine(tiles, groups * cluster, parts.depths, step)
    tile_addends = np.ascontiguousarray(both["addends"][: len(tiles) if parts.matrices else 0])
    records = np.concatenate(parts.addends)
    depths = np.array([d[:4] for d in parts.depths], np.int32).reshape(-1, 4)
    depth_waits = np.array([d.waits for d in parts.depths], np.int32).reshape(-1, 2)
    counted = tiles if shared else tiles[tiles["split"] == 0]
    targets = np.bincount(counted["signal"] + 1, minlength=len(parts.signals) + 1)[1:] * warps
    signals = np.array([(n, *s, 0) for n, s in zip(targets, parts.signals, strict=True)], np.uint32).reshape(-1, 4)
    flags = np.array([*parts.flags, *resets], np.uint64)
    blob = bytearray()
    offsets = []
    for array in (tiles, depths, flags, signals, tile_addends, records, depth_waits):
        offsets.append(len(blob))
        blob += array.tobytes()
        blob += bytes(-len(blob) % 64)
    return Table(
        tile=tile,
        warps=warps,
        tiles=tiles,
        tile_works=np.ascontiguousarray(both["work"]),
        depths=depths.view(DEPTHS).ravel(),
        flags=flags,
        signals=signals.view(SIGNAL).ravel(),
        tile_addends=tile_addends,
        addends=records,
        depth_waits=depth_waits.view(DEPTH_WAITS).ravel(),
        operands=tuple(parts.triples),
        matrices=tuple(parts.matrices),
        partials=partials,
        resets=(len(parts.flags), len(resets)),
        constants=bytes(blob),
        offsets=tuple(offsets),
    )


def shared_table(
    works: Sequence[MatrixWork], tile: tuple[int, int], warps: int, transposed: tuple[bool, bool], **options: Any
) -> Table:
    """The `table` of works, made once for all that are cut alike: it holds numbers of matrices, and no address."""
    matrices: dict[Matrix, Matrix] = {}

    def numbered(matrix: Matrix) -> Matrix:
        planned, given = matrix.block or (0, 0)
        return matrices.setdefault(matrix, Matrix(len(matrices), planned, given, 0, matrix.block))

    def plain(w: MatrixWork) -> MatrixWork:
        addends = (replace(t, operand=replace(t.operand, matrix=numbered(t.operand.matrix))) for t in w.addends)
        left, right, out = (numbered(matrix) for matrix in (w.left, w.right, w.out))
        return replace(w, left=left, right=right, out=out, addends=tuple(addends))

    made = _table_of_numbers(tuple(map(plain, works)), tile, warps, transposed, **options)
    actual = {number: matrix for matrix, number in matrices.items()}
    operands = tuple((actual[left], actual[right], actual[out]) for left, right, out in made.operands)
    return replace(made, operands=operands, matrices=tuple(actual[matrix] for matrix in made.matrices))


@lru_cache(maxsize=128)
def _table_of_numbers(works: tuple[MatrixWork, ...], *cut: Any, **options: Any) -> Table:
    return table(works, *cut, **options)


def by_block(
    works: Sequence[MatrixWork], item: int, out_item: int, taken: Callable[[Sequence[MatrixWork]], bool]
) -> Sequence[MatrixWork]:
    """Works on tensors with fewer rows, on matrices that are single blocks of these. The kernel's parameters then tell
    which rows are there, and the table is the same for all numbers of rows, at all addresses. Works in several blocks,
    or that are not `taken` so, stay as they are: `table` leaves rows out. `item`, `out_item`: bytes of an element."""
    found = []
    for w in works:
        left, out = (_block(matrix, rows, size) for matrix, rows, size in (
            (w.left, w.left_rows, item), (w.out, w.out_rows, out_item)))  # fmt: skip
        added = [_block(t.operand.matrix, t.operand.rows, t.item) for t in w.addends]
        if left is None or out is None or None in added:
            return works
        addends = (
            replace(t, operand=replace(t.operand, matrix=a[0], rows=a[1]))
            for t, a in zip(w.addends, added, strict=True)
            if a is not None
        )
        found.append(replace(w, left=left[0], left_rows=left[1], out=out[0], out_rows=out[1], addends=tuple(addends)))
    return found if taken(found) else works


def along_blocks(works: Sequence[MatrixWork], item: int) -> Sequence[MatrixWork]:
    """Products over the rows of both operands, each of one block of these, with this block as the operands' matrix: it
    ends with the rows that are there. `device/fewer_rows.py` takes no others."""
    found = []
    for w in works:
        left, right = _block(w.left, w.left_rows, item), _block(w.right, w.right_rows, item)
        assert left is not None
        assert right is not None
        made = [replace(a[0], block=b.block) for a, b in zip((left, right), (w.left, w.right), strict=True)]
        found.append(replace(w, left=made[0], left_rows=left[1], right=made[1], right_rows=right[1]))
    return found


def _block(matrix: Matrix, rows: tuple[Interval, ...], item: int) -> tuple[Matrix, tuple[Interval, ...]] | None:
    """The block that rows lie in, as a matrix of the rows that are there, and the rows in it. None: they lie in
    several."""
    if matrix.block is None:
        return matrix, rows
    if matrix.scales is not None:
        return None
    planned, given = matrix.block
    (first, *others) = {s.start // planned for s in rows} | {(s.stop - 1) // planned for s in rows}
    if others:
        return None
    address = matrix.address + first * given * matrix.pitch * item
    moved = tuple(Interval(s.start - first * planned, s.stop - first * planned) for s in rows)
    return Matrix(address, given, matrix.columns, matrix.pitch), moved


def count(
    works: Sequence[MatrixWork],
    tile: tuple[int, int],
    transposed: tuple[bool, bool],
    *,
    groups: int,
    cluster: int = 1,
    across: bool = False,
    split_k: SplitK = WHOLE_K,
    step: int = DEPTH,
) -> int:
    """How many tiles, and parts of tiles, `table` makes of these works."""
    found = []  # of each work: clusters' tiles, steps of K
    for w in works:
        rows, columns = pieces_of(w, transposed)
        high, wide = (
            ceil(sum(ceil(n / side) for *_, n in axis) / together)
            for axis, side, together in zip((rows, columns), tile, of_cluster((1, 1), cluster, across), strict=True)
        )
        found.append((high * wide, sum(ceil(n / step) for *_, n in common(*depths_of(w, *transposed)))))
    if split_k.works:
        parts = sum(n * min(s, MAX_SPLITS, steps) for (n, steps), s in zip(found, split_k.works, strict=True))
        return parts * cluster
    total = sum(n for n, _ in found)
    tail, parts = total % groups, total
    for n, steps in reversed(found):
        last = min(n, tail)
        parts += last * (min(split_k.tail, MAX_SPLITS, steps) - 1)
        tail -= last
    return parts * cluster


def _place_addends(both: Rows, addend_steps: int, gap: int) -> None:
    """Addends that take steps of a pipeline belong to the first split of a tile. Their steps stand late, since addends
    arrive late, and apart from each other, since memory is slower than the multiplication."""
    if not addend_steps:
        return
    tiles, addends = both["tile"], both["addends"]
    for name in ("count", "wait_count"):
        addends[name][tiles["split"] > 0] = 0
    steps = addends["count"] * addend_steps
    addends["gap"] = np.minimum(gap, tiles["k_blocks"] // (steps + 1))
    addends["at"] = tiles["k_blocks"] - steps * addends["gap"]


def _serpentine(tiles: Rows, wave: int, depths: list[_Depth], step: int) -> None:
    """Every second wave walks K backwards: its first steps find in L2 what the previous wave read last."""
    odd = np.arange(len(tiles)) // wave % 2 == 1
    firsts, blocks = tiles["k_first"].copy(), tiles["k_blocks"]
    for first in np.unique(firsts[odd]).tolist():  # a piece of K starts one part alone
        these = odd & (firsts == first)
        left, stop = int(blocks[these][0]), first
        while left > 0:
            left -= depths[stop].blocks
            stop += 1
        pieces = depths[first:stop]
        if not any(d.waits[1] for d in pieces):
            tiles["k_first"][these] = len(depths)
            for d in reversed(pieces):
                last = step * (d.blocks - 1)
                depths.append(_Depth(d.left + last, d.right + last, d.blocks, -d.size, d.waits))


def _split_all(
    works: Sequence[Rows], split_k: SplitK, groups: int, cluster: int, depths: list[_Depth], step: int, together: bool
) -> tuple[Rows, int]:
    """The tiles of all works, in their order, K of each split as is said, and how many partials that leaves."""
    if split_k.works:
        runs = list(zip(works, split_k.works, strict=True))
    else:
        tiles = np.concatenate(works)
        whole = len(tiles) - len(tiles) // cluster % groups * cluster
        least = min(tiles["tile"]["k_blocks"][whole:].tolist(), default=0)
        # a block has one such part
        fits = not together or ((len(tiles) - whole) * split_k.tail <= groups and least >= split_k.tail)
        runs = [(tiles[:whole], 1), (tiles[whole:], split_k.tail if fits else 1)]
    out, partials = [], 0
    for tiles, splits in runs:
        if splits > 1 and len(tiles):
            parts, more = _split(tiles, splits, cluster, depths, step, together)
            parts["tile"]["slot"] += partials
            partials += more
            out.append(parts)
        else:
            out.append(tiles)
    return np.concatenate(out), partials


def _split(tiles: Rows, splits: int, cluster: int, depths: list[_Depth], step: int, together: bool) -> tuple[Rows, int]:
    """Split K of each tile into parts, the parts of one share of all tiles together, or those of a tile; how many
    partials that leaves."""
    splits = min(splits, MAX_SPLITS)
    made: dict[tuple[int, int], list[tuple[int, int]]] = {}  # pieces of K → (first, blocks) of each part
    groups = tiles.reshape(-1, cluster)
    splits_of = []
    for group in groups:
        first = group["tile"][0]
        key = (int(first["k_first"]), int(first["k_blocks"]))
        if key not in made:
            parts = min(splits, key[1])
            edges = [key[1] * s // parts for s in range(parts + 1)]
            made[key] = []
            for low, high in pairwise(edges):
                made[key].append((len(depths), high - low))
                at, i = 0, key[0]
                while at < high:
                    d = depths[i]
                    a, b = max(low, at), min(high, at + d.blocks)
                    if a < b:
                        skipped = (a - at) * step
                        size = min((b - a) * step, d.size - skipped)
                        depths.append(_Depth(d.left + skipped, d.right + skipped, b - a, size, d.waits))
                    at, i = at + d.blocks, i + 1
        splits_of.append(made[key])
    number = np.array([len(spans) for spans in splits_of])
    ends = np.cumsum(number * cluster)
    share, group = np.nonzero(np.arange(splits)[:, None] < number)
    if together:
        order = np.argsort(group, kind="stable")
        share, group = share[order], group[order]
    spans = np.array([splits_of[g][s] for s, g in zip(share, group, strict=True)])
    both = groups[group]
    part, of = both["tile"], number[group][:, None]
    part["k_first"], part["k_blocks"] = spans[:, :1], spans[:, 1:]
    part["splits"], part["split"] = of, share[:, None]
    part["slot"] = (ends - number * cluster)[group][:, None] + np.arange(cluster) * of
    return both.ravel(), int(ends[-1])
