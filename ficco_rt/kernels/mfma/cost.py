"""Cost model of `src/mfma_gemm.hip`: an estimate in clocks, which ranks variants and decides where to split K.

Pure functions. None of their numbers has been measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from ...machine.durations import gemm_rate
from ...machine.model import Device
from ..pace import Pace
from ..shared_costs import best_splits
from ..tiles import DEPTH
from .variants import LDS, VARIANTS, Variant

# Operations of bf16 that a compute unit's matrix cores do in a clock, and bytes of its LDS (white papers
# of CDNA 2 and 3, section on the compute unit); the others are guesses, as nothing has been measured: bytes of memory
# in a clock, clocks that a 128 × 128 tile's start and store add, clocks of splits, once and for each partial of it.
_OPERATIONS = {"gfx90a": 1024, "gfx942": 2048}
_LDS = 128
_MEMORY = 2000
_TILE = 3000
_SPLIT = (1500, 1500)
_CLOCK = 2100.0  # clocks a µs, the peak of the MI300X (data sheet)
_START = 3.0  # µs of a launch beyond what its stream pays: a guess, as `sm90` and `sm80` have it


def pace(v: Variant, blocks: int, device: Device, dtype: str) -> Pace:
    """What the tiles of a launch take on a device: the best variant's steps reach the device's rate; see
    `sm90.cost.pace`."""
    m, n = v.tile
    size = m * n / (128 * 128)
    best = min(_step_clocks(u, device.arch) / (u.tile[0] * u.tile[1]) for u in VARIANTS)
    worse = _step_clocks(v, device.arch) / (m * n) / best
    return Pace(
        groups=blocks,
        step=ceil(blocks / device.sms) * 2.0 * m * n * DEPTH * device.sms / gemm_rate(device, dtype) * worse,
        ends=_TILE * size / _CLOCK,
        adding=_TILE * size / _CLOCK,
        split=(_SPLIT[0] / _CLOCK, _SPLIT[1] * size / _CLOCK),
        start=_START,
    )


def sharing(v: Variant, smem: int) -> int:
    """Blocks with so much LDS that a compute unit holds."""
    return max(1, min(v.residency, LDS // smem))


def alone(
    v: Variant, residency: int, rows: Sequence[int], columns: Sequence[int], k: int, units: int, arch: str
) -> tuple[float, int]:
    """The least time of so many blocks on each compute unit, and the splits of the last wave that give it."""
    m, n = v.tile
    size = m * n / (128 * 128)
    tiles = sum(ceil(r / m) for r in rows) * sum(ceil(c / n) for c in columns)
    moved = 2 * (sum(rows) * k + k * sum(columns) + sum(rows) * sum(columns)) / _MEMORY
    step, split = residency * _step_clocks(v, arch), (_SPLIT[0], _SPLIT[1] * size)
    return best_splits(tiles, units * residency, ceil(k / DEPTH), step, _TILE * size, split, moved)


def _step_clocks(v: Variant, arch: str) -> float:
    """Clocks of 64 of K: the matrix cores' or the LDS's, and what of the other does not overlap."""
    m, n = v.tile
    multiply = 2 * m * n * DEPTH / _OPERATIONS[arch]
    (waves_m, waves_n), written = v.grid, m + n
    read = waves_m * waves_n * (m / waves_m + n / waves_n)
    move = (read + written) * DEPTH * 2 / _LDS
    return max(multiply, move) + min(multiply, move) / 4
