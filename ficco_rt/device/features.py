"""What the drivers of a vendor do for runs, by the architecture of the devices."""

from __future__ import annotations

from dataclasses import dataclass

from ..kernels.target import chains, compute_capability
from .ir import Features


@dataclass(frozen=True, slots=True)
class QueueSwitch:
    """The environment variable that says how many hardware queues a device has. The vendor's library reads it once, at
    the latest when the device's context is made. `asked` is what ficco sets where the user has set nothing, `default`
    what the vendor takes where nothing is set, `most` what the hardware has."""

    name: str
    asked: int
    default: int
    most: int

    def number(self, text: str | None) -> int:
        """The queues of a device whose context was made while the variable said `text`."""
        if text is None or not (text.isascii() and text.isdigit()):
            return self.default
        return max(1, min(int(text), self.most))


# CUDA C++ Programming Guide, "CUDA Environment Variables": 1 to 32 connections, 8 by default. HIP documentation,
# "HIP environment variables": 4 queues by default.
CONNECTIONS = QueueSwitch("CUDA_DEVICE_MAX_CONNECTIONS", asked=32, default=8, most=32)
HSA_QUEUES = QueueSwitch("GPU_MAX_HW_QUEUES", asked=16, default=4, most=128)


def queue_switch(arch: str) -> QueueSwitch:
    """The variable for devices of an architecture."""
    return HSA_QUEUES if compute_capability(arch) is None else CONNECTIONS


def usual(arch: str) -> Features:
    """As the vendor's present drivers have it; a driver that is older, or has fewer queues, says so.

    NVIDIA: `cuMemcpyBatchAsync` since CUDA 13.0, `cuStreamBatchMemOp`, up to 32 connections of a device. AMD: none of
    these calls; whether an event of a side stream delays a copy less than a word, and what callers' graphs can hold, is
    not known.
    """
    nvidia = compute_capability(arch) is not None
    return Features(
        copy_batches=nvidia,
        word_batches=nvidia,
        side_waits=nvidia,
        early_starts=chains(arch),
        embeds=nvidia,
        queues=queue_switch(arch).asked,
    )
