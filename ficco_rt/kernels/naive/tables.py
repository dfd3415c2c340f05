"""Host code of `src/naive.cu`: packs works into the tables that its kernels read."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...geometry.cells import Cell, cells, strides
from ...geometry.region import Axis
from ...types import TYPES
from ..family import TileWorks
from ..works import Copy, Product, Sum, View

TILE, DEPTH = 128, 32
THREADS, COPY_THREADS = 256, 512
SUM_TILE = 2 * THREADS  # accesses a tile

# The structs of `src/works.h`
GEMM = struct.Struct("<9q26i")
REDUCE = struct.Struct("<4q12i")
ADDEND = struct.Struct("<3q6i")
COPY = struct.Struct("<4q10i")
TERM = struct.Struct("<Qqii")
RUN = struct.Struct("<2q")
FLAG = struct.Struct("<Q")
TABLE = struct.Struct("<5Q6i")


@dataclass(slots=True)
class Packed:
    """The works of a launch, as they are put together."""

    works: bytearray = field(default_factory=bytearray)
    terms: bytearray = field(default_factory=bytearray)
    runs: bytearray = field(default_factory=bytearray)
    flags: bytearray = field(default_factory=bytearray)
    count: int = 0
    tiles: int = 0
    of_works: list[int] = field(default_factory=list)  # tiles of each work
    counters: int = 2  # words: tickets, ended blocks, one a work
    waits: bool = False
    signals: bool = False
    resets: tuple[int, int] = (0, 0)  # the first of the flags that the launch resets, and how many

    def sync(self, work: Product | Sum | Copy) -> tuple[int, int, int, int]:
        """The work's flags, appended: first wait, waits, first signal, signals."""
        waits, signals = work.waits, work.signals
        first = len(self.flags) // FLAG.size
        self.waits, self.signals = self.waits or bool(waits), self.signals or bool(signals)
        for address in (*waits, *signals):
            self.flags += FLAG.pack(address)
        return first, len(waits), first + len(waits), len(signals)

    def reset(self, addresses: Sequence[int]) -> None:
        """The launch resets these flags."""
        self.resets = (len(self.flags) // FLAG.size, len(addresses))
        for address in addresses:
            self.flags += FLAG.pack(address)

    @property
    def tile_works(self) -> TileWorks:
        """For each tile the number of its work."""
        return np.repeat(np.arange(len(self.of_works)), self.of_works)

    @property
    def image(self) -> tuple[bytes, tuple[int, ...]]:
        """The content of device memory, and the offsets of works, terms, runs and flags in it."""
        image, offsets = bytearray(), []
        for data in (self.works, self.terms, self.runs, self.flags):
            image += bytes(-len(image) % 16)
            offsets.append(len(image))
            image += data
        return bytes(image), tuple(offsets)

    def table(self, offsets: Sequence[int], constants: int, scratch: int) -> bytes:
        """The kernel's argument."""
        ordered = int(self.waits and self.signals)
        at = (constants + o for o in offsets)
        return TABLE.pack(*at, scratch, self.count, self.tiles, ordered, int(self.waits), *self.resets)


# ---------------------------------------------------------------- products


def tiles_of_product(work: Product) -> int:
    rows, columns = work.out.region.shape
    return -(-rows // TILE) * -(-columns // TILE)


def products(works: Sequence[Product]) -> Packed:
    packed = Packed()
    for work in works:
        out_rows, out_columns = _axes(work.out)
        left_axes, right_axes = _axes(work.left), _axes(work.right)
        left_rows, left_depth = reversed(left_axes) if work.left_transposed else left_axes
        right_depth, right_columns = reversed(right_axes) if work.right_transposed else right_axes
        m, n, k = out_rows.size, out_columns.size, left_depth.size
        tiles = tiles_of_product(work)
        first_term = len(packed.terms) // ADDEND.size
        for view in work.addends:
            rows_of, columns_of = _axes(view)
            packed.terms += ADDEND.pack(
                _base(view), rows_of.step, columns_of.step,
                *_runs(packed, rows_of.axis), *_runs(packed, columns_of.axis), TYPES[view.dtype].number, 0,
            )  # fmt: skip
        maps: list[int] = []
        for axis in (out_rows, out_columns, left_rows, left_depth, right_depth, right_columns):
            maps += _runs(packed, axis.axis)
        packed.works += GEMM.pack(
            _base(work.out), _base(work.left), _base(work.right),
            out_rows.step, out_columns.step, left_rows.step, left_depth.step, right_depth.step, right_columns.step,
            *maps, m, n, k, int(work.accumulate), packed.tiles, tiles, -(-n // TILE), packed.count,
            *packed.sync(work), first_term, len(work.addends),
        )  # fmt: skip
        packed.count += 1
        packed.counters += 1
        packed.tiles += tiles
        packed.of_works.append(tiles)
    return packed


@dataclass(frozen=True, slots=True)
class _Dimension:
    axis: Axis
    step: int  # elements from one index to the next

    @property
    def size(self) -> int:
        return self.axis.size


def _axes(view: View) -> tuple[_Dimension, _Dimension]:
    """The two dimensions of a matrix."""
    steps = zip(view.region.axes, strides(view.shape), strict=True)
    rows, columns = (_Dimension(a, s) for a, s in steps if not a.dropped)
    return rows, columns


def _base(view: View) -> int:
    """The address of element [0, 0] of the matrix that the fixed dimensions leave."""
    fixed = zip(view.region.axes, strides(view.shape), strict=True)
    return view.address + sum(a.segments[0].start * s for a, s in fixed if a.dropped) * TYPES[view.dtype].bytes


def _runs(packed: Packed, axis: Axis) -> tuple[int, int]:
    """The axis's runs, appended: the first one's number and how many."""
    first, at = len(packed.runs) // RUN.size, 0
    for s in axis.segments:
        packed.runs += RUN.pack(at + s.size, s.start - at)
        at += s.size
    return first, len(axis.segments)


# ---------------------------------------------------------------- sums


@dataclass(frozen=True, slots=True)
class _SumPart:
    """A part of a sum that is rows of one pitch on every side: the result's, then the terms'."""

    cell: Cell
    sides: tuple[tuple[int, int], ...]  # address, pitch in elements
    width: int  # elements of an access
    tiles: int


def _jobs(work: Sum) -> list[_SumPart]:
    views = (work.out, *work.terms)
    dtype = work.out.dtype
    wide = 16 // TYPES[dtype].bytes
    alike = all(v.dtype == dtype for v in views)
    jobs = []
    for cell in cells([v.region for v in views], [v.shape for v in views]):
        sides = tuple(
            (v.address + s.offset * TYPES[v.dtype].bytes, s.pitch) for v, s in zip(views, cell.sides, strict=True)
        )
        vector = alike and cell.columns % wide == 0
        vector = vector and all(a % 16 == 0 and (cell.rows == 1 or p % wide == 0) for a, p in sides)
        width = wide if vector else 1
        jobs.append(_SumPart(cell, sides, width, -(-cell.rows * cell.columns // (SUM_TILE * width))))
    return jobs


def tiles_of_sum(work: Sum) -> int:
    """More where its tensors' addresses are no multiples of 16 bytes. Terms that lie alike count as one: ranks have the
    same parts of equal tensors, and the graph holds each part's axes once."""
    alike = {(id(v.region.axes), v.shape, v.dtype, v.address % 16): v for v in work.terms}
    return sum(job.tiles for job in _jobs(replace(work, terms=tuple(alike.values()))))


def sums(works: Sequence[Sum]) -> Packed:
    packed = Packed()
    for number, work in enumerate(works):
        jobs, sync = _jobs(work), packed.sync(work)
        total = sum(job.tiles for job in jobs)
        packed.of_works.append(total)
        for job in jobs:
            first = len(packed.terms) // TERM.size
            for view, (at, pitch) in zip(work.terms, job.sides[1:], strict=True):
                packed.terms += TERM.pack(at, pitch, TYPES[view.dtype].number, 0)
            at, pitch = job.sides[0]
            packed.works += REDUCE.pack(
                at, pitch, job.cell.rows, job.cell.columns, first, len(work.terms), job.width, number,
                packed.tiles, job.tiles, number, total, *sync,
            )  # fmt: skip
            packed.count += 1
            packed.tiles += job.tiles
        packed.counters = max(packed.counters, 3 + number)
    return packed


# ---------------------------------------------------------------- copies


@dataclass(frozen=True, slots=True)
class _CopyTile:
    """Rows of one pitch on both sides: addresses, pitches in bytes, rows, bytes a row."""

    to: int
    of: int
    to_pitch: int
    of_pitch: int
    rows: int
    width: int

    @property
    def unit(self) -> int:
        """Bytes of an access."""
        pitches = (self.to_pitch, self.of_pitch) if self.rows > 1 else ()
        return next(u for u in (16, 8, 4, 2) if all(n % u == 0 for n in (self.to, self.of, self.width, *pitches)))


def size_of_copy(work: Copy) -> int:
    """The size of a copy, bytes."""
    return work.dst.region.elements * TYPES[work.dst.dtype].bytes


def copied_blocks(work: Copy, about: int) -> Iterator[_CopyTile]:
    """A copy cut into tiles of about so many bytes: whole rows, or parts of one."""
    item = TYPES[work.dst.dtype].bytes
    for cell in cells((work.dst.region, work.src.region), (work.dst.shape, work.src.shape)):
        width = cell.columns * item
        a, b = cell.sides
        to, of = work.dst.address + a.offset * item, work.src.address + b.offset * item
        to_pitch, of_pitch = a.pitch * item, b.pitch * item
        together = max(1, about // width)
        part = -(-about // 16) * 16
        for row in range(0, cell.rows, together):
            rows = min(together, cell.rows - row)
            for at in range(0, width, part) if rows == 1 else (0,):
                size = min(part, width - at) if rows == 1 else width
                yield _CopyTile(to + row * to_pitch + at, of + row * of_pitch + at, to_pitch, of_pitch, rows, size)


def tiles_of_copy(work: Copy, about: int) -> int:
    """How many tiles `copied_blocks` makes. NOTE counted, not made: a wide copy may have millions."""
    count = 0
    for cell in cells((work.dst.region, work.src.region), (work.dst.shape, work.src.shape)):
        width = cell.columns * TYPES[work.dst.dtype].bytes
        together, of_one = max(1, about // width), -(-width // (-(-about // 16) * 16))
        whole, rest = divmod(cell.rows, together)
        count += whole * (of_one if together == 1 else 1) + (of_one if rest == 1 else min(rest, 1))
    return count


def copies(works: Sequence[Copy], about: int) -> Packed:
    """In tiles of about so many bytes."""
    packed = Packed()
    for number, work in enumerate(works):
        blocks, sync = list(copied_blocks(work, about)), packed.sync(work)
        for b in blocks:
            packed.works += COPY.pack(
                b.to, b.of, b.to_pitch, b.of_pitch, b.rows, b.width // b.unit, b.unit, number, len(blocks), 0, *sync
            )
        packed.tiles += len(blocks)
        packed.of_works.append(len(blocks))
    packed.count = packed.tiles
    packed.counters += len(works)
    return packed
