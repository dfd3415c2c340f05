"""Functions of products that are cut off into sums: where, and that the results stay the same."""

from __future__ import annotations

import pytest

import ficco_dsl
from ficco_rt.compiler import build, lint, plan_of
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.graph.ir import Graph, Reduce
from ficco_rt.machine.profiles import profile
from ficco_rt.plan import epilogues
from ficco_rt.plan.epilogues import cut_epilogues

TEXT = """schedule x
param M = 4096
param N = 2048
input   A[M / ranks, N]   : bf16
input   B[N, N]           : bf16
input   U[M, N]           : bf16
input   b[N]              : bf16
output  H[M, N]           : bf16
output  S[M, N]           : bf16
output  T[M, N]           : bf16
scratch G[M, N]           : bf16
computes H = silu_mul(all_gather(A, rows) * B + b, U)
computes S = silu(all_gather(A, rows) * B)
computes T = OF_T
queue dma { engine = copy }
queue q { engine = sm }
stage gather on dma { for p in all { copy G.rows(rank of ranks) @ p <- A } }
stage mm on q STREAMED { for c in 0..2 {
  gemm H.rows(c of 2) = silu_mul(G.rows(c of 2) * B + sum(b), U.rows(c of 2))
  MORE
} }
stage other on q after mm { LAST }
"""
HOPPER = profile("h200-switch", 2)
OWN = "gemm S.rows(c of 2) = silu(G.rows(c of 2) * B)"
SUM = "gemm T = G * B"


def built(streamed: str = "", more: str = "", last: str = SUM, t: str = "all_gather(A, rows) * B", **m: int) -> Graph:
    text = TEXT if more else TEXT.replace("computes S", "# ").replace("output  S", "scratch S")
    for name, value in {"STREAMED": streamed, "MORE": more, "LAST": last, "OF_T": t}.items():
        text = text.replace(name, value)
    return build(ficco_dsl.parse(text, "x.ficco"), 2, m)


def test_a_product_with_a_factor_goes_to_scratch_where_that_is_faster() -> None:
    graph = cut_epilogues(built(), HOPPER)
    assert (graph.tensor("H_sum").dtype, graph.tensor("H_sum").kind) == ("fp32", "scratch")
    assert [stage.name for stage in graph.stages] == ["gather", "mm", "other"]
    assert sum(isinstance(op.body, Reduce) for op in graph.ops) == 4
    assert not lint(graph, HOPPER)
    kernels = {launch.kernel for _, launch in plan_of(built(), HOPPER).launches()}
    assert {kernel.partition("_")[0] for kernel in kernels} == {"sm90", "naive"}


@pytest.mark.parametrize(
    ("graph", "machine"),
    [
        (built(M=128), "h200-switch"),  # the sum takes longer than the faster kernel gains
        (built(), "mi300x-mesh"),  # whose kernel takes factors
        (built("streamed"), "b200-switch"),  # whose vendor's library takes no streamed stage
        (built("streamed", last="reduce T = sum(H)", t="silu_mul(all_gather(A, rows) * B + b, U)"), "h200-switch"),
    ],
)
def test_others_stay_whole(graph: Graph, machine: str) -> None:
    assert cut_epilogues(graph, profile(machine, 2)) is graph


def test_where_no_gemm_of_ours_is_made_the_library_gets_the_product() -> None:
    graph = cut_epilogues(built(), profile("b200-switch", 2))
    assert sum(isinstance(op.body, Reduce) for op in graph.ops) == 4


def test_sums_of_a_streamed_stage_stand_behind_it() -> None:
    graph = cut_epilogues(built("streamed"), HOPPER)
    assert [(s.name, s.streamed, s.after) for s in graph.stages[1:]] == [
        ("mm", True, ()),
        ("mm_sums", False, ()),
        ("other", False, (1, 2)),
    ]
    assert [op.where.rank for op in graph.ops if op.where.stage == 2] == [0, 0, 1, 1]


@pytest.mark.parametrize(("streamed", "more"), [("", ""), ("streamed", ""), ("streamed", OWN)])
def test_results_stay_the_same(streamed: str, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `more` a streamed stage applies two functions, for which no tuned kernel is made."""
    monkeypatch.setattr(epilogues._Cutter, "_faster", lambda self, ops, some: len(some) > 2 * bool(more))
    plan = plan_of(built(streamed, more, M=24, N=16), HOPPER)
    assert {t.name for t in plan.tensors} >= ({"H_sum", "S_sum"} if more else {"H_sum"})
    with Executor(plan, order="adversarial") as executor:
        found = verified_run(executor)
    assert (found.ok, found.integers) == (True, True)
