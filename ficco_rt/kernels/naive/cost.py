"""Cost model of the plain GEMM of `src/naive.cu`: an estimate from its code, never measured."""

from __future__ import annotations

from math import ceil

from ...machine.durations import gemm_rate
from ...machine.model import Device
from ..pace import Pace
from ..tiles import DEPTH

# Of a device's rate of fp32. A step of one of K is 64 multiply-adds a thread, and beside them 16 loads from shared
# memory, 16 conversions and 16 addresses: 112 instructions, so 0.57 of the multiply-adds that could be issued. Between
# steps of 32 every thread brings 32 elements with some 20 instructions each (0.85 of what is left), and nothing is
# multiplied while they come: two blocks that share a multiprocessor hide a part of that (0.8, a guess).
_OF_FP32 = 0.4


def reached(device: Device, dtype: str) -> float:
    """Fraction of the rate of large GEMMs of `dtype` that the kernel reaches."""
    return _OF_FP32 * gemm_rate(device, "fp32") / gemm_rate(device, dtype)


def pace(tile: tuple[int, int], blocks: int, device: Device) -> Pace:
    """What the tiles of a launch take on a device. No tensor core is used, whatever the type."""
    m, n = tile
    shared = ceil(blocks / device.sms)
    rate = _OF_FP32 * gemm_rate(device, "fp32")
    return Pace(groups=blocks, step=shared * 2.0 * m * n * DEPTH * device.sms / rate, whole_edges=False)
