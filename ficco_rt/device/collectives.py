"""Collectives of all ranks, made of copies and sums, so that they run wherever plans run: for ranks that share a GPU,
too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..cells import part
from ..graph.ir import Reduce
from ..plan.ir import CollectiveCall, Plan
from ..region import Region


@dataclass(frozen=True, slots=True)
class Pair:
    """A copy: dst <- src."""

    dst: Region
    src: Region


@dataclass(frozen=True, slots=True)
class CollectivePart:
    """What a rank does: the sum, if any, then the copies in order."""

    sum: Reduce | None
    copies: tuple[Pair, ...] = ()


def calls_of(plan: Plan) -> dict[int, list[CollectiveCall]]:
    """The calls of every collective, by rank."""
    found: dict[int, dict[int, CollectiveCall]] = {}
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, CollectiveCall):
                found.setdefault(command.group, {})[stream.rank] = command
    return {group: [calls[rank] for rank in sorted(calls)] for group, calls in found.items()}


def part_of(rank: int, calls: Sequence[CollectiveCall]) -> CollectivePart:
    """A rank's part of a collective; `calls` are those of all ranks."""
    command, ranks = calls[rank], len(calls)
    peers = [(rank + i) % ranks for i in range(1, ranks)]
    match command.kind:
        case "all_gather":
            starts = _starts([c.src.shape[0] for c in calls])
            pushes = [Pair(part(calls[p].dst, starts[rank], starts[rank + 1]), command.src) for p in (*peers, rank)]
            return CollectivePart(None, tuple(push for push in pushes if push.dst != push.src))
        case "all_to_all":
            return CollectivePart(None, tuple(_exchange(rank, calls)))
        case "reduce_scatter":
            starts = _starts([c.dst.shape[0] for c in calls])
            a, b = starts[rank], starts[rank + 1]
            return CollectivePart(Reduce(command.dst, tuple(part(calls[p].src, a, b) for p in (rank, *peers))))
        case "all_reduce":  # every rank sums a share of the rows and pushes it to all
            rows = command.src.shape[0]
            a, b = rank * rows // ranks, (rank + 1) * rows // ranks
            if a == b:
                return CollectivePart(None)
            mine = part(command.dst, a, b)
            terms = tuple(part(calls[p].src, a, b) for p in (rank, *peers))
            return CollectivePart(Reduce(mine, terms), tuple(Pair(part(calls[p].dst, a, b), mine) for p in peers))


def _exchange(rank: int, calls: Sequence[CollectiveCall]) -> Iterator[Pair]:
    ranks, rows = len(calls), calls[rank].src.shape[0]
    for p in (*((rank + i) % ranks for i in range(1, ranks)), rank):  # staggered pushes
        a, b = p * rows // ranks, (p + 1) * rows // ranks
        before = sum((p + 1) * c.src.shape[0] // ranks - p * c.src.shape[0] // ranks for c in calls[:rank])
        if a < b:
            yield Pair(part(calls[p].dst, before, before + b - a), part(calls[rank].src, a, b))


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for n in sizes:
        starts.append(starts[-1] + n)
    return starts
