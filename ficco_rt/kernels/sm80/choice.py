"""Which variant of the GEMM for tensor cores since Ampere makes a launch's works: what the estimate finds best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import cost
from .variants import VARIANTS, Variant


@dataclass(frozen=True, slots=True)
class Choice:
    """What `choose` found best."""

    variant: Variant
    residency: int  # blocks that are to share a multiprocessor
    budget: int  # bytes of shared memory that each may have
    tail_splits: int
    estimate: float  # microseconds, for ranking only


def choose(
    rows: Sequence[int],
    columns: Sequence[int],
    k: int,
    sms: int,
    budgets: Mapping[int, int],
    exactly: bool = False,
    variants: Sequence[Variant] = VARIANTS,
) -> Choice | None:
    """The variant that the estimate finds fastest for pieces of these sizes.

    budgets: the most shared memory of a block, by how many blocks its size lets share a multiprocessor.
    exactly: so many blocks must fit by their registers too. None if no variant fits.
    """
    best: Choice | None = None
    for v in variants:
        for shared, budget in budgets.items():
            stages, residency = v.stages(budget), min(shared, v.residency)
            if stages < 2 or (exactly and residency < shared):
                continue
            reached = cost.rate(v, residency, stages)
            estimate, splits = cost.alone(v, residency, rows, columns, k, sms * residency, reached)
            if best is None or estimate < best.estimate:
                best = Choice(v, residency, budget, splits, estimate)
    return best
