"""Kernels as plain data: what a launch needs to know, and which kernel serves which request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..types import TYPES
from . import mfma, sm80, sm90
from .tiles import DEPTH


@dataclass(frozen=True, slots=True)
class GemmKernel:
    """A tiled GEMM: each block makes one output tile at a time, its operands staged through shared memory."""

    name: str
    archs: tuple[str, ...]  # prefixes; "" serves every architecture
    tile: tuple[int, int, int]  # rows, columns, depth of a tile
    stages: tuple[int, int]  # fewest and most steps of the pipeline
    threads: int

    def smem(self, stages: int, dtype: str) -> int:
        """Dynamic shared memory of a block, bytes."""
        m, n, k = self.tile
        return stages * (m + n) * k * TYPES[dtype].bytes


@dataclass(frozen=True, slots=True)
class GemmRequest:
    """What was asked: a launch's works, and the text's resources (None: free choice)."""

    arch: str
    dtype: str
    smem: int | None
    residency: int | None
    sms: int | None
    rows: tuple[int, ...]  # sizes of the pieces that the output's rows come in, over all works
    columns: tuple[int, ...]  # and of its columns, of one work
    phases: tuple[sm90.Phase, ...]  # of works that wait in the launch for what comes from other ranks
    depth: int
    right_transposed: bool
    terms: int  # that are added to a work's product, at most
    paced: bool | None  # whether stores leave among the next tile's steps, see `sm90.choose`
    not_sm90: str | None  # why the works are not for the Hopper kernel, by `sm90.refusal`; None: they are
    not_sm80: str | None  # likewise, by `sm80.refusal`
    not_mfma: str | None = None  # likewise, by `mfma.refusal`


@dataclass(frozen=True, slots=True)
class GemmConfig:
    """What was chosen."""

    kernel: str
    tile: tuple[int, int, int]
    stages: int
    smem: int
    residency: int | None
    sms: int | None


# The twin that every architecture runs; its shapes are those of the tuned kernels, so that occupancy
# and tile counts can be reasoned about without them.
GEMMS: tuple[GemmKernel, ...] = (
    GemmKernel(
        name="naive_gemm",
        archs=("",),
        tile=(128, 128, 32),
        stages=(1, 4),
        threads=256,
    ),
)

REDUCE: Literal["naive_reduce"] = "naive_reduce"
COPY: Literal["naive_copy"] = "naive_copy"
COPY_SMS = 64  # multiprocessors that copies take at most where their text does not say

# Blocks that start together, on multiprocessors side by side, of the kernels that have such
CLUSTERS = {v.name: v.cluster for v in sm90.VARIANTS}

# Rows and columns of an output tile of every kernel that a plan may name for a GEMM.
TILES: dict[str, tuple[int, int]] = {
    **{k.name: k.tile[:2] for k in GEMMS},
    **{v.name: v.tile for v in sm90.VARIANTS},
    **{v.name: v.tile for v in sm80.VARIANTS},
    **{v.name: v.tile for v in mfma.VARIANTS},
}


def copy_sms(sms: int) -> int:
    """Multiprocessors of a launch of copies whose text does not say, on a device of `sms`."""
    return max(1, min(COPY_SMS, sms // 2))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device gives to blocks, bytes."""

    sms: int
    smem_per_sm: int
    smem_per_block: int
    smem_reserved: int
    max_residency: int
    max_threads: int  # of all blocks of a multiprocessor


def out_of_limits(sms: int | None, residency: int | None, smem: int | None, limits: Limits) -> str | None:
    """What was asked of a launch and no device of this kind has, or None."""
    if sms is not None and sms > limits.sms:
        return f"sms = {sms}, but the device has {limits.sms} multiprocessors"
    if residency is not None and residency > limits.max_residency:
        return f"residency = {residency}, but a multiprocessor holds at most {limits.max_residency} blocks"
    if smem is not None and smem > limits.smem_per_block:
        return f"smem = {smem} bytes, but a block has at most {limits.smem_per_block}"
    return None


def choose_gemm(request: GemmRequest, limits: Limits) -> GemmConfig | str:
    """The first that fits of the Hopper kernel, the one for tensor cores since Ampere, and the plain one, with the
    deepest pipeline that the resources leave. A text says why none does."""
    refusal = out_of_limits(request.sms, request.residency, request.smem, limits)
    if refusal is not None:
        return refusal
    window = _window(request, limits)
    if isinstance(window, str):
        return window
    floor, budget = window
    for tuned in (_hopper, _ampere, _cdna):
        config = tuned(request, limits, floor, budget)
        if config is not None:
            return config
    reasons = []
    for kernel in GEMMS:
        if not any(request.arch.startswith(a) for a in kernel.archs):
            continue
        found = _fit(kernel, request, limits, floor, budget)
        if isinstance(found, GemmConfig):
            return found
        reasons.append(found)
    return reasons[0] if reasons else f"no kernel multiplies {request.dtype} on {request.arch}"


def _window(request: GemmRequest, limits: Limits) -> tuple[int, int] | str:
    """The least and the most dynamic shared memory of a block that the text's resources leave."""
    budget = limits.smem_per_block if request.smem is None else request.smem
    floor = 0
    if request.residency is not None:
        # with `residency` blocks to share a multiprocessor, and no room for one more
        share = limits.smem_per_sm // request.residency - limits.smem_reserved
        floor = max(0, limits.smem_per_sm // (request.residency + 1) - limits.smem_reserved + 1)
        if request.smem is not None and not floor <= request.smem <= share:
            return (
                f"smem = {request.smem} bytes does not give residency = {request.residency}: "
                f"that takes {floor} to {share} bytes a block"
            )
        budget = min(budget, share)
        floor = min(floor, limits.smem_per_block)
    return floor, budget


def _hopper(request: GemmRequest, limits: Limits, floor: int, budget: int) -> GemmConfig | None:
    """The variant of the Hopper kernel that is fastest by estimate, if any fits the budget."""
    # its blocks take all registers: one a multiprocessor
    if request.arch != sm90.ARCH or request.not_sm90 is not None or request.residency not in (None, 1):
        return None
    left = budget - 1024  # for the kernel's static barriers, and what the system rounds up to
    if all(v.stages(left, request.right_transposed) < 2 for v in sm90.VARIANTS):
        return None
    sms = request.sms or limits.sms
    chosen = sm90.choose(
        request.rows,
        request.columns,
        request.depth,
        sms,
        request.right_transposed,
        left,
        request.phases,
        request.terms,
        request.paced,
    ).variant
    stages = chosen.stages(left, request.right_transposed)
    smem = chosen.smem(stages, request.right_transposed)
    smem = request.smem if request.smem is not None else max(smem, floor)
    return GemmConfig(chosen.name, (*chosen.tile, DEPTH), stages, smem, request.residency, request.sms)


def _ampere(request: GemmRequest, limits: Limits, floor: int, budget: int) -> GemmConfig | None:
    """The variant of the kernel for tensor cores since Ampere that is fastest by estimate, if any fits."""
    if not sm80.serves(request.arch) or request.not_sm80 is not None:
        return None
    if request.residency is not None:
        budgets = {request.residency: budget}
    elif request.smem is not None:
        budgets = {max(1, limits.smem_per_sm // (request.smem + limits.smem_reserved)): budget}
    else:
        most = max(v.residency for v in sm80.VARIANTS)
        budgets = {r: min(budget, limits.smem_per_sm // r - limits.smem_reserved) for r in range(1, most + 1)}
    sms = request.sms or limits.sms
    chosen = sm80.choose(request.rows, request.columns, request.depth, sms, budgets, request.residency is not None)
    if chosen is None:
        return None
    variant = chosen.variant
    stages = variant.stages(chosen.budget)
    smem = request.smem if request.smem is not None else max(variant.smem(stages), floor)
    return GemmConfig(variant.name, (*variant.tile, DEPTH), stages, smem, request.residency, request.sms)


def _cdna(request: GemmRequest, limits: Limits, floor: int, budget: int) -> GemmConfig | None:
    """The variant of the kernel for AMD's matrix cores that is fastest by estimate, if any fits."""
    if request.arch not in mfma.ARCHS or request.not_mfma is not None:
        return None
    least = floor if request.smem is None else request.smem
    chosen = mfma.choose(
        request.rows,
        request.columns,
        request.depth,
        request.sms or limits.sms,
        request.arch,
        least=least,
        most=budget,
        residency=request.residency,
    )
    if chosen is None:
        return None
    v = chosen.variant
    tile = (*v.tile, v.step)
    return GemmConfig(v.name, tile, mfma.STAGES, max(v.smem, least), request.residency, request.sms)


def _fit(kernel: GemmKernel, request: GemmRequest, limits: Limits, floor: int, budget: int) -> GemmConfig | str:
    if (request.residency or 1) * kernel.threads > limits.max_threads:
        return (
            f"residency = {request.residency}, but a multiprocessor holds at most "
            f"{limits.max_threads // kernel.threads} blocks of {kernel.threads} threads"
        )
    fewest, most = kernel.stages
    needed = kernel.smem(fewest, request.dtype)
    if needed > budget:
        return f"{kernel.name} needs {needed} bytes of shared memory a block; {budget} are left to it"
    stages = max(s for s in range(fewest, most + 1) if kernel.smem(s, request.dtype) <= budget)
    smem = kernel.smem(stages, request.dtype)
    # padded up to what was asked: a block that asks for more leaves less room for others
    smem = request.smem if request.smem is not None else max(smem, floor)
    return GemmConfig(kernel.name, kernel.tile, stages, smem, request.residency, request.sms)
