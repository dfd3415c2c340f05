"""Cost model of the vendor's GEMM library: an estimate of the time of a call.

Where no GPU is, the library does not say which of its kernels it takes. It has many tiles, and usually finds one that
fills its waves: for 5000 × 1000 cuBLAS was seen to take 256 × 152, which is one wave of 132 tiles
(docs/results/kernels.md). So the estimate is that of the best of a few tiles, in both orientations. Three numbers
depend on the device: `cost.VendorGemm`.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, exp, inf, log10

from ..machine.durations import VendorGemm, gemm_rate
from ..machine.model import Device
from ..types import TYPES
from .shared_costs import best_splits
from .tiles import DEPTH

# Fitted with the figures of `cost.VENDOR_GEMMS`.
_SIDES, _OTHERS = (64, 128, 192, 256), (64, 128, 152, 160, 192, 256)
_LARGEST = 256 * 168
TILES = sorted({t for a in _SIDES for b in _OTHERS if a * b <= _LARGEST for t in ((a, b), (b, a))})
_SIZE = 128 * 256  # of the tile whose ends `VendorGemm.ends` is
_SPLIT = (2.0, 2.0)  # µs: once, and for each part of K of such a tile
# µs more of a tile's ends: of 8192 × 7168 × 1024 and 4096 × 7168 × 2304 on an H200, as the medians of 7 turns
_BIAS, _FUNCTION = 0.4, 1.6
# Of fp8, by the left operand's scales: times as long a step, and µs more; of the first, if tensor cores add up alone;
# and µs of a conversion of scales. Fitted to cuBLASLt 13.1 on one H200, 23 and 28 November 2026: ten products of 8192 ×
# 14336 × 8192 to 16 × 7168 × 2048 in graphs, less 2.5 µs between calls; within 4 to 7 % in the mean, and 17 % at most.
_SCALING = {"tensor": (1.04, 0.5), "row": (1.08, 4.25), "1x128": (1.19, 3.5), "128x128": (1.19, 3.5)}
_FAST, _CONVERTED = 0.92, 5.0
_BESIDE = 0.1  # of the steps' time or the memory's, whichever is shorter: what the other does not hide
# Bytes of L2 a µs, for all multiprocessors and for one; of what a block loads, a third comes by its cluster.
_LOADS, _PORT, _SHARED = 1.15e7, 7.0e4, 2 / 3

# Beside the estimate of our kernel, both alone in graphs of such launches: µs between calls, and the logarithm of what
# the ratio of both exceeds that of the times by, at 10⁹ operations and for each ten times as many. Fitted on an H200 to
# 249 plain products of up to LONGEST operations, of random sizes and of layers (docs/results/kernels.md).
_BETWEEN, _OVER = 2.5, (0.050, -0.028)
LONGEST = 3e11  # of longer ones the estimates were not compared …
MEASURED = 1e12  # … and of these it takes a second to measure both
FEW_ROWS = 64  # of products with so few ours is faster, or within 2 %, for 107 of 110 of random sizes


def call_time(
    m: int, n: int, k: int, sms: int, device: Device, dtype: str, gemm: VendorGemm,
    *, residual: bool = False, bias: bool = False, function: bool = False, out_dtype: str | None = None,
    scaling: str | None = None, fast: bool = False, converted: int = 0,
) -> float:  # fmt: skip
    """Microseconds of an [m, k] · [k, n] product on so many multiprocessors, without the start of its call. It may add
    a matrix and a row, and apply a function. `scaling`: of the left operand, and how many operands' scales are
    `converted` before."""
    item, out = TYPES[dtype].bytes, TYPES[out_dtype or dtype].bytes
    slower, more = _SCALING[scaling or "tensor"] if item == 1 else (1.0, 0.0)
    rate = gemm_rate(device, dtype) * gemm.reached / (slower * _FAST if fast else slower) / device.sms
    moved = (item * (m * k + k * n) + out * m * n) / device.memory_rate
    ends = gemm.ends + _BIAS * bias + _FUNCTION * function
    read = out * m * n / device.memory_rate if residual else 0.0  # which nothing hides
    return read + more + converted * _CONVERTED + _call_time(m, n, k, sms, rate, item, moved, ends)


def beside_ours(m: int, n: int, k: int, device: Device, dtype: str, gemm: VendorGemm) -> float:
    """Microseconds of an [m, k] · [k, n] product, to be compared with the estimate of our kernel."""
    time = call_time(m, n, k, device.sms, device, dtype, gemm) + _BETWEEN
    return time * exp(-_OVER[0] - _OVER[1] * log10(2e-9 * m * n * k))


@lru_cache(maxsize=4096)
def _call_time(m: int, n: int, k: int, sms: int, rate: float, item: int, moved: float, ends: float) -> float:
    """`rate`: operations a microsecond of one multiprocessor; `moved`: the memory's time."""
    best = inf
    for rows, columns in TILES:
        count, area = ceil(m / rows) * ceil(n / columns), rows * columns
        loaded = _SHARED * item * DEPTH * (rows + columns)
        step = max(2.0 * area * DEPTH / rate, min(count, sms) * loaded / _LOADS, loaded / _PORT)
        size = area / _SIZE
        split = (_SPLIT[0], _SPLIT[1] * size)
        time, _ = best_splits(count, sms, ceil(k / DEPTH), step, ends * size, split, moved, _BESIDE)
        best = min(best, time)
    return best
