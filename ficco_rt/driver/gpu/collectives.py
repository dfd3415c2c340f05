"""Collectives of all ranks, made of our own copies and sums, so that they run wherever plans run: for ranks that share
a GPU, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ...cells import part
from ...errors import UsageError
from ...plan.ir import CollectiveCall, Command, Plan
from ...region import Region
from .crossings import Crossings
from .gpus import Gpus
from .refused import Closing
from .spans import place_of
from .streams import Bound, Entry, GpuStream, Piece, Step
from .tensors import Resolve
from .vendor import Handle, Word

Sum: TypeAlias = tuple[Region, list[Region]]  # out, terms
Copy: TypeAlias = tuple[Region, Region]  # dst, src


@dataclass(frozen=True, slots=True)
class Steps:
    """What a rank does: the sum, if any, then the copies in order."""

    sum: Sum | None
    copies: tuple[Copy, ...]


def steps(command: CollectiveCall, rank: int, plan: Plan, resolve: Resolve) -> Steps:
    """The rank's part of a collective."""
    calls = _calls(plan, command.group)
    ranks = len(calls)
    peers = [(rank + i) % ranks for i in range(1, ranks)]
    if resolve(command.dst).address == resolve(command.src).address and command.kind in (
        "reduce_scatter",
        "all_to_all",
    ):
        raise UsageError(f"{place_of(command.origin)}: there is no {command.kind} in place; take two tensors")
    match command.kind:
        case "all_gather":
            starts = _starts([c.src.shape[0] for c in calls])
            pushes = [(part(calls[p].dst, starts[rank], starts[rank + 1]), command.src) for p in (*peers, rank)]
            return Steps(None, tuple((dst, src) for dst, src in pushes if dst != src))
        case "all_to_all":
            return Steps(None, tuple(_exchange(command, rank, calls)))
        case "reduce_scatter":
            starts = _starts([c.dst.shape[0] for c in calls])
            a, b = starts[rank], starts[rank + 1]
            return Steps((command.dst, [part(calls[p].src, a, b) for p in (rank, *peers)]), ())
        case "all_reduce":  # every rank sums a share of the rows and pushes it to all
            rows = command.src.shape[0]
            a, b = rank * rows // ranks, (rank + 1) * rows // ranks
            if a == b:
                return Steps(None, ())
            mine = part(command.dst, a, b)
            terms = [part(calls[p].src, a, b) for p in (rank, *peers)]
            return Steps((mine, terms), tuple((part(calls[p].dst, a, b), mine) for p in peers))


def _calls(plan: Plan, group: int) -> list[CollectiveCall]:
    """All ranks' calls of a collective, by rank."""
    found = {s.rank: c for s in plan.streams for c in s.commands if isinstance(c, CollectiveCall) and c.group == group}
    return [found[rank] for rank in sorted(found)]


def _exchange(command: CollectiveCall, rank: int, calls: Sequence[CollectiveCall]) -> Iterator[Copy]:
    ranks, rows = len(calls), command.src.shape[0]
    for p in (*((rank + i) % ranks for i in range(1, ranks)), rank):  # staggered pushes
        a, b = p * rows // ranks, (p + 1) * rows // ranks
        before = sum((p + 1) * c.src.shape[0] // ranks - p * c.src.shape[0] // ranks for c in calls[:rank])
        if a < b:
            yield part(calls[p].dst, before, before + b - a), part(command.src, a, b)


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for n in sizes:
        starts.append(starts[-1] + n)
    return starts


class Group:
    """A collective's calls, bound in the order of issue: all are issued where the last stands, with all ranks'
    streams held together before and after by two events a rank."""

    def __init__(self, gpus: Gpus, crossings: Crossings, ranks: int, number: int) -> None:
        self._gpus = gpus
        self._crossings = crossings
        self._ranks = ranks
        self._number = number
        self._members: list[Member] = []

    @property
    def whole(self) -> bool:
        return len(self._members) == self._ranks

    def add(self, bound: Bound) -> Member:
        device = bound.stream.device
        member = Member(self, bound, self._gpus.new_event(device), self._gpus.new_event(device))
        self._members.append(member)
        return member

    def steps(self, of: Callable[[Bound], Iterable[Step]]) -> Iterator[Step]:
        """What all ranks do; `of` a rank's own part."""
        yield from self._meet([m.before for m in self._members])
        for member in self._members:
            yield from of(member.bound)
        yield from self._meet([m.after for m in self._members])

    def entries(self) -> Iterator[Entry]:
        """What all ranks put into graphs."""
        yield from self._meet_inside([m.before for m in self._members], behind=False)
        for member in self._members:
            yield from member.bound.entries()
        yield from self._meet_inside([m.after for m in self._members], behind=True)

    def is_last(self, member: Member) -> bool:
        return member is self._members[-1]

    def bounds(self) -> Iterator[Bound]:
        return (member.bound for member in self._members)

    def _meet(self, events: Sequence[Handle]) -> Iterator[Step]:
        vendor = self._gpus.vendor
        streams = [m.bound.stream for m in self._members]
        command, what = self._members[0].command, self._what
        for stream, event in zip(streams, events, strict=True):
            yield Step(stream.device, *vendor.record_action(event, stream.handle), what, command.origin)
        for stream, own in zip(streams, events, strict=True):
            for event in events:
                if event is not own:
                    yield Step(stream.device, *vendor.wait_action(stream.handle, event), what, command.origin)

    def _meet_inside(self, events: Sequence[Handle], *, behind: bool) -> Iterator[Entry]:
        """In graphs: events among streams of a device, words between devices."""
        vendor = self._gpus.vendor
        streams = [m.bound.stream for m in self._members]
        points = [(self._number, stream.plan.rank, behind) for stream in streams]

        def entry(stream: GpuStream, calls: Piece, words: tuple[Word, ...]) -> Entry:
            return Entry(stream, calls, words, self._what, self._members[0].command.origin)

        for stream, event, point in zip(streams, events, points, strict=True):
            yield entry(stream, (vendor.record_action(event, stream.handle),), self._crossings.raised(point))
        for stream in streams:
            for other, event, point in zip(streams, events, points, strict=True):
                if other is not stream:
                    words = self._crossings.awaited(point, stream.device.ordinal)
                    yield entry(stream, () if words else (vendor.wait_action(stream.handle, event),), words)

    @property
    def _what(self) -> str:
        return f"{type(self._members[0].command).__name__} of all ranks"


@dataclass(slots=True, eq=False)
class Member:
    """One rank's call."""

    group: Group
    bound: Bound
    before: Handle
    after: Handle

    @property
    def command(self) -> Command:
        return self.bound.command

    def steps(self) -> Iterator[Step]:
        return self.group.steps(Bound.steps) if self.group.is_last(self) else iter(())

    def entries(self) -> Iterator[Entry]:
        return self.group.entries() if self.group.is_last(self) else iter(())

    def marked(self) -> Iterator[Step]:
        return self.group.steps(Bound.marked) if self.group.is_last(self) else iter(())

    def bounds(self) -> Iterator[Bound]:
        return self.group.bounds() if self.group.is_last(self) else iter(())

    def release(self) -> None:
        closing = Closing()
        closing(self.bound.release)
        for event in (self.before, self.after):
            closing(self.bound.gpus.drop_event, event)
        closing.end()
