"""The table of element types, one row each; all other modules read it. The properties of a type follow from its
format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

if TYPE_CHECKING:
    import numpy as np

Dtype: TypeAlias = Literal["bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2"]
ACCUMULATOR: Dtype = "fp32"  # the type in which our kernels add up
Scaling: TypeAlias = Literal["tensor", "row", "1x128", "128x128"]
# Rows and columns of a tensor as it is stored that share a scale; 0: all columns. `tensor`: one number, which is kept
# once for each row, so that shards that are gathered keep their own.
BLOCKS: Mapping[Scaling, tuple[int, int]] = {"tensor": (1, 0), "row": (1, 0), "1x128": (1, 128), "128x128": (128, 128)}


@dataclass(frozen=True, slots=True)
class ElementType:
    """One type of a tensor's elements: a sign, bits of exponent, and stored bits of mantissa, as IEEE 754 has them.

    A code that is None does not exist: whoever needs it refuses the type (`driver/gpu/refused.py`, `coded`).
    """

    name: str  # in the language
    exponent: int  # bits, which make the range
    mantissa: int  # bits, without the leading one
    numpy: str  # module and name of the type
    torch: str
    typestr: str  # of __cuda_array_interface__
    dlpack_code: int  # DLDataTypeCode
    finite: bool = False  # no infinities, and one NaN of each sign: the largest exponent holds numbers, too
    accumulator: Dtype = ACCUMULATOR  # products and sums of the type are added up in it
    number: int | None = None  # in `src/naive.cu`
    half: int | None = None  # -DHALF of the tensor-core GEMMs for operands of it; None: they multiply none
    tensor_map: str | None = None  # what CUtensorMapDataType calls it
    nccl: int | None = None  # ncclDataType_t, of NCCL and of RCCL
    blas: int | None = None  # cudaDataType, and hipDataType, whose numbers are the same

    @property
    def bytes(self) -> int:
        return (1 + self.exponent + self.mantissa) // 8

    @property
    def exact(self) -> int:
        """Integers up to this one are stored without rounding."""
        return 1 << (self.mantissa + 1)

    @property
    def quantised(self) -> bool:
        """Whether it is so coarse that a claim says where values are rounded to it, and that its tensors may be
        scaled."""
        return self.bytes == 1

    @property
    def unit_roundoff(self) -> float:
        return 1 / self.exact

    @property
    def largest(self) -> float:
        """The largest number."""
        top = (1 << (self.exponent - 1)) - 1 + self.finite  # the exponent of numbers with the largest bits
        return (self.exact - 1 - self.finite) * 2.0 ** (top - self.mantissa)

    @property
    def smallest(self) -> float:
        """The smallest number above zero, a subnormal one."""
        return 2.0 ** (2 - (1 << (self.exponent - 1)) - self.mantissa)

    @property
    def dlpack(self) -> tuple[int, int]:
        """DLDataTypeCode and bits."""
        return self.dlpack_code, 8 * self.bytes


ELEMENT_TYPES: tuple[ElementType, ...] = (
    ElementType(
        name="bf16", exponent=8, mantissa=7, numpy="ml_dtypes.bfloat16", torch="bfloat16", typestr="<V2",
        dlpack_code=4, number=0, half=0, tensor_map="BFLOAT16", nccl=9, blas=14,
    ),
    ElementType(
        name="fp16", exponent=5, mantissa=10, numpy="numpy.float16", torch="float16", typestr="<f2",
        dlpack_code=2, number=1, half=1, tensor_map="FLOAT16", nccl=6, blas=2,
    ),
    ElementType(
        name="fp32", exponent=8, mantissa=23, numpy="numpy.float32", torch="float32", typestr="<f4",
        dlpack_code=2, number=2, tensor_map="FLOAT32", nccl=7, blas=0,
    ),
    # NOTE a vendor's collectives move fp8 as bytes: they sum none (`ops/collective`)
    ElementType(
        name="fp8_e4m3", exponent=4, mantissa=3, finite=True, numpy="ml_dtypes.float8_e4m3fn", torch="float8_e4m3fn",
        typestr="|V1", dlpack_code=10, number=3, tensor_map="UINT8", nccl=1, blas=28,
    ),
    ElementType(
        name="fp8_e5m2", exponent=5, mantissa=2, numpy="ml_dtypes.float8_e5m2", torch="float8_e5m2",
        typestr="<f1", dlpack_code=12, number=4, tensor_map="UINT8", nccl=1, blas=29,
    ),
)  # fmt: skip

TYPES: Mapping[str, ElementType] = {t.name: t for t in ELEMENT_TYPES}


def dtype_and_scaling(text: str) -> tuple[Dtype, Scaling | None] | None:
    """A type in words, such as `bf16` or `fp8_e4m3 scaled 1x128`; None: it is none."""
    dtype, said, scaling = text.partition(" scaled ")
    if dtype not in TYPES or (said and (scaling not in BLOCKS or not TYPES[dtype].quantised)):
        return None
    return cast(Dtype, dtype), cast(Scaling, scaling) if said else None


def holds(wide: Dtype, narrow: Dtype) -> bool:
    """Whether `wide` can represent every number of `narrow`. bf16 and fp16 cannot represent each other: one is coarser,
    the other ends at 65504."""
    a, b = TYPES[wide], TYPES[narrow]
    return a.mantissa >= b.mantissa and a.largest >= b.largest and a.smallest <= b.smallest


def loss(wide: Dtype, narrow: Dtype) -> str:
    """What a number of type `wide` loses in `narrow`, for people."""
    a, b = TYPES[wide], TYPES[narrow]
    lost = [f"ends at {b.largest:.5g}"] if b.exponent < a.exponent else []
    if b.mantissa < a.mantissa:
        lost.append(f"keeps {b.mantissa + 1} binary digits of {a.mantissa + 1}")
    return f"{narrow} {' and '.join(lost)}"


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The type as numpy holds it; numpy and ml_dtypes are imported by the first call."""
    import numpy as np

    module, _, attribute = TYPES[name].numpy.rpartition(".")
    dtype: np.dtype[Any] = np.dtype(getattr(import_module(module), attribute))
    return dtype
