"""The GEMM of AMD's matrix cores in the driver: a launch as the table that kernels/src/mfma_gemm.hip reads."""

from __future__ import annotations

from ...kernels import mfma
from ...plan.ir import Launch
from ..gpu.matrices import product_of
from ..gpu.packed import Packed
from ..gpu.tensors import FlagAddress, Resolve


def pack(command: Launch, resolve: Resolve, address: FlagAddress, arch: str, units: int) -> Packed | None:
    """The launch on so many compute units; None where the memory that the tensors have got is not aligned as the
    kernel needs it."""
    product = product_of(command, resolve, address)
    if product is None:
        return None
    works, types, turned, terms = product.works, product.types, product.turned, product.terms
    rows, columns, depth = product.rows, product.columns, product.depth
    if mfma.refusal(works, *types, *turned) is not None:
        return None
    variant = mfma.variant(command.kernel)
    smem = max(variant.smem, command.attributes.smem)
    # works of a streamed launch come to an end one by one: none is the last wave
    splits = 1 if command.streamed else mfma.splits(variant, rows, columns, depth, units, arch, smem)
    blocks = units * mfma.resident(variant, smem)
    made = mfma.build(works, variant, *types, *turned, blocks=blocks, smem=smem, tail_splits=splits)
    return Packed(
        source=mfma.SOURCE.name,
        entry=mfma.entry(variant, *types, *turned, terms),
        options=mfma.options(variant, *types, *turned, arch, terms),
        threads=mfma.THREADS,
        smem=made.smem,
        tiles=len(made.table.tiles),
        constants=made.table.constants,
        scratch=made.table.scratch_bytes,
        counters=made.table.counter_bytes // 4,
        arguments=lambda at, scratch: [made.parameters(at, scratch)],
    )
