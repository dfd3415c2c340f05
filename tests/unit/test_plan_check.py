"""The plan check sees everything: each single wait taken out of a shipped plan is a race."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

import ficco_dsl
from ficco_rt.compiler import build
from ficco_rt.errors import PlanError
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.check import check
from ficco_rt.plan.ir import Launch, Plan
from ficco_rt.plan.lower import lower
from tests import cases
from tests.unit import plan_damage as damage

RANKS = (4, 8) if cases.ALL else (4,)
MACHINES = ("h200-switch", "mi300x-mesh", "h200-ring")
HALF = len(cases.SCHEDULES) // 2  # of the schedules, whose checks take long
Deps = tuple[tuple[int, int], ...]


def compiled(name: str, ranks: int, machine: str, **params: object) -> tuple[Plan, Deps]:
    """A shipped schedule's plan, and the pairs of ops that its meaning orders."""
    graph = build(cases.schedule(name), ranks, {**cases.short(name), **params})
    plan = lower(graph, profile(machine, ranks))
    check(plan)
    return plan, tuple((d.before, after) for after, deps in enumerate(graph.deps) for d in deps)


def messages(plan: Plan) -> list[str]:
    with pytest.raises(PlanError) as caught:
        check(plan)
    return [str(d) for d in caught.value.diagnostics]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_each_wait_taken_out_is_a_race(name: str, ranks: int) -> None:
    plan, _ = compiled(name, ranks, "h200-switch", **(cases.few_chunks(name) if ranks > 4 else {}))
    count = 0
    for damaged in damage.without_one_wait(plan):
        count += 1
        found = messages(damaged.plan)
        # both accesses, with their lines
        assert any("race on" in m and "the other access" in m and m.count(".ficco:") >= 2 for m in found), damaged.what
    waits = sum(type(c).__name__ in ("WaitEvent", "WaitFlag") for s in plan.streams for c in s.commands)
    waits += sum(len(w.waits) for s in plan.streams for c in s.commands for w in getattr(c, "works", ()))
    assert count == waits
    assert (waits > 0) == (name != "concurrent/a2a_streamed")  # where tiles are stored on the peer, no rank waits


@pytest.mark.parametrize(
    ("name", "machine"),
    [(n, m) for turn, n in enumerate(cases.few(cases.SCHEDULES, HALF, 1)) for m in cases.few(MACHINES[1:], 1, turn)],
)
def test_each_wait_taken_out_is_a_race_on_other_machines(name: str, machine: str) -> None:
    plan, _ = compiled(name, 4, machine, **cases.few_chunks(name))
    for damaged in damage.without_one_wait(plan):
        assert any("race on" in m for m in messages(damaged.plan)), damaged.what


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_a_plan_orders_what_its_graph_orders(name: str, ranks: int) -> None:
    plan, deps = compiled(name, ranks, "h200-switch")
    assert damage.unordered(plan, deps) == []


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", cases.few(cases.SCHEDULES, HALF, 0))
def test_a_stream_cut_in_two_is_a_race_where_its_order_was_needed(name: str, ranks: int) -> None:
    plan, deps = compiled(name, ranks, "h200-switch", **cases.few_chunks(name))
    for damaged in damage.with_stream_cut(plan):
        streams = damaged.plan.streams
        streamed = {(s.rank, s.id) for s in streams for c in s.commands if isinstance(c, Launch) and c.streamed}
        if damage.unordered(damaged.plan, deps):
            assert any("race on" in m for m in messages(damaged.plan)), damaged.what
        elif max(Counter(rank for rank, _ in streamed).values(), default=0) < 2:
            check(damaged.plan)
        else:  # of two streamed launches side by side one may keep the other from its multiprocessors
            assert all("deadlock" in m for m in messages(damaged.plan)), damaged.what
            assert any("waits for the multiprocessors of rank" in m for m in messages(damaged.plan)), damaged.what


def test_stream_order_that_carries_something_is_seen() -> None:
    """Of all cuts some matter: the test above does not pass for want of them."""
    plan, deps = compiled("gemm_rs/serial", 4, "h200-switch")
    needed = [d for d in damage.with_stream_cut(plan) if damage.unordered(d.plan, deps)]
    assert len(needed) == 12
    for damaged in needed:
        assert any("race on" in m for m in messages(damaged.plan))


@pytest.mark.parametrize("name", cases.few(cases.SCHEDULES, HALF, 1))
def test_a_mark_swapped_with_a_wait_deadlocks_or_not_as_the_orders_say(name: str) -> None:
    plan, _ = compiled(name, 4, "h200-switch", **cases.few_chunks(name))
    for damaged in damage.with_mark_and_wait_swapped(plan):
        try:
            damage.happens_before(damaged.plan)
            circular = False
        except damage.Cycle:
            circular = True
        try:
            check(damaged.plan)
            found = ""
        except PlanError as error:
            found = str(error)
        assert ("deadlock" in found) == circular, f"{damaged.what}: {found}"


@pytest.mark.parametrize("name", ["gemm_rs/serial", "gemm_rs/shard", "gemm_rs/ring", "ag_gemm/shard_ring"])
def test_a_deadlock_names_who_waits_for_what(name: str) -> None:
    plan, _ = compiled(name, 4, "h200-switch")
    deadlocks = []
    for damaged in damage.with_mark_and_wait_swapped(plan):
        try:
            check(damaged.plan)
        except PlanError as error:
            if "deadlock" in str(error):
                deadlocks.append(error)
    assert deadlocks
    for error in deadlocks:
        for d in error.diagnostics:
            assert "deadlock: rank" in d.message
            assert "waits for event" in d.message
            assert any("gives it here" in n.text and n.span is not None for n in d.notes)


CHAINED = """
schedule chained
param chunks = 2
input   A[8, 8] : fp32
input   B[8, 8] : fp32
output  C[8 * ranks, 8] : fp32 unproven
scratch P[8, 8] : fp32
scratch G[8 * ranks, 8] : fp32
queue first  { engine = sm }
queue second { engine = sm }
queue dma    { engine = copy }
stage make on first {
  gemm P = A * B
}
stage send on dma {
  for p in peers { copy G.rows(rank of ranks) @ p <- P }
  copy G.rows(rank of ranks) <- P
}
stage use on second streamed LIMIT {
  for p in all { gemm C.rows(p of ranks) = G.rows(p of ranks) * B }
}
"""


def chained(limit: str) -> Plan:
    graph = build(ficco_dsl.parse(CHAINED.replace("LIMIT", limit), "chained.ficco"), 2)
    return lower(graph, profile("h200-switch", 2))


def test_a_streamed_launch_starts_after_what_it_needs_of_its_own_multiprocessors() -> None:
    """Copies bring what kernels of this very device make: those must be over before a launch that spins."""
    plan = chained("")
    check(plan)
    second = [s for s in plan.streams if s.queue == "second"]
    assert [type(c).__name__ for c in second[0].commands] == ["WaitEvent", "Launch"]
    for stream in second:
        bare = damage.with_stream(plan, replace(stream, commands=stream.commands[1:]))
        for other in second:
            bare = damage.with_stream(bare, replace(other, commands=other.commands[-1:]))
        (first, *_) = messages(bare)
        assert "deadlock: rank" in first
        assert "the streamed launch on second may hold them" in first


def test_a_streamed_launch_that_leaves_room_need_not_wait() -> None:
    plan = chained("with sms = 100")
    check(plan)
    assert [type(c).__name__ for s in plan.streams if s.queue == "second" for c in s.commands] == ["Launch"] * 2
