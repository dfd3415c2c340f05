"""What the tensor-core GEMMs share: works in matrices' coordinates, and the table of tiles that their blocks read.

Numbers only: nothing here touches a device. `sm90` and `sm80` add what their kernels need beside the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import ceil, prod, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..region import Interval, Region

TERM_GAP = 4  # steps of K from a term's step to the next, at most, where another consumer multiplies meanwhile
MAX_SPLITS = 16  # of a tile's K; `sm90_gemm` counts no further than 31
DEPTH = 64  # elements of K in a step of the pipeline: 128 bytes, one row of shared memory

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
# What is added to a tile's product. In a pipeline the first of the terms' steps comes behind `at` steps of K, and each
# other `gap` steps of K further on.
ADDED = np.dtype(
    [
        (name, np.int32)
        for name in ("first", "count", "at", "gap", "term_wait_first", "term_wait_count", "unused_0", "unused_1")
    ]
)
_BOTH = np.dtype(TILE.descr + ADDED.descr)
TERM = np.dtype([(name, np.int32) for name in ("matrix", "row", "col", "unused")])
DEPTHS = np.dtype([(name, np.int32) for name in ("left", "right", "blocks", "size")])
DEPTH_WAITS = np.dtype([(name, np.int32) for name in ("first", "count")])  # of flags
SIGNAL = np.dtype([(name, np.uint32) for name in ("target", "flag_first", "flag_count", "unused")])

Rows = npt.NDArray[Any]


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
class Term:
    """What is added to a product: an operand of the output's shape."""

    operand: Operand
    dtype: str

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return 4 if self.dtype == "fp32" else 2


@dataclass(frozen=True, slots=True)
class Work:
    """out (+)= left · right over pieces, or out = left · right + terms, in the coordinates of the stored matrices;
    pieces of one axis follow each other in the logical operand. A transposed left is stored [K, M], a transposed right
    [N, K].

    `waits`, `term_waits` and `signals` are addresses of 32-bit flags: up before the work reads, before it reads terms
    and writes, raised when all is written. `depth_waits` are more of the first, of pieces of K: where one starts, in
    elements of the logical K, and its flags.
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
    terms: tuple[Term, ...] = ()
    term_waits: tuple[int, ...] = ()
    depth_waits: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def flags(self) -> tuple[int, ...]:
        """All that it waits for."""
        return (*self.waits, *self.term_waits, *(flag for _, flags in self.depth_waits for flag in flags))

    @classmethod
    def of(
        cls,
        left: Operand,
        right: Operand,
        out: Operand,
        accumulate: bool,
        waits: tuple[int, ...] = (),
        signals: tuple[int, ...] = (),
        terms: tuple[Term, ...] = (),
        term_waits: tuple[int, ...] = (),
    ) -> Work:
        """The work on three operands and its terms."""
        pieces = (left.rows, left.columns, right.rows, right.columns, out.rows, out.columns)
        return cls(left.matrix, right.matrix, out.matrix, *pieces, accumulate, waits, signals, terms, term_waits)


@dataclass(frozen=True, slots=True)
class Table:
    """What the blocks of a launch do, ready but for the addresses of device memory.

    `constants` holds tiles, depths, flags, signals, added, terms, the depths' waits and what else a kernel reads at
    `offsets`, in this order.
    """

    tile: tuple[int, int]  # rows, columns of a block's tile
    warps: int  # those that store
    tiles: Rows
    depths: Rows
    flags: Rows
    signals: Rows
    added: Rows  # one for each tile, if any has terms
    terms: Rows
    depth_waits: Rows  # one for each of `depths`
    operands: tuple[tuple[Matrix, Matrix, Matrix], ...]  # left, right, out; a tile names one triple
    matrices: tuple[Matrix, ...]  # that terms name
    partials: int  # tiles of fp32 that splits of K leave
    lowered: tuple[int, int]  # the first of `flags` that the launch takes down, and how many
    constants: bytes = field(repr=False)
    offsets: tuple[int, ...] = field(repr=False)

    @property
    def _counters(self) -> tuple[int, int]:
        """Bytes of the signals' counters, with one of those that have ended behind them, and of the splits'."""
        up = 256
        return (-(-4 * (len(self.signals) + 1) // up) * up, -(-4 * self.partials * self.warps // up) * up)

    @property
    def counter_bytes(self) -> int:
        """Of the scratch, from its start: what a launch that was given up may leave other than zero."""
        return sum(self._counters)

    @property
    def scratch_bytes(self) -> int:
        """Device memory that starts as zeros and belongs to this table alone."""
        rows, columns = self.tile
        return sum(self._counters) + 4 * self.partials * rows * columns

    def pointers(self, constants: int, scratch: int, epoch: int, abort: int) -> list[int]:
        """What both kernels' parameters begin with, but for a vendor's descriptors: tiles, depths, flags, signals, the
        signals' and the splits' counters, partials, epoch and abort."""
        signal_bytes, split_bytes = self._counters
        pointers = [constants + at for at in self.offsets[:4]]
        return [*pointers, scratch, scratch + signal_bytes, scratch + signal_bytes + split_bytes, epoch, abort]

    def lowering(self, scratch: int) -> tuple[int, int, int]:
        """Where those that have ended are counted, and the first and the count of the flags to be taken down."""
        return (scratch + 4 * len(self.signals), *self.lowered)

    def term_pointers(self, constants: int) -> list[int]:
        """Of what is added to tiles, and of the terms."""
        return [constants + at for at in self.offsets[4:6]]

    def depth_wait_pointer(self, constants: int) -> int:
        """Of what pieces of K wait for; 0: none does."""
        return constants + self.offsets[6] if self.depth_waits["count"].any() else 0


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


def operand_rows(works: Sequence[Work], item: int, out_item: int) -> Rows:
    """Different (left, right, out) triples as kernels with plain pointers read them: addresses, pitches in bytes."""
    triples = dict.fromkeys((w.left, w.right, w.out) for w in works)
    rows = [
        (a.address, b.address, c.address, a.pitch * item, b.pitch * item, c.pitch * out_item, 0, 0)
        for a, b, c in triples
    ]
    return np.array(rows, np.uint64)


def entry_of(
    variant: str, dtype: str, out_dtype: str, left_transposed: bool, right_transposed: bool, terms: bool
) -> str:
    """A kernel's name: variant, types and layout."""
    layout = ("t" if left_transposed else "n") + ("t" if right_transposed else "n")
    return f"{variant}{'_sum' if terms else ''}_{dtype}_{out_dtype}_{layout}"


def defines(entry: str, dtype: str, out_dtype: str, turned: tuple[bool, bool], terms: bool) -> dict[str, object]:
    """What all three sources are compiled with; `turned`: the left and the right operand are stored transposed."""
    left_transposed, right_transposed = turned
    return {
        "ENTRY": entry,
        "HALF": int(dtype == "fp16"),
        "OUT_FP32": int(out_dtype == "fp32"),
        "LEFT_T": int(left_transposed),
        "RIGHT_T": int(right_transposed),
        "ADDENDS": int(terms),
    }


def with_terms(works: Sequence[Work]) -> bool:
    """Does any of them have terms? Kernels are compiled for works with terms apart from others."""
    return any(w.terms for w in works)


def term_rows(works: Sequence[Work]) -> Rows:
    """Different matrices of terms as kernels with plain pointers read them: address, pitch in bytes, bytes of an
    element."""
    items = {t.operand.matrix: t.item for w in works for t in w.terms}
    return np.array([(m.address, m.pitch * item, item, 0) for m, item in items.items()], np.uint64)


def depths_of(
    work: Work, left_transposed: bool, right_transposed: bool
) -> tuple[tuple[Interval, ...], tuple[Interval, ...]]:
    return (
        work.left_rows if left_transposed else work.left_columns,
        work.right_columns if right_transposed else work.right_rows,
    )


def depth_of(works: Sequence[Work], turned: tuple[bool, bool]) -> int:
    """Elements of K, the most of these works; `turned`: the left and the right operand are stored transposed."""
    return max(sum(s.size for s in depths_of(w, *turned)[0]) for w in works)


def in_registers(works: Sequence[Work], turned: tuple[bool, bool], private: Container[int] = ()) -> list[Work]:
    """Works that add pieces of K to one product, one after another, as one work: its sums stay in registers, and each
    piece waits for its own flags.

    `turned`: the left and the right operand are stored transposed; `private`: flags that nothing outside these works
    waits for.
    """
    made: list[Work] = []
    inside = Counter(flag for w in works for flag in set(w.flags))
    for w in works:
        last = made[-1] if made else None
        seen = last is not None and all(f in private and inside[f] == (f in w.waits) for f in last.signals)
        if last is not None and seen and _goes_on(last, w, turned):
            at = depth_of([last], turned)
            waits = tuple(f for f in w.waits if f not in last.signals)
            made[-1] = replace(
                last,
                left_rows=last.left_rows + (w.left_rows if turned[0] else ()),
                left_columns=last.left_columns + (() if turned[0] else w.left_columns),
                right_rows=last.right_rows + (() if turned[1] else w.right_rows),
                right_columns=last.right_columns + (w.right_columns if turned[1] else ()),
                signals=w.signals,
                depth_waits=last.depth_waits + (((at, waits),) if waits else ()),
            )
        else:
            made.append(w)
    return made


def _goes_on(a: Work, b: Work, turned: tuple[bool, bool]) -> bool:
    """Does b add more of K to what a makes? A tile that waits among its steps waits before the first, too: storing
    warps look at that alone."""
    if not b.accumulate or a.terms or b.terms:
        return False
    if (a.left, a.right, a.out, a.out_rows, a.out_columns) != (b.left, b.right, b.out, b.out_rows, b.out_columns):
        return False
    rows = [w.left_columns if turned[0] else w.left_rows for w in (a, b)]
    columns = [w.right_rows if turned[1] else w.right_columns for w in (a, b)]
    whole = all(n % DEPTH == 0 for w in (a, b) for *_, n in common(*depths_of(w, *turned)))
    waits = a.waits or not b.waits or b.waits == a.signals
    return bool(rows[0] == rows[1] and columns[0] == columns[1] and whole and waits)


def common(*axes: Sequence[Interval]) -> list[tuple[int, ...]]:
    """Several ways to cut one logical axis, cut by all: (start in each, size)."""
    if all(len(axis) == 1 for axis in axes):  # as most are
        n = min(axis[0].size for axis in axes)
        return [(*(axis[0].start for axis in axes), n)] if n else []
    pieces = []
    at, used = [0] * len(axes), [0] * len(axes)
    while all(i < len(axis) for i, axis in zip(at, axes, strict=True)):
        here = [axis[i] for i, axis in zip(at, axes, strict=True)]
        n = min(s.size - u for s, u in zip(here, used, strict=True))
        if n:
            pieces.append((*(s.start + u for s, u in zip(here, used, strict=True)), n))
        used = [u + n for u in used]
        for j, s in enumerate(here):
            if used[j] == s.size:
                at[j], used[j] = at[j] + 1, 0
    return pieces


def _cut(pieces: Sequence[tuple[int, ...]], step: int) -> Rows:
    """Tiles of one axis: rows of (start in each, size ≤ step)."""
    tiles = []
    for *starts, n in pieces:
        at = np.arange(0, n, step)
        tiles.append(np.stack([*(a + at for a in starts), np.minimum(step, n - at)], 1))
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


@dataclass(frozen=True, slots=True)
class Cuts:
    """Into how many parts K is cut: of the tiles of the last, incomplete wave, or of each work's, if that is said."""

    tail: int = 1
    works: tuple[int, ...] = ()


UNCUT = Cuts()


def band_of(groups: int, tile: tuple[int, int], cluster: int) -> int:
    """Rows of clusters' tiles that are walked together so that a wave of `groups` is about square."""
    return max(1, round(sqrt(groups * tile[1] / (tile[0] * cluster))))


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

    matrices: dict[Matrix, int]  # that terms lie in, and their numbers
    triples: dict[tuple[Matrix, Matrix, Matrix], int] = field(default_factory=dict)
    depths: list[_Depth] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    signals: list[tuple[int, int]] = field(default_factory=list)  # first flag, flags
    terms: list[Rows] = field(default_factory=lambda: [np.zeros(0, TERM)])
    count: int = 0  # of terms

    def add(
        self, w: Work, tile: tuple[int, int], turned: tuple[bool, bool], groups: int, cluster: int, band: int | None
    ) -> Rows:
        """A work's tiles; see `table`."""
        k_pieces = common(*depths_of(w, *turned))
        left_axis = w.left_columns if turned[0] else w.left_rows
        right_axis = w.right_rows if turned[1] else w.right_columns
        assert w.terms or not w.term_waits
        assert k_pieces
        assert not w.terms or not w.depth_waits  # a kernel looks for flags of pieces, or of terms, in a tile's turn
        rows = _cut(common(left_axis, w.out_rows, *(t.operand.rows for t in w.terms)), tile[0])
        columns = _cut(common(right_axis, w.out_columns, *(t.operand.columns for t in w.terms)), tile[1])
        if len(rows) % cluster:  # a neighbour with nothing to store
            nothing = rows[-1:].copy()
            nothing[:, -1] = 0
            rows = np.concatenate([rows, np.repeat(nothing, cluster - len(rows) % cluster, 0)])
        high = len(rows) // cluster
        walk = band or max(1, min(high, band_of(groups, tile, cluster)))
        r, c = _grid(high, len(columns), walk)
        r = (r[:, None] * cluster + np.arange(cluster)).ravel()
        c = np.repeat(c, cluster)
        part = np.zeros(len(r), _BOTH)
        part["left_row"], part["out_row"], *from_rows, part["rows"] = rows[r].T
        part["right_col"], part["out_col"], *from_columns, part["cols"] = columns[c].T
        part["k_first"] = len(self.depths)
        part["k_blocks"] = sum(ceil(n / DEPTH) for _, _, n in k_pieces)
        late = {at: self._flags(waits) for at, waits in w.depth_waits}
        starts = accumulate((n for _, _, n in k_pieces), initial=0)
        self.depths += [
            _Depth(a, b, ceil(n / DEPTH), n, late.get(at, (0, 0)))
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
        if w.terms:
            self._add_terms(part, w, from_rows, from_columns)
        return part

    def _flags(self, addresses: Sequence[int]) -> tuple[int, int]:
        """Appended: the first one's number, and how many."""
        first = len(self.flags)
        self.flags += addresses
        return first, len(addresses)

    def _add_terms(self, part: Rows, w: Work, from_rows: Sequence[Rows], from_columns: Sequence[Rows]) -> None:
        records = np.zeros((len(part), len(w.terms)), TERM)
        for i, term in enumerate(w.terms):
            records["matrix"][:, i] = self.matrices[term.operand.matrix]
            records["row"][:, i], records["col"][:, i] = from_rows[i], from_columns[i]
        part["first"], part["count"] = self.count + np.arange(len(part)) * len(w.terms), len(w.terms)
        part["term_wait_first"], part["term_wait_count"] = self._flags(w.term_waits)
        self.terms.append(records.ravel())
        self.count += records.size


def table(
    works: Sequence[Work],
    tile: tuple[int, int],
    warps: int,
    left_transposed: bool,
    right_transposed: bool,
    *,
    groups: int,
    cluster: int = 1,
    cuts: Cuts = UNCUT,
    shared: bool = False,
    band: int | None = None,
    term_steps: int = 0,
    term_gap: int = TERM_GAP,
    turns: bool = False,
    lowers: Sequence[int] = (),
    more: Sequence[Rows] = (),
) -> Table:
    """The table of `works`, in their order, for `groups` clusters of blocks at work at once.

    shared: all parts of a tile whose K is cut store a share of it, and count for signals; otherwise one of them does.
    band: rows of tiles (of clusters) that are walked together; the default makes a wave about square.
    term_steps: steps of the pipeline that a term takes; 0: it is added where the tile is stored.
    term_gap: steps of K from one of those to the next, at most; 0: all of them stand behind the last of K.
    turns: every other wave walks K backwards, where none of its pieces is waited for.
    lowers: addresses of flags that the launch takes down when nothing of it waits any more.
    more: arrays that go behind the table's own in `constants`.
    """
    parts = _Parts({m: i for i, m in enumerate(dict.fromkeys(t.operand.matrix for w in works for t in w.terms))})
    turned = (left_transposed, right_transposed)
    whole = [parts.add(w, tile, turned, groups, cluster, band) for w in works]
    tiles, partials = _split_all(whole, cuts, groups, cluster, parts.depths)
    _place_terms(tiles, term_steps, term_gap)
    if turns:
        _turn(tiles, groups * cluster, parts.depths)
    numbers = tiles.view(np.int32).reshape(len(tiles), -1)
    width = len(TILE.names or ())
    tiles = np.ascontiguousarray(numbers[:, :width]).view(TILE).ravel()
    added = np.ascontiguousarray(numbers[:, width:]).view(ADDED).ravel() if parts.matrices else np.zeros(0, ADDED)
    term_records = np.concatenate(parts.terms)
    depths = np.array([d[:4] for d in parts.depths], np.int32).reshape(-1, 4)
    depth_waits = np.array([d.waits for d in parts.depths], np.int32).reshape(-1, 2)
    counted = tiles if shared else tiles[tiles["split"] == 0]
    targets = np.bincount(counted["signal"] + 1, minlength=len(parts.signals) + 1)[1:] * warps
    signals = np.array([(n, *s, 0) for n, s in zip(targets, parts.signals, strict=True)], np.uint32).reshape(-1, 4)
    flags = np.array([*parts.flags, *lowers], np.uint64)
    blob = bytearray()
    offsets = []
    for array in (tiles, depths, flags, signals, added, term_records, depth_waits, *more):
        offsets.append(len(blob))
        blob += array.tobytes()
        blob += bytes(-len(blob) % 64)
    return Table(
        tile=tile,
        warps=warps,
        tiles=tiles,
        depths=depths.view(DEPTHS).ravel(),
        flags=flags,
        signals=signals.view(SIGNAL).ravel(),
        added=added,
        terms=term_records,
        depth_waits=depth_waits.view(DEPTH_WAITS).ravel(),
        operands=tuple(parts.triples),
        matrices=tuple(parts.matrices),
        partials=partials,
        lowered=(len(parts.flags), len(lowers)),
        constants=bytes(blob),
        offsets=tuple(offsets),
    )


def _place_terms(tiles: Rows, term_steps: int, gap: int) -> None:
    """Terms that take steps of a pipeline belong to the first of a tile's splits. Their steps stand late, for they come
    late, and apart, for memory is slower than the multiplication."""
    if not term_steps:
        return
    for name in ("count", "term_wait_count"):
        tiles[name][tiles["split"] > 0] = 0
    steps = tiles["count"] * term_steps
    tiles["gap"] = np.minimum(gap, tiles["k_blocks"] // (steps + 1))
    tiles["at"] = tiles["k_blocks"] - steps * tiles["gap"]


def _turn(tiles: Rows, wave: int, depths: list[_Depth]) -> None:
    """Every other wave walks K backwards: its first steps want what L2 still holds of the last ones before."""
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
                last = DEPTH * (d.blocks - 1)
                depths.append(_Depth(d.left + last, d.right + last, d.blocks, -d.size, d.waits))


def _split_all(works: Sequence[Rows], cuts: Cuts, groups: int, cluster: int, depths: list[_Depth]) -> tuple[Rows, int]:
    """The tiles of all works, in their order, K of each cut as is said, and how many partials that leaves."""
    if cuts.works:
        runs = list(zip(works, cuts.works, strict=True))
    else:
        tiles = np.concatenate(works)
        whole = len(tiles) - len(tiles) // cluster % groups * cluster
        runs = [(tiles[:whole], 1), (tiles[whole:], cuts.tail)]
    out, partials = [], 0
    for tiles, splits in runs:
        if splits > 1 and len(tiles):
            cut, more = _split(tiles, splits, cluster, depths)
            cut["slot"] += partials
            partials += more
            out.append(cut)
        else:
            out.append(tiles)
    return np.concatenate(out), partials


def _split(rest: Rows, splits: int, cluster: int, depths: list[_Depth]) -> tuple[Rows, int]:
    """Cut K of each tile into parts, the parts of one share of all tiles together; how many partials that leaves."""
    splits = min(splits, MAX_SPLITS)
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
                    d = depths[i]
                    a, b = max(low, at), min(high, at + d.blocks)
                    if a < b:
                        skipped = (a - at) * DEPTH
                        size = min((b - a) * DEPTH, d.size - skipped)
                        depths.append(_Depth(d.left + skipped, d.right + skipped, b - a, size, d.waits))
                    at, i = at + d.blocks, i + 1
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


def best_splits(
    tiles: int, groups: int, steps: int, step: float, tile: float, split: tuple[float, float], moved: float
) -> tuple[float, int]:
    """An estimate of the time of `tiles` on `groups` at work at once, and the splits of K in the last wave that give
    it. A tile takes `steps` of time `step`, and `tile` for its start and end; `split` is what splits cost once, and
    each; `moved` is the time of the memory."""
    waves, tail = divmod(tiles, groups)
    best = (float("inf"), 1)
    for splits in (1, *(s for s in range(2, MAX_SPLITS + 1) if tail and tail * s <= groups and steps // s >= 4)):
        busy = waves * (steps * step + tile)
        if tail:
            busy += ceil(steps / splits) * step + tile
        cost = max(busy, moved) + 0.2 * min(busy, moved)  # the two overlap, not wholly
        if splits > 1:
            cost += split[0] + split[1] * splits
        best = min(best, (cost, splits))
    return best
