"""Finds drivers by name. A vendor's bindings are imported only when its driver is requested."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import get_args

from ..errors import DeviceError, UsageError
from ..files.arguments import positive, whole
from ..machine.model import Machine
from ..plan.ir import Plan
from ..process.group import TIMEOUT, Group, gathered
from ..types import TYPES, Dtype
from .api import GPUS, CollectivesBy, Driver, DriverName, GpuName, Options, SharedWorkspace
from .gpu.devices import discover as machine_of
from .gpu.devices import kept_open, own_devices, placed
from .gpu.driver import GpuDriver
from .gpu.symmetric import SymmetricTensor
from .gpu.vendor import Vendor
from .gpu.workspace import GpuWorkspace
from .host.driver import HostDriver


def _cuda() -> Vendor:
    from .cuda.vendor import Cuda

    return Cuda()


def _hip() -> Vendor:
    from .hip.vendor import Hip

    return Hip()


VENDORS: dict[DriverName, Callable[[], Vendor]] = {"cuda": _cuda, "hip": _hip}


def open_driver(name: DriverName, plan: Plan, options: Options) -> Driver:
    """The driver `name` for a plan."""
    asked, known = options.collectives, get_args(CollectivesBy)
    if asked not in known:
        raise UsageError(f"collectives: {asked!r} is none of {', '.join(map(repr, known))}")
    if name == "host":
        if asked == "library":
            raise UsageError("collectives of a library need GPUs; the host driver has none")
        return HostDriver(plan, options)
    return GpuDriver(_vendor(name), plan, options)


def open_workspace(name: DriverName, ranks: int, node: int, options: Options, limit: int | None) -> SharedWorkspace:
    """What drivers of several plans share. `node`: ranks of a node. `limit`: bytes of each GPU."""
    return GpuWorkspace(_vendor(name), "the workspace", ranks, node, options, alone=False, limit=limit)


def symmetric(
    name: DriverName, shape: int | Iterable[int], dtype: str, device: int | None, group: Group | None
) -> SymmetricTensor:
    """A tensor that other processes can map, on a device of this process."""
    kind = next((t for t in get_args(Dtype) if t == dtype), None)
    if kind is None:
        raise UsageError(f"there is no type '{dtype}'; there are {', '.join(TYPES)}")
    sides = tuple(whole(n, "a side") for n in ([shape] if isinstance(shape, int) else shape))
    if min(sides, default=0) < 0:
        raise UsageError(f"shape {list(sides)} has a negative side")
    vendor = _vendor(name)
    if device is None:

        def agreed(make: Callable[[], object]) -> list[object]:
            return [make()] if group is None else gathered(group, make(), TIMEOUT, "choose GPUs for tensors")

        mine, _ = own_devices(vendor, 1, 0 if group is None else group.rank, agreed)
        if not mine:
            raise DeviceError("no GPU is left for this process: the others have all that it sees; name one (device=0)")
        device = mine[0]
    return SymmetricTensor(vendor, device, sides, kind)


def device_count(name: DriverName) -> int:
    """Number of GPUs that the driver `name` finds; 0 if anything that it needs is missing."""
    try:
        return _vendor(name).count() if name in VENDORS else 0
    except DeviceError:
        return 0


def first_gpus() -> GpuName | None:
    """The name of the driver for this machine's GPUs; None: there are none."""
    return next((name for name in GPUS if device_count(name)), None)


def discover(
    name: DriverName, ranks: int, ranks_per_gpu: int = 1, processes: int = 1, node: int | None = None
) -> Machine:
    """The GPUs of this machine, as the driver `name` sees them. DeviceError if they are too few for the ranks of this
    process, one of so many. `node`: GPUs of a node; by default the launcher tells."""
    if name == "host":
        raise UsageError(f"the {name} driver has no GPUs to discover")
    ranks, each = positive(ranks, "ranks", "ranks"), positive(ranks_per_gpu, "ranks_per_gpu", "ranks")
    processes = positive(processes, "processes", "processes")
    node = None if node is None else positive(node, "node", "GPUs")
    return machine_of(_vendor(name), ranks, each, processes, node)


def devices_open(name: DriverName, ranks: int) -> AbstractContextManager[None]:
    """Context manager: the GPUs of `ranks` ranks stay open from one executor to the next."""
    vendor = _vendor(name)
    return kept_open(vendor, placed(vendor, ranks, 1).ordinals)


def driver_version(name: DriverName) -> str:
    """The vendor's driver on this machine: `CUDA 13.0`. DeviceError: there is none."""
    return _vendor(name).version()


def uncaptured(name: DriverName) -> AbstractContextManager[None]:
    """Context manager: calls inside are none of the captures that the caller may have begun."""
    return _vendor(name).uncaptured()


def gemms_version(name: DriverName) -> str:
    """The vendor's library of GEMMs, with its version. DeviceError: it is not there."""
    return _vendor(name).gemms().name


def has_gemms(name: DriverName) -> bool:
    """Whether the vendor's library of GEMMs is there for the driver `name`."""
    return _vendor(name).has_gemms()


def _vendor(name: DriverName) -> Vendor:
    if name not in VENDORS:
        raise UsageError(f"no driver is called '{name}'; there are: host, {', '.join(VENDORS)}")
    return VENDORS[name]()
