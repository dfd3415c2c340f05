"""Which variant of the GEMM of AMD's matrix cores makes a launch's works: what the estimate finds best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cost import alone
from .variants import LDS, VARIANTS, Variant


@dataclass(frozen=True, slots=True)
class Choice:
    """What `choose` found best."""

    variant: Variant
    estimate: float  # clocks, for ranking only


def choose(
    rows: Sequence[int],
    columns: Sequence[int],
    k: int,
    units: int,
    arch: str,
    *,
    least: int = 0,
    most: int = LDS,
    residency: int | None = None,
    variants: Sequence[Variant] = VARIANTS,
) -> Choice | None:
    """The variant that the estimate finds fastest for pieces of these sizes on `units` compute units, with blocks of
    `least` to `most` bytes of LDS. None if no variant's blocks fit that, or `residency` of them the registers."""
    best: Choice | None = None
    for v in variants:
        if v.smem > most or v.residency < (residency or 1):
            continue
        estimate = alone(v, rows, columns, k, units, arch, max(v.smem, least))[0]
        if best is None or estimate < best.estimate:
            best = Choice(v, estimate)
    return best
