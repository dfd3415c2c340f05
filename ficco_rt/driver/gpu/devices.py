"""The devices of a plan: which ranks run on which device, and the context of each, with access to the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import permutations
from typing import Any

from ... import env
from ...device.ir import Placement
from ...errors import DeviceError, UsageError
from ...machine.discover import DeviceFacts
from ...machine.discover import machine as machine_from
from ...machine.model import Machine
from ...process.transports import local
from .refused import Closing, concerning, undo_on_error
from .vendor import Gpu, Vendor

LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "PMI_LOCAL_RANK")


def placed(vendor: Vendor, ranks: int, ranks_per_gpu: int) -> Placement:
    """Ranks on the devices of this process, so many on each. DeviceError, with the ways out, if there are too few."""
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
    return Placement(tuple(rank // ranks_per_gpu for rank in range(ranks)))


def open_devices(vendor: Vendor, locals_: Mapping[int, int]) -> dict[int, Gpu]:
    """The devices, by their numbers in the placement, each with its context retained and direct access to every other
    one's memory. `locals_`: the vendor's ordinals of them."""
    devices: dict[int, Gpu] = {}
    with undo_on_error(close_devices, vendor, devices):
        for i, local in locals_.items():
            facts = facts_of(vendor, local)
            with concerning(f"{facts.name} (device {local})"):
                devices[i] = Gpu(i, facts, vendor.retain(local), local)
        for device, other in permutations(devices.values(), 2):
            _connect(vendor, device, other)
    return devices


def facts_of(vendor: Vendor, ordinal: int) -> DeviceFacts:
    """The properties of a device that the vendor's driver reports."""
    with concerning(f"device {ordinal}"):
        return vendor.facts(ordinal)


@contextmanager
def inside(vendor: Vendor, device: Gpu) -> Iterator[None]:
    """Context manager: the device's context is current, and refused calls are reported for this device; afterwards the
    caller's context is current again."""
    with concerning(device):
        callers = vendor.current()
        # NOTE a Ctrl-C may come when `enter` has done its work, before it returns: so no push and pop
        with undo_on_error(vendor.enter, callers):
            vendor.enter(device.context)
            yield
            vendor.enter(callers)


def _connect(vendor: Vendor, device: Gpu, other: Gpu) -> None:
    with concerning(device):
        reached = vendor.can_access(device.local, other.local)
    if not reached:
        raise DeviceError(
            f"{device} has no direct access to the memory of {other}; set {vendor.visible} to GPUs "
            f"that reach each other ({vendor.topology} shows them), or share one with --ranks-per-gpu"
        )
    with inside(vendor, device):
        vendor.enable_access(other.local, other.context)


def close_devices(vendor: Vendor, devices: dict[int, Gpu]) -> None:
    """Releases the contexts; peer access stays enabled, because others in the process may rely on it."""
    with Closing() as closing:
        for ordinal in list(devices):
            device = devices.pop(ordinal)
            closing(vendor.release, device.local, of=device)


@contextmanager
def kept_open(vendor: Vendor, ordinals: tuple[int, ...]) -> Iterator[None]:
    """Context manager: devices keep their contexts when the last executor on them closes. Creating a context and giving
    other devices access to its memory takes far longer than the rest of opening an executor."""
    devices = open_devices(vendor, {ordinal: ordinal for ordinal in ordinals})
    try:
        yield
    finally:
        close_devices(vendor, devices)


def discover(
    vendor: Vendor, ranks: int, ranks_per_gpu: int = 1, processes: int = 1, node: int | None = None
) -> Machine:
    """This machine's GPUs as a Machine of `ranks` ranks. Each of several processes may see GPUs of its own alone: what
    it sees stands for all. `node`: GPUs of a node; by default those of the processes that the launcher has started on
    this machine."""
    each = -(-ranks // processes)
    mine = placed(vendor, each, ranks_per_gpu).ordinals
    here = -(-min(processes, local(processes)) // max(1, ranks_per_gpu // each))  # processes that share no GPU
    node = len(mine) * here if node is None else node
    used = range(min(vendor.count(), node or len(mine) * processes))
    linked = all(_linked(vendor, a, b) for a in used for b in used if a != b)
    return machine_from([facts_of(vendor, i) for i in used], ranks, ranks_per_gpu, linked, node)


def _linked(vendor: Vendor, a: int, b: int) -> bool:
    with concerning(f"device {a}"):
        return vendor.linked(a, b)


def own_devices(
    vendor: Vendor, needed: int, place: int, agreed: Callable[[Callable[[], object]], list[Any]], most: int = 1
) -> tuple[list[int], list[str]]:
    """So many devices for this process, as the vendor numbers them, fewer if there are no more; and the UUIDs of all
    that it sees. `agreed` gives what every process has made. A process that wishes for none gets the first ones that
    fewer than `most` before it have; where that is more than one, a process needs one device."""
    visible: list[str] = []

    def seen() -> object:
        visible[:] = [vendor.uuid(i) for i in range(vendor.count())]
        return [visible, _wish(vendor, needed, len(visible), most)]

    taken: Counter[str] = Counter()
    mine: list[int] = []
    for p, (theirs, wished) in enumerate(agreed(seen)):
        chosen = wished
        if wished is None:
            chosen = [i for i, uuid in enumerate(theirs) if taken[uuid] < most][:needed]
        taken.update(theirs[i] for i in chosen)
        if p == place:
            mine = chosen
    return mine, visible


def _wish(vendor: Vendor, needed: int, count: int, most: int) -> list[int] | None:
    """The devices that this process should take: the current one; or those that its place on the machine tells."""
    current = vendor.chosen()
    if needed == 1 and current is not None:
        return [current]
    for name in LOCAL_RANKS:
        text = env.others(name) or ""
        if text.isdecimal() and (int(text) // most + 1) * needed <= count:
            return list(range(int(text) // most * needed, (int(text) // most + 1) * needed))
    return None
