"""Calls that do not come back, and runs behind runs that do not end: who waits for what is told."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from ficco_rt.driver.gpu import gpus, issue_order, owner, runs, watchdog
from ficco_rt.driver.gpu.driver import GpuDriver
from ficco_rt.driver.gpu.issue_order import ISSUE_ORDER, Client
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from tests.mock import several
from tests.mock.standin import StandIn

NAME, LIMIT = "gemm_rs/streamed", 0.5
LONG = 300.0  # seconds that nothing takes that ends, however busy the machine is


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issue_order, "LEAST", LIMIT)
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
    mine = driver_of(made)._gpus
    mine.timeout = mine.client.timeout = LIMIT
    with watchdog.WATCHDOG._changed:  # it looks as often as the shortest limit asks for
        watchdog.WATCHDOG._changed.notify_all()
    yield
    mine.timeout = mine.client.timeout = LONG


class Stuck:
    """The n-th call of a run comes back when the semaphores are signalled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, made: Executor, function: str) -> None:
        self.back = threading.Event()
        self.before, self.once = function, True
        client = driver_of(made)._gpus.client
        release = client.release

        def released(why: str) -> None:
            release(why)
            self.back.set()

        client.release = released
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
        client = driver_of(made)._gpus.client

        complained, say = threading.Event(), watchdog.say

        def noted(text: str) -> None:
            say(text)
            if "does not say" in text:
                complained.set()

        monkeypatch.setattr(watchdog, "say", noted)

        def no_answer(issued: object) -> list[str]:
            complained.wait(LONG)
            return []

        client.report = no_answer
        with limited(made), pytest.raises(DeviceError, match="the host has been in cuGraphLaunch"):
            made.run()
        assert "the driver does not say where the streams stand" in capsys.readouterr().err
        assert verified_run(made, values="exact").ok


def test_a_turn_that_does_not_come(cuda: StandIn) -> None:
    with executor(cuda) as made:
        other = Client("schedule 'another'", driver_of(made)._vendor, None)
        taken, done = threading.Event(), threading.Event()

        def hold() -> None:
            with ISSUE_ORDER.lock(other):
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
        cuda.set("query_steps 5000; stop 16")
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
            client = Client("schedule 'another'", driver_of(made)._vendor, timeout)
            client.release = lambda why, timeout=timeout: released.append(timeout)
            watchdog.let_go(client, "a call did not come back", client.generation)
            watchdog.let_go(client, "of a run that is over", client.generation - 1)
            assert bool(client.overdue) is (timeout is not None)
    assert released == [1.0]


def test_the_limit_of_an_executor_that_says_none(cuda: StandIn) -> None:
    cuda.reset("devices 2; sms 2")
    with Executor(several.plan_for("cuda", NAME, 2), "cuda") as made:
        assert driver_of(made)._gpus.timeout == 60
        assert driver_of(made)._gpus.client in watchdog.WATCHDOG._clients


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
        client = driver_of(made)._gpus.client
        before = cuda.live()
        forget(cuda, lambda: ISSUE_ORDER.acquire(client))
        assert cuda.live()["streams"] > before["streams"]
        ISSUE_ORDER.release()
        assert cuda.live() == before
    assert not cuda.live()


# ---------------------------------------------------------------- executors that are closed, and forks, meanwhile


@contextmanager
def held(*locks: Any) -> Iterator[threading.Event]:
    """Another thread has these locks, until the event."""
    there, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            there.set()
            assert over.wait(LONG)

    thread = threading.Thread(target=hold)
    thread.start()
    assert there.wait(LONG)
    yield over
    over.set()
    thread.join()


def test_who_closes_waits_for_who_asks_and_is_asked_no_more(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events and streams go."""
    monkeypatch.setattr(issue_order, "LEAST", LONG)
    with executor(cuda) as made:
        client = driver_of(made)._gpus.client
        asked: list[str] = []
        client.report = lambda issued: asked.append("report") or []  # type: ignore[func-returns-value]
        client.release = asked.append
        generation = client.generation
        for lock in (client.looks, client.lock):
            with held(lock) as over:
                closing = threading.Thread(target=client.shut)
                closing.start()
                closing.join(0.05)
                assert closing.is_alive()
                over.set()
                closing.join()
        client.ill = lambda: asked.append("ill") or ""  # type: ignore[func-returns-value]
        client.number += 1  # as if it were under way
        watchdog.Watchdog(ISSUE_ORDER)._ask_health(client)
        watchdog.let_go(client, "too late", generation)
        assert watchdog.told(client) == []
        assert not watchdog._in_flight(client)
        assert client.replaying() == ()
        assert not asked
        assert not client.overdue
        client.over = True


@pytest.mark.parametrize("name", ["looks", "lock"])
def test_who_closes_does_not_wait_for_ever_for_who_asks(cuda: StandIn, name: str) -> None:
    """The vendor's driver does not come back: it gives nothing back then."""
    cuda.reset("devices 2; sms 2")
    made = Executor(several.plan_for("cuda", NAME, 2), "cuda")
    before = cuda.live()
    with held(getattr(driver_of(made)._gpus.client, name)):
        made.close()
    assert cuda.live() == before
    gpus._BLOCKED.clear()  # not so for other tests


def test_a_forked_process_waits_for_no_thread_of_its_parent(cuda: StandIn) -> None:
    """Threads that are not there in the child have had all the locks."""
    cuda.reset("devices 2; sms 2")
    with Executor(several.plan_for("cuda", NAME, 2), "cuda") as made:
        client = driver_of(made)._gpus.client
        changed, starting = watchdog.WATCHDOG._changed, owner.OWNER._starting
        with held(ISSUE_ORDER._lock, client.looks, client.lock, changed, starting):
            child = os.fork()
            if not child:
                signal.alarm(20)
                code = 1
                with suppress(BaseException):
                    with ISSUE_ORDER.lock(client), client.lock, client.looks:
                        watchdog.WATCHDOG.watch(client)
                    with suppress(DeviceError):  # the parent may have opened communicators
                        owner.OWNER.do(lambda: None)
                    with suppress(DeviceError):
                        made.run()
                        code = 2
                    made.close()
                    code -= 1
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_who_closes_does_not_wait_inside_the_driver_for_other_executors(cuda: StandIn) -> None:
    """Memory is given back when what runs on the device is over; a call that waits for it cannot be given up."""
    with executor(cuda) as first:
        plan = several.plan_for("cuda", NAME, several.SMS)
        second = Executor(plan, "cuda", timeout=LIMIT)
        client = driver_of(first)._gpus.client
        ended, submission = Client.ended, client.submission
        assert submission is not None
        ISSUE_ORDER.submit(client, submission)
        before = cuda.live()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Client, "ended", lambda self: self is not client and ended(self))
            second.close()
        assert cuda.live() == before
        client.over = True
        third = Executor(plan, "cuda", timeout=LIMIT)
        third.close()
        assert cuda.live() == before


def test_what_still_runs_beside_a_device_that_failed_keeps_no_other_executor(cuda: StandIn) -> None:
    """An error that a device tells gives the run up like any other: its semaphores are signalled, or it is known to
    stay."""
    with executor(cuda) as first, Executor(several.plan_for("cuda", NAME, several.SMS), "cuda") as second:
        cuda.set("query_steps 5000; stop 12; fail cuEventQuery 1 999")
        with pytest.raises(DeviceError, match="CUDA_ERROR_UNKNOWN"):
            first.run()
        assert driver_of(second)._gpus.blocked
    gpus._BLOCKED.clear()  # not so for other tests
