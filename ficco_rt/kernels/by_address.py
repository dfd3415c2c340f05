"""The host's half of the GEMMs that read operands by address, `src/sm80_gemm.cu` and `src/mfma_gemm.hip`: which works
they take, their table, and the kernel's parameters.

Used as `sm90.tables`, less the tensor maps: `build` a launch of the works' geometry, put its table's constants into
device memory with zeroed scratch after it, launch with `PackedLaunch.parameters(…)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..types import TYPES
from .family import Encode, KernelConfig, LaunchRequest, Tables
from .gemm import ALIGNMENT, MatrixGemm, gemm_of
from .occupancy import Limits, at_once
from .room import resident
from .signature import Signature
from .tile_table import Rows, SplitK, Table, count, table
from .tiles import MatrixWork, common, depths_of
from .works import Work

PARAMETER_BYTES = 112


class Variant(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def tile(self) -> tuple[int, int]: ...

    @property
    def warps(self) -> int:
        """Of a block; all of them store."""

    @property
    def threads(self) -> int: ...

    @property
    def registers(self) -> int:
        """Of a thread, at most."""


@dataclass(frozen=True, slots=True)
class PackedLaunch:
    """A launch, ready but for device addresses."""

    table: Table
    stages: int

    def parameters(self, constants: int, scratch: int, epoch: int = 0, abort: int = 0) -> bytes:
        """The kernel's argument; `epoch` and `abort` are addresses of 32-bit words or 0: an up flag holds at least
        *epoch (else 1); waiting ends when *abort is not 0."""
        made = self.table
        operands, matrices = (constants + at for at in made.offsets[7:])
        pointers = [*made.pointers(constants, scratch, epoch, abort), operands]
        sizes = np.array([len(made.tiles), self.stages], np.int32)
        addends = np.array([*made.addend_pointers(constants), matrices], np.uint64)
        return np.array(pointers, np.uint64).tobytes() + sizes.tobytes() + addends.tobytes()


def refusal(works: Sequence[MatrixWork], signature: Signature, longest: int) -> str | None:
    """Why one launch of such a kernel cannot make these works; None if it can. `longest`: the most bytes that a stored
    row may have."""
    dtype, out_dtype = signature.dtype, signature.out_dtype
    if out_dtype not in (dtype, TYPES[dtype].accumulator):
        return f"operands are {dtype}, the output {out_dtype}"
    reasons = (_refusal(w, signature, longest) for w in works)
    others = (a.dtype for w in works for a in w.addends if a.dtype not in (dtype, TYPES[dtype].accumulator))
    return next((reason for reason in reasons if reason is not None), None) or next(
        (f"operands are {dtype}, an addend is {other}" for other in others), None
    )


def _refusal(work: MatrixWork, signature: Signature, longest: int) -> str | None:
    """Why the kernel refuses the work; None if it takes it. Pieces may end anywhere, but must begin where 16-byte
    accesses can."""
    left_transposed, right_transposed = signature.transposed
    matrices = [("left", work.left, signature.item), ("right", work.right, signature.item)]
    matrices += [("out", work.out, signature.out_item), *(("added", a.operand.matrix, a.item) for a in work.addends)]
    for name, matrix, size in matrices:
        if matrix.address % ALIGNMENT or matrix.pitch * size % ALIGNMENT:
            return f"the {name} operand's address or pitch is no multiple of {ALIGNMENT} bytes"
        if matrix.pitch * size > longest:
            return f"a row of the {name} operand has {matrix.pitch * size} bytes, more than {longest}"
    added = [a.operand for a in work.addends]
    rows = common(work.left_columns if left_transposed else work.left_rows, work.out_rows, *(o.rows for o in added))
    columns = common(
        work.right_rows if right_transposed else work.right_columns, work.out_columns, *(o.columns for o in added)
    )
    depths = common(*depths_of(work, left_transposed, right_transposed))
    starts = {
        "left": [piece[0] for piece in (rows if left_transposed else depths)],
        "right": [piece[1] for piece in depths] if right_transposed else [piece[0] for piece in columns],
        "out": [piece[1] for piece in columns],
        "added": [start for _, _, *starts, _ in columns for start in starts],
    }
    for name, found in starts.items():
        for start in found:
            if start % 8:
                return f"a piece of the {name} operand's columns starts at {start}, no multiple of 8"
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
    made = table(
        works,
        variant.tile,
        variant.warps,
        signature.transposed,
        groups=blocks,
        split_k=SplitK(tail_splits),
        band=band,
        more=(_operand_rows(works, signature), _addend_rows(works)),
    )
    return PackedLaunch(made, stages)


def _operand_rows(works: Sequence[MatrixWork], signature: Signature) -> Rows:
    """Different (left, right, out) triples as kernels with plain pointers read them: addresses, pitches in bytes."""
    item, out_item = signature.item, signature.out_item
    triples = dict.fromkeys((w.left, w.right, w.out) for w in works)
    rows = [
        (a.address, b.address, c.address, a.pitch * item, b.pitch * item, c.pitch * out_item, 0, 0)
        for a, b, c in triples
    ]
    return np.array(rows, np.uint64)


def _addend_rows(works: Sequence[MatrixWork]) -> Rows:
    """Different matrices of addends as kernels with plain pointers read them: address, pitch in bytes, bytes of an
    element."""
    items = {a.operand.matrix: a.item for w in works for a in w.addends}
    return np.array([(m.address, m.pitch * item, item, 0) for m, item in items.items()], np.uint64)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A variant with the source that it is compiled from."""

    family: str
    source: str
    options: tuple[str, ...]
    variant: Variant


def wave(variant: Variant, smem: int, sms: int, limits: Limits) -> int:
    """Blocks with so much shared memory that are at work at once."""
    return at_once(sms, resident(variant.threads, variant.registers, smem, limits), limits)


def configure(
    compiled: Compiled,
    gemm: MatrixGemm,
    request: LaunchRequest,
    limits: Limits,
    *,
    stages: int,
    smem: int,
    tail_splits: int,
) -> KernelConfig:
    v, signature = compiled.variant, gemm.signature
    fitting = resident(v.threads, v.registers, smem, limits)
    blocks = wave(v, smem, request.sms, limits)
    split_k = SplitK(tail_splits)
    tiles = count(gemm.works, v.tile, signature.transposed, groups=blocks, split_k=split_k)
    return KernelConfig(
        family=compiled.family,
        kernel=v.name,
        entry=signature.entry(v.name),
        source=compiled.source,
        options=compiled.options,
        threads=v.threads,
        registers=v.registers,
        smem=smem,
        static_smem=0,
        blocks=min(request.sms if request.streamed else blocks, tiles),
        cluster=1,
        resident=fitting,
        tiles=tiles,
        works=(0, len(request.works)),
        alignment=ALIGNMENT,
        read_only=gemm.read_only,
        tile=v.tile,
        stages=stages,
        wave=blocks,
        split_k=split_k,
    )


def tables(config: KernelConfig, works: Sequence[Work], variant: Variant) -> Tables:
    gemm = gemm_of(works)
    assert isinstance(gemm, MatrixGemm)
    made = build(
        gemm.works,
        variant,
        gemm.signature,
        blocks=config.wave,
        stages=config.stages,
        tail_splits=config.split_k.tail,
        band=config.band,
    )

    def arguments(constants: int, scratch: int, encode: Encode) -> list[bytes]:
        return [made.parameters(constants, scratch)]

    table = made.table
    return Tables(table.constants, table.scratch_bytes, table.counter_bytes // 4, arguments, table.tile_works)
