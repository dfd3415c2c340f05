"""What executors on the same GPUs share: devices, streams, events, loaded kernels, memory for partial sums, scratch,
and the order of runs.

Runs of all plans of a workspace follow one another: each device begins a run after the last one has completed on every
device of its process, whatever plan that was of. Between processes this needs an end of each run that all others know
of. So where several plans share a workspace, devices signal the ends of their runs to each other: no plan begins early
or alternates between buffer sets (`Features.alone`).

Scratch lies in *slots*: pieces of each device's memory that all plans use. A plan takes for each of its scratch tensors
the smallest free slot that is large enough, the same in all processes, and a new one where none is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ...errors import DeviceError, UsageError
from ...kernels.families import tuned
from ...machine.discover import DeviceFacts
from ...machine.discover import machine as machine_from
from ..api import Options
from .binding import Binder
from .collectives import Communicators
from .copy_trial import try_copies
from .devices import own_devices, placed
from .gpus import Gpus
from .issue_order import ISSUE_ORDER
from .launches import LaunchBinder
from .peers import Peers
from .refused import Closing
from .resources import RunResources
from .runs import Runs
from .vendor import Vendor
from .watchdog import WATCHDOG


class GpuWorkspace:
    """See the module. `name`: what messages call its owner. `node`: ranks of a node. `alone`: it is one executor's.

    Raises UsageError, DeviceError: GPUs are too few, or processes do not reach each other's memory."""

    def __init__(self, vendor: Vendor, name: str, ranks: int, node: int, options: Options, *, alone: bool) -> None:
        self.vendor, self.options, self.alone = vendor, options, alone
        self.peers: Peers | None = None
        self.closed = False
        group, timeout = options.group, options.timeout
        locals_: Mapping[int, int] | None = None
        all_facts: Sequence[DeviceFacts] = ()
        if group is not None and group.size > 1:
            self.peers = Peers(vendor, group, name, ranks, node, timeout)
            placement, locals_, all_facts = self.peers.place(options.ranks_per_gpu)
        else:
            placement = placed(vendor, ranks, options.ranks_per_gpu)
            if group is not None:  # one process of several that were started together: not all take the first GPU
                needed = len(placement.ordinals)
                mine, _ = own_devices(vendor, needed, 0, lambda make: [make()])
                locals_ = dict(zip(placement.ordinals, mine, strict=True))
        self.gpus = Gpus(vendor, placement, timeout, name, self.peers, locals_)
        self.communicators = Communicators(self.gpus)
        self.users = 0  # executors
        self._slots: dict[int, list[tuple[int, int]]] = {}  # by rank: addresses and bytes, smallest first
        WATCHDOG.watch(self.gpus.client)
        try:
            facts = all_facts or [d.facts for d in self.gpus.devices.values()]
            self.device = machine_from(facts, ranks).device
            self.features = vendor.features(self.device.arch)
            self.features = replace(self.features, vendor_gemms=self._vendors_turn(), alone=alone)
            if self.peers is not None:
                self.features = self.peers.common(self.features)
                self.peers.connect(self.gpus.devices.values(), partial(self.gpus.inside, self.gpus.first))
                self.features = replace(self.features, keeps_shared=self.peers.keeps_shared)
            try_copies(self.gpus, self.peers)
            self.resources = RunResources(self.gpus)
            self.launches = LaunchBinder(self.gpus)
            self.binder = Binder(self.gpus, self.resources, self.launches, self.communicators)
            self.runs = Runs(self.gpus, self.resources, self.binder, self.communicators)
            if self.peers is not None:
                self.watch()
        except BaseException as error:
            self.fail(error)
            raise

    def _vendors_turn(self) -> bool:
        """Whether the vendor's library does what it can: it is there, and no GEMM of ours is made for the device."""
        return not tuned(self.device.arch) and self.vendor.has_gemms()

    def watch(self) -> None:
        """The watchdog asks after other processes, and after communicators."""
        self.gpus.client.ill = self.runs.ill
        WATCHDOG.watch(self.gpus.client)

    def fail(self, error: BaseException) -> None:
        """Gives back what was made when an executor could not be opened. The first error is the one to tell."""
        self.closed = True
        if self.peers is not None and isinstance(error, DeviceError | UsageError):
            self.peers.leave(error)
        if self.gpus.client.shut() and not self.gpus.hung:
            with suppress(DeviceError):
                self.communicators.close()
            with suppress(DeviceError):
                self.gpus.close()

    # ---- scratch

    def slots(self, sizes: Mapping[int, Sequence[int]], what: str) -> dict[int, list[int]]:
        """By rank, the addresses of slots for scratch tensors of these sizes, which all ranks of this process have in
        the same order. Raises DeviceError: memory."""
        found: dict[int, list[int]] = {}
        for rank, needed in sizes.items():
            slots, free = self._slots.setdefault(rank, []), Counter(self._slots[rank])
            at: dict[int, int] = {}
            for number in sorted(range(len(needed)), key=lambda i: -needed[i]):
                slot = min((s for s in free.elements() if s[1] >= needed[number]), key=lambda s: s[1], default=None)
                if slot is None:
                    device = self.gpus.device(rank)
                    slot = self.gpus.alloc(device, needed[number], what, shared=True), needed[number]
                    slots.append(slot)
                else:
                    free[slot] -= 1
                at[number] = slot[0]
            found[rank] = [at[number] for number in range(len(needed))]
        return found

    # ---- the end

    def close(self, *, part: bool = True) -> None:
        """Releases everything; may be called twice. `part`: see `Peers.part`."""
        if self.closed or not self.runs.here:
            return
        self.closed = True
        told = self.runs.lost
        closing = Closing()
        closing(self.runs.settle)
        client = self.gpus.client
        if part and self.peers is not None and not (self.runs.lost or self.gpus.blocked):
            with self.gpus.issue_lock():
                closing(self.peers.unmap)
            self.peers.part()
        if not client.shut():
            self.gpus.hang()
        with self.gpus.issue_lock():
            ISSUE_ORDER.remove(client)
            if not self.gpus.calm():
                return  # any call may block; the process's end gives everything back
            for binding in self.binder.bindings:
                closing(self.binder.drop_graphs, binding)
            closing(self.communicators.close)
            closing(self.launches.close)
            closing(self.gpus.close)
        if not told:  # after it calls may fail for the same reason
            closing.end()
