"""Consecutive runs of a device plan as queues of nodes, which the check of a device plan walks through.

A device plan is for one mode of one plan, and a workspace mixes plans and modes. So the check also walks through other
runs, each represented by an `Other`, which does all that the contract lets it do (`sharing`), and no more than what the
contract makes it do. It begins on a device after all devices of its process have completed, and after the callers whose
tensors the device touches; a replay begins after its callers' streams only. A small one touches all that lies in its
set, a large one all that lies in no set, behind an entry barrier; any one touches private memory. It is over on a
device when it has begun on all, and those that touch the device's callers' tensors are through. What holds before and
after an `Other` holds before and after any run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from ficco_dsl.diagnostics import Span

from ..errors import PlanError
from ..graph.budget import NODES, Budget
from ..graph.ir import heard
from ..plan import walk
from ..plan.ir import Work
from ..plan.walk import PASSES, TOUCHES, Call, Part, Signal
from . import ir, sharing
from .device_plan_rules import semaphores_in_order
from .inline import issued_to


@dataclass(frozen=True, slots=True)
class RunCase:
    """A run of the plan. `callers` numbers sets of callers' streams. `uses`: the callers touch their tensors before it,
    and after it. NOTE other callers have other tensors: these use theirs in none of the runs."""

    manner: ir.Manner
    callers: int = 0
    uses: tuple[bool, bool] = (False, False)


@dataclass(frozen=True, slots=True)
class Other:
    """Another run, of this plan or of another one, on the streams of `callers`, or on nobody's (`called`). `replay`: in
    a callers' graph on their streams, its first run, or (`later`) not. `replays`: replays may be under way before it
    and may follow it. `alike`: it uses what the plan's runs use: a set, or what is in no set; otherwise it uses the
    other kind of memory."""

    replay: bool = False
    later: bool = False
    called: bool = True
    replays: bool = False
    callers: int = 0
    alike: bool = True

    def __str__(self) -> str:
        return "a replay of a caller's graph" if self.replay else "another run"


@dataclass(frozen=True, slots=True)
class Seen:
    """The host of each process waits for the end of all its devices. Then it uses every tensor, and may release memory.
    `replays`: it waits for replays, too."""

    replays: bool = False


Step: TypeAlias = RunCase | Other | Seen

# Where a node stands: a stream; one of a set of callers' streams; a stream inside a graph; where it is outside of the
# plan: an `Other`, by kind, or the host.
QueueName: TypeAlias = tuple[ir.StreamName, int]
_OUTSIDE, _OTHER, _REPLAY, _HOST = -1, -2, -3, -4
_GRAPHS = (-5, -6)  # alternately: nothing orders two launches of a graph but what their streams know


@dataclass(slots=True, eq=False, kw_only=True)
class Node(walk.Node):
    """An action of a run in its queue; without one something outside of the plan: the caller's own work (`uses` the
    tensors of a rank), what an `Other` or the host may touch, a wait, or the begin or the end of a graph. What the
    begin of a graph awaits is all that is known there. Signals are semaphores, by number, and counts of runs in a
    semaphore."""

    place_of_issue: int  # on its device, from 0; -1: it takes no place in a hardware queue
    run: int
    buffer_set: int  # number of the set that its run uses
    action: ir.Action | None
    begins: bool = False
    uses: int | None = None
    touches: Footprint | None = None

    def wait_for(self, other: Node | None) -> None:
        if other is not None:
            self.awaits, other.awaited = other, True


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an `Other`, or the host, touches: tensors of ranks, semaphores of the plan, memory of launches, and by set
    what other plans have there. `last`: who gives it back, so that nobody touches it later."""

    who: str
    tensors: Collection[tuple[str, int]]
    semaphores: Collection[int] = ()
    launches: Collection[int] = ()
    of_others: Collection[int] = ()
    last: bool = False


@dataclass(slots=True)
class _Device:
    """What a run may touch on behalf of a device: callers' tensors that it writes, and those that it reads or writes;
    semaphores that it signals; launches."""

    written: set[tuple[str, int]] = field(default_factory=set)
    touched: set[tuple[str, int]] = field(default_factory=set)
    signalled: set[Signal] = field(default_factory=set)
    launches: set[int] = field(default_factory=set)


class RunSequence:
    """Consecutive runs of a device plan as queues of nodes."""

    def __init__(self, plan: ir.DevicePlan, steps: Sequence[Step]) -> None:
        self.plan = plan
        self.queues: list[list[Node]] = []
        self.names: list[QueueName] = []
        self.devices: list[int] = []  # of the queues
        self.of_streams = {s.name: s for s in plan.streams}
        self.groups = [groups_of(launch) for launch in plan.launches]
        self.issued: dict[int, list[Node]] = {device: [] for device in plan.placement.ordinals}
        self.bound = {t.name for t in plan.tensors if t.kind != "scratch"}
        self._numbers: dict[QueueName, int] = {}
        self._recorded: dict[ir.EventName, Node] = {}  # the record that was issued last
        self._in_order = semaphores_in_order(plan)
        self._counts: Counter[int] = Counter()  # runs, by semaphore that counts them
        self._does: dict[tuple[int, int], tuple[Sequence[Part], int, int]] = {}  # by id of an action, and set
        self._of_flags = plan.semaphore_of
        self._budget = Budget(NODES, PlanError)
        self._seen: dict[int, Node] = {}  # by process, the host's last node
        self._behind_host: set[int] = set()  # queues of which something was issued since
        self._runs = 0  # on streams and as graphs, before this step
        self._in_graph = 0  # runs before this one in the same graph of a caller
        self._own = 0  # runs of this plan
        self._called = issued_to(plan, called=True)
        for self._run, step in enumerate(steps):
            self._place = self._in_order_of(step)
            if isinstance(step, RunCase):
                self._own += 1
                self._add(step)
            elif isinstance(step, Other):
                self._other(step)
            else:
                self._see(step)

    def _in_order_of(self, step: Step) -> tuple[int, bool]:
        """The number of a run in the order by which sets alternate, and whether it is in a caller's graph."""
        if isinstance(step, Seen):
            return 0, False
        embedded = step.replay if isinstance(step, Other) else self.plan.mode == "embedded"
        if not embedded:
            self._runs += 1
            return self._runs, False
        first = not step.later if isinstance(step, Other) else step.manner.replays
        self._in_graph = 0 if first else self._in_graph + 1
        return self._in_graph, True

    def _set(self, sets: int) -> int:
        """The set of the run, if it uses one of so many."""
        number, embedded = self._place
        return sharing.buffer_set(sets, number, embedded=embedded)

    # ---- semaphores: those of later sets are numbered behind those of the first

    def semaphore(self, buffer_set: int, number: int) -> int:
        """A semaphore of the plan, in a set."""
        return number + buffer_set * len(self.plan.semaphores)

    def _in_set(self, buffer_set: int, numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.semaphore(buffer_set, number) for number in numbers)

    def _semaphores(self, buffer_set: int, flags: Sequence[int]) -> tuple[int, ...]:
        """Of flags; those between works that are made as one have none."""
        return self._in_set(buffer_set, (self._of_flags[flag] for flag in flags if flag in self._of_flags))

    def purpose(self, semaphore: int) -> str:
        """`semaphore 3 (flag 1)`, for people."""
        buffer_set, number = divmod(semaphore, len(self.plan.semaphores))
        return f"semaphore {number} ({self.plan.semaphores[number].purpose})" + (
            f" of set {buffer_set}" if buffer_set else ""
        )

    # ---- the queues

    def _add(self, run: RunCase) -> None:
        run_ends = self.plan.run_ends(run.manner)
        before, after = run.uses
        self._use(run, before)
        launched: dict[int, tuple[Node, Node]] = {}
        for action in run_ends.prologue:
            node = self._outside(action, run)
            if isinstance(action, ir.LaunchGraph):
                launched[action.device] = node, self._append(node.queue, None, ir.PLACELESS)
        if self.plan.mode in ir.GRAPHS:
            self._graphs(launched)
        else:
            for action in self.plan.body:
                self._outside(action, run)
        for action in run_ends.epilogue:
            self._outside(action, run)
        self._use(run, after)

    def _graphs(self, launched: Mapping[int, tuple[Node, Node]]) -> None:
        """The graphs' insides. Whoever launched a graph goes on when the graph's control stream is through."""
        inside = _GRAPHS[self._own % 2]
        for stream in self.plan.streams:
            if stream.name.kind != "caller" and stream.device in launched:
                begin = self._append(self._queue((stream.name, inside), stream.device), None, ir.PLACELESS)
                begin.begins = True
                begin.wait_for(launched[stream.device][0])
        for action in self.plan.body:
            queue = self._queue((action.stream, inside), self.of_streams[action.stream].device)
            self._node(queue, action)
        for device, (_, end) in launched.items():
            end.wait_for(self._last(self._queue((ir.StreamName("control", device), inside), device)))

    def _use(self, run: RunCase, uses: bool) -> None:
        """The callers' own work with their tensors."""
        if not uses or not run.manner.called:
            return
        for rank in range(len(self.plan.placement.devices)):
            self._append(self._caller(rank, run.callers), None, ir.PLACELESS).uses = rank

    def _caller(self, rank: int, callers: int = 0) -> int:
        return self._queue((ir.StreamName("caller", rank), callers), self.plan.placement.devices[rank])

    def _outside(self, action: ir.Action, run: RunCase) -> Node:
        """The node of an action outside of graphs."""
        stream = self.of_streams[self._called.get(action.stream, action.stream) if run.manner.called else action.stream]
        among = run.callers if stream.name.kind == "caller" else _OUTSIDE
        return self._node(self._queue((stream.name, among), stream.device), action)

    def _node(self, queue: int, action: ir.Action) -> Node:
        node = self._append(queue, action, action.origin)
        if isinstance(action, ir.RecordEvent):
            self._recorded[action.event] = node
        elif isinstance(action, ir.AwaitEvent):
            node.wait_for(self._recorded.get(action.event))
        return node

    def _append(self, queue: int, action: ir.Action | None, place: Span, *, apart: bool = False) -> Node:
        """`apart`: it takes no place in a hardware queue."""
        self._budget.spend(1, place)
        device, nodes = self.devices[queue], self.queues[queue]
        if self._seen and queue not in self._behind_host:
            self._behind_host.add(queue)
            self._append(queue, None, place, apart=True).wait_for(self._seen[self.plan.placement.process(device)])
        issued = self.issued[device]
        node = Node(
            queue, len(nodes) + 1, place, TOUCHES, place_of_issue=-1 if apart else len(issued), run=self._run,
            buffer_set=self._set(self.plan.sets), action=action,
        )  # fmt: skip
        nodes.append(node)
        if action is not None:
            self._act(node, action)
        if not apart:
            issued.append(node)
        return node

    def _act(self, node: Node, action: ir.Action) -> None:
        """What the action of a node does."""
        if isinstance(action, ir.Barrier):
            node.parts, node.needs, node.holds = self._steps(node.buffer_set, action), 1, 1
            return
        if isinstance(action, ir.CallCollective):
            ranks, rank = len(self.plan.placement.devices), action.dst.rank
            node.call = Call((node.run, action.group), rank, ranks, heard(action, rank, ranks))
        node.parts, node.needs, node.holds = self._parts(action, node.buffer_set)

    def _parts(self, action: ir.Action, buffer_set: int) -> tuple[Sequence[Part], int, int]:
        """The parts of an action, the multiprocessors that it needs, and those that it may hold."""
        key = (id(action), buffer_set)
        found = self._does.get(key)
        if found is None:
            found = self._does[key] = self._made(action, buffer_set)
        return found

    def _made(self, action: ir.Action, buffer_set: int) -> tuple[Sequence[Part], int, int]:
        match action:
            case ir.StreamMemOps(changes=changes):
                return [self._change(self._in_set(buffer_set, (c.semaphore,)), c) for c in changes], 0, 0
            case ir.CopyMemory(moves=moves, semaphores=semaphores):
                local = any(self.plan.placement.share_gpu(move.dst.rank, move.src.rank) for move in moves)
                return (Part(gives=self._in_set(buffer_set, semaphores), single=bool(semaphores)),), int(local), 0
            case ir.ResetSemaphores(first=first, count=count):
                numbers = self._in_order[self.of_streams[action.stream].device][first : first + count]
                return (Part(drops=self._in_set(buffer_set, numbers)),), 0, 0
            case ir.LaunchKernel(launch=number):
                launch = self.plan.launches[number]
                parts = [
                    Part(
                        self._semaphores(buffer_set, group.waits),
                        self._semaphores(buffer_set, group.signals),
                        apart=True,
                        single=True,
                    )
                    for group in self.groups[number]
                ]
                resets = self._semaphores(buffer_set, launch.config.resets)
                if resets:
                    parts.append(Part(drops=resets))
                return parts, launch.config.together, launch.sms if launch.spins else 0
            case ir.CallCollective(communicator=communicator):
                blocks = self.plan.communicators[communicator].blocks
                return TOUCHES + PASSES, blocks, blocks
            case _:
                return PASSES, 0, 0

    def _change(self, semaphore: tuple[Signal, ...], change: ir.SemaphoreOp) -> Part:
        if change.signals:
            return Part(gives=semaphore, single=True)
        return Part(semaphore, drops=semaphore if change.acquires else (), single=True)

    def _steps(self, buffer_set: int, barrier: ir.Barrier) -> Sequence[Part]:
        parts, runs = [], self.semaphore(buffer_set, barrier.runs)
        for step in barrier.steps:
            semaphores = self._in_set(buffer_set, step.semaphores)
            counted = tuple((semaphore, self._counts[runs]) for semaphore in semaphores)
            match step.does:
                case "signal":
                    parts.append(Part(gives=counted, single=True))
                case "wait":
                    parts.append(Part(counted, single=True))
                case "reset":
                    parts.append(Part(drops=semaphores, single=True))
                case "count":
                    parts.append(Part(single=True))
                    self._counts.update(semaphores)
        return parts

    def _behind(self, queue: int, others: Iterable[Node | None]) -> Node:
        """Nodes outside of the plan that wait for others."""
        node = None
        for other in others:
            if other is not None:
                node = self._outsider(queue)
                node.wait_for(other)
        return node or self._outsider(queue)

    def _outsider(self, queue: int, touches: Footprint | None = None) -> Node:
        """A node outside of the plan, in no hardware queue."""
        node = self._append(queue, None, ir.PLACELESS, apart=True)
        node.touches = touches
        return node

    def _last(self, queue: int) -> Node | None:
        return self.queues[queue][-1] if self.queues[queue] else None

    # ---- what is outside of the plan

    def _see(self, step: Seen) -> None:
        plan, placement = self.plan, self.plan.placement
        frees = len(set(placement.processes)) < 2  # elsewhere other processes may still touch it
        seen: dict[int, Node] = {}
        for process in dict.fromkeys(map(placement.process, reversed(placement.ordinals))):
            mine = placement.driven(process)
            queue = self._queue((ir.StreamName("control", mine[0]), _HOST), mine[0])
            events = [ir.EventName("completion", device) for device in mine]
            events += [ir.EventName("replayed", device) for device in mine if step.replays]
            self._behind(queue, map(self._recorded.get, events))
            touches = self._scratch if frees else ()
            semaphores = {i for i, w in enumerate(plan.semaphores) if frees and not w.tells_runs}
            self._outsider(queue, Footprint(f"the host of process {process}", touches, semaphores, last=True))
            for rank in (rank for device in mine for rank in placement.ranks(device)):
                self._outsider(queue).uses = rank
            seen[process] = self.queues[queue][-1]
        self._seen, self._behind_host = seen, set()

    def _other(self, step: Other) -> None:
        """NOTE it counts no runs, and tells no entries: it knows what these would tell it. To its end it may read the
        counts of runs that are alike."""
        plan, placement = self.plan, self.plan.placement
        control = _REPLAY if step.replay else _OTHER
        queues = {d: self._queue((ir.StreamName("control", d), control), d) for d in placement.ordinals}

        def eventless(device: int) -> Iterator[int]:
            away = placement.near(device) if step.replay else placement.others(device)
            return (other for other in placement.near(device) if other in away)

        large = step.alike == (plan.sets == 1)
        enters = large or (step.replay and not step.later)
        begun: dict[int, Node] = {}
        entered: dict[int, Node] = {}
        through: dict[int, Node] = {}
        for device, queue in queues.items():
            before = [] if step.replay else list(self._known(step, device))
            for rank in self._needed(device, step) if step.called else ():
                node = self._outsider(self._caller(rank, step.callers))
                node.uses = rank if step.replay else None  # a callers' graph makes its inputs itself
                before.append(node)
            begun[device] = self._behind(queue, before)
            private = {(t, r) for t, r in self._scratch if t in plan.private and placement.devices[r] == device}
            told = self._ready(step, device, signals=True) if step.alike else set()
            self._outsider(queue, Footprint(f"{step} on device {device}", private, told, self._others[device].launches))
        for device, queue in queues.items():
            if enters:
                self._behind(queue, (begun[other] for other in eventless(device)))
            took = self._ready(step, device, signals=False) if step.alike else set()
            entered[device] = self._outsider(queue, Footprint(f"{step} on device {device}", (), took))
            does = self._others[device]
            home = placement.node(device)  # no memory is touched on another one
            tensors = {
                (t, r)
                for t, r in self._scratch
                if step.alike and t not in plan.private and placement.node(placement.devices[r]) == home
            }
            tensors |= {(t, r) for t, r in does.written if enters or placement.devices[r] == device}
            semaphores = {
                i
                for i, w in enumerate(plan.semaphores)
                if step.alike and (w.device == device or i in does.signalled)
                if self._in(w, step) and w.reset not in ("never", "acquired")
            }
            others = {5 * home + (4 if large else self._set(2))}
            who = f"{step} on device {device}"
            through[device] = self._outsider(queue, Footprint(who, tensors, semaphores, (), others))
        # NOTE who hears of all others by what they do behind an entry that streams tell knows that they have entered
        known = entered if step.alike and any(w.reset == "acquired" for w in plan.semaphores) else begun
        for device, queue in queues.items():
            self._behind(queue, (known[other] for other in eventless(device)))
            ranks = placement.ranks(device)
            users = (e for e in eventless(device) if any(self._touches(e, rank) for rank in ranks))
            self._behind(queue, (through[other] for other in users))
            counts = {i for i, w in enumerate(plan.semaphores) if step.alike and w.counts_runs and w.device == device}
            end = self._outsider(queue, Footprint(f"{step} on device {device}", (), counts))
            self._recorded[ir.EventName("replayed" if step.replay else "completion", device)] = end
        for rank, device in enumerate(placement.devices) if step.called else ():
            self._behind(self._caller(rank, step.callers), self._freed(step, rank, device, queues))

    @staticmethod
    def _in(semaphore: ir.Semaphore, step: Other) -> bool:
        """Whether a run that is made like an `Other` uses a semaphore."""
        return semaphore.used_in("embedded") if step.replay else semaphore.used != "embedded"

    def _ready(self, step: Other, device: int, *, signals: bool) -> set[int]:
        """The semaphores of the entry barrier that a device signals, or waits for and resets, where streams tell it."""
        return {
            i
            for i, w in enumerate(self.plan.semaphores)
            if w.reset == "acquired" and w.point is not None and self._in(w, step)
            if device == (w.point.number if signals else w.device)
        }

    def _known(self, step: Other, device: int) -> Iterator[Node | None]:
        """What a run knows of the runs before it by events."""
        kinds: tuple[ir.EventKind, ...] = ("completion", "replayed") if step.replays else ("completion",)
        for other in self.plan.placement.mates(device):
            yield from (self._recorded.get(ir.EventName(kind, other)) for kind in kinds)

    def _freed(self, step: Other, rank: int, device: int, queues: Mapping[int, int]) -> Iterator[Node | None]:
        """What a rank's caller knows behind an `Other`."""
        if step.replay:
            yield self._last(queues[device])
            return
        for other in self.plan.placement.mates(device):
            if other == device or self._touches(other, rank) or step.replays:
                yield self._last(queues[other])

    def _needed(self, device: int, step: Other) -> list[int]:
        """A device's ranks, and those in the same process whose callers' tensors it touches."""
        devices, mates = self.plan.placement.devices, self.plan.placement.mates(device)
        return [
            rank
            for rank, owner in enumerate(devices)
            if owner == device or (not step.replay and owner in mates and self._touches(device, rank))
        ]

    def _touches(self, device: int, rank: int) -> bool:
        """Whether a device touches the tensors of a rank's caller."""
        return any(r == rank for _, r in self._others[device].touched)

    @cached_property
    def _scratch(self) -> set[tuple[str, int]]:
        return {(t.name, rank) for t in self.plan.tensors if t.kind == "scratch" for rank in range(len(t.shapes))}

    @cached_property
    def _others(self) -> dict[int, _Device]:
        """By device, what its actions of a run may touch."""
        plan = self.plan
        found = {device: _Device() for device in plan.placement.ordinals}
        for stream, part in plan.parts:
            does = found[self.of_streams[stream].device]
            written = {(r.tensor, r.rank) for r in part.writes if r.tensor in self.bound}
            does.written |= written
            does.touched |= written | {(r.tensor, r.rank) for r in part.reads if r.tensor in self.bound}
        for action in plan.body:
            does = found[self.of_streams[action.stream].device]
            if isinstance(action, ir.LaunchKernel):
                does.launches.add(action.launch)
            for step in self._parts(action, 0)[0]:
                does.signalled.update(step.gives)
        return found

    def _queue(self, key: QueueName, device: int) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.queues)
            self.queues.append([])
            self.names.append(key)
            self.devices.append(device)
        return self._numbers[key]


@dataclass(frozen=True, slots=True)
class Group:
    """Works that a kernel makes as one: the flags that it waits for and signals."""

    works: tuple[Work, ...]
    waits: tuple[int, ...]
    signals: tuple[int, ...]


def groups_of(launch: ir.DeviceLaunch) -> list[Group]:
    """A launch's works as its kernel executes them, in order."""
    found = []
    for members in launch.made_as_one:
        works = tuple(launch.works[i] for i in members)
        waits = dict.fromkeys(flag for work in works for flag in work.waits if flag not in launch.config.unraised)
        found.append(Group(works, tuple(waits), works[-1].signals))
    return found
