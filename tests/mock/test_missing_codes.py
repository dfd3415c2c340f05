"""An element type that a kernel or a vendor's library does not know: place, fact, and way out."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ficco_dsl
from ficco_dsl.diagnostics import ScheduleError
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Plan
from ficco_rt.types import TYPES
from tests.mock import standin

TEXT = """schedule lacking
input  A[24, 40]   : bf16
input  B[40, 16]   : bf16
output C[24, 16]   : bf16
output S[24, 40]   : bf16
computes C = A * B
computes S = all_reduce(A)
queue sums { engine = nccl }
queue sm   { engine = sm }
stage product on sm { gemm C = A * B }
stage total on sums { all_reduce S <- A }
"""


def plan_on(library: standin.StandIn, text: str = TEXT) -> Plan:
    return plan_of(build(ficco_dsl.parse(text, "lacking.ficco"), 2, {}), discover(library.face, 2))


def lacks(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setitem(TYPES, "bf16", replace(TYPES["bf16"], **{code: None}))


def refusal(library: standin.StandIn, plan: Plan) -> str:
    with Executor(plan, library.face, timeout=5) as executor, pytest.raises(DeviceError) as caught:
        verified_run(executor)
    return str(caught.value)


def test_a_kernel_that_does_not_read_the_type(library: standin.StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    library.reset("devices 2; nccl 22809")
    plan = plan_on(library)
    lacks(monkeypatch, "number")
    assert refusal(library, plan) == (
        "lacking.ficco:10: naive_gemm (Launch on rank 0, stand-in (device 0)): knows no bf16: take tensors of another "
        "type, or --backend host"
    )
    assert (library.live(), library.violations()) == ({}, "")


def test_collectives_that_do_not_know_the_type(library: standin.StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    library.reset("devices 2; nccl 22809")
    plan = plan_on(library)
    lacks(monkeypatch, "nccl")
    name = "NCCL" if library.face == "cuda" else "RCCL"
    assert refusal(library, plan) == (
        f"lacking.ficco:11: {name} (all_reduce on rank 0 stream sums, stand-in (device 0)): has no code for bf16: take "
        "engine = copy, or tensors of another type"
    )
    assert (library.live(), library.violations()) == ({}, "")


def test_a_library_of_gemms_that_does_not_know_the_type(
    library: standin.StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.reset("devices 2")
    lacks(monkeypatch, "blas")
    with pytest.raises(ScheduleError) as caught:
        plan_on(library, TEXT.replace("stage product on sm", "stage product on sm with kernel = vendor"))
    assert str(caught.value) == (
        "lacking.ficco:10:44: kernel = vendor does not do this: it has no code for bf16; take tensors of another type "
        "(stand-in)"
    )
