"""What ops do, as kernels are given it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from ..geometry.region import Region
from ..graph.ir import Copy, Gemm, KernelCall, Reduce, Tensor
from ..kernels import works as kernels
from ..kernels.works import View
from .ir import WorkBody

Look: TypeAlias = Callable[[Region], View]


def symbolic(tensors: Iterable[Tensor]) -> Look:
    """Views before there is memory: tensors lie where they might, far apart, and aligned as allocations are."""
    places = {t.name: ((i + 1) << 44, t) for i, t in enumerate(tensors)}

    def look(region: Region) -> View:
        address, tensor = places[region.tensor]
        # NOTE regions of one launch may lie on several ranks, each in a place of its own
        address += region.rank << 32
        return View(region, address, tensor.shapes[region.rank], tensor.dtype, tensor.kind != "input")

    return look


def kernel_work(body: WorkBody, look: Look, waits: tuple[int, ...] = (), signals: tuple[int, ...] = ()) -> kernels.Work:
    """The work on views; flags by their numbers or by their addresses."""
    match body:
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
