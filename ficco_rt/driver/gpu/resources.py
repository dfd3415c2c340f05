"""The streams, events and words that device plans name, each made when it is first needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from ...device.ir import DevicePlan, DeviceStream, EventName, StreamName, Word
from .devices import inside
from .gpus import Gpus
from .peers import Peers
from .refused import Closing
from .vendor import Gpu, Handle


class RunResources:
    """The streams, events and words of one placement. `words` belong to all its device plans: 32-bit words in
    device memory, 0 between runs; of each there are `sets`, whose `addresses` the binder looks up by set and word.
    All `streams` are made at once. NOTE the stream that waits for a latch and the stream that raises it must not
    share a hardware queue. So they are made one right after the other, before another executor makes streams."""

    def __init__(self, gpus: Gpus, words: Sequence[Word], streams: Iterable[DeviceStream] = (), sets: int = 1) -> None:
        self._gpus = gpus
        self.sets = sets
        self._streams: dict[StreamName, Handle] = {}
        self._events: dict[EventName, Handle] = {}
        self._words: dict[int, tuple[int, int]] = {}  # device → address, words of all sets
        self._rescue: dict[int, Handle] = {}  # streams that never wait
        self._entries = _entries(gpus, words)
        used = ((number, word) for number, word in enumerate(words) if word.used_in("embedded"))
        self._counts = {w.device: number for number, w in used if w.counts_runs and w.device in gpus.devices}
        of_set = Counter(word.device for word in words)
        for ordinal, device in gpus.devices.items():
            size = sets * of_set[ordinal]
            if size:
                self._words[ordinal] = (gpus.alloc(device, 4 * size, "the plan's flags", flags=True, shared=True), size)
                self._rescue[ordinal] = gpus.new_stream(device)
        with gpus.turn():
            for stream in streams:
                if stream.device in gpus.devices:
                    self._stream(stream)
        self.clear()
        bases = {ordinal: address for ordinal, (address, _) in self._words.items()}
        if gpus.peers is not None:  # whose words are 0 when all have come here
            bases |= self._theirs(gpus.peers)
        # NOTE nobody here knows a word of another node
        self.addresses = [
            [bases.get(word.device, 0) + 4 * (number * of_set[word.device] + word.index) for word in words]
            for number in range(sets)
        ]
        self._of_set = of_set

    def _theirs(self, peers: Peers) -> dict[int, int]:
        """Where the words of other processes' devices lie."""
        mine = {f"words {ordinal}": (address, 4 * size) for ordinal, (address, size) in self._words.items()}
        shared = peers.share("share words", mine)
        return {int(name.split()[1]): address for name, address in shared.addresses.items()}

    def streams_of(self, plan: DevicePlan, callers: Sequence[Handle]) -> Mapping[StreamName, tuple[Gpu, Handle]]:
        """This process's streams of a device plan, with their devices; `callers` are the callers', one a rank of this
        process, or none. NOTE they
        are made one after another: streams of other executors between them could make two of one plan share a queue."""
        found: dict[StreamName, tuple[Gpu, Handle]] = {}
        with self._gpus.turn():
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

    @property
    def rescued(self) -> tuple[int, ...]:
        """Devices with a stream that never waits."""
        return tuple(self._rescue)

    def event(self, name: EventName, device: Gpu) -> Handle:
        """An event that a stream of the device records."""
        if name not in self._events:
            self._events[name] = self._gpus.new_event(device, timing=name.timing)
        return self._events[name]

    def recorded(self, name: EventName) -> Handle:
        """An event that has been made."""
        return self._events[name]

    def word(self, device: int, index: int, number: int) -> int:
        """The address of a word by its place on its device, in a set."""
        return self._words[device][0] + 4 * (number * self._of_set[device] + index)

    def under_way(self, number: int) -> tuple[int, ...]:
        """The count of runs in a set of each device on which a replay of a caller's graph has begun and has not ended.
        A device without a count is passed over: nothing would tell one replay from the next. From any thread, without
        a turn."""
        found = []
        for ordinal, count in self._counts.items():
            begun, replayed = (self._events.get(EventName(kind, ordinal)) for kind in ("begun", "replayed"))
            vendor, device = self._gpus.vendor, self._gpus.devices[ordinal]
            if begun is None or replayed is None:
                continue
            with inside(vendor, device), vendor.uncaptured():
                if vendor.ended(begun) and not vendor.ended(replayed):
                    found.append(vendor.peek(self.addresses[number][count], self._rescue[ordinal]))
        return tuple(found)

    def clear(self) -> None:
        """All words are 0, whatever a given-up run has left."""
        for ordinal, (address, size) in self._words.items():
            self._gpus.put(self._gpus.devices[ordinal], address, np.zeros(size, np.uint32))

    def force_up(self, gone: Collection[int] = ()) -> None:
        """Whatever waits for a word goes on, except for entries of other processes: before a rank has issued the run,
        nothing may write its callers' tensors. Those of processes that are `gone` have no callers any more."""
        with Closing() as closing:
            for ordinal, (address, size) in self._words.items():
                for i in range(size):  # NOTE no memset: that is a kernel, and may find no multiprocessor free
                    at = ordinal, i % self._of_set[ordinal]
                    if self._entries.get(at, -1) in (-1, *gone):
                        closing(self._force, ordinal, address + 4 * i)

    def _force(self, ordinal: int, address: int) -> None:
        """NOTE without a turn: who has it may be waiting for this."""
        with inside(self._gpus.vendor, self._gpus.devices[ordinal]):
            self._gpus.vendor.force(address, self._rescue[ordinal])


def _entries(gpus: Gpus, words: Sequence[Word]) -> dict[tuple[int, int], int]:
    """By device and place of a word: the other process that says by it that its callers' tensors may be written. A
    collective's first meeting says so, too: where there is one, there may be no entry. And the counts of runs, which no
    process gives up: a wait for an entry goes by them."""
    found = {}
    placement = gpus.placement
    for word in words:
        point = word.point
        if word.counts_runs:
            found[word.device, word.index] = -2
        if point is None or word.used == "traced" or word.device not in gpus.devices:
            continue
        if point.kind == "entry":
            process = placement.process(point.number)
        elif point.kind == "meet" and not point.behind:
            process = placement.process(placement.devices[point.rank])
        else:
            continue
        if process != placement.process(word.device):
            found[word.device, word.index] = process
    return found
