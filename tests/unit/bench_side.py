"""A side of the bench without a device, for worker processes of the tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from ficco_rt.process.group import Group
from tests.pipes import Pipes
from tools.bench import members
from tools.bench.scenarios import Scenario
from tools.bench.workers import Crew, Turn


class Toy:
    """`worker` of `workers`; a contestant is called after what it does."""

    def __init__(self, worker: int, workers: int, *_: object) -> None:
        if workers == 0:
            raise RuntimeError("no device here")
        self.worker = worker

    def about(self) -> dict[str, str]:
        return {"worker": str(self.worker)}

    def load(self, scenario: Scenario) -> dict[str, str | None]:
        return {"fast": None, "slow": None, "absent": "is not there"}

    def data(self, seed: int) -> None:
        self.seed = seed

    def check(self, key: str) -> float:
        if key == "fails":
            raise ValueError("no numbers today")
        if key == "dies":
            os._exit(9)
        if key == "hangs" or (key == "one fails" and self.worker == 0):
            time.sleep(60)
        if key == "one fails":
            raise ValueError("not with me")
        return 1e-3 * self.worker

    def turn(self, key: str, warmup: int, singles: int, loop: int) -> Turn:
        return Turn([[100.0 + self.worker] * singles], [90.0 + self.worker] if loop else [], [])

    def keep(self, keys: Sequence[str]) -> None:
        pass


def direct(join: Callable[..., Crew]) -> int:
    """The tool, in a process that was started beside the workers."""
    with suppress(KeyError):
        del os.environ["RANK"]
        return 1  # a launcher's variables are not for the director
    crew = join(limit=60.0)
    crew.ready(60)
    told = crew.ask("about")
    crew.close()
    return 7 if told == [{"worker": "0"}, {"worker": "1"}] else 1


def launched(place: int, pipes: Sequence[Connection | None]) -> None:
    """A process of two that a launcher has started."""
    os.environ["RANK"] = str(place)
    members.launched(direct, Group(Pipes(place, pipes)), Toy)
