"""The properties for which a tensor-core GEMM is compiled, apart from its tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..graph.functions import FUNCTIONS, FunctionName
from ..types import ACCUMULATOR, TYPES
from . import target
from .tiles import DEPTH

# What is done with fp8 sums of each step of K: nothing; they are added to a tile's in fp32; and scaled before
Promoted = Literal[None, "sums", "scales"]
SCALINGS = ("row", "1x128")  # of the left operand; the right one's is alike, and 128x128


@dataclass(frozen=True, slots=True)
class Signature:
    """Types and layout of a product. A transposed left is stored [K, M], a transposed right [N, K]."""

    dtype: str  # of both operands; of the left one where `right_dtype` is given
    out_dtype: str
    left_transposed: bool
    right_transposed: bool
    addends: bool = False  # kernels with addends are compiled apart from others
    function: FunctionName | None = None  # and so are those with a function of the sum
    right_dtype: str | None = None
    scaling: str | None = None  # of fp8 operands: of SCALINGS
    fast: bool = False  # fp8 products are added up by the tensor core alone, which keeps some 14 bits
    access: int = 16  # bytes of whose multiples operands' addresses, pitches and pieces of columns are
    tf32: bool = False  # fp32 operands are rounded to TF32

    @property
    def factor(self) -> bool:
        """Whether the last addend is what the function's value is multiplied by."""
        return self.function is not None and FUNCTIONS[self.function].factor

    @property
    def transposed(self) -> tuple[bool, bool]:
        return self.left_transposed, self.right_transposed

    @property
    def item(self) -> int:
        """Bytes of an operand's element."""
        return TYPES[self.dtype].bytes

    @property
    def fp8(self) -> bool:
        return self.item == 1

    @property
    def blocks(self) -> bool:
        """Whether operands have scales of blocks."""
        return self.scaling == "1x128"

    @property
    def promoted(self) -> Promoted:
        return None if self.fast or not self.fp8 else "scales" if self.blocks else "sums"

    @property
    def step(self) -> int:
        """Elements of K in a step of the pipeline: 128 bytes."""
        return DEPTH * 2 // self.item

    @property
    def out_item(self) -> int:
        return TYPES[self.out_dtype].bytes

    def entry(self, variant: str) -> str:
        """The kernel's name: of the entry point, the trace and the cache alike."""
        layout = "".join("nt"[transposed] for transposed in self.transposed)
        variant = variant if self.function is None else f"{variant}_{self.function}"
        ways = "tf32" if self.tf32 else "", "" if self.access == 16 else f"by{self.access}"
        types = self.dtype, self.right_dtype, self.scaling, "fast" if self.fast else ""
        return "_".join(filter(None, (variant, "sum" if self.addends else "", *ways, *types, self.out_dtype, layout)))

    def options(self, variant: str, arch: str, defines: Mapping[str, object]) -> tuple[str, ...]:
        """What the source of a variant is compiled with; `defines` are the variant's own."""
        values = {
            "ENTRY": self.entry(variant),
            "HALF": TYPES[self.out_dtype if self.fp8 else self.dtype].half or 0,
            "OUT_FP32": int(self.out_dtype == ACCUMULATOR),
            "LEFT_T": int(self.left_transposed),
            "RIGHT_T": int(self.right_transposed),
            "ADDENDS": int(self.addends),
            **(self._fp8_defines() if self.fp8 else {}),
            **defines,
        }
        return (*target.options(arch), *(f"-D{key}={value}" for key, value in values.items()), *applied(self.function))

    def _fp8_defines(self) -> dict[str, int]:
        return {
            "FP8": 1,
            "LEFT_E5M2": int(self.dtype == "fp8_e5m2"),
            "RIGHT_E5M2": int((self.right_dtype or self.dtype) == "fp8_e5m2"),
            "SCALES": SCALINGS.index(self.scaling) + 1 if self.scaling else 0,
            "FAST": int(self.fast),
        }


def applied(function: FunctionName | None) -> tuple[str, ...]:
    """What a source is compiled with that applies a function to its sums (`src/functions.cuh`)."""
    if function is None:
        return ()
    return f"-DFUNCTION={FUNCTIONS[function].number}", f"-DFACTOR={int(FUNCTIONS[function].factor)}"
