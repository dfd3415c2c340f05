"""Experts without tokens: nothing is done for them, and what is claimed of nothing holds."""

from __future__ import annotations

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.errors import ScheduleError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine.profiles import profile
from ficco_rt.plan import codec
from ficco_rt.plan.check import check
from ficco_rt.sim.simulate import simulate
from tests import cases

COUNTS = {
    "a rank receives nothing": [[0, 3], [0, 5]],
    "a rank sends nothing": [[0, 0], [2, 5]],
    "a rank has nothing at all": [[0, 3, 0], [0, 5, 0], [0, 0, 0]],
}


@pytest.mark.parametrize("what", COUNTS)
@pytest.mark.parametrize("name", ["a2a_gemm/overlapped", "a2a_gemm/serial"])
def test_shipped(name: str, what: str) -> None:
    counts = COUNTS[what]
    ranks, machine = len(counts), profile("h200-switch", len(counts))
    sizes = {"counts": counts, "N": 5, "K": 7, "T": "fp32"}
    graph = build(cases.schedule(name), ranks, sizes)
    idle = {r for r in range(ranks) if not sum(row[r] for row in counts)}
    assert not {op.where.rank for op in graph.ops if any(w.rank in idle for w in op.writes)}
    assert all(region.elements for op in graph.ops for region in (*op.reads, *op.writes))
    plan = plan_of(graph, machine)
    again = codec.from_json(codec.to_json(plan))
    check(again)
    assert again == plan
    assert simulate(plan, machine).duration > 0
    with Executor(plan) as executor:
        for order in ("fifo", "adversarial", "random(1)"):
            executor.order = order
            assert verified_run(executor, seed=1, values="exact").ok


TEXT = """schedule s
input X[{rows}, 4] : fp32
output Y[{rows}, 4] : fp32
computes Y = X
queue q {{ engine = copy }}
stage all on q {{ for i in 0..2 {{ copy Y.rows(i of {shares}) <- X.rows(i of {shares}) }} copy Y <- X }}
"""


def test_shares_of_nothing_cut_nothing() -> None:
    schedule = ficco_dsl.parse(TEXT.format(rows="6 * rank", shares="[0, 3 * rank]"), "s.ficco")
    assert {op.where.rank for op in build(schedule, 2).ops} == {1}


def test_shares_of_nothing_cut_nothing_else() -> None:
    schedule = ficco_dsl.parse(TEXT.format(rows="6", shares="[0, 0]"), "s.ficco")
    with pytest.raises(ScheduleError, match=r"shares \[0, 0\] add up to 0, and there are 6 to be shared out"):
        build(schedule, 2)


def test_a_tensor_of_nothing_on_all_ranks_is_refused() -> None:
    schedule = ficco_dsl.parse(TEXT.format(rows="0 * rank", shares="2"), "s.ficco")
    with pytest.raises(ScheduleError, match=r"dimension 0 of X is 0 on all ranks; sizes start at 1"):
        build(schedule, 2)
