"""Plan → device plan: the driver calls of a run, in the order of issue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

from ..errors import PlanError
from ..geometry.cells import cells
from ..geometry.region import Region
from ..graph.budget import ACTIONS, Budget
from ..graph.ir import Copy
from ..machine.model import Device
from ..plan.ir import (
    CollectiveCall,
    Command,
    CopyAsync,
    Launch,
    Plan,
    Record,
    SignalFlag,
    Stream,
    WaitEvent,
    WaitFlag,
)
from ..plan.issue import issue_order
from . import ir
from .chain import chained, parted, postponed
from .check import shares_queues
from .collectives import alone_reaches_other_nodes, barrier_peers, calls_of, communicators_of, own_way, part_of
from .inline import inlined
from .launches import LaunchPlanner
from .layout import Layout
from .run_ends import RunEndsBuilder, touched
from .semaphores import semaphores_of
from .sharing import sharing_of
from .start_gate import short


def layout_of(
    plan: Plan,
    device: Device,
    placement: ir.Placement,
    features: ir.Features,
    plan_hash: str = "",
    unaligned: frozenset[tuple[int, int]] = frozenset(),
) -> Layout:
    """`plan_hash` is stored in the device plans to identify the source plan. `unaligned`: the launches (stream,
    command) that use plain kernels, because the tensors' memory is not aligned for tuned kernels."""
    short = bool(ir.crowded(placement, streams_of(plan, placement), features))
    if short:
        plan, features = parted(plan), replace(features, early_starts=False)
    reason = own_way(plan, device, placement, features, short)
    if reason and len(set(placement.nodes)) > 1:
        alone_reaches_other_nodes(plan, reason)
    communicators = () if reason else communicators_of(plan, device)[0]
    launches = LaunchPlanner(plan, device, placement, features, unaligned, communicators).all()
    by_kernel = frozenset(flag for launch in launches for flag in launch.config.resets)
    unraised = frozenset(flag for launch in launches for flag in launch.config.unraised)
    by_stream = tuple(touched(stream, plan) for stream in plan.streams)
    sharing = sharing_of(plan, placement, features, by_library=not reason)
    semaphores = semaphores_of(plan, placement, by_kernel, unraised, by_stream, sharing, barriers=bool(reason))
    return Layout(
        plan, plan_hash, device, placement, features, by_stream, semaphores, sharing, launches, communicators, reason
    )


def device_plan(layout: Layout, mode: ir.Mode) -> ir.DevicePlan:
    """The device plan of a mode: on `streams`, or `apart` from callers' ones; as a `graph` for each device; with these
    graphs `embedded` in callers' graphs; `traced`, on streams, with timestamps around everything that does something;
    `gated`, as apart, but not before the host has issued all of it."""
    return _Builder(layout, mode).made()


def modelled(layout: Layout, mode: ir.Mode) -> ir.DevicePlan:
    """The device plan for the virtual clock: on streams, without the prologue and epilogue of a run. The clock does not
    price these, and for many devices they are long, since each device waits for every other one."""
    return _Builder(layout, mode).made(with_ends=mode in ir.GRAPHS)


def timestamps(command: Command) -> int:
    """Number of timestamps of a traced command: one before its first piece, and one after each piece."""
    return 1 + (len(command.transfers) if isinstance(command, CopyAsync) else 1)


class _Builder:
    def __init__(self, layout: Layout, mode: ir.Mode) -> None:
        self.layout, self.mode = layout, mode
        self.plan, self.semaphores = layout.plan, layout.semaphores
        self.points = layout.semaphores.of_points(mode)
        self.features = layout.features
        self.shapes = {t.name: t.shapes for t in self.plan.tensors}
        self.launches: dict[tuple[int, int], list[int]] = {}
        for i, launch in enumerate(layout.launches):
            self.launches.setdefault((launch.stream, launch.command), []).append(i)
        homes = layout.placement.devices
        self.spinning = {homes[self.plan.streams[x.stream].rank] for x in layout.launches if x.spins}
        self.calls = calls_of(self.plan)
        of = communicators_of(self.plan, layout.device)[1]
        self.communicator = of if layout.communicators else {}  # by collective
        self.pitched: dict[tuple[object, ...], bool] = {}  # by parts of tensors
        self.arrived: dict[int, list[tuple[int, int]]] = {}  # collective → its calls so far
        self.names = [ir.StreamName("plan", s) for s in range(len(self.plan.streams))]
        self.causes: dict[tuple[int, type], ir.Cause] = {}  # the last one, by stream of the plan and kind of commands
        self.gated = False
        self.side_streams = _SideStreams()
        for stream in self.plan.streams if mode in ir.PLAIN else ():
            if stream.engine == "copy":
                self._side_streams_of(stream)
        if self._crowded():
            self.side_streams = _SideStreams()
        self.crowded = self._crowded()
        self.gated = mode in ir.GATED and self.semaphores.start_gate is not None and not self.crowded
        self.gated = self.gated and not self._crowded()
        self.timestamps = [0] * len(self.plan.streams)

    def made(self, with_ends: bool = True) -> ir.DevicePlan:
        budget = Budget(ACTIONS, PlanError)
        body: list[ir.Action] = []
        for s, p in issue_order(self.plan, patient=bool(self.crowded)):
            actions = self._command(s, p)
            budget.spend(len(actions), self.plan.streams[s].commands[p].origin)
            body += actions
        self.gated = self.gated and short(body)
        streams = self._streams()
        if self.mode == "streams" and with_ends and not self.crowded:
            inline = tuple(inlined(self.layout, streams))
            made = self._assembled(body, inline, budget)
            if inline == streams or shares_queues(made):
                return made
        return self._assembled(body, streams, budget, with_ends)

    def _assembled(
        self, body: Sequence[ir.Action], streams: tuple[ir.DeviceStream, ...], budget: Budget, with_ends: bool = True
    ) -> ir.DevicePlan:
        run_ends = RunEndsBuilder(self.layout, self.mode, streams, budget, gated=self.gated)
        if self.mode in ir.GRAPHS:
            inside = run_ends.inside()
            body = [*inside.prologue, *(body if self.crowded else _together(body)), *inside.epilogue]
            devices = {stream.name: stream.device for stream in streams}
            body = list(chained(body, devices.__getitem__, self.crowded))
        elif self.crowded:
            body = list(postponed(body))
        return ir.DevicePlan(
            version=ir.VERSION,
            schedule=self.plan.schedule,
            plan_hash=self.layout.plan_hash,
            mode=self.mode,
            placement=self.layout.placement,
            device=self.layout.device,
            features=self.features,
            tensors=self.plan.tensors,
            streams=streams,
            semaphores=self.semaphores.listed(gated=self.gated),
            launches=self.layout.launches,
            written=self._written() if with_ends else (),
            body=tuple(body),
            own=run_ends.run_ends(called=False) if with_ends else ir.RunEnds((), ()),
            called=run_ends.run_ends(called=True) if with_ends else ir.RunEnds((), ()),
            communicators=self.layout.communicators,
            sets=self.layout.sharing.sets,
            private=tuple(sorted(self.layout.sharing.private)),
        )

    def _written(self) -> tuple[int, ...]:
        """Elements that each op writes. A collective's call writes what its part says, on other ranks too."""
        written: Counter[int] = Counter()
        for stream, command in self.plan.commands():
            if isinstance(command, CollectiveCall) and not self.communicator:
                part = part_of(stream.rank, self.calls[command.group])
                written[command.op] += sum(region.elements for done in part for region in done.writes)
                continue
            for done in command.parts:
                written[done.op] += sum(region.elements for region in done.writes)
        return tuple(written[op] for op in range(max(written, default=-1) + 1))

    def _streams(self) -> tuple[ir.DeviceStream, ...]:
        return tuple(streams_of(self.plan, self.layout.placement, self.side_streams, gated=self.gated))

    def _crowded(self) -> dict[int, int]:
        return ir.crowded(self.layout.placement, self._streams(), self.features)

    # ---- commands

    def _command(self, s: int, p: int) -> Sequence[ir.Action]:
        command = self.plan.streams[s].commands[p]
        cause = self._cause(s, command)
        if isinstance(command, CollectiveCall):
            members = self.arrived.setdefault(command.group, [])
            members.append((s, p))
            if len(members) < self.plan.ranks:
                return ()
            make = self._by_library if self.communicator else self._collective
            return list(make(command.group, members))
        if isinstance(command, CopyAsync):
            return self._timed(s, self._copies(s, p, command, cause), cause)
        return self._timed(s, [self._single(s, p, command, cause)], cause)

    def _cause(self, s: int, command: Command) -> ir.Cause:
        stream, kind = self.plan.streams[s], type(command)
        last = self.causes.get((s, kind))
        if last is not None and last.origin is command.origin:
            return last
        text = f"{kind.__name__} on rank {stream.rank} stream {stream.name}" if last is None else last.text
        cause = self.causes[s, kind] = ir.Cause(text, command.origin)
        return cause

    def _single(
        self, s: int, p: int, command: Launch | Record | WaitEvent | SignalFlag | WaitFlag, cause: ir.Cause
    ) -> Sequence[ir.Action]:
        match command:
            case Launch():
                return self._launch(s, p, cause)
            case Record(event=event):
                return self._record(s, ir.EventName("plan", event), cause)
            case WaitEvent(event=event):
                return (self._await(s, ir.EventName("plan", event), cause),)
            case SignalFlag(flag=flag):
                return self._signal(s, p, self.semaphores.flags[flag], cause)
            case WaitFlag(flag=flag):
                return self._wait(s, p, self.semaphores.flags[flag], cause)

    def _timed(self, s: int, pieces: Sequence[Sequence[ir.Action]], cause: ir.Cause) -> Sequence[ir.Action]:
        """The actions; traced, with a timestamp before the first piece and behind each."""
        if self.mode != "traced":
            return pieces[0] if len(pieces) == 1 else [action for piece in pieces for action in piece]
        return [action for piece in [(), *pieces] for action in (*piece, *self._timestamp(s, cause))]

    def _timestamp(self, s: int, cause: ir.Cause) -> Iterator[ir.Action]:
        if self.mode == "traced":
            event = ir.EventName("timestamp", s, self.timestamps[s])
            self.timestamps[s] += 1
            yield ir.RecordEvent(self.names[s], event, cause)

    # ---- copies

    def _copies(self, s: int, p: int, command: CopyAsync, cause: ir.Cause) -> list[tuple[ir.Action, ...]]:
        name, stage = self.names[s], command.stage
        moves = [ir.Move(t.dst, t.src, t.op, t.origin, self._pitched(t.dst, t.src), stage) for t in command.transfers]
        alone: list[tuple[ir.Action, ...]] = [(self._copy(name, move, cause),) for move in moves]
        runs = tuple(move for move in moves if not move.pitched)
        semaphores = self.side_streams.copied.get((s, p), ())
        together = self.mode in ir.PLAIN and self.features.copy_batches and len(runs) + len(semaphores) > 1
        if not together or not runs:
            return alone
        batch: tuple[ir.Action, ...] = (ir.CopyMemory(name, runs, semaphores, True, cause),)
        return [batch, *(copy for copy, move in zip(alone, moves, strict=True) if move.pitched)]

    def _copy(self, name: ir.StreamName, move: ir.Move, cause: ir.Cause) -> ir.CopyMemory:
        """NOTE inside a device multiprocessors copy, and a graph's own copies have no priority: they begin behind all
        blocks of other kernels. Beside launches that hold multiprocessors while they wait for the copy, such blocks
        take a hundred times as long. So a kernel copies there, at its stream's priority."""
        here, there = (self.layout.placement.devices[region.rank] for region in (move.dst, move.src))
        by_kernel = self.mode in ir.GRAPHS and here == there and here in self.spinning
        return ir.CopyMemory(name, (move,), (), False, cause, by_kernel=by_kernel)

    def _pitched(self, dst: Region, src: Region) -> bool:
        """NOTE ranks copy the same parts of equal tensors: the graph holds each part's axes once."""
        shapes = [self.shapes[r.tensor][r.rank] for r in (dst, src)]
        key = (id(dst.axes), id(src.axes), *shapes)
        if key not in self.pitched:
            self.pitched[key] = any(cell.rows > 1 for cell in cells((dst, src), shapes))
        return self.pitched[key]

    # ---- launches

    def _launch(self, s: int, p: int, cause: ir.Cause) -> Sequence[ir.Action]:
        name, numbers = self.names[s], self.launches[s, p]
        actions: list[ir.Action] = [ir.LaunchKernel(name, number, cause) for number in numbers]
        waits = {flag for number in numbers for work in self.layout.launches[number].works for flag in work.waits}
        if waits:
            awaited = {self.semaphores.flags[flag] for flag in waits if flag in self.semaphores.flags}
            actions += self._resets(name, [w for w in awaited if self.semaphores.table[w].reset == "behind"], cause)
        return actions

    def _resets(self, name: ir.StreamName, numbers: Sequence[int], cause: ir.Cause) -> Iterator[ir.Action]:
        """Of semaphores of one device; semaphores side by side in one call."""
        indices = enumerate(sorted(self.semaphores.table[number].index for number in numbers))
        for _, adjacent in groupby(indices, lambda pair: pair[1] - pair[0]):
            _, (first, *rest) = zip(*adjacent, strict=True)
            yield ir.ResetSemaphores(name, first, 1 + len(rest), cause)

    # ---- events, flags, semaphores

    def _record(self, s: int, point: ir.EventName, cause: ir.Cause) -> Sequence[ir.Action]:
        """An event, and the semaphores of the devices that no event reaches."""
        told = tuple(ir.SemaphoreOp(semaphore, True) for semaphore in self.points.get(point, {}).values())
        signals = (ir.StreamMemOps(self.names[s], told, cause),) if told else ()
        return (ir.RecordEvent(self.names[s], point, cause), *signals)

    def _await(self, s: int, point: ir.EventName, cause: ir.Cause) -> ir.Action:
        """By an event, or by a semaphore where the point is in another device's graph, or in another process."""
        device = self.layout.placement.devices[self.plan.streams[s].rank]
        semaphore = self.points.get(point, {}).get(device)
        if semaphore is None:
            return ir.AwaitEvent(self.names[s], point, cause)
        return ir.StreamMemOps(self.names[s], (ir.SemaphoreOp(semaphore, False),), cause)

    def _signal(self, s: int, p: int, semaphore: int, cause: ir.Cause) -> Sequence[ir.Action]:
        """A flag of a stream. What carries it is told by `_SideStreams`."""
        name, signalled = self.names[s], (ir.SemaphoreOp(semaphore, True),)
        match self.side_streams.signal_paths.get((s, p)):
            case "side":
                side, event = ir.StreamName("signal", s), ir.EventName("signal", s)
                there = ir.StreamMemOps(side, signalled, cause)
                return (ir.RecordEvent(name, event, cause), ir.AwaitEvent(side, event, cause), there)
            case "batch":
                return (ir.CopyMemory(name, (), self.side_streams.copied[s, p], True, cause),)
            case "copied":
                return ()
            case None:
                return (ir.StreamMemOps(name, signalled, cause),)

    def _wait(self, s: int, p: int, semaphore: int, cause: ir.Cause) -> Sequence[ir.Action]:
        name, awaited = self.names[s], (ir.SemaphoreOp(semaphore, False),)
        if (s, p) in self.side_streams.waits:
            side, event = ir.StreamName("wait", s), ir.EventName("wait", s)
            there = ir.StreamMemOps(side, awaited, cause)
            return (there, ir.RecordEvent(side, event, cause), ir.AwaitEvent(name, event, cause))
        return (ir.StreamMemOps(name, awaited, cause),)

    # ---- side streams

    def _side_streams_of(self, stream: Stream) -> None:
        found = self.side_streams
        places = [p for p, c in enumerate(stream.commands) if isinstance(c, CopyAsync)]
        first, last = (places[0], places[-1]) if places else (len(stream.commands), -1)
        pending: list[tuple[int, int]] = []  # flags right before: their places, and their semaphores
        for p, command in enumerate(stream.commands):
            if isinstance(command, WaitFlag) and p > first and self.features.side_waits:
                found.waits.add((stream.id, p))
            if isinstance(command, SignalFlag) and p < last:
                found.signal_paths[stream.id, p] = "side"
                if self._copyable(stream, command.flag):
                    pending.append((p, self.semaphores.flags[command.flag]))
                    continue
            if isinstance(command, CopyAsync) and pending and self.features.copy_batches:
                whole = not any(self._pitched(t.dst, t.src) for t in command.transfers)
                batch = p if whole else pending[-1][0]
                found.copied[stream.id, batch] = tuple(semaphore for _, semaphore in pending)
                for place, _ in pending:
                    found.signal_paths[stream.id, place] = "batch" if place == batch else "copied"
            pending.clear()

    def _copyable(self, stream: Stream, flag: int) -> bool:
        here = self.layout.placement.share_gpu(self.plan.flag_homes[flag], stream.rank)
        return not here and self.semaphores.table[self.semaphores.flags[flag]].reset != "completion"

    # ---- collectives

    def _by_library(self, group: int, members: Sequence[tuple[int, int]]) -> Iterator[ir.Action]:
        """The calls of all ranks side by side, in the order of ranks; traced, with timestamps before and behind."""
        calls: list[ir.CallCollective] = []
        for s, p in sorted(members, key=lambda place: self.plan.streams[place[0]].rank):
            stream, command = self.plan.streams[s], self.plan.streams[s].commands[p]
            assert isinstance(command, CollectiveCall)
            cause = ir.Cause(f"{command.kind} on rank {stream.rank} stream {stream.name}", command.origin)
            calls.append(
                ir.CallCollective(
                    command.kind, group, command.dst, command.src, command.to, command.by, stream=self.names[s],
                    communicator=self.communicator[group], op=command.op, stage=command.stage, cause=cause,
                )
            )  # fmt: skip
        for actions in ([], calls, []):
            yield from actions
            for call in calls if actions is not calls else ():
                yield from self._timestamp(call.stream.number, call.cause)

    def _collective(self, group: int, members: Sequence[tuple[int, int]]) -> Iterator[ir.Action]:
        """The parts of all ranks, whose streams are held together before and behind them."""
        command = self.calls[group][0]
        cause = ir.Cause(f"{type(command).__name__} of all ranks", command.origin)
        streams = [self.plan.streams[s] for s, _ in members]
        yield from self._barrier(group, streams, False, cause)
        for s, p in members:
            yield from self._part(s, p)
        yield from self._barrier(group, streams, True, cause)

    def _barrier(self, group: int, streams: Sequence[Stream], behind: bool, cause: ir.Cause) -> Iterator[ir.Action]:
        barriers = {stream.rank: barrier_peers(self.calls[group], stream.rank, behind=behind) for stream in streams}
        points = {stream.rank: ir.EventName("barrier", group, stream.rank, behind) for stream in streams}
        awaited = {rank for others in barriers.values() for rank in others}
        for stream in streams:
            if stream.rank in awaited:
                yield from self._record(stream.id, points[stream.rank], cause)
        for stream in streams:
            others = barriers[stream.rank]
            for other in others if len(others) < 2 else [s.rank for s in streams if s.rank in others]:
                yield self._await(stream.id, points[other], cause)

    def _part(self, s: int, p: int) -> Iterator[ir.Action]:
        stream, command = self.plan.streams[s], self.plan.streams[s].commands[p]
        assert isinstance(command, CollectiveCall)
        cause, name = self._cause(s, command), self.names[s]
        actions: list[ir.Action] = [ir.LaunchKernel(name, number, cause) for number in self.launches.get((s, p), ())]
        for copy in part_of(stream.rank, self.calls[command.group]):
            if isinstance(copy, Copy):
                pitched = self._pitched(copy.dst, copy.src)
                move = ir.Move(copy.dst, copy.src, command.op, command.origin, pitched, command.stage)
                actions.append(self._copy(name, move, cause))
        yield from self._timed(s, [tuple(actions)], cause)


@dataclass(slots=True)
class _SideStreams:
    """Which flags of copy streams are carried by something other than the copy stream itself, in runs on streams.

    If a copy follows a flag on the stream, the copy stream does not write the flag: that would delay the copy. If one
    launch alone waits for the flag, a copied semaphore signals it: the semaphore goes into the batch of the next copy,
    whose members have no order among themselves. The batch begins when the copies before it have arrived. A side stream
    writes any other flag.

    NOTE a stream may not wait for a copied semaphore: the wait might be issued before the copy. A copied semaphore goes
    to other GPUs only: a copy inside a GPU may be a kernel, which may find no free multiprocessor.

    Where a copy stream waits for a flag behind a copy, a side stream waits in its place (`side_waits`).

    `signal_paths`: by stream and place, what carries a flag other than its stream: a `side` stream, `copied` with the
    next copy, or a `batch` of semaphores that begins here. `copied`: the semaphores that go out with a copy, or with
    the last flag, of their batch. `waits`: the places where a side stream waits.
    """

    signal_paths: dict[tuple[int, int], Literal["side", "copied", "batch"]] = field(default_factory=dict)
    copied: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    waits: set[tuple[int, int]] = field(default_factory=set)

    @property
    def kinds(self) -> dict[int, list[str]]:
        """The side streams of each stream that has some."""
        signalling = {s for (s, _), path in self.signal_paths.items() if path == "side"}
        waiting = {s for s, _ in self.waits}
        return {s: ["signal"] * (s in signalling) + ["wait"] * (s in waiting) for s in signalling | waiting}


def streams_of(
    plan: Plan, placement: ir.Placement, side_streams: _SideStreams | None = None, *, gated: bool = False
) -> Iterator[ir.DeviceStream]:
    """All streams of the devices, including the callers'."""
    sides = side_streams.kinds if side_streams is not None else {}
    for stream in plan.streams:
        for kind in ("plan", *sides.get(stream.id, ())):
            name, device = ir.StreamName(kind, stream.id), placement.devices[stream.rank]
            yield ir.DeviceStream(name, device, stream.priority, stream.rank, stream.name)
    for device in placement.ordinals:
        yield ir.DeviceStream(ir.StreamName("control", device), device, "normal")
    if gated:
        first, *_ = placement.ordinals
        yield ir.DeviceStream(ir.StreamName("gate", first), first, "normal")
    for rank, device in enumerate(placement.devices):
        yield ir.DeviceStream(ir.StreamName("caller", rank), device, "normal", rank)


def _together(body: Sequence[ir.Action]) -> Iterator[ir.Action]:
    """Semaphores that stand together on a stream change in one action, which comes before what the stream does next."""
    open_: dict[ir.StreamName, list[ir.StreamMemOps]] = {}
    for action in body:
        if isinstance(action, ir.StreamMemOps):
            open_.setdefault(action.stream, []).append(action)
            continue
        if isinstance(action, ir.CallCollective):  # nothing comes between the calls of all ranks
            yield from map(_as_one, open_.values())
            open_.clear()
        if action.stream in open_:
            yield _as_one(open_.pop(action.stream))
        yield action
    yield from map(_as_one, open_.values())


def _as_one(actions: Sequence[ir.StreamMemOps]) -> ir.StreamMemOps:
    return replace(actions[0], changes=tuple(change for action in actions for change in action.changes))
