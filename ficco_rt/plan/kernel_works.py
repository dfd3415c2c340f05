"""A plan's works as kernels are given them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ..graph.ir import Copy, Gemm, KernelCall, Reduce, Tensor
from ..kernels import works as kernels
from ..kernels.works import View
from ..region import Region
from .ir import Work

Look: TypeAlias = Callable[[Region], View]


def symbolic(tensors: Mapping[str, Tensor]) -> Look:
    """Views before there is memory: tensors lie where they might, far apart, and aligned as allocations are."""
    addresses = {name: (i + 1) << 44 for i, name in enumerate(tensors)}

    def look(region: Region) -> View:
        tensor = tensors[region.tensor]
        # NOTE regions of one launch may lie on several ranks, each in a place of its own
        address = addresses[region.tensor] + (region.rank << 32)
        return View(region, address, tensor.shapes[region.rank], tensor.dtype, tensor.kind != "input")

    return look


def kernel_work(work: Work, look: Look, flag: Callable[[int], int]) -> kernels.Work:
    """The work on views; `flag` tells the address of a flag, or leaves its number."""
    waits, signals = tuple(map(flag, work.waits)), tuple(map(flag, work.signals))
    match work.body:
        case Gemm() as g:
            return kernels.Product(
                out=look(g.out),
                left=look(g.left),
                right=look(g.right),
                left_transposed=g.left_transposed,
                right_transposed=g.right_transposed,
                accumulate=g.accumulate,
                addends=tuple(map(look, g.addends)),
                waits=waits,
                signals=signals,
            )
        case Reduce(out=out, terms=terms):
            return kernels.Sum(look(out), tuple(map(look, terms)), waits, signals)
        case Copy(dst=dst, src=src):
            return kernels.Copy(look(dst), look(src), waits, signals)
        case KernelCall() as call:
            arguments = tuple(look(a.value) if isinstance(a.value, Region) else a.value for a in call.arguments)
            return kernels.Call(call.kernel, arguments, call.grid, call.block, waits, signals)
