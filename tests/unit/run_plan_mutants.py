"""Run plans with one mistake each, drawn by a seed: does their check see it?

python -m tests.unit.run_plan_mutants [--mutants 300] [--seed 1]     # exit code 1 if the check accepts one
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

from ficco_rt.compiler import build, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.features import usual
from ficco_rt.device.ir import (
    AwaitEvent,
    Barrier,
    BarrierStep,
    CopyMemory,
    DevicePlan,
    Library,
    Manner,
    Mode,
    Placement,
    RecordEvent,
    ResetSemaphores,
    StreamMemOps,
)
from ficco_rt.device.run_plan import (
    CopyBatch,
    CopyRows,
    CopyRun,
    CopySignal,
    Current,
    Enter,
    Issued,
    Launch,
    RunPlan,
    RunWait,
    Step,
    Together,
    expected,
)
from ficco_rt.device.run_residency import waiting_streams
from ficco_rt.device.sharing import buffer_set
from ficco_rt.errors import InternalError
from ficco_rt.machine.profiles import profile
from tests import cases
from tests.unit.run_plan_rules import checked

Placed = tuple[tuple[int, ...], tuple[int, ...]]
DOUBLE = "gemm_rs/oneshot"  # whose runs take two sets by turns, in two processes
PLACED: tuple[Placed, ...] = (((0, 1), ()), ((0, 0), ()), ((0, 1), (0, 1)))


@cache
def plan(name: str, placed: Placed, mode: Mode, machine: str = "h200-switch", library: Library = "") -> DevicePlan:
    described = profile(machine, 2)
    made = plan_of(build(cases.schedule(name), 2, cases.sizes(name, 2, True) | cases.few_chunks(name)), described)
    features = replace(usual(described.device.arch), collectives=library)
    return device_plan(layout_of(made, described.device, Placement(*placed), features), mode)


def manners(mode: Mode) -> Iterator[Manner]:
    """Each of a run on streams of its own, and on callers'."""
    if mode == "embedded":
        for first in (True, False):
            yield Manner(called=True, behind=True, timed=False, others=True, replays=first)
        return
    for called in (False, True):
        timed = mode == "traced" or not called
        yield Manner(called, behind=False, timed=timed, others=True, replays=False)
        yield Manner(called, behind=True, timed=timed, others=False, replays=False)
        yield Manner(called, behind=True, timed=True, others=True, replays=True)


def run_plans(made: DevicePlan) -> Iterator[RunPlan]:
    """Of all processes in all manners; with waits for other runs, where there may be some."""
    for run, manner in enumerate(manners(made.mode), 3):
        embedded = made.mode == "embedded"
        number = buffer_set(made.sets, 0 if embedded and manner.replays else run, embedded=embedded)
        for process in sorted({made.placement.process(device) for device in made.placement.ordinals}):
            r = expected(made, None if embedded else run, number, manner, process)
            yield r if embedded else _gated(r)


def _gated(r: RunPlan) -> RunPlan:
    made = r.plan
    mine = [d for d in made.placement.ordinals if made.placement.process(d) == r.process]
    waiting = waiting_streams(made, called=r.manner.called)
    behind = [(device, of) for device in mine[:1] for of in ("run 4 of another", "replays of a third")]
    found = [RunWait(device, stream, of) for device, of in behind for stream in waiting[device]]
    return replace(r, behind=tuple(behind), run_waits=tuple(found))


def long_meeting() -> DevicePlan:
    """One that takes several launches."""
    made = plan("gemm_ar/streamed", PLACED[2], "embedded")
    barrier_peers = [a for a in made.body if isinstance(a, Barrier)]
    assert barrier_peers, "no devices barrier by a kernel"
    steps = tuple(BarrierStep("wait", i % len(made.semaphores)) for i in range(70))
    return replace(made, body=tuple(replace(a, steps=steps) if a is barrier_peers[0] else a for a in made.body))


def words_by_copies() -> DevicePlan:
    """A plan whose semaphores are signalled by copies one by one."""
    made = plan("ag_gemm/streamed", PLACED[0], "streams")
    body = tuple(replace(a, batch=False) if isinstance(a, CopyMemory) else a for a in made.body)
    assert any(isinstance(a, CopyMemory) and a.semaphores for a in body), "no copy signals a semaphore"
    return replace(made, body=body)


# ---------------------------------------------------------------- mutants


@dataclass(frozen=True)
class Mutant:
    what: str
    run: RunPlan


def mutant(r: RunPlan, rng: random.Random) -> Mutant | None:
    """One; None if what was drawn does not apply here, or changes nothing."""
    part = rng.choices(("step", "run", "run_waits"), (10, 2, 2))[0]
    found = {"step": _step, "run": _run, "run_waits": _run_waits}[part](r, rng)
    return None if found is None or found.run == r else found


def _step(r: RunPlan, rng: random.Random) -> Mutant | None:
    name = rng.choice(("steps", "captured"))
    steps = list(getattr(r, name))
    if not steps:
        return None
    i = rng.randrange(len(steps))
    step = steps[i]
    way = rng.choice(("drop", "double", "exchange", "change", "change", "change", "change"))
    if way == "drop":
        new = [*steps[:i], *steps[i + 1 :]]
    elif way == "double":
        new = [*steps[:i], step, *steps[i:]]
    elif way == "exchange":
        j = rng.randrange(len(steps))
        new = list(steps)
        new[i], new[j] = new[j], new[i]
    else:
        changed = _changed(r, step, rng)
        if changed is None:
            return None
        way, one = changed
        new = [*steps[:i], *one, *steps[i + 1 :]]
    if way != "double" and _found(new) == _found(steps):
        return None  # the parts of a run are each made for any context, and one may leave that of the next
    return Mutant(f"{name} {i}: {way} {step}", replace(r, **{name: tuple(new)}))


def _found(steps: Sequence[Step]) -> list[tuple[Step, int | None]]:
    """The calls, each with the device whose context is current."""
    current: int | None = None
    found: list[tuple[Step, int | None]] = []
    for step in steps:
        if isinstance(step, Enter):
            current = step.device
        else:
            found.append((step, current))
    return found


def _changed(r: RunPlan, step: Any, rng: random.Random) -> tuple[str, list[Any]] | None:
    devices = r.plan.placement.ordinals
    if isinstance(step, Enter):
        return "another context", [Enter(rng.choice(devices))]
    ways: list[tuple[str, Callable[[], list[Any] | None]]] = [
        ("another device", lambda: [replace(step, device=rng.choice(devices))]),
        ("another set", lambda: [replace(step, number=step.number + 1)]),
        ("another need", lambda: _needed(step, rng)),
        ("another stream", lambda: _streamed(r, step, rng)),
        *[("other operands", lambda: _operands(r, step, rng))] * 6,
    ]
    way, make = rng.choice(ways)
    made = make()
    return None if made is None else (way, made)


def _needed(step: Issued, rng: random.Random) -> list[Any] | None:
    if not isinstance(step.call, Together) and step.call.stream.kind == "caller":
        return None  # it may be a default stream
    return [replace(step, context=rng.choice(get_args(Current)))]


def _streamed(r: RunPlan, step: Issued, rng: random.Random) -> list[Any] | None:
    if isinstance(step.call, Together):
        return None
    return [replace(step, call=replace(step.call, stream=rng.choice(r.plan.streams).name))]


def _operands(r: RunPlan, step: Issued, rng: random.Random) -> list[Any] | None:
    """The call with other operands, or in other calls."""
    call, made = step.call, r.plan
    semaphore = rng.randrange(max(1, len(made.semaphores)))

    def these(*calls: Any) -> list[Any]:
        return [replace(step, call=one) for one in calls]

    match call:
        case RecordEvent() | AwaitEvent():
            events = sorted({a.event for a in made.actions if isinstance(a, RecordEvent)})
            return these(replace(call, event=rng.choice(events)))
        case StreamMemOps(changes=changes):
            i = rng.randrange(len(changes))
            c = changes[i]
            other = rng.choice(
                (
                    replace(c, semaphore=semaphore),
                    replace(c, signals=not c.signals),
                    replace(c, acquires=not c.acquires),
                )
            )
            if len(changes) > 1 and rng.random() < 0.5:  # one by one
                return these(*(replace(call, changes=(c,)) for c in changes))
            return these(replace(call, changes=(*changes[:i], other, *changes[i + 1 :])))
        case CopyRun():
            return these(_copied(call, rng))
        case CopyRows():
            as_one = CopyRun(call.stream, call.dst, call.src, call.width * call.rows, call.by_kernel)
            each = replace(call, rows=call.rows - 1), replace(call, width=call.width // 2)
            pitch = replace(call, dst_pitch=call.dst_pitch * 2), replace(call, src_pitch=call.width)
            return these(rng.choice((as_one, *each, *pitch, _copied(call, rng))))
        case CopySignal():
            return these(
                rng.choice((replace(call, semaphore=semaphore), CopyBatch(call.stream, (call.semaphore,), ())))
            )
        case CopyBatch(stream, semaphores, runs):
            one_by_one = (*(CopySignal(stream, semaphore) for semaphore in semaphores), *runs)
            some = [
                replace(call, runs=runs[1:]),
                replace(call, semaphores=(*semaphores, semaphore)),
                replace(call, semaphores=semaphores[1:]),
            ]
            if runs:
                i = rng.randrange(len(runs))
                some += [replace(call, runs=(*runs[:i], _copied(runs[i], rng), *runs[i + 1 :]))]
                some += [replace(call, runs=(*runs, runs[i]))]
            return these(*rng.choice([*((one,) for one in some), one_by_one]))
        case Launch():
            number = rng.randrange(len(made.launches))
            marks = [replace(call, marks=not call.marks)] if made.mode != "traced" or call.marks else []
            return these(rng.choice((replace(call, launch=number), replace(call, part=call.part + 1), *marks)))
        case ResetSemaphores():
            more, fewer = replace(call, count=call.count + 1), replace(call, count=call.count - 1)
            return these(rng.choice((more, fewer, replace(call, first=call.first + 1))))
        case Barrier(steps=steps):
            i = rng.randrange(len(steps))
            other_step = replace(steps[i], first=semaphore)
            some_steps = [replace(call, steps=(*steps[:i], *new, *steps[i + 1 :])) for new in ((), (other_step,))]
            both = replace(call, steps=(*steps, *steps))
            return these(
                rng.choice((*some_steps, both, replace(call, runs=semaphore), replace(call, steps=steps[::-1])))
            )
        case Together(calls):
            return these(rng.choice((Together(calls[1:] or calls * 2), Together(calls[::-1]))))
        case _:
            return these(replace(call, device=rng.choice(made.placement.ordinals)))


def _copied(call: Any, rng: random.Random) -> Any:
    side = rng.choice(("dst", "src"))
    place = getattr(call, side)
    moved = replace(place, offset=place.offset + rng.choice((4, -4, 1024)))
    elsewhere = replace(place, rank=1 - place.rank)
    ways = [replace(call, **{side: moved}), replace(call, **{side: elsewhere})]
    ways += [replace(call, dst=call.src, src=call.dst), replace(call, by_kernel=not call.by_kernel)]
    if isinstance(call, CopyRun):
        ways += [replace(call, size=call.size + rng.choice((-4, 4))), replace(call, size=call.size // 2)]
    return rng.choice(ways)


def _run(r: RunPlan, rng: random.Random) -> Mutant | None:
    way = rng.choice(("number", "run", "rescue", "uploads", "manner", "process"))
    if way == "number":
        return Mutant(way, replace(r, number=r.number + 1))
    if way == "run":
        new = 0 if r.run is None else r.run + 1 if r.plan.sets > 1 else None
        return Mutant(f"{way} {new}", replace(r, run=new))
    if way == "process":
        return Mutant(way, replace(r, process=r.process + 1))
    if way in ("rescue", "uploads"):
        have = getattr(r, way)
        return Mutant(way, replace(r, **{way: have[1:] if have else r.plan.placement.ordinals[:1]}))
    flag = rng.choice(("called", "behind", "timed", "others", "replays"))
    other = replace(r.manner, **{flag: not getattr(r.manner, flag)})
    if r.plan.run_ends(other) == r.plan.run_ends(r.manner):
        return None  # the calls are those of the other manner, too
    return Mutant(f"{way}: {flag}", replace(r, manner=other))


def _run_waits(r: RunPlan, rng: random.Random) -> Mutant | None:
    there = list(r.run_waits)
    if r.plan.mode == "embedded":
        made = RunWait(r.plan.streams[0].device, r.plan.streams[0].name, "run 4 of another")
        return Mutant("a wait for a run in a graph", replace(r, run_waits=(made,), behind=((made.device, made.of),)))
    i = rng.randrange(len(there))
    way = rng.choice(("drop", "double", "stream", "of", "device", "behind"))
    if way == "behind":
        return Mutant(way, replace(r, behind=r.behind[1:]))
    if way == "drop":
        if there[i].stream.kind == "caller":
            return None  # it may be the stream on which the other run ends
        del there[i]
    elif way == "double":
        there.append(there[i])
    else:
        new = {
            "stream": replace(there[i], stream=rng.choice(r.plan.streams).name),
            "of": replace(there[i], of="run 5 of nobody"),
            "device": replace(there[i], device=there[i].device + 1),
        }
        there[i] = new[way]
        if way == "stream" and new[way].stream == r.run_waits[i].stream:
            return None
    return Mutant(f"{way} of wait {i}", replace(r, run_waits=tuple(there)))


# ---------------------------------------------------------------- the campaign


def pool() -> list[RunPlan]:
    """Run plans of all that calls differ in."""
    jobs = [long_meeting(), words_by_copies()]
    for name in ("ag_gemm/streamed", "gemm_rs/relay", "gemm_ar/streamed", "ag_gemm/serial"):
        jobs += [plan(name, placed, mode) for placed in PLACED for mode in get_args(Mode)]
    jobs += [plan("gemm_ar/serial", PLACED[2], mode, "h200-switch", "NCCL") for mode in get_args(Mode)]
    jobs += [plan(DOUBLE, PLACED[2], mode) for mode in get_args(Mode)]
    for name in ("ag_gemm/uniform_fused_2d", "gemm_rs/stationary_c"):  # rows of a pitch; several copies in a batch
        jobs += [plan(name, PLACED[0], mode) for mode in ("streams", "graph")]
    jobs += [plan("gemm_rs/relay", PLACED[0], mode, "mi300x-mesh") for mode in ("streams", "graph", "traced")]
    return [r for job in jobs for r in run_plans(job)]


def survivors(count: int, seed: int) -> tuple[list[Mutant], Counter[str]]:
    """The mutants that the check accepts, of so many; and how often it said what."""
    rng, plans = random.Random(seed), pool()
    found: list[Mutant] = []
    said: Counter[str] = Counter()
    while count:
        made = mutant(rng.choice(plans), rng)
        if made is None:
            continue
        count -= 1
        try:
            checked(made.run)
        except InternalError as error:
            said[str(error).partition(": ")[2].split(" ")[0]] += 1
        else:
            found.append(made)
    return found, said


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.unit.run_plan_mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found, said = survivors(options.mutants, options.seed)
    for made in found:
        print(f"accepted: {made.run.plan.schedule}, mode {made.run.plan.mode}, {made.run.manner}: {made.what}")
    print(f"{options.mutants} mutants, {len(found)} accepted; refused by {len(said)} kinds of mistakes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
