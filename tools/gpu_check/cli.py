"""Run every shipped schedule on the GPUs of this machine, on streams and as a graph, verified with fresh data.

    python -m tools.gpu_check                          # 4 ranks on the GPUs there are, all sizes, 20 repeats
    python -m tools.gpu_check --sizes small --ranks 8 --repeats 3 --only ag_gemm
    python -m tools.gpu_check --sizes small --part 1/2 # every second row; another process takes --part 2/2
    python -m tools.gpu_check --backend hip            # on AMD GPUs

small: the sizes of the tests, even ones that divide among ranks and chunks and uneven ones that do not, in all types,
against a numpy reference. real: the layers of tools/bench/scenarios.json on PyTorch tensors and streams, against
cuBLAS in fp32 on the GPUs. Every repeat is on integers that no order of summing rounds: the result must be the
reference's, bit for bit. Normal data, which must come within the stated tolerance, follow each repeat at small sizes
and every tenth at real ones. All that a run writes is NaN before, and the graph's result must be the streams' in every
bit. A row that fails does not keep others from being run.
Exit code 2 for bad arguments, 3 without GPU or PyTorch, 4 if anything is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Hashable, Sequence
from contextlib import nullcontext, suppress
from importlib.util import find_spec

from ficco_rt import compiler
from ficco_rt.driver.api import DriverName
from ficco_rt.driver.registry import VENDORS, device_count, discover
from ficco_rt.errors import DeviceError, NumbersError, ScheduleError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine.model import Machine
from ficco_rt.plan.ir import Plan

from .numpy_data import NumpyData
from .repeats import Data, Facts, Spent, check, draws
from .rows import Row, likeness, rows
from .torch_data import TorchData, make_room, torch_errors

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


def main(arguments: Sequence[str]) -> int:
    """Print the table; the process's exit code."""
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=tuple(VENDORS), default="cuda")
    parser.add_argument("--ranks", type=positive, default=4)
    parser.add_argument("--repeats", type=positive, default=20)
    parser.add_argument("--only", default="", help="a part of the schedules' names")
    parser.add_argument("--sizes", choices=("all", "small", "real"), default="all")
    parser.add_argument(
        "--part", type=part, default=(1, 1), metavar="K/N",
        help="every N-th row, from the K-th; for processes that share one GPU",
    )  # fmt: skip
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds that a run may take")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no further row is begun")
    options = parser.parse_args(arguments)
    first, step = options.part
    found = rows(options.sizes, options.ranks, options.only)
    if not found:
        parser.error(f"no schedule's name contains '{options.only}'; `ficco list` shows them")
    gpus = device_count(options.backend)
    if not gpus:
        return refuse(f"no GPU for {options.backend}, or its driver or bindings are missing")
    if options.sizes != "small" and find_spec("torch") is None:
        return refuse("real sizes are checked with PyTorch: pip install torch, or take --sizes small")
    each = -(-options.ranks // gpus)
    try:
        checker = Checker(options.backend, options.ranks, each, options.repeats, options.timeout)
    except DeviceError as error:
        return refuse(str(error))
    print(f"{options.ranks} ranks on {checker.machine.name}, {options.repeats} runs each on streams and as a graph")
    try:
        return table(checker, found[first - 1 :: step], options.budget)
    finally:
        checker.close()


def table(checker: Checker, todo: Sequence[Row], budget: float) -> int:
    """Print a line for each row, and how many are right; the process's exit code."""
    print(f"{'schedule':28} {'sizes':16} {'rel err':>8} {'tolerance':>9} {'streams':>10} {'graph':>10}  result")
    started = time.monotonic()
    wrong = done = 0
    for row in todo:
        if time.monotonic() - started > budget:
            break
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
    return 4 if wrong else 0


def shown(facts: Facts) -> str:
    times = f"{facts.streams:7.0f} µs {facts.graph:7.0f} µs"
    return f"{facts.error:8.1e} {facts.tolerance:9.1e} {times}  ok"


def refuse(why: str) -> int:
    sys.stderr.write(f"gpu_check: {why}\n")
    return 3


def positive(text: str) -> int:
    """A whole number from 1."""
    if not (text.isascii() and text.isdecimal()) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1")
    return int(text)


def part(text: str) -> tuple[int, int]:
    """K/N: which of how many parts."""
    k, _, n = text.partition("/")
    if not (text.isascii() and k.isdecimal() and n.isdecimal() and 1 <= int(k) <= int(n)):
        raise argparse.ArgumentTypeError(f"{text} is not K/N with K from 1 to N")
    return int(k), int(n)
