"""Memory shared by several processes on HIP: the virtual memory management API where the runtime exports memory, and
IPC memory as the last resort. This code has run on a stand-in for the runtime only.

NOTE what differs from version to version, and from CUDA:

* Runtimes before 6.1 refuse exportable memory: exporting an allocation at the start shows it.
* Before 7.0 there is no uncached mapped memory, so flags are shared as IPC memory.
* Before 7.1 an import takes the address of the descriptor, from then on the descriptor.
* Memory is allocated on the current device, whatever device is requested.
* Each mapped piece is unmapped by itself, as it was mapped; not all runtimes accept several at once.
* Not all runtimes count retained handles, so releasing one would free the caller's memory. Therefore handles of our own
  memory are counted here, and callers' mapped memory is not exported.
* An address of another process's memory counts as the current device's: `theirs` says which addresses are such.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np

from ...errors import DeviceError
from ..gpu.checked import Api, Handle
from ..gpu.refused import Refused
from ..gpu.sharing import Allow, Exported, Leaves, Mapped, Range, Sharing
from .call import api, call

_IPC = 64  # bytes of a handle
_UNCACHED = 0x4000_0000  # hipMemAllocationTypeUncached, which older bindings have no name for
_BY_VALUE = 70_100_000  # the version of the runtime from which on an import takes the descriptor itself
_UNABLE = ("hipErrorInvalidValue", "hipErrorNotSupported")  # what a runtime says of memory that it cannot make
_made: dict[int, Mapped] = {}  # memory of this process that can leave it, by its address
_numbers: dict[int, int] = {}  # of that memory, and of no other there ever was
_count = count(1 << 32)
_retained: Counter[int] = Counter()  # how often each of its handles is to be given back before it goes


def number_of(address: int) -> int:
    """The number of exportable memory of this process; 0: the memory is not exportable. NOTE what the runtime says of a
    mapping may be its addresses' number."""
    return next((_numbers[m.address] for m in _made.values() if m.address <= address < m.address + m.size), 0)


class HipSharing(Sharing):
    """See `Sharing`."""

    def __init__(
        self, theirs: dict[int, int], allow: Allow, own_range: Callable[[int, str], tuple[int, int] | None]
    ) -> None:
        """`theirs`: the addresses of other processes' memory, with bytes. They are kept there. `own_range` gives the
        ordinary allocation at an address."""
        self.hip: Any = api()
        self.api, self.call = Api(self.hip, "hip"), call
        self._theirs, self.allow, self._own_range = theirs, allow, own_range
        self._kind = self.hip.hipMemAllocationHandleType.hipMemHandleTypePosixFileDescriptor
        self._by_value = int(call(self.hip.hipRuntimeGetVersion)) >= _BY_VALUE

    def descriptors(self, ordinal: int) -> bool:
        able = self.hip.hipDeviceAttribute_t.hipDeviceAttributeVirtualMemoryManagementSupported
        if not int(call(self.hip.hipDeviceGetAttribute, able, ordinal, what="VirtualMemoryManagementSupported")):
            return False
        what = "to see that memory can leave the process"
        handle = self.create(ordinal, self.granularity(ordinal, what), False, what)
        if handle is None:
            return False
        try:
            os.close(self.export(handle, what))
        except Refused as error:
            if error.code not in _UNABLE:
                raise
            return False
        finally:
            with suppress(DeviceError):
                self.release(handle)
        return True

    def fabric(self, ordinal: int) -> bool:
        return False

    def _wanted(self, ordinal: int, flags: bool) -> Any:
        """A hipMemAllocationProp: bindings from 7.0 on have no name for the kind of handle in it."""
        hip = self.hip
        kind = _UNCACHED if flags else int(hip.hipMemAllocationType.hipMemAllocationTypePinned)
        device = int(hip.hipMemLocationType.hipMemLocationTypeDevice)
        return np.array([kind, int(self._kind), device, ordinal, 0, 0, 0, 0], np.int32)

    def granularity(self, ordinal: int, what: str) -> int:
        recommended = self.hip.hipMemAllocationGranularity_flags.hipMemAllocationGranularityRecommended
        wanted = self._wanted(ordinal, False)
        return int(call(self.hip.hipMemGetAllocationGranularity, wanted, recommended, what=what))

    def create(self, ordinal: int, size: int, flags: bool, what: str, leaves: Leaves = "descriptor") -> Handle | None:
        try:
            return call(self.hip.hipMemCreate, size, self._wanted(ordinal, flags), 0, what=what)
        except Refused as error:
            if error.code not in _UNABLE:
                raise
            return None

    def reserve(self, size: int, what: str) -> int:
        return int(call(self.hip.hipMemAddressReserve, size, 0, None, 0, what=what))

    def export(self, handle: Handle, what: str) -> int:
        found = np.full(1, -1, np.int32)
        call(self.hip.hipMemExportToShareableHandle, found, handle, self._kind, 0, what=what)
        return int(found[0])

    def exported(self, handle: Handle, what: str) -> bytes:
        raise Refused("hipMemExportToShareableHandle", "hipErrorNotSupported", what)

    def imported(self, given: Exported, what: str) -> Handle:
        descriptor = given if self._by_value else np.array([given], np.int32)
        return call(self.hip.hipMemImportFromShareableHandle, descriptor, self._kind, what=what)

    def release(self, handle: Handle) -> None:
        if _retained[id(handle)]:
            _retained[id(handle)] -= 1
            return
        del _retained[id(handle)]
        super().release(handle)

    def alloc(self, *wanted: Any, **how: Any) -> Mapped | None:
        made = super().alloc(*wanted, **how)
        if made is not None:
            _made[made.address], _numbers[made.address] = made, next(_count)
        return made

    def map(self, exported: Sequence[Exported], sizes: Sequence[int], reach: Sequence[int], what: str) -> Mapped:
        made = super().map(exported, sizes, reach, what)
        self._theirs[made.address] = made.size
        return made

    def unmap(self, mapped: Mapped) -> None:
        self._theirs.pop(mapped.address, None)
        _made.pop(mapped.address, None)
        _numbers.pop(mapped.address, None)
        super().unmap(mapped)

    # ---- callers' memory

    def allocation(self, address: int, what: str) -> Range | None:
        found = self._own_range(address, what)
        if found is None:
            return None
        number = np.zeros(1, np.uint64)
        attribute = self.hip.hipPointer_attribute.HIP_POINTER_ATTRIBUTE_BUFFER_ID
        call(self.hip.hipPointerGetAttribute, number, attribute, address, what=what)
        return Range(*found, int(number[0]))

    def pieces(self, address: int, size: int, what: str) -> tuple[int, Sequence[Handle], Sequence[int]]:
        for made in _made.values():
            if made.address <= address and address + size <= made.address + made.size:
                (handle,) = made.handles
                _retained[id(handle)] += 1
                return made.address, made.handles, made.sizes
        raise Refused("hipMemRetainAllocationHandle", "hipErrorNotSupported", what)

    def handle(self, address: int, what: str) -> bytes:
        made = call(self.hip.hipIpcGetMemHandle, address, what=what)
        return ctypes.string_at(made.as_c_void_p(), _IPC)

    def open(self, handle: bytes, size: int, what: str) -> int:
        lazy = self.hip.hipIpcMemLazyEnablePeerAccess
        made = self.hip.hipIpcMemHandle_st.fromObj(bytearray(handle))
        address = int(call(self.hip.hipIpcOpenMemHandle, made, lazy, what=what))
        self._theirs[address] = size
        return address

    def close(self, address: int) -> None:
        self._theirs.pop(address, None)
        super().close(address)
