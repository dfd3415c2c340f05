"""From cases to figures: errors of the model, ranks of variants, what a choice loses. No device, no files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from tools.bench.stats import percentile
from tools.bench.variants import Variant

from .cases import Case, Timed, bound
from .choosers import Chooser

NEAR = 0.02  # a choice is as good as the best up to this loss
APART = 0.05  # variants of a case differ when the slowest takes so much longer than the best


@dataclass(frozen=True, slots=True)
class Errors:
    """Of predicted against measured: median and 90th percentile of the size, and the median with its sign."""

    variants: int
    cases: int
    median: float
    p90: float
    signed: float


@dataclass(frozen=True, slots=True)
class Ranks:
    """Spearman's correlation of modelled and measured over the variants of a case: the median over the cases whose
    variants differ."""

    cases: int
    median: float | None


@dataclass(frozen=True, slots=True)
class Miss:
    """A case whose choice is not as good as the best."""

    case: str
    chosen: str
    best: str
    loss: float


@dataclass(frozen=True, slots=True)
class Losses:
    """What a way to choose loses over cases. `unmeasured`: it chose what was not measured there, which counts nowhere
    else."""

    cases: int
    near: int
    mean: float | None
    most: float | None
    unmeasured: int
    misses: tuple[Miss, ...]


@dataclass(frozen=True, slots=True)
class Always:
    """The one schedule that loses least where it is always taken, each time with the best of its parameters that were
    measured, of those that all the cases have."""

    operation: str
    schedule: str
    cases: int
    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one part of the cases."""

    errors: Errors  # of the model
    ranks: Ranks
    choices: Mapping[str, Losses]
    always: tuple[Always, ...]


def figures(cases: Sequence[Case], choosers: Mapping[str, Chooser]) -> Figures:
    """Of at least one case."""
    return Figures(
        errors=errors(cases),
        ranks=ranks(cases),
        choices={name: losses(cases, chooser) for name, chooser in choosers.items()},
        always=tuple(filter(None, (always(cases, o) for o in dict.fromkeys(c.scenario.operation for c in cases)))),
    )


def errors(cases: Sequence[Case]) -> Errors:
    """Of the model, over all variants."""
    signed = [v.error for case in cases for v in case.variants]
    sizes = sorted(map(abs, signed))
    return Errors(len(signed), len(cases), percentile(sizes, 0.5), percentile(sizes, 0.9), median(signed))


def ranks(cases: Sequence[Case]) -> Ranks:
    found = []
    for case in cases:
        slowest = max(case.variants, key=lambda v: v.measured)
        if len(case.variants) >= 3 and case.loss(slowest) > APART:
            found.append(spearman([v.measured for v in case.variants], [v.modelled for v in case.variants]))
    return Ranks(len(found), median(found) if found else None)


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """The correlation of the ranks of two series; 0 where one of them does not vary."""
    a, b = _ranked(left), _ranked(right)
    mean_a, mean_b = fmean(a), fmean(b)
    together = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    alone = sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)
    return float(together / alone**0.5) if alone else 0.0


def _ranked(values: Sequence[float]) -> list[float]:
    """The rank of each value; equal ones share the mean of theirs."""
    order = sorted(values)
    first = {value: order.index(value) for value in set(values)}
    return [first[v] + (order.count(v) - 1) / 2 for v in values]


def losses(cases: Sequence[Case], chooser: Chooser) -> Losses:
    """Of the cases that leave a choice."""
    found: list[float] = []
    misses = []
    unmeasured = near = 0
    for case in cases:
        if len(case.variants) < 2:
            continue
        chosen = measured_as(case, chooser(case))
        if chosen is None:
            unmeasured += 1
            continue
        loss = case.loss(chosen)
        found.append(loss)
        near += loss <= NEAR
        if loss > NEAR:
            best = min(case.variants, key=lambda v: v.measured)
            misses.append(Miss(case.label, chosen.variant.label, best.variant.label, loss))
    misses.sort(key=lambda miss: -miss.loss)
    mean, most = (fmean(found), max(found)) if found else (None, None)
    return Losses(len(found), near, mean, most, unmeasured, tuple(misses))


def measured_as(case: Case, chosen: Variant | None) -> Timed | None:
    """The variant of the case that was chosen, if it was measured: with the same parameters, said or not."""
    if chosen is None:
        return None
    here = [v for v in case.variants if v.variant.schedule == chosen.schedule]
    same = next((v for v in here if v.variant == chosen), None)
    if same is not None or not here:
        return same
    all_of_it = bound(chosen, case.scenario, case.ranks)
    return next((v for v in here if v.bound == all_of_it), None)


def always(cases: Sequence[Case], operation: str) -> Always | None:
    """Over the cases that leave a choice of several schedules."""
    mine = [c for c in cases if c.scenario.operation == operation and len({v.variant.schedule for v in c.variants}) > 2]
    found: dict[str, list[float]] = defaultdict(list)
    for case in mine:
        for schedule in {v.variant.schedule for v in case.variants}:
            found[schedule].append(min(case.loss(v) for v in case.variants if v.variant.schedule == schedule))
    whole = {schedule: lost for schedule, lost in found.items() if len(lost) == len(mine)}
    if not whole:
        return None
    least = min(sorted(whole), key=lambda schedule: fmean(whole[schedule]))
    return Always(operation, least.rpartition("/")[2], len(mine), fmean(whole[least]), max(whole[least]))
