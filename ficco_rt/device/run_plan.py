"""The run plan: the driver calls by which a process makes one run of a device plan, in the order of the calls.

The run plan adds to the device plan what depends on the single run: which set the run uses, which conditions hold,
which streams first wait for runs of other executors, where the context changes, and which calls an action becomes
(`split`). The driver makes the same calls. Operands are symbolic: no address, no handle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from ..errors import InternalError
from ..geometry.cells import Cell, cells
from ..geometry.region import Region
from ..kernels.device_barrier import MOST
from ..kernels.target import compute_capability
from ..types import TYPES
from . import ir
from .inline import issued_to
from .sharing import all_sets, buffer_set

Current: TypeAlias = Literal["its own", "some", "none"]  # which context has to be current when a call is made
Marks: TypeAlias = Callable[[int], bool]  # whether a launch is made by its kernel's twin that marks


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a rank's tensor, from an offset on. Scratch is the set's."""

    tensor: str
    rank: int
    offset: int

    def __str__(self) -> str:
        return f"{self.tensor}@{self.rank}+{self.offset}"


@dataclass(frozen=True, slots=True)
class CopyRun:
    """Bytes that lie together on both sides."""

    stream: ir.StreamName
    dst: Place
    src: Place
    size: int
    by_kernel: bool = False


@dataclass(frozen=True, slots=True)
class CopyRows:
    """Rows of one pitch on each side."""

    stream: ir.StreamName
    dst: Place
    src: Place
    width: int
    rows: int
    dst_pitch: int
    src_pitch: int
    by_kernel: bool = False


@dataclass(frozen=True, slots=True)
class CopySignal:
    """A semaphore is set by copying a 1 to it."""

    stream: ir.StreamName
    semaphore: int


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """Copies in one call, without order among them."""

    stream: ir.StreamName
    semaphores: tuple[int, ...]
    runs: tuple[CopyRun, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's launch, or one of the calls of the vendor's library that a launch is made of."""

    stream: ir.StreamName
    launch: int
    part: int
    marks: bool


@dataclass(frozen=True, slots=True)
class Together:
    """The calls of a collective by all ranks; the process makes those of its own ranks in one call."""

    calls: tuple[ir.CallCollective, ...]

    @property
    def stream(self) -> ir.StreamName:
        return self.calls[0].stream


Call: TypeAlias = (
    ir.RecordEvent
    | ir.AwaitEvent
    | ir.StreamMemOps
    | CopyRun
    | CopyRows
    | CopySignal
    | CopyBatch
    | Launch
    | ir.ResetSemaphores
    | ir.Barrier
    | Together
    | ir.LaunchGraph
)


def calls_of(
    plan: ir.DevicePlan, actions: Iterable[ir.Action], here: Collection[ir.StreamName], marks: Marks
) -> Iterator[tuple[ir.Action, Call]]:
    """The calls for the actions of these streams, with what each is for. Collectives are called for all ranks."""
    together: list[ir.CallCollective] = []  # of all ranks, whose calls stand side by side
    for action in actions:
        if isinstance(action, ir.CallCollective):
            together.append(action)
            if len(together) == len(plan.placement.devices):
                yield together[0], Together(tuple(together))
                together.clear()
        elif action.stream in here:
            for call in split(plan, action, marks):
                yield action, call


def split(plan: ir.DevicePlan, action: ir.Action, marks: Marks) -> Iterator[Call]:
    """The driver calls of an action, in order."""
    match action:
        case ir.StreamMemOps(stream, changes) if not plan.features.batched_mem_ops:
            yield from (replace(action, changes=(change,)) for change in changes)
        case ir.CopyMemory(stream, moves, semaphores, True):
            yield CopyBatch(stream, semaphores, tuple(_in_batch(plan, stream, moves)))
        case ir.CopyMemory(stream, moves, semaphores):
            yield from (CopySignal(stream, semaphore) for semaphore in semaphores)
            for move in moves:
                yield from copies(plan, stream, move, action.by_kernel)
        case ir.LaunchKernel(stream, launch):
            for part in range(len(plan.launches[launch].config.matmuls) or 1):
                yield Launch(stream, launch, part, marks(launch))
        case ir.Barrier(steps=steps):
            yield from (replace(action, steps=steps[i : i + MOST]) for i in range(0, len(steps), MOST))
        case ir.CallCollective():
            raise InternalError("collectives are called for all ranks together")
        case _:
            yield action


def _in_batch(plan: ir.DevicePlan, stream: ir.StreamName, moves: Sequence[ir.Move]) -> Iterator[CopyRun]:
    for move in moves:
        for copy in copies(plan, stream, move):
            if not isinstance(copy, CopyRun):
                raise InternalError(f"a batch of copies holds rows of one pitch, {move.src} to {move.dst}")
            yield copy


def copies(
    plan: ir.DevicePlan, stream: ir.StreamName, move: ir.Move, by_kernel: bool = False
) -> Iterator[CopyRun | CopyRows]:
    """A copy as the copies that devices make: runs of bytes, and rows of one pitch."""
    to, of = (next(t for t in plan.tensors if t.name == side.tensor) for side in (move.dst, move.src))
    item = TYPES[to.dtype].bytes
    for cell in cells((move.dst, move.src), (to.shapes[move.dst.rank], of.shapes[move.src.rank])):
        dst, src = _place(move.dst, cell, 0, item), _place(move.src, cell, 1, item)
        width = cell.columns * item
        if cell.rows == 1:
            yield CopyRun(stream, dst, src, width, by_kernel)
        else:
            a, b = cell.sides
            yield CopyRows(stream, dst, src, width, cell.rows, a.pitch * item, b.pitch * item, by_kernel)


def _place(region: Region, cell: Cell, side: int, item: int) -> Place:
    return Place(region.tensor, region.rank, cell.sides[side].offset * item)


def uploads(plan: ir.DevicePlan) -> bool:
    """Whether graphs are uploaded when they are created. Otherwise a first launch that blocks might block after a
    kernel that waits for a GPU whose graph has not been launched yet."""
    return plan.mode == "graph" and bool(plan.communicators)


# ---------------------------------------------------------------- contexts


def enters(needs: Current, device: object, current: object | None) -> bool:
    """Whether a device's context is made current before a call that needs that."""
    return device != current and (needs == "its own" or (needs == "some" and current is None))


def usual_context(plan: ir.DevicePlan, call: Call) -> Current:
    """What a call needs on a stream that is no default stream. CUDA's calls go where their stream belongs; a batch of
    copies fails where no context is current."""
    if compute_capability(plan.device.arch) is None or (plan.mode == "embedded" and isinstance(call, ir.LaunchGraph)):
        return "its own"
    if isinstance(call, Together) or (isinstance(call, Launch) and plan.launches[call.launch].config.matmuls):
        return "its own"
    if isinstance(call, ir.RecordEvent) and outside(call):
        return "its own"
    return "some" if isinstance(call, CopyBatch) else "none"


def outside(record: ir.RecordEvent) -> bool:
    """Whether who waits for the event outside of the graph waits for the graph's last replay."""
    return record.event.kind in ("begun", "replayed")


# ---------------------------------------------------------------- the run plan


@dataclass(frozen=True, slots=True)
class RunWait:
    """A stream first waits for another executor's run on its device."""

    device: int
    stream: ir.StreamName
    of: str


@dataclass(frozen=True, slots=True)
class Enter:
    """The device's context is made current, unless the process needs no other one and the caller has it current."""

    device: int


@dataclass(frozen=True, slots=True)
class Issued:
    """A call, with its device and the set in which its semaphores and scratch lie."""

    device: int
    call: Call
    number: int
    context: Current


Step: TypeAlias = Enter | Issued


@dataclass(frozen=True, slots=True)
class RunPlan:
    """See the module. `run` is the run's number, from 0; none has a run that is a part of callers' graphs. `steps` are
    made by the process, in `captured` those that it has captured into the graphs before. `behind`: on which device for
    which other executors' runs it waits, and `run_waits` the streams that do. `rescue`: devices with a stream of the
    driver's own, on which it signals semaphores when a run is given up. `priorities` and, by launch, `algorithms` (the
    place in what the library's heuristics like) are known where there are devices."""

    plan: ir.DevicePlan
    process: int
    run: int | None
    number: int
    manner: ir.Manner
    behind: tuple[tuple[int, str], ...]
    run_waits: tuple[RunWait, ...]
    steps: tuple[Step, ...]
    captured: tuple[Step, ...]
    uploads: tuple[int, ...]
    rescue: tuple[int, ...]
    priorities: tuple[tuple[str, int], ...] = ()
    algorithms: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        return "\n".join(_lines(self)) + "\n"


def process_streams(plan: ir.DevicePlan, process: int, called: bool) -> dict[ir.StreamName, int]:
    """The streams that a process gives calls to, with their devices."""
    mine = plan.placement.driven(process)
    return {s.name: s.device for s in plan.streams if s.device in mine and (called or s.name.kind != "caller")}


def _issued(plan: ir.DevicePlan, manner: ir.Manner) -> tuple[Sequence[ir.Action], ...]:
    """What a run issues itself; the body of a graph is captured before."""
    run_ends = plan.run_ends(manner)
    return run_ends.prologue, () if plan.mode in ir.GRAPHS else plan.body, run_ends.epilogue


def expected(plan: ir.DevicePlan, run: int | None, number: int, manner: ir.Manner, process: int = 0) -> RunPlan:
    """The run plan of a run that waits for no other executor, for a vendor's usual contexts, without devices."""
    streams = process_streams(plan, process, manner.called)
    mine = plan.placement.driven(process)

    def marks(launch: int) -> bool:
        return plan.marks(plan.launches[launch])

    def steps(parts: Iterable[Iterable[ir.Action]], captured: bool) -> Iterator[Step]:
        for actions in parts:
            current: int | None = None
            for _, call in calls_of(plan, actions, streams, marks):
                device = mine[0] if isinstance(call, Together) else streams[call.stream]
                needs = usual_context(plan, call)
                if enters("its own" if captured else needs, device, current):
                    current = device
                    yield Enter(device)
                yield Issued(device, call, number, needs)

    return RunPlan(
        plan, process, run, number, manner, (), (),
        tuple(steps(_issued(plan, manner), captured=False)),
        tuple(steps([plan.body], captured=True)) if plan.mode in ir.GRAPHS else (),
        mine if uploads(plan) else (),
        tuple(device for device in mine if any(semaphore.device == device for semaphore in plan.semaphores)),
    )  # fmt: skip


def first_runs(plan: ir.DevicePlan) -> Iterator[RunPlan]:
    """The run plan of each process for a run before which there was none; or for its part of callers' graphs."""
    embedded = plan.mode == "embedded"
    manner = ir.Manner(called=embedded, behind=embedded, timed=not embedded, others=True, replays=embedded)
    number = buffer_set(plan.sets, 0, embedded=embedded)
    for process in sorted({plan.placement.process(device) for device in plan.placement.ordinals}):
        yield expected(plan, None if embedded else 0, number, manner, process)


# ---------------------------------------------------------------- text


def _lines(r: RunPlan) -> Iterator[str]:
    plan = r.plan
    processes = f", process {r.process}" if plan.placement.processes else ""
    yield f"run plan of {plan.schedule}, mode {plan.mode}{processes}"
    which = "a part of callers' graphs" if r.run is None else f"run {r.run}"
    sets = (
        f" of {all_sets(plan.sets, plan.features)}, {plan.sets} of which are used alternately" if plan.sets > 1 else ""
    )
    yield f"  {which}, set {r.number}{sets}: {r.manner}"
    numbers = dict(r.priorities)
    streams = process_streams(plan, r.process, r.manner.called)
    for device in dict.fromkeys(streams.values()):
        rescue = ", and one that signals semaphores when a run is given up" if device in r.rescue else ""
        yield f"  device {device}: {plan.queues[device]} streams{rescue}; {plan.features.queues} hardware queues"
    to = issued_to(plan, called=r.manner.called)
    for stream in plan.streams:
        if stream.name not in streams or stream.name.kind == "caller":
            continue
        if stream.name in to:
            yield f"  {stream.name} on device {stream.device}: inline on {to[stream.name]}"
        else:
            number = f" ({numbers[stream.priority]})" if stream.priority in numbers else ""
            yield f"  {stream.name} on device {stream.device}: priority {stream.priority}{number}"
    for i in dict.fromkeys(s.call.launch for s in (*r.captured, *r.steps) if _launches(s)):  # type: ignore[union-attr]
        yield f"  launch {i} {_launch(r, i, numbers)}"
    for device in r.uploads:
        yield f"  graph of device {device}: uploaded when it is made"
    for device, of in r.behind:
        waiting = ", ".join(str(wait.stream) for wait in r.run_waits if (wait.device, wait.of) == (device, of))
        yield f"  device {device} behind {of}: {waiting}"
    if r.captured:
        yield "captured before"
        yield from _steps(r.captured)
    yield "calls"
    yield from _steps(r.steps)


def _launches(step: Step) -> bool:
    return isinstance(step, Issued) and isinstance(step.call, Launch)


def _launch(r: RunPlan, number: int, numbers: dict[str, int]) -> str:
    launch = r.plan.launches[number]
    c = launch.config
    text = f"{c.entry}: {c.blocks} × {c.threads} threads, shared memory {c.smem}"
    if c.matmuls:
        known = r.algorithms[number] if number < len(r.algorithms) else ()
        which = f", algorithms {' '.join(map(str, known))} of the heuristics" if known else ""
        text = f"{c.entry}: {len(c.matmuls)} calls of the vendor's library{which}"
    if c.cluster > 1:
        text += f", clusters of {c.cluster}"
    if launch.priority is not None:
        value = f" ({numbers[launch.priority]})" if launch.priority in numbers else ""
        text += f", priority {launch.priority}{value}"
    return text + (", early" if launch.early else "") + (", shared memory carved out" if launch.leave else "")


def _steps(steps: Sequence[Step]) -> Iterator[str]:
    for i, step in enumerate(steps):
        if isinstance(step, Enter):
            yield f"{i:5} device {step.device}: make its context current"
        else:
            stream = "" if isinstance(step.call, Together) else f" {step.call.stream}"
            yield f"{i:5} device {step.device}{stream}: {_text(step.call, step.number)}"


def _text(call: Call, number: int) -> str:
    match call:
        case ir.RecordEvent(event=event):
            return f"record {event}{' outside of the graph' if outside(call) else ''}"
        case ir.AwaitEvent(event=event):
            return f"wait for {event}"
        case ir.StreamMemOps(changes=changes):
            together = "batch: " if len(changes) > 1 or changes[0].acquires else ""
            return f"{together}{', '.join(map(str, changes))} of set {number}"
        case CopyRun() | CopyRows():
            return _copy(call, number)
        case CopySignal(semaphore=semaphore):
            return f"copy 1 to semaphore {semaphore} of set {number}"
        case CopyBatch(semaphores=semaphores, runs=runs):
            members = [f"1 to semaphore {semaphore} of set {number}" for semaphore in semaphores]
            return f"batch of copies: {'; '.join([*members, *(_copy(run, number) for run in runs)])}"
        case Launch(launch=launch, part=part, marks=marks):
            return f"launch {launch}{f' call {part}' if part else ''}{' with marks' if marks else ''} in set {number}"
        case ir.ResetSemaphores(first=first, count=count):
            return f"zero semaphores at {first} … {first + count - 1} of set {number}"
        case ir.Barrier(runs=runs, steps=steps):
            does = ", ".join(f"{s.does} {s.first}{f' … {s.semaphores[-1]}' if s.count > 1 else ''}" for s in steps)
            return f"barrier by semaphore {runs} of set {number}: {does}"
        case Together(calls=calls):
            return f"collective {calls[0].group}: {calls[0].kind} of all ranks in set {number}"
        case ir.LaunchGraph(device=device):
            return f"graph of device {device}, set {number}"


def _copy(copy: CopyRun | CopyRows, number: int) -> str:
    text = f"copy {copy.src} to {copy.dst} in set {number}{' by a kernel' if copy.by_kernel else ''}"
    if isinstance(copy, CopyRun):
        return f"{text}, {copy.size} bytes"
    return f"{text}, {copy.rows} rows of {copy.width} bytes, pitch {copy.src_pitch} to {copy.dst_pitch}"
