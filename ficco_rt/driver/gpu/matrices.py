"""A launch's products as the tuned kernels take them: matrices in memory, and pieces of their rows and columns."""

from __future__ import annotations

from ...graph.ir import ITEM_BYTES
from ...kernels import tiles
from ...plan.ir import GemmWork, Launch
from .tensors import FlagAddress, Resolve


def works_of(command: Launch, resolve: Resolve, address: FlagAddress) -> list[tiles.Work] | None:
    """The works on memory; None if an operand's columns are not side by side."""
    works = []
    for work in command.works:
        assert isinstance(work, GemmWork)
        sides = []
        for region in (work.left, work.right, work.out, *work.terms):
            tensor = resolve(region)
            side = tiles.operand(region, tensor.shape, tensor.address, ITEM_BYTES[tensor.dtype])
            if side is None:
                return None
            sides.append(side)
        left, right, out, *others = sides
        terms = tuple(tiles.Term(o, resolve(t).dtype) for o, t in zip(others, work.terms, strict=True))
        waits, signals = tuple(map(address, work.waits)), tuple(map(address, work.signals))
        # a product of inputs need not wait for what comes to its terms, or for who still reads where it goes
        late = bool(terms) and not any(resolve(r).written for r in (work.left, work.right))
        waits, term_waits = ((), waits) if late else (waits, ())
        works.append(tiles.Work.of(left, right, out, work.accumulate, waits, signals, terms, term_waits))
    return works
