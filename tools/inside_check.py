"""Inside streamed launches on GPUs: are the marks of traced runs right, what do they cost, and what does the model say?

    python tools/inside_check.py                                  # streamed schedules, a rank for each GPU
    python tools/inside_check.py --ranks 2 --size 8192 ag_gemm/streamed

Checked: kernels that mark make equal numbers; each work is told once, comes before it begins, begins before it ends,
and lies within its launch, to a microsecond; and blocks wait no longer than the launch lasts. A line for each schedule
has the time of a whole run, without marks and timestamps and with them. A line for each launch: how long it was, how
long its blocks waited, for what longest; by how much its times may be off; the smallest step of the device's clock that
was seen; and how long works took, over what the model says (median, and the largest).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from itertools import pairwise

from ficco_rt import Executor, compile
from ficco_rt.driver.registry import device_count, discover
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Launch, Plan
from ficco_rt.report.inside_words import launch_words
from ficco_rt.sim.simulate import simulate
from ficco_rt.trace.inside import LaunchInside, launches, pairs
from ficco_rt.trace.model import Trace

SCHEDULES = ["ag_gemm/streamed", "gemm_rs/streamed", "gemm_rs/relay", "gemm_ar/streamed"]
RUNS = 5
CLOCK = 1.0  # µs: some GPUs move their clock on by so much at a time


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schedules", nargs="*", default=SCHEDULES, metavar="SCHEDULE")
    parser.add_argument("--backend", choices=["cuda", "hip"], default="cuda")
    parser.add_argument("--ranks", type=int, default=0, help="default: a rank for each GPU")
    parser.add_argument("--size", type=int, default=4096, help="M, N and K")
    options = parser.parse_args(arguments)
    if options.ranks < 0 or options.size < 1:
        parser.error("--ranks is a number from 0, --size from 1")
    gpus = device_count(options.backend)
    if not gpus:
        sys.stderr.write(f"inside_check: no GPU for {options.backend}, or its driver or bindings are missing\n")
        return 3
    ranks = options.ranks or gpus
    machine = discover(options.backend, ranks, -(-ranks // gpus))
    good = True
    for schedule in options.schedules:
        plan = compile(schedule, ranks, machine, **dict.fromkeys("MNK", options.size))
        with Executor(plan, options.backend, machine=machine, ranks_per_gpu=-(-ranks // gpus), timeout=60) as executor:
            executor.traced = True
            right = verified_run(executor, seed=1, values="exact").ok
            plain, marked = _duration(executor, traced=False), _duration(executor, traced=True)
            trace = executor.trace
        found = [] if right else ["numbers differ"]
        found += wrong(plan, trace)
        good &= not found
        print(
            f"{schedule} {options.size}³ on {ranks} × {machine.device.name}: {'; '.join(found) or 'right'}; run ",
            end="",
        )
        print(f"{plain:.1f} µs, traced {marked:.1f} µs")
        modelled = simulate(plan, machine)
        for launch in launches(trace):
            print(f"  {launch_words(launch)}; {_facts(launch, trace, modelled)}")
    return 0 if good else 4


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


if __name__ == "__main__":
    sys.exit(main())
