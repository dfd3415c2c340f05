"""A product in one launch whose works come one after another."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch

from ficco_rt.geometry.region import Interval
from ficco_rt.kernels import tiles
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm90 import variants as sm90
from ficco_rt.kernels.sm90.choice import ranked
from ficco_rt.kernels.sm90.cost import WaitGroup
from ficco_rt.kernels.tile_table import SplitK

from .device import SMEM, call, sms
from .launch import Launch, build
from .product import LAYOUTS, matrix, whole
from .timing import Sets, graph, sampled_error, sets, times
from .variants import Key, named


class Arrivals:
    """Flags that a stream raises one after another, `every` microseconds: behind copies from the host, which take that
    long and no multiprocessor."""

    def __init__(self, count: int, every: float) -> None:
        self.flags = torch.ones(count, dtype=torch.int32, device="cuda")
        self.side = torch.cuda.Stream()
        self.host = torch.zeros(1 << 25, dtype=torch.uint8).pin_memory()
        self.device = torch.zeros(1 << 25, dtype=torch.uint8, device="cuda")
        self.size = 1 << 22
        for _ in range(4):
            self.size = min(1 << 25, max(4096, int(self.size * every / self._took())))
        self.every = self._took()

    def _took(self) -> float:
        with torch.cuda.stream(self.side):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda._sleep(1_000_000)
            a.record()
            self._issue(i % len(self.flags) for i in range(8))
            b.record()
        torch.cuda.synchronize()
        return float(a.elapsed_time(b)) * 1e3 / 8

    def _issue(self, flags: Iterable[int]) -> None:
        """On `side`, which is current."""
        for i in flags:
            self.device[: self.size].copy_(self.host[: self.size], non_blocking=True)
            call("cuStreamWriteValue32", self.side.cuda_stream, self.flags.data_ptr() + 4 * i, 1, 0)

    def time(self, launch: Launch) -> float:
        """Microseconds from the first copy's start to the launch's end; both begin together."""
        torch.cuda.synchronize()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.flags[1:] = 0
        torch.cuda._sleep(1_000_000)  # until all is issued
        a.record()
        self.side.wait_event(a)
        launch()
        b.record()
        with torch.cuda.stream(self.side):
            self._issue(range(1, len(self.flags)))
        torch.cuda.synchronize()
        return float(a.elapsed_time(b)) * 1e3


@dataclass(frozen=True)
class Product:
    """Whole operands of one layout, whose rows come in pieces."""

    layout: str
    right_t: bool
    data: Sets
    cut: list[Interval]
    comes: Arrivals

    def launch(self, at: int, v: sm90.Variant, splits: int, source: Path | None) -> Launch:
        """With the operands of `at`; a work for each piece, which waits for its flag, but the first."""
        a, b, c = self.data[at]
        works = [
            tiles.MatrixWork(
                *(matrix(a), matrix(b), matrix(c)),
                *((s,), whole(a.shape[1]), whole(b.shape[0]), whole(b.shape[1]), (s,), whole(c.shape[1])),
                waits=(self.comes.flags.data_ptr() + 4 * i,) if i else (),
            )
            for i, s in enumerate(self.cut)
        ]
        key = Key(v, Signature("bf16", "bf16", False, self.right_t))
        split_k = SplitK(works=(splits,) * len(self.cut))
        return Launch(build(works, key, blocks=sms(), stages=key.stages(SMEM), split_k=split_k), source)


@dataclass(frozen=True)
class Entry:
    """A variant, and into how many parts it cuts K."""

    name: str
    launches: list[list[Launch]]  # of each source, one for each set of operands


def in_pieces(m: int, n: int, k: int, count: int, every: float, rounds: int, only: str, beside: Path | None) -> int:
    """A product whose rows come in equal pieces, in one launch, by every variant and cut; beside cuBLAS's whole one."""
    bad = 0
    comes = Arrivals(count, every)
    cut = [Interval(m * i // count, m * (i + 1) // count) for i in range(count)]
    print(f"{m} × {n} × {k} in {count} pieces, one every {comes.every:.1f} µs")
    print(f"{'layout':7} {'kernel':24} {'all there µs':>12} {'one by one':>10}" + "      beside" * bool(beside))
    for right_t, layout in LAYOUTS:
        late = [WaitGroup((s.size,), every * i, every * i) for i, s in enumerate(cut)]
        chosen = ranked([s.size for s in cut], [n], k, sms(), right_t, late=late)[0].variant
        product = Product(layout, right_t, sets(m, n, k, right_t), cut, comes)
        found = entries(product, only, chosen, (None, beside) if beside else (None,))
        comes.flags[:] = 1
        bad += check_entries(product, found)
        time_entries(product, found, rounds)
        del product, found  # the next layout's come in their place
    return bad


def entries(p: Product, only: str, chosen: sm90.Variant, sources: tuple[Path | None, ...]) -> list[Entry]:
    """Variants whose names have what was asked for, with K whole and cut."""
    a, _, c = p.data[0]
    (m, k), n = a.shape, c.shape[1]
    found = []
    for v in sm90.VARIANTS:
        tiles_of = math.ceil(p.cut[0].size / v.tile[0] / v.cluster) * math.ceil(n / v.tile[1])
        most = max(1, min(16, sms() // v.cluster // tiles_of, k // 256))
        for splits in sorted({1, most}):
            if not named(v, only) or (m > 256 and v.cluster == 1):
                continue
            launches = [[p.launch(at, v, splits, source) for at in range(len(p.data))] for source in sources]
            mark = " chosen" if v == chosen else ""
            found.append(Entry(f"{v.name[10:]}/{splits}{mark}", launches))
    return found


def check_entries(p: Product, found: list[Entry]) -> int:
    """How many are wrong with all flags up, which is printed."""
    bad = 0
    for entry in found:
        for _, _, c in p.data:
            c.fill_(math.nan)
        for launch in entry.launches[0] * 2:
            launch()
        torch.cuda.synchronize()
        errors = [sampled_error(*each, p.right_t) for each in p.data]
        if not all(e < 3e-3 for e in errors):
            bad += 1
            print(f"{p.layout} {entry.name}: relative error {max(errors):.1e}")
    return bad


def time_entries(p: Product, found: list[Entry], rounds: int) -> None:
    """Print what cuBLAS's whole product takes, and each entry: all flags up, and flags one after another."""
    theirs = [partial(torch.mm, a, b.T if p.right_t else b, out=c) for a, b, c in p.data]
    everything = [each for entry in found for each in entry.launches]
    t = times([graph(theirs), *map(graph, everything)], len(p.data), rounds)
    one = [[p.comes.time(each[r % len(p.data)]) for r in range(rounds)] for each in everything]
    print(f"{p.layout} {'cuBLAS, whole':24} {median(t[0]):12.1f}")
    width = len(found[0].launches)
    for i, entry in enumerate(found):
        here = range(i * width, (i + 1) * width)
        both = "  ".join(f"{median(t[j + 1]):12.1f} {median(one[j]):10.1f}" for j in here)
        print(f"{p.layout} {entry.name:24} {both}", flush=True)
