"""Runs of a device plan, one behind the other, as queues of nodes: what the check of a device plan walks through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ficco_dsl.diagnostics import Span

from ..errors import PlanError
from ..graph.budget import NODES, Budget
from ..plan.clock import Clock
from ..plan.ir import Work
from .ir import (
    GRAPHS,
    PLACELESS,
    Action,
    AwaitEvent,
    DeviceLaunch,
    DevicePlan,
    EventName,
    Frame,
    LaunchGraph,
    RecordEvent,
    ResetWords,
    StreamName,
    issued,
)
from .rules import words_in_order


@dataclass(frozen=True, slots=True)
class RunCase:
    """How a run is made. `callers` numbers sets of callers' streams; none: nobody's. `uses`: the callers touch their
    tensors before it, and after it. NOTE other callers have other tensors: these use theirs in none of the runs."""

    callers: int | None
    behind: bool
    others: bool = False
    timed: bool = False
    uses: tuple[bool, bool] = (False, False)


# Where a node stands: a stream; one of a set of callers' streams; a stream inside a graph.
QueueName: TypeAlias = tuple[StreamName, int]
_OUTSIDE, _GRAPH = -1, -2


@dataclass(slots=True, eq=False)
class Node:
    """An action of a run in its queue; without one the caller's own work (`uses` the tensors of a rank), or the begin
    or the end of a graph. It waits for the node `awaits`; at the begin of a graph that is all that is known."""

    queue: int
    position: int  # in its queue, from 1
    place_of_issue: int  # on its device, from 0
    run: int
    action: Action | None
    place: Span
    awaits: Node | None = None
    begins: bool = False
    uses: int | None = None
    awaited: bool = False
    done: int = 0  # words or works, while the queue stands here
    over: bool = False
    clock: Clock | None = None  # what its end knows, if somebody awaits it

    def wait_for(self, other: Node | None) -> None:
        if other is not None:
            self.awaits, other.awaited = other, True


class RunSequence:
    """Runs of a device plan, one behind the other, as queues of nodes."""

    def __init__(self, plan: DevicePlan, runs: Sequence[RunCase]) -> None:
        self.plan = plan
        self.queues: list[list[Node]] = []
        self.names: list[QueueName] = []
        self.devices: list[int] = []  # of the queues
        self.of_streams = {s.name: s for s in plan.streams}
        self.groups = [groups_of(launch) for launch in plan.launches]
        self.issued: dict[int, list[Node]] = {device: [] for device in plan.placement.ordinals}
        self._numbers: dict[QueueName, int] = {}
        self._recorded: dict[EventName, Node] = {}  # the record that was issued last
        self._in_order = words_in_order(plan)
        self._of_flags = {w.flag: i for i, w in enumerate(plan.words) if w.flag is not None}
        self._budget = Budget(NODES, PlanError)
        self._run = 0
        for self._run, run in enumerate(runs):
            self._add(run)

    # ---- words: those of later sets are numbered behind those of the first

    def turn(self, node: Node) -> int:
        """The number of the set that the node's run takes."""
        return node.run % self.plan.sets

    def word(self, node: Node, number: int) -> int:
        """A word of the plan, in the set that the node's run takes."""
        return number + self.turn(node) * len(self.plan.words)

    def words(self, node: Node, flags: Sequence[int]) -> list[int]:
        """Of flags; those between works that are made as one have none."""
        return [self.word(node, self._of_flags[flag]) for flag in flags if flag in self._of_flags]

    def reset(self, node: Node, action: ResetWords) -> list[int]:
        numbers = self._in_order[self.devices[node.queue]][action.first : action.first + action.count]
        return [self.word(node, number) for number in numbers]

    def purpose(self, word: int) -> str:
        """`word 3 (flag 1)`, for people."""
        turn, number = divmod(word, len(self.plan.words))
        return f"word {number} ({self.plan.words[number].purpose})" + (f" of set {turn}" if turn else "")

    # ---- the queues

    def _add(self, run: RunCase) -> None:
        frame = self.plan.own if run.callers is None else self.plan.called
        before, after = run.uses
        self._use(run.callers, before)
        for action in _taking_part(frame.begin, run):
            self._outside(action, run)
        if self.plan.mode in GRAPHS:
            self._graphs(frame, run)
        else:
            for action in self.plan.body:
                self._outside(action, run)
        for action in _taking_part(frame.end, run):
            self._outside(action, run)
        self._use(run.callers, after)

    def _graphs(self, frame: Frame, run: RunCase) -> None:
        """The graphs' insides. Whoever launched a graph goes on when the graph's control stream is through."""
        launched: dict[int, Node] = {}
        for action in frame.begin:
            if isinstance(action, LaunchGraph):
                launched[action.device] = self.queues[self._of(action, run)][-1]
        for stream in self.plan.streams:
            if stream.name.kind != "caller" and stream.device in launched:
                begin = self._append(self._queue((stream.name, _GRAPH), stream.device), None, PLACELESS)
                begin.begins = True
                begin.wait_for(launched[stream.device])
        for action in self.plan.body:
            queue = self._queue((action.stream, _GRAPH), self.of_streams[action.stream].device)
            self._node(queue, action)
        for device, node in launched.items():
            control = self._queue((StreamName("control", device), _GRAPH), device)
            self._append(node.queue, None, PLACELESS).wait_for(self.queues[control][-1])

    def _use(self, callers: int | None, uses: bool) -> None:
        """The callers' own work with their tensors."""
        if not uses or callers is None:
            return
        for rank, device in enumerate(self.plan.placement.devices):
            queue = self._queue((StreamName("caller", rank), callers), device)
            self._append(queue, None, PLACELESS).uses = rank

    def _outside(self, action: Action, run: RunCase) -> None:
        self._node(self._of(action, run), action)

    def _of(self, action: Action, run: RunCase) -> int:
        """The queue of an action outside of graphs."""
        stream = self.of_streams[action.stream]
        among = run.callers if stream.name.kind == "caller" and run.callers is not None else _OUTSIDE
        return self._queue((stream.name, among), stream.device)

    def _node(self, queue: int, action: Action) -> None:
        node = self._append(queue, action, action.cause.origin or PLACELESS)
        if isinstance(action, RecordEvent):
            self._recorded[action.event] = node
        elif isinstance(action, AwaitEvent):
            node.wait_for(self._recorded.get(action.event))

    def _append(self, queue: int, action: Action | None, place: Span) -> Node:
        self._budget.spend(1, place)
        issued = self.issued[self.devices[queue]]
        node = Node(queue, len(self.queues[queue]) + 1, len(issued), self._run, action, place)
        self.queues[queue].append(node)
        issued.append(node)
        return node

    def _queue(self, key: QueueName, device: int) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.queues)
            self.queues.append([])
            self.names.append(key)
            self.devices.append(device)
        return self._numbers[key]


def _taking_part(actions: Sequence[Action], run: RunCase) -> Iterator[Action]:
    for action in actions:
        if issued(action.when, behind=run.behind, timed=run.timed, others=run.others, replays=False):
            yield action


@dataclass(frozen=True, slots=True)
class Group:
    """Works that a kernel makes as one: the flags that it waits for and raises."""

    works: tuple[Work, ...]
    waits: tuple[int, ...]
    signals: tuple[int, ...]


def groups_of(launch: DeviceLaunch) -> list[Group]:
    """A launch's works as its kernel takes them, in order."""
    found = []
    for members in launch.config.merged or tuple((i,) for i in range(len(launch.works))):
        works = tuple(launch.works[i] for i in members)
        waits = dict.fromkeys(flag for work in works for flag in work.waits if flag not in launch.config.unraised)
        found.append(Group(works, tuple(waits), works[-1].signals))
    return found


@dataclass(frozen=True, slots=True)
class Holder:
    """A launch that may hold its share of a device's multiprocessors while it waits. `start` is what it knows then:
    what is done by that time cannot be kept out."""

    node: Node
    sms: int
    start: Clock
