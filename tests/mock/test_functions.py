"""Functions of finished sums on stand-in GPUs: in each family's products, and in sums."""

from __future__ import annotations

import pytest

from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.gpu import test_functions
from tests.gpu.test_functions import compiled
from tests.mock.standin import StandIn
from tests.mock.test_tuned import SERVED, kernels


def right(library: StandIn, plan: Plan) -> None:
    with Executor(plan, library.face, timeout=30) as executor:
        for executor.graph in (False, True):
            library.set(f"seed {executor.graph + 1}; call_steps 3; query_steps 5000")
            for values in ("exact", "normal"):
                found = verified_run(executor, values=values)
                assert found.ok, found.worst
    assert not library.violations()
    assert not library.live()


@pytest.mark.parametrize(
    ("function", "driver", "arch", "kernel"),
    [
        pytest.param(function, *served, id=f"{function}-{served[1]}")
        for turn, served in enumerate(SERVED)
        for function in cases.few(("gelu", "gelu_tanh", "silu"), 1, turn)
    ],
)
def test_in_tuned_products(request: pytest.FixtureRequest, function: str, driver: str, arch: str, kernel: str) -> None:
    library = request.getfixturevalue(driver)
    library.reset(f"devices 2; arch {arch}; sms 12")
    plan = compiled(library.face, 2, 1, function, "bf16", 96)
    assert any(k.startswith(kernel) for k in kernels(plan))
    right(library, plan)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_in_plain_kernels(library: StandIn, dtype: str) -> None:
    library.reset("devices 2")
    right(library, compiled(library.face, 2, 1, "gelu", dtype, 96))


def test_the_check_on_gpus(cuda: StandIn) -> None:
    cuda.reset("devices 1; arch sm_80")
    assert test_functions.right("cuda", 2, 2, ["silu"], "bf16", 96)
    assert not cuda.live()
