"""The devices of a plan: which ranks run where, and the context of each with access to the others."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import DeviceError, UsageError
from ...machine.discover import DeviceFacts
from ...machine.discover import machine as machine_from
from ...machine.model import Machine
from .vendor import Handle, Vendor


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A GPU with its context, which other libraries of the process share."""

    ordinal: int
    facts: DeviceFacts
    context: Handle

    def __str__(self) -> str:
        return f"{self.facts.name} (device {self.ordinal})"


def homes(vendor: Vendor, ranks: int, ranks_per_gpu: int) -> tuple[int, ...]:
    """The device of each rank. DeviceError, with the ways out, if there are too few."""
    if ranks_per_gpu < 1:
        raise UsageError(f"--ranks-per-gpu {ranks_per_gpu}: at least one rank runs on a GPU")
    there = vendor.count()
    needed = -(-ranks // ranks_per_gpu)
    if needed > there:
        fit = -(-ranks // max(there, 1))
        have = f"{there} GPU" + ("" if there == 1 else "s")
        raise DeviceError(
            f"{ranks} ranks need {needed} GPUs and this machine has {have}; --ranks-per-gpu {fit} lets {fit} ranks "
            f"share each GPU, --backend host runs without any"
        )
    return tuple(rank // ranks_per_gpu for rank in range(ranks))


def open_devices(vendor: Vendor, ordinals: tuple[int, ...]) -> dict[int, Device]:
    """The devices, each with its context retained and direct access to every other one's memory."""
    devices: dict[int, Device] = {}
    try:
        for i in ordinals:
            facts = vendor.facts(i)
            devices[i] = Device(i, facts, vendor.retain(i))
        for i, device in devices.items():
            for j, other in devices.items():
                if i != j:
                    _connect(vendor, device, other)
    except BaseException:
        close_devices(vendor, devices)
        raise
    return devices


def _connect(vendor: Vendor, device: Device, other: Device) -> None:
    if not vendor.can_access(device.ordinal, other.ordinal):
        raise DeviceError(
            f"{device} has no direct access to the memory of {other}; set {vendor.visible} to GPUs "
            f"that reach each other ({vendor.topology} shows them), or share one with --ranks-per-gpu"
        )
    vendor.push(device.context)
    try:
        vendor.enable_access(other.ordinal, other.context)
    finally:
        vendor.pop()


def close_devices(vendor: Vendor, devices: dict[int, Device]) -> None:
    """Let go of the contexts; peer access stays, as others in the process may count on it."""
    for ordinal in list(devices):
        del devices[ordinal]
        vendor.release(ordinal)


def discover(vendor: Vendor, ranks: int, ranks_per_gpu: int = 1) -> Machine:
    """This machine's GPUs as a Machine of `ranks` ranks."""
    used = sorted(set(homes(vendor, ranks, ranks_per_gpu)))
    return machine_from([vendor.facts(i) for i in used], ranks, ranks_per_gpu)
