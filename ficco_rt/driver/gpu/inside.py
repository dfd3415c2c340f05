"""Inside launches: converts the marks of a traced run into times of the works of streamed launches, on the run's clock.

Marks are in ticks of a device's clock, whose zero differs from that of the run. The first mark of a launch comes after
the timestamp before the launch, and its last mark before the timestamp after it. All launches of a device together
leave an interval of a few microseconds for the zero: the time that the quickest launches take to begin and to end. The
middle of this interval is used; half of its width is given with each launch (`TraceSpan.within`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...device.ir import DeviceLaunch
from ...kernels.family import TileWorks
from ...kernels.marks import Marks, WorkMarks, blocks_at_once, of_works
from ...plan.ir import Work


@dataclass(frozen=True, slots=True)
class WorkTimes:
    """A work of a launch, or several that are made as one; microseconds from the run's begin."""

    works: tuple[Work, ...]
    stage: str
    came: float  # its first block came to it
    began: float  # its first tile began
    ended: float  # its last tile ended
    waited: float  # blocks waited for it, the mean over all blocks

    @property
    def ops(self) -> tuple[int, ...]:
        """The plan's."""
        return tuple(dict.fromkeys(work.op for work in self.works))


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """The works of a command's launches. Against other spans of the run they may be off by `within` microseconds."""

    works: tuple[WorkTimes, ...]
    within: float
    reached: int | None = None  # blocks that were on a multiprocessor at once

    @property
    def waited(self) -> float:
        return sum(work.waited for work in self.works)


@dataclass(frozen=True, slots=True)
class Marked:
    """A launch with its marks, the works of its tiles, the device that it ran on, and its command's timestamps in
    microseconds."""

    launch: DeviceLaunch
    marks: Marks
    tile_works: TileWorks
    device: int
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class _DeviceClock:
    """A device's clock: it showed `base` when the run's was at `zero` microseconds, and `rate` ticks are one.

    NOTE ticks are counted from `base`: as floats from the clock's own zero they would lose what is to be told."""

    base: int
    zero: float
    rate: float

    def time(self, tick: int) -> float:
        return max(0.0, self.zero + self.length(tick - self.base))

    def length(self, ticks: float) -> float:
        return ticks / self.rate


def launch_times(launches: Sequence[Marked], ticks: Callable[[int], float]) -> Mapping[tuple[int, int], LaunchTimes]:
    """The times of launches, by stream and command. `ticks`: ticks of a device's clock in a microsecond."""
    on: dict[int, list[tuple[Marked, Mapping[int, WorkMarks]]]] = defaultdict(list)
    for marked in launches:
        told = of_works(marked.marks, marked.tile_works, marked.launch.config.blocks)
        if told:  # a run that was given up may have none
            on[marked.device].append((marked, told))
    found: dict[tuple[int, int], LaunchTimes] = {}
    for device, here in on.items():
        rate = ticks(device)
        base = min(w.came for _, works in here for w in works.values())
        first = [marked.start - (min(w.came for w in works.values()) - base) / rate for marked, works in here]
        last = [marked.stop - (max(w.ended for w in works.values()) - base) / rate for marked, works in here]
        clock = _DeviceClock(base, (max(first) + min(last)) / 2, rate)
        within = abs(min(last) - max(first)) / 2
        for marked, works in here:
            key = (marked.launch.stream, marked.launch.command)
            before = found[key].works if key in found else ()  # works of several kinds take several kernels
            reached = blocks_at_once([marked.marks])
            found[key] = LaunchTimes((*before, *_works(marked.launch, works, clock)), within, reached)
    return found


def _works(launch: DeviceLaunch, marks: Mapping[int, WorkMarks], clock: _DeviceClock) -> Iterator[WorkTimes]:
    groups = launch.made_as_one
    for number, mark in marks.items():
        works, stage = tuple(launch.works[i] for i in groups[number]), launch.stages[groups[number][0]]
        waited = clock.length(mark.waited) if any(work.waits for work in works) else 0.0
        came, began, ended = (clock.time(tick) for tick in (mark.came, mark.began, mark.ended))
        yield WorkTimes(works, stage, came, began, ended, waited)
