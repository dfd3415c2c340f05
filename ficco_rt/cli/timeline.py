"""`ficco timeline`: draw a trace file as a picture, or as a sketch of a few lines on the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import UsageError
from ..files.atomic import PICTURE, check_outputs, read_text, write_atomic
from ..report import tracefile
from ..report.account_words import launch_words
from ..report.drawing import clean, clock_words
from ..report.drawing import timeline as layout
from ..report.wording import count, one_line, show_time
from ..trace.inside import LaunchInside, launches, pairs
from ..trace.model import NO_WORK, Trace, TraceSpan, base_name
from .console import Style, table

_BLOCKS = " ▁▂▃▄▅▆▇█"
_NARROWEST, _WIDEST = 24, 160


def timeline(trace: str, output: str | None, works: bool = False, against: str | None = None) -> int:
    """Draw the trace file to `output`, or sketch it on standard output; or tell of the works inside launches there."""
    if works and output:
        raise UsageError("--works prints a table, --output draws a picture: take one of them")
    if against is not None and not works:
        raise UsageError("--against is for --works")
    if works:
        return show_works(trace, against)
    check_outputs([(PICTURE, output)], [trace])
    record = _read(trace)
    if output:
        write_picture(record, output)
        ranks = count(record.ranks, "rank")
        sys.stdout.write(f"{output}: {record.schedule}, {ranks}, {show_time(record.duration)} {clock_words(record)}\n")
    else:
        words = clock_words(record) + (", not measured" if record.clock == "virtual" else "")
        style = Style(sys.stdout)
        sys.stdout.write(f"{style(record.schedule, 'bold')}: {show_time(record.duration)}, {words}\n")
        sys.stdout.write(sketch(record, style))
    return 0


def write_picture(trace: Trace, path: str) -> None:
    """The picture in the form that its name asks for, the same of a run and of its trace file."""
    from ..report.svg import draw
    from .page.write import timeline_page

    made = draw if Path(path).suffix.lower() == ".svg" else timeline_page
    write_atomic(path, made(tracefile.kept(trace)))


def sketch(trace: Trace, style: Style, columns: int | None = None) -> str:
    """One line a stream: a column's height is the share of its time that the stream worked."""
    drawn = layout(trace)
    trace, colours = drawn.trace, drawn.stages
    colour_of = {c.name: c.colour for c in colours}
    letter_of = {c.name: "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[i % 26] for i, c in enumerate(colours)}
    first = len(f"rank {max(trace.ranks - 1, 0)}")
    name_width = min(max((len(lane.name) for lane in trace.lanes), default=0), 14)
    margin = first + 2 + name_width + 4
    if columns is None:
        columns = shutil.get_terminal_size((100, 24)).columns
    width = max(_NARROWEST, min(columns - margin, _WIDEST))
    lines = []
    for band in drawn.bands:
        rank = f"rank {band.rank}"
        for lane in band.lanes:
            works = [span for number, _ in lane.spans if (span := trace.spans[number]).kind not in NO_WORK]
            cells = ""
            for share, stage in _cells(works, trace.duration, width):
                block = _BLOCKS[min(8, max(1, round(share * 8)))] if share > 0 else " "
                if not style.on and block != " ":  # without colours a letter says the stage, in small where half idle
                    block = letter_of[stage] if share >= 0.5 else letter_of[stage].lower()
                cells += style.rgb(block, colour_of[stage]) if stage else block
            lines.append(f"{rank:<{first}}  {lane.lane.name[:name_width]:>{name_width}} │{cells}│")
            rank = ""
    lines.append(" " * (margin - 2) + "0" + show_time(trace.duration).rjust(width - 1))
    keys = (f"{style.rgb('█', c.colour) if style.on else letter_of[c.name]} {c.name}" for c in colours)
    lines.append(" " * (margin - 2) + "   ".join(keys))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _cells(spans: list[TraceSpan], duration: float, width: int) -> list[tuple[float, str]]:
    """For every column: the share of its time that is worked, and the stage that has most of it."""
    shares: list[dict[str, float]] = [{} for _ in range(width)]
    scale = width / (duration or 1.0)
    for span in spans:
        a, b = span.start * scale, span.stop * scale
        stage = base_name(span.stage)
        for column in range(max(0, int(a)), min(width - 1, int(b)) + 1):
            part = min(b, column + 1) - max(a, column)
            if part > 0:
                shares[column][stage] = shares[column].get(stage, 0.0) + part
    cells = []
    for share in shares:
        stage = max(share, key=lambda s: (share[s], s)) if share else ""
        cells.append((min(1.0, sum(share.values())), stage))
    return cells


_RIGHT = frozenset(range(1, 9))  # columns of figures


def show_works(path: str, against: str | None) -> int:
    """A table of the works of each streamed launch of a trace file; beside them, if one is given, another trace's."""
    trace = _read(path)
    other = _read(against) if against is not None else None
    found = launches(trace)
    if not found:
        raise UsageError(
            f"{path}: tells of no works inside streamed launches; the schedule has none, or an old ficco ran it"
        )
    style = Style(sys.stdout)
    sys.stdout.write(f"{style(trace.schedule, 'bold')}: {show_time(trace.duration)} {clock_words(trace)}\n")
    if other is not None:
        sys.stdout.write(f"beside {other.schedule}: {show_time(other.duration)} {clock_words(other)}\n")
    for launch in found:
        sys.stdout.write("\n" + launch_words(launch) + "\n" + _rows(launch, trace, other) + "\n")
    return 0


def _read(path: str) -> Trace:
    return clean(tracefile.from_json(read_text(path), path))


def _rows(launch: LaunchInside, trace: Trace, other: Trace | None) -> str:
    beside = {(p.work.rank, p.work.ops): p.other for p in pairs(trace, other)} if other is not None else {}
    head = ["work", "came", "began", "ended", "waited"]
    if other is not None:
        head += ["began'", "ended'", "waited'", "worked, of theirs"]
    rows: list[Sequence[str]] = [head]
    for work in launch.works:
        row = [one_line(work.label), *map(_figure, (work.came, work.began, work.ended, work.waited))]
        twin = beside.get((work.rank, work.ops))
        if twin is not None:
            length = twin.ended - twin.began
            share = f"{(work.ended - work.began) / length:.2f}" if length > 0 else ""
            row += [*map(_figure, (twin.began, twin.ended, twin.waited)), share]
        rows.append(row)
    return table(rows, right=_RIGHT)


def _figure(microseconds: float) -> str:
    return f"{microseconds:.1f}"
