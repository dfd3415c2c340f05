"""Host code of the GEMMs that read operands by address, `src/sm80_gemm.cu` and `src/mfma_gemm.hip`: the works that they
accept, their table, and the kernel's parameters.

Use it like `sm90.tables`, without tensor maps: `build` a launch from the works' geometry, copy its table's constants
into device memory with zeroed scratch after them, and launch with `PackedLaunch.parameters(…)`, which hold the
addresses, and the rows that are there.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Generic, TypeVar

from ..geometry.cells import common
from ..graph.ir import Body
from ..types import TYPES
from .block_fit import Footprint, resident
from .family import Chosen, Encode, Family, GemmRequest, KernelConfig, LaunchRequest, Move, Tables, tables_of
from .gemm_launch import ALIGNMENT, MatrixGemm, gemm_of
from .leaving import NO_ROOM, footprint, shapes
from .occupancy import Limits, Window, at_once, window
from .signature import Signature
from .tile_table import SplitK, Table, by_block, count, shared_table
from .tiles import DEPTH, Matrix, MatrixWork, depths_of, pieces_of
from .works import Work

MAX_OPERANDS = 40  # different (left, right, out) triples in one launch
MAX_ADDENDS = 32  # different matrices that addends lie in
POINTERS = struct.Struct("<9Q2i2Q")  # of struct PitchedParameters of `src/tiles.h`, up to `operands`
OPERANDS = struct.Struct("<3Q3qi12x")  # struct PitchedOperands
_BF16 = Signature("bf16", "bf16", False, False)
MATRIX = struct.Struct("<QqQ8x")  # struct PitchedMatrix
MATRICES_AT = POINTERS.size + MAX_OPERANDS * OPERANDS.size
PARAMETER_BYTES = MATRICES_AT + MAX_ADDENDS * MATRIX.size


@dataclass(frozen=True, slots=True)
class Variant:
    """One compilation of a source, for a choice of tile."""

    name: str
    tile: tuple[int, int]  # rows, columns of a block's tile
    grid: tuple[int, int]  # warps along them, all of which store
    residency: int  # blocks that a multiprocessor's registers hold
    step: int = DEPTH  # elements of K in a stage of the pipeline
    lanes: ClassVar[int]  # of a warp
    most_stages: ClassVar[int]

    @property
    def cluster(self) -> int:
        return 1

    @property
    def warps(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def threads(self) -> int:
        return self.lanes * self.warps

    @property
    def registers(self) -> int:
        """Registers of a thread, at most."""
        raise NotImplementedError

    def smem(self, stages: int) -> int:
        """Dynamic shared memory of a block: a step of fp32 has as many bytes, and half the elements."""
        return stages * 2 * self.step * sum(self.tile)

    def stages(self, budget: int) -> int:
        """The deepest pipeline that `budget` bytes of dynamic shared memory hold; under 2 the variant cannot run."""
        return min(self.most_stages, budget // self.smem(1))

    def options(self, signature: Signature, arch: str) -> tuple[str, ...]:
        """The compiler options of its source."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PackedLaunch:
    """A launch, complete except for device addresses."""

    table: Table
    stages: int
    items: tuple[int, int]  # bytes of an element: of the operands, of the output
    added: tuple[int, ...]  # the same of the matrices that addends lie in

    def moved(self, move: Move) -> PackedLaunch:
        """The launch for tensors that lie elsewhere."""
        made = self.table

        def there(m: Matrix) -> Matrix:
            return replace(m, address=move(m.address))

        operands = tuple([(there(left), there(right), there(out)) for left, right, out in made.operands])
        return replace(self, table=replace(made, operands=operands, matrices=tuple(map(there, made.matrices))))

    def parameters(
        self, constants: int, scratch: int, epoch: int = 0, abort: int = 0, partials: int | None = None
    ) -> bytes:
        """The kernel's argument; `epoch` and `abort` are addresses of 32-bit words or 0: an up flag holds at least
        *epoch (else 1); waiting ends when *abort is not 0. `partials`: see `Table.pointers`."""
        block, made, (item, out_item) = bytearray(PARAMETER_BYTES), self.table, self.items
        POINTERS.pack_into(
            block, 0, *made.pointers(constants, scratch, epoch, abort, partials), len(made.tiles), self.stages,
            *made.addend_pointers(constants),
        )  # fmt: skip
        for i, (left, right, out) in enumerate(made.operands):
            OPERANDS.pack_into(
                block, POINTERS.size + i * OPERANDS.size, left.address, right.address, out.address, left.pitch * item,
                right.pitch * item, out.pitch * out_item, out.rows,
            )  # fmt: skip
        for i, (matrix, size) in enumerate(zip(made.matrices, self.added, strict=True)):
            MATRIX.pack_into(block, MATRICES_AT + i * MATRIX.size, matrix.address, matrix.pitch * size, size)
        return bytes(block)


def refusal(works: Sequence[MatrixWork], signature: Signature, longest: int) -> str | None:
    """Why one launch of such a kernel cannot make these works; None if it can. `longest`: the most bytes that a stored
    row may have."""
    dtype, out_dtype = signature.dtype, signature.out_dtype
    if signature.fp8:
        return f"operands are {dtype}"
    if out_dtype not in (dtype, TYPES[dtype].accumulator):
        return f"operands are {dtype}, the output {out_dtype}"
    reasons = (_refusal(w, signature, longest) for w in works)
    others = (a.dtype for w in works for a in w.addends if a.dtype not in (dtype, TYPES[dtype].accumulator))
    reason = next((reason for reason in reasons if reason is not None), None)
    return reason or next((f"operands are {dtype}, an addend is {other}" for other in others), None) or _too_many(works)


def _too_many(works: Sequence[MatrixWork]) -> str | None:
    if len({(w.left, w.right, w.out) for w in works}) > MAX_OPERANDS:
        return f"more than {MAX_OPERANDS} different triples of operands in one launch"
    if len({a.operand.matrix for w in works for a in w.addends}) > MAX_ADDENDS:
        return f"addends in more than {MAX_ADDENDS} different matrices in one launch"
    return None


def _refusal(work: MatrixWork, signature: Signature, longest: int) -> str | None:
    """Why the kernel refuses the work; None if it takes it. Pieces may end anywhere, but must begin where accesses of
    the signature's size can."""
    access = signature.access
    left_transposed, right_transposed = signature.transposed
    matrices = [("left", work.left, signature.item), ("right", work.right, signature.item)]
    matrices += [("out", work.out, signature.out_item), *(("added", a.operand.matrix, a.item) for a in work.addends)]
    for name, matrix, size in matrices:
        if matrix.address % access or matrix.pitch * size % access:
            return f"the {name} operand's address or pitch is no multiple of {access} bytes"
        if matrix.pitch * size > longest:
            return f"a row of the {name} operand has {matrix.pitch * size} bytes, more than {longest}"
    rows, columns = pieces_of(work, signature.transposed)
    depths = common(*depths_of(work, left_transposed, right_transposed))
    starts = {
        "left": [piece[0] for piece in (rows if left_transposed else depths)],
        "right": [piece[1] for piece in depths] if right_transposed else [piece[0] for piece in columns],
        "out": [piece[1] for piece in columns],
        "added": [start for _, _, *starts, _ in columns for start in starts],
    }
    sizes = {"left": signature.item, "right": signature.item, "out": signature.out_item}
    for name, found in starts.items():
        step = max(1, access // sizes.get(name, min((a.item for a in work.addends), default=access)))
        for start in found:
            if start % step:
                return f"a piece of the {name} operand's columns starts at {start}, no multiple of {step}"
    return None


def build(
    works: Sequence[MatrixWork],
    variant: Variant,
    signature: Signature,
    *,
    blocks: int,
    stages: int,
    tail_splits: int = 1,
    band: int | None = None,
) -> PackedLaunch:
    """The launch that makes `works`, in their order, with `blocks` at work at once; see `tile_table.table`. The works
    are such that the kernel's `refusal` is None."""
    # NOTE the parameters bound the output's rows. Rows along K, and other rows of a left operand, the table bounds
    if not signature.left_transposed and all(map(_same_rows, works)):
        works = by_block(works, signature.item, signature.out_item, lambda found: not _too_many(found))
    made = shared_table(
        works,
        variant.tile,
        variant.warps,
        signature.transposed,
        groups=blocks,
        split_k=SplitK(tail_splits),
        band=band,
        step=signature.step,
    )
    items = {a.operand.matrix: a.item for w in works for a in w.addends}
    sizes = signature.item, signature.out_item
    return PackedLaunch(made, stages, sizes, tuple(items[matrix] for matrix in made.matrices))


def _same_rows(work: MatrixWork) -> bool:
    """Whether all operands take the same rows of blocks of as many."""
    sides = [(work.left, work.left_rows), (work.out, work.out_rows)]
    sides += [(a.operand.matrix, a.operand.rows) for a in work.addends]
    planned = {0 if matrix.block is None else matrix.block.planned for matrix, _ in sides}
    if planned == {0}:
        return True
    return len(planned) == 1 and len({tuple((s.start % max(planned), s.size) for s in rows) for _, rows in sides}) == 1


V = TypeVar("V", bound=Variant)


@dataclass(frozen=True, slots=True)
class Way(Generic[V]):
    """Blocks of a variant that are to share a multiprocessor, with `least` to `most` bytes of shared memory each."""

    variant: V
    residency: int
    least: int
    most: int
    signature: Signature = _BF16

    @property
    def stages(self) -> int:
        return self.variant.stages(self.most)


class AddressFamily(Family[V]):
    """The family of a source whose GEMM reads operands by address."""

    longest: int  # bytes of a stored row
    memory: str = "shared memory"
    dtypes: tuple[str, ...] = ("bf16", "fp16")  # of operands
    accesses: tuple[int, ...] = (ALIGNMENT,)  # what loads of operands may take at once, bytes

    def takes(self, v: V, signature: Signature) -> bool:
        """Whether a variant has room in its registers for such operands."""
        return True

    @abstractmethod
    def ways(self, left: Window, request: GemmRequest, limits: Limits) -> Iterator[Way[V]]:
        """The configurations to choose from if nothing is left free for other kernels."""

    @abstractmethod
    def estimate(
        self, way: Way[V], rows: Sequence[int], columns: Sequence[int], k: int, sms: int, arch: str
    ) -> tuple[float, int]:
        """The time of pieces of these sizes, for ranking only, and the splits of the last wave that give it."""

    @abstractmethod
    def splits(self, v: V, gemm: MatrixGemm, sms: int, blocks: int, smem: int, arch: str) -> int:
        """Into how many parts K of the last wave's tiles is best split, for `blocks` at work at once on so many
        multiprocessors, with `smem` bytes of shared memory each."""

    def _gemm(self, works: Sequence[Work]) -> MatrixGemm | str:
        """The products, loaded by as many bytes at once as their places allow."""
        gemm = gemm_of(works)
        if isinstance(gemm, str):
            return gemm
        if gemm.signature.dtype not in self.dtypes:
            return f"operands are {gemm.signature.dtype}"
        reason = None
        for access in self.accesses:
            gemm = replace(gemm, signature=replace(gemm.signature, access=access))
            reason = refusal(gemm.works, gemm.signature, self.longest)
            if reason is None:
                return gemm
        return reason or gemm

    def fits(self, request: GemmRequest) -> str | None:
        gemm = self._gemm(request.works)
        return gemm if isinstance(gemm, str) else None

    def footprints(self, limits: Limits) -> Sequence[Footprint]:
        return [footprint(v, v.smem(2)) for v in self.variants]

    def choose(self, request: GemmRequest, limits: Limits) -> Chosen | str:
        gemm = self._gemm(request.works)
        if isinstance(gemm, str):
            return gemm
        left = window(request.residency, request.smem, limits)
        if isinstance(left, str):
            return left
        ways = self._leaving(request, limits) if request.leave else self.ways(left, request, limits)
        of = gemm.signature
        ways = (replace(way, signature=of) for way in ways if self.takes(way.variant, of))
        ways = (way for way in ways if request.kernel in (None, way.variant.name))
        best = fastest(self, tuple(ways), gemm.rows, gemm.columns, gemm.depth, request.sms or limits.sms, limits.arch)
        if best is None and request.leave:
            return NO_ROOM
        if best is None:
            return f"no variant fits {left.most} bytes of {self.memory}" + (
                f" and residency = {request.residency}" if request.residency is not None else ""
            )
        v = best.variant
        smem = request.smem if request.smem is not None else max(v.smem(best.stages), best.least)
        step = v.step * 2 // of.item
        return Chosen(self.name, v.name, (*v.tile, step), best.stages, smem, request.residency, request.sms)

    def _leaving(self, request: GemmRequest, limits: Limits) -> Iterator[Way[V]]:
        """Those that leave room for others."""
        for number, s in shapes(self.footprints(limits), request, limits):
            v = self.variants[number]
            if v.residency >= s.blocks:
                yield Way(v, s.blocks, s.least, s.most if request.smem is None else request.smem)

    def configure(self, request: LaunchRequest, limits: Limits) -> tuple[KernelConfig, ...] | str:
        gemm = self._gemm(request.works)
        if isinstance(gemm, str):
            return gemm
        v, signature = self.variant(request.kernel), gemm.signature
        stages = v.stages(self.budget(v, request))
        if stages < 2:
            return f"{v.name} does not fit {request.smem} bytes of shared memory"
        smem = max(request.smem, v.smem(stages))
        fitting = resident(v.threads, v.registers, smem, limits)
        blocks = at_once(request.sms, fitting, limits)
        # works of a streamed launch come to an end one by one: none is the last wave
        split_k = SplitK(1 if request.streamed else self.splits(v, gemm, request.sms, blocks, smem, limits.arch))
        tiles = count(gemm.works, v.tile, signature.transposed, groups=blocks, split_k=split_k, step=signature.step)
        config = KernelConfig(
            family=self.name,
            kernel=v.name,
            entry=signature.entry(v.name),
            source=self.source,
            options=v.options(signature, limits.arch),
            threads=v.threads,
            registers=v.registers,
            smem=smem,
            static_smem=0,
            blocks=min(request.sms if request.streamed else blocks, tiles),
            cluster=1,
            resident=fitting,
            tiles=tiles,
            works=(0, len(request.works)),
            alignment=signature.access,
            read_only=gemm.read_only,
            tile=v.tile,
            stages=stages,
            wave=blocks,
            split_k=split_k,
        )
        return (config,)

    def budget(self, v: V, request: LaunchRequest) -> int:
        """Shared memory that a block of a launch may have."""
        return request.smem

    def movable(self, bodies: Iterable[Body]) -> bool:
        return True

    def tables(self, config: KernelConfig, works: Sequence[Work], resets: Sequence[int] = ()) -> Tables:
        gemm = gemm_of(works)
        assert isinstance(gemm, MatrixGemm)
        made = build(
            gemm.works,
            self.variant(config.kernel),
            gemm.signature,
            blocks=config.wave,
            stages=config.stages,
            tail_splits=config.split_k.tail,
            band=config.band,
        )

        return _tables(made)


def _tables(made: PackedLaunch) -> Tables:
    def arguments(constants: int, counters: int, partials: int, encode: Encode) -> list[bytes]:
        return [made.parameters(constants, counters, partials=partials)]

    return replace(tables_of(made.table, arguments), moved=lambda move: _tables(made.moved(move)))


@lru_cache(maxsize=4096)
def fastest(
    family: AddressFamily[V],
    ways: tuple[Way[V], ...],
    rows: tuple[int, ...],
    columns: tuple[int, ...],
    k: int,
    sms: int,
    arch: str,
) -> Way[V] | None:
    """What the estimate finds fastest for pieces of these sizes; None: no way has room for a pipeline."""
    fitting = (way for way in ways if way.stages >= 2)
    return min(fitting, key=lambda way: family.estimate(way, rows, columns, k, sms, arch)[0], default=None)
