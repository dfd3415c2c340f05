"""What a report page shows: runs, as they have just ended or as files tell of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UsageError
from ...files import read_text
from ...trace import Trace
from .. import tracefile
from ..account import WORDS, stage_records
from ..drawing import clean, plain

Facts = Mapping[str, Any]

# The facts that a page computes with or branches on; all others are shown as they are, or left out.
_TEXTS = ("schedule", "title", "path", "backend", "devices", "machine", "clock", "yardsticks", "plan_hash", "version")
_NUMBERS = ("time_ms", "time_ms_min", "time_ms_max", "serial_ms", "ideal_ms", "compute_alone_ms")
_TIMES = ("start_us", "stop_us", "busy_us", "waited_us", "path_us", "bytes", "flops", "works", "ranks")


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
    text = read_text(path)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not JSON: {error}") from error
    if isinstance(data, dict) and "traceEvents" in data:
        trace = tracefile.from_json(text, path)
        run = data["otherData"].get("run")
        return of_run(path, None if run is None else _checked(run, f"{path}: run"), trace)
    if isinstance(data, dict) and "time_ms" in data:
        return of_run(path, _checked(data, path), None)
    if isinstance(data, dict) and isinstance(data.get("error"), dict):
        raise UsageError(f"{path}: tells of a run that failed: {str(data['error'].get('message'))[:200]}")
    raise UsageError(
        f"{path}: tells of no run; `ficco-run --trace FILE.json` writes one with its timeline, `ficco-run --json` "
        "prints one without"
    )


# ---------------------------------------------------------------- what a file must hold


def _checked(run: object, place: str) -> Facts:
    read = _Reader(place)
    facts = read.record(run, "the run")
    for name in _TEXTS:
        read.text(facts, name)
    for name in _NUMBERS:
        read.number(facts, name)
    for name in ("ranks", "iters"):
        read.number(facts, name)
    for name in ("params", "given"):
        read.record(facts.get(name), f"'{name}'")
    if facts.get("share_of_ideal") is not None:
        read.number(facts, "share_of_ideal")
    if facts.get("concurrent") is not None:
        concurrent = read.record(facts["concurrent"], "'concurrent'")
        read.number(concurrent, "iterations")
        read.number(concurrent, "iteration_ms")
        for name in ("time_ratio", "normalised_time", "share_of_saving", "overlap_rate"):
            if concurrent.get(name) is not None:
                read.number(concurrent, name)
    if facts.get("choice") is not None:
        read.record(facts["choice"], "'choice'")
    for name in ("why", "unproven"):
        read.list(facts.get(name, []), f"'{name}'")
    _times(read, facts)
    if facts.get("modelled") is not None:
        modelled = read.record(facts["modelled"], "'modelled'")
        read.number(modelled, "time_us")
        _times(read, modelled)
    return facts


def _times(read: _Reader, facts: Facts) -> None:
    """An account and stages, which runs of older versions have not."""
    if "account" in facts:
        account = read.record(facts["account"], "'account'")
        read.number(account, "time_us")
        read.number(account, "rank")
        if account.get("side") not in WORDS:
            raise UsageError(f"{read.place}: 'side' is missing or not one of {', '.join(WORDS)}")
        for part in read.list(account.get("parts"), "'parts'"):
            read.number(read.record(part, "a part"), "time_us")
            if part.get("name") not in WORDS["computing"]:
                raise UsageError(f"{read.place}: a part's 'name' is not one of {', '.join(WORDS['computing'])}")
    for stage in read.list(facts.get("stages", []), "'stages'"):
        read.record(stage, "a stage")
        for name in ("stage", "kind", "place"):
            read.text(stage, name)
        for name in _TIMES:
            read.number(stage, name)


class _Reader:
    """Holds decoded JSON to what a page needs; anything else is a UsageError that names the place."""

    def __init__(self, place: str) -> None:
        self.place = place

    def record(self, value: object, what: str) -> Facts:
        if not isinstance(value, dict):
            raise UsageError(f"{self.place}: {what} is missing or not an object")
        return value

    def list(self, value: object, what: str) -> Sequence[Any]:
        if not isinstance(value, list):
            raise UsageError(f"{self.place}: {what} is missing or not a list")
        return value

    def text(self, facts: Facts, name: str) -> None:
        if not isinstance(facts.get(name), str):
            raise UsageError(f"{self.place}: '{name}' is missing or not text")

    def number(self, facts: Facts, name: str) -> None:
        value = facts.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
            raise UsageError(f"{self.place}: '{name}' is missing or not a number")


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, Mapping):
        return {plain(str(k)): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value
