"""Ways to damage a device plan: take out an action, or change an action, a launch, a semaphore or a prologue or
epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from ficco_rt.device.ir import (
    Action,
    AwaitEvent,
    Barrier,
    BarrierStep,
    CopyMemory,
    DevicePlan,
    EventName,
    LaunchKernel,
    RecordEvent,
    RunEnds,
    SemaphoreOp,
    StreamMemOps,
    StreamName,
)
from ficco_rt.geometry.cells import part
from ficco_rt.geometry.region import Region
from ficco_rt.kernels.families import configure
from ficco_rt.kernels.family import LaunchRequest
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.kernels.works import kernel_work, symbolic

Damage: TypeAlias = Callable[[DevicePlan], DevicePlan]


def unchained(plan: DevicePlan) -> DevicePlan:
    return replace(
        plan, body=tuple(a for a in plan.body if not (isinstance(a, AwaitEvent) and a.event.kind == "chain"))
    )


def waits_first(plan: DevicePlan) -> DevicePlan:
    """What a device's first stream waits for by semaphores is issued before all else."""
    first = next(a for a in plan.body if isinstance(a, StreamMemOps) and not a.changes[0].signals)
    return replace(plan, body=(first, *(a for a in plan.body if a is not first)))


def changed(kind: type[Action], n: int = 0, **fields: Any) -> Damage:
    """The n-th action of a kind in the body."""

    def damage(plan: DevicePlan) -> DevicePlan:
        at = [i for i, a in enumerate(plan.body) if isinstance(a, kind)][n]
        return replace(plan, body=(*plan.body[:at], replace(plan.body[at], **fields), *plan.body[at + 1 :]))

    return damage


def dropped(kind: type[Action], n: int = 0, times: int = 0) -> Damage:
    """The n-th action of a kind; or so many of it."""

    def damage(plan: DevicePlan) -> DevicePlan:
        at = [i for i, a in enumerate(plan.body) if isinstance(a, kind)][n]
        return replace(plan, body=(*plan.body[:at], *[plan.body[at]] * times, *plan.body[at + 1 :]))

    return damage


def without(kind: type[Action], part: str, run_ends: str = "own") -> Damage:
    """All actions of a kind in a part of a prologue or epilogue."""

    def damage(plan: DevicePlan) -> DevicePlan:
        kept = tuple(a for a in getattr(getattr(plan, run_ends), part) if not isinstance(a, kind))
        return replace(plan, **{run_ends: replace(getattr(plan, run_ends), **{part: kept})})

    return damage


def launched(n: int = 0, config: dict[str, Any] | None = None, **fields: Any) -> Damage:
    """The n-th launch of the table."""

    def damage(plan: DevicePlan) -> DevicePlan:
        launch = plan.launches[n]
        new = replace(launch, config=replace(launch.config, **config or {}), **fields)
        return replace(plan, launches=(*plan.launches[:n], new, *plan.launches[n + 1 :]))

    return damage


def worded(n: int, **fields: Any) -> Damage:
    return lambda plan: replace(
        plan, semaphores=(*plan.semaphores[:n], replace(plan.semaphores[n], **fields), *plan.semaphores[n + 1 :])
    )


def streamed(n: int, **fields: Any) -> Damage:
    return lambda plan: replace(
        plan, streams=(*plan.streams[:n], replace(plan.streams[n], **fields), *plan.streams[n + 1 :])
    )


def batched(change: Callable[[CopyMemory], CopyMemory]) -> Damage:
    """The first batch."""

    def damage(plan: DevicePlan) -> DevicePlan:
        at, batch = next((i, a) for i, a in enumerate(plan.body) if isinstance(a, CopyMemory) and a.batch)
        return replace(plan, body=(*plan.body[:at], change(batch), *plan.body[at + 1 :]))

    return damage


def with_semaphores(*semaphores: int) -> Damage:
    return batched(lambda batch: replace(batch, semaphores=semaphores))


def overlapping(batch: CopyMemory) -> CopyMemory:
    """Two halves of its copy go to the place of the first one."""
    (move,) = batch.moves
    first, second = (part(move.src, rows, rows + 32) for rows in (0, 32))
    place = part(move.dst, 0, 32)
    return replace(batch, moves=(replace(move, dst=place, src=first), replace(move, dst=place, src=second)))


def waiting_for(n: int, semaphore: int) -> Damage:
    """The n-th wait of a stream for semaphores."""

    def damage(plan: DevicePlan) -> DevicePlan:
        waits = [i for i, a in enumerate(plan.body) if isinstance(a, StreamMemOps) and not a.changes[0].signals]
        action = plan.body[waits[n]]
        assert isinstance(action, StreamMemOps)
        new = replace(action, changes=(replace(action.changes[0], semaphore=semaphore),))
        return replace(plan, body=(*plan.body[: waits[n]], new, *plan.body[waits[n] + 1 :]))

    return damage


def without_points(plan: DevicePlan) -> DevicePlan:
    """Whoever waits for another device's semaphore waits for it behind the launch."""
    body = list(plan.body)
    at = next(i for i, a in enumerate(body) if isinstance(a, StreamMemOps) and not a.changes[0].signals)
    launch = next(
        i for i in range(at, len(body)) if isinstance(body[i], LaunchKernel) and body[i].stream == body[at].stream
    )
    body.insert(launch, body.pop(at))
    return replace(plan, body=tuple(body))


def completionless(plan: DevicePlan) -> DevicePlan:
    """A run does not wait for the one before on the other device."""
    begin = (
        a for a in plan.called.prologue if not (isinstance(a, AwaitEvent) and a.event == EventName("completion", 1))
    )
    return replace(plan, called=replace(plan.called, prologue=tuple(begin)))


def callers_go_on(plan: DevicePlan) -> DevicePlan:
    """No caller waits until its tensors are free."""
    end = (a for a in plan.called.epilogue if not (isinstance(a, AwaitEvent) and a.stream.kind == "caller"))
    return replace(plan, called=replace(plan.called, epilogue=tuple(end)))


def waited_too_early(plan: DevicePlan) -> DevicePlan:
    """Devices wait until the others are through before they tell that they are."""
    return steps_in_order("count", "reset", "wait", "signal")(plan)


def openings(change: Callable[[SemaphoreOp], SemaphoreOp]) -> Damage:
    """Each signal and wait by which devices tell that they are ready."""

    def of(action: Action) -> Action:
        if not isinstance(action, StreamMemOps) or not any(c.acquires for c in action.changes):
            return action
        return replace(action, changes=tuple(map(change, action.changes)))

    return lambda plan: replace(plan, body=tuple(map(of, plan.body)))


def taken_first(plan: DevicePlan) -> DevicePlan:
    """Devices wait until the others are ready before they tell that they are."""

    def of(action: Action) -> Action:
        if not isinstance(action, StreamMemOps) or not any(c.acquires for c in action.changes):
            return action
        return replace(action, changes=action.changes[::-1])

    return replace(plan, body=tuple(map(of, plan.body)))


def begun_at_once(plan: DevicePlan) -> DevicePlan:
    """No stream waits until the others are ready."""

    def of(action: Action) -> Action:
        if not isinstance(action, AwaitEvent) or action.event.kind != "open":
            return action
        return replace(action, event=replace(action.event, kind="captured"))

    return replace(plan, body=tuple(map(of, plan.body)))


def steps_in_order(*kinds: str) -> Damage:
    """The steps of every barrier, by their kinds."""

    def of(action: Action) -> Action:
        if not isinstance(action, Barrier):
            return action
        return replace(action, steps=tuple(sorted(action.steps, key=lambda step: kinds.index(step.does))))

    def damage(plan: DevicePlan) -> DevicePlan:
        run_ends = {
            name: RunEnds(tuple(map(of, getattr(plan, name).prologue)), tuple(map(of, getattr(plan, name).epilogue)))
            for name in ("own", "called")
        }
        return replace(plan, body=tuple(map(of, plan.body)), **run_ends)

    return damage


def late_entries(plan: DevicePlan) -> DevicePlan:
    """Devices wait for the others' entries behind the commands of a run, not before."""
    waits: dict[StreamName, list[BarrierStep]] = {}

    def of(action: Action) -> Action:
        if not isinstance(action, Barrier):
            return action
        if action.stream in waits:
            return replace(action, steps=(*waits[action.stream], *action.steps))
        waits[action.stream] = [step for step in action.steps if step.does == "wait"]
        return replace(action, steps=tuple(step for step in action.steps if step.does != "wait"))

    return replace(plan, body=tuple(map(of, plan.body)))


def circle(plan: DevicePlan) -> DevicePlan:
    """The launch on each device stands behind a wait for what the other one signals."""
    launches = [a for a in plan.body if isinstance(a, LaunchKernel)]
    rest = [a for a in plan.body if not isinstance(a, LaunchKernel)]
    waits = [a for a in rest if isinstance(a, StreamMemOps) and a.stream.kind == "plan" and not a.changes[0].signals]
    moved = [replace(wait, stream=launch.stream) for wait, launch in zip(waits, launches, strict=True)]
    return replace(plan, body=(*moved, *launches, *(a for a in rest if a not in waits)))


def at_the_end(kind: str, place: int) -> Damage:
    """The last action of both prologues and epilogues goes to another place of the part `kind`; or nowhere."""

    def damage(plan: DevicePlan) -> DevicePlan:
        def moved(run_ends: RunEnds) -> RunEnds:
            *rest, last = run_ends.epilogue
            parts = {"prologue": list(run_ends.prologue), "epilogue": rest}
            if kind:
                parts[kind].insert(place, last)
            return RunEnds(tuple(parts["prologue"]), tuple(parts["epilogue"]))

        return replace(plan, own=moved(plan.own), called=moved(plan.called))

    return damage


def end_behind(plan: DevicePlan) -> DevicePlan:
    """The last action of a run is made for some runs alone."""
    *others, last = plan.own.epilogue
    return replace(plan, own=replace(plan.own, epilogue=(*others, replace(last, when="behind"))))


def start_first(plan: DevicePlan) -> DevicePlan:
    """Devices begin before the start gate is up: the wait for it stands behind the start."""

    def moved(run_ends: RunEnds) -> RunEnds:
        begin = list(run_ends.prologue)
        start = next(i for i, a in enumerate(begin) if isinstance(a, RecordEvent) and a.event.kind == "start")
        begin[start - 1], begin[start] = begin[start], begin[start - 1]
        return replace(run_ends, prologue=tuple(begin))

    return replace(plan, own=moved(plan.own), called=moved(plan.called))


def crowded(plan: DevicePlan) -> DevicePlan:
    """Either launch takes all multiprocessors while it waits for copies inside the device."""
    look, limits = symbolic(plan.tensors), Limits.of(plan.device)
    launches = []
    for launch in plan.launches:
        works = tuple(kernel_work(w.body, look, w.waits, w.signals) for w in launch.works)
        request = LaunchRequest(launch.config.kernel, works, limits.sms, streamed=True, resets=launch.config.resets)
        (config,) = configure(request, limits)
        launches.append(replace(launch, sms=limits.sms, config=config))
    return replace(plan, launches=tuple(launches))


def multiplied(n: int, **changes: Callable[[Region], Region]) -> Damage:
    """Other operands of a launch's first work."""

    def damage(plan: DevicePlan) -> DevicePlan:
        work, *rest = plan.launches[n].works
        fields: Any = {name: change(getattr(work.body, name)) for name, change in changes.items()}
        body = replace(work.body, **fields)
        return launched(n, works=(replace(work, body=body), *rest))(plan)

    return damage


def moved(**changes: Callable[[Any], Any]) -> Damage:
    """The first copy is another one."""

    def damage(plan: DevicePlan) -> DevicePlan:
        place, copy = next((i, a) for i, a in enumerate(plan.body) if isinstance(a, CopyMemory) and a.moves)
        move, *rest = copy.moves
        other = replace(move, **{name: change(getattr(move, name)) for name, change in changes.items()})
        return replace(plan, body=(*plan.body[:place], replace(copy, moves=(other, *rest)), *plan.body[place + 1 :]))

    return damage


def works_of(n: int, take: slice) -> Damage:
    return lambda plan: launched(n, works=plan.launches[n].works[take])(plan)
