"""Applies collectives to symbolic values, for the vendors' operations and for `computes` lines alike."""

from __future__ import annotations

from collections.abc import Sequence

from ..geometry.region import Box
from . import ir
from .symbolic import Algebra, Pieces, added


def equal_shares(extent: int, ranks: int) -> tuple[int, ...]:
    """Equal pieces of an extent."""
    return tuple((i + 1) * extent // ranks - i * extent // ranks for i in range(ranks))


def combine(
    algebra: Algebra,
    kind: ir.CollectiveKind,
    values: Sequence[Pieces],
    shapes: Sequence[tuple[int, ...]],
    axis: int,
    shares: tuple[tuple[int, ...], ...] | None,
) -> list[tuple[Pieces, tuple[int, ...]]]:
    """What every rank holds after a collective of the ranks' values along `axis`."""
    ranks = len(values)
    if kind == "all_gather":
        gathered = _concatenated(algebra, values, shapes, axis)
        return [gathered] * ranks
    if kind in ("all_reduce", "reduce_scatter"):
        total = added(algebra, list(values), shapes[0])
        if kind == "all_reduce":
            return [(total, shapes[0])] * ranks
        assert shares is not None
        return [_taken(algebra, total, shapes[0], axis, shares[0], r) for r in range(ranks)]
    assert shares is not None
    out = []
    for r in range(ranks):
        parts = [_taken(algebra, values[p], shapes[p], axis, shares[p], r) for p in range(ranks)]
        out.append(_concatenated(algebra, [p for p, _ in parts], [s for _, s in parts], axis))
    return out


def _with(shape: Sequence[int], axis: int, n: int) -> tuple[int, ...]:
    """The shape with another extent along an axis."""
    return (*shape[:axis], n, *shape[axis + 1 :])


def _offset(algebra: Algebra, pieces: Pieces, axis: int, by: int, dims: int) -> Pieces:
    """Pieces moved `by` along an axis."""
    axes = tuple((d, -by if d == axis else 0) for d in range(dims))

    def moved(at: tuple[int, ...]) -> tuple[int, ...]:
        return _with(at, axis, at[axis] + by)

    return [(Box(moved(box.start), moved(box.stop)), algebra.moved(value, axes)) for box, value in pieces]


def _concatenated(
    algebra: Algebra, values: Sequence[Pieces], shapes: Sequence[tuple[int, ...]], axis: int
) -> tuple[Pieces, tuple[int, ...]]:
    out: Pieces = []
    at = 0
    for pieces, shape in zip(values, shapes, strict=True):
        out.extend(_offset(algebra, pieces, axis, at, len(shape)))
        at += shape[axis]
    return out, _with(shapes[0], axis, at)


def _taken(
    algebra: Algebra, pieces: Pieces, shape: tuple[int, ...], axis: int, lengths: Sequence[int], index: int
) -> tuple[Pieces, tuple[int, ...]]:
    """Piece `index` of an array cut into `lengths`, in coordinates of its own."""
    start = sum(lengths[:index])
    algebra.look_at(1 + index // 64 + len(pieces))
    window = Box(_with((0,) * len(shape), axis, start), _with(shape, axis, start + lengths[index]))
    kept = [(met, value) for box, value in pieces if (met := box.meet(window)) is not None]
    return _offset(algebra, kept, axis, -start, len(shape)), _with(shape, axis, lengths[index])
