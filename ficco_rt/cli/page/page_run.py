"""The data of a report page: runs that have just ended, or runs read from files."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from ...analysis.account import Account, StageUse
from ...errors import UsageError
from ...files import records
from ...files.atomic import read_text
from ...files.records import filled
from ...report import tracefile
from ...report.account_words import RunTimes, stages_of
from ...report.drawing import clean, plain
from ...trace.model import Trace
from ..result import Run


@dataclass(frozen=True, slots=True)
class PageRun:
    """A run on a page. `facts`: what `ficco-run --json` says of it; None where only its trace is known. `trace`: None
    where only the facts are. `modelled`: what the model says beside a measured run. Runs of older versions have no
    account, and no stages."""

    name: str
    facts: Run | None
    trace: Trace | None
    schedule: str
    machine: str
    ranks: int
    measured: bool  # the time is a device's; otherwise a model gave it
    time: float  # microseconds
    stages: tuple[StageUse, ...] = ()
    account: Account | None = None
    modelled: RunTimes | None = None


def _page_run(name: str, facts: Run | None, trace: Trace | None) -> PageRun:
    """A run with facts, a trace, or both; with no control characters in what the page shows: names may be anybody's."""
    trace = None if trace is None else clean(trace)
    known, of = facts.stages if facts is not None else None, facts if facts is not None else trace
    assert of is not None
    return filled(
        PageRun,
        of,
        name=plain(name),
        facts=facts,
        trace=trace,
        measured=of.clock == "device",
        time=1e3 * of.time_ms if isinstance(of, Run) else of.duration,
        stages=stages_of(trace) if known is None and trace is not None else known or (),
    )


def of_run(name: str, facts: Run | None, trace: Trace | None) -> PageRun:
    """A run that has just ended."""
    told = None if facts is None else _run(records.plain(facts), name, largest=inf)  # it is what a run gave
    return _page_run(name, told, trace)


def read_run(path: str) -> PageRun:
    """The run of a file: a trace, or what `ficco-run --json` printed. Raises UsageError with what is wrong."""
    data = records.decoded(read_text(path), path)
    found = data if isinstance(data, dict) else {}
    if "traceEvents" in found:
        trace = tracefile.read(data, path)
        run = data["otherData"].get("run")
        return _page_run(path, None if run is None else _run(run, path, "otherData.run"), trace)
    if "time_ms" in found:
        return _page_run(path, _run(data, path), None)
    if isinstance(found.get("error"), dict):
        raise UsageError(f"{path}: tells of a run that failed: {str(found['error'].get('message'))[:200]}")
    raise UsageError(
        f"{path}: tells of no run; `ficco-run --trace FILE.json` writes one with its timeline, `ficco-run --json` "
        "prints one without"
    )


def _run(data: Any, path: str, place: str = "", largest: float = records.Reader.largest) -> Run:
    """The facts of a run, of this version or of another one."""
    reader = records.Reader(path, True, "; let `ficco-run --trace FILE.json` write the run again", plain)
    reader.largest = largest
    run: Run = reader.read(Run, data, place)
    return run
