"""Stored machines, for compiling and for virtual time without the hardware."""

from __future__ import annotations

from dataclasses import replace

from ..arguments import of_kind
from ..errors import UsageError
from .model import Device, Links, Machine

KIB = 1024
GIB = 1024**3

H200 = Device(
    name="NVIDIA H200",
    arch="sm_90a",
    sms=132,
    smem_per_sm=228 * KIB,
    smem_per_block=227 * KIB,
    smem_reserved=1 * KIB,
    max_residency=32,
    warp=32,
    max_warps=64,
    memory=141 * 10**9,
    memory_rate=4.2e6,
    gemm_rate=(("bf16", 760e6), ("fp16", 760e6), ("fp32", 50e6)),
    launch_time=3.0,
)

MI300X = Device(
    name="AMD Instinct MI300X",
    arch="gfx942",
    sms=304,
    smem_per_sm=64 * KIB,
    smem_per_block=64 * KIB,
    smem_reserved=0,
    max_residency=16,
    warp=64,
    max_warps=32,  # eight on each of four SIMDs
    memory=192 * GIB,
    memory_rate=4.0e6,
    gemm_rate=(("bf16", 600e6), ("fp16", 600e6), ("fp32", 80e6)),
    launch_time=5.0,
)

PROFILES: tuple[Machine, ...] = (
    Machine(
        name="h200-switch",
        device=H200,
        links=Links(kind="switch", rate=386e3, copy_time=6.0, signal_time=4.0),
        ranks=8,
        source="measured on 4×H200 with NVSwitch: staggered copy-engine pushes of 4, 8, 17 and 34 MB take 17, 28, 49 "
        "and 93 µs each, bf16 GEMM 750–775 TFLOP/s; limits from the CUDA programming guide",
    ),
    Machine(
        name="mi300x-mesh",
        device=MI300X,
        links=Links(kind="mesh", rate=48e3, copy_time=10.0, signal_time=5.0),
        ranks=8,
        source="data sheet: 64 GB/s a link and direction, 75 % of it assumed; not measured by us",
    ),
    Machine(
        name="h200-ring",
        device=H200,
        links=Links(kind="ring", rate=193e3, copy_time=6.0, signal_time=4.0),
        ranks=8,
        source="a thought experiment: H200 devices whose ports are split over two ring neighbours",
    ),
)

DEFAULT = PROFILES[0].name


def profile(name: str, ranks: int) -> Machine:
    """The stored machine `name` with `ranks` devices."""
    for machine in PROFILES:
        if machine.name == name:
            return replace(machine, ranks=ranks)
    raise UsageError(f"no machine is called '{name}'; stored are {', '.join(m.name for m in PROFILES)}")


def chosen(machine: str | Machine, ranks: int) -> Machine:
    """The machine that a caller means: one of its own, of so many ranks at least, or the name of a stored one."""
    if isinstance(machine, str):
        return profile(machine, ranks)
    own = of_kind(machine, Machine, f"machine is a Machine or one of {', '.join(m.name for m in PROFILES)}")
    if own.ranks < ranks:
        raise UsageError(
            f"machine '{own.name}' has {own.ranks} ranks and {ranks} are needed; dataclasses.replace(machine, "
            f"ranks={ranks}) is such a machine of {ranks}"
        )
    return own


def is_stored(machine: Machine) -> bool:
    """Whether its name and its ranks tell all of it."""
    return any(replace(stored, ranks=machine.ranks) == machine for stored in PROFILES)
