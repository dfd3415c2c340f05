"""The layout of a trace's works: a band for each rank, a lane for each stream, rows for works that run at once, a
colour for each stage.

The SVG picture and the page share this layout; each computes the horizontal positions (time) itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..trace.model import NO_WORK, Lane, SpanKind, Trace, base_name
from .drawing import StageColour, clean, stack, stage_colours

MAX_ROWS = 8  # works of one stream drawn below each other; more share the last row
WAITING, LAUNCH = -1, -2  # in place of the number of a stage
_LANES = ((8, 24.0), (20, 18.0), (48, 13.0), (96, 9.0), (192, 6.0), (1 << 30, 4.0))  # up to so many: the height of each


@dataclass(frozen=True, slots=True)
class DrawnLane:
    """A stream's lane. `spans`: the number of each in the trace, and its row."""

    lane: Lane
    top: float
    height: float
    rows: int
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Band:
    """A rank, around its lanes."""

    rank: int
    top: float
    bottom: float
    lanes: tuple[DrawnLane, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A trace with its places, from 0 down. `stage_of`: of each span the number of its stage, or what stands in its
    place, `WAITING` or `LAUNCH`. `small`: lanes are too low for words."""

    trace: Trace
    stages: tuple[StageColour, ...]
    stage_of: tuple[int, ...]
    bands: tuple[Band, ...]
    small: bool


def timeline(trace: Trace, *, pointed: bool = False) -> Timeline:
    """The layout of a trace. `pointed`: lanes and rows are high enough for a mouse pointer."""
    trace = clean(trace)
    least, row_height = (10.0, 8.0) if pointed else (4.0, 5.0)
    lane_height = max(least, next(height for most, height in _LANES if len(trace.lanes) <= most))
    small = lane_height < 9
    pad, gap, between = (2.0, 1.0, 3.0) if small else (5.0, 3.0, 8.0)
    by_lane: dict[tuple[int, int], list[int]] = {}
    for number, span in enumerate(trace.spans):
        by_lane.setdefault((span.rank, span.stream), []).append(number)
    bands: list[Band] = []
    for rank in sorted({lane.rank for lane in trace.lanes}):
        top = bands[-1].bottom + between if bands else 0.0
        y, lanes = top + pad, []
        for lane in (lane for lane in trace.lanes if lane.rank == rank):
            members = by_lane.get((rank, lane.stream), [])
            rows = stack([trace.spans[n] for n in members])
            count = min(max(rows, default=0) + 1, MAX_ROWS)
            height = max(lane_height, count * row_height) if count > 1 else lane_height
            placed = tuple((n, min(row, count - 1)) for n, row in zip(members, rows, strict=True))
            lanes.append(DrawnLane(lane, y, height, count, placed))
            y += height + gap
        bands.append(Band(rank, top, y + pad - gap, tuple(lanes)))
    stages = stage_colours(trace)
    numbers = {stage.name: number for number, stage in enumerate(stages)}
    others: dict[SpanKind, int] = {"wait": WAITING, "launch": LAUNCH}
    stage_of = tuple(others[s.kind] if s.kind in NO_WORK else numbers[base_name(s.stage)] for s in trace.spans)
    return Timeline(trace, stages, stage_of, tuple(bands), small)
