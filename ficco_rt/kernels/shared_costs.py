"""The part of the cost models that families share. Each model has its own units, and ranks variants of one family
only."""

from __future__ import annotations

from math import ceil

from .tile_table import MAX_SPLITS

BESIDE = 0.2  # the steps and the memory overlap, not wholly


def best_splits(
    tiles: int,
    groups: int,
    steps: int,
    step: float,
    tile: float,
    split: tuple[float, float],
    moved: float,
    beside: float = BESIDE,
) -> tuple[float, int]:
    """An estimate of the time of `tiles` on `groups` at work at once, and the splits of K in the last wave that give
    it. A tile takes `steps` of time `step`, and `tile` for its start and end; `split` is what splits cost once, and
    each; `moved` is the time of the memory, and `beside` the share of the shorter that the longer does not hide."""
    waves, tail = divmod(tiles, groups)
    best = (float("inf"), 1)
    for splits in (1, *(s for s in range(2, MAX_SPLITS + 1) if tail and tail * s <= groups and steps // s >= 4)):
        busy = waves * (steps * step + tile)
        if tail:
            busy += ceil(steps / splits) * step + tile
        cost = max(busy, moved) + beside * min(busy, moved)
        if splits > 1:
            cost += split[0] + split[1] * splits
        best = min(best, (cost, splits))
    return best
