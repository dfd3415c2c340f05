"""Mutants of device plans: what the check says of each, and what the devices do with those that it accepts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import Literal, get_args

from ficco_rt.device.check import check
from ficco_rt.device.ir import CallCollective, CopyMemory, DevicePlan, LaunchKernel
from ficco_rt.errors import DeviceError, PlanError
from tests.interpreter.hosts import Inputs, Member, Trial, learn
from tests.interpreter.jobs import WORKSPACES, Job, plans
from tests.interpreter.mutants import Mutant, mutant
from tests.interpreter.programs import Harm, Program, WrongNumbers

ORDERS = 120  # of a mutant that the check accepts
SEQUENCES = 25  # likewise, with other plans
Verdict = Literal["refused", "internal error", "harmless", "other work", "harmful"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Judged:
    """`other work`: the mutant moves or computes other parts of tensors than the plan does, in good order. That can be
    seen by comparing it with its plan alone. `workspace`: the number of that in which it ran with others."""

    job: Job
    seed: int
    mutant: Mutant
    verdict: Verdict
    why: str = ""
    workspace: int | None = None

    @property
    def label(self) -> str:
        return str(self.job) if self.workspace is None else f"workspace {self.workspace}"

    @property
    def accepted(self) -> bool:
        return self.verdict not in ("refused", "internal error")

    @property
    def bad(self) -> bool:
        return self.verdict in ("internal error", "harmful")

    def __str__(self) -> str:
        where = "" if self.workspace is None else f"{self.label} | "
        return f"{where}{self.job} | seed {self.seed} | {self.mutant.what} | {self.why}"


@cache
def undamaged(job: Job) -> Member:
    made = plans(job)
    member = Member({mode: Program(plan) for mode, plan in made.items()}, Inputs(made[job.mode]), job.mode)
    learn(member)
    return member


def judged(job: Job, seed: int, orders: int = ORDERS, beside: Sequence[Job] = ()) -> Judged:
    """The mutant of this seed; some of the plans `beside` it run, too."""
    made = mutant(plans(job)[job.mode], f"{job} {seed}")
    try:
        check(made.plan)
    except (PlanError, DeviceError):
        return Judged(job, seed, made, "refused")
    except Exception as crash:  # noqa: BLE001 - whatever it is, the check should have refused
        return Judged(job, seed, made, "internal error", f"{type(crash).__name__}: {crash}")
    found = harm(job, made, orders, beside)
    if found is None:
        return Judged(job, seed, made, "harmless")
    order, error = found
    other = isinstance(error, WrongNumbers) and error.of == 0 and _work(made.plan) != _work(plans(job)[job.mode])
    return Judged(job, seed, made, "other work" if other else "harmful", f"order {order}: {error}")


def harm(job: Job, made: Mutant, orders: int = ORDERS, beside: Sequence[Job] = ()) -> tuple[int, Harm] | None:
    """In which of so many orders something goes wrong, and what."""
    member = undamaged(job)
    order = 0
    try:
        damaged = replace(member, programs={**member.programs, job.mode: Program(made.plan)}, made=made)
        for order in range(orders):
            seed = f"{made.what} {order}"
            Trial([damaged, *neighbours(beside, seed)], seed).go()
    except Harm as error:
        return order, error
    return None


def neighbours(beside: Sequence[Job], seed: str) -> list[Member]:
    """One to three of the plans, most of whose runs are of any mode."""
    rng = random.Random(seed)
    chosen = rng.sample(beside, min(len(beside), rng.choice((1, 1, 2, 3))))
    members = [undamaged(job) for job in chosen]
    return [replace(m, mode=rng.choice([mode for mode in m.programs if mode != "embedded"])) for m in members]


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


def together(number: int, seed: int, orders: int = SEQUENCES) -> Judged:
    """A mutant of one of the plans of a workspace, in one of its modes, in sequences with others of them."""
    rng = random.Random(seed)
    beside = list(WORKSPACES[number])
    job = beside.pop(rng.randrange(len(beside)))
    job = replace(job, mode=rng.choice(list(plans(job))))
    return replace(judged(job, seed, orders, beside), workspace=number)


def campaign_together(
    workspaces: Sequence[int], sequences: int, seed: int, orders: int = SEQUENCES
) -> Iterator[Judged]:
    """Mutants of plans of the workspaces in turn; each that is accepted runs in so many sequences (`orders`), until
    there are so many of all."""
    for number in count():
        if sequences <= 0:
            return
        found = together(workspaces[number % len(workspaces)], 1_000_000 * seed + number // len(workspaces), orders)
        sequences -= orders * found.accepted
        yield found


def table(found: Iterable[Judged]) -> str:
    counts = Counter((one.label, one.verdict) for one in found)
    jobs = list(dict.fromkeys(job for job, _ in counts))
    rows = [(job, [counts[job, verdict] for verdict in VERDICTS]) for job in jobs]
    rows.append(("all", [sum(counts[job, verdict] for job in jobs) for verdict in VERDICTS]))
    lines = [f"| job | mutants | {' | '.join(VERDICTS)} |", f"|---{'|---' * (1 + len(VERDICTS))}|"]
    lines += [f"| {job} | {sum(numbers)} | {' | '.join(map(str, numbers))} |" for job, numbers in rows]
    return "\n".join(lines)
