"""Memory shared by several processes on CUDA: the virtual memory management API, and IPC memory as the last resort."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..gpu.checked import Api, Handle
from ..gpu.refused import Refused, undo_on_error
from ..gpu.sharing import Allow, Exported, Leaves, Range, Sharing
from .call import api, call

_HANDLE = 64  # bytes of an IPC or fabric handle; NOTE versions of cuda-bindings have no attribute for them
_KINDS_AT = 4  # where in a CUmemAllocationProp the kinds of handles stand, after one int


class CudaSharing(Sharing):
    """See `Sharing`. Flags are ordinary memory here."""

    def __init__(self, pointer: Callable[[str, int, str], int], allow: Allow) -> None:
        """`pointer` gives an attribute of an address."""
        self.cu: Any = api()
        self.api, self.call = Api(self.cu, "cu"), call
        self._pointer, self.allow = pointer, allow
        self._kind = self.cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self._fabric = self.cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC

    def descriptors(self, ordinal: int) -> bool:
        names = self.cu.CUdevice_attribute
        wanted = (
            names.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            names.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        )
        return all(self._has(ordinal, attribute) for attribute in wanted)

    def fabric(self, ordinal: int) -> bool:
        with suppress(Refused):  # an old driver does not know the attribute
            return self._has(ordinal, self.cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)
        return False

    def _has(self, ordinal: int, attribute: Any) -> bool:
        return bool(call(self.cu.cuDeviceGetAttribute, attribute, call(self.cu.cuDeviceGet, ordinal)))

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

    def create(self, ordinal: int, size: int, flags: bool, what: str, leaves: Leaves = "descriptor") -> Handle:
        wanted = self._wanted(ordinal)
        kinds = ctypes.c_int.from_address(wanted.getPtr() + _KINDS_AT)  # the bindings take no two of them
        either = leaves == "either" and self.fabric(ordinal)
        if either or leaves == "fabric":
            kinds.value = self._fabric | (self._kind if either and self.descriptors(ordinal) else 0)
            try:
                return call(self.cu.cuMemCreate, size, wanted, 0, what=what)
            except Refused:
                if not either:
                    raise
            kinds.value = self._kind
        return call(self.cu.cuMemCreate, size, wanted, 0, what=what)

    def reserve(self, size: int, what: str) -> int:
        return int(call(self.cu.cuMemAddressReserve, size, 0, 0, 0, what=what))

    def export(self, handle: Handle, what: str) -> int:
        return int(call(self.cu.cuMemExportToShareableHandle, handle, self._kind, 0, what=what))

    def exported(self, handle: Handle, what: str) -> bytes:
        made = call(self.cu.cuMemExportToShareableHandle, handle, self._fabric, 0, what=what)
        return ctypes.string_at(made.getPtr(), _HANDLE)

    def imported(self, given: Exported, what: str) -> Handle:
        if isinstance(given, int):
            return call(self.cu.cuMemImportFromShareableHandle, given, self._kind, what=what)
        made = self.cu.CUmemFabricHandle()
        ctypes.memmove(made.getPtr(), given, _HANDLE)
        return call(self.cu.cuMemImportFromShareableHandle, made.getPtr(), self._fabric, what=what)

    def allocation(self, address: int, what: str) -> Range | None:
        """NOTE cuMemAlloc's memory is known by this: it alone has IPC handles."""
        if not self._pointer("IS_LEGACY_CUDA_IPC_CAPABLE", address, what):
            return None
        base, size = call(self.cu.cuMemGetAddressRange, address, what=what)
        return Range(int(base), int(size), self._pointer("BUFFER_ID", address, what))

    def pieces(self, address: int, size: int, what: str) -> tuple[int, Sequence[Handle], Sequence[int]]:
        handles: list[Handle] = []
        sizes: list[int] = []
        begin, at = -1, address
        with undo_on_error(self.release_all, handles):
            while at < address + size:
                handles.append(call(self.cu.cuMemRetainAllocationHandle, at, what=what))
                base, length = (self._pointer(f"MAPPING_{part}", at, what) for part in ("BASE_ADDR", "SIZE"))
                sizes.append(length)
                begin = base if begin < 0 else begin
                at = base + length
        return begin, handles, sizes

    def handle(self, address: int, what: str) -> bytes:
        made = call(self.cu.cuIpcGetMemHandle, address, what=what)
        return ctypes.string_at(made.getPtr(), _HANDLE)

    def open(self, handle: bytes, size: int, what: str) -> int:
        made = self.cu.CUipcMemHandle()
        ctypes.memmove(made.getPtr(), handle, _HANDLE)
        lazy = self.cu.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        return int(call(self.cu.cuIpcOpenMemHandle, made, int(lazy), what=what))
