"""python -m tests.interpreter --mutants 5000 --seed 1: mutated device plans, and what devices do with those that the
check accepts. --together 20000: in so many sequences of runs of several plans, which share a workspace. Ends with 1 if
one of them does harm, or if the check fails at one."""

from __future__ import annotations

import argparse
import sys

from tests.interpreter.campaign import (
    ORDERS,
    SEQUENCES,
    Judged,
    campaign,
    campaign_together,
    judged,
    neighbours,
    table,
    together,
    undamaged,
)
from tests.interpreter.hosts import Member, Trial
from tests.interpreter.jobs import JOBS, WORKSPACES
from tests.interpreter.programs import Harm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interpreter", description=__doc__)
    parser.add_argument("--mutants", type=int, default=5000)
    parser.add_argument("--together", type=int, default=0, help="so many sequences of several plans, not --mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--orders", type=int, help="random orders, or sequences, of each mutant that is accepted")
    parser.add_argument("--jobs", default="", help="numbers of jobs, or of workspaces, from 0, with commas; all")
    parser.add_argument("--only", type=int, help="the mutants of one seed, as a line names it")
    parser.add_argument("--all", action="store_true", help="list all mutants")
    parser.add_argument("--undamaged", type=int, help="run the jobs as they are, in so many random orders")
    asked = parser.parse_args()
    jobs = [int(i) for i in asked.jobs.split(",")] if asked.jobs else range(len(WORKSPACES if asked.together else JOBS))
    orders = asked.orders or (SEQUENCES if asked.together else ORDERS)
    if asked.undamaged is not None:
        return int(sum(_goes_wrong(i, asked.undamaged, several=bool(asked.together)) for i in jobs) > 0)
    if asked.only is not None:
        for i in jobs:
            one = together(i, asked.only, orders) if asked.together else judged(JOBS[i], asked.only, orders)
            print(f"{one.verdict}: {one}")
        return 0
    made = (
        campaign_together(jobs, asked.together, asked.seed, orders)
        if asked.together
        else campaign([JOBS[i] for i in jobs], asked.mutants, asked.seed, orders)
    )
    found: list[Judged] = []
    for one in made:
        found.append(one)
        if one.bad or asked.all:
            print(f"{one.verdict}: {one}", flush=True)
    print(table(found))
    return int(any(one.bad for one in found))


def _goes_wrong(number: int, orders: int, *, several: bool) -> bool:
    found: list[str] = []
    for order in range(orders):
        members: list[Member] = neighbours(WORKSPACES[number], str(order)) if several else [undamaged(JOBS[number])]
        try:
            Trial(members, order).go()
        except Harm as error:
            found.append(f"order {order}: {error}")
    label = f"workspace {number}" if several else str(JOBS[number])
    print(f"{label}: {len(found)} of {orders} orders wrong", *found[:3], sep="\n  ", flush=True)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
