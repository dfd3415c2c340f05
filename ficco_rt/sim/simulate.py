"""The virtual clock: when everything of a run would happen on a machine, from the plan alone.

A discrete-event walk over the plan's streams, priced by `machine.cost`. No data is touched.

What it models: a stream does one thing at a time; a signal from another rank arrives `links.signal_time`
later; a launch costs `launch_time`, a copy its fixed cost; the works of a streamed launch run one after
another in the order of the text; copies of copy engines that meet at a port share it (`links`). What it does
not: any other contention. Streams never slow each other on a memory or the multiprocessors, nor do the fixed
costs of two copy queues' copies, nor what multiprocessors load and store on other ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import prod

from ..errors import Span as Place
from ..graph.ir import Copy, Gemm, KernelCall, Reduce
from ..machine import cost
from ..machine.model import Machine
from ..plan.ir import (
    CollectiveCall,
    CopyAsync,
    Launch,
    LaunchAttributes,
    Plan,
    Record,
    Signal,
    SignalFlag,
    Stream,
    WaitEvent,
    WaitFlag,
    Work,
)
from ..region import Region, called, peer_of, summary, way
from ..trace import Kind, Lane, Launched, Span, Trace
from ..types import TYPES
from .links import Flows


def simulate(plan: Plan, machine: Machine) -> Trace:
    """What would happen when. The plan must have passed its check: whatever waits is signalled."""
    clock = _Clock(plan, machine)
    for stream in plan.streams:
        clock.later(stream, 0, 0.0)
    clock.run()
    return Trace(
        schedule=plan.schedule,
        machine=machine.name,
        clock="virtual",
        ranks=plan.ranks,
        lanes=tuple(Lane(s.id, s.rank, s.name, s.engine) for s in plan.streams),
        spans=tuple(sorted(clock.spans, key=lambda s: (s.stream, s.start, s.stop))),
    )


class _Clock:
    def __init__(self, plan: Plan, machine: Machine) -> None:
        self.plan, self.machine = plan, machine
        self.dtypes: dict[str, str] = {t.name: t.dtype for t in plan.tensors}
        self.spans: list[Span] = []
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.now = 0.0
        self.counter = count()  # events of one time happen as they were made
        self.raised: dict[Signal, tuple[float, Stream]] = {}
        self.waiting: dict[Signal, list[Callable[[], None]]] = {}
        self.arrived: dict[int, list[tuple[Stream, CollectiveCall, int, float]]] = {}
        self.flows = Flows(machine, self.at)

    def at(self, time: float, action: Callable[[], None]) -> None:
        heappush(self.events, (time, next(self.counter), action))

    def run(self) -> None:
        while self.events:
            self.now, _, action = heappop(self.events)
            action()

    def seen(self, signal: Signal, rank: int) -> float | None:
        """When `rank` sees the signal up; None while nothing has raised it."""
        if signal not in self.raised:
            return None
        time, by = self.raised[signal]
        return time if by.rank == rank else time + self.machine.links.signal_time

    def lift(self, signal: Signal, time: float, by: Stream) -> None:
        self.raised[signal] = (time, by)
        for action in self.waiting.pop(signal, ()):
            action()

    # ---- a stream, from task to task; `now` is when it is free

    def proceed(self, stream: Stream, position: int, now: float) -> None:
        while position < len(stream.commands):
            command = stream.commands[position]
            match command:
                case Record() | SignalFlag():
                    for signal in command.signals:
                        self.lift(signal, now, stream)
                case WaitEvent() | WaitFlag():
                    (signal,) = command.waits
                    seen = self.seen(signal, stream.rank)
                    if seen is None:
                        self.waiting.setdefault(signal, []).append(self._resume(stream, position, now))
                        return
                    if seen > now:
                        rest = stream.commands[position:]  # the next command that does something is what waits
                        stage = next((c.stage for c in rest if isinstance(c, CopyAsync | Launch | CollectiveCall)), "")
                        self.wait(stream, stage, command.origin, (signal,), now, seen)
                        self.later(stream, position + 1, seen)
                        return
                case CollectiveCall():
                    group = self.arrived.setdefault(command.group, [])
                    group.append((stream, command, position, now))
                    if len(group) == self.plan.ranks:
                        self._collective(group, now)
                    return
                case CopyAsync():
                    self._copy(stream, command, 0, position, now)
                    return
                case Launch():
                    begin = self._streamed if command.streamed else self._launch
                    begin(stream, command, position, now)
                    return
            position += 1

    def _resume(self, stream: Stream, position: int, now: float) -> Callable[[], None]:
        return lambda: self.proceed(stream, position, now)

    def later(self, stream: Stream, position: int, time: float) -> None:
        self.at(time, lambda: self.proceed(stream, position, time))

    def _launch(self, stream: Stream, launch: Launch, position: int, now: float) -> None:
        now = self.work(stream, launch, 0, now, alone=True)
        for index in range(1, len(launch.works)):  # copies
            now = self.work(stream, launch, index, now, alone=False)
        self.later(stream, position + 1, now)

    def _streamed(self, stream: Stream, launch: Launch, position: int, now: float) -> None:
        begin = now + self.machine.device.launch_time
        running = _StreamedLaunch(self, stream, launch, position)
        self.at(begin, lambda: running.proceed(0, begin))

    def wait(
        self, stream: Stream, stage: str, place: Place, signals: tuple[Signal, ...], start: float, stop: float
    ) -> None:
        """Record a wait of a stage that ended when the last of the signals was seen."""
        last = max(signals, key=lambda s: self.raised[s][0])
        by = self.raised[last][1]
        label = f"waits for {last} of rank {by.rank} stream {by.name}"
        self.spans.append(Span(stream.rank, stream.id, "wait", label, stage, start, stop, _at(place)))

    # ---- what takes time

    def _size(self, region: Region) -> int:
        return region.elements * TYPES[self.dtypes[region.tensor]].bytes

    def _copy(self, stream: Stream, body: CopyAsync, index: int, position: int, now: float) -> None:
        """Transfer `index` and those behind it, from `now` on."""
        if index == len(body.transfers):
            self.proceed(stream, position + 1, now)
            return
        transfer = body.transfers[index]
        src, dst = transfer.src, transfer.dst
        size = self._size(src)

        def done() -> None:
            label = f"{body.stage}  {way(dst, src, stream.rank)}"
            peer, place = peer_of(dst, src, stream.rank), _at(transfer.origin)
            self.spans.append(
                Span(stream.rank, stream.id, "copy", label, body.stage, now, self.now, place, bytes=size, peer=peer)
            )
            self._copy(stream, body, index + 1, position, self.now)

        if src.rank == dst.rank:
            self.at(now + cost.transfer_time(self.machine, src.rank, dst.rank, size), done)
        else:
            begin = now + self.machine.links.copy_time
            self.at(begin, lambda: self.flows.begin(begin, src.rank, dst.rank, size, done))

    def work(self, stream: Stream, body: Launch, index: int, now: float, *, alone: bool) -> float:
        """Record work `index` of a launch from `now` on; `alone`: the launch is for this work only."""
        work = body.works[index]
        kind, label, moved, flops, time = self._price(work, body.attributes, alone, stream.rank)
        stop = now + time + (self.machine.device.launch_time if alone else 0.0)
        stage = body.stage_of(index)
        self.spans.append(
            Span(
                stream.rank,
                stream.id,
                kind,
                f"{stage}  {label}",
                stage,
                now,
                stop,
                _at(work.origin),
                bytes=moved,
                flops=flops,
                peer=_peer(work, stream.rank),
                launched=Launched(body.kernel, body.attributes.smem, body.attributes.residency, body.attributes.sms),
            )
        )
        return stop

    def _price(
        self, work: Work, attributes: LaunchAttributes, alone: bool, rank: int
    ) -> tuple[Kind, str, int, int, float]:
        """Kind, label, bytes, operations and microseconds of a work."""
        machine, sms = self.machine, attributes.sms
        moved = sum(map(self._size, (*work.reads, *work.writes)))
        match work.body:
            case Gemm(out=out, left=left, left_transposed=transposed, addends=addends):
                m, n = out.shape[-2:]
                k = left.shape[-2] if transposed else left.shape[-1]
                batch = out.elements // max(1, m * n)
                # works of a streamed launch fill each other's last waves
                tiles = prod(work.tiles or ()) * batch if alone else None
                dtype, added = self.dtypes[left.tensor], sum(map(self._size, addends))
                time = cost.gemm_time(machine, m, n, k, dtype, sms, tiles=tiles, batch=batch, added=added)
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

    def _collective(self, group: list[tuple[Stream, CollectiveCall, int, float]], now: float) -> None:
        kind = group[0][1].kind
        # what one rank holds of the whole; see cost.collective_time
        sides = [call.dst if kind == "all_gather" else call.src for _, call, _, _ in group]
        size = max(map(self._size, sides))
        stop = now + cost.collective_time(self.machine, kind, size)
        for stream, call, position, arrived in group:
            place = _at(call.origin)
            if now > arrived:
                label = f"waits for all ranks to call {kind}"
                self.spans.append(Span(stream.rank, stream.id, "wait", label, call.stage, arrived, now, place))
            label = f"{call.stage}  {kind} {call.src.tensor} → {call.dst.tensor}"
            self.spans.append(
                Span(stream.rank, stream.id, "collective", label, call.stage, now, stop, place, bytes=size)
            )
            self.later(stream, position + 1, stop)


class _StreamedLaunch:
    """Works one after another in the order of the text, each when its flags are up, as the kernels take them."""

    def __init__(self, clock: _Clock, stream: Stream, launch: Launch, position: int) -> None:
        self.clock = clock
        self.stream = stream
        self.launch = launch
        self.position = position

    def proceed(self, index: int, now: float) -> None:
        """Work `index` is next from `now` on: it begins when all of its flags are seen, or looks again at the next."""
        clock, stream, launch = self.clock, self.stream, self.launch
        if index == len(launch.works):
            clock.proceed(stream, self.position + 1, now)
            return
        work = launch.works[index]
        signals: tuple[Signal, ...] = tuple(Signal("flag", f) for f in work.waits)
        begin = now
        for signal in signals:
            seen = clock.seen(signal, stream.rank)
            if seen is None:
                clock.waiting.setdefault(signal, []).append(lambda: self.proceed(index, now))
                return
            begin = max(begin, seen)
        if begin > now:
            clock.wait(stream, launch.stage_of(index), work.origin, signals, now, begin)
        stop = clock.work(stream, launch, index, begin, alone=False)
        clock.at(stop, lambda: self.end(index))

    def end(self, index: int) -> None:
        for flag in self.launch.works[index].signals:
            self.clock.lift(Signal("flag", flag), self.clock.now, self.stream)
        self.proceed(index + 1, self.clock.now)


def _peer(work: Work, rank: int) -> int | None:
    """The rank that a work of `rank` copies to or from, or stores its product at."""
    match work.body:
        case Copy(dst=dst, src=src):
            return peer_of(dst, src, rank)
        case Gemm(out=out) if out.rank != rank:
            return out.rank
    return None


def _at(place: Place) -> str:
    return f"{place.path}:{place.line}"
