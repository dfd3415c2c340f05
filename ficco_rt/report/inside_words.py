"""What happened inside streamed launches, in words: the report's lines and the tables of `ficco timeline --works`."""

from __future__ import annotations

from ..trace.inside import LaunchInside, WorkInside, launches
from ..trace.model import Trace
from .wording import count, one_line, show_time


def launch_words(launch: LaunchInside) -> str:
    """`rank 0 mm: waited 34.0 µs of 210 µs, longest 9.2 µs for flag 3 of rank 1 stream dma (mm C rows 0–511)`."""
    span, longest = launch.span, launch.longest
    words = f"rank {span.rank} {span.stage}: waited {show_time(span.waited)} of {show_time(span.stop - span.start)}"
    if longest is not None:
        awaited = longest.awaited.replace("waits for", "for", 1)
        words += f", longest {show_time(longest.waited)} {awaited} ({one_line(longest.label)})"
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
        "label": one_line(work.label),
        "place": work.place,
        "came_us": work.came,
        "began_us": work.began,
        "ended_us": work.ended,
        "waited_us": work.waited,
        "awaited": work.awaited,
    }
