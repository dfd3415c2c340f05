"""What things that run at the same time leave each other: ports of links, memories, and multiprocessors.

A *task* has a clock of its own: it runs at full speed while the task is alone, and slower while others want the same.
Whoever begins a task is called back at times of that clock. Two rules say how fast it runs.

Ports and memories are shared at each moment. A task uses so many bytes a microsecond of each at full speed. All tasks
that meet are slowed down together, as shares of their full speed, until a resource is full; its users stay at that
speed, and the others go on to rise until their own next resource is full (progressive filling: max-min fair).

Multiprocessors are held: blocks are persistent, and keep a multiprocessor until they end. Who comes first has what it
wants, who comes later what is left, and one multiprocessor where nothing is left. A task with a part of its
multiprocessors runs at that part of its speed. Copies take none of these, but energy and room in caches: while one
passes a device's memory, kernels there keep only a share (`beside`) of their speed.

Rates are found anew only where something has changed: for the tasks that full resources connect with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TypeAlias

Resource: TypeAlias = Hashable
At: TypeAlias = Callable[[float, Callable[[], None]], None]

_CLOSE = 1e-9  # a resource that is wanted by so much more than it has is not full


@dataclass(slots=True, eq=False)
class Task:
    """At `since` its clock stood at `clock`, and runs at `speed`; `cap` is what its multiprocessors let it have."""

    uses: Mapping[Resource, float]  # at full speed, a microsecond
    device: int | None  # whose multiprocessors it takes
    wants: float  # multiprocessors
    clock: float = 0.0
    since: float = 0.0
    speed: float = 1.0
    cap: float = 1.0
    version: int = 0  # how often its speed has changed: a call that was foreseen at another one is none
    order: int = 0
    calls: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)

    def read(self, now: float) -> float:
        """Its clock."""
        return self.clock + self.speed * (now - self.since)


class Resources:
    """All of a run's. `at` is the virtual clock's: it calls back at a time. `limit`: bytes a microsecond of a port, or
    of the memory of a device, which is known by its number."""

    def __init__(self, limit: Callable[[Resource], float], multiprocessors: float, at: At, beside: float = 1.0) -> None:
        self._limit, self._total, self._at, self._beside = limit, multiprocessors, at, beside
        self._limits: dict[Resource, float] = {}
        self._on: dict[Resource, dict[Task, None]] = {}  # in the order in which they began
        self._full: set[Resource] = set()
        self._held: dict[int, dict[Task, None]] = {}
        self._passing: Counter[int] = Counter()  # copies, by device
        self._changed: dict[Resource, None] = {}
        self._settles = False
        self._count = 0

    def begin(self, now: float, uses: Mapping[Resource, float], device: int | None = None, wants: float = 0.0) -> Task:
        """A task's clock begins at 0."""
        task = Task(uses, device, wants, since=now)
        for resource in uses:
            self._join(resource, task, now)
        self._pass(task, 1, now)
        if device is not None:
            self._held.setdefault(device, {})[task] = None
            self._hold(device, now)
        return task

    def use(self, now: float, task: Task, uses: Mapping[Resource, float]) -> None:
        """From now on a task uses this."""
        if task.uses.keys() == uses.keys():
            task.uses = uses
            for resource in uses:
                self._change(resource, now)
            return
        for resource in task.uses:
            self._leave(resource, task, now)
        task.uses = uses
        for resource in uses:
            self._join(resource, task, now)

    def end(self, now: float, task: Task) -> None:
        task.version += 1
        task.calls.clear()
        for resource in task.uses:
            self._leave(resource, task, now)
        self._pass(task, -1, now)
        if task.device is not None:
            del self._held[task.device][task]
            self._hold(task.device, now)

    def call(self, now: float, task: Task, clock: float, action: Callable[[], None]) -> None:
        """`action` happens when the task's clock shows `clock`."""
        self._count += 1
        heappush(task.calls, (clock, self._count, action))
        if task.calls[0][1] == self._count:
            self._foresee(task, now)

    # ---- speeds

    def _join(self, resource: Resource, task: Task, now: float) -> None:
        self._on.setdefault(resource, {})[task] = None
        self._change(resource, now)

    def _leave(self, resource: Resource, task: Task, now: float) -> None:
        del self._on[resource][task]
        self._change(resource, now)

    def _change(self, resource: Resource, now: float) -> None:
        """Speeds are found when all that happens at this time has happened."""
        self._changed[resource] = None
        if not self._settles:
            self._settles = True
            self._at(now, lambda: self._settle(now))

    def _pass(self, task: Task, change: int, now: float) -> None:
        """A copy begins or ends."""
        if task.device is not None or self._beside == 1.0:
            return
        for device in task.uses:
            if isinstance(device, int):
                self._passing[device] += change
                if self._passing[device] == max(0, change):  # the first one, or the last
                    self._hold(device, now)

    def _hold(self, device: int, now: float) -> None:
        """Multiprocessors of a device are given out, in the order in which tasks came."""
        left = self._total
        keeps = self._beside if self._passing[device] else 1.0
        for task in self._held.get(device, ()):
            cap = keeps * min(1.0, max(1.0, left) / task.wants) if task.wants else keeps
            left = max(0.0, left - task.wants)
            if cap != task.cap:
                task.cap = cap
                for resource in task.uses:
                    self._change(resource, now)
                if not any(resource in self._full for resource in task.uses):
                    self._pace(task, cap, now)

    def _settle(self, now: float) -> None:
        self._settles = False
        changed, self._changed = self._changed, {}
        touched: dict[Task, None] = {}
        for resource in changed:
            users = self._on[resource]
            limit = self._limits.get(resource)
            if limit is None:
                limit = self._limits[resource] = self._limit(resource)
            wanted = sum(task.uses[resource] * task.cap for task in users)
            if wanted > limit * (1 + _CLOSE):
                self._full.add(resource)
                touched.update(users)
            elif resource in self._full:
                self._full.discard(resource)
                touched.update(users)
        while touched:
            tasks, full = self._connected(next(iter(touched)))
            for task in tasks:
                touched.pop(task, None)
            for task, speed in self._filled(tasks, full):
                self._pace(task, speed, now)

    def _connected(self, first: Task) -> tuple[list[Task], list[Resource]]:
        """The tasks that full resources connect with it, and these resources."""
        tasks, full = {first: None}, dict[Resource, None]()
        open_ = [first]
        while open_:
            for resource in open_.pop().uses:
                if resource in self._full and resource not in full:
                    full[resource] = None
                    for other in self._on[resource]:
                        if other not in tasks:
                            tasks[other] = None
                            open_.append(other)
        return list(tasks), list(full)

    def _filled(self, tasks: Iterable[Task], full: Iterable[Resource]) -> Iterable[tuple[Task, float]]:
        """The speed of each task; see the module."""
        rising = dict.fromkeys(tasks)
        left = {resource: self._limits[resource] for resource in full}
        wanted = {resource: sum(task.uses[resource] for task in self._on[resource]) for resource in left}
        while rising:
            level, resource = 1.0, None
            for candidate, want in wanted.items():
                share = left[candidate] / want
                if share < level:
                    level, resource = share, candidate
            stay = [task for task in rising if task.cap <= level]
            if not stay:
                assert resource is not None  # no cap is more than 1
                stay = [task for task in self._on[resource] if task in rising]
            for task in stay:
                speed = min(task.cap, level)
                del rising[task]
                for used, amount in task.uses.items():
                    if used in wanted:
                        left[used] = max(0.0, left[used] - amount * speed)
                        wanted[used] -= amount
                yield task, speed
            wanted = {r: w for r, w in wanted.items() if any(task in rising for task in self._on[r])}

    def _pace(self, task: Task, speed: float, now: float) -> None:
        if speed != task.speed:
            task.clock, task.since, task.speed = task.read(now), now, speed
            task.version += 1
            self._foresee(task, now)

    def _foresee(self, task: Task, now: float) -> None:
        """The next call of a task, at its present speed."""
        if not task.calls:
            return
        version, (clock, number, _) = task.version, task.calls[0]
        time = max(now, task.since + (clock - task.clock) / task.speed)

        def call() -> None:
            if version == task.version and task.calls and task.calls[0][1] == number:
                _, _, action = heappop(task.calls)
                self._foresee(task, time)
                action()

        self._at(time, call)
