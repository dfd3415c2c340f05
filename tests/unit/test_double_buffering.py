"""Which plans take two sets of scratch and semaphores alternately, and what a run is then."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import get_args

import pytest

import ficco_dsl
from ficco_rt.compiler import build, compile_schedule, plan_of
from ficco_rt.device import double_buffering
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.codec import from_json, to_json
from ficco_rt.device.double_buffering import double_buffered
from ficco_rt.device.features import usual
from ficco_rt.device.ir import Barrier, Mode, Placement
from ficco_rt.device.layout import Layout
from ficco_rt.device.text import to_text
from ficco_rt.errors import PlanError
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from tests import cases

RANKS = 4
MACHINE = profile("h200-switch", RANKS)
FEATURES = usual(MACHINE.device.arch)
APART = Placement(tuple(range(RANKS)), tuple(range(RANKS)))  # a process and a device a rank
PAIRS = Placement(tuple(range(RANKS)), tuple(rank // 2 for rank in range(RANKS)))  # two devices a process
ONESHOTS = ("ag_gemm/oneshot", "gemm_rs/oneshot", "gemm_ar/oneshot")

TEXT = """schedule sent
input   A[64, 64] : fp32
input   B[64, 64] : fp32
scratch G[64, 64] : fp32
scratch H[64, 64] : fp32
output  D[64, 64] : fp32 unproven
output  E[64, 64] : fp32 unproven
{more}queue dma  {{ engine = copy }}
queue back {{ engine = copy }}
queue compute {{ engine = sm }}
{moves}
"""
NEXT, BEFORE = "(rank + 1) % ranks", "(rank + ranks - 1) % ranks"
PUSHED = f"stage move on dma {{ copy G @ {NEXT} <- A }}\nstage use on compute {{ gemm D = G * B }}"
PUSHED_BACK = f"stage again on back {{ copy H @ {BEFORE} <- A }}\nstage used on compute {{ gemm E = H * B }}"
UNREAD = f"stage again on back {{ copy H @ {BEFORE} <- A }}\nstage used on compute {{ gemm E = A * B }}"
PULLED = (
    f"stage make on compute {{ gemm G = A * B }}\nstage take on dma {{ copy D <- G @ {NEXT} }}\n"
    f"stage again on back {{ copy E <- G @ {BEFORE} }}"
)
PULLED_ONE_WAY = f"stage make on compute {{ gemm G = A * B }}\nstage take on dma {{ copy D <- G @ {NEXT} }}"
UNSHARED = "stage own on compute { gemm E = A * B }"
MORE = {"F": "output  F[64, 64] : fp32 unproven\n", "K": "scratch K[64, 64] : fp32\n"}
ADDED = "stage more on back { copy F <- A }"
OUTPUT = f"stage more on back {{ copy F @ {NEXT} <- A }}"


@cache
def plan_text(*moves: str) -> Plan:
    more = "".join(line for name, line in MORE.items() if any(f"copy {name} " in text for text in moves))
    text = TEXT.format(moves="\n".join(moves), more=more)
    return plan_of(build(ficco_dsl.parse(text, "sent.ficco"), RANKS, {}), MACHINE)


@cache
def shipped(name: str, **sizes: int) -> Plan:
    return compile_schedule(name, RANKS, sizes, MACHINE)


def layout(plan: Plan, placement: Placement = APART) -> Layout:
    return layout_of(plan, MACHINE.device, placement, FEATURES)


@pytest.mark.parametrize("name", ONESHOTS)
def test_those_that_send_all_at_once(name: str) -> None:
    """Some write the others' scratch, some read it."""
    for placement in (APART, PAIRS):
        assert double_buffered(shipped(name, M=64), placement, FEATURES)
        assert (layout(shipped(name, M=64), placement).sets, layout(shipped(name, M=64), placement).kept_sets) == (2, 3)


@pytest.mark.parametrize(
    ("moves", "wanted"),
    [
        ((PUSHED, PUSHED_BACK), True),
        ((PULLED,), True),
        ((PUSHED, UNSHARED), False),  # of three and more: who is written to does not write back
        ((PUSHED, UNREAD), False),  # nor is what comes back read
        ((PULLED_ONE_WAY, UNSHARED), False),
        ((ADDED, PUSHED, PUSHED_BACK), True),
        ((OUTPUT, PUSHED, PUSHED_BACK), False),  # callers' tensors are no scratch
    ],
    ids=["pushed", "pulled", "one way", "unread", "pulled one way", "added", "output"],
)
def test_each_two_that_share_something_hear_of_each_other(moves: tuple[str, ...], wanted: bool) -> None:
    assert double_buffered(plan_text(*moves), APART, FEATURES) == wanted


def test_two_writers_of_one_place() -> None:
    """Which of them a reader hears of is not looked for."""
    over = f"stage over on dma {{ copy G @ {BEFORE} <- A }}\nstage look on compute {{ gemm D = G * B }}"
    then = f"stage move on back {{ copy G @ {NEXT} <- A }}\nstage use on compute {{ gemm D += G * B }}"
    both = f"stage both on dma {{ copy K @ {NEXT} <- A }}\nstage all on compute {{ gemm E += K * B }}"
    assert double_buffered(plan_text(PUSHED, PUSHED_BACK, both), APART, FEATURES)
    assert not double_buffered(plan_text(over, then, PUSHED_BACK, both), APART, FEATURES)


def test_where_it_is_of_no_use() -> None:
    plan = shipped("ag_gemm/oneshot", M=64)
    alone = Placement(tuple(range(RANKS)))
    for one in (alone, replace(alone, processes=(0,) * RANKS)):  # one process, which knows all ends by events
        assert not double_buffered(plan, one, FEATURES)
        for mode in get_args(Mode):
            check(device_plan(layout(plan, one), mode))
    assert not double_buffered(plan, replace(APART, nodes=(0, 0, 1, 1)), FEATURES)
    assert not double_buffered(shipped("gemm_ar/serial", M=64), APART, FEATURES)  # collectives
    assert not double_buffered(plan, APART, replace(FEATURES, keeps_shared=False))  # others may still read it
    opened = layout(shipped("ag_gemm/streamed", M=64))
    assert opened.early_begin is not None  # which begins as early
    assert (opened.sets, opened.kept_sets) == (1, 1)


def test_large_scratch_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = shipped("ag_gemm/oneshot", M=64, K=512)
    bytes_ = 64 * 512 * 2
    monkeypatch.setattr(double_buffering, "LARGEST", bytes_)
    assert double_buffered(plan, APART, FEATURES)
    monkeypatch.setattr(double_buffering, "LARGEST", bytes_ - 1)
    assert not double_buffered(plan, APART, FEATURES)


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("name", ONESHOTS)
def test_runs_do_not_wait_for_the_others_ends(name: str, mode: Mode) -> None:
    """But those in callers' graphs do, and traced ones begin together."""
    made = device_plan(layout(shipped(name, M=64)), mode)
    check(made)
    assert from_json(to_json(made)) == made
    assert made.sets == (1 if mode == "embedded" else 2)
    assert ("2 sets of semaphores and scratch" in to_text(made)) == (mode != "embedded")
    barriers = [action for action in made.actions if isinstance(action, Barrier)]
    assert bool(barriers) == (mode in ("embedded", "traced"))
    ends = (*made.own.epilogue, *made.called.epilogue, *(made.body if mode == "embedded" else ()))
    assert any(isinstance(action, Barrier) for action in ends) == (mode == "embedded")


@pytest.mark.parametrize("mode", ["streams", "graph"])
@pytest.mark.parametrize("name", ONESHOTS)
def test_one_set_would_not_do(name: str, mode: Mode) -> None:
    made = device_plan(layout(shipped(name, M=64)), mode)
    with pytest.raises(PlanError, match=r"race on [GP]@\d rows"):
        check(replace(made, sets=1))


def test_the_end_of_a_run_is_that_of_all_it_raises() -> None:
    """Side streams signal flags behind copies. Nobody tells that these have come, so the end waits for them."""
    name = "ag_gemm/streamed"
    sizes = cases.sizes(name, RANKS, even=True) | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), RANKS, sizes), MACHINE)
    features = replace(FEATURES, batched_mem_ops=False, copy_batches=False)
    made = device_plan(layout_of(plan, MACHINE.device, APART, features), "streams")
    assert made.sets == 2
    sides = {stream.name for stream in made.streams if stream.name.kind == "signal"}
    tails = {action.event for action in made.own.epilogue if action.stream in sides}  # type: ignore[union-attr]
    awaited = {action.event for action in made.own.epilogue if action.stream.kind == "control"}  # type: ignore[union-attr]
    assert sides
    assert len(tails) == len(sides)
    assert tails <= awaited
