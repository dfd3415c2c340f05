"""`ficco_rt.empty`: what other libraries are told of such a tensor, and how long its memory lives."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import pytest

import ficco_rt as ficco
from ficco_rt.driver.dlpack import DLTensor
from ficco_rt.errors import DeviceError, UsageError
from tests.mock.standin import StandIn


def pointer(capsule: Any) -> int:
    """As a library takes a capsule: from then on it is the library that gives the tensor back."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = (
        ctypes.c_void_p,
        (ctypes.py_object, ctypes.c_char_p),
    )
    api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
    found = api.PyCapsule_GetPointer(capsule, b"dltensor")
    api.PyCapsule_SetName(capsule, _USED)
    return int(found)


_USED = ctypes.c_char_p(b"used_dltensor")


class Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", DLTensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    )


def empty(library: StandIn, *shape: int, **more: Any) -> Any:
    return ficco.empty(shape, "bf16", driver=library.face, **more)


def test_what_other_libraries_are_told(library: StandIn) -> None:
    library.set("devices 2; version 70100000")
    tensor = empty(library, 3, 5, 7, device=1)
    assert repr(tensor) == "<symmetric [3, 5, 7] of bf16 on device 1>"
    assert tensor.__dlpack_device__() == ({"cuda": 2, "hip": 10}[library.face], 1)
    capsule = tensor.__dlpack__()
    at = pointer(capsule)
    managed = Managed.from_address(at)
    told = managed.tensor
    names = [name for name, *_ in DLTensor._fields_]
    data, kind, device, dimensions, code, bits, lanes, shape, strides, offset = (getattr(told, name) for name in names)
    assert (data, kind, device, dimensions, code, bits, lanes, offset) == (
        tensor.address, *tensor.__dlpack_device__(), 3, 4, 16, 1, 0
    )  # fmt: skip
    assert (list(shape[:3]), list(strides[:3])) == ([3, 5, 7], [35, 7, 1])
    del tensor, capsule
    gc.collect()
    assert library.live()["mappings"] == 1  # the library has it still
    managed.deleter(at)
    gc.collect()
    assert not library.live()
    assert not library.violations()


@pytest.mark.parametrize("settings", ["", "way 0"])
def test_memory_goes_with_the_tensor(library: StandIn, settings: str) -> None:
    library.set(f"devices 1; {settings}")
    tensor = empty(library, 0)
    kind = "allocations" if settings else "physicals"
    assert library.live()[kind] == 1
    told = ficco.empty(4, "fp32", driver=library.face).__cuda_array_interface__
    assert (told["shape"], told["typestr"], told["strides"]) == ((4,), "<f4", None)
    capsule = tensor.__dlpack__()
    del tensor
    gc.collect()
    assert library.live()[kind] == 1
    del capsule  # which nobody has taken
    gc.collect()
    assert not library.live()


def test_tensors_that_cannot_be_made(library: StandIn) -> None:
    library.set("devices 1; memory 4194304; version 70100000")
    with pytest.raises(UsageError, match="there is no type 'int7'"):
        ficco.empty(4, "int7", driver=library.face)
    with pytest.raises(UsageError, match=r"shape \[4, -1\] has a negative side"):
        empty(library, 4, -1)
    with pytest.raises(DeviceError, match=r"MemCreate \(\[4194304\] of bf16 that other processes map, stand-in"):
        empty(library, 1 << 22)
    assert not library.live()
