"""What a run has shown, as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from .measure import COPIES, GEMM, PROCESSES, TWIN, Row
from .stats import geomean

RIVALS = ("nccl", "asynctp", "nccl-ce", "cublasmp", "quack", "flashinfer")
SLOWER = 1.01  # times one process's: a row of processes that is slower is marked
Cells = Sequence[Sequence[str]]


def microseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def ratio(above: float | None, below: float | None) -> str:
    return "–" if above is None or below is None else f"{above / below:.3f}"


def both(kind: str) -> list[str]:
    """The contestants of a peer: issued call by call, and as a graph."""
    return [kind, f"{kind} graph"]


def rival_time(row: Row, kind: str, back_to_back: bool = False) -> float | None:
    """The better of a peer's two forms."""
    key = row.best(both(kind), back_to_back)
    return None if key is None else row.time(key, back_to_back)


def our_time(row: Row, back_to_back: bool = False) -> tuple[str | None, float | None]:
    """The fastest of ours, and its time."""
    key = row.best(row.of("ours"), back_to_back)
    return key, None if key is None else row.time(key, back_to_back)


def rivals(rows: Sequence[Row]) -> list[str]:
    """The kinds of peers that took part."""
    return [kind for kind in RIVALS if any(kind in row.entries for row in rows)]


def main_table(rows: Sequence[Row]) -> str:
    """Medians of single runs."""
    kinds = rivals(rows)
    cells = [
        ["scenario", *(x for kind in kinds for x in (kind, "graph")), "ours", "which", "GEMM", "copies", "limit",
         "limit/ours", "nccl/ours", "asynctp/ours"]
    ]  # fmt: skip
    for row in rows:
        key, ours = our_time(row)
        cells.append(
            [row.label, *(microseconds(row.time(x)) for kind in kinds for x in both(kind)),
             microseconds(ours), key or "–", *(microseconds(row.time(x)) for x in (row.gemm(), COPIES)),
             microseconds(row.limit()), *_ratios(row)]
        )  # fmt: skip
    return markdown([*cells, _means(rows, len(cells[0]))], left=(0, 2 + 2 * len(kinds)))


def loop_table(rows: Sequence[Row]) -> str:
    """Medians of runs back to back, each in what is faster there."""
    kinds = rivals(rows)
    cells = [["scenario", *kinds, "ours", "which", "limit", "limit/ours", "nccl/ours", "asynctp/ours"]]
    for row in rows:
        key, ours = our_time(row, True)
        cells.append(
            [row.label, *(microseconds(rival_time(row, kind, True)) for kind in kinds), microseconds(ours),
             key or "–", microseconds(row.limit(True)), *_ratios(row, True)]
        )  # fmt: skip
    return markdown([*cells, _means(rows, len(cells[0]), True)], left=(0, 2 + len(kinds)))


def _pairs(row: Row, back_to_back: bool) -> list[tuple[float | None, float | None]]:
    """The limit, NCCL and async TP, each with ours."""
    _, ours = our_time(row, back_to_back)
    rivals = (rival_time(row, kind, back_to_back) for kind in ("nccl", "asynctp"))
    return [(above, ours) for above in (row.limit(back_to_back), *rivals)]


def _ratios(row: Row, back_to_back: bool = False) -> list[str]:
    return [ratio(above, ours) for above, ours in _pairs(row, back_to_back)]


def _means(rows: Sequence[Row], columns: int, back_to_back: bool = False) -> list[str]:
    """The last line: geometric means of the ratios, over the rows that have them."""
    means = []
    for column in zip(*(_pairs(row, back_to_back) for row in rows), strict=True):
        values = [above / ours for above, ours in column if above is not None and ours is not None]
        means.append(f"{geomean(values):.3f}" if values else "–")
    return ["geometric mean", *[""] * (columns - 1 - len(means)), *means]


def processes_table(rows: Sequence[Row]) -> str:
    """Ours in one process and in a process a GPU, each in what is faster; of the ratios of all rounds the median, the
    least and the largest."""
    cells = [
        ["scenario", "one", "processes", "ratio", "loop: one", "processes", "ratio", "which", "slower by over 1 %"]
    ]
    ratios: dict[bool, list[float]] = {False: [], True: []}
    for row in rows:
        line, slower, which = [row.label], [], ""
        for back_to_back, name in ((False, "single"), (True, "loop")):
            one, _ = our_time(row, back_to_back)
            many = row.best(row.of(PROCESSES), back_to_back)
            times = (None if key is None else row.time(key, back_to_back) for key in (one, many))
            found = row.quotients(many, one, back_to_back)
            line += [
                *map(microseconds, times),
                f"{median(found):.3f} ({min(found):.3f}–{max(found):.3f})" if found else "–",
            ]
            which = (many or "–").removeprefix(TWIN)
            if found:
                ratios[back_to_back].append(median(found))
                slower += [name] if median(found) > SLOWER else []
        cells.append([*line, which, ", ".join(slower)])
    means = [f"{geomean(ratio):.3f}" if ratio else "–" for ratio in ratios.values()]
    cells.append(["geometric mean", "", "", means[0], "", "", means[1], "", ""])
    return markdown(cells, left=(0, 7, 8))


def short(row: Row, back_to_back: bool) -> str:
    """A row's times on a line: what is measured is seen before the tables."""
    times = {"one": our_time(row, back_to_back)[1]}
    twin = row.best(row.of(PROCESSES), back_to_back)
    times["processes"] = None if twin is None else row.time(twin, back_to_back)
    times |= {kind: rival_time(row, kind, back_to_back) for kind in rivals([row])}
    return ", ".join(f"{name} {microseconds(time)}" for name, time in times.items())


def races(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows whose means are told apart."""
    few = [row for row in rows if row.scenario.name.startswith("decode_")]
    parts = (("decode", few), ("other rows", [row for row in rows if row not in few]))
    return [(title, some) for title, some in parts if some]


def race_table(rows: Sequence[Row]) -> str:
    """Back to back in a process a GPU, beside the peers in the better of their forms; above 1 ours is faster."""
    kinds = rivals(rows)
    cells = [["scenario", "ours", "which", *(x for kind in kinds for x in (kind, "/ours")), "ours is slower than"]]
    ratios: dict[str, list[float]] = {kind: [] for kind in kinds}
    for row in rows:
        ours = row.best(row.of(PROCESSES), True)
        line, behind = [row.label, microseconds(row.time(ours or "", True)), (ours or "–").removeprefix(TWIN)], []
        for kind in kinds:
            found = row.quotients(row.best(both(kind), True), ours, True)
            line += [microseconds(rival_time(row, kind, True)), f"{median(found):.3f}" if found else "–"]
            if found:
                ratios[kind].append(median(found))
                behind += [kind] if median(found) < 1 else []
        cells.append([*line, ", ".join(behind) if ours else "not measured"])
    for title, of in (("geometric mean", geomean), ("least", min)):
        told = [f"{of(ratio):.3f}" if ratio else "–" for ratio in ratios.values()]
        cells.append([title, "", "", *(x for value in told for x in ("", value)), ""])
    return markdown(cells, left=(0, 2, len(cells[0]) - 1))


def detail_table(rows: Sequence[Row]) -> str:
    """Spreads of single runs, our own clock, and the rates behind the limit."""
    cells = [
        ["scenario", "ours", "own clock", "p10–p90", "nccl p10–p90", "asynctp p10–p90", "GEMM by", "p10–p90", "TFLOP/s",
         "copies GB/s", "rel err"]
    ]  # fmt: skip
    for row in rows:
        key, ours = our_time(row)
        entry = row.entries[key] if key else None
        by = row.gemm()
        gemm, copies = row.time(by), row.time(COPIES)
        cells.append(
            [row.label, microseconds(ours), microseconds(entry.own.median if entry and entry.own else None),
             width(row, key), *(width(row, row.best(both(kind))) for kind in ("nccl", "asynctp")),
             by.removeprefix(GEMM).strip() or "cuBLAS", width(row, by),
             f"{row.work.tflops(gemm):.0f}" if gemm else "–", f"{row.work.gbps(copies):.0f}" if copies else "–",
             f"{entry.rel_err:.1e}" if entry and entry.rel_err is not None else "–"]
        )  # fmt: skip
    return markdown(cells, left=(0,))


def width(row: Row, key: str | None) -> str:
    figure = row.entries[key].single if key in row.entries else None
    return "–" if figure is None else f"{100 * figure.width:.1f} %"


def schedules_table(rows: Sequence[Row]) -> str:
    """Ours, one line a schedule with its best parameters: single runs of the screening, by scenario."""
    names = list(dict.fromkeys(key.split()[0] for row in rows for key in row.of("ours")))
    cells = [["schedule", *(row.label for row in rows)]]
    for name in names:
        line = [name]
        for row in rows:
            timed = [
                (entry.screened, key)
                for key, entry in row.entries.items()
                if entry.side == "ours" and key.split()[0] == name and entry.screened is not None
            ]
            line.append(f"{microseconds(min(timed)[0])} {_short(min(timed)[1])}".rstrip() if timed else "–")
        cells.append(line)
    return markdown(cells, left=(0,))


def _short(key: str) -> str:
    """`hetero_fused_1d chunks=4 graph` → `4 g`."""
    _, *parameters, mode = key.split()
    return " ".join([*(p.partition("=")[2] for p in parameters), mode[0]])


def markdown(cells: Cells, left: Sequence[int]) -> str:
    """A table whose columns line up in plain text, too; those of `left` to the left."""
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]

    def shown(line: Sequence[str]) -> str:
        fitted = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True)))
        return "| " + " | ".join(fitted) + " |"

    rule = "|" + "|".join("-" * (w + 2) if i in left else "-" * (w + 1) + ":" for i, w in enumerate(widths)) + "|"
    return "\n".join([shown(cells[0]), rule, *map(shown, cells[1:])])


def failures(rows: Sequence[Row]) -> list[str]:
    """Who has no time, and why; a reason that holds for many is told once."""
    told: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for key, entry in row.entries.items():
            if entry.failed is not None:
                told.setdefault((key, entry.failed), []).append(row.label)
    return [f"{key} ({', '.join(labels)}): {why}" for (key, why), labels in told.items()]
