"""A machine from what a driver says of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import UsageError
from .model import Device, Links, Machine
from .profiles import PROFILES


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a vendor's driver reports of one GPU. Sizes in bytes."""

    name: str
    arch: str  # as the vendor's compiler writes it: sm_90a, gfx942
    sms: int
    smem_per_sm: int
    smem_per_block: int
    smem_reserved: int
    max_residency: int
    warp: int
    max_warps: int
    memory: int
    clock_khz: int
    memory_clock_khz: int
    bus_bits: int
    copy_engines: int


# Dense operations a clock and multiprocessor: 16-bit on matrix units, fp32; vendors' tables.
_PER_CLOCK = {
    "sm_7": (1024, 128),
    "sm_8": (2048, 256),
    "sm_9": (4096, 256),
    "sm_10": (8192, 256),
    "sm_12": (1024, 256),
    "gfx90a": (1024, 128),
    "gfx942": (2048, 256),
}
_REACHED = 0.75  # of the clock's peak that large GEMMs and copies reach


def _generation(arch: str) -> str:
    """sm_90a and sm_86 without their last digit."""
    return arch.rstrip("af")[:-1] if arch.startswith("sm_") else arch


def machine(devices: Sequence[DeviceFacts], ranks: int, ranks_per_gpu: int = 1) -> Machine:
    """The machine of these GPUs, which must be alike.

    Limits are the driver's. Rates are those of a stored machine with the same device; otherwise estimates from
    clocks, and links of 20 GB/s (PCIe): the caller's timings do not depend on them, only what `ideal` says.
    """
    first = devices[0]
    for i, other in enumerate(devices):
        if other != first and replace(other, memory=first.memory) != first:
            raise UsageError(
                f"device {i} is {other.name} and device 0 is {first.name}; set CUDA_VISIBLE_DEVICES to GPUs of one kind"
            )
    known = next((m for m in PROFILES if m.device.name == first.name), None)
    if known is not None:
        rates = (known.device.memory_rate, known.device.gemm_rate, known.device.launch_time)
        links = known.links
        source = f"limits from the driver, rates of {known.name}"
    else:
        half, single = _PER_CLOCK.get(_generation(first.arch), (512, 128))
        clock = first.clock_khz * 1e-3 * first.sms * _REACHED  # clocks a microsecond, all multiprocessors
        memory = 2 * first.memory_clock_khz * 1e-3 * first.bus_bits / 8 * _REACHED
        rates = (memory, (("bf16", half * clock), ("fp16", half * clock), ("fp32", single * clock)), 3.0)
        links = Links(kind="switch", rate=20e3, copy_time=9.0, signal_time=4.0)
        source = "limits from the driver, rates estimated from clocks"
    shared = f", {ranks_per_gpu} ranks each" if ranks_per_gpu > 1 else ""
    memory_rate, gemm_rate, launch_time = rates
    device = Device(
        name=first.name,
        arch=first.arch,
        sms=first.sms,
        smem_per_sm=first.smem_per_sm,
        smem_per_block=first.smem_per_block,
        smem_reserved=first.smem_reserved,
        max_residency=first.max_residency,
        warp=first.warp,
        max_warps=first.max_warps,
        memory=first.memory,
        memory_rate=memory_rate,
        gemm_rate=gemm_rate,
        launch_time=launch_time,
    )
    return Machine(f"{len(devices)}×{first.name}{shared}", device, links, ranks, source)
