"""Products of scaled fp8 matrices by libraries: cuBLASLt through PyTorch, and DeepGEMM where it can be imported."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

Pair = tuple[Any, Any]  # values [rows, K], and scales of rows [rows, 1] or of blocks [rows of blocks, K / 128]


class Product(NamedTuple):
    """`prepare` brings the left scales into the order that the library wants, rows innermost."""

    prepare: Callable[[], object]
    run: Callable[[], object]


def products(left: Pair, right: Pair, out: Any) -> dict[str, Product]:
    """out = left · right.T, by each library."""
    import torch

    (a, by), (b, weights) = left, right
    turned = torch.empty_like(by.t(), memory_format=torch.contiguous_format).t()

    def multiply() -> None:
        torch._scaled_mm(a, b.t(), turned, weights.t(), out_dtype=out.dtype, out=out)

    found = {"cuBLASLt": Product(lambda: turned.copy_(by), multiply)}
    if by.shape[1] > 1 and find_spec("deep_gemm"):
        import deep_gemm  # type: ignore[import-not-found, unused-ignore]

        scales = [by]

        def prepare() -> None:
            with torch.cuda.device(by.device):  # where it launches
                scales[:] = [deep_gemm.get_mn_major_tma_aligned_tensor(by)]

        found["DeepGEMM"] = Product(prepare, lambda: deep_gemm.fp8_gemm_nt((a, scales[0]), right, out))
    return found
