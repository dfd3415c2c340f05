"""Makes the rows of the settings of `ficco shape`, on the virtual clock or on GPUs.

NCCL and RCCL read the number of threads of their blocks once a process, so settings with another number than this
process has are measured in a process of their own. That process runs its own baselines, whose collectives have the same
number of threads. It sends each row as soon as the row is measured.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from .. import __version__
from ..driver.api import GpuName
from ..errors import DeviceError, NumbersError, ScheduleError, UsageError
from ..files import atomic, records
from ..files.records import Reader, decoded
from ..graph.overrides import NOTHING
from ..report.wording import count
from .console import Progress
from .messages import say
from .shaping import Row, Setting, left_free, told

if TYPE_CHECKING:
    from ficco_dsl.nodes import Schedule

    from ..driver.api import CollectivesBy
    from ..exec.executor import Executor
    from ..exec.ideal import Yardsticks
    from ..machine.model import Machine
    from ..plan.ir import Plan
    from ..report.request import Source
    from .baselines import Baselines

FORMAT = 1
_LEAVE = 10.0  # seconds that a process gets to end once its rows are there


@dataclass(frozen=True, slots=True)
class Effort:
    """How a setting is measured: runs, each with a turn of the baselines; seconds that a run may take."""

    runs: int
    timeout: float
    graph: bool
    collectives: CollectivesBy


@dataclass
class Sweep:
    """What all settings of a sweep have in common."""

    schedule: Schedule
    said: Mapping[str, object]
    machine: Machine
    driver: GpuName | Literal["sim"]
    effort: Effort
    source: Source
    baselines: Baselines | None = None

    def like(self, setting: Setting) -> Callable[[], Sweep]:
        """What makes such a sweep in another process: all of its settings have the threads that this one says."""
        threads = {name: value for name, value in setting.items() if name.endswith(".threads")}
        said = {**self.said, **threads}
        return partial(Sweep, self.schedule, said, self.machine, self.driver, self.effort, self.source)

    @cached_property
    def _common(self) -> bytes:
        how = repr((self.machine, sorted(self.said.items()), self.driver, self.effort, __version__))
        return how.encode() + self.source.data

    def made(self, setting: Mapping[str, object]) -> str:
        """A digest of what makes the setting's row."""
        return hashlib.sha256(self._common + repr(sorted(setting.items())).encode()).hexdigest()[:12]

    def row(self, setting: Mapping[str, object]) -> Row:
        """The setting's row. What it is refused for is the row's problem."""
        made = self.made(setting)
        try:
            plan = self._plan({**self.said, **setting})
            time, found = self._modelled(plan) if self.driver == "sim" else self._measured(plan)
            sms, smem = left_free(plan, self.machine)
        except (ScheduleError, UsageError, DeviceError, NumbersError) as error:
            return Row(tuple(setting.items()), problem=told(error), made=made)
        ideal = max(found.compute_alone, found.collectives_alone) if found.iterations else found.ideal
        return Row(tuple(setting.items()), time, found.serial, ideal, found.iterations, sms, smem, "", made)

    def _modelled(self, plan: Plan) -> tuple[float, Yardsticks]:
        from ..compiler import compilation
        from ..exec.ideal import ideal
        from ..sim.simulate import simulate

        with compilation(plan.ranks):
            time = simulate(plan, self.machine).duration
        return time, ideal(plan, self.machine)

    def _measured(self, plan: Plan) -> tuple[float, Yardsticks]:
        """On GPUs: the numbers are verified on integers, then runs alternate with the baselines."""
        from ..exec.verify import verified_run

        assert self.baselines is not None
        with self._opened(plan) as executor:
            if plan.claims:
                found = verified_run(executor, values="exact")
                if not found.ok:
                    raise NumbersError(f"{found.worst} (on integers that nothing rounds)")
            executor.graph = self.effort.graph
            executor.run()
            times = []
            for _ in range(self.effort.runs):
                executor.run()
                times.append(executor.duration)
                self.baselines.turn()
        return median(times), self.baselines.yardsticks(median(times), last=self.effort.runs)

    def _opened(self, plan: Plan) -> Executor:
        from ..exec.executor import Executor

        assert self.driver != "sim"
        timeout, collectives = self.effort.timeout, self.effort.collectives
        return Executor(plan, self.driver, machine=self.machine, timeout=timeout, collectives=collectives)

    def _plan(self, given: Mapping[str, object]) -> Plan:
        from ..compiler import compiled

        return compiled(self.schedule, self.machine.ranks, given, self.machine)

    @contextmanager
    def ready(self) -> Iterator[None]:
        """With the baselines that measured settings alternate with."""
        if self.driver == "sim":
            yield
            return
        from ..driver.registry import has_gemms
        from .baselines import Baselines, baseline_plans

        plans = baseline_plans(self._plan(self.said), self.machine, 1, has_gemms(self.driver))
        if plans is None:
            raise UsageError("not all outputs of the schedule are claimed, so nothing says what it is compared with")
        with Baselines(plans, self._opened) as made:
            made.warm(graph=self.effort.graph)
            self.baselines = made
            yield


def rows_of(sweep: Sweep, tried: Sequence[Mapping[str, object]], path: str | None, progress: Progress) -> list[Row]:
    """The rows of all settings, those that were there ahead. Each is in the file before the next is begun."""
    known = {row.made: row for row in _there(path)}
    lacking = [one for one in tried if sweep.made(one) not in known]
    if path is not None and len(lacking) < len(tried):
        say(f"{path}: {count(len(tried) - len(lacking), 'row')} there, {len(lacking)} to be made")
    word = "modelling" if sweep.driver == "sim" else "measuring"
    with progress.step(f"{word} {count(len(lacking), 'setting')}"):
        for done, (one, row) in enumerate(made(sweep, lacking), 1):
            digest = sweep.made(one)
            known[digest] = replace(row, made=digest) if row.made else row  # what was lost is to be made another time
            if path is not None:
                kept = RowsFile(FORMAT, tuple(row for row in known.values() if row.made))
                atomic.write_atomic(path, json.dumps(records.plain(kept), indent=1) + "\n")
            progress.report(done / len(lacking))
    return [replace(known[sweep.made(one)], made=sweep.made(one)) for one in tried]


def made(sweep: Sweep, lacking: Sequence[Setting]) -> Iterator[tuple[Setting, Row]]:
    """The rows of settings. On GPUs those with other threads of the library's blocks are made in other processes, one
    after another, when this process has given its baselines back."""
    here, *others = [lacking] if sweep.driver == "sim" else by_threads(sweep.said, lacking).values()
    if here:
        with sweep.ready():
            for one in here:
                yield one, sweep.row(one)
    for settings_ in others:
        yield from zip(settings_, measured_in_process(sweep.like(settings_[0]), settings_), strict=True)


@dataclass(frozen=True, slots=True)
class RowsFile:
    """The rows of a sweep as they are kept."""

    ficco_shape: int
    rows: tuple[Row, ...]


def _there(path: str | None) -> tuple[Row, ...]:
    """The rows of the file, if there is one."""
    if path is None or not Path(path).is_file():
        return ()
    data = decoded(atomic.read_text(path), path)
    number = data.get("ficco_shape") if isinstance(data, dict) else None
    if type(number) is not int or number != FORMAT:
        raise UsageError(f"{path}: is no table of `ficco shape`, or one of another version; name another file")
    found: RowsFile = Reader(path, way_out="; name another file").read(RowsFile, data, "")
    return found.rows


# ---------------------------------------------------------------- in a process of their own


def measured_in_process(made: Callable[[], Sweep], settings: Sequence[Setting]) -> Iterator[Row]:
    """The rows of the settings, measured in another process, in which `made` makes the sweep. If the process ends too
    early, the rows that it has not sent say so, and have no digest."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=measured, args=(theirs, made, list(settings)))
    process.start()
    theirs.close()
    try:
        for number, one in enumerate(settings):
            try:
                row = ours.recv()
            except EOFError:
                process.join(_LEAVE)
                words = f"the process for these threads ended with code {process.exitcode}"
                yield from (Row(tuple(lost.items()), problem=words) for lost in settings[number:])
                return
            yield Row(tuple(one.items()), problem=row) if isinstance(row, str) else row
        process.join(_LEAVE)
    finally:
        ours.close()
        if process.is_alive():
            process.terminate()
            process.join()


def measured(rows: Connection, made: Callable[[], Sweep], settings: Sequence[Setting]) -> None:
    """Runs in the other process. A text in place of a row is why there is none."""
    try:
        sweep = made()
        with sweep.ready():
            for one in settings:
                rows.send(sweep.row(one))
    except (ScheduleError, UsageError, DeviceError, NumbersError) as error:
        for _ in settings:
            rows.send(told(error))
    except (BrokenPipeError, KeyboardInterrupt):  # nobody listens any more; it is the other process that tells
        return
    finally:
        rows.close()


def by_threads(
    said: Mapping[str, object], settings: Sequence[Setting]
) -> dict[tuple[tuple[str, object], ...], list[Setting]]:
    """Groups settings by the numbers of threads that they set, together with what all settings have in common; settings
    that set no more than that come first."""
    found: dict[tuple[tuple[str, object], ...], list[Setting]] = {threads_said(said): []}
    for one in settings:
        found.setdefault(threads_said({**said, **one}), []).append(one)
    return found


def threads_said(setting: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    """The threads of the library's blocks that a setting sets, by queue."""
    return tuple(
        sorted((name, value) for name, value in setting.items() if name.endswith(".threads") and value != NOTHING)
    )
