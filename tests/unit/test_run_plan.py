"""Run plans of shipped schedules hold in all modes and manners, wherever ranks are; mistakes in them are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from ficco_rt.device.ir import CopyMemory, Manner, Mode
from ficco_rt.device.run_plan import CopyBatch, CopyRows, Issued, expected, first_runs
from ficco_rt.errors import InternalError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.unit import run_plan_mutants
from tests.unit.run_plan_mutants import DOUBLE, PLACED, plan, run_plans
from tests.unit.run_plan_rules import checked


@pytest.mark.parametrize(("turn", "name"), list(enumerate(cases.SCHEDULES)))
def test_every_mode_and_placement(turn: int, name: str) -> None:
    for placed in PLACED if cases.ALL else (PLACED[turn % 3],):
        for mode in get_args(Mode):
            for r in run_plans(plan(name, placed, mode)):
                checked(r)


def test_runs_take_their_sets_by_turns() -> None:
    made = plan(DOUBLE, PLACED[2], "streams")
    assert made.sets == 2
    manner = Manner(called=False, behind=True, timed=True, others=False, replays=False)
    assert [checked(expected(made, run, run % 2, manner)).number for run in range(4)] == [0, 1, 0, 1]
    with pytest.raises(InternalError, match="run 3 takes set 0 of 2"):
        checked(expected(made, 3, 0, manner))
    later = Manner(called=True, behind=True, timed=False, others=True, replays=False)
    embedded = plan(DOUBLE, PLACED[2], "embedded")
    assert [checked(expected(embedded, None, number, later)).number for number in (2, 3)] == [2, 3]
    for number in (1, 4):
        with pytest.raises(InternalError, match=f"a run in callers' graphs takes set {number} of 2"):
            checked(expected(embedded, None, number, later))


def test_a_run_behind_replays_only_waits_for_their_event() -> None:
    """No barrier: it costs the host more than the rest of the run."""
    made = plan(DOUBLE, PLACED[2], "graph")

    def calls(replays: bool) -> list[str]:
        r = expected(made, 0, 0, Manner(called=True, behind=True, timed=False, others=False, replays=replays))
        return [line.split(": ", 1)[1] for line in str(checked(r)).partition("\ncalls\n")[2].splitlines()]

    plain = ["graph of device 0, set 0", "record completion of device 0"]
    assert calls(replays=False) == plain
    assert calls(replays=True) == ["wait for replayed of device 0", *plain]


def test_mutants_are_made_of_run_plans_that_hold() -> None:
    for r in run_plan_mutants.pool():
        checked(r)
    for mode in get_args(Mode):
        for r in first_runs(plan(DOUBLE, PLACED[2], mode)):
            checked(r)


def test_mutants() -> None:
    """All of many, `python -m tests.unit.run_plan_mutants --mutants 5000`, are refused."""
    accepted, said = run_plan_mutants.survivors(400, 33)
    assert not [made.what for made in accepted]
    assert len(said) > 8


def test_rows_of_a_pitch_are_in_no_batch() -> None:
    """They would have to be left out of its call."""
    made = plan("ag_gemm/uniform_fused_2d", PLACED[0], "streams")
    manner = Manner(called=False, behind=False, timed=True, others=True, replays=False)
    steps = expected(made, 0, 0, manner).steps
    assert any(isinstance(step, Issued) and isinstance(step.call, CopyRows) for step in steps)
    assert not any(isinstance(step, Issued) and isinstance(step.call, CopyBatch) and step.call.runs for step in steps)
    body = tuple(replace(a, batch=True) if isinstance(a, CopyMemory) and a.moves else a for a in made.body)
    move = next(a.moves[0] for a in body if isinstance(a, CopyMemory) and a.moves)
    with pytest.raises(InternalError) as told:
        expected(replace(made, body=body), 0, 0, manner)
    assert str(told.value) == f"a batch of copies holds rows of one pitch, {move.src} to {move.dst}"


def test_the_text_names_what_is_called() -> None:
    manner = Manner(called=True, behind=True, timed=False, others=True, replays=False)
    text = str(expected(plan("ag_gemm/streamed", PLACED[2], "streams"), 5, 1, manner, 1))
    assert text.startswith(
        "run plan of ag_gemm_streamed, mode streams, process 1\n"
        "  run 5, set 1 of 4, 2 of which are used alternately: on callers' streams, behind the run before, "
        "which was others'\n"
        "  device 1: 3 streams, and one that signals semaphores when a run is given up; 32 hardware queues\n"
    )
    calls = text.partition("\ncalls\n")[2].splitlines()
    assert all(line.split()[1:3] in (["device", "1"], ["device", "1:"]) for line in calls)
    assert any("copy A@1+" in line and " to G@0+" in line and " in set 1" in line for line in calls)


def test_the_host_driver_has_none(small: Plan) -> None:
    with Executor(small, "host") as executor, pytest.raises(UsageError) as told:
        executor.run_plan()
    said = "the host driver runs a plan in numpy: it makes no driver calls, and has no run plan"
    assert str(told.value) == said


@pytest.fixture
def small() -> Plan:
    from ficco_rt.compiler import build, plan_of
    from ficco_rt.machine.profiles import profile

    sizes = cases.sizes("ag_gemm/serial", 2, True)
    return plan_of(build(cases.schedule("ag_gemm/serial"), 2, sizes), profile("h200-switch", 2))
