"""Executors of one process at once: their runs hold each other out nowhere, and disturb each other nowhere."""

from __future__ import annotations

import os
import random
import threading
from contextlib import ExitStack
from threading import Thread
from typing import Any, cast

import numpy as np
import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.device.check import checked
from ficco_rt.driver.gpu import binding, issue_order, runs
from ficco_rt.driver.gpu.gpus import Gpus
from ficco_rt.driver.gpu.issue_order import Client, Submission
from ficco_rt.driver.gpu.vendor import Gpu
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import compare, fresh_inputs, verified_run
from tests import cases
from tests.mock import several
from tests.mock.standin import StandIn
from tests.mock.test_callers import Callers
from tests.mock.test_callers_graphs import Captures

SHARES, ORDERS = 6, 12  # tests among which a draw of pairs is divided; orders of a pair
DRAWN = 5 if cases.ALL else 3  # pairs of a test
SEED = int(os.environ.get("FICCO_SEVERAL", "0"))


@pytest.mark.parametrize("share", range(SHARES))
def test_every_order_ends(library: StandIn, share: int) -> None:
    """A part of `python -m tests.mock.several`."""
    chance = random.Random(f"{SEED} {share} {library.face}")
    for names in chance.sample(several.PAIRS, DRAWN):
        with several.pair(library, names, chance.choice((2, 3))) as running:
            for seed in range(ORDERS):
                assert not several.in_order(library, running, seed), f"{names}, order {seed}"
        assert not library.violations()
        assert not library.live()


def test_without_an_order_runs_hold_each_other_out(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the test above sees it."""
    monkeypatch.setattr(issue_order, "kept_back", lambda residency, earlier, sms: [False for _ in earlier])
    monkeypatch.setattr(runs, "DRAIN", 0.1)
    monkeypatch.setattr(several, "TIMEOUT", 0.2)
    said = ""
    with several.pair(cuda, ("gemm_rs/streamed", "gemm_rs/streamed")) as running:
        for seed in range(30):
            said = said or several.in_order(cuda, running, seed)
    assert "the run did not end within 0.2 s" in said


NARROW = """schedule narrow
input   A[64, 64] : fp32
input   B[64, 64] : fp32
scratch P[64, 64] : fp32
scratch S[64, 64] : fp32
output  C[64, 64] : fp32 unproven
queue compute { engine = sm  sms = SMS }
queue dma     { engine = copy }
stage mm on compute streamed { for c in 0..4 { gemm P.rows(c of 4) = A.rows(c of 4) * B } }
stage move on dma { for c in 0..4, p in peers { copy S.rows(c of 4) @ p <- P.rows(c of 4) } }
stage sum on compute streamed { for c in 0..4 { reduce C.rows(c of 4) = sum(P.rows(c of 4), S.rows(c of 4)) } }
"""


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(("sms", "beside"), [(3, True), (4, False)])
def test_runs_that_leave_each_other_room_wait_for_nothing(
    library: StandIn, graph: bool, sms: int, beside: bool
) -> None:
    """Of eight multiprocessors, two runs of three leave one for what does not wait; two of four leave none."""
    library.reset("devices 2; sms 8; query_steps 5000")
    schedule = ficco_dsl.parse(NARROW.replace("SMS", str(sms)), "narrow.ficco")
    plan = plan_of(build(schedule, 2), discover(library.face, 2))
    with Executor(plan, library.face, timeout=30) as first, Executor(plan, library.face, timeout=30) as second:
        bound = []
        for executor in (first, second):
            for name in "AB":
                for rank in range(2):
                    executor.write(name, rank, several.zeros((64, 64), "fp32"))
            bound.append(executor.bind().binding)
            executor.driver.capture(bound[-1])
        waits = []
        for others in (False, True):
            for executor, binding in zip((first, second), bound, strict=True):
                if executor is second or others:
                    library.calm()
                    executor.driver.run(binding, (), graph=graph)
            called = library.called()
            waits.append(called.get("cuStreamWaitEvent", 0) + called.get("hipStreamWaitEvent", 0))
            second.synchronize()
        first.synchronize()
        alone, among = waits
        assert (among == alone) is beside
    assert not library.live()


def test_in_threads(library: StandIn) -> None:
    """Each makes, runs, verifies and closes executors of its own, while the others do."""
    library.reset("devices 2; sms 2; call_steps 3; query_steps 500")
    names = ("gemm_rs/streamed", "ag_gemm/oneshot", "gemm_ar/streamed", "gemm_rs/relay")
    plans = {name: several.plan_for(library.face, name, 2) for name in names}
    errors: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for turn in range(3):
                with Executor(plans[names[(first + turn) % len(names)]], library.face, timeout=30) as executor:
                    for run in range(4):
                        executor.graph = run % 2 == 1
                        result = verified_run(executor, seed=run, values="exact")
                        assert result.ok, result.worst
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    assert not errors, errors
    assert not library.violations()
    assert not library.live()


def test_one_closes_while_others_run(library: StandIn) -> None:
    """Those that have waited for it are behind nobody then."""
    with several.pair(library, ("gemm_rs/streamed", "gemm_ar/streamed")) as running:
        for seed in range(8):
            library.set(f"seed {seed}; call_steps {seed % 3}; query_steps 500")
            closing = several.Running(several.plan_for(library.face, "gemm_rs/relay", 2), library.face)
            for one in (*running[:2], closing, *running[2:]):
                one.executor.poison()
                one.issue(graph=seed % 2 == 1)
            closing.executor.close()
            for one in running:
                one.issue(graph=seed % 2 == 0)
            for one in reversed(running):
                one.executor.synchronize()
                assert one.right()
    assert not library.violations()
    assert not library.live()


@pytest.mark.parametrize("same", [True, False], ids=["the_same_streams", "streams_of_their_own"])
def test_on_callers_streams(cuda: StandIn, same: bool) -> None:
    """What any of them still runs, when the callers wait for their own streams, disturbs nobody."""
    cuda.reset("devices 2; sms 2; query_steps 5000")
    plans = [several.plan_for("cuda", name, 2) for name in ("gemm_rs/streamed", "gemm_ar/streamed", "gemm_rs/relay")]
    with ExitStack() as stack:
        executors = [stack.enter_context(Executor(plan, "cuda", timeout=30)) for plan in plans]
        callers = [Callers(plan, 1, default=False) for plan in plans]
        tensors = [caller.tensors() for caller in callers]
        bound = [executor.bind(**held) for executor, held in zip(executors, tensors, strict=True)]
        for seed in range(16):
            cuda.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
            chance = random.Random(seed)
            inputs = [fresh_inputs(plan, seed, "exact") for plan in plans]
            for caller, held, given in zip(callers, tensors, inputs, strict=True):
                caller.give(held, given)
            for i in chance.sample(range(3), 3) + chance.choices(range(3), k=3):
                executors[i].graph = chance.random() < 0.5
                executors[i].run(bound[i], streams=[int(s) for s in callers[0 if same else i].streams])
            for i in chance.sample(range(3), 3):
                executors[i].synchronize()
                callers[i].wait()
            for plan, given, caller, held in zip(plans, inputs, callers, tensors, strict=True):
                result = compare(plan, given, caller.outputs(held), "exact")
                assert result.ok, f"seed {seed}: {result.worst}"
        for caller in callers:
            caller.close()
    assert not cuda.violations()
    assert not cuda.live()


def test_graphs_on_a_callers_stream_are_in_order_anyway(cuda: StandIn) -> None:
    """So that no wait is issued for that: two layers of a model cost what they would cost alone."""
    cuda.reset("devices 2; sms 2; query_steps 5000")
    plan = several.plan_for("cuda", "gemm_rs/streamed", 2)
    with Executor(plan, "cuda", graph=True) as first, Executor(plan, "cuda", graph=True) as second:
        callers = Callers(plan, 1, default=False)
        tensors = callers.tensors()
        callers.give(tensors, fresh_inputs(plan, 0, "exact"))
        streams = [int(s) for s in callers.streams]
        layers = [(executor, executor.bind(**tensors)) for executor in (first, second)]
        waits = []
        for executor, bound in (*layers, layers[0], layers[0], *layers, *layers):
            cuda.calm()
            executor.run(bound, streams=streams)
            waits.append(cuda.called()["cuStreamWaitEvent"])
        assert len(set(waits[3:])) == 1  # behind the same executor's run, or the other one's
        for executor, _ in layers:
            executor.synchronize()
        callers.wait()
        callers.close()
    assert not cuda.live()


def test_runs_wait_for_replays_of_callers_graphs_that_hold_others_runs(cuda: StandIn) -> None:
    cuda.reset("devices 2; sms 2; query_steps 5000")
    plan = several.plan_for("cuda", "gemm_rs/streamed", 2)
    with Executor(plan, "cuda", timeout=60) as held, Executor(plan, "cuda", timeout=60) as free:
        callers = [Callers(plan, 1, default=False) for _ in range(2)]
        tensors = [caller.tensors() for caller in callers]
        bound = [executor.bind(**of) for executor, of in zip((held, free), tensors, strict=True)]
        captures = Captures(callers[0], joined=True)
        with captures.capturing():
            held.run(bound[0], streams=[int(s) for s in callers[0].streams])
        for seed in range(30):
            cuda.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
            given = fresh_inputs(plan, seed, "exact")
            for caller, of in zip(callers, tensors, strict=True):
                caller.give(of, given)
            free.graph = seed % 2 == 0
            captures.replay([0], callers[0].streams)
            free.run(bound[1], streams=[int(s) for s in callers[1].streams])
            for executor in (free, held):
                executor.synchronize()
            for caller, of in zip(callers, tensors, strict=True):
                caller.wait()
                assert compare(plan, given, caller.outputs(of), "exact").ok
        captures.close()
        for caller in callers:
            caller.close()
    assert not cuda.violations()
    assert not cuda.live()


def test_the_streams_of_a_plan_are_made_together(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one turn: a GPU hands its hardware queues to streams in turn, so that those of one plan do not meet in one."""
    library.reset("devices 2; sms 2; query_steps 5000")
    turns_of: set[object] = set()
    make = Gpus.new_stream

    def new_stream(gpus: Gpus, device: Gpu, priority: str = "normal") -> object:
        turns_of.add(issue_order.ISSUE_ORDER.held)
        return make(gpus, device, priority)

    with Executor(several.plan_for(library.face, "gemm_rs/streamed", 2), library.face) as executor:
        for tensor in executor.plan.tensors:
            for rank, shape in enumerate(tensor.shapes if tensor.kind == "input" else ()):
                executor.write(tensor.name, rank, several.zeros(shape, tensor.dtype))
        monkeypatch.setattr(Gpus, "new_stream", new_stream)
        executor.bind()
    assert len(turns_of) == 1
    assert None not in turns_of


def test_default_streams_of_threads_are_different_streams(cuda: StandIn) -> None:
    """One handle stands for the default stream of each thread, so each run waits for the one before."""
    cuda.reset("devices 1; query_steps 5000")
    own = 2  # CU_STREAM_PER_THREAD
    machine = discover("cuda", 2, 2)
    sizes = cases.sizes("gemm_rs/streamed", 2, True) | cases.few_chunks("gemm_rs/streamed")
    plan = plan_of(build(cases.schedule("gemm_rs/streamed"), 2, sizes), machine)
    others = []
    with Executor(plan, "cuda", machine=machine, ranks_per_gpu=2, timeout=30) as made:
        for tensor in (t for t in plan.tensors if t.kind == "input"):
            for rank, shape in enumerate(tensor.shapes):
                made.write(tensor.name, rank, np.zeros(shape, np.float32))

        def runs(count: int) -> None:
            for _ in range(count):
                made.run(streams=[own, own])
                manner = made.driver._runs._manner  # type: ignore[attr-defined]
                others.append(manner.others)

        for _ in range(2):
            thread = Thread(target=runs, args=(3,))
            thread.start()
            thread.join()
        made.synchronize()
    assert others == [True] * 6
    assert not cuda.violations()


def test_a_run_that_departs_while_another_thread_asks_is_not_over() -> None:
    class Departs:
        name = "cuda"

        def ended(self, event: object) -> bool:
            client.submit(submission)
            return True

    client = Client("one", cast(Any, Departs()), None)
    submission = Submission({}, {}, {0: ("event", "stream")})
    client.submit(submission)
    assert not client.ended()
    assert not client.over


def test_executors_in_turn_make_their_device_plans_once(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are: a model has hundreds."""
    cuda.reset("devices 2")
    made: list[object] = []
    monkeypatch.setattr(binding, "checked", lambda plan: made.append(plan) or checked(plan))
    machine = discover("cuda", 2)
    sizes = cases.sizes("gemm_rs/serial", 2, True)
    plans = [plan_of(build(cases.schedule("gemm_rs/serial"), 2, sizes), machine) for _ in range(6)]
    with ExitStack() as stack:
        executors = [stack.enter_context(Executor(plan, "cuda", machine=machine, timeout=30)) for plan in plans]
        for executor in executors:
            assert verified_run(executor, values="exact").ok
        first = len(made)
        for executor in executors:
            outputs = [t for t in executor.plan.tensors if t.kind == "output"]
            more = {(t.name, r): executor.driver.alloc(r, s, t.dtype) for t in outputs for r, s in enumerate(t.shapes)}
            executor.driver.bind({**executor._owned, **more})
            assert verified_run(executor, seed=1, values="exact").ok
    assert len(made) == first >= len(plans)
