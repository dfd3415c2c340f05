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
            dsts = _parts([calls[p].dst for p in (*peers, rank)], starts[rank], starts[rank + 1])
            return CollectivePart(None, tuple(Pair(dst, command.src) for dst in dsts if dst != command.src))
        case "all_to_all":
            return CollectivePart(None, tuple(_exchange(rank, calls)))
        case "reduce_scatter":
            starts = _starts([c.dst.shape[0] for c in calls])
            a, b = starts[rank], starts[rank + 1]
            return CollectivePart(Reduce(command.dst, _parts([calls[p].src for p in (rank, *peers)], a, b)))
        case "all_reduce":  # every rank sums a share of the rows and pushes it to all
            rows = command.src.shape[0]
            a, b = rank * rows // ranks, (rank + 1) * rows // ranks
            if a == b:
                return CollectivePart(None)
            mine = part(command.dst, a, b)
            terms = _parts([calls[p].src for p in (rank, *peers)], a, b)
            dsts = _parts([calls[p].dst for p in peers], a, b)
            return CollectivePart(Reduce(mine, terms), tuple(Pair(dst, mine) for dst in dsts))


def _parts(regions: Sequence[Region], start: int, stop: int) -> tuple[Region, ...]:
    """The same rows of regions. NOTE ranks take the same part of equal tensors: one cut serves all of them."""
    found: list[Region] = []
    for region in regions:
        like = region is not regions[0] and region.axes is regions[0].axes and region.tensor == regions[0].tensor
        found.append(found[0].on(region.rank) if like else part(region, start, stop))
    return tuple(found)


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
