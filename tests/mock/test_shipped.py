"""Every shipped schedule through the real GPU driver: right in whatever order streams and blocks go, nothing left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ficco_rt.compiler import build, load, plan_of
from ficco_rt.driver.registry import VENDORS, discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.graph.claim_values import functions
from tests import cases
from tests.mock.standin import StandIn

RANKS = range(2, 9)
# Two numbers of ranks for each schedule, one on each vendor's GPUs.
DRAWN = [
    (face, n, r)
    for turn, n in enumerate(cases.SCHEDULES)
    for at, r in enumerate(sorted(cases.few(RANKS, 2, turn)))
    for face in cases.few(sorted(VENDORS), 1, turn + at)
]
SEEDS = 100 if cases.ALL else 8


@pytest.mark.parametrize(("library", "name", "ranks"), DRAWN, indirect=["library"])
def test_right_in_every_order(library: StandIn, name: str, ranks: int) -> None:
    """On streams and as a graph. Integers: nothing rounds, so that every run must leave the same bits as the first,
    which is compared with the reference."""
    library.reset(f"devices {ranks}")
    machine = discover(library.face, ranks)
    sizes = cases.sizes(name, ranks, ranks % 2 == 0) | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), ranks, sizes), machine)
    outputs = [(t.name, r) for t in plan.tensors if t.kind == "output" for r in range(ranks)]
    with Executor(plan, library.face, machine=machine, timeout=30) as executor:
        result = verified_run(executor, values="exact")
        assert result.ok, result.worst
        assert result.rel_err == 0 or any(functions(claim.value) for claim in plan.claims)
        wanted = {key: executor.read(*key) for key in outputs}
        for executor.graph in (False, True):
            for seed in range(SEEDS):
                library.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
                executor.poison()
                executor.run()
                for key, values in wanted.items():
                    got = executor.read(*key)
                    assert np.array_equal(got, values), f"seed {seed}, graph {executor.graph}: {key} differs"
    assert not library.violations()
    assert not library.live()


@pytest.mark.parametrize("name", ["a2a_gemm/overlapped", "a2a_gemm/serial", "gemm_a2a/overlapped", "gemm_a2a/serial"])
@pytest.mark.parametrize("ranks_per_gpu", [1, 3])
def test_a_rank_without_work_is_waited_for(library: StandIn, name: str, ranks_per_gpu: int) -> None:
    library.reset(f"devices {3 // ranks_per_gpu}")
    machine = discover(library.face, 3, ranks_per_gpu)
    counts = [[3, 0, 2], [0, 0, 0], [1, 0, 2]]
    plan = plan_of(build(cases.schedule(name), 3, {"counts": counts, "N": 5, "K": 7, "T": "fp32"}), machine)
    with Executor(plan, library.face, machine=machine, ranks_per_gpu=ranks_per_gpu, timeout=30) as executor:
        for executor.graph in (False, True):
            assert verified_run(executor, values="exact").ok
    assert not library.violations()
    assert not library.live()


TWO_PRIORITIES = """
schedule two_priorities

param M = 16
input  A[M, M] : fp32
input  B[M, M] : fp32
output C[M, M] : fp32
output D[M, M] : fp32
computes C = A * B
computes D = A * B

queue first  { engine = sm  priority = high }
queue second { engine = sm  priority = low }

stage one on first  { gemm C = A * B }
stage two on second { gemm D = A * B }
"""


def test_a_graphs_kernels_keep_their_priorities(library: StandIn, tmp_path: Path) -> None:
    library.set("devices 1")
    (tmp_path / "two.ficco").write_text(TWO_PRIORITIES)
    plan = plan_of(build(load(tmp_path / "two.ficco"), 1, {}), discover(library.face, 1))
    with Executor(plan, library.face, graph=True, timeout=30) as executor:
        assert verified_run(executor, values="exact").ok
    high, low = {"cuda": (-5, 0), "hip": (-1, 1)}[library.face]
    assert sorted(library.priorities()) == [high, low]
