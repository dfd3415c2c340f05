"""What a stream of one device waits for on another, in graphs.

A graph belongs to one device, so no event leads out of it: where streams of other devices wait for a point on a
stream, each of these devices has a word in its memory that is raised there. On streams, which know no such bounds,
the same points are events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from ...plan.ir import CollectiveCall, Plan, Record, WaitEvent
from .flags import Flags
from .vendor import Word

Point: TypeAlias = int | tuple[int, int, bool]  # an event; or a collective's group, a rank, behind the rank's call


def crossings(plan: Plan, homes: Sequence[int]) -> dict[Point, tuple[int, ...]]:
    """The points of a plan that other devices wait for, with these devices. `homes[rank]` is the device of a rank."""
    raised: dict[Point, int] = {}
    awaited: dict[Point, set[int]] = defaultdict(set)
    for stream in plan.streams:
        home = homes[stream.rank]
        for command in stream.commands:
            match command:
                case Record(event=event):
                    raised[event] = home
                case WaitEvent(event=event):
                    awaited[event].add(home)
                case CollectiveCall(group=group):
                    for behind in (False, True):
                        raised[group, stream.rank, behind] = home
                        awaited[group, stream.rank, behind] = set(homes)
    found = {point: tuple(sorted(awaited[point] - {home})) for point, home in raised.items()}
    return {point: devices for point, devices in found.items() if devices}


class Crossings:
    """The words of a plan's crossings, which lie among the flags."""

    def __init__(self, devices: dict[Point, tuple[int, ...]], flags: Flags) -> None:
        self._words = {point: {i: flags.take_crossing(i) for i in of} for point, of in devices.items()}

    def raised(self, point: Point) -> tuple[Word, ...]:
        """Who passes the point raises these."""
        return tuple(Word(address, raised=True) for address in self._words.get(point, {}).values())

    def awaited(self, point: Point, ordinal: int) -> tuple[Word, ...]:
        """What a device waits for; nothing if the point is on the same device."""
        address = self._words.get(point, {}).get(ordinal)
        return () if address is None else (Word(address, raised=False),)
