"""Runs among the callers' own work: what stands on a caller's stream before a run is done when its tensors are touched,
what is put on it behind the run begins when they are not touched any more, and runs do not disturb each other."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import fresh_inputs
from ficco_rt.exec.verify import compare
from ficco_rt.exec.workspace import Workspace
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan
from tests import cases
from tests.mock.standin import StandIn

RANKS, SEEDS, RUNS = 4, 12, 3


class Array:
    """fp32 in a device's memory."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.address, self.shape = address, shape
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": shape, "typestr": "<f4", "version": 3,
        }  # fmt: skip

    @property
    def size(self) -> int:
        return 4 * int(np.prod(self.shape))


class Torch(Array):
    """What PyTorch's tensors tell without an export, of which `exports` are made."""

    exports = 0
    dtype, is_cuda, requires_grad, dense = "float32", True, False, True

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        super().__init__(address, shape)
        self._told = self.__dict__.pop("__cuda_array_interface__", None)

    def data_ptr(self) -> int:
        return int(self.address)

    def is_contiguous(self) -> bool:
        return self.dense

    def __getattr__(self, name: str) -> Any:
        if name != "__cuda_array_interface__":
            raise AttributeError(name)
        Torch.exports += 1
        return self._told if self.dense else {**self._told, "strides": (4, 4 * self.shape[0])}


Tensors: TypeAlias = dict[str, list[Array]]


class Callers:
    """A caller with a stream for each rank: one of its own, or its device's default stream."""

    def __init__(self, plan: Plan, each: int, default: bool, priority: int = 0) -> None:
        from cuda.bindings import driver

        self.cu, self.plan, self.each = driver, plan, each
        self.taken: list[Array] = []
        self.made: list[Any] = []
        for rank in () if default else range(plan.ranks):
            with self.on(rank):
                self.made.append(driver.cuStreamCreateWithPriority(1, priority)[1])
        self.streams: list[Any] = self.made or [driver.CUstream(0)] * plan.ranks

    @contextmanager
    def on(self, rank: int) -> Iterator[None]:
        (_, context) = self.cu.cuDevicePrimaryCtxRetain(rank // self.each)
        self.cu.cuCtxPushCurrent(context)
        yield
        self.cu.cuCtxPopCurrent()
        self.cu.cuDevicePrimaryCtxRelease(rank // self.each)

    def array(self, rank: int, shape: tuple[int, ...]) -> Array:
        with self.on(rank):
            code, address = self.cu.cuMemAlloc(max(16, 4 * int(np.prod(shape))))
        assert not code
        self.taken.append(Array(int(address), shape))
        return self.taken[-1]

    def write(self, array: Array, values: np.ndarray) -> None:
        with self.on(0):
            (code,) = self.cu.cuMemcpyHtoD(array.address, np.ascontiguousarray(values).ctypes.data, array.size)
        assert not code

    def read(self, array: Array) -> np.ndarray:
        values = np.empty(array.shape, np.float32)
        with self.on(0):
            (code,) = self.cu.cuMemcpyDtoH(values.ctypes.data, array.address, array.size)
        assert not code
        return values

    def tensors(self) -> Tensors:
        """What the plan binds, on all ranks."""
        bound = [t for t in self.plan.tensors if t.kind != "scratch"]
        return {t.name: [self.array(r, shape) for r, shape in enumerate(t.shapes)] for t in bound}

    def give(self, tensors: Tensors, values: Mapping[str, Sequence[np.ndarray]]) -> None:
        for name, arrays in values.items():
            for array, value in zip(tensors[name], arrays, strict=True):
                self.write(array, value)

    def outputs(self, tensors: Tensors) -> dict[str, list[np.ndarray]]:
        return {t.name: [self.read(a) for a in tensors[t.name]] for t in self.plan.tensors if t.kind == "output"}

    def copy(self, rank: int, dst: Array, src: Array) -> None:
        """On the rank's stream."""
        if dst.size:
            with self.on(rank):
                (code,) = self.cu.cuMemcpyDtoDAsync(dst.address, src.address, dst.size, self.streams[rank])
            assert not code

    def spoil(self, rank: int, array: Array) -> None:
        """On the rank's stream: NaN."""
        if array.size:
            with self.on(rank):
                (code,) = self.cu.cuMemsetD8Async(array.address, 0xFF, array.size, self.streams[rank])
            assert not code

    def wait(self) -> None:
        for rank, stream in enumerate(self.streams):
            with self.on(rank):
                (code,) = self.cu.cuStreamSynchronize(stream)
            assert not code

    def close(self) -> None:
        for array in self.taken:
            self.cu.cuMemFree(array.address)
        for stream in self.made:
            self.cu.cuStreamDestroy(stream)


KINDS = {
    "a_gpu_each": (1, False),
    "two_a_gpu": (2, False),
    "two_a_gpu_default_streams": (2, True),
    "a_gpu_each_default_streams": (1, True),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for turn, name in enumerate(cases.few(cases.ONE_TYPE, len(cases.ONE_TYPE) // 2, 0))
        for kind in cases.few(list(KINDS), 1, turn)
    ],
)
def test_callers_work_stands_around_the_runs(cuda: StandIn, name: str, kind: str) -> None:
    """Inputs are copied in on the callers' streams and spoilt behind the run, outputs spoilt before it and copied out
    behind it; three runs are issued without a wait in between, on streams and as a graph."""
    each, default = KINDS[kind]
    cuda.reset(f"devices {RANKS // each}")
    machine = discover("cuda", RANKS, each)
    sizes = cases.sizes(name, RANKS, True) | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), RANKS, sizes), machine)
    kinds = {t.name: t.kind for t in plan.tensors if t.kind != "scratch"}
    with Executor(plan, "cuda", machine=machine, ranks_per_gpu=each, timeout=30) as executor:
        callers = Callers(plan, each, default)
        tensors = callers.tensors()
        beside = [callers.tensors() for _ in range(RUNS)]  # what is copied in, and where outputs are kept
        bound = executor.bind(**tensors)
        for seed in range(SEEDS):
            executor.graph, executor.timed = seed % 3 == 2, seed % 2 == 1
            cuda.set(f"seed {seed}; call_steps {seed % 3}; query_steps 5000")
            inputs = [fresh_inputs(plan, 100 * seed + i, "exact") for i in range(RUNS)]
            for given, kept in zip(inputs, beside, strict=True):
                callers.give(kept, given)
            for kept in beside:
                for n, kind in kinds.items():
                    for rank, array in enumerate(tensors[n]):
                        if kind == "input":
                            callers.copy(rank, array, kept[n][rank])
                        else:
                            callers.spoil(rank, array)
                executor.run(bound, streams=[int(s) for s in callers.streams])
                for n, kind in kinds.items():
                    for rank, array in enumerate(tensors[n]):
                        if kind == "output":
                            callers.copy(rank, kept[n][rank], array)
                        callers.spoil(rank, array)
            executor.synchronize()
            callers.wait()
            if executor.timed:
                assert executor.duration >= 0
            else:
                with pytest.raises(UsageError, match="was not timed"):
                    _ = executor.duration
            for given, kept in zip(inputs, beside, strict=True):
                result = compare(plan, given, callers.outputs(kept), "exact")
                assert result.ok, f"seed {seed}, graph {executor.graph}: {result.worst}"
        callers.close()
    assert not cuda.violations()
    assert not cuda.live()


LOCAL = """
schedule local
input   A[64, 64] : fp32
input   B[64, 64] : fp32
scratch P[64, 64] : fp32
output  C[64, 64] : fp32
computes C = A * B
queue compute { engine = sm }
queue dma     { engine = copy }
stage mm on compute streamed { for c in 0..4 { gemm P.rows(c of 4) = A.rows(c of 4) * B } }
stage out on dma { for c in 0..4 { copy C.rows(c of 4) <- P.rows(c of 4) } }
"""  # flags of which streams wait, on one device


@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/relay", "gemm_rs/streamed", "gemm_ar/overlapped"])
def test_runs_of_different_callers_and_forms_stand_behind_one_another(cuda: StandIn, name: str) -> None:
    cuda.reset(f"devices {RANKS}")
    sizes = cases.sizes(name, RANKS, True) | cases.few_chunks(name)
    machine = discover("cuda", RANKS)
    by_turns(cuda, plan_of(build(cases.schedule(name), RANKS, sizes), machine), machine)


def test_runs_on_other_streams_share_tensors(cuda: StandIn) -> None:
    """A run reads what the run before, of other callers and another plan, writes on all devices: runs follow each other
    in the order of the calls."""
    cuda.reset("devices 2; arch sm_90")
    machine = discover("cuda", 2)
    sums, gathered = (
        plan_of(build(cases.schedule(name), 2, {"M": m, "N": 16, "K": 16, "T": "fp32"}), machine)
        for name, m in (("gemm_ar/streamed", 16), ("ag_gemm/streamed", 32))
    )
    with Workspace(2, "cuda", timeout=20) as workspace:
        first, second = (Executor(plan, workspace=workspace) for plan in (sums, gathered))
        writer, reader = (Callers(plan, 1, default=False) for plan in (sums, gathered))
        made, given = writer.tensors(), reader.tensors()
        given["A"] = made["C"]
        for seed in range(24):
            writer.give(made, fresh_inputs(sums, 2 * seed, "exact"))
            right = fresh_inputs(gathered, 2 * seed + 1, "exact")["B"]
            reader.give(given, {"B": right})
            cuda.set(f"seed {seed}; call_steps {seed % 3}; query_steps 300; delay {1 + seed % 6} 3000")
            first.run(streams=[int(s) for s in writer.streams], **made)
            second.run(streams=[int(s) for s in reader.streams], **given)
            second.synchronize()
            left = np.concatenate(writer.outputs(made)["C"]).astype(np.float64)
            for found, weight in zip(reader.outputs(given)["C"], right, strict=True):
                assert np.array_equal(found, left @ weight), f"seed {seed}"
        writer.close()
        reader.close()
    assert not cuda.violations()


def test_runs_on_one_device_stand_behind_one_another(cuda: StandIn) -> None:
    """A single caller is all that the device waits for besides."""
    cuda.reset("devices 1")
    machine = discover("cuda", 1)
    by_turns(cuda, plan_of(build(ficco_dsl.parse(LOCAL, "local.ficco"), 1), machine), machine)


def by_turns(cuda: StandIn, plan: Plan, machine: Machine) -> None:
    """Runs of one executor with either of two sets of tensors, on either of two sets of streams, as graphs or not,
    without a wait in between: what the executor shares among them, scratch and flags, nobody disturbs."""
    kinds = {t.name: t.kind for t in plan.tensors if t.kind != "scratch"}
    with Executor(plan, "cuda", machine=machine, timeout=60) as executor:
        both = [Callers(plan, 1, default=False) for _ in range(2)]
        tensors = [caller.tensors() for caller in both]
        bound = [executor.bind(**t) for t in tensors]
        executor.run(bound[0])
        executor.graph = True
        executor.run(bound[0])
        executor.run(bound[1])
        for seed in range(40):
            cuda.set(f"seed {seed}; call_steps {seed % 3}; query_steps 5000")
            inputs = [fresh_inputs(plan, 100 * seed + i, "exact") for i in range(2)]
            for given, held, caller in zip(inputs, tensors, both, strict=True):
                caller.give(held, given)
                for n, kind in kinds.items():
                    for rank, array in enumerate(held[n] if kind == "output" else ()):
                        caller.spoil(rank, array)
                caller.wait()  # the run may go to the other one's streams
            chance = random.Random(seed)
            for turn in [0, 1, *chance.choices((0, 1), k=3)]:
                executor.graph = chance.random() < 0.5
                executor.run(bound[turn], streams=[int(s) for s in chance.choice(both).streams])
            executor.synchronize()
            for given, held, caller in zip(inputs, tensors, both, strict=True):
                caller.wait()
                result = compare(plan, given, caller.outputs(held), "exact")
                assert result.ok, f"seed {seed}: {result.worst}"
        for caller in both:
            caller.close()
    assert not cuda.violations()
    assert not cuda.live()


def test_kernels_stay_apart_from_streams_of_a_priority(cuda: StandIn) -> None:
    """Runs on usual streams, on streams of a priority, and on both are right one after the other, and what one of the
    lowest priority launches goes to the callers' usual streams alone."""
    cuda.reset(f"devices {RANKS}")
    machine = discover("cuda", RANKS)
    plan = plan_of(
        build(cases.schedule("ag_gemm/streamed"), RANKS, cases.sizes("ag_gemm/streamed", RANKS, True)), machine
    )
    with Executor(plan, "cuda", machine=machine, timeout=60) as executor:
        both = [Callers(plan, 1, default=False, priority=priority) for priority in (0, -2)]
        mixed = [both[rank == 1].streams[rank] for rank in range(RANKS)]
        tensors = both[0].tensors()
        bound = executor.bind(**tensors)
        for seed in range(12):
            given = fresh_inputs(plan, seed, "exact")
            both[0].give(tensors, given)
            both[0].wait()
            streams = (both[0].streams, both[1].streams, mixed)[seed % 3]
            executor.run(bound, streams=[int(s) for s in streams])
            assert executor.run_plan().plan.mode == ("apart" if seed % 3 else "streams")
            executor.synchronize()
            assert compare(plan, given, both[0].outputs(tensors), "exact").ok
        for caller in both:
            caller.close()
    assert not cuda.violations()
    assert not cuda.live()


@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/relay"])
@pytest.mark.parametrize("graph", [False, True])
def test_what_a_run_that_fails_midway_leaves_on_the_callers_streams_is_let_through(
    cuda: StandIn, name: str, graph: bool
) -> None:
    """One call after the other fails: what was issued before it ends, and the next run is right."""
    cuda.reset(f"devices {RANKS}")
    machine = discover("cuda", RANKS)
    sizes = cases.sizes(name, RANKS, True) | cases.few_chunks(name)
    plan = plan_of(build(cases.schedule(name), RANKS, sizes), machine)
    with Executor(plan, "cuda", machine=machine, graph=graph, timeout=60) as executor:
        callers = Callers(plan, 1, default=False)
        tensors = callers.tensors()
        bound, streams = executor.bind(**tensors), [int(s) for s in callers.streams]
        executor.run(bound, streams=streams)
        executor.synchronize()
        struck = 0
        for call in range(1, 1000, 1 if graph else 8):
            cuda.set(f"seed {call}; call_steps {call % 3}; query_steps {1 + call % 5}")
            given = fresh_inputs(plan, call, "exact")
            callers.give(tensors, given)
            if call % 2:  # behind one that is on its way
                executor.run(bound, streams=streams)
            cuda.set(f"fail * {call} 1")
            try:
                executor.run(bound, streams=streams)
                break  # it has no more calls than that
            except DeviceError:
                struck += 1
            finally:
                cuda.calm()
            executor.run(bound, streams=streams)
            executor.synchronize()
            callers.wait()
            result = compare(plan, given, callers.outputs(tensors), "exact")
            assert result.ok, f"call {call}: {result.worst}"
        assert struck > 10
        executor.synchronize()
        callers.close()
    assert not cuda.violations()
    assert not cuda.live()
