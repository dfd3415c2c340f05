"""The proof rejects every damaged graph that computes wrong numbers; what it lets through computes right ones."""

from __future__ import annotations

import re
from collections import Counter

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.errors import ScheduleError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.graph import ir
from ficco_rt.machine.profiles import profile
from tests import cases
from tests.host.graph_damage import KINDS, Mutant, mutants, restaged

RANKS = 3
EACH = 96 if cases.ALL else 48  # mutants a schedule; with the shipped schedules more than 1,000 in all


def small(name: str) -> ir.Graph:
    """Square operands where the schedule allows, so that a wrong transpose still fits."""
    declared = {p.name for p in cases.schedule(name).params}
    sizes: dict[str, object] = {"M": 6 * RANKS, "N": 6 * RANKS, "K": 6, "T": "fp32"}
    if name.split("/")[0] in ("gemm_rs", "gemm_ar"):
        sizes |= {"K": 6 * RANKS, "N": 6}
    if "counts" in declared:
        sizes |= {"counts": [[2 + (s + e) % 2 for e in range(RANKS)] for s in range(RANKS)], "N": 6}
    chosen = {k: v for k, v in sizes.items() if k in declared or k == "T"} | cases.few_chunks(name)
    if "chunks" in chosen:
        chosen["chunks"] = 2
    return build(cases.schedule(name), RANKS, chosen)


def rejection(graph: ir.Graph, mutant: Mutant) -> ScheduleError | None:
    """What the compiler says of a mutant, or None. Numbers of what it accepts are run and must be right."""
    try:
        plan = plan_of(restaged(graph, mutant.ops), profile("h200-switch", RANKS))
    except ScheduleError as error:
        return error
    with Executor(plan) as executor:
        for order in ("fifo", "adversarial", "random(1)", "random(2)"):
            executor.order = order
            result = verified_run(executor, seed=7, values="exact")
            assert result.ok, f"accepted, and wrong: {mutant.what}: {result.worst}"
    return None


@pytest.mark.parametrize("name", cases.SCHEDULES)
def test_what_is_accepted_is_right(name: str) -> None:
    graph = small(name)
    tally: Counter[str] = Counter()
    for mutant in mutants(graph, seed=cases.SCHEDULES.index(name), count=EACH):
        error = rejection(graph, mutant)
        tally["rejected" if error else "accepted"] += 1
        if error is not None:
            first = error.diagnostics[0]
            text = str(first)
            assert first.span.line > 1, mutant.what
            assert re.search(r"\brank|@\d", text), f"no rank: {mutant.what}: {text}"
            assert re.search(r"rows \d|columns \d|\[(-?\d+, )*-?\d+:\d+", text), f"no range: {mutant.what}: {text}"
            assert any(re.search(rf"\b{t.name}\b", text) for t in graph.tensors), f"no tensor: {text}"
    assert tally.total() == EACH
    assert tally["rejected"] >= EACH // 2, f"damage that does no harm: {tally}"


FUNCTIONS = """schedule functions
input A[6, 18 / ranks] : fp32
input B[18 / ranks, 6] : fp32
input bias[6] : fp32
input R[6 / ranks, 6] : fp32
output C[6 / ranks, 6] : fp32
output D[6 / ranks, 6] : fp32
scratch P[6, 6] : fp32
computes C = gelu(reduce_scatter(A * B, rows) + bias)
computes D = silu_mul(reduce_scatter(A * B, rows), R + bias)
queue sm { engine = sm }
stage mm on sm { for c in 0..2 { gemm P.cols(c of 2) = A * B.cols(c of 2) } }
stage end on sm {
  reduce C = gelu(sum(P.rows(rank of ranks) @ all, bias))
  reduce D = sum(R, bias)
  reduce D = silu_mul(sum(P.rows(rank of ranks) @ all), D)
}
"""


def test_functions_of_other_sums_are_refused_or_right() -> None:
    graph = build(ficco_dsl.parse(FUNCTIONS, "functions.ficco"), RANKS)
    tally: Counter[bool] = Counter()
    for mutant in mutants(graph, seed=1, count=3 * EACH):
        tally[rejection(graph, mutant) is not None] += 1
    assert tally[True] >= 2 * EACH, f"damage that does no harm: {tally}"


def test_there_are_enough_mutants() -> None:
    assert EACH * len(cases.SCHEDULES) >= 1000
    kinds = Counter(
        mutant.what.split(":")[0].split(" of rank")[0]
        for name in ("gemm_rs/chunked", "ag_gemm/uniform_fused_2d")
        for mutant in mutants(small(name), seed=0, count=EACH)
    )
    assert len(kinds) >= len(KINDS) - 1  # these have no functions
