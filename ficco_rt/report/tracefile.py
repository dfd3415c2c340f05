"""Traces as files: the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open, read back to a `Trace`.

A process is a rank, a thread is a stream. Works of a streamed launch may run at the same time, which a thread
of that format cannot show: they get threads of their own next to the stream's. Arrows are flow events, from what was
waited for to what waited.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast, get_args

from ..errors import UsageError
from ..graph.kinds import SIDE_OF_SPAN
from ..trace.model import NO_WORK, Arrow, ClockKind, Lane, Launched, Trace, TraceSpan
from .drawing import stack
from .sources import plain_json

FORMAT = "ficco-trace"
VERSION = 3
_READ = (1, 2, 3)  # 1 had no launches with works inside, 2 no arrows and no facts of the run
_DIGITS = 6  # of a microsecond


def to_json(trace: Trace, run: Mapping[str, object] | None = None) -> str:
    """The trace as text, an event a line. `run`: what `ficco-run --json` says of the run, for `ficco report`."""
    trace = kept(trace)
    events: list[dict[str, object]] = []
    for rank in range(trace.ranks):
        events.append(_meta("process_name", rank, 0, name=f"rank {rank}"))
        events.append(_meta("process_sort_index", rank, 0, sort_index=rank))
    of_lane: dict[tuple[int, int], list[int]] = {}
    for number, span in enumerate(trace.spans):
        of_lane.setdefault((span.rank, span.stream), []).append(number)
    thread_of = [0] * len(trace.spans)
    free = max((lane.stream for lane in trace.lanes), default=0) + 1  # thread ids that no stream has
    for order, lane in enumerate(trace.lanes):
        numbers = of_lane.get((lane.rank, lane.stream), [])
        rows = stack([trace.spans[n] for n in numbers])
        threads = [lane.stream, *range(free, free + max(rows, default=0))]
        free += len(threads) - 1
        for row, thread in enumerate(threads):
            name = lane.name if row == 0 else f"{lane.name} ({row + 1})"
            events.append(_meta("thread_name", lane.rank, thread, name=name))
            events.append(_meta("thread_sort_index", lane.rank, thread, sort_index=order * 64 + min(row, 63)))
        for number, row in zip(numbers, rows, strict=True):
            thread_of[number] = threads[row]
    events += [_event(span, thread) for span, thread in zip(trace.spans, thread_of, strict=True)]
    for number, arrow in enumerate(trace.arrows):
        events += _flow(number, arrow, trace, thread_of)
    other = {
        "format": FORMAT,
        "version": VERSION,
        "schedule": trace.schedule,
        "machine": trace.machine,
        "clock": trace.clock,
        "ranks": trace.ranks,
        **({"within": trace.within} if trace.within else {}),
        "lanes": [[lane.rank, lane.stream, lane.name, lane.engine] for lane in trace.lanes],
        **({} if run is None else {"run": run}),
    }
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in events)
    head = json.dumps(plain_json(other), ensure_ascii=False, allow_nan=False)
    return f'{{"displayTimeUnit": "ns",\n"otherData": {head},\n"traceEvents": [\n{lines}\n]}}\n'


def from_json(text: str, path: str) -> Trace:
    """The trace that `to_json` wrote; UsageError says what is wrong with any other text."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not JSON: {error}") from error
    other = data.get("otherData") if isinstance(data, dict) else None
    if not isinstance(other, dict) or other.get("format") != FORMAT:
        raise UsageError(f"{path}: is not a trace of ours; `ficco-run --trace FILE` writes one")
    number = other.get("version")
    if type(number) is not int or number not in _READ:
        raise UsageError(
            f"{path}: is a trace of version {json.dumps(number)[:20]}; this ficco reads versions 1 to 3: let "
            "`ficco-run --trace FILE` write it again"
        )
    read = _TraceReader(path)
    ranks = read.field(other, "ranks", _count)
    lanes = tuple(_lane(read, entry, ranks) for entry in read.field(other, "lanes", _list))
    known = {(lane.rank, lane.stream) for lane in lanes}
    spans: list[TraceSpan] = []
    arrows: list[Arrow] = []
    for number, event in enumerate(read.field(data, "traceEvents", _list)):
        phase = event.get("ph") if isinstance(event, dict) else None
        place = _TraceReader(f"{path}: event {number}")
        if phase == "s":
            arrows.append(_arrow(place, event, len(spans)))
        elif phase not in ("M", "f"):
            spans.append(_span(place, event, known))
    return Trace(
        schedule=read.field(other, "schedule", _text),
        machine=read.field(other, "machine", _text),
        clock=cast(ClockKind, read.field(other, "clock", _one_of(get_args(ClockKind)))),
        ranks=ranks,
        lanes=lanes,
        spans=tuple(spans),
        arrows=tuple(arrows),
        within=read.field(other, "within", _number) if "within" in other else 0.0,
    )


def kept(trace: Trace) -> Trace:
    """The trace as a file keeps it: times to the picosecond."""

    def rounded(s: TraceSpan) -> TraceSpan:
        start, stop, waited, within = (round(time, _DIGITS) for time in (s.start, s.stop, s.waited, s.within))
        return s._replace(start=start, stop=stop, waited=waited, within=within)

    return replace(trace, spans=tuple(map(rounded, trace.spans)), within=round(trace.within, _DIGITS))


# ---------------------------------------------------------------- writing


def _meta(what: str, rank: int, thread: int, **args: object) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": args}


def _event(span: TraceSpan, thread: int) -> dict[str, object]:
    args: dict[str, object] = {"stage": span.stage, "place": span.place, "stream": span.stream}
    for name in ("bytes", "flops", "launched", "peer", "peer_bytes", "ops", "waited", "within"):
        value = getattr(span, name)
        if value or (name == "peer" and value is not None):
            args[name] = asdict(value) if name == "launched" else value
    times = {"ts": span.start, "dur": round(span.stop - span.start, _DIGITS)}
    return {"ph": "X", "name": span.label, "cat": span.kind, "pid": span.rank, "tid": thread, **times, "args": args}


def _flow(number: int, arrow: Arrow, trace: Trace, thread_of: Sequence[int]) -> Iterator[dict[str, object]]:
    """The two ends of an arrow. A viewer looks for the event that runs at an end's time, and draws from its stop to the
    start of the other."""
    before, after = trace.spans[arrow.before], trace.spans[arrow.after]
    same = {"name": "waited for", "cat": "wait", "id": number}
    thread = {"pid": before.rank, "tid": thread_of[arrow.before]}
    yield {"ph": "s", **same, **thread, "ts": before.start, "args": arrow._asdict()}
    # an end before its beginning is dropped: a launch that waits inside began before what it waits for
    at = min(max(before.start, after.start), after.stop)
    yield {"ph": "f", "bp": "e", **same, "pid": after.rank, "tid": thread_of[arrow.after], "ts": at}


# ---------------------------------------------------------------- reading


class _TraceReader:
    """Takes fields out of decoded JSON; a wrong one is a UsageError that names file, event and field."""

    def __init__(self, place: str) -> None:
        self.place = place

    def field(self, record: object, name: str, kind: Callable[[object], Any]) -> Any:
        value = record.get(name) if isinstance(record, dict) else None
        result = kind(value)
        if result is None:
            raise UsageError(f"{self.place}: '{name}' is missing or not {kind.__doc__}")
        return result


def _text(value: object) -> str | None:
    """text"""
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    """a time"""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(cast(float, value)) if plain and 0 <= cast(float, value) < 1e15 else None


def _count(value: object) -> int | None:
    """a count"""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


def _list(value: object) -> list[Any] | None:
    """a list"""
    return value if isinstance(value, list) else None


def _counts(value: object) -> list[int] | None:
    """a list of counts"""
    return value if isinstance(value, list) and all(_count(n) is not None for n in value) else None


def _record(value: object) -> dict[str, Any] | None:
    """an object"""
    return value if isinstance(value, dict) else None


def _one_of(words: tuple[str, ...]) -> Callable[[object], str | None]:
    def kind(value: object) -> str | None:
        return value if isinstance(value, str) and value in words else None

    kind.__doc__ = "one of " + ", ".join(words)
    return kind


_KIND = _one_of((*SIDE_OF_SPAN, *sorted(NO_WORK)))


def _lane(read: _TraceReader, entry: object, ranks: int) -> Lane:
    if isinstance(entry, list) and len(entry) == 4:
        rank, stream, name, engine = entry
        good = _count(rank) is not None and _count(stream) is not None and rank < ranks
        if good and isinstance(name, str) and isinstance(engine, str):
            return Lane(stream=stream, rank=rank, name=name, engine=engine)
    raise UsageError(f"{read.place}: a lane is [rank, stream, name, engine], not {json.dumps(entry)[:60]}")


def _launched(read: _TraceReader, entry: dict[str, Any]) -> Launched:
    def maybe(name: str) -> int | None:
        return None if entry.get(name) is None else read.field(entry, name, _count)

    kernel, smem = read.field(entry, "kernel", _text), read.field(entry, "smem", _count)
    return Launched(kernel, smem, maybe("residency"), maybe("blocks"), maybe("reached"))


def _arrow(read: _TraceReader, event: dict[str, Any], spans: int) -> Arrow:
    args = read.field(event, "args", _record)
    arrow = Arrow(read.field(args, "before", _count), read.field(args, "after", _count))
    if max(arrow) >= spans:
        raise UsageError(f"{read.place}: an arrow to event {max(arrow)} of {spans} that took time")
    return arrow


# Of a span: what an event leaves out where there is nothing to say.
_LEFT_OUT: dict[str, Callable[[object], Any]] = {
    **dict.fromkeys(("bytes", "flops", "peer", "peer_bytes"), _count),
    **dict.fromkeys(("waited", "within"), _number),
}


def _span(read: _TraceReader, event: object, known: set[tuple[int, int]]) -> TraceSpan:
    if not isinstance(event, dict) or event.get("ph") != "X":
        raise UsageError(f'{read.place}: expected a complete event ("ph": "X")')
    args = read.field(event, "args", _record)
    rank, stream = read.field(event, "pid", _count), read.field(args, "stream", _count)
    if (rank, stream) not in known:
        raise UsageError(f"{read.place}: rank {rank} has no stream {stream} in the list of lanes")
    start, length = read.field(event, "ts", _number), read.field(event, "dur", _number)
    return TraceSpan(
        rank=rank,
        stream=stream,
        kind=read.field(event, "cat", _KIND),
        label=read.field(event, "name", _text),
        stage=read.field(args, "stage", _text),
        start=start,
        stop=round(start + length, _DIGITS),
        place=read.field(args, "place", _text),
        launched=_launched(read, read.field(args, "launched", _record)) if "launched" in args else None,
        ops=tuple(read.field(args, "ops", _counts)) if "ops" in args else (),
        **{name: read.field(args, name, kind) for name, kind in _LEFT_OUT.items() if name in args},
    )
