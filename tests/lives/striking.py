"""What befalls a process of the host driver, and what a process says of itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from ficco_rt.driver.host.stepping import Stepper
from ficco_rt.errors import DeviceError
from tests.lives.life import Event


def waited() -> float:
    """Seconds that the process has stood in the queue for a processor."""
    with open("/proc/self/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


_STEP = Stepper.run


def calm() -> None:
    """Nothing befalls it any more."""
    Stepper.run = _STEP  # type: ignore[method-assign]


def strike(event: Event) -> None:
    """On the host: at the `call`-th job from now."""
    left = event.call

    def struck(job: Any) -> None:
        nonlocal left
        left -= 1
        if left:
            return
        if event.kind == "fail":
            raise DeviceError("this job fails")
        number = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "pause": signal.SIGSTOP}[event.kind]
        os.kill(os.getpid(), number)

    def run(stepper: Any, progress: Any) -> None:
        pop = stepper.pool.pop

        def popped() -> Any:
            struck(None)
            return pop()

        stepper.pool.pop = popped
        _STEP(stepper, progress)

    Stepper.run = run  # type: ignore[method-assign,assignment]


def stderr_log(place: int, begun: float) -> Callable[[str], None]:
    def log(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - begun:7.3f} [{place}] {text}\n")
        sys.stderr.flush()

    return log
