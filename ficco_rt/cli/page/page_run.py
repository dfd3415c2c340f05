"""What a report page shows: runs, as they have just ended or as files tell of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from ...files.atomic import read_text
from ...report import tracefile
from ...report.account_words import stage_records
from ...report.drawing import clean, plain
from ...trace.model import Trace
from ..schema import faults

Facts = Mapping[str, Any]

# The keys without which a page cannot be, by the name of what has them. Runs of older versions have no account, and no
# stages.
_NEEDED = {
    "": (
        "schedule", "title", "path", "backend", "devices", "machine", "clock", "yardsticks", "plan_hash", "version",
        "time_ms", "time_ms_min", "time_ms_max", "serial_ms", "ideal_ms", "compute_alone_ms", "ranks", "iters",
        "params", "given",
    ),
    "account": ("rank", "side", "time_us", "parts"),
    "parts": ("name", "time_us"),
    "stages": (
        "stage", "kind", "place", "start_us", "stop_us", "busy_us", "waited_us", "path_us", "bytes", "flops", "works",
        "ranks",
    ),
    "concurrent": ("iterations", "iteration_ms"),
    "modelled": ("time_us", "stages"),
    "error": ("message",),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PageRun:
    """A run on a page. `facts`: what `ficco-run --json` says of it; None where only its trace is known. `trace`: None
    where only the facts are."""

    name: str
    facts: Facts | None
    trace: Trace | None

    @property
    def schedule(self) -> str:
        return str(self.facts["schedule"]) if self.facts is not None else self._trace.schedule

    @property
    def time(self) -> float:
        """Microseconds."""
        return 1e3 * float(self.facts["time_ms"]) if self.facts is not None else self._trace.duration

    @property
    def ranks(self) -> int:
        return int(self.facts["ranks"]) if self.facts is not None else self._trace.ranks

    @property
    def measured(self) -> bool:
        """Whether the time is a device's; otherwise a model gave it."""
        return (self.facts["clock"] if self.facts is not None else self._trace.clock) == "device"

    @property
    def machine(self) -> str:
        return str(self.facts["machine"]) if self.facts is not None else self._trace.machine

    @property
    def stages(self) -> Sequence[Facts]:
        if self.facts is not None and "stages" in self.facts:
            return list(self.facts["stages"])
        return stage_records(self.trace) if self.trace is not None else []

    @property
    def account(self) -> Facts | None:
        return self.facts.get("account") if self.facts is not None else None

    @property
    def modelled(self) -> Facts | None:
        """What the model says beside a measured run."""
        return self.facts.get("modelled") if self.facts is not None else None

    @property
    def _trace(self) -> Trace:
        assert self.trace is not None  # a run has facts, a trace, or both
        return self.trace


def of_run(name: str, facts: Facts | None, trace: Trace | None) -> PageRun:
    """A run with no control characters in what the page shows of it: names may be anybody's."""
    return PageRun(plain(name), None if facts is None else _plain(facts), None if trace is None else clean(trace))


def read_run(path: str) -> PageRun:
    """The run of a file: a trace, or what `ficco-run --json` printed. Raises UsageError with what is wrong."""
    try:
        return _read(path)
    except RecursionError:
        raise UsageError(f"{path}: lists or objects stand inside one another too deeply for a run") from None


def _read(path: str) -> PageRun:
    text = read_text(path)
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path}: is not JSON: {error}") from error
    if isinstance(data, dict) and "traceEvents" in data:
        trace = tracefile.from_json(text, path)
        run = data["otherData"].get("run")
        return of_run(path, None if run is None else _checked(run, path, "otherData.run"), trace)
    if isinstance(data, dict) and "time_ms" in data:
        return of_run(path, _checked(data, path), None)
    if isinstance(data, dict) and isinstance(data.get("error"), dict):
        raise UsageError(f"{path}: tells of a run that failed: {str(data['error'].get('message'))[:200]}")
    raise UsageError(
        f"{path}: tells of no run; `ficco-run --trace FILE.json` writes one with its timeline, `ficco-run --json` "
        "prints one without"
    )


# ---------------------------------------------------------------- what a file must hold


def _checked(run: object, path: str, place: str = "") -> Facts:
    """The facts of a run, held to the schema of `ficco-run --json`."""
    wrong = next(faults(run, "run", _NEEDED, place), None)
    if wrong is not None:
        raise UsageError(f"{path}: {wrong}; let `ficco-run --trace FILE.json` write the run again")
    assert isinstance(run, dict)
    return run


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(str(k)): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
