"""What a comparison has shown: tables for people, verdicts, one JSON value for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from tools.bench.report import markdown, microseconds
from tools.bench.stats import geomean

from .cases import STREAMS
from .measure import Compared, CompileRow, HostRow, Row

VERSION = 1
ROW, MEAN, HOST, COMPILE = 0.01, 0.001, 0.03, 0.10  # how much slower this checkout may be; the mean: for noise
NONE = "–"


@dataclass(frozen=True, slots=True)
class Results:
    """All that is measured so far."""

    rows: tuple[Row, ...] = ()
    host: tuple[HostRow, ...] = ()
    compiled: tuple[CompileRow, ...] = ()


def rows_table(rows: Sequence[Row]) -> str:
    """Microseconds; ratios are other / this, above 1 where this checkout is faster."""
    cells = [["row", "variant", "plan", "this", "other", "ratio", "spread", "back to back", "other", "ratio"]]
    for row in rows:
        cells.append(
            [row.case.scenario.label, row.case.form.label, _plan(row.same_plan), *_times(row.single),
             *_ratio(row.single), *_times(row.loop), *_ratio(row.loop)[:1]]
        )  # fmt: skip
    means = [_mean(row.single for row in rows), _mean(row.loop for row in rows)]
    shown = [NONE if mean is None else f"{mean:.4f}" for mean in means]
    return markdown([*cells, ["geometric mean", "", "", "", "", shown[0], "", "", "", shown[1]]], left=(0, 1, 2))


def host_table(rows: Sequence[HostRow]) -> str:
    """Microseconds that issuing a run takes, and of that a command; a replay has no commands of its own."""
    cells = [["the host issues", "this", "other", "ratio", "spread", "a command: this", "other"]]
    for row in rows:
        share = [NONE, NONE]
        if row.issue and row.commands and row.case.form.mode == STREAMS:
            each = row.issue.this / row.commands.this, row.issue.other / row.commands.other
            share = [f"{value:.2f}" for value in each]
        cells.append([row.case.label, *_times(row.issue), *_ratio(row.issue), *share])
    return markdown(cells, left=(0,))


def compile_table(rows: Sequence[CompileRow]) -> str:
    """Milliseconds, the best of all rounds."""
    cells = [["compiled", "plan", "this", "other", "ratio", "spread"]]
    for row in rows:
        times = [f"{1e3 * x:.1f}" for x in (row.time.this, row.time.other)] if row.time else [NONE, NONE]
        cells.append([row.compilation.label, _plan(row.same_plan), *times, *_ratio(row.time)])
    return markdown(cells, left=(0, 1))


def tables(results: Results) -> str:
    """Those that have rows; the runs on GPUs come last, before the verdict."""
    parts = []
    if results.compiled:
        parts.append(f"Compiling, ms\n\n{compile_table(results.compiled)}")
    if results.host:
        parts.append(f"The host's time, µs\n\n{host_table(results.host)}")
    if results.rows:
        parts.append(f"Single runs and runs back to back, µs\n\n{rows_table(results.rows)}")
    return "\n\n".join(parts)


def slower(results: Results) -> list[str]:
    """Where this checkout is slower than it may be."""
    found = _below(((r.case.label, r.single) for r in results.rows), ROW)
    mean = _mean(row.single for row in results.rows)
    if mean is not None and mean < 1 - MEAN:
        found.append(f"slower in the geometric mean: {mean:.4f}")
    found += _below(((f"host, {r.case.label}", r.issue) for r in results.host), HOST)
    return found + _below(((f"compile {r.compilation.label}", r.time) for r in results.compiled), COMPILE)


def failures(results: Results) -> list[str]:
    """What has no figures, and why."""
    told = [(row.case.label, row.failed) for row in results.rows]
    told += [(f"host, {row.case.label}", row.failed) for row in results.host]
    told += [(f"compile {row.compilation.label}", row.failed) for row in results.compiled]
    return [f"not measured: {label}: {why}" for label, why in told if why is not None]


def record(results: Results, about: Mapping[str, object], complete: bool) -> dict[str, object]:
    """All of it. Microseconds, of compilations seconds; ratios are other / this."""
    return {
        "version": VERSION,
        "complete": complete,
        "about": dict(about),
        "geometric_mean": _mean(row.single for row in results.rows),
        "geometric_mean_back_to_back": _mean(row.loop for row in results.rows),
        "slower": slower(results),
        **asdict(results),
    }


def _below(figures: Iterable[tuple[str, Compared | None]], allowed: float) -> list[str]:
    what = f"slower by more than {100 * allowed:.0f} %"
    return [f"{what}: {label} {f.ratio:.3f}" for label, f in figures if f is not None and f.ratio < 1 - allowed]


def _mean(figures: Iterable[Compared | None]) -> float | None:
    ratios = [figure.ratio for figure in figures if figure is not None]
    return geomean(ratios) if ratios else None


def _times(figure: Compared | None) -> list[str]:
    return [NONE, NONE] if figure is None else [microseconds(figure.this), microseconds(figure.other)]


def _ratio(figure: Compared | None) -> list[str]:
    return [NONE, NONE] if figure is None else [f"{figure.ratio:.3f}", f"{100 * figure.spread:.1f} %"]


def _plan(same: bool | None) -> str:
    return NONE if same is None else "same" if same else "different"
