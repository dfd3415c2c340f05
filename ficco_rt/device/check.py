"""The check of a device plan, from it alone: well-formed (`rules`), no deadlock, no race, runs apart from each other.

Several runs in a row are walked through, as callers may make them: on nobody's streams, until the host has seen the end
and uses the tensors; among callers' streams, behind a run of the same callers, behind one of others, behind a run of
another mode; and before and behind replays of callers' graphs.

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

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice

from ficco_dsl.diagnostics import Diagnostic, Note

from ..errors import DeviceError, PlanError
from ..geometry.region import Region
from .features import too_few_queues
from .ir import (
    GRAPHS,
    AwaitEvent,
    CallCollective,
    ChangeWords,
    CopyMemory,
    DevicePlan,
    LaunchKernel,
    Manner,
    Meet,
    RecordEvent,
    ResetWords,
)
from .races import Races
from .rules import RULES
from .sequence import Holder, Node, Other, RunCase, RunSequence, Seen, Step

MOST_MISTAKES = 20

_CALLED = RunCase(Manner(True, behind=False, timed=False), uses=(True, True))
_LIKE = RunCase(Manner(True, behind=True, timed=False), uses=(True, True))
_REPLAY = Manner(True, behind=True, timed=False, others=True, replays=True)
_PLAIN: tuple[Step, ...] = (
    RunCase(Manner(False, behind=False, timed=True)),
    RunCase(Manner(False, behind=True, timed=True)),
    Other(called=False),
    RunCase(Manner(False, behind=True, timed=True, others=True)),
    Seen(),
    _CALLED,
    _LIKE,
    Other(),
    RunCase(Manner(True, behind=True, timed=True, others=True), callers=1),
    Seen(),
)
_BESIDE_REPLAYS: tuple[Step, ...] = (  # behind what stands in `_PLAIN`
    Other(replay=True),
    RunCase(Manner(True, behind=True, timed=False, others=True, replays=True), callers=1),
    Other(replay=True, callers=1),
    RunCase(Manner(False, behind=True, timed=True, others=True, replays=True)),
    Seen(replays=True),
)
_REPLAYS: tuple[Step, ...] = (
    RunCase(_REPLAY, uses=(True, True)),
    Other(replays=True),
    RunCase(_REPLAY, uses=(False, True)),
    RunCase(_REPLAY, uses=(True, False)),
    Other(called=False, replays=True),
    Seen(replays=True),
)


def check(plan: DevicePlan) -> None:
    """Raises PlanError with every mistake found (at most 20)."""
    for rule in RULES:
        mistakes = tuple(islice(rule(plan), MOST_MISTAKES))
        if mistakes:
            raise PlanError(mistakes)
    several: list[tuple[Step, ...]] = [_REPLAYS]
    if plan.mode != "embedded":
        plain = (*map(_traced, _PLAIN),) if plan.mode == "traced" else (*_PLAIN, *_otherwise_timed(plan))
        several = [(*plain, *_BESIDE_REPLAYS) if plan.features.embeds else plain]
    if plan.sets > 1:  # each set more than once, behind runs of the same callers
        several.append((_CALLED, _LIKE, _LIKE, _LIKE))
    for steps in several:
        _check_runs(RunSequence(plan, [step for step in steps for _ in range(_times(step, plan))]))


def _times(step: Step, plan: DevicePlan) -> int:
    """Runs of other modes take every set, so that the run behind them finds each touched."""
    return plan.sets if isinstance(step, Other) and not step.replay else 1


def _traced(step: Step) -> Step:
    """A traced run takes its times, whoever makes it."""
    return replace(step, manner=replace(step.manner, timed=True)) if isinstance(step, RunCase) else step


def _otherwise_timed(plan: DevicePlan) -> Iterator[Step]:
    """The runs of `_PLAIN` that begin in another way when their times are taken, or are not."""
    awaited = {action.event for action in plan.actions if isinstance(action, AwaitEvent)}
    only_timed = [
        action
        for action in plan.called.begin
        if action.when in ("timed", "timed or behind")
        and not (isinstance(action, RecordEvent) and action.event not in awaited)
    ]
    if not only_timed:
        return
    alone, like = Manner(True, behind=False, timed=True), Manner(True, behind=True, timed=True)
    if any(action.when == "timed" for action in only_timed):
        others = Manner(True, behind=True, timed=False, others=True)
        yield from (_CALLED, RunCase(like, uses=(True, True)), Other(), RunCase(others, callers=1), Seen())
    yield from (RunCase(alone, uses=(True, False)), Seen())


def checked(plan: DevicePlan) -> DevicePlan:
    """The device plan, if it holds. DeviceError: it has no order that the hardware queues of its devices can take."""
    try:
        check(plan)
    except PlanError as error:
        if not plan.crowded:
            raise
        raise DeviceError(too_few_queues(plan)) from error
    return plan


def _check_runs(runs: RunSequence) -> None:
    plan = runs.plan
    order = _Walk(runs).run()
    if plan.crowded and plan.mode not in GRAPHS:
        _Walk(runs, crowded=frozenset(plan.crowded)).run()
    races = Races(runs)
    races.run(order)
    if races.mistakes:
        raise PlanError(tuple(races.mistakes.values())[:MOST_MISTAKES])
    if races.holders:
        _Walk(runs, races.holders).run()


class _Walk:
    """Goes through the queues in the abstract, in any order. The works of a kernel are taken one by one in their order,
    as on a device with room for one block only: if this comes to an end, so does every device."""

    def __init__(
        self, runs: RunSequence, holders: Sequence[Holder] = (), crowded: frozenset[int] = frozenset()
    ) -> None:
        """`crowded`: devices of one hardware queue."""
        self.runs, self.plan = runs, runs.plan
        self.left = dict.fromkeys(crowded, 0)  # nodes that have left the device's hardware queue
        self.at = [0] * len(runs.queues)
        self.up: set[int] = set()
        self.told: Counter[int] = Counter()  # by word that tells of runs
        self.called: dict[tuple[int, int], int] = {}  # collectives of runs: how many ranks have begun
        self.order: list[tuple[Node, int]] = []
        self.sleepers: dict[object, list[int]] = {}
        self.blocked: dict[int, object] = {}
        self.holders: dict[int, list[Holder]] = defaultdict(list)  # by device
        for holder in holders:
            self.holders[runs.devices[holder.node.queue]].append(holder)
        for node in chain.from_iterable(runs.queues):
            node.over, node.done = False, 0

    def run(self) -> list[tuple[Node, int]]:
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
        if stuck:  # NOTE what is outside of the plan is stuck behind what is in it
            stuck.sort(
                key=lambda q: (self.runs.queues[q][self.at[q]].action is None, self.runs.queues[q][self.at[q]].run)
            )
            raise PlanError(tuple(self._deadlock(q) for q in stuck[:MOST_MISTAKES]))
        return self.order

    def _step(self, node: Node, ready: deque[int]) -> object | None:
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
                    word = self.runs.word(node, change.word)
                    if change.raises:
                        self._raise(word, ready)
                    elif word not in self.up:
                        return ("word", word)
                    elif change.takes:
                        self.up.discard(word)
                    self._did(node)
                return None
            case Meet():
                return self._meet(node, node.action, ready)
            case CallCollective():
                return self._call(node, node.action, ready)
            case CopyMemory(words=words):
                if any(self._local(move.dst, move.src) for move in node.action.moves) and self._kept_out(node, 1):
                    return ("processors", self.runs.devices[node.queue])
                for word in words:
                    self._raise(self.runs.word(node, word), ready)
            case ResetWords():
                self.up.difference_update(self.runs.reset(node, node.action))
        self.order.append((node, 0))
        return None

    def _meet(self, node: Node, meet: Meet, ready: deque[int]) -> object | None:
        if node.done == 0 and self._kept_out(node, 1):
            return ("processors", self.runs.devices[node.queue])
        while node.done < len(meet.steps):
            step = meet.steps[node.done]
            runs = self.told[self.runs.word(node, meet.runs)]
            for word in (self.runs.word(node, number) for number in step.words):
                if step.does == "raise":
                    self.told[word] = runs
                    self._wake(("word", word), ready)
                elif step.does == "count":
                    self.told[word] += 1
                elif step.does == "reset":
                    self.up.discard(word)
                elif self.told[word] < runs:
                    return ("word", word)
            self._did(node)
        self._wake(("processors", self.runs.devices[node.queue]), ready)
        return None

    def _launch(self, node: Node, number: int, ready: deque[int]) -> object | None:
        launch = self.plan.launches[number]
        if node.done == 0 and self._kept_out(node, launch.config.together):
            return ("processors", self.runs.devices[node.queue])
        self._leave(node, ready)
        groups = self.runs.groups[number]
        while node.done < len(groups):
            group = groups[node.done]
            for word in self.runs.words(node, group.waits):
                if word not in self.up:
                    return ("word", word)
            for word in self.runs.words(node, group.signals):
                self._raise(word, ready)
            self._did(node)
        self.up.difference_update(self.runs.words(node, launch.config.resets))
        self._wake(("processors", self.runs.devices[node.queue]), ready)
        return None

    def _call(self, node: Node, call: CallCollective, ready: deque[int]) -> object | None:
        """It begins where it finds its multiprocessors, and ends when it has begun on all ranks."""
        key = (node.run, call.group)
        if node.done == 0:
            if self._kept_out(node, self.plan.communicators[call.communicator].blocks):
                return ("processors", self.runs.devices[node.queue])
            self.called[key] = self.called.get(key, 0) + 1
            self._did(node)
        if self.called[key] < len(self.plan.placement.devices):
            return ("collective", key)
        self._wake(("collective", key), ready)
        self._did(node)
        self._wake(("processors", self.runs.devices[node.queue]), ready)
        return None

    def _leave(self, node: Node, ready: deque[int]) -> None:
        """Take the node out of its hardware queue, if it is still there."""
        device = self.runs.devices[node.queue]
        if self.left.get(device) == node.place_of_issue:
            self.left[device] += 1
            self._wake(("hardware queue", device), ready)

    def _did(self, node: Node) -> None:
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

    def _kept_out(self, node: Node, needed: int) -> list[Holder]:
        """The launches that may hold so many multiprocessors that `needed` are not left; none: the node can begin."""
        found: dict[int, Holder] = {}  # by queue, the one that may hold most
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
            case Node():
                text = "a node"
                if isinstance(what.action, RecordEvent):
                    text = f"{what.action.event} of {self.runs.names[what.queue][0]}"
                elif what.touches is not None:
                    text = what.touches.who
                elif node.begins or node.action is None:
                    text = "a graph"
            case ("word", int(word)):
                text = self.runs.purpose(word)
            case ("collective", _):
                assert isinstance(node.action, CallCollective)
                text = f"the other ranks' calls of collective {node.action.group}"
            case ("hardware queue", int(device)):
                text = f"a hardware queue of device {device}"
                first = self.runs.issued[device][self.left[device]]
                notes.append(Note(f"{self.runs.names[first.queue][0]} stands before it there", first.place))
            case _:
                device = self.runs.devices[q]
                text = f"the multiprocessors of device {device}"
                needed = 1
                if isinstance(node.action, LaunchKernel):
                    needed = self.plan.launches[node.action.launch].config.together
                elif isinstance(node.action, CallCollective):
                    needed = self.plan.communicators[node.action.communicator].blocks
                for holder in self._kept_out(node, needed):
                    name = self.runs.names[holder.node.queue][0]
                    notes.append(
                        Note(f"a kernel on {name} may hold {holder.sms} of them while it waits", holder.node.place)
                    )
        stream = self.runs.names[q][0]
        return Diagnostic(node.place, f"deadlock: {stream} waits for {text}", tuple(notes))
