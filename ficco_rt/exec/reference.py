"""The independent reference: computes a schedule's claims from the unsharded inputs, without the plan's pieces.

The reference uses the claims of a plan and none of its commands: a gathered operand is concatenated, a product is one
matrix product, a reduction one sum. Values are computed rank by rank, so that memory holds only what the claim needs at
once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, TypeAlias

import numpy as np

from ..geometry.region import Interval, Region
from ..graph.claim_values import Shapes, applied_shapes, axis_of, combined_shapes, product_shapes, sum_shapes
from ..graph.functions import FUNCTIONS
from ..graph.ir import Added, Applied, ClaimValue, Combined, Operand, Product

Inputs: TypeAlias = Mapping[str, Sequence[Any]]  # by tensor: one array a rank

# Up to this many operations the reference is computed in float64, beyond in float32.
DOUBLE_OPERATIONS = 2 * 10**9


@dataclass(frozen=True, slots=True)
class Extent:
    """How large a claim's value is."""

    shapes: Shapes
    terms: int  # products that are summed into an element, at most
    operations: int  # of all ranks


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How arrays are computed with: numpy's or any other library's that slice, reshape, add and multiply (`@`)."""

    wide: Callable[[Any], Any]  # an input in the type, and at the place, that is computed in
    join: Callable[[list[Any], int], Any]  # end to end along an axis


def evaluate(
    value: ClaimValue, inputs: Inputs, arithmetic: Arithmetic | None = None, *, of: Container[int] | None = None
) -> Iterator[Any]:
    """The value on rank 0, 1, …; by default with numpy, in float64 where that is cheap and in float32 otherwise. `of`:
    the ranks whose value is wanted, by default all; None stands for the others'."""
    if arithmetic is None:
        dtype = np.float64 if extent(value).operations <= DOUBLE_OPERATIONS else np.float32
        arithmetic = Arithmetic(lambda a: a.astype(dtype), np.concatenate)
    ranks = range(len(extent(value).shapes))
    return _evaluate(value, inputs, arithmetic, ranks, ranks if of is None else of)


def extent(value: ClaimValue) -> Extent:
    """Shapes and cost of a value, without computing it."""
    match value:
        case Operand(regions=regions, transposed=transposed):
            shapes = tuple((*r.shape[:-2], *r.shape[:-3:-1]) if transposed else r.shape for r in regions)
            return Extent(shapes, 1, 0)
        case Product(left=left, right=right):
            a, b = extent(left), extent(right)
            products, inner = product_shapes(a.shapes, b.shapes), [x[-1] for x in a.shapes]
            work = sum(2 * prod(s) * k for s, k in zip(products, inner, strict=True))
            return Extent(products, a.terms * b.terms * max(inner), a.operations + b.operations + work)
        case Added(left=left, right=right):
            a, b = extent(left), extent(right)
            return Extent(sum_shapes(a.shapes, b.shapes), a.terms + b.terms, a.operations + b.operations)
        case Applied(function=function, arguments=arguments):
            found = [extent(a) for a in arguments]
            shapes = applied_shapes(function, [e.shapes for e in found])
            return Extent(shapes, max(e.terms for e in found), sum(e.operations for e in found))
        case Combined():
            inside = extent(value.operand)
            summed = len(inside.shapes) if value.kind in ("all_reduce", "reduce_scatter") else 1
            return Extent(combined_shapes(value, inside.shapes), inside.terms * summed, inside.operations)


def take(array: Any, region: Region, join: Callable[[list[Any], int], Any] = np.concatenate) -> Any:
    """The region's part of its rank's array, dimension by dimension."""
    for dim, axis in enumerate(region.axes):
        segments = axis.segments or (Interval(0, 0),)
        parts = [array[(slice(None),) * dim + (slice(s.start, s.stop),)] for s in segments]
        array = parts[0] if len(parts) == 1 else join(parts, dim)
    return array.reshape(region.shape) if any(a.dropped for a in region.axes) else array


def _evaluate(value: ClaimValue, inputs: Inputs, to: Arithmetic, ranks: range, wanted: Container[int]) -> Iterator[Any]:
    match value:
        case Operand(regions=regions, transposed=transposed):
            for rank, region in zip(ranks, regions, strict=True):
                if rank not in wanted:
                    yield None
                    continue
                part = to.wide(take(inputs[region.tensor][region.rank], region, to.join))
                yield part.swapaxes(-1, -2) if transposed else part
        case Product(left=left, right=right):
            operands = (_evaluate(operand, inputs, to, ranks, wanted) for operand in (left, right))
            for a, b in zip(*operands, strict=True):
                yield None if a is None else a @ b
        case Added(left=left, right=right):
            operands = (_evaluate(operand, inputs, to, ranks, wanted) for operand in (left, right))
            for a, b in zip(*operands, strict=True):
                yield None if a is None else a + b
        case Applied(function=function, arguments=arguments):
            operands = (_evaluate(operand, inputs, to, ranks, wanted) for operand in arguments)
            for total, *factors in zip(*operands, strict=True):
                yield None if total is None else prod(factors, start=FUNCTIONS[function].of(total))
        case Combined():
            found = _combine(value, _evaluate(value.operand, inputs, to, ranks, ranks), to)
            yield from (part if rank in wanted else None for rank, part in zip(ranks, found, strict=True))


def _combine(value: Combined, ranks: Iterator[Any], to: Arithmetic) -> Iterator[Any]:
    if value.kind in ("all_reduce", "reduce_scatter"):
        total, n = next(ranks), 1
        for part in ranks:
            total = total + part
            n += 1
        if value.kind == "all_reduce":
            yield from [total] * n
            return
        at = axis_of(value, total.ndim)
        cut = cuts(value)[0]
        for r in range(n):
            yield _piece(total, at, cut[r], cut[r + 1])
        return
    parts = list(ranks)
    n = len(parts)
    at = axis_of(value, parts[0].ndim)
    if value.kind == "all_gather":
        yield from [to.join(parts, at)] * n
        return
    ends = cuts(value)
    for r in range(n):
        yield to.join([_piece(p, at, e[r], e[r + 1]) for p, e in zip(parts, ends, strict=True)], at)


def cuts(value: Combined) -> list[list[int]]:
    """For each rank the n + 1 boundaries of its operand's pieces, where these are cut."""
    return [[0, *accumulate(share)] for share in value.shares or ()]


def _piece(array: Any, axis: int, start: int, stop: int) -> Any:
    return array[(slice(None),) * axis + (slice(start, stop),)]
