"""How launches stand among each other and leave their flags, through the real GPU driver on the stand-in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import pytest

import ficco_dsl
import ficco_rt
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.cuda.vendor import Cuda
from ficco_rt.driver.gpu import binding
from ficco_rt.driver.gpu.driver import GpuDriver
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.graph.ir import Gemm, Reduce
from ficco_rt.plan.ir import Command, Launch, Plan, Record
from tests.mock import campaign
from tests.mock.standin import StandIn

PRODUCT = """
schedule product
input  A[64, 64] : bf16
input  B[64, 64] : bf16
output C[64, 64] : bf16
computes C = A * B
queue compute { engine = sm }
stage mm on compute { gemm C = A * B }
"""
MIXED = """
schedule mixed
input   A[64, 96 / ranks] : fp32
input   B[96 / ranks, 32] : fp32
output  C[64 / ranks, 32] : fp32
output  D[64, 32]         : fp32
scratch P[64, 32]         : fp32
scratch S[64, 32]         : fp32
scratch G[64, 96 / ranks] : fp32
computes C = reduce_scatter(A * B, rows)
computes D = A * B
queue dma     { engine = copy }
queue compute { engine = sm }
stage mm on compute { gemm P = A * B }
stage scatter on dma {
  for p in all { copy S.rows(rank of ranks) @ p <- P.rows(p of ranks) }
  for c in 0..2 { copy G.rows(c of 2) <- A.rows(c of 2) }
}
stage rest on compute streamed {
  for c in 0..2 { reduce C.rows(c of 2) = sum(S.rows(all of ranks, c of 2)) }
  for c in 0..2 { gemm D.rows(c of 2) = G.rows(c of 2) * B }
}
"""
ZEROED = {"cuda": "cuMemsetD32Async", "hip": "hipMemsetD32Async"}


def planned(library: StandIn, schedule: str, options: str, ranks: int = 2, **parameters: object) -> Plan:
    library.reset(f"devices {ranks}; {options}")
    machine = discover(library.face, ranks)
    return ficco_rt.compile(schedule, ranks, machine, **{"M": 64, "N": 128, "K": 128, **parameters})


@pytest.mark.parametrize("graph", [False, True])
def test_a_launch_resets_its_own_flags(library: StandIn, graph: bool) -> None:
    """The naive kernels and the Hopper one do it in the kernel; the others' flags are zeroed behind the launch, all by
    one call."""
    plan = planned(library, "ag_gemm/oneshot", {"cuda": "arch sm_90", "hip": "arch gfx90a"}[library.face], ranks=4)
    tuned = {"cuda": "sm90_gemm", "hip": "mfma_gemm"}[library.face]
    assert any(getattr(c, "kernel", "").startswith(tuned) for s in plan.streams for c in s.commands)
    with Executor(plan, library.face, graph=graph, timeout=30) as executor:
        for seed in range(6):
            executor.traced = seed % 2 == 1
            assert verified_run(executor, seed=seed, values="exact").rel_err == 0
        executor.traced = False
        library.calm()
        executor.run()
        executor.synchronize()
        zeroed = library.called().get(ZEROED[library.face], 0)
    assert zeroed == (0 if library.face == "cuda" or graph else 4)
    assert not library.violations()


@pytest.mark.parametrize(("options", "chained"), [("arch sm_90", True), ("arch sm_80", False)])
def test_a_launch_behind_a_launch_begins_early_where_it_can(
    cuda: StandIn, options: str, chained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch_action, seen = Cuda.launch_action, []

    def noting(self: Any, function: Any, grid: Any, arguments: Any, stream: Any) -> Any:
        seen.append(grid.chained)
        return launch_action(self, function, grid, arguments, stream)

    monkeypatch.setattr(Cuda, "launch_action", noting)
    plan = planned(cuda, "ag_gemm/oneshot", options)
    with Executor(plan, "cuda", timeout=30) as executor:
        assert verified_run(executor, seed=1).ok
    assert sorted(seen) == sorted([False, chained] * 2)
    assert not cuda.violations()


def test_what_stands_between_launches_keeps_the_second_behind(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """An equal command in another place is another command."""
    cuda.reset("devices 1; arch sm_90")
    plan = plan_of(build(ficco_dsl.parse(PRODUCT, "product.ficco"), 1, {}), discover("cuda", 1))
    (stream,) = plan.streams
    (first,) = stream.commands
    waited = replace(stream, commands=(first, replace(first), Record(0, first.origin), replace(first)))
    seen = []
    launch_action = Cuda.launch_action

    def noting(self: Any, function: Any, grid: Any, arguments: Any, stream: Any) -> Any:
        seen.append(grid.chained)
        return launch_action(self, function, grid, arguments, stream)

    monkeypatch.setattr(Cuda, "launch_action", noting)
    monkeypatch.setattr(binding, "checked", lambda plan: plan)  # an op stands once in a plan that is right
    with Executor(replace(plan, streams=(waited,), events=1), "cuda", timeout=30) as executor:
        assert verified_run(executor, seed=1).ok
    assert seen == [False, True, False]


@pytest.mark.parametrize("arch", ["sm_90", "sm_80", "sm_75"])
def test_flags_are_down_after_a_run_that_was_given_up(cuda: StandIn, arch: str) -> None:
    """Whoever resets them: the Hopper kernel, the stream behind another tuned one, the naive kernels."""
    ends = Counter[str]()
    plan = planned(cuda, "ag_gemm/streamed", f"arch {arch}", T="bf16")
    for trial in range(20):
        cuda.set(f"query_steps 3000; seed {trial}")
        with Executor(plan, "cuda", timeout=30, graph=trial % 2 == 1) as executor:
            assert verified_run(executor, values="exact").ok
            cuda.set(f"fail * {40 + 8 * trial} {campaign.UNKNOWN}")
            for seed in range(3):
                try:
                    assert verified_run(executor, seed=seed, values="exact").ok
                    ends["right" if cuda.fired() else "before"] += 1
                except DeviceError:
                    ends["error"] += 1
            cuda.calm()
        assert not cuda.violations()
    assert ends["error"] > 10
    assert ends["right"] > 10


@pytest.mark.parametrize("arch", ["sm_90", "sm_75"])
def test_counters_are_zero_after_a_run_that_was_given_up(cuda: StandIn, arch: str) -> None:
    """Whatever its kernels have left in them."""
    plan = planned(cuda, "gemm_rs/streamed", f"arch {arch}; query_steps 3000", T="bf16")
    with Executor(plan, "cuda", timeout=30) as executor:
        assert verified_run(executor, values="exact").ok
        driver = executor.driver
        assert isinstance(driver, GpuDriver)
        counting = [table for table in driver._launches._tables if table.made.counters]
        assert counting
        cuda.set(f"fail cuLaunchKernelEx 2 {campaign.UNKNOWN}")
        with pytest.raises(DeviceError):
            verified_run(executor, values="exact")
        cuda.calm()
        for table in counting:
            driver._gpus.put(table.device, table.zeros, np.full(table.made.counters, 7, np.uint32))
        assert verified_run(executor, seed=1, values="exact").ok
    assert not cuda.violations()


def test_the_last_of_a_launch_s_kernels_resets_the_flags_of_all(library: StandIn) -> None:
    """Sums and products are two kernels, each of which waits for flags of its own."""
    library.reset("devices 2")
    plan = plan_of(build(ficco_dsl.parse(MIXED, "mixed.ficco"), 2, {}), discover(library.face, 2))
    waits = [{type(w.body) for w in c.works if w.waits} for s in plan.streams for c in s.commands if is_streamed(c)]
    assert waits == [{Reduce, Gemm}] * 2
    with Executor(plan, library.face, timeout=30) as executor:
        for executor.graph in (False, True):
            for seed in range(20):
                library.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
                assert verified_run(executor, seed=seed, values="exact").ok, f"seed {seed}, graph {executor.graph}"
    assert not library.violations()


def is_streamed(command: Command) -> TypeGuard[Launch]:
    return isinstance(command, Launch) and command.streamed


TWO_SIZES = """
schedule two_sizes
input  A[64, 64] : fp32
input  B[64, 64] : fp32
output C[64, 64] : fp32
output D[64, 64] : fp32
computes C = A * B
computes D = A * B
queue compute { engine = sm }
stage much on compute with smem = 100 KiB { gemm C = A * B }
stage less on compute with smem = 70 KiB { gemm D = A * B }
"""


def test_launches_of_a_kernel_may_differ_in_shared_memory(cuda: StandIn) -> None:
    """A function has one limit: the second launch's must not take from the first."""
    cuda.reset("devices 1")
    plan = plan_of(build(ficco_dsl.parse(TWO_SIZES, "two.ficco"), 1), discover("cuda", 1))
    much, less = (c for s in plan.streams for c in s.commands if isinstance(c, Launch))
    assert much.kernel == less.kernel
    assert much.attributes.smem > less.attributes.smem
    for graph in (False, True):
        with Executor(plan, "cuda", graph=graph, timeout=30) as executor:
            assert verified_run(executor, values="exact").ok
    assert not cuda.violations()
    assert not cuda.live()
