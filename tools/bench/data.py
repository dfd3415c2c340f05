"""Random operands, the reference, and how far a result is off. PyTorch is imported late, in worker processes only.

Nothing of ficco_rt is imported: `tools.beside` uses this file beside any version of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

OPERANDS = ("A", "B")


def fill(tensor: Any, name: str, rank: int, k: int, seed: int) -> None:
    """Normal numbers, the same for the same seed, tensor name and rank on every GPU of one kind; scaled by k^-1/4,
    so that products come out of the order of 1."""
    import torch

    generator = torch.Generator(tensor.device)
    generator.manual_seed((seed * 1_000_003 + rank) * len(OPERANDS) + OPERANDS.index(name))
    tensor.normal_(generator=generator)
    tensor.mul_(k**-0.25)


def operand(shapes: Mapping[str, tuple[int, int]], k: int, seed: int, device: Any) -> Callable[[str, int], Any]:
    """What gives an operand of any rank, made anew, from its name and the rank."""
    import torch

    def of(name: str, rank: int) -> Any:
        tensor = torch.empty(shapes[name], dtype=torch.bfloat16, device=device)
        fill(tensor, name, rank, k, seed)
        return tensor

    return of


def reference(
    collective: str,
    shape: Sequence[int],
    ranks: int,
    rank: int,
    a: Callable[[int], Any],
    b: Callable[[int], Any],
    device: Any,
    transb: int = 0,
) -> Any:
    """C of `rank`, of this shape, in fp32 on `device`, from bf16 operands that are multiplied in fp32 (no tf32).

    `a(q)` and `b(q)` are the operands of rank q, on any device; `transb`: the right ones transposed.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False

    def right(q: int) -> Any:
        lying = b(q).to(device).float()
        return lying.t() if transb else lying

    total = torch.zeros(*shape, dtype=torch.float32, device=device)
    if collective == "all_gather":
        own = right(rank)
        for q, part in enumerate(total.chunk(ranks)):
            torch.mm(a(q).to(device).float(), own, out=part)
        return total
    for q in range(ranks):
        left = a(q).chunk(ranks)[rank] if collective == "reduce_scatter" else a(q)
        total.addmm_(left.to(device).float(), right(q))
    return total


def off(result: Any, wanted: Any) -> float:
    """max|result − wanted| / max|wanted|; infinite where an element is NaN, so never written."""
    error = float((result.float() - wanted).abs().max() / wanted.abs().max())
    return error if math.isfinite(error) else math.inf
