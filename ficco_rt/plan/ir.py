"""The plan: streams of commands for each rank. It is the contract between the compiler, drivers, simulator and other
runtimes.

A plan holds everything that a run needs: tensors, streams, and what to check afterwards (claims). Only the plan orders
commands: by the order of a stream, events, flags, and collectives.

Ordering rules:
- commands of one stream happen one after another;
- `Record(e)` happens before every `WaitEvent(e)`; an event is recorded once a run;
- `SignalFlag(f)`, or a work with f in `signals`, happens before every `WaitFlag(f)` and every work with f in `waits`; a
  flag is raised once a run;
- the works of one `Launch` start in order and may run at the same time: nothing orders them but flags;
- a `CollectiveCall` ends on any rank only after it has begun on all; a `send_recv` only after it has begun on the rank
  that it receives from, and nothing is known of the rank that it sends to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple, TypeAlias

from ficco_dsl.diagnostics import Span

from ..errors import UsageError
from ..geometry.region import Region
from ..graph import ir as graph
from ..machine.model import Machine

VERSION = 1


class Signal(NamedTuple):  # a tuple, as Access: both are made and hashed by the million
    """An event or a flag of the plan: one command raises it, others wait for it."""

    kind: Literal["event", "flag"]
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


class Access(NamedTuple):
    """A region that is read or written, and the place in the schedule that says so."""

    region: Region
    written: bool
    origin: Span


@dataclass(frozen=True, slots=True)
class Transfer(graph.Copy):
    """One copy-engine transfer: a single box on each side, contiguous or with one pitch (≤ 2-D)."""

    op: int
    origin: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Work:
    """The part of a launch that does one op, with the flags that order it."""

    body: graph.Body
    waits: tuple[int, ...]  # flags that must be up before the work reads
    signals: tuple[int, ...]  # flags that the work raises when all of it is written
    op: int
    origin: Span = field(compare=False)
    tiles: tuple[int, int] | None = None  # of a GEMM: the grid of output tiles, rows × columns, that the kernel makes

    @property
    def reads(self) -> tuple[Region, ...]:
        return self.body.reads

    @property
    def writes(self) -> tuple[Region, ...]:
        return self.body.writes


# ---------------------------------------------------------------- commands


class _Command:
    """What every command can say of itself."""

    __slots__ = ()

    @property
    def waits(self) -> tuple[Signal, ...]:
        """All that the command, or any work in it, waits for."""
        return ()

    @property
    def signals(self) -> tuple[Signal, ...]:
        """All that the command, or any work in it, raises."""
        return ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """What the command carries out of ops."""
        return ()

    def accesses(self) -> Iterator[Access]:
        """All regions that the command touches."""
        for part in self.parts:
            for region in part.reads:
                yield Access(region, False, part.origin)
            for region in part.writes:
                yield Access(region, True, part.origin)


@dataclass(frozen=True, slots=True)
class CopyAsync(_Command):
    """Transfers of copy engines that are issued together: nothing waits for a single one of them."""

    transfers: tuple[Transfer, ...]
    stage: str

    @property
    def origin(self) -> Span:
        return self.transfers[0].origin

    @property
    def parts(self) -> tuple[Transfer, ...]:
        return self.transfers


@dataclass(frozen=True, slots=True)
class LaunchAttributes:
    """The attributes that a launch requests from the device, computed from the text's resources (None: the kernel's own
    choice)."""

    smem: int  # dynamic shared memory, bytes a block
    residency: int | None  # blocks a multiprocessor that this leaves room for
    sms: int | None  # persistent grid no larger than this many multiprocessors
    priority: graph.Priority | None  # where it differs from its stream's
    leave: graph.Leave | None = None  # what its blocks leave room for on each multiprocessor


@dataclass(frozen=True, slots=True)
class Launch(_Command):
    """One kernel launch. A plain launch has exactly one work, or copies that are issued together, and no flags. A
    streamed launch has many works with flags, of `stage` and of the stages that `joined` it, each given by its first
    work and its name."""

    kernel: str  # catalogue name, or a user kernel's
    works: tuple[Work, ...]
    streamed: bool
    attributes: LaunchAttributes
    stage: str
    joined: tuple[tuple[int, str], ...] = ()

    @property
    def origin(self) -> Span:
        return self.works[0].origin

    @property
    def waits(self) -> tuple[Signal, ...]:
        return tuple(Signal("flag", f) for work in self.works for f in work.waits)

    @property
    def signals(self) -> tuple[Signal, ...]:
        return tuple(Signal("flag", f) for work in self.works for f in work.signals)

    @property
    def parts(self) -> tuple[Work, ...]:
        return self.works

    @property
    def stages(self) -> tuple[str, ...]:
        return (self.stage, *(stage for _, stage in self.joined))

    def stage_of(self, work: int) -> str:
        """The stage of the work at this index."""
        before = bisect_right(self.joined, work, key=lambda joined: joined[0])
        return self.joined[before - 1][1] if before else self.stage


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall(graph.Collective, _Command):
    """This rank's call of a collective."""

    op: int
    stage: str
    origin: Span = field(compare=False)

    @property
    def parts(self) -> tuple[CollectiveCall, ...]:
        return (self,)


@dataclass(frozen=True, slots=True)
class Record(_Command):
    """Event `event` completes when everything before it on this stream has completed."""

    event: int
    origin: Span = field(compare=False)

    @property
    def signals(self) -> tuple[Signal, ...]:
        return (Signal("event", self.event),)


@dataclass(frozen=True, slots=True)
class WaitEvent(_Command):
    """Nothing later on this stream starts before event `event`. `origin` is the op that needs it."""

    event: int
    origin: Span = field(compare=False)

    @property
    def waits(self) -> tuple[Signal, ...]:
        return (Signal("event", self.event),)


@dataclass(frozen=True, slots=True)
class SignalFlag(_Command):
    """Raise flag `flag` once everything before it on this stream is done."""

    flag: int
    origin: Span = field(compare=False)

    @property
    def signals(self) -> tuple[Signal, ...]:
        return (Signal("flag", self.flag),)


@dataclass(frozen=True, slots=True)
class WaitFlag(_Command):
    """Nothing later on this stream starts before flag `flag` is up."""

    flag: int
    origin: Span = field(compare=False)

    @property
    def waits(self) -> tuple[Signal, ...]:
        return (Signal("flag", self.flag),)


Part: TypeAlias = Transfer | Work | CollectiveCall
Command: TypeAlias = CopyAsync | Launch | CollectiveCall | Record | WaitEvent | SignalFlag | WaitFlag


@dataclass(frozen=True, slots=True)
class Stream:
    """An in-order queue of one rank's device. `link` is the peer that it serves where each link has its own."""

    id: int
    rank: int
    queue: str
    engine: graph.Engine
    priority: graph.Priority
    link: int | None
    commands: tuple[Command, ...]
    collectives: graph.CollectiveSettings | None = None

    @property
    def name(self) -> str:
        return self.queue if self.link is None else f"{self.queue}→{self.link}"


@dataclass(frozen=True, slots=True)
class Order:
    """The text's `after`: op `after` must not start before op `before` has ended, even if no data requires it."""

    before: int
    after: int
    origin: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """`events` and `flag_homes` size the two tables: event ids are 0 … events-1, and flag f lives on
    rank flag_homes[f], the rank that waits for it."""

    version: int
    schedule: str
    ranks: int
    machine: str
    params: tuple[tuple[str, object], ...]
    tensors: tuple[graph.Tensor, ...]
    kernels: tuple[graph.Kernel, ...]
    claims: tuple[graph.Claim, ...]
    streams: tuple[Stream, ...]
    events: int
    flag_homes: tuple[int, ...]
    orders: tuple[Order, ...]
    made_for: Machine | None = None  # `machine`, whole; files of older versions may have its name alone

    def __repr__(self) -> str:
        commands = sum(len(stream.commands) for stream in self.streams)
        return (
            f"<Plan of {self.schedule}: {self.ranks} ranks on {self.machine}, {len(self.streams)} streams, "
            f"{commands} commands>"
        )

    @property
    def origin(self) -> Span:
        """The place for mistakes that belong to no command: that of the first command."""
        return next((command.origin for _, command in self.commands()), Span(self.schedule, 1, 1, 1, 1))

    @property
    def target(self) -> Machine:
        """The machine that the plan was made for. Raises UsageError for a plan, made by hand, that does not hold it."""
        if self.made_for is None:
            raise UsageError(f"the plan of {self.schedule} does not hold the machine that it was made for; give one")
        return self.made_for

    def commands(self) -> Iterator[tuple[Stream, Command]]:
        """Every command, with the stream that it stands on."""
        for stream in self.streams:
            for command in stream.commands:
                yield stream, command

    def launches(self) -> Iterator[tuple[Stream, Launch]]:
        """Every launch, with its stream."""
        return ((stream, command) for stream, command in self.commands() if isinstance(command, Launch))

    def parts(self) -> Iterator[Part]:
        """All that the plan carries out of ops."""
        return chain.from_iterable(command.parts for stream in self.streams for command in stream.commands)

    def tensor(self, name: str) -> graph.Tensor:
        return next(t for t in self.tensors if t.name == name)
