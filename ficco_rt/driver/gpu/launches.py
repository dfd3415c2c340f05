"""Prepares launches on concrete memory: loads code, writes tables to device memory, and packs the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...device.ir import DeviceLaunch
from ...errors import DeviceError
from ...geometry.region import Region
from ...geometry.rows import Rows
from ...graph.ir import Kernel, KernelCall, Leave
from ...kernels import copy_rows, device_barrier
from ...kernels.block_fit import Footprint
from ...kernels.families import tables, unread
from ...kernels.family import KernelConfig, Move, Tables, TileWorks
from ...kernels.marks import MARK, Marks, marking
from ...kernels.target import options
from ...kernels.works import View, Work, kernel_work
from ...trace.model import Launched
from .gemm_library import Left, LibraryCalls
from .gpus import Gpus
from .modules import LoadedKernel, Modules
from .refused import Closing, Refused
from .tensors import DeviceTensors, anywhere
from .vendor import DriverCall, Gpu, Grid, Handle, LinearCopy, PitchedCopy

_ALIGNED = 256  # bytes
_Key: TypeAlias = tuple[int, int, bytes, int]  # of a table: whose plan, which launch, its constants and counters


@dataclass(frozen=True, slots=True, eq=False)
class LaunchTable:
    """A launch's code, and its table in device memory, at `address`. `counters` words from `zeros` on must be 0 before
    a run, as a whole run leaves them. Bindings share a `shared` one, made for memory anywhere: their runs come one
    after another."""

    device: Gpu
    entry: LoadedKernel
    grid: Grid
    made: Tables
    address: int
    zeros: int
    partials: int
    launched: Launched
    shared: bool


@dataclass(frozen=True, slots=True, eq=False)
class BoundLaunch:
    """A launch that is ready to be issued. One by the vendor's library has no table. The instrumented variant of a
    launch leaves its marks at address `marks`, one for each tile."""

    device: Gpu
    table: LaunchTable | None
    calls: Callable[[Handle], Sequence[DriverCall | None]]  # of the stream; None: there is nothing to do
    launched: Launched
    arguments: Sequence[bytes] = ()
    tile_works: TileWorks = ()  # see `Tables`
    algorithms: tuple[int, ...] = ()  # of the library's calls: their places in what its heuristics like
    marks: int = 0


@dataclass(frozen=True, slots=True)
class PlanKernels:
    """What a plan says about its launches: the user kernels, by name, and what a launch with `leave` leaves room
    for."""

    users: Mapping[str, Kernel]
    blocks_left: Callable[[Leave], tuple[Footprint, ...]]


class LaunchBinder:
    """Prepares launches."""

    def __init__(self, gpus: Gpus, slab: int = 0) -> None:
        """`slab`: bytes of memory that is allocated at once for small tables of one size."""
        self._gpus = gpus
        self._slab = slab
        self._spare: dict[tuple[int, int], list[int]] = {}  # by device and bytes: pieces of slabs
        self._pieces: dict[int, list[int]] = {}  # by table in a slab: where it goes back
        self._modules = Modules(gpus)
        self._library = LibraryCalls(gpus)
        self._tables: set[LaunchTable] = set()
        self._smem: dict[Handle, int] = {}  # by function, the most that a launch of it asks for
        # by device and stream of the plan, whose launches come one after another: address and bytes
        self._partials: dict[tuple[int, int], tuple[int, int]] = {}
        self._placed_at: dict[_Key, int] = {}
        self._users: dict[int, tuple[_Key, int]] = {}  # by address: how many tables lie there

    @property
    def library(self) -> str:
        """The vendor's library that makes products, if one does."""
        return self._library.name

    def close(self) -> None:
        with Closing() as closing:
            closing(self._library.close)
            closing(self._modules.close)

    def table(
        self,
        launch: DeviceLaunch,
        device: Gpu,
        memory: DeviceTensors,
        flags: Mapping[int, int],
        kernels: PlanKernels,
        rows: Rows | None,
        *,
        shared: bool,
    ) -> LaunchTable:
        """`flags` are their addresses. `rows`: those of the run, if they are fewer than the plan's. `shared`: by
        bindings to any memory."""
        config = launch.config
        works = works_of(launch, anywhere(memory) if shared else memory, flags, rows)
        unknown = unread(config, works)
        if unknown is not None:
            raise Refused(
                config.kernel, f"knows no {unknown}", advice="take tensors of another type, or --backend host"
            )
        entry = self._entry(launch, device, kernels)
        what = f"kernel {entry.name}, {config.smem} bytes of shared memory"
        self._fits(config, entry, device, what, launch.leave)
        made = tables(config, works, [flags[flag] for flag in config.resets])
        zeros = -(-len(made.constants) // _ALIGNED) * _ALIGNED
        partials = self._partial_sums(device, launch.stream, made.partials)
        # NOTE runs come one after another, and leave counters as they were: all rows may have the same ones
        key = id(kernels), id(launch), made.constants, made.counters
        address = self._table(key, device, f"the table of a launch of {entry.name}")
        launched = Launched(entry.name, config.smem, config.resident, config.blocks)
        found = LaunchTable(
            device, entry, self._grid(launch), made, address, address + zeros, partials, launched, shared
        )  # fmt: skip
        self._tables.add(found)
        return found

    def bind(self, table: LaunchTable, move: Move) -> BoundLaunch:
        """A launch by a table; `move` leads from memory anywhere to the launch's."""
        made, device = table.made, table.device
        if table.shared:
            assert made.moved is not None
            made = made.moved(move)
        with self._gpus.inside(device):
            arguments = made.arguments(table.address, table.zeros, table.partials, self._gpus.vendor.tensor_map)
        calls = partial(self._call, table.entry, table.grid, arguments)
        return BoundLaunch(device, table, calls, table.launched, arguments, made.tile_works)

    def drop(self, table: LaunchTable) -> None:
        """Gives a table back, by which nothing is bound any more."""
        self._tables.discard(table)
        key, users = self._users[table.address]
        self._users[table.address] = key, users - 1
        if users == 1:
            del self._users[table.address], self._placed_at[key]
            if table.address in self._pieces:
                self._pieces.pop(table.address).append(table.address)
            else:
                self._gpus.free(table.address)

    def clear(self) -> None:
        """Resets all counters to 0, whatever a given-up run has left."""
        for table in self._tables:
            if table.made.counters:
                self._gpus.put(table.device, table.zeros, np.zeros(table.made.counters, np.uint32))

    def _table(self, key: _Key, device: Gpu, what: str) -> int:
        """The address of a launch's table: that of an equal one of the same launch, if there is one."""
        address = self._placed_at.get(key)
        if address is None:
            *_, constants, counters = key
            image = np.zeros(-(-len(constants) // _ALIGNED) * _ALIGNED + 4 * counters, np.uint8)
            image[: len(constants)] = np.frombuffer(constants, np.uint8)
            address = self._placed_at[key] = self._placed(device, image, what)
            self._users[address] = key, 0
        self._users[address] = key, self._users[address][1] + 1
        return address

    def _placed(self, device: Gpu, image: npt.NDArray[np.uint8], what: str) -> int:
        """NOTE of many launches each number of rows has a table."""
        size = max(_ALIGNED, 1 << (image.nbytes - 1).bit_length())
        if 2 * size > self._slab:
            return self._gpus.placed(device, image, what)
        spare = self._spare.setdefault((device.ordinal, size), [])
        if not spare:
            first = self._gpus.alloc(device, self._slab, f"tables of {size} bytes")
            spare += range(first, first + self._slab, size)
        self._gpus.put(device, spare[-1], image)
        address = spare.pop()
        self._pieces[address] = spare
        return address

    def _partial_sums(self, device: Gpu, stream: int, size: int) -> int:
        """The address of memory for a launch's partial sums, which all launches of a stream share. NOTE one that needs
        more gets a piece at least twice as large; tables keep theirs, until the driver is closed."""
        address, most = self._partials.get((device.ordinal, stream), (0, 0))
        if size > most:
            size = max(size, 2 * most)
            address = self._gpus.alloc(device, size, f"the partial sums of launches on stream {stream}", "partial sums")
            self._partials[device.ordinal, stream] = address, size
        return address

    def by_library(
        self, launch: DeviceLaunch, device: Gpu, memory: DeviceTensors, kernels: PlanKernels, rows: Rows | None
    ) -> BoundLaunch:
        """A launch by the vendor's library."""
        (product,) = works_of(launch, memory, {}, rows)
        left = None if launch.leave is None else Left(str(launch.leave), kernels.blocks_left(launch.leave))
        calls, algorithms = self._library.bind(launch.config, product.views, device, launch.stream, left)
        launched = Launched(self._library.name, 0, None, None)
        return BoundLaunch(device, None, calls, launched, algorithms=algorithms)

    def marked(self, launch: DeviceLaunch, bound: BoundLaunch, kernels: PlanKernels) -> BoundLaunch:
        """The instrumented variant of a bound launch. It uses the same table."""
        twin, device = replace(launch, config=marking(launch.config)), bound.device
        entry = self._entry(twin, device, kernels)
        self._fits(twin.config, entry, device, f"kernel {entry.name}, {twin.config.smem} bytes of shared memory")
        marks = np.zeros(len(bound.tile_works), MARK)
        address = self._gpus.placed(device, marks, f"the marks of a launch of {entry.name}")
        arguments = [*bound.arguments, address.to_bytes(8, "little")]
        return replace(bound, marks=address, calls=partial(self._call, entry, self._grid(twin), arguments))

    def _call(
        self, entry: LoadedKernel, grid: Grid, arguments: Sequence[bytes], stream: Handle
    ) -> Sequence[DriverCall]:
        return (self._gpus.vendor.launch_action(entry.handle, grid, arguments, stream),)

    def barrier(self, device: Gpu, runs: int, steps: Sequence[device_barrier.Step], stream: Handle) -> DriverCall:
        """The launch of the kernel that takes these steps. `runs`: the address of the device's count of runs."""
        entry = self._modules.own(device_barrier.SOURCE, device_barrier.ENTRY, device, options(device.facts.arch))
        grid, argument = Grid((1,), (device_barrier.THREADS,), 0), device_barrier.argument(runs, steps)
        return self._gpus.vendor.launch_action(entry.handle, grid, (argument,), stream)

    def copying(self, device: Gpu, part: LinearCopy | PitchedCopy, stream: Handle) -> DriverCall:
        """The launch of the kernel that copies this inside the device."""
        entry = self._modules.own(copy_rows.SOURCE, copy_rows.ENTRY, device, options(device.facts.arch))
        if isinstance(part, LinearCopy):
            size, argument = part.size, copy_rows.argument(part.dst, part.src, part.size)
        else:
            size = part.width * part.rows
            argument = copy_rows.argument(part.dst, part.src, part.width, part.rows, part.dst_pitch, part.src_pitch)
        grid = Grid((copy_rows.blocks(size),), (copy_rows.THREADS,), 0)
        return self._gpus.vendor.launch_action(entry.handle, grid, (argument,), stream)

    def marks(self, marked: BoundLaunch) -> Marks:
        """What the last run by it has left. It has ended."""
        found: Marks = np.zeros(len(marked.tile_works), MARK)
        with self._gpus.inside(marked.device):
            self._gpus.vendor.to_host(found.ctypes.data, marked.marks, found.nbytes)
        return found

    def _entry(self, launch: DeviceLaunch, device: Gpu, kernels: PlanKernels) -> LoadedKernel:
        config, body = launch.config, launch.works[0].body
        if isinstance(body, KernelCall):
            return self._modules.users(kernels.users[body.kernel], device)
        return self._modules.own(config.source, config.entry, device, config.options)

    def _fits(
        self, config: KernelConfig, entry: LoadedKernel, device: Gpu, what: str, leave: Leave | None = None
    ) -> None:
        """The launch relies on so many blocks a multiprocessor: check that the device allows as many."""
        vendor, function = self._gpus.vendor, entry.handle
        with self._gpus.inside(device):
            if config.smem:
                # NOTE what was allowed last holds for all launches of a function, those that are bound already too
                self._smem[function] = max(config.smem, self._smem.get(function, 0))
                vendor.allow_smem(function, self._smem[function], what)
            if leave is not None:
                vendor.share_smem(function, what)
            fitting = vendor.blocks_per_sm(function, config.threads, config.smem, what)
        if not fitting:
            raise DeviceError(f"{what}: a block does not fit {device}")
        if leave is not None and fitting != config.resident:
            raise DeviceError(
                f"{what}: leave = {leave} counts on {config.resident} of its blocks a multiprocessor, and the driver "
                f"says {fitting} ({device}); say smem or sms in place of leave"
            )

    def _grid(self, launch: DeviceLaunch) -> Grid:
        """A launch without a priority of its own has its stream's, in a captured node too."""
        config, body = launch.config, launch.works[0].body
        priority = None if launch.priority is None else self._gpus.priority(launch.priority)
        if isinstance(body, KernelCall):
            return Grid(body.grid, body.block, config.smem, priority)
        return Grid((config.blocks,), (config.threads,), config.smem, priority, config.cluster, launch.early)


def works_of(
    launch: DeviceLaunch, memory: DeviceTensors, flags: Mapping[int, int], rows: Rows | None = None
) -> list[Work]:
    """A launch's works on memory. Flags between works that are made as one have no address."""

    def look(region: Region) -> View:
        tensor = memory[region.tensor, region.rank]
        shape = tensor.shape if rows is None else rows.shape(region.tensor, tensor.shape)
        return View(region, tensor.address, shape, tensor.dtype, tensor.written)

    def addresses(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(flags.get(number, 0) for number in numbers)

    return [kernel_work(w.body, look, addresses(w.waits), addresses(w.signals), rows) for w in launch.works]


def fits(launch: DeviceLaunch, memory: DeviceTensors) -> bool:
    """Whether the memory is aligned as the launch's kernel requires."""
    works = works_of(launch, memory, {})
    return all(view.address % launch.config.alignment == 0 for work in works for view in work.views)
