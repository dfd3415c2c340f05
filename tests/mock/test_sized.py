"""Operations whose rows are known when they run, on stand-in GPUs. `test_rows` tests their plans one by one."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import ficco_rt as ficco
from ficco_rt.calibrate import alone
from ficco_rt.driver.gpu import driver
from ficco_rt.driver.gpu.driver import GpuDriver
from ficco_rt.errors import UsageError
from ficco_rt.files.store import Store
from ficco_rt.kernels.families import PlainProduct
from tests import cases
from tests.host.test_sized import OPERATIONS, K, N
from tests.host.test_sized import tensors as numbers_of
from tests.mock.processes import Processes
from tests.mock.standin import StandIn
from tests.mock.test_callers import RANKS, Callers, Tensors, Torch
from tests.mock.test_callers_graphs import Captures

MOST, BUCKETS = 40, (8, 20)
FORWARD = ("ag_gemm", "gemm_rs", "gemm_ar")


def operation(workspace: ficco.Workspace, name: str, **sizes: int) -> ficco.Operation:
    return ficco.Operation(workspace, name, max_m=MOST, buckets=BUCKETS, N=N, K=K, T="fp32", **sizes)


class Caller(Callers):
    """A caller with tensors of any shape."""

    def __init__(self, plan: Any) -> None:
        super().__init__(plan, 1, default=False)

    def placed(self, values: dict[str, list[np.ndarray]]) -> Tensors:
        found = {n: [self.array(r, v.shape) for r, v in enumerate(arrays)] for n, arrays in values.items()}
        self.give(found, values)
        return found

    def holds(self, tensors: Tensors, wanted: dict[str, list[np.ndarray]]) -> bool:
        """Whether the outputs are as wanted; one without elements is."""
        return all(
            not want.size or np.array_equal(self.read(array), want)
            for name, wants in wanted.items()
            for array, want in zip(tensors[name], wants, strict=True)
        )


def test_any_rows_in_any_order(cuda: StandIn) -> None:
    """Several operations behind each other without a wait, on streams and as graphs, on two sets of streams; weights
    of some of them are stored transposed, and some add a bias."""
    names = [*FORWARD, *cases.few([name for name in OPERATIONS if name not in FORWARD], 3, 1)]
    turned = {name: {"transb": 1} if name in ("ag_gemm", "gemm_ar", "ag_gemm_kept") else {} for name in names}
    turned |= {name: turned[name] | {"bias": 1} for name in ("gemm_rs", "gemm_ar")}
    cuda.reset(f"devices {RANKS}")
    with ficco.Workspace(RANKS) as workspace:
        operations = {name: operation(workspace, name, **turned[name]) for name in names}
        callers = [Caller(operations["ag_gemm"].executor(MOST).plan) for _ in range(2)]
        streams = [[int(s) for s in caller.streams] for caller in callers]
        chance = random.Random(1)
        for seed in range(12):
            cuda.set(f"seed {seed}; call_steps {seed % 3}; query_steps 5000")
            made: list[tuple[int, Tensors, dict[str, list[np.ndarray]], str]] = []
            for name in chance.choices(names, k=4):
                m, by = chance.randrange("backward" in name, MOST + 1), chance.randrange(2)
                values, wanted = numbers_of(name, m, seed, **turned[name])
                placed = callers[by].placed(values)
                operations[name].executor(m).graph = chance.random() < 0.5
                operations[name].run(streams=streams[by], **placed)
                made.append((by, placed, wanted, f"{name}, {m} rows, seed {seed}"))
            operations["gemm_rs"].synchronize()
            for caller in callers:
                caller.wait()
            for by, placed, wanted, what in made:
                assert callers[by].holds(placed, wanted), what
        for m in range(MOST + 1):
            values, _ = numbers_of("gemm_ar", m, m, **turned["gemm_ar"])
            operations["gemm_ar"].run(**callers[0].placed(values))
        # another test may have brought the vendor's library, which is not called for pieces that may have no row
        assert "staging" not in workspace.memory or "library" in workspace.memory
        for caller in callers:
            caller.close()
    assert not cuda.violations()
    assert not cuda.live()


@pytest.mark.parametrize("m", [20, 13])
def test_known_tensors_of_pytorch_are_not_exported(cuda: StandIn, torch: type[Torch], m: int) -> None:
    """With a bucket's rows and with fewer. A tensor that differs in any way is looked at; none is kept alive."""
    cuda.reset(f"devices {RANKS}")
    with ficco.Workspace(RANKS) as workspace:
        made = operation(workspace, "gemm_ar")
        caller = Caller(made.executor(m).plan)
        streams = [int(s) for s in caller.streams]
        placed = [caller.placed(numbers_of("gemm_ar", m, 0)[0]) for _ in range(2)]

        def run(which: int, seed: int) -> int:
            """How many exports a run makes."""
            before, (values, wanted) = torch.exports, numbers_of("gemm_ar", m, seed)
            caller.give(placed[which], values)
            tensors = {name: [torch(a.address, a.shape) for a in arrays] for name, arrays in placed[which].items()}
            made.run(streams=streams, **tensors)
            made.synchronize()
            assert caller.holds(placed[which], wanted), seed
            there = weakref.ref(tensors["A"].pop())
            assert there() is None
            return torch.exports - before

        every = RANKS * len("ABC")
        assert [run(which, seed) for seed, which in enumerate((0, 0, 1, 0, 1))] == [every, 0, every, 0, 0]
        executor = made.executor(m)
        bound = executor._bound
        assert bound is not None
        executor.release(bound)
        assert run(1, 5) == every
        known = {name: [torch(a.address, a.shape) for a in arrays] for name, arrays in placed[0].items()}
        for name, value in (("dtype", "half"), ("requires_grad", True), ("is_cuda", False)):
            before = torch.exports
            setattr(known["B"][1], name, value)
            made.run(streams=streams, **known)
            assert torch.exports == before + every, name
            delattr(known["B"][1], name)
        known["B"][1].dense = False
        with pytest.raises(UsageError, match="given one with gaps"):
            made.run(streams=streams, **known)
        made.synchronize()
        caller.close()
    assert not cuda.violations()
    assert not cuda.live()


CALLS = 18  # functions of ours in a call on tensors that are known; each takes the host a quarter of a microsecond


@pytest.mark.parametrize("graph", [None, True, False])
def test_a_call_on_known_tensors_comes_to_few_functions(cuda: StandIn, torch: type[Torch], graph: bool | None) -> None:
    """Where the ranks have one GPU. With several, each tensor's memory is asked for."""
    cuda.reset()
    with ficco.Workspace(RANKS, ranks_per_gpu=RANKS) as workspace:
        made = operation(workspace, "gemm_ar")
        made.executor(MOST).graph = graph
        caller = Callers(made.executor(MOST).plan, RANKS, default=False)
        streams, values = [int(s) for s in caller.streams], numbers_of("gemm_ar", MOST, 0)[0]
        placed = {name: [caller.array(r, v.shape) for r, v in enumerate(of)] for name, of in values.items()}
        known = {name: [torch(a.address, a.shape) for a in arrays] for name, arrays in placed.items()}
        for _ in range(2):
            made.run(streams=streams, **known)
        with called() as functions:
            made.run(streams=streams, **known)
        assert len(functions) <= CALLS, functions
        made.synchronize()
        caller.close()


def test_a_context_that_is_current_is_not_entered(cuda: StandIn) -> None:
    """Default streams, as PyTorch's usual one, are those of the current context."""
    cuda.reset()
    with ficco.Workspace(RANKS, ranks_per_gpu=RANKS) as workspace:
        made = operation(workspace, "gemm_ar")
        caller = Callers(made.executor(MOST).plan, RANKS, default=True)
        values, wanted = numbers_of("gemm_ar", MOST, 1)
        placed = {name: [caller.array(r, v.shape) for r, v in enumerate(of)] for name, of in values.items()}
        caller.give(placed, values)

        def entered() -> int:
            before = cuda.called().get("cuCtxSetCurrent", 0)
            made.run(streams=caller.streams, **placed)
            return cuda.called().get("cuCtxSetCurrent", 0) - before

        made.run(streams=caller.streams, **placed)
        assert entered() > 1
        with caller.on(0):
            assert entered() == 0
        made.synchronize()
        for array, want in zip(placed["C"], wanted["C"], strict=True):
            assert np.array_equal(caller.read(array), want)
        caller.close()
    assert not cuda.violations()
    assert not cuda.live()


def test_runs_that_come_often_become_graphs(cuda: StandIn, torch: type[Torch], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a plan without copies, unless the caller's streams are captured at that time. Runs on other tensors are
    counted by themselves."""
    cuda.reset(f"devices {RANKS}")
    monkeypatch.setattr(driver, "OFTEN", 2)
    with ficco.Workspace(RANKS) as workspace:
        made = operation(workspace, "gemm_ar")
        caller = Caller(made.executor(MOST).plan)
        streams, captures = [int(s) for s in caller.streams], Captures(caller, joined=True)
        placed = [caller.placed(numbers_of("gemm_ar", MOST, 0)[0]) for _ in range(2)]
        known = [{name: [torch(a.address, a.shape) for a in arrays] for name, arrays in p.items()} for p in placed]

        def mode(which: int, seed: int) -> str:
            values, wanted = numbers_of("gemm_ar", MOST, seed)
            caller.give(placed[which], values)
            made.run(streams=streams, **known[which])
            made.synchronize()
            assert caller.holds(placed[which], wanted), seed
            return made.executor(MOST).run_plan().plan.mode

        assert [mode(0, seed) for seed in range(2)] == ["streams"] * 2
        with captures.capturing():
            made.run(streams=streams, **known[0])
        assert made.executor(MOST).run_plan().plan.mode == "embedded"
        assert [mode(which, seed) for seed, which in enumerate((0, 1, 1, 0, 1))] == [
            *("graph", "streams", "streams", "graph", "graph")
        ]
        captures.close()
        caller.close()
    assert not cuda.violations()
    assert not cuda.live()


def test_operations_in_turn_know_the_end_of_each_other(cuda: StandIn) -> None:
    """Graphs on the same caller's streams, by the order of these. A run that ends, or begins, elsewhere is awaited."""
    cuda.reset(f"devices {RANKS}")
    with ficco.Workspace(RANKS) as workspace:
        made = {name: operation(workspace, name) for name in ("gemm_ar", "gemm_rs")}
        callers = [Caller(made["gemm_ar"].executor(MOST).plan) for _ in range(2)]
        placed = [{name: caller.placed(numbers_of(name, MOST, 0)[0]) for name in made} for caller in callers]

        def waits(name: str, mode: str, by: int) -> bool:
            executor = made[name].executor(MOST)
            executor.graph = mode == "graph"
            made[name].run(streams=[int(s) for s in callers[by].streams], **placed[by][name])
            return "device 0 caller 0: wait for completion of device 0" in str(executor.run_plan())

        for name, by in product(made, (1, 0)):  # the host waits where a graph is made
            waits(name, "graph", by)
        assert not any(waits(name, "graph", 0) for name in ("gemm_rs", "gemm_ar", "gemm_rs"))
        assert waits("gemm_ar", "graph", 1)
        assert not waits("gemm_rs", "graph", 1)
        ended = made["gemm_ar"].executor(MOST)
        waits("gemm_ar", "streams", 1)
        elsewhere = "caller 0: record completion of device 0" not in str(ended.run_plan())
        assert waits("gemm_rs", "graph", 1) == elsewhere
        made["gemm_ar"].synchronize()
        for caller in callers:
            caller.close()
    assert not cuda.violations()
    assert not cuda.live()


def test_copies_stay_on_streams(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.reset(f"devices {RANKS}")
    monkeypatch.setattr(driver, "OFTEN", 1)
    with ficco.Workspace(RANKS) as workspace:
        plan = ficco.compile("ag_gemm/shard_p2p", RANKS, workspace.machine, M=MOST * RANKS, N=N, K=K, T="fp32")
        executor = ficco.Executor(plan, workspace=workspace, graph=None)
        for rank in range(RANKS):
            for name in "AB":
                executor.write(name, rank, executor.read(name, rank))
        for _ in range(4):
            executor.run()
        assert executor.run_plan().plan.mode == "streams"


@contextmanager
def called() -> Iterator[list[str]]:
    """The functions of the package that are called inside."""
    functions: list[str] = []

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "ficco_rt" in frame.f_code.co_filename:
            functions.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield functions
    finally:
        sys.setprofile(before)


@pytest.fixture(params=["taken", "copied"])
def taken(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the plans take fewer rows; otherwise rows are copied beside runs, on callers' streams."""
    if request.param == "copied":
        monkeypatch.setattr(GpuDriver, "staged", lambda driver, rows: rows.blocks.keys())
    return bool(request.param == "taken")


@pytest.mark.parametrize("only", ["", "A"])
def test_rows_on_two_callers_streams(cuda: StandIn, taken: bool, only: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one has not copied out yet, or its run not read, the run that the other one calls does not overwrite.
    `only`: this input is copied, and as many rows as the plan has."""
    cuda.reset(f"devices {RANKS}")
    if only and not taken:
        monkeypatch.setattr(GpuDriver, "staged", lambda driver, rows: frozenset(only))
    m = MOST if only else 13
    with ficco.Workspace(RANKS) as workspace:
        made = operation(workspace, "gemm_rs")
        callers = [Caller(made.executor(m).plan) for _ in range(2)]
        streams = [[int(s) for s in caller.streams] for caller in callers]
        both = [caller.placed(numbers_of("gemm_rs", m, 0)[0]) for caller in callers]
        for turn in (0, 1):  # all is made before
            made.run(streams=streams[turn], **both[turn])
        made.synchronize()
        for seed in range(40):
            cuda.set(f"seed {seed}; call_steps 0; query_steps {(1, 50)[seed % 2]}")
            wanted = []
            for turn, caller in enumerate(callers):
                values, wants = numbers_of("gemm_rs", m, 2 * seed + turn)
                caller.give(both[turn], values)
                wanted.append(wants)
            for turn in (0, 1, 0, 1):
                made.run(streams=streams[turn], **both[turn])
            made.synchronize()
            for caller in callers:
                caller.wait()
            for turn, wants in enumerate(wanted):
                assert callers[turn].holds(both[turn], wants), (seed, turn)
        assert ("staging" in workspace.memory) != taken
        for caller in callers:
            caller.close()
    assert not cuda.violations()
    assert not cuda.live()


@pytest.mark.usefixtures("taken")
def test_an_operation_may_be_used_first_in_a_capture(cuda: StandIn) -> None:
    cuda.reset(f"devices {RANKS}")
    with ficco.Workspace(RANKS) as workspace:
        other, made = operation(workspace, "ag_gemm"), operation(workspace, "ag_gemm")
        caller = Caller(other.executor(13).plan)
        placed, captures = caller.placed(numbers_of("ag_gemm", 13, 0)[0]), Captures(caller, joined=True)
        with captures.capturing():
            made.run(streams=[int(s) for s in caller.streams], **placed)
        values, wanted = numbers_of("ag_gemm", 13, 1)
        caller.give(placed, values)
        captures.replay([0], caller.streams)
        caller.wait()
        made.synchronize()
        assert caller.holds(placed, wanted)
        captures.close()
        caller.close()
    assert not cuda.violations()


@pytest.mark.usefixtures("taken")
def test_captured_with_fewer_rows(cuda: StandIn) -> None:
    """Copies are captured, too; a replay reads what the tensors hold then."""
    cuda.reset(f"devices {RANKS}")
    with ficco.Workspace(RANKS) as workspace:
        made = operation(workspace, "ag_gemm")
        caller = Caller(made.executor(13).plan)
        placed = caller.placed(numbers_of("ag_gemm", 13, 0)[0])
        made.run(**placed)
        captures = Captures(caller, joined=True)
        with captures.capturing():
            made.run(streams=[int(s) for s in caller.streams], **placed)
        beside = caller.placed(numbers_of("ag_gemm", 15, 0)[0])
        made.run(**beside)
        for seed in range(1, 9):
            cuda.set(f"seed {seed}; call_steps 0; query_steps {(1, 5)[seed % 2]}")
            values, wanted = numbers_of("ag_gemm", 13, seed)
            other, fresh = numbers_of("ag_gemm", 15, seed)
            caller.give(placed, values)
            caller.give(beside, other)
            captures.replay([0], caller.streams)
            made.run(streams=[int(s) for s in caller.streams] if seed % 2 else None, **beside)
            caller.wait()
            made.synchronize()
            for found, wants in ((placed, wanted), (beside, fresh)):
                assert caller.holds(found, wants), seed
        captures.close()
        caller.close()
    assert not cuda.violations()
    assert not cuda.live()


def test_a_product_is_measured_beside_a_capture(cuda: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As by the first run of an operation, which a caller captures with the mode that everybody's calls can spoil."""
    pytest.importorskip("nvmath.bindings")
    cuda.gemms()
    cuda.reset(f"devices {RANKS}")
    monkeypatch.setattr(alone, "user_store", lambda: Store(tmp_path))
    with ficco.Workspace(RANKS) as workspace:
        made = operation(workspace, "ag_gemm")
        caller = Caller(made.executor(13).plan)
        placed = caller.placed(numbers_of("ag_gemm", 13, 0)[0])
        captures = Captures(caller, joined=True)
        with captures.capturing():
            assert alone.times(PlainProduct(16, 32, 48, False, "bf16"), "cuda") is not None
            made.run(streams=[int(s) for s in caller.streams], **placed)
        values, wanted = numbers_of("ag_gemm", 13, 1)
        caller.give(placed, values)
        captures.replay([0], caller.streams)
        caller.wait()
        assert caller.holds(placed, wanted)
        captures.close()
        caller.close()
    assert not cuda.violations()
    assert not cuda.live()


@pytest.mark.parametrize("both", ["cuda", "hip"], indirect=True)
def test_in_two_processes(both: Processes) -> None:
    others = [name for name in OPERATIONS if name != "gemm_ar"]
    for touching in (False, True):
        names = ("gemm_ar", *cases.few(others, 2, 2 * touching + (both.face == "hip")))
        asked = [(name, m) for m in (0, 3, 8, 15, 33, 8, 15, 40, 40) for name in names]
        answers = both.ask("sized", asked, touching)
        assert answers == [(True, "")] * 2, answers


@pytest.mark.parametrize(("ours", "kernel"), [(1.0, "sm90_gemm_64x64_c1"), (3.0, "vendor_gemm")])
def test_processes_measure_once_and_take_one_plan(cuda_pair: Processes, ours: float, kernel: str) -> None:
    answers = cuda_pair.ask("measured", ours, settings="devices 2; arch sm_90", once=True)
    for kernels, micros, left in answers:
        assert (kernels, left) == ([kernel] * 3, "")
        assert micros > 0
