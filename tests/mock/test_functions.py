"""Functions of finished sums on stand-in GPUs: in each family's products, and in sums."""

from __future__ import annotations

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.mock.standin import StandIn
from tests.mock.test_tuned import SERVED, kernels

TEXT = """
schedule functions
param M = 96
type T = bf16
input   A[M / ranks, 128] : T
input   B[128, 160] : T
input   bias[160] : T
input   R[M / ranks, 160] : T
output  C[M, 160] : T
output  D[M, 160] : T
output  H[M / ranks, 160] : T
output  S[M / ranks, 160] : T
scratch G[M, 128] : T
scratch P[M / ranks, 160] : fp32
computes C = FUNCTION(all_gather(A, rows) * B + bias)
computes D = all_gather(A, rows) * B + bias + bias
computes H = silu_mul(A * B + bias, R)
computes S = FUNCTION(A * B + R + bias)
queue dma { engine = copy }
queue compute { engine = sm }
stage gather on dma { for c in 0..2, p in all { copy G.rows(rank of ranks, c of 2) @ p <- A.rows(c of 2) } }
stage mm on compute streamed { for c in 0..2 {
  gemm C.rows(all of ranks, c of 2) = FUNCTION(G.rows(all of ranks, c of 2) * B + sum(bias))
} }
stage added on compute streamed { for c in 0..2 {
  gemm D.cols(c of 2) = G * B.cols(c of 2) + sum(bias.rows(c of 2), bias.rows(c of 2))
} }
stage local on compute {
  gemm H = silu_mul(A * B + sum(bias), R)
  gemm P = A * B
  reduce S = FUNCTION(sum(P, R, bias))
}
stage apart on compute {
  for c in 0..2 { reduce S.cols(c of 2) = sum(P.cols(c of 2), bias.rows(c of 2), R.cols(c of 2)) }
  reduce S = FUNCTION(sum(S))
}
"""


def compiled(library: StandIn, ranks: int, function: str, dtype: str) -> Plan:
    schedule = ficco_dsl.parse(TEXT.replace("FUNCTION", function), "functions.ficco")
    return plan_of(build(schedule, ranks, {"T": dtype}), discover(library.face, ranks))


def right(library: StandIn, plan: Plan) -> None:
    with Executor(plan, library.face, timeout=30) as executor:
        for executor.graph in (False, True):
            library.set(f"seed {executor.graph + 1}; call_steps 3; query_steps 5000")
            for values in ("exact", "normal"):
                found = verified_run(executor, values=values)
                assert found.ok, found.worst
    assert not library.violations()
    assert not library.live()


@pytest.mark.parametrize(
    ("function", "driver", "arch", "kernel"),
    [
        pytest.param(function, *served, id=f"{function}-{served[1]}")
        for turn, served in enumerate(SERVED)
        for function in cases.few(("gelu", "gelu_tanh", "silu"), 1, turn)
    ],
)
def test_in_tuned_products(request: pytest.FixtureRequest, function: str, driver: str, arch: str, kernel: str) -> None:
    library = request.getfixturevalue(driver)
    library.reset(f"devices 2; arch {arch}; sms 12")
    plan = compiled(library, 2, function, "bf16")
    assert any(k.startswith(kernel) for k in kernels(plan))
    right(library, plan)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_in_plain_kernels(library: StandIn, dtype: str) -> None:
    library.reset("devices 2")
    right(library, compiled(library, 2, "gelu", dtype))
