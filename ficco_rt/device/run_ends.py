"""The prologue and epilogue of a run on all devices: how the run is ordered after the previous run and among the
callers' streams.

Each device begins a run after the previous run has completed on it, unless the host has already seen that run end, and
after the streams of those callers whose tensors the device touches. All streams but *local* ones (`sharing`) begin
after the previous run has completed on every device, and these, too, if it was of other callers: they may have the same
tensors. A caller's stream continues after the streams that touch the caller's tensors: those of its own rank, and those
of other ranks that read or write them. So no device waits for an unrelated one: an event of another device takes ten
microseconds to arrive, one of the same device two. In runs with timestamps or without callers, all devices begin
together: they wait for one start on the first device.

Among callers' streams a device's *host* is the stream of its first caller: there the device waits for all that its run
stands behind, and there it completes the run if that delays the caller by nothing. Otherwise the host is the device's
control stream, which has more events to wait for. What an `inline` stream does is issued there, too.

A run in the mode `traced` or `gated` begins when the host has issued all of it, if it has a start gate (`start_gate`).

Each device completes a run after all of its streams have ended and its semaphores are reset.

Devices that share no events keep the contract of `sharing`. In an entry barrier each device tells all others that its
callers are ready and that it has ended all earlier runs, and waits until they have told it the same. Behind an exit
barrier a device's callers' tensors are no longer touched. A kernel makes these barriers by semaphores that count runs,
so that none of them is ever reset. Where local streams begin before the entry, their kernels might leave that one no
multiprocessor: there streams tell it. In a traced run all devices of a node begin together, by an entry barrier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeAlias

from ..graph.budget import Budget
from ..plan.ir import Plan, Stream
from . import ir
from .layout import Layout
from .start_gate import START_GATE

_Point: TypeAlias = Literal["ready", "entry", "exit"]

BEGIN, END, GRAPH = ir.Cause("the begin of a run"), ir.Cause("the end of a run"), ir.Cause("the graph of a run")


class RunEndsBuilder:
    """Makes the prologues and epilogues of one device plan. `streams` are those of the devices. `gated`: the run has a
    start gate."""

    def __init__(
        self, layout: Layout, mode: ir.Mode, streams: Sequence[ir.DeviceStream], budget: Budget, *, gated: bool
    ) -> None:
        self.layout, self.mode, self.streams, self.budget = layout, mode, streams, budget
        self.plan, self.placement = layout.plan, layout.placement
        self.sharing = layout.sharing
        self.semaphores, self.points = layout.semaphores, layout.semaphores.of_points(mode)
        self.start_gate = self.semaphores.start_gate if gated else None
        self.inline = {stream.device: stream for stream in streams if stream.inline}
        self.on: dict[int, list[ir.DeviceStream]] = defaultdict(list)  # by device
        for stream in streams:
            self.on[stream.device].append(stream)
        self.touches: dict[int, set[int]] = defaultdict(set)  # device → the ranks whose tensors it touches
        self.touching: dict[int, list[int]] = defaultdict(list)  # rank → the plan's streams that touch its tensors
        for number, (owner, ranks) in enumerate(zip(self.plan.streams, layout.touched, strict=True)):
            self.touches[self.placement.devices[owner.rank]] |= ranks
            for rank in ranks:
                self.touching[rank].append(number)

    def run_ends(self, *, called: bool) -> ir.RunEnds:
        """The prologue and epilogue of a run; `called`: the run is among the callers' streams, one a rank."""
        if self.mode == "graph":
            return self._paid(self._launch_graphs(called), self._behind_graphs(called))
        if self.mode == "embedded":
            return self._paid(self._embed_graphs(), self._behind_embedded()) if called else ir.RunEnds((), ())
        return self._paid(self._begin(called), self._end(called))

    def _paid(self, begin: Iterable[ir.Action], end: Iterable[ir.Action]) -> ir.RunEnds:
        """A prologue and an epilogue, whose actions the budget counts as they are made."""

        def counted(actions: Iterable[ir.Action]) -> Iterator[ir.Action]:
            for action in actions:
                self.budget.spend(1, self.plan.origin)
                yield action

        return ir.RunEnds(tuple(counted(begin)), tuple(counted(end)))

    # ---- on streams

    def _begin(self, called: bool) -> Iterator[ir.Action]:
        first, *_ = devices = self.placement.ordinals
        ranks = range(self.plan.ranks) if called else range(0)
        together = (self.mode in ir.GATED or not called) and not self.placement.others(first)
        hosts = self._hosts(called)
        comes: dict[int, list[int]] = {device: [] for device in devices}
        if together:
            comes[first] = list(ranks)
        elif called:
            comes = {device: self._guests(device, host) for device, host in hosts.items()}
        yield from self._called({rank for guests in comes.values() for rank in guests})
        if together:
            control = hosts[first]
            yield from self._await(control, [ir.EventName("caller", rank) for rank in comes[first]])
            yield from self._behind(control, first)
            if self.start_gate is not None:  # which cannot open before the previous run has reset it
                yield ir.AwaitEvent(
                    ir.StreamName("gate", first), ir.EventName("completion", first), START_GATE, "behind"
                )
                yield ir.StreamMemOps(control, (ir.SemaphoreOp(self.start_gate, False),), START_GATE)
            yield ir.RecordEvent(control, ir.EventName("start", first), BEGIN)
        for device, host in hosts.items():
            begin, start = ir.EventName("begin", device), ir.EventName("start", first if together else device)
            inline = self.inline.get(device) if called else None
            apart = [stream for stream in self._on(device) if stream is not inline]
            leads = together and device == first
            outer = [stream for stream in apart if stream.name.number not in self.sharing.local_streams]
            local = inline is not None and inline.name.number in self.sharing.local_streams
            # NOTE an event of another device takes long to arrive, and streams that are local need not wait for it
            waits = not called or self.mode in ir.GATED or (inline is not None and not local)
            late = self._completions(device) if outer and self._has_local(device) and not waits else []
            if not together:
                yield from self._await(host, [ir.EventName("caller", rank) for rank in comes[device]])
                yield from self._behind(host, device, late=bool(late))
                yield from self._entry(device, host)
            elif not leads:
                yield ir.AwaitEvent(host, start, BEGIN, "timed")
            yield ir.RecordEvent(host, begin, BEGIN, "always" if leads and apart else "timed")
            if apart and not together:  # NOTE not `begin`: an event with timing delays the next kernel by 3 µs
                yield ir.RecordEvent(host, start, BEGIN)
            starts = begin if leads else start
            opens = outer[0].name if outer and (local or late) else host  # what is local does not wait there
            opened = list(self._open(device, opens, late, told=[s.name for s in outer] != [opens]))
            if opened and opens != host:
                yield ir.AwaitEvent(opens, starts, BEGIN)
            yield from opened
            for stream in apart:
                if stream.name != opens or not opened:
                    event = ir.EventName("open", device) if opened and stream in outer else starts
                    yield ir.AwaitEvent(stream.name, event, BEGIN)

    def _end(self, called: bool) -> Iterator[ir.Action]:
        first, *_ = self.placement.ordinals
        hosts = self._hosts(called)
        last = {device: self._last(device, host) for device, host in hosts.items()}
        issued = {stream.name.number: hosts[device] for device, stream in self.inline.items()} if called else {}
        for device in self.placement.ordinals:
            for stream in self._ends(device):
                yield ir.RecordEvent(stream.name, _tail(stream), END)
        freed = [
            ir.AwaitEvent(ir.StreamName("caller", rank), ir.EventName("tail", number), END)
            for rank in (range(self.plan.ranks) if called else ())
            for number in self._frees(rank)
            if issued.get(number) != ir.StreamName("caller", rank)
        ]
        if self.start_gate is None:
            yield from freed
        for device, where in last.items():
            if where.kind == "control":
                yield from self._await(where, [_tail(stream) for stream in self._ends(device)], cause=END)
            yield ir.RecordEvent(where, ir.EventName("end", device), END, "timed")
            if self.start_gate is not None and device == first:
                yield ir.ResetSemaphores(where, self.semaphores.table[self.start_gate].index, 1, START_GATE)
            yield from self._reset(device)
            yield ir.RecordEvent(where, ir.EventName("completion", device), END)
        if self.start_gate is not None:  # NOTE before callers' streams wait, one of which may share the gate's queue
            yield ir.StreamMemOps(ir.StreamName("gate", first), (ir.SemaphoreOp(self.start_gate, True),), START_GATE)
            yield from freed
        for rank, device in enumerate(self.placement.devices) if called else ():
            if last[device] != ir.StreamName("caller", rank):
                yield self._freed(rank)

    def _called(self, ranks: Iterable[int]) -> Iterator[ir.Action]:
        """The callers of these ranks are ready."""
        for rank in sorted(ranks):
            yield ir.RecordEvent(ir.StreamName("caller", rank), ir.EventName("caller", rank), BEGIN)

    def _guests(self, device: int, host: ir.StreamName) -> list[int]:
        """The ranks whose callers a device waits for by events, on the stream of another one."""
        return [rank for rank in self._needs(device) if ir.StreamName("caller", rank) != host]

    def _behind(self, host: ir.StreamName, device: int, *, late: bool = False) -> Iterator[ir.Action]:
        """A device's run stands behind the one before it and behind replays. `late`: behind the run before on other
        devices it stands elsewhere, unless that was others', which may use the same tensors."""
        yield from self._await(host, self._completions(device), "behind others" if late else "behind")
        when: ir.When = "behind others" if self._knows_end(device, host) else "behind"
        yield ir.AwaitEvent(host, ir.EventName("completion", device), BEGIN, when)
        yield from self._await(host, self._replays(device), "behind replays")

    def _last(self, device: int, host: ir.StreamName) -> ir.StreamName:
        """The stream on which a device completes a run: its host's, if that has nothing more to wait for than its own
        caller, who is not kept waiting while semaphores are reset."""
        awaited = {ir.EventName("tail", number) for number in self._frees(host.number)} if host.kind == "caller" else ()
        free = all(_tail(stream) in awaited for stream in self._ends(device)) and not any(self._reset(device))
        return host if free else ir.StreamName("control", device)

    def _knows_end(self, device: int, host: ir.StreamName) -> bool:
        """Whether a device's host, behind the callers that it waits for, stands behind the end of a run before that was
        made like this one."""
        if self.mode == "graph" or self._last(device, host) == host:
            return True
        awaited = {ir.EventName("tail", number) for rank in self._needs(device) for number in self._frees(rank)}
        return all(_tail(stream) in awaited for stream in self._ends(device)) and not any(self._reset(device))

    def _completions(self, device: int) -> list[ir.EventName]:
        """Where the semaphores of the other devices of a device's process are reset."""
        return [ir.EventName("completion", other) for other in self.placement.mates(device) if other != device]

    def _replays(self, device: int) -> list[ir.EventName]:
        """Where graphs in callers' graphs have run, on the devices of a device's process."""
        return [ir.EventName("replayed", other) for other in self.placement.mates(device)]

    def _freed(self, rank: int) -> ir.AwaitEvent:
        """A caller goes on behind the exit barrier of its device, where there is one. A replay on its stream stands
        behind all of the run on the device; the others tell it their ends."""
        device = self.placement.devices[rank]
        exits = bool(self._steps("exit", device))
        completion = ir.EventName("completion", device)
        return ir.AwaitEvent(ir.StreamName("caller", rank), completion, END, "always" if exits else "behind replays")

    def _on(self, device: int, *kinds: str) -> list[ir.DeviceStream]:
        """A device's streams of the plan, with their side streams."""
        return [s for s in self.on[device] if s.name.kind in (kinds or ("plan", "wait"))]

    def _ends(self, device: int) -> list[ir.DeviceStream]:
        """The streams whose ends make the end of a run. In one process somebody has waited for all that side streams
        signal."""
        return self._on(device, "plan", "signal") if self.placement.others(device) else self._on(device, "plan")

    @staticmethod
    def _await(
        stream: ir.StreamName, events: Sequence[ir.EventName], when: ir.When = "always", cause: ir.Cause = BEGIN
    ) -> Iterator[ir.AwaitEvent]:
        for event in events:
            yield ir.AwaitEvent(stream, event, cause, when)

    # ---- devices that share no events

    def _entry(self, device: int, stream: ir.StreamName) -> Iterator[ir.Action]:
        """The entry barrier, if a kernel tells it."""
        if steps := self._steps("entry", device):
            runs = self.semaphores.counts[device]
            first = self.mode == "embedded" and self.sharing.entry == "replays"
            when: ir.When = "behind replays" if first else "always"
            yield ir.Barrier(stream, runs, (ir.BarrierStep("count", runs), *steps), BEGIN, when)

    def _reset(self, device: int) -> Iterator[ir.Action]:
        """Behind all streams of the device none of its semaphores is signalled any more: whoever signals one is waited
        for."""
        control, (first, count) = ir.StreamName("control", device), self.semaphores.reset(device, self.mode)
        steps = self._steps("exit", device)
        if steps and count:
            steps.insert(0, ir.BarrierStep("reset", self.semaphores.places[device].start + first, count))
        if steps:
            yield ir.Barrier(control, self.semaphores.counts[device], tuple(steps), END)
        elif count:
            yield ir.ResetSemaphores(control, first, count, END)

    def _has_local(self, device: int) -> bool:
        return any(stream.name.number in self.sharing.local_streams for stream in self._on(device, "plan"))

    def _open(
        self, device: int, host: ir.StreamName, late: Sequence[ir.EventName] = (), *, told: bool = True
    ) -> Iterator[ir.Action]:
        """The entry barrier, if streams tell it; and `late`, the ends of the run before on other devices. `told`: other
        streams wait for it, too."""
        changes = [ir.SemaphoreOp(i, signals, acquires=not signals) for i, signals in self._told("ready", device)]
        yield from self._await(host, late, "behind")
        if changes:
            yield ir.StreamMemOps(host, tuple(changes), BEGIN)
        if told and (changes or late):
            yield ir.RecordEvent(host, ir.EventName("open", device), BEGIN)

    def _steps(self, kind: _Point, device: int) -> list[ir.BarrierStep]:
        """What a device signals and awaits in a barrier that a kernel tells."""
        return [ir.BarrierStep("signal" if signals else "wait", i) for i, signals in self._told(kind, device)]

    def _told(self, kind: _Point, device: int) -> list[tuple[int, bool]]:
        """The semaphores by which a device tells others a point (true), and those by which they tell it theirs."""
        theirs = (self.points.get(ir.EventName(kind, other), {}) for other in self.placement.near(device))
        signalled = [(semaphore, True) for semaphore in self.points.get(ir.EventName(kind, device), {}).values()]
        return [*signalled, *((semaphores[device], False) for semaphores in theirs if device in semaphores)]

    # ---- callers

    def _needs(self, device: int) -> list[int]:
        """The ranks whose callers a device waits for by events, its own that nothing touches too. A device that tells
        other processes of its begin waits for all of its own."""
        others = self.placement.others(device)
        mine = {rank for rank in self.touches[device] if self.placement.devices[rank] not in others}
        mine |= {rank for rank in self.placement.ranks(device) if not self.touching[rank]}
        return sorted(mine | set(self.placement.ranks(device)) if others else mine)

    def _frees(self, rank: int) -> list[int]:
        """The plan's streams that the caller of a rank waits for by events."""
        others = self.placement.others(self.placement.devices[rank])
        devices, streams = self.placement.devices, self.plan.streams
        return [number for number in self.touching[rank] if devices[streams[number].rank] not in others]

    # ---- as graphs, one a device

    def inside(self) -> ir.RunEnds:
        """What is captured before the plan's commands and behind them: from each device's control stream to its streams
        of the plan, and back when all are through and the device's semaphores are reset."""
        begin: list[ir.Action] = []
        end: list[ir.Action] = []
        for device in self.placement.ordinals:
            control, captured = ir.StreamName("control", device), ir.EventName("captured", device)
            if self.sharing.entry == "always":
                begin += self._entry(device, control)
            begin.append(ir.RecordEvent(control, captured, BEGIN))
            opened = list(self._open(device, control))
            begin += opened
            for stream in self._on(device, "plan"):
                outer = opened and stream.name.number not in self.sharing.local_streams
                begin.append(ir.AwaitEvent(stream.name, ir.EventName("open", device) if outer else captured, BEGIN))
                end.append(ir.RecordEvent(stream.name, _tail(stream), END))
            end += self._await(control, [_tail(stream) for stream in self._on(device, "plan")], cause=END)
            end += self._reset(device)
        return ir.RunEnds(tuple(begin), tuple(end))

    def _launch_graphs(self, called: bool) -> Iterator[ir.Action]:
        """Each device's graph stands on the stream of a caller of the device, where there is one: an event less before
        it and behind it."""
        hosts = self._hosts(called)
        comes = {device: self._guests(device, host) if called else [] for device, host in hosts.items()}
        yield from self._called({rank for guests in comes.values() for rank in guests})
        for device, host in hosts.items():
            yield from self._await(host, [ir.EventName("caller", rank) for rank in comes[device]])
            yield from self._behind(host, device)
            yield ir.RecordEvent(host, ir.EventName("begin", device), BEGIN, "timed")
            yield ir.LaunchGraph(host, device, GRAPH)

    def _behind_graphs(self, called: bool) -> Iterator[ir.Action]:
        """NOTE not before all graphs are launched: what these wait for of the run before is recorded here again."""
        hosts = self._hosts(called)
        for device, host in hosts.items():
            yield ir.RecordEvent(host, ir.EventName("end", device), END, "timed")
            yield ir.RecordEvent(host, ir.EventName("completion", device), END)
        for rank in range(self.plan.ranks) if called else ():
            caller, mine = ir.StreamName("caller", rank), self.placement.devices[rank]
            owners = [self.placement.devices[self.plan.streams[n].rank] for n in self._frees(rank)]
            for device in dict.fromkeys(owners):
                if hosts[device] != caller:
                    yield ir.AwaitEvent(caller, ir.EventName("completion", device), END)
            if mine not in owners and hosts[mine] != caller:
                yield self._freed(rank)

    def _hosts(self, called: bool) -> dict[int, ir.StreamName]:
        """The stream on which each device begins a run: of the first rank on the device whose caller it waits for."""
        found: dict[int, ir.StreamName] = {}
        called = called and self.mode not in ir.GATED
        for device in self.placement.ordinals:
            here = [rank for rank in self._needs(device) if self.placement.devices[rank] == device]
            found[device] = ir.StreamName("caller", here[0]) if called and here else ir.StreamName("control", device)
        return found

    # ---- as parts of the callers' graphs

    def _embed_graphs(self) -> Iterator[ir.Action]:
        """Each device's graph stands behind all callers of the device's ranks, on the first one's stream."""
        for device in self.placement.ordinals:
            host, *rest = self.placement.ranks(device)
            for rank in rest:
                yield ir.RecordEvent(ir.StreamName("caller", rank), ir.EventName("caller", rank), BEGIN)
            first = ir.StreamName("caller", host)
            yield from self._await(first, [ir.EventName("caller", rank) for rank in rest])
            # once a graph: its first run tells that a replay has begun
            yield ir.RecordEvent(first, ir.EventName("begun", device), BEGIN, "behind replays")
            if self.sharing.entry != "always":
                yield from self._entry(device, first)
            yield ir.LaunchGraph(first, device, GRAPH)

    def _behind_embedded(self) -> Iterator[ir.Action]:
        for device in self.placement.ordinals:
            host, *rest = self.placement.ranks(device)
            yield ir.RecordEvent(ir.StreamName("caller", host), ir.EventName("replayed", device), END)
            if rest:
                yield ir.RecordEvent(ir.StreamName("caller", host), ir.EventName("embedded", device), END)
            for rank in rest:
                yield ir.AwaitEvent(ir.StreamName("caller", rank), ir.EventName("embedded", device), END)


def known_ends(plan: ir.DevicePlan) -> tuple[frozenset[str], frozenset[str]]:
    """Of runs on callers' streams: where they wait for the end of the run before, if they do not know it, and on which
    of these streams they record their own. A run knows the end of one on the same streams that has recorded it wherever
    it would wait."""
    begin, end = plan.called.prologue, plan.called.epilogue
    own = {(stream.name, stream.device) for stream in plan.streams}  # another device's end is awaited elsewhere
    late = (a for a in begin if isinstance(a, ir.AwaitEvent) and a.when == "behind others")
    waits = (a for a in late if (a.stream, a.event.number) in own)
    ends = (a for a in end if isinstance(a, ir.RecordEvent) and a.stream.kind == "caller")
    return frozenset(f"{a.stream}, {a.event}" for a in waits), frozenset(f"{a.stream}, {a.event}" for a in ends)


def _tail(stream: ir.DeviceStream) -> ir.EventName:
    return ir.EventName("tail", stream.name.number, behind=stream.name.kind == "signal")


def touched(stream: Stream, plan: Plan) -> frozenset[int]:
    """The ranks whose inputs and outputs the stream's commands touch, and its own. A collective touches those of all,
    but holds all ranks' streams together itself, so that it adds none."""
    bound = {t.name for t in plan.tensors if t.kind != "scratch"}
    parts = (part for command in stream.commands for part in command.parts)
    regions = (region for part in parts for region in (*part.reads, *part.writes))
    return frozenset((stream.rank, *(region.rank for region in regions if region.tensor in bound)))
