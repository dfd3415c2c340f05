"""Copies inside a device, in graphs beside launches that wait: a kernel makes them, in any order of events."""

from __future__ import annotations

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device.build import device_plan, layout_of
from ficco_rt.device.features import usual
from ficco_rt.device.ir import CopyMemory, Mode, Placement
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine.profiles import profile
from tests import cases
from tests.mock.standin import StandIn

KERNEL = {"cuda": "cuLaunchKernelEx", "hip": "hipModuleLaunchKernel"}


def copies(name: str, ranks: int, each: int, mode: Mode) -> list[CopyMemory]:
    machine = profile("h200-switch", ranks)
    plan = plan_of(build(cases.schedule(name), ranks, cases.sizes(name, ranks, True) | cases.few_chunks(name)), machine)
    placement = Placement(tuple(rank // each for rank in range(ranks)))
    layout = layout_of(plan, machine.device, placement, usual(machine.device.arch), "a hash")
    return [action for action in device_plan(layout, mode).body if isinstance(action, CopyMemory)]


def test_ranks_that_share_a_gpu_copy_by_a_kernel_in_graphs() -> None:
    assert all(action.by_kernel for action in copies("ag_gemm/streamed", 2, 2, "graph"))
    assert not any(action.by_kernel for action in copies("ag_gemm/streamed", 2, 2, "streams"))
    assert not any(action.by_kernel for action in copies("ag_gemm/hetero_fused_1d", 2, 2, "graph"))  # nothing waits


@pytest.mark.parametrize("name", [n for n in cases.SCHEDULES if n != "ag_gemm_kept/streamed"])
def test_with_a_gpu_for_each_rank_no_shipped_schedule_copies_so(name: str) -> None:
    """Nothing that waits stands beside a copy inside its GPU: copies between GPUs need no multiprocessors. In
    ag_gemm_kept/streamed rows are copied to the output beside the GEMM that waits for them."""
    assert not any(action.by_kernel for action in copies(name, 4, 1, "graph"))


@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/streamed", "gemm_ar/streamed"])
def test_right_in_every_order(library: StandIn, name: str) -> None:
    library.reset("devices 1; sms 132")
    machine = discover(library.face, 2, 2)
    plan = plan_of(build(cases.schedule(name), 2, cases.sizes(name, 2, True) | cases.few_chunks(name)), machine)
    with Executor(plan, library.face, machine=machine, ranks_per_gpu=2, graph=True, timeout=30) as executor:
        for seed in range(6):
            library.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
            assert verified_run(executor, seed=seed, values="exact").ok
    assert not library.violations()
