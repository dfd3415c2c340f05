"""Mutants of device plans, drawn by a seed: one mistake each, in the body, in a prologue or epilogue, or in a table."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args, get_type_hints

from ficco_rt.device.ir import (
    GRAPHS,
    Action,
    AwaitEvent,
    Barrier,
    BarrierStep,
    CallCollective,
    CopyMemory,
    DeviceLaunch,
    DevicePlan,
    LaunchGraph,
    LaunchKernel,
    Move,
    RecordEvent,
    ResetSemaphores,
    RunEnds,
    StreamMemOps,
    When,
)
from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.plan.ir import Work

T = TypeVar("T")
SECTIONS = ("own prologue", "own epilogue", "called prologue", "called epilogue", "body")


@dataclass(frozen=True)
class Mutant:
    """`section`: where the mistake is, of SECTIONS or "launches", "semaphores", "plan"."""

    section: str
    what: str
    plan: DevicePlan
    streams: frozenset[Any] = frozenset()  # that it concerns
    replays: bool = False  # it concerns runs beside replays


def mutant(plan: DevicePlan, seed: object) -> Mutant:
    """One that differs from the plan."""
    rng = random.Random(str(seed))
    while True:
        where = rng.choices(("run_ends", "body", "launches", "semaphores", "plan"), (12, 8, 4, 1.5, 0.2))[0]
        made = _MAKERS[where](plan, rng)
        if made is not None and made.plan != plan:
            return made


def section_of(plan: DevicePlan, name: str) -> tuple[Action, ...]:
    run_ends, _, side = name.partition(" ")
    found: tuple[Action, ...] = getattr(getattr(plan, run_ends), side) if side else plan.body
    return found


def with_section(plan: DevicePlan, name: str, actions: Sequence[Action]) -> DevicePlan:
    run_ends, _, side = name.partition(" ")
    if not side:
        return replace(plan, body=tuple(actions))
    old: RunEnds = getattr(plan, run_ends)
    return replace(plan, **{run_ends: replace(old, **{side: tuple(actions)})})  # type: ignore[arg-type]


# ---------------------------------------------------------------- actions


def _run_ends(plan: DevicePlan, rng: random.Random) -> Mutant | None:
    return _actions(plan, rng.choice(SECTIONS[:4]), rng)


def _body(plan: DevicePlan, rng: random.Random) -> Mutant | None:
    return _actions(plan, "body", rng)


def _actions(plan: DevicePlan, section: str, rng: random.Random) -> Mutant | None:
    actions = section_of(plan, section)
    if not actions:
        return None
    i = rng.randrange(len(actions))
    action = actions[i]
    way = rng.choice(
        ("delete", "delete", "twice", "swap", "place", "stream", "change", "change", "change", "when", "when")
    )
    new: Sequence[Action]
    streams = {action.stream}
    match way:
        case "delete":
            new, what = (*actions[:i], *actions[i + 1 :]), f"without {short(action)}"
        case "twice":
            new, what = (*actions[: i + 1], *actions[i:]), f"twice {short(action)}"
        case "swap":
            later = next((j for j in range(i + 1, len(actions)) if actions[j].stream == action.stream), None)
            if later is None:
                return None
            new = list(actions)
            new[i], new[later] = new[later], new[i]
            what = f"{short(action)} behind {short(actions[later])}"
        case "place":
            rest = [*actions[:i], *actions[i + 1 :]]
            at = rng.randrange(len(actions))
            new, what = (*rest[:at], action, *rest[at:]), f"{short(action)} at place {at}"
        case "stream":
            other = rng.choice(plan.streams).name
            streams.add(other)
            new = (*actions[:i], replace(action, stream=other), *actions[i + 1 :])
            what = f"{short(action)} on {other}"
        case "when":
            if section == "body":
                return None
            when = rng.choice(get_args(When))
            new = (*actions[:i], replace(action, when=when), *actions[i + 1 :])
            what = f"{short(action)} when {when}"
        case _:
            changed = _changed(plan, action, rng)
            if changed is None:
                return None
            new = (*actions[:i], changed, *actions[i + 1 :])
            what = f"{short(changed)} for {short(action)}"
    replays = "replays" in what or "replays" in action.when
    return Mutant(section, f"{section} {i}: {what}", with_section(plan, section, new), frozenset(streams), replays)


def short(action: Action) -> str:
    match action:
        case RecordEvent(event=event):
            what = f"records {event}"
        case AwaitEvent(event=event):
            what = f"awaits {event}"
        case StreamMemOps(changes=changes):
            what = "; ".join(
                f"{'signals' if c.signals else 'acquires' if c.acquires else 'awaits'} {c.semaphore}" for c in changes
            )
        case CopyMemory(moves=moves, semaphores=semaphores):
            what = "copies " + "; ".join(
                [*(f"{m.dst} <- {m.src}" for m in moves), *(f"semaphore {w}" for w in semaphores)]
            )
            what += " in a batch" * action.batch
        case LaunchKernel(launch=launch):
            what = f"launches {launch}"
        case ResetSemaphores(first=first, count=count):
            what = f"resets {first} + {count}"
        case Barrier(steps=steps):
            what = "meets " + "; ".join(f"{s.does} {s.first} + {s.count}" for s in steps)
        case CallCollective():
            what = f"{action.kind} {action.dst} <- {action.src} to {action.to} by {action.by}"
        case LaunchGraph(device=device):
            what = f"graph of device {device}"
    return f"[{action.stream} {what}{'' if action.when == 'always' else f' ({action.when})'}]"


def _changed(plan: DevicePlan, action: Action, rng: random.Random) -> Action | None:
    match action:
        case RecordEvent() | AwaitEvent():
            events = sorted({a.event for a in plan.actions if isinstance(a, RecordEvent)})
            return replace(action, event=rng.choice(events))
        case StreamMemOps():
            return _changed_words(plan, action, rng)
        case CopyMemory():
            return _changed_copy(plan, action, rng)
        case LaunchKernel():
            return replace(action, launch=rng.randrange(len(plan.launches)))
        case ResetSemaphores(first=first, count=count):
            more = rng.choice(((first, count - 1), (first + 1, count - 1), (first, count + 1), (first + 1, count)))
            return replace(action, first=more[0], count=more[1])
        case Barrier():
            return _changed_meeting(plan, action, rng)
        case CallCollective():
            way = rng.randrange(3)
            if way == 0:
                return replace(action, dst=_region(plan, action.dst, rng))
            if way == 1:
                return replace(action, src=_region(plan, action.src, rng))
            receives, ranks = rng.random() < 0.5, len(plan.placement.devices)
            return replace(action, **{"to" if receives else "by": rng.randrange(ranks)})
        case LaunchGraph():
            return replace(action, device=rng.choice(plan.placement.ordinals))


def _changed_words(plan: DevicePlan, action: StreamMemOps, rng: random.Random) -> StreamMemOps:
    changes = action.changes
    i = rng.randrange(len(changes))
    one, way = changes[i], rng.randrange(5)
    if way == 0:
        return replace(action, changes=(*changes[:i], *changes[i + 1 :]))
    if way == 1:
        return replace(action, changes=tuple(rng.sample(changes, len(changes))))
    if way == 2:
        one = replace(one, semaphore=rng.randrange(len(plan.semaphores)))
    elif way == 3:
        one = replace(one, signals=not one.signals, acquires=False)
    else:
        one = replace(one, acquires=not one.acquires)
    return replace(action, changes=_with(changes, i, one))


def _changed_copy(plan: DevicePlan, action: CopyMemory, rng: random.Random) -> CopyMemory | None:
    moves, semaphores, way = action.moves, action.semaphores, rng.randrange(5)
    if way == 0 and semaphores:
        i = rng.randrange(len(semaphores))
        return replace(action, semaphores=(*semaphores[:i], *semaphores[i + 1 :]))
    if way == 1 and semaphores:
        return replace(
            action, semaphores=_with(semaphores, rng.randrange(len(semaphores)), rng.randrange(len(plan.semaphores)))
        )
    if way == 2:
        return replace(action, batch=not action.batch)
    if not moves:
        return None
    i = rng.randrange(len(moves))
    if way == 3 and len(moves) > 1:
        return replace(action, moves=(*moves[:i], *moves[i + 1 :]))
    return replace(action, moves=_with(moves, i, _moved(plan, moves[i], rng)))


def _changed_meeting(plan: DevicePlan, action: Barrier, rng: random.Random) -> Barrier:
    steps = action.steps
    i, way = rng.randrange(len(steps)), rng.randrange(5)
    if way == 0:
        return replace(action, steps=(*steps[:i], *steps[i + 1 :]))
    if way == 1:
        return replace(action, steps=tuple(rng.sample(steps, len(steps))))
    if way == 2:
        return replace(action, runs=rng.randrange(len(plan.semaphores)))
    step = replace(steps[i], first=rng.randrange(len(plan.semaphores)))
    if way == 3:
        step = replace(steps[i], does=rng.choice(get_args(get_type_hints(BarrierStep)["does"])))
    return replace(action, steps=_with(steps, i, step))


def _moved(plan: DevicePlan, move: Move, rng: random.Random) -> Move:
    side = rng.choice(("dst", "src", "both"))
    dst = _region(plan, move.dst, rng) if side != "src" else move.dst
    return replace(move, dst=dst, src=_region(plan, move.src, rng) if side != "dst" else move.src)


def _region(plan: DevicePlan, region: Region, rng: random.Random) -> Region:
    """Elsewhere in the tensor, of another size, on another rank, or in another tensor."""
    way = rng.randrange(4)
    if way == 0:
        return region.on(rng.randrange(len(plan.placement.devices)))
    if way == 1:
        return Region(rng.choice(plan.tensors).name, region.rank, region.axes)
    at = rng.randrange(len(region.axes))
    by = rng.choice((-1, 1)) * rng.choice((1, region.axes[at].size))
    kept = way == 2
    segments = tuple(Interval(s.start + by * kept, s.stop + by) for s in region.axes[at].segments)
    if any(s.stop < s.start for s in segments):
        return region
    axis = Axis(segments, region.axes[at].dropped)
    return Region(region.tensor, region.rank, (*region.axes[:at], axis, *region.axes[at + 1 :]))


# ---------------------------------------------------------------- tables


def _launches(plan: DevicePlan, rng: random.Random) -> Mutant | None:
    if not plan.launches:
        return None
    i = rng.randrange(len(plan.launches))
    changed = _launch(plan, plan.launches[i], rng)
    if changed is None:
        return None
    what, new = changed
    return Mutant("launches", f"launch {i}: {what}", replace(plan, launches=_with(plan.launches, i, new)))


def _launch(plan: DevicePlan, launch: DeviceLaunch, rng: random.Random) -> tuple[str, DeviceLaunch] | None:
    config, works = launch.config, launch.works
    j = rng.randrange(len(works))
    work = works[j]
    flags = sorted({f for made in plan.launches for w in made.works for f in (*w.waits, *w.signals)})
    ways = "early spins read_only resets unraised merged blocks drop swap order waits wait signals signal reads writes"
    match rng.choice(ways.split()):
        case "early":
            return "early the other way", replace(launch, early=not launch.early)
        case "spins":
            return "spins the other way", replace(launch, spins=not launch.spins)
        case "read_only":
            sides = (rng.random() < 0.5, rng.random() < 0.5)
            return f"read-only {sides}", replace(launch, config=replace(config, read_only=sides))
        case "resets" if flags:
            one = rng.choice(flags)
            new = tuple(f for f in config.resets if f != one) if one in config.resets else (*config.resets, one)
            return f"resets {new}, not {config.resets}", replace(launch, config=replace(config, resets=new))
        case "unraised" if flags:
            one = rng.choice(flags)
            new = tuple(f for f in config.unraised if f != one) if one in config.unraised else (*config.unraised, one)
            return f"unraised {new}, not {config.unraised}", replace(launch, config=replace(config, unraised=new))
        case "merged" if config.merged:
            groups = list(config.merged)
            at = rng.randrange(len(groups))
            if rng.random() < 0.5:
                groups[at : at + 2] = [tuple(k for group in groups[at : at + 2] for k in group)]
            else:
                groups[at : at + 1] = [(k,) for k in groups[at]]
            return f"merged {tuple(groups)}", replace(launch, config=replace(config, merged=tuple(groups)))
        case "blocks":
            return "no blocks", replace(launch, config=replace(config, blocks=0))
        case "drop" if len(works) > 1:
            return f"without work {j}", replace(launch, works=_with(works, j))
        case "swap" if len(works) > 1:
            new_order = list(works)
            other = rng.randrange(len(works))
            new_order[j], new_order[other] = new_order[other], new_order[j]
            return f"works {j} and {other} exchanged", replace(launch, works=tuple(new_order))
        case "order" if len(works) > 1:
            return "works the other way round", replace(launch, works=works[::-1])
        case "waits" if work.waits:
            one = rng.choice(work.waits)
            return f"work {j} does not wait for flag {one}", _worked(launch, j, waits=_less(work.waits, one))
        case "signals" if work.signals:
            one = rng.choice(work.signals)
            return f"work {j} does not signal flag {one}", _worked(launch, j, signals=_less(work.signals, one))
        case "wait" if flags:
            one = rng.choice(flags)
            return f"work {j} waits for flag {one}", _worked(launch, j, waits=(one,))
        case "signal" if flags:
            one = rng.choice(flags)
            return f"work {j} signals flag {one}", _worked(launch, j, signals=(one,))
        case "reads" | "writes" as side:
            named = (
                [n for n in ("left", "right", "src") if hasattr(work.body, n)]
                if side == "reads"
                else [n for n in ("out", "dst") if hasattr(work.body, n)]
            )
            if not named:
                return None
            name = rng.choice(named)
            region = _region(plan, getattr(work.body, name), rng)
            body = replace(work.body, **{name: region})  # type: ignore[arg-type]
            return f"work {j}: {name} {region}", _worked(launch, j, body=body)
    return None


def _less(flags: tuple[int, ...], one: int) -> tuple[int, ...]:
    return tuple(f for f in flags if f != one)


def _worked(launch: DeviceLaunch, j: int, **fields: Any) -> DeviceLaunch:
    new: Work = replace(launch.works[j], **fields)
    return replace(launch, works=_with(launch.works, j, new))


def _semaphores(plan: DevicePlan, rng: random.Random) -> Mutant | None:
    if not plan.semaphores:
        return None
    i = rng.randrange(len(plan.semaphores))
    semaphore = plan.semaphores[i]
    new = rng.choice(
        (
            replace(semaphore, index=rng.randrange(len(plan.semaphores))),
            replace(semaphore, device=rng.choice(plan.placement.ordinals)),
            replace(semaphore, flag=None if semaphore.flag is None else rng.randrange(len(plan.semaphores))),
        )
    )
    return Mutant(
        "semaphores", f"semaphore {i}: {new} for {semaphore}", replace(plan, semaphores=_with(plan.semaphores, i, new))
    )


def _plan(plan: DevicePlan, rng: random.Random) -> Mutant | None:
    """NOTE not the number of sets, which is that of all modes."""
    if rng.random() < 0.5 and plan.mode not in GRAPHS:
        return Mutant("plan", "prologues and epilogues exchanged", replace(plan, own=plan.called, called=plan.own))
    i = rng.randrange(len(plan.streams))
    stream = plan.streams[i]
    if rng.random() < 0.5:
        new, what = replace(stream, inline=not stream.inline), "apart" if stream.inline else "inline"
    else:
        new = replace(stream, device=rng.choice(plan.placement.ordinals))
        what = f"on device {new.device}"
    return Mutant("plan", f"{new.name} {what}", replace(plan, streams=_with(plan.streams, i, new)))


def _with(members: tuple[T, ...], i: int, *new: T) -> tuple[T, ...]:
    return (*members[:i], *new, *members[i + 1 :])


_MAKERS: dict[str, Callable[[DevicePlan, random.Random], Mutant | None]] = {
    "run_ends": _run_ends,
    "body": _body,
    "launches": _launches,
    "semaphores": _semaphores,
    "plan": _plan,
}
