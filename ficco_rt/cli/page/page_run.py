"""The data of a report page: runs that have just ended, or runs read from files."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

from ...analysis.account import Account, StageUse
from ...errors import UsageError
from ...files import records
from ...files.atomic import read_text
from ...report import tracefile
from ...report.account_words import RunTimes, stages_of
from ...report.drawing import clean, plain
from ...trace.model import Trace
from ..result import Run


@dataclass(frozen=True, slots=True)
class PageRun:
    """A run on a page. `facts`: what `ficco-run --json` says of it; None where only its trace is known. `trace`: None
    where only the facts are. Runs of older versions have no account, and no stages."""

    name: str
    facts: Run | None
    trace: Trace | None

    @property
    def schedule(self) -> str:
        return self._of.schedule

    @property
    def time(self) -> float:
        """Microseconds."""
        return 1e3 * self.facts.time_ms if self.facts is not None else self._trace.duration

    @property
    def ranks(self) -> int:
        return self._of.ranks

    @property
    def measured(self) -> bool:
        """Whether the time is a device's; otherwise a model gave it."""
        return self._of.clock == "device"

    @property
    def machine(self) -> str:
        return self._of.machine

    @property
    def stages(self) -> tuple[StageUse, ...]:
        if self.facts is not None and self.facts.stages is not None:
            return self.facts.stages
        return stages_of(self.trace) if self.trace is not None else ()

    @property
    def account(self) -> Account | None:
        return self.facts.account if self.facts is not None else None

    @property
    def modelled(self) -> RunTimes | None:
        """What the model says beside a measured run."""
        return self.facts.modelled if self.facts is not None else None

    @property
    def _of(self) -> Run | Trace:
        return self.facts if self.facts is not None else self._trace

    @property
    def _trace(self) -> Trace:
        assert self.trace is not None  # a run has facts, a trace, or both
        return self.trace


def of_run(name: str, facts: Run | None, trace: Trace | None) -> PageRun:
    """A run with no control characters in what the page shows of it: names may be anybody's."""
    told = None if facts is None else _run(records.plain(facts), name, largest=inf)  # it is what a run gave
    return PageRun(plain(name), told, None if trace is None else clean(trace))


def read_run(path: str) -> PageRun:
    """The run of a file: a trace, or what `ficco-run --json` printed. Raises UsageError with what is wrong."""
    data = records.decoded(read_text(path), path)
    found = data if isinstance(data, dict) else {}
    if "traceEvents" in found:
        trace = tracefile.read(data, path)
        run = data["otherData"].get("run")
        return PageRun(plain(path), None if run is None else _run(run, path, "otherData.run"), clean(trace))
    if "time_ms" in found:
        return PageRun(plain(path), _run(data, path), None)
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
