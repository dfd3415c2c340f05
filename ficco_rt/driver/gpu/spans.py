"""A run's marks as spans of a trace, and the words for a run that does not end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...errors import Span as Place
from ...graph.ir import ITEM_BYTES, Copy, Gemm, KernelCall, Reduce
from ...plan.ir import (
    CollectiveCall,
    Command,
    CopyAsync,
    Launch,
    Record,
    SignalFlag,
    WaitEvent,
    WaitFlag,
    Work,
)
from ...region import Region, called, peer_of, summary, way
from ...trace import Kind, Span, base_name
from .streams import Bound, GpuStream

WAIT_SHOWN = 2.0  # microseconds: a shorter gap is the time of the commands themselves


def place_of(place: Place) -> str:
    return f"{place.path}:{place.line}"


def spans_of(
    stream: GpuStream, dtypes: Mapping[str, str], time: Callable[[Any], float], raisers: Mapping[tuple[str, int], str]
) -> Iterator[Span]:
    """What a stream did in a marked run; `time` of a mark is microseconds from the run's start."""
    free = 0.0
    waited: Command | None = None
    for bound in stream.issued:
        command = bound.command
        if isinstance(command, WaitEvent | WaitFlag):
            waited = command
        if not bound.pieces or not isinstance(command, CopyAsync | Launch | CollectiveCall):
            continue
        times = [time(mark) for mark in bound.marks]
        if waited is not None and times[0] - free > WAIT_SHOWN:
            kind, number = _signal(waited)
            label = f"waits for {kind} {number} of {raisers.get((kind, number), 'nobody')}"
            rank, place = stream.plan.rank, place_of(waited.origin)
            yield Span(rank, stream.plan.id, "wait", label, command.stage, free, times[0], place)
        waited = None
        yield from _timed(bound, command, times, dtypes)
        free = times[-1]


def _timed(
    bound: Bound, command: CopyAsync | Launch | CollectiveCall, times: list[float], dtypes: Mapping[str, str]
) -> Iterator[Span]:
    stream = bound.stream
    rank, number, stage = stream.plan.rank, stream.plan.id, command.stage

    def size(region: Region) -> int:
        return region.elements * ITEM_BYTES[dtypes[region.tensor]]

    if isinstance(command, CopyAsync):
        for t, start, stop in zip(command.transfers, times, times[1:], strict=False):
            label, peer = f"{stage}  {way(t.dst, t.src, rank)}", peer_of(t.dst, t.src, rank)
            place = place_of(t.origin)
            yield Span(rank, number, "copy", label, stage, start, stop, place, bytes=size(t.src), peer=peer)
        return
    start, stop, place = times[0], times[-1], place_of(command.origin)
    if isinstance(command, CollectiveCall):
        label = f"{stage}  {command.kind} {command.src.tensor} → {command.dst.tensor}"
        moved = size(command.dst if command.kind == "all_gather" else command.src)
        yield Span(rank, number, "collective", label, stage, start, stop, place, bytes=moved)
        return
    moved = sum(
        size(r)
        for work in command.works
        for r in (work.reads if isinstance(work.body, Copy) else (*work.reads, *work.writes))
    )
    flops = sum(2 * g.out.elements * _depth(g) for w in command.works if isinstance(g := w.body, Gemm))
    kind, label = _launch(command, rank)
    label, how = f"{_stages(command)}  {label}", bound.launched
    peers = {peer_of(c.dst, c.src, rank) for w in command.works if isinstance(c := w.body, Copy)}
    peer = peers.pop() if len(peers) == 1 else None
    yield Span(rank, number, kind, label, stage, start, stop, place, bytes=moved, flops=flops, peer=peer, launched=how)


def _depth(gemm: Gemm) -> int:
    return gemm.left.shape[0] if gemm.left_transposed else gemm.left.shape[1]


def _stages(command: Launch) -> str:
    """Its stage, or the names of all that joined it."""
    return ", ".join(dict.fromkeys(map(base_name, command.stages))) if command.joined else command.stage


def _launch(command: Launch, rank: int | None = None) -> tuple[Kind, str]:
    kind, label = _work(command.works[0], rank)
    return kind, label if len(command.works) == 1 else f"{label} and {len(command.works) - 1} more works"


def _work(work: Work, rank: int | None) -> tuple[Kind, str]:
    match work.body:
        case Gemm(out=out):
            return "gemm", f"{out.tensor if rank is None else called(out, rank)} {summary(out)}"
        case Reduce(out=out):
            return "reduce", f"{out.tensor} {summary(out)}"
        case Copy(dst=dst, src=src):
            return "copy", way(dst, src, rank)
        case KernelCall(kernel=kernel):
            return "kernel", kernel


def _signal(command: Command) -> tuple[str, int]:
    match command:
        case WaitEvent(event=number) | Record(event=number):
            return "event", number
        case WaitFlag(flag=number) | SignalFlag(flag=number):
            return "flag", number
        case _:
            return "", -1


# ---------------------------------------------------------------- a run that does not end


def words(command: Command) -> str:
    """A command for people, with its line."""
    match command:
        case CopyAsync(transfers=transfers):
            t = transfers[0]
            more = f" and {len(transfers) - 1} more" if len(transfers) > 1 else ""
            text = f"copy of stage '{command.stage}' ({t.src.tensor}@{t.src.rank} → {t.dst.tensor}@{t.dst.rank}{more})"
        case Launch():
            text = f"launch of stage '{_stages(command)}' ({_launch(command)[1]})"
        case CollectiveCall():
            text = f"{command.kind} of stage '{command.stage}'"
        case WaitEvent() | WaitFlag():
            text = "wait for {} {}".format(*_signal(command))
        case Record() | SignalFlag():
            text = "signal of {} {}".format(*_signal(command))
    return f"{text} ({place_of(command.origin)})"


def stuck(
    stream: GpuStream, done: Callable[[Bound], bool | None], raisers: Mapping[tuple[str, int], str]
) -> str | None:
    """How far a stream got; None if it is through. `done` of a command: None if nothing tells."""
    last: Bound | None = None
    pending: Bound | None = None
    for bound in stream.issued:
        known = done(bound)
        if known:
            last, pending = bound, None
        elif pending is None:
            pending = bound
    if pending is None:
        return None
    finished = f"finished {words(last.command)}" if last is not None else "finished nothing that can be told"
    text = f"{stream} ({stream.device}): {finished}; pending is {words(pending.command)}"
    if isinstance(pending.command, WaitEvent | WaitFlag):
        text += f", which {raisers.get(_signal(pending.command), 'nothing')} gives"
    elif isinstance(pending.command, Launch):
        flags = sorted({f for w in pending.command.works for f in w.waits})
        givers = sorted({raisers.get(("flag", f), "nothing") for f in flags})
        if flags:
            text += f", whose works wait for flags {', '.join(map(str, flags[:8]))} of {', '.join(givers)}"
    return text


def raisers_of(streams: Sequence[GpuStream]) -> dict[tuple[str, int], str]:
    """Who gives each event and flag: `rank 1 stream dma (x.ficco:20)`."""
    found: dict[tuple[str, int], str] = {}
    for stream in streams:
        for command in stream.plan.commands:
            if isinstance(command, Record | SignalFlag):
                found[_signal(command)] = f"{stream} ({place_of(command.origin)})"
            elif isinstance(command, Launch):
                for work in command.works:
                    for flag in work.signals:
                        found["flag", flag] = f"{stream} ({place_of(work.origin)})"
    return found
