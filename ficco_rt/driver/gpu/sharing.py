"""What a vendor's driver does for memory that several processes use: the calls that differ between CUDA and HIP.

Memory that we allocate is made so that it leaves the process as a file descriptor. A caller's ordinary allocation
leaves the process as a handle of some bytes, which the driver of the other process opens ("IPC memory").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

Handle: TypeAlias = Any  # of memory, as the vendor's bindings have it


@dataclass(frozen=True, slots=True)
class Mapped:
    """Memory that is mapped to addresses of this process. `handles` are those of the pieces that lie side by side;
    none are kept of memory that another process owns."""

    address: int
    size: int  # bytes, a multiple of the granularity
    handles: tuple[Handle, ...] = ()


@dataclass(frozen=True, slots=True)
class Range:
    """An allocation, or a mapping, of this process. `number` is another one for each allocation that there ever was."""

    address: int
    size: int
    number: int


class Sharing(Protocol):
    """See the module. `reach` are the devices, as this process counts them, that are to use the memory."""

    def descriptors(self, ordinal: int) -> bool:
        """Whether memory of the device can leave the process as file descriptors."""

    def alloc(self, ordinal: int, size: int, reach: Sequence[int], what: str) -> Mapped: ...

    def export(self, handle: Handle, what: str) -> int:
        """A file descriptor, which the caller closes."""

    def map(self, descriptors: Sequence[int], sizes: Sequence[int], reach: Sequence[int], what: str) -> Mapped:
        """The pieces behind other processes' descriptors, side by side. The descriptors stay the caller's."""

    def unmap(self, mapped: Mapped) -> None:
        """Give back addresses, and handles if there are any."""

    def allocation(self, address: int, what: str) -> Range | None:
        """The ordinary allocation around an address; None: the address is a mapping's, or a pool's."""

    def pieces(self, address: int, size: int, what: str) -> tuple[int, list[tuple[Handle, int]]]:
        """The mappings that hold these bytes, as handles with sizes, and where the first one begins. The handles are
        retained: `release` gives each back."""

    def release(self, handle: Handle) -> None: ...

    def handle(self, address: int, what: str) -> bytes:
        """By which another process opens the ordinary allocation that begins there."""

    def open(self, handle: bytes, what: str) -> int:
        """The address, in this process, of another process's allocation."""

    def close(self, address: int) -> None: ...
