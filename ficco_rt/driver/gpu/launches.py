"""Launches: which kernel does a launch's works, and its calls with the tables that they read in device memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np

from ...errors import DeviceError, UsageError
from ...errors import Span as Place
from ...graph.ir import ITEM_BYTES, Kernel, KernelCall
from ...kernels.catalogue import CLUSTERS, COPY, REDUCE
from ...plan.ir import CollectiveCall, Command, CopyAsync, Launch, LaunchAttributes, Plan, Work
from ...region import Region
from ...trace import Launched
from . import naive
from .cells import cells
from .devices import Device
from .flags import waited_by
from .gpus import Gpus
from .modules import Modules
from .packed import Packed, Wanted
from .spans import place_of
from .streams import GpuStream, Ready, Upload
from .tensors import FlagAddress, Resolve
from .vendor import Grid, Handle

PLAIN = LaunchAttributes(smem=0, residency=None, sms=None, priority=None)
_ALIGNED = 256  # bytes


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a stream's launches are to be made. `sms`: multiprocessors that they may take; a streamed one holds no more,
    since its blocks wait. `behind`: right behind another launch."""

    to: GpuStream
    place: Place
    attributes: LaunchAttributes
    sms: int
    streamed: bool = False
    behind: bool = False


class Launches:
    """Makes a plan's launches ready. `lowered` are the flags that the launches that wait for them take down; `kernels`
    are the user kernels, by name."""

    def __init__(self, gpus: Gpus, plan: Plan, lowered: Set[int]) -> None:
        self._gpus = gpus
        self._plan = plan
        self._lowered = lowered
        # launches that stand right behind another one. NOTE commands may be equal: it is the very command that counts
        behind = (b for s in plan.streams for a, b in pairwise(s.commands) if isinstance(a, Launch))
        self._behind = {id(command) for command in behind}
        self._modules = Modules(gpus)
        self._smem: dict[Handle, int] = {}  # by function, the most that a launch of it asks for
        self.kernels: dict[str, Kernel] = {}

    def close(self) -> None:
        self._modules.close()

    def bind(self, to: GpuStream, command: Launch, resolve: Resolve, address: FlagAddress) -> Ready:
        """A launch of the plan."""
        users = [(w, w.body) for w in command.works if isinstance(w.body, KernelCall)]
        if users:
            ready = Ready()
            for work, call in users:
                self._user(to, command, work, call, resolve, ready)
            return ready
        vendor, facts = self._gpus.vendor, to.device.facts
        sms = command.attributes.sms or facts.sms
        if command.streamed:
            sms = min(sms, self._room(to.device, sms))
        lowers = [address(flag) for flag in sorted(waited_by(command) & self._lowered)]
        tuned = vendor.tuned(Wanted(command, sms, lowers), resolve, address, facts)
        if tuned is not None:
            launches = [tuned]
        else:
            launches = naive.pack(command, resolve, address, vendor.options(facts.arch), sms, lowers)
        behind = id(command) in self._behind
        ready = self._all(_Asked(to, command.origin, command.attributes, sms, command.streamed, behind), launches)
        if not launches[-1].lowered:
            ready.actions += (vendor.zero_action(at, words, to.handle) for at, words in _side_by_side(lowers))
        return ready

    def sums(
        self, to: GpuStream, sums: Sequence[tuple[Region, Sequence[Region]]], resolve: Resolve, place: Place
    ) -> Ready:
        """A launch for each sum of terms into a region."""
        options = self._gpus.vendor.options(to.device.facts.arch)
        launches = [naive.sum_of(out, terms, resolve, options) for out, terms in sums]
        return self._all(_Asked(to, place, PLAIN, to.device.facts.sms), launches)

    def _all(self, asked: _Asked, launches: Sequence[Packed]) -> Ready:
        ready = Ready()
        try:
            for packed in launches:
                self._packed(asked, packed, ready)
                asked = replace(asked, behind=True)
        except BaseException:
            for upload in ready.uploads:
                with suppress(DeviceError):  # the first error is the one to tell; `close` frees what is left
                    self._gpus.free(upload.address)
            raise
        return ready

    def _packed(self, asked: _Asked, packed: Packed, ready: Ready) -> None:
        gpus, vendor, to, device = self._gpus, self._gpus.vendor, asked.to, asked.to.device
        entry = self._modules.own(packed.source, packed.entry, device, packed.options)
        # what the text asks for counts all of a block's shared memory
        smem = max(packed.smem, asked.attributes.smem - entry.static_smem)
        what = f"kernel {entry.name}, {smem} bytes of shared memory"
        with gpus.inside(device):
            self._allow(entry.handle, smem, what)
            fitting = vendor.blocks_per_sm(entry.handle, packed.threads, smem, what)
        if not fitting:
            raise DeviceError(f"{place_of(asked.place)}: {what}: a block does not fit {device}")
        blocks, cluster = packed.grid, packed.cluster
        if blocks is None:
            blocks = min(asked.sms if asked.streamed else asked.sms * fitting, packed.tiles)
        if asked.streamed and packed.source == naive.SOURCE:
            blocks, cluster = self._grouped(to, blocks)
        upload = self._upload(device, packed, entry.name)
        ready.uploads.append(upload)
        chained = asked.behind and packed.chained and vendor.chains(device.facts.arch)
        grid = Grid((blocks,), (packed.threads,), smem, self._priority(asked.attributes), cluster, chained)
        with gpus.inside(device):
            arguments = packed.arguments(upload.address, upload.counters)
            ready.actions.append(vendor.launch_action(entry.handle, grid, arguments, to.handle))
        ready.launched.append(Launched(entry.name, smem, fitting, blocks))

    def _allow(self, function: Handle, smem: int, what: str) -> None:
        """NOTE what was allowed last holds for all launches of a function, those that are bound already too."""
        self._smem[function] = max(smem, self._smem.get(function, 0))
        self._gpus.vendor.allow_smem(function, self._smem[function], what)

    def _upload(self, device: Device, packed: Packed, name: str) -> Upload:
        """The launch's constants in device memory, and zeros behind them."""
        constants = len(packed.constants)
        start = -(-constants // _ALIGNED) * _ALIGNED
        address = self._gpus.alloc(device, start + packed.scratch, f"the table of a launch of {name}")
        try:
            image = np.zeros(start + packed.scratch, np.uint8)
            image[:constants] = np.frombuffer(packed.constants, np.uint8)
            self._gpus.put(device, address, image)
        except BaseException:
            with suppress(DeviceError):
                self._gpus.free(address)
            raise
        return Upload(device, address, address + start, packed.counters)

    def _priority(self, attributes: LaunchAttributes) -> int | None:
        """None for the stream's, in a captured node too."""
        return None if attributes.priority is None else self._gpus.priority(attributes.priority)

    def _room(self, device: Device, sms: int) -> int:
        """Blocks that a streamed launch may hold which wants `sms`. Its blocks wait while they hold their
        multiprocessors, so all streamed launches of a device together take no more than there are, and leave what
        else they may wait for as many as that needs to begin: ranks that share the device, copies inside a device,
        which may run on multiprocessors, and launches that are not streamed."""
        homes = self._gpus.homes
        here = [s for s in self._plan.streams if homes[s.rank] == device.ordinal]
        wanted = [_wanted(s.commands, device) for s in here]
        needed, local = 0, False  # by what is not streamed, beyond its stream's own; copies inside a device
        for stream, want in zip(here, wanted, strict=True):
            for c in stream.commands:
                if isinstance(c, Launch | CollectiveCall):
                    least = CLUSTERS.get(c.kernel, 1) if isinstance(c, Launch) else 1
                    needed = max(needed, least if least > want else 0)
                if isinstance(c, CopyAsync):
                    local = local or any(homes[t.src.rank] == homes[t.dst.rank] for t in c.transfers)
        beside = sum(map(bool, wanted)) > 1
        alone = homes.count(device.ordinal) == 1 and not local and not (beside and needed)
        room = device.facts.sms - (0 if alone else max(1, needed))
        if sum(wanted) <= room or (alone and not beside):
            return sms
        return max(1, room * sms // sum(wanted))

    def _grouped(self, to: GpuStream, blocks: int) -> tuple[int, int]:
        """`blocks` of a streamed launch of single blocks, or a few less, and how many of them start side by side.
        Beside launches in clusters they come in such clusters too: one here and one there would leave
        multiprocessors that no cluster can use, and the last cluster would begin when others have ended."""
        beside = {
            CLUSTERS.get(c.kernel, 1)
            for s in self._plan.streams
            if s.id != to.plan.id and self._gpus.homes[s.rank] == to.device.ordinal
            for c in s.commands
            if isinstance(c, Launch) and c.streamed and c.kernel not in (COPY, REDUCE)
        }
        cluster = min(beside, default=1)
        return (blocks // cluster * cluster, cluster) if blocks >= cluster else (blocks, 1)

    def _user(
        self, to: GpuStream, command: Launch, work: Work, call: KernelCall, resolve: Resolve, ready: Ready
    ) -> None:
        """A user kernel gets the address of each region's first element, and each int as a C int."""
        place = place_of(work.origin)
        if work.waits or work.signals:
            raise UsageError(f"{place}: kernel '{call.kernel}' cannot be streamed")
        entry = self._modules.users(self.kernels[call.kernel], to.device)
        arguments: list[bytes] = []
        for a in call.arguments:
            if not isinstance(a.value, Region):
                arguments.append(bytes(ctypes.c_int(a.value)))
                continue
            tensor = resolve(a.value)
            if len(a.value.boxes) != 1:
                raise UsageError(f"{place}: kernel '{call.kernel}', argument {a.name}: one piece, not a set of pieces")
            first = next(cells((a.value,), (tensor.shape,)))
            address = tensor.address + first.sides[0].offset * ITEM_BYTES[tensor.dtype]
            arguments.append(bytes(ctypes.c_uint64(address)))
        vendor, smem = self._gpus.vendor, command.attributes.smem
        grid = Grid(call.grid, call.block, smem, self._priority(command.attributes))
        what = f"kernel '{call.kernel}', {smem} bytes of shared memory"
        with self._gpus.inside(to.device):
            if smem:
                self._allow(entry.handle, smem, what)
            fitting = vendor.blocks_per_sm(entry.handle, prod(call.block), smem, what)
            ready.actions.append(vendor.launch_action(entry.handle, grid, arguments, to.handle))
        ready.launched.append(Launched(call.kernel, smem, fitting, prod(call.grid)))


def _side_by_side(words: Sequence[int]) -> list[tuple[int, int]]:
    """Addresses of 32-bit words, in order, as runs: the first one's address, and how many."""
    runs: list[tuple[int, int]] = []
    for at in words:
        if runs and at == runs[-1][0] + 4 * runs[-1][1]:
            first, count = runs.pop()
            runs.append((first, count + 1))
        else:
            runs.append((at, 1))
    return runs


def _wanted(commands: Sequence[Command], device: Device) -> int:
    """Multiprocessors that the streamed launches of a stream, one after another, want at most."""
    streamed = [c.attributes.sms or device.facts.sms for c in commands if isinstance(c, Launch) and c.streamed]
    return max(streamed, default=0)
