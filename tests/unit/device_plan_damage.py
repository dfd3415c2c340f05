"""Ways to damage a device plan: take out an action, or change an action, a launch, a word or a frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from ficco_rt.device.ir import (
    Action,
    AwaitEvent,
    ChangeWords,
    CopyMemory,
    DevicePlan,
    EventName,
    Frame,
    LaunchKernel,
    Meet,
    MeetStep,
    RecordEvent,
    StreamName,
    WordChange,
)
from ficco_rt.geometry.cells import part
from ficco_rt.geometry.region import Region
from ficco_rt.kernels.families import configure
from ficco_rt.kernels.family import LaunchRequest
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.plan.kernel_works import kernel_work, symbolic

Damage: TypeAlias = Callable[[DevicePlan], DevicePlan]


def unchained(plan: DevicePlan) -> DevicePlan:
    return replace(
        plan, body=tuple(a for a in plan.body if not (isinstance(a, AwaitEvent) and a.event.kind == "chain"))
    )


def waits_first(plan: DevicePlan) -> DevicePlan:
    """What a device's first stream waits for by words is issued before all else."""
    first = next(a for a in plan.body if isinstance(a, ChangeWords) and not a.changes[0].raises)
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


def without(kind: type[Action], part: str, frame: str = "own") -> Damage:
    """All actions of a kind in a part of a frame."""

    def damage(plan: DevicePlan) -> DevicePlan:
        kept = tuple(a for a in getattr(getattr(plan, frame), part) if not isinstance(a, kind))
        return replace(plan, **{frame: replace(getattr(plan, frame), **{part: kept})})

    return damage


def launched(n: int = 0, config: dict[str, Any] | None = None, **fields: Any) -> Damage:
    """The n-th launch of the table."""

    def damage(plan: DevicePlan) -> DevicePlan:
        launch = plan.launches[n]
        new = replace(launch, config=replace(launch.config, **config or {}), **fields)
        return replace(plan, launches=(*plan.launches[:n], new, *plan.launches[n + 1 :]))

    return damage


def worded(n: int, **fields: Any) -> Damage:
    return lambda plan: replace(plan, words=(*plan.words[:n], replace(plan.words[n], **fields), *plan.words[n + 1 :]))


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


def with_words(*words: int) -> Damage:
    return batched(lambda batch: replace(batch, words=words))


def overlapping(batch: CopyMemory) -> CopyMemory:
    """Two halves of its copy go to the place of the first one."""
    (move,) = batch.moves
    first, second = (part(move.src, rows, rows + 32) for rows in (0, 32))
    place = part(move.dst, 0, 32)
    return replace(batch, moves=(replace(move, dst=place, src=first), replace(move, dst=place, src=second)))


def waiting_for(n: int, word: int) -> Damage:
    """The n-th wait of a stream for words."""

    def damage(plan: DevicePlan) -> DevicePlan:
        waits = [i for i, a in enumerate(plan.body) if isinstance(a, ChangeWords) and not a.changes[0].raises]
        action = plan.body[waits[n]]
        assert isinstance(action, ChangeWords)
        new = replace(action, changes=(replace(action.changes[0], word=word),))
        return replace(plan, body=(*plan.body[: waits[n]], new, *plan.body[waits[n] + 1 :]))

    return damage


def semaphoreless(plan: DevicePlan) -> DevicePlan:
    """Whoever waits for another device's semaphore waits for it behind the launch."""
    body = list(plan.body)
    at = next(i for i, a in enumerate(body) if isinstance(a, ChangeWords) and not a.changes[0].raises)
    launch = next(
        i for i in range(at, len(body)) if isinstance(body[i], LaunchKernel) and body[i].stream == body[at].stream
    )
    body.insert(launch, body.pop(at))
    return replace(plan, body=tuple(body))


def completionless(plan: DevicePlan) -> DevicePlan:
    """A run does not wait for the one before on the other device."""
    begin = (a for a in plan.called.begin if not (isinstance(a, AwaitEvent) and a.event == EventName("completion", 1)))
    return replace(plan, called=replace(plan.called, begin=tuple(begin)))


def told_too_early(plan: DevicePlan) -> DevicePlan:
    """Devices tell each other that they are through before they reset their words."""

    return steps_in_order("count", "raise", "reset", "wait")(plan)


def waited_too_early(plan: DevicePlan) -> DevicePlan:
    """Devices wait until the others are through before they tell that they are."""
    return steps_in_order("count", "reset", "wait", "raise")(plan)


def openings(change: Callable[[WordChange], WordChange]) -> Damage:
    """Each raise and wait by which devices tell that they are ready."""

    def of(action: Action) -> Action:
        if not isinstance(action, ChangeWords) or not any(c.takes for c in action.changes):
            return action
        return replace(action, changes=tuple(map(change, action.changes)))

    return lambda plan: replace(plan, body=tuple(map(of, plan.body)))


def taken_first(plan: DevicePlan) -> DevicePlan:
    """Devices wait until the others are ready before they tell that they are."""

    def of(action: Action) -> Action:
        if not isinstance(action, ChangeWords) or not any(c.takes for c in action.changes):
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
    """The steps of every meeting, by their kinds."""

    def of(action: Action) -> Action:
        if not isinstance(action, Meet):
            return action
        return replace(action, steps=tuple(sorted(action.steps, key=lambda step: kinds.index(step.does))))

    def damage(plan: DevicePlan) -> DevicePlan:
        frames = {
            name: Frame(tuple(map(of, getattr(plan, name).begin)), tuple(map(of, getattr(plan, name).end)))
            for name in ("own", "called")
        }
        return replace(plan, body=tuple(map(of, plan.body)), **frames)

    return damage


def late_entries(plan: DevicePlan) -> DevicePlan:
    """Devices wait for the others' entries behind the commands of a run, not before."""
    waits: dict[StreamName, list[MeetStep]] = {}

    def of(action: Action) -> Action:
        if not isinstance(action, Meet):
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
    waits = [a for a in rest if isinstance(a, ChangeWords) and a.stream.kind == "plan" and not a.changes[0].raises]
    moved = [replace(wait, stream=launch.stream) for wait, launch in zip(waits, launches, strict=True)]
    return replace(plan, body=(*moved, *launches, *(a for a in rest if a not in waits)))


def at_the_end(kind: str, place: int) -> Damage:
    """The last action of both frames goes to another place of the part `kind`; or nowhere."""

    def damage(plan: DevicePlan) -> DevicePlan:
        def moved(frame: Frame) -> Frame:
            *rest, last = frame.end
            parts = {"begin": list(frame.begin), "end": rest}
            if kind:
                parts[kind].insert(place, last)
            return Frame(tuple(parts["begin"]), tuple(parts["end"]))

        return replace(plan, own=moved(plan.own), called=moved(plan.called))

    return damage


def start_first(plan: DevicePlan) -> DevicePlan:
    """Devices begin before the latch is up: the wait for it stands behind the start."""

    def moved(frame: Frame) -> Frame:
        begin = list(frame.begin)
        start = next(i for i, a in enumerate(begin) if isinstance(a, RecordEvent) and a.event.kind == "start")
        begin[start - 1], begin[start] = begin[start], begin[start - 1]
        return replace(frame, begin=tuple(begin))

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
