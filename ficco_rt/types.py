"""Element types: one row each, which every other place reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Dtype: TypeAlias = Literal["bf16", "fp16", "fp32"]
ACCUMULATOR: Dtype = "fp32"  # products and sums of every type are added up in it


@dataclass(frozen=True, slots=True)
class ElementType:
    """One type of a tensor's elements."""

    name: str  # in the language
    bytes: int
    exact: int  # integers up to here are stored without rounding
    exponent: int  # bits, which make the range
    unit_roundoff: float
    numpy: str  # module and name of the type
    torch: str
    dlpack: tuple[int, int]  # DLDataTypeCode, bits
    typestr: str  # of __cuda_array_interface__
    number: int  # in the sources of the naive kernels
    tensor_map: str  # what CUtensorMapDataType calls it
    half: int | None = None  # -DHALF of the tensor-core GEMMs for operands of it; None: they multiply none

    @property
    def largest(self) -> float:
        """The largest number."""
        return (2 - 2 / self.exact) * float(2 ** (2 ** (self.exponent - 1) - 1))


ELEMENT_TYPES: tuple[ElementType, ...] = (
    ElementType(
        name="bf16", bytes=2, exact=2**8, exponent=8, unit_roundoff=2**-8, numpy="ml_dtypes.bfloat16", torch="bfloat16",
        dlpack=(4, 16), typestr="<V2", number=0, tensor_map="BFLOAT16", half=0,
    ),
    ElementType(
        name="fp16", bytes=2, exact=2**11, exponent=5, unit_roundoff=2**-11, numpy="numpy.float16", torch="float16",
        dlpack=(2, 16), typestr="<f2", number=1, tensor_map="FLOAT16", half=1,
    ),
    ElementType(
        name="fp32", bytes=4, exact=2**24, exponent=8, unit_roundoff=2**-24, numpy="numpy.float32", torch="float32",
        dlpack=(2, 32), typestr="<f4", number=2, tensor_map="FLOAT32",
    ),
)  # fmt: skip

TYPES: Mapping[str, ElementType] = {t.name: t for t in ELEMENT_TYPES}
ITEM_BYTES: Mapping[str, int] = {t.name: t.bytes for t in ELEMENT_TYPES}


def holds(wide: Dtype, narrow: Dtype) -> bool:
    """Does `wide` hold every number of `narrow`? bf16 and fp16 do not hold each other: one is coarser, the other ends
    at 65504."""
    a, b = TYPES[wide], TYPES[narrow]
    return a.exact >= b.exact and a.exponent >= b.exponent


def loss(wide: Dtype, narrow: Dtype) -> str:
    """What a number of type `wide` loses in `narrow`, for people."""
    a, b = TYPES[wide], TYPES[narrow]
    lost = [f"ends at {b.largest:.5g}"] if b.exponent < a.exponent else []
    if b.exact < a.exact:
        lost.append(f"keeps {b.exact.bit_length() - 1} binary digits of {a.exact.bit_length() - 1}")
    return f"{narrow} {' and '.join(lost)}"


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The type as numpy holds it; numpy and ml_dtypes are imported by the first call."""
    import numpy as np

    module, _, attribute = TYPES[name].numpy.rpartition(".")
    dtype: np.dtype[Any] = np.dtype(getattr(import_module(module), attribute))
    return dtype
