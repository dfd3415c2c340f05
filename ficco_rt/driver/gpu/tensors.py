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

_UNIT = 16  # bytes: no access of a kernel is larger
_APART = 40  # bits of an address in a tensor that may lie anywhere


def anywhere(memory: DeviceTensors) -> DeviceTensors:
    """The tensors at addresses that stand for any of the same alignment: a table for these serves all that a plan is
    bound to (`moving`)."""
    places = enumerate(sorted(memory), 1)
    return {key: replace(memory[key], address=(i << _APART) + memory[key].address % _UNIT) for i, key in places}


def beside(memory: DeviceTensors) -> tuple[int, ...]:
    """How the tensors' addresses are aligned."""
    return tuple([memory[key].address % _UNIT for key in sorted(memory)])


def moving(memory: DeviceTensors) -> Move:
    """From addresses in `anywhere(memory)` to those in the memory."""
    bases = [0, *[memory[key].address // _UNIT * _UNIT for key in sorted(memory)]]
    return lambda address: bases[address >> _APART] + (address & (1 << _APART) - 1)
