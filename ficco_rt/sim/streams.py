"""The simulated streams of the virtual clock, and the signals between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, TypeAlias

from ..device.ir import (
    Action,
    AwaitEvent,
    CopyMemory,
    DeviceLaunch,
    DevicePlan,
    EventName,
    LaunchKernel,
    RecordEvent,
    StreamName,
)

# A semaphore by its number, or a record of an event: these are numbered behind the semaphores.
Signal: TypeAlias = int


@dataclass(frozen=True, slots=True, eq=False)  # each is itself: the clock looks them up all the time
class SimStream:
    """A stream with its actions; `signals` holds for each position the record of an event that the action makes, or
    waits for: the last one that was issued before the wait. `next_work` holds for each position the next launch or
    batch of copies from there on, `next_move` the next launch or batch that moves data; past the end where there is
    none. Side streams have no lane in the trace."""

    name: StreamName
    rank: int
    label: str
    actions: tuple[Action, ...]
    signals: tuple[Signal, ...]
    next_work: tuple[int, ...]
    next_move: tuple[int, ...]

    @property
    def shown(self) -> bool:
        return self.name.kind == "plan"

    def stage(self, position: int, launches: Sequence[DeviceLaunch]) -> str:
        """The stage of the next action that does something: this stage is the one that waits."""
        found = self.next_move[position]
        match self.actions[found] if found < len(self.actions) else None:
            case LaunchKernel(launch=number):
                return launches[number].stages[0]
            case CopyMemory(moves=moves):
                return moves[0].stage
        return ""

    def launches_next(self, position: int) -> bool:
        """Whether the next action that does something is a kernel's launch."""
        found = self.next_work[position]
        return found < len(self.actions) and isinstance(self.actions[found], LaunchKernel)

    def behind_launch(self, position: int) -> bool:
        """Whether what stands right before is a kernel's launch."""
        return position > 0 and isinstance(self.actions[position - 1], LaunchKernel)


class Raised(NamedTuple):
    """When a signal was raised, and on which rank: the semaphore `of` or the event, by a stream."""

    time: float
    rank: int
    of: EventName | int
    by: SimStream


def streams_of(plan: DevicePlan) -> Iterator[SimStream]:
    """The streams that have actions between a run's start and its completion."""
    records = count(len(plan.semaphores))
    latest: dict[EventName, Signal] = {}
    actions: dict[StreamName, tuple[list[Action], list[Signal]]] = {stream.name: ([], []) for stream in plan.streams}
    for action in plan.body:
        signal = -1  # none; or an event that was not recorded before, which nothing raises
        if isinstance(action, RecordEvent):
            signal = latest[action.event] = next(records)
        elif isinstance(action, AwaitEvent):
            signal = latest.get(action.event, -1)
        here, signals = actions[action.stream]
        here.append(action)
        signals.append(signal)
    for stream in (s for s in plan.streams if actions[s.name][0]):
        made, signals = actions[stream.name]
        rank = plan.placement.ranks(stream.device)[0] if stream.rank is None else stream.rank  # a control stream's
        works = _following(made, lambda action: isinstance(action, LaunchKernel | CopyMemory))
        moves = _following(made, lambda a: isinstance(a, LaunchKernel) or (isinstance(a, CopyMemory) and bool(a.moves)))
        yield SimStream(stream.name, rank, stream.label, tuple(made), tuple(signals), works, moves)


def _following(actions: Sequence[Action], wanted: Callable[[Action], bool]) -> tuple[int, ...]:
    """For each position the first action from there on that is wanted; past the end: none."""
    found, latest = [], len(actions)
    for position in reversed(range(len(actions))):
        latest = position if wanted(actions[position]) else latest
        found.append(latest)
    return tuple(reversed(found))
