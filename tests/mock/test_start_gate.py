"""Runs behind a start gate do not begin before the host has issued all of them; whatever goes wrong opens the start
gate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.device import start_gate
from ficco_rt.driver.gpu import runs
from ficco_rt.driver.gpu.driver import GpuDriver
from ficco_rt.driver.gpu.gpus import Gpus
from ficco_rt.driver.gpu.steps import DriverStep, make
from ficco_rt.driver.registry import discover
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from tests import cases
from tests.mock.standin import StandIn

RANKS = 2


@pytest.fixture(params=[("ag_gemm/streamed", "traced"), ("gemm_rs/serial", "traced"), ("gemm_rs/serial", "gated")])
def executor(library: StandIn, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Executor:
    """A traced or a gated one that has run."""
    name, mode = request.param
    monkeypatch.setattr(runs, "DRAIN", 0.3)
    library.reset(f"devices {RANKS}; call_steps 16")
    machine = discover(library.face, RANKS)
    plan = plan_of(build(cases.schedule(name), RANKS, cases.sizes(name, RANKS, even=True)), machine)
    made = Executor(plan, library.face, machine=machine, timeout=60)
    made.traced, made.gated = mode == "traced", mode == "gated"
    assert verified_run(made, values="exact").ok
    assert made.held
    return made


def ends_well(executor: Executor, library: StandIn) -> None:
    for seed in range(3):
        library.set(f"seed {seed}")
        assert verified_run(executor, values="exact", seed=seed).ok
    executor.traced = executor.gated = False
    assert verified_run(executor, values="exact").ok
    assert not executor.held
    executor.close()
    assert not library.violations()
    assert not library.live()


def test_nothing_begins_before_all_is_issued(
    executor: Executor, library: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last call lets the run begin: until then nothing is written, however far streams can go."""
    seen: list[bool] = []

    def watched(gpus: Gpus, steps: Sequence[DriverStep]) -> None:
        *most, last = steps
        make(gpus, most)
        for _ in range(50):
            gpus.idle()
        before = library.copies()
        for _ in range(50):
            gpus.idle()
        seen.append(library.copies() == before == copies)
        make(gpus, [last])

    executor.poison()
    monkeypatch.setattr(runs, "make", watched)
    copies = library.copies()
    executor.run()
    monkeypatch.undo()
    assert seen == [True]
    assert library.copies() > copies
    assert not np.isnan(np.asarray(executor.read("C", 0), np.float32)).any()
    ends_well(executor, library)


def test_a_start_gate_that_nobody_opens_is_forced(
    executor: Executor, library: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit of the run does it."""
    driver = executor.driver
    assert isinstance(driver, GpuDriver)
    with monkeypatch.context() as patched:
        patched.setattr(driver._gpus, "timeout", 0.2)
        patched.setattr(runs, "make", lambda gpus, steps: make(gpus, steps[:-1]))
        with pytest.raises(DeviceError, match=r"did not end within 0\.2 s"):
            executor.run()
    ends_well(executor, library)


@pytest.mark.parametrize("place", [0.2, 0.6, 0.98])
def test_a_call_that_fails_lets_the_run_go(
    executor: Executor, library: StandIn, place: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(gpus: Gpus, steps: Sequence[DriverStep]) -> None:
        make(gpus, steps[: int(place * len(steps))])
        raise DeviceError("the next call fails")

    with monkeypatch.context() as patched:
        patched.setattr(runs, "make", failing)
        with pytest.raises(DeviceError, match="the next call fails"):
            executor.run()
    ends_well(executor, library)


def test_a_run_too_long_for_a_start_gate_goes_without(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.reset(f"devices {RANKS}")
    monkeypatch.setattr(start_gate, "MOST", 0)
    machine = discover("cuda", RANKS)
    name = "gemm_rs/serial"
    plan = plan_of(build(cases.schedule(name), RANKS, cases.sizes(name, RANKS, even=True)), machine)
    with Executor(plan, "cuda", machine=machine, timeout=60) as executor:
        executor.gated = True
        assert verified_run(executor, values="exact").ok
        assert executor.gated
        assert not executor.held
        executor.traced = True
        assert verified_run(executor, values="exact").ok
        assert executor.trace.spans
        executor.traced = False
        assert executor.gated
    assert not cuda.violations()


def test_executors_that_are_opened_meanwhile_take_no_queue_of_the_start_gate(hip: StandIn) -> None:
    """Their streams come between those of an executor that is made before them and runs behind them."""
    hip.reset(f"devices {RANKS}")
    machine = discover("hip", RANKS)
    name = "gemm_rs/streamed"
    plan = plan_of(build(cases.schedule(name), RANKS, cases.sizes(name, RANKS, even=True)), machine)
    executors = [Executor(plan, "hip", machine=machine, timeout=60) for _ in range(6)]
    for executor in executors[1:]:
        assert verified_run(executor, values="exact").ok
    executors[0].traced = True
    assert verified_run(executors[0], values="exact").ok
    for executor in executors:
        executor.close()
    assert not hip.violations()
