"""Run residency: which runs may be on a device at the same time, decided from their device plans alone.

A launch that spins holds multiprocessors until the semaphores that it waits for are signalled. So two runs of different
executors can deadlock: on one device the blocks of the first run leave no room for those of the second, on another
device the blocks of the second leave no room for those of the first, and each run waits for blocks that cannot start.
Within one plan, launches leave each other room (`launches`), and the check of the device plan verifies this. Launches
of different plans are not coordinated in this way.

Runs are therefore ordered: by their issue, in the same order on all devices. A run may be on a device beside earlier
ones if all blocks that may wait there fit, and enough is left for any launch that does not wait. Otherwise the later
run begins when the earlier one has completed on that device. Then the earliest run that has not ended can always
continue: what it waits for is its own or has ended, and the concurrent runs have left it room. So every run ends.

NOTE all blocks that may wait must fit, not only enough of them for each run to continue. The blocks of a kernel divide
its works among them before they begin, so each block is needed. And while a kernel's blocks have no room, a GPU may not
begin the next kernel, even if that kernel would fit. NOTE a run without launches that spin blocks no other run, since
its kernels end by themselves. It waits for no other run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .inline import is_begin, issued_to
from .ir import GRAPHS, CallCollective, CopyMemory, DevicePlan, LaunchGraph, LaunchKernel, ResetSemaphores, StreamName


@dataclass(frozen=True, slots=True)
class Held:
    """Blocks that may wait, each on a multiprocessor of its own. They start in clusters."""

    blocks: int
    cluster: int

    def least(self, cluster: int) -> int:
        """Multiprocessors that are lost to clusters of such a size. Smaller ones may lie each where a larger one
        would go."""
        return -(-self.blocks // self.cluster) * max(self.cluster, cluster)


@dataclass(frozen=True, slots=True)
class Residency:
    """What a run takes of a device's multiprocessors. `holds`: of each stream the launches that spin, of which one
    holds its blocks at a time. `needs`: how many at once the largest of the other launches asks for, a block or a
    cluster; 0: nothing else runs on multiprocessors."""

    holds: Mapping[StreamName, frozenset[Held]]
    needs: int
    cluster: int  # the largest of all launches

    def held(self, cluster: int) -> int:
        """The most multiprocessors that are lost to clusters of such a size while blocks wait."""
        return sum(max(held.least(cluster) for held in stream) for stream in self.holds.values())


Residencies = Mapping[int, Residency]  # by device


def residencies(plan: DevicePlan) -> Residencies:
    """The residency of a run on each of its devices."""
    holds: dict[int, dict[StreamName, set[Held]]] = {device: {} for device in plan.placement.ordinals}
    needs = dict.fromkeys(holds, 0)
    clusters = dict.fromkeys(holds, 1)
    devices = plan.device_of
    for action in plan.actions:
        device = devices[action.stream]
        if isinstance(action, LaunchKernel):
            launch = plan.launches[action.launch]
            blocks, cluster = launch.config.blocks, launch.config.together
            clusters[device] = max(clusters[device], cluster)
            if launch.spins:
                holds[device].setdefault(action.stream, set()).add(Held(blocks, cluster))
            else:
                needs[device] = max(needs[device], cluster)
        if isinstance(action, CallCollective):  # its blocks wait for other ranks
            held = Held(plan.communicators[action.communicator].blocks, 1)
            holds[device].setdefault(action.stream, set()).add(held)
        # NOTE a fill is a kernel, and so may a copy inside a GPU be
        moves = action.moves if isinstance(action, CopyMemory) else ()
        local = any(plan.placement.share_gpu(m.dst.rank, m.src.rank) for m in moves)
        if local or isinstance(action, ResetSemaphores):
            needs[device] = max(needs[device], 1)
    return {
        device: Residency({name: frozenset(found) for name, found in streams.items()}, needs[device], clusters[device])
        for device, streams in holds.items()
    }


def either(a: Residencies, b: Residencies) -> Residencies:
    """A residency that covers two runs that are never on a device at the same time."""
    found = {}
    for device in {*a, *b}:
        of = [each[device] for each in (a, b) if device in each]
        names = {name for one in of for name in one.holds}
        holds = {name: frozenset[Held]().union(*(one.holds.get(name, ()) for one in of)) for name in names}
        found[device] = Residency(holds, max(one.needs for one in of), max(one.cluster for one in of))
    return found


def fit(residency: Sequence[Residency], sms: int) -> bool:
    """Whether runs with these residencies may be on a device with this number of multiprocessors at the same time."""
    cluster = max(r.cluster for r in residency)
    return sum(r.held(cluster) for r in residency) + max(r.needs for r in residency) <= sms


def kept_back(residency: Residency, earlier: Iterable[Residency], sms: int) -> list[bool]:
    """For each run under way on a device, the latest first: whether a new run must wait for it there."""
    if not residency.holds:
        return [False for _ in earlier]
    beside, found = [residency], []
    for other in earlier:
        found.append(not fit([*beside, other], sms))
        if not found[-1]:
            beside.append(other)
    return found


def waiting_streams(plan: DevicePlan, *, called: bool) -> Mapping[int, tuple[StreamName, ...]]:
    """The streams of each device that wait when a run has to wait. Everything else on the device comes after them."""
    run_ends = plan.called if called else plan.own
    if plan.mode in GRAPHS:
        return {a.device: (a.stream,) for a in run_ends.prologue if isinstance(a, LaunchGraph)}
    begins = {a.stream for a in run_ends.prologue if is_begin(a)}
    elsewhere = issued_to(plan, called=called)
    streams = [s for s in plan.streams if s.name in begins or s.name.kind in ("plan", "wait")]
    return {
        device: tuple(s.name for s in streams if s.device == device and s.name not in elsewhere)
        for device in plan.placement.ordinals
    }
