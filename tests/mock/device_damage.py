"""Ways to damage a device plan, drawn by a seed: an action dropped, moved, doubled or changed, a semaphore's place, a
launch's numbers, a condition of a prologue or epilogue. What is only for people (causes, priorities) stays."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, get_args

from ficco_rt.device.ir import (
    Action,
    AwaitEvent,
    CopyMemory,
    DeviceLaunch,
    DevicePlan,
    LaunchGraph,
    LaunchKernel,
    RecordEvent,
    ResetSemaphores,
    RunEnds,
    Semaphore,
    StreamMemOps,
    When,
)

Member = TypeVar("Member")


@dataclass(frozen=True)
class Damage:
    """A damaged device plan and what was done to it."""

    what: str
    plan: DevicePlan


def damaged(plan: DevicePlan, seed: int) -> Damage | None:
    """One way; None if the seed's way does not apply to this plan, or changes nothing."""
    rng = random.Random(f"{plan.schedule} {plan.mode} {seed}")
    part = rng.choices(("body", "run_ends", "semaphore", "launch"), (10, 4, 2, 4))[0]
    found = _PARTS[part](plan, rng)
    return None if found is None or found.plan == plan else found


# ---------------------------------------------------------------- actions


def _body(plan: DevicePlan, rng: random.Random) -> Damage | None:
    changed = _actions(plan, plan.body, rng)
    return None if changed is None else Damage(f"body: {changed[0]}", replace(plan, body=changed[1]))


def _run_ends(plan: DevicePlan, rng: random.Random) -> Damage | None:
    name, side = rng.choice(("own", "called")), rng.choice(("prologue", "epilogue"))
    run_ends: RunEnds = getattr(plan, name)
    changed = _actions(plan, getattr(run_ends, side), rng)
    if changed is None:
        return None
    what, actions = changed
    return Damage(f"{name} {side}: {what}", replace(plan, **{name: replace(run_ends, **{side: actions})}))


def _actions(plan: DevicePlan, actions: Sequence[Action], rng: random.Random) -> tuple[str, tuple[Action, ...]] | None:
    if not actions:
        return None
    i = rng.randrange(len(actions))
    action = actions[i]
    ways: list[Callable[[], Sequence[Action] | None]] = [
        lambda: (),
        lambda: (action, action),
        lambda: _elsewhere(plan, action, rng),
        lambda: _changed(plan, actions, action, rng),
        lambda: _changed(plan, actions, action, rng),
    ]
    way = rng.randrange(len(ways) + 2)
    if way >= len(ways):  # exchanged with a neighbour of its stream
        later = [j for j in range(i + 1, len(actions)) if actions[j].stream == action.stream]
        if not later:
            return None
        swapped = list(actions)
        swapped[i], swapped[later[0]] = swapped[later[0]], swapped[i]
        return f"exchanges {_short(action)} and {_short(actions[later[0]])}", tuple(swapped)
    new = ways[way]()
    if new is None:
        return None
    names = ", ".join(map(_short, new)) or "nothing"
    return f"{names} for {_short(action)} at {i}", (*actions[:i], *new, *actions[i + 1 :])


def _short(action: Action) -> str:
    return str(replace(action, cause=replace(action.cause, origin=None))).replace("StreamName", "").split(", cause")[0]


def _elsewhere(plan: DevicePlan, action: Action, rng: random.Random) -> Sequence[Action] | None:
    """On another stream of the same device."""
    device = plan.device_of[action.stream]
    names = [s.name for s in plan.streams if s.device == device and s.name != action.stream]
    return None if not names or isinstance(action, LaunchKernel) else (replace(action, stream=rng.choice(names)),)


def _changed(
    plan: DevicePlan, actions: Sequence[Action], action: Action, rng: random.Random
) -> Sequence[Action] | None:
    if rng.random() < 0.3 and action.when != "always":
        return (replace(action, when=rng.choice(get_args(When))),)
    match action:
        case AwaitEvent():
            events = sorted({a.event for a in plan.actions if isinstance(a, RecordEvent)})
            return (replace(action, event=rng.choice(events)),)
        case RecordEvent():
            return None
        case StreamMemOps(changes=changes):
            i = rng.randrange(len(changes))
            if rng.random() < 0.5 and len(changes) > 1:
                return (replace(action, changes=(*changes[:i], *changes[i + 1 :])),)
            other = replace(changes[i], semaphore=rng.randrange(len(plan.semaphores)))
            return (replace(action, changes=(*changes[:i], other, *changes[i + 1 :])),)
        case CopyMemory(moves=moves, semaphores=semaphores):
            way = rng.randrange(4)
            if way == 0 and semaphores:
                return (replace(action, semaphores=semaphores[1:]),)
            if way == 1 and action.batch and len(moves) > 1:
                return (replace(action, moves=moves[1:]),)
            if way == 2:  # with the next copy of the stream, in one batch
                place = next(i for i, a in enumerate(actions) if a is action)
                after = [a for a in actions[place + 1 :] if isinstance(a, CopyMemory) and a.stream == action.stream]
                if after and not any(m.pitched for m in (*moves, *after[0].moves)):
                    both = replace(
                        action,
                        moves=(*moves, *after[0].moves),
                        semaphores=(*semaphores, *after[0].semaphores),
                        batch=True,
                    )
                    return (both,)
                return None
            return (replace(action, batch=not action.batch),)
        case ResetSemaphores(first=first, count=count):
            return (rng.choice((replace(action, count=count - 1), replace(action, first=first + 1, count=count - 1))),)
        case LaunchKernel():
            return (replace(action, launch=rng.randrange(len(plan.launches))),)
        case LaunchGraph():
            return (replace(action, device=rng.choice(plan.placement.ordinals)),)


# ---------------------------------------------------------------- tables


def _semaphore(plan: DevicePlan, rng: random.Random) -> Damage | None:
    if not plan.semaphores:
        return None
    i = rng.randrange(len(plan.semaphores))
    semaphore: Semaphore = plan.semaphores[i]
    ways = (
        replace(semaphore, index=rng.randrange(len(plan.semaphores))),
        replace(semaphore, device=rng.choice(plan.placement.ordinals)),
        replace(semaphore, flag=None if semaphore.flag is None else rng.randrange(len(plan.semaphores))),
    )
    new = rng.choice(ways)
    return Damage(
        f"semaphore {i}: {new} for {semaphore}",
        replace(plan, semaphores=(*plan.semaphores[:i], new, *plan.semaphores[i + 1 :])),
    )


def _launch(plan: DevicePlan, rng: random.Random) -> Damage | None:
    if not plan.launches:
        return None
    i = rng.randrange(len(plan.launches))
    changed = _changed_launch(plan, plan.launches[i], rng)
    if changed is None:
        return None
    what, new = changed
    launches = (*plan.launches[:i], new, *plan.launches[i + 1 :])
    return Damage(f"launch {i}: {what}", replace(plan, launches=launches))


def _changed_launch(plan: DevicePlan, launch: DeviceLaunch, rng: random.Random) -> tuple[str, DeviceLaunch] | None:
    config = launch.config
    j = rng.randrange(len(launch.works))
    work = launch.works[j]
    way = rng.choice(("early", "share", "blocks", "smem", "resets", "read-only", "waits", "signals", "drop", "spins"))
    match way:
        case "early":
            return way, replace(launch, early=not launch.early)
        case "share":
            return way, replace(launch, sms=rng.choice((0, 2 * plan.device.sms, plan.device.sms)))
        case "blocks":
            blocks = rng.choice((0, config.blocks + 1, 2 * plan.device.sms))
            return f"{blocks} blocks", replace(launch, config=replace(config, blocks=blocks))
        case "smem":
            return way, replace(launch, config=replace(config, smem=plan.device.smem_per_block + 1))
        case "resets":
            flags = tuple(f for f in config.resets if rng.random() < 0.5)
            return f"resets {flags}", replace(launch, config=replace(config, resets=flags))
        case "read-only":
            sides = (rng.random() < 0.5, rng.random() < 0.5)
            return f"read-only {sides}", replace(launch, config=replace(config, read_only=sides))
        case "waits" if work.waits:
            fewer = replace(work, waits=work.waits[1:])
            return f"work {j} without a wait", replace(launch, works=_with(launch.works, j, fewer))
        case "signals" if work.signals:
            fewer = replace(work, signals=work.signals[1:])
            return f"work {j} without a signal", replace(launch, works=_with(launch.works, j, fewer))
        case "drop" if len(launch.works) > 1:
            return f"no work {j}", replace(launch, works=_with(launch.works, j))
        case "spins":
            return way, replace(launch, spins=not launch.spins)
    return None


def _with(members: tuple[Member, ...], i: int, *new: Member) -> tuple[Member, ...]:
    return (*members[:i], *new, *members[i + 1 :])


_PARTS: dict[str, Callable[[DevicePlan, random.Random], Damage | None]] = {
    "body": _body,
    "run_ends": _run_ends,
    "semaphore": _semaphore,
    "launch": _launch,
}
