"""Inside streamed launches on GPUs: are the marks of traced runs right, what do they cost, and what does the model say?

Checked: kernels that mark make equal numbers; each work is told once, comes before it begins, begins before it ends,
and lies within its launch, to a microsecond; and blocks wait no longer than the launch lasts. `-s` shows the figures. A
line for each schedule has the time of a whole run, without marks and timestamps and with them. A line for each launch:
how long it was, how long its blocks waited, for what longest; by how much its times may be off; the smallest step of
the device's clock that was seen; and how long works took, over what the model says (median, and the largest).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import pairwise

import pytest

from ficco_rt import Executor, compile
from ficco_rt.driver.api import DriverName
from ficco_rt.driver.registry import discover
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Launch, Plan
from ficco_rt.report.account_words import launch_words
from ficco_rt.sim.simulate import simulate
from ficco_rt.trace.inside import LaunchInside, launches, pairs
from ficco_rt.trace.model import Trace
from tests.gpu.apart import apart

SCHEDULES = ["ag_gemm/streamed", "gemm_rs/streamed", "gemm_rs/relay", "gemm_ar/streamed"]
SIZE = 4096  # M, N and K
RUNS = 5
CLOCK = 1.0  # µs: some GPUs move their clock on by so much at a time
LIMIT = 120  # seconds of a schedule


@pytest.fixture
def ranks(request: pytest.FixtureRequest, gpus: int) -> int:
    return request.config.getoption("--ranks", 0) or gpus


def test_marks(backend: str, ranks: int, each: int) -> None:
    apart(right, SCHEDULES, backend, ranks, each, SIZE, limit=LIMIT * len(SCHEDULES))


def right(schedules: list[str], backend: DriverName, ranks: int, each: int, size: int) -> bool:
    """Of traced runs, with `each` ranks on a GPU."""
    machine = discover(backend, ranks, each)
    good = True
    for schedule in schedules:
        plan = compile(schedule, ranks, machine, **dict.fromkeys("MNK", size))
        with Executor(plan, backend, machine=machine, ranks_per_gpu=each, timeout=60) as executor:
            executor.traced = True
            right = verified_run(executor, seed=1, values="exact").ok
            plain, marked = _duration(executor, traced=False), _duration(executor, traced=True)
            trace = executor.trace
        found = [] if right else ["numbers differ"]
        found += wrong(plan, trace)
        good &= not found
        print(
            f"{schedule} {size}³ on {ranks} × {machine.device.name}: {'; '.join(found) or 'right'}; run ",
            end="",
        )
        print(f"{plain:.1f} µs, traced {marked:.1f} µs")
        modelled = simulate(plan, machine)
        for launch in launches(trace):
            print(f"  {launch_words(launch)}; {_facts(launch, trace, modelled)}")
    return good


def _duration(executor: Executor, *, traced: bool) -> float:
    executor.traced = traced
    times = []
    for _ in range(RUNS):
        executor.run()
        times.append(executor.duration)
    return statistics.median(times)


def wrong(plan: Plan, trace: Trace) -> list[str]:
    """What cannot be of a trace."""
    works = {(s.rank, w.op) for s, c in plan.commands() if isinstance(c, Launch) and c.streamed for w in c.works}
    told = [(work.rank, op) for launch in launches(trace) for work in launch.works for op in work.ops]
    found = [] if sorted(told) == sorted(works) else [f"{len(works)} works, {len(told)} told"]
    return found + [fault for launch in launches(trace) for fault in _faults(launch)]


def _faults(launch: LaunchInside) -> Iterator[str]:
    span = launch.span
    if not 0 <= span.waited <= span.stop - span.start:
        yield f"{launch_words(launch)}: longer than it lasted"
    slack = CLOCK + span.within  # the marks' clock is known no better
    for work in launch.works:
        if not span.start - slack <= work.came <= work.began <= work.ended <= span.stop + slack:
            times = f"{span.start:.2f} {work.came:.2f} {work.began:.2f} {work.ended:.2f} {span.stop:.2f}"
            yield f"{work.label}: begin, came, began, ended, end are {times}"


def _facts(launch: LaunchInside, trace: Trace, modelled: Trace) -> str:
    ticks = sorted({round(t, 3) for work in launch.works for t in (work.came, work.began, work.ended)})
    step = min((b - a for a, b in pairwise(ticks)), default=0.0)
    mine = {work.ops for work in launch.works}
    shares = [
        (p.work.ended - p.work.began) / (p.other.ended - p.other.began)
        for p in pairs(trace, modelled)
        if p.work.rank == launch.span.rank and p.work.ops in mine and p.other and p.other.ended > p.other.began
    ]
    model = f"{statistics.median(shares):.2f}, {max(shares):.2f}" if shares else "no model"
    return f"± {launch.span.within:.1f} µs, steps of {step:.3f} µs; over the model {model}"
