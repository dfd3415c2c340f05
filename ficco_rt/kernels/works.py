"""The works of a launch on tensors in memory: the input of the kernels of all families."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ..geometry.cells import strides
from ..geometry.region import Region
from ..types import TYPES, Dtype


@dataclass(frozen=True, slots=True)
class View:
    """A region of a dense row-major tensor. Before memory exists addresses are symbolic: apart, and aligned as
    allocations are."""

    region: Region
    address: int  # of the tensor's first element
    shape: tuple[int, ...]  # of the tensor
    dtype: Dtype
    written: bool = True  # by the plan's commands; inputs never are: outputs share no memory with them (exec/bindings)

    @property
    def first(self) -> int:
        """The address of the region's first element."""
        steps = strides(self.shape)
        offset = sum(at * step for at, step in zip(self.region.boxes[0].start, steps, strict=True))
        return self.address + offset * TYPES[self.dtype].bytes


class _Work:
    """What all works have."""

    __slots__ = ()

    @property
    def views(self) -> Iterator[View]:
        """All that it touches."""
        names: tuple[str, ...] = self.__slots__
        for value in (getattr(self, name) for name in names):
            yield from (v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, View))


@dataclass(frozen=True, slots=True)
class Product(_Work):
    """out (+)= left · right, or out = left · right + the sum of `addends`, which have the shape of out. A transposed
    left is stored [K, M], a transposed right [N, K]. `scales` belong to left and right; no kernel takes them yet.

    `waits` must be up before it reads, `signals` are raised when all is written: numbers of flags, or their addresses
    once there is memory. So for all works.
    """

    out: View
    left: View
    right: View
    left_transposed: bool
    right_transposed: bool
    accumulate: bool
    addends: tuple[View, ...] = ()
    scales: tuple[View, ...] = ()
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()

    @property
    def transposed(self) -> tuple[bool, bool]:
        return self.left_transposed, self.right_transposed

    @property
    def stored_afar(self) -> bool:
        """Whether its result goes to another rank. Its operands are always on its own rank."""
        return self.out.region.rank != self.left.region.rank


@dataclass(frozen=True, slots=True)
class Sum(_Work):
    """out = the sum of `terms`, accumulated in fp32."""

    out: View
    terms: tuple[View, ...]
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy(_Work):
    """dst <- src, bit by bit."""

    dst: View
    src: View
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Call(_Work):
    """A user's kernel: of a view it gets the address of the first element, of a number a C int."""

    kernel: str
    arguments: tuple[View | int, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    waits: tuple[int, ...] = ()
    signals: tuple[int, ...] = ()


Work: TypeAlias = Product | Sum | Copy | Call
