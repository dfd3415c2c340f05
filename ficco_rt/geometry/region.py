"""Exact parts of tensors: intervals, boxes, regions, and a map that holds a value for every element.

All coordinates are elements, half open, counted from 0 in the tensor of one rank.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, product
from math import prod
from typing import Generic, NamedTuple, TypeVar


class Interval(NamedTuple):  # tuples: made and hashed by the million
    """start ≤ i < stop along one dimension."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.start}:{self.stop}"


class Box(NamedTuple):
    """One rectangle of a tensor, with as many coordinates as the tensor has dimensions."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def elements(self) -> int:
        n = 1
        for a, b in zip(self.start, self.stop, strict=True):
            n *= b - a
        return n

    def meet(self, other: Box) -> Box | None:
        """The common part, or None."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        return Box(start, stop) if all(a < b for a, b in zip(start, stop, strict=True)) else None

    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))


@dataclass(frozen=True, slots=True)
class Axis:
    """What a region takes of one dimension: pieces in their logical order.

    `dropped` marks a dimension fixed by an index: one element, absent from the region's shape.
    """

    segments: tuple[Interval, ...]
    dropped: bool = False

    @property
    def size(self) -> int:
        return sum(s.stop - s.start for s in self.segments)


@dataclass(frozen=True, slots=True)
class Region:
    """A part of one rank's tensor: the product of its axes. Several segments on an axis make one
    logical dimension by concatenation, in order; that is what a fused operand is."""

    tensor: str
    rank: int
    axes: tuple[Axis, ...]
    shape: tuple[int, ...] = field(init=False, compare=False, repr=False)  # without dropped dimensions
    boxes: tuple[Box, ...] = field(init=False, compare=False, repr=False)  # the first axis runs slowest
    kept: tuple[int, ...] = field(init=False, compare=False, repr=False)  # dimensions that are not dropped

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(a.size for a in self.axes if not a.dropped))
        object.__setattr__(self, "kept", tuple(d for d, a in enumerate(self.axes) if not a.dropped))
        boxes = []
        for segments in product(*(a.segments for a in self.axes)):
            boxes.append(Box(tuple(s.start for s in segments), tuple(s.stop for s in segments)))
        object.__setattr__(self, "boxes", tuple(boxes))

    def on(self, rank: int) -> Region:
        """The same part of another rank's tensor."""
        if rank == self.rank:
            return self
        new = object.__new__(Region)  # shape and boxes are known: share them
        for name in self.__slots__:
            object.__setattr__(new, name, getattr(self, name))
        object.__setattr__(new, "rank", rank)
        return new

    @property
    def elements(self) -> int:
        return prod(self.shape)  # a dropped dimension has one

    def logical_boxes(self) -> Iterator[tuple[Box, Box]]:
        """Each box of the tensor with the box that it fills in the region's own (logical) coordinates."""
        if len(self.boxes) == 1:
            yield self.boxes[0], Box((0,) * len(self.shape), self.shape)
            return
        spans: list[list[tuple[Interval, Interval]]] = []
        for axis in self.axes:
            starts = accumulate((s.size for s in axis.segments), initial=0)
            spans.append([(s, Interval(at, at + s.size)) for s, at in zip(axis.segments, starts, strict=False)])
        kept = self.kept
        for choice in product(*spans):
            tensor = Box(tuple(c[0].start for c in choice), tuple(c[0].stop for c in choice))
            logical = Box(tuple(choice[i][1].start for i in kept), tuple(choice[i][1].stop for i in kept))
            yield tensor, logical

    def __str__(self) -> str:
        def show(axis: Axis) -> str:
            if axis.dropped:
                return str(axis.segments[0].start)
            return "+".join(map(str, axis.segments))

        return f"{self.tensor}@{self.rank}[{', '.join(map(show, self.axes))}]"


def to_logical_box(region: Region, box: Box, tensor_box: Box, logical_box: Box) -> Box:
    """A part of one of a region's boxes in the region's own (logical) coordinates."""
    if box == tensor_box:
        return logical_box
    kept = region.kept
    start = tuple(box.start[d] - tensor_box.start[d] + logical_box.start[i] for i, d in enumerate(kept))
    return Box(start, tuple(s + box.stop[d] - box.start[d] for s, d in zip(start, kept, strict=True)))


def to_tensor_box(region: Region, box: Box, tensor_box: Box, logical_box: Box) -> Box:
    """The inverse of `to_logical_box`: the box of the tensor for a part of a region's logical box."""
    start, stop = list(tensor_box.start), list(tensor_box.stop)
    for i, d in enumerate(region.kept):
        start[d] = tensor_box.start[d] + box.start[i] - logical_box.start[i]
        stop[d] = start[d] + box.stop[i] - box.start[i]
    return Box(tuple(start), tuple(stop))


def whole(tensor: str, rank: int, shape: tuple[int, ...]) -> Region:
    """The region of a whole tensor."""
    return Region(tensor, rank, tuple(Axis((Interval(0, n),)) for n in shape))


def describe(box: Box) -> str:
    """`rows 0–1023, columns 0–511` for people: inclusive ends; leading dimensions as indices."""

    def span(a: int, b: int) -> str:
        return str(a) if b - a == 1 else f"{a}–{b - 1}"

    if len(box.start) == 1:
        return f"rows {span(box.start[0], box.stop[0])}"
    *lead, row, column = zip(box.start, box.stop, strict=True)
    text = f"rows {span(*row)}, columns {span(*column)}"
    if lead:
        text = "[" + ", ".join(span(a, b) for a, b in lead) + "] " + text
    return text


def overlap(a: Region, b: Region) -> bool:
    """Whether two regions have an element in common."""
    return (a.tensor, a.rank) == (b.tensor, b.rank) and all(map(_meet, a.axes, b.axes))


def _meet(a: Axis, b: Axis) -> bool:
    """Whether two axes have an element in common. A region is the product of its axes, so two regions overlap if all
    axes do."""
    if len(a.segments) == len(b.segments) == 1:
        return a.segments[0].start < b.segments[0].stop and b.segments[0].start < a.segments[0].stop
    marks = [(s.start, True, side) for side, axis in enumerate((a, b)) for s in axis.segments]
    marks += [(s.stop, False, side) for side, axis in enumerate((a, b)) for s in axis.segments]
    inside = [0, 0]
    for _, opens, side in sorted(marks):  # at one place, ends come before starts
        inside[side] += 1 if opens else -1
        if opens and inside[1 - side]:
            return True
    return False


def contiguous(region: Region, shape: tuple[int, ...]) -> bool:
    """Whether the region is one contiguous run of memory in a row-major tensor of `shape`."""
    if len(region.boxes) != 1:
        return False
    box = region.boxes[0]
    cut = False
    for a, b, extent in zip(reversed(box.start), reversed(box.stop), reversed(shape), strict=True):
        if cut and b - a > 1:
            return False
        cut = cut or b - a < extent
    return True


V = TypeVar("V")


class BoxMap(Generic[V]):
    """A value for every element of a tensor, kept by boxes.

    The first dimension is cut into bands; a band holds the map of the remaining dimensions, the
    last dimension holds the values. Values must be immutable: a split shares them. Neighbours that
    hold the same object (`is`) are joined again, so that a tensor filled piece by piece with one
    value costs as much as a tensor filled at once.
    """

    __slots__ = ("cells", "extent", "leaf", "starts")

    def __init__(self, shape: tuple[int, ...], value: V) -> None:
        self.starts = [0]
        self.extent = shape[0]
        self.leaf = len(shape) == 1
        self.cells: list[V | BoxMap[V]] = [value if self.leaf else BoxMap(shape[1:], value)]

    def _copy(self) -> BoxMap[V]:
        new: BoxMap[V] = BoxMap.__new__(BoxMap)
        new.starts = self.starts.copy()
        new.extent = self.extent
        new.leaf = self.leaf
        new.cells = self.cells.copy() if self.leaf else [c._copy() for c in self.cells]  # type: ignore[union-attr]
        return new

    def _same(self, a: V | BoxMap[V], b: V | BoxMap[V]) -> bool:
        if self.leaf:
            return a is b
        assert isinstance(a, BoxMap)
        assert isinstance(b, BoxMap)
        if a.starts != b.starts:
            return False
        if a.leaf:
            return all(map(operator.is_, a.cells, b.cells))
        return all(map(a._same, a.cells, b.cells))

    def _count(self) -> int:
        """What a copy costs: a map of few cells costs as much as four."""
        if self.leaf:
            return 4 + len(self.cells)
        return 4 + sum(c._count() for c in self.cells if isinstance(c, BoxMap))

    def _split(self, at: int) -> int:
        """Make `at` the start of a band; the band's index."""
        i = bisect_left(self.starts, at)
        if i < len(self.starts) and self.starts[i] == at:
            return i
        if at >= self.extent:
            return len(self.starts)
        self.starts.insert(i, at)
        cell = self.cells[i - 1]
        self.cells.insert(i, cell._copy() if isinstance(cell, BoxMap) else cell)
        return i

    def update(self, box: Box, change: Callable[[V], V]) -> int:
        """Replace every value inside `box` by `change(value)`. Returns what it cost: cells changed, copied, or compared
        with their neighbours."""
        return self._update(box.start, box.stop, 0, change)

    def _update(self, start: tuple[int, ...], stop: tuple[int, ...], dim: int, change: Callable[[V], V]) -> int:
        bands = len(self.starts)
        first = self._split(start[dim]) if start[dim] else 0
        last = self._split(stop[dim]) if stop[dim] < self.extent else len(self.starts)
        cells = self.cells
        cost = last - first
        if self.leaf:
            for i in range(first, last):
                cells[i] = change(cells[i])  # type: ignore[arg-type]
        else:
            if len(cells) > bands:
                cost += (len(cells) - bands) * cells[first]._count()  # type: ignore[union-attr]
            for i in range(first, last):
                cost += cells[i]._update(start, stop, dim + 1, change)  # type: ignore[union-attr]
        # join equal neighbours, from the band after the last to the first, so that indices stay valid
        for i in range(min(last, len(cells) - 1), max(first, 1) - 1, -1):
            cost += 0 if self.leaf else len(cells[i].starts) // 8  # type: ignore[union-attr]
            if cells[i - 1] is cells[i] if self.leaf else self._same(cells[i - 1], cells[i]):
                del cells[i], self.starts[i]
        return cost

    def items(self, box: Box) -> Iterator[tuple[Box, V]]:
        """The pieces that fill `box`, each cut to it, in order."""
        for start, stop, value in self._items(box.start, box.stop, 0):
            yield Box(start, stop), value

    def _items(
        self, start: tuple[int, ...], stop: tuple[int, ...], dim: int
    ) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], V]]:
        starts, cells = self.starts, self.cells
        i = bisect_right(starts, start[dim]) - 1
        n = len(starts)
        while i < n and starts[i] < stop[dim]:
            low = max(starts[i], start[dim])
            high = min(starts[i + 1] if i + 1 < n else self.extent, stop[dim])
            if self.leaf:
                yield (low,), (high,), cells[i]  # type: ignore[misc]
            else:
                for inner_start, inner_stop, value in cells[i]._items(start, stop, dim + 1):  # type: ignore[union-attr]
                    yield (low, *inner_start), (high, *inner_stop), value
            i += 1


# ---------------------------------------------------------------- for people


def summary(region: Region) -> str:
    """Which part of its tensor: the first piece, and how many more there are."""
    if not region.boxes:
        return "nothing"
    first = describe(region.boxes[0])
    return first if len(region.boxes) == 1 else f"{first} and {len(region.boxes) - 1} more"


def way(dst: Region, src: Region, rank: int | None, part: Callable[[Region], str] = summary) -> str:
    """A copy, from where to where, from the view of a rank; None: with all ranks named."""
    return f"{called(src, rank)} → {called(dst, rank)} {part(dst)}"


def called(region: Region, rank: int | None) -> str:
    """The name of the tensor from the view of a rank."""
    return region.tensor if region.rank == rank else f"{region.tensor}@{region.rank}"


def between_ranks(rank: int, reads: Sequence[Region], writes: Sequence[Region]) -> Iterator[tuple[int, int, Region]]:
    """What passes a link as the rank reads and writes these regions: from which rank, to which, and the region."""
    yield from ((region.rank, rank, region) for region in reads if region.rank != rank)
    yield from ((rank, region.rank, region) for region in writes if region.rank != rank)


def peer_of(dst: Region, src: Region, rank: int) -> int | None:
    """The other rank of a copy that the rank makes; None inside of one."""
    return None if src.rank == dst.rank else dst.rank if src.rank == rank else src.rank


def shape_words(shape: Sequence[int]) -> str:
    """`64 × 32`."""
    return " × ".join(map(str, shape)) or "one element"
