"""Collectives of the vendor's library: what a queue asks of it, and when it makes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import ficco_dsl
from ficco_rt import compiler
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.check import check as check_device
from ficco_rt.device.features import usual
from ficco_rt.device.ir import AwaitEvent, CallCollective, DevicePlan, Library, Mode, Placement
from ficco_rt.device.layout import Layout
from ficco_rt.device.text import to_text as device_text
from ficco_rt.errors import PlanError
from ficco_rt.graph.ir import CollectiveSettings
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.check import check
from ficco_rt.plan.codec import content_hash, from_json, to_json
from ficco_rt.plan.ir import Plan
from ficco_rt.plan.prove import prove
from ficco_rt.plan.text import to_text

TEXT = """
schedule asked
param M = 64
param some = 8
input   A[M, 16] : bf16
output  G[M * ranks, 16] : bf16
output  S[M, 16] : bf16
computes G = all_gather(A, rows)
computes S = all_reduce(A)
queue vendor {{ engine = nccl {asked} }}
stage gather on vendor {{ all_gather G <- A }}
stage total on vendor {{ all_reduce S <- A }}
"""


def plan_of(asked: str = "", ranks: int = 2) -> Plan:
    schedule = ficco_dsl.parse(TEXT.format(asked=asked), "asked.ficco")
    return compiler.plan_of(compiler.build(schedule, ranks), profile("h200-switch", ranks))


def test_a_queue_asks_and_the_plan_carries_it() -> None:
    plain, asking = plan_of(), plan_of("ctas = some threads = 256")
    assert {stream.collectives for stream in asking.streams} == {CollectiveSettings(8, 256)}
    assert "rank 1 stream vendor (nccl, normal, ctas 8, threads 256)" in to_text(asking)
    assert from_json(to_json(asking)) == asking
    assert '"collectives"' not in to_json(plain)  # plans of others keep their text and hash
    assert content_hash(plain) != content_hash(asking)


def test_what_is_asked_changes_no_value() -> None:
    """All else of the plan is the same, so that one proof holds for both."""
    plain, asking = plan_of(), plan_of("ctas = 0")
    assert replace(asking, streams=tuple(replace(s, collectives=None) for s in asking.streams)) == plain
    prove(asking, check(asking))


# ---------------------------------------------------------------- device plans

BUSY = """
schedule busy
input   A[64, 16] : bf16
input   B[16, 16] : bf16
output  G[64 * ranks, 16] : bf16
output  C[64, 16] : bf16
computes G = all_gather(A, rows)
computes C = A * B
queue vendor  { engine = nccl }
queue compute { engine = sm }
stage multiply on compute streamed { gemm C = A * B }
stage gather on vendor { all_gather G <- A }
"""


def layout(plan: Plan, devices: tuple[int, ...] = (0, 1), library: Library = "NCCL") -> Layout:
    device = profile("h200-switch", plan.ranks).device
    return layout_of(plan, device, Placement(devices), replace(usual(device.arch), collectives=library))


def test_the_library_makes_collectives_where_it_can() -> None:
    found = layout(plan_of("ctas = 8"))
    assert (found.own_way, [c.settings for c in found.communicators]) == ("", [CollectiveSettings(8)])
    assert not found.launches  # no sum of ours
    made = device_plan(found, "graph")
    check_device(made)
    assert [a.kind for a in made.body if isinstance(a, CallCollective)] == ["all_gather"] * 2 + ["all_reduce"] * 2
    assert all(
        semaphore.used == "embedded" for semaphore in made.semaphores
    )  # nobody meets: a collective holds its ranks itself
    assert "communicator 0 of NCCL on each device, queue vendor: ctas 8" in device_text(made)


@pytest.mark.parametrize(
    ("devices", "library", "ranks", "why"),
    [
        ((0, 1), "", 2, "no library of collectives is in use"),
        ((0, 0), "NCCL", 2, "ranks share a GPU, and NCCL takes one rank a GPU"),
        ((0,), "RCCL", 1, "there is one rank"),
    ],
)
def test_else_they_are_copies_and_sums(devices: tuple[int, ...], library: Library, ranks: int, why: str) -> None:
    found = layout(plan_of(ranks=ranks), devices, library)
    assert (found.own_way, found.communicators) == (why, ())
    made = device_plan(found, "streams")
    check_device(made)
    assert not any(isinstance(a, CallCollective) for a in made.body)


def test_communicators_leave_each_other_room() -> None:
    text = TEXT.replace("stage total on vendor", "queue second {{ engine = nccl }}\nstage total on second")
    schedule = ficco_dsl.parse(text.format(asked="ctas = 40"), "asked.ficco")
    machine = profile("h200-switch", 2)
    plan = compiler.plan_of(compiler.build(schedule, 2), machine)
    features = replace(usual(machine.device.arch), collectives="NCCL")
    found = {sms: layout_of(plan, replace(machine.device, sms=sms), Placement((0, 1)), features) for sms in (71, 72)}
    assert found[71].own_way == (
        "collectives may hold 40 of queue 'vendor' + 32 of queue 'second' of 71 multiprocessors at once; say ctas on "
        "the queues"
    )
    check_device(device_plan(found[72], "streams"))


CROWD = """
schedule crowd
input   A[8192, 128] : bf16
input   B[128, 8192] : bf16
input   D[128, 128] : bf16
output  C[8192 * ranks, 8192] : bf16
output  F[128, 128] : bf16
output  G[128, 128] : bf16
output  H[128, 8192] : bf16
scratch X[8192 * ranks, 128] : bf16
computes C = all_gather(A, rows) * B
computes F = all_reduce(D)
computes G = all_reduce(D)
computes H = D * B
queue dma     { engine = copy }
queue compute { engine = sm }
queue library { engine = sm  kernel = vendor }
queue first   { engine = nccl }
queue second  { engine = nccl }
stage one    on first { all_reduce F <- D }
stage two    on second { all_reduce G <- D }
stage single on library { gemm H = D * B }
stage gather on dma { for i in 0..ranks { copy X.rows(rank of ranks) @ i <- A } }
stage mm     on compute streamed { for i in 0..ranks { gemm C.rows(i of ranks) = X.rows(i of ranks) * B } }
"""


@pytest.mark.parametrize("mode", ["streams", "gated"])
def test_launches_that_spin_leave_room_for_all_collectives_and_for_a_product_of_the_library(mode: Mode) -> None:
    plan = compiler.plan_of(compiler.build(ficco_dsl.parse(CROWD, "crowd.ficco"), 2), profile("h200-switch", 2))
    made = device_plan(layout(plan), mode)
    assert {launch.sms for launch in made.launches if launch.spins} == {132 - 2 * 32 - 8}
    check_device(made)
    text = device_text(made)
    assert "communicator 1 of NCCL on each device, queue second: its own choice of blocks" in text
    assert "1 call of the vendor's library" in text


def _without(number: int) -> Callable[[DevicePlan], DevicePlan]:
    return lambda plan: replace(plan, body=(*plan.body[:number], *plan.body[number + 1 :]))


DAMAGE: dict[str, tuple[Callable[[DevicePlan], DevicePlan], str]] = {
    "a rank does not call": (_without(1), "op 1 writes 0 elements; it should write 2048"),
    "no library": (
        lambda plan: replace(plan, features=replace(plan.features, collectives="")),
        "all_gather on rank 0 stream vendor: a call of the vendor's library, and there is none",
    ),
    "another kind": (
        lambda plan: replace(plan, body=(replace(plan.body[0], group=7), *plan.body[1:])),  # type: ignore[arg-type]
        "all_gather on rank 0 stream vendor: collective 7 is called by ranks [0]; all call it in order, "
        "side by side",
    ),
    "no communicator": (
        lambda plan: replace(plan, communicators=()),
        "all_gather on rank 0 stream vendor: there is no communicator 0",
    ),
    "ranks in another order": (
        lambda plan: replace(plan, body=(plan.body[1], plan.body[0], *plan.body[2:])),
        "all_gather on rank 1 stream vendor: collective 0 is called by ranks [1, 0]; all call it in order, "
        "side by side",
    ),
    "calls in another order": (
        lambda plan: replace(plan, body=(plan.body[0], plan.body[3], plan.body[2], plan.body[1])),
        "all_gather on rank 0 stream vendor: collective 0 is called by ranks [0, 1]; all call it in order, "
        "side by side",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_calls_that_would_not_meet_are_refused(name: str) -> None:
    damage, message = DAMAGE[name]
    with pytest.raises(PlanError) as caught:
        check_device(damage(device_plan(layout(plan_of()), "streams")))
    assert caught.value.diagnostics[0].message == message


def test_a_wait_that_is_gone_is_a_race() -> None:
    """The end of a run tells the control stream that the collective is over: without, the next run may be too early."""
    made = device_plan(layout(plan_of()), "streams")
    run_ends = [
        replace(f, epilogue=tuple(a for a in f.epilogue if not (isinstance(a, AwaitEvent) and a.event.kind == "tail")))
        for f in (made.own, made.called)
    ]
    with pytest.raises(PlanError, match="race on "):
        check_device(replace(made, own=run_ends[0], called=run_ends[1]))


def test_launches_that_wait_leave_the_library_its_multiprocessors() -> None:
    plan = compiler.plan_of(compiler.build(ficco_dsl.parse(BUSY, "busy.ficco"), 2), profile("h200-switch", 2))
    found = layout(plan)
    for mode in ("streams", "graph", "traced"):
        check_device(device_plan(found, mode))  # type: ignore[arg-type]
