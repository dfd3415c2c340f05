"""The properties for which a tensor-core GEMM is compiled, apart from its tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.functions import FUNCTIONS, FunctionName
from ..types import ACCUMULATOR, TYPES
from . import target


@dataclass(frozen=True, slots=True)
class Signature:
    """Types and layout of a product. A transposed left is stored [K, M], a transposed right [N, K]."""

    dtype: str  # of both operands
    out_dtype: str
    left_transposed: bool
    right_transposed: bool
    addends: bool = False  # kernels with addends are compiled apart from others
    function: FunctionName | None = None  # and so are those with a function of the sum

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
    def out_item(self) -> int:
        return TYPES[self.out_dtype].bytes

    def entry(self, variant: str) -> str:
        """The kernel's name: of the entry point, the trace and the cache alike."""
        layout = "".join("nt"[transposed] for transposed in self.transposed)
        variant = variant if self.function is None else f"{variant}_{self.function}"
        return f"{variant}{'_sum' if self.addends else ''}_{self.dtype}_{self.out_dtype}_{layout}"

    def options(self, variant: str, arch: str, defines: Mapping[str, object]) -> tuple[str, ...]:
        """What the source of a variant is compiled with; `defines` are the variant's own."""
        values = {
            "ENTRY": self.entry(variant),
            "HALF": TYPES[self.dtype].half,
            "OUT_FP32": int(self.out_dtype == ACCUMULATOR),
            "LEFT_T": int(self.left_transposed),
            "RIGHT_T": int(self.right_transposed),
            "ADDENDS": int(self.addends),
            **defines,
        }
        return (*target.options(arch), *(f"-D{key}={value}" for key, value in values.items()), *applied(self.function))


def applied(function: FunctionName | None) -> tuple[str, ...]:
    """What a source is compiled with that applies a function to its sums (`src/functions.cuh`)."""
    if function is None:
        return ()
    return f"-DFUNCTION={FUNCTIONS[function].number}", f"-DFACTOR={int(FUNCTIONS[function].factor)}"
