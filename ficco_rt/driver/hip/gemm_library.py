"""hipBLASLt through hip-python: the calls that launches by the vendor's library need. It has not yet run on an AMD
GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..gpu.blas_lt import WAY_OUT, BlasLt, Shape, checked
from ..gpu.checked import DriverFunction, Handle
from ..gpu.refused import Refused, undo_on_error

_INSTALL = f'pip install "hip-python[libraries]>=10" brings AMD\'s bindings, ROCm the library; or {WAY_OUT}'
_ATTRIBUTES = {"matmul_desc": ("MatmulDesc", "MATMUL_DESC"), "matmul_preference": ("MatmulPreference", "MATMUL_PREF")}


class HipblasLt(BlasLt):
    """A `BlasLt`. Refused: the bindings or the library is missing."""

    lazy = False  # no load of HIP is known to wait for the device; nobody tried
    prefix = "hipblasLt"
    call = checked("HIPBLAS", "hipBLASLt")

    def __init__(self) -> None:
        try:
            from hip import hip, hipblas, hipblaslt
        except ImportError as error:
            raise Refused("hipBLASLt", f"not installed ({str(error).splitlines()[0]})", advice=_INSTALL) from error
        self._lt: Any = hipblaslt
        self._types: Any = hip.hipDataType
        self.sums = hipblas.hipblasComputeType_t.HIPBLAS_COMPUTE_32F
        self.turned = (int(hipblas.hipblasOperation_t.HIPBLAS_OP_N), int(hipblas.hipblasOperation_t.HIPBLAS_OP_T))
        self.name = "hipBLASLt"
        if not hipblaslt.has_symbol("hipblasLtCreate"):  # loads the library
            raise Refused("hipBLASLt", "not found", advice=_INSTALL)
        self.matmul, self.prepared = self.function("matmul"), self.with_others()

    def open(self) -> Handle:
        handle = super().open()
        with undo_on_error(self.close, handle):
            number = int(self.made("get_version", handle))
        self.name = f"hipBLASLt {number // 100000}.{number // 100 % 1000}"
        return handle

    def function(self, name: str) -> DriverFunction:
        found: DriverFunction = getattr(self._lt, self.c_name(name))
        return found

    def attribute(self, kind: str, name: str) -> Any:
        named, prefix = _ATTRIBUTES[kind]
        return getattr(getattr(self._lt, f"hipblasLt{named}Attributes_t"), f"HIPBLASLT_{prefix}_{name}")

    def type(self, code: int) -> Any:
        return self._types(code)

    def preferences(self, shape: Shape, workspace: int) -> Mapping[str, np.generic]:
        return {"MAX_WORKSPACE_BYTES": np.uint64(workspace)}

    def heuristics(self, number: int, *asked: Any) -> tuple[Any, Any] | None:
        """`number`: 0 alone, as only `leave` asks for others, which no plan for AMD's GPUs has."""
        found, ask = self._lt.hipblasLtMatmulHeuristicResult_t(), self.function("matmul_algo_get_heuristic")
        code, count = ask(*asked, 1, found)
        if code and code.name != "HIPBLAS_STATUS_NOT_SUPPORTED":
            raise self.call.failure(ask, code)
        return None if code or not count or int(found.state) else (found, found.algo)
