"""What a run has of doing products and their collectives at the same time, as Cui and Pericàs (arXiv 2606.09200)
measure it: time ratio, normalised time, overlap rate, and the share of the ideal saving.

Such a run makes many iterations, each a product and the vendor's collective of it. It is compared with the same
iterations one after the other, and with the longer of all products alone and all collectives alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .account import RankUse


@dataclass(frozen=True, slots=True)
class Concurrent:
    """A run of `iterations`. Times are microseconds of the whole run: its own, one after the other, all products alone,
    all collectives alone. `overlap`: see `overlap_rate`; None: nothing was traced."""

    iterations: int
    time: float
    sequential: float
    products: float
    collectives: float
    overlap: float | None

    @property
    def ideal(self) -> float:
        """The longer of products alone and collectives alone. The first product and the last collective, which nothing
        can hide, are not counted."""
        return max(self.products, self.collectives)

    @property
    def time_ratio(self) -> float | None:
        """Time over sequential time: below 1 the run is faster."""
        return self.time / self.sequential if self.sequential else None

    @property
    def normalised_time(self) -> float | None:
        """Time over the ideal: 1 is perfect overlap by the vendor's collective, and other means may fall below it."""
        return self.time / self.ideal if self.ideal else None

    @property
    def share_of_saving(self) -> float | None:
        """What was saved against the sequential run, over what the ideal would save."""
        most = self.sequential - self.ideal
        return (self.sequential - self.time) / most if most > 0 else None

    def record(self) -> dict[str, object]:
        """As --json has it."""
        each = 1e3 * self.iterations
        return {
            "iterations": self.iterations,
            "iteration_ms": self.time / each,
            "sequential_ms": self.sequential / each,
            "products_ms": self.products / each,
            "collectives_ms": self.collectives / each,
            "time_ratio": self.time_ratio,
            "normalised_time": self.normalised_time,
            "share_of_saving": self.share_of_saving,
            "overlap_rate": self.overlap,
        }


def overlap_rate(uses: Iterable[RankUse]) -> float | None:
    """Of the time in which the shorter side, computing or moving, was busy: the share with the other side beside it.
    All ranks count together."""
    listed = list(uses)
    shorter = sum(min(use.compute, use.moving) for use in listed)
    return sum(use.moving - use.exposed for use in listed) / shorter if shorter > 0 else None
