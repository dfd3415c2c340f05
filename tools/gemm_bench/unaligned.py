"""Sizes whose rows do not start at multiples of 16 bytes, and fp32, beside cuBLAS: the group `unaligned` of the shapes.

The best of the tiles beside the chosen one tells what the constants of `ficco_rt/kernels/sm80/cost.py` should be.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import torch

from ficco_rt.kernels.by_address import Way, fastest
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80.family import SM80
from ficco_rt.kernels.tile_table import SplitK
from ficco_rt.kernels.tiles import MatrixWork
from tools.bench.stats import geomean

from .case import TORCH
from .device import arch, shared, sms
from .launch import Launch, build, compiled
from .product import LAYOUTS, matrix, whole
from .timing import Sets, graph, sampled_error, sets, times
from .variants import Key

LIMITS = {"bf16": 3e-3, "fp32": 1e-5, "tf32": 1e-3}  # of the relative error


def signature_of(dtype: str, n: int, k: int, right_t: bool) -> Signature:
    """Of a product of whole matrices of these columns, all in one type."""
    operands = "fp32" if dtype == "tf32" else dtype
    made = Signature(operands, operands, False, right_t, tf32=dtype == "tf32")
    return replace(made, access=next(a for a in SM80.accesses if n * made.item % a == 0 and k * made.item % a == 0))


def launches(data: Sets, way: Way[Any], signature: Signature, splits: int) -> list[Launch]:
    found = []
    for a, b, c in data:
        rows, k, right_rows, right_columns, out_rows, n = (whole(size) for t in (a, b, c) for size in t.shape)
        work = MatrixWork(matrix(a), matrix(b), matrix(c), rows, k, right_rows, right_columns, out_rows, n)
        blocks = sms() * way.residency
        made = build([work], Key(way.variant, signature), blocks=blocks, stages=way.stages, split_k=SplitK(splits))
        found.append(Launch(made))
    return found


def unaligned(shapes: list[dict[str, Any]], rounds: int, only: str) -> int:
    """How many results are wrong; times are printed."""
    bad, ratios = 0, []
    kinds = {signature_of(s["type"], s["n"], s["k"], right_t) for s in shapes for right_t, _ in LAYOUTS}
    with ThreadPoolExecutor(16) as pool:
        keys = [Key(v, kind) for v in SM80.variants for kind in kinds if SM80.takes(v, kind)]
        list(pool.map(partial(compiled, None), keys))
    print(f"{'type':5} {'m':>5} {'n':>5} {'k':>5} {'layout':7} by {'chosen':>24} {'µs':>8} {'best':>24} {'µs':>8} "
          f"{'cublas':>8} {'ratio':>6} {'error':>8}")  # fmt: skip
    for shape in shapes:
        m, n, k, dtype = shape["m"], shape["n"], shape["k"], shape["type"]
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        for right_t, layout in LAYOUTS:
            signature = signature_of(dtype, n, k, right_t)
            ways = [
                Way(v, r, 0, shared(r), signature)
                for v in SM80.variants for r in range(1, v.residency + 1) if SM80.takes(v, signature)
            ]  # fmt: skip
            first = fastest(SM80, tuple(ways), (m,), (n,), k, sms(), arch())
            assert first is not None
            data = sets(m, n, k, right_t, dtype=TORCH[signature.dtype])
            theirs = graph([partial(torch.mm, a, b.T if right_t else b, out=c) for a, b, c in data])
            tried, kept = {}, []  # NOTE a graph does not keep its launches' tables
            for way in ways:
                if (way.variant.residency > way.residency and way != first) or only not in way.variant.name:
                    continue
                splits = SM80.estimate(way, (m,), (n,), k, sms(), arch())[1]
                for part in {splits, 1}:
                    kept.append(launches(data, way, signature, part))
                    tried[way, part] = graph(kept[-1])
                    torch.cuda.synchronize()
                    a, b, c = data[0]
                    c.fill_(float("nan"))
                    tried[way, part].replay()
                    error = sampled_error(a, b, c, right_t)
                    bad += not error < LIMITS[dtype]
            took = [median(t) for t in times([theirs, *tried.values()], len(data), rounds)]
            names = {key: f"{key[0].variant.name[10:]}@{key[0].residency}/{key[1]}" for key in tried}
            of = dict(zip(tried, took[1:], strict=True))
            best = min(of, key=of.__getitem__)
            chosen = (first, SM80.estimate(first, (m,), (n,), k, sms(), arch())[1])
            mine = of.get(chosen, of[best])
            ratios.append(took[0] / mine)
            print(f"{dtype:5} {m:5} {n:5} {k:5} {layout:7} {signature.access:2} {names.get(chosen, '-'):>24} "
                  f"{mine:8.1f} {names[best]:>24} {of[best]:8.1f} {took[0]:8.1f} {ratios[-1]:6.3f} {error:8.1e}",
                  flush=True)  # fmt: skip
            del data, theirs, tried, kept
    print(f"unaligned: {bad} wrong, geometric mean {geomean(ratios):.3f}, lowest {min(ratios):.3f}")
    return bad
