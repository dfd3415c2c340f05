"""Double buffering: whether runs alternate between two sets of scratch and semaphores.

Devices of different processes synchronise through semaphores. The simple method is a barrier at the end of each run,
before the run counts as complete: after it no device touches what another one still uses. With two sets of all shared
memory no barrier is needed, if in every run any two devices that share memory signal each other. A device that has
ended run k has received signals that the devices with which it shares memory sent in run k. So these devices had begun
run k, and had ended run k - 1 before that. Run k + 1 uses the set of run k - 1, which these devices no longer use, and
whose semaphores they have reset.

The end of a run then says nothing about other processes: they may still read what the run has produced. So memory that
a process releases must last until the others have unmapped it.

Runs in callers' graphs, whose addresses do not change, have a set of their own, and their devices signal the ends of
runs to each other. So a run is in callers' graphs of all processes, or of none.
"""

from __future__ import annotations

from math import prod

from ..plan.ir import CollectiveCall, Plan
from ..types import TYPES
from .early_begin import Writers, accesses_of
from .ir import Features, Placement

# bytes of a device's scratch. Two sets are kept beside it: that is worth the microseconds that an end of a run costs
# where runs are short
LARGEST = 16 << 20


def double_buffered(plan: Plan, placement: Placement, features: Features) -> bool:
    """Whether devices share nothing but scratch of this size, and any two that share some read each other's results in
    the run. A device that reads another one's result waits for it, and so is signalled by that device."""
    if len(set(placement.processes)) < 2 or len(set(placement.nodes)) > 1 or not features.keeps_shared:
        return False
    if not features.alone:
        return False
    if _most_scratch(plan, placement) > LARGEST:
        return False
    if any(isinstance(command, CollectiveCall) for _, command in plan.commands()):
        return False
    accesses = accesses_of(plan, placement)
    scratch = {tensor.name: tensor.shapes for tensor in plan.tensors if tensor.kind == "scratch"}
    owners = placement.devices
    if any(a.region.tensor not in scratch and owners[a.region.rank] != here for here, a in accesses):
        return False
    exchanged = [(here, access) for here, access in accesses if access.region.tensor in scratch]
    writers = Writers(scratch, (access.region for _, access in exchanged))
    if not all(writers.add(access.region, here) for here, access in exchanged if access.written):
        return False
    shares = {(here, owners[access.region.rank]) for here, access in exchanged}
    hears = {(here, by) for here, access in exchanged if not access.written for by in writers.of(access.region)}
    linked = {(a, b) for pair in (shares | hears) for a, b in (pair, pair[::-1]) if a != b}
    return bool(linked) and linked <= hears


def _most_scratch(plan: Plan, placement: Placement) -> int:
    """Bytes, on the device that has most."""
    found = dict.fromkeys(placement.ordinals, 0)
    for tensor in plan.tensors:
        if tensor.kind == "scratch":
            for device, shape in zip(placement.devices, tensor.shapes, strict=True):
                found[device] += prod(shape) * TYPES[tensor.dtype].bytes
    return max(found.values())
