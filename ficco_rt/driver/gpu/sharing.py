"""Memory that several processes use: allocates, maps and releases it, through calls that differ between vendors.

Memory that we allocate can be exported as a file descriptor, or as a *fabric handle*: bytes by which another process
opens the memory, also on another host of the same NVLink domain. A fabric handle is plain data and keeps no memory
alive: the exporting process keeps the memory until all others have opened it. A caller's ordinary allocation is
exported as a handle of some bytes, which the driver of another process on this host opens ("IPC memory").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from .checked import Api, Checked, Handle
from .refused import Closing, undo_on_error

Exported: TypeAlias = int | bytes  # a file descriptor, or a fabric handle
Leaves: TypeAlias = Literal["descriptor", "fabric", "either"]  # what the memory leaves the process as
Allow: TypeAlias = Callable[[int, int, Sequence[int], str], None]  # a range's address, its bytes, devices, what for


@dataclass(frozen=True, slots=True)
class Mapped:
    """Memory mapped to addresses of this process: adjacent pieces of so many bytes, each a multiple of the granularity.
    `handles` are those of the pieces; for memory that another process owns none are kept."""

    address: int
    sizes: tuple[int, ...]
    handles: tuple[Handle, ...] = ()

    @property
    def size(self) -> int:
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Range:
    """An allocation, or a mapping, of this process. `number` is another one for each allocation that there ever was."""

    address: int
    size: int
    number: int


class Sharing(Protocol):
    """See the module. `reach` are the devices, as this process counts them, that are to use the memory. A device of
    this process is current when memory is made, mapped or opened."""

    api: Api
    call: Checked
    allow: Allow  # `Vendor.allow`

    def alloc(
        self,
        ordinal: int,
        size: int,
        reach: Sequence[int],
        what: str,
        *,
        flags: bool = False,
        leaves: Leaves = "descriptor",
    ) -> Mapped | None:
        """Memory of the device, which is current. `flags`: other devices write it while kernels look at it. None: no
        such memory can leave the process so."""
        step = self.granularity(ordinal, what)
        size = -(-size // step) * step
        handle = self.create(ordinal, size, flags, what, leaves)
        if handle is None:
            return None
        with undo_on_error(self.release, handle):
            return self._mapped([handle], [size], reach, what)

    def map(self, exported: Sequence[Exported], sizes: Sequence[int], reach: Sequence[int], what: str) -> Mapped:
        """The pieces that another process has exported, side by side. Descriptors stay the caller's."""
        handles: list[Handle] = []
        with undo_on_error(self.release_all, handles):
            for given in exported:
                handles.append(self.imported(given, what))
            made = self._mapped(handles, sizes, reach, what)
        self.release_all(handles)  # a mapping keeps the memory
        return Mapped(made.address, made.sizes)

    def _mapped(self, handles: Sequence[Handle], sizes: Sequence[int], reach: Sequence[int], what: str) -> Mapped:
        address = self.reserve(sum(sizes), what)
        placed: list[int] = []
        with undo_on_error(self._lifted, address, placed, sum(sizes)):
            for handle, size in zip(handles, sizes, strict=True):
                self.place(address + sum(placed), size, handle, what)
                placed.append(size)
            self.allow(address, sum(sizes), reach, what)
        return Mapped(address, tuple(sizes), tuple(handles))

    def _lifted(self, address: int, placed: Sequence[int], reserved: int, handles: Sequence[Handle] = ()) -> None:
        """Give back addresses, with the pieces that lie there, and handles."""
        with Closing() as closing:
            for i, size in enumerate(placed):
                closing(self.lift, address + sum(placed[:i]), size)
            closing(self.unreserve, address, reserved)
            closing(self.release_all, handles)

    def unmap(self, mapped: Mapped) -> None:
        """Releases addresses, and handles if there are any."""
        self._lifted(mapped.address, mapped.sizes, mapped.size, mapped.handles)

    # ---- memory that we allocate: the vendor's calls

    def descriptors(self, ordinal: int) -> bool:
        """Whether memory of the device, which is current, can leave the process as file descriptors."""

    def fabric(self, ordinal: int) -> bool:
        """Whether the device has fabric handles. NOTE a device has them also where the process may use none: an
        allocation tells."""

    def granularity(self, ordinal: int, what: str) -> int:
        """Bytes of which every allocation is a multiple."""

    def create(self, ordinal: int, size: int, flags: bool, what: str, leaves: Leaves = "descriptor") -> Handle | None:
        """Allocates memory without addresses; see `alloc`."""

    def reserve(self, size: int, what: str) -> int:
        """Reserves addresses without memory."""

    def unreserve(self, address: int, size: int) -> None:
        self.call(self.api.MemAddressFree, address, size)

    def place(self, address: int, size: int, handle: Handle, what: str) -> None:
        """Maps memory to reserved addresses."""
        self.call(self.api.MemMap, address, size, 0, handle, 0, what=what)

    def lift(self, address: int, size: int) -> None:
        """Unmaps the piece that begins at an address."""
        self.call(self.api.MemUnmap, address, size)

    def export(self, handle: Handle, what: str) -> int:
        """A file descriptor, which the caller closes."""

    def exported(self, handle: Handle, what: str) -> bytes:
        """A fabric handle."""

    def imported(self, given: Exported, what: str) -> Handle:
        """The memory that another process has exported. A descriptor stays the caller's."""

    def release(self, handle: Handle) -> None:
        self.call(self.api.MemRelease, handle)

    def release_all(self, handles: Sequence[Handle]) -> None:
        with Closing() as closing:
            for handle in handles:
                closing(self.release, handle)

    # ---- callers' memory

    def allocation(self, address: int, what: str) -> Range | None:
        """The ordinary allocation around an address; None: the address is a mapping's, or a pool's."""

    def pieces(self, address: int, size: int, what: str) -> tuple[int, Sequence[Handle], Sequence[int]]:
        """The mappings that hold these bytes: where the first one begins, their handles, and their sizes. The handles
        are retained: `release` gives each back."""

    def handle(self, address: int, what: str) -> bytes:
        """The handle by which another process opens the ordinary allocation that begins at an address."""

    def open(self, handle: bytes, size: int, what: str) -> int:
        """The address, in this process, of another process's allocation of so many bytes."""

    def close(self, address: int) -> None:
        self.call(self.api.IpcCloseMemHandle, address)


@dataclass(slots=True)
class Area:
    """Memory of this process that others map. `handles` become file descriptors, or fabric handles; without handles it
    is IPC memory, by the handle of a caller's `allocation`. `kept`: it is a caller's, whose handles were retained for
    this and are given back. `uses`: of a caller's, by how many bindings."""

    sizes: Sequence[int]
    handles: Sequence[Handle] = ()
    ipc: bytes = b""
    allocation: Range | None = None
    kept: bool = False
    uses: int = 0


@dataclass(slots=True)
class Found:
    """An area of another process as it lies in this one. `uses`: by how many bindings; `leaving`: its owner has given
    it back."""

    mapped: Mapped
    ipc: bool
    uses: int = 0
    leaving: bool = False


@dataclass(slots=True)
class Shared:
    """The result of one exchange of memory: addresses by label, and the memory of others and of callers that is in
    use."""

    addresses: dict[str, int]
    theirs: list[Found]
    callers: list[int]
