"""Draws the table of a sweep: one picture for each question about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from ..explore.losses import Contending, Decomposition, Losses
from ..explore.scenarios import Value
from ..explore.summary import Pair, best, cases, fastest, fit
from ..explore.table import Row
from .charts import Cell, Panel, Series, heat_map, panels
from .wording import show_time

MODELLED = "modelled, not measured"


def pictures(rows: Sequence[Row]) -> dict[str, str]:
    """The pictures by file name: speed-ups and winners of each operation, machine and number of ranks."""
    found = {}
    timed = sorted((row for row in rows if row.time is not None), key=_place)
    for (operation, machine, ranks), members in groupby(timed, key=_place):
        of = list(members)
        name = f"{operation}-{file_part(machine)}-{ranks}.svg"
        where = f"{operation}, {ranks} ranks, {machine}"
        found[f"speedup-{name}"] = speedups(of, where)
        winners = winner_map(of, where)
        if winners is not None:
            found[f"winners-{name}"] = winners
    return found


def _place(row: Row) -> tuple[str, str, int]:
    return row.operation, row.machine, row.ranks


def file_part(machine: str) -> str:
    """A machine's name as a part of a file's."""
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in machine)


def speedups(rows: Sequence[Row], where: str) -> str:
    """Each schedule's best speed-up over serial in each scenario; the winner of a scenario has an edge."""
    schedules = sorted({row.schedule for row in rows})
    lines: dict[str, list[Cell | None]] = {}
    for (_, scenario, sizes, _, _), members in cases(rows).items():
        ranking = fastest(members)
        winner = next(iter(ranking))
        found = [_cell(ranking[s], s == winner) if s in ranking else None for s in schedules]
        called = scenario if scenario not in lines else f"{scenario} {_words(sizes)}"
        lines[called] = found
    about = f"speed-up over serial, the best params of each schedule, {MODELLED}; an edge: the fastest"
    return heat_map(f"Speed-up: {where}", about, [s.rpartition("/")[2] for s in schedules], lines)


def _cell(row: Row, wins: bool) -> Cell | None:
    if row.speedup is None or row.time is None:
        return None
    share = f", {100 * row.share:.0f} % of ideal" if row.share else ""
    tip = f"{row.scenario}: {row.label}\n{show_time(row.time)}, {row.speedup:.2f} times as fast as serial{share}"
    return Cell((row.speedup - 0.6) / 0.8, f"{row.speedup:.2f}", tip, wins)  # white at 1


def winner_map(rows: Sequence[Row], where: str) -> str | None:
    """Which schedule is fastest, over M/K and N/K; None where scenarios have no such sizes."""
    points: dict[str, list[tuple[tuple[float, float], str]]] = {}
    for found in best(rows):
        at = _ratios(dict(found.row.sizes))
        if at is not None:
            lead = f"; next {found.next_.label}, {100 * found.lead:+.1f} %" if found.next_ and found.lead else ""
            tip = f"{found.row.scenario}: {found.row.label}{lead}"
            points.setdefault(found.row.schedule.rpartition("/")[2], []).append((at, tip))
    if not points:
        return None
    series = tuple(
        Series(name, tuple(p for p, _ in of), tuple(t for _, t in of)) for name, of in sorted(points.items())
    )
    panel = Panel("fastest schedule of each scenario", "M / K", "N / K", series, 2, 2)
    about = f"sizes over all ranks; {MODELLED}"
    return panels(f"Winners: {where}", about, [panel], [s.name for s in series])


def _ratios(sizes: Mapping[str, Value]) -> tuple[float, float] | None:
    m, n, k = (sizes.get(name) for name in ("M", "N", "K"))
    if isinstance(m, int) and isinstance(n, int) and isinstance(k, int) and min(m, n, k) > 0:
        return m / k, n / k
    return None


def _words(sizes: Iterable[tuple[str, Value]]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes)


def comparison(pairs: Sequence[Pair]) -> str:
    """Modelled time over measured time, a point a row."""
    names = sorted({pair.row.schedule for pair in pairs})
    found = fit(pairs)
    series = []
    for name in names:
        of = [pair for pair in pairs if pair.row.schedule == name]
        tips = tuple(f"{p.row.scenario}: {p.row.label}, {100 * p.error:+.1f} %" for p in of)
        series.append(Series(name, tuple((p.measured, p.row.time or 0.0) for p in of), tips))
    about = f"{found.pairs} rows; median error {100 * found.median:.1f} %, p90 {100 * found.p90:.1f} %"
    panel = Panel("a point a row of the table", "measured, µs", "modelled, µs", tuple(series), 10, 10, diagonal=True)
    return panels("Modelled against measured", about, [panel], names)


def signatures(of: Losses) -> str:
    """The two losses over the size of a GPU's GEMM: what is left of its speed."""
    drawn = [*_cuts(of), *_contention(of)]
    names = list(dict.fromkeys(series.name for panel in drawn for series in panel.series))
    about = f"shares of the time of the whole GEMM, or of either alone: 1 where nothing is lost; {of.source}"
    return panels(f"Losses: {of.machine}, {of.ranks} ranks", about, drawn, names)


def _cuts(of: Losses) -> Iterator[Panel]:
    for axis in ("rows", "K"):
        here = sorted((d for d in of.decomposition if d.axis == axis), key=lambda d: (d.pieces, d.of.operations))
        groups = groupby(here, key=lambda d: d.pieces)
        series = tuple(_curve(f"{pieces} pieces", [*group], f", {pieces} pieces") for pieces, group in groups)
        if series:
            yield Panel(f"in pieces of {axis}", "GEMM, GFLOP", "whole / pieces", series, log_x=2)


def _contention(of: Losses) -> Iterator[Panel]:
    for subject, called, other in (("gemm", "GEMM", "copies"), ("copies", "copies", "a GEMM")):
        here = sorted((c for c in of.contention if c.subject == subject), key=lambda c: c.of.operations)
        if here:
            series = (_curve(called, here),)
            yield Panel(f"{called} beside {other}", "GEMM, GFLOP", "alone / beside", series, log_x=2)


def _curve(name: str, of: Sequence[Decomposition | Contending], words: str = "") -> Series:
    """Shares over the sizes of GEMMs, joined where these differ in their rows alone."""
    points = tuple((loss.of.operations / 1e9, loss.share) for loss in of)
    tips = tuple(f"{loss.of.m} × {loss.of.n} × {loss.of.k}{words}: {loss.share:.3f}" for loss in of)
    return Series(name, points, tips, joined=len({(loss.of.n, loss.of.k) for loss in of}) == 1)
