"""Contention between concurrent activities: how they share ports of links, memories, and multiprocessors.

An *activity* has a clock of its own. The clock runs at full speed while the activity is alone, and slower while others
compete for the same resources. The code that begins an activity is called back at times of that clock. Two rules set
its speed.

Ports and memories (*supplies*) are shared at each moment. At full speed an activity uses a fixed number of bytes a
microsecond of each supply. The speeds of concurrent activities, as shares of their full speeds, rise together until a
supply is full; the users of that supply keep this speed, and the others rise until their next supply is full
(progressive filling: max-min fair).

Multiprocessors are held: blocks are persistent, and keep a multiprocessor until they end. The first activity gets what
it requests, a later one what is left, and one multiprocessor if nothing is left. An activity with a part of its
multiprocessors runs at that part of its speed. Copies take no multiprocessors, but energy and cache space: while a
copy accesses a device's memory, kernels there run at a share (`beside`) of their speed.

After a change, speeds are recomputed only for activities that full supplies connect with the changed one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

Supply: TypeAlias = Hashable
At: TypeAlias = Callable[[float, Callable[[], None]], None]

_CLOSE = 1e-9  # a supply that is wanted by so much more than it has is not full


@dataclass(slots=True, eq=False)
class Activity:
    """At `since` its clock stood at `clock`, and runs at `speed`; `cap` is what its multiprocessors let it have."""

    uses: Mapping[Supply, float]  # at full speed, a microsecond
    device: int | None  # whose multiprocessors it takes
    wants: float  # multiprocessors
    clock: float = 0.0
    since: float = 0.0
    speed: float = 1.0
    cap: float = 1.0
    version: int = 0  # how often its speed has changed: a call that was foreseen at another one is none
    calls: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)

    def read(self, now: float) -> float:
        """The activity's clock at a time."""
        return self.clock + self.speed * (now - self.since)


class Sharing:
    """All activities of one run. `at` is the virtual clock's function that calls back at a given time. `limit`:
    bytes a microsecond of a port, or of the memory of a device, which is known by its number."""

    def __init__(
        self,
        limit: Callable[[Supply], float],
        multiprocessors: float,
        at: At,
        beside: float = 1.0,
        spend: Callable[[int], None] = lambda speeds: None,
    ) -> None:
        """`spend` is told how many speeds are to be found anew, and may refuse."""
        self._limit, self._total, self._at, self._beside, self._spend = limit, multiprocessors, at, beside, spend
        self._limits: dict[Supply, float] = {}
        self._on: dict[Supply, dict[Activity, None]] = {}  # in the order in which they began
        self._full: set[Supply] = set()
        self._held: dict[int, dict[Activity, None]] = {}
        self._passing: Counter[int] = Counter()  # copies, by device
        self._changed: dict[Supply, None] = {}
        self._settles = False
        self._count = 0

    def begin(
        self, now: float, uses: Mapping[Supply, float], device: int | None = None, wants: float = 0.0
    ) -> Activity:
        """An activity's clock begins at 0."""
        activity = Activity(uses, device, wants, since=now)
        for supply in uses:
            self._join(supply, activity, now)
        self._pass(activity, 1, now)
        if device is not None:
            self._held.setdefault(device, {})[activity] = None
            self._hold(device, now)
        return activity

    def use(self, now: float, activity: Activity, uses: Mapping[Supply, float]) -> None:
        """Changes what an activity uses from now on."""
        if activity.uses.keys() == uses.keys():
            activity.uses = uses
            for supply in uses:
                self._change(supply, now)
            return
        for supply in activity.uses:
            self._leave(supply, activity, now)
        activity.uses = uses
        for supply in uses:
            self._join(supply, activity, now)

    def end(self, now: float, activity: Activity) -> None:
        activity.version += 1
        activity.calls.clear()
        for supply in activity.uses:
            self._leave(supply, activity, now)
        self._pass(activity, -1, now)
        if activity.device is not None:
            del self._held[activity.device][activity]
            self._hold(activity.device, now)

    def call(self, now: float, activity: Activity, clock: float, action: Callable[[], None]) -> None:
        """Schedules `action` for the moment when the activity's clock reaches `clock`."""
        self._count += 1
        heappush(activity.calls, (clock, self._count, action))
        if activity.calls[0][1] == self._count:
            self._foresee(activity, now)

    # ---- speeds

    def _join(self, supply: Supply, activity: Activity, now: float) -> None:
        self._on.setdefault(supply, {})[activity] = None
        self._change(supply, now)

    def _leave(self, supply: Supply, activity: Activity, now: float) -> None:
        del self._on[supply][activity]
        self._change(supply, now)

    def _change(self, supply: Supply, now: float) -> None:
        """Compute new speeds after everything that happens at this time has happened."""
        self._changed[supply] = None
        if not self._settles:
            self._settles = True
            self._at(now, lambda: self._settle(now))

    def _pass(self, activity: Activity, change: int, now: float) -> None:
        """A copy begins or ends."""
        if activity.device is not None or self._beside == 1.0:
            return
        for device in activity.uses:
            if isinstance(device, int):
                self._passing[device] += change
                if self._passing[device] == max(0, change):  # the first one, or the last
                    self._hold(device, now)

    def _hold(self, device: int, now: float) -> None:
        """Multiprocessors of a device are given out, in the order in which activities came."""
        left = self._total
        keeps = self._beside if self._passing[device] else 1.0
        for activity in self._held.get(device, ()):
            cap = keeps * min(1.0, max(1.0, left) / activity.wants) if activity.wants else keeps
            left = max(0.0, left - activity.wants)
            if cap != activity.cap:
                activity.cap = cap
                for supply in activity.uses:
                    self._change(supply, now)
                if not any(supply in self._full for supply in activity.uses):
                    self._pace(activity, cap, now)

    def _settle(self, now: float) -> None:
        self._settles = False
        changed, self._changed = self._changed, {}
        touched: dict[Activity, None] = {}
        for supply in changed:
            users = self._on[supply]
            limit = self._limits.get(supply)
            if limit is None:
                limit = self._limits[supply] = self._limit(supply)
            wanted = sum(activity.uses[supply] * activity.cap for activity in users)
            if wanted > limit * (1 + _CLOSE):
                self._full.add(supply)
                touched.update(users)
            elif supply in self._full:
                self._full.discard(supply)
                touched.update(users)
        while touched:
            activities, full = self._connected(next(iter(touched)))
            self._spend(len(activities))
            for activity in activities:
                touched.pop(activity, None)
            for activity, speed in self._filled(activities, full):
                self._pace(activity, speed, now)

    def _connected(self, first: Activity) -> tuple[list[Activity], list[Supply]]:
        """The activities that full supplies connect with it, and these supplies."""
        activities, full = {first: None}, dict[Supply, None]()
        open_ = [first]
        while open_:
            for supply in open_.pop().uses:
                if supply in self._full and supply not in full:
                    full[supply] = None
                    for other in self._on[supply]:
                        if other not in activities:
                            activities[other] = None
                            open_.append(other)
        return list(activities), list(full)

    def _filled(self, activities: Iterable[Activity], full: Iterable[Supply]) -> Iterable[tuple[Activity, float]]:
        """The speed of each activity; see the module."""
        rising = dict.fromkeys(activities)
        left = {supply: self._limits[supply] for supply in full}
        wanted = {supply: sum(activity.uses[supply] for activity in self._on[supply]) for supply in left}
        while rising:
            level, supply = 1.0, None
            for candidate, want in wanted.items():
                share = left[candidate] / want
                if share < level:
                    level, supply = share, candidate
            stay = [activity for activity in rising if activity.cap <= level]
            if not stay:
                assert supply is not None  # no cap is more than 1
                stay = [activity for activity in self._on[supply] if activity in rising]
            for activity in stay:
                speed = min(activity.cap, level)
                del rising[activity]
                for used, amount in activity.uses.items():
                    if used in wanted:
                        left[used] = max(0.0, left[used] - amount * speed)
                yield activity, speed
            wanted = {r: sum(a.uses[r] for a in self._on[r] if a in rising) for r in wanted}
            # who wants next to nothing of a supply is not held up by it, even if rounding left nothing of that
            wanted = {r: want for r, want in wanted.items() if want > _CLOSE * self._limits[r]}

    def _pace(self, activity: Activity, speed: float, now: float) -> None:
        if speed != activity.speed:
            activity.clock, activity.since, activity.speed = activity.read(now), now, speed
            activity.version += 1
            self._foresee(activity, now)

    def _foresee(self, activity: Activity, now: float) -> None:
        """The next call of an activity, at its present speed."""
        if not activity.calls:
            return
        version, (clock, number, _) = activity.version, activity.calls[0]
        time = max(now, activity.since + (clock - activity.clock) / activity.speed)

        def call() -> None:
            if version == activity.version and activity.calls and activity.calls[0][1] == number:
                _, _, action = heappop(activity.calls)
                self._foresee(activity, time)
                action()

        self._at(time, call)
