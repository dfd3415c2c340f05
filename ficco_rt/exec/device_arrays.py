"""Finds address, shape and type of other libraries' tensors, on GPUs and in host memory, without importing them.

DLPack is tried first, because it has bf16. The capsule is read and dropped; the caller must keep the tensor alive, as
with any work on a stream.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any, TypeAlias

import numpy as np

from ..driver.api import Array, DeviceArray
from ..driver.dlpack import DLTensor
from ..errors import UsageError
from ..types import TYPES, numpy_dtype

_ON_HOST = 1  # DLDeviceType
_ON_GPU = {2: "cuda", 10: "rocm", 13: "cuda"}  # DLDeviceType: CUDA, ROCM, CUDA managed
GAPS = (
    "given one with gaps or another order of dimensions: take .contiguous(), of a numpy array "
    "numpy.ascontiguousarray(…)"
)
NOWHERE = (
    "given a tensor without memory: take .to_local() of a DTensor, and wait() for what a collective of PyTorch returns"
)
NO_SYNC = -1  # the caller's stream carries the order

_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


Key: TypeAlias = tuple[object, ...]
_LISTS = (list, tuple)


def key_of(tensors: Mapping[str, object], *, gradients: bool = False) -> Key | None:
    """All on lists of PyTorch's tensors that the checks depend on, read without a DLPack export, which takes 10 µs per
    tensor. None: there are other objects among them, or tensors that no check passes, which those pass here that
    require `gradients`. NOTE every run calls this."""
    key: list[object] = []
    try:
        for name, arrays in tensors.items():
            if not isinstance(arrays, _LISTS):
                return None
            key.append(name)
            array: Any
            for array in arrays:
                if not (array.is_cuda and array.is_contiguous()) or (array.requires_grad and not gradients):
                    return None
                key += array.data_ptr(), array.shape, array.dtype
    except (AttributeError, RuntimeError):  # no tensor, or e.g. a sparse one, which has no address
        return None
    return tuple(key)


def tells(key: Key, found: Iterable[object]) -> bool:
    """Whether a look has found the key's addresses. NOTE a subclass of PyTorch's may export another tensor."""
    return [part for part in key if isinstance(part, int)] == [getattr(array, "address", None) for array in found]


def look(array: Any, wanted: Callable[[], str]) -> DeviceArray:
    """The tensor behind `array`. `wanted` gives the UsageError's beginning if there is none on a GPU."""
    if hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        if _device(array, wanted) not in _ON_GPU:
            raise UsageError(f"{wanted()}, on a GPU; given {type(array).__name__} in host memory")
        return _from_dlpack(array, wanted, {"stream": NO_SYNC})
    interface = getattr(array, "__cuda_array_interface__", None)
    if isinstance(interface, Mapping):
        return _from_interface(interface, wanted)
    raise UsageError(f"{wanted()}, on a GPU, with DLPack or __cuda_array_interface__; given {type(array).__name__}")


def host_array(array: Any, wanted: Callable[[], str]) -> Array:
    """A numpy array, or one on the memory of a tensor that lies in host memory and gives DLPack, which it keeps."""
    if isinstance(array, np.ndarray):
        return array
    if not (hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__")):
        raise UsageError(f"{wanted()}; given {type(array).__name__}, not a numpy array")
    if _device(array, wanted) != _ON_HOST:
        raise UsageError(f"{wanted()}, in host memory; given {type(array).__name__} on a device")
    seen = _from_dlpack(array, wanted, {})
    if seen.dtype not in TYPES:
        raise UsageError(f"{wanted()}; given {type(array).__name__} of {seen.dtype}")
    if not seen.dense:
        raise UsageError(f"{wanted()}; {GAPS}")
    dtype = numpy_dtype(seen.dtype)
    if 0 in seen.shape:
        return np.empty(seen.shape, dtype)
    memory: Any = (ctypes.c_ubyte * (prod(seen.shape) * dtype.itemsize)).from_address(seen.address)
    memory.owner = array  # the array keeps `memory`, which keeps the tensor
    return np.frombuffer(memory, dtype).reshape(seen.shape)


def _device(array: Any, wanted: Callable[[], str]) -> int:
    try:
        return int(array.__dlpack_device__()[0])
    except ValueError as error:  # e.g. one on PyTorch's device "meta"
        raise UsageError(f"{wanted()}; given {type(array).__name__}: {error}") from error


def _on_device_of(array: Any) -> AbstractContextManager[object]:
    """NOTE PyTorch exports a tensor only while its device is the current one. Whoever has one has loaded PyTorch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return nullcontext()
    device: AbstractContextManager[object] = torch.cuda.device(array.device)
    return device


def _from_dlpack(array: Any, wanted: Callable[[], str], asked: Mapping[str, int]) -> DeviceArray:
    """`asked`: what the export is asked for. NOTE PyTorch takes no stream for a tensor in host memory."""
    try:
        with _on_device_of(array) if asked else nullcontext():
            capsule = array.__dlpack__(**asked)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:  # e.g. a tensor that requires grad
        raise UsageError(f"{wanted()}; given {type(array).__name__} gives no DLPack: {error}") from error
    tensor = DLTensor.from_address(_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[: tensor.ndim])
    steps = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    known = (t.name for t in TYPES.values() if t.dlpack == (tensor.code, tensor.bits))
    dtype = next(known, f"a type of {tensor.bits} bits")
    if not tensor.data and 0 not in shape:
        raise UsageError(f"{wanted()}; {NOWHERE}")
    address = int(tensor.data or 0) + int(tensor.byte_offset)
    return DeviceArray(address, shape, dtype, _dense(shape, steps))


def _from_interface(interface: Mapping[str, Any], wanted: Callable[[], str]) -> DeviceArray:
    address, read_only = interface["data"]
    shape = tuple(int(n) for n in interface["shape"])
    typestr = str(interface["typestr"])
    dtype = next((t.name for t in TYPES.values() if t.typestr == typestr), f"type {typestr}")
    strides = interface.get("strides")
    item = int(typestr[2:])
    steps = None if strides is None else tuple(int(s) // item for s in strides)
    if not address and 0 not in shape:
        raise UsageError(f"{wanted()}; {NOWHERE}")
    return DeviceArray(int(address), shape, dtype, _dense(shape, steps), bool(read_only))


def _dense(shape: Sequence[int], steps: Sequence[int] | None) -> bool:
    if steps is None or 0 in shape:
        return True
    want = 1
    for n, step in zip(reversed(shape), reversed(steps), strict=True):
        if n != 1 and step != want:
            return False
        want *= n
    return True
