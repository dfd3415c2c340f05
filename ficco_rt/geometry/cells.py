"""Converts regions of dense row-major tensors into what hardware copies: rows with one pitch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

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


def aligned(regions: Sequence[Region]) -> Iterator[tuple[Box, ...]]:
    """Regions of one logical shape, cut at the segments of all of them: boxes at the same logical place."""
    if all(len(r.boxes) == 1 for r in regions):
        yield tuple(r.boxes[0] for r in regions)
        return
    cuts = [
        common(*(r.axes[d].segments for r, d in zip(regions, dims, strict=True)))
        for dims in zip(*(r.kept for r in regions), strict=True)
    ]
    for runs in product(*cuts):
        boxes = []
        for side, region in enumerate(regions):
            start, stop = [a.segments[0].start for a in region.axes], [a.segments[0].stop for a in region.axes]
            for d, run in zip(region.kept, runs, strict=True):
                start[d], stop[d] = run[side], run[side] + run[-1]
            boxes.append(Box(tuple(start), tuple(stop)))
        yield tuple(boxes)


def cells(
    regions: Sequence[Region], shapes: Sequence[Sequence[int]], steps: Sequence[Sequence[int]] = ()
) -> Iterator[Cell]:
    """Regions of one logical shape, cut at the segments of all of them; `shapes` are their tensors', which are dense
    unless `steps` has the elements from one index to the next."""
    steps = steps or [strides(shape) for shape in shapes]
    for boxes in aligned(regions):
        yield from _of_boxes(boxes, steps)


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


def _of_boxes(boxes: Sequence[Box], steps: Sequence[Sequence[int]]) -> Iterator[Cell]:
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
