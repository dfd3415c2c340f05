"""A side of the bench without a device, for worker processes of the tests."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from tools.bench.scenarios import Scenario
from tools.bench.workers import Turn


class Toy:
    """`worker` of `workers`; a contestant is called after what it does."""

    def __init__(self, worker: int, workers: int) -> None:
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
        if key == "hangs":
            time.sleep(60)
        return 1e-3 * self.worker

    def turn(self, key: str, warmup: int, singles: int, loop: int) -> Turn:
        return Turn([[100.0 + self.worker] * singles], [90.0 + self.worker] if loop else [], [])

    def keep(self, keys: Sequence[str]) -> None:
        pass
