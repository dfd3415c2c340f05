"""Do a stored claim's parts fit together? What `graph/claims.py` makes of a text always does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from ..geometry.region import Region, shape_words
from ..graph.ir import Claim, ClaimValue, Combined, Operand, Product

Shapes: TypeAlias = tuple[tuple[int, ...], ...]  # one a rank


class _Misfit(Exception):
    """What does not fit."""


def operands(value: ClaimValue) -> Iterator[Region]:
    """All regions that the value is made of."""
    match value:
        case Operand():
            yield from value.regions
        case Product():
            yield from operands(value.left)
            yield from operands(value.right)
        case Combined():
            yield from operands(value.operand)


def misfit(claim: Claim, kinds: Mapping[str, str]) -> str | None:
    """What does not fit in a claim whose targets do, or None. `kinds` are those of the tensors."""
    try:
        shapes = shapes_of(claim.value, len(claim.targets), kinds)
    except _Misfit as error:
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
                raise _Misfit("an operand is not one tensor's, with one region a rank")
            if kinds[regions[0].tensor] != "input":
                raise _Misfit(f"{regions[0].tensor} is no input; a claim speaks of inputs")
            if len({len(r.shape) for r in regions}) > 1 or (transposed and len(regions[0].shape) != 2):
                raise _Misfit(f"{regions[0].tensor} has not the dimensions of an operand")
            return tuple(r.shape[::-1] if transposed else r.shape for r in regions)
        case Product(left=left, right=right):
            pairs = tuple(zip(shapes_of(left, ranks, kinds), shapes_of(right, ranks, kinds), strict=True))
            for a, b in pairs:
                if len(a) != 2 or len(b) != 2 or a[1] != b[0]:
                    raise _Misfit(f"{shape_words(a)} times {shape_words(b)} is no matrix product")
            return tuple((a[0], b[1]) for a, b in pairs)
        case Combined():
            return _combined(value, shapes_of(value.operand, ranks, kinds))


def _combined(value: Combined, shapes: Shapes) -> Shapes:
    ranks, dims, kind = len(shapes), len(shapes[0]), value.kind
    if not 0 <= value.axis < min(dims, 2):
        raise _Misfit(f"{kind} along axis {value.axis} of {dims} dimensions")
    at = dims - 2 + value.axis if dims > 1 else 0
    summed = kind in ("all_reduce", "reduce_scatter")
    if len({s if summed else (*s[:at], *s[at + 1 :]) for s in shapes}) > 1:
        raise _Misfit(f"{kind} of {', '.join(map(shape_words, shapes))}: the ranks do not fit")
    lengths = [s[at] for s in shapes]
    if kind in ("all_reduce", "all_gather"):
        if value.shares is not None:
            raise _Misfit(f"{kind} is not cut into shares")
        own = lengths if kind == "all_reduce" else [sum(lengths)] * ranks
    else:
        shares = value.shares or ()
        if [(len(s), sum(s)) for s in shares] != [(ranks, n) for n in lengths] or any(min(s) < 0 for s in shares):
            raise _Misfit(f"{kind}: the shares are not a cut of {', '.join(map(str, lengths))} for each rank")
        if kind == "reduce_scatter" and len(set(shares)) > 1:
            raise _Misfit("reduce_scatter: the ranks' shares differ")
        own = [sum(s[r] for s in shares) if kind == "all_to_all" else shares[0][r] for r in range(ranks)]
    return tuple((*s[:at], n, *s[at + 1 :]) for s, n in zip(shapes, own, strict=True))
