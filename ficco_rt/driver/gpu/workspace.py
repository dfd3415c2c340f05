"""What executors on the same GPUs share: devices, streams, events, loaded kernels, memory for partial sums, scratch,
and the order of runs.

Runs of all plans of a workspace follow one another, in the order in which they are issued (`device.sharing`).

Scratch lies in *slots*: pieces of each device's memory that all plans use. There are slots of each set, of no set, and
private ones. A plan takes for each of its scratch tensors the smallest slot that is large enough and that it does not
have yet, and a new one where none is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ...errors import DeviceError, UsageError
from ...kernels.families import tuned
from ...machine.discover import DeviceFacts
from ...machine.discover import machine as machine_from
from ..api import CopiedRows, Options, SharedWorkspace
from .binding import Binder
from .collectives import Communicators
from .copy_trial import try_copies
from .devices import own_devices, placed
from .gpus import Gpus
from .issue_order import ISSUE_ORDER, SPIN, poll
from .launches import LaunchBinder
from .peers import Peers
from .refused import Closing
from .resources import RunResources
from .runs import Runs, handles
from .steps import DriverStep, entered, make
from .vendor import Gpu, Handle, PitchedCopy, Vendor
from .watchdog import WATCHDOG

PRIVATE, LARGE = -1, -2  # slots of scratch that no other device touches, and of no set; others have a set's number
SLAB = 1 << 21  # bytes, of small tables of many bindings
KNOWN = 1 << 14  # callers' allocations


class GpuWorkspace(SharedWorkspace):
    """See the module. `name`: what messages call its owner. `node`: ranks of a node. `limit`: bytes of each GPU that it
    may hold. `alone`: it is one executor's.

    Raises UsageError, DeviceError: GPUs are too few, or processes do not reach each other's memory."""

    def __init__(
        self,
        vendor: Vendor,
        name: str,
        ranks: int,
        node: int,
        options: Options,
        *,
        alone: bool = True,
        limit: int | None = None,
    ) -> None:
        self.vendor, self.alone = vendor, alone
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
        self.gpus.limit = limit
        self.communicators = Communicators(self.gpus)
        self.adopted: dict[int, int] = {}  # callers' allocations that all devices may use: the device of each
        self._slots: dict[tuple[int, int], dict[int, int]] = {}  # by rank and kind: bytes by address
        self._staging: dict[tuple[int, str, int], int] = {}  # by rank, tensor and bytes: address
        self._copied: dict[int, Handle] = {}  # by rank: the event behind the last copy from staging
        WATCHDOG.watch(self.gpus.client)
        try:
            facts = all_facts or [d.facts for d in self.gpus.devices.values()]
            self.device = machine_from(facts, ranks).device
            self.features = vendor.features(self.device.arch)
            self.features = replace(self.features, vendor_gemms=self._vendors_turn())
            if self.peers is not None:
                self.features = self.peers.common(self.features)
                self.peers.connect(self.gpus.devices.values(), partial(self.gpus.inside, self.gpus.first))
            try_copies(self.gpus, self.peers)
            self.resources = RunResources(self.gpus)
            self.launches = LaunchBinder(self.gpus, 0 if alone else min(SLAB, limit // 64) if limit else SLAB)
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
        """Gives back what was made when an executor could not be opened; other executors get no further run. The first
        error is the one to tell."""
        self.closed = True
        if hasattr(self, "runs"):
            self.runs.lost = True
        if self.peers is not None and isinstance(error, DeviceError | UsageError):
            self.peers.leave(error)
        if self.gpus.client.shut() and not self.gpus.hung:
            with suppress(DeviceError):
                self.communicators.close()
            with suppress(DeviceError):
                self.gpus.close()

    # ---- scratch

    def slot(self, rank: int, kind: int, size: int, taken: Collection[int]) -> int:
        """The address of a slot for scratch of a rank, of a set or another kind; none of `taken`. Raises DeviceError:
        memory."""
        slots = self._slots.setdefault((rank, kind), {})
        fit = [(held, at) for at, held in slots.items() if held >= size and at not in taken]
        if fit:
            return min(fit)[1]
        device = self.gpus.device(rank)
        made = self.gpus.alloc(device, size, f"scratch of rank {rank}", "scratch", shared=kind != PRIVATE)
        slots[made] = size
        return made

    def free_slots(self, rank: int, taken: Collection[int]) -> int:
        """Bytes of the slots of a rank that are none of `taken`."""
        of_rank = (slots for (owner, _), slots in self._slots.items() if owner == rank)
        return sum(size for slots in of_rank for at, size in slots.items() if at not in taken)

    def adopt(self, allocation: int, device: int) -> None:
        """What is known of an allocation, by its number, need not be asked for again. The oldest are forgotten."""
        while len(self.adopted) >= KNOWN:
            del self.adopted[next(iter(self.adopted))]
        self.adopted[allocation] = device

    def staging(self, rank: int, name: str, size: int) -> int:
        """NOTE a larger tensor of the name has memory of its own: other processes know the address."""
        key = rank, name, size
        if key not in self._staging:
            with self.gpus.uncaptured():
                self._staging[key] = self.gpus.alloc(
                    self.gpus.device(rank), size, f"rows of {name} for rank {rank}", "staging", shared=True
                )
        return self._staging[key]

    def has(self, address: int) -> bool:
        """Whether it is that of a tensor in staging memory."""
        return address in self._staging.values()

    def copy_rows(self, copies: Sequence[CopiedRows], streams: Sequence[object] | None, *, first: bool) -> None:
        """NOTE another caller's stream, or a replay, may still copy from the memory: its end is an event."""
        gpus, vendor = self.gpus, self.vendor
        callers = handles(streams or (), gpus.ranks, vendor.stream)
        captured = bool(callers) and vendor.capturing(callers)
        steps: list[DriverStep] = []
        ends: dict[int, tuple[Gpu, Handle]] = {}
        for copy in copies:
            device = gpus.device(copy.rank)
            stream = callers[gpus.ranks.index(copy.rank)] if callers else gpus.control[device.ordinal]
            what = f"rows of rank {copy.rank}"
            if first and not captured and copy.rank not in ends and copy.rank in self._copied:
                steps.append(DriverStep(device, *vendor.wait_action(stream, self._copied[copy.rank]), what))
            ends[copy.rank] = device, stream
            if copy.zeros:
                steps.append(DriverStep(device, *vendor.zero_action(copy.dst, copy.zeros, stream), what))
            if copy.width:
                steps.append(DriverStep(device, *vendor.copy_rows(_pitched(copy), stream), what))
        for rank, (device, stream) in ends.items() if not first else ():
            if rank not in self._copied:
                with gpus.uncaptured():
                    self._copied[rank] = gpus.new_event(device)
            record = vendor.record_outside if captured else vendor.record_action
            steps.append(DriverStep(device, *record(self._copied[rank], stream), f"rows of rank {rank}"))
        with gpus.issue_lock(), gpus.issuing():
            make(gpus, list(entered(vendor, steps, captured=captured)))
        for device, stream in ends.values() if not callers else ():
            gpus.finish(device, stream)

    def wait_for_rows(self) -> None:
        gpus, events = self.gpus, list(self._copied.values())
        if not poll(lambda: all(map(self.vendor.ended, events)), gpus.timeout, 1e-4, SPIN):
            raise DeviceError(f"rows of the last run were not copied within {gpus.timeout:g} s (--timeout)")

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes by kind, of the device that holds most."""
        found = [self.gpus.memory_of(device) for device in self.gpus.devices.values()]
        return {str(kind): size for kind, size in max(found, key=lambda held: sum(held.values())).items()}

    # ---- the end

    def drop(self) -> None:
        """Closes when no thread holds the issue lock: Python may call a finaliser while one does."""

        def close() -> None:
            with suppress(DeviceError):
                self.close(part=False)

        ISSUE_ORDER.later(close)

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


def _pitched(copy: CopiedRows) -> PitchedCopy:
    return PitchedCopy(copy.dst, copy.src, copy.width, copy.blocks, copy.dst_pitch, copy.src_pitch)
