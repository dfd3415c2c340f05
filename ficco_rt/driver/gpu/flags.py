"""Flags: 32-bit words in the memory of the device that waits for them, 0 between runs.

A flag that only one launch waits for is taken down by that launch (`lowered`); all others at the end of a run.
Behind these stand the words that graphs of different devices wait for (`crossings`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from ...plan.ir import Launch, Plan, WaitFlag
from .gpus import Gpus
from .refused import Closing
from .vendor import Action, Handle


def lowered(plan: Plan) -> frozenset[int]:
    """The flags that launches take down: those that one launch, and nothing else, waits for."""
    commands = [command for stream in plan.streams for command in stream.commands]
    launches = Counter(flag for c in commands if isinstance(c, Launch) for flag in waited_by(c))
    streams = {c.flag for c in commands if isinstance(c, WaitFlag)}
    return frozenset(flag for flag, count in launches.items() if count == 1) - streams


def waited_by(launch: Launch) -> set[int]:
    """The flags that works of a launch wait for."""
    return {flag for work in launch.works for flag in work.waits}


class Flags:
    """The words of a plan's flags; `ranks[f]` is where flag f's waiter runs. `crossings` are the devices of words
    beside them, one each; launches take `lowered` down."""

    def __init__(self, gpus: Gpus, ranks: Sequence[int], crossings: Sequence[int], lowered: Collection[int]) -> None:
        self._gpus = gpus
        self._words: dict[int, tuple[int, int]] = {}  # device → address, words
        self._flags = {  # those that the end of a run takes down
            i: sum(gpus.homes[rank] == i and flag not in lowered for flag, rank in enumerate(ranks))
            for i in gpus.devices
        }
        self._crossings = {i: crossings.count(i) for i in gpus.devices}
        self._lowered = lowered
        self._taken = 0
        self._rescue: dict[int, Handle] = {}  # streams that never wait
        for i, device in gpus.devices.items():
            words = self._crossings[i] + sum(gpus.homes[rank] == i for rank in ranks)
            if words:
                self._words[i] = (gpus.alloc(device, 4 * words, "the plan's flags", flags=True), words)
                self._rescue[i] = gpus.new_stream(device)
        self._next = {i: address for i, (address, _) in self._words.items()}
        self._next_crossing = {i: address + 4 * self._flags[i] for i, address in self._next.items()}
        self._next_lowered = {i: address + 4 * self._crossings[i] for i, address in self._next_crossing.items()}
        self.clear()

    def take(self, rank: int) -> int:
        """The address of the plan's next flag, one of a rank."""
        home = self._gpus.homes[rank]
        of = self._next_lowered if self._taken in self._lowered else self._next
        self._taken += 1
        address = of[home]
        of[home] += 4
        return address

    def take_crossing(self, ordinal: int) -> int:
        """The address of the next word beside a device's flags."""
        address = self._next_crossing[ordinal]
        self._next_crossing[ordinal] += 4
        return address

    def clear(self) -> None:
        """All are down, whatever a given-up run has left."""
        for i, (address, words) in self._words.items():
            self._gpus.put(self._gpus.devices[i], address, np.zeros(words, np.uint32))

    def lower(self, ordinal: int, stream: Handle, *, crossings: bool) -> Action | None:
        """Takes down those of a device's flags that no launch does, on a stream of it; `crossings`: the words beside
        them, too."""
        words = self._flags[ordinal] + (self._crossings[ordinal] if crossings else 0)
        if not words:
            return None
        address, _ = self._words[ordinal]
        return self._gpus.vendor.zero_action(address, words, stream)

    def force_up(self) -> None:
        """Whatever waits for a flag goes on."""
        closing = Closing()
        for i, (address, words) in self._words.items():
            for word in range(words):  # NOTE no memset: that is a kernel, and may find no multiprocessor free
                closing(self._force, i, address + 4 * word)
        closing.end()

    def _force(self, ordinal: int, address: int) -> None:
        with self._gpus.inside(self._gpus.devices[ordinal]):
            self._gpus.vendor.force(address, self._rescue[ordinal])
