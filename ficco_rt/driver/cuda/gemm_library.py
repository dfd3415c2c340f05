"""cuBLASLt through nvmath.bindings: the calls that launches by the vendor's library need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..gpu.blas_lt import WAY_OUT, BlasLt, Shape, checked
from ..gpu.checked import DriverFunction
from ..gpu.refused import Refused

_PACKAGES = 'pip install "nvmath-python>=1.0" "nvidia-cublas>=13.0"'
_INSTALL = f"{_PACKAGES} brings it and NVIDIA's bindings; or {WAY_OUT}"


@dataclass(frozen=True, slots=True)
class _Status:
    """A code as other calls give it."""

    name: str


class CublasLt(BlasLt):
    """A `BlasLt`. Refused: the bindings or the library is missing."""

    lazy = True
    prefix = "cublasLt"
    sums = 68  # CUBLAS_COMPUTE_32F
    call = checked("CUBLAS", "cuBLASLt")

    def __init__(self) -> None:
        try:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            load_nvidia_dynamic_lib("cublasLt")  # which costs far less than to import nvmath in vain
            from nvmath.bindings import cublasLt

            version = int(cublasLt.get_version())
        except (ImportError, RuntimeError) as error:
            raise Refused("cuBLASLt", f"not installed ({str(error).splitlines()[0]})", advice=_INSTALL) from error
        self._lt: Any = cublasLt
        self.name = f"cuBLASLt {version // 10000}.{version // 100 % 100}"
        self.matmul, self.prepared = self.function("matmul"), self.with_others()

    def function(self, name: str) -> DriverFunction:
        """The bindings raise."""
        function, error = getattr(self._lt, name), self._lt.cuBLASLtError

        def coded(*arguments: Any) -> tuple[Any, ...]:
            try:
                return 0, function(*arguments)
            except error as failed:
                return _Status(self._lt.get_status_name(failed.status)), None

        coded.__name__ = self.c_name(name)
        return coded

    def attribute(self, kind: str, name: str) -> int:
        return int(getattr(getattr(self._lt, "".join(map(str.capitalize, kind.split("_"))) + "Attribute"), name))

    def type(self, code: int) -> int:
        return code

    def preferences(self, shape: Shape, workspace: int) -> Mapping[str, np.generic]:
        # NOTE no preference tells of the bias, which is read as the output is written
        out = min(shape.out.alignment, shape.bias or shape.out.alignment)
        aligned = shape.first.alignment, shape.second.alignment, (shape.residual or shape.out).alignment, out
        sides = zip("ABCD", aligned, strict=True)
        told: dict[str, np.generic] = {f"MIN_ALIGNMENT_{side}_BYTES": np.uint32(least) for side, least in sides}
        if shape.out.dtype != "fp32":  # a split of K may else add up partial sums in the output's type
            told["REDUCTION_SCHEME_MASK"] = np.uint32(self._lt.ReductionScheme.COMPUTE_TYPE)
        return told | {"MAX_WORKSPACE_BYTES": np.uint64(workspace)}

    def heuristics(self, number: int, *asked: Any) -> tuple[Any, int] | None:
        found, count = np.zeros(number + 1, self._lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
        into = (number + 1, found.ctypes.data, count.ctypes.data)
        ask = self.function("matmul_algo_get_heuristic")
        if not self.call.succeeds(ask, *asked, *into, unless="CUBLAS_STATUS_NOT_SUPPORTED"):
            return None
        found = found[number:].copy()
        return None if count[0] <= number or found["state"][0] else (found, found.ctypes.data)
