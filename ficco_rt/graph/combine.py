"""Applies collectives to symbolic values, for the vendors' operations and for `computes` lines alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ..geometry.region import Box
from . import ir
from .symbolic import Algebra, Pieces, added

Array: TypeAlias = tuple[Pieces, tuple[int, ...]]  # logical, with its shape


def equal_shares(extent: int, ranks: int) -> tuple[int, ...]:
    """Equal pieces of an extent."""
    return tuple((i + 1) * extent // ranks - i * extent // ranks for i in range(ranks))


def combine(
    algebra: Algebra,
    kind: ir.CollectiveKind,
    arrays: Sequence[Array],
    axis: int,
    shares: tuple[tuple[int, ...], ...] | None,
) -> list[Array]:
    """What every rank holds after a collective of the ranks' values along `axis`."""
    ranks, shape = len(arrays), arrays[0][1]
    if kind == "all_gather":
        return [_concatenated(algebra, arrays, axis)] * ranks
    if kind == "all_to_all":
        assert shares is not None
        cut = list(zip(arrays, shares, strict=True))
        taken = ([_taken(algebra, array, axis, lengths, r) for array, lengths in cut] for r in range(ranks))
        return [_concatenated(algebra, parts, axis) for parts in taken]
    total = (added(algebra, [pieces for pieces, _ in arrays], shape), shape)
    if kind == "all_reduce":
        return [total] * ranks
    assert shares is not None
    return [_taken(algebra, total, axis, shares[0], r) for r in range(ranks)]


def _with(shape: Sequence[int], axis: int, n: int) -> tuple[int, ...]:
    """The shape with another extent along an axis."""
    return (*shape[:axis], n, *shape[axis + 1 :])


def _offset(algebra: Algebra, pieces: Pieces, axis: int, by: int, dims: int) -> Pieces:
    """Pieces moved `by` along an axis."""
    axes = tuple((d, -by if d == axis else 0) for d in range(dims))

    def moved(at: tuple[int, ...]) -> tuple[int, ...]:
        return _with(at, axis, at[axis] + by)

    return [(Box(moved(box.start), moved(box.stop)), algebra.moved(value, axes)) for box, value in pieces]


def _concatenated(algebra: Algebra, arrays: Sequence[Array], axis: int) -> Array:
    out: Pieces = []
    at = 0
    for pieces, shape in arrays:
        out.extend(_offset(algebra, pieces, axis, at, len(shape)))
        at += shape[axis]
    return out, _with(arrays[0][1], axis, at)


def _taken(algebra: Algebra, array: Array, axis: int, lengths: Sequence[int], index: int) -> Array:
    """Piece `index` of an array cut into `lengths`, in coordinates of its own."""
    pieces, shape = array
    start = sum(lengths[:index])
    algebra.look_at(1 + index // 64 + len(pieces))
    window = Box(_with((0,) * len(shape), axis, start), _with(shape, axis, start + lengths[index]))
    kept = [(met, value) for box, value in pieces if (met := box.meet(window)) is not None]
    return _offset(algebra, kept, axis, -start, len(shape)), _with(shape, axis, lengths[index])
