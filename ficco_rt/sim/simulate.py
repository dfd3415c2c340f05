"""The virtual clock: when everything of a run would happen on a machine, from the device plan that it would be given.

A discrete-event walk over the device plan's streams, priced by `machine.cost`. No data is touched.

What it models: a stream does one thing at a time; a signal from another rank arrives `links.signal_time` later; a
launch costs `launch_time`, a copy its fixed cost; the works of a kernel that waits run one after another, in their
order, each piece of K that is added in registers behind its own flags; K that is split fills the last wave; copies of
copy engines that meet at a port share it (`links`). What it does not: any other contention. Streams never slow each
other on a memory or the multiprocessors, nor do the fixed costs of two copy queues' copies, nor what multiprocessors
load and store on other ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import prod

from ..device.build import device_plan, layout_of
from ..device.features import usual
from ..device.ir import (
    Action,
    AwaitEvent,
    ChangeWords,
    CopyMemory,
    DeviceLaunch,
    DevicePlan,
    EventName,
    LaunchKernel,
    Move,
    Placement,
    RecordEvent,
    StreamName,
)
from ..errors import Span
from ..graph.ir import Copy, Gemm, KernelCall, Reduce
from ..machine import cost
from ..machine.model import Machine
from ..plan.ir import CollectiveCall, Plan, Work
from ..region import Region, called, peer_of, summary, way
from ..trace import Lane, Launched, SpanKind, Trace, TraceSpan
from ..types import TYPES
from .links import Flows


def simulate(plan: Plan, machine: Machine) -> Trace:
    """What would happen when, with a device for each rank. The plan must have passed its check: whatever waits is
    signalled."""
    clock = _VirtualClock(plan, machine)
    clock.run()
    return Trace(
        schedule=plan.schedule,
        machine=machine.name,
        clock="virtual",
        ranks=plan.ranks,
        lanes=tuple(Lane(s.id, s.rank, s.name, s.engine) for s in plan.streams),
        spans=tuple(sorted(clock.spans, key=lambda s: (s.stream, s.start, s.stop))),
    )


@dataclass(frozen=True, slots=True)
class _SignalKey:
    """A word by its number, or a record of an event: a wait is for the last one that was issued before it."""

    of: EventName | int
    record: int = 0


@dataclass(frozen=True, slots=True)
class _Raised:
    """When a signal was raised, on which rank; `label` says for people who gave what."""

    time: float
    rank: int
    label: str


@dataclass(frozen=True, slots=True)
class _SimStream:
    """A stream with its actions; of those that record or await an event, which record. Side streams have no lane in
    the trace."""

    name: StreamName
    rank: int
    label: str
    actions: tuple[Action, ...]
    records: tuple[int, ...]

    def event(self, position: int, event: EventName) -> _SignalKey:
        return _SignalKey(event, self.records[position])

    @property
    def shown(self) -> bool:
        return self.name.kind == "plan"

    def stage(self, position: int, launches: Sequence[DeviceLaunch]) -> str:
        """Of the next action that does something: it is what waits."""
        for action in self.actions[position:]:
            if isinstance(action, LaunchKernel):
                return launches[action.launch].stages[0]
            if isinstance(action, CopyMemory) and action.moves:
                return action.moves[0].stage
        return ""


class _VirtualClock:
    def __init__(self, plan: Plan, machine: Machine) -> None:
        layout = layout_of(plan, machine.device, Placement(tuple(range(plan.ranks))), usual(machine.device.arch))
        made = device_plan(layout, "streams")
        self.machine = machine
        self.launches, self.words = made.launches, made.words
        self.flags = {word.flag: i for i, word in enumerate(made.words) if word.flag is not None}
        self.calls = {command.op for _, command in plan.commands() if isinstance(command, CollectiveCall)}
        self.dtypes: dict[str, str] = {t.name: t.dtype for t in plan.tensors}
        self.spans: list[TraceSpan] = []
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.now = 0.0
        self.counter = count()  # events of one time happen as they were made
        self.raised: dict[_SignalKey, _Raised] = {}
        self.waiting: dict[_SignalKey, list[Callable[[], None]]] = {}
        self.heard: dict[StreamName, str] = {}  # what a side stream waited for last
        self.flows = Flows(machine, self.at)
        for stream in _streams(made):
            self.later(stream, 0, 0.0)

    def at(self, time: float, action: Callable[[], None]) -> None:
        heappush(self.events, (time, next(self.counter), action))

    def run(self) -> None:
        while self.events:
            self.now, _, action = heappop(self.events)
            action()

    # ---- signals

    def seen(self, signal: _SignalKey, rank: int) -> float | None:
        """When `rank` sees the signal up; None while nothing has raised it."""
        raised = self.raised.get(signal)
        if raised is None:
            return None
        return raised.time if raised.rank == rank else raised.time + self.machine.between(raised.rank, rank).signal_time

    def lift(self, signal: _SignalKey, time: float, by: _SimStream) -> None:
        label = f"{self._text(signal)} of rank {by.rank} stream {by.label}"
        if by.name.kind == "wait":  # what a side stream has waited for is what its event tells
            label = self.heard[by.name]
        self.raised[signal] = _Raised(time, by.rank, label)
        for action in self.waiting.pop(signal, ()):
            action()

    def _text(self, signal: _SignalKey) -> str:
        return str(signal.of) if isinstance(signal.of, EventName) else self.words[signal.of].purpose

    def wait(
        self,
        stream: _SimStream,
        stage: str,
        place: Span | None,
        signals: Sequence[_SignalKey],
        start: float,
        stop: float,
    ) -> None:
        """Record a wait of a stage that ended when the last of the signals was seen."""
        last = max((self.raised[signal] for signal in signals), key=lambda raised: raised.time)
        self.heard[stream.name] = last.label
        if stream.shown and stop > start:
            where = "" if place is None else place.place
            label = f"waits for {last.label}"
            self.spans.append(TraceSpan(stream.rank, stream.name.number, "wait", label, stage, start, stop, where))

    # ---- a stream, from action to action; `now` is when it is free

    def proceed(self, stream: _SimStream, position: int, now: float) -> None:
        while position < len(stream.actions):
            action = stream.actions[position]
            match action:
                case RecordEvent(event=event):
                    self.lift(stream.event(position, event), now, stream)
                case AwaitEvent(event=event):
                    if not self._passed(stream, position, 0, [stream.event(position, event)], now):
                        return
                case ChangeWords():
                    self._words(stream, position, 0, now)
                    return
                case CopyMemory():
                    for word in action.words:
                        self.lift(_SignalKey(word), now, stream)
                    self._copy(stream, action.moves, 0, position, now)
                    return
                case LaunchKernel(launch=number):
                    launch = self.launches[number]
                    begin = self._spinning if launch.spins else self._launch
                    begin(stream, launch, position, now)
                    return
                case _:
                    pass
            position += 1

    def _passed(self, stream: _SimStream, position: int, index: int, signals: list[_SignalKey], now: float) -> bool:
        """Whether the stream need not wait. Else it goes on with the action's next part when it sees the signal."""
        (signal,) = signals
        seen = self.seen(signal, stream.rank)
        if seen is None:
            again = self._words if isinstance(stream.actions[position], ChangeWords) else None
            resume = (
                (lambda: again(stream, position, index, now))
                if again is not None
                else (lambda: self.proceed(stream, position, now))
            )
            self.waiting.setdefault(signal, []).append(resume)
            return False
        stage = stream.stage(position, self.launches)
        self.wait(stream, stage, stream.actions[position].cause.origin, signals, now, seen)
        if seen <= now:
            return True
        if isinstance(stream.actions[position], ChangeWords):
            self.at(seen, lambda: self._words(stream, position, index + 1, seen))
        else:
            self.later(stream, position + 1, seen)
        return False

    def _words(self, stream: _SimStream, position: int, index: int, now: float) -> None:
        """Changes `index` and those behind it, from `now` on."""
        action = stream.actions[position]
        assert isinstance(action, ChangeWords)
        while index < len(action.changes):
            change = action.changes[index]
            if change.raises:
                self.lift(_SignalKey(change.word), now, stream)
            elif not self._passed(stream, position, index, [_SignalKey(change.word)], now):
                return
            index += 1
        self.proceed(stream, position + 1, now)

    def later(self, stream: _SimStream, position: int, time: float) -> None:
        self.at(time, lambda: self.proceed(stream, position, time))

    # ---- what takes time

    def _size(self, region: Region) -> int:
        return region.elements * TYPES[self.dtypes[region.tensor]].bytes

    def _copy(self, stream: _SimStream, moves: Sequence[Move], index: int, position: int, now: float) -> None:
        """Copy `index` and those behind it, from `now` on."""
        if index == len(moves):
            self.proceed(stream, position + 1, now)
            return
        move = moves[index]
        src, dst = move.src, move.dst
        size = self._size(src)

        def done() -> None:
            label = f"{move.stage}  {way(dst, src, stream.rank)}"
            kind: SpanKind = "collective" if move.op in self.calls else "copy"
            peer, number, place = peer_of(dst, src, stream.rank), stream.name.number, move.origin.place
            span = TraceSpan(stream.rank, number, kind, label, move.stage, now, self.now, place, bytes=size, peer=peer)
            self.spans.append(span)
            self._copy(stream, moves, index + 1, position, self.now)

        if src.rank == dst.rank:
            self.at(now + cost.transfer_time(self.machine, src.rank, dst.rank, size), done)
        else:
            begin = now + self.machine.between(src.rank, dst.rank).copy_time
            self.at(begin, lambda: self.flows.begin(begin, src.rank, dst.rank, size, done))

    def _launch(self, stream: _SimStream, launch: DeviceLaunch, position: int, now: float) -> None:
        for index in range(len(launch.works)):  # several: copies
            now = self.work(stream, launch, index, now, first=index == 0)
        self.later(stream, position + 1, now)

    def _spinning(self, stream: _SimStream, launch: DeviceLaunch, position: int, now: float) -> None:
        begin = now + self.machine.device.launch_time
        self.at(begin, lambda: self._next_work(stream, launch, position, 0, begin))

    def _next_work(self, stream: _SimStream, launch: DeviceLaunch, position: int, index: int, now: float) -> None:
        """Work `index` is next from `now` on: it begins when all of its flags are seen, or looks again at the next."""
        if index == len(launch.works):
            self.proceed(stream, position + 1, now)
            return
        work = launch.works[index]
        signals = [_SignalKey(self.flags[flag]) for flag in work.waits if flag in self.flags]
        begin = now
        for signal in signals:
            seen = self.seen(signal, stream.rank)
            if seen is None:
                again = self.waiting.setdefault(signal, [])
                again.append(lambda: self._next_work(stream, launch, position, index, now))
                return
            begin = max(begin, seen)
        if begin > now:
            self.wait(stream, launch.stages[index], work.origin, signals, now, begin)
        stop = self.work(stream, launch, index, begin, first=False)

        def end() -> None:
            for flag in work.signals:
                if flag in self.flags:
                    self.lift(_SignalKey(self.flags[flag]), self.now, stream)
            self._next_work(stream, launch, position, index + 1, self.now)

        self.at(stop, end)

    def work(self, stream: _SimStream, launch: DeviceLaunch, index: int, now: float, *, first: bool) -> float:
        """Record work `index` of a launch from `now` on; `first`: of a launch that does not wait, whose cost it has."""
        work, config = launch.works[index], launch.config
        kind, label, moved, flops, time = self._price(work, launch, first, stream.rank)
        stop = now + time + (self.machine.device.launch_time if first else 0.0)
        stage = launch.stages[index]
        self.spans.append(
            TraceSpan(
                stream.rank,
                stream.name.number,
                "collective" if work.op in self.calls else kind,
                f"{stage}  {label}",
                stage,
                now,
                stop,
                work.origin.place,
                bytes=moved,
                flops=flops,
                peer=_peer(work, stream.rank),
                launched=Launched(config.entry, config.smem, config.resident, config.blocks),
            )
        )
        return stop

    def _price(self, work: Work, launch: DeviceLaunch, alone: bool, rank: int) -> tuple[SpanKind, str, int, int, float]:
        """Kind, label, bytes, operations and microseconds of a work."""
        machine = self.machine
        sms = launch.sms if launch.sms < machine.device.sms else None
        moved = sum(map(self._size, (*work.reads, *work.writes)))
        match work.body:
            case Gemm(out=out, left=left, left_transposed=transposed, addends=addends):
                m, n = out.shape[-2:]
                k = left.shape[-2] if transposed else left.shape[-1]
                batch = out.elements // max(1, m * n)
                # works of a launch that waits fill each other's last waves
                tiles = prod(work.tiles or ()) * batch if alone else None
                dtype, added = self.dtypes[left.tensor], sum(map(self._size, addends))
                split = cost.Split(launch.config.split_k.tail, prod(launch.config.tile))
                time = cost.gemm_time(machine, m, n, k, dtype, sms, tiles=tiles, split=split, batch=batch, added=added)
                # what goes to a peer leaves while the rest is multiplied
                time = max(time, cost.link_time(machine, rank, out.rank, self._size(out)))
                return "gemm", f"{called(out, rank)} {summary(out)}", moved, 2 * out.elements * k, time
            case Reduce(out=out, terms=terms):
                time = cost.reduce_time(machine, len(terms), self._size(out), sms)
                far = [(t.rank, self._size(t)) for t in terms if t.rank != rank]
                time = max(time, cost.read_time(machine, rank, far))
                return "reduce", f"{out.tensor} {summary(out)}", moved, 0, time
            case Copy(dst=dst, src=src):
                size = self._size(src)
                return "copy", way(dst, src, rank), size, 0, cost.store_time(machine, src.rank, dst.rank, size, sms)
            case KernelCall(kernel=kernel):
                return "kernel", kernel, moved, 0, cost.kernel_time(machine, moved, sms)


def _streams(plan: DevicePlan) -> Iterator[_SimStream]:
    """Those that have actions between a run's start and its completion."""
    issued: Counter[EventName] = Counter()
    actions: dict[StreamName, list[tuple[Action, int]]] = {}
    for action in plan.body:
        record = 0
        if isinstance(action, RecordEvent):
            issued[action.event] += 1
        if isinstance(action, RecordEvent | AwaitEvent):
            record = issued[action.event]
        actions.setdefault(action.stream, []).append((action, record))
    for stream in (s for s in plan.streams if s.name in actions):
        assert stream.rank is not None  # control streams and callers' are not in the body of a run on streams
        made, records = zip(*actions[stream.name], strict=True)
        yield _SimStream(stream.name, stream.rank, stream.label, made, records)


def _peer(work: Work, rank: int) -> int | None:
    """The rank that a work of `rank` copies to or from, or stores its product at."""
    match work.body:
        case Copy(dst=dst, src=src):
            return peer_of(dst, src, rank)
        case Gemm(out=out) if out.rank != rank:
            return out.rank
    return None
