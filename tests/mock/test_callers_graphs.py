"""Runs that are parts of graphs which their callers capture: replayed in any order of the devices, among plain runs."""

from __future__ import annotations

import gc
import random
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device.ir import manners
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import fresh_inputs
from ficco_rt.exec.verify import compare
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.mock.standin import StandIn
from tests.mock.test_callers import RANKS, Array, Callers, Tensors

GLOBAL, THREAD = 0, 1  # whose calls spoil a capture
SEEDS = 4


def planned(cuda: StandIn, name: str, each: int = 1) -> tuple[Plan, Machine]:
    cuda.reset(f"devices {RANKS // each}")
    machine = discover("cuda", RANKS, each)
    sizes = cases.sizes(name, RANKS, True) | cases.few_chunks(name)
    return plan_of(build(cases.schedule(name), RANKS, sizes), machine), machine


class Captures:
    """A caller's graphs: one over all streams, joined by events as PyTorch does it, or one for each device."""

    def __init__(self, callers: Callers, joined: bool) -> None:
        self.cu, self.callers = callers.cu, callers
        each = callers.each
        self.host = [0 if joined else rank // each * each for rank in range(len(callers.streams))]
        self.hosts = sorted(set(self.host))
        self.guests = [(rank, host) for rank, host in enumerate(self.host) if host != rank]
        self.graphs: list[Any] = []
        self.events: list[Any] = []

    def done(self, result: tuple[Any, ...]) -> Any:
        assert not result[0], result
        return result[1] if len(result) > 1 else None

    def event(self, rank: int) -> Any:
        with self.callers.on(rank):
            event = self.done(self.cu.cuEventCreate(2))
        self.events.append(event)
        self.done(self.cu.cuEventRecord(event, self.callers.streams[rank]))
        return event

    def wait(self, rank: int, event: Any) -> None:
        self.done(self.cu.cuStreamWaitEvent(self.callers.streams[rank], event, 0))

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Inside, all callers' streams are captured, with the mode that everybody's calls can spoil."""
        for rank in self.hosts:
            self.done(self.cu.cuStreamBeginCapture(self.callers.streams[rank], self.cu.CUstreamCaptureMode(GLOBAL)))
        for rank, host in self.guests:
            self.wait(rank, self.event(host))
        yield
        for rank, host in self.guests:
            self.wait(host, self.event(rank))
        for rank in self.hosts:
            graph = self.done(self.cu.cuStreamEndCapture(self.callers.streams[rank]))
            self.graphs.append(self.done(self.cu.cuGraphInstantiate(graph, 0)))
            self.done(self.cu.cuGraphDestroy(graph))

    def replay(self, order: Sequence[int], streams: Sequence[Any]) -> None:
        """The graphs, in an order, each on the stream that it was captured on. It stands behind what is on the streams
        that joined it, and what is put there next stands behind the graph."""
        for rank, host in self.guests:
            self.wait(host, self.event(rank))
        for place in order:
            self.done(self.cu.cuGraphLaunch(self.graphs[place], streams[self.hosts[place]]))
        for rank, host in self.guests:
            self.wait(rank, self.event(host))

    def close(self) -> None:
        for graph in self.graphs:
            self.cu.cuGraphExecDestroy(graph)
        for event in self.events:
            self.cu.cuEventDestroy(event)


def layer(callers: Callers, executor: Executor, bound: Any, tensors: Tensors, kept: Tensors, runs: int) -> None:
    """Work of the caller's own around runs: inputs are copied in, outputs spoilt before each run and copied out."""
    kinds = {t.name: t.kind for t in callers.plan.tensors if t.kind != "scratch"}
    for _ in range(runs):
        for name, kind in kinds.items():
            for rank, array in enumerate(tensors[name]):
                if kind == "input":
                    callers.copy(rank, array, kept[name][rank])
                else:
                    callers.spoil(rank, array)
        executor.run(bound, streams=[int(s) for s in callers.streams])
        for name, kind in kinds.items():
            for rank, array in enumerate(tensors[name]):
                if kind == "output":
                    callers.copy(rank, kept[name][rank], array)
                callers.spoil(rank, array)


@dataclass
class Captured:
    """An executor, whose caller has a stream for each rank, tensors that are bound, and others beside them."""

    executor: Executor
    callers: Callers
    captures: Captures
    tensors: Tensors
    kept: Tensors
    bound: Any

    def layer(self, runs: int = 1) -> None:
        layer(self.callers, self.executor, self.bound, self.tensors, self.kept, runs)

    def right(self, seed: int, replay: Callable[[], None]) -> None:
        """What is replayed, with new inputs, leaves the right outputs."""
        given = fresh_inputs(self.executor.plan, seed, "exact")
        self.callers.give(self.kept, given)
        replay()
        self.callers.wait()
        result = compare(self.executor.plan, given, self.callers.outputs(self.kept), "exact")
        assert result.ok, f"seed {seed}: {result.worst}"


@contextmanager
def captured(
    cuda: StandIn, name: str, *, joined: bool, each: int = 1, graph: bool = False, timeout: float = 30
) -> Iterator[Captured]:
    plan, machine = planned(cuda, name, each)
    with Executor(plan, "cuda", machine=machine, ranks_per_gpu=each, graph=graph, timeout=timeout) as executor:
        callers = Callers(plan, each, default=False)
        captures = Captures(callers, joined)
        tensors = callers.tensors()
        yield Captured(executor, callers, captures, tensors, callers.tensors(), executor.bind(**tensors))
        captures.close()
        callers.close()
    assert not cuda.violations()
    assert not cuda.live()


# Every schedule in one of the forms, some in all.
FORMS = [(True, 1), (False, 1), (True, 2), (False, 2)]
ALL_FORMS = ("ag_gemm/streamed", "gemm_rs/relay")
TAKEN = [(name, *FORMS[i % 4]) for i, name in enumerate(cases.ONE_TYPE) if name not in ALL_FORMS]
TAKEN += [(name, *form) for name in ALL_FORMS for form in FORMS]


@pytest.mark.parametrize(("name", "joined", "each"), cases.few(TAKEN, len(TAKEN) // 2, 0))
def test_a_layer_that_its_caller_captures(cuda: StandIn, name: str, joined: bool, each: int) -> None:
    """Two runs stand in the graphs. They are replayed with new inputs, several times without a wait in between, the
    graphs of different devices in different orders, and plain runs on streams and by our own graphs between them."""
    with captured(cuda, name, joined=joined, each=each) as made:
        graphs, streams = made.captures.graphs, made.callers.streams
        with made.captures.capturing():
            made.layer(2)
        for seed in range(SEEDS):
            chance = random.Random(seed)
            cuda.set(f"seed {seed}; call_steps {seed % 3}; query_steps 5000")

            def replay(chance: random.Random = chance) -> None:
                for _ in range(3):
                    made.captures.replay(chance.sample(range(len(graphs)), len(graphs)), streams)
                    if chance.random() < 0.5:
                        made.executor.graph = chance.random() < 0.5
                        made.layer()
                made.executor.synchronize()

            made.right(seed, replay)


@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/streamed"])
def test_on_one_hardware_queue(cuda: StandIn, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind our own graphs, whose chains are others."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    with captured(cuda, name, joined=False, graph=True) as made:
        made.layer()
        with made.captures.capturing():
            made.layer()
        for seed in range(4):
            cuda.set(f"seed {seed}")
            made.right(seed, lambda: made.captures.replay(range(RANKS), made.callers.streams))


def test_devices_replay_ahead_of_one_another(cuda: StandIn) -> None:
    """A device's graph is replayed again before another device's has been launched once: it waits where it must."""
    with captured(cuda, "ag_gemm/streamed", joined=False) as made:
        with made.captures.capturing():
            made.layer()
        for seed in range(30):
            cuda.set(f"seed {seed}; call_steps {seed % 3}; query_steps 5000")
            turns = [place for place in range(RANKS) for _ in range(3)]
            random.Random(seed).shuffle(turns)
            made.right(seed, lambda turns=turns: made.captures.replay(turns, made.callers.streams))  # type: ignore[misc]


def test_a_replay_of_one_device_alone_is_given_up_and_all_is_right_again(cuda: StandIn) -> None:
    """After some runs, whose counts are on their way up, a device waits for an exit that never comes."""
    with captured(cuda, "ag_gemm/streamed", joined=False, timeout=1) as made:
        executor, streams = made.executor, made.callers.streams
        with made.captures.capturing():
            made.layer()
        for seed in range(3):
            made.right(seed, lambda: made.captures.replay(range(RANKS), streams))
        made.captures.replay([0], streams)
        with pytest.raises(DeviceError, match="did not end"):
            executor.synchronize()
        made.right(3, lambda: made.captures.replay(range(RANKS), streams))
        made.right(4, made.layer)


def test_a_replay_that_hangs_has_a_time_limit_though_nobody_waits_for_it(
    cuda: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    with captured(cuda, "ag_gemm/streamed", joined=False, timeout=0.5) as made:
        executor, streams = made.executor, made.callers.streams
        with made.captures.capturing():
            made.layer()
        for seed in range(3):
            made.right(seed, lambda: made.captures.replay(range(RANKS), streams))
        made.captures.replay([0], streams)
        executor.check()
        cuda.set("query_steps 5000")
        ended, begun = False, time.monotonic()
        while not ended and time.monotonic() - begun < 60:  # as torch.cuda.synchronize would wait
            ended = all(executor.driver._vendor.idle(stream) for stream in streams)  # type: ignore[attr-defined]
            time.sleep(0.01)
        assert ended
        told = "a replay of a graph that holds its run did not end within 0.5 s"
        with pytest.raises(DeviceError, match=told):
            executor.check()
        assert told in capsys.readouterr().err
        executor.check()  # it was told
        made.right(3, lambda: made.captures.replay(range(RANKS), streams))


@pytest.mark.parametrize("own", [False, True])
def test_no_memory_is_freed_while_a_replay_waits(cuda: StandIn, own: bool) -> None:
    """Freeing waits for all work of its device: an executor gives up its own replay before, another's the watchdog."""
    with captured(cuda, "ag_gemm/streamed", joined=False, timeout=30 if own else 0.5) as made:
        executor, streams = made.executor, made.callers.streams
        with made.captures.capturing():
            made.layer()
        other = Executor(executor.plan, "cuda", machine=executor.machine, timeout=30)
        other.bind(**made.callers.tensors())
        made.captures.replay([0], streams)
        (executor if own else other).close()
        other.close()
        if not own:
            with pytest.raises(DeviceError, match="did not end"):
                executor.check()


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("called", [False, True])
def test_runs_on_other_streams_stand_behind_replays(cuda: StandIn, called: bool, graph: bool) -> None:
    """On nobody's, or on another caller's. They have other tensors, and the same scratch and semaphores."""
    with captured(cuda, "ag_gemm/streamed", joined=False) as made:
        callers, executor = made.callers, made.executor
        other = Callers(executor.plan, 1, default=False)
        streams = [int(s) for s in other.streams] if called else None
        beside = callers.tensors()
        bound = executor.bind(**beside)
        with made.captures.capturing():
            made.layer(2)
        executor.graph = graph
        for seed in range(12):
            cuda.set(f"seed {seed}; call_steps {seed % 3}; query_steps 50")
            given = fresh_inputs(executor.plan, 100 + seed, "exact")
            callers.give(beside, given)

            def replay() -> None:
                made.captures.replay(range(RANKS), callers.streams)
                executor.run(bound, streams=streams)
                issued = executor.run_plan()
                assert issued.manner in manners(issued.plan)
                executor.synchronize()

            made.right(seed, replay)
            assert compare(executor.plan, given, callers.outputs(beside), "exact").ok
        other.close()


def test_a_graph_has_a_node_for_each_event_beside_its_kernels(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """That a replay has begun, and that it has ended: behind all runs, and nothing comes behind it."""
    monkeypatch.setattr("ficco_rt.driver.cuda.vendor._CAPTURES", RANKS)  # those under way
    with captured(cuda, "gemm_ar/oneshot", joined=False) as made:
        cu, asked = made.callers.cu, Counter[str]()

        def counted(name: str, function: Callable[..., Any], *given: Any) -> Any:
            asked[name] += 1
            return function(*given)

        for name in ("cuGraphAddEventRecordNode", "cuGraphAddDependencies", "cuEventRecordWithFlags"):
            monkeypatch.setattr(cu, name, partial(counted, name, getattr(cu, name)))
        with made.captures.capturing():
            made.layer(3)
        assert asked == {"cuGraphAddEventRecordNode": 2 * RANKS, "cuGraphAddDependencies": 2 * RANKS}
        made.right(0, lambda: made.captures.replay(range(RANKS), made.callers.streams))


def test_a_capture_keeps_no_tensor_alive(cuda: StandIn) -> None:
    """A library that captures has pools of its own, and looks at what is still referenced."""
    plan, machine = planned(cuda, "gemm_rs/shard")
    with Executor(plan, "cuda", machine=machine, timeout=30) as executor:
        callers = Callers(plan, 1, default=False)
        tensors, captures = callers.tensors(), Captures(callers, joined=True)
        memory = {n: [Array(a.address, a.shape) for a in arrays] for n, arrays in tensors.items()}
        given = {n: [Array(a.address, a.shape) for a in arrays] for n, arrays in tensors.items()}
        alive = [weakref.ref(array) for arrays in given.values() for array in arrays]
        with captures.capturing():
            executor.run(streams=[int(s) for s in callers.streams], **given)
        del given
        gc.collect()
        assert {reference() for reference in alive} == {None}
        for _ in range(10):  # more sets of tensors than are kept: the captured one stays
            executor.run(**callers.tensors())
        inputs = fresh_inputs(plan, 1, "exact")
        callers.give(memory, inputs)
        captures.replay([0], callers.streams)
        callers.wait()
        executor.check()
        assert compare(plan, inputs, callers.outputs(memory), "exact").ok
        captures.close()
        callers.close()
    assert not cuda.violations()


@pytest.mark.parametrize("graph", [False, True])
def test_after_a_capture_that_failed_no_graph_is_launched_that_has_gone(cuda: StandIn, graph: bool) -> None:
    """Our own graphs and the parts of callers' graphs go together, and with them the calls that launch them."""
    failed = []
    with captured(cuda, "gemm_rs/serial", joined=True) as made:

        def own() -> None:
            made.executor.graph = True
            try:
                made.layer()
            except DeviceError as error:
                failed.append(error)
            made.executor.graph = False

        def caller() -> None:
            captures = Captures(made.callers, joined=True)
            with captures.capturing():
                try:
                    made.layer()
                except DeviceError as error:
                    failed.append(error)
            captures.replay([0], made.callers.streams)
            made.callers.wait()
            captures.close()

        first, fails = (own, caller) if graph else (caller, own)
        made.right(0, first)
        cuda.set("fail cuStreamEndCapture 1 2")
        fails()
        cuda.calm()
        assert len(failed) == 1
        for seed, run in enumerate((first, fails, first)):
            made.right(1 + seed, run)
    assert len(failed) == 1


def test_tensors_may_be_bound_while_a_capture_is_under_way(cuda: StandIn) -> None:
    """Making what a run needs takes calls that nobody may make meanwhile, but for threads that say so: the executor."""
    plan, machine = planned(cuda, "gemm_rs/shard")
    with Executor(plan, "cuda", machine=machine, graph=True, timeout=30) as executor:
        callers = Callers(plan, 1, default=False)
        tensors, given = callers.tensors(), fresh_inputs(plan, 1, "exact")
        captures = Captures(callers, joined=True)
        with captures.capturing():
            executor.run(streams=[int(s) for s in callers.streams], **tensors)
            mode = callers.cu.CUstreamCaptureMode(GLOBAL)
            assert callers.cu.cuThreadExchangeStreamCaptureMode(mode)[1] == mode  # as it was
        for other in range(12):  # sets of tensors: what the graph holds is not forgotten for them
            executor.run(**callers.tensors()) if other else None
        callers.give(tensors, given)
        captures.replay([0], callers.streams)
        executor.synchronize()
        assert compare(plan, given, callers.outputs(tensors), "exact").ok
        captures.close()
        callers.close()
    assert not cuda.violations()


def refused(executor: Executor, bound: Any, streams: Sequence[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        executor.run(bound, streams=streams)


def test_what_cannot_be_captured_is_refused_and_the_capture_stays_usable(cuda: StandIn) -> None:
    with captured(cuda, "ag_gemm/shard_p2p", joined=True) as made:
        executor, bound = made.executor, made.bound
        other = Callers(executor.plan, 1, default=False)
        with made.captures.capturing():
            streams = [int(s) for s in made.callers.streams]
            refused(executor, bound, [*streams[:3], int(other.streams[3])], "rank 3's is not")
            refused(executor, bound, [0, *streams[1:]], "rank 0's is not")
            executor.traced = True
            refused(executor, bound, streams, "executor.traced = False")
            executor.traced = False
            made.layer()
        made.right(3, lambda: made.captures.replay([0], made.callers.streams))
        other.close()


def test_ranks_of_a_gpu_in_different_graphs_are_refused(cuda: StandIn) -> None:
    with captured(cuda, "ag_gemm/shard_p2p", joined=True, each=2) as made:
        cu, streams = made.callers.cu, made.callers.streams
        for stream in streams:
            assert not cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode(THREAD))[0]
        refused(made.executor, made.bound, [int(s) for s in streams], "ranks that share a GPU share a graph")
        for stream in streams:
            code, graph = cu.cuStreamEndCapture(stream)
            assert not code
            cu.cuGraphDestroy(graph)


def test_hip_refuses_before_anything_is_issued(hip: StandIn) -> None:
    from hip import hip as api

    hip.reset("devices 2")
    machine = discover("hip", 2)
    plan = plan_of(build(cases.schedule("ag_gemm/shard_p2p"), 2, cases.sizes("ag_gemm/shard_p2p", 2, True)), machine)
    with Executor(plan, "hip", machine=machine, timeout=30) as executor:
        code, stream = api.hipStreamCreateWithPriority(api.hipStreamNonBlocking, 0)
        assert not code
        given = fresh_inputs(plan, 1, "exact")
        for name, arrays in given.items():
            for rank, array in enumerate(arrays):
                executor.write(name, rank, array)
        bound = executor.bind()
        assert not api.hipStreamBeginCapture(stream, api.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal)[0]
        with pytest.raises(UsageError, match="hip runs no plan inside a graph that its caller captures"):
            executor.run(bound, streams=[int(stream)] * 2)
        assert not api.hipStreamEndCapture(stream)[0]
        api.hipStreamDestroy(stream)
    assert not hip.violations()


def test_an_executor_in_a_graph_lives_until_it_is_closed(cuda: StandIn) -> None:
    plan, machine = planned(cuda, "ag_gemm/shard_p2p")
    callers = Callers(plan, 1, default=False)
    tensors, kept = callers.tensors(), callers.tensors()
    captures = Captures(callers, joined=True)

    def close_of() -> Callable[[], None]:
        executor = Executor(plan, "cuda", machine=machine, timeout=30)
        with captures.capturing():
            layer(callers, executor, executor.bind(**tensors), tensors, kept, 1)
        return executor.close

    close = close_of()
    given = fresh_inputs(plan, 5, "exact")
    callers.give(kept, given)
    captures.replay([0], callers.streams)
    callers.wait()
    assert compare(plan, given, callers.outputs(kept), "exact").ok
    captures.close()
    callers.close()
    close()
    assert not cuda.violations()
    assert not cuda.live()
