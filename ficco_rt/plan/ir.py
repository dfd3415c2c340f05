"""The plan: streams of commands for each rank. The contract of drivers, simulator and other runtimes.

A plan holds all that a run needs: tensors, streams, what to check afterwards (claims). Ordering is
carried only by what stands here: the order of a stream, events, flags, and collectives.

What orders what:
- commands of one stream happen one after another;
- `Record(e)` happens before every `WaitEvent(e)`; an event is recorded once a run;
- `SignalFlag(f)`, or a work with f in `signals`, happens before every `WaitFlag(f)` and every work with f in
  `waits`; a flag is raised once a run;
- the works of one `Launch` start in order and may run at the same time: nothing orders them but flags;
- a `CollectiveCall` ends on any rank only after it has begun on all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ficco_dsl.diagnostics import Span

from ..graph.ir import Argument, Claim, CollectiveKind, Engine, Kernel, Priority, Tensor
from ..region import Region

VERSION = 1


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy-engine transfer: a single box on each side, contiguous or with one pitch (≤ 2-D)."""

    dst: Region
    src: Region
    op: int
    origin: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """Transfers of copy engines that go out together: nothing waits for one of them alone."""

    transfers: tuple[Transfer, ...]
    stage: str

    @property
    def origin(self) -> Span:
        return self.transfers[0].origin


@dataclass(frozen=True, slots=True)
class GemmWork:
    """out (+)= left · right, or out = left · right + the sum of `terms`, which have the shape of out and its type or
    fp32; all is added in fp32 and rounded once. `tiles` is the grid of output tiles, rows × columns, that the kernel
    makes. `out` may lie on a peer, and so may a term, which may be `out` itself; there are none where the product is
    added to `out`, which then is the rank's own."""

    out: Region
    left: Region
    right: Region
    left_transposed: bool
    right_transposed: bool
    accumulate: bool
    tiles: tuple[int, int]
    waits: tuple[int, ...]  # flags that must be up before the work reads
    signals: tuple[int, ...]  # flags that the work raises when all of it is written
    op: int
    origin: Span = field(compare=False)
    terms: tuple[Region, ...] = ()

    @property
    def reads(self) -> tuple[Region, ...]:
        added = (self.out,) if self.accumulate else self.terms
        return (self.left, self.right, *added)

    @property
    def writes(self) -> tuple[Region, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True)
class ReduceWork:
    """out = sum of terms, accumulated in fp32."""

    out: Region
    terms: tuple[Region, ...]
    waits: tuple[int, ...]
    signals: tuple[int, ...]
    op: int
    origin: Span = field(compare=False)

    @property
    def reads(self) -> tuple[Region, ...]:
        return self.terms

    @property
    def writes(self) -> tuple[Region, ...]:
        return (self.out,)


@dataclass(frozen=True, slots=True)
class CopyWork:
    """dst <- src, bit by bit, by loads and stores of the rank's multiprocessors; either may lie on a peer."""

    dst: Region
    src: Region
    waits: tuple[int, ...]
    signals: tuple[int, ...]
    op: int
    origin: Span = field(compare=False)

    @property
    def reads(self) -> tuple[Region, ...]:
        return (self.src,)

    @property
    def writes(self) -> tuple[Region, ...]:
        return (self.dst,)


@dataclass(frozen=True, slots=True)
class KernelWork:
    """A user kernel with its arguments."""

    kernel: str
    arguments: tuple[Argument, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    waits: tuple[int, ...]
    signals: tuple[int, ...]
    op: int
    origin: Span = field(compare=False)

    @property
    def reads(self) -> tuple[Region, ...]:
        return tuple(a.value for a in self.arguments if a.mode in ("read", "update") and isinstance(a.value, Region))

    @property
    def writes(self) -> tuple[Region, ...]:
        return tuple(a.value for a in self.arguments if a.mode in ("write", "update") and isinstance(a.value, Region))


Work: TypeAlias = GemmWork | ReduceWork | CopyWork | KernelWork


@dataclass(frozen=True, slots=True)
class LaunchAttributes:
    """What the launch asks of the device, solved from the text's resources (None: the kernel's own choice)."""

    smem: int  # dynamic shared memory, bytes a block
    residency: int | None  # blocks a multiprocessor that this leaves room for
    sms: int | None  # persistent grid no larger than this many multiprocessors
    priority: Priority | None  # where it differs from its stream's


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. Not streamed: exactly one work, or copies that go out together; no flags. Streamed: many,
    with flags, of `stage` and of others that `joined` it: the first work of each, and its name."""

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
    def stages(self) -> tuple[str, ...]:
        return (self.stage, *(stage for _, stage in self.joined))

    def stage_of(self, work: int) -> str:
        """The stage of the work at this index."""
        return self.stages[sum(first <= work for first, _ in self.joined)]


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """This rank's call of collective `group`."""

    kind: CollectiveKind
    group: int
    dst: Region
    src: Region
    op: int
    stage: str
    origin: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class Record:
    """Mark everything before it on this stream as done, as event `event`."""

    event: int
    origin: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class WaitEvent:
    """Nothing later on this stream starts before event `event`. `origin` is the op that needs it."""

    event: int
    origin: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class SignalFlag:
    """Raise flag `flag` once everything before it on this stream is done."""

    flag: int
    origin: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class WaitFlag:
    """Nothing later on this stream starts before flag `flag` is up."""

    flag: int
    origin: Span = field(compare=False)


Command: TypeAlias = CopyAsync | Launch | CollectiveCall | Record | WaitEvent | SignalFlag | WaitFlag


@dataclass(frozen=True, slots=True)
class Stream:
    """An in-order queue of one rank's device. `link` is the peer that it serves where each link has its own."""

    id: int
    rank: int
    queue: str
    engine: Engine
    priority: Priority
    link: int | None
    commands: tuple[Command, ...]

    @property
    def name(self) -> str:
        return self.queue if self.link is None else f"{self.queue}→{self.link}"


@dataclass(frozen=True, slots=True)
class Order:
    """The text's `after`: op `after` must not start before op `before` is done, though no data asks for it."""

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
    tensors: tuple[Tensor, ...]
    kernels: tuple[Kernel, ...]
    claims: tuple[Claim, ...]
    streams: tuple[Stream, ...]
    events: int
    flag_homes: tuple[int, ...]
    orders: tuple[Order, ...]

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)
