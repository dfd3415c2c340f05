"""Which span of a trace waited for which: the events and flags of a plan, laid over the spans of one of its runs.

Order within a stream needs no arrow: it is the order of the lane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from .plan.ir import Command, Launch, Plan, Signal, Stream
from .trace import Arrow, Trace

Key: TypeAlias = tuple[int, int]  # of what was done: its stream, and its op in the plan
Raiser: TypeAlias = tuple[tuple[Key, ...], tuple[Signal, ...]]  # what a signal tells of: works, or signals before it


def arrows(plan: Plan, trace: Trace) -> tuple[Arrow, ...]:
    """The arrows of a run of the plan, by place of the waiting span. A wait or a signal whose work the trace does not
    show gives none."""
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
