"""Computes the blocks of a launch that leave room for other blocks: `leave = nccl`, `leave = 100 KiB`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .block_fit import Footprint, Several, Shape, fit, left, shape
from .family import Compiled, GemmRequest, KernelConfig
from .occupancy import Limits

NO_ROOM = "none of its blocks leaves so much room"


def footprint(variant: Compiled, dynamic_smem: int, static_smem: int = 0) -> Footprint:
    """A block of a variant."""
    return Footprint(
        variant.name, variant.threads, variant.registers, static_smem, dynamic_smem, cluster=variant.cluster
    )


def footprint_of(config: KernelConfig) -> Footprint:
    """A block of a configured launch."""
    return Footprint(
        config.kernel, config.threads, config.registers, config.static_smem, config.smem, cluster=config.cluster
    )


def crowded_out(own: Footprint, others: Sequence[Footprint], limits: Limits) -> str:
    """What as many blocks of a kernel as a multiprocessor takes leave no room for, with the numbers; nothing if a block
    of each of the others fits beside them."""
    several = Several(own, max(1, fit(own, (), limits).blocks))
    for other in others:
        found = fit(other, (several,), limits)
        if not found.blocks:
            rest = left((several,), limits)
            registers = max(0, rest.registers)
            return (
                f"as many of its blocks as fit ({several.count}, each {own.threads} threads × {own.registers} "
                f"registers, {own.smem} bytes of shared memory) leave {registers} registers and {rest.smem} bytes; "
                f"{other.kernel} takes {other.threads * other.registers} and {other.smem}"
            )
    return ""


def shapes(
    blocks: Sequence[Footprint], request: GemmRequest, limits: Limits, most: int | None = None
) -> Iterator[tuple[int, Shape]]:
    """The number of a footprint, and how so many of its blocks a multiprocessor leave what the request asks to be left;
    `most`: no more blocks than these."""
    for number, block in enumerate(blocks):
        for count in range(1, min(fit(block, (), limits).blocks, most or limits.max_residency) + 1):
            if request.residency not in (None, count):
                continue
            found = shape(block, count, request.leave, limits)
            if found is not None and (request.smem is None or found.least <= request.smem <= found.most):
                yield number, found
