"""A table of the kernels of a plan that may share a multiprocessor: what their blocks need, and which fit together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from ..files.records import HIDDEN, Count, Positive
from ..graph.ir import CollectiveSettings, Leave
from ..kernels.block_fit import Footprint, Resource, Several, fit, left
from ..kernels.collective_blocks import ASSUMED, Version, blocks_of, planned
from ..kernels.leaving import footprint_of
from ..kernels.occupancy import Limits
from ..machine.model import Device
from ..plan.ir import CollectiveCall, Plan
from .ir import DeviceLaunch

UNKNOWN = "known on a GPU only"
ASKED = "the driver is asked on a GPU, and a kernel that leaves less is refused"


@dataclass(frozen=True, slots=True)
class ResidentKernel:
    """A kernel of a rank's queue.

    threads: null: known on a GPU only.
    registers: Of a thread, at most.
    blocks: On a multiprocessor, alone: as many as the kernel's grid has, or as fit.
    limited_by: What keeps out one more than fits.
    source: Of the figures.
    leave: What the text asks to be left.
    """

    queue: str
    kernel: str
    block: Annotated[Footprint | None, HIDDEN]
    threads: Positive | None
    registers: Count | None
    static_smem: Count | None
    dynamic_smem: Count | None
    cluster: Positive | None
    blocks: Count | None
    limited_by: tuple[Resource, ...]
    source: str
    measured: bool
    leave: str | None = None


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Two kernels of different queues, which may run at once.

    kernel: Place in kernels.
    beside: Place in kernels, of another queue.
    blocks: That fit beside all blocks of the other.
    """

    kernel: Count
    beside: Count
    blocks: Count
    limited_by: tuple[Resource, ...]


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What a multiprocessor has for blocks; sizes in bytes."""

    registers: Count
    smem: Count
    smem_reserved_a_block: Count
    threads: Count
    blocks: Count


@dataclass(frozen=True, slots=True)
class FitTable:
    """Kernels of a rank that may share a multiprocessor, and which fit beside which."""

    device: str
    limits: Annotated[Limits, HIDDEN]
    multiprocessor: Multiprocessor
    kernels: tuple[ResidentKernel, ...]
    beside: tuple[Neighbours, ...]


def fit_table(
    plan: Plan, device: Device, launches: Iterable[DeviceLaunch], rank: int = 0, version: Version = ASSUMED
) -> FitTable:
    """The table of a rank of a plan, whose launches are made for the device."""
    limits = Limits.of(device)
    found = dict.fromkeys((*_ours(plan, launches, rank, limits), *_library(plan, rank, limits, version)))
    kernels = tuple(found)
    pairs = (
        Neighbours(i, j, (fits := fit(a.block, (Several(b.block, b.blocks),), limits)).blocks, fits.limited_by)
        for i, a in enumerate(kernels)
        for j, b in enumerate(kernels)
        if a.queue != b.queue and a.block is not None and b.block is not None and b.blocks
    )
    has = left((), limits)
    free = Multiprocessor(has.registers, limits.smem_per_sm, limits.smem_reserved, has.threads, has.blocks)
    return FitTable(device.name, limits, free, kernels, tuple(pairs))


def _resident(queue: str, name: str, block: Footprint | None, blocks: int | None, *said: Any) -> ResidentKernel:
    names = ("threads", "registers", "static_smem", "dynamic_smem", "cluster")
    sizes: list[Any] = [block and getattr(block, n) for n in names]
    return ResidentKernel(queue, name, block, *[*sizes, blocks, *said])


def _ours(plan: Plan, launches: Iterable[DeviceLaunch], rank: int, limits: Limits) -> Iterator[ResidentKernel]:
    streams = {stream.id: stream for stream in plan.streams}
    for launch in launches:
        stream, config = streams[launch.stream], launch.config
        # the sums of collectives run where the library does not
        if stream.rank != rank or isinstance(stream.commands[launch.command], CollectiveCall):
            continue
        said = None if launch.leave is None else str(launch.leave)
        if config.registers:
            alone = fit(footprint_of(config), (), limits)
            blocks = min(alone.blocks, -(-config.blocks // limits.sms))
            source = "registers at most, as compiled"
            block = footprint_of(config)
            yield _resident(stream.queue, config.kernel, block, blocks, alone.limited_by, source, True, said)
            continue
        # a user's kernel, or the vendor's
        name = config.kernel
        if config.matmuls and config.matmuls[0].sms:
            name += f", asked for {config.matmuls[0].sms} multiprocessors"
        source = UNKNOWN if said is None else f"leave = {said}: {ASKED}"
        yield _resident(stream.queue, name, None, None, (), source, False, said)


def _library(plan: Plan, rank: int, limits: Limits, version: Version) -> Iterator[ResidentKernel]:
    for stream in plan.streams:
        kinds = {c.kind for c in stream.commands if isinstance(c, CollectiveCall)}
        if stream.rank != rank or not kinds:
            continue
        threads = (stream.collectives or CollectiveSettings()).threads
        for b in blocks_of(kinds, threads, limits.arch, version):
            alone = fit(b.footprint, (), limits)
            name, held = f"{b.footprint.kernel}, {b.when}", min(1, alone.blocks)
            yield _resident(stream.queue, name, b.footprint, held, alone.limited_by, b.source, b.measured)


def blocks_left(plan: Plan, leave: Leave, arch: str, library: str = "") -> tuple[Footprint, ...]:
    """What a launch of the plan with `leave` leaves room for: bytes, or blocks of the library of collectives, which is
    known by its name with its version."""
    if leave.what == "bytes":
        return (Footprint(f"leave = {leave}", 0, 0, 0, leave.amount),)
    numbers = re.search(r"(\d+)\.(\d+)", library)
    version = (int(numbers[1]), int(numbers[2])) if numbers else ASSUMED
    blocks: list[Footprint] = []
    for stream in plan.streams:
        kinds = {c.kind for c in stream.commands if isinstance(c, CollectiveCall)}
        threads = (stream.collectives or CollectiveSettings()).threads
        blocks += planned(kinds, threads, arch, version)
    return tuple(dict.fromkeys(blocks))


def too_little_left(
    plan: Plan, launches: Iterable[DeviceLaunch], limits: Limits, library: str
) -> tuple[DeviceLaunch, str] | None:
    """The first launch whose `leave = nccl` leaves too little for this library, by its name with its version; and why.
    None: all leave enough. What launches by the vendor's library take, the driver says when they are bound."""
    for launch in launches:
        if launch.leave is None or launch.leave.what != "nccl" or launch.config.matmuls:
            continue
        own = Several(footprint_of(launch.config), launch.config.resident)
        for other in blocks_left(plan, launch.leave, limits.arch, library):
            if not fit(other, (own,), limits).blocks:
                rest = left((own,), limits)
                return launch, (
                    f"leave = nccl: a block of {library} takes {other.threads * other.registers} registers and "
                    f"{other.smem} bytes of shared memory, and {own.count} of {own.block.kernel} leave "
                    f"{rest.registers} and {rest.smem}; say leave = {limits.sms // 8} sms"
                )
    return None
