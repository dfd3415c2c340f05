"""What a compilation may cost: budgets, their meter, and loops that once paid nothing or looked at too much."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import pytest

import ficco_dsl
from ficco_dsl.diagnostics import ScheduleError
from ficco_rt.cli.main import execute
from ficco_rt.compiler import build, plan_of
from ficco_rt.device import build as device
from ficco_rt.device.features import usual
from ficco_rt.device.ir import Placement, RunEnds
from ficco_rt.graph import budget, prove
from ficco_rt.graph.ir import Gemm, Reduce
from ficco_rt.graph.kinds import likeness
from ficco_rt.kernels.naive import plain_kernels as kernels
from ficco_rt.kernels.works import kernel_work, only, symbolic
from ficco_rt.machine.profiles import profile
from ficco_rt.plan import sync
from ficco_rt.plan.clock import Clock
from ficco_rt.plan.lower import lower
from ficco_rt.sim.contention import Activity, Sharing
from tests import cases

HEAD = """schedule b
input X[64, 64] : fp32
output Y[64, 64] : fp32 unproven
queue dma { engine = copy }
queue sm { engine = sm }
queue vendor { engine = nccl }
"""
CALLS = HEAD + "stage s on vendor { all_reduce Y <- X }\n"
SUMS = HEAD + "stage s on sm { reduce Y = sum(X @ all) }\n"
COPIES = HEAD + "stage s on dma { copy Y <- X @ (rank + 1) % ranks }\n"
MEETING = HEAD + "stage s on dma { copy Y <- X @ 0 }\n"
PLAN, RUN = ("--emit", "device-plan"), ("--backend", "sim")
PAYS = (  # a kind of budget, where it is spent, a program with more than three of it, what that says
    ("WORKS", "device.launches", SUMS, RUN, "kernels are looked for for more than 3 works"),
    ("OPERANDS", "device.launches", SUMS, RUN, "the launches of the plan have more than 3 operands"),
    ("COLLECTED", "device.launches", CALLS, RUN, "the collectives of the plan are more than 3 copies and sums"),
    ("SEMAPHORES", "device.semaphores", CALLS, RUN, "the devices of the plan need more than 3 semaphores"),
    ("NODES", "device.sequence", COPIES, PLAN, "the check of the device plan has more than 3 actions"),
    ("ACTIONS", "device.build", COPIES, RUN, "a run of the plan is more than 3 driver calls"),
    ("SHARED", "sim.virtual_clock", MEETING, RUN, "the copies of the plan change each other's rates more than 3 times"),
)


@pytest.mark.parametrize(("kind", "where", "text", "command", "says"), PAYS, ids=[row[0] for row in PAYS])
def test_what_is_made_of_a_plan_is_paid_for(
    kind: str,
    where: str,
    text: str,
    command: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = replace(getattr(budget, kind), most=3 / budget.most_ops())
    monkeypatch.setattr(f"ficco_rt.{where}.{kind}", few)
    path = tmp_path / "b.ficco"
    path.write_text(text, encoding="utf-8")
    assert execute("ficco-run", [str(path), "--gpus", "4", *command]) == 1
    said = capsys.readouterr().err
    assert says in said
    assert "b.ficco:7:" in said


@pytest.mark.parametrize("where", ["fuse", "choose_kernels"])
def test_lowering_pays_for_works_that_kernels_are_found_for(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"ficco_rt.plan.{where}.WORKS", replace(budget.WORKS, most=3 / budget.most_ops()))
    graph = build(cases.schedule("gemm_rs/streamed"), 4, {"M": 256, "N": 128, "K": 128, "chunks": 4})
    with pytest.raises(ScheduleError, match="kernels are looked for for more than 3 works"):
        plan_of(graph, profile("h200-switch", 4))


def test_the_meter_grows_with_ranks_and_memory_does_not() -> None:
    assert [budget.growth(ranks) for ranks in (1, 8, 132, 256, 1024)] == [1, 1, pytest.approx(2.95), 4.9, 4.9]
    mosts = []
    for ranks in (1, 1024):
        with budget.one_meter(ranks):
            made = budget.Budget(budget.PIECES)
            mosts.append((made.most, made.meter.most))
    assert mosts == [(2_000_000, 11_000_000), (2_000_000, pytest.approx(53_900_000))]


@pytest.mark.parametrize("command", [PLAN, RUN], ids=["device plan", "model"])
def test_a_command_draws_on_one_meter(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[int] = []
    meter = budget._Meter
    monkeypatch.setattr(budget, "_Meter", lambda ranks: (made.append(ranks), meter(ranks))[1])
    path = tmp_path / "b.ficco"
    path.write_text(COPIES, encoding="utf-8")
    assert execute("ficco-run", [str(path), "--gpus", "4", *command]) == 0
    assert made == [4]
    capsys.readouterr()


@pytest.mark.parametrize(("sizes", "steps"), [((2, 3, 8), 17.5), ((1, 1, 2, 1, 3, 8), 25)])
def test_a_run_of_memory_takes_more_steps_in_more_dimensions(sizes: tuple[int, ...], steps: float) -> None:
    shape, half = ", ".join(map(str, sizes)), ", ".join(f"0:{n}" for n in (*sizes[:-2], 2, 4))
    declared = f"input V[{shape}] : fp32 output W[{shape}] : fp32 unproven"
    graph = build(ficco_dsl.parse(f"{HEAD}{declared} stage s on dma {{ copy W[{half}] <- V[{half}] }}", "b.ficco"), 1)
    with budget.one_meter(1):
        lower(graph, profile("h200-switch", 1))
        (runs,) = (b for b in budget.Budget(budget.RUNS).meter.budgets if b.kind is budget.RUNS and b.steps)
    assert runs.steps == steps * (runs.most - runs.left) > 0


# ---------------------------------------------------------------- loops that looked at too much


def test_terms_that_lie_alike_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums on 64 ranks of 64 terms each once took 30 seconds to count tiles."""
    seen: list[int] = []
    cells = kernels.cells
    monkeypatch.setattr(kernels, "cells", lambda regions, *of: (seen.append(len(regions)), cells(regions, *of))[1])
    graph = build(ficco_dsl.parse(SUMS, "b.ficco"), 64)
    (work,) = only([kernel_work(graph.ops[0].body, symbolic(graph.tensors))], Reduce)
    assert len(work.body.terms) == 64
    tiles = kernels.NaiveReduce().tiles(work, (1, kernels.SUM_TILE))
    assert tiles == sum(job.tiles for job in kernels._jobs(work.views)) == 2
    assert seen == [2, 65]


def test_copies_that_begin_and_end_together_are_foreseen_once() -> None:
    """Each of 1,023 copies out of one rank once changed the rates of all others: a million events, and as many ends."""
    events: list[tuple[float, int, Callable[[], None]]] = []
    order, ended, ranks = count(), [], 200
    sharing = Sharing(lambda port: 100.0, 1, lambda time, action: heappush(events, (time, next(order), action)))
    for _ in range(1, ranks):
        copy = sharing.begin(0.0, {"port": 100.0})

        def done(copy: Activity = copy) -> None:
            sharing.end(now, copy)
            ended.append(now)

        sharing.call(0.0, copy, 1.0, done)
    while events:
        now, _, action = heappop(events)
        action()
    assert len(ended) == ranks - 1
    assert len(set(ended)) == 1
    assert next(order) < 4 * ranks


def test_shares_of_a_collective_are_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    shares = prove.equal_shares
    monkeypatch.setattr(prove, "equal_shares", lambda rows, ranks: (calls.append(ranks), shares(rows, ranks))[1])
    prove.prove(build(ficco_dsl.parse(CALLS, "b.ficco"), 8))
    assert calls == [8]


def test_the_model_of_a_run_has_no_frames() -> None:
    """Of 1,024 devices they are three million actions."""
    machine = profile("h200-switch", 2)
    plan = plan_of(build(ficco_dsl.parse(COPIES, "b.ficco"), 2), machine)
    layout = device.layout_of(plan, machine.device, Placement((0, 1)), usual(machine.device.arch))
    whole, body = device.device_plan(layout, "streams"), device.modelled(layout, "streams")
    assert body.body == whole.body
    assert body.own == body.called == RunEnds((), ())
    assert whole.own.prologue


def test_launches_of_many_works_have_their_keys_soon() -> None:
    """20,000 works once took eight seconds."""
    sizes = {"M": 256, "N": 128, "K": 128, "chunks": 2}
    graph = build(cases.schedule("ag_gemm/streamed"), 2, sizes)
    gemm = next(op.body for op in graph.ops if isinstance(op.body, Gemm))
    shapes = {t.name: t.shapes for t in graph.tensors}
    begin = time.process_time()
    assert len({tuple(likeness(gemm, 0, shapes) for _ in range(20_000))}) == 1
    assert time.process_time() - begin < 2


def test_waits_that_others_imply_are_those_that_a_comparison_of_all_pairs_finds() -> None:
    rng = Random(5)
    for _ in range(200):
        candidates = _ends(rng)
        left = sync._irredundant(candidates)
        assert left == [u for u in sorted(candidates) if not any(_implies(o, u, candidates) for o in candidates)]


def _ends(rng: Random) -> dict[int, sync._Stamp]:
    """Ends of ops of a history: each op begins behind some of those before it on other streams."""
    streams, bits = 4, count()
    clocks = [Clock(np.zeros(streams, np.int32), 0) for _ in range(streams)]
    length, ends = [0] * streams, {}
    for op in range(rng.randint(2, 20)):
        s = rng.randrange(streams)
        clock = clocks[s]
        for other in rng.sample(sorted(ends), rng.randint(0, min(2, len(ends)))):
            clock = ends[other].joined_to(clock)
        if s == 0 and length[s] and rng.random() < 0.7:  # works of one launch
            ends[op] = sync._Stamp(clock, s, length[s], next(bits))
            clocks[s] = clock.at(s, length[s] - 1)
            continue
        length[s] += 1
        ends[op] = sync._Stamp(clock.at(s, length[s] - 1), s, length[s], next(bits) if s == 0 else -1)
        clocks[s] = clock.at(s, length[s] - (s == 0))
    return {op: ends[op] for op in rng.sample(sorted(ends), rng.randint(1, len(ends)))}


def _implies(one: int, other: int, ends: dict[int, sync._Stamp]) -> bool:
    """Does the end of `one` imply the end of `other`?"""
    a, b = ends[one], ends[other]
    if one == other:
        return False
    if b.known_to(a.clock):
        return True
    return a.stream == b.stream and (b.position < a.position or (b.position == a.position and a.bit < 0))
