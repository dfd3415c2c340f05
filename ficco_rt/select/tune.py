"""Measures the model's best few candidates on this machine's GPUs. It is the only module of `select` that runs
anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

from .. import compiler
from ..driver.api import GPUS, GpuName
from ..driver.registry import device_count, discover, first_gpus, has_gemms
from ..errors import DeviceError, NumbersError, UsageError
from ..exec.executor import Executor
from ..exec.verify import verified_run, write_inputs
from ..plan.ir import Plan
from .candidates import BASELINE, Candidate, by_kernel
from .choose import question
from .measurements import MODES, MeasuredCase, Measurements, Mode, Time, measured_case
from .ranking import ranked

HOST = (
    "the host backend has no times to remember: what it tells is modelled for a machine, which `ficco choose --by "
    "model` says at once. tune measures on GPUs: --backend cuda, or hip"
)
SIM = "sim models times and measures none, which `ficco choose --by model` says at once; tune measures on GPUs"
Step = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure."""

    best: int = 4  # candidates of the model's ranking
    rounds: int = 3  # passes over all candidates, each in both modes
    iters: int = 10  # timed runs of a pass
    warmup: int = 3  # runs before these
    verify: bool = True
    timeout: float = 60.0  # seconds for a run


@dataclass(frozen=True, slots=True)
class Tuned:
    """What was measured, and which candidates could not be."""

    case: MeasuredCase
    times: tuple[Time, ...]  # from the fastest to the slowest
    failed: tuple[tuple[Candidate, str], ...]

    @property
    def memory(self) -> Measurements:
        """The times as `measurements.save` writes them."""
        return Measurements({self.case: self.times})


def gpu_backend(name: str) -> GpuName:
    """The backend to measure on. Raises UsageError (one that measures nothing), DeviceError (there are no GPUs)."""
    if name == "host":
        raise UsageError(HOST)
    if name == "sim":
        raise UsageError(SIM)
    if name == "auto":
        if (found := first_gpus()) is not None:
            return found
        raise DeviceError(f"no GPU is found. {HOST[:1].upper()}{HOST[1:]}")
    if name not in GPUS:
        raise UsageError(f"there is no backend '{name}'; tune measures on cuda or hip, or auto finds one")
    return "hip" if name == "hip" else "cuda"


def tune(
    operation: str,
    ranks: int | None,
    sizes: Mapping[str, object],
    backend: str = "auto",
    ranks_per_gpu: int = 1,
    effort: Effort | None = None,
    candidates: Sequence[object] | None = None,
    step: Step = lambda _: nullcontext(),
) -> Tuned:
    """Measure the best few candidates of an operation, each on streams and as a graph, by turns.

    Every candidate's numbers are verified before it is timed. `step` is told what is done while it is done.
    Raises UsageError, DeviceError, and NumbersError where a candidate computes what it should not.
    """
    effort = effort or Effort()
    driver = gpu_backend(backend)
    number = device_count(driver) * ranks_per_gpu if ranks is None else ranks
    machine = discover(driver, number, ranks_per_gpu)
    asked = question(operation, number, machine, candidates, sizes, ranks_per_gpu, has_gemms(driver))
    with step("ranking candidates"):
        best = list(ranked(asked).ranked)
    if candidates is None:  # with what people have without this project: whole shards, then the library's product
        baseline = [by_kernel(Candidate(f"{operation}/{BASELINE}"))] if asked.vendor else []
        best = list(dict.fromkeys([*best[: effort.best], *baseline]))
    where = measured_case(asked.operation.name, number, asked.sizes, machine, ranks_per_gpu)

    plans: dict[Candidate, Plan] = {}
    failed: list[tuple[Candidate, str]] = []
    for candidate in best:
        given = {**asked.sizes, **dict(candidate.params)}
        with step(f"compiling {candidate.label}"):
            plans[candidate] = compiler.compile_schedule(candidate.schedule, number, given, machine)

    taken: dict[Candidate, dict[Mode, list[float]]] = {candidate: {mode: [] for mode in MODES} for candidate in best}
    told = ""
    for turn in range(effort.rounds):
        for candidate in list(taken):
            plan, words = plans[candidate], f"round {turn + 1} of {effort.rounds}: {candidate.label}"
            try:
                with (
                    step(words),
                    Executor(
                        plan, driver, machine=machine, ranks_per_gpu=ranks_per_gpu, timeout=effort.timeout
                    ) as executor,
                ):
                    told = executor.driver.describe()
                    _prepare(executor, candidate, effort.verify and turn == 0)
                    for mode in MODES:
                        taken[candidate][mode] += _timed(executor, mode, effort)
            except DeviceError as error:  # memory: other candidates may take less
                failed.append((candidate, str(error).splitlines()[0]))
                del taken[candidate]
    if not taken:
        reasons = "\n".join(f"  {candidate.label}: {reason}" for candidate, reason in failed)
        raise DeviceError(f"none of the candidates could be measured:\n{reasons}")
    date = datetime.now(UTC).isoformat(timespec="milliseconds")
    times = [
        Time(candidate.schedule, candidate.params, mode, median(runs), min(runs), max(runs), len(runs), date, told)
        for candidate, by_mode in taken.items()
        for mode, runs in by_mode.items()
    ]
    return Tuned(where, tuple(sorted(times, key=lambda t: t.median)), tuple(failed))


def _prepare(executor: Executor, candidate: Candidate, verify: bool) -> None:
    """Inputs in place, and once a candidate the numbers verified."""
    if verify:
        found = verified_run(executor)
        if not found.ok:
            raise NumbersError(f"{candidate.label}: {found.worst}")
        return
    write_inputs(executor)


def _timed(executor: Executor, mode: str, effort: Effort) -> list[float]:
    executor.graph = mode == "graph"
    times = []
    for run in range(effort.warmup + effort.iters):
        executor.run()
        if run >= effort.warmup:
            times.append(executor.duration)
    return times
