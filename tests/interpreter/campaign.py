"""Mutants of device plans: what the check says of each, and what the devices do with those that it accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

from ficco_rt.device.check import check
from ficco_rt.device.ir import CallCollective, CopyMemory, DevicePlan, LaunchKernel, Mode
from ficco_rt.errors import DeviceError, PlanError
from tests.interpreter.hosts import Inputs, Trial, learn
from tests.interpreter.jobs import Job, plans
from tests.interpreter.mutants import Mutant, mutant
from tests.interpreter.programs import Harm, Program, WrongNumbers

ORDERS = 120  # of a mutant that the check accepts
Verdict = Literal["refused", "internal error", "harmless", "other work", "harmful"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Judged:
    """`other work`: the mutant moves or computes other parts of tensors than the plan does, in good order. That can be
    seen by comparing it with its plan alone."""

    job: Job
    seed: int
    mutant: Mutant
    verdict: Verdict
    why: str = ""

    @property
    def bad(self) -> bool:
        return self.verdict in ("internal error", "harmful")

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
    except Exception as crash:  # noqa: BLE001 - whatever it is, the check should have refused
        return Judged(job, seed, made, "internal error", f"{type(crash).__name__}: {crash}")
    found = harm(job, made, orders)
    if found is None:
        return Judged(job, seed, made, "harmless")
    order, error = found
    other = isinstance(error, WrongNumbers) and _work(made.plan) != _work(plans(job)[job.mode])
    return Judged(job, seed, made, "other work" if other else "harmful", f"order {order}: {error}")


def harm(job: Job, made: Mutant, orders: int = ORDERS) -> tuple[int, Harm] | None:
    """In which of so many orders something goes wrong, and what."""
    programs, inputs = undamaged(job)
    order = 0
    try:
        damaged = {**programs, job.mode: Program(made.plan)}
        for order in range(orders):
            Trial(damaged, inputs, f"{made.what} {order}", mode=job.mode, made=made).go()
    except Harm as error:
        return order, error
    return None


def _work(plan: DevicePlan) -> Counter[object]:
    """What a device plan moves and computes, in no order."""
    found: Counter[object] = Counter()
    for action in plan.body:
        match action:
            case CopyMemory(moves=moves):
                found.update((move.dst, move.src) for move in moves)
            case CallCollective():
                found[action.kind, action.dst, action.src, action.to, action.by] += 1
            case LaunchKernel(launch=launch) if 0 <= launch < len(plan.launches):
                found.update(work.body for work in plan.launches[launch].works)
    return found


def campaign(jobs: Iterable[Job], mutants: int, seed: int, orders: int = ORDERS) -> Iterator[Judged]:
    """So many mutants, of each job equally many."""
    jobs = tuple(jobs)
    for number in range(mutants):
        yield judged(jobs[number % len(jobs)], 1_000_000 * seed + number // len(jobs), orders)


def table(found: Iterable[Judged]) -> str:
    counts = Counter((str(one.job), one.verdict) for one in found)
    jobs = list(dict.fromkeys(job for job, _ in counts))
    rows = [(job, [counts[job, verdict] for verdict in VERDICTS]) for job in jobs]
    rows.append(("all", [sum(counts[job, verdict] for job in jobs) for verdict in VERDICTS]))
    lines = [f"| job | mutants | {' | '.join(VERDICTS)} |", f"|---{'|---' * (1 + len(VERDICTS))}|"]
    lines += [f"| {job} | {sum(numbers)} | {' | '.join(map(str, numbers))} |" for job, numbers in rows]
    return "\n".join(lines)
