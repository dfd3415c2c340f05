"""A graph's works as kernels are given them, before there is memory."""

from __future__ import annotations

from collections.abc import Container
from typing import TypeAlias

from ..graph import ir
from ..kernels.works import Copy, Product, Sum, View
from ..region import Region

Place: TypeAlias = tuple[int, str]  # a rank's tensor


class Products:
    """Tensors lie where they might: far apart, and aligned as allocations are. `written` are those that are written
    while a launch may run."""

    def __init__(self, graph: ir.Graph, written: Container[Place]) -> None:
        self._tensors = {t.name: t for t in graph.tensors}
        self._addresses = {t.name: (i + 1) << 44 for i, t in enumerate(graph.tensors)}
        self._written = written

    def product(self, g: ir.Gemm, waits: tuple[int, ...] = ()) -> Product:
        out, left, right, *addends = (self._view(r) for r in (g.out, g.left, g.right, *g.terms))
        transposed = g.left_transposed, g.right_transposed
        return Product(out, left, right, *transposed, g.accumulate, tuple(addends), waits=waits)

    def other(self, op: ir.Reduce | ir.Copy) -> Sum | Copy:
        """What a streamed launch may hold beside products."""
        if isinstance(op, ir.Copy):
            return Copy(self._view(op.dst), self._view(op.src))
        return Sum(self._view(op.out), tuple(map(self._view, op.terms)))

    def _view(self, r: Region) -> View:
        tensor = self._tensors[r.tensor]
        # NOTE addends may lie on several ranks, each in a place of its own
        address = self._addresses[r.tensor] + (r.rank << 32)
        return View(r, address, tensor.shapes[r.rank], tensor.dtype, (r.rank, r.tensor) in self._written)
