"""Lives side by side: a process of their own each, forked from one that has imported and compiled everything.

The forking process looks on: it goes on with who has stopped itself, kills what hangs, and judges how lives ended.
"""

from __future__ import annotations

import faulthandler
import gc
import mmap
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from ficco_rt.driver.gpu import binding, driver
from ficco_rt.driver.gpu.workspace import GpuWorkspace
from ficco_rt.select import sized
from tests.lives import play, seats, striking
from tests.lives.life import DriverName, Key, Life, Report
from tests.mock import standin
from tests.mock.processes import kernels
from tests.pipes import between

LIMIT = 60.0  # seconds of a life
FLIGHT = 12  # lives side by side, most of which sleep


@dataclass(slots=True)
class Verdict:
    """How a life ended. `again`: how the retry did."""

    life: Life
    end: str = ""  # right, told
    again: str = ""
    told: list[str] = field(default_factory=list)
    objections: list[tuple[str, str]] = field(default_factory=list)
    slowest: float = 0.0


@dataclass(slots=True)
class _Flight:
    """A life under way. By process: `children`, pipes for their reports, what they have ended by."""

    life: Life
    page: Any
    folder: Path
    children: list[int]
    pipes: list[int]
    begun: float = field(default_factory=time.monotonic)
    codes: dict[int, int] = field(default_factory=dict)
    paused: dict[int, float] = field(default_factory=dict)  # until when
    hung: bool = False


class DevicePlans:
    """Device plans of all lives, by plan, in the place of the driver's own cache: what a life has had to make is made
    once more here, before the next life with that plan."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], binding.Plans] = {}
        self._asked: dict[Key, dict[tuple[Any, ...], frozenset[Any]]] = {}

    def __call__(self, same: binding.Same, *more: Any) -> binding.Plans:
        at = (seats.key_of(same.plan), *more)
        if at not in self._made:
            self._made[at] = binding.plans_of.__wrapped__(same, *more)
        return self._made[at]

    def modes(self) -> dict[tuple[Any, ...], frozenset[Any]]:
        return {at: frozenset(plans._made) for at, plans in self._made.items()}

    def remember(self, asked: Iterable[tuple[tuple[Any, ...], frozenset[Any]]]) -> None:
        for at, modes in asked:
            of_plan = self._asked.setdefault(at[0], {})
            of_plan[at] = of_plan.get(at, frozenset()) | modes

    def make(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for (_, *more), modes in self._asked.pop(key, {}).items():
                plans = self(binding.Same(seats.plan(key)), *more)
                for mode in modes:
                    plans.residencies(mode)


class Server:
    """See the module. `busy`: how many processes use processors at a time. `verbose`: lives say what they do."""

    def __init__(self, name: DriverName, busy: int = 1, verbose: bool = False) -> None:
        self._busy, self._verbose = busy, verbose
        self._flights: list[_Flight] = []
        os.environ["FICCO_CACHE"] = kernels()
        GpuWorkspace._vendors_turn = lambda made: False  # type: ignore[method-assign]
        vars(driver)["plans_of"] = self._plans = DevicePlans()
        if name != "host":
            standin.of(name)
        self._shared = set(os.listdir("/dev/shm"))
        gc.disable()

    def run(self, lives: Iterator[Life]) -> Iterator[Verdict]:
        """Their verdicts, in the order in which they end."""
        waiting: Life | None = next(lives, None)
        while waiting is not None or self._flights:
            if waiting is not None and len(self._flights) < FLIGHT and self._running() < self._busy:
                self._begin(waiting)
                waiting = next(lives, None)
            else:
                time.sleep(1e-3)
            for flight in list(self._flights):
                if self._look(flight):
                    self._flights.remove(flight)
                    yield self._judged(flight)

    def left(self) -> list[str]:
        """What all lives together have left on the machine. Other programs may have files there as long as they run."""
        until = time.monotonic() + LIMIT
        while (found := set(os.listdir("/dev/shm")) - self._shared) and time.monotonic() < until:
            time.sleep(0.1)
        return sorted(found)

    # ---- processes

    def _running(self) -> int:
        count = 0
        for flight in self._flights:
            for place, child in enumerate(flight.children):
                if place not in flight.codes:
                    with suppress(OSError), open(f"/proc/{child}/stat") as stat:
                        count += stat.read().rpartition(")")[2].split()[0] == "R"
        return count

    def _begin(self, life: Life) -> None:
        play.prepare(life)
        self._plans.make(life.plans)
        gc.freeze()
        size = life.processes
        page = np.frombuffer(mmap.mmap(-1, 8 * play.ROW * size), np.int64).reshape(size, play.ROW)
        pipes = between(size)
        flight = _Flight(life, page, Path(tempfile.mkdtemp(prefix="ficco-life-")), [], [])
        sys.stdout.flush()
        sys.stderr.flush()
        for place in range(size):
            reading, writing = os.pipe()
            child = os.fork()
            if not child:
                os.close(reading)
                self._live(flight, place, pipes[place], writing)
            os.close(writing)
            flight.children.append(child)
            flight.pipes.append(reading)
        for pipe in (pipe for of in pipes for pipe in of if pipe is not None):
            pipe.close()
        self._flights.append(flight)

    def _live(self, flight: _Flight, place: int, pipes: list[Connection | None], writing: int) -> None:
        """A child: it ends here, or, if its life says so, as an interpreter does."""
        report, me = Report(), os.getpid()
        gc.enable()  # what was there before stays frozen: to look at all of it is to copy its memory
        try:
            if not self._verbose:
                silent = os.open(os.devnull, os.O_WRONLY)
                os.dup2(silent, 2)  # what a watchdog says
            elif flight.life.event.kind != "fork":  # NOTE its thread keeps a forked process from ending
                faulthandler.dump_traceback_later(LIMIT / 2)
            known, modules = self._plans.modes(), set(sys.modules)
            sized.Operation._plan = seats.plan_of_operation(flight.life)  # type: ignore[method-assign]
            player = play.Player(flight.life, place, pipes, flight.page, flight.folder)
            if self._verbose:
                player.log = striking.stderr_log(place, flight.begun)
            report = player.report
            player.play()
            report.asked = [(at, modes) for at, modes in self._plans.modes().items() if known.get(at) != modes]
            report.imported = sorted(set(sys.modules) - modules)
        except SystemExit:
            if os.getpid() == me:
                _send(writing, report)
            raise
        except BaseException:  # noqa: BLE001  told by who judges
            report.objections.append(("CRASH", traceback.format_exc()))
        _send(writing, report)
        os._exit(0)

    def _look(self, flight: _Flight) -> bool:
        """Whether all its processes have ended."""
        now = time.monotonic()
        for place, child in enumerate(flight.children):
            if place in flight.codes:
                continue
            found, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
            if found and os.WIFSTOPPED(status):
                flight.paused[place] = now + flight.life.event.more * flight.life.limit
            elif found:
                flight.codes[place] = os.waitstatus_to_exitcode(status)
                flight.page[place][play.ENDED] = 1
            elif now > flight.paused.get(place, now + 1):
                del flight.paused[place]
                os.kill(child, signal.SIGCONT)
            elif now - flight.begun > LIMIT:
                flight.hung = True
                os.kill(child, signal.SIGKILL)
        return len(flight.codes) == len(flight.children)

    # ---- judging

    def _judged(self, flight: _Flight) -> Verdict:
        life, event = flight.life, flight.life.event
        verdict = Verdict(life)
        reports: list[Report | None] = []
        for place, pipe in enumerate(flight.pipes):
            reports.append(_received(pipe))
            code, mine = flight.codes[place], event.place == place
            expected = {"kill": (0, -signal.SIGKILL)}.get(event.kind, (0,)) if mine else (0,)
            if code not in expected and not flight.hung:
                verdict.objections.append(("CRASH", f"process {place} ends by {code}"))
        if flight.hung:
            verdict.objections.append(("HUNG", f"not over after {LIMIT:g} s"))
        for place, report in enumerate(reports):
            if report is None:
                continue
            verdict.objections += [(kind, f"process {place}: {text}") for kind, text in report.objections]
            verdict.told += [f"process {place}: {text}" for text in report.told]
            verdict.again += report.again
            self._plans.remember(report.asked)
            for module in report.imported:
                with suppress(ImportError):  # of those that only look like modules
                    import_module(module)
            verdict.slowest = max(verdict.slowest, report.slowest)
        failed = bool(verdict.told) or any(report is None for report in reports) or event.kind == "exit"
        verdict.end = "told" if failed else "right"
        if event.kind == "none" and failed:
            verdict.objections.append(("FALSE", "nothing went wrong, and there was an error"))
        left = sorted(path.name for path in flight.folder.rglob("*"))
        if left:
            verdict.objections.append(("LEFT", f"files: {left[:3]}"))
        shutil.rmtree(flight.folder)
        return verdict


def _send(writing: int, report: Report) -> None:
    data = pickle.dumps(report)
    while data:
        data = data[os.write(writing, data) :]
    os.close(writing)


def _received(reading: int) -> Report | None:
    """What a process that has ended has written. NOTE a forked child of it may still have the pipe open."""
    os.set_blocking(reading, False)
    data = b""
    with suppress(BlockingIOError):
        while part := os.read(reading, 1 << 16):
            data += part
    os.close(reading)
    try:
        report: Report = pickle.loads(data)
    except (EOFError, pickle.UnpicklingError):
        return None
    return report
