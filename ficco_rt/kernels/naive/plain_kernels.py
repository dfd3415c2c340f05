"""The kernels of `src/naive.cu`: a record for each, with the works that it makes, the needs of its blocks, and how its
works are cut into tiles and packed. A new kernel needs its record here and its code there."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from ...geometry.cells import Cell, Side, cells
from ...geometry.region import Axis, Interval, Region
from ...graph.functions import FunctionName
from ...graph.ir import Body, Copy, Gemm, Quantize, Reduce
from ...types import ACCUMULATOR, TYPES, Scaling
from ..works import View, WorkOf, given, scales_of, scaling_of
from .tables import Packed

B = TypeVar("B", bound=Body)
Tile: TypeAlias = tuple[int, int]

TILE, DEPTH = 128, 32
THREADS, COPY_THREADS = 256, 512
SUM_TILE = 2 * THREADS  # accesses a tile
PART, BLOCK_TILE = (
    8,
    32,
)  # of a quantize: elements of an access of the result, blocks of 128 a tile, twice as many of 16 bits
COPY_TILE = (16 << 10, 128 << 10)  # bytes: the least that are worth a block, the most before its flags go up

# The structs of `src/works.h`
GEMM = struct.Struct("<9q28i")
REDUCE = struct.Struct("<4q12i")
ADDEND = struct.Struct("<3q6i")
SCALES = struct.Struct("<3q6i")
COPY = struct.Struct("<4q10i")
TERM = struct.Struct("<Qqii")
QUANTIZE = struct.Struct("<5q18i")


@dataclass(frozen=True, slots=True)
class BlockNeeds:
    """What a block of a kernel takes, as its compilers say (tests/unit/test_gpu_parts.py, test_naive_amd.py)."""

    threads: int
    registers: int  # of a thread, at most: NVIDIA's compiler
    vector_registers: int  # AMD's
    static_smem: int  # bytes


class NaiveKernel(ABC, Generic[B]):
    """A kernel, the tiles that its blocks take one after another, and its part of the table."""

    name: ClassVar[str]
    body: ClassVar[type[Any]]  # of the works that it makes
    needs: ClassVar[BlockNeeds]
    record: ClassVar[struct.Struct]  # of a work, or of a part of one
    spread: ClassVar[bool] = False  # one block a multiprocessor

    def types(self, work: WorkOf[B]) -> tuple[str, ...]:
        """The types of operands and result for which it is compiled."""
        return (work.views[0].dtype,)

    def function(self, work: WorkOf[B]) -> FunctionName | None:
        """The function of sums for which it is compiled."""
        return None

    def scaled(self, work: WorkOf[B]) -> bool:
        """Whether it is compiled for operands with scales."""
        return False

    def held(self, work: WorkOf[B]) -> str:
        """The type of what it has in shared memory."""
        return "bf16"

    def smem(self, stages: int, dtype: str = "bf16") -> int:
        """Dynamic shared memory of a block, bytes."""
        return 0

    @abstractmethod
    def cut(self, works: Sequence[WorkOf[B]], sms: int) -> Tile:
        """The tile by which a launch's works are cut on so many multiprocessors: rows and columns."""

    @abstractmethod
    def tiles(self, work: WorkOf[B], tile: Tile) -> int:
        """The number of a work's tiles."""

    @abstractmethod
    def pack(self, packed: Packed, work: WorkOf[B], tile: Tile) -> int:
        """Appends a work to the table; the number of its tiles."""


# ---------------------------------------------------------------- products


class NaiveGemm(NaiveKernel[Gemm]):
    """The product's kernel, a variant of its family. Its tile is that of the tuned kernels, so that tiles can be
    counted without them."""

    name, body, record = "naive_gemm", Gemm, GEMM
    needs = BlockNeeds(THREADS, 128, 168, 2064)
    tile: ClassVar[Tile] = (TILE, TILE)
    cluster: ClassVar[int] = 1

    def types(self, work: WorkOf[Gemm]) -> tuple[str, ...]:
        out, left, right, *_ = work.views
        return left.dtype, *(() if right.dtype == left.dtype else (right.dtype,)), out.dtype

    def function(self, work: WorkOf[Gemm]) -> FunctionName | None:
        return work.body.function

    def scaled(self, work: WorkOf[Gemm]) -> bool:
        return bool(work.body.scales)

    def held(self, work: WorkOf[Gemm]) -> str:
        return ACCUMULATOR if work.body.scales else work.views[1].dtype

    def smem(self, stages: int, dtype: str = "bf16") -> int:
        return stages * sum(self.tile) * DEPTH * TYPES[dtype].bytes

    def cut(self, works: Sequence[WorkOf[Gemm]], sms: int) -> Tile:
        return self.tile

    def tiles(self, work: WorkOf[Gemm], tile: Tile) -> int:
        rows, columns = work.body.out.shape
        return -(-rows // TILE) * -(-columns // TILE)

    def pack(self, packed: Packed, work: WorkOf[Gemm], tile: Tile) -> int:
        made = given(work)
        scales = scales_of(made)
        out, left, right, *others = made.views[: len(made.views) - len(scales)]
        accumulate, (left_t, right_t) = work.body.accumulate, work.body.transposed
        addends = () if accumulate else others
        left_axes, right_axes = _axes(left)[:: -1 if left_t else 1], _axes(right)[:: -1 if right_t else 1]
        axes = (*_axes(out), *left_axes, *right_axes)  # along m, n, m, k, k, n
        m, n, _, k, *_ = (axis.size for axis, _ in axes)
        tiles = self.tiles(work, tile)
        first_term = len(packed.terms) // ADDEND.size
        for view in addends:
            (rows, row_step), (columns, column_step) = _axes(view)
            packed.terms += ADDEND.pack(
                packed.place(view.base), row_step, column_step,
                *packed.runs_of(rows), *packed.runs_of(columns), TYPES[view.dtype].number, 0,
            )  # fmt: skip
        for view, operand, flipped in zip(scales, (left, right), (left_t, not right_t), strict=False):
            (mn, mn_step), (along, k_step) = _axes(view)[:: -1 if flipped else 1]
            packed.terms += SCALES.pack(
                packed.place(view.base), mn_step, k_step, *packed.runs_of(mn), *packed.runs_of(along),
                *_SHIFTS[scaling_of(view, operand)],
            )  # fmt: skip
        maps = [number for axis, _ in axes for number in packed.runs_of(axis)]
        packed.works += GEMM.pack(
            *(packed.place(view.base) for view in (out, left, right)), *(step for _, step in axes), *maps, m, n, k,
            int(accumulate), packed.tiles, tiles, -(-n // TILE), len(packed.of_works), *packed.sync(work), first_term,
            len(addends), len(scales), 0,
        )  # fmt: skip
        return tiles


# Of an operand's rows or columns of the result, and of K, that share a scale: binary digits
_SHIFTS: Mapping[Scaling, tuple[int, int]] = {"row": (0, 31), "1x128": (0, 7), "128x128": (7, 7)}


def _axes(view: View) -> tuple[tuple[Axis, int], ...]:
    """The two dimensions of a matrix, each with the elements from one index to the next."""
    return tuple((a, s) for a, s in zip(view.region.axes, view.steps, strict=True) if not a.dropped)


# ---------------------------------------------------------------- sums


@dataclass(frozen=True, slots=True)
class _SumPart:
    """A part of a sum that is rows of one pitch on every side: the result's, then the terms'."""

    cell: Cell
    sides: tuple[tuple[int, int], ...]  # address, pitch in elements
    width: int  # elements of an access of the result
    alike: bool  # all sides are of one type, or accesses are of single elements
    tiles: int


def _jobs(views: Sequence[View]) -> list[_SumPart]:
    dtype = views[0].dtype
    wide = 16 // TYPES[dtype].bytes
    alike = all(v.dtype == dtype for v in views)
    jobs = []
    for cell in cells([v.region for v in views], [v.shape for v in views], [v.steps for v in views]):
        sides = tuple(
            (v.address + s.offset * TYPES[v.dtype].bytes, s.pitch) for v, s in zip(views, cell.sides, strict=True)
        )
        vector = (
            cell.columns % wide == 0
            and cell.rows < 1 << 31
            and all(  # the kernel's number of a row has 32 bits
                a % min(16, wide * TYPES[v.dtype].bytes) == 0 and (cell.rows == 1 or p % wide == 0)
                for (a, p), v in zip(sides, views, strict=True)
            )
        )
        width = wide if vector else 1
        tiles = -(-cell.rows * cell.columns // (SUM_TILE * width))
        jobs.append(_SumPart(cell, sides, width, alike or not vector, tiles))
    return jobs


class NaiveReduce(NaiveKernel[Reduce]):
    name, body, record = "naive_reduce", Reduce, REDUCE
    needs = BlockNeeds(THREADS, 128, 117, 4)

    def function(self, work: WorkOf[Reduce]) -> FunctionName | None:
        return work.body.function

    def cut(self, works: Sequence[WorkOf[Reduce]], sms: int) -> Tile:
        return 1, SUM_TILE

    def tiles(self, work: WorkOf[Reduce], tile: Tile) -> int:
        """More where its tensors' addresses are no multiples of 16 bytes. Terms that lie alike count as one: ranks have
        the same parts of equal tensors, and the graph holds each part's axes once."""
        out, *terms = work.views
        alike = {(id(v.region.axes), v.shape, v.dtype, v.address % 16): v for v in terms}
        return sum(job.tiles for job in _jobs([out, *alike.values()]))

    def pack(self, packed: Packed, work: WorkOf[Reduce], tile: Tile) -> int:
        views = given(work).views
        _, *terms = views
        jobs, sync, number = _jobs(views), packed.sync(work), len(packed.of_works)
        total, before = sum(job.tiles for job in jobs), packed.tiles
        missing = self.tiles(work, tile) - total if views is not work.views else 0
        if missing > 0:  # NOTE each block of the launch has a tile, as otherwise nobody would reset flags
            nothing = Cell(0, 0, (Side(0, 0),) * len(views))
            jobs.append(_SumPart(nothing, ((0, 0),) * len(views), 1, True, missing))
            total += missing
        for job in jobs:
            first = len(packed.terms) // TERM.size
            for view, (at, pitch) in zip(terms, job.sides[1:], strict=True):
                packed.terms += TERM.pack(packed.place(at), pitch, TYPES[view.dtype].number, 0)
            at, pitch = job.sides[0]
            packed.works += REDUCE.pack(
                packed.place(at), pitch, job.cell.rows, job.cell.columns, first, len(terms),
                job.width if job.alike else -job.width, number, before, job.tiles, number, total, *sync,
            )  # fmt: skip
            before += job.tiles
        return total


# ---------------------------------------------------------------- quantization


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one pitch on every side: addresses and pitches of the result, the scales and the terms."""

    rows: int
    sides: tuple[tuple[int, int], ...]
    tiles: int


class NaiveQuantize(NaiveKernel[Quantize]):
    """Blocks of elements, or whole rows, of which each tile is one."""

    name, body, record = "naive_quantize", Quantize, QUANTIZE
    needs = BlockNeeds(THREADS, 64, 128, 68)

    def types(self, work: WorkOf[Quantize]) -> tuple[str, ...]:
        return work.views[2].dtype, work.views[0].dtype

    def function(self, work: WorkOf[Quantize]) -> FunctionName | None:
        return work.body.function

    def cut(self, works: Sequence[WorkOf[Quantize]], sms: int) -> Tile:
        return 1, BLOCK_TILE

    def tiles(self, work: WorkOf[Quantize], tile: Tile) -> int:
        return sum(part.tiles for part in self._parts(work))

    def _parts(self, work: WorkOf[Quantize]) -> list[_Rows]:
        """NOTE rows stay rows: `cells` would join those that lie end to end, so it sees the first column alone."""
        views, regions = self._sides(work), []
        for view in views:
            axes, last = list(view.region.axes), view.region.kept[-1]
            start = axes[last].segments[0].start
            axes[last] = Axis((Interval(start, start + 1),), axes[last].dropped)
            regions.append(Region(view.region.tensor, view.region.rank, tuple(axes)))
        across, columns = work.body.across, work.body.out.shape[-1]
        together = BLOCK_TILE * 4 // TYPES[self.types(work)[0]].bytes
        parts = []
        for cell in cells(regions, [v.shape for v in views], [v.steps for v in views]):
            rows = cell.rows * cell.columns  # of a tensor of one column the rows are the cell's columns
            sides = tuple(
                (v.address + s.offset * TYPES[v.dtype].bytes, 1 if cell.columns > 1 else s.pitch)
                for v, s in zip(views, cell.sides, strict=True)
            )
            tiles = -(-rows * -(-columns // across) // together) if across else rows
            parts.append(_Rows(rows, sides, tiles))
        return parts

    @staticmethod
    def _sides(work: WorkOf[Quantize]) -> tuple[View, ...]:
        return work.views[:-1] if work.body.by else work.views

    def pack(self, packed: Packed, work: WorkOf[Quantize], tile: Tile) -> int:
        made = given(work)
        views, parts = self._sides(made), self._parts(made)
        terms, number, sync = views[2:], len(packed.of_works), packed.sync(work)
        columns, body = made.body.out.shape[-1], work.body
        by = packed.place(made.views[-1].first) if body.by else 0
        there, before = sum(part.tiles for part in parts), packed.tiles
        total = max(there, self.tiles(work, tile))
        if there < total:  # as of a sum
            parts.append(_Rows(0, ((0, 0),) * len(views), total - there))
        for part in parts:
            first = len(packed.terms) // TERM.size
            for view, (at, pitch) in zip(terms, part.sides[2:], strict=True):
                packed.terms += TERM.pack(packed.place(at), pitch, TYPES[view.dtype].number, 0)
            (out, out_pitch), (scales, scale_pitch) = part.sides[:2]
            aligned = columns % PART == 0 and all(
                n % min(16, PART * TYPES[view.dtype].bytes) == 0
                for view, (at, pitch) in zip((views[0], *terms), (part.sides[0], *part.sides[2:]), strict=True)
                for n in (at, pitch * TYPES[view.dtype].bytes)
            )
            alike = all(view.dtype == terms[0].dtype for view in terms)
            packed.works += QUANTIZE.pack(
                packed.place(out), packed.place(scales), by, out_pitch, scale_pitch, part.rows, columns, body.across,
                made.views[1].region.shape[-1], first, len(terms), (PART if alike else -PART) if aligned else 1,
                int(body.pow2), before, part.tiles, number, total, *sync, int(body.by is not None), 0,
            )  # fmt: skip
            before += part.tiles
        return total


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
        return next(u for u in (16, 8, 4, 2, 1) if all(n % u == 0 for n in (self.to, self.of, self.width, *pitches)))


def _rows(work: WorkOf[Copy]) -> Iterator[_CopyTile]:
    """A copy in parts that are rows of one pitch on both sides."""
    dst, src = work.views
    item = TYPES[dst.dtype].bytes
    for cell in cells((dst.region, src.region), (dst.shape, src.shape)):
        to, of = cell.sides
        yield _CopyTile(
            dst.address + to.offset * item, src.address + of.offset * item, to.pitch * item, of.pitch * item,
            cell.rows, cell.columns * item,
        )  # fmt: skip


class NaiveCopy(NaiveKernel[Copy]):
    """It moves bits of any type. A block fences its stores after every tile, so rather one tile each."""

    name, body, record = "naive_copy", Copy, COPY
    needs = BlockNeeds(COPY_THREADS, 128, 80, 4)
    spread = True

    def types(self, work: WorkOf[Copy]) -> tuple[str, ...]:
        return ()

    def cut(self, works: Sequence[WorkOf[Copy]], sms: int) -> Tile:
        """The columns are bytes."""
        least, most = COPY_TILE
        size = sum(w.body.dst.elements * TYPES[w.views[0].dtype].bytes for w in works)
        return 1, max(least, min(size // sms, most))

    def blocks(self, work: WorkOf[Copy], about: int) -> Iterator[_CopyTile]:
        """A copy cut into tiles of about so many bytes: whole rows, or parts of one."""
        part = -(-about // 16) * 16
        for r in _rows(work):
            together = max(1, about // r.width)
            for row in range(0, r.rows, together):
                rows = min(together, r.rows - row)
                for at in range(0, r.width, part) if rows == 1 else (0,):
                    size = min(part, r.width - at) if rows == 1 else r.width
                    to, of = r.to + row * r.to_pitch + at, r.of + row * r.of_pitch + at
                    yield _CopyTile(to, of, r.to_pitch, r.of_pitch, rows, size)

    def tiles(self, work: WorkOf[Copy], tile: Tile) -> int:
        """How many tiles `blocks` makes. NOTE counted, not made: a wide copy may have millions."""
        about, count = tile[1], 0
        for r in _rows(work):
            together, of_one = max(1, about // r.width), -(-r.width // (-(-about // 16) * 16))
            whole, rest = divmod(r.rows, together)
            count += whole * (of_one if together == 1 else 1) + (of_one if rest == 1 else min(rest, 1))
        return count

    def pack(self, packed: Packed, work: WorkOf[Copy], tile: Tile) -> int:
        blocks, sync, number = list(self.blocks(given(work), tile[1])), packed.sync(work), len(packed.of_works)
        blocks = blocks or [_CopyTile(0, 0, 0, 0, 0, 0)]  # it signals
        for b in blocks:
            packed.works += COPY.pack(
                packed.place(b.to), packed.place(b.of), b.to_pitch, b.of_pitch, b.rows, b.width // b.unit, b.unit,
                number, len(blocks), 0, *sync,
            )  # fmt: skip
        return len(blocks)


PLAIN = NaiveGemm()
# A launch whose works several of them make has the name of the first of these.
KERNELS: tuple[NaiveKernel[Any], ...] = (PLAIN, NaiveReduce(), NaiveQuantize(), NaiveCopy())
