"""Finds which span of a trace waited for which, from the events and flags of the plan. Also finds the critical path:
the chain of spans that set the run's time.

The order within a stream gets no arrow, because the lane of the stream shows it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ..plan.ir import Command, Launch, Plan, Signal, Stream
from ..trace.model import NO_WORK, Arrow, Trace, base_name

Key: TypeAlias = tuple[int, int]  # of what was done: its stream, and its op in the plan
Raiser: TypeAlias = tuple[tuple[Key, ...], tuple[Signal, ...]]  # what a signal tells of: works, or signals before it


def arrows(plan: Plan, trace: Trace) -> tuple[Arrow, ...]:
    """The arrows of a run of the plan, by place of the waiting span. Waits and signals whose work is not in the trace
    get none."""
    raisers: dict[Signal, Raiser] = {}
    waits: list[tuple[Signal, Key]] = []
    for stream in plan.streams:
        _follow(stream, raisers, waits)
    spans, of_key = trace.spans, _spans_by_key(trace)
    found: dict[Arrow, None] = {}
    for signal, key in waits:
        after = min(of_key.get(key, ()), key=lambda n: spans[n].start, default=None)
        done = [n for before in _sources(signal, raisers) for n in of_key.get(before, ())]
        before = max(done, key=lambda n: spans[n].stop, default=None)
        if before is not None and after is not None and before != after:
            found[Arrow(before, after)] = None
    return tuple(sorted(found, key=lambda arrow: (arrow.after, arrow.before)))


def _follow(stream: Stream, raisers: dict[Signal, Raiser], waits: list[tuple[Signal, Key]]) -> None:
    """Add what a stream raises, and what its works wait for."""
    last: Command | None = None  # that did something
    pending: list[Signal] = []  # waited for since then
    for command in stream.commands:
        if not command.parts:
            pending += command.waits
            for signal in command.signals:
                raisers[signal] = _keys(stream, last), tuple(pending)
            continue
        last = command
        waits += [(signal, (stream.id, command.parts[0].op)) for signal in pending]
        pending.clear()
        for work in command.works if isinstance(command, Launch) else ():
            key = stream.id, work.op
            waits += [(Signal("flag", flag), key) for flag in work.waits]
            raisers |= {Signal("flag", flag): ((key,), ()) for flag in work.signals}


def _keys(stream: Stream, command: Command | None) -> tuple[Key, ...]:
    """What ends last of a command: it may be any of copies that go out together, or of a launch's works."""
    if command is None:
        return ()
    return tuple(dict.fromkeys((stream.id, part.op) for part in command.parts))


def _sources(signal: Signal, raisers: Mapping[Signal, Raiser]) -> Iterator[Key]:
    """The works that a signal tells of, those that its stream had waited for among them."""
    ahead, seen = [signal], {signal}
    while ahead:
        keys, before = raisers.get(ahead.pop(), ((), ()))
        yield from keys
        ahead += [other for other in before if other not in seen]
        seen.update(before)


def _spans_by_key(trace: Trace) -> Mapping[Key, list[int]]:
    """The spans of each op on each stream: its own, or else that of the launch that it is a work of."""
    own: dict[Key, list[int]] = {}
    whole: dict[Key, list[int]] = {}
    for number, span in enumerate(trace.spans):
        if span.kind != "wait":
            found = whole if span.kind == "launch" else own
            for op in span.ops:
                found.setdefault((span.stream, op), []).append(number)
    return {**whole, **own}


# ---------------------------------------------------------------- the critical path

_SAME = 1e-3  # microseconds: a work that begins so much before another one ends may still have waited for it


def critical_path(trace: Trace) -> tuple[int, ...]:
    """The critical path, as places of spans in the trace, the first one first.

    The last span of the run is on the path. The predecessor of a span is a span that it needs, or one that ended before
    it on its stream: of these the one that ended last. If the span waited after the previous span of its stream had
    ended, the predecessor is one that it needs, even if that one ended earlier, because its signal came later. Only
    works are on the path: no waits, and no whole launches whose works are in the trace.
    """
    spans = trace.spans
    works = [n for n, span in enumerate(spans) if span.kind not in NO_WORK]
    if not works:
        return ()
    waits: dict[int, list[float]] = {}  # by stream: when they ended
    for span in spans:
        if span.kind == "wait":
            waits.setdefault(span.stream, []).append(span.stop)
    for ends in waits.values():
        ends.sort()
    lanes: dict[int, list[int]] = {}
    for number in sorted(works, key=lambda n: (spans[n].stop, n)):
        lanes.setdefault(spans[number].stream, []).append(number)
    stops = {stream: [spans[n].stop for n in numbers] for stream, numbers in lanes.items()}
    before: dict[int, list[int]] = {}
    for arrow in trace.arrows:
        if spans[arrow.before].kind not in NO_WORK:
            before.setdefault(arrow.after, []).append(arrow.before)
    found = [max(works, key=lambda n: (spans[n].stop, -n))]
    seen = set(found)
    while True:
        span = spans[found[-1]]
        ended = bisect_right(stops[span.stream], span.start + _SAME)
        own = next((n for n in reversed(lanes[span.stream][:ended]) if n not in seen), None)
        ahead = [n for n in before.get(found[-1], ()) if n not in seen]
        if own is not None and not (ahead and _waited(waits.get(span.stream, ()), spans[own].stop, span.start)):
            ahead.append(own)
        if not ahead:
            return tuple(reversed(found))
        found.append(max(ahead, key=lambda n: (spans[n].stop, -n)))
        seen.add(found[-1])


def _waited(ends: Sequence[float], after: float, before: float) -> bool:
    """Whether a wait ended between two times."""
    last = bisect_right(ends, before + _SAME)
    return last > 0 and ends[last - 1] > after + _SAME


def path_times(trace: Trace) -> dict[str, float]:
    """Microseconds of the critical path by stage; each span counts from the end of the span before it. Gaps between
    spans make up the rest of the run's duration."""
    times: dict[str, float] = {}
    until = 0.0
    for span in (trace.spans[number] for number in critical_path(trace)):
        name = base_name(span.stage)
        times[name] = times.get(name, 0.0) + max(0.0, span.stop - max(span.start, until))
        until = max(until, span.stop)
    return times
