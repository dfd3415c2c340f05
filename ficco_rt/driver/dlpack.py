"""DLPack's tensor structures, by which libraries exchange tensors, as its header defines them
(https://dmlc.github.io/dlpack)."""

from __future__ import annotations

import ctypes


class DLTensor(ctypes.Structure):
    """Raises nothing. `shape` and `strides` count elements; without strides the tensor is row-major."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )
