"""A product of PyTorch's matrices by our kernels: what was chosen for it, and its launch."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ficco_rt.calibrate import alone
from ficco_rt.geometry.region import Interval
from ficco_rt.kernels import tiles
from ficco_rt.kernels.by_address import Way, fastest
from ficco_rt.kernels.families import AloneTimes, PlainProduct
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80.family import SM80
from ficco_rt.kernels.sm90 import choice as sm90
from ficco_rt.kernels.sm90.variants import ODD, VARIANTS
from ficco_rt.kernels.sm90.variants import Variant as Hopper
from ficco_rt.kernels.tile_table import SplitK
from ficco_rt.kernels.vendor_cost import MEASURED

from .device import SMEM, arch, shared, sms
from .launch import Launch, build
from .variants import Key, Variant

LAYOUTS = ((False, "B[K,N]"), (True, "B[N,K]"))


def matrix(t: torch.Tensor) -> tiles.Matrix:
    return tiles.Matrix(t.data_ptr(), t.shape[0], t.shape[1], t.stride(0))


def operand(t: torch.Tensor) -> tiles.MatrixOperand:
    return tiles.MatrixOperand(matrix(t), whole(t.shape[0]), whole(t.shape[1]))


def whole(n: int) -> tuple[Interval, ...]:
    return (Interval(0, n),)


@dataclass(frozen=True)
class Choice:
    """What to run a product of whole matrices with."""

    variant: Variant
    splits: int
    residency: int = 1
    stages: int = 0  # 0: as many as there is room for
    foreseen: bool = True  # see `build`
    promotion: str = "L2_256B"  # see `Launch`
    chained: bool = False  # see `Launch`; and both operands are read-only
    band: int | None = None  # see `tile_table.table`

    def __str__(self) -> str:
        shared = f"@{self.residency}" if self.residency > 1 else ""
        stages = f" {self.stages} stages" if self.stages else ""
        band = "" if self.band is None else f" band {self.band}"
        promotion = "" if self.promotion == "L2_256B" else f" {self.promotion}"
        by_table = "" if self.foreseen else " by table"
        chained = " chained" if self.chained else ""
        return f"{self.variant.name[10:]}{shared}/{self.splits}{stages}{band}{by_table}{promotion}{chained}"


def chosen(
    kernel: str, m: int, n: int, k: int, right_t: bool, pad: str = "", only: str | None = None, left_t: bool = False
) -> Choice:
    """`only`: of this variant. `pad`: those of A and B whose rows start at whole lines, whatever their sizes."""
    if kernel == "sm90":
        lines = ("A" in pad or k % tiles.DEPTH == 0, "B" in pad or (k if right_t else n) % tiles.DEPTH == 0)
        every = [v for v in (VARIANTS if left_t else (*VARIANTS, *ODD)) if only in (None, v.name)]
        hopper = sm90.ranked([m], [n], k, sms(), right_t, variants=every, lines=lines)[0]
        return Choice(hopper.variant, hopper.tail_splits, stages=hopper.stages % hopper.variant.stages(SMEM, right_t))
    ways = tuple(Way(v, min(r, v.residency), 0, shared(r)) for v in SM80.variants for r in (1, 2, 3, 4))
    found = fastest(SM80, ways, (m,), (n,), k, sms(), arch())
    assert found is not None
    return Choice(found.variant, SM80.estimate(found, [m], [n], k, sms(), arch())[1], found.residency)


def measured(m: int, n: int, k: int, right_t: bool) -> AloneTimes | None:
    """What a run takes such a product alone by, as measured once on this GPU; None: the chosen kernel."""
    return None if 2 * m * n * k > MEASURED else alone.times(PlainProduct(m, n, k, right_t, "bf16"), "cuda")


def unseen(count: int, seed: int) -> list[dict[str, Any]]:
    """Random sizes: M log-uniform from 1 to 8192, N and K multiples of 64 up to 16384."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        m = max(1, round(math.exp(rng.uniform(0, math.log(8192)))))
        n, k = 64 * rng.randint(1, 256), 64 * rng.randint(1, 256)
        found.append({"name": f"{m}x{n}x{k}", "m": m, "n": n, "k": k})
    return found


def plain(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, right_t: bool, choice: Choice,
    band: int | None = None, source: Path | None = None, addends: tuple[tiles.Addend, ...] = (), flag: int = 0,
    raises: int = 0, left_t: bool = False,
) -> Launch:  # fmt: skip
    """c = a · b + addends over whole matrices; `left_t`: a is stored [K, M]. `flag`, if not 0: the address of what says
    that a is there, which the launch resets. `raises`, if not 0: the address of a flag that the launch raises."""
    left_rows, left_columns, right_rows, right_columns, out_rows, out_columns = (
        whole(size) for t in (a, b, c) for size in t.shape
    )
    work = tiles.MatrixWork(matrix(a), matrix(b), matrix(c), left_rows, left_columns, right_rows, right_columns,
                      out_rows, out_columns, waits=(flag,) if flag else (), addends=addends,
                      signals=(raises,) if raises else ())  # fmt: skip
    key = Key(choice.variant, Signature("bf16", "bf16", left_t, right_t, bool(addends)))
    stages = choice.stages or key.stages(SMEM if isinstance(choice.variant, Hopper) else shared(choice.residency))
    blocks, split_k, band = sms() * choice.residency, SplitK(choice.splits), choice.band if band is None else band
    if band is None and isinstance(choice.variant, Hopper):
        band = sm90.band(choice.variant, [work], key.signature.transposed, sms())
    made = build([work], key, blocks=blocks, stages=stages, split_k=split_k, band=band, foreseen=choice.foreseen,
                 read_only=(choice.chained and not flag, choice.chained), resets=[flag] if flag else ())  # fmt: skip
    return Launch(made, source, choice.promotion, choice.chained)
