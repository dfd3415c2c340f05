"""The tensor-core GEMMs' side of the driver: a launch's works as the tables that kernels/src/sm*_gemm.cu read."""

from __future__ import annotations

import ctypes
from typing import Any

from ...kernels import sm80, sm90, tiles
from ...machine.discover import DeviceFacts
from ..gpu.matrices import product_of
from ..gpu.packed import Packed, Wanted
from ..gpu.tensors import FlagAddress, Resolve
from .call import api, call

_HOPPER = {v.name: v for v in sm90.VARIANTS}
_AMPERE = {v.name: v for v in sm80.VARIANTS}


def pack(wanted: Wanted, resolve: Resolve, address: FlagAddress, facts: DeviceFacts) -> Packed | None:
    """The launch of one of these kernels; None for others, and where the memory that the tensors have got is not
    aligned as the kernel needs it."""
    command, sms = wanted.launch, wanted.sms
    if command.kernel not in _HOPPER and command.kernel not in _AMPERE:
        return None
    product = product_of(command, resolve, address)
    if product is None:
        return None
    works, types, turned, terms = product.works, product.types, product.turned, product.terms
    rows, columns, depth = product.rows, product.columns, product.depth
    smem = command.attributes.smem
    if command.kernel in _HOPPER:
        hopper = _HOPPER[command.kernel]
        works = tiles.in_registers(works, turned, frozenset(wanted.lowers))
        depth = tiles.depth_of(works, turned)
        if sm90.refusal(works, *types, *turned) is not None or not hopper.stores(types[1]):
            return None
        stages = hopper.stages(smem, turned[1])
        lowers = bool(wanted.lowers) and not any(w.accumulate for w in works)
        awaited = {flag for w in works for flag in w.flags}  # not those between pieces of K: nobody raises them
        made = sm90.build(
            works, hopper, *types, *turned, sms=sms, stages=stages, smem=smem,
            cuts=sm90.cuts_of(hopper, works, columns, depth, sms), constant=product.constant,
            lowers=[flag for flag in wanted.lowers if flag in awaited] if lowers else (),
        )  # fmt: skip
        return Packed(
            source=sm90.SOURCE.name,
            entry=sm90.entry(hopper, *types, *turned, terms),
            options=sm90.options(hopper, *types, *turned, terms=terms),
            threads=hopper.threads,
            smem=made.smem,
            tiles=len(made.table.tiles),
            constants=made.table.constants,
            scratch=made.table.scratch_bytes,
            counters=made.table.counter_bytes // 4,
            arguments=lambda at, scratch: [made.parameters(at, scratch, [encode(m) for m in made.maps])],
            grid=made.grid,
            cluster=hopper.cluster,
            chained=True,
            lowered=lowers,
        )
    ampere = _AMPERE[command.kernel]
    if sm80.refusal(works, *types, *turned) is not None:
        return None
    blocks = sms * max(1, min(ampere.residency, facts.smem_per_sm // (smem + facts.smem_reserved)))
    splits = 1 if command.streamed else sm80.splits(ampere, rows, columns, depth, blocks)
    stages = ampere.stages(smem)
    other = sm80.build(works, ampere, *types, *turned, blocks=blocks, stages=stages, smem=smem, tail_splits=splits)
    return Packed(
        source=sm80.SOURCE.name,
        entry=sm80.entry(ampere, *types, *turned, terms),
        options=sm80.options(ampere, *types, *turned, facts.arch, terms),
        threads=ampere.threads,
        smem=other.smem,
        tiles=len(other.table.tiles),
        constants=other.table.constants,
        scratch=other.table.scratch_bytes,
        counters=other.table.counter_bytes // 4,
        arguments=lambda at, scratch: [other.parameters(at, scratch)],
    )


def encode(m: sm90.TensorMap) -> bytes:
    """A tensor map as the kernel's parameters hold it."""
    cu = api()
    kinds = {
        "bf16": cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        "fp16": cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        "fp32": cu.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    }
    made: Any = call(
        cu.cuTensorMapEncodeTiled,
        kinds[m.dtype],
        2,
        m.address,
        [cu.cuuint64_t(d) for d in m.dims],
        [cu.cuuint64_t(m.pitch)],
        [cu.cuuint32_t(b) for b in m.box],
        [cu.cuuint32_t(1)] * 2,
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        what="a tensor map",
    )
    return ctypes.string_at(int(made.getPtr()), 128)
