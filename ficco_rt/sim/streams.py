"""The streams that the virtual clock walks, and the signals between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
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
    """A stream with its actions; of those that record or await an event, which record. Side streams have no lane in
    the trace."""

    name: StreamName
    rank: int
    label: str
    actions: tuple[Action, ...]
    records: tuple[int, ...]

    def event(self, position: int, event: EventName) -> SignalKey:
        return SignalKey(event, self.records[position])

    @property
    def shown(self) -> bool:
        return self.name.kind == "plan"

    def stage(self, position: int, launches: Sequence[DeviceLaunch]) -> str:
        """Of the next action that does something: it is what waits."""
        for action in self._onwards(position):
            if isinstance(action, LaunchKernel):
                return launches[action.launch].stages[0]
            if isinstance(action, CopyMemory) and action.moves:
                return action.moves[0].stage
        return ""

    def launches_next(self, position: int) -> bool:
        """Whether the next action that does something is a kernel's launch."""
        for action in self._onwards(position):
            if isinstance(action, LaunchKernel | CopyMemory):
                return isinstance(action, LaunchKernel)
        return False

    def _onwards(self, position: int) -> Iterator[Action]:
        """The actions from a position on. No slice: a stream asks at every position."""
        return (self.actions[at] for at in range(position, len(self.actions)))

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
        yield SimStream(stream.name, rank, stream.label, made, records)
