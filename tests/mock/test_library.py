"""Launches by the vendor's library of GEMMs, through the vendors' bindings on libraries that stand in for theirs."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ficco_dsl
from ficco_dsl.diagnostics import ScheduleError
from ficco_rt.calibrate import alone
from ficco_rt.compiler import build, compile_schedule, plan_of
from ficco_rt.driver import registry
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.files.store import Store
from ficco_rt.kernels import vendor_gemm
from ficco_rt.kernels.families import AloneTimes, PlainProduct
from ficco_rt.kernels.sm90.family import SM90
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from ficco_rt.select import tune
from tests import cases
from tests.gpu import test_vendor as on_gpus
from tests.mock import campaign, standin
from tests.mock import test_callers_graphs as callers
from tests.mock.test_callers import Array, Callers

BINDINGS = {"cuda": ("nvmath.bindings", "cublasLt"), "hip": ("hip", "hipblaslt")}
TUNED = {"cuda": "arch sm_90", "hip": "arch gfx942"}

# Pieces of rows and of K, operands that are stored the other way, sums into what is there, what is added to a product
# and applied to it, two queues of one device.
TEXT = """
schedule mixed
type T = bf16
type R = bf16
input   A[24, 40]   : T
input   B[40, 16]   : T
input   F[16, 40]   : T
input   H[40, 24]   : T
input   Z[24, 16]   : R
input   b[16]       : R
input   z[16]       : fp32
output  C[24, 16]   : R
output  D[24, 16]   : R
output  E[24, 16]   : fp32
output  X[24, 16]   : R
output  Y[24, 16]   : R
output  U[24, 16]   : R
output  V[24, 16]   : R
output  W[24, 16]   : fp32
computes C = A * B
computes D = A * B within R
computes E = A * B
computes X = A * F.T
computes Y = H.T * B
computes U = A * B + b within R
computes V.rows([0, 2] of 3) = gelu_tanh(A.rows([0, 2] of 3) * B + Z[0:16] + b)
computes V.rows(1 of 3) = gelu_tanh(A.rows(1 of 3) * B + Z[16:24] + b)
computes W = gelu_tanh(A * B + z)
queue one { engine = sm  kernel = vendor }
queue two { engine = sm }
stage pieces on one {
  gemm C.rows([0, 2] of 3) = A.rows([0, 2] of 3) * B
  gemm C.rows(1 of 3) = A.rows(1 of 3) * B
  gemm D = A.cols(0 of 2) * B.rows(0 of 2)
  gemm D += A.cols(1 of 2) * B.rows(1 of 2)
  gemm U = A[:, 0:16] * B[0:16]
  gemm U = A[:, 16:40] * B[16:40] + sum(U, b)
  gemm V.rows([0, 2] of 3) = gelu_tanh(A.rows([0, 2] of 3) * B + sum(Z[0:16], b))
  gemm V.rows(1 of 3) = gelu_tanh(A.rows(1 of 3) * B + sum(b, Z[16:24]))
}
stage turned on two with kernel = vendor {
  gemm E = A.cols([2, 0, 1] of 5) * B.rows([2, 0, 1] of 5)
  gemm E += A.cols(3..5 of 5) * B.rows(3..5 of 5)
  gemm X = A * F.T
  gemm Y = H.T * B
  for c in 0..2 {
    gemm W.cols(c of 2) = gelu_tanh(A.cols([1, 0] of 2) * B.rows([1, 0] of 2).cols(c of 2) + sum(z.rows(c of 2)))
  }
}
"""


@pytest.fixture
def gemms(library: standin.StandIn) -> Iterator[standin.StandIn]:
    """Either driver's library, with its library of GEMMs. Nothing is left of a test, nothing was misused."""
    package, module = BINDINGS[library.face]
    pytest.importorskip(f"{package}.{module}" if package != "hip" else "rocm.bindings.hipblaslt")
    library.gemms()
    library.reset("devices 2")
    yield library
    assert (library.live(), library.violations()) == ({}, "")


def mixed(library: standin.StandIn, ranks: int = 1, **params: object) -> Plan:
    return plan_of(build(ficco_dsl.parse(TEXT, "mixed.ficco"), ranks, params), discover(library.face, ranks))


@pytest.mark.parametrize("types", [{}, {"T": "fp16", "R": "fp32"}, {"T": "fp32", "R": "fp32"}], ids=str)
@pytest.mark.parametrize("graph", [False, True], ids=["streams", "graph"])
def test_products_of_all_kinds_are_right_in_any_order(
    gemms: standin.StandIn, types: dict[str, object], graph: bool
) -> None:
    plan = mixed(gemms, 2, **types)
    for seed in range(6):
        gemms.reset(f"devices 2; seed {seed}; {TUNED[gemms.face]}")
        with Executor(plan, gemms.face, timeout=5) as executor:
            executor.graph = graph
            assert verified_run(executor, values="exact").ok
            assert " by " in executor.driver.describe()
            assert "made for" not in executor.driver.describe()  # the text says so
    called = [a for a in gemms.launches() if a.entry == "library_matmul"]
    assert len(called) % 2 == 0
    assert called


# NOTE a set is written in another order in each process
@pytest.mark.parametrize(
    ("types", "scalings"), on_gpus.SCALINGS, ids=lambda of: str(of) if isinstance(of, dict) else None
)
def test_scales_come_as_the_library_wants_them(
    gemms: standin.StandIn, types: dict[str, object], scalings: set[object]
) -> None:
    if gemms.face == "hip":
        pytest.skip("hipBLASLt gets no fp8")
    gemms.reset(f"devices 2; {TUNED[gemms.face]}")
    plan = plan_of(build(ficco_dsl.parse(on_gpus.SCALED, "scaled.ficco"), 2, types), discover(gemms.face, 2))
    for seed, values in enumerate(("exact", "normal")):
        gemms.reset(f"devices 2; seed {seed}; {TUNED[gemms.face]}")
        with Executor(plan, gemms.face, timeout=5) as executor:
            executor.graph = bool(seed)
            assert verified_run(executor, values=values).ok
            calls = [m for x in executor.driver._plans().layout.launches for m in x.config.matmuls]
            assert {m.scaling for m in calls} == scalings
            assert all(m.fast == ("fast" in types) for m in calls)
    converted = any(vendor_gemm.conversions(m) for m in calls)
    assert converted == (any(m.blocks for m in calls) or "cut" in types)
    assert converted == any(a.entry == "library_transform" for a in gemms.launches())


@pytest.mark.parametrize("call", ["MatrixTransform", "MatrixTransformDescCreate", "MatrixTransformDescSetAttribute"])
def test_a_conversion_of_scales_that_fails_is_told_of(gemms: standin.StandIn, call: str) -> None:
    if gemms.face == "hip":
        pytest.skip("hipBLASLt gets no fp8")
    gemms.reset(f"devices 2; {TUNED[gemms.face]}; fail cublasLt{call} 2 14")
    plan = plan_of(build(ficco_dsl.parse(on_gpus.SCALED, "scaled.ficco"), 2), discover(gemms.face, 2))
    with Executor(plan, gemms.face, timeout=5) as executor, pytest.raises(DeviceError, match="cublasLtMat"):
        verified_run(executor)


def test_each_stream_has_a_workspace_and_each_shape_one_algorithm(gemms: standin.StandIn) -> None:
    plan = mixed(gemms)
    with Executor(plan, gemms.face, timeout=5) as executor:
        verified_run(executor, values="exact")
        counts = {name.partition("Lt")[2]: n for name, n in gemms.called().items() if "Lt" in name}
        assert counts["Create"] == 1
        products = sum(len(x.config.matmuls) for x in executor.driver._plans().layout.launches)
        assert counts["MatmulAlgoGetHeuristic"] < products == 19  # some are alike
        held = executor.driver.holdings().size
        assert 2 * vendor_gemm.WORKSPACE < held < 2.1 * vendor_gemm.WORKSPACE
        before = gemms.called()
        executor.traced = True
        verified_run(executor, values="exact")
        assert [s.launched.kernel for s in executor.trace.spans if s.launched is not None]
        asked = "MatmulAlgoGetHeuristic"
        assert [n for name, n in gemms.called().items() if asked in name] == [
            n for name, n in before.items() if asked in name
        ]


@pytest.mark.parametrize("mode", ["gated", "traced"])
def test_no_kernel_is_loaded_in_a_run_that_waits_for_the_host(gemms: standin.StandIn, mode: str) -> None:
    with Executor(mixed(gemms), gemms.face, timeout=5) as executor:
        setattr(executor, mode, True)
        assert verified_run(executor, values="exact").ok


def test_gpus_without_a_gemm_of_ours_take_the_library(gemms: standin.StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # of the fixture that keeps it away
    machine = discover(gemms.face, 2)
    plan = plan_of(build(cases.schedule("ag_gemm/serial"), 2, cases.sizes("ag_gemm/serial", 2, True)), machine)
    with Executor(plan, gemms.face, machine=machine, timeout=5) as executor:
        assert verified_run(executor, values="exact").ok
        assert executor.driver.describe().endswith(f"as no GEMM of ours is made for {machine.device.arch}")
        assert {a.entry for a in gemms.launches()} == {"library_matmul"}
    gemms.reset(f"devices 2; {TUNED[gemms.face]}")
    with Executor(plan, gemms.face, timeout=5) as executor:  # for these there is one
        assert verified_run(executor, values="exact").ok
        assert " by " not in executor.driver.describe()
    streamed = plan_of(build(cases.schedule("ag_gemm/streamed"), 2, cases.sizes("ag_gemm/streamed", 2, True)), machine)
    gemms.reset("devices 2")
    with Executor(streamed, gemms.face, machine=machine, timeout=5) as executor:
        assert verified_run(executor, values="exact").ok
        assert "library_matmul" not in {a.entry for a in gemms.launches()}


BESIDE = """schedule beside
input  A[24, 40] : bf16
input  B[40, 16] : bf16
output C[24, 16] : bf16
computes C = A * B
queue one { engine = sm  kernel = vendor  LEAVE }
stage mm on one { gemm C = A * B }
"""


def beside(gemms: standin.StandIn, leave: str) -> Plan:
    text = BESIDE.replace("LEAVE", leave)
    return plan_of(build(ficco_dsl.parse(text, "beside.ficco"), 1), discover(gemms.face, 1))


def test_leave_takes_an_algorithm_whose_blocks_leave_the_room(gemms: standin.StandIn) -> None:
    """The driver is asked what the kernels of a captured call take. The one that is liked best takes too much."""
    large, small = "gemm 168 150000", "other_gemm 64 1024"
    if gemms.face == "hip":
        with pytest.raises(ScheduleError, match="leave cannot be had of hipBLASLt's kernels, as nobody can ask what"):
            beside(gemms, "leave = 100 KiB")
        return
    for asked, kernels, called in (("", large, 1), ("leave = 60 KiB", large, 1), ("leave = 100 KiB", small, 2)):
        gemms.reset(f"devices 1; {TUNED['cuda']}; {large}; {small}")
        plan = beside(gemms, asked)
        with Executor(plan, "cuda", timeout=5) as executor:
            assert verified_run(executor, values="exact").ok
            assert gemms.launches()[-1].smem == int(kernels.split()[-1])
            assert gemms.called()["cublasLtMatmulAlgoGetHeuristic"] == called
            assert gemms.called()["cuStreamBeginCapture"] == called
    gemms.reset(f"devices 1; {TUNED['cuda']}; {large}")
    with Executor(beside(gemms, "leave = 100 KiB"), "cuda") as executor, pytest.raises(DeviceError) as refused:
        verified_run(executor)
    told = str(refused.value)
    assert told.startswith("beside.ficco:7:")
    assert "leave = 102400 bytes cannot be had of its kernels" in told
    assert "(1, each 128 threads × 168 registers, 150000 bytes of shared memory) leave" in told
    assert told.endswith("say leave = 2 sms, or leave out kernel = vendor")


@pytest.mark.parametrize(
    "call", ["cuGraphGetNodes", "cuGraphKernelNodeGetParams", "cuFuncGetAttribute", "cuFuncLoad", "cublasLtMatmul"]
)
def test_a_driver_that_does_not_tell_is_told_of(gemms: standin.StandIn, call: str) -> None:
    if gemms.face == "hip":
        pytest.skip("nobody asks")
    gemms.reset(f"devices 1; {TUNED['cuda']}; fail {call} 1 999")
    with Executor(beside(gemms, "leave = 60 KiB"), "cuda") as executor, pytest.raises(DeviceError):
        verified_run(executor)


def test_tune_measures_the_serial_schedule_by_the_library_too(
    gemms: standin.StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "has_gemms", registry.has_gemms)
    effort = tune.Effort(best=1, rounds=1, iters=1, warmup=1)
    sizes = {"M": 96, "N": 48, "K": 96, "T": "fp32"}
    found = tune.tune("ag_gemm", 2, sizes, gemms.face, effort=effort)
    labels = {time.candidate.label for time in found.times}
    assert len(labels) == 2
    assert "ag_gemm/serial kernel=vendor" in labels
    (times,) = found.memory.times.values()
    by_library = next(t.candidate for t in times if t.candidate.label.endswith("kernel=vendor"))
    plan = compile_schedule(by_library.schedule, 2, {**sizes, **dict(by_library.params)})
    assert {launch.kernel for _, launch in plan.launches()} == {"vendor_gemm"}


def test_a_product_alone_is_measured_once(
    gemms: standin.StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(alone, "user_store", lambda: Store(tmp_path))
    product = PlainProduct(16, 128, 48, True, "bf16")
    gemms.reset("devices 1")
    found = alone.times(product, gemms.face)
    assert found is not None
    assert found.measured
    assert min(found.ours, found.library) > 0
    entries = Counter(launch.entry for launch in gemms.launches())
    lazy = gemms.face == "cuda"  # its kernel is loaded by a call that is not run
    assert entries == {"naive_gemm_bf16_bf16": 16, "library_matmul": 16 + lazy}  # in a graph each
    assert alone.times(product, gemms.face) == found
    assert Counter(launch.entry for launch in gemms.launches()) == entries
    gemms.reset("devices 0")
    assert alone.times(product, gemms.face) is None


def test_the_best_of_a_few_kernels_is_measured(
    cuda: standin.StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("nvmath.bindings")
    cuda.gemms()
    cuda.reset("devices 1; arch sm_90; sms 132")
    product = PlainProduct(64, 512, 512, True, "bf16")
    kernels = [v.name for v, _ in SM90.promising(64, 512, 512, True, profile("h200-switch", 1).device, "bf16")]
    assert len(kernels) == 4
    asked: list[str | None] = []

    def micros(plan: Plan, _: object) -> float:
        (kernel,) = {launch.kernel for _, launch in plan.launches()}
        asked.append(kernel)
        return {kernels[2]: best, "vendor_gemm": 5.0}.get(kernel, 7.0)

    monkeypatch.setattr(alone, "_micros", micros)
    compiled: list[Sequence[str]] = []
    monkeypatch.setattr(alone, "compile_file", lambda _, options: compiled.append(options))
    for best, taken in ((3.0, kernels[2]), (6.0, kernels[2]), (8.0, None)):
        monkeypatch.setattr(alone, "user_store", lambda best=best: Store(tmp_path / str(best)))
        assert alone.times(product, "cuda") == AloneTimes(min(best, 7.0), 5.0, kernel=taken)
        assert sorted(asked) == sorted([*kernels, "vendor_gemm"])
        made = {option.removeprefix("-DENTRY=") for options in compiled for option in options if "-DENTRY=" in option}
        assert made == {f"{kernel}_bf16_bf16_nt" for kernel in kernels}
        asked.clear()
        compiled.clear()


def test_who_has_no_library_is_told_what_to_install(gemms: standin.StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = BINDINGS[gemms.face]
    plan = mixed(gemms)
    monkeypatch.delattr(importlib.import_module(package), module, raising=False)
    monkeypatch.setitem(sys.modules, f"{package}.{module}", None)
    with Executor(plan, gemms.face) as executor, pytest.raises(DeviceError) as refused:
        verified_run(executor)
    told = str(refused.value)
    packages = {"cuda": '"nvmath-python>=1.0" "nvidia-cublas>=13.0"', "hip": '"hip-python[libraries]>=10"'}[gemms.face]
    assert told.startswith("mixed.ficco:32: ")
    assert ": not installed" in told
    assert f"pip install {packages} brings" in told


def test_a_product_without_an_algorithm_is_refused_by_its_sizes(
    gemms: standin.StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vendor_gemm, "WORKSPACE", 16)
    with Executor(mixed(gemms), gemms.face) as executor, pytest.raises(DeviceError) as refused:
        verified_run(executor)
    told = str(refused.value)
    assert told.startswith("mixed.ficco:32: ")
    assert told.endswith("8 × 16 × 40 of bf16 to bf16, stand-in (device 0)): no algorithm: leave out kernel = vendor")


@pytest.mark.parametrize("joined", [True, False], ids=["one graph", "a graph each"])
def test_calls_become_parts_of_callers_graphs(
    gemms: standin.StandIn, monkeypatch: pytest.MonkeyPatch, joined: bool
) -> None:
    """The first run of all is one that is captured."""
    if gemms.face == "hip":
        pytest.skip("HIP embeds no graphs")
    monkeypatch.setattr(cases, "schedule", cases.by_library)
    callers.test_a_layer_that_its_caller_captures(gemms, "ag_gemm/uniform_fused_1d", joined, 1)
    assert "library_matmul" in {a.entry for a in gemms.launches()}


@pytest.mark.parametrize("aside", [0, 4])
def test_epilogues_on_tensors_that_lie_aside_are_left_to_plain_kernels(gemms: standin.StandIn, aside: int) -> None:
    if gemms.face == "hip":
        pytest.skip("a caller of CUDA")
    text = "schedule s input A[8, 16] : fp32 input B[16, 8] : fp32 input b[8] : fp32 output C[8, 8] : fp32 "
    text += "computes C = A * B + b queue q { engine = sm kernel = vendor } stage mm on q { gemm C = A * B + sum(b) }"
    plan = plan_of(build(ficco_dsl.parse(text, "s.ficco"), 1), discover(gemms.face, 1))
    with Executor(plan, gemms.face, timeout=5) as executor:
        caller = Callers(plan, 1, default=False)
        tensors = caller.tensors()
        tensors["b"] = [Array(caller.array(0, (12,)).address + aside, (8,))]
        draw = np.random.default_rng(0)
        a, b, r = (draw.integers(-2, 3, shape).astype(np.float32) for shape in ((8, 16), (16, 8), (8,)))
        caller.give(tensors, {"A": [a], "B": [b], "b": [r]})
        executor.run(streams=[int(s) for s in caller.streams], **tensors)
        executor.synchronize()
        assert np.array_equal(caller.outputs(tensors)["C"][0], a @ b + r)
        caller.close()
    assert ("library_matmul" in {launch.entry for launch in gemms.launches()}) == (not aside)


def test_every_call_of_the_library_may_fail(gemms: standin.StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "schedule", cases.by_library)
    monkeypatch.setattr(campaign.runs, "DRAIN", campaign.TIMEOUT)
    struck = campaign.Campaign(gemms, "gemm_rs/serial")
    score = campaign.Score()
    faults: list[tuple[Any, str, str]] = [("call", *f) for f in struck.faults("call", 0.01) if "Lt" in f[0]]
    for kind, what, setting in [*faults, *(("stop", *f) for f in struck.faults("stop", 0.01))]:
        struck.strike(kind, what, setting, score)
    assert score.wrong == []
    assert score.ends["error"] >= len(faults) >= 12
