"""An executor takes one thread at a time, and says so to a second one. Threads that take turns are fine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.errors import UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.machine.profiles import chosen
from tests import cases

NAME = "ag_gemm/serial"
IN_USE = (
    "another thread is using the executor of schedule 'ag_gemm_serial', which takes one thread at a time: make an "
    "executor for each thread, or keep threads apart by a threading.Lock"
)


@pytest.fixture
def made() -> Any:
    graph = build(cases.schedule(NAME), 2, cases.sizes(NAME, 2, True))
    with Executor(plan_of(graph, chosen("h200-switch", 2))) as executor:
        for tensor in (t for t in executor.plan.tensors if t.kind == "input"):
            for rank, shape in enumerate(tensor.shapes):
                executor.write(tensor.name, rank, np.ones(shape, np.float32))
        executor.run()
        yield executor


def in_a_thread(work: Callable[[], object]) -> list[object]:
    """What it has returned, or raised."""
    found: list[object] = []

    def body() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001  for the test to see
            found.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(30)
    return found


def test_a_second_thread_is_told(made: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, let_go = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> bool:
        inside.set()
        assert let_go.wait(30)
        return False

    bound = made.bind()
    array = np.ones(made.plan.tensors[0].shapes[0], np.float32)
    calls: dict[str, Callable[[], object]] = {
        "run": made.run,
        "run bound": lambda: made.run(bound),
        "bind": made.bind,
        "release": lambda: made.release(bound),
        "write": lambda: made.write("A", 0, array),
        "read": lambda: made.read("C", 0),
        "poison": made.poison,
        "synchronize": made.synchronize,
        "check": made.check,
        "trace": lambda: made.trace,
        "holdings": lambda: made.holdings,
        "close": made.close,
    }
    with monkeypatch.context() as patched:
        patched.setattr(made.driver, "run", slow)
        first = threading.Thread(target=made.run)
        first.start()
        assert inside.wait(30)
        for name, call in calls.items():
            with pytest.raises(UsageError) as told:
                call()
            assert str(told.value) == IN_USE, name
        let_go.set()
        first.join()
    for name, call in calls.items():  # one after the other, in threads of their own
        (found,) = in_a_thread(call)
        assert not isinstance(found, BaseException), (name, found)
    made.close()


def test_what_a_call_does_may_call_again(made: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A callback, of progress or of a user's kernel, is in the same thread."""
    monkeypatch.setattr(made.driver, "synchronize", lambda progress=None: progress and progress(made.check()))
    made.run(progress=lambda *_: None)
    assert in_a_thread(made.check) == [None]


@pytest.mark.parametrize("error", [KeyboardInterrupt, UsageError])
def test_an_error_lets_others_in(made: Executor, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    def fails(*_: object, **__: object) -> bool:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(made.driver, "run", fails)
        with pytest.raises(error):
            made.run()
    assert in_a_thread(made.run) == [None]


def test_threads_at_once_are_right_or_told(made: Executor) -> None:
    wanted = made.read("C", 0)
    said: list[str] = []
    right: list[bool] = []

    def runs() -> None:
        for _ in range(100):
            try:
                made.run()
                right.append(np.array_equal(made.read("C", 0), wanted))
            except UsageError as error:
                said.append(str(error))

    threads = [threading.Thread(target=runs) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(right)
    assert set(said) <= {IN_USE}
    assert len(right) + len(said) == 200
