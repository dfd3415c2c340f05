"""Draws a trace as one SVG picture: a band for each rank, a lane for each stream, a colour for each stage. Equal traces
give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from itertools import groupby

from ..trace.model import NO_WORK, Launched, Trace, TraceSpan
from . import drawing
from .wording import count, one_line, show_bytes, show_flops, show_time

WIDTH = 1240
LEFT = 138  # where time begins; rank and stream names stand before it
RIGHT = 64  # room for the share of time a stream works
PLOT = WIDTH - LEFT - RIGHT
TITLED = 6000  # with more spans than this, they no longer carry their own tooltip
PIECES = 40_000  # the most rectangles that merged spans may become

_STYLE = "\n" + files(__package__).joinpath("timeline.css").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Mark:
    """A rectangle to draw: one span, or neighbours too short to be told apart. `css`: of its key in the legend."""

    left: float
    width: float
    css: str
    span: TraceSpan | None


def draw(trace: Trace) -> str:
    """The picture."""
    drawn = drawing.timeline(trace)
    trace = drawn.trace
    scale = PLOT / (trace.duration or 1.0)
    titled = len(trace.spans) <= TITLED
    bin_width = max(1.0, len(trace.lanes) * PLOT / PIECES)
    use = drawing.lane_use(trace)
    header, y = _header(drawn)
    axis, first = y + 12, y + 22
    bands: list[str] = []
    marks: list[str] = []
    for band in drawn.bands:
        top, bottom = first + band.top, first + band.bottom
        bands.append(f'<rect class="band" x="12" y="{top:g}" width="{WIDTH - 24}" height="{bottom - top:g}" rx="6"/>')
        if bottom - top >= 11:
            bands[-1] += f'<text class="rank" x="22" y="{(top + bottom) / 2 + 4:g}">rank {band.rank}</text>'
        for lane in band.lanes:
            y, middle = first + lane.top, first + lane.top + lane.height / 2 + 4
            bands.append(f'<rect class="lane" x="{LEFT}" y="{y:g}" width="{PLOT}" height="{lane.height:g}" rx="2"/>')
            if not drawn.small:
                share = f"{100 * use[band.rank, lane.lane.stream]:.0f} %"
                for x, words in ((LEFT - 8, escape(_short(lane.lane.name, 13))), (WIDTH - 18, share)):
                    bands.append(f'<text class="name" x="{x}" y="{middle:g}" text-anchor="end">{words}</text>')
            each = lane.height / lane.rows
            for row in range(lane.rows):
                spans = [(trace.spans[n], _css(drawn.stage_of[n])) for n, at in lane.spans if at == row]
                marks += _draw_row(_marks(spans, scale, bin_width), y + row * each, each, titled)
    bottom = first + (drawn.bands[-1].bottom if drawn.bands else 0.0)
    height = bottom + (3.0 if drawn.small else 8.0) + 8
    summary = (
        f"{trace.schedule}: {count(trace.ranks, 'rank')}, {show_time(trace.duration)}, {drawing.clock_words(trace)}"
    )
    css = "".join(f".{_css(i)} {{ fill: {c.colour}; }}\n" for i, c in enumerate(drawn.stages))
    css += f".launch {{ fill: {drawing.WHOLE.colour}; }}\n" if drawing.LAUNCH in drawn.stage_of else ""
    body = (
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="stripe" width="6" height="6"/><line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>',
        f'<rect class="page" width="{WIDTH}" height="{height:g}" rx="10"/>',
        *header,
        *bands,
        *_axis(trace, scale, axis, first, bottom),
        *marks,
    )
    return drawing.svg_page(WIDTH, height, summary, _STYLE + css, body)


def _css(stage: int) -> str:
    """The class of a stage's works, or of what stands in its place."""
    return {drawing.WAITING: "wait", drawing.LAUNCH: "launch"}.get(stage, f"s{stage}")


def _header(drawn: drawing.Timeline) -> tuple[list[str], float]:
    trace = drawn.trace
    lines = [
        f'<text class="title" x="22" y="34">{escape(_short(trace.schedule, 80))}</text>',
        f'<text class="title" x="{WIDTH - 18}" y="34" text-anchor="end">{show_time(trace.duration)}</text>',
        f'<text class="sub" x="22" y="54">{escape(drawing.about(trace))}</text>',
    ]
    x, y = 22.0, 78.0
    keys = [
        *((c.name, i) for i, c in enumerate(drawn.stages)),
        ("waiting", drawing.WAITING),
        (drawing.WHOLE.name, drawing.LAUNCH),
    ]
    for name, stage in (key for key in keys if key[1] >= 0 or key[1] in drawn.stage_of):
        text = _short(name, 40)
        width = 19 + 6.9 * len(text) + 20
        if x + width > WIDTH - 18:
            x, y = 22.0, y + 19
        lines.append(f'<rect class="{_css(stage)}" x="{x:g}" y="{y - 10:g}" width="13" height="13" rx="3"/>')
        lines.append(f'<text class="key" x="{x + 19:g}" y="{y + 1:g}">{escape(text)}</text>')
        x += width
    if not drawn.small:
        lines.append(f'<text class="name" x="{WIDTH - 18}" y="{y + 22:g}" text-anchor="end">working</text>')
    return lines, y + 10


def _axis(trace: Trace, scale: float, y: float, first: float, bottom: float) -> Iterator[str]:
    times = drawing.ticks(trace.duration)
    for time, label in zip(times, drawing.tick_labels(times), strict=True):
        x = LEFT + time * scale
        yield f'<line class="grid" x1="{x:.2f}" y1="{first:g}" x2="{x:.2f}" y2="{bottom:g}"/>'
        anchor = "start" if time == 0 else "end" if x > LEFT + PLOT - 20 else "middle"
        yield f'<text class="tick" x="{x:.2f}" y="{y:g}" text-anchor="{anchor}">{label}</text>'
    x = LEFT + trace.duration * scale
    yield f'<line class="end" x1="{x:.2f}" y1="{first:g}" x2="{x:.2f}" y2="{bottom:g}"/>'


def _draw_row(marks: Iterable[_Mark], top: float, height: float, titled: bool) -> Iterator[str]:
    merged: dict[str, list[str]] = {}
    for mark in marks:
        if mark.span is None:
            path = f"M{mark.left:.2f} {top:g}h{mark.width:.2f}v{height:g}h-{mark.width:.2f}z"
            merged.setdefault(mark.css, []).append(path)
            continue
        width = mark.width - 0.8 if mark.width > 3 else mark.width  # a hair between neighbours
        box = f'class="{mark.css}" x="{mark.left:.2f}" y="{top:g}" width="{width:.2f}" height="{height:g}"'
        if width > 6 and height > 6:
            box += ' rx="2"'
        yield f"<rect {box}><title>{escape(_details(mark.span))}</title></rect>" if titled else f"<rect {box}/>"
        words = _fitting(mark.span, width) if height >= 13 else None
        if words:
            x, y = mark.left + width / 2, top + height / 2 + 3.6
            yield f'<text class="in" x="{x:.2f}" y="{y:g}" text-anchor="middle">{escape(words)}</text>'
    for css, paths in merged.items():
        yield f'<path class="{css}" d="{"".join(paths)}"/>'


def _marks(spans: Iterable[tuple[TraceSpan, str]], scale: float, bin_width: float) -> Iterator[_Mark]:
    """Spans at least a bin wide one by one; shorter ones as runs of bins, each in the colour it has most of."""
    bins: dict[int, dict[str, float]] = {}
    for span, css in spans:
        left, width = LEFT + span.start * scale, (span.stop - span.start) * scale
        if width >= bin_width:
            yield _Mark(left, width, css, span)
        else:
            shares = bins.setdefault(int((left + width / 2 - LEFT) / bin_width), {})
            shares[css] = shares.get(css, 0.0) + max(width, 1e-6)
    most = {number: max(shares, key=lambda c: (shares[c], c)) for number, shares in sorted(bins.items())}
    for (css, _), run in groupby(enumerate(most), key=lambda at: (most[at[1]], at[1] - at[0])):
        numbers = [number for _, number in run]
        yield _Mark(LEFT + numbers[0] * bin_width, len(numbers) * bin_width, css, None)


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
