"""The virtual clock: when everything of a run would have happened on a machine.

A discrete-event walk over what was issued, priced by `machine.cost`. It looks at the streams and signals
only, never at the order in which the data was computed, so it is the same for every stepping order.

What it models: a stream does one thing at a time; a signal from another rank arrives `links.signal_time`
later; a launch costs `launch_time`, a copy its fixed cost; the works of a streamed launch run one after
another, whichever is ready first. What it does not: contention. Two streams never slow each other, on a
link, a memory or the multiprocessors.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from ...errors import Span as Place
from ...graph.ir import ITEM_BYTES
from ...machine import cost
from ...machine.model import Machine
from ...plan.ir import CopyAsync, GemmWork, LaunchAttributes, ReduceWork, Transfer, Work
from ...region import Region, describe
from ...trace import Kind, Span
from .deadlock import at
from .stepping import CollectiveTask, HostStream, RaiseTask, Signal, Task, WaitTask, WorkTask


def timeline(streams: list[HostStream], machine: Machine, dtypes: dict[str, str]) -> tuple[Span, ...]:
    """The spans of a run that is through, ordered by stream and start. `dtypes` by tensor."""
    clock = _Clock(machine, dtypes)
    for stream in streams:
        clock.later(stream, 0, 0.0)
    clock.run()
    return tuple(sorted(clock.spans, key=lambda s: (s.stream, s.start, s.stop)))


class _Clock:
    def __init__(self, machine: Machine, dtypes: dict[str, str]) -> None:
        self.machine = machine
        self.dtypes = dtypes
        self.spans: list[Span] = []
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.now = 0.0
        self.counter = count()  # events of one time happen as they were made
        self.raised: dict[Signal, tuple[float, HostStream]] = {}
        self.waiting: dict[Signal, list[Callable[[], None]]] = {}
        self.arrived: dict[int, list[tuple[CollectiveTask, int, float]]] = {}

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

    def lift(self, signal: Signal, time: float, by: HostStream) -> None:
        self.raised[signal] = (time, by)
        for action in self.waiting.pop(signal, ()):
            action()

    # ---- a stream, from task to task; `now` is when it is free

    def proceed(self, stream: HostStream, position: int, now: float) -> None:
        while position < len(stream.queue):
            task = stream.queue[position]
            match task:
                case RaiseTask(signal=signal):
                    self.lift(signal, now, stream)
                case WaitTask(signal=signal):
                    seen = self.seen(signal, stream.rank)
                    if seen is None:
                        self.waiting.setdefault(signal, []).append(self._resume(stream, position, now))
                        return
                    if seen > now:
                        self.wait(stream, position, task.command.origin, (signal,), now, seen)
                        self.later(stream, position + 1, seen)
                        return
                case CollectiveTask():
                    group = self.arrived.setdefault(task.call.group, [])
                    group.append((task, position, now))
                    if len(group) == self.machine.ranks:
                        self._collective(group, now)
                    return
                case WorkTask(body=CopyAsync() as body):
                    for transfer in body.transfers:
                        now = self._transfer(stream, body, transfer, now)
                    self.later(stream, position + 1, now)
                    return
                case WorkTask(jobs=jobs):
                    if len(jobs) == 1 and not jobs[0].waits:
                        self._launch(stream, task, position, now)
                    else:
                        self._stream_launch(stream, task, position, now)
                    return
            position += 1

    def _resume(self, stream: HostStream, position: int, now: float) -> Callable[[], None]:
        return lambda: self.proceed(stream, position, now)

    def later(self, stream: HostStream, position: int, time: float) -> None:
        self.at(time, lambda: self.proceed(stream, position, time))

    def _launch(self, stream: HostStream, task: WorkTask, position: int, now: float) -> None:
        stop = self.work(stream, task, 0, now, alone=True)

        def done() -> None:
            for signal in task.jobs[0].signals:
                self.lift(signal, stop, stream)
            self.proceed(stream, position + 1, stop)

        self.at(stop, done)

    def wait(
        self,
        stream: HostStream,
        position: int,
        place: Place,
        signals: tuple[Signal, ...],
        start: float,
        stop: float,
    ) -> None:
        last = max(signals, key=lambda s: self.raised[s][0])
        # the stage that waits is that of the next command that does something
        queue = stream.queue
        while position < len(queue) and isinstance(queue[position], RaiseTask | WaitTask):
            position += 1
        stage = _stage(queue[position]) if position < len(queue) else ""
        label = f"waits for {last.name} of {self.raised[last][1]}"
        self.spans.append(Span(stream.rank, stream.id, "wait", label, stage, start, stop, at(place)))

    # ---- what takes time

    def _size(self, region: Region) -> int:
        return region.elements * ITEM_BYTES[self.dtypes[region.tensor]]

    def _transfer(self, stream: HostStream, body: CopyAsync, transfer: Transfer, now: float) -> float:
        src, dst = transfer.src, transfer.dst
        size = self._size(src)
        stop = now + cost.transfer_time(self.machine, src.rank, dst.rank, size)
        source = src.tensor if src.rank == stream.rank else f"{src.tensor}@{src.rank}"
        target = dst.tensor if dst.rank == stream.rank else f"{dst.tensor}@{dst.rank}"
        label = f"{body.stage}  {source} → {target} {_box(dst)}"
        peer = None if src.rank == dst.rank else dst.rank if src.rank == stream.rank else src.rank
        place = at(transfer.origin)
        self.spans.append(
            Span(stream.rank, stream.id, "copy", label, body.stage, now, stop, place, bytes=size, peer=peer)
        )
        return stop

    def work(self, stream: HostStream, task: WorkTask, index: int, now: float, *, alone: bool) -> float:
        """Record work `index` of a launch from `now` on; `alone`: the launch is for this work only."""
        body = task.body
        assert not isinstance(body, CopyAsync)
        work = body.works[index]
        kind, label, moved, flops, time = self._price(work, body.attributes, alone)
        stop = now + time + (self.machine.device.launch_time if alone else 0.0)
        self.spans.append(
            Span(
                stream.rank,
                stream.id,
                kind,
                f"{body.stage}  {label}",
                body.stage,
                now,
                stop,
                at(work.origin),
                bytes=moved,
                flops=flops,
            )
        )
        return stop

    def _price(self, work: Work, attributes: LaunchAttributes, alone: bool) -> tuple[Kind, str, int, int, float]:
        """Kind, label, bytes, operations and microseconds of a work."""
        machine, sms = self.machine, attributes.sms
        moved = sum(map(self._size, (*work.reads, *work.writes)))
        match work:
            case GemmWork(out=out, left=left):
                m, n = out.shape[-2:]
                k = left.shape[-2] if work.left_transposed else left.shape[-1]
                batch = out.elements // max(1, m * n)
                # works of a streamed launch fill each other's last waves
                tiles = work.tiles[0] * work.tiles[1] * batch if alone else None
                time = cost.gemm_time(machine, m, n, k, self.dtypes[left.tensor], sms, tiles=tiles, batch=batch)
                return "gemm", f"{out.tensor} {_box(out)}", moved, 2 * out.elements * k, time
            case ReduceWork(out=out, terms=terms):
                time = cost.reduce_time(machine, len(terms), self._size(out), sms)
                return "reduce", f"{out.tensor} {_box(out)}", moved, 0, time
            case _:
                return "kernel", work.kernel, moved, 0, cost.kernel_time(machine, moved, sms)

    def _stream_launch(self, stream: HostStream, task: WorkTask, position: int, now: float) -> None:
        launch = _StreamedLaunch(self, stream, task, position, now + self.machine.device.launch_time)
        self.at(launch.free, launch.begin)

    def _collective(self, group: list[tuple[CollectiveTask, int, float]], now: float) -> None:
        call = group[0][0].call
        # what one rank holds of the whole; see cost.collective_time
        sides = [t.call.dst if call.kind == "all_gather" else t.call.src for t, _, _ in group]
        size = max(map(self._size, sides))
        stop = now + cost.collective_time(self.machine, call.kind, size)
        for task, position, arrived in group:
            stream, call = task.stream, task.call
            place = at(call.origin)
            if now > arrived:
                label = f"waits for all ranks to call {call.kind}"
                self.spans.append(Span(stream.rank, stream.id, "wait", label, call.stage, arrived, now, place))
            label = f"{call.stage}  {call.kind} {call.src.tensor} → {call.dst.tensor}"
            self.spans.append(
                Span(stream.rank, stream.id, "collective", label, call.stage, now, stop, place, bytes=size)
            )
            self.later(stream, position + 1, stop)


class _StreamedLaunch:
    """Works that start when their flags are up and the launch is free, the first ready one first."""

    def __init__(self, clock: _Clock, stream: HostStream, task: WorkTask, position: int, start: float) -> None:
        self.clock = clock
        self.stream = stream
        self.task = task
        self.position = position
        self.free = start  # when the work before ends
        self.busy = False
        self.ready: list[tuple[float, int]] = []
        self.left = len(task.jobs)

    def begin(self) -> None:
        for index in range(len(self.task.jobs)):
            self.look(index)

    def look(self, index: int) -> None:
        """Work `index` becomes ready at a known time, or looks again when its next flag is raised."""
        ready = self.clock.now
        for signal in self.task.jobs[index].waits:
            seen = self.clock.seen(signal, self.stream.rank)
            if seen is None:
                self.clock.waiting.setdefault(signal, []).append(lambda: self.look(index))
                return
            ready = max(ready, seen)
        self.clock.at(ready, lambda: self.enqueue(index))

    def enqueue(self, index: int) -> None:
        now = self.clock.now
        heappush(self.ready, (now, index))
        self.clock.at(now, self.serve)  # after all that becomes ready now

    def serve(self) -> None:
        if self.busy or not self.ready:
            return
        clock, now = self.clock, self.clock.now
        index = heappop(self.ready)[1]
        if now > self.free:
            job = self.task.jobs[index]
            clock.wait(self.stream, self.position, job.place, job.waits, self.free, now)
        self.busy = True
        stop = clock.work(self.stream, self.task, index, now, alone=False)
        clock.at(stop, lambda: self.finish(index))

    def finish(self, index: int) -> None:
        clock, now = self.clock, self.clock.now
        self.busy = False
        self.free = now
        self.left -= 1
        for signal in self.task.jobs[index].signals:
            clock.lift(signal, now, self.stream)
        if self.left:
            clock.at(now, self.serve)
        else:
            clock.proceed(self.stream, self.position + 1, now)


def _stage(task: Task) -> str:
    match task:
        case WorkTask(body=body):
            return body.stage
        case CollectiveTask(call=call):
            return call.stage
        case _:
            return ""


def _box(region: Region) -> str:
    if not region.boxes:
        return "nothing"
    first = describe(region.boxes[0])
    return first if len(region.boxes) == 1 else f"{first} and {len(region.boxes) - 1} more"
