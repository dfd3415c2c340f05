"""Encodes tensor maps (TMA descriptors) as the Hopper kernel's parameters hold them."""

from __future__ import annotations

import ctypes
from typing import Any

from ...kernels.family import TensorMap
from ...types import TYPES
from .call import api, call


def encode(m: TensorMap, promotion: str = "L2_256B") -> bytes:
    """`promotion`: how much L2 fetches from memory around what a box reads."""
    cu = api()
    kind = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{TYPES[m.dtype].tensor_map}")
    made: Any = call(
        cu.cuTensorMapEncodeTiled,
        kind,
        2,
        m.address,
        [cu.cuuint64_t(d) for d in m.dims],
        [cu.cuuint64_t(m.pitch)],
        [cu.cuuint32_t(b) for b in m.box],
        [cu.cuuint32_t(1)] * 2,
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{f'{m.swizzle}B' if m.swizzle else 'NONE'}"),
        getattr(cu.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}"),
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        what="a tensor map",
    )
    return ctypes.string_at(int(made.getPtr()), 128)
