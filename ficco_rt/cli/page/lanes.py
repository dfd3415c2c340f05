"""Converts a trace into the data that `timeline.js` draws: places, spans in lanes, arrows between spans."""

from __future__ import annotations

from ...analysis.causes import critical_path
from ...report.drawing import WHOLE
from ...report.timeline import LAUNCH, WAITING, timeline
from ...report.wording import one_line
from ...trace.model import NO_WORK, Trace

_DIGITS = 4  # of a microsecond


def lanes(trace: Trace) -> dict[str, object]:
    """The data of one timeline. A span is a list, as `timeline.js` names its places; the same trace gives the same."""
    drawn = timeline(trace, pointed=True)
    texts: dict[str, int] = {}

    def text(words: str) -> int:
        return texts.setdefault(words, len(texts))

    def record(number: int, lane: int, row: int) -> list[object]:
        span = drawn.trace.spans[number]
        times = [round(span.start, _DIGITS), round(span.stop - span.start, _DIGITS)]
        peer = -1 if span.peer is None else span.peer
        words = [text(one_line(span.label)), text(span.stage), text(span.place)]
        waited = round(span.waited, _DIGITS) if span.kind in NO_WORK else 0
        return [lane, row, drawn.stage_of[number], *times, *words, span.bytes, span.flops, peer, waited]

    found: list[dict[str, object]] = []
    records: list[list[object]] = []
    place: dict[int, int] = {}  # in `records`, of each span of the trace
    for band in drawn.bands:
        for lane in band.lanes:
            spans = drawn.trace.spans
            for number, row in sorted(lane.spans, key=lambda at: (spans[at[0]].start, spans[at[0]].stop)):
                place[number] = len(records)
                records.append(record(number, len(found), row))
            found.append(
                {"rank": band.rank, "name": lane.lane.name, "y": lane.top, "h": lane.height, "rows": lane.rows}
            )
    return {
        "duration": round(trace.duration, _DIGITS),
        "bands": [[band.rank, band.top, band.bottom] for band in drawn.bands],
        "lanes": found,
        "stages": [[c.name, c.colour] for c in drawn.stages],
        "waits": WAITING in drawn.stage_of,
        "whole": [WHOLE.name, WHOLE.colour] if LAUNCH in drawn.stage_of else None,
        "texts": list(texts),
        "spans": records,
        "path": [place[number] for number in critical_path(trace)],
        "arrows": [[place[arrow.before], place[arrow.after]] for arrow in trace.arrows],
    }
