"""Runs on devices with few hardware queues: how many there are is read where the vendor reads it; runs are right, or
are refused before anything is issued."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.cuda.vendor import Cuda
from ficco_rt.driver.registry import VENDORS, discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import fresh_inputs
from ficco_rt.exec.verify import compare, verified_run
from ficco_rt.exec.workspace import Workspace
from tests import cases
from tests.mock.standin import StandIn
from tests.mock.test_callers import Callers

SWITCH = {"cuda": "CUDA_DEVICE_MAX_CONNECTIONS", "hip": "GPU_MAX_HW_QUEUES"}
RANKS = 2


@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/relay", "gemm_ar/streamed", "a2a_gemm/overlapped"])
def test_one_queue(library: StandIn, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH[library.face], "1")
    library.reset(f"devices {RANKS}")
    machine = discover(library.face, RANKS)
    sizes = cases.sizes(name, RANKS, True) | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), RANKS, sizes), machine)
    with Executor(plan, library.face, machine=machine, timeout=30) as executor:
        for seed in range(4):
            library.set(f"seed {seed}")
            assert verified_run(executor, seed=seed, values="exact").ok
            executor.graph = not executor.graph
        executor.traced = True
        assert verified_run(executor, seed=0, values="exact").ok
        assert {span.stage for span in executor.trace.spans}
    assert not library.violations()
    assert not library.live()


def test_a_graph_that_cannot_be_a_chain_is_refused(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is issued; on streams the executor goes on."""
    monkeypatch.setenv(SWITCH[library.face], "1")
    library.reset("devices 2")
    machine = discover(library.face, 4, 2)
    plan = plan_of(build(cases.schedule("gemm_rs/direct"), 4, cases.sizes("gemm_rs/direct", 4, True)), machine)
    with Executor(plan, library.face, machine=machine, ranks_per_gpu=2, timeout=30) as executor:
        executor.graph = True
        with pytest.raises(DeviceError, match=f"; set {SWITCH[library.face]}="):
            verified_run(executor, values="exact")
        executor.graph = False
        assert verified_run(executor, values="exact").ok
    assert not library.violations()


def test_what_the_user_has_set_counts(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, queues in (("3", 3), ("junk", {"cuda": 8, "hip": 4}[library.face])):
        monkeypatch.setenv(SWITCH[library.face], text)
        assert VENDORS[library.face]().features("sm_90a").queues == queues


def test_a_context_that_was_there_before(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its device has the default number of queues, and nothing is set that would say otherwise later."""
    from cuda.bindings import driver

    monkeypatch.delenv(SWITCH["cuda"], raising=False)
    assert Cuda().features("sm_90a").queues == 32
    assert os.environ[SWITCH["cuda"]] == "32"
    driver.cuDevicePrimaryCtxRetain(1)
    assert Cuda().features("sm_90a").queues == 32  # made behind the request
    monkeypatch.delenv(SWITCH["cuda"])
    for _ in range(2):
        assert Cuda().features("sm_90a").queues == 8
        assert SWITCH["cuda"] not in os.environ
    driver.cuDevicePrimaryCtxRelease(1)
    assert Cuda().features("sm_90a").queues == 32


def test_no_request_is_left_of_a_driver_that_does_not_open(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH["cuda"], raising=False)
    cuda.set("fail cuDevicePrimaryCtxGetState 1 999")
    with pytest.raises(DeviceError, match="cuDevicePrimaryCtxGetState"):
        Cuda()
    assert SWITCH["cuda"] not in os.environ


BEHIND = """schedule behind
input   A[64, 64] : fp32
input   B[64, 64] : fp32
output  C[128, 64] : fp32
output  D[64, 64] : fp32
scratch G[128, 64] : fp32
computes C = all_gather(A, rows) * B
computes D = A * B
queue dma     { engine = copy  priority = high }
queue compute { engine = sm    priority = low }
stage gather on dma { for c in 0..8 { copy G.rows(rank of ranks, c of 8) @ ((rank + 1) % ranks) <- A.rows(c of 8) } }
stage mm on compute streamed {
  gemm C.rows(rank of ranks) = A * B
  for c in 0..8 { gemm C.rows((rank - 1) % ranks of ranks, c of 8) = G.rows((rank - 1) % ranks of ranks, c of 8) * B }
}
stage nn on compute { gemm D = A * B }
"""


@pytest.mark.parametrize("other", range(8))
def test_a_callers_stream_lies_in_any_queue(cuda: StandIn, monkeypatch: pytest.MonkeyPatch, other: int) -> None:
    """Behind a launch that waits for copies there is another one, behind which copies would stand, if the stream were
    the caller's and shared a queue with that of the copies."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    cuda.reset("devices 2")
    plan = plan_of(build(ficco_dsl.parse(BEHIND, "behind.ficco"), 2, {}), discover("cuda", 2))
    with Executor(plan, "cuda", timeout=20, graph=False) as executor:
        before = [Callers(plan, 1, default=False) for _ in range(other + 1)]
        before[-1].cu.cuStreamDestroy(before[-1].made.pop(0))  # one more on the other device
        callers = Callers(plan, 1, default=False)
        tensors = callers.tensors()
        given = fresh_inputs(plan, 0, "exact")
        callers.give(tensors, given)
        executor.run(executor.bind(**tensors), streams=[int(s) for s in callers.streams])
        executor.synchronize()
        assert compare(plan, given, callers.outputs(tensors), "exact").ok
        for caller in (*before, callers):
            caller.close()
    assert not cuda.violations()


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize("between", range(8))
def test_streams_that_others_make_shift_no_queues_of_a_plan(
    cuda: StandIn, monkeypatch: pytest.MonkeyPatch, between: int, bound: bool
) -> None:
    """They are made where an executor is open and nothing is bound, or between the plans of a workspace, the second of
    which needs more streams than the first."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    cuda.reset("devices 4; arch sm_90")
    machine = discover("cuda", 4)
    with ExitStack() as stack:
        workspace = stack.enter_context(Workspace(4, "cuda", timeout=20))
        for name in ("ag_gemm/streamed", "gemm_rs/streamed") if bound else ("gemm_rs/relay",):
            sizes = cases.sizes(name, 4, True) | cases.few_chunks(name)
            plan = plan_of(build(cases.schedule(name), 4, sizes), machine)
            executor = stack.enter_context(Executor(plan, workspace=workspace, graph=False))
            callers = Callers(plan, 1, default=False)
            stack.callback(callers.close)
            tensors, given = callers.tensors(), fresh_inputs(plan, 0, "exact")
            callers.give(tensors, given)
            others = [Callers(plan, 1, default=False) for _ in range(between)]
            executor.run(executor.bind(**tensors), streams=[int(s) for s in callers.streams])
            executor.synchronize()
            assert compare(plan, given, callers.outputs(tensors), "exact").ok
            for other in others:
                stack.callback(other.close)
    assert not cuda.violations()


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("between", range(8))
def test_start_gates_share_no_queue_with_what_waits_for_them(
    cuda: StandIn, monkeypatch: pytest.MonkeyPatch, between: int, called: bool
) -> None:
    """What waits for a run on callers' streams may share the gate's queue, and stands behind it."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    cuda.reset("devices 2")
    sizes = cases.sizes("gemm_rs/serial", 2, True) | cases.few_chunks("gemm_rs/serial")
    plan = plan_of(build(cases.schedule("gemm_rs/serial"), 2, sizes), discover("cuda", 2))
    with Executor(plan, "cuda", timeout=20, graph=False) as executor, ExitStack() as stack:
        for _ in range(between):
            stack.callback(Callers(plan, 1, default=False).close)
        callers = Callers(plan, 1, default=False)
        stack.callback(callers.close)
        tensors, given = callers.tensors(), fresh_inputs(plan, 0, "exact")
        bound, streams = executor.bind(**tensors), [int(s) for s in callers.streams] if called else None
        for executor.traced in (True, False, True):
            executor.gated = not executor.traced
            callers.give(tensors, given)
            executor.run(bound, streams=streams)
            executor.synchronize()
            assert executor.run_plan().plan.has_start_gate
            assert compare(plan, given, callers.outputs(tensors), "exact").ok
    assert not cuda.violations()
