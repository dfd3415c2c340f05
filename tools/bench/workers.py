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
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from ficco_rt.errors import DeviceError

from .scenarios import Scenario

LIMIT = 120.0  # seconds that an answer may take, if nothing else is said


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
    answer(connection, make, arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # NOTE the teardown of communicators can hang, and nothing is left to be saved


def answer(connection: Connection, make: Callable[..., Side], arguments: Sequence[Any]) -> None:
    """Make the side, then answer until the pipe ends."""
    side: Side | None = None
    while True:
        try:
            if side is None:
                side = make(*arguments)
                told: tuple[bool, Any] = (True, None)
            else:
                method, values = connection.recv()
                told = (True, getattr(side, method)(*values))
        except (EOFError, OSError):
            break
        except Exception as error:  # noqa: BLE001  it is told where somebody listens
            if os.environ.get("FICCO_DEBUG"):
                traceback.print_exc()
            told = (False, f"{type(error).__name__}: {error}")
        try:
            connection.send(told)
        except OSError:
            break
        if side is None:
            break


class Crew:
    """Worker processes that are asked the same thing at the same time: one for ours, one a GPU for the peers.

    `limit`: seconds that an answer may take. A crew that is closed is started again, `spares` times, by `revive`.
    """

    def __init__(
        self,
        name: str,
        make: Callable[..., Side],
        arguments: Sequence[Sequence[Any]],
        *,
        limit: float = LIMIT,
        spares: int = 0,
    ) -> None:
        self.name = name
        self._make, self._arguments = make, arguments
        self._limit, self._spares = limit, spares
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        for values in self._arguments:
            mine, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, self._make, values), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(mine)

    def ready(self, timeout: float) -> None:
        """Wait until all workers are made. Raises DeviceError."""
        self._answers("start", timeout)

    def revive(self, timeout: float) -> None:
        """Start the workers of a closed crew again. Raises DeviceError: no spare is left, or they do not come up."""
        if self._pipes:
            return
        if not self._spares:
            raise DeviceError(f"{self.name} failed before and is not started again")
        self._spares -= 1
        self._start()
        self.ready(timeout)

    def ask(self, method: str, *values: Any, timeout: float | None = None) -> list[Any]:
        """Every worker's answer. Raises DeviceError: a worker failed, died, or took longer."""
        for pipe in self._pipes:
            with suppress(OSError):  # a dead worker shows when it does not answer
                pipe.send((method, values))
        return self._answers(method, self._limit if timeout is None else timeout)

    def _answers(self, method: str, timeout: float) -> list[Any]:
        """A worker's error comes before another's silence: who fails leaves the others waiting for it."""
        until = time.monotonic() + timeout
        answers: dict[Connection, Any] = {}
        while len(answers) < len(self._pipes):
            missing = [pipe for pipe in self._pipes if pipe not in answers]
            came = wait(missing, max(0.0, until - time.monotonic()))
            if not came:
                raise DeviceError(f"{self._who(missing[0])} did not answer '{method}' within {timeout:.0f} s")
            for pipe in (pipe for pipe in missing if pipe in came):
                try:
                    good, value = pipe.recv()
                except (EOFError, OSError) as error:
                    why = f"{self._who(pipe)} ended during '{method}'; what it wrote above says why"
                    raise DeviceError(why) from error
                if not good:
                    raise DeviceError(f"{self._who(pipe)}, {method}: {value}")
                answers[pipe] = value
        return [answers[pipe] for pipe in self._pipes]

    def _who(self, pipe: Connection) -> str:
        return f"{self.name} {self._pipes.index(pipe)}" if len(self._pipes) > 1 else self.name

    def close(self) -> None:
        """End the workers, whatever they do; may be called twice."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(0.5)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes, self._processes = [], []


class Absent:
    """In place of a crew whose contestant cannot be measured here."""

    def __init__(self, contestant: str, why: str) -> None:
        self._contestant, self._why = contestant, why

    def ready(self, timeout: float) -> None: ...

    def ask(self, method: str, *values: object) -> list[Any]:
        return [{self._contestant: self._why}] if method in ("load", "about") else []

    def revive(self, timeout: float) -> None: ...

    def close(self) -> None: ...
