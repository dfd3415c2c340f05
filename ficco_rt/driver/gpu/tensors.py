"""Tensors and flags where a kernel finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ...kernels.works import View
from ...region import Region
from ...types import TYPES, Dtype


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense row-major tensor in a device's memory."""

    address: int
    shape: tuple[int, ...]
    dtype: Dtype
    rank: int
    owned: bool  # by the driver, which then frees it
    written: bool = True  # by the plan's commands; an input never is: outputs share no memory with it (exec/bindings)

    @property
    def size(self) -> int:
        """Bytes."""
        size = TYPES[self.dtype].bytes
        for n in self.shape:
            size *= n
        return size

    def view(self, region: Region) -> View:
        """A region of it, as kernels are given it."""
        return View(region, self.address, self.shape, self.dtype, self.written)


Resolve: TypeAlias = Callable[[Region], Tensor]
FlagAddress: TypeAlias = Callable[[int], int]  # of a flag's number in the plan
