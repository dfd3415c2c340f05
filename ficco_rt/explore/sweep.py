"""Runs a sweep: finds which of the requested rows are missing, and makes them in several processes.

A part of the work is a scenario, a trial and a number of ranks: its graph is built once, and lowered and modelled for
each machine. Parts are independent of each other, so any process may make them in any order.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FrameType

from .. import compiler
from ..errors import DeviceError, ScheduleError, UsageError
from ..exec.ideal import ideal
from ..exec.operation import require_operation
from ..graph.ir import Graph
from ..machine.model import Machine
from ..sim.simulate import simulate
from .scenarios import Scenario
from .table import Row
from .trials import Trial, baseline

_DECIDE_NOT = {"calibrate", "cli", "driver", "lsp"}  # folders of this package that no modelled time depends on


@dataclass(frozen=True, slots=True)
class Space:
    """What is swept. A machine stands here once for each number of ranks."""

    operation: str
    scenarios: tuple[Scenario, ...]
    trials: tuple[Trial, ...]
    machines: tuple[Machine, ...]

    def parts(self) -> Iterator[Part]:
        """All parts of the sweep."""
        serial = baseline(self.operation)
        for trial in self.trials:
            alike: dict[tuple[int, Trial], list[Machine]] = defaultdict(list)  # whose graphs are one
            for machine in self.machines:
                alike[machine.ranks, trial.on(machine)].append(machine)
            for scenario in self.scenarios:
                for (_, tried), machines in alike.items():
                    yield Part(self.operation, scenario, tried, serial, tuple(machines))


@dataclass(frozen=True, slots=True)
class Part:
    """A trial on a scenario, on machines of the same number of ranks."""

    operation: str
    scenario: Scenario
    trial: Trial
    serial: Trial  # whose work the yardsticks are of
    machines: tuple[Machine, ...]

    def blank(self, machine: Machine) -> Row:
        """The row, not made yet."""
        s, c = self.scenario, self.trial
        made = _digest(c.text, machine, self.serial.text)
        what = (self.operation, s.name, s.sizes, machine.ranks, machine.name, c.schedule, c.params)
        return Row(*what, time=None, serial=None, ideal=None, problem="", made=made)


@dataclass(frozen=True, slots=True)
class Todo:
    """The rows of the sweep that a table already has, the rows of other sweeps, and the parts still to be made."""

    done: tuple[Row, ...]
    others: tuple[Row, ...]
    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """Number of rows still to be made."""
        return sum(len(part.machines) for part in self.parts)


def todo(space: Space, there: Iterable[Row]) -> Todo:
    """What a sweep still has to make. Rows made by another version, or for another machine of the same name, are made
    again."""
    known = {row.key: row for row in there}
    done: list[Row] = []
    missing: list[Part] = []
    for part in space.parts():
        lacking = []
        for machine in part.machines:
            wanted = part.blank(machine)
            found = known.pop(wanted.key, None)
            if found is not None and found.made == wanted.made:
                done.append(found)
            else:
                lacking.append(machine)
        if lacking:
            missing.append(replace(part, machines=tuple(lacking)))
    return Todo(tuple(done), tuple(known.values()), tuple(missing))


def rows_of(part: Part) -> list[Row]:
    """The part's rows. What the schedule refuses is a row's `problem`."""
    ranks = part.machines[0].ranks
    blanks = [part.blank(machine) for machine in part.machines]
    yardsticks = [_yardstick(part.serial, part.scenario, machine) for machine in part.machines]
    blanks = [replace(b, serial=serial, ideal=best) for b, (serial, best) in zip(blanks, yardsticks, strict=True)]
    try:
        graph = compiler.build(part.trial.parsed(), ranks, part.scenario.params(ranks) | dict(part.trial.params))
    except (ScheduleError, UsageError) as error:
        return [replace(blank, problem=_words(error)) for blank in blanks]
    return [_modelled(part, blank, graph, machine) for blank, machine in zip(blanks, part.machines, strict=True)]


def _modelled(part: Part, blank: Row, graph: Graph, machine: Machine) -> Row:
    trusted = part.trial.trusted
    try:
        plan = compiler.plan_of(graph, machine, trusted=trusted)
        if not trusted:
            require_operation(plan, part.operation, _graph(part.serial, part.scenario, machine.ranks))
        with compiler.compilation(machine.ranks):
            return replace(blank, time=round(simulate(plan, machine).duration, 4))
    except (ScheduleError, UsageError) as error:
        return replace(blank, problem=_words(error))


@cache
def _graph(serial: Trial, scenario: Scenario, ranks: int) -> Graph:
    """The operation's baseline. Raises ScheduleError, UsageError: it cannot have these sizes."""
    return compiler.build(serial.parsed(), ranks, scenario.params(ranks))


@cache
def _yardstick(serial: Trial, scenario: Scenario, machine: Machine) -> tuple[float | None, float | None]:
    """Serial and ideal time of the operation, whatever its schedule; None where it cannot be done at all. They are
    those of its claim: the plan may have one node only."""
    try:
        graph = _graph(serial, scenario, machine.ranks)
        found = ideal(compiler.plan_of(graph, machine.as_one_node(), trusted=True), machine)
    except (ScheduleError, UsageError):
        return None, None
    return round(found.serial, 4), round(found.ideal, 4)


def _words(error: Exception) -> str:
    """The first of its mistakes, on one line."""
    text = error.diagnostics[0].message if isinstance(error, ScheduleError) and error.diagnostics else str(error)
    return " ".join(text.split())[:300]


@cache
def _digest(text: bytes, machine: Machine, serial: bytes) -> str:
    parts = (text, repr(machine).encode(), serial, _sources())
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:12]


@cache
def _sources() -> bytes:
    """A digest of this version."""
    here = Path(__file__).resolve().parent.parent
    files = [file for file in here.rglob("*.py") if file.relative_to(here).parts[0] not in _DECIDE_NOT]
    return b"".join(hashlib.sha256(file.read_bytes()).digest() for file in sorted(files))


def make(parts: Sequence[Part], jobs: int) -> Iterator[list[Row]]:
    """The rows of all parts, some at a time, in `jobs` processes; with one, in this process.

    Raises DeviceError where a process was ended from outside.
    """
    if jobs == 1 or len(parts) < 2:
        yield from map(rows_of, parts)
        return
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(jobs, len(parts)), _context())
    try:
        with _uninterrupted():  # this starts the processes
            waiting = [pool.submit(rows_of, part) for part in parts]
        for future in as_completed(waiting):
            yield future.result()
        pool.shutdown()
    except BrokenProcessPool as error:
        raise DeviceError(
            "a process of the sweep was ended from outside, perhaps for want of memory; fewer at once (--jobs 1) take "
            "less, and the same command goes on from the rows that are there"
        ) from error
    finally:  # whatever interrupts: no process goes on for nobody
        pool.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()


def _context() -> multiprocessing.context.BaseContext:
    """Processes that know nothing of this one's threads, and begin with what they need imported, if the system can."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C is heard at the end of this, so that whatever process is started here is known, and can be terminated.
    Ctrl-C reaches all processes of a terminal; those that are started here inherit that they do not hear it."""
    handler, main = signal.getsignal(signal.SIGINT), threading.current_thread() is threading.main_thread()
    if not (callable(handler) and main and hasattr(signal, "pthread_sigmask")):
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *given: caught.append(given))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if caught:
        handler(*caught[0])


def cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
