"""Describes what happened inside streamed launches: the report's lines and the tables of `ficco timeline --works`."""

from __future__ import annotations

from dataclasses import replace

from ..trace.inside import LaunchInside, launches
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


def launch_records(trace: Trace) -> tuple[LaunchInside, ...]:
    """Streamed launches as --json has them."""
    return tuple(
        replace(launch, works=tuple(replace(work, label=one_line(work.label)) for work in launch.works))
        for launch in launches(trace)
    )
