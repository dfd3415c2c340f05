"""The drivers by name. A vendor's bindings are imported when its driver is asked for, and not before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import get_args

from ..errors import DeviceError, UsageError
from ..group import Group
from ..machine.model import Machine
from ..plan.ir import Plan
from .api import CollectivesBy, Driver, DriverName
from .gpu.devices import discover as machine_of
from .gpu.devices import kept_open, placed
from .gpu.driver import GpuDriver
from .gpu.vendor import Vendor
from .host.driver import HostDriver


def _cuda() -> Vendor:
    from .cuda.vendor import Cuda

    return Cuda()


def _hip() -> Vendor:
    from .hip.vendor import Hip

    return Hip()


VENDORS: dict[DriverName, Callable[[], Vendor]] = {"cuda": _cuda, "hip": _hip}


def open_driver(
    name: DriverName,
    plan: Plan,
    *,
    order: str = "fifo",
    ranks_per_gpu: int = 1,
    timeout: float | None = None,
    collectives: CollectivesBy = "auto",
    group: Group | None = None,
) -> Driver:
    """The driver `name` for a plan; `group`: the processes that run the plan together.

    `order` is the host driver's way to step through what may run (see `host.order`). `ranks_per_gpu` ranks share a
    GPU; `timeout` is the seconds that a run may take. `collectives`: what makes these on GPUs.
    """
    if collectives not in get_args(CollectivesBy):
        raise UsageError(f"collectives: {collectives!r} is none of {', '.join(map(repr, get_args(CollectivesBy)))}")
    if name == "host":
        if collectives == "library":
            raise UsageError("collectives of a library need GPUs; the host driver has none")
        return HostDriver(plan, order=order, group=group, timeout=timeout)
    if group is not None and group.size > 1:
        raise UsageError(
            f"the {name} driver does not run a plan in several processes yet: take one process for all GPUs"
        )
    return GpuDriver(_vendor(name), plan, ranks_per_gpu=ranks_per_gpu, timeout=timeout, collectives=collectives)


def device_count(name: DriverName) -> int:
    """GPUs that the driver `name` finds; 0 where anything that it needs is missing."""
    try:
        return _vendor(name).count() if name in VENDORS else 0
    except DeviceError:
        return 0


def discover(name: DriverName, ranks: int, ranks_per_gpu: int = 1) -> Machine:
    """The GPUs of this machine, as the driver `name` sees them. DeviceError if they are too few for the ranks."""
    if name == "host":
        raise UsageError(f"the {name} driver has no GPUs to discover")
    return machine_of(_vendor(name), ranks, ranks_per_gpu)


def devices_open(name: DriverName, ranks: int) -> AbstractContextManager[None]:
    """Inside, the GPUs of so many ranks stay open from one executor to the next."""
    vendor = _vendor(name)
    return kept_open(vendor, placed(vendor, ranks, 1).ordinals)


def driver_version(name: DriverName) -> str:
    """The vendor's driver on this machine: `CUDA 13.0`. DeviceError: there is none."""
    return _vendor(name).version()


def has_gemms(name: DriverName) -> bool:
    """Whether the vendor's library of GEMMs is there for the driver `name`."""
    try:
        _vendor(name).gemms()
    except DeviceError:
        return False
    return True


def _vendor(name: DriverName) -> Vendor:
    if name not in VENDORS:
        raise UsageError(f"no driver is called '{name}'; there are: host, {', '.join(VENDORS)}")
    return VENDORS[name]()
