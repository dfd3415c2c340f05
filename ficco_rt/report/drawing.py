"""What all drawings of a trace share: colours, round numbers, and the layout: a band for each rank, a lane for each
stream, rows for works that run at once, a colour for each stage.

The SVG picture and the page have the same layout; each computes the horizontal positions (time) itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from html import escape

from ..analysis.account import length, rank_uses, union
from ..graph.kinds import SIDE_OF_SPAN
from ..graph.ops.kind import Side
from ..trace.model import NO_WORK, Lane, SpanKind, Trace, TraceSpan, base_name
from .wording import count, show_bytes, show_time

# Colours say what kind of work a stage is: moving is cool, multiplying is warm, summing is green.
# White text is readable on each, and each on white and on near-black. Colour-blind readers can tell the first two of
# each kind apart (tests/unit/test_page.py); for further ones the label and the description say the stage.
_FAMILIES: dict[Side, tuple[str, ...]] = {
    "moves": ("#2f6fb8", "#5f2bbd", "#1d8a99", "#4a86a8", "#3556a8", "#7b6fb0"),
    "computes": ("#dc7430", "#9c2f5f", "#7d5a12", "#c4504a", "#8f6b4a", "#9c4fa0"),
    "sums": ("#3f9a5c", "#1f5a34", "#7a8f2e"),
}
MAX_ROWS = 8  # works of one stream drawn below each other; more share the last row
WAITING, LAUNCH = -1, -2  # in place of the number of a stage
_LANES = ((8, 24.0), (20, 18.0), (48, 13.0), (96, 9.0), (192, 6.0), (1 << 30, 4.0))  # up to so many: the height of each
# What XML has no place for, and what a terminal would obey.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class StageColour:
    """A stage (all its iterations) and the colour of its spans."""

    name: str
    colour: str


WHOLE = StageColour("launch, above its works", "#8792a2")  # of a streamed launch as a whole


def plain(text: str) -> str:
    """The text without control characters, because it may come from an untrusted file."""
    return _CONTROL.sub("\ufffd", text)


def clean(trace: Trace) -> Trace:
    """The trace without control characters in the texts that a drawing shows, because they may come from an untrusted
    file."""

    def cleaned(span: TraceSpan) -> TraceSpan:
        launched = span.launched
        if not any(map(_CONTROL.search, (span.label, span.stage, span.place, launched.kernel if launched else ""))):
            return span
        launched = launched and replace(launched, kernel=plain(launched.kernel))
        return span._replace(
            label=plain(span.label), stage=plain(span.stage), place=plain(span.place), launched=launched
        )

    lanes = tuple(replace(lane, name=plain(lane.name)) for lane in trace.lanes)
    spans = tuple(map(cleaned, trace.spans))
    return replace(trace, schedule=plain(trace.schedule), machine=plain(trace.machine), lanes=lanes, spans=spans)


def stage_colours(trace: Trace) -> tuple[StageColour, ...]:
    """Every stage in order of its first work, coloured by what it mostly does."""
    first: dict[str, tuple[float, int]] = {}
    time: dict[str, dict[Side, float]] = {}
    for number, span in enumerate(trace.spans):
        name = base_name(span.stage)
        place = (span.start, number)
        first[name] = min(first.get(name, place), place)
        if span.kind not in NO_WORK:
            shares = time.setdefault(name, {})
            family = SIDE_OF_SPAN[span.kind]
            shares[family] = shares.get(family, 0.0) + span.stop - span.start
    used = dict.fromkeys(_FAMILIES, 0)
    colours = []
    for name in sorted((n for n in first if n in time), key=lambda n: first[n]):
        family = max(time[name], key=lambda f: (time[name][f], f))
        choices = _FAMILIES[family]
        colours.append(StageColour(name, choices[used[family] % len(choices)]))
        used[family] += 1
    return tuple(colours)


def stack(spans: Sequence[TraceSpan]) -> list[int]:
    """A row for every span, the lowest that is free, so that no two of a row overlap. A launch is above its works."""
    rows = [0] * len(spans)
    busy: list[tuple[float, int]] = []  # (free from, row)
    free: list[int] = []
    for index in sorted(range(len(spans)), key=lambda i: (spans[i].start, spans[i].kind != "launch", spans[i].stop, i)):
        span = spans[index]
        while busy and busy[0][0] <= span.start + 1e-6:
            heappush(free, heappop(busy)[1])
        rows[index] = heappop(free) if free else len(busy)
        heappush(busy, (span.stop, rows[index]))
    return rows


def lane_use(trace: Trace) -> dict[tuple[int, int], float]:
    """The share of the run that each (rank, stream) worked, waiting left out."""
    work: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for span in trace.spans:
        if span.kind not in NO_WORK:
            work.setdefault((span.rank, span.stream), []).append((span.start, span.stop))
    total = trace.duration or 1.0
    keys = [(lane.rank, lane.stream) for lane in trace.lanes]
    return {key: length(union(work.get(key, ()))) / total for key in keys}


def clock_words(trace: Trace) -> str:
    """Whether the times were measured; a modelled time never goes without this word."""
    return f"modelled for {trace.machine}" if trace.clock == "virtual" else f"measured on {trace.machine}"


def about(trace: Trace) -> str:
    """One line on a trace: ranks, what the times are of, and how well the time was used."""
    words = f"{count(trace.ranks, 'rank')} · {clock_words(trace)}" + (", not measured" * (trace.clock == "virtual"))
    uses = rank_uses(trace)
    if uses and trace.duration:
        busy = sum(u.compute for u in uses) / len(uses) / trace.duration
        words += f" · computing {100 * busy:.0f} % of the time"
        if moved := sum(u.peer_bytes for u in uses):
            words += f" · exposed communication not told apart: launches move {show_bytes(moved)} themselves"
        elif any(u.moving for u in uses):
            words += f" · exposed communication {show_time(max(u.exposed for u in uses))}"
    return words


def svg_page(width: float, height: float, label: str, style: str, body: Iterable[str]) -> str:
    """The text of a picture. `label` is what it shows, for readers who cannot see it."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(label)}">'
    return "\n".join([head, f"<style>{style}</style>", *body, "</svg>"]) + "\n"


def ticks(duration: float, about: int = 9) -> list[float]:
    """Round times from 0, some `about` of them, none after the end."""
    if not duration > 0:
        return [0.0]
    raw = duration / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))
    return [i * step for i in range(int(duration / step + 1e-9) + 1)]


def tick_labels(times: Sequence[float]) -> list[str]:
    """The ticks in one unit, with no digit that is not needed: `0`, `50`, `100 µs`."""
    last = times[-1]
    scale, unit = (1.0, "µs") if last < 2000 else (1e3, "ms") if last < 2e6 else (1e6, "s")
    step = (times[1] - times[0]) / scale if len(times) > 1 else 1.0
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{t / scale:.{digits}f}" + (f" {unit}" if i in (0, len(times) - 1) else "") for i, t in enumerate(times)]


# ---------------------------------------------------------------- layout


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
            high = min(max(rows, default=0) + 1, MAX_ROWS)
            height = max(lane_height, high * row_height) if high > 1 else lane_height
            placed = tuple((n, min(row, high - 1)) for n, row in zip(members, rows, strict=True))
            lanes.append(DrawnLane(lane, y, height, high, placed))
            y += height + gap
        bands.append(Band(rank, top, y + pad - gap, tuple(lanes)))
    stages = stage_colours(trace)
    numbers = {stage.name: number for number, stage in enumerate(stages)}
    others: dict[SpanKind, int] = {"wait": WAITING, "launch": LAUNCH}
    stage_of = tuple(others[s.kind] if s.kind in NO_WORK else numbers[base_name(s.stage)] for s in trace.spans)
    return Timeline(trace, stages, stage_of, tuple(bands), small)
