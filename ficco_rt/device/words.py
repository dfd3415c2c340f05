"""The words of a device plan: which there are, where they lie, and who resets them.

The layout is the same in every mode, so that one set of words serves all runs of an executor. On each device those that
the completion of a run resets come first, in one piece: flags, then semaphores; then those that kernels reset.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

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
    wanted: dict[int, list[tuple[int, Word]]] = defaultdict(list)  # by device: where among its words, and the word
    for flag, rank in enumerate(plan.flag_homes):
        device = placement.devices[rank]
        if flag in private and flag not in unraised:
            wanted[device].append((2, Word(device, -1, flag, None, "kernel" if flag in by_kernel else "behind")))
        elif flag not in unraised:
            wanted[device].append((0, Word(device, -1, flag, None, "completion")))
    for point, devices in points.items():
        for device in devices:
            wanted[device].append((1, Word(device, -1, None, point, "completion")))
    table: list[Word] = []
    flags = [-1] * len(plan.flag_homes)
    found: dict[EventName, dict[int, int]] = defaultdict(dict)
    for device in placement.ordinals:
        for index, (_, word) in enumerate(sorted(wanted[device], key=lambda place: place[0])):
            if word.flag is not None:
                flags[word.flag] = len(table)
            if word.point is not None:
                found[word.point][device] = len(table)
            table.append(replace(word, index=index))
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
