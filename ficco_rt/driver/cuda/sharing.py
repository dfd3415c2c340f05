"""Memory of several processes on CUDA: the virtual memory management API, and IPC memory as the last way."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ...errors import DeviceError
from ..gpu.sharing import Handle, Range, Sharing
from .call import api, call

_IPC = 64  # bytes of a handle; NOTE versions of cuda-bindings have no attribute for them


class CudaSharing(Sharing):
    """See `Sharing`. Flags are ordinary memory here."""

    def __init__(self, pointer: Callable[[str, int, str], int], access: Callable[[int], Any]) -> None:
        """`pointer` gives an attribute of an address, `access` the description of a device's access."""
        self.cu: Any = api()
        self._pointer, self._access = pointer, access
        self._kind = self.cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

    def descriptors(self, ordinal: int) -> bool:
        cu, names = self.cu, self.cu.CUdevice_attribute
        device = call(cu.cuDeviceGet, ordinal)
        wanted = (
            names.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            names.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        )
        return all(bool(call(cu.cuDeviceGetAttribute, attribute, device)) for attribute in wanted)

    def _wanted(self, ordinal: int) -> Any:
        cu = self.cu
        wanted = cu.CUmemAllocationProp()
        wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = ordinal
        wanted.requestedHandleTypes = self._kind
        return wanted

    def granularity(self, ordinal: int, what: str) -> int:
        recommended = self.cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        return int(call(self.cu.cuMemGetAllocationGranularity, self._wanted(ordinal), recommended, what=what))

    def create(self, ordinal: int, size: int, flags: bool, what: str) -> Handle:
        return call(self.cu.cuMemCreate, size, self._wanted(ordinal), 0, what=what)

    def reserve(self, size: int, what: str) -> int:
        return int(call(self.cu.cuMemAddressReserve, size, 0, 0, 0, what=what))

    def unreserve(self, address: int, size: int) -> None:
        call(self.cu.cuMemAddressFree, address, size)

    def place(self, address: int, size: int, handle: Handle, what: str) -> None:
        call(self.cu.cuMemMap, address, size, 0, handle, 0, what=what)

    def lift(self, address: int, size: int) -> None:
        call(self.cu.cuMemUnmap, address, size)

    def allow(self, address: int, size: int, reach: Sequence[int], what: str) -> None:
        access = [self._access(ordinal) for ordinal in reach]
        call(self.cu.cuMemSetAccess, address, size, access, len(access), what=what)

    def export(self, handle: Handle, what: str) -> int:
        return int(call(self.cu.cuMemExportToShareableHandle, handle, self._kind, 0, what=what))

    def imported(self, descriptor: int, what: str) -> Handle:
        return call(self.cu.cuMemImportFromShareableHandle, descriptor, self._kind, what=what)

    def release(self, handle: Handle) -> None:
        call(self.cu.cuMemRelease, handle)

    def allocation(self, address: int, what: str) -> Range | None:
        """NOTE cuMemAlloc's memory is known by this: it alone has IPC handles."""
        if not self._pointer("IS_LEGACY_CUDA_IPC_CAPABLE", address, what):
            return None
        base, size = call(self.cu.cuMemGetAddressRange, address, what=what)
        return Range(int(base), int(size), self._pointer("BUFFER_ID", address, what))

    def pieces(self, address: int, size: int, what: str) -> tuple[int, list[tuple[Handle, int]]]:
        cu = self.cu
        found: list[tuple[Handle, int]] = []
        begin, at = -1, address
        try:
            while at < address + size:
                handle = call(cu.cuMemRetainAllocationHandle, at, what=what)
                base, length = (self._pointer(f"MAPPING_{part}", at, what) for part in ("BASE_ADDR", "SIZE"))
                found.append((handle, length))
                begin = base if begin < 0 else begin
                at = base + length
        except BaseException:
            for handle, _ in found:
                with suppress(DeviceError):
                    self.release(handle)
            raise
        return begin, found

    def handle(self, address: int, what: str) -> bytes:
        made = call(self.cu.cuIpcGetMemHandle, address, what=what)
        return ctypes.string_at(made.getPtr(), _IPC)

    def open(self, handle: bytes, size: int, what: str) -> int:
        made = self.cu.CUipcMemHandle()
        ctypes.memmove(made.getPtr(), handle, _IPC)
        lazy = self.cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(call(self.cu.cuIpcOpenMemHandle, made, int(lazy), what=what))

    def close(self, address: int) -> None:
        call(self.cu.cuIpcCloseMemHandle, address)
