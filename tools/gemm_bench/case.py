"""A random product with its operands on the device, and what must come of it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

import torch

from ficco_rt.geometry.region import Interval
from ficco_rt.kernels import tiles
from ficco_rt.kernels.sm90 import variants as sm90
from ficco_rt.kernels.tile_table import SplitK
from ficco_rt.types import TYPES

from .device import call, shared, sms
from .geometry import Geometry, Pieces, draw_geometry, pieces, ragged
from .launch import Launch, build
from .product import matrix
from .variants import Key, adds_up

TORCH: dict[str, torch.dtype] = {t.name: getattr(torch, t.torch) for t in TYPES.values()}


def index(spans: Pieces) -> torch.Tensor:
    return torch.cat([torch.arange(s.start, s.stop) for s in spans]).cuda()


class Addends:
    """Random addends, whose numbers come while the kernel runs: NaN before, and outside their pieces for good."""

    def __init__(self, rng: random.Random, key: Key, out: torch.Tensor, out_m: Pieces, out_n: Pieces) -> None:
        dtype, out_dtype, left_t = key.signature.dtype, key.signature.out_dtype, key.signature.left_transposed
        m, n = (sum(s.size for s in spans) for spans in (out_m, out_n))
        self.total = torch.zeros(m, n, dtype=torch.float64, device="cuda")
        self.out = out_dtype == dtype and rng.random() < 0.3  # what is there is an addend too
        addends = [tiles.Addend(tiles.MatrixOperand(matrix(out), out_m, out_n), out_dtype)] if self.out else []
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _ in range(rng.randint(1, 3)):
            kind = dtype if isinstance(key.variant, sm90.Variant) else rng.choice((out_dtype, "fp32"))
            high, wide = (-(-size // 8) * 8 + rng.randint(0, 9) * 8 for size in (m, n))
            count = rng.randint(1, 2)  # addends that lie in one matrix, below each other
            device = torch.full((high * count, wide), math.nan, device="cuda", dtype=TORCH[kind])
            host = torch.full((high * count, wide), math.nan, dtype=TORCH[kind]).pin_memory()
            for i in range(count):
                rows = ragged(rng, high, rng.randint(1, 2), m) if left_t else pieces(rng, high, rng.randint(1, 2), 1, m)
                columns = ragged(rng, wide, rng.randint(1, 2), n)
                rows = tuple(Interval(s.start + i * high, s.stop + i * high) for s in rows)
                data = torch.randn(m, n).to(TORCH[kind])
                if rng.random() < 0.3:  # stays where it is
                    data[rng.randrange(m), rng.randrange(n)] = math.nan
                host[torch.meshgrid(index(rows).cpu(), index(columns).cpu(), indexing="ij")] = data
                self.total += data.cuda().double()
                addends.append(tiles.Addend(tiles.MatrixOperand(matrix(device), rows, columns), kind))
            self.copies.append((device, host))
        self.addends = tuple(addends)
        self.side = torch.cuda.Stream()

    def __str__(self) -> str:
        return "addends " + " ".join(f"{t.dtype} {t.operand.rows} {t.operand.columns}" for t in self.addends)

    def leave(self) -> None:
        """No number has come yet."""
        for device, _ in self.copies:
            device.fill_(math.nan)

    def come(self, flag: int) -> None:
        """Copy engines bring the numbers, and raise the flag behind them."""
        with torch.cuda.stream(self.side):
            for device, host in self.copies:
                device.copy_(host, non_blocking=True)
        call("cuStreamWriteValue32", self.side.cuda_stream, flag, 1, 0)


@dataclass(frozen=True)
class Case:
    """What a kernel is given, and what it must make of it."""

    key: Key
    shape: Geometry
    left: torch.Tensor  # as they are stored
    right: torch.Tensor
    out: torch.Tensor
    at: tuple[torch.Tensor, ...]  # the elements of out that are written
    start: torch.Tensor | None  # what is there before, where that counts
    expect: torch.Tensor  # out in fp64; NaN where nothing is written
    accumulate: bool
    added: Addends | None
    flags: torch.Tensor  # two that are waited for, two that are raised, one that the addends wait for
    stages: int
    splits: int
    count: int  # see `build`

    @property
    def flag(self) -> list[int]:
        """The flags' addresses."""
        return [self.flags.data_ptr() + 4 * i for i in range(5)]

    def launch(self, source: Path | None) -> Launch:
        left_t, right_t = self.key.signature.transposed
        g, flag, added = self.shape, self.flag, self.added
        work = tiles.MatrixWork(
            matrix(self.left), matrix(self.right), matrix(self.out),
            g.left_k if left_t else g.left_m, g.left_m if left_t else g.left_k,
            g.right_n if right_t else g.right_k, g.right_k if right_t else g.right_n,
            g.out_m, g.out_n, self.accumulate, tuple(flag[:2]), tuple(flag[2:4]), added.addends if added else (),
            (flag[4],) if added else (),
        )  # fmt: skip
        split_k = SplitK(self.splits)
        return Launch(build([work], self.key, blocks=self.count, stages=self.stages, split_k=split_k), source)

    def told(self, launch: Launch) -> str:
        """All that was drawn, but the numbers."""
        g = self.shape
        return (
            f"{self.key.entry} m={g.m} n={g.n} k={g.k} of {g.total_m} {g.total_n} {g.total_k} += {self.accumulate} "
            f"stages={self.stages} splits={self.splits} sms={self.count} tiles={len(launch.table.tiles)} "
            f"rows {g.left_m}→{g.out_m} columns {g.right_n}→{g.out_n} K {g.left_k} {g.right_k} {self.added or ''}"
        )

    def reset(self) -> None:
        """As it is before a launch: nothing written, no addend there, no flag up but those that are waited for."""
        self.out.fill_(math.nan)
        if self.start is not None:
            self.out[self.at] = self.start
        if self.added:
            self.added.leave()
        self.flags[2:] = 0

    def bits(self) -> torch.Tensor:
        """A copy of out, to be compared with another's in every bit."""
        return self.out.view(torch.int32 if self.key.signature.out_dtype == "fp32" else torch.int16).clone()


def operands(g: Geometry, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Left and right, neither transposed. Outside the pieces of K all is NaN: it must not reach a sum."""
    t = TORCH[dtype]
    left = torch.full((g.total_m, g.total_k), math.nan, device="cuda", dtype=t)
    right = torch.full((g.total_k, g.total_n), math.nan, device="cuda", dtype=t)
    left[:, index(g.left_k)] = torch.randn(g.total_m, g.k, device="cuda").to(t)
    right[index(g.right_k)] = torch.randn(g.k, g.total_n, device="cuda").to(t)
    return left, right


def product(g: Geometry, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The pieces' product in fp64, [m, n]."""
    rows, columns = index(g.left_m), index(g.right_n)
    return left[rows][:, index(g.left_k)].double() @ right[index(g.right_k)][:, columns].double()


def draw_case(rng: random.Random, key: Key, most: int) -> Case:
    """Sizes up to `most`, pieces, accumulation, addends, pipeline, splits, multiprocessors; and numbers."""
    signature = key.signature
    out_dtype, (left_t, right_t) = signature.out_dtype, signature.transposed
    g = draw_geometry(rng, key.variant, signature, most)
    left, right = operands(g, signature.dtype)
    accumulate = not signature.addends and rng.random() < 0.4 and adds_up(key.variant)
    out = torch.full((g.total_m, g.total_n), math.nan, device="cuda", dtype=TORCH[out_dtype])
    start = torch.randn(g.m, g.n, device="cuda").to(out.dtype)
    added = Addends(rng, key, out, g.out_m, g.out_n) if signature.addends else None
    from_start = accumulate or (added is not None and added.out)
    at = torch.meshgrid(index(g.out_m), index(g.out_n), indexing="ij")
    expect = torch.full((g.total_m, g.total_n), math.nan, device="cuda", dtype=torch.float64)
    expect[at] = product(g, left, right)
    if from_start:
        expect[at] += start.double()
    if added:
        expect[at] += added.total
    stages = rng.randint(2, key.stages(shared(1) - 1024))
    splits = rng.choice((1, 1, 2, 5))
    count = rng.choice((sms(), 16, 4))
    return Case(
        key, g, left.T.contiguous() if left_t else left, right.T.contiguous() if right_t else right, out, at,
        start if from_start else None, expect, accumulate, added,
        torch.tensor([1, 1, 0, 0, 0], dtype=torch.int32, device="cuda"), stages, splits, count,
    )  # fmt: skip
