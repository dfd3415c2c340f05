"""Every shipped schedule on the GPUs of this machine, on streams and as a graph, verified with fresh data.

small: the sizes of the tests, even ones that divide among ranks and chunks and uneven ones that do not, in all types,
against a numpy reference. real: the layers of tools/bench/scenarios.json on PyTorch tensors and streams, against
cuBLAS in fp32 on the GPUs. Every repeat is on integers that no order of summing rounds: the result must be the
reference's, bit for bit. Normal data, which must come within the stated tolerance, follow each repeat at small sizes
and every tenth at real ones. All that a run writes is NaN before, and the graph's result must be the streams' in every
bit. A row that fails does not keep others from being run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Hashable, Sequence
from contextlib import nullcontext, suppress

from ficco_rt import compiler
from ficco_rt.driver.api import DriverName
from ficco_rt.driver.registry import device_count, discover
from ficco_rt.errors import DeviceError, NumbersError, ScheduleError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan
from tests.gpu.numpy_data import NumpyData
from tests.gpu.repeats import Data, Facts, Spent, check, draws
from tests.gpu.rows import Row, Sizes, likeness, rows
from tests.gpu.torch_data import TorchData, make_room, torch_errors

PROBE = "gemm_ar/oneshot"  # one stream a rank


class Checker:
    """Checks rows one after another. Those of a group share data where their plans are alike."""

    def __init__(self, backend: DriverName, ranks: int, each: int, repeats: int, timeout: float) -> None:
        """`each` ranks share a GPU. DeviceError: the GPUs do not serve."""
        self.machine: Machine = discover(backend, ranks, each)
        self.spent = Spent()
        self._backend, self._ranks, self._each = backend, ranks, each
        self._repeats, self._timeout = repeats, timeout
        self._group: tuple[str, str, str] | None = None
        self._data: dict[Hashable, Data] = {}
        sizes = {"M": 16 * ranks, "N": 16, "K": 16 * ranks, "T": "fp32"}
        plan = compiler.plan_of(compiler.build(compiler.load(PROBE), ranks, sizes), self.machine)
        self._probe = self._executor(plan)  # which stays open, and so keeps the devices' contexts, too

    def check(self, row: Row) -> Facts:
        """Raises what compiling and running do, and NumbersError."""
        if row.group != self._group:
            self._group, self._data = row.group, {}
        with self.spent.on("compiling"):
            plan = row.plan(self._ranks, self.machine)
        with torch_errors() if row.sizes == "real" else nullcontext():
            like = likeness(plan)
            if like not in self._data:
                self._data[like] = self._shared(row, plan)
            with self.spent.on("executors"):
                if row.sizes == "real":
                    make_room()
                executor = self._executor(plan)
            with executor:
                return check(executor, self._data[like], draws(row.sizes, self._repeats), self.spent)

    def alive(self) -> bool:
        """Whether the GPUs still run what they are given."""
        try:
            return verified_run(self._probe, values="exact").ok
        except DeviceError:
            return False

    def close(self) -> None:
        with suppress(DeviceError):  # of lost GPUs, which was said
            self._probe.close()

    def _executor(self, plan: Plan) -> Executor:
        return Executor(plan, self._backend, machine=self.machine, ranks_per_gpu=self._each, timeout=self._timeout)

    def _shared(self, row: Row, plan: Plan) -> Data:
        if row.sizes == "small":
            return NumpyData(plan)
        import torch

        return TorchData(plan, [torch.device("cuda", rank // self._each) for rank in range(self._ranks)])


def right(
    backend: DriverName,
    sizes: Sizes,
    ranks: int,
    repeats: int,
    only: str = "",
    part: tuple[int, int] = (0, 1),
    timeout: float = 20.0,
) -> bool:
    """Check the rows whose schedules' names contain `only`, or a part of them; `timeout`: seconds of a run."""
    todo = part_of(rows(sizes, ranks, only), *part)
    checker = Checker(backend, ranks, -(-ranks // device_count(backend)), repeats, timeout)
    print(f"{ranks} ranks on {checker.machine.name}, {repeats} runs each on streams and as a graph, part {part}")
    try:
        return table(checker, todo)
    finally:
        checker.close()


def part_of(found: Sequence[Row], number: int, count: int) -> list[Row]:
    """One of so many parts of the rows, drawn by chance, in their order. `count` numbers in a row make the whole."""
    shuffled = random.Random(0).sample(range(len(found)), len(found))
    return [found[i] for i in sorted(shuffled[number % count :: count])]


def table(checker: Checker, todo: Sequence[Row]) -> bool:
    """Print a line for each row, and how many are right; whether all are."""
    print(f"{'schedule':28} {'sizes':16} {'rel err':>8} {'tolerance':>9} {'streams':>10} {'graph':>10}  result")
    started = time.monotonic()
    wrong = done = 0
    for row in todo:
        lost = False
        try:
            facts = shown(checker.check(row))
        except (DeviceError, NumbersError, ScheduleError, UsageError) as error:
            wrong += 1
            facts = f"{'':40}  FAILED: {error}"
            lost = isinstance(error, DeviceError) and not checker.alive()
        done += 1
        print(f"{row.name:28} {row.label:16} {facts}", flush=True)
        if lost:
            print("the GPUs run nothing any more in this process: no further row is begun")
            break
    left = f", {len(todo) - done} not run" if done < len(todo) else ""
    print(f"{done - wrong} of {done} rows right{left}; {time.monotonic() - started:.0f} s: {checker.spent}")
    return not wrong


def shown(facts: Facts) -> str:
    times = f"{facts.streams:7.0f} µs {facts.graph:7.0f} µs"
    return f"{facts.error:8.1e} {facts.tolerance:9.1e} {times}  ok"
