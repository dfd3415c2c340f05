"""A graph's products as the tuned kernels take them, before there is memory."""

from __future__ import annotations

from ..graph import ir
from ..kernels import tiles
from ..types import TYPES


class Products:
    """Tensors lie where they might: far apart, and aligned as allocations are."""

    def __init__(self, graph: ir.Graph) -> None:
        self._tensors = {t.name: t for t in graph.tensors}
        self._addresses = {t.name: (i + 1) << 44 for i, t in enumerate(graph.tensors)}

    def work(self, g: ir.Gemm, waits: tuple[int, ...] = (), term_waits: tuple[int, ...] = ()) -> tiles.Work | None:
        """None if an operand's columns are not side by side."""
        sides = []
        for r in (g.left, g.right, g.out, *g.addends):
            tensor = self._tensors[r.tensor]
            # NOTE terms may lie on several ranks, each in a place of its own
            address = self._addresses[r.tensor] + (r.rank << 32)
            side = tiles.operand(r, tensor.shapes[r.rank], address, TYPES[tensor.dtype].bytes)
            if side is None:
                return None
            sides.append(side)
        left, right, out, *others = sides
        terms = [tiles.Term(o, self._tensors[t.tensor].dtype) for o, t in zip(others, g.addends, strict=True)]
        return tiles.Work.of(left, right, out, g.accumulate, waits, (), tuple(terms), term_waits)
