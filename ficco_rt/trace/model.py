"""The `Trace`: what happened when in a run. Every driver fills the same record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from ..files.records import Count

ClockKind: TypeAlias = Literal["device", "virtual"]
# What an operation's kind calls its spans (`graph/kinds.py`), or one of `NO_WORK`. `launch`: a streamed launch as a
# whole, whose works and their waits are spans of their own.
SpanKind: TypeAlias = str


@dataclass(frozen=True, slots=True)
class Launched:
    """How a kernel was launched: as asked for in the plan where times are modelled, as it was on a device."""

    kernel: str
    smem: Count  # dynamic shared memory, bytes a block
    residency: Count | None = None  # blocks that a multiprocessor has room for
    blocks: Count | None = None  # of the grid; modelled: no more than that
    reached: Count | None = None  # its blocks that were on a multiprocessor at once, at most, where marks tell


class TraceSpan(NamedTuple):  # a tuple: a run of many ranks has a hundred thousand
    """One thing that a stream did, or waited for. Times in microseconds from the run's start.

    Inside a streamed launch works overlap: a work's wait lasts from when its first block came to it until its first
    tile began, and the work from then until its last tile ended. `waited` is the time that the wait cost.
    """

    rank: int
    stream: int
    kind: SpanKind
    label: str  # e.g. "gather  A → G@3 rows 512–1023"
    stage: str
    start: float
    stop: float
    place: str  # file:line of the schedule
    bytes: int = 0
    flops: int = 0
    peer: int | None = None
    launched: Launched | None = None
    ops: tuple[int, ...] = ()  # the plan's: of what was done, or of a streamed launch's work that waited
    waited: float = 0.0  # of such a launch or wait: how long blocks waited for flags, the mean over all blocks
    within: float = 0.0  # of such a launch: its works' times may be off by so much against the other spans
    peer_bytes: int = 0  # of products, sums and kernels: what they read and write in other ranks' memory themselves


@dataclass(frozen=True, slots=True)
class Lane:
    """A stream of a rank, a line of a timeline."""

    stream: int
    rank: int
    name: str
    engine: str


class Arrow(NamedTuple):
    """Span `after` of a trace needs span `before` to have ended, by event or flag, whether or not it had to wait. Both
    are places in `Trace.spans`."""

    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Trace:
    """A run's record. `clock` says whether times were measured on a device or modelled for a machine. `arrows` are
    drawn from the plan where they are asked for (`ficco_rt.analysis.causes`). `within`: the spans of different
    processes may be inaccurate relative to each other by this many microseconds."""

    schedule: str
    machine: str
    clock: ClockKind
    ranks: int
    lanes: tuple[Lane, ...]
    spans: tuple[TraceSpan, ...]
    arrows: tuple[Arrow, ...] = ()
    within: float = 0.0

    def __repr__(self) -> str:
        return f"<Trace of {self.schedule} on {self.machine}: {len(self.spans)} spans, {self.duration:.1f} µs>"

    @property
    def duration(self) -> float:
        """Microseconds from the start to the last span's end."""
        return max((s.stop for s in self.spans), default=0.0)


# Spans of these kinds are no work of their own: works stand beside them.
NO_WORK: frozenset[SpanKind] = frozenset(("wait", "launch"))


def launch_label(stages: Iterable[str], first: str, works: int) -> str:
    """The label of a launch: its stages, its first work, and the number of its other works."""
    more = f" and {works - 1} more works" if works > 1 else ""
    return f"{', '.join(dict.fromkeys(map(base_name, stages)))}  {first}{more}"


def base_name(stage: str) -> str:
    """`mm[3]`, an iteration of a stage, counts as `mm`."""
    return stage.split("[", 1)[0]
