"""What holds of a run plan beside its device plan. Each rule yields its mistakes, in words.

The calls are compared with what the device plan's actions mean, not with how `run_plan` splits them: bytes with the
elements of regions, semaphores with the changes that are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ficco_rt.device.ir import (
    GRAPHS,
    Action,
    Barrier,
    CallCollective,
    CopyMemory,
    DevicePlan,
    LaunchKernel,
    Move,
    ResetSemaphores,
    RunEnds,
    StreamMemOps,
    StreamName,
)
from ficco_rt.device.run_plan import (
    Call,
    CopyBatch,
    CopyRows,
    CopyRun,
    CopySignal,
    Enter,
    Issued,
    Launch,
    RunPlan,
    Step,
    Together,
    usual_context,
)
from ficco_rt.device.run_residency import waiting_streams
from ficco_rt.errors import InternalError
from ficco_rt.geometry.region import Region
from ficco_rt.kernels.device_barrier import MOST
from ficco_rt.types import TYPES

Elements: TypeAlias = npt.NDArray[np.int64]  # by side, or of one
Rule: TypeAlias = Callable[[RunPlan], Iterator[str]]


def checked(run: RunPlan) -> RunPlan:
    """The run plan, if it holds. InternalError: a bug of ours."""
    for rule in RULES:
        for mistake in rule(run):
            raise InternalError(f"run plan of {run.plan.schedule}, mode {run.plan.mode}: {mistake}")
    return run


# ---------------------------------------------------------------- the run


def the_set_follows_from_the_number(r: RunPlan) -> Iterator[str]:
    sets = r.plan.sets
    if (r.run is None) != (r.plan.mode == "embedded"):
        yield f"it has the number {r.run}"
    elif r.run is not None and r.number != r.run % sets:
        yield f"run {r.run} takes set {r.number} of {sets}"
    elif r.run is None:  # behind the sets of other runs, where there are several
        taken = r.number - sets if sets > 1 else r.number
        if not 0 <= taken < sets or (r.manner.replays and taken):
            yield f"a run in callers' graphs takes set {r.number} of {sets}"
    for step in (*r.captured, *r.steps):
        if isinstance(step, Issued) and step.number != r.number:
            yield f"a call takes set {step.number}, the run set {r.number}: {step.call}"


def conditions_go_together(r: RunPlan) -> Iterator[str]:
    m, mode = r.manner, r.plan.mode
    if (mode == "traced" or not m.called) and not m.timed:
        yield "a run that is traced, or on nobody's streams, is timed"
    if m.replays and not m.behind:
        yield "a run behind replays is behind something"
    if mode == "embedded" and not (m.called and m.behind and m.others and not m.timed):
        yield "a run in callers' graphs may stand behind anything, and is not timed"


def rescue_streams_are_there(r: RunPlan) -> Iterator[str]:
    have = {semaphore.device for semaphore in r.plan.semaphores}
    for device in _devices(r):
        if (device in have) != (device in r.rescue):
            yield f"device {device} has {'no ' if device in have else 'a '}stream for semaphores of given-up runs"


def graphs_are_uploaded_where_launches_block(r: RunPlan) -> Iterator[str]:
    wanted = _devices(r) if r.plan.communicators and r.plan.mode == "graph" else ()
    if set(r.uploads) != set(wanted) or len(r.uploads) != len(wanted):
        yield f"graphs of devices {r.uploads} are uploaded"


# ---------------------------------------------------------------- waits for runs


def gates_stand_before_all_of_a_device(r: RunPlan) -> Iterator[str]:
    """A stream of the caller may be the one on which the other run ends: it is in order anyway."""
    waiting = waiting_streams(r.plan, called=r.manner.called)
    named = {(device, of) for device, of in r.behind}
    streams = _streams(r)
    for wait in r.run_waits:
        if (wait.device, wait.of) not in named or streams.get(wait.stream) != wait.device:
            yield f"{wait.stream} waits on device {wait.device} for {wait.of}"
        elif wait.stream not in waiting[wait.device]:
            yield f"{wait.stream} waits for {wait.of}, and is not among the streams that wait"
    if len(set(r.run_waits)) != len(r.run_waits) or len(named) != len(r.behind):
        yield "something is waited for twice"
    for device, of in r.behind:
        there = {wait.stream for wait in r.run_waits if (wait.device, wait.of) == (device, of)}
        for stream in waiting[device]:
            if stream not in there and stream.kind != "caller":
                yield f"{stream} does not wait for {of}"
    if r.plan.mode == "embedded" and r.run_waits:
        yield "what a graph waits for is fixed: it can wait for no other executor's run"


# ---------------------------------------------------------------- contexts


def contexts_are_current(r: RunPlan) -> Iterator[str]:
    """Between two changes of the context a call finds its own, where it needs that. The begin of a run, its body and
    its end are each made for any context."""
    yield from _contexts(r, r.steps, captured=False)
    yield from _contexts(r, r.captured, captured=True)


def _contexts(r: RunPlan, steps: Sequence[Step], captured: bool) -> Iterator[str]:
    current: int | None = None
    entered = False
    for step in steps:
        if isinstance(step, Enter):
            if entered:
                yield f"the context of device {current} is current for nothing"
            current, entered = step.device, True
            continue
        least = usual_context(r.plan, step.call)
        callers = not isinstance(step.call, Together) and step.call.stream.kind == "caller"
        if step.context != least and not (callers and step.context == "its own"):
            yield f"the context of {step.call} is said to be: {step.context}"
        needs = "its own" if captured else step.context
        if (needs == "its own" and current != step.device) or (needs == "some" and current is None):
            yield f"on device {step.device} the context of device {current} is current for {step.call}"
        if entered and (current != step.device or needs == "none"):
            yield f"the context of device {current} is current for nothing"
        entered = False
    if entered:
        yield f"the context of device {current} is current for nothing"


# ---------------------------------------------------------------- actions and their calls


def each_action_has_its_calls(r: RunPlan) -> Iterator[str]:
    """In the order of the actions: no call is missing, is there twice, or is on another stream."""
    run_ends: RunEnds = r.plan.called if r.manner.called else r.plan.own
    begin, end = map(r.manner.of, (run_ends.prologue, run_ends.epilogue))
    graphs = r.plan.mode in GRAPHS
    yield from _compared(r, [*begin, *(() if graphs else r.plan.body), *end], r.steps)
    yield from _compared(r, r.plan.body if graphs else (), r.captured)


class _Calls:
    """Calls, taken one after another."""

    def __init__(self, r: RunPlan, steps: Sequence[Step]) -> None:
        self.r, self.streams = r, _streams(r)
        self.left = [step for step in steps if isinstance(step, Issued)][::-1]

    def next(self, stream: StreamName, *kinds: type) -> Call | None:
        """The next call, if it is of such a kind and on the stream."""
        if not self.left:
            return None
        step = self.left[-1]
        right = type(step.call) in kinds and step.call.stream == stream and step.device == self.streams.get(stream)
        return self.left.pop().call if right else None


def _compared(r: RunPlan, actions: Sequence[Action], steps: Sequence[Step]) -> Iterator[str]:
    calls = _Calls(r, steps)
    together: list[CallCollective] = []
    for action in actions:
        if isinstance(action, CallCollective):
            together.append(action)
            if len(together) == len(r.plan.placement.devices):
                step = calls.left.pop() if calls.left else None
                first = (step.device, step.call) if step is not None else None
                if first != (_devices(r)[0], Together(tuple(together))):
                    yield f"collective {action.group} is not called by all ranks together"
                    return
                together = []
        elif action.stream in calls.streams and not _made(r.plan, action, calls):
            found = calls.left[-1].call if calls.left else "no call"
            yield f"where {action} is to be made: {found}"
            return
    if calls.left:
        yield f"no action asks for {calls.left[-1].call}"


def _made(plan: DevicePlan, action: Action, calls: _Calls) -> bool:
    """Whether the next calls are an action's. They are taken."""
    stream = action.stream
    match action:
        case StreamMemOps(changes=changes):
            wanted = [changes] if plan.features.batched_mem_ops else [(change,) for change in changes]
            found = [calls.next(stream, StreamMemOps) for _ in wanted]
            made = [call.changes for call in found if isinstance(call, StreamMemOps)]
            return made == wanted and _semaphores(plan, [c.semaphore for c in changes])
        case CopyMemory():
            return _copied(plan, action, calls) and _semaphores(plan, action.semaphores)
        case LaunchKernel(launch=launch):
            launched = plan.launches[launch]
            for part in range(max(1, len(launched.config.matmuls))):
                call = calls.next(stream, Launch)
                if not isinstance(call, Launch) or (call.launch, call.part) != (launch, part):
                    return False
                if call.marks < plan.marks(launched) or (call.marks and plan.mode != "traced"):
                    return False
            return True
        case Barrier(runs=runs, steps=steps):
            taken = 0
            while taken < len(steps):
                call = calls.next(stream, Barrier)
                if not isinstance(call, Barrier) or call.runs != runs or not 0 < len(call.steps) <= MOST:
                    return False
                if call.steps != steps[taken : taken + len(call.steps)]:
                    return False
                taken += len(call.steps)
            return True
        case ResetSemaphores(first=first, count=count):
            device = calls.streams[stream]
            lie = {semaphore.index for semaphore in plan.semaphores if semaphore.device == device}
            return calls.next(stream, ResetSemaphores) == action and lie >= set(range(first, first + count))
        case _:
            return calls.next(stream, type(action)) == action


def _semaphores(plan: DevicePlan, semaphores: Sequence[int]) -> bool:
    return all(
        0 <= semaphore < len(plan.semaphores) and plan.semaphores[semaphore].used_in(plan.mode)
        for semaphore in semaphores
    )


def _copied(plan: DevicePlan, action: CopyMemory, calls: _Calls) -> bool:
    """Whether the next calls bring each element of the moves, and each semaphore, once."""
    if action.batch:
        call = calls.next(action.stream, CopyBatch)
        if not isinstance(call, CopyBatch) or call.semaphores != action.semaphores:
            return False
        runs = [run for run in call.runs if type(run) is CopyRun and run.stream == action.stream]
        return len(runs) == len(call.runs) and _moves(plan, action, list(runs)) == len(runs)
    for semaphore in action.semaphores:
        if calls.next(action.stream, CopySignal) != CopySignal(action.stream, semaphore):
            return False
    copies: list[CopyRun | CopyRows] = []
    for step in reversed(calls.left):
        if not isinstance(step.call, CopyRun | CopyRows) or step.call.stream != action.stream:
            break
        if step.device != calls.streams[action.stream]:
            break
        copies.append(step.call)
    taken = _moves(plan, action, copies)
    if taken:
        del calls.left[-taken:]
    return taken is not None


def _moves(plan: DevicePlan, action: CopyMemory, copies: Sequence[CopyRun | CopyRows]) -> int | None:
    """How many of these copies make the moves, one move after another; None: they do not."""
    taken = 0
    for move in action.moves:
        to, of = _elements(plan, move.dst), _elements(plan, move.src)
        pairs: list[Elements] = []
        left = len(to)
        while left > 0:
            if taken == len(copies) or not _between(move, action, copies[taken]):
                return None
            pairs.append(_touched(plan, copies[taken]))
            left -= max(1, pairs[-1].shape[1])
            taken += 1
        made = np.concatenate(pairs, axis=1) if pairs else np.zeros((2, 0), np.int64)
        if not np.array_equal(made[:, np.argsort(made[0])], np.stack((to, of))[:, np.argsort(to)]):
            return None
    return taken


def _between(move: Move, action: CopyMemory, copy: CopyRun | CopyRows) -> bool:
    sides = ((copy.dst, move.dst), (copy.src, move.src))
    right = all((place.tensor, place.rank) == (region.tensor, region.rank) for place, region in sides)
    return right and copy.by_kernel == action.by_kernel


def _elements(plan: DevicePlan, region: Region) -> Elements:
    """Where a region's elements lie in their tensor, in the region's own order."""
    tensor = next(tensor for tensor in plan.tensors if tensor.name == region.tensor)
    shape = tensor.shapes[region.rank]
    taken = [np.concatenate([np.arange(*segment) for segment in axis.segments]) for axis in region.axes]
    found = np.zeros((), np.int64)
    for size, indices in zip(shape, taken, strict=True):
        found = found[..., None] * size + indices
    return found.ravel()


def _touched(plan: DevicePlan, copy: CopyRun | CopyRows) -> Elements:
    """The elements that a copy writes and those that it reads; none: it does not go by elements."""
    item = next(TYPES[tensor.dtype].bytes for tensor in plan.tensors if tensor.name == copy.dst.tensor)
    rows, width, to, of = 1, 0, 0, 0
    if isinstance(copy, CopyRun):
        width = copy.size
    else:
        rows, width, to, of = copy.rows, copy.width, copy.dst_pitch, copy.src_pitch
    if width <= 0 or rows < 1 or any(n % item for n in (copy.dst.offset, copy.src.offset, width, to, of)):
        return np.zeros((2, 0), np.int64)
    row, column = np.arange(rows)[:, None], np.arange(width // item)
    sides = ((copy.dst.offset, to), (copy.src.offset, of))
    return np.stack([((start + row * pitch) // item + column).ravel() for start, pitch in sides])


# ---------------------------------------------------------------- what belongs to the process


def _devices(r: RunPlan) -> tuple[int, ...]:
    return tuple(d for d in r.plan.placement.ordinals if r.plan.placement.process(d) == r.process)


def _streams(r: RunPlan) -> dict[StreamName, int]:
    mine = set(_devices(r))
    return {
        s.name: s.device for s in r.plan.streams if s.device in mine and (r.manner.called or s.name.kind != "caller")
    }


RULES: tuple[Rule, ...] = (
    the_set_follows_from_the_number,
    conditions_go_together,
    rescue_streams_are_there,
    graphs_are_uploaded_where_launches_block,
    gates_stand_before_all_of_a_device,
    contexts_are_current,
    each_action_has_its_calls,
)
