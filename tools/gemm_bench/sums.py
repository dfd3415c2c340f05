"""A GEMM that adds terms to its product, beside the GEMM alone and beside the GEMM with a `reduce` behind it.

A rank's own rows in the reduce-scatter scenarios on 4 ranks: [M/4, K/4] · [K/4, N] plus three terms, `sum` of
shapes.json. Correctness first, on sampled rows against fp64. Added: what the addends cost, as a share of what the
`reduce` costs.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ficco_rt.driver.cuda.tensor_map import encode
from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.graph.ir import Reduce
from ficco_rt.kernels import families, kernel_compiler, tiles
from ficco_rt.kernels.family import LaunchRequest
from ficco_rt.kernels.naive.family import REDUCE
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.kernels.works import View, WorkOf
from ficco_rt.machine.profiles import stored

from .device import Kernel, arch, loaded, sms
from .product import LAYOUTS, chosen, matrix, plain, whole
from .timing import graph, sampled_error, sets, times

TERMS = 3


def reduction(out: torch.Tensor, terms: Sequence[torch.Tensor]) -> Callable[[], None]:
    """out = the sum of dense matrices, by the kernel that the driver has for `reduce`."""
    views = tuple(
        View(Region(str(i), 0, tuple(Axis(whole(size)) for size in t.shape)), t.data_ptr(), tuple(t.shape), "bf16")
        for i, t in enumerate((out, *terms))
    )
    first, *rest = (view.region for view in views)
    work = WorkOf(Reduce(first, tuple(rest)), views)
    limits = replace(Limits.of(stored("h200-switch").device), arch=arch(), sms=sms())
    (config,) = families.configure(LaunchRequest(REDUCE, (work,), sms()), limits)
    made = families.tables(config, [work])
    source = Path(kernel_compiler.__file__).with_name("src") / config.source
    function = loaded(kernel_compiler.compile_file(source, config.options).code, config.entry)
    constants = torch.frombuffer(bytearray(made.constants), dtype=torch.uint8).cuda()
    counters = torch.zeros(max(256, 4 * made.counters), dtype=torch.uint8, device="cuda")
    (block,) = made.arguments(constants.data_ptr(), counters.data_ptr(), 0, encode)
    raw = ctypes.create_string_buffer(block, len(block))
    kernel = Kernel(function, config.blocks, config.threads, config.smem, [ctypes.addressof(raw)])
    keep = (kernel, constants, counters, out, terms, raw)  # as long as the graphs that launch it
    return lambda: keep[0]()


def both(first: Callable[[], None], second: Callable[[], None]) -> None:
    first()
    second()


def sums(shapes: Sequence[dict[str, Any]], rounds: int) -> int:
    """Check and time all shapes; print a table. How many results are wrong."""
    bad, shares = 0, []
    print(f"{'shape':16} {'m':>5} {'n':>6} {'k':>6} layout  {'kernel':16} {'gemm µs':>8} {'with sum':>8} "
          f"{'+ reduce':>8} {'cublas':>8} {'added':>6} {'of reduce':>9} {'error':>8}")  # fmt: skip
    for shape in shapes:
        m, n, k = shape["m"], shape["n"], shape["k"]
        for right_t, layout in LAYOUTS:
            choice = chosen("sm90", m, n, k, right_t)
            data = sets(m, n, k, right_t)
            received = [torch.randn(TERMS * m, n, device="cuda", dtype=torch.bfloat16) for _ in data]
            columns = whole(n)
            alone, fused, behind, cublas = [], [], [], []
            for (a, b, c), s in zip(data, received, strict=True):
                parts = s.split(m)
                rows = [(Interval(i * m, i * m + m),) for i in range(TERMS)]
                addends = tuple(tiles.Addend(tiles.MatrixOperand(matrix(s), r, columns), "bf16") for r in rows)
                partial_sum = torch.full_like(c, math.nan)
                alone.append(plain(a, b, c, right_t, choice))
                fused.append(plain(a, b, c, right_t, choice, addends=addends))
                product = plain(a, b, partial_sum, right_t, choice)
                behind.append(partial(both, product, reduction(c, (partial_sum, *parts))))
                cublas.append(partial(torch.mm, a, b.T if right_t else b, out=c))
            errors = []
            for side in (fused, behind):
                data[0][2].fill_(math.nan)
                side[0]()
                torch.cuda.synchronize()
                errors.append(sampled_error(*data[0], right_t, received[0].split(m)))
            bad += not max(errors) < 3e-3
            t = [median(x) for x in times([graph(x) for x in (alone, fused, behind, cublas)], len(data), rounds)]
            shares.append((t[1] - t[0]) / (t[2] - t[0]))
            print(f"{shape['name']:16} {m:5} {n:6} {k:6} {layout:7} {choice!s:16} {t[0]:8.1f} {t[1]:8.1f} {t[2]:8.1f} "
                  f"{t[3]:8.1f} {t[1] - t[0]:6.1f} {shares[-1]:9.2f} {errors[0]:8.1e}", flush=True)  # fmt: skip
            del data, received, alone, fused, behind, cublas
    print(f"sum: the terms cost {sum(shares) / len(shares):.2f} of the reduce on average, {max(shares):.2f} at most")
    return bad
