"""Where two symbolic values differ, in words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..region import Box, Interval, describe
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
    products = []
    for term, intervals in a.products:
        left = _subtract(intervals, known.get(term, ()))
        if left:
            products.append((term, left))
    return Terms(inputs, tuple(products))


def elements(value: Terms) -> set[Element]:
    """The elements of inputs that occur in the terms, factors among them."""
    factors = {e for term, _ in value.products for e in term}
    return factors | {e for e, _ in value.inputs}


def _subtract(a: Sequence[Interval], b: Sequence[Interval]) -> tuple[Interval, ...]:
    """Intervals of `a` without as many of `b`."""
    marks: dict[int, int] = {}
    for sign, intervals in ((1, a), (-1, b)):
        for i in intervals:
            marks[i.start] = marks.get(i.start, 0) + sign
            marks[i.stop] = marks.get(i.stop, 0) - sign
    out: list[Interval] = []
    depth, begin = 0, 0
    for at in sorted(marks):
        if depth > 0:
            out.extend([Interval(begin, at)] * depth)
        depth, begin = depth + marks[at], at
    return joined(out)


def show(value: Terms, box: Box) -> str:
    """The terms of a sum for the elements of `box`, at most three."""
    texts = []
    for element, n in value.inputs[:3]:
        texts.append(_source(element, box, None, ascending) + (f", {n} times" if n > 1 else ""))
    for term, intervals in value.products[:3]:
        for k in intervals[:3]:
            texts.append(f"{_source(term.left, box, k, summed_last)} × {_source(term.right, box, k, ascending)}")
    count = len(value.inputs) + sum(len(intervals) for _, intervals in value.products)
    return " + ".join(texts[:3]) + (f" and {count - 3} more" if count > 3 else "")


def ascending(axis: int) -> int:
    """The order of coordinates in an input and in a right factor: SUMMED is below all axes."""
    return axis


def summed_last(axis: int) -> int:
    """The order of coordinates in a left factor."""
    return axis if axis >= 0 else sys.maxsize


def _source(e: Element, box: Box, k: Interval | None, order: Callable[[int], int]) -> str:
    """Where an element comes from; `.T` if its coordinates do not stand in the usual order."""
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
    given = [order(c.axis) for c in e.coordinates if c.axis != FIXED]
    turned = "" if given == sorted(given) else ".T"
    return f"{e.tensor}@{e.rank}{turned} {describe(Box(tuple(start), tuple(stop)))}"
