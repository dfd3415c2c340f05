"""The table beside cuBLAS."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tools.bench.stats import geomean

from .product import LAYOUTS, chosen, measured, plain
from .timing import graph, sampled_error, sets, spread, times

GRADIENTS = ((False, "A[K,M]"),)  # of weights: both operands are stored by rows of K


def bench(kernel: str, shapes: dict[str, Any], rounds: int, out: Path | None, beside: Path | None) -> int:
    bad, rows = 0, []
    print(f"{'shape':20} {'m':>6} {'n':>6} {'k':>6} {'layout':7} {'kernel':24} {'ours µs':>9} {'cublas':>9} "
          f"{'ratio':>6} {'TFLOP/s':>8} {'spread %':>9} {'error':>8}")  # fmt: skip
    for group, left_t, layouts in (
        ("large", False, LAYOUTS),
        ("decode", False, LAYOUTS),
        ("gradients", True, GRADIENTS),
        ("unseen", False, LAYOUTS),
    ):
        for shape in shapes.get(group, ()):
            for right_t, layout in layouts:
                m, n, k = shape["m"], shape["n"], shape["k"]
                found = measured(m, n, k, right_t) if kernel == "sm90" and not left_t else None
                choice = chosen(kernel, m, n, k, right_t, only=found.kernel if found else None, left_t=left_t)
                data = sets(m, n, k, right_t, left_t)
                ours = [plain(a, b, c, right_t, choice, left_t=left_t) for a, b, c in data]
                ours[0]()
                torch.cuda.synchronize()
                left, right, made = data[0]
                error = sampled_error(left.T if left_t else left, right, made, right_t)
                bad += not error < 3e-3
                theirs = [partial(torch.mm, a.T if left_t else a, b.T if right_t else b, out=c) for a, b, c in data]
                graphs = [graph(ours), graph(theirs)]
                if beside:
                    other = [plain(a, b, c, right_t, choice, source=beside, left_t=left_t) for a, b, c in data]
                    graphs.append(graph(other))
                t = times(graphs, len(data), rounds)
                mine, cublas = median(t[0]), median(t[1])
                row = {
                    "group": group, "name": shape["name"], "m": m, "n": n, "k": k, "right_t": right_t,
                    "kernel": str(choice), "us": mine, "cublas_us": cublas,
                    "ratio": cublas / mine, "tflops": 2e-6 * m * n * k / mine, "error": error,
                    "spread": (spread(t[0]), spread(t[1])),
                    "library": found is not None and found.library < found.ours,
                }  # fmt: skip
                rows.append(row)
                print(f"{row['name']:20} {m:6} {n:6} {k:6} {layout:7} {row['kernel']:24} {mine:9.1f} {cublas:9.1f} "
                      f"{row['ratio']:6.3f} {row['tflops']:8.1f} {spread(t[0]):4.1f}/{spread(t[1]):4.1f} {error:8.1e}"
                      + ("  by the library" if row["library"] else "")
                      + (f"  beside {cublas / median(t[2]):.3f}" if beside else ""), flush=True)  # fmt: skip
                del data, ours, theirs, graphs
        ratios = [r["ratio"] for r in rows if r["group"] == group]
        if ratios:
            print(f"{group}: geometric mean {geomean(ratios):.3f}, "
                  f"lowest {min(ratios):.3f}")  # fmt: skip
            taken = [1.0 if r["library"] else r["ratio"] for r in rows if r["group"] == group]
            print(f"  with the library where a run takes it: {geomean(taken):.3f}, lowest {min(taken):.3f}\n")
    if out:
        out.write_text(json.dumps(rows, indent=1))
    return bad
