"""Random operands, the reference, and how far a result is off. PyTorch is imported late, in worker processes only.

Nothing of ficco_rt is imported: `tools.beside` uses this file beside any version of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

OPERANDS = ("A", "B")
LARGEST = 448  # of fp8_e4m3

# The shape, and the rows and columns of a block of fp8 values that have a scale in common; None: bf16
Layout = tuple[tuple[int, int], tuple[int, int] | None]


def empty(layout: Layout, device: Any) -> Any:
    """A bf16 tensor, or a pair: values of fp8, and their scales."""
    import torch

    shape, blocks = layout
    if blocks is None:
        return torch.empty(shape, dtype=torch.bfloat16, device=device)
    scales = torch.empty(shape[0] // blocks[0], shape[1] // blocks[1], device=device)
    return torch.empty(shape, dtype=torch.float8_e4m3fn, device=device), scales


def fill(given: Any, name: str, rank: int, k: int, seed: int) -> None:
    """Normal numbers, the same for the same seed, tensor name and rank on every GPU of one kind; scaled by k^-1/4,
    so that products come out of the order of 1. Of a pair, the largest of a block is the type's largest."""
    import torch

    values, scales = given if isinstance(given, tuple) else (given, None)
    drawn = values if scales is None else torch.empty(values.shape, device=values.device)
    generator = torch.Generator(values.device)
    generator.manual_seed((seed * 1_000_003 + rank) * len(OPERANDS) + OPERANDS.index(name))
    drawn.normal_(generator=generator)
    drawn.mul_(k**-0.25)
    if scales is not None:
        cut = _blocks(drawn, scales)
        scales.copy_(cut.abs().amax((1, 3)) / LARGEST)
        values.copy_((cut / scales[:, None, :, None]).view(values.shape))


def plain(given: Any) -> Any:
    """A tensor, or the product of a pair's values and scales, in fp32."""
    if not isinstance(given, tuple):
        return given
    values, scales = given
    return (_blocks(values.float(), scales) * scales[:, None, :, None]).view(values.shape)


def _blocks(values: Any, scales: Any) -> Any:
    """[rows of blocks, rows of a block, columns of blocks, columns of a block]"""
    (rows, columns), (down, across) = values.shape, scales.shape
    return values.view(down, rows // down, across, columns // across)


def operand(layouts: Mapping[str, Layout], k: int, seed: int, device: Any) -> Callable[[str, int], Any]:
    """What gives a plain operand of any rank, made anew, from its name and the rank."""

    def of(name: str, rank: int) -> Any:
        given = empty(layouts[name], device)
        fill(given, name, rank, k, seed)
        return plain(given)

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
    """C of `rank`, of this shape, in fp32 on `device`, from operands that are multiplied in fp32 (no tf32).

    `a(q)` and `b(q)` are the plain operands of rank q, on any device; `transb`: the right ones transposed.
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
