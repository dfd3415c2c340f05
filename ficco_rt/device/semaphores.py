"""The semaphores of a device plan: which ones exist, where they are in memory, and who resets them.

The layout is the same in every mode, so that one set of semaphores serves all runs of an executor. On each device the
semaphores that the completion of a run resets come first, in one contiguous piece: flags, then points, those of every
mode before those of graphs. Next come the semaphores that their waiter resets, then those that count runs. The start
gate is last.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, TypeAlias

from ficco_dsl.diagnostics import Diagnostic, Span

from ..errors import PlanError
from ..graph.budget import SEMAPHORES, Budget
from ..plan.ir import CollectiveCall, Launch, Plan, Record, WaitEvent, WaitFlag
from .collectives import barrier_peers, calls_of
from .ir import EventName, Mode, Placement, Semaphore, Used
from .sharing import Sharing

_USES: tuple[Used, ...] = ("always", "graph", "embedded", "traced")
# point of a run → device that waits for it → the semaphore that is signalled there. Without one an event can be used
PointSemaphores: TypeAlias = Mapping[EventName, Mapping[int, int]]
_GROUPS = {"completion": 0, "kernel": 1, "behind": 1, "acquired": 1, "never": 2}


@dataclass(frozen=True, slots=True)
class SemaphoreLayout:
    """The semaphores of a plan on a placement, and their indices in memory."""

    table: tuple[Semaphore, ...]
    flags: Mapping[int, int]  # flag → semaphore, where it has one
    places: Mapping[int, range]  # device → its semaphores in the table, without the start gate
    counts: Mapping[int, int]  # device → its count of runs, where it has one
    start_gate: int | None  # the last semaphore; none where the first device shares no events with some other one

    def listed(self, *, gated: bool) -> tuple[Semaphore, ...]:
        """The semaphores of a device plan, with the start gate or without."""
        return self.table if gated or self.start_gate is None else self.table[: self.start_gate]

    def reset(self, device: int, mode: Mode) -> tuple[int, int]:
        """The first and the number of a device's semaphores that the completion of a run resets."""
        semaphores = (self.table[i] for i in self.places[device])
        mine = [w.index for w in semaphores if w.reset == "completion" and w.used_in(mode)]
        return min(mine, default=0), len(mine)

    def of_points(self, mode: Mode) -> PointSemaphores:
        """The semaphores that replace events between devices without common events, in a mode."""
        found: dict[EventName, dict[int, int]] = {}
        for number, semaphore in enumerate(self.table):
            if semaphore.point is not None and semaphore.used_in(mode):
                found.setdefault(semaphore.point, {})[semaphore.device] = number
        return found


def private_flags(plan: Plan) -> frozenset[int]:
    """The flags that one launch, and nothing else, waits for: that launch resets them."""
    if not plan.flag_homes:
        return frozenset()
    commands = [command for stream in plan.streams for command in stream.commands]
    awaited = ({signal.number for signal in c.waits} for c in commands if isinstance(c, Launch))
    launches = Counter(flag for flags in awaited for flag in flags)
    streams = {c.flag for c in commands if isinstance(c, WaitFlag)}
    return frozenset(flag for flag, count in launches.items() if count == 1) - streams


def semaphores_of(
    plan: Plan,
    placement: Placement,
    by_kernel: frozenset[int],
    unraised: frozenset[int],
    touched: Sequence[frozenset[int]],
    sharing: Sharing,
    *,
    barriers: bool = True,
) -> SemaphoreLayout:
    """`by_kernel`: private flags that the launch's kernel itself resets; its stream resets the other private ones.
    `unraised`: flags between works that a kernel makes as one; they have no semaphore. `touched`: by stream of the
    plan, the ranks whose inputs and outputs its commands touch. `barriers`: ranks have barriers before and behind
    collectives, as these are copies and sums."""
    private = private_flags(plan)
    wanted: dict[int, list[Semaphore]] = defaultdict(list)  # by device
    for flag, rank in enumerate(plan.flag_homes):
        device = placement.devices[rank]
        alone: Literal["kernel", "behind"] = "kernel" if flag in by_kernel else "behind"
        if flag not in unraised:
            wanted[device].append(Semaphore(device, -1, flag, None, alone if flag in private else "completion"))
    budget = Budget(SEMAPHORES, PlanError)
    budget.spend(2 * len(placement.ordinals) ** 2, plan.origin)
    for semaphore in chain(
        _point_semaphores(plan, placement, budget, barriers),
        _barrier_semaphores(plan, placement, touched, sharing),
    ):
        wanted[semaphore.device].append(semaphore)
    table: list[Semaphore] = []
    places: dict[int, range] = {}
    for device in placement.ordinals:
        places[device] = range(len(table), len(table) + len(wanted[device]))
        here = sorted(wanted[device], key=_place)
        table += [replace(semaphore, index=index) for index, semaphore in enumerate(here)]
    flags = {semaphore.flag: i for i, semaphore in enumerate(table) if semaphore.flag is not None}
    counts = {semaphore.device: i for i, semaphore in enumerate(table) if semaphore.counts_runs}
    first, *_ = placement.ordinals
    start_gate = None
    if not placement.others(first):
        start_gate = len(table)
        table.append(Semaphore(first, len(wanted[first]), None, None, "completion", "gated"))
    return SemaphoreLayout(tuple(table), flags, places, counts, start_gate)


def _place(semaphore: Semaphore) -> tuple[int, int]:
    """Where among its device's semaphores a semaphore lies."""
    return _GROUPS[semaphore.reset], _USES.index(semaphore.used)


def _point_semaphores(plan: Plan, placement: Placement, budget: Budget, barriers: bool) -> Iterator[Semaphore]:
    """A semaphore on each device that waits for a point of another device where no event leads. A graph belongs to one
    device, so no event leads out of it; and no event leads to another process."""
    points: dict[EventName | int, tuple[int, Span]] = {}  # or an event of the plan: the device that comes to it
    awaited: dict[EventName | int, set[int]] = defaultdict(set)  # the devices that wait for it
    calls = calls_of(plan) if barriers else {}
    for stream in plan.streams:
        owner = placement.devices[stream.rank]
        for command in stream.commands:
            if isinstance(command, Record):
                points[command.event] = owner, command.origin
            elif isinstance(command, WaitEvent):
                awaited[command.event].add(owner)
            elif barriers and isinstance(command, CollectiveCall):
                group = command.group
                for behind in (False, True):
                    points[EventName("barrier", group, stream.rank, behind)] = owner, command.origin
                    for other in barrier_peers(calls[group], stream.rank, behind=behind):
                        awaited[EventName("barrier", group, other, behind)].add(owner)
    for at, (owner, origin) in points.items():
        others = awaited[at] - {owner}
        budget.spend(len(others), origin)
        point = EventName("plan", at) if isinstance(at, int) else at
        for device in sorted(others):
            if placement.node(device) != placement.node(owner):
                text = f"device {device} waits for {point} of device {owner} on another node, where no semaphore leads"
                raise PlanError((Diagnostic(origin, text),))
            used: Literal["always", "graph"] = "always" if device in placement.others(owner) else "graph"
            yield Semaphore(device, -1, None, point, "completion", used)


def _barrier_semaphores(
    plan: Plan, placement: Placement, touched: Sequence[frozenset[int]], sharing: Sharing
) -> Iterator[Semaphore]:
    """Semaphores of the entry barrier of devices that share no events, and of the exits of those that touch a device's
    callers' tensors. Where local streams begin before the entry, streams tell it, which reset what they have waited
    for; a kernel tells the others, by counts of runs. Traced runs of all plans begin together."""
    touching: dict[int, set[int]] = defaultdict(set)  # device → the devices that touch its callers' tensors
    for stream, ranks in zip(plan.streams, touched, strict=True):
        for rank in ranks:
            touching[placement.devices[rank]].add(placement.devices[stream.rank])
    by_streams = sharing.local_streams and len(set(placement.processes)) > 1
    for device in placement.ordinals:
        found: list[Semaphore] = []
        for other in placement.near(device):
            apart = other in placement.others(device)
            always: Used = "always" if apart else "embedded"
            if by_streams:
                found.append(Semaphore(device, -1, None, EventName("ready", other), "acquired", always))
            elif sharing.entry != "never":
                used: Used = always if sharing.entry == "always" else "embedded"
                found.append(Semaphore(device, -1, None, EventName("entry", other), "never", used))
            if apart and (by_streams or sharing.entry != "always"):
                found.append(Semaphore(device, -1, None, EventName("entry", other), "never", "traced"))
            if other in touching[device]:
                found.append(Semaphore(device, -1, None, EventName("exit", other), "never", always))
        yield from found
        counted = {semaphore.used for semaphore in found if semaphore.tells_runs}
        if counted:
            yield Semaphore(device, -1, None, None, "never", counted.pop() if len(counted) == 1 else "always")
