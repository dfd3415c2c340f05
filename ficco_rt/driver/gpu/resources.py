"""The streams, events and semaphores that device plans name. Each is created when it is first needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ...device.inline import issued_to
from ...device.ir import DevicePlan, EventName, Semaphore, StreamName
from ...graph.ir import Priority
from .devices import inside
from .gpus import Gpus
from .peers import Peers
from .refused import Closing
from .vendor import Gpu, Handle

StreamRow: TypeAlias = Mapping[tuple[int, Priority], Sequence[Handle]]  # by device and priority

AREA = 1 << 14  # semaphores of which memory is made at once

# Kinds of events whose number is a device's or a rank's: the same in all plans.
_OF_DEVICES = ("start", "begin", "end", "completion", "captured", "open", "embedded", "begun", "replayed", "caller")


class RunResources:
    """The streams and events of device plans, which all plans of a workspace share, and their semaphores: 32-bit words
    in device memory, 0 between runs."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._rows: list[StreamRow] = []
        self._events: dict[EventName, Handle] = {}  # those that a device, or a rank's caller, has in every plan
        self._plan_events: dict[tuple[int, bool], list[Handle]] = {}  # by device, and whether they take times
        self.rescue: dict[int, Handle] = {}  # streams that never wait, by device
        self._replays: dict[int, set[int]] = {}  # by device: where first runs of callers' graphs are counted, or 0
        self.plans: list[PlanResources] = []
        self._areas: dict[int, tuple[int, int]] = {}  # by device, of semaphores: the first free address, and the end
        self._given_back: dict[tuple[int, int], list[int]] = {}  # by device and number of semaphores: addresses

    def semaphores(self, device: Gpu, number: int) -> int:
        """The address of so many semaphores, which nobody has."""
        given_back = self._given_back.get((device.ordinal, number))
        if given_back:
            return given_back.pop()
        free, end = self._areas.get(device.ordinal, (0, 0))
        if end - free < 4 * number:
            size = 4 * max(number, AREA)
            free = self._gpus.alloc(device, size, "the plan's flags", "semaphores", flags=True, shared=True)
            end = free + size
        self._areas[device.ordinal] = free + 4 * number, end
        return free

    def give_back(self, device: int, address: int, number: int) -> None:
        """Semaphores that no plan has any more."""
        self._given_back.setdefault((device, number), []).append(address)

    def streams(self, number: Counter[tuple[int, Priority]], queues: int) -> StreamRow:
        """So many streams, or more, no two of which share a hardware queue of a device that has enough. NOTE queues go
        round by the order in which streams are made, so these are made right after one another: streams that somebody
        else makes in between, or a row longer than there are queues, would let two share one."""
        most = max(queues, _longest(number))
        for row in self._rows:
            made = Counter({alike: len(streams) for alike, streams in row.items()})
            if number <= made and _longest(made) <= most:
                return row
        with self._gpus.issue_lock():
            row = {
                (ordinal, priority): [self._gpus.new_stream(self._gpus.devices[ordinal], priority) for _ in range(n)]
                for (ordinal, priority), n in number.items()
            }
        self._rows.append(row)
        return row

    def event(self, name: EventName, device: Gpu) -> Handle:
        """An event that a stream of the device records."""
        if name not in self._events:
            self._events[name] = self._gpus.new_event(device, timing=name.timing)
        return self._events[name]

    def recorded(self, name: EventName) -> Handle:
        """An event that has been made."""
        return self._events[name]

    def plan_event(self, device: Gpu, timing: bool, number: int) -> Handle:
        """The event with this number among those of a device that plans use in their runs."""
        made = self._plan_events.setdefault((device.ordinal, timing), [])
        while len(made) <= number:
            made.append(self._gpus.new_event(device, timing=timing))
        return made[number]

    def embed(self, counts: Mapping[int, int]) -> None:
        """A caller's graph begins with a run that is counted at these addresses, by device."""
        for ordinal in self._gpus.devices:
            self._replays.setdefault(ordinal, set()).add(counts.get(ordinal, 0))

    def under_way(self) -> tuple[int, ...]:
        """The counts of runs of each device on which a replay of a caller's graph has begun and has not ended. A device
        where some graph is not counted is passed over: nothing would tell one replay from the next. From any thread,
        without the issue lock."""
        found = []
        vendor = self._gpus.vendor
        for ordinal, counts in self._replays.items():
            begun, replayed = (self._events.get(EventName(kind, ordinal)) for kind in ("begun", "replayed"))
            if begun is None or replayed is None or 0 in counts:
                continue
            with inside(vendor, self._gpus.devices[ordinal]), vendor.uncaptured():
                if vendor.ended(begun) and not vendor.ended(replayed):
                    found += [vendor.peek(count, self.rescue[ordinal]) for count in sorted(counts)]
        return tuple(found)

    def clear(self) -> None:
        """Resets all semaphores to 0, whatever a given-up run has left."""
        for plan in self.plans:
            plan.clear()

    def force_up(self, gone: Collection[int] = ()) -> None:
        """Sets all semaphores so that all waits end, except entries of other processes: before a rank has issued the
        run, nothing may write its callers' tensors. Entries of processes that are `gone` are set, because they have no
        callers any more."""
        with Closing() as closing:
            for plan in self.plans:
                for ordinal, address in plan.forceable(gone):
                    closing(self._force, ordinal, address)

    def _force(self, ordinal: int, address: int) -> None:
        """NOTE without the issue lock: its holder may be waiting for this. No memset: that is a kernel, and may find no
        multiprocessor free."""
        with inside(self._gpus.vendor, self._gpus.devices[ordinal]):
            self._gpus.vendor.force(address, self.rescue[ordinal])


def _longest(number: Counter[tuple[int, Priority]]) -> int:
    """The most streams of a device."""
    return max(Counter(ordinal for ordinal, _ in number.elements()).values())


class PlanResources:
    """What one plan has of the resources. `semaphores` belong to all its device plans; of each there are `sets`, whose
    `addresses` the binder looks up by set and semaphore."""

    def __init__(
        self,
        gpus: Gpus,
        resources: RunResources,
        semaphores: Sequence[Semaphore],
        sets: int = 1,
    ) -> None:
        self._gpus, self._all = gpus, resources
        self._events: dict[EventName, Handle] = {}
        self._taken: Counter[tuple[int, bool]] = Counter()  # events by device, and whether they take times
        self._semaphores: dict[int, tuple[int, int]] = {}  # device → address, semaphores of all sets
        self._entries = _entries(gpus, semaphores)
        self._of_set = Counter(semaphore.device for semaphore in semaphores)
        for ordinal, device in gpus.devices.items():
            size = sets * self._of_set[ordinal]
            if size:
                self._semaphores[ordinal] = resources.semaphores(device, size), size
                if ordinal not in resources.rescue:
                    resources.rescue[ordinal] = gpus.new_stream(device)
        self.clear()
        bases = {ordinal: address for ordinal, (address, _) in self._semaphores.items()}
        if gpus.peers is not None:  # whose semaphores are 0 when all have come here
            bases |= self._theirs(gpus.peers)
        # NOTE nobody here knows a semaphore of another node
        self.addresses = [
            [
                bases.get(semaphore.device, 0) + 4 * (number * self._of_set[semaphore.device] + semaphore.index)
                for semaphore in semaphores
            ]
            for number in range(sets)
        ]
        self._counts = {
            w.device: number
            for number, w in enumerate(semaphores)
            if w.counts_runs and w.used_in("embedded") and w.device in gpus.devices
        }
        resources.plans.append(self)

    def counts(self, number: int) -> dict[int, int]:
        """By device, the address of the count of first runs in callers' graphs, which have this set."""
        return {device: self.addresses[number][semaphore] for device, semaphore in self._counts.items()}

    def _theirs(self, peers: Peers) -> dict[int, int]:
        """Where the semaphores of other processes' devices lie."""
        mine = {f"semaphores {ordinal}": (address, 4 * size) for ordinal, (address, size) in self._semaphores.items()}
        shared = peers.share("share semaphores", mine)
        return {int(name.split()[1]): address for name, address in shared.addresses.items()}

    def streams_of(self, plan: DevicePlan, callers: Sequence[Handle]) -> Mapping[StreamName, tuple[Gpu, Handle]]:
        """This process's streams of a device plan, with their devices; `callers` are the callers', one a rank of this
        process, or none."""
        devices = self._gpus.devices
        mine = [stream for stream in plan.streams if stream.device in devices]
        gated = any(stream.name.kind == "gate" for stream in plan.streams)  # NOTE the control stream waits for the gate
        own = [s for s in mine if s.name.kind != "caller" and (gated or s.name.kind != "control")]
        row = self._all.streams(Counter((s.device, s.priority) for s in own), plan.features.queues) if own else {}
        left = {alike: iter(streams) for alike, streams in row.items()}
        found = {s.name: (devices[s.device], next(left[s.device, s.priority])) for s in own}
        for stream in mine:
            if stream.name.kind == "control" and not gated:
                found[stream.name] = devices[stream.device], self._gpus.control[stream.device]
            elif stream.name.kind == "caller" and callers:
                found[stream.name] = devices[stream.device], callers[self._gpus.ranks.index(stream.name.number)]
        for inline, to in issued_to(plan, called=bool(callers)).items():
            if to in found:
                found[inline] = found[to]
        return found

    def event(self, name: EventName, device: Gpu) -> Handle:
        """An event that a stream of the device records."""
        if name.kind in _OF_DEVICES:
            return self._all.event(name, device)
        if name not in self._events:
            alike = device.ordinal, name.timing
            self._events[name] = self._all.plan_event(device, name.timing, self._taken[alike])
            self._taken[alike] += 1
        return self._events[name]

    def recorded(self, name: EventName) -> Handle:
        """An event that has been made. KeyError: it has not."""
        return self._all.recorded(name) if name.kind in _OF_DEVICES else self._events[name]

    def semaphore(self, device: int, index: int, number: int) -> int:
        """The address of a semaphore by its place on its device, in a set."""
        return self._semaphores[device][0] + 4 * (number * self._of_set[device] + index)

    def close(self) -> None:
        """Gives the semaphores back. The plan's runs have ended."""
        self._all.plans.remove(self)
        for ordinal, (address, size) in self._semaphores.items():
            self._all.give_back(ordinal, address, size)

    def clear(self) -> None:
        """Resets the semaphores to 0."""
        for ordinal, (address, size) in self._semaphores.items():
            self._gpus.put(self._gpus.devices[ordinal], address, np.zeros(size, np.uint32))

    def forceable(self, gone: Collection[int]) -> Iterator[tuple[int, int]]:
        """The devices and addresses of the semaphores that may be forced up; see `RunResources.force_up`."""
        for ordinal, (address, size) in self._semaphores.items():
            for i in range(size):
                if self._entries.get((ordinal, i % self._of_set[ordinal]), -1) in (-1, *gone):
                    yield ordinal, address + 4 * i


def _entries(gpus: Gpus, semaphores: Sequence[Semaphore]) -> dict[tuple[int, int], int]:
    """By device and place of a semaphore: the other process that says by it that its callers' tensors may be written,
    where they are. A collective's first barrier says so, too: where there is one, there may be no entry. And the counts
    of runs, which no process gives up: a wait for an entry goes by them."""
    found = {}
    placement = gpus.placement
    exits = {(w.point.number, w.device) for w in semaphores if w.point is not None and w.point.kind == "exit"}
    for semaphore in semaphores:
        point = semaphore.point
        if semaphore.counts_runs:
            found[semaphore.device, semaphore.index] = -2
        if point is None or semaphore.used == "traced" or semaphore.device not in gpus.devices:
            continue
        if point.kind == "entry" and (semaphore.device, point.number) in exits:
            process = placement.process(point.number)
        elif point.kind == "barrier" and not point.behind:
            process = placement.process(placement.devices[point.rank])
        else:
            continue
        if process != placement.process(semaphore.device):
            found[semaphore.device, semaphore.index] = process
    return found
