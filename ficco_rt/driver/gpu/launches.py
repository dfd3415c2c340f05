"""Launches: which kernel does a launch's works, and its calls with the tables that they read in device memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np

from ...errors import DeviceError, UsageError
from ...errors import Span as Place
from ...graph.ir import Kernel
from ...kernels import families, works
from ...kernels.catalogue import CLUSTERS, COPY, REDUCE
from ...kernels.family import KernelConfig, LaunchRequest, Tables
from ...kernels.occupancy import Limits
from ...plan.ir import (
    CollectiveCall,
    Command,
    CopyAsync,
    CopyWork,
    GemmWork,
    KernelWork,
    Launch,
    LaunchAttributes,
    Plan,
    Work,
)
from ...region import Region
from ...trace import Launched
from .devices import Device
from .flags import waited_by
from .gpus import Gpus
from .modules import Modules
from .spans import place_of
from .streams import GpuStream, Ready, Upload
from .tensors import FlagAddress, Resolve
from .vendor import Grid, Handle

PLAIN = LaunchAttributes(smem=0, residency=None, sms=None, priority=None)
_ALIGNED = 256  # bytes


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a stream's launches are to be made. `behind`: right behind another launch."""

    to: GpuStream
    place: Place
    attributes: LaunchAttributes
    behind: bool = False


@dataclass(frozen=True, slots=True)
class _Made:
    """A launch on memory."""

    config: KernelConfig
    tables: Tables


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
        users = [w for w in command.works if isinstance(w, KernelWork)]
        if users:
            ready = Ready()
            for work in users:
                self._user(to, command, work, resolve, ready)
            return ready
        vendor, facts = self._gpus.vendor, to.device.facts
        sms = command.attributes.sms or facts.sms
        if command.streamed:
            sms = min(sms, self._room(to.device, sms))
        resets = tuple(sorted(waited_by(command) & self._lowered))
        request = LaunchRequest(
            kernel=command.kernel,
            works=tuple(_work(w, resolve, int) for w in command.works),
            sms=sms,
            smem=command.attributes.smem,
            streamed=command.streamed,
            resets=resets,
            cluster=self._cluster_beside(to) if command.streamed else 1,
        )
        configs = families.configure(request, Limits.of(facts))
        placed = [_work(w, resolve, address) for w in command.works]
        launches = [_Made(c, families.tables(c, placed, tuple(map(address, c.resets)))) for c in configs]
        ready = self._all(_Asked(to, command.origin, command.attributes, id(command) in self._behind), launches)
        done = {flag for c in configs for flag in (*c.resets, *c.unraised)}
        words = [address(flag) for flag in resets if flag not in done]
        ready.actions += (vendor.zero_action(at, count, to.handle) for at, count in _side_by_side(words))
        return ready

    def sums(
        self, to: GpuStream, sums: Sequence[tuple[Region, Sequence[Region]]], resolve: Resolve, place: Place
    ) -> Ready:
        """A launch for each sum of terms into a region."""
        facts = to.device.facts
        launches = []
        for out, terms in sums:
            work = works.Sum(resolve(out).view(out), tuple(resolve(t).view(t) for t in terms))
            (config,) = families.configure(LaunchRequest(REDUCE, (work,), facts.sms), Limits.of(facts))
            launches.append(_Made(config, families.tables(config, [work])))
        return self._all(_Asked(to, place, PLAIN), launches)

    def _all(self, asked: _Asked, launches: Sequence[_Made]) -> Ready:
        ready = Ready()
        try:
            for made in launches:
                self._one(asked, made, ready)
                asked = replace(asked, behind=True)
        except BaseException:
            for upload in ready.uploads:
                with suppress(DeviceError):  # the first error is the one to tell; `close` frees what is left
                    self._gpus.free(upload.address)
            raise
        return ready

    def _one(self, asked: _Asked, made: _Made, ready: Ready) -> None:
        gpus, vendor, to, device = self._gpus, self._gpus.vendor, asked.to, asked.to.device
        config = made.config
        entry = self._modules.own(config.source, config.entry, device, config.options)
        what = f"kernel {entry.name}, {config.smem} bytes of shared memory"
        with gpus.inside(device):
            self._allow(entry.handle, config.smem, what)
            fitting = vendor.blocks_per_sm(entry.handle, config.threads, config.smem, what)
        if not fitting:
            raise DeviceError(f"{place_of(asked.place)}: {what}: a block does not fit {device}")
        upload = self._upload(device, made.tables, entry.name)
        ready.uploads.append(upload)
        priority, chained = self._priority(asked.attributes), asked.behind and config.chained
        grid = Grid((config.blocks,), (config.threads,), config.smem, priority, config.cluster, chained)
        with gpus.inside(device):
            arguments = made.tables.arguments(upload.address, upload.counters, vendor.encode)
            ready.actions.append(vendor.launch_action(entry.handle, grid, arguments, to.handle))
        ready.launched.append(Launched(entry.name, config.smem, fitting, config.blocks))

    def _allow(self, function: Handle, smem: int, what: str) -> None:
        """NOTE what was allowed last holds for all launches of a function, those that are bound already too."""
        self._smem[function] = max(smem, self._smem.get(function, 0))
        self._gpus.vendor.allow_smem(function, self._smem[function], what)

    def _upload(self, device: Device, packed: Tables, name: str) -> Upload:
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

    def _cluster_beside(self, to: GpuStream) -> int:
        """How many blocks start side by side in streamed launches beside this stream's on the device, at least."""
        beside = {
            CLUSTERS.get(c.kernel, 1)
            for s in self._plan.streams
            if s.id != to.plan.id and self._gpus.homes[s.rank] == to.device.ordinal
            for c in s.commands
            if isinstance(c, Launch) and c.streamed and c.kernel not in (COPY, REDUCE)
        }
        return min(beside, default=1)

    def _user(self, to: GpuStream, command: Launch, work: KernelWork, resolve: Resolve, ready: Ready) -> None:
        """A user kernel gets the address of each region's first element, and each int as a C int."""
        place = place_of(work.origin)
        if work.waits or work.signals:
            raise UsageError(f"{place}: kernel '{work.kernel}' cannot be streamed")
        entry = self._modules.users(self.kernels[work.kernel], to.device)
        arguments: list[bytes] = []
        for a in work.arguments:
            if not isinstance(a.value, Region):
                arguments.append(bytes(ctypes.c_int(a.value)))
                continue
            if len(a.value.boxes) != 1:
                raise UsageError(f"{place}: kernel '{work.kernel}', argument {a.name}: one piece, not a set of pieces")
            arguments.append(bytes(ctypes.c_uint64(resolve(a.value).view(a.value).first)))
        vendor, smem = self._gpus.vendor, command.attributes.smem
        grid = Grid(work.grid, work.block, smem, self._priority(command.attributes))
        what = f"kernel '{work.kernel}', {smem} bytes of shared memory"
        with self._gpus.inside(to.device):
            if smem:
                self._allow(entry.handle, smem, what)
            fitting = vendor.blocks_per_sm(entry.handle, prod(work.block), smem, what)
            ready.actions.append(vendor.launch_action(entry.handle, grid, arguments, to.handle))
        ready.launched.append(Launched(work.kernel, smem, fitting, prod(work.grid)))


def _work(work: Work, resolve: Resolve, flag: Callable[[int], int]) -> works.Work:
    """A work of the plan as kernels are given it."""
    waits, signals = tuple(map(flag, work.waits)), tuple(map(flag, work.signals))

    def view(region: Region) -> works.View:
        return resolve(region).view(region)

    if isinstance(work, GemmWork):
        out, left, right, *addends = (view(r) for r in (work.out, work.left, work.right, *work.terms))
        transposed = work.left_transposed, work.right_transposed
        return works.Product(
            out, left, right, *transposed, work.accumulate, tuple(addends), waits=waits, signals=signals
        )
    if isinstance(work, CopyWork):
        return works.Copy(view(work.dst), view(work.src), waits, signals)
    assert not isinstance(work, KernelWork)
    return works.Sum(view(work.out), tuple(map(view, work.terms)), waits, signals)


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
