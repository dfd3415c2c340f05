"""A rank of R on two GPUs, through the real GPU driver: it ends in whatever order streams and blocks go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.mock.standin import StandIn
from tools.bench.on_two import on_two

RANKS = 4
SEEDS = 20 if cases.ALL else 4
OF_PAIRS = [n for n in cases.SCHEDULES if n.startswith(("ag_gemm/", "gemm_rs/")) and not n.endswith("/hierarchical")]
NAMES = cases.few(OF_PAIRS, 6, 1)


def inputs(plan: Plan) -> dict[tuple[str, int], np.ndarray]:
    return {
        (t.name, rank): np.random.default_rng(rank).integers(-4, 5, shape).astype(np.float32)
        for t in plan.tensors
        if t.kind == "input"
        for rank, shape in enumerate(t.shapes)
    }


def outputs(executor: Executor) -> dict[tuple[str, int], np.ndarray]:
    shapes = ((t.name, rank) for t in executor.plan.tensors if t.kind == "output" for rank in range(2))
    return {at: executor.read(*at) for at in shapes}


@pytest.mark.parametrize("name", NAMES)
def test_it_ends_with_the_hosts_numbers_in_every_order(cuda: StandIn, name: str) -> None:
    """On streams and as a graph."""
    cuda.reset("devices 2")
    machine = discover("cuda", 2)
    sizes = cases.sizes(name, RANKS, True) | cases.few_chunks(name)
    plan = on_two(plan_of(build(cases.schedule(name), RANKS, sizes), replace(machine, ranks=RANKS)))
    given = inputs(plan)
    with Executor(plan) as host:
        for at, values in given.items():
            host.write(*at, values)
        host.run()
        wanted = outputs(host)
    with Executor(plan, "cuda", machine=machine, timeout=30) as executor:
        for at, values in given.items():
            executor.write(*at, values)
        for executor.graph in (False, True):
            for seed in range(SEEDS):
                cuda.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
                executor.poison()
                executor.run()
                for at, values in outputs(executor).items():
                    assert np.array_equal(values, wanted[at]), f"seed {seed}, graph {executor.graph}: {at} differs"
    assert not cuda.violations()
    assert not cuda.live()
