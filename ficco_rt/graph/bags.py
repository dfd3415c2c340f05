"""Multisets that share their parts, so that adding one term to a sum over all ranks costs one term.

A bag holds numbered items, each with its count, or with the intervals of k over which it is summed. Up to LEAF items
are stored in a row; a larger bag is split into halves by the bits of the numbers, the lowest first. So the form of a
bag does not depend on how it was made. Halves are interned: equal bags of one `Bags` are one object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from ficco_dsl.diagnostics import Span

from ..geometry.region import Interval
from .budget import Budget

LEAF = 8

Amount: TypeAlias = "int | tuple[Interval, ...]"
Entry: TypeAlias = "tuple[int, Amount]"


class Bag:
    """One multiset. Compared by identity."""

    __slots__ = ("_halves", "_row", "size")

    def __init__(self, row: tuple[Entry, ...], halves: tuple[Bag, Bag] | None) -> None:
        self._row = row
        self._halves = halves
        self.size: int = len(row) if halves is None else halves[0].size + halves[1].size

    def entries(self) -> Iterator[Entry]:
        """All entries, in no particular order."""
        if self._halves is None:
            yield from self._row
        else:
            for half in self._halves:
                yield from half.entries()


class Bags:
    """Makes bags. `terms` pays for the work that a union does, as numbers of entries, at `origin`."""

    def __init__(self, terms: Budget, origin: Span) -> None:
        self._terms = terms
        self.origin = origin
        self._rows: dict[tuple[Entry, ...], Bag] = {}
        self._nodes: dict[tuple[int, int], Bag] = {}
        self._unions: dict[tuple[int, ...], Bag] = {}

    def one(self, number: int, amount: Amount) -> Bag:
        """A bag of one item."""
        return self._row(((number, amount),))

    def union(self, bags: Sequence[Bag]) -> Bag:
        """The union of several bags, with amounts added."""
        if len(bags) == 1:
            return bags[0]
        key = tuple(map(id, bags))
        found = self._unions.get(key)
        if found is None:
            few = self._merged(e for bag in bags if bag._halves is None for e in bag._row)
            found = self._of(few, 0)
            for bag in bags:
                if bag._halves is not None:
                    found = self._joined(found, bag, 0)
            self._unions[key] = found
        return found

    def _row(self, row: tuple[Entry, ...]) -> Bag:
        found = self._rows.get(row)
        if found is None:
            found = self._rows[row] = Bag(row, None)
        return found

    def _of(self, entries: Sequence[Entry], bit: int) -> Bag:
        """The bag of entries, sorted, whose numbers are alike below a bit."""
        if len(entries) <= LEAF:
            return self._row(tuple(entries))
        halves: tuple[list[Entry], list[Entry]] = ([], [])
        for e in entries:
            halves[e[0] >> bit & 1].append(e)
        return self._node(self._of(halves[0], bit + 1), self._of(halves[1], bit + 1))

    def _node(self, zero: Bag, one: Bag) -> Bag:
        key = (id(zero), id(one))
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = Bag((), (zero, one))
        return found

    def _joined(self, a: Bag, b: Bag, bit: int) -> Bag:
        if not a.size or not b.size:
            return a if a.size else b
        if a._halves is None and b._halves is None:
            return self._of(self._merged((*a._row, *b._row)), bit)
        self._terms.spend(1, self.origin)
        (a0, a1), (b0, b1) = self._cut(a, bit), self._cut(b, bit)
        return self._node(self._joined(a0, b0, bit + 1), self._joined(a1, b1, bit + 1))

    def _cut(self, bag: Bag, bit: int) -> tuple[Bag, Bag]:
        if bag._halves is not None:
            return bag._halves
        zero = tuple(e for e in bag._row if not e[0] >> bit & 1)
        return self._row(zero), self._row(tuple(e for e in bag._row if e[0] >> bit & 1))

    def _merged(self, entries: Iterable[Entry]) -> list[Entry]:
        amounts: dict[int, Amount] = {}
        cost = 0
        for number, amount in entries:
            before = amounts.get(number)
            amounts[number] = amount if before is None else _sum(before, amount)
            cost += 1 + amount.bit_length() // 64 if isinstance(amount, int) else len(amount)
        self._terms.spend(cost, self.origin)
        return sorted(amounts.items()) if len(amounts) > 1 else list(amounts.items())


def _sum(a: Amount, b: Amount) -> Amount:
    if isinstance(a, int):
        assert isinstance(b, int)
        return a + b
    assert not isinstance(b, int)
    return joined((*a, *b))


def joined(intervals: Iterable[Interval], without: Iterable[Interval] = ()) -> tuple[Interval, ...]:
    """Sorted, with intervals that touch joined, less as many of `without`. Overlapping ones are cut where they overlap,
    and the part that is there n times stands n times: a sum taken twice must stay visible."""
    marks: dict[int, int] = {}
    for sign, some in ((1, intervals), (-1, without)):
        for i in some:
            marks[i.start] = marks.get(i.start, 0) + sign
            marks[i.stop] = marks.get(i.stop, 0) - sign
    out: list[Interval] = []
    depth, begin = 0, 0
    for at in sorted(marks):
        if marks[at] == 0:
            continue
        out.extend([Interval(begin, at)] * depth)
        depth, begin = depth + marks[at], at
    return tuple(out)
