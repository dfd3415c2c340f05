"""A thread gives a run up and is preempted at some step, while the run's own thread waits for it, and runs again.

Whatever has no error is right.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import ficco_rt.driver.gpu as gpu
from ficco_rt.driver.gpu import watchdog
from ficco_rt.errors import DeviceError
from ficco_rt.exec.executor import Executor
from tests import cases
from tests.lives import seats
from tests.lives.life import Key
from tests.mock.standin import StandIn

CODE = str(Path(next(iter(gpu.__path__))))
PAUSE = 0.01  # seconds of a preemption, if the other thread waits for this one


class Preempted(threading.Thread):
    """Gives up what a client has under way; at the `step`-th line of the driver's code it stands still until `over`."""

    def __init__(self, client: Any, step: int) -> None:
        super().__init__()
        self._client, self._left = client, step
        self._generation = client.generation
        self.there, self.over = threading.Event(), threading.Event()

    def run(self) -> None:
        sys.settrace(self._called)
        watchdog.let_go(self._client, "its run was given up with another executor's", self._generation)
        sys.settrace(None)
        self.there.set()

    def _called(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        return self._stepped if frame.f_code.co_filename.startswith(CODE) else None

    def _stepped(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "line":
            self._left -= 1
            if not self._left:
                self.there.set()
                self.over.wait(PAUSE)
        return self._stepped

    @property
    def came(self) -> bool:
        """Whether there are so many steps."""
        return self._left <= 0


def attempt(executor: Executor, key: Key, bound: Any, data: int, run: Callable[[], None]) -> str:
    """A run: what is told, or nothing if it is right."""
    seat = {t.name: t.kind for t in executor.plan.tensors}
    driver: Any = executor.driver
    for (name, rank), buffer in executor._owned.items():
        if seat[name] == "input":
            executor.write(name, rank, seats.inputs(key, data)[name][rank])
        else:
            driver.poison(buffer)
    try:
        run()
        executor.synchronize()
    except DeviceError as error:
        return str(error)
    for region, value in seats.wanted(key, data):
        got = seats.take(executor.read(region.tensor, region.rank), region)
        assert (got == value).all(), f"wrong numbers, and no error: {region}"
    return ""


@pytest.mark.parametrize("name", ["gemm_ar/streamed", "gemm_rs/ring"])
def test_a_watchdog_that_is_preempted_at_any_step(cuda: StandIn, name: str) -> None:
    key = Key("cuda", name, 2, 1)
    plan = seats.plan(key)
    cuda.reset(f"{seats.settings(key)}; seed 3")
    told = steps = 0
    with Executor(plan, "cuda", timeout=20) as executor:
        for tensor, arrays in seats.inputs(key, 0).items():
            for rank, array in enumerate(arrays):
                executor.write(tensor, rank, array)
        bound = executor.bind()
        driver: Any = executor.driver
        assert not attempt(executor, key, bound, 0, lambda: executor.run(bound))
        while True:
            steps += 1 if cases.ALL else 1 + steps % 3
            cuda.set(f"seed {steps}; call_steps {steps % 4}; query_steps {(5, 5000)[steps % 2]}")
            late: list[Preempted] = []

            def run(late: list[Preempted] = late, step: int = steps) -> None:
                driver.run(bound.binding, (), graph=False)
                late.append(Preempted(driver._gpus.client, step))
                late[0].start()
                late[0].there.wait()

            told += bool(attempt(executor, key, bound, steps % 4, run))
            again = attempt(executor, key, bound, (steps + 1) % 4, lambda: executor.run(bound))
            late[0].over.set()
            late[0].join()
            assert not again or "given up with another" in again, again
            assert not attempt(executor, key, bound, steps % 4, lambda: executor.run(bound))
            if not late[0].came:
                break
    assert told > 5
    assert steps > 30
    assert not cuda.violations()
    assert not cuda.live()
