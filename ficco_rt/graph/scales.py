"""Scaled tensors. The scales of tensor X are a tensor X.scales of fp32: what moves a part of X moves its scales as
well, and a product reads both.

The scales are row-major, one for each block of the tensor as it is stored. The columns of blocks of 128 columns are
padded to a multiple of four, so that every row begins at a multiple of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..geometry.region import Axis, Box, BoxMap, Interval, Region
from ..types import ACCUMULATOR, BLOCKS
from . import ir
from .symbolic import FIXED, Algebra, Computed, Pieces, Sum

PAD = 4  # scales: 16 bytes


def name_of(tensor: str) -> str:
    """What the tensor of a tensor's scales is called."""
    return f"{tensor}.scales"


def is_scales(tensor: str) -> bool:
    """Whether a tensor holds the scales of another one: no name in a text has a dot."""
    return "." in tensor


def columns(tensor: ir.Tensor, extent: int) -> int:
    """The scales of a row of so many elements, without padding."""
    assert tensor.scaling is not None
    across = BLOCKS[tensor.scaling][1]
    return -(-extent // across) if across else 1


def tensor_of(tensor: ir.Tensor) -> ir.Tensor:
    """The tensor of a scaled tensor's scales."""
    assert tensor.scaling is not None
    down, across = BLOCKS[tensor.scaling]
    shapes = []
    for *lead, rows, extent in tensor.shapes:
        wide = columns(tensor, extent)
        shapes.append((*lead, -(-rows // down), -(-wide // PAD) * PAD if across else wide))
    return replace(tensor, name=name_of(tensor.name), dtype=ACCUMULATOR, shapes=tuple(shapes), scaling=None)


def region_of(region: Region, tensor: ir.Tensor) -> Region:
    """The scales of a region of whole blocks; the last ones of a row with the padding."""
    assert tensor.scaling is not None
    *lead, rows, cols = region.axes
    down, across = BLOCKS[tensor.scaling]
    extent = tensor.shapes[region.rank][-1]
    made = [Axis(tuple(Interval(s.start // down, -(-s.stop // down)) for s in rows.segments), rows.dropped)]
    if across:
        ends = (-(-s.stop // across) if s.stop < extent else -(-extent // across // PAD) * PAD for s in cols.segments)
        taken = tuple(Interval(s.start // across, stop) for s, stop in zip(cols.segments, ends, strict=True))
        made.append(Axis(taken, cols.dropped))
    else:
        made.append(Axis((Interval(0, 1),) if cols.segments else (), cols.dropped))
    return Region(name_of(region.tensor), region.rank, (*lead, *made))


def cut(region: Region, tensor: ir.Tensor) -> str | None:
    """How a region cuts blocks of a scaled tensor, if it does."""
    assert tensor.scaling is not None
    down, across = BLOCKS[tensor.scaling]
    shape = tensor.shapes[region.rank]
    for what, axis, block, extent in (
        ("rows", region.axes[-2], down, shape[-2]),
        ("columns", region.axes[-1], across or shape[-1], shape[-1]),
    ):
        if axis.dropped and block > 1:
            return f"an index of its {what} cuts a block of {region.tensor}, which is scaled {tensor.scaling}"
        last = len(axis.segments) - 1
        for i, (start, stop) in enumerate(axis.segments):
            ends = stop % block == 0 or (stop == extent and i == last)
            if start % block or not ends:
                at = start if start % block else stop
                if not across and what == "columns":
                    way = "cut its rows alone, or scale it 1x128"
                else:
                    near = {at // block * block, min(extent, -(-at // block) * block)} - {0}
                    way = f"cut {what} at multiples of {block}, such as {min(near)}"
                    if stop == extent and at == stop:
                        way = f"let only the last piece end at {extent}, which is no multiple of {block}"
                return (
                    f"{region} cuts a block of {region.tensor}, which is scaled {tensor.scaling}: its {what} "
                    f"{'start' if start % block else 'end'} at {at}; {way}"
                )
    return None


class Companions:
    """The scales of regions. NOTE equal parts get the same axes: kernels are chosen once for these (`likeness`)."""

    def __init__(self, tensors: Mapping[str, ir.Tensor]) -> None:
        self._tensors = tensors
        self._made: dict[tuple[object, ...], Region] = {}

    def of(self, region: Region) -> Region:
        tensor = self._tensors[region.tensor]
        key = region.tensor, region.axes, tensor.shapes[region.rank]
        if key not in self._made:
            self._made[key] = region_of(region, tensor)
        return self._made[key].on(region.rank)

    def moves(self, body: ir.Body) -> tuple[ir.Body, ...]:
        """What moves the scales beside what a copy or a collective moves, and the body itself."""
        if not isinstance(body, ir.Copy | ir.Collective) or self._tensors[body.src.tensor].scaling is None:
            return (body,)
        return replace(body, dst=self.of(body.dst), src=self.of(body.src)), body


def spread(scales: npt.NDArray[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    """The scale of every element of a matrix, or of several, as an array that multiplies it."""
    *_, rows, across = shape
    if scales.shape[-2] != rows:
        scales = np.repeat(scales, 128, -2)[..., :rows, :]
    return scales if scales.shape[-1] == 1 else np.repeat(scales, 128, -1)[..., :across]


def together(ops: Sequence[ir.Op], tensors: Mapping[str, ir.Tensor]) -> Sequence[ir.Op]:
    """Ops whose copies of scales are joined: in a phase, a rank copies the scales of all pieces that go from one tensor
    to another at once, before the first piece, because a copy costs more than its bytes. Of a tensor that several
    statements quantize, those of each statement, so that the first piece does not wait for the others; but to a further
    rank again all that copies to a rank before it have waited for."""
    touched: dict[tuple[object, ...], dict[int, bool]] = {}  # by phase, rank and tensor: ops, and whether they write it
    groups: dict[tuple[object, ...], dict[frozenset[int], list[int]]] = {}  # by what each begins to wait for
    made: dict[tuple[str, int], BoxMap[int]] = {}  # by tensor and rank: the quantize that wrote an element
    waited: dict[tuple[object, ...], set[int]] = {}  # by phase, rank and source
    before: dict[tuple[object, ...], frozenset[int]] = {}  # … when its first copy to this destination comes
    for i, op in enumerate(ops):
        at = op.where.stage, op.where.phase, op.where.rank
        for regions, writes in ((op.reads, False), (op.writes, True)):
            for region in regions:
                if is_scales(region.tensor):
                    touched.setdefault((*at, region.tensor, region.rank), {})[i] = writes
        if isinstance(op.body, ir.Quantize):
            own = op.body.scales
            held = made.setdefault((own.tensor, own.rank), BoxMap(tensors[own.tensor].shapes[own.rank], -1))
            for box in own.boxes:
                held.update(box, lambda _, i=i: i)  # type: ignore[misc]
        if isinstance(op.body, ir.Copy) and is_scales(op.body.src.tensor):
            dst, src = op.body.dst, op.body.src
            found = made.get((src.tensor, src.rank))
            makers = {maker for box in src.boxes for _, maker in found.items(box)} if found else set()
            source = waited.setdefault((*at, src.tensor, src.rank), set())
            key = *at, dst.tensor, dst.rank, src.tensor, src.rank
            awaited = frozenset(makers - before.setdefault(key, frozenset(source)))
            source |= makers
            groups.setdefault(key, {}).setdefault(awaited, []).append(i)
    if not groups:
        return ops
    joined: dict[int, ir.Op | None] = {}
    for (stage, phase, rank, to, to_rank, of, of_rank), parts in groups.items():
        other = touched[stage, phase, rank, to, to_rank].keys() != {i for members in parts.values() for i in members}
        if other or any(touched[stage, phase, rank, of, of_rank].values()):
            continue
        for members in parts.values():
            copy = _joined([body for i in members if isinstance(body := ops[i].body, ir.Copy)])
            if len(members) > 1 and copy is not None:
                joined |= dict.fromkeys(members)
                joined[members[0]] = replace(ops[members[0]], body=copy)
    left = (joined.get(i, op) for i, op in enumerate(ops))
    return [op for op in left if op is not None]


def _joined(copies: Sequence[ir.Copy]) -> ir.Copy | None:
    """One copy of boxes that fill one box on both sides; None: they do not."""
    if any(len(r.boxes) != 1 or len(r.kept) != len(r.axes) for copy in copies for r in (copy.dst, copy.src)):
        return None
    pairs = {(copy.dst.boxes[0], copy.src.boxes[0]) for copy in copies}
    if len({tuple(a - b for a, b in zip(dst.start, src.start, strict=True)) for dst, src in pairs}) > 1:
        return None
    sides = []
    for boxes in zip(*pairs, strict=True):
        hull = Box(
            tuple(map(min, zip(*(box.start for box in boxes), strict=True))),
            tuple(map(max, zip(*(box.stop for box in boxes), strict=True))),
        )
        if hull.elements != sum(box.elements for box in boxes):
            return None
        sides.append(tuple(Axis((Interval(*ends),)) for ends in zip(hull.start, hull.stop, strict=True)))
    first = copies[0]
    return ir.Copy(*(replace(r, axes=axes) for r, axes in zip((first.dst, first.src), sides, strict=True)))


# ---------------------------------------------------------------- the proof


def belong(algebra: Algebra, operand: Region, values: Pieces, scales: Region, of: Pieces) -> bool:
    """Whether what an operand's scales hold are the scales of what the operand holds."""
    down, across = blocks = algebra.blocks[operand.tensor]
    held: BoxMap[Sum | None] = BoxMap(scales.shape, None)
    for box, value in of:
        algebra.look_at(held.update(box, lambda _, value=value: value))  # type: ignore[misc]
    for box, value in values:
        stop = -(-box.stop[0] // down), -(-box.stop[1] // across) if across else 1
        for inner, found in held.items(Box((box.start[0] // down, box.start[1] // across if across else 0), stop)):
            source = None if found is None else _source(algebra, inner, found)
            taken = Box(
                (inner.start[0] * down, inner.start[1] * across), (inner.stop[0] * down, inner.stop[1] * across)
            )
            part = box.meet(taken) if across else box.meet(Box((taken.start[0], 0), (taken.stop[0], box.stop[1])))
            if source is None or part is None or not _scaled_by(algebra, part, value, source, blocks):
                return False
    return True


def computed(
    algebra: Algebra, out: Region, values: Pieces, scales: Region, how: tuple[object, ...]
) -> tuple[Pieces, Pieces]:
    """These values of a region after they were divided by scales that a statement computes of them, and the scales:
    elements of a tensor of their own, which is the same where values, blocks and what the statement says are."""
    blocks = algebra.blocks[out.tensor]
    plain = [(box, algebra.exact(value)) for box, value in values]
    name = algebra.quantised.setdefault((*((box, id(value)) for box, value in plain), blocks, how), _name(algebra))
    if name not in algebra.computed:
        held: BoxMap[Sum | None] = BoxMap(out.shape, None)
        for box, value in plain:
            algebra.look_at(held.update(box, lambda _, value=value: value))  # type: ignore[misc]
        algebra.computed[name] = Computed(out.shape, held, blocks)
    dims = len(scales.shape)
    divided = [(box, algebra.divided(value, name)) for box, value in values]
    return divided, [(Box((0,) * dims, scales.shape), algebra.element(name, 0, dims))]


def _name(algebra: Algebra) -> str:
    """Of no tensor of a text."""
    return f"#{len(algebra.quantised)}"


_Source: TypeAlias = tuple[str, int, tuple[int, ...], tuple[int, int]]


def _scaled_by(algebra: Algebra, box: Box, value: Sum, of: _Source, blocks: tuple[int, int]) -> bool:
    """Whether a piece of a matrix holds what these scales, of which the piece's first ones are elements, belong to."""
    tensor, _, lead, (row, column) = of
    down, across = blocks
    if value.scales is None:
        source = _source(algebra, box, value)
        if source is None or algebra.blocks.get(source[0]) != blocks:
            return False
        name, held_by, index, (first, left) = source
        if first % down or (across and left % across):
            return False
        return of == (name_of(name), held_by, index, (first // down, left // across if across else 0))
    if value.scales != tensor or algebra.computed[tensor].blocks != blocks:
        return False
    shape, held, _ = algebra.computed[tensor]
    start = *lead, box.start[0] + row * down, box.start[1] + column * across
    stop = *(i + 1 for i in lead), box.stop[0] + row * down, box.stop[1] + column * across
    if min(start) < 0 or any(a > b for a, b in zip(stop, shape, strict=True)):
        return False
    axes = (*((FIXED, i) for i in lead), (0, row * down), (1, column * across))
    return all(
        wanted is not None and algebra.same(box, algebra.exact(value), algebra.moved(wanted, axes))
        for _, wanted in held.items(Box(start, stop))
    )


def _source(algebra: Algebra, box: Box, value: Sum) -> _Source | None:
    """The tensor and rank of the one input that a piece of a matrix holds, the indices of its matrix in that tensor,
    and how far its rows and columns lie behind the piece's; None: it holds something else."""
    if value.products or value.functions or value.opaque:
        return None
    found = algebra.inputs_of(value)
    if len(found) != 1 or found[0][1] != 1:
        return None
    (element, _) = found[0]
    *lead, row, column = element.coordinates
    if any(c.axis != FIXED for c in lead):
        return None
    shifts = []
    for d, c in enumerate((row, column)):
        if c.axis not in (d, FIXED) or (c.axis == FIXED and box.stop[d] - box.start[d] > 1):
            return None
        shifts.append(c.offset - box.start[d] if c.axis == FIXED else c.offset)
    return element.tensor, element.rank, tuple(c.offset for c in lead), (shifts[0], shifts[1])
