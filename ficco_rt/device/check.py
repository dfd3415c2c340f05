"""Checks a device plan from the plan alone: it is well-formed (`device_plan_rules`), has no deadlock and no race, and
consecutive runs do not interfere.

The check walks through several runs in a row, as callers may make them: without callers' streams, until the host has
seen the end and uses the tensors; among callers' streams, after a run of the same callers and after a run of others;
and before and after other runs, of any plan in any mode, on streams and in callers' graphs, of which it knows the
contract alone (`sharing`). So it also shows that the plan keeps the contract.

The first walk is abstract and finds deadlocks. The second walk uses vector clocks and finds races: each access to a
tensor or a semaphore must know the end of the conflicting accesses before it, in the same run or in the previous one.
Callers take part: they use a rank's inputs and outputs before and after a run. The third walk repeats the first on
devices where waiting kernels hold their shares of the multiprocessors: a kernel that needs more than they leave does
not begin.

A device with fewer hardware queues than streams (`crowded`) is checked as if it had one queue. A kernel launch leaves
the queue when the kernel begins, any other action when it has ended, and nothing begins before everything that was
issued to the device earlier has left. A run that completes with one queue completes with any number of queues,
whichever streams share them: a walk of its own shows that it does. So are runs among callers' streams, where these take
inline streams' actions. Graphs are checked with their chain instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from ficco_dsl.diagnostics import Diagnostic, Note

from ..errors import DeviceError, PlanError
from ..plan.walk import MOST_MISTAKES, Holder, Obstacle, Walk
from . import ir
from .device_plan_rules import RULES
from .features import too_few_queues
from .races import Races
from .run_ends import known_ends
from .sequence import Node, Other, RunCase, RunSequence, Seen, Step

_CALLED = RunCase(ir.Manner(True, behind=False, timed=False), uses=(True, True))
_LIKE = RunCase(ir.Manner(True, behind=True, timed=False), uses=(True, True))
_REPLAY = ir.Manner(True, behind=True, timed=False, others=True, replays=True)
_LATER = replace(_REPLAY, replays=False)
_OWN = RunCase(ir.Manner(False, behind=True, timed=True, others=True))
_AMONG = RunCase(ir.Manner(True, behind=True, timed=False, others=True), callers=1)
# NOTE Two runs that are unlike the plan's, or alike, with one of it between them show that it has begun everywhere when
# it ends. Behind replays, and in callers' graphs, a run stands right behind one that uses the same set.
_PLAIN: tuple[Step, ...] = (
    RunCase(ir.Manner(False, behind=False, timed=True)),
    Seen(),
    RunCase(ir.Manner(False, behind=False, timed=True)),
    RunCase(ir.Manner(False, behind=True, timed=True)),
    Other(called=False),
    _OWN,
    Other(called=False),
    _OWN,
    Other(called=False, alike=False),
    _OWN,
    Other(called=False, alike=False),
    Seen(),
    _CALLED,
    _LIKE,
    _LIKE,
    Other(),
    replace(_AMONG, manner=replace(_AMONG.manner, timed=True)),
    Other(),
    _AMONG,
    Other(alike=False),
    _AMONG,
    Other(alike=False),
    Seen(),
)
# Others that record their ends where the plan's runs do, if these would wait there (`known_ends`).
_LAST = replace(_LIKE, uses=(True, False))  # the host sees the end of runs, and not what callers do behind them
_BEHIND_KNOWN: tuple[Step, ...] = (_CALLED, Other(), _LIKE, Other(alike=False), _LAST, Seen())
_BESIDE_REPLAYS: tuple[Step, ...] = (  # behind what stands in `_PLAIN`
    Other(replay=True),
    RunCase(ir.Manner(True, behind=True, timed=False, others=True, replays=True), callers=1),
    Other(replay=True, callers=1),
    RunCase(ir.Manner(True, behind=True, timed=False, others=True, replays=True)),
    Other(replay=True),
    Other(replay=True, later=True),
    RunCase(ir.Manner(True, behind=True, timed=False, others=True, replays=True)),
    Other(replay=True),
    Other(replay=True, later=True),
    RunCase(ir.Manner(False, behind=True, timed=True, others=True, replays=True)),
    Other(replays=True),
    RunCase(ir.Manner(False, behind=True, timed=True, others=True, replays=True)),
    Seen(replays=True),
    Other(replay=True),
    RunCase(ir.Manner(False, behind=True, timed=True, replays=True)),  # and before the replay a run that was like it
    Seen(replays=True),
    Other(replay=True),
    RunCase(ir.Manner(True, behind=True, timed=False, replays=True)),
    Seen(replays=True),
)
_REPLAYS: tuple[Step, ...] = (
    RunCase(_REPLAY, uses=(True, True)),
    RunCase(_LATER, uses=(True, True)),
    Other(replay=True, later=True),
    RunCase(_LATER, uses=(False, True)),
    Other(replay=True, later=True),
    RunCase(_LATER),
    Other(replay=True, later=True, alike=False),
    RunCase(_LATER),
    Other(replay=True, later=True, alike=False),
    RunCase(_REPLAY, uses=(True, False)),
    RunCase(_REPLAY, uses=(False, True)),
    Other(replay=True),
    RunCase(_REPLAY),
    Other(replays=True),
    Other(replays=True),
    RunCase(_REPLAY),
    Other(replay=True),
    RunCase(_LATER, uses=(True, False)),
    Other(replays=True, alike=False),
    RunCase(_REPLAY),
    Other(called=False, replays=True),
    Seen(replays=True),
)


def check(plan: ir.DevicePlan) -> None:
    """Raises PlanError with every mistake found (at most 20)."""
    for rule in RULES:
        mistakes = tuple(islice(rule(plan), MOST_MISTAKES))
        if mistakes:
            raise PlanError(mistakes)
    several: list[tuple[Step, ...]] = [_REPLAYS]
    if plan.mode != "embedded":
        plain = (*map(_traced, _PLAIN),) if plan.mode == "traced" else (*_PLAIN, *_otherwise_timed(plan))
        waits, ends = known_ends(plan)
        if plan.mode not in ir.GATED and waits <= ends:
            plain = (*plain, *_BEHIND_KNOWN)
        several = [(*plain, *_BESIDE_REPLAYS) if plan.features.embeds else plain]
    for steps in several:
        _check_runs(RunSequence(plan, steps))
    if any(stream.inline for stream in plan.streams):
        _in_one_queue(plan)


def shares_queues(plan: ir.DevicePlan) -> bool:
    """Whether runs end where the callers' streams share hardware queues with streams of the plan."""
    try:
        _in_one_queue(plan)
    except PlanError:
        return False
    return True


def _in_one_queue(plan: ir.DevicePlan) -> None:
    """NOTE the driver makes the plan's streams one after another, so that no two of them share a queue; nothing says
    in which queues those of callers lie."""
    _Walk(RunSequence(plan, (_CALLED, _LIKE, _AMONG, Seen())), crowded=plan.placement.ordinals).run()


def _traced(step: Step) -> Step:
    """A traced run takes its times, whoever makes it."""
    return replace(step, manner=replace(step.manner, timed=True)) if isinstance(step, RunCase) else step


def _otherwise_timed(plan: ir.DevicePlan) -> Iterator[Step]:
    """The runs of `_PLAIN` that begin in another way when their times are taken, or are not."""
    awaited = {action.event for action in plan.actions if isinstance(action, ir.AwaitEvent)}
    only_timed = [
        action
        for action in plan.called.prologue
        if action.when == "timed" and not (isinstance(action, ir.RecordEvent) and action.event not in awaited)
    ]
    if not only_timed:
        return
    alone, like = ir.Manner(True, behind=False, timed=True), ir.Manner(True, behind=True, timed=True)
    others = ir.Manner(True, behind=True, timed=False, others=True)
    yield from (_CALLED, RunCase(like, uses=(True, True)), Other(), RunCase(others, callers=1), Seen())
    yield from (RunCase(alone, uses=(True, False)), Seen())


def checked(plan: ir.DevicePlan) -> ir.DevicePlan:
    """The device plan, if it is valid. DeviceError: no order of it works with the hardware queues of its devices."""
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
    if plan.crowded and plan.mode not in ir.GRAPHS:
        _Walk(runs, crowded=plan.crowded).run()
    races = Races(runs)
    races.run(order)
    if races.mistakes:
        raise PlanError(tuple(races.mistakes.values())[:MOST_MISTAKES])
    if races.holders:
        _Walk(runs, races.holders).run()


class _Walk(Walk[Node]):
    """`crowded`: devices of one hardware queue."""

    def __init__(self, runs: RunSequence, holders: Iterable[Holder[Node]] = (), crowded: Iterable[int] = ()) -> None:
        super().__init__(runs.queues, runs.devices, runs.plan.device.sms, holders)
        self.runs = runs
        self.left = dict.fromkeys(crowded, 0)  # nodes that have left the device's hardware queue

    def hindrance(self, node: Node) -> object | None:
        if not self.left:
            return super().hindrance(node)
        device = self.places[node.queue]
        first = node.awaits is None or self.over(node.awaits)
        if first and node.place_of_issue > self.left.get(device, node.place_of_issue):
            return Obstacle("hardware queue", device)
        blocked = super().hindrance(node)
        if blocked is None and isinstance(node.action, ir.LaunchKernel):
            self._leave(node)
        return blocked

    def ended(self, node: Node) -> None:
        super().ended(node)
        self._leave(node)

    def _leave(self, node: Node) -> None:
        """Take the node out of its hardware queue, if it is still there."""
        device = self.places[node.queue]
        if self.left.get(device) == node.place_of_issue:
            self.left[device] += 1
            self.wake(Obstacle("hardware queue", device))

    def deadlocks(self, stuck: list[Node]) -> Iterator[Diagnostic]:
        """NOTE what is outside of the plan is stuck behind what is in it."""
        return map(self._deadlock, sorted(stuck, key=lambda node: (node.action is None, node.run)))

    def _deadlock(self, node: Node) -> Diagnostic:
        what = self.blocked[node.queue]
        notes: list[Note] = []
        match what:
            case Node():
                text = "a node"
                if isinstance(what.action, ir.RecordEvent):
                    text = f"{what.action.event} of {self.runs.names[what.queue][0]}"
                elif what.touches is not None:
                    text = what.touches.who
                elif node.begins or node.action is None:
                    text = "a graph"
            case int(semaphore) | (int(semaphore), _):
                text = self.runs.purpose(semaphore)
            case Obstacle("collective"):
                assert isinstance(node.action, ir.CallCollective)
                text = f"the other ranks' calls of collective {node.action.group}"
            case Obstacle("hardware queue", int(device)):
                text = f"a hardware queue of device {device}"
                first = self.runs.issued[device][self.left[device]]
                notes.append(Note(f"{self.runs.names[first.queue][0]} stands before it there", first.place))
            case _:
                text = f"the multiprocessors of device {self.places[node.queue]}"
                for holder in self.keepers(node):
                    other = holder.node
                    text_of = (
                        f"a kernel on {self.runs.names[other.queue][0]} may hold {other.holds} of them while it waits"
                    )
                    notes.append(Note(text_of, other.place))
        stream = self.runs.names[node.queue][0]
        return Diagnostic(node.place, f"deadlock: {stream} waits for {text}", tuple(notes))
