"""Sizes that fill no wave, and few rows: which tile, split of K and number of stages is best, beside cuBLAS.

The last table is what `ficco_rt/kernels/sm90/cost.py` should lead `choose` to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch

from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm90 import variants as sm90

from .device import SMEM, sms
from .launch import compiled
from .product import Choice, chosen, plain
from .timing import Sets, graph, spread, times
from .variants import Key, most_splits, named, odd_of, parts_worth_a_try

FEW = 64  # rows of one tile
# Tiles of few rows that are stored from registers: no way through shared memory at the end, and a stage more.
DIRECT = [
    replace(sm90.variant(64, columns, 1, 1, 1, 0), name=f"sm90_gemm_64x{columns}_c1_direct") for columns in (64, 128)
]
TRY = re.compile(
    r"(?P<tile>\w+)/(?P<splits>\d+)( (?P<stages>\d+) stages)?( band (?P<band>\d+))?(?P<table> by table)?"
    r"( (?P<promotion>L2_128B|NONE))?(?P<chained> chained)?"
)
LAUNCHES = 16  # in a graph, at least: its own start is then a small part
NAMED = (*sm90.VARIANTS, *sm90.ODD, *sm90.LEAN, *DIRECT)
QUICK_TILES = ((64, 64), (64, 128), (128, 192), (128, 256), (256, 168))


class Checked(Protocol):
    """What makes a product when it is called."""

    def __call__(self) -> None: ...

    def left_counters(self) -> bool: ...


@dataclass(frozen=True)
class Row:
    """What came of a shape."""

    name: str
    layout: str
    cublas: float  # µs
    choice: Choice  # what `choose` says
    was: Choice  # what it said before there was this module; the kernel then read the table first
    times: dict[Choice, list[float]]  # µs
    wrong: tuple[str, ...]

    @property
    def best(self) -> Choice:
        return min(self.times, key=lambda c: median(self.times[c]))

    def us(self, choice: Choice) -> float:
        return median(self.times[choice])


def choices(shape: dict[str, Any], right_t: bool, only: str, which: str) -> list[Choice]:
    """What `choose` says, first; then every tile that the rows fit, with K whole and in some numbers of parts. `which`:
    "quick", the tiles that win most often; "tries", what the shape names."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    first = chosen("sm90", m, n, k, right_t, shape.get("pad", ""))
    if which == "tries":
        return list(dict.fromkeys([first, *(c for c in map(told, shape["tries"]) if named(c.variant, only))]))
    found, quick = [first], which == "quick"
    few = m <= FEW
    for v in (*sm90.VARIANTS, *odd_of(m, n, k, sms(), right_t)):
        if quick and (not (v.tile in QUICK_TILES or v in sm90.ODD) or v.throttled):
            continue
        common = v in sm90.ODD or ((v.tile[0] == 64) == few and not (v.throttled and few) and (v.cluster > 1 or few))
        if not (named(v, only) and common):
            continue
        most = most_splits(v, m, n, k, v.clusters(sms()))
        found += [Choice(v, n) for n in parts_worth_a_try(v, most, most // 2, *([most - 1] if few else []))]
    if quick:
        return list(dict.fromkeys(found))
    found += [replace(first, promotion=promotion) for promotion in ("L2_128B", "NONE")]
    if isinstance(first.variant, sm90.Variant):
        deepest = first.variant.stages(SMEM, right_t)
        fewer = (n for n in (deepest // 2, deepest // 4) if n > 1)
        found += [replace(first, foreseen=False), *(replace(first, stages=n) for n in fewer)]
    return list(dict.fromkeys(found))


def told(text: str) -> Choice:
    """Of a shape's `tries`, as a `Choice` prints itself: a variant, the splits of the last wave, and what else there is
    to be said. ValueError: it is none."""
    found = TRY.fullmatch(text)
    v = next((v for v in NAMED if found and v.name == f"sm90_gemm_{found['tile']}"), None)
    if v is None or found is None:
        raise ValueError(f"{text} is no variant with its splits, as 64x64_c1/1, or 64x64_c1/1 6 stages chained")
    return Choice(
        v,
        int(found["splits"]),
        stages=int(found["stages"] or 0),
        foreseen=not found["table"],
        promotion=found["promotion"] or "L2_256B",
        chained=bool(found["chained"]),
        band=int(found["band"]) if found["band"] else None,
    )


def former(name: str) -> Choice:
    """Of a shape's `was`: a variant, and the splits of the last wave. ValueError: it names none."""
    return replace(told(name), foreseen=False)


def odd(
    shapes: Sequence[dict[str, Any]],
    layouts: Sequence[tuple[bool, str]],
    rounds: int,
    only: str,
    out: Path | None,
    which: str = "",
) -> int:
    """Check and time all shapes; print each one's best, and the table. How many results are wrong. `which`: "quick",
    the shapes and tiles that decide; "tries", the shapes that name what is tried, and that alone."""
    if which:
        shapes, rounds = [s for s in shapes if s.get(which)], min(rounds, 7)
    cases = [(shape, right_t, layout) for right_t, layout in layouts for shape in shapes]
    kernels = {
        Key(c.variant, Signature("bf16", "bf16", False, right_t))
        for s, right_t, _ in cases
        for c in [*choices(s, right_t, only, which), *map(former, [s["was"]] if "was" in s else [])]
    }  # fmt: skip
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(partial(compiled, None), kernels))
    found = []
    for shape, right_t, layout in cases:
        row = measure(shape, right_t, layout, rounds, only, which)
        found.append(row)
        order = sorted(row.times, key=row.us)
        print(f"{row.name:22} {layout} cuBLAS {row.cublas:7.1f}  "
              + "  ".join(f"{c} {row.us(c):.1f}" for c in order[:12]), flush=True)  # fmt: skip
    if not which:
        print("cuBLAS's kernels:")  # behind all that is timed: a profiler may slow down what comes after it
    for shape, right_t, layout in [] if which else cases:
        print(f"{shape['name']:22} {layout} {library_kernel(shape, right_t)}", flush=True)
    wrong = [f"{row.name} {row.layout}: {text}" for row in found for text in row.wrong]
    print_table(found)
    print(f"{sum(len(r.times) for r in found)} results beside fp32, {len(wrong)} wrong")
    for text in wrong[:12]:
        print("  " + text)
    if out:
        out.write_text(json.dumps([
            {"name": r.name, "layout": r.layout, "cublas_us": r.cublas, "chosen": str(r.choice),
             "was": str(r.was), "us": {str(c): r.us(c) for c in r.times},
             "spread": {str(c): spread(t) for c, t in r.times.items()}}
            for r in found
        ], indent=1))  # fmt: skip
    return len(wrong)


def print_table(rows: Sequence[Row]) -> None:
    print(f"\n{'shape':22} {'layout':7} {'cuBLAS µs':>9} {'was µs':>7} {'ratio':>6} {'chosen µs':>9} {'ratio':>6} "
          f"{'best µs':>8} {'ratio':>6}  was → chosen → best")  # fmt: skip
    for r in rows:
        three = "".join(
            f" {r.us(c):{width}.1f} {r.cublas / r.us(c):6.3f}" for c, width in ((r.was, 7), (r.choice, 9), (r.best, 8))
        )
        print(f"{r.name:22} {r.layout:7} {r.cublas:9.1f}{three}  {r.was} → {r.choice} → {r.best}")


def measure(shape: dict[str, Any], right_t: bool, layout: str, rounds: int, only: str, which: str) -> Row:
    """Every choice by turns with cuBLAS."""
    m, n, k = shape["m"], shape["n"], shape["k"]
    data = padded_sets(m, n, k, right_t, shape.get("pad", ""))
    found = choices(shape, right_t, only, which)
    was = former(shape["was"]) if "was" in shape else found[0]
    found = list(dict.fromkeys([*found, was]))
    tries = [[plain(a, b, c, right_t, choice) for a, b, c in data] for choice in found]
    wrong = check(data[0], right_t, [(str(choice), launches[0]) for choice, launches in zip(found, tries, strict=True)])
    theirs: list[Any] = [partial(torch.mm, a, b.T if right_t else b, out=c) for a, b, c in data]
    again = math.ceil(LAUNCHES / len(data))
    graphs = [graph(theirs * again), *(graph(launches * again) for launches in tries)]
    t = times(graphs, len(data) * again, rounds)
    return Row(shape["name"], layout, median(t[0]), found[0], was,
               dict(zip(found, t[1:], strict=True)), tuple(wrong))  # fmt: skip


def padded_sets(m: int, n: int, k: int, right_t: bool, pad: str) -> Sets:
    """Operands that together are several times L2; rows of those that `pad` names (A, B, C) start at whole lines."""

    def stored(rows: int, columns: int, name: str) -> torch.Tensor:
        pitch = -(-columns // 64) * 64 if name in pad else columns
        return torch.randn(rows, pitch, device="cuda", dtype=torch.bfloat16)[:, :columns]

    count = max(2, min(24, math.ceil(180e6 / (2 * (m * k + k * n + m * n)))))
    return [
        (stored(m, k, "A"), stored(*((n, k) if right_t else (k, n)), "B"), stored(m, n, "C")) for _ in range(count)
    ]  # fmt: skip


def check(
    operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    right_t: bool,
    launches: Sequence[tuple[str, Checked]],
) -> list[str]:
    """What is wrong with the results: beside fp32, in a second launch, in the counters."""
    a, b, c = operands
    wanted = a.float() @ (b.T if right_t else b).float()
    wrong = []
    for name, launch in launches:
        made = []
        for _ in range(2):
            c.fill_(math.nan)
            launch()
            torch.cuda.synchronize()
            made.append(c.clone())
        off = float((made[0].float() - wanted).norm() / wanted.norm())
        worst = float((made[0].float() - wanted).abs().max() / wanted.abs().max())
        if not (off < 3e-3 and worst < 1.2e-2):
            wrong.append(f"{name}: relative error {off:.1e}, worst element {worst:.1e}")
        if not torch.equal(*made):
            wrong.append(f"{name}: a second launch gives other bits")
        if launch.left_counters():
            wrong.append(f"{name}: counters are not zero")
    return wrong


def library_kernel(shape: dict[str, Any], right_t: bool) -> str:
    """The names of the GPU's kernels that PyTorch's product starts, if its profiler sees them."""
    a, b, c = padded_sets(shape["m"], shape["n"], shape["k"], right_t, shape.get("pad", ""))[0]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        torch.mm(a, b.T if right_t else b, out=c)
        torch.cuda.synchronize()
    return " + ".join(e.key for e in seen.key_averages() if not e.key.startswith("cuda"))[:150] or "?"
