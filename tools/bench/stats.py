"""From times of every GPU to the figures of a row. No device in here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .scenarios import Scenario

ITEM = 2  # bytes of a bf16


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds: median, 10th and 90th percentile of `samples` runs."""

    median: float
    p10: float
    p90: float
    samples: int

    @property
    def width(self) -> float:
        """p90 − p10 as a share of the median."""
        return (self.p90 - self.p10) / self.median


def slowest(by_gpu: Sequence[Sequence[float]]) -> list[float]:
    """A time a run: that of the GPU that took longest. `by_gpu[g][i]` is GPU g's time of run i."""
    return [max(run) for run in zip(*by_gpu, strict=True)]


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """Linear between neighbours."""
    at = share * (len(sorted_values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(sorted_values) - 1)
    return sorted_values[low] + (at - low) * (sorted_values[high] - sorted_values[low])


def spread(values: Iterable[float]) -> Spread:
    """Of at least one value."""
    ordered = sorted(values)
    return Spread(percentile(ordered, 0.5), percentile(ordered, 0.1), percentile(ordered, 0.9), len(ordered))


def geomean(values: Sequence[float]) -> float:
    """Of positive values, at least one."""
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


@dataclass(frozen=True, slots=True)
class Work:
    """What one GPU must do at least: floating-point operations of its GEMM, bytes that it sends to its peers."""

    operations: int
    bytes_sent: int

    def tflops(self, us: float) -> float:
        return self.operations / us * 1e-6

    def gbps(self, us: float) -> float:
        return self.bytes_sent / us * 1e-3


def work(scenario: Scenario, ranks: int) -> Work:
    """See Work; for whole matrices without multicast.

    An all-gather sends a shard of A to every peer, a reduce-scatter a shard of the product; an all-reduce is a
    reduce-scatter and an all-gather of the product.
    """
    m, n, k = scenario.m, scenario.n, scenario.k
    row = ITEM * (k if scenario.gathers else n)
    if scenario.gathers and scenario.scales:
        (_, k), blocks = scenario.layouts(ranks)["A"]
        row = k + 4 * k // blocks[1] if blocks else row
    times = 2 if scenario.collective == "all_reduce" else 1
    return Work(2 * m * n * scenario.k // ranks, times * (ranks - 1) * (m // ranks) * row)


def tolerance(ranks: int, pieces: int, terms: int) -> float:
    """What max|C − R| / max|R| may be, for all contestants of a row alike: nobody knows how often others round.

    2 · 2⁻⁸ · √r: an element is rounded to bf16 at its end and for each rank whose partial sum is stored, or for each
    of the `pieces` of K that are added one after another. 4 · 2⁻²⁴ · √terms: the products.
    """
    return 2 * 2**-8 * math.sqrt(max(1 + ranks, pieces)) + 4 * 2**-24 * math.sqrt(terms)
