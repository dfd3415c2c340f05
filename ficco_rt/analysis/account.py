"""Breaks down the time of a run, from its trace: what each rank and each stage did, and why the run takes longer than
its ideal.

A run cannot be faster than its computing alone or its data movement alone; the longer of these is the ideal. The
account covers the rank that ends last. Its *side* is computing or moving, whichever kept this rank busy for longer.
Each moment of the rank is put into one class: the side busy, only the other side busy, waiting, or none of these. The
parts therefore add up to the duration of the trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, TypeAlias

from ..device.features import virtual
from ..device.ir import DeviceLaunch, Placement
from ..device.launches import LaunchPlanner
from ..files.records import Count, Micros
from ..graph.kinds import SIDE_OF_SPAN
from ..kernels.catalogue import cluster_tiles
from ..machine.model import Machine
from ..plan.ir import Launch, Plan
from ..trace.model import NO_WORK, Trace, TraceSpan, base_name

MOVE_KINDS = frozenset(span for span, side in SIDE_OF_SPAN.items() if side == "moves")
COMPUTE_KINDS = frozenset(SIDE_OF_SPAN) - MOVE_KINDS

Intervals: TypeAlias = list[tuple[float, float]]
LongerSide: TypeAlias = Literal["computing", "moving"]
PartName: TypeAlias = Literal["ideal", "waves", "slower", "exposed", "waiting", "launch"]


@dataclass(frozen=True, slots=True)
class RankUse:
    """How one rank spent the run, in microseconds."""

    compute: float  # at least one stream computed
    moving: float  # at least one stream moved data
    exposed: float  # copies and collectives moved data, nothing computed
    peer_bytes: int = 0  # what computes reads and writes in other ranks' memory itself: no time of its own is known


@dataclass(frozen=True, slots=True)
class StageUse:
    """What a stage did, on all ranks. Times are microseconds.

    stage: Its name; iterations count as one.
    kind: Of its spans, for most of its time.
    place: file:line of the schedule.
    works: On all ranks.
    ranks: Ranks that it runs on.
    start_us: Of the first work, microseconds from the run's begin.
    stop_us: Of the last work.
    busy_us: At least one of its works was under way: the mean over its ranks.
    waited_us: Its streams waited, or blocks of its launches: on the rank where that is most.
    path_us: Its share of the critical path.
    bytes: Moved, or read and written, on all ranks.
    flops: On all ranks.
    peer_bytes: Of these bytes, those that GEMMs, sums and kernels read and write in other ranks' memory.
    """

    stage: str
    kind: str
    place: str
    works: Count
    ranks: Count
    start: Micros
    stop: Micros
    busy: Micros
    waited: Micros
    path: Micros
    bytes: Count
    flops: Count
    peer_bytes: Count = 0


@dataclass(frozen=True, slots=True)
class Spent:
    """A part of a run's time, in microseconds.

    name: ideal: the longer of computing alone and moving alone. waves: the last wave of GEMM launches has no tile for
      every multiprocessor (estimated). slower: how much longer than the ideal the side was busy otherwise; negative: it
      was busy for less than the ideal. exposed: the other side's work with none of this side's beside it; what is in
      peer_bytes counts as computing. waiting: nothing but waits. launch: launches, signals, the run's begin and end.
    """

    name: PartName
    time: Micros


@dataclass(frozen=True, slots=True)
class Account:
    """Where the time of the rank that ends last went.

    rank: The rank that ends last, whose time is told.
    side: What the rank was busy with for longer.
    time_us: The trace's duration, microseconds; the sum of the parts.
    peer_bytes: Bytes that GEMMs, sums and kernels of the rank read and write in other ranks' memory themselves. Their
      time counts as computing.
    """

    rank: Count
    side: LongerSide
    time: Micros
    parts: tuple[Spent, ...]
    peer_bytes: Count = 0


# ---------------------------------------------------------------- of ranks and stages


def rank_uses(trace: Trace) -> tuple[RankUse, ...]:
    """What each rank that has a stream did with its time, by rank."""
    by_rank: dict[int, list[TraceSpan]] = {rank: [] for rank in sorted({lane.rank for lane in trace.lanes})}
    for span in trace.spans:
        by_rank[span.rank].append(span)
    uses = []
    for spans in by_rank.values():
        computing, moving = _times(spans, COMPUTE_KINDS), _times(spans, MOVE_KINDS)
        compute = length(union(computing))
        exposed = length(union(computing + moving)) - compute
        uses.append(RankUse(compute, length(union(moving)), exposed, _between(spans)))
    return tuple(uses)


def _between(spans: Iterable[TraceSpan]) -> int:
    return sum(span.peer_bytes for span in spans if span.kind in COMPUTE_KINDS)


def stage_uses(trace: Trace, path: Mapping[str, float]) -> tuple[StageUse, ...]:
    """Every stage that did something, in the order of first works. `path`: the time of each on the critical path."""
    by_stage: dict[str, list[TraceSpan]] = {}
    for span in trace.spans:
        by_stage.setdefault(base_name(span.stage), []).append(span)
    uses = [
        _stage(name, spans, path.get(name, 0.0))
        for name, spans in by_stage.items()
        if any(s.kind not in NO_WORK for s in spans)
    ]
    return tuple(sorted(uses, key=lambda use: (use.start, use.stop)))


def _stage(name: str, spans: Sequence[TraceSpan], path: float) -> StageUse:
    works = [span for span in spans if span.kind not in NO_WORK]
    busy: dict[int, Intervals] = {}
    kinds: dict[str, float] = {}
    waited: dict[int, float] = {}
    for span in works:
        busy.setdefault(span.rank, []).append((span.start, span.stop))
        kinds[span.kind] = kinds.get(span.kind, 0.0) + span.stop - span.start
    for span in spans:
        if span.kind == "wait":
            waited[span.rank] = waited.get(span.rank, 0.0) + (span.waited or span.stop - span.start)
    return StageUse(
        stage=name,
        kind=max(kinds, key=lambda kind: (kinds[kind], kind)),
        place=works[0].place,
        works=len(works),
        ranks=len(busy),
        start=min(span.start for span in works),
        stop=max(span.stop for span in works),
        busy=sum(length(union(found)) for found in busy.values()) / len(busy),
        waited=max(waited.values(), default=0.0),
        path=path,
        bytes=sum(span.bytes for span in works),
        flops=sum(span.flops for span in works),
        peer_bytes=_between(works),
    )


# ---------------------------------------------------------------- against the ideal


def account(trace: Trace, plan: Plan, machine: Machine, compute_alone: float, communication_alone: float) -> Account:
    """The account of a run of the plan, by yardsticks in microseconds."""
    ends = {lane.rank: 0.0 for lane in trace.lanes}
    for span in trace.spans:
        ends[span.rank] = max(ends.get(span.rank, 0.0), span.stop)
    rank = max(ends, key=lambda r: (ends[r], -r), default=0)
    spans = [span for span in trace.spans if span.rank == rank]
    computing, moving = union(_times(spans, COMPUTE_KINDS)), union(_times(spans, MOVE_KINDS))
    side: LongerSide = "computing" if length(computing) >= length(moving) else "moving"
    own, other = (computing, moving) if side == "computing" else (moving, computing)
    ideal = max(compute_alone, communication_alone)
    worked = length(union(own + other))
    told = length(union(own + other + _times(spans, frozenset(("wait",)))))
    beyond = length(own) - ideal
    waves = min(_waves(trace, rank, plan, machine), max(0.0, beyond)) if side == "computing" else 0.0
    parts: dict[PartName, float] = {
        "ideal": ideal,
        "waves": waves,
        "slower": beyond - waves,
        "exposed": worked - length(own),
        "waiting": told - worked,
        "launch": trace.duration - told,
    }
    made = tuple(Spent(name, time) for name, time in parts.items())
    return Account(rank, side, trace.duration, made, _between(spans))


def _waves(trace: Trace, rank: int, plan: Plan, machine: Machine) -> float:
    """How long GEMM launches of a rank were without tiles for all multiprocessors, about."""
    streams = [stream for stream in plan.streams if stream.rank == rank]
    alone = [replace(s, commands=tuple(c for c in s.commands if isinstance(c, Launch))) for s in streams]
    own = replace(plan, streams=tuple(alone))  # nothing else has to be known of the plan, and that saves time
    launches = placed_launches(own, machine)
    of_key = {(launch.stream, work.op): n for n, launch in enumerate(launches) for work in launch.works}
    spans: dict[int, Intervals] = {}
    for span in trace.spans:
        number = of_key.get((span.stream, span.ops[0])) if span.rank == rank and span.ops else None
        if number is not None and span.kind == "gemm":
            spans.setdefault(number, []).append((span.start, span.stop))
    return sum(length(union(found)) * idle(launches[number]) for number, found in spans.items())


def placed_launches(plan: Plan, machine: Machine) -> tuple[DeviceLaunch, ...]:
    """The plan's launches, configured for one device of the machine for each rank."""
    placement = Placement(tuple(range(plan.ranks)))
    return LaunchPlanner(plan, machine.device, placement, virtual(machine.device.arch), frozenset()).all()


def idle(launch: DeviceLaunch) -> float:
    """The share of a GEMM launch's time in which groups of blocks have no tile, because the last wave is not full.
    Works that are merged along K count their tiles once; the tiles of the last wave may be split along K."""
    config, tiles = launch.config, 0
    for first, *_ in launch.made_as_one:
        rows, columns = launch.works[first].tiles or (0, 0)
        tiles += cluster_tiles(config, rows, columns)
    # `wave` of the plain kernels has no more groups than there are tiles
    groups, parts = max(1, config.wave, launch.sms // max(1, config.cluster)), config.split_k.tail
    full, over = divmod(tiles, groups)
    waves = full + (ceil(over * parts / groups) / parts if over else 0)
    return 1 - tiles / groups / waves if waves else 0.0


# ---------------------------------------------------------------- intervals


def _times(spans: Iterable[TraceSpan], kinds: frozenset[str]) -> Intervals:
    return [(span.start, span.stop) for span in spans if span.kind in kinds]


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """Merges overlapping intervals; the result is in order."""
    merged: Intervals = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def length(intervals: Iterable[tuple[float, float]]) -> float:
    """The sum of the lengths of the intervals."""
    return sum(stop - start for start, stop in intervals)
