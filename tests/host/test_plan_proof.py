"""Stored plans are proven from themselves: shipped ones are, and damaged ones are refused or run right."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from ficco_rt.compiler import build, plan_from, plan_of
from ficco_rt.errors import PlanError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.check import check
from ficco_rt.plan.codec import to_json
from ficco_rt.plan.ir import Plan
from ficco_rt.plan.prove import prove, unproven
from tests import cases
from tests.unit import plan_damage as damage

RANKS = 3
DRAWS = int(os.environ.get("FICCO_DAMAGES", "20"))  # of each schedule


def compiled(name: str, machine: str = "h200-switch") -> Plan:
    sizes = cases.sizes(name, RANKS, even=True) | cases.few_chunks(name)
    if "buffers" in sizes:  # with one, everything is ordered and changes are seen by the check
        sizes |= {"buffers": 2, "iters": 3}
    return plan_of(build(cases.schedule(name), RANKS, sizes), profile(machine, RANKS))


@pytest.mark.parametrize("machine", ["h200-switch", "h200-ring"])
@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_shipped_plans_are_proven_when_they_are_read(name: str, machine: str) -> None:
    plan = compiled(name, machine)
    assert plan_from(to_json(plan).encode(), "plan.json") == plan
    assert unproven(plan) == ()


@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_damaged_plans_are_refused_or_right(name: str) -> None:
    plan = compiled(name)
    rng = random.Random(name)
    seen: Counter[str] = Counter()
    for _ in range(DRAWS):
        damaged = damage.with_contents_changed(plan, rng)
        if damaged.plan == plan:
            continue
        try:
            order = check(damaged.plan)
        except PlanError:
            seen["checked"] += 1
            continue
        try:
            prove(damaged.plan, order)
        except PlanError:
            seen["proof"] += 1
            continue
        seen["right"] += 1
        with Executor(damaged.plan, order="adversarial") as executor:
            assert verified_run(executor, values="exact").ok, damaged.what
    assert seen["proof"] > 0, seen


def test_what_no_claim_speaks_for_is_unproven() -> None:
    plan = compiled("gemm_ar/serial")
    assert unproven(replace(plan, claims=())) == ("C",)
    prove(replace(plan, claims=()), check(plan))
    (claim,) = plan.claims
    half = tuple(replace(t, shapes=tuple((2 * m, n) for m, n in t.shapes)) for t in plan.tensors if t.name == "C")
    larger = replace(plan, tensors=tuple(half[0] if t.name == "C" else t for t in plan.tensors))
    assert unproven(larger) == ("C",)
    assert unproven(replace(plan, claims=(claim, claim))) == ()
