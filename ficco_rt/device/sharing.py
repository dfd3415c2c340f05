"""The contract between runs: what a run may assume of the runs before it, and what the runs behind it may assume of it.

Runs of any plans of a workspace follow each other. On the devices of a process events order them. Devices of different
processes, and devices of callers' graphs, share memory and semaphores but no events. For them the contract is:

- *A run that has ended on a device has begun on all devices of the node* which share no events with it. They had ended
  all earlier runs then. So a run knows at its begin that only the run right before it may be under way elsewhere.
- Small plans alternate between two *sets* of scratch and semaphores, by the order of runs, so that no run touches what
  the run right before it uses. They need no barrier if in every run all devices hear from each other.
- All other runs begin with an *entry* barrier, after which all earlier runs have ended everywhere. It is told by a
  kernel, or, where products need not wait for it, by streams: then *local* streams begin before it. They touch nothing
  that other devices see. In one process they begin before the run before has ended on the other devices, if they use
  no scratch of their own.
- Scratch that no other device touches is *private* where a run may use it before an entry barrier: it is in none of
  the sets, and the order of runs on its device protects it.
- In callers' graphs runs alternate between two sets of their own, by their order in a graph. A graph may be replayed
  after any run, so its first run begins with an entry barrier. A run behind a replay needs none: its set is no graph's.
- Callers' tensors that other devices touch are free again behind an *exit* barrier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from ..graph.ir import Copy, Reduce
from ..plan.ir import CollectiveCall, Launch, Part, Plan, Record, Stream, WaitEvent
from ..types import TYPES
from .collectives import barrier_peers, calls_of, part_of
from .ir import Features, Placement

# bytes of a device's scratch that others touch. A second set is kept beside it: that is worth the microseconds of an
# entry barrier where runs are short
LARGEST = 16 << 20


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the runs of a plan on a placement keep the contract. `private`: scratch that no other device ever touches.
    `sets`: of the other scratch, and of semaphores, between which runs alternate. `entry`: which runs begin with an
    entry barrier: none, the first ones of callers' graphs (`replays`), or all. `local_streams`: of the plan, those that
    begin before the entry barrier, or before the run before has ended on other devices; none where a kernel tells the
    barrier to another process."""

    private: frozenset[str] = frozenset()
    sets: int = 1
    entry: Literal["never", "replays", "always"] = "never"
    local_streams: frozenset[int] = frozenset()


def all_sets(sets: int, features: Features) -> int:
    """`sets` between which runs alternate, with those for callers' graphs."""
    return 2 * sets if sets > 1 and features.embeds else sets


def buffer_set(sets: int, run: int, *, embedded: bool) -> int:
    """The set that a run uses, by its number among those outside of callers' graphs, or in its graph (`embedded`)."""
    return run % sets + (sets if embedded and sets > 1 else 0)


def sharing_of(plan: Plan, placement: Placement, features: Features, by_library: bool) -> Sharing:
    """`by_library`: the vendor's library makes the collectives, in which no device touches another one's memory."""
    owners = placement.devices
    scratch = {tensor.name for tensor in plan.tensors if tensor.kind == "scratch"}
    away = {name for here, name, rank in _touched(plan, placement, by_library) if owners[rank] != here}
    private = frozenset(scratch - away)
    pairs = {(device, other) for device in placement.ordinals for other in placement.near(device)}
    apart = len(set(placement.processes)) > 1
    if not pairs or not (apart or features.embeds):
        return Sharing(private)
    signalled, signalling = _signals(plan, placement)
    heard = signalled | _called(plan, placement)
    if not (away or signalled) and pairs <= heard:
        return Sharing(private)
    if apart and not pairs <= heard:
        return Sharing(entry="always")
    if apart and away <= scratch and _most(plan, placement, away) <= LARGEST:
        return Sharing(private, sets=2, entry="replays" if features.embeds else "never")
    calls = any(isinstance(command, CollectiveCall) for _, command in plan.commands())
    if calls or not away <= scratch or (apart and not features.batched_mem_ops):
        return Sharing(entry="always")
    local = [stream for stream in plan.streams if stream.id not in signalling and _is_local(stream, plan, away)]
    # NOTE where some device has nothing to multiply before the barrier, the others would wait for it in the end
    early = {owners[stream.rank] for stream in local if _multiplies(stream)} == set(placement.ordinals)
    local = local if early else []
    used = {access.region.tensor for stream in local for command in stream.commands for access in command.accesses()}
    if private & used and not apart:  # memory of its own, for which nothing but this would be kept
        return Sharing(entry="always")
    return Sharing(private & used, entry="always", local_streams=frozenset(stream.id for stream in local))


def _touched(plan: Plan, placement: Placement, by_library: bool) -> Iterator[tuple[int, str, int]]:
    """Device, and tensor and rank that it touches."""
    calls = {} if by_library else calls_of(plan)
    for stream, command in plan.commands():
        here = placement.devices[stream.rank]
        if isinstance(command, CollectiveCall) and calls:
            parts: Sequence[Reduce | Copy | Part] = part_of(stream.rank, calls[command.group])
        else:
            parts = command.parts
        for part in parts:
            for region in (*part.reads, *part.writes):
                yield here, region.tensor, region.rank


def _signals(plan: Plan, placement: Placement) -> tuple[set[tuple[int, int]], set[int]]:
    """The pairs of devices of which the first awaits flags or events of the other one; the streams that raise such."""
    owners = placement.devices
    pairs: set[tuple[int, int]] = set()
    streams: set[int] = set()
    awaiting: dict[int, set[int]] = {}  # by event: the devices that wait for it
    for stream, command in plan.commands():
        if isinstance(command, WaitEvent):
            awaiting.setdefault(command.event, set()).add(owners[stream.rank])
    for stream, command in plan.commands():
        here = owners[stream.rank]
        told = {owners[plan.flag_homes[signal.number]] for signal in command.signals if signal.kind == "flag"}
        if isinstance(command, Record):
            told |= awaiting.get(command.event, set())
        if told - {here}:
            streams.add(stream.id)
            pairs |= {(device, here) for device in told}
    return pairs, streams


def _called(plan: Plan, placement: Placement) -> set[tuple[int, int]]:
    """The pairs of devices of which the first hears the other one by a collective, whoever makes it."""
    owners = placement.devices
    return {
        (owners[rank], owners[other])
        for calls in calls_of(plan).values()
        for rank, call in enumerate(calls)
        if call.kind != "send_recv"
        for other in barrier_peers(calls, rank, behind=True)
    }


def _most(plan: Plan, placement: Placement, names: Iterable[str]) -> int:
    """Bytes of these tensors, on the device that has most."""
    found = dict.fromkeys(placement.ordinals, 0)
    for tensor in plan.tensors:
        if tensor.name in names:
            for device, shape in zip(placement.devices, tensor.shapes, strict=True):
                found[device] += prod(shape) * TYPES[tensor.dtype].bytes
    return max(found.values())


def _is_local(stream: Stream, plan: Plan, away: set[str]) -> bool:
    """Whether it touches its own rank's tensors alone, and of what other devices touch only reads what flags tell."""
    accesses = [access for command in stream.commands for access in command.accesses()]
    return all(a.region.rank == stream.rank and not (a.written and a.region.tensor in away) for a in accesses)


def _multiplies(stream: Stream) -> bool:
    return stream.engine == "sm" and any(isinstance(command, Launch) for command in stream.commands)
