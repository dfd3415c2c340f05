"""Metrics of runs that overlap products with collectives, as Cui and Pericàs (arXiv 2606.09200) define them: time
ratio, normalised time, overlap rate, and the share of the ideal saving.

Such a run has many iterations, each a product and the vendor's collective of its result. The run is compared with the
same iterations one after the other, and with the longer of all products alone and all collectives alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..files.records import Millis, Positive
from .account import RankUse


@dataclass(frozen=True, slots=True)
class Concurrent:
    """Of a run that repeats a product and the vendor's collective of it. Milliseconds are of an iteration.

    sequential_ms: Product, then collective.
    products_ms: Products alone.
    collectives_ms: Collectives alone.
    time_ratio: Time ÷ sequential.
    normalised_time: Time ÷ the longer of products and collectives.
    share_of_saving: (sequential - time) ÷ (sequential - the longer of products and collectives).
    overlap_rate: Of the trace: the time with computing and moving at once ÷ the time of the shorter side.
    """

    iterations: Positive
    iteration: Millis
    sequential: Millis = 0.0
    products: Millis = 0.0
    collectives: Millis = 0.0
    time_ratio: float | None = None
    normalised_time: float | None = None
    share_of_saving: float | None = None
    overlap_rate: float | None = None


def concurrent(
    iterations: int, time: float, sequential: float, products: float, collectives: float, overlap: float | None
) -> Concurrent:
    """Times are microseconds of the whole run: its own, one after the other, all products alone, all collectives alone.
    The first product and the last collective, which nothing can hide, are not counted in the ideal."""
    ideal = max(products, collectives)
    each = 1e3 * iterations
    return Concurrent(
        iterations=iterations,
        iteration=time / each,
        sequential=sequential / each,
        products=products / each,
        collectives=collectives / each,
        time_ratio=time / sequential if sequential else None,
        normalised_time=time / ideal if ideal else None,
        share_of_saving=(sequential - time) / (sequential - ideal) if sequential > ideal else None,
        overlap_rate=overlap,
    )


def overlap_rate(uses: Iterable[RankUse]) -> float | None:
    """The share of the shorter side's busy time (computing or moving) in which the other side is busy, too. All ranks
    count together."""
    listed = list(uses)
    shorter = sum(min(use.compute, use.moving) for use in listed)
    return sum(use.moving - use.exposed for use in listed) / shorter if shorter > 0 else None
