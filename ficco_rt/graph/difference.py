"""Describes in words where two symbolic values differ."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..geometry.region import Box, Interval, describe
from .bags import joined
from .symbolic import FIXED, SUMMED, Algebra, Element, Sum, Term


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a sum, or of a part of it."""

    inputs: tuple[tuple[Element, int], ...]
    products: tuple[tuple[Term, tuple[Interval, ...]], ...]


def terms(algebra: Algebra, value: Sum) -> Terms:
    return Terms(tuple(algebra.inputs_of(value)), tuple(algebra.products_of(value)))


def difference(a: Terms, b: Terms) -> Terms:
    """The part of `a` that `b` lacks, counting how often."""
    times = dict(b.inputs)
    inputs = tuple((e, n - times.get(e, 0)) for e, n in a.inputs if n > times.get(e, 0))
    known = dict(b.products)
    products = ((term, joined(intervals, known.get(term, ()))) for term, intervals in a.products)
    return Terms(inputs, tuple((term, left) for term, left in products if left))


def elements(value: Terms) -> set[Element]:
    """The elements of inputs that occur in the terms, factors among them."""
    factors = {e for term, _ in value.products for e in term}
    return factors | {e for e, _ in value.inputs}


def twice(value: Terms) -> Terms:
    """The terms that occur more than once, each listed once."""
    inputs = tuple((e, 1) for e, n in value.inputs if n > 1)
    products = ((term, _covered(joined(intervals, _covered(intervals)))) for term, intervals in value.products)
    return Terms(inputs, tuple((term, again) for term, again in products if again))


def _covered(intervals: Sequence[Interval]) -> tuple[Interval, ...]:
    """The same parts of k, each once."""
    return joined(dict.fromkeys(joined(intervals)))


def same(a: Terms, at: Box, b: Terms, there: Box) -> bool:
    """Whether some term of `a`, for the elements of a box, is one of `b` for those of another."""
    return any(
        len(x) == len(y)
        and all(p.tensor == q.tensor and p.rank == q.rank and s.meet(t) for (p, s), (q, t) in zip(x, y, strict=True))
        for x in _factors(a, at)
        for y in _factors(b, there)
    )


def _factors(value: Terms, box: Box) -> Iterator[list[tuple[Element, Box]]]:
    """The parts of inputs that each term is of, for the elements of a box."""
    yield from ([(e, _read(e, box, None))] for e, _ in value.inputs)
    for term, intervals in value.products:
        for k in intervals:
            yield [(e, _read(e, box, k)) for e in term]


def show(value: Terms, box: Box) -> str:
    """The terms of a sum for the elements of `box`, at most three."""
    texts = []
    for element, n in value.inputs[:3]:
        texts.append(_source(element, box, None) + (f", {n} times" if n > 1 else ""))
    for term, intervals in value.products[:3]:
        for k in intervals[:3]:
            texts.append(f"{_source(term.left, box, k, summed_last=True)} × {_source(term.right, box, k)}")
    count = len(value.inputs) + sum(len(intervals) for _, intervals in value.products)
    return " + ".join(texts[:3]) + (f" and {count - 3} more" if count > 3 else "")


def _source(e: Element, box: Box, k: Interval | None, *, summed_last: bool = False) -> str:
    """Where an element comes from; `.T` if its coordinates do not stand in the usual order. The summed one is the last
    of a left factor, and the first of a right one."""
    given = [sys.maxsize if summed_last and c.axis < 0 else c.axis for c in e.coordinates if c.axis != FIXED]
    turned = "" if given == sorted(given) else ".T"
    return f"{e.tensor}@{e.rank}{turned} {describe(_read(e, box, k))}"


def _read(e: Element, box: Box, k: Interval | None) -> Box:
    """The part of its input that an element is of, for all elements of a box."""
    start, stop = [], []
    for c in e.coordinates:
        if c.axis == SUMMED:
            assert k is not None
            low, high = k.start, k.stop
        elif c.axis < 0:
            low, high = 0, 1
        else:
            low, high = box.start[c.axis], box.stop[c.axis]
        start.append(low + c.offset)
        stop.append(high + c.offset)
    return Box(tuple(start), tuple(stop))
