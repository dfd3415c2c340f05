"""`quantize` on the GPU drivers, bit for bit as on the host."""

from __future__ import annotations

import numpy as np
import pytest

import ficco_dsl
import ficco_rt as ficco
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import check_replay, verified_run
from ficco_rt.geometry.rows import Rows
from ficco_rt.types import numpy_dtype
from tests import cases
from tests.host.test_quantize import GATHERED, RUNS, run
from tests.mock.standin import StandIn
from tests.mock.test_rows import Memory


@pytest.mark.parametrize("library", ["cuda", "hip"], indirect=True)
def test_gathered(library: StandIn) -> None:
    """Eight ranks on one GPU, on streams and as a graph."""
    library.set("devices 1")
    machine = discover(library.face, 8, 8)
    plan = plan_of(build(ficco_dsl.parse(GATHERED, "gathered.ficco"), 8), machine)
    with Executor(plan, library.face, machine=machine, ranks_per_gpu=8) as executor:
        found = verified_run(executor)
        assert found.correct, found
        check_replay(executor)
    assert not library.violations()


@pytest.mark.parametrize(("way", "scaling", "columns"), cases.few(RUNS, 10, 1))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bit_for_bit_as_on_the_host(cuda: StandIn, way: str, scaling: str, columns: int) -> None:
    cuda.reset("devices 1")
    seed = RUNS.index((way, scaling, columns))
    wanted, found = (run(backend, way, scaling, columns, seed) for backend in ("host", "cuda"))
    if way == "silu_mul":  # whose own error is larger
        off = np.frombuffer(wanted[1], np.float32) / np.frombuffer(found[1], np.float32) - 1
        assert np.nanmax(abs(off)) < 1e-5
    else:
        assert wanted == found
    assert not cuda.violations()


def test_fewer_rows(cuda: StandIn) -> None:
    """A plan for 24 rows with 1 and 17; of ones all are the largest, and scales exact."""
    cuda.reset("devices 3")
    sizes = {"M": 72, "N": 24, "K": 160, "T": "bf16", "Sum": "fp32", "chunks": 3}
    plan = plan_of(build(cases.schedule("quantized/ag_gemm_streamed"), 3, sizes), discover(cuda.face, 3))
    with ficco.Workspace(3, cuda.face) as workspace, Executor(plan, workspace=workspace) as executor:
        for m in (1, 17):
            memory, rows, rng = Memory(executor), Rows(24, m, {"A": 1, "C": 3}), np.random.default_rng(m)
            a = [rng.choice([-448.0, 448.0], (m, 160)) for _ in range(3)]
            b = [rng.integers(-2, 3, (8, 160)).astype(np.float64) for _ in range(3)]
            given = {}
            for r in range(3):
                given["A", r] = memory.give("A", r, a[r].astype(numpy_dtype("bf16")), "bf16")
                given["B", r] = memory.give("B", r, b[r].astype(numpy_dtype("fp8_e4m3")), "fp8_e4m3")
                given["B.scales", r] = memory.give("B.scales", r, np.ones((1, 4), np.float32), "fp32")
                given["C", r] = memory.give("C", r, np.full((3 * m, 8), np.nan, np.float32), "fp32")
            bound = executor.bind_at(given, rows)
            executor.poison()
            executor.run(bound)
            for r in range(3):
                found = memory.read("C", r, np.dtype(np.float32))
                assert np.array_equal(found, np.concatenate(a) @ b[r].T), (m, r)
            executor.release(bound)
            memory.free()
    assert not cuda.violations()
