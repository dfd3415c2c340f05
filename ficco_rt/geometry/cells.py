"""Converts regions of dense row-major tensors into what hardware copies: rows with one pitch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product

from .region import Axis, Box, Interval, Region


@dataclass(frozen=True, slots=True)
class Side:
    """Where one region's part of a cell lies: element offset in its tensor, elements from row to row."""

    offset: int
    pitch: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A rectangle that is rows of one pitch in every region, at the same logical place."""

    rows: int
    columns: int
    sides: tuple[Side, ...]


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one index to the next, by dimension, of a dense row-major tensor."""
    steps = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        steps[i] = steps[i + 1] * shape[i + 1]
    return tuple(steps)


def cells(regions: Sequence[Region], shapes: Sequence[Sequence[int]]) -> Iterator[Cell]:
    """Regions of one logical shape, cut at the segments of all of them; `shapes` are their tensors'."""
    if all(len(r.boxes) == 1 for r in regions):
        yield from _of_boxes([r.boxes[0] for r in regions], shapes)
        return
    kept = [[a for a in r.axes if not a.dropped] for r in regions]
    cuts = [
        sorted({at for axes in kept for at in accumulate((s.size for s in axes[d].segments), initial=0)})
        for d in range(len(kept[0]))
    ]
    for logical in product(*([Interval(a, b) for a, b in pairwise(c)] for c in cuts)):
        yield from _of_boxes([_box(r, logical) for r in regions], shapes)


def part(region: Region, start: int, stop: int) -> Region:
    """Logical rows start … stop-1 (the first kept dimension) of a region."""
    first = next(i for i, a in enumerate(region.axes) if not a.dropped)
    segments, at = [], 0
    for s in region.axes[first].segments:
        a, b = max(start, at), min(stop, at + s.size)
        if a < b:
            segments.append(Interval(s.start + a - at, s.start + b - at))
        at += s.size
    axes = list(region.axes)
    axes[first] = Axis(tuple(segments))
    return Region(region.tensor, region.rank, tuple(axes))


def _box(region: Region, logical: Sequence[Interval]) -> Box:
    """The box of the tensor that fills logical intervals, none of which crosses a segment's end."""
    start, stop = [], []
    wanted = iter(logical)
    for axis in region.axes:
        if axis.dropped:
            start.append(axis.segments[0].start)
            stop.append(axis.segments[0].stop)
            continue
        want, at = next(wanted), 0
        for s in axis.segments:
            if want.start < at + s.size:
                start.append(s.start + want.start - at)
                stop.append(s.start + want.stop - at)
                break
            at += s.size
    return Box(tuple(start), tuple(stop))


def _of_boxes(boxes: Sequence[Box], shapes: Sequence[Sequence[int]]) -> Iterator[Cell]:
    steps = [strides(shape) for shape in shapes]
    offsets = [sum(a * s for a, s in zip(box.start, step, strict=True)) for box, step in zip(boxes, steps, strict=True)]
    # dimensions of one element hold nothing together; what is left has the same sizes on every side
    long = [
        [(n, s) for n, s in zip(b.shape, step, strict=True) if n != 1] for b, step in zip(boxes, steps, strict=True)
    ]
    if 0 in boxes[0].shape:
        return
    sizes = [n for n, _ in long[0]]
    assert all([n for n, _ in dims] == sizes for dims in long), "regions of a command differ in shape"
    dims = [(n, tuple(side[d][1] for side in long)) for d, n in enumerate(sizes)]
    merged: list[tuple[int, tuple[int, ...]]] = []
    for n, step in dims:  # a dimension whose rows lie end to end on every side is one with the next
        if merged and all(before == n * s for before, s in zip(merged[-1][1], step, strict=True)):
            merged[-1] = (merged[-1][0] * n, step)
        else:
            merged.append((n, step))
    if not merged or any(s != 1 for s in merged[-1][1]):
        merged.append((1, (1,) * len(boxes)))
    if len(merged) == 1:
        n, _ = merged[0]
        yield Cell(1, n, tuple(Side(offset, n) for offset in offsets))
        return
    *outer, (rows, pitches), (columns, _) = merged
    for index in product(*(range(n) for n, _ in outer)):
        sides = []
        for i, offset in enumerate(offsets):
            moved = offset + sum(k * step[i] for k, (_, step) in zip(index, outer, strict=True))
            sides.append(Side(moved, pitches[i]))
        yield Cell(rows, columns, tuple(sides))
