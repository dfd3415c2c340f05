"""hipBLASLt through hip-python: what launches by the vendor's library need of it. It has run on no AMD GPU yet."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DeviceError
from ...types import Dtype
from ..gpu.checked import Checked
from ..gpu.refused import Closing, Refused
from ..gpu.vendor import DriverCall, Handle, Layout, MatmulPlace, Shape

_TYPES: dict[Dtype, str] = {"bf16": "HIP_R_16BF", "fp16": "HIP_R_16F", "fp32": "HIP_R_32F"}
_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)  # alpha and beta, on the host

_INSTALL = (
    'pip install "hip-python[libraries]>=10" brings AMD\'s bindings, ROCm the library; or leave out kernel = vendor'
)


@dataclass(slots=True)
class Planned:
    """What a call of one shape is made with. `given_back`: descriptors with what destroys each."""

    given_back: list[tuple[Any, Any]] = field(default_factory=list)
    descriptor: Any = None
    layouts: tuple[Any, ...] = ()
    beta: npt.NDArray[np.float32] = field(default_factory=lambda: _ZERO)
    found: Any = None  # the heuristics' answer


class HipblasLt:
    """A `GemmLibrary`. Refused: the bindings or the library is missing."""

    lazy = False  # no load of HIP is known to wait for the device; nobody tried

    def __init__(self) -> None:
        try:
            from hip import hip, hipblas, hipblaslt
        except ImportError as error:
            raise Refused("hipBLASLt", f"not installed ({str(error).splitlines()[0]})", advice=_INSTALL) from error
        self._lt: Any = hipblaslt
        self._types: Any = hip.hipDataType
        self._sums = hipblas.hipblasComputeType_t.HIPBLAS_COMPUTE_32F
        self._turned = (int(hipblas.hipblasOperation_t.HIPBLAS_OP_N), int(hipblas.hipblasOperation_t.HIPBLAS_OP_T))
        self.name = "hipBLASLt"
        if not hipblaslt.has_symbol("hipblasLtCreate"):  # loads the library
            raise Refused("hipBLASLt", "not found", advice=_INSTALL)

    def open(self) -> Handle:
        handle = call(self._lt.hipblasLtCreate)
        try:
            number = int(call(self._lt.hipblasLtGetVersion, handle))
        except BaseException:
            with suppress(DeviceError):  # the first error is the one to tell
                self.close(handle)
            raise
        self.name = f"hipBLASLt {number // 100000}.{number // 100 % 1000}"
        return handle

    def close(self, handle: Handle) -> None:
        call(self._lt.hipblasLtDestroy, handle)

    def plan(self, handle: Handle, shape: Shape, workspace: int, number: int = 0) -> Planned | None:
        """`number`: 0 alone, as only `leave` asks for others, which no plan for AMD's GPUs has."""
        lt, planned = self._lt, Planned()
        try:
            planned.descriptor = call(lt.hipblasLtMatmulDescCreate, self._sums, self._types.HIP_R_32F)
            planned.given_back.append((lt.hipblasLtMatmulDescDestroy, planned.descriptor))
            names = lt.hipblasLtMatmulDescAttributes_t
            sides = (names.HIPBLASLT_MATMUL_DESC_TRANSA, names.HIPBLASLT_MATMUL_DESC_TRANSB)
            for side, transposed in zip(sides, shape.transposed, strict=True):
                turned = np.array([self._turned[transposed]], np.int32)
                call(lt.hipblasLtMatmulDescSetAttribute, planned.descriptor, side, turned.ctypes.data, 4)
            a, b, c = (self._layout(planned, layout) for layout in (shape.first, shape.second, shape.out))
            planned.layouts = (a, b, c)
            wanted = call(lt.hipblasLtMatmulPreferenceCreate)
            planned.given_back.append((lt.hipblasLtMatmulPreferenceDestroy, wanted))
            most, size = lt.hipblasLtMatmulPreferenceAttributes_t, np.array([workspace], np.uint64)
            most = most.HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
            call(lt.hipblasLtMatmulPreferenceSetAttribute, wanted, most, size.ctypes.data, 8)
            planned.beta = _ONE if shape.accumulate else _ZERO
            planned.found = lt.hipblasLtMatmulHeuristicResult_t()
            asked = (handle, planned.descriptor, a, b, c, c, wanted, 1, planned.found)
            code, count = lt.hipblasLtMatmulAlgoGetHeuristic(*asked)
            if code and code.name != "HIPBLAS_STATUS_NOT_SUPPORTED":
                raise call.failure(lt.hipblasLtMatmulAlgoGetHeuristic, code)
        except BaseException:
            self._forget(planned)
            raise
        if code or not count or int(planned.found.state):
            self.drop(planned)
            return None
        return planned

    def _layout(self, planned: Planned, layout: Layout) -> Any:
        dtype = getattr(self._types, _TYPES[layout.dtype])
        made = call(self._lt.hipblasLtMatrixLayoutCreate, dtype, layout.rows, layout.columns, layout.pitch)
        planned.given_back.append((self._lt.hipblasLtMatrixLayoutDestroy, made))
        return made

    def _forget(self, planned: Planned) -> Closing:
        closing = Closing()
        while planned.given_back:
            closing(call, *planned.given_back.pop())
        return closing

    def drop(self, planned: Planned) -> None:
        self._forget(planned).end()

    def matmul_action(self, handle: Handle, planned: Planned, place: MatmulPlace, stream: Handle) -> DriverCall:
        a, b, c = planned.layouts
        return self._lt.hipblasLtMatmul, (
            handle, planned.descriptor, _ONE.ctypes.data, place.first, a, place.second, b,
            planned.beta.ctypes.data, place.out, c, place.out, c,
            planned.found.algo, place.workspace, place.size, stream,
        )  # fmt: skip


call = Checked(
    {
        "HIPBLAS_STATUS_ALLOC_FAILED": "the GPU's memory is full; take smaller sizes with --set",
        "HIPBLAS_STATUS_NOT_SUPPORTED": "this hipBLASLt does not make the product here; leave out kernel = vendor",
        "HIPBLAS_STATUS_ARCH_MISMATCH": "this hipBLASLt does not know the GPU; leave out kernel = vendor",
        "HIPBLAS_STATUS_EXECUTION_FAILED": "a kernel could not be launched or has failed before",
    }
)
