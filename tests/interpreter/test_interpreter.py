"""The interpreter finds what goes wrong, and the check of device plans accepts no mutant that does harm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ficco_rt.device.check import check
from ficco_rt.device.ir import AwaitEvent, Barrier, CopyMemory, LaunchKernel, RecordEvent, ResetSemaphores, StreamMemOps
from ficco_rt.errors import PlanError
from tests.interpreter.campaign import (
    Judged,
    campaign,
    campaign_together,
    harm,
    judged,
    neighbours,
    together,
    undamaged,
)
from tests.interpreter.hosts import Trial
from tests.interpreter.jobs import JOBS, WORKSPACES, Job, plans
from tests.interpreter.mutants import Mutant
from tests.unit.device_plan_damage import Damage, changed, dropped, launched, taken_first, waited_too_early, without

ORDERS = 8  # of an undamaged job; `python -m tests.interpreter --undamaged 1000` takes more
MUTANTS, SEQUENCES, SEED = 80, 130, 2
SEEN = "reads wrong numbers|outside of a run|its caller does|, and it is up|of another run|stays up|does not end"

STREAMED, LOCAL, EMBEDDED, ENTRIES, TWO_SETS, QUANTIZED = (JOBS[i] for i in (0, 1, 6, 15, 11, 22))


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_undamaged_plans_are_right_in_every_order(job: Job) -> None:
    for order in range(ORDERS):
        Trial([undamaged(job)], order).go()


@pytest.mark.parametrize("number", range(len(WORKSPACES)))
def test_plans_of_a_workspace_follow_each_other_in_every_order(number: int) -> None:
    for order in range(ORDERS):
        Trial(neighbours(WORKSPACES[number], str(order)), order).go()


def test_sums_are_those_of_the_inputs() -> None:
    """What an undamaged plan gives is the product of what the ranks hold."""
    inputs = undamaged(STREAMED).inputs
    given, wanted = inputs.of(1), inputs.wanted[1]
    for rank in range(2):
        left = [row for other in range(2) for row in given["A", other]]
        assert (wanted["C", rank] == left @ given["B", rank]).all()


@pytest.mark.parametrize(
    ("job", "damage", "said"),
    [
        (STREAMED, without(AwaitEvent, "epilogue"), SEEN),
        (STREAMED, without(RecordEvent, "epilogue"), SEEN),
        (STREAMED, without(AwaitEvent, "prologue", "called"), SEEN),
        (STREAMED, dropped(LaunchKernel), SEEN),
        (STREAMED, launched(0, {"resets": ()}), SEEN),
        (STREAMED, launched(0, {"blocks": 0}), "without blocks"),
        (QUANTIZED, dropped(StreamMemOps), SEEN),  # a copy that does not wait for its piece
        (JOBS[17], without(ResetSemaphores, "epilogue"), SEEN),
        (LOCAL, taken_first, "does not end"),
        (LOCAL, dropped(AwaitEvent), "takes no part in the capture"),
        (EMBEDDED, waited_too_early, "does not end"),
        (EMBEDDED, without(Barrier, "prologue", "called"), SEEN),
        (ENTRIES, without(Barrier, "epilogue"), SEEN),
        (TWO_SETS, without(AwaitEvent, "epilogue", "own"), SEEN),
        (TWO_SETS, changed(LaunchKernel, 0, launch=1), SEEN),
    ],
)
def test_mistakes_show(job: Job, damage: Damage, said: str) -> None:
    found = harm(job, Mutant("plan", "damage", damage(plans(job)[job.mode])), 60)
    assert found is not None
    assert re.search(said, str(found[1]))


def test_mistakes_show_in_a_workspace() -> None:
    """Of a plan whose streams do not wait for the runs of others."""
    job, *beside = WORKSPACES[2]
    made = without(AwaitEvent, "prologue", "called")(plans(job)[job.mode])
    found = harm(job, Mutant("called prologue", "damage", made), 60, beside)
    assert found is not None
    assert re.search(SEEN, str(found[1]))


@pytest.mark.parametrize(
    ("job", "seed"),
    [
        (6, 77000117),  # a caller's stream says at the begin of a replay that it is over
        (7, 5000013),  # a caller's stream waits at another place for the end of another device
        (8, 1000032),  # a semaphore stands for another one's flag
        (11, 5000008),  # a wait for another device is on another stream
    ],
)
def test_mutants_that_do_harm_are_refused(job: int, seed: int) -> None:
    refused(judged(JOBS[job], seed), 60)


@pytest.mark.parametrize(
    ("workspace", "seed"),
    [
        (5, 11000074),  # behind a replay the wait is for a time, not for its end
        (0, 21000892),  # an end waits for a stream behind replays alone
        (0, 21000146),  # a copy is missing
        (3, 21001950),  # a begin waits for a time, not for the caller
    ],
)
def test_mutants_that_do_harm_in_a_workspace_are_refused(workspace: int, seed: int) -> None:
    one = together(workspace, seed)
    refused(one, 200, [job for job in WORKSPACES[workspace] if replace(job, mode=one.job.mode) != one.job])


def refused(one: Judged, orders: int, beside: Sequence[Job] = ()) -> None:
    """And it would have done harm: where plans have changed, the seed may be another mutant's."""
    assert one.verdict == "refused"
    assert harm(one.job, one.mutant, orders, beside) is not None, f"harmless now: {one}; take another seed"


def test_no_harmful_mutant_is_accepted() -> None:
    """By the verdict of `python -m tests.interpreter`, which takes thousands."""
    assert [str(one) for one in campaign(JOBS, MUTANTS, SEED, orders=30) if one.bad] == []


def test_no_harmful_mutant_is_accepted_in_a_workspace() -> None:
    """By the verdict of `python -m tests.interpreter --together`, which takes tens of thousands of sequences."""
    made = campaign_together(range(len(WORKSPACES)), SEQUENCES, SEED, orders=10)
    assert [str(one) for one in made if one.bad] == []


@pytest.mark.parametrize("job", [next(job for job in JOBS if job.scaled), QUANTIZED], ids=str)
def test_copies_of_scales_stay_where_they_are(job: Job) -> None:
    """A device plan that drops one, or copies it last of all, is refused; and it does harm."""
    plan = plans(job)[job.mode]
    damaged = 0
    for i, action in enumerate(plan.body):
        moved = action.moves if isinstance(action, CopyMemory) else ()
        scales = tuple(move for move in moved if move.src.tensor in ("A.scales", "Q.scales"))
        if not scales:
            continue
        damaged += 1
        rest = tuple(move for move in moved if move not in scales)
        kept = (*plan.body[:i], *((replace(action, moves=rest),) if rest else ()), *plan.body[i + 1 :])
        for body in (kept, (*kept, replace(action, moves=scales))):
            made = replace(plan, body=body)
            with pytest.raises(PlanError):
                check(made)
            found = harm(job, Mutant("body", "damage", made), 60)
            assert found is not None
            assert re.search(SEEN, str(found[1]))
    assert damaged >= len(job.devices)
