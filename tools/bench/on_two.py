"""A rank of R, on two GPUs: of a plan for R ranks a plan for two, in which each does what its rank of R does.

The ranks of most plans are alike but for rotation: what rank q does with rank q + d, rank 0 does with rank d. Then two
ranks can stand for all. The plan keeps rank 0 and rank R // 2, each with its own commands, in their order. Each is all
peers of the other:

* Memory. What a kept rank writes or reads on its peer at distance d lies in its partner's memory. It is the place that
  the partner's own peer at distance −d writes or reads there. So the partner's memory is written and read as in the
  plan of R, every part of it, and no memory is added.
* Signals. A kept rank raises its own events and flags. Where it waits for another rank, it waits for what its partner
  raises at the same place of its streams. Ranks that are alike come there at the same time.

So each GPU sends the same bytes, in the same order, and waits as long as in the plan of R. What a switch sees of R GPUs
that get out of step is not there. Numbers mean nothing: pieces come from the partner that others would have sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby, zip_longest
from typing import TypeAlias

from ficco_rt.compiler import compilation
from ficco_rt.errors import PlanError, UsageError
from ficco_rt.geometry.region import Region
from ficco_rt.graph.ir import Argument, Body, Copy, Gemm, KernelCall, Reduce
from ficco_rt.plan.check import check
from ficco_rt.plan.ir import (
    CollectiveCall,
    Command,
    CopyAsync,
    Launch,
    Order,
    Plan,
    Record,
    Signal,
    SignalFlag,
    Stream,
    Transfer,
    WaitEvent,
    WaitFlag,
    Work,
)

Fact: TypeAlias = tuple[object, ...]  # what must be the same on all ranks


class NotAlike(UsageError):
    """The plan is none of which two ranks can stand for all."""


def on_two(plan: Plan) -> Plan:
    """The checked plan of ranks 0 and R // 2. Raises NotAlike, with the first difference between two ranks."""
    if plan.ranks < 2:
        raise NotAlike("a plan of one rank has no peers to stand for")
    ranks = _Ranks(plan)
    ranks.compare()
    kept = (0, plan.ranks // 2)
    made = _Pair(ranks, kept).plan()
    try:
        with compilation(plan.ranks):
            check(made)
    except PlanError as error:
        raise NotAlike(
            f"two ranks of {plan.schedule} do not keep the order that {plan.ranks} ranks keep: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return made


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """Where a signal is raised on its rank: the stream, how many copies and launches stand before, the work of a
    launch; `number` counts events of one place, `home` is how far away a flag lives."""

    kind: str
    stream: int
    step: int
    work: int
    home: int
    number: int

    def __str__(self) -> str:
        to = f" for the rank {self.home} further" if self.home else ""
        return f"its {self.kind}{to}, raised behind step {self.step} of stream {self.stream}"


@dataclass(frozen=True, slots=True, order=True)
class _Awaited:
    """A signal that a rank waits for: how far away it is raised, and where."""

    distance: int
    place: _Place

    def __str__(self) -> str:
        return f"a wait for the rank {self.distance} further: {self.place}"


@dataclass(frozen=True, slots=True)
class _Seen:
    """A region as a rank sees it."""

    tensor: str
    distance: int
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{_sizes(self.shape)} of {self.tensor} on the rank {self.distance} further"


class _Ranks:
    """A plan as each rank sees it: other ranks by their distance, signals by their places."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.streams = [[s for s in plan.streams if s.rank == rank] for rank in range(plan.ranks)]
        self.steps = [[[c for c in s.commands if c.parts] for s in mine] for mine in self.streams]
        self.raiser: dict[Signal, tuple[int, _Place]] = {}
        self.signal: dict[tuple[int, _Place], Signal] = {}
        for rank, mine in enumerate(self.streams):
            for k, stream in enumerate(mine):
                for signal, place in self._raised(rank, k, stream):
                    self.raiser[signal] = (rank, place)
                    self.signal[rank, place] = signal

    def _raised(self, rank: int, k: int, stream: Stream) -> Iterator[tuple[Signal, _Place]]:
        """The signals of a stream, each with its place."""
        step = 0
        seen: Counter[tuple[int, int, str, int]] = Counter()
        for command in stream.commands:
            if isinstance(command, Launch):
                given = [(Signal("flag", f), w) for w, work in enumerate(command.works) for f in work.signals]
            else:
                given = [(signal, -1) for signal in command.signals]
            step += bool(command.parts)
            for signal, work in given:
                home = self.distance(rank, self.plan.flag_homes[signal.number]) if signal.kind == "flag" else 0
                key = (step, work, signal.kind, home)
                yield signal, _Place(signal.kind, k, step, work, home, seen[key])
                seen[key] += 1

    def distance(self, rank: int, other: int) -> int:
        return (other - rank) % self.plan.ranks

    # ---- are all ranks alike?

    def compare(self) -> None:
        """Raises NotAlike at the first difference."""
        for stream in self.plan.streams:
            if stream.link is not None:
                raise NotAlike(
                    f"the plan has a stream for each link ({stream.name} of rank {stream.rank}); two GPUs have one "
                    "link between them: compile for GPUs on a switch"
                )
        for _, command in self.plan.commands():
            if isinstance(command, CollectiveCall):
                raise NotAlike(
                    f"{command.origin.place}: {command.kind} is a collective of all {self.plan.ranks} ranks; two "
                    "ranks cannot call it for all"
                )
        for tensor in self.plan.tensors:
            odd = next((r for r, shape in enumerate(tensor.shapes) if shape != tensor.shapes[0]), None)
            if odd is not None:
                raise NotAlike(
                    f"ranks are not rotations of each other: {tensor.name} is {_sizes(tensor.shapes[0])} on rank 0 "
                    f"and {_sizes(tensor.shapes[odd])} on rank {odd}"
                )
        first = list(self._facts(0))
        for rank in range(1, self.plan.ranks):
            for mine, other in zip_longest(first, self._facts(rank), fillvalue=("nothing more", ())):
                if mine[1] != other[1]:
                    left, right = _difference(mine[1], other[1])
                    raise NotAlike(
                        f"ranks are not rotations of each other: rank 0 has {mine[0]}, rank {rank} has {other[0]}; "
                        f"where the one has {_shown(left)}, the other has {_shown(right)}"
                    )

    def _facts(self, rank: int) -> Iterator[tuple[str, Fact]]:
        """What a rank does, in order, and what it is for people. Waits that stand together have no order, nor have
        signals."""
        for k, stream in enumerate(self.streams[rank]):
            yield f"stream {stream.name}", (stream.queue, stream.engine, stream.priority)
            for kind, commands in groupby(stream.commands, _kind):
                if kind == "step":
                    for command in commands:
                        yield from self._step(rank, command)
                else:
                    told = (self._ordering(rank, stream, kind, command) for command in commands)
                    yield from sorted(told, key=lambda fact: repr(fact[1]))
            yield f"the end of stream {stream.name}", (k,)

    def _ordering(self, rank: int, stream: Stream, kind: str, command: Command) -> tuple[str, Fact]:
        facts = self._awaited(rank, command.waits) if kind == "wait" else (self.raiser[s][1] for s in command.signals)
        return f"a {kind} at {command.origin.place} on stream {stream.name}", (kind, *facts)

    def _awaited(self, rank: int, signals: Sequence[Signal]) -> Fact:
        raised = (self.raiser[signal] for signal in signals)
        return tuple(sorted(_Awaited(self.distance(rank, raiser), place) for raiser, place in raised))

    def _step(self, rank: int, command: Command) -> Iterator[tuple[str, Fact]]:
        place = command.origin.place
        match command:
            case CopyAsync(transfers=transfers, stage=stage):
                moved = tuple((self._region(rank, t.dst), self._region(rank, t.src)) for t in transfers)
                yield f"a copy at {place}", ("copy", stage, moved)
            case Launch() as launch:
                given = launch.attributes
                attributes = tuple(f"{x.name} = {getattr(given, x.name)}" for x in fields(given))
                yield (
                    f"a launch of {launch.kernel} at {place} with {len(launch.works)} works",
                    (launch.kernel, launch.streamed, attributes, launch.stage, launch.joined),
                )
                for work in launch.works:
                    raised = sorted(self.raiser[Signal("flag", f)][1] for f in work.signals)
                    awaited = self._awaited(rank, [Signal("flag", f) for f in work.waits])
                    yield f"a work at {work.origin.place}", (self._body(rank, work.body), awaited, tuple(raised))
            case _:
                raise AssertionError(f"{type(command).__name__} has parts")

    def _body(self, rank: int, body: Body) -> Fact:
        """A body with its regions as the rank sees them."""
        turned = self.turned(rank, body)
        return (type(body).__name__, *(self._value(rank, getattr(turned, field.name)) for field in fields(turned)))

    def turned(self, rank: int, body: Body) -> Body:
        """The body with what it adds up in the order of distances: a sum over all ranks has each in its own order."""

        def away(region: Region) -> int:
            return self.distance(rank, region.rank)

        match body:
            case Gemm(addends=addends):
                return replace(body, addends=tuple(sorted(addends, key=away)))
            case Reduce(terms=terms):
                return replace(body, terms=tuple(sorted(terms, key=away)))
            case _:
                return body

    def _value(self, rank: int, value: object) -> object:
        match value:
            case Region():
                return self._region(rank, value)
            case Argument():
                return (value.name, value.mode, self._value(rank, value.value))
            case tuple():
                return tuple(self._value(rank, v) for v in value)
            case _:
                return value

    def _region(self, rank: int, region: Region) -> _Seen:
        """Where its rows lie turns with the rank; how many there are does not."""
        return _Seen(region.tensor, self.distance(rank, region.rank), region.shape)


class _Pair:
    """The plan of two ranks that stand for all."""

    def __init__(self, ranks: _Ranks, kept: tuple[int, int]) -> None:
        self.ranks, self.kept = ranks, kept
        self.new_rank = {rank: i for i, rank in enumerate(kept)}
        self.partner = {kept[0]: kept[1], kept[1]: kept[0]}
        mine = [s for s, (rank, _) in ranks.raiser.items() if rank in self.new_rank]
        self.events, self.flags = (
            {n: i for i, n in enumerate(sorted(s.number for s in mine if s.kind == kind))} for kind in ("event", "flag")
        )
        parts = (part for rank in kept for s in ranks.streams[rank] for c in s.commands for part in c.parts)
        self.ops = {op: i for i, op in enumerate(sorted({part.op for part in parts}))}

    def plan(self) -> Plan:
        whole = self.ranks.plan
        streams = [
            Stream(0, self.new_rank[rank], s.queue, s.engine, s.priority, None, tuple(self._commands(rank, k, s)))
            for rank in self.kept
            for k, s in enumerate(self.ranks.streams[rank])
        ]
        return replace(
            whole,
            schedule=f"{whole.schedule} (a rank of {whole.ranks} on two)",
            ranks=2,
            tensors=tuple(
                replace(t, shapes=tuple(t.shapes[rank] for rank in self.kept), unproven=t.kind == "output")
                for t in whole.tensors
            ),
            claims=(),
            streams=tuple(replace(stream, id=i) for i, stream in enumerate(streams)),
            events=len(self.events),
            flag_homes=tuple(self._home(flag) for flag in self.flags),
            orders=tuple(self._orders()),
        )

    def _home(self, flag: int) -> int:
        """A kept rank's flag for itself stays; one for any other rank is its partner's."""
        raiser, place = self.ranks.raiser[Signal("flag", flag)]
        return self.new_rank[raiser if place.home == 0 else self.partner[raiser]]

    def _orders(self) -> Iterator[Order]:
        """Those between ops of one kept rank; others are between ranks that are not here."""
        for order in self.ranks.plan.orders:
            if order.before in self.ops and order.after in self.ops:
                yield replace(order, before=self.ops[order.before], after=self.ops[order.after])

    # ---- commands of a kept rank

    def _commands(self, rank: int, k: int, stream: Stream) -> Iterator[Command]:
        step = 0
        for command in stream.commands:
            match command:
                case Record():
                    yield replace(command, event=self.events[command.event])
                case SignalFlag():
                    yield replace(command, flag=self.flags[command.flag])
                case WaitEvent():
                    yield replace(command, event=self.events[self._awaited(rank, command.waits[0]).number])
                case WaitFlag():
                    yield replace(command, flag=self.flags[self._awaited(rank, command.waits[0]).number])
                case CopyAsync(transfers=transfers):
                    made = (self._transfer(rank, t, k, step, i) for i, t in enumerate(transfers))
                    yield replace(command, transfers=tuple(made))
                case Launch(works=works):
                    yield replace(command, works=tuple(self._work(rank, w, k, step, i) for i, w in enumerate(works)))
                case _:
                    raise AssertionError(f"{type(command).__name__} was not refused")
            step += bool(command.parts)

    def _awaited(self, rank: int, signal: Signal) -> Signal:
        """What a kept rank waits for: its own signal, or that of its partner at the same place."""
        raiser, place = self.ranks.raiser[signal]
        return signal if raiser == rank else self.ranks.signal[self.partner[rank], place]

    def _peer(self, rank: int, other: int) -> int:
        """The rank that does with the partner what `rank` does with `other`."""
        return (self.partner[rank] - self.ranks.distance(rank, other)) % self.ranks.plan.ranks

    def _transfer(self, rank: int, transfer: Transfer, k: int, step: int, i: int) -> Transfer:
        def there(region: Region, side: str) -> Region:
            if region.rank == rank:
                return region.on(self.new_rank[rank])
            command = self.ranks.steps[self._peer(rank, region.rank)][k][step]
            assert isinstance(command, CopyAsync)
            found = getattr(command.transfers[i], side)
            assert isinstance(found, Region)
            return found.on(self.new_rank[self.partner[rank]])

        dst, src = there(transfer.dst, "dst"), there(transfer.src, "src")
        return replace(transfer, dst=dst, src=src, op=self.ops[transfer.op])

    def _work(self, rank: int, work: Work, k: int, step: int, i: int) -> Work:
        def twin(other: int) -> Work:
            """The same work, of the rank that does with the partner what this one does with the other."""
            author = self._peer(rank, other)
            command = self.ranks.steps[author][k][step]
            assert isinstance(command, Launch)
            work = command.works[i]
            return replace(work, body=self.ranks.turned(author, work.body))

        def there(region: Region, n: int) -> Region:
            """Region `n` of the body, in the memory of a kept rank."""
            if region.rank == rank:
                return region.on(self.new_rank[rank])
            return _regions(twin(region.rank).body)[n].on(self.new_rank[self.partner[rank]])

        body = self.ranks.turned(rank, work.body)
        made = [there(region, n) for n, region in enumerate(_regions(body))]
        tiles = work.tiles
        if isinstance(body, Gemm) and body.out.rank != rank:
            tiles = twin(body.out.rank).tiles
        return replace(
            work,
            body=_with_regions(body, made),
            waits=tuple(self.flags[self._awaited(rank, Signal("flag", f)).number] for f in work.waits),
            signals=tuple(self.flags[f] for f in work.signals),
            op=self.ops[work.op],
            tiles=tiles,
        )


def _regions(body: Body) -> list[Region]:
    """All regions of a body, in the order in which `_with_regions` takes them."""
    match body:
        case Gemm(out=out, left=left, right=right, addends=addends):
            return [out, left, right, *addends]
        case Reduce() | Copy():
            return [*body.writes, *body.reads]
        case KernelCall(arguments=arguments):
            return [a.value for a in arguments if isinstance(a.value, Region)]
    raise AssertionError(body)


def _with_regions(body: Body, regions: Sequence[Region]) -> Body:
    match body:
        case Gemm():
            out, left, right, *addends = regions
            return replace(body, out=out, left=left, right=right, addends=tuple(addends))
        case Reduce():
            return replace(body, out=regions[0], terms=tuple(regions[1:]))
        case Copy():
            return replace(body, dst=regions[0], src=regions[1])
        case KernelCall(arguments=arguments):
            left_over = iter(regions)
            given = (replace(a, value=next(left_over)) if isinstance(a.value, Region) else a for a in arguments)
            return replace(body, arguments=tuple(given))
    raise AssertionError(body)


def _difference(left: object, right: object) -> tuple[object, object]:
    """The first parts in which two facts differ."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        for a, b in zip_longest(left, right, fillvalue=None):
            if a != b:
                return _difference(a, b)
    return left, right


def _shown(fact: object) -> str:
    return "nothing" if fact is None or fact == () else str(fact)


def _kind(command: Command) -> str:
    return "step" if command.parts else "wait" if isinstance(command, WaitEvent | WaitFlag) else "signal"


def _sizes(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))
