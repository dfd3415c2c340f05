"""Scaled fp8 tensors on the GPU drivers, by the plain kernels: every shipped schedule that takes them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

import ficco_rt as ficco
from ficco_dsl.nodes import Schedule
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import check_replay, verified_run
from ficco_rt.types import numpy_dtype
from tests import cases
from tests.mock.standin import StandIn
from tests.mock.test_library import gemms as gemms
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


FEWER = "ag_gemm/streamed", "ag_gemm_kept/oneshot", "gemm_rs/streamed", "gemm_ar/oneshot", "a2a_gemm/overlapped"


@pytest.mark.parametrize("name", FEWER)
def test_fewer_rows(cuda: StandIn, name: str) -> None:
    cuda.reset("devices 3")
    assert not fewer(cuda, name, cases.schedule(name), "1x128", "128x128")


@pytest.mark.parametrize("name", ["ag_gemm/hetero_fused_1d", "gemm_rs/shard"])
def test_fewer_rows_by_the_vendors_library(gemms: StandIn, name: str) -> None:
    """It takes rows with scales of blocks by fours alone: runs then have all rows of the plan."""
    if gemms.face == "hip":
        pytest.skip("hipBLASLt gets no fp8")
    gemms.reset("devices 3; arch sm_90")
    assert not fewer(gemms, name, cases.by_library(name), "row", "row")
    assert "library_matmul" in {a.entry for a in gemms.launches()}
    assert "A" in fewer(gemms, name, cases.by_library(name), "1x128", "128x128")


def fewer(library: StandIn, name: str, schedule: Schedule, left: str, right: str) -> Collection[str]:
    """A plan for 24 rows with 1 and 17; scales of 2 and of 4. What cannot have fewer rows: then nothing runs."""
    operation, ranks, planned = name.split("/")[0], 3, 24
    deep = 160 * ranks if operation in ("gemm_rs", "gemm_ar") else 160
    types = {"T": f"fp8_e4m3 scaled {left}", "Weight": f"fp8_e4m3 scaled {right}", "Sum": "fp32", "transb": 1}
    sizes = cases.sized(operation, ranks, planned, 24 * ranks, deep) | cases.few_chunks(name) | types
    plan = plan_of(build(schedule, ranks, sizes), discover(library.face, ranks))
    with ficco.Workspace(ranks, library.face) as workspace, Executor(plan, workspace=workspace) as executor:
        for m in (1, 17):
            values, wanted = cases.numbers(operation, ranks, m, 24 * ranks, deep, m, transb=1)
            memory, rows = Memory(executor), cases.rows(operation, ranks, planned, m)
            rows = replace(rows, blocks={**rows.blocks, **{f"{n}.scales": c for n, c in rows.blocks.items()}})
            if staged := executor.driver.staged(rows):
                return staged
            given = {}
            for n, rank in ((n, rank) for n in values for rank in range(ranks)):
                array, scales = values[n][rank], next((t for t in plan.tensors if t.name == f"{n}.scales"), None)
                kind = numpy_dtype(plan.tensor(n).dtype)
                given[n, rank] = memory.give(n, rank, array.astype(kind), plan.tensor(n).dtype)
                if scales is not None:
                    number = np.nan if n in wanted else 2 if n in rows.blocks else 4
                    of = np.full(rows.shape(scales.name, scales.shapes[rank]), number, np.float32)
                    given[scales.name, rank] = memory.give(scales.name, rank, of, "fp32")
            bound = executor.bind_at(given, rows)
            for executor.graph in (False, True):
                executor.poison()
                executor.run(bound)
                for rank in range(ranks):
                    found = memory.read("C", rank, np.dtype(np.float32))
                    assert np.array_equal(found, 8 * wanted["C"][rank]), (m, rank)
                    if "R" in wanted:
                        kept = memory.read("R", rank, numpy_dtype("fp8_e4m3")).astype(np.float32)
                        assert np.array_equal(kept, wanted["R"][rank]), (m, rank)
                        assert (memory.read("R.scales", rank, np.dtype(np.float32)) == 2).all(), (m, rank)
            executor.release(bound)
            memory.free()
    assert not library.violations()
    return ()
