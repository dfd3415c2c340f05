"""Converts regions as written (`G.rows(p of ranks, c of chunks) @ p`) into exact regions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

from ficco_dsl import nodes as n
from ficco_dsl.diagnostics import Span

from ..geometry.region import Axis, Interval, Region
from .budget import Budget
from .evaluate import LONGEST, STEPS, Cutter, Function, Mistake, Scope, compile_expr, describe
from .ir import Tensor

Values: TypeAlias = Sequence[Any]
Step: TypeAlias = Callable[[list[Axis], Values, Budget], None]  # narrows the axes in place; lists are paid for


def _joined(segments: Sequence[Interval]) -> tuple[Interval, ...]:
    """Without empty pieces, and neighbours joined."""
    out: list[Interval] = []
    for s in segments:
        if s.stop <= s.start:
            continue
        if out and out[-1].stop == s.start:
            out[-1] = Interval(out[-1].start, s.stop)
        else:
            out.append(s)
    return tuple(out)


def _count(value: Any, span: Span, what: str) -> int:
    if type(value) is int:
        return value
    raise Mistake(span, f"{what} is a number, this is {describe(value)}")


def is_turned(ref: n.RegionRef, dims: int) -> bool:
    """Whether a region of a tensor that is stored transposed is stored so itself: it has both of the last two
    dimensions."""
    kept = list(range(dims))
    for accessor in ref.accessors:
        if isinstance(accessor, n.Subscript):
            dropped = {d for d, entry in zip(kept, accessor.entries, strict=False) if not isinstance(entry, n.Slice)}
            kept = [d for d in kept if d not in dropped]
    return kept[-2:] == [dims - 2, dims - 1]


class Reference:
    """A region as written, ready to be evaluated many times. Equal evaluations give the same object. The text names
    parts of a tensor `transposed` by its own dimensions, the region those in which it is stored."""

    def __init__(self, ref: n.RegionRef, tensors: Mapping[str, Tensor], transposed: Container[str]) -> None:
        self.ref = ref
        self.tensor = tensors[ref.tensor]
        self._order = list(range(len(self.tensor.shapes[0])))  # the dimensions as they are stored
        if ref.tensor in transposed:
            self._order[-2:] = reversed(self._order[-2:])
        self._at = None if ref.at is None else compile_expr(ref.at)
        self._inputs: list[Function] = []  # every expression inside; a step knows the places of its own
        self._indices: list[int] = []  # the places that hold piece indices, which may be sets
        self._steps: list[Step] = []
        for accessor in ref.accessors:
            self._steps.append(self._pieces(accessor) if isinstance(accessor, n.Pieces) else self._subscript(accessor))
        self._memo: dict[Any, tuple[Region, ...]] = {}
        self._shapes: dict[Any, Region] = {}  # ranks of equal shape share the work of cutting

    def one(self, scope: Scope) -> Region:
        """The region; a set makes segments of it."""
        return self._evaluate(scope, spread=False)[0]

    def each(self, scope: Scope) -> tuple[Region, ...]:
        """A region for each member of the first set, and for each rank of a set after `@`."""
        return self._evaluate(scope, spread=True)

    def _evaluate(self, scope: Scope, spread: bool) -> tuple[Region, ...]:
        values = [f(scope) for f in self._inputs]
        for v in values:
            if type(v) is not int:
                self._check(v, scope)
        at = scope["rank"] if self._at is None else self._at(scope)
        key = (spread, at, *values)
        found = self._memo.get(key)
        if found is None:
            ranks = self._ranks(at, spread, scope["ranks"])
            self._memo[key] = found = tuple(self._on(ranks, self._spread(values) if spread else [values], scope[STEPS]))
        return found

    def _on(self, ranks: Sequence[int], choices: Sequence[Values], budget: Budget) -> Iterator[Region]:
        """The regions of all choices on each rank. NOTE a choice may hold long lists, which are compared with earlier
        ones as a whole: once for each shape of the tensor, not for each rank."""
        long = sum(len(v) // 8 for v in choices[0] if isinstance(v, tuple)) if choices else 0
        resolved: dict[tuple[int, ...], list[Region]] = {}
        for rank in ranks:
            shape = self.tensor.shapes[rank]
            if shape in resolved:
                budget.spend(4 * len(choices), self.ref.span)
            else:
                budget.spend(len(choices) * (1 + long), self.ref.span)
                resolved[shape] = [self._resolve(rank, choice, budget) for choice in choices]
            yield from (like.on(rank) for like in resolved[shape])

    def _check(self, value: Any, scope: Scope) -> None:
        """Lists inside a region are short, and of numbers: they are compared with earlier ones as a whole."""
        if isinstance(value, bool):
            raise Mistake(self.ref.span, f"a region takes numbers and sets, this is {describe(value)}")
        if len(value) > LONGEST:
            raise Mistake(self.ref.span, f"a set of {len(value)} members; the most is {LONGEST}")
        if isinstance(value, tuple):
            scope[STEPS].spend(1 + len(value) // 8, self.ref.span)
            if not set(map(type, value)) <= {int}:
                raise Mistake(self.ref.span, f"a region takes lists of numbers, this is {describe(value)}")

    def _ranks(self, at: Any, spread: bool, ranks: int) -> Sequence[int]:
        span = self.ref.span if self.ref.at is None else self.ref.at.span
        if type(at) is not int and (isinstance(at, bool) or not spread):
            raise Mistake(span, f"'@' takes one rank, this is {describe(at)}", "loop over the set with 'for'")
        members: Sequence[int] = [at] if isinstance(at, int) else at
        if len(members) > ranks:
            raise Mistake(span, f"a set of {len(members)} ranks, but there are {ranks}")
        for r in members:
            if type(r) is not int or not 0 <= r < ranks:
                message = f"there is no rank {r}; ranks count from 0 to {ranks - 1}"
                raise Mistake(span, message, "to go on with rank 0 behind the last one write (…) % ranks")
        return members

    def _spread(self, values: list[Any]) -> list[list[Any]]:
        for i in self._indices:
            if type(values[i]) is not int:
                return [[*values[:i], member, *values[i + 1 :]] for member in values[i]]
        return [values]

    def _resolve(self, rank: int, values: Values, budget: Budget) -> Region:
        shape = self.tensor.shapes[rank]
        key = (shape, *values)
        like = self._shapes.get(key)
        if like is None:
            axes = [Axis((Interval(0, shape[d]),) if shape[d] else ()) for d in self._order]
            for step in self._steps:
                step(axes, values, budget)
            boxes = prod(len(a.segments) for a in axes)
            if boxes > LONGEST:
                raise Mistake(self.ref.span, f"the region has {boxes} separate pieces; the most is {LONGEST}")
            self._shapes[key] = like = Region(self.ref.tensor, rank, tuple(axes[d] for d in self._order))
        return like.on(rank)

    def _input(self, e: n.Expr) -> int:
        self._inputs.append(compile_expr(e))
        return len(self._inputs) - 1

    def _pieces(self, accessor: n.Pieces) -> Step:
        places = []
        for part in accessor.parts:
            index = self._input(part.index)
            self._indices.append(index)
            places.append((index, self._input(part.whole), part.span, Cutter(part.span)))

        def step(axes: list[Axis], values: Values, budget: Budget) -> None:
            dim = self._dimension(axes, accessor)
            segments = axes[dim].segments
            for index_at, whole_at, span, cutter in places:
                index, whole = values[index_at], values[whole_at]
                members = [index] if type(index) is int else index
                if isinstance(members, bool) or len(members) * len(segments) > LONGEST:
                    raise Mistake(span, f"{describe(index)} is no set of pieces; the most pieces is {LONGEST}")
                budget.spend(8 * len(members) * len(segments), span)
                cut_at = cutter.of(whole, budget)
                segments = tuple(
                    Interval(s.start + cut.start, s.start + cut.stop)
                    for s in segments
                    for member in members
                    for cut in (cut_at(_count(member, span, "a piece's index"), s.size),)
                )
            axes[dim] = Axis(_joined(segments))

        return step

    def _dimension(self, axes: list[Axis], accessor: n.Pieces) -> int:
        kept = [i for i, a in enumerate(axes) if not a.dropped]
        if not kept or (accessor.axis == "cols" and len(kept) < 2):
            left = f"{len(kept)} dimension{'s' if len(kept) != 1 else ''}"
            raise Mistake(accessor.span, f"{self.ref.tensor} has no {accessor.axis} here: {left} left to cut")
        return kept[-1] if accessor.axis == "cols" or len(kept) == 1 else kept[-2]

    def _subscript(self, accessor: n.Subscript) -> Step:
        places: list[tuple[int | None, int | None, bool, Span]] = []
        for entry in accessor.entries:
            if isinstance(entry, n.Slice):
                start = None if entry.start is None else self._input(entry.start)
                stop = None if entry.stop is None else self._input(entry.stop)
                places.append((start, stop, False, entry.span))
            else:
                index = self._input(entry)
                self._indices.append(index)  # a set here is spread, or refused: it makes no segments
                places.append((index, None, True, entry.span))
        name = self.ref.tensor

        def step(axes: list[Axis], values: Values, budget: Budget) -> None:
            kept = [i for i, a in enumerate(axes) if not a.dropped]
            if len(places) > len(kept):
                raise Mistake(accessor.span, f"{len(places)} indices, but {name} has {len(kept)} dimensions here")
            for dim, (start_at, stop_at, is_index, span) in zip(kept, places, strict=False):
                if len(axes[dim].segments) > 1:
                    raise Mistake(span, f"{name} is in several pieces along dimension {dim}; index before cutting")
                whole = axes[dim].segments[0] if axes[dim].segments else Interval(0, 0)
                start = 0 if start_at is None else _count(values[start_at], span, "an index")
                stop = whole.size if stop_at is None else _count(values[stop_at], span, "an index")
                if is_index:
                    stop = start + 1
                if not (0 <= start <= stop <= whole.size) or (start == stop and whole.size):
                    inside = f"0 to {whole.size - 1}" if is_index else f"0:{whole.size}"
                    given = str(start) if is_index else f"{start}:{stop}"
                    raise Mistake(span, f"{name}[{given}] is outside dimension {dim}, which has {inside}")
                taken = (Interval(whole.start + start, whole.start + stop),) if start < stop else ()
                axes[dim] = Axis(taken, is_index)

        return step
