"""Runs probes: compiles the plan of each point, runs it a few times, and keeps the median."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Protocol

from ..analysis.account import placed_launches
from ..compiler import build, plan_of
from ..errors import DeviceError, ScheduleError
from ..files.records import HIDDEN, INLINE, Micros, Named
from ..machine.model import Machine
from ..plan.ir import Plan
from ..sim.simulate import simulate
from .probes import Mode, Params, Probe


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of each of a few runs. `ahead`: each run began only after the host had issued all of it. Otherwise
    the time of a short run is that of the host."""

    micros: tuple[float, ...]
    ahead: bool


@dataclass(frozen=True, slots=True)
class Point:
    """Microseconds of a run with these params. `early`: a launch begins while the one before it ends.

    us: The median, microseconds.
    modelled_us: What the machine that the plan was made for says of it.
    kernel: The first launch's, empty if there is none.
    issued_ahead: The host had issued each run before it began.
    """

    params: Params
    micros: Annotated[float, Named("us")]
    least: Micros
    most: Micros
    modelled: Micros
    kernel: str = ""
    early: Annotated[bool, HIDDEN] = False
    ahead: Annotated[bool, Named("issued_ahead")] = True


@dataclass(frozen=True, slots=True)
class Series:
    """What a probe has measured.

    missing: Why it was not measured; empty: it was.
    seconds: That measuring it took.
    """

    probe: Annotated[Probe, INLINE]
    points: tuple[Point, ...]
    missing: str = ""
    seconds: float = 0.0


class Clock(Protocol):
    """The interface that times the runs of a plan."""

    def times(self, plan: Plan, mode: Mode) -> Times:
        """The times of a few runs. DeviceError: the plan cannot be run."""


OnProgress = Callable[[Probe, int, int], None]  # a probe's points so far, of all


def measure(
    probes: Iterable[Probe], machine: Machine, clock: Clock, seconds: float, progress: OnProgress = lambda *_: None
) -> tuple[Series, ...]:
    """Measures the probes one after another until the time is over; the remaining ones then have no points. Plans are
    made for `machine`. The series of a failed probe says why it failed, and measuring continues with the next probe."""
    begun = time.monotonic()
    found = []
    for probe in probes:
        if probe.ranks > machine.ranks:
            found.append(Series(probe, (), f"needs {probe.ranks} GPUs; there are {machine.ranks}"))
            continue
        points: list[Point] = []
        missing, started, schedule = "", time.monotonic(), probe.schedule
        for params in probe.points:
            if time.monotonic() - begun > seconds:
                missing = f"the {seconds:.0f} s were over after {len(points)} of {len(probe.points)} points"
                break
            try:
                plan = plan_of(build(schedule, machine.ranks, {**probe.types, **params}), machine)
                times = clock.times(plan, probe.mode)
                modelled = simulate(plan, machine, probe.mode).duration
                few, launched = times.micros, _launched(plan, machine)
                points.append(
                    Point(params, statistics.median(few), min(few), max(few), modelled, *launched, times.ahead)
                )
            except ScheduleError as error:  # the machine has not what this point asks for
                missing = missing or error.diagnostics[0].message
                continue
            except DeviceError as error:
                missing = str(error)
                break
            progress(probe, len(points), len(probe.points))
        found.append(Series(probe, tuple(points), missing, time.monotonic() - started))
    return tuple(found)


def _launched(plan: Plan, machine: Machine) -> tuple[str, bool]:
    """The first launch's kernel, and whether a launch begins early."""
    launches = placed_launches(plan, machine)
    return launches[0].config.entry if launches else "", any(launch.early for launch in launches)
