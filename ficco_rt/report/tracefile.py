"""Reads and writes traces as files, in the JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open.

In the file a rank is a process, and a stream is a thread. Works of a streamed launch may run at the same time, which a
thread of that format cannot show: they get threads of their own next to the stream's. Arrows are flow events, from the
awaited span to the waiting one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, TypeAlias

from ..errors import UsageError
from ..files import records
from ..files.records import Count
from ..graph.kinds import SIDE_OF_SPAN
from ..trace.model import NO_WORK, Arrow, ClockKind, Lane, Launched, Trace, TraceSpan
from .drawing import stack

FORMAT = "ficco-trace"
VERSION = 3
_READ = (1, 2, 3)  # 1 had no launches with works inside, 2 no arrows and no facts of the run
_DIGITS = 6  # of a microsecond


def to_json(trace: Trace, run: object = None) -> str:
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
    lanes = tuple((lane.rank, lane.stream, lane.name, lane.engine) for lane in trace.lanes)
    facts = _Head(trace.schedule, trace.machine, trace.clock, trace.ranks, lanes, trace.within or records.LEFT_OUT)
    other = {"format": FORMAT, "version": VERSION, **records.plain(facts)} | ({} if run is None else {"run": run})
    lines = ",\n".join(json.dumps(event, ensure_ascii=False) for event in events)
    head = records.json_text(other)
    return f'{{"displayTimeUnit": "ns",\n"otherData": {head},\n"traceEvents": [\n{lines}\n]}}\n'


def from_json(text: str, path: str) -> Trace:
    """The trace that `to_json` wrote; UsageError says what is wrong with any other text."""
    return read(records.decoded(text, path), path)


def read(data: Any, path: str) -> Trace:
    """The trace of decoded JSON."""
    other = data.get("otherData") if isinstance(data, dict) else None
    if not isinstance(other, dict) or other.get("format") != FORMAT:
        raise UsageError(f"{path}: is not a trace of ours; `ficco-run --trace FILE` writes one")
    number = other.get("version")
    if type(number) is not int or number not in _READ:
        raise UsageError(
            f"{path}: is a trace of version {json.dumps(number)[:20]}; this ficco reads versions 1 to 3: let "
            "`ficco-run --trace FILE` write it again"
        )
    reader = records.Reader(path, others=True, way_out="; let `ficco-run --trace FILE` write it again", text=str)
    head: _Head = reader.read(_Head, other, "otherData")
    known = {(rank, stream) for rank, stream, *_ in head.lanes}
    if any(rank >= head.ranks for rank, _ in known):
        raise reader.fail("otherData.lanes", f"a lane's rank is not below {head.ranks}, the number of ranks")
    events = data.get("traceEvents")
    if not isinstance(events, list):
        raise reader.wanted(list, events, "traceEvents")
    spans: list[TraceSpan] = []
    arrows: list[Arrow] = []
    for number, event in enumerate(events):
        phase, at = event.get("ph") if isinstance(event, dict) else None, f"traceEvents[{number}]"
        if phase == "s":
            ends = reader.read(_Flow, event, at).args
            if (last := max(ends.before, ends.after)) >= len(spans):
                raise reader.fail(at, f"an arrow to event {last} of {len(spans)} that took time")
            arrows.append(Arrow(ends.before, ends.after))
        elif phase not in ("M", "f"):
            spans.append(_span(reader, event, at, known))
    lanes = tuple(Lane(stream=stream, rank=rank, name=name, engine=engine) for rank, stream, name, engine in head.lanes)
    return Trace(head.schedule, head.machine, head.clock, head.ranks, lanes, tuple(spans), tuple(arrows), head.within)


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
    args = {f.name: value for f in fields(_Args) if (value := getattr(span, f.name)) != f.default}
    if span.launched is not None:
        args["launched"] = asdict(span.launched)
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

_Time: TypeAlias = Annotated[float, records.AtLeast(0)]
_KINDS = (*SIDE_OF_SPAN, *sorted(NO_WORK))


@dataclass(frozen=True, slots=True)
class _Head:
    schedule: str
    machine: str
    clock: ClockKind
    ranks: Count
    lanes: tuple[tuple[Count, Count, str, str], ...]  # rank, stream, name, engine
    within: _Time = 0.0


@dataclass(frozen=True, slots=True)
class _Args:
    """Of an event that took time; what has a default is left out where there is nothing to say."""

    stage: str
    place: str
    stream: Count
    bytes: Count = 0
    flops: Count = 0
    launched: Launched | None = None
    peer: Count | None = None
    peer_bytes: Count = 0
    ops: tuple[Count, ...] = ()
    waited: _Time = 0.0
    within: _Time = 0.0


@dataclass(frozen=True, slots=True)
class _Event:
    cat: str
    name: str
    pid: Count
    ts: _Time
    dur: _Time
    args: _Args


@dataclass(frozen=True, slots=True)
class _Ends:
    before: Count
    after: Count


@dataclass(frozen=True, slots=True)
class _Flow:
    args: _Ends


def _span(reader: records.Reader, data: Any, at: str, known: set[tuple[int, int]]) -> TraceSpan:
    if not isinstance(data, dict) or data.get("ph") != "X":
        raise reader.fail(at, 'expected a complete event ("ph": "X")')
    event: _Event = reader.read(_Event, data, at)
    args = event.args
    if event.cat not in _KINDS:
        raise reader.fail(f"{at}.cat", f"{event.cat!r} is none of {', '.join(_KINDS)}")
    if (event.pid, args.stream) not in known:
        raise reader.fail(at, f"rank {event.pid} has no stream {args.stream} in the list of lanes")
    told = {name: getattr(args, name) for name in _Args.__slots__}
    stop = round(event.ts + event.dur, _DIGITS)
    return TraceSpan(rank=event.pid, kind=event.cat, label=event.name, start=event.ts, stop=stop, **told)
