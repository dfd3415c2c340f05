"""A launch's products as the tuned kernels take them: matrices in memory, and pieces of their rows and columns."""

from __future__ import annotations

from ...graph.ir import ITEM_BYTES
from ...kernels import tiles
from ...plan.ir import GemmWork, Launch
from .tensors import FlagAddress, Resolve


def works_of(command: Launch, resolve: Resolve, address: FlagAddress) -> list[tiles.Work] | None:
    """The works on memory; None if an operand's columns are not side by side, or terms are added."""
    works = []
    for work in command.works:
        assert isinstance(work, GemmWork)
        if work.terms:  # NOTE: until the tuned kernels add terms
            return None
        sides = []
        for region in (work.left, work.right, work.out):
            tensor = resolve(region)
            sides.append(tiles.operand(region, tensor.shape, tensor.address, ITEM_BYTES[tensor.dtype]))
        left, right, out = sides
        if left is None or right is None or out is None:
            return None
        waits, signals = tuple(map(address, work.waits)), tuple(map(address, work.signals))
        works.append(tiles.Work.of(left, right, out, work.accumulate, waits, signals))
    return works
