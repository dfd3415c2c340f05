"""Symbolic values: what every element of a tensor holds, as an exact formal sum over the inputs.

A value describes all elements of a box at once. An element at coordinates x holds

    Σ inputs   I@r[f(x)]                      a copy of an input element, once or several times
  + Σ products Σ_{k in intervals} L@p[g(x,k)] · R@q[h(x,k)]
  + Σ functions of such sums, which are terms of their own: equal if their arguments are equal

where f, g, h pick each source coordinate as x[axis] + offset, as a fixed number, or as k + offset. A function of inputs
may be a factor of a product: it stands there as one input, with the coordinates of all that it is of.
Coordinates are those of the tensor that holds the value, so cutting a box never changes its value.

All terms of a sum that pick their coordinates alike form one group: the coordinates, and a bag of sources (`bags`),
which does not depend on x. The partial products of all ranks are such a group. Moving a value changes only the
coordinates of its groups, and adding a term shares all other terms.

Values are interned: equal values are one object within an `Algebra`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, TypeAlias

from ficco_dsl.diagnostics import ScheduleError, Span

from ..geometry.region import Box, BoxMap, Interval, Region
from ..types import ACCUMULATOR, Dtype, holds
from .bags import Bag, Bags
from .budget import PROOF_PIECES, PROOF_TERMS, Budget

FIXED = -1  # the coordinate is `offset` itself
SUMMED = -2  # the coordinate is k + offset


class Coordinate(NamedTuple):
    """One coordinate of a source element: x[axis] + offset, or FIXED, or SUMMED."""

    axis: int
    offset: int


class Element(NamedTuple):
    """An input's element, found from the coordinates of the element that holds it."""

    tensor: str
    rank: int
    coordinates: tuple[Coordinate, ...]


class FunctionOf(str):
    """The name of a function of inputs that is a factor of a product. The factor has the coordinates of all of them,
    one after another."""

    __slots__ = ("arguments", "function")
    function: str
    arguments: tuple[tuple[tuple[str, int, int, int], ...], ...]  # tensor, rank, coordinates, how often it is there

    @classmethod
    def named(cls, function: str, arguments: Sequence[Sequence[tuple[Element, int]]]) -> FunctionOf:
        sums = (" + ".join(f"{e.tensor}@{e.rank}" + f", {n} times" * (n > 1) for e, n in of) for of in arguments)
        made = cls(f"{function}({', '.join(sums)})")
        made.function = function
        made.arguments = tuple(tuple((e.tensor, e.rank, len(e.coordinates), n) for e, n in of) for of in arguments)
        return made

    def inputs(self, coordinates: tuple[Coordinate, ...]) -> list[list[Element]]:
        """Those of each argument."""
        left = iter(coordinates)
        return [[Element(t, r, tuple(islice(left, dims))) for t, r, dims, _ in of] for of in self.arguments]


def inputs_in(factor: Element) -> list[Element]:
    """The inputs of a factor: itself, or what it is a function of."""
    if isinstance(factor.tensor, FunctionOf):
        return [e for of in factor.tensor.inputs(factor.coordinates) for e in of]
    return [factor]


class Term(NamedTuple):
    """A pair of factors of a product. The left factor's summed coordinate has offset 0."""

    left: Element
    right: Element


class Rounding(NamedTuple):
    """Values were stored in a narrower type: where."""

    dtype: Dtype
    origin: Span
    tensor: str
    stage: str


class Source(NamedTuple):
    """An element without its coordinates, but with the summed ones: (dimension, offset)."""

    tensor: str
    rank: int
    summed: tuple[tuple[int, int], ...] = ()  # several of a function of several inputs

    def at(self, coordinates: tuple[Coordinate, ...]) -> Element:
        """The element, with all others in their order."""
        for at, offset in self.summed:
            coordinates = (*coordinates[:at], Coordinate(SUMMED, offset), *coordinates[at:])
        return Element(self.tensor, self.rank, coordinates)


class Factors(NamedTuple):
    """A term without its coordinates, of which the first `of_left` are the left factor's."""

    left: Source
    right: Source
    of_left: int


Index: TypeAlias = tuple[Coordinate, ...]
Groups: TypeAlias = tuple[tuple[Index, Bag], ...]
Functions: TypeAlias = "tuple[tuple[str, tuple[Sum, ...]], ...]"


@dataclass(frozen=True, slots=True)
class Sum:
    """A formal sum. Each group has coordinates of its own: those of a source, or of a left and then of a right factor,
    without summed ones."""

    inputs: Groups  # numbers of sources, and how often each is there
    products: Groups  # numbers of factors, with intervals of k: joined where they touch, apart where they overlap
    opaque: tuple[str, ...]  # what the proof does not see into, as text
    rounded: tuple[Rounding, ...] = ()  # types that it has been stored in on its way: the first place of each
    functions: Functions = ()  # names and arguments, which are exact
    scales: str | None = None  # of `Algebra.computed`: those by which a statement has divided it


class Unwritten:
    """The value of an element that nothing has written. A class of its own: it is no sum."""

    def __repr__(self) -> str:
        return "UNWRITTEN"


UNWRITTEN = Unwritten()


class Computed(NamedTuple):
    """What scales were computed of: a region's values, and the rows and columns that share a scale."""

    shape: tuple[int, ...]
    values: BoxMap[Sum | None]
    blocks: tuple[int, int]


Value: TypeAlias = "Sum | Unwritten"
Pieces: TypeAlias = "list[tuple[Box, Sum]]"  # boxes in logical coordinates


class Algebra:
    """Makes values. One object a proof: its tables hold every value that the proof has met.

    `inputs` are the types of the inputs, `error` is raised where values become too many. `blocks`: of scaled tensors,
    the rows and columns that share a scale.
    """

    def __init__(
        self,
        origin: Span,
        inputs: Mapping[str, Dtype],
        error: type[ScheduleError] = ScheduleError,
        blocks: Mapping[str, tuple[int, int]] | None = None,
    ) -> None:
        self.inputs, self.blocks = inputs, blocks or {}
        self.computed: dict[str, Computed] = {}  # by name
        self.quantised: dict[tuple[object, ...], str] = {}  # those names, by what they were computed of, and how
        self._cells = Budget(PROOF_PIECES, error)
        self._terms = Budget(PROOF_TERMS, error)
        self._bags = Bags(self._terms, origin)
        self._numbers: dict[Source | Factors, int] = {}
        self._sources: list[Source | Factors] = []
        self._sums: dict[Sum, Sum] = {}
        self._functions: dict[tuple[str | int, ...], int] = {}  # by name and arguments, which are interned
        self._moved: dict[tuple[int, tuple[tuple[int, int], ...]], Sum] = {}
        self._added: dict[tuple[int, ...], Sum] = {}
        self._products: dict[tuple[int, int, Interval, int, int], Sum] = {}
        self._exact: dict[int, Sum] = {}
        self.zero = self._intern(Sum((), (), ()))

    @property
    def origin(self) -> Span:
        """The current statement of the proof: errors about too many values name it."""
        return self._bags.origin

    @origin.setter
    def origin(self, origin: Span) -> None:
        self._bags.origin = origin

    def look_at(self, pieces: int) -> None:
        """Charges the budget for pieces of tensors."""
        self._cells.spend(pieces, self.origin)

    def _intern(self, value: Sum) -> Sum:
        return self._sums.setdefault(value, value)

    def _order(self, function: tuple[str, tuple[Sum, ...]]) -> int:
        return self._functions.setdefault((function[0], *map(id, function[1])), len(self._functions))

    def _number(self, source: Source | Factors) -> int:
        number = self._numbers.setdefault(source, len(self._sources))
        if number == len(self._sources):
            self._sources.append(source)
        return number

    def opaque(self, text: str) -> Sum:
        return self._intern(Sum((), (), (text,)))

    def element(self, tensor: str, rank: int, dims: int) -> Sum:
        """An input tensor before anything has happened: every element is itself."""
        index = tuple(Coordinate(d, 0) for d in range(dims))
        bag = self._bags.one(self._number(Source(tensor, rank)), 1)
        return self._intern(Sum(((index, bag),), (), ()))

    def inputs_of(self, value: Sum) -> list[tuple[Element, int]]:
        """The input elements of a sum, and how often each is there."""
        found = []
        for index, bag in value.inputs:
            for number, times in bag.entries():
                source = self._sources[number]
                assert isinstance(source, Source)
                assert isinstance(times, int)
                found.append((source.at(index), times))
        return sorted(found)

    def products_of(self, value: Sum) -> list[tuple[Term, tuple[Interval, ...]]]:
        """The products of a sum, with their intervals of k."""
        found = []
        for index, bag in value.products:
            for number, intervals in bag.entries():
                factors = self._sources[number]
                assert isinstance(factors, Factors)
                assert not isinstance(intervals, int)
                cut = factors.of_left
                term = Term(factors.left.at(index[:cut]), factors.right.at(index[cut:]))
                found.append((term, intervals))
        return sorted(found)

    # -- change of coordinates

    def moved(self, value: Sum, axes: tuple[tuple[int, int], ...]) -> Sum:
        """`value` in new coordinates: old coordinate d is new[axis] + offset for axes[d] = (axis, offset)."""
        key = (id(value), axes)
        found = self._moved.get(key)
        if found is None:

            def coordinate(c: Coordinate) -> Coordinate:
                if c.axis < 0:
                    return c
                axis, offset = axes[c.axis]
                return Coordinate(axis, c.offset + offset)

            found = self._moved[key] = self._at(value, lambda index: tuple(map(coordinate, index)))
        return found

    def _at(self, value: Sum, place: Callable[[Index], Index]) -> Sum:
        """`value`, each group at another index."""
        inputs, products = ([(place(index), bag) for index, bag in groups] for groups in (value.inputs, value.products))
        functions = tuple((name, tuple(self._at(a, place) for a in arguments)) for name, arguments in value.functions)
        return self._make(inputs, products, value.opaque, value.rounded, functions, value.scales)

    def same(self, box: Box, value: Sum, other: Sum) -> bool:
        """Whether two values are equal in a box. Along a dimension in which it is one element wide, `x[axis] + offset`
        is a fixed number."""
        if value is other or 1 not in box.shape:
            return value is other
        axes = tuple((FIXED, a) if b - a == 1 else (d, 0) for d, (a, b) in enumerate(zip(*box, strict=True)))
        return self.moved(value, axes) is self.moved(other, axes)

    def unfixed(self, value: Sum, box: Box) -> Sum:
        """`value`, whose box is one element wide somewhere, with fixed coordinates written as x[axis] + offset over
        such dimensions: so rows copied one by one hold the same value as rows copied at once."""
        if not any(c.axis == FIXED for index in _indices(value) for c in index):
            return value
        wide = [d for d in reversed(range(len(box.start))) if box.stop[d] - box.start[d] == 1]

        def freed(index: Index) -> Index:
            left = [d for d in wide if all(c.axis != d for c in index)]
            out = []
            for c in reversed(index):
                if c.axis == FIXED and left:
                    d = left.pop(0)
                    c = Coordinate(d, c.offset - box.start[d])
                out.append(c)
            return tuple(reversed(out))

        return self._at(value, freed)

    # -- types

    def stored(self, value: Sum, rounding: Rounding) -> Sum:
        """`value` after it was stored in the rounding's type. An input's own element may fit as it is, and what has
        been rounded to a type is not rounded again."""
        terms = value.inputs or value.products or value.functions
        if any(r.dtype == rounding.dtype for r in value.rounded) or not terms:
            return value
        if not (value.products or value.functions) and sum(bag.size for _, bag in value.inputs) == 1:
            ((element, times),) = self.inputs_of(value)
            if times == 1 and holds(rounding.dtype, self.inputs.get(element.tensor, ACCUMULATOR)):
                return value
        rounded = (*value.rounded, rounding)
        return self._make(value.inputs, value.products, value.opaque, rounded, value.functions, value.scales)

    def divided(self, value: Sum, scales: str) -> Sum:
        """`value` after it was divided by scales, so that it is whole with these alone."""
        return self._make(value.inputs, value.products, value.opaque, value.rounded, value.functions, scales)

    def exact(self, value: Sum) -> Sum:
        """`value`, as if nothing had been rounded, and scales had come along."""
        if not value.rounded and value.scales is None:
            return value
        found = self._exact.get(id(value))
        if found is None:
            found = self._make(value.inputs, value.products, value.opaque, (), value.functions)
            self._exact[id(value)] = found
        return found

    # -- sums and products

    def add(self, *values: Sum) -> Sum:
        key = tuple(map(id, values))
        found = self._added.get(key)
        if found is None:
            found = self._added[key] = self._make(
                [group for v in values for group in v.inputs],
                [group for v in values for group in v.products],
                tuple(o for v in values for o in v.opaque),
                tuple(r for v in values for r in v.rounded),
                tuple(f for v in values for f in v.functions),
            )
        return found

    def applied(self, function: str, *arguments: Sum) -> Sum:
        """A function of values, which the proof does not see into."""
        opaque = tuple(o for a in arguments for o in a.opaque)
        if opaque:
            return self.opaque(opaque[0])
        rounded = tuple(r for a in arguments for r in a.rounded)
        return self._make((), (), (), rounded, ((function, tuple(map(self.exact, arguments))),))

    def product(self, left: Sum, right: Sum, k: Interval, left_axis: int, right_axis: int) -> Sum:
        """Σ over k of left · right, where k is coordinate `left_axis` of the left and `right_axis` of the right
        value (both logical matrices); the result's coordinates are (row of left, column of right)."""
        key = (id(left), id(right), k, left_axis, right_axis)
        found = self._products.get(key)
        if found is None:
            for side in (left, right):
                inner = [a for _, arguments in side.functions for a in arguments]
                if any(a.opaque or a.products or a.functions for a in (*inner, replace(side, functions=()))):
                    what = side.functions[0][0] if side.functions else "products"
                    found = self.opaque(side.opaque[0] if side.opaque else f"a product of {what}")
                    break
            else:
                found = self._multiply(left, right, k, left_axis, right_axis)
            self._products[key] = found
        return found

    def _multiply(self, left: Sum, right: Sum, k: Interval, left_axis: int, right_axis: int) -> Sum:
        products = []
        factors = self._factors(right)
        for a, times_a in self._factors(left):
            for b, times_b in factors:
                self._terms.spend(times_a * times_b, self.origin)
                # k runs over the left source's own coordinate, so that pieces of one sum can join
                shift = next((c.offset for c in a.coordinates if c.axis == left_axis), 0)
                x, of_left = _contracted(a, left_axis, 0, shift)
                y, of_right = _contracted(b, right_axis, 1, shift)
                number = self._number(Factors(x, y, len(of_left)))
                interval = Interval(k.start + shift, k.stop + shift)
                bag = self._bags.one(number, (interval,) * (times_a * times_b))
                products.append(((*of_left, *of_right), bag))
        return self._make((), products, (), (*left.rounded, *right.rounded))

    def _factors(self, value: Sum) -> list[tuple[Element, int]]:
        """What a product multiplies: inputs, and functions of inputs, whose ranks are in their names."""
        found = self.inputs_of(value)
        for function, arguments in value.functions:
            of = [self.inputs_of(argument) for argument in arguments]
            coordinates = tuple(c for inputs in of for e, _ in inputs for c in e.coordinates)
            found.append((Element(FunctionOf.named(function, of), 0, coordinates), 1))
        return found

    def _make(
        self,
        inputs: Sequence[tuple[Index, Bag]],
        products: Sequence[tuple[Index, Bag]],
        opaque: tuple[str, ...],
        rounded: tuple[Rounding, ...] = (),
        functions: Functions = (),
        scales: str | None = None,
    ) -> Sum:
        self._terms.spend(len(inputs) + len(products) + len(opaque) + len(functions), self.origin)
        return self._intern(
            Sum(
                self._groups(inputs),
                self._groups(products),
                tuple(sorted(set(opaque))) if len(opaque) > 1 else opaque,
                _first(rounded) if len(rounded) > 1 else rounded,
                tuple(sorted(functions, key=self._order)) if len(functions) > 1 else functions,
                scales,
            )
        )

    def _groups(self, given: Sequence[tuple[Index, Bag]]) -> Groups:
        """One group for each index."""
        if len(given) < 2:
            return tuple(given)
        bags: dict[Index, list[Bag]] = {}
        for index, bag in given:
            bags.setdefault(index, []).append(bag)
        return tuple((index, self._bags.union(bags[index])) for index in sorted(bags))


def _indices(value: Sum) -> Iterator[Index]:
    """The coordinates of all terms, those inside functions among them."""
    yield from (index for index, _ in (*value.inputs, *value.products))
    for _, arguments in value.functions:
        for argument in arguments:
            yield from _indices(argument)


def _first(rounded: tuple[Rounding, ...]) -> tuple[Rounding, ...]:
    """The first place of each type."""
    places: dict[Dtype, Rounding] = {}
    for r in sorted(rounded, key=lambda r: (r.origin.line, r.origin.column)):
        places.setdefault(r.dtype, r)
    return tuple(places[dtype] for dtype in sorted(places))


def _contracted(e: Element, axis: int, kept: int, shift: int) -> tuple[Source, Index]:
    """A factor: its coordinate `axis` becomes the summed one, its other one becomes coordinate `kept`."""
    summed, others = [], []
    for d, c in enumerate(e.coordinates):
        if c.axis == axis:
            summed.append((d, c.offset - shift))
        else:
            others.append(c if c.axis < 0 else Coordinate(kept, c.offset))
    return Source(e.tensor, e.rank, tuple(summed)), tuple(others)


# ---------------------------------------------------------------- values of whole regions


def multiply(algebra: Algebra, left: Pieces, right: Pieces, shape: tuple[int, int]) -> Pieces:
    """The matrix product of two logical matrices given by pieces: [m, k] · [k, n], shape (m, n)."""
    if len(left) == 1 and len(right) == 1:
        (box, a), (_, b) = left[0], right[0]
        value = algebra.product(a, b, Interval(0, box.stop[1]), 1, 0)
        return [(Box((0, 0), shape), value)] if all(shape) else []
    if not all(shape):
        return []
    total: BoxMap[Sum] = BoxMap(shape, algebra.zero)
    for x, a in left:
        algebra.look_at(len(right))
        for y, b in right:
            start, stop = max(x.start[1], y.start[0]), min(x.stop[1], y.stop[0])
            if start < stop:
                value = algebra.product(a, b, Interval(start, stop), 1, 0)
                box = Box((x.start[0], y.start[1]), (x.stop[0], y.stop[1]))
                algebra.look_at(total.update(box, lambda old, value=value: algebra.add(old, value)))  # type: ignore[misc]
    return list(total.items(Box((0, 0), shape)))


def transposed(algebra: Algebra, pieces: Pieces) -> Pieces:
    """The value with rows and columns exchanged."""
    return [(Box(box.start[::-1], box.stop[::-1]), algebra.moved(value, ((1, 0), (0, 0)))) for box, value in pieces]


def added(algebra: Algebra, parts: list[Pieces], shape: tuple[int, ...]) -> Pieces:
    """The elementwise sum of several logical arrays of one shape."""
    if len(parts) == 1:
        return parts[0]
    if all(len(p) == 1 for p in parts):
        return [(parts[0][0][0], algebra.add(*(p[0][1] for p in parts)))]
    total: BoxMap[Sum] = BoxMap(shape, algebra.zero)
    for pieces in parts:
        for box, value in pieces:
            algebra.look_at(total.update(box, lambda old, value=value: algebra.add(old, value)))  # type: ignore[misc]
    return list(total.items(Box((0,) * len(shape), shape)))


def repeated(algebra: Algebra, pieces: Pieces, shape: tuple[int, ...]) -> Pieces:
    """An array, or one row of it given by pieces in one dimension, as an array of the shape."""
    above = len(shape) - 1
    return [
        (box, value)
        if len(box.start) > above
        else (Box((*(0,) * above, *box.start), (*shape[:-1], *box.stop)), algebra.moved(value, ((above, 0),)))
        for box, value in pieces
    ]


def applied(algebra: Algebra, function: str | None, arguments: list[Pieces], shape: tuple[int, ...]) -> Pieces:
    """The function of logical arrays of one shape; the first of them if there is no function."""
    if function is None or not all(shape):
        return arguments[0]
    if len(arguments) == 1:
        return [(box, algebra.applied(function, value)) for box, value in arguments[0]]
    found: BoxMap[tuple[Sum, ...]] = BoxMap(shape, ())
    for pieces in arguments:
        for box, value in pieces:
            algebra.look_at(found.update(box, lambda old, value=value: (*old, value)))  # type: ignore[misc]
    return [(box, algebra.applied(function, *values)) for box, values in found.items(Box((0,) * len(shape), shape))]


def to_logical(algebra: Algebra, region: Region, tensor_box: Box, logical_box: Box, value: Sum) -> Sum:
    """A tensor's value inside one box of a region, in the region's logical coordinates."""
    axes, kept = [], 0
    for d, axis in enumerate(region.axes):
        if axis.dropped:
            axes.append((FIXED, tensor_box.start[d]))
        else:
            axes.append((kept, tensor_box.start[d] - logical_box.start[kept]))
            kept += 1
    return algebra.moved(value, tuple(axes))


def to_tensor(algebra: Algebra, region: Region, tensor_box: Box, logical_box: Box, value: Sum) -> Sum:
    """The inverse of `to_logical`: a logical value in the coordinates of the tensor."""
    axes = tuple((d, logical_box.start[i] - tensor_box.start[d]) for i, d in enumerate(region.kept))
    held = algebra.moved(value, axes)
    return algebra.unfixed(held, tensor_box) if 1 in tensor_box.shape else held
