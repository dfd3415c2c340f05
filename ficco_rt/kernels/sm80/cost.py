"""Cost model of `src/sm80_gemm.cu`: an estimate that ranks variants and decides where to split K.

Pure functions, with the numbers of an H100 (`python -m tools.gemm_bench --kernel sm80 --explore`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt

from ...machine.durations import gemm_rate
from ...machine.model import Device
from ..pace import Pace
from ..shared_costs import best_splits
from ..signature import Signature
from ..target import compute_capability
from ..tiles import DEPTH
from .variants import Variant

# Of 256 × 128 with the pipeline full, µs:
_STEP = 1.3  # a step of 64 of K on one multiprocessor
_TILE = 2.0  # that a tile's start and store add
_LAUNCH = 5.0
_BANDWIDTH = 3.0e6  # bytes of memory a µs
_SPLIT = (1.0, 2.3)  # once, and for each partial that a multiprocessor leaves or adds
# What the multiplication reaches of that rate by a warp's tile, by few warps that share a multiprocessor, by blocks
# of their own pace, and with two stages.
_BY_TILE = {64 * 64: 1.0, 64 * 32: 0.85, 32 * 32: 0.7}
_BY_WARPS = {4: 0.75}
_SHARED = 0.97
_SHALLOW = 0.85

# Of the tensor cores' rate, what `mma.sync` reaches in this kernel. sm_90a: measured on an H200
# (docs/results/kernels.md, 388–454 of cuBLAS's 760–830 TFLOP/s). Since sm_100 tensor cores are fed by other
# instructions: an estimate. All others: an estimate, for no GPU of those was at hand.
_REACHED = {90: 0.52, 100: 0.25, 103: 0.25}
_OTHERS = 0.85
_PIPELINE = {90: 1.105}  # that rate, of a machine's rate of large GEMMs: see `sm90.cost`
_STREAM = 3.0  # µs of `_LAUNCH` that the stream pays: a machine's `launch_time`


# The time of a step, of one of 16-bit elements by 16-byte accesses: by bytes of an access (with 16 warps on a
# multiprocessor), of fp32 and of TF32 (an H200, `gemm_bench --unaligned`)
_BY_ACCESS = {16: 1.0, 4: 2.0, 2: 2.3}
_FP32, _TF32 = 5.0, 1.4
_OF_FP32 = 0.85  # of the multiprocessors' rate of fp32, what the kernel reaches


def reached(device: Device, dtype: str = "bf16") -> float:
    """Fraction of the tensor cores' rate that the kernel reaches; of fp32, of the other cores' rate."""
    return _OF_FP32 if dtype == "fp32" else _REACHED.get(compute_capability(device.arch) or 0, _OTHERS)


def _plain(of: Signature) -> bool:
    """Whether no tensor core multiplies."""
    return of.dtype == "fp32" and not of.tf32


def slower(of: Signature, warps: int) -> float:
    """The time of a step, of one of 16-bit elements that are loaded by 16 bytes; `warps`: of a multiprocessor."""
    loaded = 1.0 if of.access == 16 else _BY_ACCESS[of.access] * max(1.0, sqrt(16 / warps))
    return max(loaded, _FP32 if _plain(of) else _TF32 if of.tf32 else 1.0)


def rate(v: Variant, residency: int, stages: int, of: Signature) -> float:
    """The share of the full rate that the multiplication reaches."""
    if _plain(of):  # small tiles read more of shared memory, few warps wait for it
        return (1.0 if v.warps * v.residency < 12 else 0.9) * min(1.0, sqrt(v.warps * residency / 8))
    reached = _BY_TILE[v.tile[0] * v.tile[1] // v.warps] * _BY_WARPS.get(v.warps * residency, 1.0)
    return reached * (_SHARED if residency > 1 else 1.0) * (_SHALLOW if stages * residency == 2 else 1.0)


def pace(v: Variant, blocks: int, stages: int, device: Device, of: Signature) -> Pace:
    """What the tiles of a launch take on a device; see `sm90.cost.pace`."""
    m, n = v.tile
    size = m * n / (256 * 128)
    shared = ceil(blocks / device.sms)
    full = gemm_rate(device, "tf32" if of.tf32 else of.dtype)
    if _plain(of):
        full *= reached(device, of.dtype)
    else:
        full *= _PIPELINE.get(compute_capability(device.arch) or 0, 1.0) * reached(device)
        full /= slower(of, v.warps * shared)
    return Pace(
        groups=blocks,
        depth=of.step,
        step=shared * 2.0 * m * n * of.step * device.sms / (full * rate(v, shared, stages, of)),
        ends=_TILE * size,
        adding=_TILE * size,
        split=(_SPLIT[0], _SPLIT[1] * size),
        start=_LAUNCH - _STREAM,
    )


def alone(
    v: Variant, residency: int, rows: Sequence[int], columns: Sequence[int], k: int, blocks: int, reached: float,
    depth: int = DEPTH,
) -> tuple[float, int]:  # fmt: skip
    """The least time, and the splits of the last wave that give it."""
    m, n = v.tile
    size = m * n / (256 * 128)
    tiles = sum(ceil(r / m) for r in rows) * sum(ceil(c / n) for c in columns)
    step = residency * _STEP * size / reached
    moved = 2 * (sum(rows) * k + k * sum(columns) + sum(rows) * sum(columns)) / _BANDWIDTH
    split = (_SPLIT[0], _SPLIT[1] * size)
    cost, splits = best_splits(tiles, blocks, ceil(k / depth), step, _TILE * size, split, moved)
    return _LAUNCH + cost, splits
