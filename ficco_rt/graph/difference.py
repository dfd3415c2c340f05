"""Describes in words where two symbolic values differ."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..geometry.region import Box, Interval, describe
from .bags import joined
from .symbolic import FIXED, SUMMED, Algebra, Element, FunctionOf, Sum, Term, inputs_in


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of a sum, or of a part of it."""

    inputs: tuple[tuple[Element, int], ...]
    products: tuple[tuple[Term, tuple[Interval, ...]], ...]
    functions: tuple[tuple[str, tuple[Terms, ...]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.products or self.functions)


def terms(algebra: Algebra, value: Sum) -> Terms:
    functions = ((name, tuple(terms(algebra, a) for a in arguments)) for name, arguments in value.functions)
    return Terms(tuple(algebra.inputs_of(value)), tuple(algebra.products_of(value)), tuple(functions))


def inside(due: Terms, there: Terms) -> tuple[str, Terms, Terms]:
    """Where values are one function each, of different arguments: which argument, in words, and both of it."""
    words = ""
    while len(due.functions) == len(there.functions) == 1 and not any(x.inputs or x.products for x in (due, there)):
        ((name, wanted),), ((other, given),) = due.functions, there.functions
        if name != other:
            break
        number = next((i for i, (a, b) in enumerate(zip(wanted, given, strict=True)) if a != b), 0)
        words += f"{name} of a {'factor' if number else 'sum'} that "
        due, there = wanted[number], given[number]
    return words, due, there


def difference(a: Terms, b: Terms) -> Terms:
    """The part of `a` that `b` lacks, counting how often."""
    times = dict(b.inputs)
    inputs = tuple((e, n - times.get(e, 0)) for e, n in a.inputs if n > times.get(e, 0))
    known = dict(b.products)
    products = ((term, joined(intervals, known.get(term, ()))) for term, intervals in a.products)
    functions = list(a.functions)
    for f in b.functions:
        if f in functions:
            functions.remove(f)
    return Terms(inputs, tuple((term, left) for term, left in products if left), tuple(functions))


def elements(value: Terms) -> set[Element]:
    """The elements of inputs that occur in the terms, factors among them."""
    factors = {e for term, _ in value.products for factor in term for e in inputs_in(factor)}
    inner = {e for _, arguments in value.functions for a in arguments for e in elements(a)}
    return factors | inner | {e for e, _ in value.inputs}


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
            yield [(e, _read(e, box, k)) for factor in term for e in inputs_in(factor)]


def show(value: Terms, box: Box) -> str:
    """The terms of a sum for the elements of `box`, at most three."""
    texts = []
    for element, n in value.inputs[:3]:
        texts.append(_source(element, box, None) + (f", {n} times" if n > 1 else ""))
    for term, intervals in value.products[:3]:
        for k in intervals[:3]:
            texts.append(f"{_source(term.left, box, k, summed_last=True)} × {_source(term.right, box, k)}")
    for name, arguments in value.functions[:3]:
        texts.append(f"{name}({', '.join(show(a, box) for a in arguments)})")
    count = len(value.inputs) + sum(len(intervals) for _, intervals in value.products) + len(value.functions)
    return " + ".join(texts[:3]) + (f" and {count - 3} more" if count > 3 else "")


def _source(e: Element, box: Box, k: Interval | None, *, summed_last: bool = False) -> str:
    """Where an element comes from; `.T` if its coordinates do not stand in the usual order. The summed one is the last
    of a left factor, and the first of a right one."""
    if isinstance(e.tensor, FunctionOf):
        arguments = e.tensor.inputs(e.coordinates)
        sums = (" + ".join(_source(i, box, k, summed_last=summed_last) for i in inputs) for inputs in arguments)
        return f"{e.tensor.function}({', '.join(sums)})"
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
