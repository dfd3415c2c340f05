"""Simulates a run: models when everything would happen on a machine, from the device plan that the machine would be
given.

This is a discrete-event simulation of the device plan's streams. No data is touched. Each work has the price of its own
kernel (`prices`), and concurrent work shares memories, links and multiprocessors (`contention`).
docs/internals/model.md says how each thing is priced, where each figure comes from, and what is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias, cast, get_args

from ..device import ir
from ..device.build import layout_of, modelled
from ..device.features import virtual
from ..errors import PlanError, UsageError
from ..geometry.region import peer_of, way
from ..graph.budget import MODELLED, Budget, without_collection
from ..machine.model import Machine
from ..plan.ir import Plan
from ..trace.model import Lane, SpanKind, Trace
from .launches import LaunchRun
from .streams import Signal, SimStream, streams_of
from .virtual_clock import VirtualClock

SimulatedMode: TypeAlias = Literal["streams", "graph"]


def mode_of(name: str) -> SimulatedMode:
    """The mode that a caller names. Raises UsageError."""
    for mode in get_args(SimulatedMode):
        if name == mode:
            return cast(SimulatedMode, mode)
    raise UsageError(f"mode is 'streams' or 'graph', not {name!r}")


def simulate(plan: Plan, machine: Machine, mode: SimulatedMode = "streams", vendor: bool = True) -> Trace:
    """Models when everything would happen, with a device for each rank, on streams or as a graph for each device. The
    plan must have passed its check, so that every wait is signalled. `vendor`: the vendor's library of GEMMs is
    installed. As in a run, it then makes what it can on devices for which no GEMM of ours is made."""
    with without_collection():
        clock = _StreamClock(plan, machine, mode, vendor)
        clock.run()
        return Trace(
            schedule=plan.schedule,
            machine=machine.name,
            clock="virtual",
            ranks=plan.ranks,
            lanes=tuple(Lane(s.id, s.rank, s.name, s.engine) for s in plan.streams),
            spans=tuple(sorted(clock.spans, key=lambda s: (s.stream, s.start, s.stop))),
        )


class _StreamClock(VirtualClock):
    """Takes the streams from action to action."""

    def __init__(self, plan: Plan, machine: Machine, mode: SimulatedMode, vendor: bool) -> None:
        arch = machine.device.arch
        layout = layout_of(plan, machine.device, ir.Placement(tuple(range(plan.ranks))), virtual(arch, vendor))
        made = modelled(layout, mode)
        super().__init__(plan, made, machine)
        self.launches = made.launches
        self.passed: set[SimStream] = set()  # which have waited, since their last copy, for what had come already
        self.behind: dict[SimStream, float] = {}  # until when what a stream does next stands right behind a copy
        Budget(MODELLED, PlanError).spend(sum(1 for _ in plan.parts()), plan.origin)
        for stream in streams_of(made):
            self.later(stream, 0, self.overheads.frame)

    # ---- `now` is when the stream is free

    def proceed(self, stream: SimStream, position: int, now: float) -> None:
        while position < len(stream.actions):
            action = stream.actions[position]
            match action:
                case ir.RecordEvent(event=event):
                    self.lift(stream.signals[position], event, now, stream)
                    if self.overheads.record and self._behind_copy(stream, now):
                        self.behind[stream] = now = now + self.overheads.record
                        self.later(stream, position + 1, now)
                        return
                case ir.AwaitEvent():
                    again = partial(self.proceed, stream, position, now)
                    then = partial(self.proceed, stream, position + 1)
                    if not self._passed(stream, position, stream.signals[position], now, again, then):
                        return
                case ir.StreamMemOps():
                    self._semaphores(stream, position, 0, now)
                    return
                case ir.CopyMemory():
                    for semaphore in action.semaphores:
                        self.lift(semaphore, semaphore, now, stream)
                    self._copy(stream, action.moves, 0, position, now)
                    return
                case ir.LaunchKernel(launch=number):
                    self._launch(stream, self.launches[number], position, now)
                    return
                case _:
                    pass
            position += 1

    def _behind_copy(self, stream: SimStream, now: float) -> bool:
        """Whether the stream has done nothing but records and semaphores since a copy."""
        return self.behind.get(stream) == now

    def _passed(
        self,
        stream: SimStream,
        position: int,
        signal: Signal,
        now: float,
        again: Callable[[], None],
        then: Callable[[float], None],
    ) -> bool:
        """Whether the stream need not wait. Else it looks `again` when something raises the signal, or goes on (`then`)
        when it sees the signal."""
        seen = self.seen(signal, stream.rank, self._delay(stream, position))
        if seen is None:
            self.waiting.setdefault(signal, []).append(again)
            return False
        if stream.name.kind == "wait":
            self.heard[stream] = self.raised[signal]
        if seen <= now:
            self.passed.add(stream)
            return True
        self.passed.discard(stream)
        if stream.shown:
            stage, _ = stream.following[position]
            self.wait(stream, stage, stream.actions[position].cause.origin, [signal], now, seen)
        self.at(seen, lambda: then(seen))
        return False

    def _delay(self, stream: SimStream, position: int) -> float:
        """The delay from a signal to the work that waits for it on the same device."""
        action = stream.actions[position]
        if (
            isinstance(action, ir.AwaitEvent) and action.event.kind == "captured"
        ):  # a graph's first nodes wait for nothing
            return 0.0
        if stream.shown and stream.following[position][1]:
            return self.overheads.event_to_kernel
        return self.overheads.event_to_copy

    def _semaphores(self, stream: SimStream, position: int, index: int, now: float) -> None:
        """Changes `index` and those behind it, from `now` on."""
        action = stream.actions[position]
        assert isinstance(action, ir.StreamMemOps)
        while index < len(action.changes):
            change = action.changes[index]
            if not change.signals:
                again = partial(self._semaphores, stream, position, index, now)
                then = partial(self._semaphores, stream, position, index + 1)
                if not self._passed(stream, position, change.semaphore, now, again, then):
                    return
            elif self.overheads.raise_word:
                raised = now + self.overheads.raise_word
                if self._behind_copy(stream, now):
                    self.behind[stream] = raised
                self.at(raised, partial(self._raise, stream, position, index, raised))
                return
            else:
                self.lift(change.semaphore, change.semaphore, now, stream)
            index += 1
        self.proceed(stream, position + 1, now)

    def _raise(self, stream: SimStream, position: int, index: int, now: float) -> None:
        action = stream.actions[position]
        assert isinstance(action, ir.StreamMemOps)
        semaphore = action.changes[index].semaphore
        self.lift(semaphore, semaphore, now, stream)
        self._semaphores(stream, position, index + 1, now)

    def later(self, stream: SimStream, position: int, time: float) -> None:
        self.at(time, lambda: self.proceed(stream, position, time))

    # ---- what takes time

    def _copy(self, stream: SimStream, moves: Sequence[ir.Move], index: int, position: int, now: float) -> None:
        """Copy `index` and those behind it, from `now` on."""
        if index == len(moves):
            self.behind[stream] = now
            self.proceed(stream, position + 1, now)
            return
        move = moves[index]
        src, dst = move.src, move.dst
        size = self.prices.size(src)

        def done() -> None:
            label = f"{move.stage}  {way(dst, src, stream.rank, self.prices.part)}"
            kind: SpanKind = "collective" if move.op in self.calls else "copy"
            did = {"bytes": size, "peer": peer_of(dst, src, stream.rank), "ops": (move.op,)}
            self.span(stream, kind, label, move.stage, now, self.now, move.origin.place, **did)
            self._copy(stream, moves, index + 1, position, self.now)

        begin = now + self._copy_time(move, index > 0 or self._behind_copy(stream, now))
        if stream in self.passed:
            self.passed.discard(stream)
            begin += self.overheads.passed_wait
        time, uses = self.prices.flow(src.rank, dst.rank, size)
        self.at(begin, partial(self.flow, uses, time, done) if time else done)

    def _copy_time(self, move: ir.Move, behind: bool) -> float:
        """What a copy costs beyond its bytes. The set-up of a run of bytes behind another copy of its stream is hidden
        by that one; that of rows of a pitch is not."""
        links = self.machine.between(move.src.rank, move.dst.rank)
        time = links.copy_time
        if links.reach == "messages":  # a call of the library each
            return time
        inside = move.src.rank == move.dst.rank
        less = self.overheads.inside_behind if inside else self.overheads.copy_behind
        return time if less is None or not behind or move.pitched else min(time, less)

    def _launch(self, stream: SimStream, launch: ir.DeviceLaunch, position: int, now: float) -> None:
        run = LaunchRun(self, stream, launch, now, lambda: self.proceed(stream, position + 1, self.now))
        # an early launch sets itself up while the kernel before it ends
        begin = now if launch.early and stream.behind_launch(position) else now + self.machine.device.launch_time
        self.at(begin, run.begin)
