"""Measured times: reads, writes and merges the JSON files that `ficco tune` writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, get_args

from .. import env
from ..errors import UsageError
from ..files import atomic
from ..files.records import INLINE, PAIRS, Micros, Named, Positive, Reader, decoded, json_text
from ..machine.model import Machine
from ..version import __version__
from .candidates import Candidate

FORM = 1  # of the file
_BUS = 64e3  # bytes a microsecond: a switch that is slower is the host's bus
Mode: TypeAlias = Literal["graph", "streams"]
MODES: tuple[Mode, ...] = get_args(Mode)
Pairs: TypeAlias = Annotated[tuple[tuple[str, object], ...], PAIRS]


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """The case for which times were measured. Times of other cases do not apply.

    The machine is known by its devices and how they are linked, not by its rates: the rates are measurements or
    assumptions, and the times stay valid when the rates are measured again.
    """

    device: str
    links: str
    ranks: Positive
    ranks_per_gpu: Positive
    operation: str
    sizes: Pairs  # and types
    version: str

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
    named = tuple(sorted(sizes.items()))
    return MeasuredCase(machine.device.name, kind, ranks, ranks_per_gpu, operation, named, __version__)


@dataclass(frozen=True, slots=True)
class Time:
    """A measured time of a candidate: the median of so many runs, in microseconds."""

    schedule: str
    params: Pairs
    mode: Mode
    median: Annotated[float, Named("us")]
    least: Micros
    most: Micros
    runs: Positive
    date: str  # ISO 8601, UTC
    driver: str  # what ran it: devices and driver, in its own words

    @property
    def candidate(self) -> Candidate:
        """What was measured."""
        return Candidate(self.schedule, self.params)

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


@dataclass(frozen=True, slots=True)
class _Entry:
    """A case of a file, with its times."""

    case: Annotated[MeasuredCase, INLINE]
    times: tuple[Time, ...]


def load(path: Path | str) -> Measurements:
    """The measured times of a file. Raises UsageError that says what is wrong where."""
    value = decoded(atomic.read_text(path), str(path))
    if not isinstance(value, dict) or "ficco_measured" not in value:
        raise UsageError(f"{path}: is no file of measured times, as `ficco tune` writes it")
    if type(value["ficco_measured"]) is not int or value["ficco_measured"] != FORM:
        raise UsageError(
            f"{path}: is of form {json.dumps(value['ficco_measured'])[:20]}; this version of ficco reads form {FORM}: "
            "let `ficco tune` write another file"
        )
    reader = Reader(str(path), others=True)
    entries: tuple[_Entry, ...] = reader.read(tuple[_Entry, ...], value.get("settings"), "settings")
    stores = []
    for i, entry in enumerate(entries):
        case = replace(entry.case, sizes=tuple(sorted(entry.case.sizes)))
        times = tuple(_dated(reader, time, f"settings[{i}].times[{j}]") for j, time in enumerate(entry.times))
        stores.append(Measurements({case: times}))
    return merged(stores)


def _dated(reader: Reader, time: Time, at: str) -> Time:
    """The time with its date as UTC, once its figures can be those of runs."""
    if min(time.median, time.least, time.most) <= 0:
        raise reader.fail(at, "a time in microseconds is greater than 0")
    try:
        date = datetime.fromisoformat(time.date)
    except ValueError as error:
        raise reader.fail(f"{at}.date", str(error)[:80]) from error
    date = date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    return replace(time, date=date.isoformat(timespec="milliseconds"))


def save(memory: Measurements, path: Path | str) -> None:
    """Write measured times: the whole file or nothing."""
    lines = ",\n".join(json_text(_Entry(case, times)) for case, times in memory.times.items())
    atomic.write_atomic(path, f'{{"ficco_measured": {FORM}, "settings": [\n{lines}\n]}}\n')
