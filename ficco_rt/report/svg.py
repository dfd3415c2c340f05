"""A trace as one SVG picture: a band a rank, a lane a stream, a colour a stage. The same trace gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ..trace.model import NO_WORK, Launched, Trace, TraceSpan, base_name
from .drawing import WHOLE, StageColour, about, clean, clock_words, lane_use, stack, stage_colours, tick_labels, ticks
from .wording import one_line, show_bytes, show_flops, show_time

WIDTH = 1240
LEFT = 138  # where time begins; rank and stream names stand before it
RIGHT = 64  # room for the share of time a stream works
PLOT = WIDTH - LEFT - RIGHT
TITLED = 6000  # with more spans than this, they no longer carry their own tooltip
PIECES = 40_000  # the most rectangles that merged spans may become
MAX_ROWS = 8  # works of one stream drawn below each other; more share the last row

_STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
.page { fill: #ffffff; } .band { fill: #f3f5f8; } .lane { fill: #e6eaf0; }
.grid { stroke: #c9d0da; stroke-width: 1; stroke-dasharray: 1 3; } .end { stroke: #5b6675; stroke-width: 1; }
.title { font-size: 19px; font-weight: 600; fill: #1b2430; } .sub { font-size: 12px; fill: #566272; }
.rank { font-size: 12px; font-weight: 600; fill: #2b3644; } .name { font-size: 11px; fill: #566272; }
.key { font-size: 12px; fill: #2b3644; } .tick { font-size: 11px; fill: #566272; }
.in { font-size: 10px; fill: #ffffff; pointer-events: none; }
.wait { fill: url(#hatch); } .hatch { stroke: #aab4c2; stroke-width: 1.4; } .stripe { fill: #e6eaf0; }
@media (prefers-color-scheme: dark) {
  .page { fill: #12161c; } .band { fill: #1b212a; } .lane { fill: #262e39; }
  .grid { stroke: #3b4654; } .end { stroke: #8a97a8; }
  .title { fill: #edf1f6; } .sub, .name, .tick { fill: #9aa7b7; } .rank, .key { fill: #d5dce5; }
  .hatch { stroke: #566273; } .stripe { fill: #262e39; }
}
"""


@dataclass(frozen=True, slots=True)
class _Row:
    """The spans of one line of a lane."""

    top: float
    height: float
    spans: tuple[TraceSpan, ...]


@dataclass(frozen=True, slots=True)
class _Mark:
    """A rectangle to draw: one span, or neighbours too short to be told apart."""

    left: float
    width: float
    css: str
    span: TraceSpan | None


def draw(trace: Trace) -> str:
    """The picture."""
    trace = clean(trace)
    colours = stage_colours(trace)
    css_of = {c.name: f"s{i}" for i, c in enumerate(colours)}
    height_of = _lane_height(len(trace.lanes))
    scale = PLOT / (trace.duration or 1.0)
    titled = len(trace.spans) <= TITLED
    bin_width = max(1.0, len(trace.lanes) * PLOT / PIECES)

    small = height_of < 9
    header, y = _header(trace, colours, small)
    axis = y + 12
    y += 22
    first = y
    bands: list[str] = []
    marks: list[str] = []
    use = lane_use(trace)
    by_lane: dict[tuple[int, int], list[TraceSpan]] = {}
    for span in trace.spans:
        by_lane.setdefault((span.rank, span.stream), []).append(span)
    for rank in sorted({lane.rank for lane in trace.lanes}):
        lanes = [lane for lane in trace.lanes if lane.rank == rank]
        top, pad, gap = y, (2.0 if small else 5.0), (1.0 if small else 3.0)
        y += pad
        for lane in lanes:
            rows, height = _rows(by_lane.get((rank, lane.stream), []), y, height_of)
            middle = y + height / 2 + 4
            bands.append(f'<rect class="lane" x="{LEFT}" y="{y:g}" width="{PLOT}" height="{height:g}" rx="2"/>')
            if not small:
                name = _short(lane.name, 13)
                bands.append(
                    f'<text class="name" x="{LEFT - 8}" y="{middle:g}" text-anchor="end">{escape(name)}</text>'
                )
                share = f"{100 * use[rank, lane.stream]:.0f} %"
                bands.append(f'<text class="name" x="{WIDTH - 18}" y="{middle:g}" text-anchor="end">{share}</text>')
            for row in rows:
                marks += _draw_row(row, scale, css_of, bin_width, titled)
            y += height + gap
        y += pad - gap
        middle = (top + y) / 2 + 4
        box = f'<rect class="band" x="12" y="{top:g}" width="{WIDTH - 24}" height="{y - top:g}" rx="6"/>'
        label = f'<text class="rank" x="22" y="{middle:g}">rank {rank}</text>' if y - top >= 11 else ""
        bands.insert(len(bands) - _count(lanes, small), box + label)
        y += 3.0 if small else 8.0
    bottom = y

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 8:g}" width="{WIDTH}" '
        f'height="{bottom + 8:g}" role="img" aria-label="{escape(_summary(trace))}">',
        f"<style>{_STYLE}{_stage_css(trace, colours)}</style>",
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="stripe" width="6" height="6"/><line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>',
        f'<rect class="page" width="{WIDTH}" height="{bottom + 8:g}" rx="10"/>',
        *header,
        *bands,
        *_axis(trace, scale, axis, first, bottom - (3.0 if small else 8.0)),
        *marks,
        "</svg>",
    ]
    return "\n".join(out) + "\n"


def _count(lanes: Sequence[object], small: bool) -> int:
    """Elements that a rank's lanes have added to the bands, which its box must stand before."""
    return len(lanes) * (1 if small else 3)


def _lane_height(lanes: int) -> float:
    for most, height in ((8, 24.0), (20, 18.0), (48, 13.0), (96, 9.0), (192, 6.0)):
        if lanes <= most:
            return height
    return 4.0


def _rows(spans: Sequence[TraceSpan], top: float, height: float) -> tuple[list[_Row], float]:
    """The lane's lines and its height: works that run at the same time stand below each other."""
    numbers = stack(spans)
    count = min(max(numbers, default=0) + 1, MAX_ROWS)
    total = max(height, count * 5.0) if count > 1 else height
    lines: list[list[TraceSpan]] = [[] for _ in range(count)]
    for span, number in zip(spans, numbers, strict=True):
        lines[min(number, count - 1)].append(span)
    each = total / count
    return [_Row(top + i * each, each, tuple(line)) for i, line in enumerate(lines)], total


def _stage_css(trace: Trace, colours: Sequence[StageColour]) -> str:
    css = [f".s{i} {{ fill: {c.colour}; }}\n" for i, c in enumerate(colours)]
    if any(span.kind == "launch" for span in trace.spans):
        css.append(f".launch {{ fill: {WHOLE.colour}; }}\n")
    return "".join(css)


def _summary(trace: Trace) -> str:
    ranks = "1 rank" if trace.ranks == 1 else f"{trace.ranks} ranks"
    return f"{trace.schedule}: {ranks}, {show_time(trace.duration)}, {clock_words(trace)}"


def _header(trace: Trace, colours: Sequence[StageColour], small: bool) -> tuple[list[str], float]:
    lines = [
        f'<text class="title" x="22" y="34">{escape(_short(trace.schedule, 80))}</text>',
        f'<text class="title" x="{WIDTH - 18}" y="34" text-anchor="end">{show_time(trace.duration)}</text>',
        f'<text class="sub" x="22" y="54">{escape(about(trace))}</text>',
    ]
    x, y = 22.0, 78.0
    keys = [(c.name, f"s{i}") for i, c in enumerate(colours)]
    if any(span.kind == "wait" for span in trace.spans):
        keys.append(("waiting", "wait"))
    if any(span.kind == "launch" for span in trace.spans):
        keys.append((WHOLE.name, "launch"))
    for name, css in keys:
        text = _short(name, 40)
        width = 19 + 6.9 * len(text) + 20
        if x + width > WIDTH - 18:
            x, y = 22.0, y + 19
        lines.append(f'<rect class="{css}" x="{x:g}" y="{y - 10:g}" width="13" height="13" rx="3"/>')
        lines.append(f'<text class="key" x="{x + 19:g}" y="{y + 1:g}">{escape(text)}</text>')
        x += width
    if not small:
        lines.append(f'<text class="name" x="{WIDTH - 18}" y="{y + 22:g}" text-anchor="end">working</text>')
    return lines, y + 10


def _axis(trace: Trace, scale: float, y: float, first: float, bottom: float) -> Iterator[str]:
    times = ticks(trace.duration)
    for time, label in zip(times, tick_labels(times), strict=True):
        x = LEFT + time * scale
        yield f'<line class="grid" x1="{x:.2f}" y1="{first:g}" x2="{x:.2f}" y2="{bottom:g}"/>'
        anchor = "start" if time == 0 else "end" if x > LEFT + PLOT - 20 else "middle"
        yield f'<text class="tick" x="{x:.2f}" y="{y:g}" text-anchor="{anchor}">{label}</text>'
    x = LEFT + trace.duration * scale
    yield f'<line class="end" x1="{x:.2f}" y1="{first:g}" x2="{x:.2f}" y2="{bottom:g}"/>'


def _draw_row(row: _Row, scale: float, css_of: dict[str, str], bin_width: float, titled: bool) -> Iterator[str]:
    merged: dict[str, list[str]] = {}
    for mark in _marks(row.spans, scale, css_of, bin_width):
        if mark.span is None:
            path = f"M{mark.left:.2f} {row.top:g}h{mark.width:.2f}v{row.height:g}h-{mark.width:.2f}z"
            merged.setdefault(mark.css, []).append(path)
            continue
        width = mark.width - 0.8 if mark.width > 3 else mark.width  # a hair between neighbours
        box = f'class="{mark.css}" x="{mark.left:.2f}" y="{row.top:g}" width="{width:.2f}" height="{row.height:g}"'
        if width > 6 and row.height > 6:
            box += ' rx="2"'
        yield f"<rect {box}><title>{escape(_details(mark.span))}</title></rect>" if titled else f"<rect {box}/>"
        words = _fitting(mark.span, width) if row.height >= 13 else None
        if words:
            x, y = mark.left + width / 2, row.top + row.height / 2 + 3.6
            yield f'<text class="in" x="{x:.2f}" y="{y:g}" text-anchor="middle">{escape(words)}</text>'
    for css, paths in merged.items():
        yield f'<path class="{css}" d="{"".join(paths)}"/>'


def _marks(spans: Sequence[TraceSpan], scale: float, css_of: dict[str, str], bin_width: float) -> Iterator[_Mark]:
    """Spans at least a bin wide one by one; shorter ones as runs of bins, each in the colour it has most of."""
    bins: dict[int, dict[str, float]] = {}
    for span in spans:
        css = span.kind if span.kind in NO_WORK else css_of[base_name(span.stage)]
        left, width = LEFT + span.start * scale, (span.stop - span.start) * scale
        if width >= bin_width:
            yield _Mark(left, width, css, span)
        else:
            shares = bins.setdefault(int((left + width / 2 - LEFT) / bin_width), {})
            shares[css] = shares.get(css, 0.0) + max(width, 1e-6)
    run: tuple[int, int, str] | None = None
    for number in sorted(bins):
        css = max(bins[number], key=lambda c: (bins[number][c], c))
        if run and run[1] == number and run[2] == css:
            run = (run[0], number + 1, css)
            continue
        if run:
            yield _Mark(LEFT + run[0] * bin_width, (run[1] - run[0]) * bin_width, run[2], None)
        run = (number, number + 1, css)
    if run:
        yield _Mark(LEFT + run[0] * bin_width, (run[1] - run[0]) * bin_width, run[2], None)


def _fitting(span: TraceSpan, width: float) -> str | None:
    """The longest description that fits into the span's rectangle."""
    if span.kind == "wait":
        return None
    to = f"→{span.peer}" if span.peer is not None else ""
    for words in (one_line(span.label), f"{span.stage} {to}".strip(), to):
        if words and 5.9 * len(words) + 8 <= width:
            return words
    return None


def _details(span: TraceSpan) -> str:
    """What a tooltip says."""
    length = span.stop - span.start
    lines = [one_line(span.label), f"{show_time(span.start)} – {show_time(span.stop)}, {show_time(length)}"]
    if span.bytes:
        rate = f", {span.bytes / length / 1e3:.0f} GB/s" if length > 0 else ""
        lines.append(show_bytes(span.bytes) + rate)
    if span.peer_bytes:
        lines.append(f"{show_bytes(span.peer_bytes)} of it in other ranks' memory")
    if span.flops:
        rate = f", {span.flops / length / 1e6:.0f} TFLOP/s" if length > 0 else ""
        lines.append(show_flops(span.flops) + rate)
    if span.ops and span.kind in NO_WORK:
        lines.append(f"blocks waited {show_time(span.waited)}, the mean over all blocks")
    if span.within:
        lines.append(f"its works' times are within {show_time(span.within)}")
    if span.launched is not None:
        lines.append(_launch(span.launched))
    lines.append(f"stage {span.stage}, {span.place}")
    return "\n".join(lines)


def _launch(how: Launched) -> str:
    facts = [how.kernel]
    if how.blocks is not None:
        facts.append(f"{how.blocks} blocks")
    if how.residency is not None:
        facts.append(f"{how.residency} a multiprocessor")
    if how.reached is not None:
        facts.append(f"{how.reached} reached")
    return ", ".join((*facts, f"{show_bytes(how.smem)} shared memory each"))


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
