"""Scaled fp8 tensors on the GPU drivers, by the plain kernels: every shipped schedule that takes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ficco_rt as ficco
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import check_replay, verified_run
from ficco_rt.types import numpy_dtype
from tests import cases
from tests.mock.standin import StandIn
from tests.mock.test_rows import Memory

TURNS = cases.few([(name, turn) for turn, name in enumerate(cases.SCALED)], 3, 2)


@pytest.mark.parametrize(("name", "turn"), TURNS)
@pytest.mark.parametrize("library", ["cuda"], indirect=True)
def test_eight_ranks(library: StandIn, name: str, turn: int) -> None:
    library.set("devices 1")
    machine = discover(library.face, 8, 8)
    plan = plan_of(build(cases.schedule(name), 8, cases.scaled(name, 8, turn)), machine)
    with Executor(plan, library.face, machine=machine, ranks_per_gpu=8) as executor:
        found = verified_run(executor, seed=turn)
        assert found.correct, found
        check_replay(executor)
    assert not library.violations()


@pytest.mark.parametrize("library", ["hip"], indirect=True)
def test_amd(library: StandIn) -> None:
    library.set("devices 2")
    plan = plan_of(
        build(cases.schedule("ag_gemm/streamed"), 2, cases.scaled("ag_gemm/streamed", 2, 0)), discover(library.face, 2)
    )
    with Executor(plan, library.face) as executor:
        assert verified_run(executor).correct


@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/streamed", "gemm_ar/oneshot", "a2a_gemm/overlapped"])
def test_fewer_rows(cuda: StandIn, name: str) -> None:
    """A plan for 24 rows with 1 and 17; scales of 2 and of 4."""
    cuda.reset("devices 3")
    operation, ranks, planned = name.split("/")[0], 3, 24
    deep = 160 * ranks if operation in ("gemm_rs", "gemm_ar") else 160
    types = {"T": "fp8_e4m3 scaled 1x128", "Weight": "fp8_e4m3 scaled 128x128", "Sum": "fp32", "transb": 1}
    sizes = cases.sized(operation, ranks, planned, 24 * ranks, deep) | cases.few_chunks(name) | types
    plan = plan_of(build(cases.schedule(name), ranks, sizes), discover(cuda.face, ranks))
    with ficco.Workspace(ranks, cuda.face) as workspace, Executor(plan, workspace=workspace) as executor:
        for m in (1, 17):
            values, wanted = cases.numbers(operation, ranks, m, 24 * ranks, deep, m, transb=1)
            memory, rows = Memory(executor), cases.rows(operation, ranks, planned, m)
            rows = replace(rows, blocks={**rows.blocks, **{f"{n}.scales": c for n, c in rows.blocks.items()}})
            given = {}
            for n, rank in ((n, rank) for n in values for rank in range(ranks)):
                array, scales = values[n][rank], next((t for t in plan.tensors if t.name == f"{n}.scales"), None)
                kind = numpy_dtype(plan.tensor(n).dtype)
                given[n, rank] = memory.give(n, rank, array.astype(kind), plan.tensor(n).dtype)
                if scales is not None:
                    of = np.full(rows.shape(scales.name, scales.shapes[rank]), 2 if n in rows.blocks else 4, np.float32)
                    given[scales.name, rank] = memory.give(scales.name, rank, of, "fp32")
            bound = executor.bind_at(given, rows)
            for executor.graph in (False, True):
                executor.poison()
                executor.run(bound)
                for rank in range(ranks):
                    found = memory.read("C", rank, np.dtype(np.float32))
                    assert np.array_equal(found, 8 * wanted["C"][rank]), (m, rank)
            executor.release(bound)
            memory.free()
    assert not cuda.violations()
