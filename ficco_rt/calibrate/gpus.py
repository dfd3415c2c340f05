"""Takes times on GPUs, by the executor that users' schedules run by."""

from __future__ import annotations

import numpy as np

from ..driver.api import DriverName
from ..driver.registry import VENDORS
from ..errors import UsageError
from ..exec.executor import Executor
from ..plan.ir import Plan
from ..types import numpy_dtype
from .probes import Mode

RUNS, WARMUP = 9, 2
LONG = 20_000.0  # microseconds: of what takes longer, one run is enough
TIMEOUT = 30.0
BLOCK = 1 << 18  # normal numbers, which inputs repeat: what operands hold decides how much power a product takes


class OnGpus:
    """A `measure.Clock`. UsageError: the host measures nothing."""

    def __init__(self, backend: DriverName) -> None:
        if backend not in VENDORS:
            raise UsageError(f"times are taken on GPUs: --backend {' or '.join(VENDORS)}, not {backend}")
        self._backend = backend
        self._block = np.random.default_rng(0).standard_normal(BLOCK, dtype=np.float32)

    def times(self, plan: Plan, mode: Mode) -> list[float]:
        with Executor(plan, self._backend, graph=mode == "graph", timeout=TIMEOUT) as executor:
            for tensor in plan.tensors:
                if tensor.kind == "input":
                    values = self._block.astype(numpy_dtype(tensor.dtype))
                    for rank, shape in enumerate(tensor.shapes):
                        executor.write(tensor.name, rank, np.resize(values, shape))
            times: list[float] = []
            while len(times) < WARMUP + RUNS and not (len(times) > WARMUP and times[-1] > LONG):
                executor.run()
                times.append(executor.duration)
        return times[WARMUP:]
