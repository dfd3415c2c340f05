"""NVIDIA's memory among processes: the virtual memory management API, and IPC memory as the last way."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ...errors import DeviceError
from ..gpu.refused import Closing
from ..gpu.sharing import Mapped, Range
from ..gpu.vendor import Handle
from .call import api, call

_IPC = 64  # bytes of a handle; NOTE versions of cuda-bindings have no attribute for them


class CudaSharing:
    """A `Sharing`; see there."""

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

    def alloc(self, ordinal: int, size: int, reach: Sequence[int], what: str) -> Mapped:
        cu = self.cu
        wanted = cu.CUmemAllocationProp()
        wanted.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        wanted.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wanted.location.id = ordinal
        wanted.requestedHandleTypes = self._kind
        recommended = cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        step = int(call(cu.cuMemGetAllocationGranularity, wanted, recommended, what=what))
        size = -(-size // step) * step
        handle = call(cu.cuMemCreate, size, wanted, 0, what=what)
        try:
            return self._mapped([handle], [size], reach, what)
        except BaseException:
            with suppress(DeviceError):  # the first error is the one to tell
                self.release(handle)
            raise

    def _mapped(self, handles: Sequence[Handle], sizes: Sequence[int], reach: Sequence[int], what: str) -> Mapped:
        cu, size = self.cu, sum(sizes)
        address = int(call(cu.cuMemAddressReserve, size, 0, 0, 0, what=what))
        at = address
        try:
            for handle, piece in zip(handles, sizes, strict=True):
                call(cu.cuMemMap, at, piece, 0, handle, 0, what=what)
                at += piece
            access = [self._access(ordinal) for ordinal in reach]
            call(cu.cuMemSetAccess, address, size, access, len(access), what=what)
        except BaseException:
            with suppress(DeviceError):
                if at > address:
                    call(cu.cuMemUnmap, address, at - address)
            with suppress(DeviceError):
                call(cu.cuMemAddressFree, address, size)
            raise
        return Mapped(address, size, tuple(handles))

    def export(self, handle: Handle, what: str) -> int:
        return int(call(self.cu.cuMemExportToShareableHandle, handle, self._kind, 0, what=what))

    def map(self, descriptors: Sequence[int], sizes: Sequence[int], reach: Sequence[int], what: str) -> Mapped:
        handles: list[Handle] = []
        closing = Closing()
        try:
            for descriptor in descriptors:
                handles.append(call(self.cu.cuMemImportFromShareableHandle, descriptor, self._kind, what=what))
            made = self._mapped(handles, sizes, reach, what)
        finally:
            for handle in handles:  # a mapping keeps the memory
                closing(self.release, handle)
        closing.end()
        return Mapped(made.address, made.size)

    def unmap(self, mapped: Mapped) -> None:
        closing = Closing()
        closing(call, self.cu.cuMemUnmap, mapped.address, mapped.size)
        closing(call, self.cu.cuMemAddressFree, mapped.address, mapped.size)
        for handle in mapped.handles:
            closing(self.release, handle)
        closing.end()

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

    def release(self, handle: Handle) -> None:
        call(self.cu.cuMemRelease, handle)

    def handle(self, address: int, what: str) -> bytes:
        made = call(self.cu.cuIpcGetMemHandle, address, what=what)
        return ctypes.string_at(made.getPtr(), _IPC)

    def open(self, handle: bytes, what: str) -> int:
        made = self.cu.CUipcMemHandle()
        ctypes.memmove(made.getPtr(), handle, _IPC)
        lazy = self.cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(call(self.cu.cuIpcOpenMemHandle, made, int(lazy), what=what))

    def close(self, address: int) -> None:
        call(self.cu.cuIpcCloseMemHandle, address)
