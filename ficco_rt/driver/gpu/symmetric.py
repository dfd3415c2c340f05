"""Tensors that other processes can map: `ficco_rt.empty`. Other libraries import them by DLPack, or by
`__cuda_array_interface__` if it has a name for the type.

The memory is allocated as exportable. It is exported when the tensor is bound to a plan.
"""

from __future__ import annotations

import ctypes
import weakref
from contextlib import suppress
from math import prod
from typing import Any

from ...errors import DeviceError
from ...types import TYPES, Dtype
from ..dlpack import DLTensor
from . import board
from .devices import inside, open_devices
from .issue_order import ISSUE_ORDER, Client
from .refused import undo_on_error
from .sharing import Mapped, Sharing
from .vendor import Gpu, Vendor

_KINDS = {"cuda": 2, "hip": 10}  # DLDeviceType


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_lent: dict[int, tuple[_Managed, Any, SymmetricTensor]] = {}  # to other libraries, by address, until they give it back


def _give_back(managed: Any) -> None:
    _lent.pop(ctypes.addressof(managed.contents), None)


def _drop_capsule(capsule: int) -> None:
    """A capsule that a library has taken has another name; one that nobody took lends nothing more."""
    if _named(capsule, b"dltensor"):
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
        _lent.pop(pointer(capsule, b"dltensor"), None)


_given_back = _Deleter(_give_back)
_capsule_gone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_drop_capsule)


class SymmetricTensor:
    """A dense row-major tensor in the memory of one of this process's GPUs; its content is undefined at first. The
    memory is released when nothing refers to the tensor any more, nor to what another library has made from it."""

    def __init__(self, vendor: Vendor, ordinal: int, shape: tuple[int, ...], dtype: Dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = ordinal
        self._vendor = vendor
        size = max(16, TYPES[dtype].bytes * prod(shape))
        what = f"{list(shape)} of {dtype} that other processes map"
        sharing = vendor.sharing()
        client = Client("ficco_rt.empty", vendor, None)
        with ISSUE_ORDER.lock(client):
            gpu = open_devices(vendor, {ordinal: ordinal})[ordinal]
            with undo_on_error(vendor.release, ordinal), vendor.uncaptured(), inside(vendor, gpu):
                able = sharing.descriptors(ordinal) or sharing.fabric(ordinal)
                # which way the memory goes is known when a plan is bound
                mapped = sharing.alloc(ordinal, size, (ordinal,), what, leaves="either") if able else None
                made = vendor.alloc(size, what) if mapped is None else mapped
        self.address = made if isinstance(made, int) else made.address
        self._finalizer = weakref.finalize(self, _free_later, vendor, gpu, sharing, made, board.forks)

    def __repr__(self) -> str:
        return f"<symmetric {list(self.shape)} of {self.dtype} on device {self.device}>"

    def __dlpack_device__(self) -> tuple[int, int]:
        return _KINDS[self._vendor.name], self.device

    def __dlpack__(self, *, stream: object = None, **_: object) -> Any:
        """No order is kept with `stream`: work that has written the tensor must be over, or on that stream."""
        count, (code, bits) = len(self.shape), TYPES[self.dtype].dlpack
        sides = (ctypes.c_int64 * max(1, count))(*self.shape)
        steps = (ctypes.c_int64 * max(1, count))(*(prod(self.shape[i + 1 :]) for i in range(count)))
        kind, device = self.__dlpack_device__()
        tensor = DLTensor(self.address, kind, device, count, code, bits, 1, sides, steps, 0)
        managed = _Managed(tensor, None, _given_back)
        at = ctypes.addressof(managed)
        _lent[at] = managed, (sides, steps), self
        return _capsule(at, b"dltensor", ctypes.cast(_capsule_gone, ctypes.c_void_p))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": TYPES[self.dtype].typestr,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
            "stream": None,
        }


def _free_later(vendor: Vendor, gpu: Gpu, sharing: Sharing, made: Mapped | int, made_in: int) -> None:
    """When no thread holds the issue lock: Python may call a finaliser while one does."""

    def free() -> None:
        if board.forks != made_in:  # the memory is the parent's
            return
        with suppress(DeviceError):
            with vendor.uncaptured(), inside(vendor, gpu):
                if isinstance(made, int):
                    vendor.free(made)
                else:
                    sharing.unmap(made)
            vendor.release(gpu.local)

    ISSUE_ORDER.later(free)
