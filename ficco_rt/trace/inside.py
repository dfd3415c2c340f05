"""The inside of streamed launches in a trace: when works waited, began and ended, what a launch waited for longest, and
a comparison of the works of two traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from ..files.records import HIDDEN, NEWER, Count, Micros
from .model import NO_WORK, Trace, TraceSpan


@dataclass(frozen=True, slots=True)
class WorkInside:
    """A work of a streamed launch, or several that were made as one. Times in microseconds from the run's begin.

    ops: Of the plan.
    place: file:line of the schedule.
    came_us: The launch came to it.
    waited_us: Blocks waited for it, the mean over all blocks.
    awaited: What for, such as "waits for flag 3 of rank 1 stream dma"; empty: it did not wait.
    """

    ops: tuple[Count, ...]
    label: str
    place: str
    came: Micros
    began: Micros
    ended: Micros
    waited: Micros
    awaited: str = ""
    rank: Annotated[int, HIDDEN] = 0


@dataclass(frozen=True, slots=True)
class LaunchInside:
    """A streamed launch.

    waited_us: Its blocks waited for flags, the mean over all blocks.
    within_us: Its works' times may be off by so much against other spans.
    works: In the order in which the launch came to them.
    """

    rank: Count
    stage: str
    start: Micros
    stop: Micros
    waited: Micros
    within: Micros
    works: tuple[WorkInside, ...]
    span: Annotated[TraceSpan, HIDDEN] = NEWER

    @property
    def longest(self) -> WorkInside | None:
        """The work that the launch waited for longest; None if it waited for none."""
        found = max(self.works, key=lambda work: round(work.waited, 3), default=None)  # of equal ones the first
        return found if found is not None and found.waited > 0 else None


@dataclass(frozen=True, slots=True)
class WorkPair:
    """A work as one trace has it, and as another one has it; None if that one has it not."""

    work: WorkInside
    other: WorkInside | None


def launches(trace: Trace) -> tuple[LaunchInside, ...]:
    """The streamed launches of a trace, by rank and start."""
    works: dict[tuple[int, tuple[int, ...]], list[TraceSpan]] = {}
    waits: dict[tuple[int, tuple[int, ...]], list[TraceSpan]] = {}
    for span in trace.spans:
        if span.ops and span.kind != "launch":
            (waits if span.kind in NO_WORK else works).setdefault((span.rank, span.ops), []).append(span)
    of_op = {(rank, op): _work(found, waits.get((rank, ops), ())) for (rank, ops), found in works.items() for op in ops}
    bars = [span for span in trace.spans if span.kind == "launch"]
    made = []
    for bar in sorted(bars, key=lambda span: (span.rank, span.start)):
        mine = dict.fromkeys(of_op[bar.rank, op] for op in bar.ops if (bar.rank, op) in of_op)
        works_ = tuple(sorted(mine, key=lambda work: (work.came, work.ops)))
        made.append(LaunchInside(bar.rank, bar.stage, bar.start, bar.stop, bar.waited, bar.within, works_, bar))
    return tuple(made)


def _work(spans: Sequence[TraceSpan], waits: Sequence[TraceSpan]) -> WorkInside:
    first, began = spans[0], min(span.start for span in spans)
    return WorkInside(
        rank=first.rank,
        ops=first.ops,
        label=first.label,
        place=first.place,
        came=min((began, *(wait.start for wait in waits))),
        began=began,
        ended=max(span.stop for span in spans),
        waited=sum((wait.waited for wait in waits), 0.0),
        awaited=next((wait.label for wait in waits if wait.label), ""),
    )


def pairs(trace: Trace, other: Trace) -> tuple[WorkPair, ...]:
    """The works of one trace, each with the same work of another trace, for example measured and modelled. Works that
    are merged in the first trace are combined in the other."""
    found = {(work.rank, op): work for launch in launches(other) for work in launch.works for op in work.ops}
    made = []
    for work in (work for launch in launches(trace) for work in launch.works):
        parts = dict.fromkeys(found[work.rank, op] for op in work.ops if (work.rank, op) in found)
        made.append(WorkPair(work, _together(tuple(parts)) if parts else None))
    return tuple(made)


def _together(works: Sequence[WorkInside]) -> WorkInside:
    return replace(
        works[0],
        ops=tuple(op for work in works for op in work.ops),
        came=min(work.came for work in works),
        began=min(work.began for work in works),
        ended=max(work.ended for work in works),
        waited=sum(work.waited for work in works),
        awaited=max(works, key=lambda work: work.waited).awaited,
    )
