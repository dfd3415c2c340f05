"""A graph's products as the tuned kernels take them, before there is memory."""

from __future__ import annotations

from dataclasses import replace

from ..graph import ir
from ..kernels import tiles


class Products:
    """Tensors lie where they might: far apart, and aligned as allocations are."""

    def __init__(self, graph: ir.Graph) -> None:
        self._made: dict[int, tiles.Work | None] = {}  # by the identity of products of the graph, without flags
        self._tensors = {t.name: t for t in graph.tensors}
        self._addresses = {t.name: (i + 1) << 44 for i, t in enumerate(graph.tensors)}

    def work(self, g: ir.Gemm, waits: tuple[int, ...] = (), signals: tuple[int, ...] = ()) -> tiles.Work | None:
        """None if an operand's columns are not side by side. `waits` and `signals` are flags."""
        if id(g) not in self._made:
            self._made[id(g)] = self._work(g)
        work = self._made[id(g)]
        if work is None or not (waits or signals):
            return work
        # a product of inputs need not wait for what comes to its addends, or for who still reads where it goes
        late = bool(work.terms) and all(self._tensors[r.tensor].kind == "input" for r in (g.left, g.right))
        waits, term_waits = ((), waits) if late else (waits, ())
        return replace(work, waits=waits, signals=signals, term_waits=term_waits)

    def _work(self, g: ir.Gemm) -> tiles.Work | None:
        sides = []
        for r in (g.left, g.right, g.out, *g.addends):
            tensor = self._tensors[r.tensor]
            # NOTE addends may lie on several ranks, each in a place of its own
            address = self._addresses[r.tensor] + (r.rank << 32)
            side = tiles.operand(r, tensor.shapes[r.rank], address, ir.ITEM_BYTES[tensor.dtype])
            if side is None:
                return None
            sides.append(side)
        left, right, out, *others = sides
        terms = tuple(tiles.Term(o, self._tensors[a.tensor].dtype) for o, a in zip(others, g.addends, strict=True))
        return tiles.Work.of(left, right, out, g.accumulate, terms=terms)
