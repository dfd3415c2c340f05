"""Host code of `src/sm90_gemm.cu`: the works that it accepts, its tensor maps, and the kernel's parameters.

This module computes numbers and touches no device. To launch the kernel,

1. compile a variant (`variants.SOURCE`, `variants.options`),
2. call `build` with the works' geometry, how K is split, and the flags to be reset,
3. copy `table.constants` into device memory, and `table.scratch_bytes` zeroed bytes after it,
4. encode `maps` in order (cuTensorMapEncodeTiled: 2-D, 128-byte swizzle, zero fill), and
5. launch blocks in the variant's clusters with `parameters(…)`, the kernel's only argument. It may be launched again
   and again, one launch of a table at a time: each leaves the scratch as it found it. After another table's launch on
   its stream it may start early (programmatic stream serialization): the kernel itself waits for what that launch
   writes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple, TypeAlias

import numpy as np

from ...geometry.cells import common
from ...geometry.region import Interval
from ...types import ACCUMULATOR, TYPES
from ..family import Move, TensorMap
from ..signature import Signature
from ..tile_table import WHOLE_K, SplitK, Table, along_blocks, band_of, by_block, shared_table
from ..tiles import DEPTH, Matrix, MatrixWork, depths_of, pieces_of
from .variants import Variant

Spans: TypeAlias = tuple[Interval, ...]

MAX_OPERANDS = 8  # different (left, right, out) triples in one launch
MAX_ADDENDS = 4  # different matrices that addends lie in
PARAMETER_BYTES = 4032  # of 4096 that a launch's may have; with scales of blocks, the maps of the left ones behind them
SCALES = struct.Struct("<4Q")  # struct OperandScales
OPERAND_BYTES = 384  # three tensor maps
INFOS_AT = MAX_OPERANDS * OPERAND_BYTES
INFO = struct.Struct("<2Q3Ii")  # struct OperandInfo of `src/tiles.h`
POINTERS_AT = INFOS_AT + MAX_OPERANDS * INFO.size
POINTERS = struct.Struct("<9Q2i3Q2iQi")  # of struct MappedParameters, from `table` to `lockstep`
ADDEND_MAPS_AT = 3456
SCALES_AT = ADDEND_MAPS_AT + 2 * 128
FIRST_GRID = struct.Struct("<13i")
FIRST_GRID_AT = ADDEND_MAPS_AT + MAX_ADDENDS * 128


class FirstGrid(NamedTuple):
    """Where the clusters' first tiles read, by the cluster's number: struct FirstGrid of `src/tiles.h`."""

    left_row: int
    right_col: int
    left_k: int
    right_k: int
    steps: int
    rows: int
    columns: int
    band: int
    parts: int
    left_rows: int
    right_rows: int
    last_row: int
    last_col: int

    def tiles(self, v: Variant, blocks: int, deep: int) -> list[tuple[int, int, int, int, int]]:
        """What the kernel makes of it for each block: left row, right column, steps of K, and where K starts."""
        found = []
        for block in range(blocks):
            number, me = divmod(block, v.cluster)
            if v.parts > 1:
                number, part = divmod(number, self.parts)
            else:
                part, number = divmod(number, self.rows * self.columns)
            low, high = (self.steps * n // self.parts for n in (part, part + 1))
            first = number // (self.band * self.columns) * self.band
            tall, within = min(self.band, self.rows - first), number - first * self.columns
            row, column = first + within % tall, within // tall
            row, column = (row, column * v.cluster + me) if v.shares_left else (row * v.cluster + me, column)
            at = (
                self.left_row + min(row * v.tile[0], self.last_row),
                self.right_col + min(column * v.tile[1], self.last_col),
            )
            found.append((*at, high - low, self.left_k + deep * low, self.right_k + deep * low))
        return found


def first_grid(
    made: Table, works: Sequence[MatrixWork], v: Variant, signature: Signature, clusters: int, band: int | None
) -> FirstGrid | None:
    """The first tiles of so many clusters, if a cluster's number tells them: of the first work, or in one row of tiles,
    that wait for nothing, in one piece of K, in the table's order. None: the blocks must read the table."""
    tiles = made.tiles[: clusters * v.cluster]
    start, depth = tiles[0], made.depths[tiles["k_first"]]
    if made.matrices or made.depth_waits["count"].any() or tiles["wait_count"].any() or tiles["operands"].any():
        return None
    parts, wide = int(start["splits"]), int((tiles["split"] == 0).sum()) // v.cluster
    high, across = (
        ceil(sum(ceil(n / side) for *_, n in axis) * side / together)
        for axis, side, together in zip(pieces_of(works[0], signature.transposed), v.tile, v.cluster_tile, strict=True)
    )
    high, wide = (1, wide) if len(works) > 1 and high * across < wide else (high, across)
    found = FirstGrid(
        left_row=int(start["left_row"]),
        right_col=int(start["right_col"]),
        left_k=int(depth["left"][0]),
        right_k=int(depth["right"][0]),
        steps=int(tiles["k_blocks"][:: 1 if v.parts > 1 else high * wide * v.cluster][:parts].sum()),
        rows=high,
        columns=wide,
        band=band or max(1, min(high, band_of(clusters, v.cluster_tile))),
        parts=parts,
        left_rows=made.operands[0][0].rows,
        right_rows=made.operands[0][1].rows,
        last_row=int(tiles["left_row"].max() - start["left_row"]),
        last_col=int(tiles["right_col"].max() - start["right_col"]),
    )
    wanted = np.stack([tiles["left_row"], tiles["right_col"], tiles["k_blocks"], depth["left"], depth["right"]], 1)
    there = (tiles["rows"] > 0) & (tiles["cols"] > 0)  # a neighbour with nothing to store may read anywhere
    told = np.array(found.tiles(v, len(tiles), signature.step))
    whole = (depth["blocks"] == tiles["k_blocks"]).all() and (depth["size"] > 0).all()
    whole &= found.steps * parts <= 1 << 20  # the kernel divides by a reciprocal in fp32
    return found if whole and np.array_equal(told[there], wanted[there]) else None


@dataclass(frozen=True, slots=True)
class PackedLaunch:
    """A launch, complete except for device addresses."""

    variant: Variant
    table: Table
    stages: int
    signature: Signature
    maps: tuple[TensorMap, ...]
    read_only: tuple[bool, bool]  # see `build`
    first: FirstGrid | None
    lockstep: bool  # see `build`

    def moved(self, move: Move) -> PackedLaunch:
        """The launch for tensors that lie elsewhere."""
        maps = tuple([replace(m, address=move(m.address)) for m in self.maps])
        operands = tuple([
            (_scaled_at(a, move), _scaled_at(b, move), replace(out, address=move(out.address)))
            for a, b, out in self.table.operands
        ])  # fmt: skip
        return replace(self, maps=maps, table=replace(self.table, operands=operands))

    def parameters(
        self, constants: int, scratch: int, encoded: Sequence[bytes], epoch: int = 0, abort: int = 0,
        partials: int | None = None,
    ) -> bytes:  # fmt: skip
        """The kernel's argument. `encoded` are `maps`, encoded; `epoch` and `abort` addresses of 32-bit words or 0:
        an up flag holds at least *epoch (else 1); waiting ends when *abort is not 0. `partials`: see `Table.pointers`.
        """
        table, v = self.table, self.variant
        block = bytearray(PARAMETER_BYTES + (128 * MAX_OPERANDS if self.signature.blocks else 0))
        left, right = self.read_only
        for m, data in zip(self.maps, encoded, strict=True):
            block[m.offset : m.offset + 128] = data
        for i, (_, _, out) in enumerate(table.operands):
            # rows that the left box lacks
            short = 0 if self.signature.left_transposed else v.tile[0] - self.maps[3 * i].box[1] * v.left_boxes
            loaded = v.loaded_bytes(self.signature.right_transposed) - 128 * short
            scaled = 4 * (v.tile[0] - short) * v.scale_steps if self.signature.blocks else 0
            info = out.address, out.pitch, loaded, scaled, right + 2 * left, out.rows
            INFO.pack_into(block, INFOS_AT + i * INFO.size, *info)
        POINTERS.pack_into(
            block, POINTERS_AT, *table.pointers(constants, scratch, epoch, abort, partials), len(table.tiles),
            self.stages, *table.addend_pointers(constants), *table.resetting(scratch),
            table.depth_wait_pointer(constants), self.lockstep,
        )  # fmt: skip
        if self.first is not None:
            FIRST_GRID.pack_into(block, FIRST_GRID_AT, *self.first)
        for i, (a, b, _) in enumerate(table.operands):
            if a.scales and b.scales:
                at = SCALES_AT + i * SCALES.size
                SCALES.pack_into(block, at, a.scales.address, b.scales.address, a.scales.pitch, b.scales.pitch)
        return bytes(block)


def _scaled_at(matrix: Matrix, move: Move) -> Matrix:
    scales = matrix.scales
    return matrix if scales is None else replace(matrix, scales=replace(scales, address=move(scales.address)))


def refusal(works: Sequence[MatrixWork], signature: Signature) -> str | None:
    """Why these works cannot be one launch of this kernel, or None."""
    dtype, out_dtype = signature.dtype, signature.out_dtype
    if dtype == ACCUMULATOR:
        return f"operands are {dtype}"
    ends = _ends(works, signature)
    for w in works:
        reason = fits(w, signature)
        if reason is not None:
            return reason
        for a, b, n in common(*depths_of(w, *signature.transposed)):
            if n % signature.step and (a + n != ends[w.left] or b + n != ends[w.right]):
                return f"a piece of K of {n} elements ends before another of the same operand"
    if len({(w.left, w.right, w.out) for w in works}) > MAX_OPERANDS:
        return f"more than {MAX_OPERANDS} different triples of operands in one launch"
    if signature.factor:
        return f"{signature.function} has a factor; apply it by a reduce to what the gemm stores"
    addends = [t for w in works for t in w.addends]
    most, added = (2, out_dtype) if signature.fp8 else (MAX_ADDENDS, dtype)
    if addends and (out_dtype != added or out_dtype == ACCUMULATOR):
        return f"addends are added, and the output is {out_dtype}"
    for t in addends:
        if t.dtype != added:
            return f"operands are {dtype}, an addend is {t.dtype}"
    if len({t.operand.matrix for t in addends}) > most:
        return f"addends in more than {most} different matrices in one launch"
    return None


def _ends(works: Sequence[MatrixWork], signature: Signature) -> dict[Matrix, int]:
    """Where K ends in each operand: a piece of K may end anywhere if the tensor map ends there too."""
    ends: dict[Matrix, int] = {}
    for w in works:
        for matrix, spans in zip((w.left, w.right), depths_of(w, *signature.transposed), strict=True):
            ends[matrix] = max(ends.get(matrix, 0), *(s.stop for s in spans))
    return ends


def fits(work: MatrixWork, signature: Signature) -> str | None:
    """Why the work cannot run here, or None. Rows of the output are free; the rest has the limits of TMA."""
    item, out_item, right_transposed = signature.item, signature.out_item, signature.right_transposed
    if signature.fp8:
        reason = _fp8_refusal(work, signature)
        if reason is not None:
            return reason
    for name, matrix, bytes_ in (("left", work.left, item), ("right", work.right, item), ("out", work.out, out_item)):
        if matrix.address % 16 or matrix.pitch * bytes_ % 16:
            return f"the {name} operand's address or pitch is no multiple of 16 bytes"
    for t in work.addends:
        if t.operand.matrix.address % 16 or t.operand.matrix.pitch * t.item % 16:
            return "an addend's address or pitch is no multiple of 16 bytes"
        if any(s.start % 8 or s.size % 8 for s in t.operand.columns):
            return "an addend's columns do not start and end at multiples of 8"
    for s in work.out_columns if right_transposed else (*work.out_columns, *work.right_columns):
        if s.start % 8 or s.size % 8:
            return f"columns {s.start}:{s.stop} do not start and end at multiples of 8"
    # NOTE TMA stops with an illegal instruction where a box starts inside 16 bytes
    if signature.left_transposed and any(start % 8 for start, *_ in pieces_of(work, signature.transposed)[0]):
        return "a piece of the transposed left operand's columns does not start at a multiple of 8"
    fine = max(8, 16 // item)
    for a, b, n in common(*depths_of(work, *signature.transposed)):
        if (a % fine and not signature.left_transposed) or (b % fine and right_transposed):
            return f"a piece of K does not start at a multiple of {fine}; let pieces of K start at multiples of 64"
        if n % signature.step and len(common(*depths_of(work, *signature.transposed))) > 1:
            return f"one of several pieces of K has {n} elements, no multiple of {signature.step}"
    return None


def _fp8_refusal(work: MatrixWork, signature: Signature) -> str | None:
    """What of fp8 operands Hopper's tensor cores do not multiply, or this kernel does not scale."""
    left, right = signature.dtype, signature.right_dtype or signature.dtype
    if signature.left_transposed or not signature.right_transposed:
        if signature.left_transposed:
            return "fp8 operands lie along K, and the left one is stored transposed; store it [M, K]"
        return (
            "fp8 operands lie along K, and the right one is stored [K, N]; store it [N, K], declared 'transposed' (in "
            "shipped schedules: --set transb=1)"
        )
    if left == right == "fp8_e5m2":
        return "both operands are fp8_e5m2"
    if TYPES[signature.out_dtype].bytes == 1:
        return f"the output is {signature.out_dtype}; let bf16, fp16 or fp32 hold the product, and quantize that"
    if signature.scaling and not (work.left.scales and work.right.scales):
        return f"operands are scaled {signature.scaling}, and one has no scales"
    if signature.scaling == "1x128" and signature.fast:
        return "scales of blocks are applied in fp32, so that fast has no meaning"
    if signature.scaling != "1x128":
        return None
    for scales, item in ((work.left.scales, 16), (work.right.scales, 4)):
        if scales and (scales.address % item or 4 * scales.pitch % item):
            return f"an operand's scales start at no multiple of {item} bytes, or their rows do"
    for a, b, _ in common(*depths_of(work, *signature.transposed)):
        if a % 128 or b % 128:
            return "a piece of K starts inside a block of 128 that has one scale; let it start at a multiple of 128"
    if any(columns % 128 for columns, *_ in common(work.right_rows, work.out_columns)):
        return "a piece of columns starts inside a block of 128 that has one scale; let it start at a multiple of 128"
    return None


def build(
    works: Sequence[MatrixWork],
    variant: Variant,
    signature: Signature,
    *,
    clusters: int,
    stages: int,
    split_k: SplitK = WHOLE_K,
    band: int | None = None,
    level: tuple[bool, bool] = (False, False),
    lockstep: bool = False,
    read_only: tuple[bool, bool] = (False, False),
    resets: Sequence[int] = (),
) -> PackedLaunch:
    """The launch that makes `works`, in their order, with so many clusters at work at once; see `tile_table.table`.

    `lockstep`: whether each cluster waits at each of its tiles until all have begun as many; not for long.
    `read_only`: whether nothing writes the left operands, and the right operands, while the plan runs. A read-only
    operand may load before the previous launch ends; a read-only right operand also loads before the flags of its works
    are up. `resets`: flags that the launch resets. There are none where a work accumulates, because its storing warps
    wait for flags too.
    """
    reason = refusal(works, signature)
    if reason is not None:
        raise ValueError(reason)
    if signature.left_transposed:
        works = along_blocks(works, signature.item)
    else:
        works = by_block(works, signature.item, signature.out_item, lambda found: refusal(found, signature) is None)
    assert not (resets and any(w.accumulate for w in works))
    assert not (variant.swapped and any(w.accumulate or w.addends for w in works))
    made = shared_table(
        works,
        variant.tile,
        variant.warps,
        signature.transposed,
        groups=clusters,
        cluster=variant.cluster,
        across=variant.shares_left,
        split_k=split_k if variant.parts == 1 or split_k == WHOLE_K else SplitK(variant.parts),
        shared=True,
        band=band,
        addend_steps=variant.addend_steps,
        addend_gap=0 if signature.fp8 else variant.addend_gap,
        serpentine=True,
        together=variant.parts > 1,
        resets=tuple(resets),
        step=signature.step,
        # NOTE rows that are there end elsewhere, where they lie in several blocks
        level=(False, False) if any(w.left.block or w.out.block for w in works) else level,
    )
    ends = _ends(works, signature)
    if signature.left_transposed:  # with the rows that are there
        ends = {m: end if m.block is None else min(end, m.rows) for m, end in ends.items()}
    maps: list[TensorMap] = []
    for i, key in enumerate(made.operands):
        maps += _maps(key, variant, signature, ends, i * OPERAND_BYTES)
    box = (64, variant.tile[0] // variant.addend_steps)
    for i, m in enumerate(made.matrices):
        at = ADDEND_MAPS_AT + 128 * i
        dtype = signature.out_dtype if signature.fp8 else signature.dtype
        maps.append(TensorMap(m.address, dtype, (m.columns, m.rows), m.pitch * TYPES[dtype].bytes, box, at))
    for i, (left, _, _) in enumerate(made.operands):
        if left.scales and signature.blocks:
            s, steps, high = left.scales, variant.scale_steps, maps[3 * i].box[1] * variant.left_boxes
            dims, at, swizzle = (-(-ends[left] // 128), left.rows), PARAMETER_BYTES + 128 * i, 64 if steps == 16 else 0
            maps.append(TensorMap(s.address, ACCUMULATOR, dims, s.pitch * 4, (steps, high), at, swizzle))
    return PackedLaunch(
        variant=variant,
        table=made,
        stages=stages,
        signature=signature,
        maps=tuple(maps),
        # NOTE a left operand that is not waited for is not waited for along K either
        read_only=(read_only[0] and not any(w.depth_waits for w in works), read_only[1]),
        first=first_grid(made, works, variant, signature, clusters, band),
        lockstep=lockstep,
    )


def _maps(
    key: tuple[Matrix, Matrix, Matrix], variant: Variant, signature: Signature, ends: dict[Matrix, int], at: int
) -> list[TensorMap]:
    left, right, out = key
    rows, columns = variant.tile
    dtype, item, out_item = signature.dtype, signature.item, signature.out_item
    if signature.left_transposed:  # an atom of 64 rows of the product at a time
        left_dims, left_box = (left.columns, ends[left]), (64, DEPTH)
    else:  # NOTE no more rows than there are: rows outside cost as much as others, and are not stored
        high = min(rows // variant.left_boxes, -(-left.rows // 8) * 8)
        left_dims, left_box = (ends[left], left.rows), (signature.step, high)
    if signature.right_transposed:
        right_dims, right_box = (ends[right], right.rows), (signature.step, variant.right_slice)
    else:  # whole atoms for each block of the cluster, or a part of the depth of each
        deep = DEPTH if -(-columns // 64) % variant.cluster == 0 else DEPTH // variant.cluster
        right_dims, right_box = (right.columns, ends[right]), (64, deep)
    out_dims, out_box = (out.columns, out.rows), (128 // out_item, variant.box_rows(signature))
    return [
        TensorMap(left.address, dtype, left_dims, left.pitch * item, left_box, at),
        TensorMap(right.address, signature.right_dtype or dtype, right_dims, right.pitch * item, right_box, at + 128),
        TensorMap(out.address, signature.out_dtype, out_dims, out.pitch * out_item, out_box, at + 256),
    ]
