"""Runs with fewer rows than their plan has.

The rows of a tensor lie in blocks: one, or one for each rank. The plan has `planned` rows in each block. A run has the
first `given` of them, and its tensors are dense, so that blocks behind the first lie elsewhere. What an op does with
rows that are not there, it leaves out on all of its sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from .cells import common
from .region import Axis, Interval, Region


class Block(NamedTuple):
    """How the rows of a region's tensor lie: of each `planned` rows the first `given` are there, end to end."""

    planned: int
    given: int

    def place(self, row: int) -> int:
        """Where a row of the plan lies. It is there, or the first behind those of its block."""
        return row // self.planned * self.given + min(row % self.planned, self.given)

    def left(self, row: int) -> int:
        """How many rows are there from this one of the plan on, in its block."""
        return max(0, self.given - row % self.planned)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a run. `blocks`: by name, the number of blocks of the tensors that have such rows."""

    planned: int
    given: int
    blocks: Mapping[str, int]

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A tensor's shape in the run."""
        return (self.blocks[name] * self.given, *shape[1:]) if name in self.blocks else shape

    def of(self, regions: Sequence[Region]) -> tuple[Block | None, ...]:
        """How the rows of regions lie that one op takes together. Where all of them take whole blocks, several of these
        are as one: the rows that are there then lie end to end on every side."""
        held = [region.tensor in self.blocks for region in regions]
        edges = gcd(*(edge for region in regions for segment in segments(region) for edge in segment))
        several = edges // self.planned if all(held) and edges % self.planned == 0 else 1
        block = Block(max(1, several) * self.planned, max(1, several) * self.given)
        return tuple(block if there else None for there in held)

    def fewer(self, regions: Sequence[Region]) -> tuple[Region, ...]:
        """Regions that an op takes together, as they are in the run."""
        return fewer(regions, self.of(regions))


def segments(region: Region) -> tuple[Interval, ...]:
    """A region's rows: what it takes of its first dimension that is none of one index."""
    return region.axes[region.kept[0]].segments


def pieces(regions: Sequence[Region], blocks: Sequence[Block | None]) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """The rows of regions of one logical shape, cut by all, as the plan has them: where a piece starts in each, its
    rows, and how many of these are there. No piece reaches into a second block."""
    return cut_by_blocks([segments(region) for region in regions], blocks)


def cut_by_blocks(
    sides: Sequence[Sequence[Interval]], blocks: Sequence[Block | None]
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """The same of rows alone."""
    cut = [[Interval(a, b) for s in rows for a, b in _cut(s, block)] for rows, block in zip(sides, blocks, strict=True)]
    for *starts, size in common(*cut):
        there = min(size, *(size if b is None else b.left(at) for at, b in zip(starts, blocks, strict=True)))
        yield tuple(starts), size, there


def placed(row: int, block: Block | None) -> int:
    """Where a row of the plan lies."""
    return row if block is None else block.place(row)


def _cut(segment: Interval, block: Block | None) -> Iterator[tuple[int, int]]:
    at = segment.start
    while at < segment.stop:
        stop = segment.stop if block is None else min(segment.stop, at - at % block.planned + block.planned)
        yield at, stop
        at = stop


def fewer(regions: Sequence[Region], blocks: Sequence[Block | None]) -> tuple[Region, ...]:
    """Regions of one logical shape, without the rows that are not there, and where those that are there lie."""
    if not any(blocks):
        return tuple(regions)
    found: list[list[Interval]] = [[] for _ in regions]
    for starts, _, there in pieces(regions, blocks):
        for intervals, at, block in zip(found, starts, blocks, strict=True):
            first = placed(at, block)
            if there:
                intervals.append(Interval(first, first + there))
    made = []
    for region, intervals in zip(regions, found, strict=True):
        axes = list(region.axes)
        axes[region.kept[0]] = Axis(tuple(intervals))
        made.append(Region(region.tensor, region.rank, tuple(axes)))
    return tuple(made)
