"""Golden plans of all shipped schedules at 4 ranks; the diff is read like code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.codec import content_hash, from_json, to_json
from ficco_rt.plan.ir import Plan
from ficco_rt.plan.text import to_text
from tests import cases

HERE = Path(__file__).parent / "plans"


def plan_at_four(name: str) -> Plan:
    sizes = cases.sizes(name, 4, even=True) | {"T": "bf16"} | cases.few_chunks(name)
    return plan_of(build(cases.schedule(name), 4, sizes), profile("h200-switch", 4))


@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_plan_text(name: str, golden: Callable[[Path, str], None]) -> None:
    plan = plan_at_four(name)
    golden(HERE / f"{name.replace('/', '_')}.txt", f"{to_text(plan)}\nhash {content_hash(plan)}\n")


@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_json_reads_back_to_the_same_plan(name: str) -> None:
    plan = plan_at_four(name)
    text = to_json(plan)
    again = from_json(text)
    assert again == plan
    assert to_json(again) == text
    assert content_hash(again) == content_hash(plan)
    assert [s.origin for t in again.streams for s in t.commands] == [s.origin for t in plan.streams for s in t.commands]


def test_no_golden_file_is_left_of_a_schedule_that_is_gone() -> None:
    assert {p.stem for p in HERE.iterdir()} == {name.replace("/", "_") for name in cases.SCHEDULES}


def test_compiling_twice_gives_equal_plans() -> None:
    assert plan_at_four("gemm_rs/streamed") == plan_at_four("gemm_rs/streamed")
