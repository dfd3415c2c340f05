"""Worker processes, asked one thing at a time: while one side measures, the other waits for its pipe and holds nothing
on the GPUs."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol

from ficco_rt.errors import DeviceError

from .scenarios import Scenario


@dataclass(frozen=True, slots=True)
class Turn:
    """Microseconds: of single runs by device and run, of a run in the loop by device, and of the single runs on the
    contestant's own clock, where it has one."""

    singles: list[list[float]]
    loop: list[float]
    own: list[float] = field(default_factory=list)


class Side(Protocol):
    """What a worker process can be asked. A `key` names a contestant of the scenario that is loaded."""

    def about(self) -> dict[str, str]:
        """What is measured with: versions, devices, switches."""

    def load(self, scenario: Scenario) -> dict[str, str | None]:
        """Make all contestants ready; why one cannot take part, or None."""

    def data(self, seed: int) -> None:
        """New operands, and their reference."""

    def check(self, key: str) -> float | None:
        """Run once on poisoned outputs; how far the result is off. None: there is nothing to compare it with."""

    def turn(self, key: str, warmup: int, singles: int, loop: int) -> Turn: ...

    def keep(self, keys: Sequence[str]) -> None:
        """Give back what the other contestants hold."""


def serve(connection: Connection, make: Callable[..., Side], arguments: Sequence[Any]) -> None:
    """The life of a worker: make the side, then answer until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    side: Side | None = None
    while True:
        try:
            if side is None:
                side = make(*arguments)
                answer: tuple[bool, Any] = (True, None)
            else:
                method, values = connection.recv()
                answer = (True, getattr(side, method)(*values))
        except (EOFError, OSError):
            break
        except Exception as error:  # noqa: BLE001  it is told where somebody listens
            if os.environ.get("FICCO_DEBUG"):
                traceback.print_exc()
            answer = (False, f"{type(error).__name__}: {error}")
        try:
            connection.send(answer)
        except OSError:
            break
        if side is None:
            break
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # NOTE the teardown of communicators can hang, and nothing is left to be saved


class Crew:
    """Worker processes that are asked the same thing at the same time: one for ours, one a GPU for the peers."""

    def __init__(self, name: str, make: Callable[..., Side], arguments: Sequence[Sequence[Any]]) -> None:
        self.name = name
        self._processes = []
        self._pipes: list[Connection] = []
        context = get_context("spawn")
        for values in arguments:
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, make, values), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(mine)

    def ready(self, timeout: float) -> None:
        """Wait until all workers are made. Raises DeviceError."""
        self._answers("start", timeout)

    def ask(self, method: str, *values: Any, timeout: float = 120.0) -> list[Any]:
        """Every worker's answer. Raises DeviceError: a worker failed, died, or took longer."""
        for pipe in self._pipes:
            with suppress(OSError):  # a dead worker shows when it does not answer
                pipe.send((method, values))
        return self._answers(method, timeout)

    def _answers(self, method: str, timeout: float) -> list[Any]:
        until = time.monotonic() + timeout
        answers = []
        for i, pipe in enumerate(self._pipes):
            who = f"{self.name} {i}" if len(self._pipes) > 1 else self.name
            if not pipe.poll(max(0.0, until - time.monotonic())):
                raise DeviceError(f"{who} did not answer '{method}' within {timeout:.0f} s")
            try:
                good, value = pipe.recv()
            except (EOFError, OSError) as error:
                raise DeviceError(f"{who} ended during '{method}'; what it wrote above says why") from error
            if not good:
                raise DeviceError(f"{who}, {method}: {value}")
            answers.append(value)
        return answers

    def close(self) -> None:
        """End the workers, whatever they do; may be called twice."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(0.5)
            if process.is_alive():
                process.kill()
                process.join()
