"""`ficco tune`: measure the best schedules of an operation, and store their times."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..errors import UsageError
from ..files import atomic
from ..files.records import Count, Micros, Params, filled
from ..report.settings import parse_settings
from ..report.wording import count, show_params, show_time
from .choose import candidates_of, how_words
from .console import Progress, table
from .messages import tell

if TYPE_CHECKING:
    from ..select.tune import Tuned


@dataclass(frozen=True, slots=True)
class TimeRecord:
    """A measured time.

    us: The median, microseconds.
    """

    schedule: str
    params: Params
    mode: Literal["graph", "streams"]
    us: float
    least: Micros
    most: Micros
    runs: Count


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """What could not be measured."""

    schedule: str
    params: Params
    reason: str


@dataclass(frozen=True, slots=True)
class TunedRecord:
    """What `ficco tune --json` prints.

    output: The file of measured times.
    """

    output: str
    operation: str
    ranks: Count
    device: str
    sizes: Params
    times: tuple[TimeRecord, ...]
    failed: tuple[FailedRecord, ...]


@dataclass(frozen=True, slots=True)
class MergedRecord:
    """With --merge.

    settings: Operations with sizes on devices.
    times: Of all cases.
    """

    output: str
    settings: Count
    times: Count


Told: TypeAlias = TunedRecord | MergedRecord


def tune(
    targets: tuple[str, ...],
    gpus: int | None,
    settings: tuple[str, ...],
    backend: str,
    ranks_per_gpu: int,
    best: int,
    rounds: int,
    iters: int,
    no_verify: bool,
    candidates: str | None,
    merge: bool,
    output: str | None,
    as_json: bool,
) -> int:
    """Measure an operation's best candidates and remember their times, or merge files of such times."""
    from ..select import measurements

    if merge:
        return _merge(targets, settings, output, as_json)
    if len(targets) != 1:
        raise UsageError("name one operation, such as ag_gemm; --merge takes files of measured times")
    from ..select.tune import Effort, tune

    path = Path(output) if output is not None else measurements.place()
    if output is None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    atomic.check_outputs([(atomic.MEASURED, path)])
    known = measurements.load(path) if path.exists() else measurements.EMPTY
    sizes = parse_settings(settings)
    own = None if candidates is None else candidates_of(candidates)
    effort = Effort(best=best, rounds=rounds, iters=iters, verify=not no_verify)
    found = tune(targets[0], gpus, sizes, backend, ranks_per_gpu, effort, own, Progress().step)
    measurements.save(measurements.merged([known, found.memory]), path)
    return tell(as_json, lambda: _tuned_record(found, path), lambda _: _tuned_report(found, path))


def _merge(targets: tuple[str, ...], settings: tuple[str, ...], output: str | None, as_json: bool) -> int:
    from ..select import measurements

    if settings:
        raise UsageError("--merge puts files together and measures nothing: it takes no --set")
    if len(targets) < 2 or output is None:
        raise UsageError(
            "--merge takes two files or more and the file to write: ficco tune --merge A.json B.json -o C.json"
        )
    atomic.check_outputs([(atomic.MEASURED, output)], targets)
    made = measurements.merged(measurements.load(path) for path in targets)
    measurements.save(made, output)
    number = sum(map(len, made.times.values()))
    record = MergedRecord(output, len(made.times), number)
    words = f"{output}: {count(number, 'time')} of {count(len(made.times), 'case')}\n"
    return tell(as_json, lambda: record, lambda _: words)


def _tuned_record(found: Tuned, path: Path) -> TunedRecord:
    times = tuple(filled(TimeRecord, t, params=dict(t.params), us=t.median) for t in found.times)
    failed = tuple(filled(FailedRecord, c, params=dict(c.params), reason=reason) for c, reason in found.failed)
    case, sizes = found.case, dict(found.case.sizes)
    return filled(TunedRecord, case, output=str(path), sizes=sizes, times=times, failed=failed)


def _tuned_report(found: Tuned, path: Path) -> str:
    where = found.case
    lines = [f"{where.operation} on {count(where.ranks, 'rank')} of {where.device}: {show_params(where.sizes)}"]
    rows = [
        (t.candidate.label, how_words(t.mode), show_time(t.median), f"{show_time(t.least)} to {show_time(t.most)}")
        for t in found.times
    ]
    lines.append(table(rows, right=frozenset({2})))
    lines += [f"  {c.label} was not measured: {reason}" for c, reason in found.failed]
    lines.append(f"medians of {count(found.times[0].runs, 'run')} each; remembered in {path}")
    return "\n".join(lines) + "\n"
