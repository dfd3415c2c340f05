"""`ficco explore`: sweep schedules into a table, or summarise an existing table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from ..errors import UsageError
from ..explore import measured as measurements
from ..explore import scenarios as sizes_of
from ..explore.losses import losses
from ..explore.scenarios import Scenario
from ..explore.summary import Best, Fit, Pair, best, fit, wins
from ..explore.sweep import Space, cores, make, todo
from ..explore.table import TABLE, Row, TableFile, read, size_names
from ..explore.trials import Trial, asked_for, fitting, trials
from ..files import shipped
from ..files.atomic import check_outputs, write_atomic
from ..files.records import Count
from ..machine.model import Machine
from ..report.drawing import plain
from ..report.plots import comparison, file_part, pictures, signatures
from ..report.request import machine_of
from ..report.settings import gpu_list, parse_choices
from ..report.wording import by_reason, count, show_time
from ..select.candidates import open_params, shown
from .characterise import OPERATORS
from .console import Progress, Style, table
from .messages import say, tell

NOTHING = 2  # the exit code if nothing that was asked for has a time: the question fits no schedule here
_SHOWN = 200  # lines of the summary; a table has all
_REASONS = 8  # why rows have no time, that are told


def explore(
    target: str,
    scenarios: str | None,
    only: tuple[str, ...],
    settings: tuple[str, ...],
    schedules: tuple[str, ...],
    params: tuple[str, ...],
    gpus: str | None,
    machines: tuple[str, ...],
    output: str | None,
    plot: str | None,
    measured: str | None,
    jobs: int | None,
    as_json: bool,
) -> int:
    """Run a sweep, or read a table; then print a summary and draw pictures."""
    inputs = [name for name in (scenarios, measured) if name is not None]
    check_outputs([(TABLE, output)], inputs)
    if plot is not None:
        _check_folder(plot)
    times = measurements.load(measured) if measured is not None else {}
    progress = Progress()
    found: tuple[Machine, ...] = ()
    tried: tuple[Trial, ...] = ()
    if target.endswith(TABLE.suffixes):
        unused: dict[str, object] = {"--scenarios": scenarios, "--only": only, "--set": settings}
        unused |= {"--schedules": schedules, "--param": params, "--machine": machines, "--output": output}
        rows = _rows_there(target, unused | {"--jobs": jobs, "--gpus": gpus})
    else:
        found = _machines(machines, (None,) if gpus is None else gpu_list(gpus))
        tried = trials(target, schedules, parse_choices(params, "--param"))
        work = _scenarios(target, scenarios, only, settings)
        fitting(work, tried)
        rows = _sweep(Space(target, work, tried, found), output, jobs or cores(), progress)
    pairs = measurements.pairs(rows, times)
    if measured is not None and not pairs:
        raise UsageError(
            f"{measured}: has measured none of these schedules and params at these sizes and numbers of ranks"
        )
    drawn = _draw(plot, rows, pairs, found, progress) if plot is not None else []
    first, refused = best(rows), sum(bool(row.problem) for row in rows)
    fitted = fit(pairs) if pairs else None
    told = Exploration("virtual", len(rows), refused, wins(first), first, fitted, tuple(drawn))
    tell(as_json, lambda: told, lambda style: _text(told, rows, style))
    asked = asked_for(tried)
    return 0 if any(row.time is not None for row in rows if not asked or row.schedule in asked) else NOTHING


def _rows_there(path: str, unused: Mapping[str, object]) -> list[Row]:
    """The rows of a table, where no option asks for a sweep."""
    given = next((name for name, value in unused.items() if value), None)
    if given is not None:
        raise UsageError(f"{given} belongs to a sweep; {path} is a table, which is read as it is")
    rows = read(path)
    if not rows:
        raise UsageError(f"{path}: has no rows")
    return rows


def _machines(names: Sequence[str], numbers: Sequence[int | None]) -> tuple[Machine, ...]:
    """Each machine with each number of ranks; None: its default."""
    found = tuple(dict.fromkeys(machine_of(name, ranks) for name in names or (None,) for ranks in numbers))
    called = [(machine.name, machine.ranks) for machine in found]
    twice = next((name for name, ranks in called if called.count((name, ranks)) > 1), None)
    if twice is not None:
        raise UsageError(f"--machine: two machines are called '{twice}', and rows could not be told apart")
    return found


def _check_folder(path: str) -> None:
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{path}: is a file; --plot draws into a folder")
    if not folder.exists() and not folder.parent.is_dir():
        raise UsageError(f"{path}: there is no directory '{folder.parent}'")
    if not os.access(folder if folder.exists() else folder.parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written: permission denied")


def _scenarios(operation: str, file: str | None, only: Sequence[str], settings: Sequence[str]) -> tuple[Scenario, ...]:
    choices = parse_choices(settings, "--set")
    base = sizes_of.load(file or sizes_of.SHIPPED, operation) if file is not None or not choices or only else ()
    return sizes_of.combined(sizes_of.chosen(base, only), choices)


def _sweep(space: Space, output: str | None, jobs: int, progress: Progress) -> list[Row]:
    """All rows of the sweep, those that were there ahead. What is made is in the file before the next is waited for."""
    there = read(output) if output is not None and Path(output).is_file() else []
    plan = todo(space, there)
    rows = list(plan.done)
    if plan.done:
        say(f"{output}: {count(len(plan.done), 'row')} there, {plan.rows} to be made")
    with ExitStack() as stack:
        file = None
        if output is not None:
            kept = (*plan.others, *plan.done)
            names = size_names([*(row.sizes for row in kept), *(scenario.sizes for scenario in space.scenarios)])
            file = stack.enter_context(TableFile(output, kept, names))
        stack.enter_context(progress.step(f"modelling {count(plan.rows, 'row')}"))
        for made in make(plan.parts, jobs):
            rows += made
            if file is not None:
                file.add(made)
            progress.report((len(rows) - len(plan.done)) / plan.rows)
    keys = ((of.name, machine.ranks, machine.name) for machine in space.machines for of in space.scenarios)
    order = {key: i for i, key in enumerate(keys)}
    return sorted(rows, key=lambda row: order[row.scenario, row.ranks, row.machine])


def _draw(
    folder: str, rows: Sequence[Row], pairs: Sequence[Pair], machines: Iterable[Machine], progress: Progress
) -> list[str]:
    """The pictures' names."""
    made = pictures(rows)
    if pairs:
        made["measured.svg"] = comparison(pairs)
    with progress.step("drawing losses"):
        for machine in machines:
            made[f"losses-{file_part(machine.name)}-{machine.ranks}.svg"] = signatures(losses(machine, OPERATORS))
    Path(folder).mkdir(exist_ok=True)
    for name, text in made.items():
        write_atomic(Path(folder) / name, text)
    return [str(Path(folder) / name) for name in made]


# ---------------------------------------------------------------- words


def _text(told: Exploration, rows: Sequence[Row], style: Style) -> str:
    lines = []
    alike = groupby(told.best, key=lambda b: (b.row.operation, b.row.ranks, b.row.machine))
    for (operation, ranks, machine), group in alike:
        of = list(group)
        title = f"{operation}, {count(ranks, 'rank')}, modelled for {machine}, not measured"
        lines += [style(title, "bold"), table([_HEADER, *map(_line, of[:_SHOWN])], right=frozenset((2, 3, 4)))]
        if len(of) > _SHOWN:
            lines.append(f"  … and {count(len(of) - _SHOWN, 'scenario')} more: the table has all (-o FILE.csv)")
        won = ", ".join(f"{name.rpartition('/')[2]} {number}" for name, number in wins(of).items())
        lines += [f"  fastest: {won}", ""]
    lines += _params(rows)
    lines += _refused(rows)
    if (fitted := told.fit) is not None:
        words = f"{count(fitted.pairs, 'row')}, median error {100 * fitted.median:.1f} %, p90 {100 * fitted.p90:.1f} %"
        words += f", rank correlation {fitted.correlation:.2f}" if fitted.correlation is not None else ""
        lines.append(f"modelled against measured: {words}")
    lines += [f"drawn: {name}" for name in told.drawn]
    return "\n".join(lines).rstrip("\n") + "\n"


_HEADER = ("scenario", "fastest", "time", "over serial", "of ideal", "next")


def _line(of: Best) -> tuple[str, ...]:
    row, second = of.row, of.next_
    behind = f"{second.label} {100 * of.lead:+.1f} %" if second is not None and of.lead is not None else "–"
    over = "–" if row.speedup is None else f"{row.speedup:.2f}"
    share = "–" if row.share is None else f"{100 * row.share:.0f} %"
    return plain(row.scenario), plain(row.label), show_time(row.time or 0.0), over, share, behind


def _params(rows: Sequence[Row]) -> list[str]:
    """Which params the rows vary, and which of shipped schedules stay as the text has them."""
    values: dict[str, dict[str, None]] = {}
    for row in rows:
        for name, value in row.params:
            values.setdefault(name, {})[shown(value)] = None
    sizes = {name for row in rows for name, _ in row.sizes}
    names = {name for s in {row.schedule for row in rows} & shipped.shipped().keys() for name in open_params(s)}
    left = sorted(names - values.keys() - sizes)
    words = [f"{name} = {', '.join(tried)}" for name, tried in values.items()]
    if left:
        words.append(f"as the schedules' texts have them: {', '.join(left)} (--param gives others)")
    return [f"params: {plain('; '.join(words))}"] if words else []


def _refused(rows: Sequence[Row]) -> list[str]:
    """What schedules refuse, each reason once, whatever its numbers."""
    found = by_reason((f"{row.label} of {row.scenario}", row.problem) for row in rows)
    reasons = sorted(found, key=lambda reason: reason[0], reverse=True)
    lines = [f"refused: {count(number, 'row')}, such as {plain(first)}" for number, first in reasons[:_REASONS]]
    if len(reasons) > _REASONS:
        lines.append(f"refused: {count(len(reasons) - _REASONS, 'further reason')}; the table has all (-o FILE.csv)")
    return lines


@dataclass(frozen=True, slots=True)
class Exploration:
    """What `ficco explore --json` prints. All times are modelled.

    rows: Of the table.
    refused: Rows without a time.
    wins: How often each schedule is best.
    best: The best schedule of each scenario, number of ranks and machine.
    drawn: Files.
    """

    clock: Literal["virtual"]
    rows: Count
    refused: Count
    wins: Mapping[str, Count]
    best: tuple[Best, ...]
    fit: Fit | None
    drawn: tuple[str, ...]
