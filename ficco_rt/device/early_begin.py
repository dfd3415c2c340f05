"""Early begin: which streams of a device need not wait, at the beginning of a run, until the other devices have ended
the previous run.

Devices of different processes synchronise through semaphores. The simple method is a barrier at the end of each run,
before the run counts as complete. Every run then takes as long as on the slowest device, and a round trip of semaphores
separates two runs. An early begin is possible where other devices do no more to a device's memory than write once what
this device reads later in the run: the end of the run on this device then shows that the others have finished with its
memory. At the beginning of the next run the device signals that it is `ready`. Only streams of other devices that write
its memory or signal its semaphores wait for that signal. Streams that touch only their own device begin at once.

No device can signal `ready` twice before another device has received the first signal: a device ends a run only after
it has received what the other one sent, and the other one sends nothing before it has received `ready`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..geometry.region import BoxMap, Region
from ..plan.ir import Access, CollectiveCall, Launch, Plan, Stream
from .ir import Features, Placement

NOBODY = -1


@dataclass(frozen=True, slots=True)
class EarlyBegin:
    """`sends`: for each device, the other devices whose memory its streams write: it waits until these are ready.
    `local_streams`: the streams of the plan that touch only their own device, and so do not wait. They signal no
    semaphores of other devices either."""

    sends: Mapping[int, frozenset[int]]
    local_streams: frozenset[int]

    def waits(self, device: int, other: int) -> bool:
        """Whether a device waits until another one is ready."""
        return other in self.sends[device]


def early_begin_of(plan: Plan, placement: Placement, features: Features) -> EarlyBegin | None:
    """None: no early begin, and all devices signal the end of each run to each other. The reason is one of these: other
    devices do more than write what is read here; no multiplication could begin earlier; a semaphore cannot change
    without a multiprocessor, and waiting kernels may hold all of these; or there is one process, whose devices share
    events in most modes."""
    if len(set(placement.processes)) < 2 or not (features.batched_mem_ops and features.alone):
        return None
    if any(isinstance(command, CollectiveCall) for _, command in plan.commands()):
        return None
    sends: dict[int, set[int]] = {device: set() for device in placement.ordinals}
    local_streams = set()
    for stream in plan.streams:
        here = placement.devices[stream.rank]
        reached = {placement.devices[a.region.rank] for command in stream.commands for a in command.accesses()}
        sends[here] |= reached - {here}
        if reached <= {here}:
            local_streams.add(stream.id)
    early = {placement.devices[s.rank] for s in plan.streams if s.id in local_streams and _multiplies(s)}
    if early != set(placement.ordinals) or not any(sends.values()) or not _read_where_written(plan, placement):
        return None
    return EarlyBegin({device: frozenset(others) for device, others in sends.items()}, frozenset(local_streams))


def _multiplies(stream: Stream) -> bool:
    return stream.engine == "sm" and any(isinstance(command, Launch) for command in stream.commands)


def _read_where_written(plan: Plan, placement: Placement) -> bool:
    """Whether all that devices do to others' memory is to write scratch which nobody else writes, and which the other
    device itself reads. So it reads behind the write: before it there would be nothing to read."""
    accesses = accesses_of(plan, placement)
    scratch = {t.name: t.shapes for t in plan.tensors if t.kind == "scratch"}
    away = [access for here, access in accesses if placement.devices[access.region.rank] != here]
    if not all(access.written and access.region.tensor in scratch for access in away):
        return False
    writers = Writers(scratch, (access.region for access in away))
    if not all(writers.add(access.region, number) for number, access in enumerate(away)):
        return False
    read: set[int] = set()
    for here, (region, written, _) in accesses:
        if placement.devices[region.rank] == here:
            found = writers.of(region)
            if written and found != {NOBODY}:
                return False
            read |= found
    return read >= set(range(len(away)))


def accesses_of(plan: Plan, placement: Placement) -> list[tuple[int, Access]]:
    """All accesses of a plan, each with the device that makes it."""
    return [(placement.devices[stream.rank], a) for stream, command in plan.commands() for a in command.accesses()]


class Writers:
    """Who writes the elements of scratch, by number, where these `regions` lie."""

    def __init__(self, scratch: Mapping[str, tuple[tuple[int, ...], ...]], regions: Iterable[Region]) -> None:
        places = {(region.tensor, region.rank) for region in regions}
        self._written = {place: BoxMap(scratch[place[0]][place[1]], NOBODY) for place in places}

    def of(self, region: Region) -> set[int]:
        """The writers of a region's elements, NOBODY among them where some are not written."""
        cells = self._written.get((region.tensor, region.rank))
        return {NOBODY} if cells is None else {by for box in region.boxes for _, by in cells.items(box)}

    def add(self, region: Region, writer: int) -> bool:
        """Adds a writer of a region, unless somebody else has written there before: then it says no."""
        if self.of(region) - {NOBODY, writer}:
            return False
        for box in region.boxes:
            self._written[region.tensor, region.rank].update(box, lambda _: writer)
        return True
