"""The common part of cuBLASLt and hipBLASLt: descriptors of a product, the choice of its algorithm, and its call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ...types import TYPES, Dtype
from .checked import Checked, DriverCall, DriverFunction, Handle
from .refused import Closing, coded, undo_on_error

_ONE, _ZERO = np.ones(1, np.float32), np.zeros(1, np.float32)  # alpha and beta, on the host
WAY_OUT = "leave out kernel = vendor"


@dataclass(frozen=True, slots=True)
class Layout:
    """A column-major matrix, `pitch` elements from column to column."""

    dtype: Dtype
    rows: int
    columns: int
    pitch: int
    alignment: int  # bytes, of its address


@dataclass(frozen=True, slots=True)
class Scaled:
    """How an operand is scaled: `CUBLASLT_MATMUL_MATRIX_SCALE_…`; the alignment of its scales' address, in bytes; and
    from which column-major matrix to which they are converted before, which may turn them."""

    mode: int
    alignment: int
    source: Layout | None = None
    target: Layout | None = None
    turned: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """All that decides how the library makes a product: out (+)= first · second. Either may be stored transposed.
    `residual` is added, and a column to every column (`bias`: bytes, its address's alignment; 0: none), then the
    function is applied. `sms`: the multiprocessors that its kernel is made for; 0: all. `scaled`: first and second, of
    fp8, which the tensor cores alone may add up (`fast`)."""

    first: Layout
    second: Layout
    out: Layout
    transposed: tuple[bool, bool]
    accumulate: bool
    sms: int = 0
    residual: Layout | None = None
    bias: int = 0
    function: str | None = None
    scaled: tuple[Scaled, Scaled] | None = None
    fast: bool = False

    @property
    def epilogue(self) -> int:
        """`CUBLASLT_EPILOGUE_…`, and hipBLASLt's of the same name: DEFAULT, BIAS, GELU or GELU_BIAS."""
        return (32 * (self.function is not None) + 4 * (self.bias > 0)) or 1


@dataclass(frozen=True, slots=True)
class MatmulPlace:
    """Where a product's matrices lie: addresses of their first elements; and the workspace, whose size is in bytes.
    `scales`: of first and second as the call reads them; `converted`: where those lie that are converted to there."""

    first: int
    second: int
    out: int
    workspace: int
    size: int
    residual: int = 0
    bias: int = 0
    scales: tuple[int, int] = (0, 0)
    converted: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class Planned:
    """The descriptors and algorithm for calls of one shape. `given_back`: the kinds of descriptors, and the
    descriptors, to be released."""

    given_back: list[tuple[str, Any]] = field(default_factory=list)
    descriptor: Any = None
    layouts: tuple[Any, ...] = ()
    conversions: tuple[tuple[Any, ...] | None, ...] = ()  # of scales: a descriptor and two layouts
    beta: npt.NDArray[np.float32] = field(default_factory=lambda: _ZERO)
    found: Any = None  # the heuristics' answer
    algorithm: Any = None  # in that


class BlasLt(ABC):
    """A library of GEMMs. Calls and attributes have one name in both libraries, but for what it begins with. A handle
    is of the current device."""

    name: str  # with its version: cuBLASLt 13.1
    lazy: bool  # its kernels are loaded when they are called first, which may wait for what the device does
    prefix: str  # of calls
    turned: tuple[int, int] = (0, 1)  # an operand as it is stored, and transposed
    sums: Any  # the type of sums in fp32
    call: Checked
    matmul: DriverFunction
    prepared: DriverFunction  # `with_others`

    @abstractmethod
    def function(self, name: str) -> DriverFunction:
        """A call, which gives a code first: `matmul_desc_create` is MatmulDescCreate."""

    @abstractmethod
    def attribute(self, kind: str, name: str) -> Any:
        """Of a `matmul_desc`, a `matmul_preference` or a `matrix_transform_desc`."""

    @abstractmethod
    def type(self, code: int) -> Any:
        """An element type as calls take it."""

    @abstractmethod
    def preferences(self, shape: Shape, workspace: int) -> Mapping[str, np.generic]:
        """The preferences that the heuristics get, besides the matrices."""

    @abstractmethod
    def heuristics(self, number: int, *asked: Any) -> tuple[Any, Any] | None:
        """The answer, and the algorithm in it that comes at place `number`; None: there is none."""

    def made(self, name: str, *arguments: Any) -> Any:
        return self.call(self.function(name), *arguments)

    def c_name(self, name: str) -> str:
        return self.prefix + "".join(map(str.capitalize, name.split("_")))

    def open(self) -> Handle:
        return self.made("create")

    def close(self, handle: Handle) -> None:
        self.made("destroy", handle)

    def plan(self, handle: Handle, shape: Shape, workspace: int, number: int = 0) -> Planned | None:
        """Descriptors and an algorithm with at most this much workspace: the one that the heuristics rank first, or the
        one at a later place; None: the heuristics have no more."""
        planned = Planned()
        with undo_on_error(self.drop, planned):
            planned.descriptor = self._create(planned, "matmul_desc", self.sums, self._code("fp32"))
            for side, transposed in zip("AB", shape.transposed, strict=True):
                self._set("matmul_desc", planned.descriptor, f"TRANS{side}", np.int32(self.turned[transposed]))
            if shape.sms:
                self._set("matmul_desc", planned.descriptor, "SM_COUNT_TARGET", np.int32(shape.sms))
            if shape.epilogue != 1:
                self._set("matmul_desc", planned.descriptor, "EPILOGUE", np.uint32(shape.epilogue))
            if shape.bias:  # NOTE its alignment stands in for the address, which comes with each call
                self._set("matmul_desc", planned.descriptor, "BIAS_POINTER", np.uint64(shape.bias))
            if shape.fast:
                self._set("matmul_desc", planned.descriptor, "FAST_ACCUM", np.int8(1))
            for side, scaled in zip("AB", shape.scaled or (), strict=False):
                self._set("matmul_desc", planned.descriptor, f"{side}_SCALE_MODE", np.int32(scaled.mode))
                self._set("matmul_desc", planned.descriptor, f"{side}_SCALE_POINTER", np.uint64(scaled.alignment))
            planned.conversions = tuple(self._conversion(planned, scaled) for scaled in shape.scaled or ())
            matrices = (shape.first, shape.second, shape.residual or shape.out, shape.out)
            planned.layouts = a, b, c, d = tuple(self._layout(planned, m) for m in matrices)
            wanted = self._create(planned, "matmul_preference")
            for name, value in self.preferences(shape, workspace).items():
                self._set("matmul_preference", wanted, name, value)
            planned.beta = _ONE if shape.accumulate or shape.residual else _ZERO
            found = self.heuristics(number, handle, planned.descriptor, a, b, c, d, wanted)
        if found is None:
            self.drop(planned)
            return None
        planned.found, planned.algorithm = found
        return planned

    def _create(self, planned: Planned, kind: str, *arguments: Any) -> Any:
        made = self.made(f"{kind}_create", *arguments)
        planned.given_back.append((f"{kind}_destroy", made))
        return made

    def _layout(self, planned: Planned, layout: Layout) -> Any:
        code = self._code(layout.dtype)
        return self._create(planned, "matrix_layout", code, layout.rows, layout.columns, layout.pitch)

    def _conversion(self, planned: Planned, scaled: Scaled) -> tuple[Any, ...] | None:
        if scaled.source is None or scaled.target is None:
            return None
        made = self._create(planned, "matrix_transform_desc", self._code("fp32"))
        self._set("matrix_transform_desc", made, "TRANSA", np.int32(self.turned[scaled.turned]))
        return made, self._layout(planned, scaled.source), self._layout(planned, scaled.target)

    def _code(self, dtype: Dtype) -> Any:
        return self.type(coded(TYPES[dtype].blas, dtype, self.name, WAY_OUT))

    def _set(self, kind: str, descriptor: Any, name: str, value: np.generic) -> None:
        held = np.array([value])
        self.made(f"{kind}_set_attribute", descriptor, self.attribute(kind, name), held.ctypes.data, held.nbytes)

    def drop(self, planned: Planned) -> None:
        """Releases the descriptors."""
        with Closing() as closing:
            while planned.given_back:
                closing(self.made, *planned.given_back.pop())

    def matmul_action(self, handle: Handle, planned: Planned, place: MatmulPlace, stream: Handle) -> DriverCall:
        """The call, which a context has to be current for."""
        a, b, c, d = planned.layouts
        arguments = (
            handle, planned.descriptor, _ONE.ctypes.data, place.first, a, place.second, b,
            planned.beta.ctypes.data, place.residual or place.out, c, place.out, d,
            planned.algorithm, place.workspace, place.size, int(stream),
        )  # fmt: skip
        pointers = {"BIAS_POINTER": place.bias, "A_SCALE_POINTER": place.scales[0], "B_SCALE_POINTER": place.scales[1]}
        told = [(name, np.array([at], np.uint64)) for name, at in pointers.items() if at]
        if not told:
            return self.matmul, arguments
        tell, kind = self.function("matmul_desc_set_attribute"), "matmul_desc"
        others: list[DriverCall] = [
            (tell, (planned.descriptor, self.attribute(kind, name), at.ctypes.data, at.nbytes)) for name, at in told
        ]
        for conversion, at, to in zip(planned.conversions, place.converted, place.scales, strict=False):
            if conversion is not None:
                made, source, target = conversion
                convert = (
                    handle, made, _ONE.ctypes.data, at, source, _ZERO.ctypes.data, 0, 0, to, target, int(stream)
                )  # fmt: skip
                others.append((self.function("matrix_transform"), convert))
        return self.prepared, (told, others, *arguments)

    def with_others(self) -> DriverFunction:
        """`matmul`, behind other calls: those that tell the addresses of a bias and of scales, and convert these.
        `held` lives as long as they. NOTE calls of one shape share the descriptor that holds the addresses."""

        def matmul(held: object, others: Sequence[DriverCall], *arguments: Any) -> tuple[Any, ...]:
            for function, given in others:
                told = function(*given)
                if told[0]:
                    return told
            return self.matmul(*arguments)

        matmul.__name__ = self.c_name("matmul")
        return matmul


def checked(status: str, library: str) -> Checked:
    """Makes a library's calls, whose codes begin with `status`."""
    advice = {
        "ALLOC_FAILED": "the GPU's memory is full; take smaller sizes with --set",
        "NOT_SUPPORTED": f"this {library} does not make the product here; {WAY_OUT}",
        "ARCH_MISMATCH": f"this {library} does not know the GPU; {WAY_OUT}",
        "EXECUTION_FAILED": "a kernel could not be launched or has failed before",
    }
    return Checked({f"{status}_STATUS_{code}": semaphores for code, semaphores in advice.items()})
