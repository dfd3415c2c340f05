"""How launches stand among each other and leave their flags, through the real GPU driver on the stand-in."""

from __future__ import annotations

from typing import Any

import pytest

import ficco_rt
from ficco_rt.driver.cuda.vendor import Cuda
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Plan
from tests.mock.standin import StandIn

ZEROED = {"cuda": "cuMemsetD32Async", "hip": "hipMemsetD32Async"}


def planned(library: StandIn, schedule: str, options: str, **parameters: int) -> Plan:
    library.reset(f"devices 2; {options}")
    return ficco_rt.compile(schedule, 2, discover(library.face, 2), **{"M": 64, "N": 128, "K": 128, **parameters})


@pytest.mark.parametrize("graph", [False, True])
def test_a_launch_takes_its_own_flags_down(library: StandIn, graph: bool) -> None:
    """The naive kernels and the Hopper one do it in the kernel; the others' flags are zeroed behind the launch."""
    plan = planned(library, "ag_gemm/oneshot", {"cuda": "arch sm_90", "hip": "arch gfx90a"}[library.face])
    tuned = {"cuda": "sm90_gemm", "hip": "mfma_gemm"}[library.face]
    assert any(getattr(c, "kernel", "").startswith(tuned) for s in plan.streams for c in s.commands)
    with Executor(plan, library.face, graph=graph, timeout=30) as executor:
        for seed in range(5):
            assert verified_run(executor, seed=seed, values="exact").rel_err == 0
        library.calm()
        executor.run()
        executor.synchronize()
        zeroed = library.called().get(ZEROED[library.face], 0)
    assert zeroed == (0 if library.face == "cuda" or graph else 2)
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
