"""The functions of finished sums, elementwise: their values, and how errors come through them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

FunctionName: TypeAlias = Literal["gelu", "gelu_tanh", "silu", "silu_mul"]
Array: TypeAlias = npt.NDArray[Any]

SLOPE = 1.13  # the steepest of all is gelu, at √2
GROWTH = 1.3  # of a small relative error of a positive sum: 1 + x·f'(x)/f(x) is largest for gelu, at 0.85
# Relative error, or absolute where values are small, of a function's evaluation in fp32, at most: cuBLASLt's gelu_tanh
# was up to 5.4e-6 off (tests/gpu/test_functions.py), ours half of that.
OWN = 2.0**-17
_AT_ONCE = 1 << 20  # elements whose erfc is computed at once


def _erfc(x: Array) -> Array:
    flat = x.ravel()
    made = np.empty(flat.shape, x.dtype)
    for at in range(0, flat.size, _AT_ONCE):
        part = flat[at : at + _AT_ONCE].tolist()
        made[at : at + len(part)] = np.fromiter(map(math.erfc, part), np.float64, len(part))
    return made.reshape(x.shape)


def _gelu(x: Array) -> Any:
    return 0.5 * x * _erfc(x * -math.sqrt(0.5))


def _times_sigmoid(x: Array, y: Array) -> Any:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-y))


def _gelu_tanh(x: Array) -> Any:
    return _times_sigmoid(x, math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))  # (1 + tanh(y)) / 2 is a sigmoid of 2y


def _silu(x: Array) -> Any:
    return _times_sigmoid(x, x)


@dataclass(frozen=True, slots=True)
class Function:
    """x · s(x), of a sigmoid s that is no steeper than `slope`. `number` is what the works of kernels hold
    (`src/functions.h`). With `factor` the value is multiplied by another argument."""

    number: int
    of: Callable[[Array], Any]  # in the precision of its argument
    slope: float
    factor: bool = False

    def mean(self, square: float) -> float:
        """The mean square of values, as a share of that of normal arguments, at most: s is 1/2 beside what is odd."""
        return min(1 / 2, 1 / 4 + 3 * self.slope**2 * square)


FUNCTIONS: Mapping[str, Function] = {
    "gelu": Function(1, _gelu, 0.4),  # with erf, as PyTorch's default
    "gelu_tanh": Function(2, _gelu_tanh, 0.4),  # PyTorch's approximate="tanh"
    "silu": Function(3, _silu, 1 / 4),
    "silu_mul": Function(3, _silu, 1 / 4, factor=True),
}
