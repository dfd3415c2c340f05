"""An executor of a shipped schedule, with what must come of its inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import ficco_dsl
from ficco_rt.driver.api import Array, DriverName
from ficco_rt.errors import NumbersError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.files import shipped
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan
from tools.gpu_check.rows import Row, rows

SIZE = "large bf16"
NAMES = tuple(entry.name for entry in shipped.entries())


def plan_for(name: str, machine: Machine, ranks: int, room: int = 0) -> Plan:
    """`room`: multiprocessors of each GPU that streamed stages leave free, by `sms` on the schedule's queues."""
    row = next(row for row in rows("small", ranks, name) if (row.name, row.label) == (name, SIZE))
    if room:
        path = Path(shipped.find(name))
        text, queues = re.subn(r"engine = sm\b", "engine = sm  sms = SMS", path.read_text(encoding="utf-8"))
        sms = max(1, (machine.device.sms - room) // queues)
        schedule = ficco_dsl.parse(text.replace("SMS", str(sms)), str(path))
        row = Row(row.sizes, row.label, name, schedule, row.params)
    return row.plan(ranks, machine)


class Subject:
    """See the module. Made and verified alone; `check` compares with that in every bit."""

    def __init__(
        self, plan: Plan, backend: DriverName, machine: Machine, timeout: float, seed: int = 0, ranks_per_gpu: int = 1
    ) -> None:
        self.executor = Executor(plan, backend, machine=machine, timeout=timeout, ranks_per_gpu=ranks_per_gpu)
        try:
            result = verified_run(self.executor, seed=seed, values="exact")
            if not result.ok:
                raise NumbersError(f"wrong numbers: {result.worst}")
            self._wanted = self._outputs()
            self._bound = self.executor.bind()
        except BaseException:
            self.executor.close()
            raise

    def run(self, *, graph: bool, streams: Sequence[object] | None = None) -> None:
        self.executor.graph = graph
        self.executor.run(self._bound, streams=streams)

    def check(self) -> None:
        """NumbersError: the last run's outputs are others than alone."""
        for key, got in self._outputs().items():
            if not np.array_equal(got.view(np.uint8), self._wanted[key].view(np.uint8)):
                raise NumbersError(f"{key[0]} of rank {key[1]} is not what it is alone")

    def _outputs(self) -> dict[tuple[str, int], Array]:
        plan = self.executor.plan
        names = [t.name for t in plan.tensors if t.kind == "output"]
        return {(name, rank): self.executor.read(name, rank) for name in names for rank in range(plan.ranks)}
