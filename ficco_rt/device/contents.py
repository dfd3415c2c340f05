"""Checks the tensors and launches of a device plan: everything that it names exists, and its launches are those that
their works need. Also lists the differences between two device plans, such as a stored one and the one made from its
plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import product

from ficco_dsl.diagnostics import Diagnostic, Note

from ..geometry.cells import cells
from ..geometry.region import Region
from ..graph.ir import KernelCall
from ..graph.kinds import settings
from ..graph.op_rules import fits
from ..kernels.catalogue import CLUSTERS
from ..kernels.families import configure, plain
from ..kernels.family import KernelConfig, LaunchRequest
from ..kernels.occupancy import Limits
from ..kernels.works import Look, kernel_work, symbolic
from ..plan.plan_rules import inside
from .ir import PLACELESS, CallCollective, DeviceLaunch, DevicePlan, EventName, Move, RunEnds, Semaphore, StreamName

COMPILE = "compile the schedule again (ficco-run --emit device-plan-json)"


def all_is_there(plan: DevicePlan) -> Iterator[Diagnostic]:
    """Every number that refers to a rank, device, stream, tensor or work refers to an existing one."""
    ranks, devices = len(plan.placement.devices), plan.placement.ordinals
    if not ranks or min(devices, default=-1) < 0:
        yield _wrong(f"the devices of the ranks are {plan.placement.devices}; each rank has one, from 0 on")
        return
    if plan.sets not in (1, 2):
        yield _wrong(f"{plan.sets} sets of semaphores and scratch; there are one or two")
    if plan.features.queues < 1:
        yield _wrong(f"devices of {plan.features.queues} hardware queues; a device has at least one")
    names = Counter(t.name for t in plan.tensors)
    for tensor in plan.tensors:
        if names[tensor.name] > 1 or len(tensor.shapes) != ranks:
            yield _wrong(f"tensor {tensor.name} is declared {names[tensor.name]} times, for {len(tensor.shapes)} ranks")
    yield from _streams(plan)
    streams = {stream.name for stream in plan.streams}
    for i, semaphore in enumerate(plan.semaphores):
        if semaphore.device not in devices:
            yield _wrong(f"semaphore {i} is on device {semaphore.device}, which has no rank")
    for i, launch in enumerate(plan.launches):
        if StreamName("plan", launch.stream) not in streams or not launch.works:
            text = f"launch {i} has {len(launch.works)} works, for stream {launch.stream}"
            yield Diagnostic(launch.origin, f"{text}; a launch has works, and a stream that there is")
        for group in launch.config.merged:
            if not group or not all(0 <= member < len(launch.works) for member in group):
                text = f"launch {i} merges its works {', '.join(map(str, group)) or 'of no number'}"
                yield Diagnostic(launch.origin, f"{text}; it has {len(launch.works)}, counted from 0")
    for action in plan.actions:
        if isinstance(action, CallCollective) and action.op < 0:
            yield action.mistake(f"a call for op {action.op}")


def _streams(plan: DevicePlan) -> Iterator[Diagnostic]:
    ranks, devices = len(plan.placement.devices), plan.placement.ordinals
    streams = {stream.name for stream in plan.streams}
    for stream in plan.streams:
        if stream.rank is not None and not 0 <= stream.rank < ranks:
            yield _wrong(f"{stream.name} is of rank {stream.rank}; there are {ranks} ranks")
        elif stream.name.kind == "caller" and (
            not 0 <= stream.name.number < ranks or stream.device != plan.placement.devices[stream.name.number]
        ):
            yield _wrong(f"{stream.name} is on device {stream.device}, and not on that of a rank")
        elif stream.name.kind in ("control", "gate") and stream.name.number != stream.device:
            yield _wrong(f"{stream.name} is on device {stream.device}")
    for device in devices:
        if StreamName("control", device) not in streams:
            yield _wrong(f"device {device} has no control stream")
    for rank in range(ranks):
        if StreamName("caller", rank) not in streams:
            yield _wrong(f"rank {rank} has no stream of its caller")


def regions_lie_inside(plan: DevicePlan) -> Iterator[Diagnostic]:
    """Every region lies inside a tensor of the plan, at one index of each dropped dimension."""
    shapes = {t.name: t.shapes for t in plan.tensors}
    seen: set[int] = set()  # by identity, as `plan.plan_rules` has it
    for region, origin in ((r, part.origin) for _, part in plan.parts for r in (*part.writes, *part.reads)):
        if id(region) in seen:
            continue
        seen.add(id(region))
        of_ranks = shapes.get(region.tensor, ())
        if not 0 <= region.rank < len(of_ranks):
            yield Diagnostic(origin, f"{region} is in no tensor of the device plan; {COMPILE}")
        elif (
            len(of_ranks[region.rank]) != len(region.axes)
            or (region.elements and not inside(region, of_ranks[region.rank]))
            or any(axis.dropped and axis.size != 1 for axis in region.axes)
        ):
            shape = " × ".join(map(str, of_ranks[region.rank]))
            yield Diagnostic(origin, f"{region} is outside its tensor, {shape}; {COMPILE}")


def works_fit(plan: DevicePlan) -> Iterator[Diagnostic]:
    """A work is a legal product, sum, copy or user kernel of its stream's rank, and a call a legal collective. A copy
    has two sides of one shape and type, and is said to be of rows where it is no run of bytes."""
    tensors = {t.name: t for t in plan.tensors}
    ranks = {stream.name: stream.rank for stream in plan.streams}
    for launch in plan.launches:
        rank = ranks[StreamName("plan", launch.stream)]
        for work in launch.works:
            message = None
            if rank is None:
                message = f"stream {launch.stream} has no rank"
            elif not isinstance(work.body, KernelCall) or all(map(_as_said, work.body.arguments)):
                message = fits(work.body, rank, tensors)
            else:
                message = f"kernel '{work.body.kernel}' has an argument of another kind"
            if message is not None:
                yield Diagnostic(work.origin, message)
    rows: dict[tuple[object, ...], bool] = {}
    for action in plan.body:
        rank = ranks[action.stream]
        for part in action.parts:
            message = None if rank is None else fits(part, rank, tensors)
            if message is not None:
                yield Diagnostic(part.origin, message)
            elif isinstance(part, Move):
                shapes = [tensors[side.tensor].shapes[side.rank] for side in (part.dst, part.src)]
                key = (id(part.dst.axes), id(part.src.axes), *shapes)
                if key not in rows:
                    rows[key] = any(cell.rows > 1 for cell in cells((part.dst, part.src), shapes))
                if rows[key] != part.pitched:
                    said = "a run of bytes" if rows[key] else "rows"
                    yield Diagnostic(part.origin, f"the copy {part.dst} <- {part.src} is not {said}; {COMPILE}")


def _as_said(argument: object) -> bool:
    return (getattr(argument, "mode", "") == "int") == isinstance(getattr(argument, "value", None), int)


def launches_are_asked_for(plan: DevicePlan) -> Iterator[Diagnostic]:
    """How a kernel is launched follows from its works, its share of the device, and the flags that it resets. Taken
    from the device plan: the share, more shared memory than is needed, and which kernel does the works."""
    look, limits = symbolic(plan.tensors), Limits.of(plan.device)
    clusters = sorted({1, *CLUSTERS.values()})
    own = {w.flag for w in plan.semaphores if w.flag is not None and w.reset not in ("kernel", "behind")}
    commands: dict[tuple[int, int], list[DeviceLaunch]] = defaultdict(list)
    for launch in plan.launches:
        commands[launch.stream, launch.command].append(launch)
    known: dict[tuple[object, ...], bool] = {}
    for made in commands.values():
        key = _likeness(made, plan)
        if key is None or key not in known:
            fits = _asked_for(made, look, limits, own, clusters)
            if key is not None:
                known[key] = fits
        else:
            fits = known[key]
        if not fits:
            entries = " and ".join(dict.fromkeys(launch.config.entry for launch in made))
            text = f"{entries}: its works on {plan.device.name} ask for another launch; {COMPILE}"
            yield Diagnostic(made[0].origin, text)


def _likeness(made: Sequence[DeviceLaunch], plan: DevicePlan) -> tuple[object, ...] | None:
    """Launches of one work without flags are made alike on all ranks."""
    if len(made) != 1 or made[0].spins or len(made[0].works) != 1:
        return None
    (launch,), (work,) = made, made[0].works
    if work.waits or work.signals or isinstance(work.body, KernelCall):
        return None
    shapes = {t.name: t.shapes for t in plan.tensors}
    home = work.writes[0].rank
    regions = tuple((r.tensor, shapes[r.tensor][r.rank], r.axes, r.rank == home) for r in (*work.reads, *work.writes))
    return (*settings(work.body), launch.config, launch.sms, regions)


def _asked_for(
    made: Sequence[DeviceLaunch], look: Look, limits: Limits, own: set[int], clusters: Sequence[int]
) -> bool:
    bodies = [work for launch in made for work in launch.works]
    works = tuple(kernel_work(w.body, look, w.waits, w.signals) for w in bodies)
    resets = tuple(sorted({flag for work in bodies for flag in work.waits} - own))
    configs = tuple(launch.config for launch in made)
    first = made[0]
    if not 1 <= first.sms <= limits.sms:
        return True  # another rule says it
    kernels = dict.fromkeys(config.kernel for config in configs)
    # what the plan asks is of all of a block's shared memory, or of what a launch adds
    smems = dict.fromkeys((*(c.smem for c in configs), *(c.smem + c.static_smem for c in configs), 0))
    for kernel, smem, cluster in product(kernels, smems, clusters if first.spins else (1,)):
        request = LaunchRequest(kernel, works, first.sms, smem, first.spins, resets, cluster)
        for make in (configure, plain, partial(configure, vendor=True)):
            if _of_parts(make(request, limits)) == configs:
                return True
    return False


def _of_parts(found: Sequence[KernelConfig]) -> tuple[KernelConfig, ...]:
    """As `launches` has them: each counts its own works."""
    return tuple(replace(config, works=(0, config.works[1])) if config.works[0] else config for config in found)


# ---------------------------------------------------------------- two device plans


def differences(found: DevicePlan, wanted: DevicePlan) -> Iterator[Diagnostic]:
    """Where a device plan differs from the one that its plan gives: in each list the first member, and each other
    field."""
    ends = ("own", "called")
    for name in (*ends, *(field.name for field in fields(DevicePlan) if field.name not in ends)):
        a, b = getattr(found, name), getattr(wanted, name)
        if isinstance(a, RunEnds):
            yield from _listed(f"{name} prologue", a.prologue, b.prologue)
            yield from _listed(f"{name} epilogue", a.epilogue, b.epilogue)
        elif isinstance(a, tuple):
            yield from _listed(name, a, b)
        elif a != b:
            yield _wrong(f"its {name} is {a}; that of its plan is {b}")


def _listed(name: str, found: Sequence[object], wanted: Sequence[object]) -> Iterator[Diagnostic]:
    for i, (a, b) in enumerate(zip(found, wanted, strict=False)):
        if a != b:
            place = getattr(a, "origin", PLACELESS)
            note = Note(f"its plan gives {_short(b)}", getattr(b, "origin", place))
            yield Diagnostic(place, f"{name} {i} is not what its plan gives: {_short(a)}; {COMPILE}", (note,))
            return
    if len(found) != len(wanted):
        yield _wrong(f"{name} has {len(found)} members; its plan gives {len(wanted)}")


def _short(value: object) -> str:
    text = type(value).__name__
    if isinstance(value, StreamName | EventName | Region):
        return str(value)
    if isinstance(value, Semaphore):
        return f"{value.purpose} at {value.index} on device {value.device}"
    if isinstance(value, DeviceLaunch):
        return f"{value.config.entry} of {len(value.works)} works in {value.config.blocks} blocks"
    if hasattr(value, "stream") and hasattr(value, "cause"):
        rest = [f"{getattr(value, f)}" for f in ("event", "launch", "device", "when") if hasattr(value, f)]
        return f"{text} on {value.stream}" + (f" ({', '.join(rest)})" if rest else "")
    return str(value)[:200]


def _wrong(message: str) -> Diagnostic:
    return Diagnostic(PLACELESS, f"{message}; {COMPILE}")
