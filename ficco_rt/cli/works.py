"""What happened inside streamed launches, in words: the report's lines and the tables of `ficco timeline --works`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..errors import UsageError
from ..files.atomic import read_text
from ..trace.inside import LaunchInside, WorkInside, launches, pairs
from ..trace.model import Trace
from . import tracefile
from .common import count
from .console import Style, table
from .drawing import clean, clock_words, show_time

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


def launch_words(launch: LaunchInside) -> str:
    """`rank 0 mm: waited 34.0 µs of 210 µs, longest 9.2 µs for flag 3 of rank 1 stream dma (mm C rows 0–511)`."""
    span, longest = launch.span, launch.longest
    words = f"rank {span.rank} {span.stage}: waited {show_time(span.waited)} of {show_time(span.stop - span.start)}"
    if longest is not None:
        awaited = longest.awaited.replace("waits for", "for", 1)
        words += f", longest {show_time(longest.waited)} {awaited} ({_plain(longest.label)})"
    return words


def summary(trace: Trace) -> str | None:
    """One line on the launch that waited most; None where no launch tells."""
    found = launches(trace)
    if not found:
        return None
    most = max(found, key=lambda launch: launch.span.waited)
    if most.longest is None:
        return f"{count(len(found), 'streamed launch')}, none of which waited"
    others = f"; {count(len(found) - 1, 'other launch')} waited as long or less" if len(found) > 1 else ""
    return launch_words(most) + others


def launch_records(trace: Trace) -> list[dict[str, object]]:
    """What --json says of streamed launches. Times in microseconds from the run's begin."""
    return [
        {
            "rank": launch.span.rank,
            "stage": launch.span.stage,
            "start_us": launch.span.start,
            "stop_us": launch.span.stop,
            "waited_us": launch.span.waited,
            "within_us": launch.span.within,
            "works": [_record(work) for work in launch.works],
        }
        for launch in launches(trace)
    ]


def _record(work: WorkInside) -> dict[str, object]:
    return {
        "ops": list(work.ops),
        "label": _plain(work.label),
        "place": work.place,
        "came_us": work.came,
        "began_us": work.began,
        "ended_us": work.ended,
        "waited_us": work.waited,
        "awaited": work.awaited,
    }


def _rows(launch: LaunchInside, trace: Trace, other: Trace | None) -> str:
    beside = {(p.work.rank, p.work.ops): p.other for p in pairs(trace, other)} if other is not None else {}
    head = ["work", "came", "began", "ended", "waited"]
    if other is not None:
        head += ["began'", "ended'", "waited'", "worked, of theirs"]
    rows: list[Sequence[str]] = [head]
    for work in launch.works:
        row = [_plain(work.label), *map(_figure, (work.came, work.began, work.ended, work.waited))]
        twin = beside.get((work.rank, work.ops))
        if twin is not None:
            length = twin.ended - twin.began
            share = f"{(work.ended - work.began) / length:.2f}" if length > 0 else ""
            row += [*map(_figure, (twin.began, twin.ended, twin.waited)), share]
        rows.append(row)
    return table(rows, right=_RIGHT)


def _plain(label: str) -> str:
    return " ".join(label.split())


def _figure(microseconds: float) -> str:
    return f"{microseconds:.1f}"
