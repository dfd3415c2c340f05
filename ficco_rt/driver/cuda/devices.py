"""GPUs: what they are, how they reach each other, and the primary context of each that takes part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import DeviceError, UsageError
from ...machine.discover import DeviceFacts
from ...machine.discover import machine as machine_from
from ...machine.model import Machine
from .call import api, call


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A GPU with its primary context, which other libraries of the process share."""

    ordinal: int
    facts: DeviceFacts
    context: Any

    def __str__(self) -> str:
        return f"{self.facts.name} (device {self.ordinal})"


def device_count() -> int:
    """GPUs that this process may use; 0 where the bindings or the driver are missing."""
    try:
        return int(call(api().cuDeviceGetCount))
    except DeviceError:
        return 0


def facts(ordinal: int) -> DeviceFacts:
    """What the driver says of a device."""
    cu = api()
    device = call(cu.cuDeviceGet, ordinal)
    name = call(cu.cuDeviceGetName, 256, device)

    def attribute(short: str) -> int:
        code = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{short}")
        return int(call(cu.cuDeviceGetAttribute, code, device))

    return DeviceFacts(
        name=name.split(b"\0")[0].decode(),
        capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        sms=attribute("MULTIPROCESSOR_COUNT"),
        smem_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        smem_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        smem_reserved=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
        max_residency=attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        memory=int(call(cu.cuDeviceTotalMem, device)),
        clock_khz=attribute("CLOCK_RATE"),
        memory_clock_khz=attribute("MEMORY_CLOCK_RATE"),
        bus_bits=attribute("GLOBAL_MEMORY_BUS_WIDTH"),
        copy_engines=attribute("ASYNC_ENGINE_COUNT"),
    )


def can_access(a: int, b: int) -> bool:
    """Whether device a may read and write b's memory directly."""
    cu = api()
    return bool(call(cu.cuDeviceCanAccessPeer, call(cu.cuDeviceGet, a), call(cu.cuDeviceGet, b)))


def homes(ranks: int, ranks_per_gpu: int) -> tuple[int, ...]:
    """The device of each rank. DeviceError, with the ways out, if there are too few."""
    there = int(call(api().cuDeviceGetCount))
    needed = -(-ranks // ranks_per_gpu)
    if needed > there:
        fit = -(-ranks // max(there, 1))
        have = f"{there} GPU" + ("" if there == 1 else "s")
        raise DeviceError(
            f"{ranks} ranks need {needed} GPUs and this machine has {have}; --ranks-per-gpu {fit} lets {fit} ranks "
            f"share each GPU, --backend host runs without any"
        )
    return tuple(rank // ranks_per_gpu for rank in range(ranks))


def open_devices(ordinals: tuple[int, ...]) -> dict[int, Device]:
    """The devices, each with its context retained and direct access to every other one's memory."""
    cu = api()
    devices: dict[int, Device] = {}
    try:
        for i in ordinals:
            devices[i] = Device(
                i, facts(i), call(cu.cuDevicePrimaryCtxRetain, call(cu.cuDeviceGet, i), what=f"device {i}")
            )
        for i, device in devices.items():
            for j, other in devices.items():
                if i == j:
                    continue
                if not can_access(i, j):
                    raise DeviceError(
                        f"{device} has no direct access to the memory of {other}; set CUDA_VISIBLE_DEVICES to GPUs "
                        f"that reach each other (nvidia-smi topo -p2p w), or share one with --ranks-per-gpu"
                    )
                call(cu.cuCtxPushCurrent, device.context)
                (code,) = cu.cuCtxEnablePeerAccess(other.context, 0)
                cu.cuCtxPopCurrent()
                if code and code.name != "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED":
                    raise DeviceError(f"cuCtxEnablePeerAccess (device {i} to {j}): {code.name}")
    except BaseException:
        close_devices(devices)
        raise
    return devices


def close_devices(devices: dict[int, Device]) -> None:
    """Let go of the contexts; peer access stays, as others in the process may count on it."""
    cu = api()
    for device in devices.values():
        call(cu.cuDevicePrimaryCtxRelease, call(cu.cuDeviceGet, device.ordinal))
    devices.clear()


def discover(ranks: int, ranks_per_gpu: int = 1) -> Machine:
    """This machine's GPUs as a Machine of `ranks` ranks."""
    if ranks_per_gpu < 1:
        raise UsageError(f"--ranks-per-gpu {ranks_per_gpu}: at least one rank runs on a GPU")
    used = sorted(set(homes(ranks, ranks_per_gpu)))
    found = [facts(i) for i in used]
    return machine_from(found, ranks, ranks_per_gpu)
