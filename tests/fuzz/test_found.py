"""What the fuzzers have found once, kept as texts that are short enough to read."""

from __future__ import annotations

import pytest

import ficco_dsl
from ficco_rt import compiler
from ficco_rt.errors import ScheduleError
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
