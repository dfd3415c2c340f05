"""Measured times: reads, writes and merges the JSON files that `ficco tune` writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import env
from ..errors import UsageError
from ..files import atomic
from ..machine.model import Machine
from ..version import __version__
from .candidates import Candidate

FORM = 1  # of the file
_BUS = 64e3  # bytes a microsecond: a switch that is slower is the host's bus
MODES = ("graph", "streams")


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """The case for which times were measured. Times of other cases do not apply.

    The machine is known by its devices and how they are linked, not by its rates: the rates are measurements or
    assumptions, and the times stay valid when the rates are measured again.
    """

    device: str
    links: str
    ranks: int
    ranks_per_gpu: int
    operation: str
    sizes: tuple[tuple[str, object], ...]  # and types
    version: str = __version__

    @property
    def words(self) -> str:
        """The case in words, for messages."""
        shared = f", {self.ranks_per_gpu} a GPU" if self.ranks_per_gpu > 1 else ""
        sizes = ", ".join(f"{name} = {value}" for name, value in self.sizes)
        return f"{self.operation} with {sizes} on {self.ranks} ranks{shared} of {self.device} ({self.links})"


def measured_case(
    operation: str, ranks: int, sizes: Mapping[str, object], machine: Machine, ranks_per_gpu: int = 1
) -> MeasuredCase:
    """The case of an operation on a machine."""
    links = machine.links
    kind = "bus" if links.kind == "switch" and links.rate < _BUS else links.kind
    return MeasuredCase(machine.device.name, kind, ranks, ranks_per_gpu, operation, tuple(sorted(sizes.items())))


@dataclass(frozen=True, slots=True)
class Time:
    """A measured time of a candidate: the median of so many runs, in microseconds."""

    candidate: Candidate
    mode: str  # of MODES
    median: float
    least: float
    most: float
    runs: int
    date: str  # ISO 8601, UTC
    driver: str  # what ran it: devices and driver, in its own words

    @property
    def rank(self) -> tuple[str, int, float]:
        """Which of two times of the same candidate and mode counts: the one with the greater rank, which is the later
        one."""
        return self.date, self.runs, -self.median


@dataclass(frozen=True, slots=True)
class Measurements:
    """Measured times by case; one a candidate and mode."""

    times: Mapping[MeasuredCase, tuple[Time, ...]]

    def of(self, case: MeasuredCase) -> tuple[Time, ...]:
        """The times of a case, from the fastest to the slowest."""
        return self.times.get(case, ())

    def other_versions(self, case: MeasuredCase) -> tuple[str, ...]:
        """The versions of this package for which there are times of what is otherwise this case."""
        return tuple(s.version for s in self.times if s != case and replace(s, version=case.version) == case)


EMPTY = Measurements({})


def merged(stores: Iterable[Measurements]) -> Measurements:
    """All times of several memories, in whatever order they come; of two times of one thing, the later one."""
    found: dict[MeasuredCase, dict[tuple[Candidate, str], Time]] = {}
    for memory in stores:
        for where, times in memory.times.items():
            here = found.setdefault(where, {})
            for time in times:
                key = (time.candidate, time.mode)
                if key not in here or time.rank > here[key].rank:
                    here[key] = time
    return Measurements(
        {
            where: tuple(sorted(times.values(), key=lambda t: (t.median, t.candidate.label, t.mode)))
            for where, times in sorted(found.items(), key=lambda item: str(item[0]))
        }
    )


def place() -> Path:
    """The file of this user's measured times."""
    return Path(env.get("FICCO_MEASURED") or env.cache_folder() / "measured.json")


def stored() -> Measurements:
    """This user's measured times; none, where nothing has been measured yet."""
    path = place()
    return load(path) if path.exists() or env.get("FICCO_MEASURED") else EMPTY


def load(path: Path | str) -> Measurements:
    """The measured times of a file. Raises UsageError that says what is wrong where."""
    try:
        value = json.loads(atomic.read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no file of measured times: no JSON ({str(error)[:80]})") from error
    if not isinstance(value, dict) or "ficco_measured" not in value:
        raise UsageError(f"{path}: is no file of measured times, as `ficco tune` writes it")
    if type(value["ficco_measured"]) is not int or value["ficco_measured"] != FORM:
        raise UsageError(
            f"{path}: is of form {json.dumps(value['ficco_measured'])[:20]}; this version of ficco reads form {FORM}: "
            "let `ficco tune` write another file"
        )
    entries = value.get("settings")
    if not isinstance(entries, list):
        raise UsageError(f"{path}: settings is not a list")
    stores = []
    for i, entry in enumerate(entries):
        try:
            stores.append(_decoded(entry))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise UsageError(f"{path}: settings[{i}]: {what[:120]}") from error
    return merged(stores)


def save(memory: Measurements, path: Path | str) -> None:
    """Write measured times: the whole file or nothing."""
    settings = [_encoded(where, times) for where, times in memory.times.items()]
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False) for entry in settings)
    atomic.write_atomic(path, f'{{"ficco_measured": {FORM}, "settings": [\n{lines}\n]}}\n')


def _encoded(where: MeasuredCase, times: Iterable[Time]) -> dict[str, Any]:
    return {
        "device": where.device,
        "links": where.links,
        "ranks": where.ranks,
        "ranks_per_gpu": where.ranks_per_gpu,
        "operation": where.operation,
        "sizes": dict(where.sizes),
        "version": where.version,
        "times": [
            {
                "schedule": t.candidate.schedule,
                "params": dict(t.candidate.params),
                "mode": t.mode,
                "us": t.median,
                "least_us": t.least,
                "most_us": t.most,
                "runs": t.runs,
                "date": t.date,
                "driver": t.driver,
            }
            for t in times
        ],
    }


def _decoded(entry: Mapping[str, Any]) -> Measurements:
    where = MeasuredCase(
        _text(entry, "device"),
        _text(entry, "links"),
        _whole(entry, "ranks"),
        _whole(entry, "ranks_per_gpu"),
        _text(entry, "operation"),
        tuple(sorted((name, _frozen(value)) for name, value in entry["sizes"].items())),
        _text(entry, "version"),
    )
    return Measurements({where: tuple(map(_time, entry["times"]))})


def _time(entry: Mapping[str, Any]) -> Time:
    params = tuple((name, _frozen(value)) for name, value in entry["params"].items())
    mode = _text(entry, "mode")
    if mode not in MODES:
        raise ValueError(f"mode is {' or '.join(MODES)}, not {mode[:20]}")
    median, least, most = (_positive(entry, name) for name in ("us", "least_us", "most_us"))
    date = datetime.fromisoformat(_text(entry, "date"))
    date = date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    return Time(
        Candidate(_text(entry, "schedule"), params),
        mode,
        median,
        least,
        most,
        _whole(entry, "runs"),
        date.isoformat(timespec="milliseconds"),
        _text(entry, "driver"),
    )


def _text(entry: Mapping[str, Any], name: str) -> str:
    value = entry[name]
    if not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def _whole(entry: Mapping[str, Any], name: str) -> int:
    value = entry[name]
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} is not a whole number from 1 on")
    return value


def _positive(entry: Mapping[str, Any], name: str) -> float:
    value = entry[name]
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise ValueError(f"{name} is not a time in microseconds")
    return float(value)


def _frozen(value: object) -> object:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if type(value) not in (int, str):
        raise ValueError(f"{str(value)[:20]} is no value of a param")
    return value
