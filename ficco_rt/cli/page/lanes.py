"""A trace as the timeline's script reads it: lanes, spans in lanes, arrows between spans."""

from __future__ import annotations

from ...analysis.causes import critical_path
from ...report.drawing import WHOLE, stack, stage_colours
from ...report.wording import one_line
from ...trace.model import NO_WORK, SpanKind, Trace, TraceSpan, base_name

_NO_STAGE: dict[SpanKind, int] = {"wait": -1, "launch": -2}  # in place of a stage's number
_DIGITS = 4  # of a microsecond


def lanes(trace: Trace) -> dict[str, object]:
    """The data of one timeline. A span is a list, as `timeline.js` names its places; the same trace gives the same."""
    colours = stage_colours(trace)
    stage_of = {c.name: i for i, c in enumerate(colours)}
    texts: dict[str, int] = {}

    def text(words: str) -> int:
        return texts.setdefault(words, len(texts))

    def record(span: TraceSpan, lane: int, row: int) -> list[object]:
        stage = _NO_STAGE[span.kind] if span.kind in NO_WORK else stage_of[base_name(span.stage)]
        times = [round(span.start, _DIGITS), round(span.stop - span.start, _DIGITS)]
        peer = -1 if span.peer is None else span.peer
        words = [text(one_line(span.label)), text(span.stage), text(span.place)]
        waited = round(span.waited, _DIGITS) if span.kind in NO_WORK else 0
        return [lane, row, stage, *times, *words, span.bytes, span.flops, peer, waited]

    by_lane: dict[tuple[int, int], list[int]] = {}
    for number, span in enumerate(trace.spans):
        by_lane.setdefault((span.rank, span.stream), []).append(number)
    found: list[dict[str, object]] = []
    records: list[list[object]] = []
    place: dict[int, int] = {}  # in `records`, of each span of the trace
    for lane in sorted(trace.lanes, key=lambda lane: lane.rank):
        numbers = by_lane.get((lane.rank, lane.stream), [])
        numbers.sort(key=lambda n: (trace.spans[n].start, trace.spans[n].stop))
        rows = stack([trace.spans[n] for n in numbers])
        for number, row in zip(numbers, rows, strict=True):
            place[number] = len(records)
            records.append(record(trace.spans[number], len(found), row))
        found.append({"rank": lane.rank, "name": lane.name, "rows": max(rows, default=0) + 1})
    return {
        "duration": round(trace.duration, _DIGITS),
        "lanes": found,
        "stages": [[c.name, c.colour] for c in colours],
        "waits": any(span.kind == "wait" for span in trace.spans),
        "whole": [WHOLE.name, WHOLE.colour] if any(span.kind == "launch" for span in trace.spans) else None,
        "texts": list(texts),
        "spans": records,
        "path": [place[number] for number in critical_path(trace)],
        "arrows": [[place[arrow.before], place[arrow.after]] for arrow in trace.arrows],
    }
