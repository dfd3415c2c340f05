"""Mutants of device plans: what the check says of each, and what the devices do with those that it accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

from ficco_rt.device.check import check
from ficco_rt.device.ir import Mode
from ficco_rt.errors import DeviceError, PlanError
from tests.interpreter.hosts import Inputs, Trial, learn
from tests.interpreter.jobs import Job, plans
from tests.interpreter.machine import Harm, Program
from tests.interpreter.mutants import Mutant, mutant

ORDERS = 60  # of a mutant that the check accepts
Verdict = Literal["refused", "internal error", "harmless", "harmful"]


@dataclass(frozen=True)
class Judged:
    job: Job
    seed: int
    mutant: Mutant
    verdict: Verdict
    why: str = ""

    def __str__(self) -> str:
        return f"{self.job} | seed {self.seed} | {self.mutant.what} | {self.why}"


@cache
def undamaged(job: Job) -> tuple[dict[Mode, Program], Inputs]:
    made = plans(job)
    programs = {mode: Program(plan) for mode, plan in made.items()}
    inputs = Inputs(made[job.mode])
    learn(programs, inputs)
    return programs, inputs


def judged(job: Job, seed: int, orders: int = ORDERS) -> Judged:
    """The mutant of this seed."""
    made = mutant(plans(job)[job.mode], f"{job} {seed}")
    try:
        check(made.plan)
    except (PlanError, DeviceError):
        return Judged(job, seed, made, "refused")
    except Exception as error:
        return Judged(job, seed, made, "internal error", f"{type(error).__name__}: {error}")
    why = harm(job, made, orders)
    return Judged(job, seed, made, "harmful" if why else "harmless", why)


def harm(job: Job, made: Mutant, orders: int) -> str:
    """What goes wrong in one of so many orders; nothing."""
    programs, inputs = undamaged(job)
    order = 0
    try:
        damaged = {**programs, job.mode: Program(made.plan)}
        for order in range(orders):
            Trial(damaged, inputs, f"{made.what} {order}", mode=job.mode, made=made).go()
    except Harm as error:
        return f"order {order}: {error}"
    return ""


def campaign(jobs: Iterable[Job], mutants: int, seed: int, orders: int = ORDERS) -> Iterator[Judged]:
    """So many mutants, of each job equally many."""
    jobs = tuple(jobs)
    for number in range(mutants):
        yield judged(jobs[number % len(jobs)], 1_000_000 * seed + number // len(jobs), orders)


def table(found: Iterable[Judged]) -> str:
    verdicts: tuple[Verdict, ...] = ("refused", "internal error", "harmless", "harmful")
    counts = Counter((str(one.job), one.verdict) for one in found)
    rows = [
        (job, *(counts[job, verdict] for verdict in verdicts)) for job in dict.fromkeys(job for job, _ in counts)
    ]
    rows.append(("all", *(sum(row[i] for row in rows) for i in range(1, 5))))  # type: ignore[misc]
    lines = ["| job | mutants | refused | internal errors | harmless | harmful |", "|---|---|---|---|---|---|"]
    lines += [f"| {row[0]} | {sum(row[1:])} | {' | '.join(map(str, row[1:]))} |" for row in rows]  # type: ignore[arg-type]
    return "\n".join(lines)
