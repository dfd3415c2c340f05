"""The durations of work on a machine: pure functions from bytes and operations to microseconds.

The functions price one piece of work alone, without regard to concurrent work. The virtual clock prices products by
their kernels (`kernels/pace.py`) and computes contention itself (`sim/contention.py`). docs/internals/model.md
describes the whole model. The constants here, by architecture or device name, are defaults: `overheads`, `power` and
`vendor_gemm` of a machine's file override them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

from ..graph.ir import CollectiveKind
from ..types import TYPES
from .model import Device, Links, Machine

# Of what copy engines reach on a link. STORES: what a GEMM stores on another rank, and copies by few multiprocessors
# (docs/results/copies.md). PUSHED: copies and sums by all multiprocessors (docs/internals/model.md)
STORES = 0.8
PUSHED = 0.87
# SENT: of the links' time, what a GEMM loses that stores its product on another rank (docs/results/copies.md: `direct`)
# ADDED: of the time of a sum of the addends and the product, what is seen of it inside a GEMM (docs/results/kernels.md)
SENT = 0.2
ADDED = 0.37


FP8 = 1.9  # of bf16's rate on Hopper, where a machine has no rate of fp8: as on an H200
TF32 = 0.5  # of bf16's rate: NVIDIA's data sheets


def gemm_rate(device: Device, dtype: str) -> float:
    """Operations a microsecond that a large GEMM of `dtype` reaches on the whole device. A type without a rate on the
    machine is assumed to be as slow as the slowest type, but fp8: of one rate in both formats."""
    rates = dict(device.gemm_rate)
    if dtype == "tf32" and dtype not in rates and "bf16" in rates:
        return TF32 * rates["bf16"]
    if dtype not in rates and dtype in TYPES and TYPES[dtype].quantised:
        if "fp8_e4m3" in rates:
            return rates["fp8_e4m3"]
        if device.arch == "sm_90a" and "bf16" in rates:
            return FP8 * rates["bf16"]
    return rates.get(dtype, min(rates.values()))


@dataclass(frozen=True, slots=True)
class Overheads:
    """The time between consecutive actions on a device, µs.

    `event_to_copy`, `event_to_kernel`: a copy, or a kernel, that begins behind an event of another stream of the device
    which it has waited for. `copy_behind`: a copy right behind another one of its stream, beyond its bytes (None: as
    much as any copy); `inside_behind`: the same of a copy inside the device. `passed_wait`: a wait between two copies
    for what has come already. `record`: an event that a stream records between two copies. `raise_word`: a word that a
    stream raises between its copies. `far_sum`: a sum that reads other ranks' memory, and `far_term` each term there,
    until the bytes flow. `frame`: the begin and the end of a run among callers' streams. `beside`: of its speed, what a
    kernel keeps while copies pass its device's memory."""

    event_to_copy: float = 0.0
    event_to_kernel: float = 0.0
    copy_behind: float | None = None
    inside_behind: float | None = None
    passed_wait: float = 0.0
    record: float = 0.0
    raise_word: float = 0.0
    far_sum: float = 0.0
    far_term: float = 0.0
    frame: float = 0.0
    beside: float = 1.0


# By architecture. sm_90a: two H200; docs/internals/model.md says how. Others: not measured, and nothing is counted.
OVERHEADS = {
    "sm_90a": Overheads(
        event_to_copy=4.8,
        event_to_kernel=0.0,
        copy_behind=2.5,
        inside_behind=3.3,
        passed_wait=0.4,
        record=1.3,
        raise_word=1.5,
        far_sum=1.2,
        far_term=0.6,
        frame=4.0,
        beside=86 / 88,
    )
}


def was_measured(arch: str) -> bool:
    """Whether the times of ficco's own kernels and copies were measured on GPUs of the architecture."""
    return arch in OVERHEADS


def overheads(device: Device) -> Overheads:
    """The overheads of the architecture, overridden by those of the machine's file."""
    return replace(OVERHEADS.get(device.arch, Overheads()), **dict(device.overheads))


def behind_another(device: Device, links: Links) -> float:
    """What a copy over the links costs beyond its bytes that follows another copy of its stream, with an event between
    the two; µs. A message hides nothing of the next one."""
    known = overheads(device)
    if links.reach == "messages" or known.copy_behind is None:
        return links.copy_time
    return min(links.copy_time, known.copy_behind + known.record)


@dataclass(frozen=True, slots=True)
class Power:
    """A device that multiplies for long slows down: by `share` in the end, by 63 % of that after `time` µs."""

    share: float
    time: float


# By a device's name. H200: how much longer GEMMs of 0.1 to 9 ms take than their waves at the rate of short ones
# (docs/results/bench.md, column GEMM of four GPUs: 0 % at 0.12 and 0.27 ms, 2 % at 0.6, 3 to 4 % at 1.5, 4.4 % at 2.5,
# 6 % at 9).
POWER = {"NVIDIA H200": Power(0.05, 1200.0)}


def power_of(device: Device) -> Power | None:
    """The power limit of the machine's file, or else that of the device's name."""
    return Power(**dict(device.power)) if device.power else POWER.get(device.name)


@dataclass(frozen=True, slots=True)
class VendorGemm:
    """What GEMMs of the vendor's library take on a device (`kernels/vendor_cost.py`).

    `reached`: between the ends of its tiles, of the device's rate of large GEMMs. `ends`: a tile's start and store, for
    128 × 256, µs. `start`: a call, beyond what its stream pays, µs."""

    reached: float
    ends: float
    start: float


# By a device's name. Others were not measured, and nothing offers the library there. H200: single runs of `python -m
# tools.vendor_price`, 23 November 2026, without the three products of few rows, whose right operand L2 may have kept
# from the run before. In chains of calls (docs/results/kernels.md) power leaves 1.08, and a call begins 2.5 µs after
# the one before it ends.
_VENDOR_SOURCE = "fitted to cuBLAS's times of 7 products of 46 to 433 µs (docs/internals/model.md)"
VENDOR_GEMMS = {"NVIDIA H200": VendorGemm(reached=1.13, ends=2.0, start=0.0)}


def vendor_gemm(device: Device) -> VendorGemm | None:
    """The machine's own, or the one of the device's name; None: nobody has measured the library there."""
    return VendorGemm(**dict(device.vendor_gemm)) if device.vendor_gemm else VENDOR_GEMMS.get(device.name)


def vendor_source(device: Device) -> str:
    """Where `vendor_gemm` is from without figures of the machine: its name, which may be left from another device."""
    return f"by the device's name, {device.name}, on which it was {_VENDOR_SOURCE}"


def slowed(device: Device, before: float, time: float) -> float:
    """How many times as long a GEMM of `time` µs takes on a device that has multiplied for `before` µs."""
    power = power_of(device)
    if power is None or time <= 0:
        return 1.0
    cool = power.time * (exp(-before / power.time) - exp(-(before + time) / power.time)) / time
    return 1.0 + power.share * (1.0 - cool)


def multiprocessors(device: Device, sms: int | None) -> int:
    """Multiprocessors that a launch limited to `sms` (None: not limited) runs on."""
    return device.sms if sms is None else max(1, min(sms, device.sms))


def transfer_time(machine: Machine, src: int, dst: int, size: int) -> float:
    """One separate copy of `size` bytes from rank `src` to rank `dst`.

    A copy inside a device reads and writes its memory. On a ring every link between is charged to the
    copy: it keeps each of them busy, and nothing here knows who else waits for them.
    """
    links = machine.between(src, dst)
    if src == dst:
        return links.copy_time + 2 * size / machine.device.memory_rate
    return links.copy_time + size * machine.hops(src, dst) / links.rate


def link_time(machine: Machine, src: int, dst: int, size: int, share: float = PUSHED) -> float:
    """The way of `size` bytes from rank `src` to rank `dst` that a kernel on one of them moves, at `share` of what copy
    engines reach; 0 inside a device."""
    return size * machine.hops(src, dst) / (share * machine.between(src, dst).rate) if src != dst else 0.0


def read_time(machine: Machine, rank: int, parts: Sequence[tuple[int, int]]) -> float:
    """The way of what a kernel of `rank` reads from others at once, each part a rank and bytes: by one port of each
    tier, or by links of their own in a mesh."""
    ways: dict[int, list[float]] = {}  # by tier
    for src, size in parts:
        ways.setdefault(machine.tier(src, rank), []).append(link_time(machine, src, rank, size))
    tiers = machine.tiers
    return max((max(t) if tiers[i].kind == "mesh" else sum(t) for i, t in ways.items()), default=0.0)


def until_read(device: Device, terms: int) -> float:
    """The time until the bytes of a sum flow that reads so many terms in other ranks' memory."""
    known = overheads(device)
    return known.far_sum + known.far_term * terms if terms else 0.0


def store_time(machine: Machine, src: int, dst: int, size: int, sms: int | None = None) -> float:
    """A copy of `size` bytes from rank `src` to rank `dst` by loads and stores of `sms` multiprocessors, without the
    launch. Inside a device both go through its memory; between two, the greater of the link's time and the memory's."""
    if src == dst:
        return kernel_time(machine, 2 * size, sms)
    share = PUSHED if multiprocessors(machine.device, sms) == machine.device.sms else STORES
    return max(kernel_time(machine, size, sms), link_time(machine, src, dst, size, share))


def gemm_time(machine: Machine, m: int, n: int, k: int, dtype: str, sms: int | None = None) -> float:
    """An [m, k] · [k, n] product, without the launch: the greater of its arithmetic, at the rate of large GEMMs, and of
    its operands' way through memory. Nothing is rounded to tiles: what a kernel takes, its family says
    (`kernels/pace.py`)."""
    device = machine.device
    arithmetic = 2.0 * m * n * k / (gemm_rate(device, dtype) * multiprocessors(device, sms) / device.sms)
    return max(arithmetic, TYPES[dtype].bytes * (m * k + k * n + m * n) / device.memory_rate)


def kernel_time(machine: Machine, size: int, sms: int | None = None) -> float:
    """A kernel of which only the `size` bytes that it reads and writes are known, without the launch."""
    device = machine.device
    return size / (device.memory_rate * multiprocessors(device, sms) / device.sms)


def collective_time(machine: Machine, kind: CollectiveKind, size: int) -> float:
    """A vendor collective over all ranks, with its launch.

    `size` is the bytes that one rank holds of the whole: the gathered result, or the operand that is
    reduced or scattered. Every rank moves (n-1)/n of it each way, twice for an all_reduce; a mesh moves
    on all links at once, a ring on both neighbours' links. Tiers move at the same time. What comes from other groups
    comes once into a group, by all of its ports, and is passed on inside; an all_to_all has nothing to pass on.
    """
    n = machine.ranks
    if n == 1:
        return machine.device.launch_time + 2 * size / machine.device.memory_rate
    passes = 2 if kind == "all_reduce" else 1
    inner, signals, slowest = 1, 0.0, 0.0  # ranks of a group of the tier before
    for links in machine.tiers:
        joined = min(links.ranks or n, n)
        groups = -(-joined // inner)
        if groups > 1:
            ports = {"switch": 1, "mesh": groups - 1, "ring": min(2, groups - 1)}[links.kind]
            ways = inner // links.ranks_a_port if kind != "all_to_all" else 1 / links.ranks_a_port
            others = (joined if kind == "all_to_all" else n) - inner
            slowest = max(slowest, passes * size * others / n / (links.rate * ports * ways))
            signals += passes * (groups - 1) * links.signal_time
        inner = joined
    return machine.device.launch_time + signals + slowest
