"""The streams that the virtual clock walks, and the signals between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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


class SignalKey(NamedTuple):  # a tuple: the clock looks them up all the time
    """A word by its number, or a record of an event: a wait is for the last one that was issued before it."""

    of: EventName | int
    record: int = 0


class Raised(NamedTuple):
    """When a signal was raised, and on which rank; `label` names the work that raised it, for people."""

    time: float
    rank: int
    label: str


@dataclass(frozen=True, slots=True)
class SimStream:
    """A stream with its actions; of those that record or await an event, which record. `next_work` holds for each
    position the next launch or batch of copies from there on, `next_move` the next launch or batch that moves data;
    past the end where there is none. Side streams have no lane in the trace."""

    name: StreamName
    rank: int
    label: str
    actions: tuple[Action, ...]
    records: tuple[int, ...]
    next_work: tuple[int, ...]
    next_move: tuple[int, ...]

    def event(self, position: int, event: EventName) -> SignalKey:
        return SignalKey(event, self.records[position])

    @property
    def shown(self) -> bool:
        return self.name.kind == "plan"

    def stage(self, position: int, launches: Sequence[DeviceLaunch]) -> str:
        """Of the next action that does something: it is what waits."""
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


def streams_of(plan: DevicePlan) -> Iterator[SimStream]:
    """Those that have actions between a run's start and its completion."""
    issued: Counter[EventName] = Counter()
    actions: dict[StreamName, list[tuple[Action, int]]] = {}
    for action in plan.body:
        record = 0
        if isinstance(action, RecordEvent):
            issued[action.event] += 1
        if isinstance(action, RecordEvent | AwaitEvent):
            record = issued[action.event]
        actions.setdefault(action.stream, []).append((action, record))
    for stream in (s for s in plan.streams if s.name in actions):
        made, records = zip(*actions[stream.name], strict=True)
        rank = plan.placement.ranks(stream.device)[0] if stream.rank is None else stream.rank  # a control stream's
        works = _following(made, lambda action: isinstance(action, LaunchKernel | CopyMemory))
        moves = _following(made, lambda a: isinstance(a, LaunchKernel) or (isinstance(a, CopyMemory) and bool(a.moves)))
        yield SimStream(stream.name, rank, stream.label, made, records, works, moves)


def _following(actions: Sequence[Action], wanted: Callable[[Action], bool]) -> tuple[int, ...]:
    """For each position the first action from there on that is wanted; past the end: none."""
    found, latest = [], len(actions)
    for position in reversed(range(len(actions))):
        latest = position if wanted(actions[position]) else latest
        found.append(latest)
    return tuple(reversed(found))
