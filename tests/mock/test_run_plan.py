"""The run plan of an executor is what its driver calls, and holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device.ir import AwaitEvent, Barrier, LaunchGraph, RecordEvent, ResetSemaphores, StreamMemOps
from ficco_rt.device.run_plan import CopyBatch, CopyRows, CopyRun, CopySignal, Issued, Launch, RunPlan, expected
from ficco_rt.driver.registry import discover
from ficco_rt.errors import UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.plan.ir import Plan
from ficco_rt.types import numpy_dtype
from tests import cases
from tests.mock.standin import StandIn
from tests.mock.test_callers_graphs import captured
from tests.unit.run_plan_rules import checked

NAMES = {
    RecordEvent: "EventRecord",
    AwaitEvent: "StreamWaitEvent",
    ResetSemaphores: "MemsetD32Async",
    CopyBatch: "MemcpyBatchAsync",
    CopyRows: "Memcpy2DAsync",
    LaunchGraph: "GraphLaunch",
}  # of calls, behind `cu` or `hip`


@contextmanager
def executor(library: StandIn, name: str, each: int = 1, more: str = "") -> Iterator[tuple[Executor, Any]]:
    library.reset(f"devices 2; query_steps 5000{more}")
    plan: Plan = plan_of(
        build(cases.schedule(name), 2, cases.sizes(name, 2, True) | cases.few_chunks(name)),
        discover(library.face, 2),
    )
    with Executor(plan, library.face, ranks_per_gpu=each, timeout=30) as made:
        for tensor in plan.tensors:
            if tensor.kind == "input":
                for rank, shape in enumerate(tensor.shapes):
                    made.write(tensor.name, rank, np.ones(shape, numpy_dtype(tensor.dtype)))
        bound = made.bind()
        yield made, bound.binding


def holds(run: RunPlan) -> None:
    """It is what the device plan alone says, too, but for other executors and for what the devices have."""
    checked(run)
    wanted = expected(run.plan, run.run, run.number, run.manner, run.process)
    assert replace(run, behind=(), run_waits=(), priorities=(), algorithms=()) == wanted


@pytest.mark.parametrize("name", cases.few(cases.SCHEDULES, 8, 2))
def test_it_is_what_is_called(library: StandIn, name: str) -> None:
    each = 2 if name.endswith("streamed") else 1
    with executor(library, name, each) as (made, binding):
        driver: Any = made.driver
        driver.capture(binding)
        for mode, number in (("streams", 0), ("graph", 1), ("gated", 2), ("traced", 3), ("streams", 4)):
            made.traced, made.gated = mode == "traced", mode == "gated"
            library.calm()
            driver.run(binding, (), graph=mode == "graph")
            called = library.called()
            made.synchronize()
            run = made.run_plan()
            assert (run.run, run.plan.mode) == (number, mode)
            holds(run)
            prefix = "hip" if library.face == "hip" else "cu"
            counted = Counter(_name(step.call, prefix) for step in run.steps if isinstance(step, Issued))
            assert {call: called.get(call, 0) for call in counted if call} == {c: n for c, n in counted.items() if c}
            assert dict(run.priorities).keys() == {"high", "normal", "low"}
    assert not library.live()


def _name(call: object, prefix: str) -> str:
    """What is called, where one name alone is for it."""
    if prefix == "cu" and isinstance(call, StreamMemOps):
        if len(call.changes) > 1 or call.changes[0].acquires:
            return "cuStreamBatchMemOp"
        return "cuStreamWriteValue32" if call.changes[0].signals else "cuStreamWaitValue32"
    if prefix == "cu" and (isinstance(call, Launch | Barrier) or getattr(call, "by_kernel", False)):
        return "cuLaunchKernelEx"
    if prefix == "cu" and isinstance(call, CopyRun | CopySignal):
        return "cuMemcpyDtoDAsync"
    if prefix == "hip" and not isinstance(call, AwaitEvent | RecordEvent | LaunchGraph):
        return ""
    return prefix + NAMES[type(call)]


def test_runs_wait_for_other_executors(cuda: StandIn) -> None:
    """Of two multiprocessors, a launch that waits leaves nothing."""
    with executor(cuda, "gemm_rs/streamed", more="; sms 2") as (first, one):
        second = Executor(first.plan, "cuda", timeout=30)
        for tensor in first.plan.tensors:
            if tensor.kind == "input":
                for rank, shape in enumerate(tensor.shapes):
                    second.write(tensor.name, rank, np.ones(shape, numpy_dtype(tensor.dtype)))
        other = second.bind().binding
        driver: Any = first.driver
        beside = second.driver
        with pytest.raises(UsageError) as told:
            second.run_plan()
        assert str(told.value) == "no run was issued yet: a run plan tells how the last one was"
        driver.run(one, (), graph=False)
        assert other is not None
        beside.run(other, (), graph=False)
        run = second.run_plan()
        second.synchronize()
        first.synchronize()
        holds(run)
        holds(first.run_plan())
        assert {wait.device for wait in run.run_waits} == {0, 1}
        assert f"  device 0 behind run 1 of {driver._gpus.client.name}: " in str(run)
        second.close()


@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/relay"])
def test_in_callers_graphs_and_on_their_streams(cuda: StandIn, name: str) -> None:
    with captured(cuda, name, joined=False) as made:
        made.executor.run(made.bound, streams=[int(s) for s in made.callers.streams])
        run = made.executor.run_plan()
        assert run.manner.called
        holds(run)
        made.callers.wait()
        made.executor.synchronize()
        with made.captures.capturing():
            made.layer()
        embedded = made.executor.run_plan()
        assert (embedded.plan.mode, embedded.run) == ("embedded", None)
        holds(embedded)
