"""A tensor in a device's memory: its address, shape and type, for the launches that use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from ...types import TYPES, Dtype


@dataclass(frozen=True, slots=True)
class DeviceTensor:
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
        return TYPES[self.dtype].bytes * prod(self.shape)


DeviceTensors: TypeAlias = Mapping[tuple[str, int], DeviceTensor]  # by name and rank
