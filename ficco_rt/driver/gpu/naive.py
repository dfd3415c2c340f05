"""The naive kernels' side of the driver: works packed into the tables of kernels/src/works.h."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from ...graph.ir import ITEM_BYTES
from ...plan.ir import CopyWork, GemmWork, Launch, ReduceWork, Work
from ...region import Axis, Region
from .cells import Cell, cells, strides
from .packed import Packed
from .tensors import FlagAddress, Resolve, Tensor

TILE, DEPTH, THREADS = 128, 32, 256
REDUCE_TILE = 2 * THREADS  # accesses a tile
COPY_THREADS = 512
COPY_TILE = (16 << 10, 128 << 10)  # bytes of a tile: the least that are worth a block, the most before its flags go up
TYPES = {"bf16": 0, "fp16": 1, "fp32": 2}

SOURCE = "naive.cu"

GEMM = struct.Struct("<9q26i")  # struct Gemm of works.h, and so on
REDUCE = struct.Struct("<4q12i")
ADDED = struct.Struct("<3q6i")
COPY = struct.Struct("<4q10i")
TERM = struct.Struct("<Qqii")
RUN = struct.Struct("<2q")
FLAG = struct.Struct("<Q")
TABLE = struct.Struct("<5Q6i")


@dataclass(slots=True)
class _Tables:
    """The works of a launch, as they are put together."""

    works: bytearray = field(default_factory=bytearray)
    terms: bytearray = field(default_factory=bytearray)
    runs: bytearray = field(default_factory=bytearray)
    flags: bytearray = field(default_factory=bytearray)
    count: int = 0
    tiles: int = 0
    counters: int = 2  # words: tickets, ended blocks, one a work
    waits: bool = False
    signals: bool = False
    lowered: tuple[int, int] = (0, 0)  # the first of the flags that the launch takes down, and how many

    def sync(self, waits: Sequence[int], signals: Sequence[int], address: FlagAddress) -> tuple[int, int, int, int]:
        """The work's flags, appended: first wait, waits, first signal, signals."""
        first = len(self.flags) // FLAG.size
        self.waits, self.signals = self.waits or bool(waits), self.signals or bool(signals)
        for flag in (*waits, *signals):
            self.flags += FLAG.pack(address(flag))
        return first, len(waits), first + len(waits), len(signals)

    def lowers(self, addresses: Sequence[int]) -> None:
        """The launch takes these flags down."""
        self.lowered = (len(self.flags) // FLAG.size, len(addresses))
        for address in addresses:
            self.flags += FLAG.pack(address)

    def packed(
        self,
        kind: str,
        types: Sequence[str],
        smem: int,
        options: Sequence[str],
        threads: int = THREADS,
        grid: int | None = None,
    ) -> Packed:
        """The launch of the kernel for operands and result of these types (copies have none)."""
        entry = "_".join((f"naive_{kind}", *types))
        image, offsets = bytearray(), []
        for data in (self.works, self.terms, self.runs, self.flags):
            image += bytes(-len(image) % 16)
            offsets.append(len(image))
            image += data
        count, tiles, ordered, waits = self.count, self.tiles, int(self.waits and self.signals), int(self.waits)
        lowered = self.lowered

        def arguments(constants: int, scratch: int) -> list[bytes]:
            return [TABLE.pack(*(constants + o for o in offsets), scratch, count, tiles, ordered, waits, *lowered)]

        defines = [f"-D{kind.upper()}={entry}"]
        if types:
            defines += [f"-DIN={TYPES[types[0]]}", f"-DOUT={TYPES[types[-1]]}"]
        return Packed(
            source=SOURCE,
            entry=entry,
            options=(*options, *defines),
            threads=threads,
            smem=smem,
            tiles=tiles,
            constants=bytes(image),
            scratch=4 * self.counters,
            counters=self.counters,
            arguments=arguments,
            grid=grid,
            chained=True,
            lowered=lowered[1] > 0,
        )


def pack(
    command: Launch,
    resolve: Resolve,
    address: FlagAddress,
    options: Sequence[str],
    sms: int,
    lowers: Sequence[int] = (),
) -> list[Packed]:
    """The launches that do a launch's works, in order: one for each run of works that one kernel can do, products or
    sums of the same types, or copies, of which at most `sms` blocks make a part each. A work waits only for what
    stands before it in the text, so that launches one after another carry a streamed launch's order as well. The last
    one takes down the flags at `lowers`. `options` are the vendor's for the device."""

    def kind(work: Work) -> tuple[str, ...]:
        if isinstance(work, GemmWork):
            return ("gemm", resolve(work.left).dtype, resolve(work.out).dtype)
        if isinstance(work, CopyWork):
            return ("copy",)
        return ("reduce", resolve(work.writes[0]).dtype)

    launches: list[Packed] = []
    groups = [(key, list(works)) for key, works in groupby(command.works, kind)]
    for number, ((name, *types), works) in enumerate(groups):
        smem, threads, grid = 0, THREADS, None
        if name == "gemm":
            tables = _gemms([w for w in works if isinstance(w, GemmWork)], resolve, address)
            smem = 2 * TILE * DEPTH * ITEM_BYTES[types[0]]
        elif name == "copy":
            tables = _copies([w for w in works if isinstance(w, CopyWork)], resolve, address, sms)
            threads, grid = COPY_THREADS, min(sms, tables.tiles)
        else:
            tables = _sums([w for w in works if isinstance(w, ReduceWork)], resolve, address)
        if number == len(groups) - 1:
            tables.lowers(lowers)
        launches.append(tables.packed(name, types, smem, options, threads, grid))
    return launches


def _gemms(works: Sequence[GemmWork], resolve: Resolve, address: FlagAddress) -> _Tables:
    tables = _Tables()
    for work in works:
        out_rows, out_columns = _axes(work.out, resolve(work.out))
        left_axes = _axes(work.left, resolve(work.left))
        right_axes = _axes(work.right, resolve(work.right))
        left_rows, left_depth = reversed(left_axes) if work.left_transposed else left_axes
        right_depth, right_columns = reversed(right_axes) if work.right_transposed else right_axes
        m, n, k = out_rows.size, out_columns.size, left_depth.size
        columns = -(-n // TILE)
        tiles = -(-m // TILE) * columns
        first_term = len(tables.terms) // ADDED.size
        for term in work.terms:
            tensor = resolve(term)
            rows_of, columns_of = _axes(term, tensor)
            tables.terms += ADDED.pack(
                _base(term, tensor), rows_of.step, columns_of.step,
                *_runs(tables, rows_of.axis), *_runs(tables, columns_of.axis), TYPES[tensor.dtype], 0,
            )  # fmt: skip
        maps: list[int] = []
        for axis in (out_rows, out_columns, left_rows, left_depth, right_depth, right_columns):
            maps += _runs(tables, axis.axis)
        tables.works += GEMM.pack(
            _base(work.out, resolve(work.out)), _base(work.left, resolve(work.left)),
            _base(work.right, resolve(work.right)),
            out_rows.step, out_columns.step, left_rows.step, left_depth.step, right_depth.step, right_columns.step,
            *maps, m, n, k, int(work.accumulate), tables.tiles, tiles, columns, tables.count,
            *tables.sync(work.waits, work.signals, address), first_term, len(work.terms),
        )  # fmt: skip
        tables.count += 1
        tables.counters += 1
        tables.tiles += tiles
    return tables


def _sums(works: Sequence[ReduceWork], resolve: Resolve, address: FlagAddress) -> _Tables:
    tables = _Tables()
    for number, work in enumerate(works):
        _add_sum(tables, work.out, work.terms, resolve, number, tables.sync(work.waits, work.signals, address))
    return tables


def _copies(works: Sequence[CopyWork], resolve: Resolve, address: FlagAddress, sms: int) -> _Tables:
    tables = _Tables()
    size = sum(w.dst.elements * ITEM_BYTES[resolve(w.dst).dtype] for w in works)
    least, most = COPY_TILE
    tile = max(least, min(size // sms, most))  # a block fences its stores after every tile: rather one tile each
    for number, work in enumerate(works):
        dst, src = resolve(work.dst), resolve(work.src)
        tiles = [
            part
            for cell in cells((work.dst, work.src), (dst.shape, src.shape))
            for part in _tiles_of(cell, dst.address, src.address, ITEM_BYTES[dst.dtype], tile)
        ]
        sync = tables.sync(work.waits, work.signals, address)
        for to, of, to_pitch, of_pitch, rows, width in tiles:
            pitches = (to_pitch, of_pitch) if rows > 1 else ()
            unit = next(u for u in (16, 8, 4, 2) if all(n % u == 0 for n in (to, of, width, *pitches)))
            tables.works += COPY.pack(
                to, of, to_pitch, of_pitch, rows, width // unit, unit, number, len(tiles), 0, *sync
            )  # fmt: skip
        tables.tiles += len(tiles)
    tables.count = tables.tiles
    tables.counters += len(works)
    return tables


def _tiles_of(cell: Cell, to: int, of: int, item: int, about: int) -> Iterator[tuple[int, int, int, int, int, int]]:
    """A cell cut into tiles of about so many bytes, whole rows or parts of one: the addresses on both sides, their
    pitches, rows, and bytes a row."""
    width = cell.columns * item
    a, b = cell.sides
    to, of, to_pitch, of_pitch = to + a.offset * item, of + b.offset * item, a.pitch * item, b.pitch * item
    together = max(1, about // width)
    part = -(-about // 16) * 16
    for row in range(0, cell.rows, together):
        rows = min(together, cell.rows - row)
        for at in range(0, width, part) if rows == 1 else (0,):
            size = min(part, width - at) if rows == 1 else width
            yield to + row * to_pitch + at, of + row * of_pitch + at, to_pitch, of_pitch, rows, size


def sum_of(out: Region, terms: Sequence[Region], resolve: Resolve, options: Sequence[str]) -> Packed:
    """A single sum without flags, for collectives."""
    tables = _Tables()
    _add_sum(tables, out, terms, resolve, 0, (0, 0, 0, 0))
    return tables.packed("reduce", [resolve(out).dtype], 0, options)


def _add_sum(
    tables: _Tables, out: Region, terms: Sequence[Region], resolve: Resolve, work: int, sync: tuple[int, int, int, int]
) -> None:
    """One work of a sum, as jobs that are rows of one pitch on every side."""
    regions = (out, *terms)
    tensors = [resolve(r) for r in regions]
    dtype = tensors[0].dtype
    item = ITEM_BYTES[dtype]
    wide = 16 // item
    jobs = []
    for cell in cells(regions, [t.shape for t in tensors]):
        sides = [
            (t.address + s.offset * ITEM_BYTES[t.dtype], s.pitch) for t, s in zip(tensors, cell.sides, strict=True)
        ]
        alike = all(t.dtype == dtype for t in tensors)
        vector = alike and cell.columns % wide == 0
        vector = vector and all(a % 16 == 0 and (cell.rows == 1 or p % wide == 0) for a, p in sides)
        tiles = -(-cell.rows * cell.columns // (REDUCE_TILE * (wide if vector else 1)))
        jobs.append((cell, sides, wide if vector else 1, tiles))
    total = sum(tiles for *_, tiles in jobs)
    for cell, sides, vector_width, tiles in jobs:
        first = len(tables.terms) // TERM.size
        for tensor, (at, pitch) in zip(tensors[1:], sides[1:], strict=True):
            tables.terms += TERM.pack(at, pitch, TYPES[tensor.dtype], 0)
        (at, pitch) = sides[0]
        tables.works += REDUCE.pack(
            at, pitch, cell.rows, cell.columns, first, len(terms), vector_width, work,
            tables.tiles, tiles, work, total, *sync,
        )  # fmt: skip
        tables.count += 1
        tables.tiles += tiles
    tables.counters = max(tables.counters, 3 + work)


@dataclass(frozen=True, slots=True)
class _Dimension:
    axis: Axis
    step: int  # elements from one index to the next

    @property
    def size(self) -> int:
        return self.axis.size


def _axes(region: Region, tensor: Tensor) -> tuple[_Dimension, _Dimension]:
    """The two dimensions of a matrix."""
    rows, columns = (_Dimension(a, s) for a, s in zip(region.axes, strides(tensor.shape), strict=True) if not a.dropped)
    return rows, columns


def _base(region: Region, tensor: Tensor) -> int:
    """The address of element [0, 0] of the matrix that the fixed dimensions leave."""
    fixed = zip(region.axes, strides(tensor.shape), strict=True)
    return tensor.address + sum(a.segments[0].start * s for a, s in fixed if a.dropped) * ITEM_BYTES[tensor.dtype]


def _runs(tables: _Tables, axis: Axis) -> tuple[int, int]:
    """The axis's runs, appended: the first one's number and how many."""
    first, at = len(tables.runs) // RUN.size, 0
    for s in axis.segments:
        tables.runs += RUN.pack(at + s.size, s.start - at)
        at += s.size
    return first, len(axis.segments)
