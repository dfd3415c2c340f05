"""What the fuzzers have found once, kept as texts that are short enough to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import ficco_dsl
from ficco_rt import compiler
from ficco_rt.errors import ScheduleError
from ficco_rt.geometry.region import Region
from ficco_rt.graph import ir as graph_ir
from ficco_rt.graph.budget import LISTS, Budget
from ficco_rt.graph.references import Reference
from ficco_rt.machine.profiles import profile

HEAD = """\
schedule found
param M = 12
param K = 4
input   A[M / ranks, K] : fp32
input   B[K, 4] : fp32
output  C[M, 4] : fp32
scratch G[M, K] : fp32
computes C = all_gather(A, rows) * B
queue dma { engine = copy }
queue compute { engine = sm }
queue vendor { engine = nccl }
"""
GATHER = "stage gather on dma { for p in all { copy G.rows(rank of ranks) @ p <- A } }\n"
MULTIPLY = "stage mm on compute { gemm C = G * B }\n"


def compile_text(text: str, ranks: int = 3) -> None:
    schedule = ficco_dsl.parse(text, "found.ficco")
    compiler.plan_of(compiler.build(schedule, ranks), profile("h200-ring", ranks))


def said(text: str, ranks: int = 3) -> str:
    with pytest.raises(ScheduleError) as caught:
        compile_text(text, ranks)
    return str(caught.value)


def test_a_stream_that_waits_for_a_flag_of_a_launch_still_under_way() -> None:
    """The check took the wait before the work that raises the flag."""
    streamed = "stage mm on compute streamed { for p in all { gemm C.rows(p of ranks) = G.rows(p of ranks) * B } }\n"
    again = "stage again on vendor { for p in [0, 1] { all_gather G <- A } }\n"
    copies = "copy G.rows(rank of ranks, c of [3, 1]) @ p <- A.rows(c of [3, 1])"
    gather = f"stage gather on dma {{ for c in 0..2, p in all {{ {copies} }} }}\n"
    compile_text(HEAD + gather + streamed + again)


def test_a_sum_may_begin_with_an_empty_piece() -> None:
    """K in three pieces of which the first is empty."""
    pieces = "stage mm on compute { for c in 0..7 { gemm C += G.cols(c of 7) * B.rows(c of 7) } }\n"
    compile_text(HEAD + GATHER + pieces)


def test_a_wrong_let_is_told_once_and_ends_its_block() -> None:
    text = HEAD + GATHER + "stage mm on compute { let x = 1 / 0 gemm C = G.rows(x of 2) * B }\n"
    assert said(text) == "found.ficco:13:31: 1 / 0: division by zero (rank 0)"


def test_a_set_of_conditions_is_no_set_of_pieces() -> None:
    assert "this is" in said(HEAD + GATHER + "stage mm on compute { reduce G = sum(G.rows((1 == 1) of 1)) }\n")
    assert "this is" in said(HEAD + GATHER + "stage mm on compute { reduce G = sum(G.rows([1 == 1] of 2)) }\n")


def test_a_long_chain_of_params() -> None:
    chain = "".join(f"param p{i} = p{i + 1}\n" for i in range(3000)) + "param p3000 = 1\n"
    compile_text(HEAD + chain + GATHER + MULTIPLY)


def sums_of_pieces(length: int, ranks: int) -> graph_ir.Graph:
    """Pieces by a list of so many sizes, each summed over the other ranks."""
    head = HEAD.replace("param M = 12", f"param M = {length}\nparam L = [1 for i in 0..{length}]")
    head = head.replace("queue dma", "scratch S[M, K] : fp32\nqueue dma")
    sums = "stage s on compute { for v in 0..20 { reduce S.rows(v of L) = sum(G.rows(v of L) @ peers) } }\n"
    return compiler.build(ficco_dsl.parse(head + GATHER + MULTIPLY + sums, "found.ficco"), ranks)


def test_long_lists_are_compared_once_for_all_ranks_of_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank of `peers` compared them again, uncharged: a program for 64 ranks took more than a minute."""
    resolved: list[int] = []
    resolve = Reference._resolve

    def counted(self: Reference, rank: int, values: Sequence[Any], budget: Budget) -> Region:
        resolved.append(rank)
        return resolve(self, rank, values, budget)

    monkeypatch.setattr(Reference, "_resolve", counted)
    sums_of_pieces(600, 6)
    assert len(resolved) < 20 * 6 * 3  # in each turn of a rank a region that is written, and one for all that are read


def test_regions_of_long_lists_are_charged() -> None:
    spent = []
    for length in (660, 60):
        with compiler.compilation(3):
            sums_of_pieces(length, 3)
            budgets = Budget(LISTS).meter.budgets
            spent.append(sum(b.most - b.left for b in budgets if b.kind is LISTS))
    compared = 2 * 20 * 3 * 600 // 8  # of both regions, in each turn of each rank, eight members at a time
    made = 2 * 600  # the list itself, and its pieces
    assert spent[0] - spent[1] > made + 2 * compared  # compared with earlier evaluations, and with earlier pieces
