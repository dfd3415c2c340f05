"""Functions of finished sums, biases and residuals, in products and in sums: right numbers on streams and as graphs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

import ficco_dsl
from ficco_rt import Executor
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.api import GpuName
from ficco_rt.driver.registry import discover
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Plan
from tests.gpu.apart import apart

LIMIT = 120  # seconds
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
BY_LIBRARY = """
schedule epilogues
param M = 96
param transb = 0 where transb == 0 or transb == 1
type T = bf16
type U = bf16
input   A[M, 128]  : T
input   B[128, 160] : T transposed if transb == 1
input   bias[160]  : U
input   R[M, 160]  : U
output  C[M, 160]  : U
output  D[M, 160]  : U
output  E[M, 160]  : U
output  F[M, 160]  : U
output  H[M, 160]  : U
computes C = A * B + bias
computes D = A * B + R + bias
computes E = gelu_tanh(A * B)
computes F = gelu_tanh(A * B + bias)
computes H = gelu_tanh(A * B + R + bias)
queue library { engine = sm  kernel = vendor }
stage mm on library {
  gemm C = A * B + sum(bias)
  for c in 0..2 { gemm D.cols(c of 2) = A * B.cols(c of 2) + sum(R.cols(c of 2), bias.rows(c of 2)) }
  gemm E = gelu_tanh(A * B)
  gemm F = gelu_tanh(A * B + sum(bias))
  gemm H = A * B
  gemm H = gelu_tanh(A * B + sum(R, bias))
}
"""
CUT = """
schedule cut
input   A[2048, 4096] : bf16
input   B[4096, 2048] : bf16
input   U[2048, 2048] : bf16
input   bias[2048]    : bf16
output  H[2048, 2048] : bf16
computes H = silu_mul(A * B + bias, U)
queue compute { engine = sm }
stage mm on compute STREAMED {
  for c in 0..2 { gemm H.rows(c of 2) = silu_mul(A.rows(c of 2) * B + sum(bias), U.rows(c of 2)) }
}
"""


def compiled(backend: GpuName, ranks: int, each: int, function: str, dtype: str, m: int) -> Plan:
    schedule = ficco_dsl.parse(TEXT.replace("FUNCTION", function), "functions.ficco")
    return plan_of(build(schedule, ranks, {"T": dtype, "M": m}), discover(backend, ranks, each))


def right(backend: GpuName, ranks: int, each: int, functions: Sequence[str], dtype: str, m: int = 2048) -> bool:
    good = True
    for function in functions:
        plan = compiled(backend, ranks, each, function, dtype, m)
        with Executor(plan, backend, ranks_per_gpu=each, timeout=30) as executor:
            for executor.graph in (False, True):
                found = verified_run(executor)
                print(f"{function} of {dtype}, graph {executor.graph}: {found}")
                good &= found.ok
    return good


def cut(backend: GpuName, streamed: str) -> bool:
    """On Hopper, whose GEMM takes no factor, it is applied by a sum behind the product; elsewhere in the product."""
    machine = discover(backend, 1)
    plan = plan_of(build(ficco_dsl.parse(CUT.replace("STREAMED", streamed), "cut.ficco"), 1), machine)
    kernels = {launch.kernel.partition("_")[0] for _, launch in plan.launches()}
    assert kernels == {"sm90", "naive"} or not machine.device.arch.startswith("sm_90")
    with Executor(plan, backend, timeout=30) as executor:
        return verified_run(executor).ok


@pytest.mark.parametrize("streamed", ["", "streamed"])
def test_functions_are_cut_off(streamed: str, backend: str) -> None:
    apart(cut, backend, streamed, limit=LIMIT)


def by_library(backend: GpuName, dtype: str, out: str) -> bool:
    """By the vendor's library, whose epilogues add and apply them: few rows and many, both layouts of the weights."""
    text = ficco_dsl.parse(BY_LIBRARY, "epilogues.ficco")
    good = True
    for m, transb in product((1, 96, 2048), (0, 1)):
        plan = plan_of(build(text, 1, {"T": dtype, "U": out, "M": m, "transb": transb}), discover(backend, 1))
        assert {launch.kernel for _, launch in plan.launches()} == {"vendor_gemm"}
        with Executor(plan, backend, timeout=30) as executor:
            for executor.graph in (False, True):
                for values in ("exact", "normal"):
                    found = verified_run(executor, values=values)
                    print(f"{dtype} to {out}, {m} rows, transb {transb}, graph {executor.graph}: {found}")
                    good &= found.ok
    return good


@pytest.mark.parametrize("types", [("bf16", "bf16"), ("fp16", "fp16"), ("bf16", "fp32"), ("fp32", "fp32")], ids=str)
def test_epilogues_of_the_library(types: tuple[str, str], backend: str) -> None:
    apart(by_library, backend, *types, limit=LIMIT)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_functions(dtype: str, backend: str, ranks: int, each: int) -> None:
    apart(right, backend, ranks, each, ["gelu", "gelu_tanh", "silu"], dtype, limit=LIMIT)
