"""What the drivers of each vendor can do for runs (`Features`), by the architecture of the devices."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..kernels.families import tuned
from ..kernels.target import chains, compute_capability
from .ir import GRAPHS, DevicePlan, Features, Library


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
    """The features of the vendor's present drivers; a driver that is older, or has fewer queues, reports that.

    NVIDIA: `cuMemcpyBatchAsync` since CUDA 13.0, `cuStreamBatchMemOp`, up to 32 connections of a device. AMD: none of
    these calls; whether an event of a side stream delays a copy less than a word, and what callers' graphs can hold, is
    not known.
    """
    nvidia = compute_capability(arch) is not None
    return Features(
        copy_batches=nvidia,
        batched_mem_ops=nvidia,
        side_waits=nvidia,
        early_starts=chains(arch),
        embeds=nvidia,
        queues=queue_switch(arch).asked,
    )


def virtual(arch: str, vendor: bool = True) -> Features:
    """The usual ones where runs are modelled: with the `vendor`'s GEMMs, where none of ours is made."""
    return replace(usual(arch), vendor_gemms=vendor and not tuned(arch))


def here(arch: str, switch: str | None) -> Features:
    """The usual ones, with the hardware queues of a process whose environment says `switch` of them, if anything."""
    found = usual(arch)
    return found if switch is None else replace(found, queues=queue_switch(arch).number(switch))


def library_of(arch: str) -> Library:
    """The vendor's library of collectives, whether or not it is installed."""
    return "RCCL" if compute_capability(arch) is None else "NCCL"


# ---------------------------------------------------------------- words for people


def too_few_queues(plan: DevicePlan) -> str:
    """Why a crowded device plan, which is not in order, cannot be run."""
    reason = "in no order of issue can every wait stand behind what ends it"
    if plan.mode in GRAPHS:
        reason = "its graph would have to run one action after another, and a kernel waits for what comes behind it"
    return f"{_shortage(plan)} {reason}{_way_out(plan)}"


def chain_warning(plan: DevicePlan) -> str:
    """The warning that a crowded device plan is slow."""
    return f"{_shortage(plan)} its graph runs one action after another{_way_out(plan)}"


def _shortage(plan: DevicePlan) -> str:
    device, needed = max(plan.crowded.items(), key=lambda item: item[1])
    there = plan.features.queues
    have = f"{there} hardware queue{'' if there == 1 else 's'}"
    return f"device {device} has {have}, and the streams of this run need {needed}:"


def _way_out(plan: DevicePlan) -> str:
    """NOTE what a context has read when it was made stays."""
    switch = queue_switch(plan.device.arch)
    streams = ", or run it on streams, not as a graph" if plan.mode in GRAPHS else ""
    return (
        f"; set {switch.name}={switch.asked} in the environment before anything in this process uses a GPU, give each "
        f"rank a GPU of its own{streams}"
    )
