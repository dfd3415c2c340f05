"""A product of PyTorch's matrices by our kernels: what was chosen for it, and its launch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ficco_rt.kernels import sm80, sm90, tiles
from ficco_rt.region import Interval

from .device import SMEM, shared, sms
from .launch import Launch
from .variants import Variant

LAYOUTS = ((False, "B[K,N]"), (True, "B[N,K]"))


def matrix(t: torch.Tensor) -> tiles.Matrix:
    return tiles.Matrix(t.data_ptr(), t.shape[0], t.shape[1], t.stride(0))


def operand(t: torch.Tensor) -> tiles.Operand:
    return tiles.Operand(matrix(t), whole(t.shape[0]), whole(t.shape[1]))


def whole(n: int) -> tuple[Interval, ...]:
    return (Interval(0, n),)


@dataclass(frozen=True)
class Choice:
    """What to run a product of whole matrices with."""

    variant: Variant
    splits: int
    residency: int = 1

    def __str__(self) -> str:
        shared = f"@{self.residency}" if self.residency > 1 else ""
        return f"{self.variant.name[10:]}{shared}/{self.splits}"


def chosen(kernel: str, m: int, n: int, k: int, right_t: bool) -> Choice:
    if kernel == "sm90":
        hopper = sm90.choose([m], [n], k, sms(), right_t)
        return Choice(hopper.variant, hopper.tail_splits)
    found = sm80.choose([m], [n], k, sms(), {r: shared(r) for r in (1, 2, 3, 4)})
    assert found is not None
    return Choice(found.variant, found.tail_splits, found.residency)


def build(
    works: list[tiles.Work], v: Variant, *key: Any, count: int, splits: int, **more: Any
) -> sm80.Launch | sm90.Launch:
    """A launch on `count` multiprocessors (`sm80`: of so many blocks) of (dtype, out dtype, left, right transposed), K
    of the last wave's tiles in `splits` parts."""
    if isinstance(v, sm90.Variant):
        return sm90.build(works, v, *key, sms=count, cuts=tiles.Cuts(tail=splits), **more)
    return sm80.build(works, v, *key, blocks=count, tail_splits=splits, **more)


def plain(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, right_t: bool, choice: Choice,
    band: int | None = None, source: Path | None = None, terms: tuple[tiles.Term, ...] = (),
) -> Launch:  # fmt: skip
    """c = a · b + terms over whole matrices."""
    m, k = a.shape
    n = c.shape[1]
    work = tiles.Work(matrix(a), matrix(b), matrix(c), whole(m), whole(k), whole(b.shape[0]), whole(b.shape[1]),
                      whole(m), whole(n), terms=terms)  # fmt: skip
    v = choice.variant
    stages = v.stages(SMEM if isinstance(v, sm90.Variant) else shared(choice.residency), right_t)
    key = ("bf16", "bf16", False, right_t)
    count = sms() * choice.residency
    made = build([work], v, *key, count=count, stages=stages, splits=choice.splits, band=band)
    return Launch(made, *key, *((True,) if terms else ()), source=source)
