"""Makes the runs of a compiled job: one modelled run, or a verified run and then the timed runs."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from ..driver.api import GPUS, DriverName
from ..report.job import Job
from .baselines import UNASKED, Baselines, baseline_plans, turns_among
from .console import Progress
from .messages import say
from .options import Options
from .result import Result

if TYPE_CHECKING:
    from ..exec.inputs import InputValues
    from ..process.group import Group


def modelled_run(job: Job, seed: int, progress: Progress) -> Result:
    """The modelled run: no data is moved, only times are computed."""
    with progress.step("modelling the run"):
        from ..compiler import compilation
        from ..device.collectives import calls_of
        from ..exec.ideal import ideal
        from ..plan.codec import content_hash
        from ..sim.simulate import simulate

        start = time.perf_counter()
        with compilation(job.plan.ranks):
            trace = simulate(job.plan, job.machine)
        host = (time.perf_counter() - start) * 1e6
        yardsticks = ideal(job.plan, job.machine)
    made_by = "copies and sums: the model has no library of collectives" if calls_of(job.plan) else ""
    hash_, times = content_hash(job.plan), (trace.duration,)
    return Result(job, "sim", hash_, seed, trace, times, (host,), yardsticks, made_by)


def real_runs(
    job: Job,
    options: Options,
    backend: DriverName,
    order: str,
    progress: Progress,
    group: Group | None = None,
) -> Result:
    """One verified run, then the timed runs. Where one process drives all GPUs, these alternate with the baselines.
    Without --iters and without baselines, the verified run is the timed one."""
    with progress.step("preparing the run"):
        from ..driver.registry import has_gemms
        from ..exec.executor import Executor
        from ..exec.ideal import ideal
        from ..exec.rounding import allowances
        from ..exec.verify import check_replay, verified_run, write_inputs
        from ..plan.codec import content_hash

        plan_hash = content_hash(job.plan)

    host: list[float] = []

    class Timed(Executor):
        """Keeps how long each run took on this machine."""

        def run(self, *given: Any, **words: Any) -> None:
            start = time.perf_counter()
            super().run(*given, **words)
            # on GPUs the host has finished its part of a run when all of it is issued
            host.append(self.issued_in if backend in GPUS else (time.perf_counter() - start) * 1e6)

    shared, timeout = options.ranks_per_gpu, float(options.timeout)
    how: dict[str, Any] = {"ranks_per_gpu": shared, "timeout": timeout, "collectives": options.collectives}
    how |= {"driver": backend, "machine": job.machine}
    with ExitStack() as opened:
        executor = opened.enter_context(Timed(job.plan, order=order, group=group, **how))
        verification = None
        if options.no_verify:
            with progress.step("making inputs"):
                write_inputs(executor, options.seed)
        else:
            with progress.step("running, and comparing with a reference"):
                values: InputValues | None = "exact" if options.exact and job.plan.claims else None
                verification = verified_run(executor, seed=options.seed, values=values, progress=progress.report)
                if values == "exact":
                    most = max(allowed.one_sign for allowed in allowances(job.plan))
                    verification = replace(verification, allowance=most)
                del host[:-1]  # the run on normal data is the timed one, where there are several
        right = verification is None or verification.ok
        times = [executor.duration] if verification else []
        executor.graph = bool(options.graph)
        if options.graph and verification is not None and right:
            with progress.step("comparing the replayed graph"):
                check_replay(executor)
        baselines = None
        if backend != "host" and options.baselines and right and group is None:
            with progress.step("preparing the baselines"):
                plans = baseline_plans(job.plan, job.machine, shared, has_gemms(backend))
                why = "" if plans is None else plans.overfill(executor.driver.pools())
                if why:
                    say(
                        "warning: serial and ideal are modelled, as there is no room to measure them: "
                        f"{why} (--no-baselines)"
                    )
                elif plans is not None:
                    baselines = opened.enter_context(Baselines(plans, partial(Executor, **how)))
                    baselines.warm(graph=bool(options.graph))
        timed = options.iters or (UNASKED if baselines else 0 if verification and not options.warmup else 1)
        turns = turns_among(timed) if baselines else frozenset()
        for number in range(-options.warmup, timed):
            if number == 0:
                times.clear()
                host.clear()
            with progress.step(f"run {number + 1 + options.warmup} of {options.warmup + timed}"):
                executor.run(progress=progress.report)
            times.append(executor.duration)
            if baselines and number in turns:
                with progress.step("running the baselines"):
                    baselines.turn()
        if baselines:  # close before the traced run: streams of the baselines may share its hardware queues
            baselines.close()
        if backend != "host":  # timestamps cost time, so a separate run has them, when everything is warm
            with progress.step("tracing a run"):
                executor.traced = True
                executor.run(progress=progress.report)
                host.pop()
        trace = executor.trace
        devices, collectives = executor.driver.describe(), executor.driver.collectives
        yardsticks = baselines.yardsticks(median(times)) if baselines else ideal(job.plan, job.machine, shared)
    if group is not None:
        told = group.exchange(json.dumps(times).encode(), timeout, "the times of the runs")
        times = [max(each) for each in zip(*map(json.loads, told), strict=True)]  # of the slowest process
    return Result(
        job=job,
        backend=backend,
        plan_hash=plan_hash,
        seed=options.seed,
        trace=trace,
        times=tuple(times),
        host=tuple(host),
        yardsticks=yardsticks,
        collectives=collectives,
        devices=devices,
        graph=bool(options.graph),
        order=order if backend == "host" else None,
        verification=verification,
        processes=1 if group is None else group.size,
    )
