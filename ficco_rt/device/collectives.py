"""Collectives of all ranks: calls of the vendor's library, or copies and sums. Copies and sums work wherever plans run,
even for ranks that share a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from ficco_dsl.diagnostics import Diagnostic

from ..errors import DeviceError
from ..geometry.cells import part
from ..geometry.region import Region
from ..graph.ir import CollectiveSettings, Copy, Reduce
from ..graph.op_rules import pairs_fit
from ..machine.model import Device
from ..plan.ir import CollectiveCall, Plan
from .ir import CallCollective, Communicator, DevicePlan, Features, Placement


def calls_of(plan: Plan) -> dict[int, list[CollectiveCall]]:
    """The calls of every collective, by rank."""
    found: dict[int, dict[int, CollectiveCall]] = {}
    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, CollectiveCall):
                found.setdefault(command.group, {})[stream.rank] = command
    return {group: [calls[rank] for rank in sorted(calls)] for group, calls in found.items()}


USUAL_CTAS = 32  # blocks of a library's kernel if nothing is asked (NCCL API, ncclConfig_t: maxCTAs)


def own_way(plan: Plan, device: Device, placement: Placement, features: Features, crowded: bool) -> str:
    """Why the plan's collectives are copies and sums; empty if the vendor's library makes them."""
    if not features.collectives:
        return "no library of collectives is in use"
    if len(set(placement.devices)) < len(placement.devices):
        return f"ranks share a GPU, and {features.collectives} takes one rank a GPU"
    if plan.ranks < 2:
        return "there is one rank"
    if crowded:
        return "a GPU has fewer hardware queues than streams"
    # blocks of two communicators that wait, here for one and there for the other, would wait for ever
    held = {c.queue: c.blocks for c in communicators_of(plan, device)[0]}
    if sum(held.values()) > device.sms:
        said = " + ".join(f"{blocks} of queue '{queue}'" for queue, blocks in held.items())
        return f"collectives may hold {said} of {device.sms} multiprocessors at once; say ctas on the queues"
    return ""


def alone_reaches_other_nodes(plan: Plan, reason: str) -> None:
    """Raises DeviceError if the plan has collectives: `reason` says why the library cannot make them, and only the
    library reaches other nodes."""
    for _, command in plan.commands():
        if isinstance(command, CollectiveCall):
            raise DeviceError(
                f"{command.origin.place}: between nodes NCCL or RCCL alone makes {command.kind}, and here it does not: "
                f"{reason}; install it for every process (--emit device-plan: --collectives library)"
            )


def communicators_of(plan: Plan, device: Device) -> tuple[tuple[Communicator, ...], dict[int, int]]:
    """What the library opens, one for each queue that has collectives, and which of these each collective goes by.
    NOTE `ctas = 0` asks for no multiprocessor, and the library may take some."""
    found: dict[str, Communicator] = {}
    of: dict[int, str] = {}
    for stream, command in plan.commands():
        if isinstance(command, CollectiveCall) and command.group not in of:
            of[command.group] = stream.queue
            asked = stream.collectives or CollectiveSettings()
            blocks = min(asked.ctas or USUAL_CTAS, device.sms)
            found.setdefault(stream.queue, Communicator(stream.queue, asked, blocks))
    places = {queue: number for number, queue in enumerate(found)}
    return tuple(found.values()), {group: places[queue] for group, queue in of.items()}


def barrier_peers(calls: Sequence[CollectiveCall], rank: int, *, behind: bool) -> frozenset[int]:
    """The ranks that a rank waits for before its part of a collective made of copies and sums, or behind it. A copy
    that is sent waits until its place is free, and whoever receives it until it is there."""
    call = calls[rank]
    if call.kind != "send_recv":
        return frozenset(range(len(calls))) - {rank}
    wanted = (call.by if call.writes else rank) if behind else (call.to if call.reads else rank)
    return frozenset({wanted}) - {rank}


def part_of(rank: int, calls: Sequence[CollectiveCall]) -> tuple[Reduce | Copy, ...]:
    """A rank's part of a collective: the sum, if any, then the copies in order. `calls` are those of all ranks."""
    command, ranks = calls[rank], len(calls)
    peers = [(rank + i) % ranks for i in range(1, ranks)]
    match command.kind:
        case "all_gather":
            starts = _starts([c.src.shape[0] for c in calls])
            dsts = _parts([calls[p].dst for p in (*peers, rank)], starts[rank], starts[rank + 1])
            return tuple(Copy(dst, command.src) for dst in dsts if dst != command.src)
        case "all_to_all":
            return tuple(_exchange(rank, calls))
        case "send_recv":
            return (Copy(calls[command.to].dst, command.src),) if command.reads else ()
        case "reduce_scatter":
            starts = _starts([c.dst.shape[0] for c in calls])
            return (Reduce(command.dst, _parts([calls[p].src for p in (rank, *peers)], *starts[rank : rank + 2])),)
        case "all_reduce":  # every rank sums a share of the rows and pushes it to all
            rows = command.src.shape[0]
            a, b = rank * rows // ranks, (rank + 1) * rows // ranks
            if a == b:
                return ()
            mine = part(command.dst, a, b)
            terms = _parts([calls[p].src for p in (rank, *peers)], a, b)
            return (Reduce(mine, terms), *(Copy(dst, mine) for dst in _parts([calls[p].dst for p in peers], a, b)))


def _parts(regions: Sequence[Region], start: int, stop: int) -> tuple[Region, ...]:
    """The same rows of regions. NOTE ranks take the same part of equal tensors: one cut serves all of them."""
    found: list[Region] = []
    for region in regions:
        like = region is not regions[0] and region.axes is regions[0].axes and region.tensor == regions[0].tensor
        found.append(found[0].on(region.rank) if like else part(region, start, stop))
    return tuple(found)


def _exchange(rank: int, calls: Sequence[CollectiveCall]) -> Iterator[Copy]:
    ranks, rows = len(calls), calls[rank].src.shape[0]
    for p in (*((rank + i) % ranks for i in range(1, ranks)), rank):  # staggered pushes
        a, b = p * rows // ranks, (p + 1) * rows // ranks
        before = sum((p + 1) * c.src.shape[0] // ranks - p * c.src.shape[0] // ranks for c in calls[:rank])
        if a < b:
            yield Copy(part(calls[p].dst, before, before + b - a), part(calls[rank].src, a, b))


def _starts(sizes: Iterable[int]) -> list[int]:
    return list(accumulate(sizes, initial=0))


# ---------------------------------------------------------------- a rule of device plans

ONE_EACH = "in callers' graphs the vendor's library takes one GPU a process: start a process for each GPU"


def collectives_are_called_together(plan: DevicePlan) -> Iterator[Diagnostic]:
    """The calls of a collective stand side by side in the order of ranks, alike, each on its own rank's memory; and the
    library can take them: every rank has a device of its own, and in callers' graphs a process of its own, too."""
    calls = [action for action in plan.body if isinstance(action, CallCollective)]
    if not calls:
        return
    first, ranks = calls[0], len(plan.placement.devices)
    if not plan.features.collectives:
        yield first.mistake("a call of the vendor's library, and there is none")
    if len(set(plan.placement.devices)) < ranks:
        yield first.mistake("the vendor's library takes one rank a device")
    if plan.crowded:
        yield first.mistake("the vendor's library has no part on crowded devices")
    if plan.mode == "embedded" and not plan.placement.each_alone:
        yield first.mistake(ONE_EACH)
    places: dict[int, list[int]] = defaultdict(list)
    for place, action in enumerate(plan.body):
        if isinstance(action, CallCollective):
            places[action.group].append(place)
    owners = {stream.name: stream.rank for stream in plan.streams}
    for group, at in places.items():
        members = [action for i in at if isinstance(action := plan.body[i], CallCollective)]
        head, pairs = members[0], members[0].kind == "send_recv"
        callers = [rank for m in members if (rank := owners[m.stream]) is not None]
        if callers != list(range(ranks)) or at[-1] - at[0] != ranks - 1:
            yield head.mistake(f"collective {group} is called by ranks {callers}; all call it in order, side by side")
        elif pairs and (message := pairs_fit(members, {t.name: t for t in plan.tensors})):
            yield head.mistake(message)
        for m in members:
            alike = pairs or m.src.shape == head.src.shape
            if (m.kind, m.communicator) != (head.kind, head.communicator) or not alike:
                yield m.mistake(f"collective {group} is another one on rank {owners[m.stream]}")
            if not 0 <= m.communicator < len(plan.communicators):
                yield m.mistake(f"there is no communicator {m.communicator}")
            if m.stream.kind != "plan" or not owners[m.stream] == m.dst.rank == m.src.rank:
                yield m.mistake(f"{m.stream} calls it on another rank's memory")
