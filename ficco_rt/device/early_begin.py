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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..geometry.region import BoxMap, Region
from ..plan.ir import Access, CollectiveCall, Launch, Plan, Stream
from .ir import Features, Placement

_NOBODY = -1
_Place = tuple[str, int]  # a tensor and a rank


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
    if len(set(placement.processes)) < 2 or not features.batched_mem_ops:
        return None
    if any(isinstance(command, CollectiveCall) for _, command in plan.commands()):
        return None
    sends: dict[int, set[int]] = {device: set() for device in placement.ordinals}
    local_streams = set()
    for stream in plan.streams:
        here = placement.devices[stream.rank]
        reached = {placement.devices[access.region.rank] for access in _accesses(stream)}
        sends[here] |= reached - {here}
        if reached <= {here}:
            local_streams.add(stream.id)
    early = {placement.devices[s.rank] for s in plan.streams if s.id in local_streams and _multiplies(s)}
    if early != set(placement.ordinals) or not any(sends.values()) or not _read_where_written(plan, placement):
        return None
    return EarlyBegin({device: frozenset(others) for device, others in sends.items()}, frozenset(local_streams))


def _accesses(stream: Stream) -> Iterator[Access]:
    for command in stream.commands:
        yield from command.accesses()


def _multiplies(stream: Stream) -> bool:
    return stream.engine == "sm" and any(isinstance(command, Launch) for command in stream.commands)


def _read_where_written(plan: Plan, placement: Placement) -> bool:
    """Whether all that devices do to others' memory is to write scratch which nobody else writes, and which the other
    device itself reads. So it reads behind the write: before it there would be nothing to read."""
    scratch = {t.name: t.shapes for t in plan.tensors if t.kind == "scratch"}
    sent: list[tuple[Region, int]] = []  # from one device to another, and its number
    for stream in plan.streams:
        here = placement.devices[stream.rank]
        for access in _accesses(stream):
            region = access.region
            if placement.devices[region.rank] == here:
                continue
            if not access.written or region.tensor not in scratch:
                return False
            sent.append((region, len(sent)))
    written = {place: BoxMap(scratch[place[0]][place[1]], _NOBODY) for place in {_place(r) for r, _ in sent}}
    if not all(_write(written, region, number) for region, number in sent):
        return False
    read: set[int] = set()
    for stream in plan.streams:
        here = placement.devices[stream.rank]
        for access in _accesses(stream):
            region = access.region
            if _place(region) not in written or placement.devices[region.rank] != here:
                continue
            found = _found(written, region)
            if access.written and found != {_NOBODY}:
                return False
            read |= found
    return read >= {number for _, number in sent}


def _place(region: Region) -> _Place:
    return region.tensor, region.rank


def _found(written: Mapping[_Place, BoxMap[int]], region: Region) -> set[int]:
    """Who writes the region's elements."""
    return {number for box in region.boxes for _, number in written[_place(region)].items(box)}


def _write(written: Mapping[_Place, BoxMap[int]], region: Region, number: int) -> bool:
    """Whether nobody has written the region before."""
    if _found(written, region) - {_NOBODY, number}:
        return False
    for box in region.boxes:
        written[_place(region)].update(box, lambda _, number=number: number)  # type: ignore[misc]
    return True
