"""What the drivers of a vendor do for runs, by the architecture of the devices."""

from __future__ import annotations

from ..kernels.target import chains, compute_capability
from .ir import Features


def usual(arch: str) -> Features:
    """As the vendor's present drivers have it; a driver that is older says what it lacks.

    NVIDIA: `cuMemcpyBatchAsync` since CUDA 13.0, `cuStreamBatchMemOp`, up to 32 connections of a device. AMD: none of
    these calls, 16 hardware queues; whether an event of a side stream delays a copy less than a word, and what callers'
    graphs can hold, is not known.
    """
    nvidia = compute_capability(arch) is not None
    return Features(
        copy_batches=nvidia,
        word_batches=nvidia,
        side_waits=nvidia,
        early_starts=chains(arch),
        embeds=nvidia,
        queues=32 if nvidia else 16,
    )
