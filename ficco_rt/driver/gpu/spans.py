"""Converts a recorded run into spans of a trace, and writes the message for a run that does not end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias

from ...device.build import timestamps
from ...device.ir import EventName
from ...geometry.region import Region
from ...graph.ir import Body
from ...graph.kinds import done, kind_of
from ...plan import ir
from ...trace.model import Launched, SpanKind, TraceSpan, base_name
from ...types import TYPES
from .inside import LaunchTimes

WAIT_SHOWN = 2.0  # microseconds: a shorter gap is the time of the commands themselves

HasPassed: TypeAlias = Callable[[EventName], bool]  # whether an event's record has been passed


def events_of(stream: ir.Stream) -> list[list[EventName]]:
    """The timestamps of each command of a stream, in a recorded run."""
    found, count = [], 0
    for command in stream.commands:
        number = timestamps(command)
        found.append([EventName("timestamp", stream.id, count + i) for i in range(number)])
        count += number
    return found


def spans_of(
    stream: ir.Stream,
    dtypes: Mapping[str, str],
    time: Callable[[EventName], float],
    raisers: Mapping[ir.Signal, str],
    launched: Mapping[tuple[int, int], Launched],
    inside: Mapping[tuple[int, int], LaunchTimes],
) -> Iterator[TraceSpan]:
    """What a stream did in a recorded run. `time` of an event is microseconds from the run's begin; `launched` is how
    the command at a place (stream, command) launches its first kernel, `inside` what its works did, if marks tell."""
    free = 0.0
    waited: ir.WaitEvent | ir.WaitFlag | None = None
    for position, (command, events) in enumerate(zip(stream.commands, events_of(stream), strict=True)):
        if isinstance(command, ir.WaitEvent | ir.WaitFlag):
            waited = command
        if not isinstance(command, ir.CopyAsync | ir.Launch | ir.CollectiveCall):
            continue
        times = [time(event) for event in events]
        if waited is not None and times[0] - free > WAIT_SHOWN:
            (signal,) = waited.waits
            label = f"waits for {signal} of {raisers.get(signal, 'nobody')}"
            yield TraceSpan(stream.rank, stream.id, "wait", label, command.stage, free, times[0], waited.origin.place)
        waited = None
        how, works = launched.get((stream.id, position)), inside.get((stream.id, position))
        spans = list(_timed(stream, command, times, dtypes, how))
        if works is None:
            yield from spans
        else:
            yield from (_whole(span, works) for span in spans)
            yield from _inside(stream, works, dtypes, how, raisers)
        free = times[-1]


def _timed(
    stream: ir.Stream,
    command: ir.CopyAsync | ir.Launch | ir.CollectiveCall,
    times: Sequence[float],
    dtypes: Mapping[str, str],
    how: Launched | None,
) -> Iterator[TraceSpan]:
    copies = isinstance(command, ir.CopyAsync)
    groups: list[Sequence[ir.Part]] = [(part,) for part in command.parts] if copies else [command.parts]
    for parts, (start, stop) in zip(groups, pairwise(times if copies else (times[0], times[-1])), strict=True):
        moved, flops, peer, far = _done(parts, stream.rank, dtypes)
        kind, label = _first(parts, stream.rank)
        yield TraceSpan(
            stream.rank, stream.id, kind, f"{_stages(command)}  {label}", command.stage, start, stop,
            parts[0].origin.place, bytes=moved, flops=flops, peer=peer, launched=how,
            ops=tuple(dict.fromkeys(part.op for part in parts)), peer_bytes=far,
        )  # fmt: skip


def _size(dtypes: Mapping[str, str], region: Region) -> int:
    return region.elements * TYPES[dtypes[region.tensor]].bytes


def _done(parts: Sequence[ir.Part], rank: int, dtypes: Mapping[str, str]) -> tuple[int, int, int | None, int]:
    """Bytes and operations, the one other rank that they copy to or from, and the bytes in other ranks' memory of those
    that are no copies."""
    bodies = [_body(part) for part in parts]
    found = [done(body, rank, partial(_size, dtypes)) for body in bodies]
    peers = {peer for body, (_, _, peer, _) in zip(bodies, found, strict=True) if kind_of(body).side == "moves"}
    peer = peers.pop() if len(peers) == 1 else None
    return sum(f[0] for f in found), sum(f[1] for f in found), peer, sum(f[3] for f in found)


def _body(part: ir.Part) -> Body:
    return part.body if isinstance(part, ir.Work) else part


def _whole(span: TraceSpan, inside: LaunchTimes) -> TraceSpan:
    """The span of a launch whose works have spans of their own."""
    ops = tuple(dict.fromkeys(op for times in inside.works for op in times.ops))
    how = span.launched and replace(span.launched, reached=inside.reached)
    return span._replace(kind="launch", ops=ops, waited=inside.waited, within=inside.within, launched=how)


def _inside(
    stream: ir.Stream,
    inside: LaunchTimes,
    dtypes: Mapping[str, str],
    how: Launched | None,
    raisers: Mapping[ir.Signal, str],
) -> Iterator[TraceSpan]:
    """The works of a launch, each behind what it waited for."""
    rank, number = stream.rank, stream.id
    for times in inside.works:
        stage, first = times.stage, times.works[0]
        signals = _awaited(times.works)
        if signals and (times.waited > WAIT_SHOWN or times.began - times.came > WAIT_SHOWN):
            label = f"waits for {_flags(signals, raisers)}"
            start, stop, place = times.came, times.began, first.origin.place
            yield TraceSpan(rank, number, "wait", label, stage, start, stop, place, ops=times.ops, waited=times.waited)
        kind, label = _first((first,), rank)
        more = f" in {len(times.works)} parts" if len(times.works) > 1 else ""
        moved, flops, peer, far = _done(times.works, rank, dtypes)
        yield TraceSpan(
            rank, number, kind, f"{stage}  {label}{more}", stage, times.began, times.ended, first.origin.place,
            bytes=moved, flops=flops, peer=peer, launched=how, ops=times.ops, peer_bytes=far,
        )  # fmt: skip


def _awaited(works: Sequence[ir.Work]) -> tuple[ir.Signal, ...]:
    """The flags of others that works wait for which are made as one."""
    own = {flag for work in works for flag in work.signals}
    return tuple(
        ir.Signal("flag", flag) for flag in dict.fromkeys(f for w in works for f in w.waits) if flag not in own
    )


def _flags(signals: Sequence[ir.Signal], raisers: Mapping[ir.Signal, str]) -> str:
    """`flag 3 of rank 1 stream dma (x.ficco:20)`, or the first of several."""
    first, *more = signals
    others = f" and {len(more)} more flags" if len(more) > 1 else " and 1 more flag" if more else ""
    return f"{first} of {raisers.get(first, 'nobody')}{others}"


def _stages(command: ir.CopyAsync | ir.Launch | ir.CollectiveCall) -> str:
    """Its stage, or the names of all that are fused in it."""
    if isinstance(command, ir.Launch) and command.joined:
        return ", ".join(dict.fromkeys(map(base_name, command.stages)))
    return command.stage


def _first(parts: Sequence[ir.Part], rank: int | None) -> tuple[SpanKind, str]:
    """The kind of the first, and its label with how many more there are."""
    body = _body(parts[0])
    more = f" and {len(parts) - 1} more works" if len(parts) > 1 else ""
    return kind_of(body).span, kind_of(body).label(body, rank) + more


# ---------------------------------------------------------------- a run that does not end


def words(command: ir.Command) -> str:
    """A command for people, with its line."""
    match command:
        case ir.CopyAsync(transfers=transfers):
            t = transfers[0]
            more = f" and {len(transfers) - 1} more" if len(transfers) > 1 else ""
            text = f"copy of stage '{command.stage}' ({t.src.tensor}@{t.src.rank} → {t.dst.tensor}@{t.dst.rank}{more})"
        case ir.Launch():
            text = f"launch of stage '{_stages(command)}' ({_first(command.works, None)[1]})"
        case ir.CollectiveCall():
            text = f"{command.kind} of stage '{command.stage}'"
        case ir.WaitEvent() | ir.WaitFlag():
            text = f"wait for {command.waits[0]}"
        case ir.Record() | ir.SignalFlag():
            text = f"signal of {command.signals[0]}"
    return f"{text} ({command.origin.place})"


def stuck(plan: ir.Plan, devices: Mapping[int, str], passed: HasPassed, *, traced: bool) -> list[str]:
    """A line for each stream that has not finished: how far it got. `devices`: for people, by the streams of this
    process."""
    raisers = raisers_of(plan)
    lines = []
    for stream in plan.streams:
        line = _stuck(stream, devices[stream.id], passed, raisers, traced) if stream.id in devices else None
        if line is not None:
            lines.append(line)
    return lines


def _stuck(
    stream: ir.Stream, device: str, passed: HasPassed, raisers: Mapping[ir.Signal, str], traced: bool
) -> str | None:
    last: ir.Command | None = None
    pending: ir.Command | None = None
    for command, events in zip(stream.commands, events_of(stream), strict=True):
        if _over(stream, command, events, passed, traced):
            last, pending = command, None
        elif pending is None:
            pending = command
    if pending is None:
        return None
    finished = f"finished {words(last)}" if last is not None else "finished nothing that can be told"
    text = f"rank {stream.rank} stream {stream.name} ({device}): {finished}; pending is {words(pending)}"
    givers = sorted({raisers.get(signal, "nothing") for signal in pending.waits})
    if isinstance(pending, ir.WaitEvent | ir.WaitFlag):
        text += f", which {givers[0]} gives"
    elif pending.waits:
        flags = sorted(signal.number for signal in pending.waits)
        text += f", whose works wait for flags {', '.join(map(str, flags[:8]))} of {', '.join(givers)}"
    return text


def _over(stream: ir.Stream, command: ir.Command, events: Sequence[EventName], passed: HasPassed, traced: bool) -> bool:
    """Whether a command has ended, as far as anything tells."""
    if traced:
        return passed(events[-1])
    if isinstance(command, ir.Record):
        return passed(EventName("plan", command.event))
    return passed(EventName("tail", stream.id))


def raisers_of(plan: ir.Plan) -> dict[ir.Signal, str]:
    """The place that records each event or raises each flag: `rank 1 stream dma (x.ficco:20)`."""
    found: dict[ir.Signal, str] = {}
    for stream in plan.streams:
        for command in stream.commands:
            origins = {ir.Signal("flag", f): w.origin for w in _works(command) for f in w.signals}
            for signal in command.signals:
                place = origins.get(signal, command.origin).place
                found[signal] = f"rank {stream.rank} stream {stream.name} ({place})"
    return found


def _works(command: ir.Command) -> Sequence[ir.Work]:
    return command.works if isinstance(command, ir.Launch) else ()
