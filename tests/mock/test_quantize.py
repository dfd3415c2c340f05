"""`quantize` on the GPU drivers, bit for bit as on the host."""

from __future__ import annotations

import numpy as np
import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import check_replay, verified_run
from tests import cases
from tests.host.test_quantize import GATHERED, RUNS, run
from tests.mock.standin import StandIn


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
