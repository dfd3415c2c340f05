"""Flags: 32-bit words in the memory of the device that waits for them, 0 between runs.

Behind a plan's flags stand the words that graphs of different devices wait for (`crossings`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .gpus import Gpus
from .refused import Closing
from .vendor import Action, Handle


class Flags:
    """The words of a plan's flags; `ranks[f]` is where flag f's waiter runs. `crossings` are the devices of words
    beside them, one each."""

    def __init__(self, gpus: Gpus, ranks: Sequence[int], crossings: Sequence[int]) -> None:
        self._gpus = gpus
        self._words: dict[int, tuple[int, int]] = {}  # device → address, words
        self._flags = {i: sum(gpus.homes[rank] == i for rank in ranks) for i in gpus.devices}
        self._rescue: dict[int, Handle] = {}  # streams that never wait
        for i, device in gpus.devices.items():
            words = self._flags[i] + sum(ordinal == i for ordinal in crossings)
            if words:
                self._words[i] = (gpus.alloc(device, 4 * words, "the plan's flags", flags=True), words)
                self._rescue[i] = gpus.new_stream(device)
        self._next = {i: address for i, (address, _) in self._words.items()}
        self._next_crossing = {i: address + 4 * self._flags[i] for i, address in self._next.items()}
        self.clear()

    def take(self, rank: int) -> int:
        """The address of the next flag of a rank."""
        home = self._gpus.homes[rank]
        address = self._next[home]
        self._next[home] += 4
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
        """Takes a device's flags down, on a stream of it; `crossings`: the words beside them, too."""
        if ordinal not in self._words:
            return None
        address, words = self._words[ordinal]
        words = words if crossings else self._flags[ordinal]
        if not words:
            return None
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
