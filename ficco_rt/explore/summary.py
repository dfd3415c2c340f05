"""Summarises the rows of a table: which schedule is best for what, and how far the model is from measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import correlation, median
from typing import Annotated

from ..files.records import INLINE, Count, derived
from .table import Case, Row


@dataclass(frozen=True, slots=True)
class Best:
    """The fastest trial of a scenario on a machine, and the fastest one of another schedule.

    next: The second best.
    lead: How much longer the next one takes, as a share of the fastest one's time.
    """

    row: Annotated[Row, INLINE]
    next_: Row | None

    @derived
    def lead(self) -> float | None:
        """How much longer the second one takes, as a part of the best one's time."""
        return self.next_.time / self.row.time - 1 if self.next_ and self.next_.time and self.row.time else None


def cases(rows: Iterable[Row]) -> dict[Case, list[Row]]:
    """The rows by what they do and where."""
    found: dict[Case, list[Row]] = {}
    for row in rows:
        found.setdefault(row.case, []).append(row)
    return found


def fastest(rows: Iterable[Row]) -> dict[str, Row]:
    """The fastest row of each schedule that has a time, the fastest schedule first."""
    timed = sorted((row for row in rows if row.time is not None), key=lambda row: (row.time, row.schedule, row.params))
    found: dict[str, Row] = {}
    for row in timed:
        found.setdefault(row.schedule, row)
    return found


def best(rows: Iterable[Row]) -> tuple[Best, ...]:
    """The best trial of each case that has a time, in the order of the rows."""
    found = []
    for members in cases(rows).values():
        ranking = list(fastest(members).values())
        if ranking:
            found.append(Best(ranking[0], ranking[1] if len(ranking) > 1 else None))
    return tuple(found)


def wins(of: Sequence[Best]) -> dict[str, int]:
    """How many cases each schedule wins, the most first."""
    return dict(Counter(b.row.schedule for b in of).most_common())


@dataclass(frozen=True, slots=True)
class Pair:
    """A modelled row and what was measured of the same trial."""

    row: Row
    measured: float

    @property
    def error(self) -> float:
        """Modelled over measured, less 1."""
        return (self.row.time or 0.0) / self.measured - 1


@dataclass(frozen=True, slots=True)
class Fit:
    """The model beside measured times.

    median: Of the sizes of the errors: modelled ÷ measured, less 1.
    correlation: Of ranks among a case's trials, the median over cases of three or more.
    """

    pairs: Count
    median: float
    p90: float
    correlation: float | None


def fit(pairs: Sequence[Pair]) -> Fit:
    """The figures of all pairs."""
    errors = sorted(abs(pair.error) for pair in pairs)
    groups: dict[Case, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.row.case, []).append(pair)
    found = [
        _correlation([pair.row.time or 0.0 for pair in group], [pair.measured for pair in group])
        for group in groups.values()
        if len(group) > 2
    ]
    known = [value for value in found if value is not None]
    p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    return Fit(len(pairs), median(errors), p90, median(known) if known else None)


def _correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Spearman's, equal values at their mean rank; None where one side is all equal."""
    a, b = _ranks(left), _ranks(right)
    return correlation(a, b) if min(len(set(a)), len(set(b))) > 1 else None


def _ranks(values: Sequence[float]) -> list[float]:
    below = sorted(values)
    return [below.index(value) + (below.count(value) + 1) / 2 for value in values]
