"""The contents of the host driver's streams: tasks, their jobs, and the signals that order them.

A task is a bound command, or a part of one: a rank's call of a collective signals that the rank has arrived, reads the
inputs of the others when all have arrived, and writes its result when all have read. The work of a task on data is one
job (a copy, a launch of one work, a part of a collective) or several (a streamed launch). Waits, records and signals do
not touch data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ...errors import Span
from ...plan.ir import CollectiveCall, Command, CopyAsync, Launch, Stream


@dataclass(slots=True, eq=False)
class HostStream:
    """A virtual queue. `head` is the task that is next or under way."""

    plan: Stream
    queue: list[Task] = field(default_factory=list)
    head: int = 0

    def __str__(self) -> str:
        return f"rank {self.plan.rank} stream {self.plan.name}"


@dataclass(slots=True, eq=False)
class HostSignal:
    """An event, a flag, or a rank's part in a collective. `word`: where processes tell each other of it."""

    name: str
    up: bool = False
    word: int | None = None
    waiters: list[HostStream | HostJob] = field(default_factory=list)
    raiser: Task | None = None  # the bound command that raises it
    raiser_place: Span | None = None
    elsewhere: str = ""  # who raises it in another process


@dataclass(slots=True, eq=False)
class HostJob:
    """An indivisible operation on data."""

    run: Callable[[], None]
    op: int  # where it stands in the schedule
    index: int  # among the works of its launch
    task: WorkTask  # done when this and its other jobs are
    place: Span
    waits: tuple[HostSignal, ...] = ()
    signals: tuple[HostSignal, ...] = ()
    missing: int = 0  # waits that are not up


@dataclass(slots=True, eq=False)
class _IssuedTask:
    """A bound command."""

    stream: HostStream
    position: int  # among the stream's commands
    command: Command
    number: int = field(default=0, init=False)  # in the order of issue


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
    """CopyAsync, Launch, a part of a CollectiveCall."""

    command: CopyAsync | Launch | CollectiveCall
    jobs: list[HostJob] = field(default_factory=list)
    left: int = 0  # jobs that have not run


Task: TypeAlias = RaiseTask | WaitTask | WorkTask
