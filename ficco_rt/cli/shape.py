"""`ficco shape`: find, by trying, how much the products of a schedule should leave to concurrent work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .. import __version__
from ..driver.api import GPUS, GpuName
from ..errors import UsageError
from ..files.atomic import PICTURE, SCHEDULE, SHAPES, check_outputs, write_atomic
from ..files.records import Positive
from ..graph.overrides import split_overrides, with_overrides, written
from ..report.charts import Panel, Series, panels
from ..report.drawing import plain
from ..report.request import Request, machine_at_hand, resolve
from ..report.settings import parse_choices
from ..report.wording import by_reason, count, show_time
from ..trace.model import ClockKind
from .console import Progress, Style, table
from .messages import tell
from .shape_sweep import Effort, Sweep, rows_of, threads_said
from .shaping import Row, settings

if TYPE_CHECKING:
    from ..driver.api import CollectivesBy
    from ..machine.model import Machine

NOTHING = 2  # the exit code if no setting has a time
_SHOWN = 40  # lines of the table; the file has all


def shape(
    target: str,
    gpus: int | None,
    given: tuple[str, ...],
    sweep: tuple[str, ...],
    backend: str,
    machine: str | None,
    iters: int,
    timeout: int,
    graph: bool,
    collectives: CollectivesBy,
    rows_file: str | None,
    plot: str | None,
    output: str | None,
    as_json: bool,
) -> int:
    """Try settings, show them, name the best one and write it into a copy of the schedule."""
    request = Request.of(target, gpus, given, machine, ", whose queues say what they say; shape takes a schedule")
    source = request.source
    check_outputs([(SHAPES, rows_file), (PICTURE, plot), (SCHEDULE, output)], [source.file])
    if plot is not None and not plot.endswith(".svg"):
        raise UsageError(f"{plot}: the picture is SVG: name it {Path(plot).with_suffix('.svg').name}")
    driver, choices = _driver(backend, machine), parse_choices(sweep, "--sweep")
    asked = resolve(replace(request, rules=False), found=machine_at_hand(driver))
    schedule, said, found = asked.schedule, asked.params, asked.machine
    both = next((name for name in choices if name in said), None)
    if both is not None:
        raise UsageError(f"{both} is set and swept; say it once")
    swept = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    tried = swept if choices else settings(schedule, said, found.device)
    for one in tried:
        with_overrides(schedule, split_overrides(one, schedule).said)  # what is wrong is told before the long work
    progress = Progress()
    effort = Effort(iters, float(timeout), graph, collectives)
    sweep_ = Sweep(schedule, said, found, driver, effort, source)
    rows = rows_of(sweep_, tried, rows_file, progress)
    timed = sorted((row for row in rows if row.time is not None), key=_place)  # the best first
    best = timed[0] if timed else None
    wrote = []
    if plot is not None and timed:
        write_atomic(plot, picture(timed, schedule.name, found, driver))
        wrote.append(plot)
    if output is not None and best is not None:
        text = source.data.decode("utf-8-sig")
        write_atomic(output, written(text, source.name, dict(best.setting)))
        wrote.append(output)
    clock: ClockKind = "virtual" if driver == "sim" else "device"
    name, all_rows = schedule.name, tuple(rows)
    told = Shaped(name, found.ranks, found.name, clock, __version__, all_rows, best, tuple(wrote))
    tell(as_json, lambda: told, lambda style: _text(told, timed, found.device.name, style))
    return 0 if best is not None else NOTHING


def _driver(backend: str, machine: str | None) -> GpuName | Literal["sim"]:
    """What measures, or `sim`."""
    from ..driver.registry import first_gpus

    if backend == "auto":
        return "sim" if machine is not None else first_gpus() or "sim"
    if backend == "sim":
        return "sim"
    if backend in GPUS:
        return backend
    raise UsageError(f"there is no backend '{backend}' here: settings are measured on cuda or hip, or modelled: sim")


# ---------------------------------------------------------------- words and picture


def _place(row: Row) -> tuple[float, int]:
    return round(row.time or 0.0, 1), len(row.setting)


def _text(of: Shaped, timed: Sequence[Row], device: str, style: Style) -> str:
    how = f"modelled for {of.machine}, not measured" if of.clock == "virtual" else f"measured on {device}"
    lines = [style(f"{of.schedule}, {count(of.ranks, 'rank')}, {how}", "bold")]
    shown = [_HEADER, *map(_line, timed[:_SHOWN])]
    lines.append(table(shown, right=frozenset((1, 2, 3, 4, 5))))
    if len(timed) > _SHOWN:
        lines.append(f"  … and {count(len(timed) - _SHOWN, 'setting')} more: the table has all (--rows FILE.json)")
    reasons = by_reason((row.label, row.problem) for row in of.rows)
    lines += [f"refused: {count(number, 'setting')}, such as {plain(first)}" for number, first in reasons]
    if (best := of.best) is not None:
        words = f"; {best.time_ratio:.3f} of sequential" if best.time_ratio is not None else ""
        words += f", {100 * best.share_of_saving:.0f} % of the ideal saving" if best.share_of_saving is not None else ""
        lines.append(f"best: {plain(best.label)}{words}")
    if of.clock == "virtual":
        lines.append(_MODEL)
    elif len({threads_said(dict(row.setting)) for row in timed}) > 1:
        lines.append(_APART)
    lines += [f"wrote {name}" for name in of.wrote]
    return "\n".join(lines) + "\n"


_MODEL = (
    "the model has no library of collectives, and no blocks that wait for a multiprocessor: measure ctas, threads and "
    "priority on GPUs"
)
_APART = (
    "settings with other threads ran in processes of their own, as the library reads its threads once a process; their "
    "sequential runs have as many threads"
)
_HEADER = ("setting", "time", "of sequential", "saving", "free SMs", "free smem")


def _line(row: Row) -> tuple[str, ...]:
    each = (row.time or 0.0) / max(1, row.iterations)
    ratio = "–" if row.time_ratio is None else f"{row.time_ratio:.3f}"
    share = "–" if row.share_of_saving is None else f"{100 * row.share_of_saving:.0f} %"
    sms = "–" if row.free_sms is None else str(row.free_sms)
    smem = "–" if row.free_smem is None else f"{row.free_smem / 1024:.0f} KiB"
    return plain(row.label), show_time(each), ratio, share, sms, smem


def picture(rows: Sequence[Row], name: str, machine: Machine, driver: str) -> str:
    """Time over sequential against what was left free: multiprocessors, and shared memory of the others."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        high = any(key.endswith(".priority") and value == "high" for key, value in row.setting)
        kinds.setdefault("with priority" if high else "without", []).append(row)
    made = []
    for free, what, scale, unit in (
        ("free_sms", "multiprocessors left free", 1, ""),
        ("free_smem", "shared memory left free on a multiprocessor", 1024, ", KiB"),
    ):
        series = []
        for kind, of in sorted(kinds.items()):
            placed = [row for row in of if row.time_ratio is not None and getattr(row, free) is not None]
            points = tuple((getattr(row, free) / scale, row.time_ratio or 0.0) for row in placed)
            tips = tuple(f"{row.label}\n{row.time_ratio:.3f} of sequential" for row in placed)
            series.append(Series(kind, points, tips))
        made.append(Panel(f"time over sequential, by {what}", f"{what}{unit}", "time over sequential", tuple(series)))
    how = "modelled, not measured" if driver == "sim" else "measured"
    about = f"{machine.ranks} ranks, {machine.name}, {how}; a point a setting; below 1: faster than one after the other"
    return panels(f"{name}: what to leave free", about, made, sorted(kinds))


@dataclass(frozen=True, slots=True)
class Shaped:
    """What `ficco shape --json` prints.

    machine: Measured on, or modelled for.
    clock: Times are modelled, or a device's.
    rows: A setting each, in the order tried.
    best: The fastest; null: none has a time.
    wrote: Files.
    """

    schedule: str
    ranks: Positive
    machine: str
    clock: ClockKind
    version: str
    rows: tuple[Row, ...]
    best: Row | None
    wrote: tuple[str, ...]
