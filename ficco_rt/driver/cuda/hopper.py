"""The Hopper GEMM's side of the driver: a launch's works as the table that kernels/src/sm90_gemm.cu reads."""

from __future__ import annotations

import ctypes
from typing import Any

from ...graph.ir import ITEM_BYTES
from ...kernels import sm90
from ...plan.ir import GemmWork, Launch
from ..gpu.packed import Packed
from ..gpu.tensors import FlagAddress, Resolve
from .call import api, call


def is_hopper(kernel: str) -> bool:
    return any(v.name == kernel for v in sm90.VARIANTS)


def pack(command: Launch, resolve: Resolve, address: FlagAddress, sms: int) -> Packed | None:
    """The launch; None where the memory that the tensors have got is not aligned as the kernel needs it."""
    works = []
    for work in command.works:
        assert isinstance(work, GemmWork)
        sides = []
        for region in (work.left, work.right, work.out):
            tensor = resolve(region)
            sides.append(sm90.operand(region, tensor.shape, tensor.address, ITEM_BYTES[tensor.dtype]))
        left, right, out = sides
        if left is None or right is None or out is None:
            return None
        waits, signals = tuple(map(address, work.waits)), tuple(map(address, work.signals))
        works.append(sm90.Work.of(left, right, out, work.accumulate, waits, signals))
    first = command.works[0]
    assert isinstance(first, GemmWork)
    dtype, out_dtype = resolve(first.left).dtype, resolve(first.out).dtype
    turned = (first.left_transposed, first.right_transposed)
    if sm90.refusal(works, dtype, out_dtype, *turned) is not None:
        return None
    variant = sm90.variant(command.kernel)
    rows = [s.size for w in works for s in w.out_rows]
    columns = [s.size for s in works[0].out_columns]
    depth = first.left.shape[0 if first.left_transposed else 1]
    budget = command.attributes.smem
    best = sm90.choose(rows, columns, depth, sms, first.right_transposed, budget)
    table = sm90.build(
        works,
        variant,
        dtype,
        out_dtype,
        *turned,
        sms=sms,
        stages=variant.stages(budget, first.right_transposed),
        smem=budget,
        # works of a streamed launch come to an end one by one: none is the last wave
        tail_splits=best.tail_splits if best.variant is variant and not command.streamed else 1,
    )

    def arguments(constants: int, scratch: int) -> list[bytes]:
        return [table.parameters(constants, scratch, [encode(m) for m in table.maps])]

    key = (variant, dtype, out_dtype, *turned)
    return Packed(
        source=sm90.SOURCE.name,
        entry=sm90.entry(*key),
        options=sm90.options(*key),
        threads=variant.threads,
        smem=table.smem,
        tiles=len(table.tiles),
        constants=table.constants,
        scratch=table.scratch_bytes,
        counters=table.counter_bytes // 4,
        arguments=arguments,
        grid=table.grid,
        cluster=variant.cluster,
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
