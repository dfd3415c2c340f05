"""Every variant and split on every shape: what `choose` should say."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm90 import variants as sm90

from .device import sms
from .product import LAYOUTS, Choice, chosen, plain
from .timing import graph, sets, times
from .variants import most_splits, named, odd_of, parts_worth_a_try, variants_of


def candidates(kernel: str, m: int, n: int, k: int, right_t: bool, only: str) -> list[Choice]:
    """Variants and splits worth a try."""
    found, odd = [], odd_of(m, n, k, sms(), right_t)
    for v in (*sm90.VARIANTS, *odd) if kernel == "sm90" else variants_of(kernel):
        if (
            not named(v, only)
            or (v not in odd and ((m > 64 and v.tile[0] == 64) or (m <= 64 and v.tile[0] > 64)))
            or (v not in odd and m > 256 and v.tile[1] < 128)
        ):
            continue
        for residency in range(1, v.residency + 1) if isinstance(v, sm80.Variant) else (1,):
            most = most_splits(v, m, n, k, sms() * residency // v.cluster)
            found += [Choice(v, splits, residency) for splits in parts_worth_a_try(v, most, most // 2)]
    return found


def explore(
    kernel: str, shapes: dict[str, Any], groups: list[str], bands: list[int], only: str, out: Path | None
) -> None:
    """Every variant and split beside cuBLAS; the best five of each shape."""
    found = []
    for group in groups:
        for shape in shapes[group]:
            for right_t, layout in LAYOUTS:
                m, n, k = shape["m"], shape["n"], shape["k"]
                data = sets(m, n, k, right_t)
                tries, names = [], []
                for choice in candidates(kernel, m, n, k, right_t, only):
                    for band in bands if m > 256 else [0]:
                        tries.append([plain(a, b, c, right_t, choice, band or None) for a, b, c in data])
                        names.append(f"{choice}" + (f"/band{band}" if band else ""))
                theirs = [partial(torch.mm, a, b.T if right_t else b, out=c) for a, b, c in data]
                t = times([graph(theirs), *map(graph, tries)], len(data), 5)
                cublas = median(t[0])
                order = sorted(zip((cublas / median(x) for x in t[1:]), names, strict=True), reverse=True)
                found.append({"name": shape["name"], "right_t": right_t, "cublas_us": cublas, "tries": order})
                print(f"{shape['name']:20} {layout} cublas {cublas:8.1f} µs {2e-6 * m * n * k / cublas:6.1f} TFLOP/s  "
                      + "  ".join(f"{name} {r:.3f}" for r, name in order[:6])
                      + f"  (chosen: {chosen(kernel, m, n, k, right_t)})", flush=True)  # fmt: skip
    if out:
        out.write_text(json.dumps(found, indent=1))
