"""The words of a device plan: which there are, where they lie, and who resets them.

The layout is the same in every mode, so that one set of words serves all runs of an executor. On each device those that
the completion of a run resets come first, in one piece: flags, then semaphores; then those that kernels reset.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ..plan.ir import CollectiveCall, Launch, Plan, Record, WaitEvent, WaitFlag
from .ir import EventName, Placement, Word


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a plan on a placement."""

    table: tuple[Word, ...]
    flags: tuple[int, ...]  # flag → word; -1: it has none
    semaphores: Mapping[EventName, Mapping[int, int]]  # point → device that waits for it → word

    def completed(self, device: int, *, graph: bool) -> tuple[int, int]:
        """The first and the number of a device's words that the completion of a run resets. Semaphores are raised in
        graphs alone."""
        mine = [w for w in self.table if w.device == device and w.reset == "completion"]
        return 0, sum(graph or w.point is None for w in mine)


def private_flags(plan: Plan) -> frozenset[int]:
    """The flags that one launch, and nothing else, waits for: that launch resets them."""
    commands = [command for stream in plan.streams for command in stream.commands]
    launches = Counter(flag for c in commands if isinstance(c, Launch) for flag in awaited_by(c))
    streams = {c.flag for c in commands if isinstance(c, WaitFlag)}
    return frozenset(flag for flag, count in launches.items() if count == 1) - streams


def awaited_by(launch: Launch) -> set[int]:
    """The flags that works of a launch wait for."""
    return {flag for work in launch.works for flag in work.waits}


def words_of(plan: Plan, placement: Placement, by_kernel: frozenset[int], unraised: frozenset[int]) -> Words:
    """`by_kernel`: private flags that the launch's kernel itself resets; its stream resets the other private ones.
    `unraised`: flags between works that a kernel makes as one; they have no word."""
    private = private_flags(plan)
    points = semaphores(plan, placement)
    wanted: dict[int, list[tuple[int, int | None, EventName | None]]] = defaultdict(list)  # order within the device
    for flag, rank in enumerate(plan.flag_homes):
        if flag in unraised:
            continue
        wanted[placement.devices[rank]].append((2 if flag in private else 0, flag, None))
    for point, devices in points.items():
        for device in devices:
            wanted[device].append((1, None, point))
    table: list[Word] = []
    flags = [-1] * len(plan.flag_homes)
    found: dict[EventName, dict[int, int]] = defaultdict(dict)
    for device in placement.ordinals:
        for index, (group, flag, point) in enumerate(sorted(wanted[device], key=lambda w: w[0])):
            reset: str = "completion" if group < 2 else "kernel" if flag in by_kernel else "behind"
            if flag is not None:
                flags[flag] = len(table)
            if point is not None:
                found[point][device] = len(table)
            table.append(Word(device, index, flag, point, reset))  # type: ignore[arg-type]
    return Words(tuple(table), tuple(flags), found)


def semaphores(plan: Plan, placement: Placement) -> dict[EventName, tuple[int, ...]]:
    """The points of a plan that streams of other devices wait for, with these devices. A graph belongs to one device, so
    that no event leads out of it: there each of these devices has a word that is raised at the point."""
    raised: dict[EventName, int] = {}
    awaited: dict[EventName, set[int]] = defaultdict(set)
    for stream in plan.streams:
        owner = placement.devices[stream.rank]
        for command in stream.commands:
            match command:
                case Record(event=event):
                    raised[EventName("plan", event)] = owner
                case WaitEvent(event=event):
                    awaited[EventName("plan", event)].add(owner)
                case CollectiveCall(group=group):
                    for behind in (False, True):
                        point = EventName("meet", group, stream.rank, behind)
                        raised[point] = owner
                        awaited[point] = set(placement.devices)
    found = {point: tuple(sorted(awaited[point] - {owner})) for point, owner in raised.items()}
    return {point: devices for point, devices in found.items() if devices}
