"""Which plans let multiplications begin before other devices are through the run before, and what a run is then."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import ficco_dsl
from ficco_rt.compiler import build, compile_schedule, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check
from ficco_rt.device.early_begin import EarlyBegin, early_begin_of
from ficco_rt.device.features import usual
from ficco_rt.device.ir import AwaitEvent, Barrier, DevicePlan, EventName, LaunchKernel, Mode, Placement, StreamMemOps
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan

RANKS = 4
MACHINE = profile("h200-switch", RANKS)
FEATURES = usual(MACHINE.device.arch)
APART = Placement(tuple(range(RANKS)), tuple(range(RANKS)))  # a process and a device a rank
PAIRS = Placement(tuple(range(RANKS)), tuple(rank // 2 for rank in range(RANKS)))  # two devices a process
TOGETHER = Placement(tuple(range(RANKS)))  # one process

# a product of the own rows, and of what another rank has sent; what varies is how it came
TEXT = """schedule sent
input   A[64, 64] : fp32
input   B[64, 64] : fp32
{scratch}
output  C[64, 64] : fp32 unproven
output  D[64, 64] : fp32 unproven
queue dma     {{ engine = copy }}
queue compute {{ engine = sm }}
stage own on compute {{ gemm C = A * B }}
{moves}
"""
SENT = "stage move on dma { copy G @ (rank + 1) % ranks <- A }\nstage use on compute { gemm D = G * B }"
MORE = "stage more on compute { gemm D += G * B }"
SCRATCH = "scratch G[64, 64] : fp32"


@cache
def plan_text(scratch: str = SCRATCH, moves: str = SENT) -> Plan:
    return plan_of(build(ficco_dsl.parse(TEXT.format(scratch=scratch, moves=moves), "sent.ficco"), RANKS, {}), MACHINE)


@cache
def shipped(name: str) -> Plan:
    return compile_schedule(name, RANKS, {}, MACHINE)


def early_begin(plan: Plan) -> EarlyBegin | None:
    return early_begin_of(plan, APART, FEATURES)


def made(plan: Plan, mode: Mode = "graph", placement: Placement = APART) -> DevicePlan:
    return device_plan(layout_of(plan, MACHINE.device, placement, FEATURES), mode)


def test_what_is_sent_and_read_lets_products_begin_early() -> None:
    plan = plan_text()
    found = early_begin(plan)
    assert found is not None
    assert found.sends == {rank: {(rank + 1) % RANKS} for rank in range(RANKS)}
    assert {plan.streams[s].queue for s in found.local_streams} == {"compute"}
    assert len(found.local_streams) == RANKS


@pytest.mark.parametrize(
    ("scratch", "moves"),
    [
        # reads what another rank still uses
        (SCRATCH, "stage move on dma { copy G <- A @ (rank + 1) % ranks }\nstage use on compute { gemm D = G * B }"),
        # writes an output: nothing of the run reads it
        ("", "stage move on dma { copy D @ (rank + 1) % ranks <- A }"),
        # a part twice: the second write comes behind the reader, and nothing behind the second
        (SCRATCH, f"{SENT}\nstage again on dma {{ copy G[32:64] @ (rank + 1) % ranks <- B[32:64] }}\n{MORE}"),
        # what is sent is overwritten by whom it is sent to
        (SCRATCH, f"{SENT}\nstage over on compute {{ gemm G = A * B }}\n{MORE}"),
        # half of what is sent is read, but of two copies one is read by nobody
        (
            "scratch G[64, 64] : fp32\nscratch H[64, 64] : fp32",
            f"{SENT}\nstage idle on dma {{ copy H @ (rank + 1) % ranks <- A }}",
        ),
        # nothing is sent
        (SCRATCH, "stage move on dma { copy G <- A }\nstage use on compute { gemm D = G * B }"),
    ],
    ids=["read", "output", "twice", "overwritten", "unread", "alone"],
)  # fmt: skip
def test_what_lets_nothing_begin_early(scratch: str, moves: str) -> None:
    assert early_begin(plan_text(scratch, moves)) is None


def test_products_that_store_elsewhere_begin_with_the_others() -> None:
    """Their stream writes another rank's memory, and there is no other multiplication."""
    moves = "stage far on compute { gemm G @ (rank + 1) % ranks = A * B }\nstage use on compute { gemm D = G * B }"
    assert early_begin(plan_text(SCRATCH, moves)) is None


def test_where_semaphores_need_multiprocessors_nothing_begins_early() -> None:
    assert early_begin_of(plan_text(), APART, replace(FEATURES, batched_mem_ops=False)) is None


def test_shipped_schedules_that_send_have_an_early_begin() -> None:
    for name in ("ag_gemm/streamed", "ag_gemm/hetero_fused_1d", "gemm_rs/streamed", "a2a_gemm/overlapped"):
        assert early_begin(shipped(name)) is not None, name
    for name in ("gemm_ar/serial", "gemm_rs/direct", "ag_gemm/oneshot"):
        assert early_begin(shipped(name)) is None, name


@pytest.mark.parametrize("mode", ["streams", "graph", "traced", "gated"])
def test_each_mode_of_an_opening_holds(mode: Mode) -> None:
    """The check walks through runs in a row, of devices that are never told that another one's run has ended."""
    for name in ("ag_gemm/streamed", "gemm_rs/streamed", "gemm_rs/ring"):
        check(made(shipped(name), mode, PAIRS))
        found = made(shipped(name), mode)
        check(found)
        assert not [w for w in found.semaphores if w.point is not None and w.point.kind == "exit"]
        barriers = [a for a in found.actions if isinstance(a, Barrier)]
        assert bool(barriers) == (mode == "traced")  # where all begin together


def test_graphs_in_callers_graphs_have_an_opening_among_processes() -> None:
    plan = shipped("ag_gemm/streamed")
    for placement, opens in ((APART, True), (PAIRS, True), (TOGETHER, False)):
        found = made(plan, "embedded", placement)
        check(found)
        taken = [a for a in found.body if isinstance(a, StreamMemOps) and any(c.acquires for c in a.changes)]
        assert bool(taken) == opens


def test_inner_streams_wait_for_nobody() -> None:
    """In the graph of a device the multiplication stands behind the graph's begin, the copy behind the others."""
    found = made(plan_text())
    first = {}
    for action in found.body:
        if isinstance(action, AwaitEvent) and action.stream.kind == "plan":
            first.setdefault(action.stream.number, action.event)
    launches = {a.stream.number for a in found.body if isinstance(a, LaunchKernel)}
    for number, event in first.items():
        device = next(s.device for s in found.streams if s.name.number == number)
        assert event == EventName("captured" if number in launches else "open", device)
    assert len(first) == 2 * RANKS
