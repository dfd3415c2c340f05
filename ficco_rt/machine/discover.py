"""Makes a machine from the properties that a driver reports of its devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from ..errors import UsageError
from ..types import TYPES
from .model import Device, Links, Machine
from .profiles import NAMES, stored


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a vendor's driver reports of one GPU. Sizes in bytes. All but the clocks are fields of a `Device`, too."""

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


_CLOCKS = ("clock_khz", "memory_clock_khz", "bus_bits")
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


# Bytes a microsecond that all links of a GPU carry one way together, by generation; vendors' tables.
_LINKED = {"sm_7": 150e3, "sm_8": 300e3, "sm_9": 450e3, "sm_10": 900e3, "gfx90a": 400e3, "gfx942": 448e3}
_LINKS_REACHED = 0.85  # of that, by large copies
_BUS = 20e3  # PCIe
_NETWORK = "h200-nodes"  # the stored machine whose network stands for one that nobody knows
_AMD_MESH = 7  # links of a GPU to the others of its node


def machine(
    devices: Sequence[DeviceFacts], ranks: int, ranks_per_gpu: int = 1, linked: bool = True, node: int = 0
) -> Machine:
    """The machine of these GPUs, which must be alike; `linked`: every two of them by a link of GPUs. `node`: GPUs of a
    node, which stand for those of the other nodes; 0: there is one node.

    Limits are the driver's. Rates are those of a stored machine with the same device; otherwise estimates from
    clocks and from what links of its generation carry. Plans and `ideal` go by them, timings do not.

    Raises UsageError: the GPUs are of several kinds.
    """
    first = devices[0]
    for i, other in enumerate(devices):
        if other != first and replace(other, memory=first.memory) != first:
            raise UsageError(
                f"device {i} is {other.name} and device 0 is {first.name}; set CUDA_VISIBLE_DEVICES to GPUs of one kind"
            )
    known = next((m for m in map(stored, NAMES) if m.device.name == first.name), None)
    limits = {name: value for name, value in asdict(first).items() if name not in _CLOCKS}
    if known is not None:
        device = replace(known.device, **limits)
        source = f"limits from the driver, rates of {known.name}"
    else:
        half, single = _PER_CLOCK.get(_generation(first.arch), (512, 128))
        clock = first.clock_khz * 1e-3 * first.sms * _REACHED  # clocks a microsecond, all multiprocessors
        memory = 2 * first.memory_clock_khz * 1e-3 * first.bus_bits / 8 * _REACHED
        types = (t for t in TYPES.values() if not t.quantised)
        gemms = ((t.name, clock * (single if t.half is None else half)) for t in types)
        device = Device(**limits, memory_rate=memory, gemm_rate=tuple(gemms), launch_time=3.0)
        source = "limits from the driver, rates estimated from clocks"
    tiers = known.tiers if known is not None and linked else (_links(first.arch, linked),)
    name = f"{len(devices)}×{first.name}"
    if 0 < node * ranks_per_gpu < ranks:
        near = [links for links in tiers if links.reach == "memory"]
        network = next((links for links in tiers if links.reach == "messages"), stored(_NETWORK).tiers[-1])
        tiers = (*near[:-1], replace(near[-1], ranks=node), replace(network, ranks=0))
        name = f"{-(-ranks // (node * ranks_per_gpu))} nodes of {node}×{first.name}"
        source += f", network of {_NETWORK}"
    # a tier's ranks are GPUs in a stored machine
    inner, *outer = (replace(links, ranks=links.ranks * ranks_per_gpu) for links in tiers)
    shared = f", {ranks_per_gpu} ranks each" if ranks_per_gpu > 1 else ""
    return Machine(f"{name}{shared}", device, inner, ranks, source, tuple(outer))


def _links(arch: str, linked: bool) -> Links:
    """Links as GPUs of an architecture have them in a node: NVIDIA's to a switch, AMD's to each other."""
    rate = _LINKED.get(_generation(arch), _BUS) * _LINKS_REACHED
    if not linked or rate < _BUS:
        return Links(kind="switch", rate=_BUS, copy_time=6.0, signal_time=4.0)
    if arch.startswith("gfx"):
        return Links(kind="mesh", rate=rate / _AMD_MESH, copy_time=10.0, signal_time=5.0)
    return Links(kind="switch", rate=rate, copy_time=6.0, signal_time=4.0)
