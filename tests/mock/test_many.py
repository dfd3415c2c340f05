"""Many operations, bound for many layers: what is proven once, what is shared, and the memory that it takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ficco_rt as ficco
from ficco_rt.driver.gpu import binding
from ficco_rt.driver.gpu.workspace import GpuWorkspace
from ficco_rt.exec.bound import KEPT_OF_MANY
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.exec.workspace import Workspace
from ficco_rt.files import store
from ficco_rt.select import sized
from tests.mock import many
from tests.mock.standin import StandIn

SETTINGS = "devices 2; sms 132; arch sm_90"
OPERATIONS = (("ag_gemm", {"N": 256, "K": 512}), ("gemm_rs", {"N": 256, "K": 512}), ("gemm_ar", {"N": 256, "K": 512}))
ROWS = (16, 64)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter[str]:
    """How often plans are chosen, and device plans made and checked. Nothing is kept from before."""
    counts: Counter[str] = Counter()

    def counted(where: Any, name: str) -> None:
        plain: Callable[..., Any] = getattr(where, name)

        def counting(*given: Any, **more: Any) -> Any:
            counts[name] += 1
            return plain(*given, **more)

        monkeypatch.setattr(where, name, counting)

    counted(sized, "choose")
    for name in ("layout_of", "device_plan", "checked"):
        counted(binding, name)
    monkeypatch.setattr(sized, "user_store", lambda: store.Store(tmp_path))
    return counts


def right(cuda: StandIn, by: Any = None) -> None:
    cuda.reset(SETTINGS)
    with Workspace(2) as workspace:
        made = [ficco.Operation(workspace, n, max_m=32, buckets=[8], by=by, **sizes) for n, sizes in OPERATIONS]
        for operation in made:
            operation.warm()
            assert [*operation._executors] == [32, 8]  # whose schedules may need other scratch, less of each kind
            for m in operation.buckets:
                executor = operation.executor(m)
                for executor.graph in (False, True):
                    assert verified_run(executor, values="exact").ok, (executor, m)
    assert not cuda.violations()
    assert not cuda.live()


def test_nothing_is_proven_twice(
    cuda: StandIn, done: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right(cuda)
    plans = 2 * len(OPERATIONS)
    # layouts of plans for these GPUs, on streams and as a graph
    assert done == {"choose": plans, "layout_of": plans, "device_plan": 2 * plans, "checked": 2 * plans}
    done.clear()
    right(cuda)
    assert not done
    entries = [*tmp_path.glob("*.entry")]
    assert len(entries) == 3 * plans
    entries[0].write_bytes(entries[0].read_bytes()[:-1])  # one of the plan, or of a device plan
    right(cuda)
    assert 0 < done.total() <= 3
    done.clear()
    right(cuda)
    assert not done
    right(cuda, by="model")
    assert done == {"choose": plans}  # the plans are others to the store, and their device plans the same
    done.clear()
    monkeypatch.setattr(store, "sources", lambda: "another version")
    right(cuda)
    assert done["choose"] == plans
    assert done["checked"] == 2 * plans


def test_memory_of_many_bindings(cuda: StandIn, done: Counter[str]) -> None:
    """Bindings share the tables of launches, and executors the rest; what `memory` says is what the devices have."""
    cuda.reset(SETTINGS)
    with Workspace(2) as workspace:
        before, free = many.count(workspace)
        executors: list[Executor] = [*many.opened(workspace, OPERATIONS, ROWS)]
        at = many.rooms(workspace, 64 << 20)
        for executor in executors:
            many.bind(executor, at, 0)
        once = dict(workspace.memory)
        for executor in executors:
            for layer in range(1, 20):
                many.bind(executor, at, layer)
        assert workspace.memory == once
        many.complete(workspace)
        assert workspace.memory == once
        after, left = many.count(workspace)
        assert {ordinal: free[ordinal] - n for ordinal, n in left.items()} == dict.fromkeys(left, after - before)
        most = dict(workspace.memory)
        for layer in range(20, 2 * KEPT_OF_MANY):
            many.bind(executors[0], at, layer)
        shared = workspace.shared
        assert isinstance(shared, GpuWorkspace)
        assert len(shared.binder.bindings) == 20 * (len(executors) - 1) + KEPT_OF_MANY
        assert all(size <= most[kind] for kind, size in workspace.memory.items())
        for executor in executors:
            assert verified_run(executor, values="exact").ok
    assert not cuda.violations()
    assert not cuda.live()
