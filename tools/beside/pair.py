"""The two sides: worker processes that live at once, each on a checkout of its own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ficco_rt.errors import DeviceError

WORKER = Path(__file__).with_name("worker.py")
START = 120.0  # seconds for PyTorch to be imported and contexts to be made
ANSWER = 60.0  # seconds for any other answer


class Refused(Exception):
    """A worker lives and could not do what it was asked; the text says which one, what and why."""


@dataclass(frozen=True, slots=True)
class Both:
    """An answer of each side."""

    this: Any
    other: Any


class Worker:
    """A process on `checkout`; `program` is this file's worker, but for tests."""

    def __init__(self, name: str, checkout: Path, gpus: int, each: int, program: Path = WORKER) -> None:
        self.name = name
        self._checkout = checkout
        paths = [str(checkout), str(checkout / "dsl"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                str(program),
                str(gpus),
                str(each),
            ],  # -P: nothing is imported from the program's folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self._come = b""  # of the next answer

    def ready(self, timeout: float = START) -> dict[str, Any]:
        """What it measures with. Raises DeviceError: it could not start, or took another ficco_rt than asked for."""
        try:
            about: dict[str, Any] = self.answer("start", timeout)
        except Refused as error:
            raise DeviceError(str(error)) from error
        if about["checkout"] != str(self._checkout.resolve()):
            raise DeviceError(f"{self.name} took the ficco_rt of {about['checkout']}, not that of {self._checkout}")
        return about

    def send(self, what: str, values: Mapping[str, object]) -> None:
        with suppress(OSError):  # a dead worker shows when it does not answer
            self._requests.write(json.dumps({"do": what, "with": values}).encode() + b"\n")
            self._requests.flush()

    def answer(self, what: str, timeout: float = ANSWER) -> Any:
        """The answer to what was sent first. Raises Refused; DeviceError: it ended, or is killed as too late."""
        answer = json.loads(self._line(what, timeout))
        if "error" in answer:
            raise Refused(f"{self.name}, {what}: {answer['error']}")
        return answer["value"]

    def _line(self, what: str, timeout: float) -> bytes:
        until = time.monotonic() + timeout
        while b"\n" not in self._come:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                self._process.kill()
                raise DeviceError(f"{self.name} did not answer '{what}' within {timeout:.0f} s, and was killed")
            got = os.read(self._answers.fileno(), 1 << 16)
            if not got:
                raise DeviceError(f"{self.name} ended during '{what}'; what it wrote above says why")
            self._come += got
        line, _, self._come = self._come.partition(b"\n")
        return line

    def close(self) -> None:
        """End the process, whatever it does; may be called twice."""
        with suppress(OSError):
            self._requests.close()  # it ends when there is no request left
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()


class Pair:
    """`this` checkout and the `other` one."""

    def __init__(self, this: Worker, other: Worker) -> None:
        self._this, self._other = this, other

    def ready(self) -> Both:
        return Both(self._this.ready(), self._other.ready())

    def at_once(self, what: str, **values: object) -> Both:
        """Ask both, and let them work side by side. Raises Refused for either, when both have answered."""
        sides = (self._this, self._other)
        for worker in sides:
            worker.send(what, values)
        answers: list[Any] = []
        refused: list[Refused] = []
        for worker in sides:
            try:
                answers.append(worker.answer(what))
            except Refused as error:
                refused.append(error)
        if refused:
            raise refused[0]
        return Both(*answers)

    def by_turns(self, number: int, rest: float, what: str, **values: object) -> Both:
        """Ask one, then the other, each after `rest` seconds; this one first in rounds of even `number`: A B B A …"""
        order = (self._this, self._other) if number % 2 == 0 else (self._other, self._this)
        answers = {}
        for worker in order:
            time.sleep(rest)
            worker.send(what, values)
            answers[worker.name] = worker.answer(what)
        return Both(answers[self._this.name], answers[self._other.name])

    def close(self) -> None:
        for worker in (self._this, self._other):
            worker.close()


def start(checkouts: Sequence[Path], gpus: int, each: int, *, other_first: bool = False) -> Pair:
    """Both workers, coming up: of this checkout and of the other one, which may be started first."""
    named = list(zip(("this checkout", "the other checkout"), checkouts, strict=True))
    workers = {name: Worker(name, checkout, gpus, each) for name, checkout in (named[::-1] if other_first else named)}
    return Pair(*(workers[name] for name, _ in named))
