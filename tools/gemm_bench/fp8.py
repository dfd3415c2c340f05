"""Products of scaled fp8 matrices: our Hopper kernel beside cuBLASLt as plans call it, `torch._scaled_mm` and
DeepGEMM."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from ficco_rt.driver.cuda.gemm_library import CublasLt
from ficco_rt.driver.gpu import gemm_library
from ficco_rt.driver.gpu.refused import Refused
from ficco_rt.geometry.region import Interval, Region
from ficco_rt.kernels import tiles, vendor_gemm
from ficco_rt.kernels.family import Matmul, Operand
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm90 import choice, cost
from ficco_rt.kernels.sm90.choice import band as best_band
from ficco_rt.kernels.sm90.choice import ranked, worthwhile
from ficco_rt.kernels.sm90.variants import BESIDE, ODD, VARIANTS, Variant
from ficco_rt.kernels.tile_table import SplitK
from ficco_rt.kernels.works import View
from ficco_rt.types import TYPES

from .check import finish
from .device import SMEM, sms
from .launch import Launch, build, compiled
from .product import matrix, whole
from .timing import graph, spread, times
from .variants import Key, most_splits, named

BLOCK = 128
FAST_ERROR = 2.0**-8  # of the sum of absolute products: what the tensor core loses where it adds up all of K
ERROR = 2.0**-11  # … and where every 128 of K are promoted


@dataclass(frozen=True)
class Scaled:
    """A matrix stored along K, [rows, K], and its scales as our kernel reads them."""

    values: torch.Tensor
    scales: torch.Tensor
    kind: str  # tensor, row, 1x128 or 128x128

    @property
    def matrix(self) -> tiles.Matrix:
        m = matrix(self.values)
        scales = tiles.Scales(self.scales.data_ptr(), self.scales.stride(0))
        return tiles.Matrix(m.address, m.rows, m.columns, m.pitch, scales=scales)

    @property
    def spread_scales(self) -> torch.Tensor:
        """One for each element, fp64."""
        rows, k = self.values.shape
        scales = self.scales.double()
        if "x" not in self.kind:
            return scales[:, None].expand(rows, k)
        high = BLOCK if self.kind == "128x128" else 1
        return scales.repeat_interleave(high, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :k]


def scales_like(rows: int, k: int, kind: str) -> torch.Tensor:
    """Empty, as schedules have them: that of a tensor is there for each row, rows of blocks are padded to 16 bytes."""
    if "x" not in kind:
        return torch.empty(rows, device="cuda")
    high = math.ceil(rows / BLOCK) if kind == "128x128" else rows
    wide = math.ceil(k / BLOCK)
    return torch.empty(high, math.ceil(wide / 4) * 4, device="cuda")[:, :wide]


def quantised(rows: int, k: int, kind: str, dtype: str) -> Scaled:
    """Normal numbers, each scale such that the largest of its elements is the type's largest."""
    x = torch.randn(rows, k, device="cuda")
    scales, top = scales_like(rows, k, kind), TYPES[dtype].largest
    if kind == "tensor":
        scales.fill_(x.abs().max().item() / top)
    elif kind == "row":
        scales.copy_(x.abs().amax(1) / top)
    else:
        high = BLOCK if kind == "128x128" else 1
        padded = torch.nn.functional.pad(x, (0, -k % BLOCK, 0, -rows % high))
        scales.copy_(padded.view(padded.shape[0] // high, high, -1, BLOCK).abs().amax((1, 3)) / top)
    made = Scaled(torch.empty(rows, k, device="cuda", dtype=getattr(torch, TYPES[dtype].torch)), scales, kind)
    made.values.copy_((x / made.spread_scales.float()).clamp(-top, top))
    return made


def kinds(scaling: str) -> tuple[str, str]:
    return scaling, "128x128" if scaling == "1x128" else scaling


def product(
    a: Scaled, b: Scaled, c: torch.Tensor, v: Variant, signature: Signature, splits: int = 1, stages: int = 0,
    pieces: Sequence[int] = (), flags: torch.Tensor | None = None, band: int | None = None,
    source: Path | None = None,
) -> Launch:  # fmt: skip
    """c = a · b.T. `pieces`: where rows are cut into works, each of which waits for one of the first row of `flags` and
    raises one of the second."""
    (m, k), n = a.values.shape, b.values.shape[0]
    edges = [0, *pieces, m]
    rows = [(Interval(low, high),) for low, high in pairwise(edges)]
    address = 0 if flags is None else flags.data_ptr()
    works = [
        tiles.MatrixWork(
            a.matrix, b.matrix, matrix(c), piece, whole(k), whole(n), whole(k), piece, whole(n),
            waits=(address + 4 * i,) if address else (), signals=(address + 4 * (len(rows) + i),) if address else (),
        )
        for i, piece in enumerate(rows)
    ]  # fmt: skip
    key = Key(v, signature)
    band = band or best_band(v, works, signature.transposed, sms(), 1)
    split_k = SplitK(works=(splits,) * len(works)) if len(works) > 1 else SplitK(splits)
    return Launch(
        build(works, key, blocks=sms(), stages=stages or key.stages(SMEM), split_k=split_k, band=band), source
    )


def worst(a: Scaled, b: Scaled, c: torch.Tensor, limit: float) -> float:
    """The greatest error beyond that of storing, as a share of the sum of absolute products; NaN: a result is missing,
    or infinite, and would be neither if it had an error of `limit`. The product of two scales is rounded to fp32."""
    x, y = (s.values.double() * s.spread_scales for s in (a, b))
    expect, size = x @ y.T, x.abs() @ y.abs().T
    unit = next(t.unit_roundoff for t in TYPES.values() if getattr(torch, t.torch) == c.dtype)
    least = 2.0**-24 if c.dtype == torch.float16 else 2.0**-133
    subnormal = 2.0**-149 * (a.values.double().abs() @ b.values.double().abs().T)
    good = expect.abs() + limit * size < torch.finfo(c.dtype).max
    got = c.double()[good]
    if torch.isnan(c).any() or torch.isinf(got).any():
        return math.nan
    error = (got - expect[good]).abs() - unit * expect[good].abs() - least - subnormal[good]
    return float((error / size[good].clamp_min(1e-300)).clamp_min(0).max()) if good.any() else 0.0


ADVERSARIAL: dict[str, Callable[[torch.Tensor], None]] = {
    "zero": lambda s: s[..., ::3].zero_() if s.dim() > 1 else s.zero_(),
    "subnormal": lambda s: s.fill_(1e-40),
    "huge": lambda s: s.fill_(1e12),
    "one off": lambda s: s.view(-1)[:1].mul_(2.0**20) if s.is_contiguous() else s[0, :1].mul_(2.0**20),
}


def signatures(scaling: str, fast: bool, types: tuple[str, str], outs: Sequence[str]) -> Iterator[Signature]:
    left, right = types
    mode = "1x128" if scaling == "1x128" else "row"
    for out in outs:
        other = right if right != left else None
        yield Signature(left, out, False, True, right_dtype=other, scaling=mode, fast=fast)


@patch.object(choice, "LEVEL", 0)  # of little K, too
def check(seed: int, cases: int, only: str) -> int:
    """How many random cases are wrong, which is printed: types, scales, sizes, splits, pieces that wait."""
    rng, failures, most = random.Random(seed), [], {True: 0.0, False: 0.0}
    torch.manual_seed(seed)
    side, up = torch.cuda.Stream(), torch.ones(4, dtype=torch.int32).pin_memory()
    pairs = (("fp8_e4m3", "fp8_e4m3"), ("fp8_e4m3", "fp8_e5m2"), ("fp8_e5m2", "fp8_e4m3"))
    keys = [
        Key(v, s)
        for v in (*VARIANTS, *BESIDE, *ODD[:: 1 if only else 8]) if named(v, only)
        for scaling in ("1x128", "row") for fast in ((False,) if scaling == "1x128" else (False, True))
        for s in signatures(scaling, fast, rng.choice(pairs), (rng.choice(("bf16", "fp16", "fp32")),))
    ]  # fmt: skip
    keys = [key for key in keys if key.exists]
    compile_all(keys)
    for key in keys:
        v, s = key.variant, key.signature
        assert isinstance(v, Variant)
        for _ in range(cases):
            m, n, k = rng.randint(1, 700), rng.randint(1, 90) * 8, rng.randint(1, 60) * 16
            if rng.random() < 0.3:
                k = rng.randint(1, 16) * 128
            assert s.scaling
            a, b = (
                quantised(rows, k, kind, dtype)
                for rows, kind, dtype in zip((m, n), kinds(s.scaling), (s.dtype, s.right_dtype or s.dtype), strict=True)
            )
            how = rng.choice(("", "", "", *ADVERSARIAL))
            if how:
                ADVERSARIAL[how](a.scales)
            if rng.random() < 0.3:
                b.scales.mul_(2.0 ** rng.randint(-20, 20))
            c = torch.full((m, n), math.nan, device="cuda", dtype=getattr(torch, TYPES[s.out_dtype].torch))
            splits = rng.choice((1, 1, 2, 3))
            pieces = sorted({rng.randint(1, m) for _ in range(rng.randint(0, 3))} - {m})
            flags = torch.zeros(2, len(pieces) + 1, dtype=torch.int32, device="cuda")
            late = rng.random() < 0.5  # flags are raised while the kernel runs, by a copy engine
            stages = rng.randint(2, key.stages(SMEM))
            launch = product(a, b, c, v, s, splits, stages, pieces, flags)
            told = f"{key.entry} {m}x{n}x{k} splits {splits} stages {stages} pieces {pieces} {how} late {late}"
            for turn in range(2):
                c.fill_(math.nan)
                flags[0], flags[1] = int(not late), 0
                torch.cuda.synchronize()
                launch()
                with torch.cuda.stream(side):
                    flags[0].copy_(up[: flags.shape[1]], non_blocking=True)
                finish(f"{told}: turn {turn}")
                limit = FAST_ERROR if s.fast else ERROR
                error = worst(a, b, c, limit)
                most[s.fast] = max(most[s.fast], error)
                if not error < limit or not flags.all() or launch.left_counters():
                    failures.append(f"{told}: turn {turn}: error {error:.1e}, flags {flags.tolist()}")
                    break
    print(f"check: {len(keys)} kernels × {cases} random cases, seed {seed}: {len(failures)} failed")
    print(f"greatest error of the sum of absolute products: {most[False]:.1e}, fast {most[True]:.1e}", flush=True)
    for failure in failures[:20]:
        print("  " + failure)
    return len(failures)


def compile_all(keys: Sequence[Key]) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda key: compiled(None, key), keys))


def ways(m: int, n: int, k: int, s: Signature, only: str) -> list[tuple[float, Variant, int]]:
    """Estimates, variants and splits of the last wave: first what a launch takes, then others, the best first."""
    depth, lines = math.ceil(k / 2), (k % BLOCK == 0,) * 2
    every = [v for v in (*VARIANTS, *BESIDE, *ODD) if v.takes(s) and named(v, only) and not v.throttled]
    if not every:
        return []
    first = ranked(
        [m], [n], depth, sms(), True, SMEM, variants=every, lines=lines, scaling=s.scaling, promoted=s.promoted
    )[0].variant
    found = []
    for v in worthwhile(every, [m], [n], sms(), True):
        estimate, splits = cost.alone(v, [m], [n], depth, sms(), 0, True, lines, True, s.promoted)
        splits = max(splits, v.parts)
        if v.parts > 1 or min(splits, most_splits(v, m, n, k // 2, v.clusters(sms()))) == splits:
            found.append((estimate * cost.handicap(v, [m], [n], depth, sms()), v, splits))
    return sorted(found, key=lambda way: (way[1] != first, way[0]))


class Library:
    """cuBLASLt, called as launches of plans by the vendor's library are."""

    def __init__(self) -> None:
        self.lt = CublasLt()
        self.handle = self.lt.open()
        self.workspace = torch.empty(vendor_gemm.WORKSPACE + (64 << 20), dtype=torch.uint8, device="cuda")

    def product(self, a: Scaled, b: Scaled, c: torch.Tensor, fast: bool) -> Callable[[], Any]:
        """c = a · b.T. Raises RuntimeError: the library has no algorithm."""
        (m, k), n = a.values.shape, b.values.shape[0]
        types: dict[Any, Any] = {getattr(torch, t.torch): t.name for t in TYPES.values()}
        tensors = (c, a.values, b.values, a.scales, b.scales)
        views = [View(Region("", 0, ()), t.data_ptr(), tuple(t.shape), types[t.dtype]) for t in tensors]
        scaling: Any = (a.kind, b.kind)
        matmul = Matmul(
            m, n, k, types[a.values.dtype], types[c.dtype], Operand(1, 0, a.values.stride(0)),
            Operand(2, 0, b.values.stride(0), True), Operand(0, 0, c.stride(0)), accumulate=False,
            right_dtype=types[b.values.dtype], scaling=scaling, left_scales=Operand(3, 0, a.scales.stride(0)),
            right_scales=Operand(4, 0, b.scales.stride(0)), fast=fast,
        )  # fmt: skip
        place = gemm_library.place_of(matmul, views, self.workspace.data_ptr())
        planned = self.lt.plan(self.handle, gemm_library.shape_of(matmul, place), vendor_gemm.WORKSPACE)
        if planned is None:
            raise RuntimeError("no algorithm")

        def call() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            function, arguments = self.lt.matmul_action(self.handle, planned, place, stream)
            if code := function(*arguments)[0]:
                raise RuntimeError(str(code))

        return call


def theirs(a: Scaled, b: Scaled, c: torch.Tensor, fast: bool) -> Callable[[], Any]:
    """`torch._scaled_mm` of the same recipe, its scales as it wants them."""
    x, y = a.scales, b.scales
    if a.kind == "tensor":
        x, y = x[0], y[0]
    elif a.kind == "row":
        x, y = x[:, None], y[None]
    else:
        x, y = x.T.contiguous().T, y.contiguous().T
    return partial(
        torch._scaled_mm, a.values, b.values.T, x, y, out_dtype=c.dtype, use_fast_accum=fast and a.kind != "1x128"
    )


def bench(
    shapes: Sequence[dict[str, Any]], scalings: Sequence[str], rounds: int, only: str, tries: int,
    deep: Path | None, out: Path | None,
) -> int:  # fmt: skip
    """The table; how many results are wrong. Of each product the `tries` variants that the estimate finds best."""
    deep_gemm: Any = None
    if deep:
        sys.path.insert(0, str(deep))
        import deep_gemm  # type: ignore[import-not-found,no-redef]
    try:
        library: Library | None = Library()
    except Refused as e:
        print(f"without cuBLASLt: {e}")
        library = None
    rows: list[dict[str, Any]] = []
    bad = 0
    for scaling in scalings:
        for fast in (False,) if scaling == "1x128" else (False, True):
            (s,) = signatures(scaling, fast, ("fp8_e4m3", "fp8_e4m3"), ("bf16",))
            found = {sh["name"]: ways(sh["m"], sh["n"], sh["k"], s, only)[:tries] for sh in shapes}
            compile_all([*{Key(v, s) for of_shape in found.values() for _, v, _ in of_shape}])
            print(f"\n{scaling}{', fast' if fast else ''}: µs (TFLOP/s), and others' time over ours")
            for shape in shapes:
                m, n, k = shape["m"], shape["n"], shape["k"]
                if not found[shape["name"]]:
                    print(f"{m}x{n}x{k}: no variant of --variants makes it")
                    continue
                size = m * k + n * k + 2 * m * n
                data = [
                    (*(quantised(r, k, kind, "fp8_e4m3") for r, kind in zip((m, n), kinds(scaling), strict=True)),
                     torch.full((m, n), math.nan, device="cuda", dtype=torch.bfloat16))
                    for _ in range(max(2, min(24, math.ceil(300e6 / size))))
                ]  # fmt: skip
                names, graphs, kept = [], [], []
                for _, v, splits in found[shape["name"]]:
                    calls = [product(a, b, c, v, s, splits) for a, b, c in data]
                    calls[0]()
                    a, b, c = data[0]
                    some = torch.randint(m, (32,), device="cuda")
                    x = Scaled(a.values[some], a.scales[some], a.kind)
                    limit = FAST_ERROR if fast else ERROR
                    error = worst(x, b, c[some], limit)
                    bad += not error < limit
                    names.append(f"{v.name[10:]}/{splits}" + ("" if error < limit else f" WRONG {error:.1e}"))
                    graphs.append(graph(calls))
                    kept.append(calls)  # a graph's kernels read their tables
                others = []
                callers = {"cuBLASLt": library.product} if library is not None else {}
                for other, make in (callers | {"torch": theirs}).items():
                    try:
                        graphs.append(graph([make(a, b, c, fast) for a, b, c in data]))
                    except RuntimeError as e:
                        print(f"  {other}: {str(e).splitlines()[0]}")
                        continue
                    error = worst(x, b, c[some], limit) if other in callers else 0.0
                    bad += not error < limit
                    others.append(other if error < limit else f"{other} WRONG {error:.1e}")
                if deep_gemm and scaling == "1x128":
                    major, gemm = deep_gemm.get_mn_major_tma_aligned_tensor, deep_gemm.fp8_gemm_nt
                    graphs.append(graph([
                        partial(gemm, (a.values, major(a.scales)), (b.values, b.scales.contiguous()), c)
                        for a, b, c in data
                    ]))  # fmt: skip
                    others.append("DeepGEMM")
                t = times(graphs, len(data), rounds)
                mids = [median(x) for x in t]
                best = min(range(len(names)), key=lambda i: mids[i])
                told = [f"{name} {mid:.1f}" for name, mid in zip(names, mids, strict=False)]
                for other, mid in zip(others, mids[len(names) :], strict=True):
                    told.append(f"{other} {mid:.1f} ({mid / mids[0]:.3f}, best {mid / mids[best]:.3f})")
                rate = 2e-6 * m * n * k / mids[best]
                print(f"{m}x{n}x{k} ±{spread(t[0]):.0f}%: {rate:.0f} TFLOP/s: {'; '.join(told)}", flush=True)
                us = dict(zip(names + others, mids, strict=True))
                rows.append({"scaling": scaling, "fast": fast, "m": m, "n": n, "k": k, "us": us})
                del data, graphs, kept
    if out:
        out.write_text(json.dumps(rows, indent=1))
    return bad
