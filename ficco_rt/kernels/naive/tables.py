"""The table that the kernels of `src/naive.cu` read, put together work by work."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ...geometry.region import Axis
from ..family import Move, TileWorks
from ..works import Work

# Structs of `src/works.h`; those of single kernels are in `plain_kernels`
RUN = struct.Struct("<2q")
FLAG = struct.Struct("<Q")
BASES, PLACE_BITS = 56, 40  # a place: the number of a base, and the bytes from there
TABLE = struct.Struct(f"<5Q6i{BASES}Q")


@dataclass(slots=True)
class Packed:
    """The works of a launch, as they are put together. `record` packs an entry of `works`; a work may have several."""

    record: struct.Struct
    works: bytearray = field(default_factory=bytearray)
    terms: bytearray = field(default_factory=bytearray)
    runs: bytearray = field(default_factory=bytearray)
    flags: bytearray = field(default_factory=bytearray)
    tiles: int = 0
    of_works: list[int] = field(default_factory=list)  # tiles of each work
    waits: bool = False
    signals: bool = False
    bases: dict[int, int] = field(default_factory=dict)  # by the upper bits of addresses, their numbers
    resets: tuple[int, int] = (0, 0)  # the first of the flags that the launch resets, and how many

    @property
    def counters(self) -> int:
        """Words: tickets, ended blocks, one a work."""
        return 2 + len(self.of_works)

    def close(self, tiles: int) -> None:
        """A work of so many tiles is whole."""
        self.tiles += tiles
        self.of_works.append(tiles)

    def sync(self, work: Work) -> tuple[int, int, int, int]:
        """The work's flags, appended: first wait, waits, first signal, signals."""
        self.waits, self.signals = self.waits or bool(work.waits), self.signals or bool(work.signals)
        return (*self._append(work.waits), *self._append(work.signals))

    def reset(self, addresses: Sequence[int]) -> None:
        """The launch resets these flags."""
        self.resets = self._append(addresses)

    def _append(self, flags: Sequence[int]) -> tuple[int, int]:
        """Appends addresses of flags: the number of the first one, and how many."""
        first = len(self.flags) // FLAG.size
        for address in flags:
            self.flags += FLAG.pack(address)
        return first, len(flags)

    def place(self, address: int) -> int:
        """An address as the number of a base and the bytes from there."""
        upper = address >> PLACE_BITS
        return (self.bases.setdefault(upper, len(self.bases)) - upper << PLACE_BITS) + address

    def runs_of(self, axis: Axis) -> tuple[int, int]:
        """The axis's runs, appended: the first one's number and how many."""
        first, at = len(self.runs) // RUN.size, 0
        for s in axis.segments:
            self.runs += RUN.pack(at + s.size, s.start - at)
            at += s.size
        return first, len(axis.segments)

    @property
    def tile_works(self) -> TileWorks:
        """For each tile the number of its work."""
        return np.repeat(np.arange(len(self.of_works)), self.of_works)

    @property
    def image(self) -> tuple[bytes, tuple[int, ...]]:
        """The content of device memory, and the offsets of works, terms, runs and flags in it."""
        image, offsets = bytearray(), []
        for data in (self.works, self.terms, self.runs, self.flags):
            image += bytes(-len(image) % 16)
            offsets.append(len(image))
            image += data
        return bytes(image), tuple(offsets)

    def addresses(self, move: Move = int) -> Sequence[int]:
        """Of the bases; `move` leads from the addresses of the works to those of the launch."""
        found = [move(upper << PLACE_BITS) for upper in self.bases]
        return [*found, *[0] * (BASES - len(found))]

    def table(self, offsets: Sequence[int], constants: int, scratch: int, move: Move = int) -> bytes:
        """The kernel's argument."""
        ordered, count = int(self.waits and self.signals), len(self.works) // self.record.size
        at = (constants + o for o in offsets)
        numbers = count, self.tiles, ordered, int(self.waits), *self.resets
        return TABLE.pack(*at, scratch, *numbers, *self.addresses(move))
