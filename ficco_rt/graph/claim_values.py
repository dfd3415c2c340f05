"""Checks that the parts of a claim fit together, and computes its shapes, for claims of a text or of a stored plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TypeAlias

from ..geometry.region import Region, shape_words
from .functions import FUNCTIONS
from .ir import Added, Applied, Claim, ClaimValue, Combined, Operand, Product

Shapes: TypeAlias = tuple[tuple[int, ...], ...]  # one a rank


class Misfit(Exception):
    """What does not fit."""


def parts(value: ClaimValue) -> tuple[ClaimValue, ...]:
    """The values that a value is made of."""
    match value:
        case Operand():
            return ()
        case Product() | Added():
            return value.left, value.right
        case Applied():
            return value.arguments
        case Combined():
            return (value.operand,)


def walk(value: ClaimValue) -> Iterator[ClaimValue]:
    """A value and all that it is made of."""
    yield value
    for part in parts(value):
        yield from walk(part)


def operands(value: ClaimValue) -> Iterator[Operand]:
    """All operands that the value is made of."""
    return (part for part in walk(value) if isinstance(part, Operand))


def functions(value: ClaimValue) -> list[Applied]:
    """The functions that are applied in a value."""
    return [part for part in walk(value) if isinstance(part, Applied)]


def finished(value: ClaimValue) -> list[Applied]:
    """The functions of finished sums; not those whose value is multiplied."""
    return functions(value) if isinstance(_moved(value), Applied) else []


def check_functions(value: ClaimValue) -> None:
    """Raises Misfit unless functions are applied last, but for what moves their values, or to inputs whose value is
    multiplied."""
    value = _moved(value)
    for part in (value,) if isinstance(value, Product) else parts(value):
        _see_inside(part)


def _see_inside(value: ClaimValue) -> None:
    for part in map(_moved, parts(value)) if isinstance(value, Product) else ():
        if not isinstance(part, Applied):
            _see_inside(part)
        elif any(isinstance(inner, Product | Applied) for argument in part.arguments for inner in walk(argument)):
            raise Misfit(f"{part.function} of a product or a function is multiplied; the proof follows one of inputs")
    if isinstance(value, Applied):
        raise Misfit(f"{value.function} is applied to a finished sum; its value is not added or reduced")
    for part in () if isinstance(value, Product) else parts(value):
        _see_inside(part)


def _moved(value: ClaimValue) -> ClaimValue:
    """What collectives move that add nothing."""
    while isinstance(value, Combined) and value.kind in ("all_gather", "all_to_all"):
        value = value.operand
    return value


def regions_of(claim: Claim) -> Iterator[Region]:
    """All regions of a claim, its targets first."""
    return chain(claim.targets, *(operand.regions for operand in operands(claim.value)))


def transposed(value: ClaimValue) -> ClaimValue:
    """The value's transpose, for values that are matrices. Raises Misfit."""
    match value:
        case Operand(regions=regions) if len(regions[0].shape) == 1:
            raise Misfit(f"{regions[0].tensor} is added to every row of what is stored transposed")
        case Operand():
            return replace(value, transposed=not value.transposed)
        case Product(left=left, right=right):
            return Product(transposed(right), transposed(left))
        case Added(left=left, right=right):
            return Added(transposed(left), transposed(right))
        case Applied(arguments=arguments):
            return replace(value, arguments=tuple(map(transposed, arguments)))
        case Combined():
            return replace(value, operand=transposed(value.operand), axis=1 - value.axis)


def misfit(claim: Claim, kinds: Mapping[str, str]) -> str | None:
    """What does not fit in a claim whose targets do, or None. `kinds` are those of the tensors."""
    try:
        check_functions(claim.value)
        shapes = shapes_of(claim.value, len(claim.targets), kinds)
    except Misfit as error:
        return str(error)
    for target, shape in zip(claim.targets, shapes, strict=True):
        if target.shape != shape:
            return (
                f"the value is {shape_words(shape)} on rank {target.rank}, but {target} is {shape_words(target.shape)}"
            )
    return None


def shapes_of(value: ClaimValue, ranks: int, kinds: Mapping[str, str]) -> Shapes:
    """The shape of a claim's value on each rank; `kinds` are those of the tensors. For claims that fit (`misfit`)."""
    match value:
        case Operand(regions=regions, transposed=transposed):
            if [r.rank for r in regions] != list(range(ranks)) or len({r.tensor for r in regions}) > 1:
                raise Misfit("an operand is not one tensor's, with one region a rank")
            if kinds[regions[0].tensor] != "input":
                raise Misfit(f"{regions[0].tensor} is no input; a claim speaks of inputs")
            if len({len(r.shape) for r in regions}) > 1 or (transposed and len(regions[0].shape) != 2):
                raise Misfit(f"{regions[0].tensor} has not the dimensions of an operand")
            return tuple(r.shape[::-1] if transposed else r.shape for r in regions)
        case Product(left=left, right=right):
            return product_shapes(shapes_of(left, ranks, kinds), shapes_of(right, ranks, kinds))
        case Added(left=left, right=right):
            return sum_shapes(shapes_of(left, ranks, kinds), shapes_of(right, ranks, kinds))
        case Applied(function=function, arguments=arguments):
            return applied_shapes(function, [shapes_of(a, ranks, kinds) for a in arguments])
        case Combined():
            return combined_shapes(value, shapes_of(value.operand, ranks, kinds))


def product_shapes(left: Shapes, right: Shapes) -> Shapes:
    """The shape of a product on each rank. Raises Misfit."""
    for rank, (a, b) in enumerate(zip(left, right, strict=True)):
        if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
            raise Misfit(f"{shape_words(a)} times {shape_words(b)} on rank {rank} is no matrix product")
    return tuple((a[0], b[1]) for a, b in zip(left, right, strict=True))


def sum_shapes(left: Shapes, right: Shapes) -> Shapes:
    """The shape of a sum on each rank. Raises Misfit."""
    for rank, (a, b) in enumerate(zip(left, right, strict=True)):
        if b != (a[-1:] if len(b) == 1 else a):
            raise Misfit(f"{shape_words(a)} plus {shape_words(b)} on rank {rank}: neither of one shape, nor one row")
    return left


def applied_shapes(function: str, arguments: Sequence[Shapes]) -> Shapes:
    """The shape of a function's value on each rank. Raises Misfit."""
    if len(arguments) != 1 + FUNCTIONS[function].factor:
        raise Misfit(f"{function} has {len(arguments)} arguments")
    for rank, shapes in enumerate(zip(*arguments, strict=True)):
        if len(set(shapes)) > 1:
            raise Misfit(f"{function} of {' and '.join(map(shape_words, shapes))} on rank {rank}: the shapes differ")
    return arguments[0]


def combined_shapes(value: Combined, shapes: Shapes) -> Shapes:
    """The shape of a collective's value on each rank, for operands of these shapes. Raises Misfit."""
    ranks, dims, kind = len(shapes), len(shapes[0]), value.kind
    if not 0 <= value.axis < min(dims, 2):
        raise Misfit(f"{kind} along axis {value.axis} of {dims} dimensions")
    at = axis_of(value, dims)
    summed = kind in ("all_reduce", "reduce_scatter")
    for rank, s in enumerate(shapes):
        if len(s) != dims or any(
            a != b for d, (a, b) in enumerate(zip(s, shapes[0], strict=True)) if summed or d != at
        ):
            raise Misfit(f"{shape_words(shapes[0])} on rank 0 and {shape_words(s)} on rank {rank} do not fit")
    lengths = [s[at] for s in shapes]
    if kind in ("all_reduce", "all_gather"):
        if value.shares is not None:
            raise Misfit(f"{kind} is not cut into shares")
        own = lengths if kind == "all_reduce" else [sum(lengths)] * ranks
    else:
        shares = value.shares or ()
        if [(len(s), sum(s)) for s in shares] != [(ranks, n) for n in lengths] or any(min(s) < 0 for s in shares):
            raise Misfit(f"{kind}: the shares are not a cut of {', '.join(map(str, lengths))} for each rank")
        if kind == "reduce_scatter" and len(set(shares)) > 1:
            raise Misfit("reduce_scatter: the ranks' shares differ")
        own = [sum(s[r] for s in shares) if kind == "all_to_all" else shares[0][r] for r in range(ranks)]
    return tuple((*s[:at], n, *s[at + 1 :]) for s, n in zip(shapes, own, strict=True))


def axis_of(value: Combined, dims: int) -> int:
    """Along which of its operand's dimensions a collective goes: an axis is one of the last two, or the only one."""
    return dims - 2 + value.axis if dims > 1 else 0
