"""Tensors where a kernel finds them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ...graph.ir import Dtype
from ...region import Region


@dataclass(frozen=True, slots=True)
class Tensor:
    """A dense row-major tensor in a device's memory."""

    address: int
    shape: tuple[int, ...]
    dtype: Dtype
    rank: int
    owned: bool  # by the driver, which then frees it


Resolve: TypeAlias = Callable[[Region], Tensor]
