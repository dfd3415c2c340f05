"""What the host driver's streams hold: tasks, their jobs, and the signals that order them.

A task is a bound command. What it does to data is one job (a copy, a launch of one work, a collective of all
ranks) or several (a streamed launch). Waits, records and signals do nothing to data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from ...errors import Span
from ...plan.ir import CollectiveCall, Command, CopyAsync, Launch, Stream
from .views import HostView


@dataclass(slots=True, eq=False)
class HostStream:
    """A virtual queue. `head` is the task that is next, or being done."""

    plan: Stream
    counter: Iterator[int]  # numbers the tasks of all streams as they are issued
    queue: list[Task] = field(default_factory=list)
    head: int = 0

    @property
    def id(self) -> int:
        return self.plan.id

    @property
    def rank(self) -> int:
        return self.plan.rank

    def __str__(self) -> str:
        return f"rank {self.plan.rank} stream {self.plan.name}"


@dataclass(slots=True, eq=False)
class HostSignal:
    """An event or a flag."""

    name: str
    up: bool = False
    waiters: list[HostStream | HostJob] = field(default_factory=list)
    raiser: Task | None = None  # the bound command that raises it
    raiser_place: Span | None = None


@dataclass(slots=True, eq=False)
class HostJob:
    """Something that is done to data, at once and whole."""

    run: Callable[[], None]
    op: int  # where it stands in the schedule
    index: int  # among the works of its launch
    tasks: list[Doing]  # done when this and their other jobs are; several for a collective
    place: Span
    waits: tuple[HostSignal, ...] = ()
    signals: tuple[HostSignal, ...] = ()
    missing: int = 0  # waits that are not up

    @property
    def task(self) -> Doing:
        return self.tasks[-1]


@dataclass(slots=True, eq=False)
class _IssuedTask:
    """A bound command; calling it issues it."""

    stream: HostStream
    command: Command
    number: int = field(default=0, init=False)  # in the order of issue

    def __call__(self) -> None:
        self.number = next(self.stream.counter)
        self.stream.queue.append(self)  # type: ignore[arg-type]  # only the subclasses below are made


@dataclass(slots=True, eq=False)
class RaiseTask(_IssuedTask):
    """Record, SignalFlag."""

    signal: HostSignal


@dataclass(slots=True, eq=False)
class WaitTask(_IssuedTask):
    """WaitEvent, WaitFlag."""

    signal: HostSignal


@dataclass(slots=True, eq=False)
class WorkTask(_IssuedTask):
    """CopyAsync, Launch."""

    body: CopyAsync | Launch
    jobs: list[HostJob] = field(default_factory=list)
    left: int = 0  # jobs that have not run


@dataclass(slots=True, eq=False)
class CollectiveTask(_IssuedTask):
    """One rank's call; it has a job only together with the others'."""

    call: CollectiveCall
    dst: HostView
    src: HostView
    left: int = 0


Doing: TypeAlias = WorkTask | CollectiveTask
Task: TypeAlias = RaiseTask | WaitTask | Doing
