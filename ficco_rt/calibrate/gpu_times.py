"""Takes the times of probes on GPUs, with the same executor that runs users' schedules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from math import prod

import numpy as np

from ..driver.api import Array, DriverName
from ..driver.registry import VENDORS, devices_open
from ..errors import UsageError
from ..exec.executor import Executor
from ..plan.ir import Plan
from ..process.group import Group
from ..types import Dtype, numpy_dtype
from .measure import Times
from .probes import Mode

RUNS, WARMUP = 25, 2
LONG = 20_000.0  # microseconds: of what takes longer, one run is enough
REST = 5e-3  # seconds between runs, in which a device cools: each run is a single one
TIMEOUT = 30.0
NORMAL = 1 << 18  # numbers, which inputs repeat: what operands hold decides how much power a product takes


class OnGpus:
    """A `measure.Clock`, of the process alone or of a group. `rest`: seconds between runs. UsageError: the host
    measures nothing."""

    def __init__(
        self, backend: DriverName, group: Group | None = None, *, runs: int = 0, rest: float | None = None
    ) -> None:
        if backend not in VENDORS:
            raise UsageError(f"times are taken on GPUs: --backend {' or '.join(VENDORS)}, not {backend}")
        self._backend, self._group = backend, group
        self._runs, self._rest = runs or RUNS, REST if rest is None else rest
        self._normal = np.random.default_rng(0).standard_normal(NORMAL, dtype=np.float32)
        self._blocks: dict[Dtype, Array] = {}
        self.spent: dict[str, float] = {}  # seconds, by what they went to

    def open(self, ranks: int) -> AbstractContextManager[None]:
        """Context manager: the GPUs of `ranks` ranks stay open from one plan to the next."""
        return devices_open(self._backend, ranks)

    def times(self, plan: Plan, mode: Mode) -> Times:
        with self._to("opening"):
            executor = Executor(
                plan, self._backend, machine=plan.target, graph=mode == "graph", timeout=TIMEOUT, group=self._group
            )
        with executor:
            executor.gated = True
            with self._to("inputs"):
                for tensor in plan.tensors:
                    for rank, shape in enumerate(tensor.shapes if tensor.kind == "input" else ()):
                        executor.write(tensor.name, rank, self._values(tensor.dtype, shape))
            times: list[float] = []
            while len(times) < WARMUP + self._runs and not (len(times) > WARMUP and times[-1] > LONG):
                time.sleep(self._rest)
                with self._to("runs" if times else "first runs"):
                    executor.run()
                times.append(executor.duration)
            taken = Times(tuple(times[WARMUP:]), ahead=executor.held)
            with self._to("closing"):
                executor.close()
            return taken

    @contextmanager
    def _to(self, what: str) -> Iterator[None]:
        """What is done inside counts as this."""
        begun = time.monotonic()
        yield
        self.spent[what] = self.spent.get(what, 0.0) + time.monotonic() - begun

    def _values(self, dtype: Dtype, shape: tuple[int, ...]) -> Array:
        """A view of one block a type: to touch fresh memory of the host for each input takes longer than the runs."""
        size = prod(shape)
        block = self._blocks.get(dtype)
        if block is None or block.size < size:
            block = self._blocks[dtype] = np.resize(self._normal.astype(numpy_dtype(dtype)), max(NORMAL, size))
        return block[:size].reshape(shape)
