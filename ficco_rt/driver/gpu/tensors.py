"""A tensor in a device's memory: its address, shape and type, for the launches that use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from ...kernels.family import Move
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

_APART = 40  # bits of an address in a tensor that may lie anywhere


def anywhere(memory: DeviceTensors) -> DeviceTensors:
    """The tensors at addresses that stand for any: a table for these serves all that a plan is bound to (`moving`)."""
    return {key: replace(memory[key], address=(i + 1) << _APART) for i, key in enumerate(sorted(memory))}


def moving(memory: DeviceTensors) -> Move:
    """From addresses in `anywhere(memory)` to those in the memory."""
    bases = [0, *(memory[key].address for key in sorted(memory))]
    return lambda address: bases[address >> _APART] + (address & (1 << _APART) - 1)
