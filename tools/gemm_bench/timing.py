"""Graphs replayed in turn over rotating operands; medians' spreads, and errors of sampled rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

Sets = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # left, right, out of some products


def sets(m: int, n: int, k: int, right_t: bool, left_t: bool = False, dtype: torch.dtype = torch.bfloat16) -> Sets:
    """Operands that together are several times L2, at least two."""
    size = dtype.itemsize * (m * k + k * n + m * n)
    count = max(2, min(24, math.ceil(300e6 / size)))
    out = []
    for _ in range(count):
        a = torch.randn(*((k, m) if left_t else (m, k)), device="cuda", dtype=dtype)
        b = torch.randn(*((n, k) if right_t else (k, n)), device="cuda", dtype=dtype)
        out.append((a, b, torch.full((m, n), math.nan, device="cuda", dtype=dtype)))
    return out


def graph(calls: list[Any]) -> torch.cuda.CUDAGraph:
    for c in calls:
        c()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for c in calls:
            c()
    return g


def times(graphs: list[torch.cuda.CUDAGraph], each: int, rounds: int) -> list[list[float]]:
    """Microseconds a call, of each graph of `each` calls, replayed in turn."""
    marks = []
    for r in range(rounds + 2):
        order = list(range(len(graphs)))
        if r % 2:
            order.reverse()
        for i in order:
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            graphs[i].replay()
            b.record()
            if r >= 2:
                marks.append((i, a, b))
    torch.cuda.synchronize()
    out: list[list[float]] = [[] for _ in graphs]
    for i, a, b in marks:
        out[i].append(a.elapsed_time(b) * 1e3 / each)
    return out


def sampled_error(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, right_t: bool, terms: Sequence[torch.Tensor] = ()
) -> float:
    """Relative, of sampled rows of c = a · b + terms, beside fp64; NaN if any element of c is."""
    rows = torch.tensor(sorted({0, a.shape[0] - 1, *torch.randint(a.shape[0], (30,)).tolist()}), device="cuda")
    if torch.isnan(c).any():
        return math.nan
    ref = a[rows].double() @ (b.T if right_t else b).double() + sum(t[rows].double() for t in terms)
    return float((c[rows].double() - ref).norm() / ref.norm())


def spread(ts: list[float]) -> float:
    s = sorted(ts)
    return (s[int(0.9 * (len(s) - 1))] - s[int(0.1 * (len(s) - 1))]) / median(s) * 100
