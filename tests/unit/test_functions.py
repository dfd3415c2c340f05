"""Functions of finished sums: what the proof accepts and refuses, and that runs are compared through them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.errors import ScheduleError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import exact_limit
from ficco_rt.exec.operation import require_operation
from ficco_rt.exec.verify import verified_run
from ficco_rt.graph.functions import FUNCTIONS, GROWTH, OWN, SLOPE
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.check import walk
from ficco_rt.plan.codec import from_json, to_json
from ficco_rt.plan.ir import Plan
from ficco_rt.plan.prove import prove

HEAD = """schedule x
type T = fp32
input A[4, 16 / ranks] : T
input B[16 / ranks, 8] : T
input b[8] : T
input R[4 / ranks, 8] : T
output C[4 / ranks, 8] : T
scratch P[4, 8] : T
computes C = CLAIM
queue q { engine = sm }
stage mm on q { MM }
stage end on q { END }
"""
PULL = "P.rows(rank of ranks) @ all"
ALL = "gelu(reduce_scatter(A * B, rows) + b + R)"


def text(claim: str, mm: str, end: str) -> str:
    return HEAD.replace("CLAIM", claim).replace("MM", mm).replace("END", end.replace("PULL", PULL))


def compiled(schedule: str, ranks: int = 2, **params: object) -> Plan:
    graph = build(ficco_dsl.parse(schedule, "x.ficco"), ranks, params)
    return plan_of(graph, profile("h200-switch", ranks))


def messages(schedule: str) -> list[str]:
    with pytest.raises(ScheduleError) as caught:
        compiled(schedule)
    return [d.message.split("rank 0): ")[-1] for d in caught.value.diagnostics]


RIGHT = {
    "all in the last sum": (ALL, "gemm P = A * B", "reduce C = gelu(sum(PULL, b, R))"),
    "the bias by one rank": (
        "gelu_tanh(reduce_scatter(A * B, rows) + b)",
        "gemm P = A * B",
        "reduce C = sum(b)  reduce C = gelu_tanh(sum(C, PULL))",
    ),
    "by pieces": (
        ALL,
        "gemm P = A * B",
        "for c in 0..2 { reduce C.cols(c of 2) = gelu(sum(P.rows(rank of ranks).cols(c of 2) @ all,"
        " b.rows(c of 2), R.cols(c of 2))) }",
    ),
    "row by row": (
        ALL,
        "gemm P = A * B",
        "for r in 0..4 / ranks { reduce C.rows(r of 4 / ranks) = gelu(sum(P.rows(rank of ranks, r of 4 / ranks) @ all,"
        " b, R.rows(r of 4 / ranks))) }",
    ),
    "a factor": (
        "silu_mul(reduce_scatter(A * B, rows), R + b)",
        "gemm P = A * B",
        "reduce C = sum(R, b)  reduce C = silu_mul(sum(PULL), C)",
    ),
}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_a_function_of_the_whole_sum_is_proven_and_right(case: tuple[str, str, str], dtype: str) -> None:
    plan = compiled(text(*case), T=dtype)
    again = from_json(to_json(plan))
    assert again == plan
    prove(again, walk(again))
    with Executor(plan, order="adversarial") as executor:
        found = verified_run(executor)
    assert (found.ok, found.integers) == (True, True)


def test_products_with_functions_are_right() -> None:
    plan = compiled(
        """schedule x
input A[8, 6] : bf16
input G[6, 8] : bf16
input U[6, 8] : bf16
input b[8] : bf16
output H[8, 8] : bf16
output D[8, 8] : bf16
output F[8 * ranks, 8] : bf16
scratch up[8, 8] : fp32
computes H = silu_mul(A * G + b, A * U)
computes D = A * G + b + b
computes F = all_gather(gelu(A * G), rows)
queue q { engine = sm }
stage up on q { gemm up = A * U }
stage mm on q {
  for c in 0..2 { gemm H.cols(c of 2) = silu_mul(A * G.cols(c of 2) + sum(b.rows(c of 2)), up.cols(c of 2)) }
  gemm D = A * G + sum(b, b)
  for p in all { gemm F.rows(rank of ranks) @ p = gelu(A * G) }
}"""
    )
    with Executor(plan, order="adversarial") as executor:
        found = verified_run(executor)
    assert (found.ok, found.integers) == (True, True)


SUM = "A@0 rows 0–1, columns 0–7 × B@0 rows 0–7, columns 0–7"
OTHER = "A@1 rows 0–1, columns 0–7 × B@1 rows 0–7, columns 0–7"
WRONG = {
    "of partial sums": (
        ("gelu(reduce_scatter(A * B, rows))", "gemm P = gelu(A * B)", "reduce C = sum(PULL)"),
        f"lacks gelu({SUM} + {OTHER}); has besides gelu({SUM}) + gelu({OTHER})",
    ),
    "of a part": (
        (ALL, "gemm P = A * B", "reduce C = gelu(sum(P.rows(rank of ranks), b, R))"),
        f"gelu of a sum that lacks {OTHER}",
    ),
    "twice": (
        ("gelu(R)", "gemm P = A * B", "reduce C = gelu(sum(R))  reduce C = gelu(sum(C))"),
        "gelu of a sum that lacks R@0 rows 0–1, columns 0–7; has besides gelu(R@0 rows 0–1, columns 0–7)",
    ),
    "forgotten": (
        ("gelu(R)", "gemm P = A * B", "reduce C = sum(R)"),
        "lacks gelu(R@0 rows 0–1, columns 0–7); has besides R@0 rows 0–1, columns 0–7",
    ),
    "another": (
        ("gelu(R)", "gemm P = A * B", "reduce C = silu(sum(R))"),
        "lacks gelu(R@0 rows 0–1, columns 0–7); has besides silu(R@0 rows 0–1, columns 0–7)",
    ),
    "added to": (
        ("gelu(R + b)", "gemm P = A * B", "reduce C = gelu(sum(R))  reduce C = sum(C, b)"),
        "lacks gelu(R@0 rows 0–1, columns 0–7 + b@0 rows 0–7); "
        "has besides b@0 rows 0–7 + gelu(R@0 rows 0–1, columns 0–7)",
    ),
    "the bias forgotten": (
        (ALL, "gemm P = A * B", "reduce C = gelu(sum(PULL, R))"),
        "gelu of a sum that lacks b@0 rows 0–7",
    ),
    "the bias on every rank": (
        (ALL, "gemm P = A * B + sum(b)", "reduce C = gelu(sum(PULL, R))"),
        "gelu of a sum that has besides b@1 rows 0–7",
    ),
    "the factor in place of the sum": (
        ("silu_mul(R, R + b)", "gemm P = A * B", "reduce C = sum(R, b)  reduce C = silu_mul(sum(C), R)"),
        "silu_mul of a sum that has besides b@0 rows 0–7",
    ),
    "another factor": (
        ("silu_mul(R, R + b)", "gemm P = A * B", "reduce C = silu_mul(sum(R), R)"),
        "silu_mul of a factor that lacks b@0 rows 0–7",
    ),
}


@pytest.mark.parametrize(("case", "message"), WRONG.values(), ids=WRONG)
def test_another_value_is_refused(case: tuple[str, str, str], message: str) -> None:
    assert messages(text(*case))[0] == message


CLAIMS = {
    "reduce_scatter(gelu(A * B), rows)": "gelu is applied to a finished sum; its value is not added or reduced",
    "gelu(R) + R": "gelu is applied to a finished sum; its value is not added or reduced",
    "gelu(silu(R))": "silu is applied to a finished sum; its value is not added or reduced",
    "R + A": "2 × 8 plus 4 × 8 on rank 0: neither of one shape, nor one row",
    "silu_mul(R, b)": "silu_mul of 2 × 8 and 8 on rank 0: the shapes differ",
}


@pytest.mark.parametrize(("claim", "message"), CLAIMS.items())
def test_a_claim_that_does_not_fit_is_refused(claim: str, message: str) -> None:
    assert messages(text(claim, "gemm P = A * B", "reduce C = sum(R)"))[0] == f"{claim}: {message}"


STATEMENTS = {
    "reduce C = relu(sum(R))": "'relu' is no function of a sum; there are gelu, gelu_tanh, silu, silu_mul",
    "reduce C = gelu(R)": "expected sum(...) after '=', found 'gelu'",
    "reduce C = silu_mul(sum(R))": "silu_mul has 1 argument",
    "reduce C = gelu(sum(R), R)": "gelu has 2 arguments",
    "reduce C = silu_mul(sum(R), b)": "reduce: C is 2 × 8, the factor b is 8 (rank 0)",
    "gemm P += gelu(A * B)": "a gemm with '+=' takes no gelu(...)",
}


@pytest.mark.parametrize(("statement", "message"), STATEMENTS.items())
def test_a_statement_that_does_not_fit_is_refused(statement: str, message: str) -> None:
    assert messages(text("R", "gemm P = A * B", statement))[0] == message


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_bounds_of_functions_hold(name: str) -> None:
    x = np.linspace(-40, 40, 800_001)
    of = FUNCTIONS[name].of
    y = of(x)
    off = np.abs(of(x.astype(np.float32)) - of(x.astype(np.float32).astype(np.float64)))
    assert (off <= OWN * np.maximum(np.abs(y), 1)).all()
    slope = np.gradient(y, x)
    assert np.abs(slope).max() <= SLOPE
    some = x > 0.01
    assert (x[some] * slope[some] / y[some]).max() <= GROWTH
    assert (np.abs(y) <= np.abs(x)).all()


def test_integers_keep_a_product_of_two_in_its_type() -> None:
    plan = compiled(text(*RIGHT["a factor"]), T="fp16")
    assert exact_limit(plan) == 255


def test_a_schedule_with_a_function_is_another_operation() -> None:
    claim, total = "reduce_scatter(A * B, rows)", f"sum({PULL})"
    plain = compiled(text(claim, "gemm P = A * B", f"reduce C = {total}"))
    applied = compiled(text(f"gelu({claim})", "gemm P = A * B", f"reduce C = gelu({total})"))
    require_operation(plain, "gemm_rs", plain)
    with pytest.raises(UsageError, match=re.escape(f"it takes C = gelu({claim}); gemm_rs takes C = {claim}")):
        require_operation(applied, "gemm_rs", plain)
