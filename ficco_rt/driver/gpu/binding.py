"""Converts the actions of a device plan into driver calls on concrete memory."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple, TypeAlias, get_args

from ...device import ir
from ...device import run_plan as run_calls
from ...device.build import device_plan, layout_of
from ...device.check import checked
from ...device.features import chain_warning
from ...device.fewer_rows import blocks_of, given
from ...device.inline import issued_to
from ...device.layout import Layout
from ...device.run_ends import known_ends
from ...device.run_plan import Step as CallStep
from ...device.run_residency import Residencies, residencies, waiting_streams
from ...device.sharing import buffer_set
from ...errors import InternalError
from ...files.store import Store
from ...geometry.cells import cells
from ...geometry.region import Region
from ...geometry.rows import Rows
from ...graph.ir import KernelCall, Priority
from ...kernels import marks as kernel_marks
from ...kernels.device_barrier import KINDS, Step
from ...kernels.families import movable
from ...kernels.family import Move
from ...machine.model import Device
from ...plan.codec import content_hash
from ...plan.ir import Plan
from ...trace.model import Launched
from ...types import TYPES
from .collective_library import Member
from .collectives import Communicators, elements_of
from .gpus import Gpus
from .issue_order import Submission
from .launches import BoundLaunch, LaunchBinder, LaunchTable, PlanKernels
from .refused import Closing, concerning, undo_on_error
from .resources import PlanResources, RunResources
from .sharing import Shared
from .steps import ENTERS, DriverStep, entered
from .tensors import DeviceTensor, DeviceTensors, beside, moving
from .vendor import DriverCall, Gpu, Handle, LinearCopy, MemOp, PitchedCopy

LOG = logging.getLogger(__name__)

KEPT = 8  # sets of callers' streams for which the begin and end of runs are kept

Callers: TypeAlias = tuple[Handle, ...]  # the streams that they give, one a rank, or none


class RunManner(NamedTuple):
    """What the calls of a run depend on, apart from the memory. `others`: nothing tells the streams of this run that
    the run before has ended. `replays`: callers' graphs hold runs."""

    mode: ir.Mode
    callers: Callers
    behind: bool
    timed: bool
    others: bool
    replays: bool

    @property
    def said(self) -> ir.Manner:
        """Without the streams, as the device plan has it."""
        return ir.Manner(bool(self.callers), self.behind, self.timed, self.others, self.replays)


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a run. `enters`: some of them change the context; where `context`, if there is but one, is the
    current one, those `inside` it are made alone. `submission` is what the run tells other executors."""

    steps: Sequence[DriverStep]
    inside: Sequence[DriverStep]
    enters: bool
    context: Handle | None
    submission: Submission


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry of a store: a device plan that was checked, and the layout that it was made of."""

    layout: Layout
    plan: ir.DevicePlan


class Plans:
    """The device plans of one layout. Each is made and checked when its mode is first used, or taken from a store that
    has kept it since. `key`: what the layout was made of."""

    def __init__(self, layout: Layout, store: Store | None = None, key: object = None) -> None:
        self.layout = layout
        self._store, self._key = store, key
        self._made: dict[ir.Mode, ir.DevicePlan] = {}
        self._blocks: dict[tuple[int, frozenset[tuple[str, int]]], Mapping[str, int] | None] = {}
        self._residencies: dict[ir.Mode, Residencies] = {}
        self._known_ends: dict[ir.Mode, tuple[frozenset[str], frozenset[str]]] = {}

    @classmethod
    def kept(cls, store: Store, key: object) -> Plans | None:
        """Those of a layout that the store has. None: it has none."""
        found = store.get((key, "streams"), Kept)
        if found is None:
            return None
        made = cls(found.layout, store, key)
        made._made["streams"] = found.plan
        return made

    def of(self, mode: ir.Mode) -> ir.DevicePlan:
        """Raises DeviceError: the devices have too few hardware queues for it; PlanError: the device plan is wrong,
        which is a bug of ours."""
        if mode not in self._made:
            kept = None if self._store is None else self._store.get((self._key, mode), Kept)
            made = checked(device_plan(self.layout, mode)) if kept is None else kept.plan
            if kept is None and self._store is not None:
                self._store.put((self._key, mode), Kept(self.layout, made))
            if made.crowded and mode in ir.GRAPHS:
                LOG.warning("%s", chain_warning(made))
            self._made[mode] = made
        return self._made[mode]

    @cached_property
    def quick_as_graph(self) -> bool:
        """Whether runs on the devices take no longer as graphs. Copies do: they come in no batches there."""
        plan = self.of("streams")
        slow = any(isinstance(action, ir.CopyMemory) for action in plan.body)
        return not (slow or plan.crowded or plan.communicators)

    def known_ends(self, mode: ir.Mode) -> tuple[frozenset[str], frozenset[str]]:
        """`device.run_ends.known_ends`. NOTE runs behind others come here."""
        if mode not in self._known_ends:
            self._known_ends[mode] = known_ends(self.of(mode))
        return self._known_ends[mode]

    def blocks(self, rows: Rows) -> Mapping[str, int] | None:
        """By name, the blocks of all tensors that have fewer rows. None: the plan runs with all its rows only."""
        key = rows.planned, frozenset(rows.blocks.items())
        if key not in self._blocks:
            self._blocks[key] = blocks_of(self.of("streams"), rows.planned, rows.blocks)
        return self._blocks[key]

    def residencies(self, mode: ir.Mode) -> Residencies:
        """The residency of a run on each device."""
        if mode not in self._residencies:
            self._residencies[mode] = residencies(self.of(mode))
        return self._residencies[mode]


@dataclass(frozen=True, slots=True, eq=False)
class Same:
    """Wraps a plan to compare it by identity: comparing its content would cost more."""

    plan: Plan

    def __hash__(self) -> int:
        return id(self.plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.plan is self.plan


@lru_cache(maxsize=4)
def plans_of(
    same: Same,
    device: Device,
    placement: ir.Placement,
    features: ir.Features,
    unaligned: frozenset[tuple[int, int]],
    store: Store | None = None,
) -> Plans:
    """Executors of one plan that are opened one after another share its device plans, because making and checking these
    is the most expensive part of opening an executor. `unaligned`: the launches (stream, command) that plain kernels
    do. `store`: what keeps them between processes."""
    plan_hash = content_hash(same.plan)
    places = tuple(tensor.origin for tensor in same.plan.tensors)  # which the hash leaves out
    key = (plan_hash, places, device, placement, features, sorted(unaligned))
    kept = None if store is None else Plans.kept(store, key)
    if kept is not None:
        return kept
    return Plans(layout_of(same.plan, device, placement, features, plan_hash, unaligned), store, key)


# set, launch, rows of a block, 0 for all, and how the tensors are aligned
TableKey: TypeAlias = tuple[Plans, int, int, int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class PlanParts:
    """What a plan has in a workspace. `communicators`: by number in the plan, the number in the workspace. `tables`
    that bindings share, and how many with fewer rows, or with tensors that are not aligned, do; `bound`: the device
    plans that a binding is complete of."""

    resources: PlanResources
    kernels: PlanKernels
    communicators: tuple[int, ...]
    tables: dict[TableKey, LaunchTable] = field(default_factory=dict)
    users: Counter[TableKey] = field(default_factory=Counter)
    bound: set[Plans] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class BoundPlan:
    """One set of tensors, bound. By device: `graphs` to be launched, and `parts` for callers' graphs. `number`: the set
    of semaphores, and of scratch; `more`: the same tensors, bound with the sets behind the first, those for callers'
    graphs last. `rows`: those of its runs, if they are fewer than the plan's."""

    of: PlanParts
    plans: Plans
    memory: DeviceTensors
    number: int = 0
    rows: Rows | None = None
    tables: list[TableKey] = field(default_factory=list)  # shared ones, for these rows
    more: list[BoundPlan] = field(default_factory=list)
    launches: dict[int, BoundLaunch] = field(default_factory=dict)  # by launch, those of this process's devices
    marked: dict[int, BoundLaunch] = field(default_factory=dict)  # by launch, made when a run is first traced
    graphs: dict[int, Handle] = field(default_factory=dict)
    parts: dict[int, Handle] = field(default_factory=dict)
    # by mode, and by callers, if their streams have some of it
    bodies: dict[tuple[ir.Mode, Callers], Sequence[DriverStep]] = field(default_factory=dict)
    calls: dict[RunManner, Calls] = field(default_factory=dict)
    latest: tuple[RunManner, Calls] | None = None  # NOTE each run asks for these, and most runs are made like the last
    shared: Shared | None = None  # memory of other processes
    complete: bool = False  # see `Binder.complete`
    came: int = 0  # runs that were to be graphs where that pays

    def in_turn(self, run: int, *, embedded: bool = False) -> BoundPlan:
        """The buffer set that the run of this number uses, or that of this number in a caller's graph."""
        number = buffer_set(self.plans.layout.sharing.sets, run, embedded=embedded)
        return self.more[number - 1] if number else self

    @property
    def buffer_sets(self) -> list[BoundPlan]:
        """The buffer sets between which runs alternate outside of callers' graphs."""
        return [self, *self.more][: self.plans.layout.sharing.sets]

    @property
    def launched(self) -> list[Launched]:
        """How each launch of this process's devices launches."""
        return [launch.launched for launch in self.launches.values()]


class Binder:
    """Makes bindings, and the calls of their runs."""

    def __init__(
        self, gpus: Gpus, resources: RunResources, launches: LaunchBinder, communicators: Communicators
    ) -> None:
        self._gpus = gpus
        self._resources = resources
        self._launches = launches
        self._communicators = communicators
        self.bindings: set[BoundPlan] = set()
        self.mark_all = False  # launches that wait for nothing mark in traced runs, too

    def bind(
        self,
        parts: PlanParts,
        plans: Plans,
        sets: Sequence[DeviceTensors],
        shared: Shared | None = None,
        rows: Rows | None = None,
    ) -> BoundPlan:
        """`sets`: the tensors with the scratch of each set. Raises DeviceError; nothing is left of it then."""
        if rows is not None:
            blocks = plans.blocks(rows)
            assert blocks is not None  # as `takes` has said
            rows = replace(rows, blocks=blocks)
        binding = BoundPlan(parts, plans, sets[0], rows=rows, shared=shared)
        binding.more += (BoundPlan(parts, plans, memory, number, rows) for number, memory in enumerate(sets[1:], 1))
        self.bindings |= {binding, *binding.more}
        with undo_on_error(self.release, binding):
            if plans not in parts.bound:
                for one in binding.buffer_sets:
                    self.complete(one)
                    self._body(one, "streams", ())
                parts.bound.add(plans)
        return binding

    def complete(self, binding: BoundPlan) -> None:
        """The binding's launches are ready, in its set. The first binding of a plan is completed when it is bound, so
        that what the devices lack shows then; others, and sets for callers' graphs, when they first run."""
        if not binding.complete:
            self._bind(binding)
            binding.complete = True

    def _bind(self, binding: BoundPlan) -> None:
        plans, flags = binding.plans, self._flags(binding)
        streams = {s.name.number: s for s in plans.of("streams").streams if s.name.kind == "plan"}
        move, aligned = moving(binding.memory), beside(binding.memory)
        for number, launch in enumerate(plans.layout.launches):
            device = self._gpus.devices.get(streams[launch.stream].device)
            if device is None or number in binding.launches:
                continue
            with concerning(device, f"Launch on rank {streams[launch.stream].rank}", launch.origin):
                binding.launches[number] = self._launch(binding, number, device, flags, move, aligned)

    def _launch(
        self,
        binding: BoundPlan,
        number: int,
        device: Gpu,
        flags: Mapping[int, int],
        move: Move,
        aligned: tuple[int, ...],
    ) -> BoundLaunch:
        launch, memory, parts, rows = binding.plans.layout.launches[number], binding.memory, binding.of, binding.rows
        if launch.config.matmuls:
            return self._launches.by_library(launch, device, memory, parts.kernels, rows)
        key = binding.plans, binding.number, number, 0 if rows is None else rows.given, aligned
        if key not in parts.tables:
            shared = movable(launch.config, (work.body for work in launch.works))
            table = self._launches.table(launch, device, memory, flags, parts.kernels, rows, shared=shared)
            if not shared:
                return self._launches.bind(table, move)
            parts.tables[key] = table
        if rows is not None or any(aligned):
            binding.tables.append(key)
            parts.users[key] += 1
        return self._launches.bind(parts.tables[key], move)

    def release(self, binding: BoundPlan) -> None:
        """Releases what a binding holds."""
        self.bindings.discard(binding)
        with Closing() as closing:
            while binding.more:
                closing(self.release, binding.more.pop())
            closing(self.drop_graphs, binding)
            while binding.marked:
                closing(self._gpus.free, binding.marked.popitem()[1].marks)
            if binding.shared is not None and self._gpus.peers is not None:
                closing(self._gpus.peers.release, binding.shared)
            while binding.launches:
                table = binding.launches.popitem()[1].table
                if table is not None and not table.shared:
                    closing(self._launches.drop, table)
            while binding.tables:
                key, parts = binding.tables.pop(), binding.of
                parts.users[key] -= 1
                if not parts.users[key]:
                    del parts.users[key]
                    closing(self._launches.drop, parts.tables.pop(key))

    def drop(self, parts: PlanParts) -> None:
        """Gives back what the bindings of a plan have shared. There are none any more."""
        with Closing() as closing:
            while parts.tables:
                closing(self._launches.drop, parts.tables.popitem()[1])

    def clear(self) -> None:
        """Resets the counters of all launches to 0."""
        self._launches.clear()

    def drop_graphs(self, binding: BoundPlan) -> None:
        """With the calls that launch them."""
        self.forget(binding)
        with Closing() as closing:
            while binding.graphs:
                ordinal, graph = binding.graphs.popitem()
                closing(self._drop, ordinal, self._gpus.vendor.destroy_graph, graph)
            while binding.parts:
                ordinal, part = binding.parts.popitem()
                closing(self._drop, ordinal, self._gpus.vendor.destroy_captured, part)

    def _drop(self, ordinal: int, destroy: Callable[[Handle], None], graph: Handle) -> None:
        with concerning(self._gpus.devices[ordinal]), self._gpus.issue_lock():
            destroy(graph)

    def _flags(self, binding: BoundPlan) -> Mapping[int, int]:
        """The addresses of flags. Those between works that one kernel makes as one have none."""
        addresses = binding.of.resources.addresses[binding.number]
        return {flag: addresses[semaphore] for flag, semaphore in binding.plans.layout.semaphores.flags.items()}

    # ---- the calls of a run

    def calls(self, binding: BoundPlan, manner: RunManner) -> Calls:
        """Made once for each set of callers' streams; those used longest ago are forgotten."""
        found = binding.calls.pop(manner, None)
        if found is None:
            found = self._calls(binding, manner)
            while len(binding.calls) >= KEPT:
                del binding.calls[next(iter(binding.calls))]
        binding.calls[manner] = found
        binding.latest = manner, found
        return found

    @staticmethod
    def forget(binding: BoundPlan) -> None:
        """Forgets the calls of a binding's runs, so that they are made anew."""
        binding.calls.clear()
        binding.latest = None

    def _calls(self, binding: BoundPlan, manner: RunManner) -> Calls:
        plan = binding.plans.of(manner.mode)
        run_ends = plan.called if manner.callers else plan.own

        def made(actions: Iterable[ir.Action]) -> list[DriverStep]:
            part = manner.said.of(actions)
            return list(entered(self._gpus.vendor, self._steps(binding, plan, part, manner.callers)))

        begin, end = made(run_ends.prologue), made(run_ends.epilogue)
        body = () if manner.mode in ir.GRAPHS else self._body(binding, manner.mode, manner.callers)
        steps = (*begin, *body, *end)
        inside = tuple(step for step in steps if step.what is not ENTERS)
        context = self._gpus.first.context if len(self._gpus.devices) == 1 else None
        submission = self._submission(binding, manner, run_ends)
        return Calls(steps, inside, len(inside) < len(steps), context, submission)

    def _submission(self, binding: BoundPlan, manner: RunManner, run_ends: ir.RunEnds) -> Submission:
        plan = binding.plans.of(manner.mode)
        streams = {name: of for name, (_, of) in binding.of.resources.streams_of(plan, manner.callers).items()}
        locals_ = {ordinal: device.local for ordinal, device in self._gpus.devices.items()}
        waiting = waiting_streams(plan, called=bool(manner.callers))
        ends = {
            locals_[action.event.number]: (binding.of.resources.recorded(action.event), streams[action.stream])
            for action in run_ends.epilogue
            if action.stream in streams
            and isinstance(action, ir.RecordEvent)
            and action.event.kind in ("completion", "replayed")
        }
        residencies = binding.plans.residencies(manner.mode)
        return Submission(
            {local: residencies[device] for device, local in locals_.items()},
            {local: tuple(streams[name] for name in waiting[device]) for device, local in locals_.items()},
            ends,
        )

    def _body(self, binding: BoundPlan, mode: ir.Mode, callers: Callers) -> Sequence[DriverStep]:
        plan = binding.plans.of(mode)
        key = mode, callers if issued_to(plan, called=bool(callers)) else ()
        found = binding.bodies.pop(key, None)
        if found is None:
            found = list(entered(self._gpus.vendor, self._steps(binding, plan, plan.body, key[1])))
            while len(binding.bodies) >= KEPT:
                del binding.bodies[next(iter(binding.bodies))]
        binding.bodies[key] = found
        return found

    def captured(self, binding: BoundPlan, mode: ir.Mode) -> list[DriverStep]:
        """What is captured into the graphs."""
        plan = binding.plans.of(mode)
        return list(entered(self._gpus.vendor, self._steps(binding, plan, plan.body, ()), captured=True))

    def _steps(
        self, binding: BoundPlan, plan: ir.DevicePlan, actions: Iterable[ir.Action], callers: Callers
    ) -> Iterator[DriverStep]:
        streams, rows = binding.of.resources.streams_of(plan, callers), binding.rows
        if rows is not None:
            actions = (given(action, rows) for action in actions)
        for action, call in run_calls.calls_of(plan, actions, streams, partial(self._marks, plan)):
            if isinstance(call, run_calls.Together):
                yield self._collective(binding, call, streams)
                continue
            device, stream = streams[call.stream]
            with concerning(device, action.cause.text, action.cause.origin):
                made = self._made(binding, plan, call, device, stream)
                if made is not None:
                    yield DriverStep(device, *made, action.cause.text, action.cause.origin, call)

    def run_plan(
        self, binding: BoundPlan, manner: RunManner, run: int | None, waiting_streams: Sequence[tuple[int, Handle, str]]
    ) -> run_calls.RunPlan:
        """What the calls of a run are. `waiting_streams`: the waits for other executors' runs, each with a device of
        this process, a stream, and whose run."""
        plan, devices = binding.plans.of(manner.mode), self._gpus.devices
        streams = binding.of.resources.streams_of(plan, manner.callers)
        elsewhere = issued_to(plan, called=bool(manner.callers))
        names = {(d.ordinal, id(handle)): name for name, (d, handle) in streams.items() if name not in elsewhere}
        ordinals = {device.local: ordinal for ordinal, device in devices.items()}
        waits = [
            run_calls.RunWait(ordinals[local], names[ordinals[local], id(stream)], of)
            for local, stream, of in waiting_streams
        ]
        captured = self.captured(binding, manner.mode) if manner.mode in ir.GRAPHS else ()
        made = self.calls(binding, manner).steps
        return run_calls.RunPlan(
            plan, self._gpus.placement.process(self._gpus.first.ordinal), run, binding.number, manner.said,
            tuple(dict.fromkeys((wait.device, wait.of) for wait in waits)), tuple(waits),
            self._said(binding, made), self._said(binding, captured),
            tuple(devices) if run_calls.uploads(plan) else (),
            tuple(self._resources.rescue),
            tuple((name, self._gpus.priority(name)) for name in get_args(Priority)),
            tuple(binding.launches[i].algorithms if i in binding.launches else () for i in range(len(plan.launches))),
        )  # fmt: skip

    def _said(self, binding: BoundPlan, steps: Iterable[DriverStep]) -> tuple[CallStep, ...]:
        context = self._gpus.vendor.context_of
        return tuple(
            run_calls.Issued(device.ordinal, call, binding.number, context((function, arguments)))
            if call is not None
            else run_calls.Enter(device.ordinal)
            for device, function, arguments, _, _, call in steps
        )

    def _marks(self, plan: ir.DevicePlan, launch: int) -> bool:
        """Whether a launch is made by the twin of its kernel that marks; each kernel of ours has one."""
        made = plan.launches[launch]
        ours = plan.mode == "traced" and not made.config.matmuls and not isinstance(made.works[0].body, KernelCall)
        return plan.marks(made) or (self.mark_all and ours)

    def _collective(
        self, binding: BoundPlan, together: run_calls.Together, streams: Mapping[ir.StreamName, tuple[Gpu, Handle]]
    ) -> DriverStep:
        """The calls of this process's ranks, as one driver call."""
        calls, ranks, first = together.calls, len(together.calls), together.calls[0]
        members = [
            (rank, member(call, binding.memory, ranks, streams[call.stream][1]))
            for rank, call in enumerate(calls)
            if call.stream in streams
        ]
        device = self._gpus.first
        with concerning(device, first.cause.text, first.cause.origin):
            call = self._communicators.call(calls, members, binding.of.communicators[first.communicator])
        return DriverStep(device, *call, f"{first.kind} of all ranks", first.cause.origin, together)

    def _made(
        self, binding: BoundPlan, plan: ir.DevicePlan, call: run_calls.Call, device: Gpu, stream: Handle
    ) -> DriverCall | None:
        """None: there is nothing to do, as no row is there."""
        vendor, resources, ordinal = self._gpus.vendor, binding.of.resources, device.ordinal
        addresses = resources.addresses[binding.number]

        def one(semaphore: int) -> LinearCopy:
            return LinearCopy(addresses[semaphore], self._gpus.ones[ordinal], 4)

        match call:
            case ir.RecordEvent(event=event):
                record = vendor.record_outside if run_calls.outside(call) else vendor.record_action
                return record(resources.event(event, device), stream)
            case ir.AwaitEvent(event=event):
                return vendor.wait_action(stream, resources.recorded(event))
            case ir.StreamMemOps(changes=changes):
                ops = [MemOp(addresses[c.semaphore], c.signals, c.acquires) for c in changes]
                (made,) = vendor.mem_op_actions(ops, stream)
                return made
            case run_calls.CopyBatch(semaphores=(), runs=()):
                return None
            case run_calls.CopyBatch(semaphores=semaphores, runs=runs):
                return vendor.copy_batch([*map(one, semaphores), *(_run(run, binding.memory) for run in runs)], stream)
            case run_calls.CopySignal(semaphore=semaphore):
                return vendor.copy(one(semaphore), stream)
            case run_calls.CopyRun(by_kernel=True):
                return self._launches.copying(device, _run(call, binding.memory), stream)
            case run_calls.CopyRows(by_kernel=True):
                return self._launches.copying(device, _rows(call, binding.memory), stream)
            case run_calls.CopyRun():
                return vendor.copy(_run(call, binding.memory), stream)
            case run_calls.CopyRows():
                return vendor.copy_rows(_rows(call, binding.memory), stream)
            case run_calls.Launch(launch=launch, part=part, marks=marks):
                return (self._marked(binding, launch) if marks else binding.launches[launch]).calls(stream)[part]
            case ir.Barrier(runs=barrier_peers, steps=steps):
                listed = [Step(addresses[s.first], s.count, KINDS[s.does]) for s in steps]
                return self._launches.barrier(device, addresses[barrier_peers], listed, stream)
            case ir.ResetSemaphores(first=first, count=count):
                return vendor.zero_action(resources.semaphore(ordinal, first, binding.number), count, stream)
            case ir.LaunchGraph() if plan.mode == "embedded":
                return vendor.embed(binding.parts[ordinal], stream)
            case ir.LaunchGraph():
                return vendor.graph_action(binding.graphs[ordinal], stream)
            case run_calls.Together():
                raise InternalError("collectives are called for all ranks together")

    def _marked(self, binding: BoundPlan, launch: int) -> BoundLaunch:
        if launch not in binding.marked:
            with self._gpus.uncaptured():
                made = self._launches.marked(
                    binding.plans.layout.launches[launch], binding.launches[launch], binding.of.kernels
                )
            binding.marked[launch] = made
        return binding.marked[launch]

    def marks(self, binding: BoundPlan) -> Mapping[int, kernel_marks.Marks]:
        """The marks of the last traced run, by launch. The run must have ended."""
        return {launch: self._launches.marks(marked) for launch, marked in binding.marked.items()}


def member(call: ir.CallCollective, memory: DeviceTensors, ranks: int, stream: Handle) -> Member:
    """A rank's call with its addresses. Each side is one run of memory."""
    sides = []
    for region in (call.dst, call.src):
        tensor = _tensor(region, memory)
        offset = next((cell.sides[0].offset for cell in cells((region,), (tensor.shape,))), 0)
        sides.append(tensor.address + offset * TYPES[tensor.dtype].bytes)
    count = elements_of(call, ranks)
    if call.kind == "send_recv":
        dtype = _tensor(call.src if call.reads else call.dst, memory).dtype
        return Member(sides[0], sides[1], count, dtype, stream, call.dst.elements, call.to, call.by)
    return Member(sides[0], sides[1], count, _tensor(call.dst, memory).dtype, stream)


def _run(run: run_calls.CopyRun, memory: DeviceTensors) -> LinearCopy:
    return LinearCopy(_address(run.dst, memory), _address(run.src, memory), run.size)


def _rows(rows: run_calls.CopyRows, memory: DeviceTensors) -> PitchedCopy:
    dst, src = _address(rows.dst, memory), _address(rows.src, memory)
    return PitchedCopy(dst, src, rows.width, rows.rows, rows.dst_pitch, rows.src_pitch)


def _address(place: run_calls.Place, memory: DeviceTensors) -> int:
    return memory[place.tensor, place.rank].address + place.offset


def _tensor(region: Region, memory: DeviceTensors) -> DeviceTensor:
    return memory[region.tensor, region.rank]
