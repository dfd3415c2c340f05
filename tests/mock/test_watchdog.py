"""Calls that do not come back, and runs behind runs that do not end: who waits for what is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ficco_rt.driver.gpu import runs, turns, watchdog
from ficco_rt.driver.gpu.driver import GpuDriver
from ficco_rt.driver.gpu.turns import TURNS, Tenant
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from tests.mock import several
from tests.mock.standin import StandIn

NAME, LIMIT = "gemm_rs/streamed", 0.5
LONG = 300.0  # seconds that nothing takes that ends, however busy the machine is


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LEAST", LIMIT)
    monkeypatch.setattr(runs, "DRAIN", 0.5)


@contextmanager
def executor(library: StandIn, timeout: float | None = LONG, *, graph: bool = False) -> Iterator[Executor]:
    library.reset(f"devices 2; sms {several.SMS}; query_steps 5000")
    plan = several.plan_for(library.face, NAME, several.SMS)
    with Executor(plan, library.face, timeout=timeout, graph=graph) as made:
        assert verified_run(made, values="exact").ok
        yield made
    assert not library.violations()


def driver_of(made: Executor) -> GpuDriver:
    assert isinstance(made.driver, GpuDriver)
    return made.driver


@contextmanager
def limited(made: Executor) -> Iterator[None]:
    """Its calls and runs may take LIMIT alone."""
    gpus = driver_of(made)._gpus
    gpus.timeout = gpus.tenant.timeout = LIMIT
    with watchdog.WATCHDOG._changed:  # it looks as often as the shortest limit asks for
        watchdog.WATCHDOG._changed.notify_all()
    yield
    gpus.timeout = gpus.tenant.timeout = LONG


class Stuck:
    """The n-th call of a run comes back when the words are raised."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, made: Executor, function: str) -> None:
        self.back = threading.Event()
        self.before, self.once = function, True
        tenant = driver_of(made)._gpus.tenant
        release = tenant.release

        def released(why: str) -> None:
            release(why)
            self.back.set()

        tenant.release = released
        really = runs.make
        monkeypatch.setattr(runs, "make", lambda gpus, steps: really(gpus, [self.wrapped(step) for step in steps]))

    def wrapped(self, step: Any) -> Any:
        if step.function.__name__ != self.before or not self.once:
            return step
        self.once, real = False, step.function

        def blocked(*arguments: Any) -> Any:
            assert self.back.wait(LONG)
            return real(*arguments)

        blocked.__name__ = self.before
        return step._replace(function=blocked)


LAUNCH = {"cuda": "cuLaunchKernelEx", "hip": "hipModuleLaunchKernel"}
GRAPH = {"cuda": "cuGraphLaunch", "hip": "hipGraphLaunch"}


def test_a_graphs_launch_that_blocks_is_told(
    library: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with executor(library, graph=True) as made:
        Stuck(monkeypatch, made, GRAPH[library.face])
        told = rf"the host has been in {GRAPH[library.face]} \(stand-in \(device 0\), "
        with limited(made), pytest.raises(DeviceError, match=told):
            made.run()
        said = capsys.readouterr().err
        assert f"ficco_rt: schedule 'gemm_rs_streamed': the host has been in {GRAPH[library.face]}" in said
        assert "the graph of a run" in said
        assert verified_run(made, values="exact").ok
    assert not library.live()


def test_a_launch_that_blocks_is_told_with_where_the_streams_stand(
    library: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with executor(library) as made:
        Stuck(monkeypatch, made, LAUNCH[library.face])
        with limited(made), pytest.raises(DeviceError) as told:
            made.run()
        said = capsys.readouterr().err
        for text in (str(told.value), said):
            assert "gemm_rs/streamed.ficco:" in text.splitlines()[0]  # the line of the launch
            assert "rank 0 stream compute (stand-in (device 0)): finished nothing" in text
            assert "whose works wait for flags" in text or "pending is" in text
        assert verified_run(made, values="exact").ok
    assert not library.live()


def test_no_limit_no_watchdog(
    cuda: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with executor(cuda, None, graph=True) as made:
        stuck = Stuck(monkeypatch, made, "cuGraphLaunch")
        threading.Timer(0.3, stuck.back.set).start()
        assert verified_run(made, values="exact").ok
    assert not capsys.readouterr().err


def test_a_driver_that_does_not_answer(
    cuda: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is known without it is told."""
    monkeypatch.setattr(watchdog, "ANSWER", 0.05)
    with executor(cuda, graph=True) as made:
        Stuck(monkeypatch, made, "cuGraphLaunch")
        tenant = driver_of(made)._gpus.tenant

        complained, say = threading.Event(), watchdog.say

        def noted(text: str) -> None:
            say(text)
            if "does not say" in text:
                complained.set()

        monkeypatch.setattr(watchdog, "say", noted)

        def no_answer(issued: object) -> list[str]:
            complained.wait(LONG)
            return []

        tenant.report = no_answer
        with limited(made), pytest.raises(DeviceError, match="the host has been in cuGraphLaunch"):
            made.run()
        assert "the driver does not say where the streams stand" in capsys.readouterr().err
        assert verified_run(made, values="exact").ok


def test_a_turn_that_does_not_come(cuda: StandIn) -> None:
    with executor(cuda) as made:
        other = Tenant("schedule 'another'", driver_of(made)._vendor, None)
        taken, done = threading.Event(), threading.Event()

        def hold() -> None:
            with TURNS.turn(other):
                taken.set()
                done.wait(LONG)

        holder = threading.Thread(target=hold)
        holder.start()
        taken.wait()
        with limited(made), pytest.raises(DeviceError, match=r"'another' has held them for .* this one waited 0.5 s"):
            made.run()
        done.set()
        holder.join()
        assert verified_run(made, values="exact").ok
    assert not cuda.live()


def test_a_run_behind_one_that_does_not_end(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are given up, and say whose the first was."""
    with several.pair(cuda, (NAME, NAME)) as (first, second, *_):
        for one in (first, second):
            driver_of(one.executor)._gpus.timeout = LIMIT
        cuda.set("query_steps 5000; stop 12")
        first.issue(graph=False)
        second.issue(graph=False)
        with pytest.raises(DeviceError) as told:
            second.executor.synchronize()
        assert "it stands behind a run of schedule 'gemm_rs_streamed', which has not ended:" in str(told.value)
        assert "rank 0 stream compute (stand-in (device 0))" in str(told.value)
        with pytest.raises(DeviceError, match=r"its run was given up|did not end"):
            first.executor.synchronize()


def test_who_has_no_limit_is_not_given_up_for_another_one(cuda: StandIn) -> None:
    released: list[float | None] = []
    with executor(cuda) as made:
        for timeout in (None, 1.0):
            tenant = Tenant("schedule 'another'", driver_of(made)._vendor, timeout)
            tenant.release = lambda why, timeout=timeout: released.append(timeout)
            watchdog.let_go(tenant, "a call did not come back", tenant.generation)
            watchdog.let_go(tenant, "of a run that is over", tenant.generation - 1)
            assert bool(tenant.overdue) is (timeout is not None)
    assert released == [1.0]


def test_the_limit_of_an_executor_that_says_none(cuda: StandIn) -> None:
    cuda.reset("devices 2; sms 2")
    with Executor(several.plan_for("cuda", NAME, 2), "cuda") as made:
        assert driver_of(made)._gpus.timeout == 60
        assert driver_of(made)._gpus.tenant in watchdog.WATCHDOG._tenants


# ---------------------------------------------------------------- executors that nobody closes


def forget(library: StandIn, then: Callable[[], None]) -> None:
    """An executor of which nobody knows any more, with a run under way."""
    plan = several.plan_for(library.face, NAME, several.SMS)
    made: list[Executor] = [Executor(plan, library.face, timeout=LONG)]
    for tensor in plan.tensors:
        for rank, shape in enumerate(tensor.shapes if tensor.kind == "input" else ()):
            made[0].write(tensor.name, rank, several.zeros(shape, tensor.dtype))
    bound = made[0].bind().binding
    assert bound is not None
    made[0].driver.run(bound)
    del bound
    then()
    with pytest.warns(ResourceWarning, match="an executor of schedule 'gemm_rs_streamed' was not closed"):
        made.clear()  # nothing else refers to it, in no circle either


def test_an_executor_that_nobody_closed_is_freed(library: StandIn) -> None:
    library.reset("devices 2; sms 2; query_steps 5000")
    forget(library, lambda: None)
    assert not library.live()
    assert not library.violations()


def test_it_is_freed_behind_the_turn_in_which_python_forgets_it(cuda: StandIn) -> None:
    """Closing waits for devices: in the midst of another run that might never end."""
    with executor(cuda) as made:
        tenant = driver_of(made)._gpus.tenant
        before = cuda.live()
        forget(cuda, lambda: TURNS.take(tenant))
        assert cuda.live()["streams"] > before["streams"]
        TURNS.give()
        assert cuda.live() == before
    assert not cuda.live()


@pytest.mark.parametrize("closed", [False, True])
def test_who_is_closed_while_the_watchdog_asks_is_not_called_ill(cuda: StandIn, closed: bool) -> None:
    """`close` gives the communicators back, so that what they answer then says nothing."""
    asked: list[object] = []

    def report(issued: object) -> list[str]:
        asked.append(issued)
        return []

    def ill() -> str:
        tenant.ill = None if closed else ill
        return "its communicators are gone"

    with executor(cuda) as made:
        tenant = Tenant("closing", driver_of(made)._vendor, 1.0, report=report, ill=ill, number=1)
        watchdog.Watchdog(TURNS)._ask_health(tenant)
    assert len(asked) == (not closed)
    assert bool(tenant.overdue) is not closed
