"""A trace as one HTML page that needs nothing else: zoom, pan, and a description under the pointer."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files

from ..trace import NO_WORK, SpanKind, Trace, TraceSpan, base_name
from .drawing import WHOLE, about, clean, show_time, stack, stage_colours

_NO_STAGE: dict[SpanKind, int] = {"wait": -1, "launch": -2}  # in place of a stage's number


def draw(trace: Trace) -> str:
    """The page. The same trace gives the same bytes."""
    trace = clean(trace)
    colours = stage_colours(trace)
    stage_of = {c.name: i for i, c in enumerate(colours)}
    texts: dict[str, int] = {}

    def text(words: str) -> int:
        return texts.setdefault(words, len(texts))

    def record(span: TraceSpan, lane: int, row: int) -> list[object]:
        stage = _NO_STAGE[span.kind] if span.kind in NO_WORK else stage_of[base_name(span.stage)]
        times = [round(span.start, 4), round(span.stop - span.start, 4)]
        peer = -1 if span.peer is None else span.peer
        words = [text(" ".join(span.label.split())), text(span.stage), text(span.place)]
        waited = round(span.waited, 4) if span.kind in NO_WORK else 0
        return [lane, row, stage, *times, *words, span.bytes, span.flops, peer, waited]

    by_lane: dict[tuple[int, int], list[TraceSpan]] = {}
    for span in trace.spans:
        by_lane.setdefault((span.rank, span.stream), []).append(span)
    lanes: list[dict[str, object]] = []
    records: list[list[object]] = []
    for lane in sorted(trace.lanes, key=lambda lane: lane.rank):
        spans = sorted(by_lane.get((lane.rank, lane.stream), []), key=lambda s: (s.start, s.stop))
        rows = stack(spans)
        records += [record(s, len(lanes), row) for s, row in zip(spans, rows, strict=True)]
        lanes.append({"rank": lane.rank, "name": lane.name, "rows": max(rows, default=0) + 1})
    data = {
        "duration": round(trace.duration, 4),
        "lanes": lanes,
        "stages": [[c.name, c.colour] for c in colours],
        "waits": any(s.kind == "wait" for s in trace.spans),
        "whole": [WHOLE.name, WHOLE.colour] if any(s.kind == "launch" for s in trace.spans) else None,
        "texts": list(texts),
        "spans": records,
    }
    page = files(__package__).joinpath("timeline.html").read_text(encoding="utf-8")
    # `<` would let a label of the trace end the script
    payload = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    for mark, words in (
        ("@TITLE@", _markup(trace.schedule)),
        ("@LENGTH@", show_time(trace.duration)),
        ("@ABOUT@", _markup(about(trace))),
        ("@DATA@", payload),  # last, so that nothing in it is replaced again
    ):
        page = page.replace(mark, words)
    return page


def _markup(text: str) -> str:
    """Text that is neither markup nor one of the page's own marks."""
    return escape(text).replace("@", "&#64;")
