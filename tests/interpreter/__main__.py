"""python -m tests.interpreter --mutants 5000 --seed 1: mutated device plans, and what devices do with those that the
check accepts. Ends with 1 if one of them does harm, or if the check fails at one."""

from __future__ import annotations

import argparse
import sys

from tests.interpreter.campaign import ORDERS, campaign, judged, table, undamaged
from tests.interpreter.hosts import Trial
from tests.interpreter.jobs import JOBS, Job
from tests.interpreter.programs import Harm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interpreter", description=__doc__)
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--orders", type=int, default=ORDERS, help="random orders of each mutant that is accepted")
    parser.add_argument("--jobs", default="", help="numbers of jobs, from 0, with commas; all")
    parser.add_argument("--only", type=int, help="the mutants of one seed, as a line names it")
    parser.add_argument("--all", action="store_true", help="list all mutants")
    parser.add_argument("--undamaged", type=int, help="run the jobs as they are, in so many random orders")
    asked = parser.parse_args()
    jobs = [JOBS[int(i)] for i in asked.jobs.split(",")] if asked.jobs else JOBS
    if asked.undamaged is not None:
        return int(sum(_goes_wrong(job, asked.undamaged) for job in jobs) > 0)
    if asked.only is not None:
        found = [judged(job, asked.only, asked.orders) for job in jobs]
        for one in found:
            print(f"{one.verdict}: {one}")
        return 0
    found = []
    for one in campaign(jobs, asked.mutants, asked.seed, asked.orders):
        found.append(one)
        if one.bad or asked.all:
            print(f"{one.verdict}: {one}", flush=True)
    print(table(found))
    return int(any(one.bad for one in found))


def _goes_wrong(job: Job, orders: int) -> bool:
    programs, inputs = undamaged(job)
    found: list[str] = []
    for order in range(orders):
        try:
            Trial(programs, inputs, order, mode=job.mode).go()
        except Harm as error:
            found.append(f"order {order}: {error}")
    print(f"{job}: {len(found)} of {orders} orders wrong", *found[:3], sep="\n  ", flush=True)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
