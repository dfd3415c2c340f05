"""The times of a launch's tiles on a device, as the kernel's family gives them. The virtual clock prices products by
them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from .tiles import DEPTH


@dataclass(frozen=True, slots=True)
class Pace:
    """Microseconds of a launch's tiles. A group (a cluster of blocks, or one block) makes its tiles one after another,
    and all groups work at the same time.

    groups: groups at work at once. step: `depth` of K of a group's tile. ends: a tile's start and store. shown: of
    `ends` the share that each tile costs; the last tile costs all of it. adding: besides, where a tile adds to what its
    output holds. split: what a tile costs besides whose K is split, once and for each part. start: a launch, beyond
    what the stream pays. whole_edges: a tile at an edge takes as long as any other; otherwise it takes its share.
    fetched: a step whose right operand no other group loads at the same time, so that it comes out of memory.
    addend_steps: steps of the pipeline that an addend of a tile takes, each behind `addend_gap` steps of K at most; 0:
    addends are added where the tile is stored. cache: a right operand of so many bytes is read from memory once by
    products whose tiles are at work at once.
    """

    groups: int
    step: float
    ends: float = 0.0
    shown: float = 1.0
    adding: float = 0.0
    split: tuple[float, float] = (0.0, 0.0)
    start: float = 0.0
    whole_edges: bool = True
    fetched: float = 0.0
    cache: float = inf
    addend_steps: int = 0
    addend_gap: int = 0
    depth: int = DEPTH

    def steps(self, k: int) -> float:
        return ceil(k / self.depth) if self.whole_edges else k / self.depth

    def behind_addends(self, addends: int, k: int) -> float:
        """The share of a tile's steps that stand behind the first of its addends."""
        taken, blocks = addends * self.addend_steps, ceil(k / self.depth)
        return taken * min(self.addend_gap, blocks // (taken + 1)) / blocks

    def tail(self, parts: int, accumulate: bool) -> float:
        """What a tile costs beside its steps, or a part of it."""
        extra = self.split[0] + self.split[1] * parts if parts > 1 else 0.0
        return self.ends + extra + (self.adding if accumulate else 0.0)
