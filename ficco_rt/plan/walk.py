"""Finds what happens before what: the walker that the checks of plans and of device plans share.

A level (plans or device plans) provides queues of nodes; each node consists of parts, one after another. A part waits
for signals, touches memory, raises signals, and resets signals. Nothing else orders nodes of different queues, except
that

- a node may have to begin after the end of another one (`awaits`);
- a call of a collective ends when the calls of all ranks have begun (`call`);
- a node may need multiprocessors that other nodes hold while they wait (`needs`, `holds`).

`Walk` executes the queues in the abstract. It finds a deadlock, or an order in which everything can happen. `Clocks`
follows this order with vector clocks: an access is in order if it knows the end of the conflicting accesses before it.
The subclasses of each level define what a signal is, which memory a part touches, and how mistakes are reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

from ficco_dsl.diagnostics import Diagnostic, Span

from ..errors import PlanError
from ..graph.budget import CHECKED_CLOCKS, Budget
from .clock import Clock, start
from .ledger import Toucher

MOST_MISTAKES = 20

Signal: TypeAlias = Hashable


@dataclass(slots=True, eq=False)  # NOTE not frozen, as nodes: a check makes hundreds of thousands
class Part:
    """What a node does at once. `touches`: it touches memory. `apart`: it knows what its node knew at its start, and
    nothing of the parts before it. `single`: others may know that it is over before its node is."""

    waits: tuple[Signal, ...] = ()
    gives: tuple[Signal, ...] = ()
    drops: tuple[Signal, ...] = ()  # taken down, last
    touches: bool = True
    apart: bool = False
    single: bool = False


TOUCHES = (Part(),)
PASSES = (Part(touches=False),)  # nothing but its place in the queue


@dataclass(frozen=True, slots=True)
class Call:
    """A rank's call of a collective of `ranks` ranks. Its end knows what the ranks knew that it has `heard` of."""

    group: Hashable
    rank: int
    ranks: int
    heard: Sequence[int]


@dataclass(slots=True, eq=False)
class Node:
    """A place in a queue. Before its first part it waits for the end of the node `awaits`, and until `needs`
    multiprocessors are free; it may hold as many as `holds` while it waits."""

    queue: int
    position: int  # in its queue, from 1
    place: Span
    parts: Sequence[Part] = PASSES
    needs: int = 0
    holds: int = 0
    call: Call | None = None
    awaits: Node | None = None
    awaited: bool = False


N = TypeVar("N", bound=Node)


@dataclass(frozen=True, slots=True)
class Holder(Generic[N]):
    """A node that may hold multiprocessors while it waits. `start` is what it knows at its start: what is done by then
    cannot be kept out."""

    node: N
    start: Clock


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What a node waits for that is neither a signal nor another node."""

    what: str
    of: Hashable


# ---------------------------------------------------------------- liveness


class Walk(Generic[N]):
    """Executes the queues, in any order. Parts are taken one by one, as on a device with room for one block only: if
    this execution completes, it completes on every device."""

    def __init__(
        self, queues: Sequence[Sequence[N]], places: Sequence[int], room: int = 1, holders: Iterable[Holder[N]] = ()
    ) -> None:
        """`places`: the device of each queue. It has `room` multiprocessors."""
        self.queues, self.places, self.room = queues, places, room
        self.holders: dict[int, dict[int, deque[Holder[N]]]] = {}  # by device and queue, in the queue's order
        for holder in holders:
            here = self.holders.setdefault(places[holder.node.queue], {})
            here.setdefault(holder.node.queue, deque()).append(holder)
        self.at = [0] * len(queues)  # nodes that are over
        self.done = [0] * len(queues)  # parts of the node at hand
        self.up: set[Signal] = set()
        self.begun: dict[Hashable, set[int]] = {}  # by collective: ranks
        self.sleepers: dict[object, list[int]] = {}
        self.blocked: dict[int, object] = {}
        self.ready = deque(range(len(queues)))
        self.order: list[tuple[N, int]] = []

    def run(self) -> list[tuple[N, int]]:
        """Nodes, and which part of each, in an order that can happen. Raises PlanError on a deadlock."""
        while self.ready:
            q = self.ready.popleft()
            nodes = self.queues[q]
            while self.at[q] < len(nodes):
                node = nodes[self.at[q]]
                blocked = self.step(node)
                if blocked is not None:
                    self.sleepers.setdefault(blocked, []).append(q)
                    self.blocked[q] = blocked
                    break
                self.at[q] += 1
                self.done[q] = 0
                self.ended(node)
        stuck = [nodes[at] for nodes, at in zip(self.queues, self.at, strict=True) if at < len(nodes)]
        if stuck:
            raise PlanError(tuple(islice(self.deadlocks(stuck), MOST_MISTAKES)))
        return self.order

    def step(self, node: N) -> object | None:
        """Executes the remaining parts of a node, or says what it waits for."""
        q = node.queue
        if self.done[q] == 0:
            blocked = self.hindrance(node)
            if blocked is not None:
                return blocked
        for number in range(self.done[q], len(node.parts)):
            part = node.parts[number]
            for signal in part.waits:
                if signal not in self.up:
                    return signal
            if node.call is not None and not self._called(node.call, number):
                return Obstacle("collective", node.call.group)
            for signal in part.gives:
                self.up.add(signal)
                self.wake(signal)
            if part.drops:
                self.up.difference_update(part.drops)
            self.order.append((node, number))
            self.done[q] += 1
        return None

    def over(self, node: Node) -> bool:
        return self.at[node.queue] >= node.position

    def hindrance(self, node: N) -> object | None:
        """What prevents a node from beginning its first part."""
        if node.awaits is not None and not self.over(node.awaits):
            return node.awaits
        if node.needs and self.keepers(node):
            return Obstacle("processors", self.places[node.queue])
        return None

    def ended(self, node: N) -> None:
        """Wake whatever waits for the end of a node."""
        if node.awaited:
            self.wake(node)
        if node.holds:
            self.wake(Obstacle("processors", self.places[node.queue]))

    def wake(self, what: object) -> None:
        if what in self.sleepers:
            self.ready.extend(self.sleepers.pop(what))

    def keepers(self, node: N) -> list[Holder[N]]:
        """Those that may hold so many multiprocessors that a node cannot begin: of each queue the one that may hold
        most."""
        found: list[Holder[N]] = []
        for queue, holders in self.holders.get(self.places[node.queue], {}).items():
            while holders and self.over(holders[0].node):
                holders.popleft()
            began = [holder for holder in holders if holder.start.done[node.queue] < node.position]
            if began and queue != node.queue:
                found.append(max(began, key=lambda holder: holder.node.holds))
        return found if self.room - sum(holder.node.holds for holder in found) < node.needs else []

    def _called(self, call: Call, part: int) -> bool:
        """Begin a call, or say whether it can end."""
        begun = self.begun.setdefault(call.group, set())
        if part == 0:
            begun.add(call.rank)
            if len(begun) == call.ranks:
                self.wake(Obstacle("collective", call.group))
            return True
        return len(begun) == call.ranks

    def deadlocks(self, stuck: list[N]) -> Iterator[Diagnostic]:
        """What each of the nodes waits for, in words."""
        raise NotImplementedError


# ---------------------------------------------------------------- order


class Clocks(Generic[N]):
    """Vector clocks over the nodes, in an order that can happen. `mistakes` are found by the level."""

    def __init__(self, queues: int) -> None:
        self.clocks: list[Clock] = [start(queues)] * queues
        self.starts = list(self.clocks)  # what the node at hand of a queue knew at its start
        self.told: dict[Signal, Clock] = {}  # what those that wait for a signal then know
        self.begun: dict[Hashable, dict[int, Clock]] = {}  # what ranks knew when they called a collective
        self.together: dict[Hashable, Clock] = {}  # what all of them knew
        self.holders: list[Holder[N]] = []
        self.bits = 0
        self.memory = Budget(CHECKED_CLOCKS, PlanError)

    def run(self, order: Iterable[tuple[N, int]]) -> None:
        clocks, told = self.clocks, self.told
        for node, number in order:
            q, part = node.queue, node.parts[number]
            if number == 0:
                self.begin(node)
            before = clock = self.starts[q] if part.apart else clocks[q]
            bit = -1
            if part.single:
                bit, self.bits = self.bits, self.bits + 1
            if node.call is not None:
                clock = self._call(node, node.call, number, clock)
            me = self.toucher(node, number, bit) if part.touches else None
            for signal in part.waits:
                clock = clock.join(told[signal]) if me is None else self.see(signal, clock, me, before)
            if me is not None:
                self.touch(node, number, clock, me, before)
            if part.gives:
                tells = clock.at(q, node.position - 1)
                if bit >= 0:
                    tells = tells.with_work(bit)
                for signal in part.gives:
                    if me is not None:
                        self.give(signal, clock, me)
                    told[signal] = tells
                    self.memory.spend(len(clocks) + self.bits // 32, node.place)
            if me is not None:
                for signal in part.drops:
                    self.drop(signal, clock, me)
            if part.apart:
                clock = clocks[q].join(clock)
            if bit >= 0 and not node.parts[-1].apart:  # whose last part knows those before it
                clock = clock.with_work(bit)
            clocks[q] = clock
            if node.awaited and number == len(node.parts) - 1:
                told[node] = clock.at(q, node.position)
                self.memory.spend(len(clocks) + self.bits // 32, node.place)

    def begin(self, node: N) -> None:
        """A node knows what its queue knows, and the end of the node that it has awaited."""
        q = node.queue
        if node.awaits is not None:
            self.clocks[q] = self.clocks[q].join(self.told[node.awaits])
        self.starts[q] = self.clocks[q]
        if node.holds:
            self.holders.append(Holder(node, self.clocks[q]))

    def _call(self, node: N, call: Call, number: int, clock: Clock) -> Clock:
        begun = self.begun.setdefault(call.group, {})
        if number == 0:
            begun[call.rank] = clock.at(node.queue, node.position - 1)
            return clock
        if len(call.heard) < call.ranks:
            return reduce(Clock.join, (begun[rank] for rank in call.heard), clock)
        if call.group not in self.together:
            self.together[call.group] = reduce(Clock.join, begun.values())
        return clock.join(self.together[call.group])

    # ---- what signals are, and what parts touch

    def see(self, signal: Signal, clock: Clock, me: Toucher, before: Clock) -> Clock:
        """What is known behind a wait for a signal. `before`: without any wait of the part."""
        return clock.join(self.told[signal])

    def give(self, signal: Signal, clock: Clock, me: Toucher) -> None:
        """Raises a signal that is memory: this is an access."""

    def drop(self, signal: Signal, clock: Clock, me: Toucher) -> None:
        """Resets a signal that is memory: this is an access, too."""

    def toucher(self, node: N, number: int, bit: int) -> Toucher:
        """Who touches memory in a part of a node."""
        raise NotImplementedError

    def touch(self, node: N, number: int, clock: Clock, me: Toucher, before: Clock) -> None:
        """Reports the accesses of a part of a node to the ledger."""
        raise NotImplementedError
