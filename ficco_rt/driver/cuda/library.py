"""cuBLASLt through nvmath.bindings: what launches by the vendor's library need of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...types import Dtype
from ..gpu.checked import Checked
from ..gpu.refused import Closing, Refused
from ..gpu.vendor import DriverCall, Handle, Layout, MatmulPlace, Shape

_TYPES: dict[Dtype, int] = {"bf16": 14, "fp16": 2, "fp32": 0}  # cudaDataType
_FP32_SUMS = 68  # CUBLAS_COMPUTE_32F
_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)  # alpha and beta, on the host

_PACKAGES = 'pip install "nvmath-python>=1.0" "nvidia-cublas>=13.0"'
_INSTALL = f"{_PACKAGES} brings it and NVIDIA's bindings; or leave out kernel = vendor"


@dataclass(frozen=True, slots=True)
class _Status:
    """A code as other calls give it."""

    name: str


@dataclass(slots=True)
class Planned:
    """What a call of one shape is made with. `given_back`: descriptors with what destroys each."""

    given_back: list[tuple[str, int]] = field(default_factory=list)
    descriptor: int = 0
    layouts: tuple[int, ...] = ()
    beta: npt.NDArray[np.float32] = field(default_factory=lambda: _ZERO)
    found: npt.NDArray[Any] = field(
        default_factory=lambda: np.zeros(0)
    )  # the heuristics' answer: its algorithm is first


class CublasLt:
    """A `GemmLibrary`. Refused: the bindings or the library is missing."""

    lazy = True

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
        self._matmul = self._coded("matmul", "cublasLtMatmul")

    def _coded(self, name: str, called: str) -> Callable[..., tuple[Any, ...]]:
        """A call of the bindings, which raise, as one that gives a code first."""
        function, error = getattr(self._lt, name), self._lt.cuBLASLtError

        def coded(*arguments: Any) -> tuple[Any, ...]:
            try:
                return 0, function(*arguments)
            except error as failed:
                return _Status(self._lt.get_status_name(failed.status)), None

        coded.__name__ = called
        return coded

    def _call(self, name: str, *arguments: Any, what: str = "") -> Any:
        called = "cublasLt" + "".join(part.capitalize() for part in name.split("_"))
        return call(self._coded(name, called), *arguments, what=what)

    def open(self) -> Handle:
        return self._call("create")

    def close(self, handle: Handle) -> None:
        self._call("destroy", handle)

    def plan(self, handle: Handle, shape: Shape, workspace: int, number: int = 0) -> Planned | None:
        lt, planned = self._lt, Planned()
        try:
            planned.descriptor = self._made(planned, "matmul_desc", _FP32_SUMS, _TYPES["fp32"])
            sides = (lt.MatmulDescAttribute.TRANSA, lt.MatmulDescAttribute.TRANSB)
            for attribute, transposed in zip(sides, shape.transposed, strict=True):
                self._set("matmul_desc", planned.descriptor, attribute, np.int32(transposed))
            if shape.sms:
                target = lt.MatmulDescAttribute.SM_COUNT_TARGET
                self._set("matmul_desc", planned.descriptor, target, np.int32(shape.sms))
            matrices = (shape.first, shape.second, shape.out)
            a, b, c = (self._layout(planned, layout) for layout in matrices)
            planned.layouts = (a, b, c)
            wanted = self._made(planned, "matmul_preference")
            names = lt.MatmulPreferenceAttribute
            self._set("matmul_preference", wanted, names.MAX_WORKSPACE_BYTES, np.uint64(workspace))
            if shape.out.dtype != "fp32":  # a split of K may else add up partial sums in the output's type
                scheme = np.uint32(lt.ReductionScheme.COMPUTE_TYPE)
                self._set("matmul_preference", wanted, names.REDUCTION_SCHEME_MASK, scheme)
            for side, layout in zip("ABCD", (*matrices, shape.out), strict=True):
                least = getattr(names, f"MIN_ALIGNMENT_{side}_BYTES")
                self._set("matmul_preference", wanted, least, np.uint32(layout.alignment))
            planned.beta = _ONE if shape.accumulate else _ZERO
            found, count = np.zeros(number + 1, lt.matmul_heuristic_result_dtype), np.zeros(1, np.int32)
            matrices_of = (planned.descriptor, a, b, c, c, wanted)
            asked = (handle, *matrices_of, number + 1, found.ctypes.data, count.ctypes.data)
            ask = self._coded("matmul_algo_get_heuristic", "cublasLtMatmulAlgoGetHeuristic")
            known = call.succeeds(ask, *asked, unless="CUBLAS_STATUS_NOT_SUPPORTED")
        except BaseException:
            self._forget(planned)
            raise
        planned.found = found[number:].copy()
        if not known or count[0] <= number or planned.found["state"][0]:
            self.drop(planned)
            return None
        return planned

    def _made(self, planned: Planned, kind: str, *arguments: int) -> int:
        made = int(self._call(f"{kind}_create", *arguments))
        planned.given_back.append((f"{kind}_destroy", made))
        return made

    def _layout(self, planned: Planned, layout: Layout) -> int:
        return self._made(planned, "matrix_layout", _TYPES[layout.dtype], layout.rows, layout.columns, layout.pitch)

    def _set(self, kind: str, descriptor: int, attribute: int, value: np.generic) -> None:
        held = np.array([value])
        self._call(f"{kind}_set_attribute", descriptor, int(attribute), held.ctypes.data, held.nbytes)

    def _forget(self, planned: Planned) -> Closing:
        closing = Closing()
        while planned.given_back:
            closing(self._call, *planned.given_back.pop())
        return closing

    def drop(self, planned: Planned) -> None:
        self._forget(planned).end()

    def matmul_action(self, handle: Handle, planned: Planned, place: MatmulPlace, stream: Handle) -> DriverCall:
        a, b, c = planned.layouts
        return self._matmul, (
            handle, planned.descriptor, _ONE.ctypes.data, place.first, a, place.second, b,
            planned.beta.ctypes.data, place.out, c, place.out, c,
            planned.found.ctypes.data, place.workspace, place.size, int(stream),
        )  # fmt: skip


call = Checked(
    {
        "CUBLAS_STATUS_ALLOC_FAILED": "the GPU's memory is full; take smaller sizes with --set",
        "CUBLAS_STATUS_NOT_SUPPORTED": "this cuBLASLt does not make the product here; leave out kernel = vendor",
        "CUBLAS_STATUS_ARCH_MISMATCH": "this cuBLASLt does not know the GPU; leave out kernel = vendor",
        "CUBLAS_STATUS_EXECUTION_FAILED": "a kernel could not be launched or has failed before",
    }
)
