"""The check of a device plan, from it alone: well-formed (`rules`), no deadlock, no race, runs apart from each other.

Several runs in a row are walked through, as callers may make them: among callers' streams, behind a run of the same
callers, behind one of others, and on nobody's streams; and callers' graphs that hold runs are replayed.

The first walk is abstract and finds deadlocks. The second has vector clocks and finds races: each access of memory, of
a word as of a tensor, must know the end of the conflicting accesses before it, in the same run or in the one before.
Callers take part: they use a rank's inputs and outputs before a run and after it. The third walk is the first once
more, on devices where kernels that wait hold their shares of the multiprocessors: what needs more than they leave does
not begin.

A device with fewer hardware queues than streams (`crowded`) is walked through as if it had one: an action leaves the
queue when it begins if it is a kernel's launch, else when it has ended, and nothing begins before all that was issued
to the device before it has left. What comes to an end so does it with any number of queues, whichever streams share
them. A graph has its chain instead.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from ficco_dsl.diagnostics import Diagnostic, Note, Span

from ..errors import PlanError
from ..graph.budget import CHECKED_CLOCKS, Budget
from ..graph.ir import Gemm
from ..plan.clock import Clock, start
from ..plan.ir import Work
from ..plan.ledger import Ledger, Race, Toucher, Unwritten
from ..region import Region, describe, whole
from .ir import (
    GRAPHS,
    Action,
    AwaitEvent,
    ChangeWords,
    CopyMemory,
    DeviceLaunch,
    DevicePlan,
    EventName,
    Frame,
    LaunchGraph,
    LaunchKernel,
    Meet,
    MeetStep,
    RecordEvent,
    ResetWords,
    StreamName,
    issued,
)
from .rules import PLACELESS, RULES, words_in_order, writes

MOST_MISTAKES = 20


def check(plan: DevicePlan) -> None:
    """Raises PlanError with every mistake found (at most 20)."""
    for rule in RULES:
        mistakes = tuple(rule(plan))
        if mistakes:
            raise PlanError(mistakes[:MOST_MISTAKES])
    several = [[_CALLED, _BEHIND, _BEHIND_OTHERS, _OWN_BEHIND], [_OWN]]
    for runs in [_REPLAYS] if plan.mode == "embedded" else several:
        _RunSequence(plan, runs).check()


@dataclass(frozen=True, slots=True)
class _RunCase:
    """How a run is made. `callers` numbers sets of callers' streams; none: nobody's. `uses`: the callers touch their
    tensors before it, and after it. NOTE other callers have other tensors: these use theirs in none of the runs."""

    callers: int | None
    behind: bool
    others: bool = False
    timed: bool = False
    uses: tuple[bool, bool] = (False, False)


_OWN = _RunCase(None, behind=False, timed=True)
_CALLED = _RunCase(0, behind=False, uses=(True, True))
_BEHIND = _RunCase(0, behind=True, uses=(True, False))
_BEHIND_OTHERS = _RunCase(1, behind=True, others=True, timed=True)
_REPLAYS = [_CALLED, _RunCase(0, behind=True, uses=(False, True)), _BEHIND]
_OWN_BEHIND = _RunCase(None, behind=True, others=True, timed=True)

# Where a node stands: a stream; one of a set of callers' streams; a stream inside a graph.
_QueueName: TypeAlias = tuple[StreamName, int]
_OUTSIDE, _GRAPH = -1, -2


@dataclass(slots=True, eq=False)
class _Node:
    """An action of a run in its queue; without one the caller's own work (`uses` the tensors of a rank), or the begin
    or the end of a graph. It waits for the node `awaits`; at the begin of a graph that is all that is known."""

    queue: int
    position: int  # in its queue, from 1
    place_of_issue: int  # on its device, from 0
    run: int
    action: Action | None
    place: Span
    awaits: _Node | None = None
    begins: bool = False
    uses: int | None = None
    awaited: bool = False
    done: int = 0  # words or works, while the queue stands here
    over: bool = False
    clock: Clock | None = None  # what its end knows, if somebody awaits it

    def wait_for(self, other: _Node | None) -> None:
        if other is not None:
            self.awaits, other.awaited = other, True


class _RunSequence:
    """Runs of a device plan, one behind the other, as queues of nodes."""

    def __init__(self, plan: DevicePlan, runs: Sequence[_RunCase]) -> None:
        self.plan = plan
        self.queues: list[list[_Node]] = []
        self.names: list[_QueueName] = []
        self.devices: list[int] = []  # of the queues
        self.of_streams = {s.name: s for s in plan.streams}
        self.groups = [_groups(launch) for launch in plan.launches]
        self.issued: dict[int, list[_Node]] = {device: [] for device in plan.placement.ordinals}
        self._numbers: dict[_QueueName, int] = {}
        self._recorded: dict[EventName, _Node] = {}  # the record that was issued last
        self._in_order = words_in_order(plan)
        self._of_flags = {w.flag: i for i, w in enumerate(plan.words) if w.flag is not None}
        self._run = 0
        for self._run, run in enumerate(runs):
            self._add(run)

    def check(self) -> None:
        order = _Walk(self).run()
        if self.plan.crowded and self.plan.mode not in GRAPHS:
            _Walk(self, crowded=frozenset(self.plan.crowded)).run()
        races = _Races(self)
        races.run(order)
        if races.mistakes:
            raise PlanError(tuple(races.mistakes.values())[:MOST_MISTAKES])
        if races.holders:
            _Walk(self, races.holders).run()

    def words(self, flags: Sequence[int]) -> list[int]:
        """Of flags; those between works that are made as one have none."""
        return [self._of_flags[flag] for flag in flags if flag in self._of_flags]

    def reset(self, queue: int, action: ResetWords) -> list[int]:
        return self._in_order[self.devices[queue]][action.first : action.first + action.count]

    # ---- the queues

    def _add(self, run: _RunCase) -> None:
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

    def _graphs(self, frame: Frame, run: _RunCase) -> None:
        """The graphs' insides. Whoever launched a graph goes on when the graph's control stream is through."""
        launched: dict[int, _Node] = {}
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

    def _outside(self, action: Action, run: _RunCase) -> None:
        self._node(self._of(action, run), action)

    def _of(self, action: Action, run: _RunCase) -> int:
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

    def _append(self, queue: int, action: Action | None, place: Span) -> _Node:
        issued = self.issued[self.devices[queue]]
        node = _Node(queue, len(self.queues[queue]) + 1, len(issued), self._run, action, place)
        self.queues[queue].append(node)
        issued.append(node)
        return node

    def _queue(self, key: _QueueName, device: int) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.queues)
            self.queues.append([])
            self.names.append(key)
            self.devices.append(device)
        return self._numbers[key]


def _taking_part(actions: Sequence[Action], run: _RunCase) -> Iterator[Action]:
    for action in actions:
        if issued(action.when, behind=run.behind, timed=run.timed, others=run.others, replays=False):
            yield action


@dataclass(frozen=True, slots=True)
class _Group:
    """Works that a kernel makes as one: the flags that it waits for and raises."""

    works: tuple[Work, ...]
    waits: tuple[int, ...]
    signals: tuple[int, ...]


def _groups(launch: DeviceLaunch) -> list[_Group]:
    """A launch's works as its kernel takes them, in order."""
    found = []
    for members in launch.config.merged or tuple((i,) for i in range(len(launch.works))):
        works = tuple(launch.works[i] for i in members)
        waits = dict.fromkeys(flag for work in works for flag in work.waits if flag not in launch.config.unraised)
        found.append(_Group(works, tuple(waits), works[-1].signals))
    return found


@dataclass(frozen=True, slots=True)
class _Holder:
    """A launch that may hold its share of a device's multiprocessors while it waits. `start` is what it knows then:
    what is done by that time cannot be kept out."""

    node: _Node
    sms: int
    start: Clock


# ---------------------------------------------------------------- liveness


class _Walk:
    """Goes through the queues in the abstract, in any order. The works of a kernel are taken one by one in their order,
    as on a device with room for one block only: if this comes to an end, so does every device."""

    def __init__(
        self, runs: _RunSequence, holders: Sequence[_Holder] = (), crowded: frozenset[int] = frozenset()
    ) -> None:
        """`crowded`: devices of one hardware queue."""
        self.runs, self.plan = runs, runs.plan
        self.left = dict.fromkeys(crowded, 0)  # nodes that have left the device's hardware queue
        self.at = [0] * len(runs.queues)
        self.up: set[int] = set()
        self.order: list[tuple[_Node, int]] = []
        self.sleepers: dict[object, list[int]] = {}
        self.blocked: dict[int, object] = {}
        self.holders: dict[int, list[_Holder]] = defaultdict(list)  # by device
        for holder in holders:
            self.holders[runs.devices[holder.node.queue]].append(holder)
        for node in chain.from_iterable(runs.queues):
            node.over, node.done = False, 0

    def run(self) -> list[tuple[_Node, int]]:
        """Nodes, and which word or work of each, in an order that can happen. Raises PlanError on a deadlock."""
        ready = deque(range(len(self.runs.queues)))
        while ready:
            q = ready.popleft()
            nodes = self.runs.queues[q]
            while self.at[q] < len(nodes):
                blocked = self._step(nodes[self.at[q]], ready)
                if blocked is not None:
                    self.sleepers.setdefault(blocked, []).append(q)
                    self.blocked[q] = blocked
                    break
                nodes[self.at[q]].over = True
                self._leave(nodes[self.at[q]], ready)
                self._wake(nodes[self.at[q]], ready)
                self.at[q] += 1
        stuck = [q for q, nodes in enumerate(self.runs.queues) if self.at[q] < len(nodes)]
        if stuck:
            raise PlanError(tuple(self._deadlock(q) for q in stuck[:MOST_MISTAKES]))
        return self.order

    def _step(self, node: _Node, ready: deque[int]) -> object | None:
        """Do a node, or say what it waits for: another node, a word, or the multiprocessors of a device."""
        if node.awaits is not None and not node.awaits.over:
            return node.awaits
        device = self.runs.devices[node.queue]
        if node.place_of_issue > self.left.get(device, node.place_of_issue):
            return ("hardware queue", device)
        match node.action:
            case LaunchKernel(launch=launch):
                return self._launch(node, launch, ready)
            case ChangeWords(changes=changes):
                while node.done < len(changes):
                    change = changes[node.done]
                    if change.raises:
                        self._raise(change.word, ready)
                    elif change.word not in self.up:
                        return ("word", change.word)
                    self._did(node)
                return None
            case Meet(steps=steps):
                return self._meet(node, steps, ready)
            case CopyMemory(words=words):
                if any(self._local(move.dst, move.src) for move in node.action.moves) and self._kept_out(node, 1):
                    return ("processors", self.runs.devices[node.queue])
                for word in words:
                    self._raise(word, ready)
            case ResetWords():
                self.up.difference_update(self.runs.reset(node.queue, node.action))
        self.order.append((node, 0))
        return None

    def _meet(self, node: _Node, steps: Sequence[MeetStep], ready: deque[int]) -> object | None:
        if node.done == 0 and self._kept_out(node, 1):
            return ("processors", self.runs.devices[node.queue])
        while node.done < len(steps):
            step = steps[node.done]
            for word in step.words:
                if step.does == "raise":
                    self._raise(word, ready)
                elif step.does == "reset":
                    self.up.discard(word)
                elif word not in self.up:
                    return ("word", word)
            self._did(node)
        self._wake(("processors", self.runs.devices[node.queue]), ready)
        return None

    def _launch(self, node: _Node, number: int, ready: deque[int]) -> object | None:
        launch = self.plan.launches[number]
        if node.done == 0 and self._kept_out(node, launch.config.cluster):
            return ("processors", self.runs.devices[node.queue])
        self._leave(node, ready)
        groups = self.runs.groups[number]
        while node.done < len(groups):
            group = groups[node.done]
            for word in self.runs.words(group.waits):
                if word not in self.up:
                    return ("word", word)
            for word in self.runs.words(group.signals):
                self._raise(word, ready)
            self._did(node)
        self.up.difference_update(self.runs.words(launch.config.resets))
        self._wake(("processors", self.runs.devices[node.queue]), ready)
        return None

    def _leave(self, node: _Node, ready: deque[int]) -> None:
        """The node leaves its device's hardware queue, if it has not yet."""
        device = self.runs.devices[node.queue]
        if self.left.get(device) == node.place_of_issue:
            self.left[device] += 1
            self._wake(("hardware queue", device), ready)

    def _did(self, node: _Node) -> None:
        self.order.append((node, node.done))
        node.done += 1

    def _raise(self, word: int, ready: deque[int]) -> None:
        self.up.add(word)
        self._wake(("word", word), ready)

    def _wake(self, what: object, ready: deque[int]) -> None:
        ready.extend(self.sleepers.pop(what, ()))

    def _local(self, dst: Region, src: Region) -> bool:
        """Inside a device, where multiprocessors may make a copy."""
        devices = self.plan.placement.devices
        return devices[dst.rank] == devices[src.rank]

    def _kept_out(self, node: _Node, needed: int) -> list[_Holder]:
        """The launches that may hold so many multiprocessors that `needed` are not left; none: the node can begin."""
        found: dict[int, _Holder] = {}  # by queue, the one that may hold most
        for holder in self.holders.get(self.runs.devices[node.queue], ()):
            other = holder.node.queue
            began = other != node.queue and holder.start.done[node.queue] < node.position
            most = found[other].sms if other in found else 0
            if began and not holder.node.over and holder.sms > most:
                found[other] = holder
        left = self.plan.device.sms - sum(holder.sms for holder in found.values())
        return list(found.values()) if left < needed else []

    def _deadlock(self, q: int) -> Diagnostic:
        node, what = self.runs.queues[q][self.at[q]], self.blocked[q]
        notes: list[Note] = []
        match what:
            case _Node():
                text = "a node"
                if isinstance(what.action, RecordEvent):
                    text = f"{what.action.event} of {self.runs.names[what.queue][0]}"
                elif node.begins or node.action is None:
                    text = "a graph"
            case ("word", int(word)):
                text = f"word {word} ({self.plan.words[word].purpose})"
            case ("hardware queue", int(device)):
                text = f"a hardware queue of device {device}"
                first = self.runs.issued[device][self.left[device]]
                notes.append(Note(f"{self.runs.names[first.queue][0]} stands before it there", first.place))
            case _:
                device = self.runs.devices[q]
                text = f"the multiprocessors of device {device}"
                needed = 1
                if isinstance(node.action, LaunchKernel):
                    needed = self.plan.launches[node.action.launch].config.cluster
                for holder in self._kept_out(node, needed):
                    name = self.runs.names[holder.node.queue][0]
                    notes.append(
                        Note(f"a kernel on {name} may hold {holder.sms} of them while it waits", holder.node.place)
                    )
        stream = self.runs.names[q][0]
        return Diagnostic(node.place, f"deadlock: {stream} waits for {text}", tuple(notes))


# ---------------------------------------------------------------- races


class _Races:
    """Vector clocks over the nodes, in an order that can happen."""

    def __init__(self, runs: _RunSequence) -> None:
        self.runs, self.plan = runs, runs.plan
        self.mistakes: dict[tuple[Span, Span, str], Diagnostic] = {}
        self.holders: list[_Holder] = []
        self.nothing = start(len(runs.queues))
        self.clocks: list[Clock] = [self.nothing] * len(runs.queues)
        self.raised: dict[int, Clock] = {}  # what a word that is up tells
        self.bits = 0
        self.base: dict[int, Clock] = {}  # of the launch at hand on a queue
        self.memory = Budget(CHECKED_CLOCKS, PlanError)
        shapes = {t.name: t.shapes for t in self.plan.tensors}
        shapes |= {_word_name(i): ((1,),) for i in range(len(self.plan.words))}
        self.bound = {
            rank: [whole(t.name, rank, t.shapes[rank]) for t in self.plan.tensors if t.kind != "scratch"]
            for rank in range(len(self.plan.placement.devices))
        }
        written = chain(
            writes(self.plan), chain.from_iterable(self.bound.values()), map(_word, range(len(self.plan.words)))
        )
        made = {t.name for t in self.plan.tensors if t.kind != "input"}
        self.ledger = Ledger(shapes, written, self._tell, made)

    def run(self, order: Sequence[tuple[_Node, int]]) -> None:
        for node, part in order:
            q = node.queue
            if node.begins:
                assert node.awaits is not None
                assert node.awaits.clock is not None
                self.clocks[q] = node.awaits.clock
            elif node.awaits is not None:
                assert node.awaits.clock is not None
                self.clocks[q] = self.clocks[q].join(node.awaits.clock)
            self._do(node, part)
            if node.awaited:
                node.clock = self.clocks[q].at(q, node.position)
                self.memory.spend(len(self.clocks) + self.bits // 32, node.place)

    def _do(self, node: _Node, part: int) -> None:
        q, action = node.queue, node.action
        match action:
            case None if node.uses is not None:
                me = Toucher(q, node.position, -1, node.place, f"the caller of rank {node.uses}", run=-1)
                for region in self.bound[node.uses]:
                    self.ledger.write(region, self.clocks[q], me)
            case ChangeWords(changes=changes):
                change = changes[part]
                me = self._me(node, -1)
                if change.raises:
                    self._raise(change.word, self.clocks[q], me, self.clocks[q].at(q, node.position))
                else:
                    self.clocks[q] = self._see(change.word, self.clocks[q], me)
            case Meet(steps=steps):
                self._meet(node, steps, part)
            case CopyMemory(moves=moves, words=words):
                for word in words:  # they tell what stood before them, and nothing of the copies in the same batch
                    bit, self.bits = self.bits, self.bits + 1
                    tells = self.clocks[q].at(q, node.position - 1).with_work(bit)
                    self._raise(word, self.clocks[q], self._me(node, bit), tells)
                for move in moves:
                    me = self._me(node, -1, move.origin, (move.op, 1))
                    self.ledger.read(move.src, self.clocks[q], me)
                    self.ledger.write(move.dst, self.clocks[q], me)
            case ResetWords():
                me = self._me(node, -1)
                for word in self.runs.reset(q, action):
                    self.ledger.write(_word(word), self.clocks[q], me)
            case LaunchKernel(launch=number):
                self._work(node, number, part)

    def _meet(self, node: _Node, steps: Sequence[MeetStep], part: int) -> None:
        """One step. It knows those before it."""
        q, step = node.queue, steps[part]
        if part == 0:
            self.holders.append(_Holder(node, 1, self.clocks[q]))
        bit, self.bits = self.bits, self.bits + 1
        me = self._me(node, bit)
        tells = self.clocks[q].at(q, node.position - 1).with_work(bit)
        for word in step.words:
            if step.does == "raise":
                self._raise(word, self.clocks[q], me, tells)
            elif step.does == "reset":
                self.ledger.write(_word(word), self.clocks[q], me)
            else:
                self.clocks[q] = self._see(word, self.clocks[q], me)
        self.clocks[q] = self.clocks[q].with_work(bit)

    def _work(self, node: _Node, number: int, part: int) -> None:
        """One group of works: it knows what the launch knew at its start and what its own words tell, nothing of the
        works before it. The stream knows the end of all."""
        q, launch, groups = node.queue, self.plan.launches[number], self.runs.groups[number]
        if part == 0:
            self.base[q] = self.clocks[q]
            if launch.spins:
                self.holders.append(_Holder(node, launch.sms, self.clocks[q]))
        group = groups[part]
        bit, self.bits = self.bits, self.bits + 1
        me = self._me(node, bit, group.works[0].origin)
        base = clock = self.base[q]
        for word in self.runs.words(group.waits):
            clock = self._see(word, clock, me)
        for i, work in enumerate(group.works):
            mine = self._me(node, bit, work.origin, (work.op, 0))
            early = _before_waits(launch, work)
            # sums stay in registers: the first work reads what it adds to, the last one writes
            for region in work.reads:
                if i == 0 or region not in work.writes:
                    self.ledger.read(region, base if region in early else clock, mine)
            for region in work.writes if i == len(group.works) - 1 else ():
                self.ledger.write(region, clock, mine)
        done = clock.at(q, node.position - 1).with_work(bit)
        for word in self.runs.words(group.signals):
            self._raise(word, clock, me, done)
        self.clocks[q] = self.clocks[q].join(clock).with_work(bit)
        if part == len(groups) - 1:
            for word in self.runs.words(launch.config.resets):
                self.ledger.write(_word(word), self.clocks[q], self._me(node, -1))

    # ---- words

    def _raise(self, word: int, clock: Clock, me: Toucher, tells: Clock) -> None:
        self.ledger.write(_word(word), clock, me)
        self.raised[word] = tells
        self.memory.spend(len(self.clocks) + self.bits // 32, me.origin)

    def _see(self, word: int, clock: Clock, me: Toucher) -> Clock:
        """The clock of who has seen the word up."""
        tells = clock.join(self.raised[word])
        self.ledger.read(_word(word), tells, me)
        return tells

    def _me(self, node: _Node, bit: int, origin: Span | None = None, order: tuple[int, int] = (0, 0)) -> Toucher:
        assert node.action is not None
        who = f"{node.action.cause.text} ({self.runs.names[node.queue][0]})"
        return Toucher(node.queue, node.position, bit, origin or node.place, who, node.run, order)

    def _tell(self, found: Race | Unwritten) -> None:
        where = f"{found.region.tensor}@{found.region.rank} {describe(found.box)}"
        word = _number(found.region)
        if word is not None:
            where = f"word {word} ({self.plan.words[word].purpose})"
        if isinstance(found, Unwritten):
            message = f"{found.reader.what} reads {where}, which nothing has written in the run"
            key = (found.reader.origin, found.reader.origin, found.region.tensor)
            self.mistakes.setdefault(key, Diagnostic(found.reader.origin, message))
            return
        earlier, later = found.earlier, found.later
        key = (earlier.origin, later.origin, found.region.tensor)
        if found.kind == "race":
            message = f"race on {where}: {later.what} {found.does} it, {earlier.what} {found.did} it, "
            message += "and nothing orders the two"
        else:
            message = f"{earlier.what} {found.did} {where} before {later.what} {found.does} it; the schedule has them "
            message += "the other way round"
        note = Note(f"the other access: {earlier.what} {found.did} here", earlier.origin)
        self.mistakes.setdefault(key, Diagnostic(later.origin, message, (note,)))


def _before_waits(launch: DeviceLaunch, work: Work) -> tuple[Region, ...]:
    """What a work reads before the words that it waits for are up: read-only operands."""
    if not isinstance(work.body, Gemm):
        return ()
    left, right = launch.config.read_only
    return (*((work.body.left,) if left else ()), *((work.body.right,) if right else ()))


def _word_name(word: int) -> str:
    return f"word {word}"


def _word(word: int) -> Region:
    return whole(_word_name(word), 0, (1,))


def _number(region: Region) -> int | None:
    return int(region.tensor.removeprefix("word ")) if region.tensor.startswith("word ") else None
