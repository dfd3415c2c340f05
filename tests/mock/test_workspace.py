"""Executors that share a workspace: any plan may follow any other, and they hold what the largest one needs."""

from __future__ import annotations

import gc
import random
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

import ficco_rt as ficco
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import fresh_inputs
from ficco_rt.exec.verify import compare, verified_run
from ficco_rt.exec.workspace import Workspace
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.mock.processes import Processes, claimed
from tests.mock.standin import StandIn
from tests.mock.test_callers import Callers, Tensors
from tests.mock.test_callers_graphs import Captures

NAMES = ("ag_gemm/streamed", "gemm_rs/serial", "ag_gemm/oneshot", "gemm_ar/overlapped")
MORE = ("gemm_rs/streamed", "ag_gemm/stationary_a", "gemm_rs/oneshot", "concurrent/ar_copies", "gemm_rs/direct")
TURNS = 12 if cases.ALL else 4


def planned(library: StandIn, name: str, ranks: int = 2, **sizes: object) -> Plan:
    chosen = cases.sizes(name, ranks, True) | cases.few_chunks(name) | sizes
    return plan_of(build(cases.schedule(name), ranks, chosen), discover(library.face, ranks))


@contextmanager
def shared(library: StandIn, settings: str = "devices 2", **options: Any) -> Iterator[Workspace]:
    """A workspace of two ranks, of which nothing is left in the end."""
    library.reset(settings)
    with Workspace(2, library.face, **options) as workspace:
        yield workspace
    assert not library.violations()
    assert not library.live()


def test_any_plan_follows_any_other(library: StandIn) -> None:
    """On nobody's streams; each finds in scratch what others have left there."""
    with shared(library) as workspace:
        executors = [Executor(planned(library, name), workspace=workspace) for name in (*NAMES, *MORE)]
        chance = random.Random(1)
        for seed in range(3 * TURNS):
            library.set(f"seed {seed}; call_steps {seed % 4}; query_steps {(5, 5000)[seed % 2]}")
            executor = chance.choice(executors)
            executor.graph, executor.traced = chance.random() < 0.5, chance.random() < 0.2
            result = verified_run(executor, seed=seed, values="exact")
            assert result.ok, (executor, seed, result.worst)


@pytest.mark.parametrize("names", [NAMES, MORE], ids=["some", "others"])
def test_behind_each_other_among_the_callers_streams(cuda: StandIn, names: tuple[str, ...]) -> None:
    """Without a wait in between: runs on two callers' streams, as graphs, and replays of what these have captured."""
    with shared(cuda) as workspace, ExitStack() as closing:
        executors = [Executor(planned(cuda, name, T="fp32"), workspace=workspace) for name in names]
        callers = [Callers(executor.plan, 1, default=False) for executor in executors]
        streams = [int(s) for s in callers[0].streams]
        tensors: list[Tensors] = [caller.tensors() for caller in callers]
        captures = []
        for executor, caller, given in zip(executors, callers, tensors, strict=True):
            caller.streams, own = callers[0].streams, caller.streams
            closing.callback(_closed, caller, own)
            executor.run(**given)
            captures.append(Captures(caller, joined=True))
            closing.callback(captures[-1].close)
            with captures[-1].capturing():
                executor.run(streams=streams, **given)
        chance = random.Random(2)
        for seed in range(3 * TURNS):
            cuda.set(f"seed {seed}; call_steps {seed % 4}; query_steps {(5, 5000)[seed % 2]}")
            inputs = [fresh_inputs(executor.plan, seed, "exact") for executor in executors]
            for caller, given, values in zip(callers, tensors, inputs, strict=True):
                caller.give(given, values)
            for number in (*range(len(executors)), *chance.choices(range(len(executors)), k=4)):
                if chance.random() < 0.5:
                    captures[number].replay([0], callers[0].streams)
                else:
                    executors[number].graph = chance.random() < 0.5
                    executors[number].run(streams=streams, **tensors[number])
            chance.choice(executors).synchronize()
            callers[0].wait()
            for executor, caller, given, values in zip(executors, callers, tensors, inputs, strict=True):
                result = compare(executor.plan, values, caller.outputs(given), "exact")
                assert result.ok, (executor, seed, result.worst)


def _closed(caller: Callers, own: list[Any]) -> None:
    caller.streams = own
    caller.close()


@pytest.mark.parametrize(
    ("both", "names"), [("cuda", NAMES), ("cuda", MORE), ("hip", NAMES)], indirect=["both"], ids=["a", "b", "hip"]
)
def test_in_two_processes(both: Processes, names: tuple[str, ...]) -> None:
    _right(names, both.ask("together", names, TURNS))


LARGE = ("ag_gemm/streamed", "gemm_rs/streamed", "gemm_rs/ring", "gemm_ar/streamed")


def test_large_plans_in_two_processes(cuda_pair: Processes) -> None:
    """Local streams begin before an entry that streams tell, others behind one that a kernel tells."""
    _right(LARGE, cuda_pair.ask("large", LARGE, TURNS))


def _right(names: tuple[str, ...], answers: list[Any]) -> None:
    for answer in answers:
        assert not isinstance(answer, str), answer
        assert answer[1] == ""
    for seed, turns in enumerate(zip(*(found for found, _ in answers), strict=True)):
        for name, parts in zip(names, zip(*turns, strict=True), strict=True):
            plan = claimed(name)
            got = {key: array for part in parts for key, array in part.items()}
            outputs = {t.name: [got[t.name, r] for r in range(2)] for t in plan.tensors if t.kind == "output"}
            result = compare(plan, fresh_inputs(plan, seed, "exact"), outputs, "exact")
            assert result.ok, (name, seed, result.worst)


SMALL = ("ag_gemm/oneshot", "gemm_ar/oneshot")
WHOLE = ("gemm_ar/streamed", "gemm_ar/streamed")  # each waits on both multiprocessors


def test_workspaces_in_opposite_orders(cuda_pair: Processes) -> None:
    """That is right where runs fit on a GPU together. Otherwise each stands behind the other's, and both are told."""
    _right(SMALL, cuda_pair.ask("crossed", SMALL, TURNS, 30.0))
    answers = cuda_pair.ask("crossed", WHOLE, 1, 1.0, settings="sms 2", once=True)
    assert all(isinstance(answer, str) for answer in answers), answers
    assert any("did not end within 1 s" in answer for answer in answers), answers
    assert any("issued in one order by all processes" in answer for answer in answers), answers


def test_what_another_executor_has_poisoned(cuda_pair: Processes) -> None:
    """Scratch is that of all: a run of any executor waits until all processes have poisoned it."""
    names = ("ag_gemm/oneshot", "ag_gemm/streamed")
    plan = claimed(names[1])
    answers = cuda_pair.ask("poisoned", names)
    got = {key: array for found, _ in answers for key, array in found.items()}
    outputs = {t.name: [got[t.name, r] for r in range(2)] for t in plan.tensors if t.kind == "output"}
    result = compare(plan, fresh_inputs(plan, 0, "exact"), outputs, "exact")
    assert result.ok, result.worst
    assert [left for _, left in answers] == ["", ""]


def test_an_executor_that_cannot_open_ends_the_runs_of_all(cuda_pair: Processes) -> None:
    one, other = cuda_pair.ask("late", ("ag_gemm/oneshot", "ag_gemm/streamed"))
    assert len(one) == len(other) == 2
    assert re.search("process 1 of 2 has not come", one[0])
    assert re.search("process 0 of 2 has not come", other[0])
    assert other[1] == "the GPUs run nothing since an earlier error; make a new executor, in new processes"


def test_memory_is_that_of_the_largest(cuda: StandIn) -> None:
    """Scratch, streams and events of many plans are no more than those of the one that needs most."""
    sizes = [{"M": 32 * (i + 1), "N": 64, "K": 64} for i in range(6)]
    with shared(cuda, timeout=30) as workspace:
        (largest,) = [Executor(planned(cuda, "ag_gemm/streamed", **sizes[-1]), workspace=workspace)]
        assert verified_run(largest, values="exact").ok
        memory, held = workspace.memory, largest.holdings
        others: list[Any] = [Executor(planned(cuda, "ag_gemm/streamed", **more), workspace=workspace) for more in sizes]
        for executor in others:
            assert verified_run(executor, values="exact").ok
        for kind in ("scratch", "semaphores"):
            assert workspace.memory[kind] == memory[kind], kind
        assert (largest.holdings.streams, largest.holdings.events) == (held.streams, held.events)
        semaphores = {executor.driver._parts.resources.addresses[0][0] for executor in others}
        for executor in others:
            executor.close()
        assert workspace.memory == memory
        again: Any = Executor(planned(cuda, "ag_gemm/streamed", **sizes[0]), workspace=workspace)
        assert again.driver._parts.resources.addresses[0][0] in semaphores


def test_staging_of_an_operation_stays_where_it_is(cuda: StandIn) -> None:
    """Other processes know the address, and may not see that a larger operation has come."""
    with shared(cuda) as workspace:
        assert workspace.shared is not None
        at = workspace.shared.staging(0, "C", 1024)
        larger = workspace.shared.staging(0, "C", 4096)
        assert workspace.shared.staging(0, "C", 1024) == at != larger
        assert workspace.memory["staging"] == 1024 + 4096


def test_a_limit_is_kept(cuda: StandIn) -> None:
    with shared(cuda, limit=500_000) as workspace:
        small = Executor(planned(cuda, "ag_gemm/serial"), workspace=workspace)
        assert verified_run(small, values="exact").ok
        with pytest.raises(DeviceError, match=r"needs .* and the workspace may hold 0\.5 MiB; it holds .* of scratch"):
            Executor(planned(cuda, "ag_gemm/serial", M=512, K=512), workspace=workspace)
        assert verified_run(small, seed=1, values="exact").ok


def test_what_a_run_has_left_is_there_until_the_next_one(cuda: StandIn) -> None:
    with shared(cuda) as workspace:
        first, second = (Executor(planned(cuda, name), workspace=workspace) for name in NAMES[:2])
        first.traced = True
        assert verified_run(first, values="exact").ok
        assert first.trace.spans
        assert verified_run(first, values="exact").ok
        assert verified_run(second, values="exact").ok
        for ask in (lambda: first.trace, lambda: first.run_plan()):
            with pytest.raises(UsageError, match="another executor of the workspace has run since"):
                ask()
        assert second.run_plan().steps


def test_one_thread_at_a_time(cuda: StandIn) -> None:
    """Of all executors of a workspace."""
    with shared(cuda) as workspace:
        first, second = (Executor(planned(cuda, name), workspace=workspace) for name in NAMES[:2])
        told: list[str] = []

        def enter() -> None:
            try:
                second.synchronize()
            except UsageError as error:
                told.append(str(error))

        operation = ficco.Operation(workspace, "ag_gemm", max_m=8, buckets=(), N=128, K=64, T="fp32")

        def run() -> None:
            with pytest.raises(UsageError) as caught:
                operation.run(A=[np.ones((8, 64), np.float32)] * 2, B=[], C=[])
            told.append(str(caught.value))

        operation.executor(8)
        workspace.user.thread = threading.get_ident()
        for function in (enter, run):
            thread = threading.Thread(target=function)
            thread.start()
            thread.join()
        workspace.user.thread = 0
        assert len(told) == 2
        assert all("takes one thread at a time" in text for text in told)
        first.synchronize()


def test_nobody_closes_it(cuda: StandIn) -> None:
    """A warning, and nothing is left; executors keep it."""
    cuda.reset("devices 2")
    executor: Any = Executor(planned(cuda, NAMES[0]), workspace=Workspace(2))
    assert verified_run(executor, values="exact").ok
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del executor
        gc.collect()
    assert [str(warning.message).split(":")[0] for warning in told if warning.category is ResourceWarning] == [
        "an executor of schedule 'ag_gemm_streamed' was not closed",
        "a workspace was not closed",
    ]
    assert not cuda.live()


def test_mistakes(cuda: StandIn) -> None:
    cuda.reset("devices 4")
    with pytest.raises(UsageError, match="there is no driver 'gpu'; there are host, cuda, hip"):
        Workspace(2, "gpu")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="limit is a number of bytes, at least 1; given 0"):
        Workspace(2, limit=0)
    with shared(cuda, "devices 4") as workspace:
        with pytest.raises(UsageError, match="was compiled for 4 ranks, and the workspace has 2: compile it for these"):
            Executor(planned(cuda, "ag_gemm/serial", 4), workspace=workspace)
        with pytest.raises(UsageError, match="are the workspace's: leave them out"):
            Executor(planned(cuda, "ag_gemm/serial"), "cuda", workspace=workspace)
        executor = Executor(planned(cuda, "ag_gemm/serial"), workspace=workspace)
    with pytest.raises(UsageError, match="is closed; make a new one"):
        executor.run()
    with pytest.raises(UsageError, match="the workspace is closed; make a new one"):
        Executor(planned(cuda, "ag_gemm/serial"), workspace=workspace)
    with pytest.raises(UsageError, match="the workspace is closed; make a new one"):
        workspace.memory  # noqa: B018
    assert ficco.Workspace is Workspace
