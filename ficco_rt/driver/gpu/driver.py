"""The driver for GPUs of any vendor: runs a plan's device plans, on streams or as one graph for each device. One
process drives all devices, or each process of a group drives its own.

The driver combines its parts: `gpus` (devices and what is made on them), `resources` (what device plans name),
`binding` (their actions on memory), `runs`. What differs between vendors is behind `vendor.Vendor`.

NOTE streams share the device's hardware queues, and a wait at the head of a queue delays all streams that share it. So
vendors ask for as many queues as possible; where there are fewer queues than streams, the device plan has an order in
which the sharing is harmless, or is refused (`device.chain`, `device.check`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from math import lcm
from typing import TypeAlias

import numpy as np

from ...device.collectives import alone_reaches_other_nodes
from ...device.fit_table import blocks_left, too_little_left
from ...device.ir import EventName, Mode, Placement
from ...device.layout import Layout
from ...device.run_plan import RunPlan
from ...device.sharing import all_sets
from ...errors import DeviceError, UsageError, cause_words
from ...geometry.rows import Rows
from ...kernels.catalogue import VENDOR_GEMM
from ...kernels.occupancy import Limits
from ...plan.ir import CollectiveCall, Launch, Plan
from ...trace.model import ClockKind, Launched, TraceSpan
from ...types import Dtype, numpy_dtype
from .. import api
from ..api import Array, Buffer, CollectivesBy, DeviceArray, Holdings, Memory, OnProgress, Options, Pool
from . import clocks
from .binding import BoundPlan, Callers, PlanParts, Plans, Same, plans_of
from .collective_library import CollectiveLibrary
from .inside import LaunchTimes, Marked, launch_times
from .issue_order import ISSUE_ORDER
from .launches import PlanKernels, fits
from .peers import Peers, label, touched_by_others
from .refused import Closing, Refused, concerning, undo_on_error
from .resources import PlanResources
from .runs import handles, steady
from .sharing import Shared
from .spans import events_of, raisers_of, spans_of
from .tensors import DeviceTensor, DeviceTensors
from .vendor import Numbers, Vendor
from .workspace import LARGE, PRIVATE, GpuWorkspace

_NO_ACCESS = (
    "other GPUs cannot be given access to this memory, which is mapped to its addresses or comes from a pool; take "
    "tensors of ordinary allocations (PyTorch: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False)"
)

OFTEN = 32  # runs on the same tensors, whose calls on streams take the host as long as to make a graph

# Other processes' tensors by set, the unaligned launches of all processes, and what holds the mappings.
_Others: TypeAlias = tuple[Sequence[DeviceTensors], frozenset[tuple[int, int]], Shared]


class GpuDriver(api.Driver):
    """See the module."""

    clock: ClockKind = "device"
    on_device = True

    def __init__(self, vendor: Vendor, plan: Plan, options: Options) -> None:
        collectives = options.collectives
        self.name = vendor.name
        self._plan, self._store = plan, options.store
        self._made: dict[frozenset[tuple[int, int]], Plans] = {}  # by unaligned launches: those in use stay
        self._numbers = count()
        # by where tensors lie beside the largest alignment, the launches that cannot take them
        self._unaligned_at: dict[tuple[tuple[tuple[str, int], int], ...], frozenset[tuple[int, int]]] = {}
        self._buffers: dict[Buffer, DeviceTensor] = {}
        self._more: dict[Buffer, list[DeviceTensor]] = {}  # of scratch: those of the sets behind the first
        self._mapped: set[Buffer] = set()  # callers', of which mappings may change
        self._numbers_of: dict[Buffer, Numbers] = {}  # callers', whose memory other devices or processes use
        self._others: _Others | None = None  # where the workspace has all that processes touch of one another
        self._shared_there: Mapping[str, tuple[int, int]] | None = None  # and where it lay then, in this process
        self._touched: frozenset[str] | None = None  # inputs and outputs that other processes touch
        self._closed = False
        self._given: tuple[object, ...] | None = None  # the last run's streams, if their handles stay the same
        self._callers: Callers = ()  # and their handles
        self._on_streams: Mode | None = None  # streams or apart, as they want it; None: not known yet
        refuse(plan)
        name = f"schedule '{plan.schedule}'"
        own = options.workspace or GpuWorkspace(vendor, name, plan.ranks, plan.target.node, options)
        assert isinstance(own, GpuWorkspace)
        self._workspace, self._vendor = own, own.vendor
        self._slots: dict[int, list[int]] = {rank: [] for rank in own.gpus.ranks}  # the plan's scratch
        self._gpus, self._peers, self._communicators = own.gpus, own.peers, own.communicators
        self._resources, self._launches, self._binder, self._runs = own.resources, own.launches, own.binder, own.runs
        self._device, self._features = own.device, own.features
        self.ranks = self._gpus.ranks
        try:
            with self._gpus.uncaptured():  # NOTE also in a capture of a caller's
                placement = self._gpus.placement
                shared = self._peers is not None and self._peers.gpus < len(placement.ordinals)
                library, self._by_copies = library_for(vendor, plan, placement, collectives, shared)
                if self._peers is not None and calls_collectives(plan):
                    self._by_copies = self._peers.same_library(library.version() if library else "", self._by_copies)
                    library = None if self._by_copies else library
                if library is None and len(set(placement.nodes)) > 1:
                    alone_reaches_other_nodes(plan, self._by_copies or "no library of collectives is in use")
                if library is not None:
                    self._features = replace(self._features, collectives=library.name)
                layout = self._plans().layout
                self._alignment = lcm(*(launch.config.alignment for launch in layout.launches))
                self.collectives = self._named(library, layout, collectives)
                if layout.communicators and library is not None:
                    found = too_little_left(layout.plan, layout.launches, Limits.of(self._device), library.version())
                    if found is not None:
                        raise DeviceError(f"{found[0].origin.place}: {found[1]}")
                named = "" if library is None else library.version()
                self._parts = PlanParts(
                    PlanResources(self._gpus, self._resources, layout.semaphores.table, self._all_sets()),
                    PlanKernels(
                        {k.name: k for k in plan.kernels},
                        partial(blocks_left, layout.plan, arch=self._device.arch, library=named),
                    ),
                    self._communicators.add(library, layout.communicators),
                )
                self._communicators.ready()
                if layout.communicators:
                    own.watch()
        except BaseException as error:
            if own.alone or self._peers is not None:
                own.fail(error)
            elif hasattr(self, "_parts"):
                self._parts.resources.close()
            raise

    def _named(self, library: CollectiveLibrary | None, layout: Layout, asked: CollectivesBy) -> str:
        """What makes the collectives. UsageError: the library was asked for, and cannot."""
        if not calls_collectives(self._plan):
            return ""
        if library is not None and layout.communicators:
            return library.version()
        why = self._by_copies or layout.own_way
        if asked == "library":
            raise UsageError(f"collectives of a library: {why}; take copies and sums (--collectives copies)")
        return f"copies and sums: {why}"

    @property
    def held(self) -> bool:
        return self._runs.held

    def describe(self) -> str:
        """The devices in use, for people."""
        count, name = len(self._gpus.placement.ordinals), self._gpus.first.facts.name
        count = count if self._peers is None else self._peers.gpus
        shared = -(-self._plan.ranks // count)
        return f"{count} × {name}" + (f", {shared} ranks each" if shared > 1 else "") + self._library()

    def _library(self) -> str:
        """Which library makes products, if one does, and why where the plan does not say so."""
        layout = self._plans().layout
        launches = [launch for launch in layout.launches if launch.config.matmuls]
        if not launches:
            return ""
        commands = (layout.plan.streams[launch.stream].commands[launch.command] for launch in launches)
        said = all(isinstance(command, Launch) and command.kernel == VENDOR_GEMM for command in commands)
        products = f"{len(launches)} launch{'es' if len(launches) > 1 else ''}"
        own = "" if said else f", as no GEMM of ours is made for {self._device.arch}"
        name = self._launches.library or "the vendor's library"  # it is opened when the first of them is bound
        return f"; {products} by {name}{own}"

    # ---- memory

    def pools(self) -> tuple[Pool, ...]:
        pools = []
        for i, device in self._gpus.devices.items():
            with self._gpus.inside(device):
                free = self._vendor.free_memory()
            ranks = self._gpus.placement.ranks(i)
            free += sum(self._workspace.free_slots(rank, self._slots[rank]) for rank in ranks)
            pools.append(Pool(str(device), ranks, free))
        return tuple(pools)

    def alloc(self, rank: int, shape: tuple[int, ...], dtype: Dtype, *, scratch: str = "") -> Buffer:
        self._runs.answers()
        tensor = DeviceTensor(0, shape, dtype, rank, owned=True)
        with self._alone(), self._gpus.uncaptured():
            if not scratch:
                what = f"{list(shape)} of {dtype} for rank {rank}"
                address = self._gpus.alloc(self._gpus.device(rank), tensor.size, what, "tensors", shared=True)
                return self._buffer(replace(tensor, address=address))
            first, *more = (
                replace(tensor, address=self._slot(rank, kind, tensor.size)) for kind in self._kinds(scratch)
            )
            buffer = self._buffer(first)
            self._more[buffer] = more
            return buffer

    def _kinds(self, scratch: str) -> Sequence[int]:
        """The kinds of slots in which scratch lies: one of each set, if there are sets of it."""
        sharing = self._plans().layout.sharing
        if scratch in sharing.private:
            return (PRIVATE,)
        return range(self._all_sets()) if sharing.sets > 1 else (LARGE,)

    def _all_sets(self) -> int:
        layout = self._plans().layout
        return all_sets(layout.sharing.sets, layout.features)

    def _slot(self, rank: int, kind: int, size: int) -> int:
        self._slots[rank].append(self._workspace.slot(rank, kind, size, self._slots[rank]))
        return self._slots[rank][-1]

    def _alone(self) -> AbstractContextManager[None]:
        """Inside, an error ends other processes' waiting."""
        return nullcontext() if self._peers is None else self._peers.alone()

    def adopt(self, rank: int, array: object, dtype: Dtype) -> Buffer:
        if self._peers is None:
            return self._adopted(rank, array, dtype)
        with self._alone():
            return self._adopted(rank, array, dtype)

    def _adopted(self, rank: int, array: object, dtype: Dtype) -> Buffer:
        if not isinstance(array, DeviceArray):
            raise UsageError(f"the {self.name} driver takes tensors on a GPU, not {type(array).__name__}")
        device = self._gpus.device(rank)
        tensor = DeviceTensor(array.address, array.shape, dtype, rank, owned=False)
        if 0 in array.shape:  # what is empty lies nowhere
            return self._buffer(tensor)
        number = self._vendor.allocation(array.address)
        where = self._workspace.adopted.get(number) if number else None
        numbers: Numbers = ((array.address, number),) if len(self._gpus.devices) > 1 else ()
        mapped = False
        if where != device.local:
            with concerning(device), self._vendor.uncaptured():
                where = self._vendor.owner(array.address, f"rank {rank}'s tensor")
            if where != device.local:
                raise UsageError(f"rank {rank} runs on device {device.local}; its tensor lies on device {where}")
            numbers = self._allocations(tensor) if len(self._gpus.devices) > 1 else ()
            mapped = self._share(tensor)
            if not mapped and numbers == ((array.address, number),):
                self._workspace.adopt(number, where)
        buffer = self._buffer(tensor)
        if numbers:
            self._numbers_of[buffer] = numbers
        if mapped:
            self._mapped.add(buffer)
        return buffer

    def _share(self, tensor: DeviceTensor) -> bool:
        """The other devices may touch a caller's tensor; see `Vendor.share`."""
        device = self._gpus.device(tensor.rank)
        others = [other.local for other in self._gpus.devices.values() if other is not device]
        with concerning(device), self._vendor.uncaptured():
            try:
                return self._vendor.share(tensor.address, tensor.size, others, f"access to rank {tensor.rank}'s tensor")
            except Refused as error:
                error.advice = _NO_ACCESS
                raise

    def _allocations(self, tensor: DeviceTensor) -> Numbers:
        with concerning(self._gpus.device(tensor.rank)), self._vendor.uncaptured():
            return self._vendor.allocations(tensor.address, tensor.size, f"rank {tensor.rank}'s tensor")

    def reuse(self, memory: Memory) -> bool:
        for buffer in memory.values() if self._numbers_of else ():  # NOTE each run comes here
            for address, number in self._numbers_of.get(buffer, ()):
                if self._vendor.allocation(address) != number:
                    return False
        if self._mapped:
            for buffer in self._mapped.intersection(memory.values()):
                self._share(self._buffers[buffer])
        return True

    def _buffer(self, tensor: DeviceTensor) -> Buffer:
        buffer = Buffer(next(self._numbers))
        self._buffers[buffer] = tensor
        return buffer

    def free(self, buffer: Buffer) -> None:
        tensor = self._buffers[buffer]
        if tensor.owned:
            with self._gpus.uncaptured():
                self._runs.quiet()
                if tensor.address not in self._slots[tensor.rank]:
                    self._gpus.free(tensor.address)
        self._mapped.discard(buffer)
        self._numbers_of.pop(buffer, None)
        del self._buffers[buffer]

    def poison(self, buffer: Buffer) -> None:
        self._runs.quiet()
        if self._peers is not None and (not self._peers.poisoned or self._runs.replays):
            self._peers.agree("poison")  # others may still touch what the last run, or replay, has made here
        if self._peers is not None:
            self._peers.poisoned = True
        tensor = self._buffers[buffer]
        if not tensor.size:
            return
        for one in (tensor, *self._more.get(buffer, ())):
            self._poison(one)

    def _poison(self, tensor: DeviceTensor) -> None:
        device = self._gpus.device(tensor.rank)
        stream = self._gpus.control[device.ordinal]
        with self._gpus.inside(device):
            self._vendor.fill(tensor.address, 0xFF, tensor.size, stream)  # all bits set are a NaN in every type
            self._gpus.finish(device, stream)

    def write(self, buffer: Buffer, array: Array) -> None:
        self._runs.quiet()
        tensor = self._buffers[buffer]
        if not tensor.size:
            return
        self._gpus.put(self._gpus.device(tensor.rank), tensor.address, np.ascontiguousarray(array))

    def read(self, buffer: Buffer) -> Array:
        self._runs.quiet()
        tensor = [self._buffers[buffer], *self._more.get(buffer, ())][
            self._runs.number if self._more.get(buffer) else 0
        ]
        values: Array = np.empty(tensor.shape, numpy_dtype(tensor.dtype))
        if not tensor.size:
            return values
        with self._gpus.inside(self._gpus.device(tensor.rank)):
            self._vendor.to_host(values.ctypes.data, tensor.address, values.nbytes)
        return values

    # ---- binding

    def staged(self, rows: Rows) -> frozenset[str]:
        """NOTE what other processes touch they map when it is bound, all at one step: that cannot be done for each
        number of rows, and each address that a caller has."""
        if self._touched is None:
            scratch = {t.name for t in self._plan.tensors if t.kind == "scratch"}
            touched = touched_by_others(self._plans().of("streams")) if self._peers is not None else ()
            self._touched = frozenset(name for name, _ in touched) - scratch
        if rows.given < rows.planned and (self._touched or self._plans().blocks(rows) is None):
            return self._touched | rows.blocks.keys()
        return self._touched

    def bind(self, memory: Memory, rows: Rows | None = None) -> api.Binding:
        inputs = {t.name for t in self._plan.tensors if t.kind == "input"}
        tensors = {key: self._buffers[buffer] for key, buffer in memory.items()}
        for key, t in tensors.items():  # NOTE a model binds thousands, and `replace` takes three times as long
            if t.written and key[0] in inputs:
                tensors[key] = DeviceTensor(t.address, t.shape, t.dtype, t.rank, t.owned, written=False)
                self._buffers[memory[key]] = tensors[key]
        with self._gpus.uncaptured():
            if self._peers is not None:
                with self._alone():
                    sets = self._in_sets(memory, tensors)
                    for key in touched_by_others(self._plans().of("streams")):
                        if key in tensors and tensors[key].size and not tensors[key].owned:
                            self._numbers_of[memory[key]] = self._allocations(tensors[key])
                return api.Binding(self._bound_together(self._peers, sets, rows))
            plans = self._plans(self._unaligned(tensors))
            return api.Binding(self._binder.bind(self._parts, plans, [tensors], rows=rows))

    def _in_sets(self, memory: Memory, tensors: DeviceTensors) -> list[DeviceTensors]:
        """The tensors, with the scratch of each set."""
        found = [tensors]
        for number in range(1, self._all_sets()):
            more = {key: self._more[buffer][number - 1] for key, buffer in memory.items() if self._more.get(buffer)}
            found.append({**tensors, **more})
        return found

    def _unaligned(self, tensors: DeviceTensors) -> frozenset[tuple[int, int]]:
        """The launches whose tuned kernels cannot take the memory, as they count with aligned tensors. Plain kernels
        take it."""
        layout = self._plans().layout
        most = self._alignment
        beside = tuple([(key, t.address % most) for key, t in tensors.items() if t.address % most])
        if beside not in self._unaligned_at:
            ranks = [stream.rank for stream in layout.plan.streams]
            mine = (x for x in layout.launches if ranks[x.stream] in self._gpus.ranks)
            found = frozenset((x.stream, x.command) for x in mine if not fits(x, tensors))
            self._unaligned_at[beside] = found
        return self._unaligned_at[beside]

    def _bound_together(self, peers: Peers, sets: Sequence[DeviceTensors], rows: Rows | None) -> BoundPlan:
        """All processes bind: each maps the others' tensors that its commands touch, and all take the same device
        plans. Where the workspace has all of these, that is done once for those that it has then: later each process
        binds for itself. `sets`: this process's tensors, with the scratch of each set."""
        plan = self._plans().of("streams")
        wanted = touched_by_others(plan)
        kinds = {t.name: t for t in self._plan.tensors}
        mine: dict[str, tuple[int, int]] = {}
        for number, own in enumerate(sets):
            for key in wanted:
                if key[1] in self._gpus.ranks and own[key].size and (not number or kinds[key[0]].kind == "scratch"):
                    mine[label(key, number)] = own[key].address, own[key].size
        bound = [key for key in wanted if key in sets[0] and kinds[key[0]].kind != "scratch"]
        lasts = all(self._workspace.has(sets[0][key].address) for key in bound)
        if lasts and mine == self._shared_there:
            assert self._others is not None
            with self._alone():
                return self._bound_alone(sets, self._others, rows)
        shared = peers.share("bind tensors", mine)
        with undo_on_error(peers.release, shared):
            others: list[dict[tuple[str, int], DeviceTensor]] = [{} for _ in sets]
            for number, tensors in enumerate(others):
                for name, rank in wanted:
                    if rank not in self._gpus.ranks:
                        of = kinds[name]
                        at = label((name, rank), number if of.kind == "scratch" else 0)
                        lies, written = shared.addresses.get(at, 0), of.kind != "input"
                        tensors[name, rank] = DeviceTensor(lies, of.shapes[rank], of.dtype, rank, False, written)
            said = peers.agreed("choose kernels", lambda: sorted(self._unaligned({**sets[0], **others[0]})))
            unaligned = frozenset((s, p) for theirs in said for s, p in theirs)
            known = [{**own, **theirs} for own, theirs in zip(sets, others, strict=True)]
            made: list[BoundPlan] = []
            with undo_on_error(lambda: list(map(self._binder.release, made))):
                with peers.in_step("bind launches"):
                    plans = self._plans(unaligned)
                    made.append(self._binder.bind(self._parts, plans, known, None if lasts else shared, rows))
                if plans.layout.communicators:
                    with peers.in_step("make first calls of collectives"):
                        self._communicators.warm()
            if lasts:
                self._others, self._shared_there = (others, unaligned, shared), mine
            return made[0]

    def _bound_alone(self, sets: Sequence[DeviceTensors], before: _Others, rows: Rows | None) -> BoundPlan:
        """UsageError: tensors are less aligned than those that were bound first, by which kernels were agreed on."""
        others, unaligned, _ = before
        known = [{**own, **theirs} for own, theirs in zip(sets, others, strict=True)]
        if not self._unaligned(known[0]) <= unaligned:
            raise UsageError(
                "these tensors are less aligned than those that were bound first, for which all processes have agreed "
                "on kernels: align them like those, or make another executor and bind them first"
            )
        return self._binder.bind(self._parts, self._plans(unaligned), known, rows=rows)

    def _plans(self, unaligned: frozenset[tuple[int, int]] = frozenset()) -> Plans:
        found = self._made.get(unaligned)
        if found is None:
            of = Same(self._plan), self._device, self._gpus.placement, self._features, unaligned
            found = plans_of(*of, self._store)
            self._made[unaligned] = found
        return found

    def unbind(self, binding: api.Binding) -> None:
        assert isinstance(binding, BoundPlan)
        with self._gpus.uncaptured():
            self._runs.quiet()
            self._binder.release(binding)

    # ---- running

    def capture(self, binding: api.Binding) -> None:
        assert isinstance(binding, BoundPlan)
        if not binding.graphs:  # NOTE each run comes here
            with self._gpus.uncaptured():
                self._runs.capture(binding)

    def run(self, binding: api.Binding, streams: Sequence[object] = (), *, graph: bool | None = False) -> bool:
        assert isinstance(binding, BoundPlan)
        if self._peers is not None and (self._peers.poisoned or self.tracing):
            # NOTE others write into our scratch as soon as they run: semaphores keep apart runs, not what the host does
            self._peers.agree("run what was poisoned" if self._peers.poisoned else "trace a run")
            self._peers.poisoned = False
        given = tuple(streams)
        if given != self._given:  # NOTE nothing is asked of objects that are the same ones
            self._callers = handles(given, self._gpus.ranks, self._vendor.stream)
            self._on_streams = None
            self._given = given if steady(given) else None
        if graph is None and not (self.tracing or self.gated):
            graph = self._often(binding)
        mode: Mode = "graph" if graph else "traced" if self.tracing else "gated"
        if not (graph or self.tracing or self.gated):
            mode = self._on_streams or self._of_callers()
        return self._runs.run(binding, self._callers, mode, self.timing)

    def _of_callers(self) -> Mode:
        where = zip(self._gpus.ranks, self._callers, strict=False)
        usual = all(self._vendor.is_usual(s, self._gpus.device(rank).context) for rank, s in where)
        self._on_streams = "streams" if usual else "apart"
        return self._on_streams

    def _often(self, binding: BoundPlan) -> bool:
        """Whether a run is a graph: made once there have been OFTEN runs on these tensors, if a graph is no slower."""
        binding.came += 1
        if binding.graphs or binding.came <= OFTEN or not binding.plans.quick_as_graph:
            return bool(binding.graphs)
        if not (self._callers and self._vendor.capturing(self._callers)):
            self.capture(api.Binding(binding))
        return bool(binding.graphs)

    def synchronize(self, progress: OnProgress | None = None) -> None:
        self._runs.synchronize()

    def check(self) -> None:
        self._runs.check()

    def _mine(self) -> None:
        """UsageError: the last run was another executor's, and has what is asked for."""
        if not self._runs.last_of(self._parts):
            raise UsageError(
                f"another executor of the workspace has run since the last run of schedule '{self._plan.schedule}', of "
                "which nothing is left: ask before the next run"
            )

    def run_plan(self) -> RunPlan:
        self._mine()
        return self._runs.run_plan()

    def elapsed(self) -> float:
        self._mine()
        return self._runs.microseconds()

    def spans(self) -> tuple[TraceSpan, ...]:
        """The spans of the last run, if it was recorded; in a group those of all processes, which ask for them at the
        same step."""
        self._mine()
        binding = self._runs.traced
        if binding is None:
            return ()
        self._runs.synchronize()
        for ordinal, stream in self._gpus.control.items():  # where timestamps begin; no command waits for it
            self._gpus.finish(self._gpus.devices[ordinal], stream)
        plan = binding.plans.layout.plan  # as the devices have it
        raisers = raisers_of(plan)
        dtypes = {t.name: t.dtype for t in plan.tensors}
        launched: dict[tuple[int, int], Launched] = {}
        for number, bound in binding.launches.items():
            launch = binding.plans.layout.launches[number]
            launched.setdefault((launch.stream, launch.command), bound.launched)
        inside = self._inside(binding)
        found: dict[int, list[TraceSpan]] = {ordinal: [] for ordinal in self._gpus.devices}
        for stream in plan.streams:
            if stream.rank not in self._gpus.ranks:
                continue
            device = self._gpus.device(stream.rank)
            with self._gpus.inside(device):
                time = partial(self._runs.since, device.ordinal)
                found[device.ordinal].extend(spans_of(stream, dtypes, time, raisers, launched, inside))
        all_ = self._of_all(found) if self._peers is not None else [span for of in found.values() for span in of]
        return tuple(sorted(all_, key=lambda s: (s.stream, s.start, s.stop)))

    def _of_all(self, found: Mapping[int, Sequence[TraceSpan]]) -> Sequence[TraceSpan]:
        """The spans of all processes, on one clock. `found`: this process's, by device."""
        peers, mine = self._peers, []
        assert peers is not None
        with peers.alone():
            for ordinal, spans in found.items():
                begin = self._resources.recorded(EventName("begin", ordinal))
                mine.append(clocks.Spans(clocks.begun(self._gpus, self._gpus.devices[ordinal], begin), tuple(spans)))
        all_, self.within = clocks.on_one_clock(peers.group, peers.machines, mine, self._gpus.timeout)
        return all_

    def _inside(self, binding: BoundPlan) -> Mapping[tuple[int, int], LaunchTimes]:
        """What marks say of the launches that have them."""
        marked = []
        for number, marks in self._binder.marks(binding).items():
            launch, bound = binding.plans.layout.launches[number], binding.launches[number]
            events = events_of(binding.plans.layout.plan.streams[launch.stream])[launch.command]
            ordinal = bound.device.ordinal
            with self._gpus.inside(bound.device):
                start, stop = (self._runs.since(ordinal, event) for event in (events[0], events[-1]))
            marked.append(Marked(launch, marks, bound.tile_works, ordinal, start, stop))

        def ticks(ordinal: int) -> float:
            device = self._gpus.devices[ordinal]
            with concerning(device):
                return self._vendor.ticks(device.local)

        return launch_times(marked, ticks)

    def holdings(self) -> Holdings:
        streams, events, size = self._gpus.held()
        graphs = sum(bool(b.graphs) for b in self._binder.bindings)
        return Holdings(streams, events, graphs, size, self._communicators.count)

    def leave(self, error: BaseException) -> None:
        if self._peers is not None and self._runs.here and not self._closed:
            self._peers.give_up(cause_words(error))
            self._peers.leave(error)

    def close(self, *, part: bool = True) -> None:
        """`part`: see `Peers.part`."""
        if self._closed or not self._runs.here:
            return
        self._closed = True
        if self._workspace.alone or self._workspace.closed:
            self._workspace.close(part=part)
            return
        with Closing() as closing:
            closing(self._runs.quiet)
            for binding in [b for b in self._binder.bindings if b.of is self._parts]:
                closing(self._binder.release, binding)
            for buffer in [b for b, tensor in self._buffers.items() if tensor.owned]:
                closing(self.free, buffer)
            if self._others is not None and self._peers is not None:
                closing(self._peers.release, self._others[-1])
            closing(self._binder.drop, self._parts)
            closing(self._parts.resources.close)

    def drop(self) -> None:
        """Closes when no thread holds the issue lock: Python may call a finaliser while one does."""

        def close() -> None:
            with suppress(DeviceError):
                self.close(part=False)

        ISSUE_ORDER.later(close)


def library_for(
    vendor: Vendor, plan: Plan, placement: Placement, asked: CollectivesBy, shared: bool
) -> tuple[CollectiveLibrary | None, str]:
    """The library for the plan's collectives, or why there is none. `shared`: processes have the same GPU. DeviceError:
    it is asked for, and not there."""
    if shared and calls_collectives(plan) and asked != "copies":
        return None, "no library lets processes share a GPU"
    alone = len(set(placement.devices)) == len(placement.devices) > 1
    if not calls_collectives(plan) or asked == "copies" or (asked == "auto" and not alone):
        return None, "they were asked for" if asked == "copies" else ""
    try:
        return vendor.collectives(), ""
    except DeviceError as error:
        if asked == "library":
            raise
        return None, str(error)


def calls_collectives(plan: Plan) -> bool:
    """Whether the plan has collectives, or messages."""
    return any(isinstance(command, CollectiveCall) for _, command in plan.commands())


def refuse(plan: Plan) -> None:
    """Raises UsageError for features of the language that GPUs do not support."""
    for _, command in plan.commands():
        place = command.origin.place
        if isinstance(command, CollectiveCall):
            in_place = command.dst.tensor == command.src.tensor
            if in_place and command.kind in ("reduce_scatter", "all_to_all"):
                raise UsageError(f"{place}: there is no {command.kind} in place; take two tensors")
