"""What a launch's tiles take on a device: the price of a kernel, as its family gives it."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from .tiles import DEPTH


@dataclass(frozen=True, slots=True)
class Pace:
    """Microseconds of a launch's tiles. A group (a cluster of blocks, or one block) makes its tiles one after another,
    and all groups work at the same time.

    groups: groups at work at once. step: 64 of K of a group's tile. ends: a tile's start and store. shown: the share of
    `ends` that each tile costs; the last tile costs all of it. adding: besides, where a tile adds to what its output
    holds. split: what a tile costs besides whose K is split, once and for each part. start: a launch, beyond what the
    stream pays. whole_edges: a tile at an edge takes as long as any other; otherwise it takes its share.
    """

    groups: int
    step: float
    ends: float = 0.0
    shown: float = 1.0
    adding: float = 0.0
    split: tuple[float, float] = (0.0, 0.0)
    start: float = 0.0
    whole_edges: bool = True

    def steps(self, k: int) -> float:
        return ceil(k / DEPTH) if self.whole_edges else k / DEPTH

    def tail(self, parts: int, accumulate: bool) -> float:
        """What a tile costs beside its steps, or a part of it."""
        extra = self.split[0] + self.split[1] * parts if parts > 1 else 0.0
        return self.ends + extra + (self.adding if accumulate else 0.0)
