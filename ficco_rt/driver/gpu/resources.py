"""The streams, events and semaphores that device plans name. Each is created when it is first needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from ...device.ir import DevicePlan, DeviceStream, EventName, Semaphore, StreamName
from .devices import inside
from .gpus import Gpus
from .peers import Peers
from .refused import Closing
from .vendor import Gpu, Handle


class RunResources:
    """The streams, events and semaphores of one placement. `semaphores` belong to all its device plans: 32-bit words in
    device memory, 0 between runs; of each there are `sets`, whose `addresses` the binder looks up by set and semaphore.
    All `streams` are made at once. NOTE the stream that waits for a start gate and the stream that opens it must not
    share a hardware queue. So they are made one right after the other, before another executor makes streams."""

    def __init__(
        self, gpus: Gpus, semaphores: Sequence[Semaphore], streams: Iterable[DeviceStream] = (), sets: int = 1
    ) -> None:
        self._gpus = gpus
        self.sets = sets
        self._streams: dict[StreamName, Handle] = {}
        self._events: dict[EventName, Handle] = {}
        self._semaphores: dict[int, tuple[int, int]] = {}  # device → address, semaphores of all sets
        self.rescue: dict[int, Handle] = {}  # streams that never wait, by device
        self._entries = _entries(gpus, semaphores)
        used = ((number, semaphore) for number, semaphore in enumerate(semaphores) if semaphore.used_in("embedded"))
        self._counts = {w.device: number for number, w in used if w.counts_runs and w.device in gpus.devices}
        of_set = Counter(semaphore.device for semaphore in semaphores)
        for ordinal, device in gpus.devices.items():
            size = sets * of_set[ordinal]
            if size:
                self._semaphores[ordinal] = (
                    gpus.alloc(device, 4 * size, "the plan's flags", flags=True, shared=True),
                    size,
                )
                self.rescue[ordinal] = gpus.new_stream(device)
        with gpus.issue_lock():
            for stream in streams:
                if stream.device in gpus.devices:
                    self._stream(stream)
        self.clear()
        bases = {ordinal: address for ordinal, (address, _) in self._semaphores.items()}
        if gpus.peers is not None:  # whose semaphores are 0 when all have come here
            bases |= self._theirs(gpus.peers)
        # NOTE nobody here knows a semaphore of another node
        self.addresses = [
            [
                bases.get(semaphore.device, 0) + 4 * (number * of_set[semaphore.device] + semaphore.index)
                for semaphore in semaphores
            ]
            for number in range(sets)
        ]
        self._of_set = of_set

    def _theirs(self, peers: Peers) -> dict[int, int]:
        """Where the semaphores of other processes' devices lie."""
        mine = {f"semaphores {ordinal}": (address, 4 * size) for ordinal, (address, size) in self._semaphores.items()}
        shared = peers.share("share semaphores", mine)
        return {int(name.split()[1]): address for name, address in shared.addresses.items()}

    def streams_of(self, plan: DevicePlan, callers: Sequence[Handle]) -> Mapping[StreamName, tuple[Gpu, Handle]]:
        """This process's streams of a device plan, with their devices; `callers` are the callers', one a rank of this
        process, or none. NOTE they
        are made one after another: streams of other executors between them could make two of one plan share a queue."""
        found: dict[StreamName, tuple[Gpu, Handle]] = {}
        with self._gpus.issue_lock():
            for stream in plan.streams:
                device = self._gpus.devices.get(stream.device)
                if device is None:  # another process's
                    continue
                if stream.name.kind != "caller":
                    found[stream.name] = (device, self._stream(stream))
                elif callers:
                    found[stream.name] = (device, callers[self._gpus.ranks.index(stream.name.number)])
        return found

    def _stream(self, stream: DeviceStream) -> Handle:
        if stream.name.kind == "control":
            return self._gpus.control[stream.device]
        if stream.name not in self._streams:
            self._streams[stream.name] = self._gpus.new_stream(self._gpus.devices[stream.device], stream.priority)
        return self._streams[stream.name]

    def event(self, name: EventName, device: Gpu) -> Handle:
        """An event that a stream of the device records."""
        if name not in self._events:
            self._events[name] = self._gpus.new_event(device, timing=name.timing)
        return self._events[name]

    def recorded(self, name: EventName) -> Handle:
        """An event that has been made."""
        return self._events[name]

    def semaphore(self, device: int, index: int, number: int) -> int:
        """The address of a semaphore by its place on its device, in a set."""
        return self._semaphores[device][0] + 4 * (number * self._of_set[device] + index)

    def under_way(self, number: int) -> tuple[int, ...]:
        """The count of runs in a set of each device on which a replay of a caller's graph has begun and has not ended.
        A device without a count is passed over: nothing would tell one replay from the next. From any thread, without
        the issue lock."""
        found = []
        for ordinal, count in self._counts.items():
            begun, replayed = (self._events.get(EventName(kind, ordinal)) for kind in ("begun", "replayed"))
            vendor, device = self._gpus.vendor, self._gpus.devices[ordinal]
            if begun is None or replayed is None:
                continue
            with inside(vendor, device), vendor.uncaptured():
                if vendor.ended(begun) and not vendor.ended(replayed):
                    found.append(vendor.peek(self.addresses[number][count], self.rescue[ordinal]))
        return tuple(found)

    def clear(self) -> None:
        """Resets all semaphores to 0, whatever a given-up run has left."""
        for ordinal, (address, size) in self._semaphores.items():
            self._gpus.put(self._gpus.devices[ordinal], address, np.zeros(size, np.uint32))

    def force_up(self, gone: Collection[int] = ()) -> None:
        """Sets all semaphores so that all waits end, except entries of other processes: before a rank has issued the
        run, nothing may write its callers' tensors. Entries of processes that are `gone` are set, because they have no
        callers any more."""
        with Closing() as closing:
            for ordinal, (address, size) in self._semaphores.items():
                for i in range(size):  # NOTE no memset: that is a kernel, and may find no multiprocessor free
                    at = ordinal, i % self._of_set[ordinal]
                    if self._entries.get(at, -1) in (-1, *gone):
                        closing(self._force, ordinal, address + 4 * i)

    def _force(self, ordinal: int, address: int) -> None:
        """NOTE without the issue lock: its holder may be waiting for this."""
        with inside(self._gpus.vendor, self._gpus.devices[ordinal]):
            self._gpus.vendor.force(address, self.rescue[ordinal])


def _entries(gpus: Gpus, semaphores: Sequence[Semaphore]) -> dict[tuple[int, int], int]:
    """By device and place of a semaphore: the other process that says by it that its callers' tensors may be written. A
    collective's first barrier says so, too: where there is one, there may be no entry. And the counts of runs, which no
    process gives up: a wait for an entry goes by them."""
    found = {}
    placement = gpus.placement
    for semaphore in semaphores:
        point = semaphore.point
        if semaphore.counts_runs:
            found[semaphore.device, semaphore.index] = -2
        if point is None or semaphore.used == "traced" or semaphore.device not in gpus.devices:
            continue
        if point.kind == "entry":
            process = placement.process(point.number)
        elif point.kind == "barrier" and not point.behind:
            process = placement.process(placement.devices[point.rank])
        else:
            continue
        if process != placement.process(semaphore.device):
            found[semaphore.device, semaphore.index] = process
    return found
