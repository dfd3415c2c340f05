"""The simulated streams of the virtual clock, and the signals between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, TypeAlias

from ..device import ir

# A semaphore by its number, or a record of an event: these are numbered behind the semaphores.
Signal: TypeAlias = int


@dataclass(frozen=True, slots=True, eq=False)  # each is itself: the clock looks them up all the time
class SimStream:
    """A stream with its actions; `signals` holds for each position the record of an event that the action makes, or
    waits for: the last one that was issued before the wait. `following` holds for each position the stage of the next
    action from there on that computes or moves data, which is the stage that waits there, and whether the next launch
    or batch of copies is a launch. Side streams have no lane in the trace."""

    name: ir.StreamName
    rank: int
    label: str
    actions: tuple[ir.Action, ...]
    signals: tuple[Signal, ...]
    following: tuple[tuple[str, bool], ...]

    @property
    def shown(self) -> bool:
        return self.name.kind == "plan"

    def behind_launch(self, position: int) -> bool:
        """Whether what stands right before is a kernel's launch."""
        return position > 0 and isinstance(self.actions[position - 1], ir.LaunchKernel)


class Raised(NamedTuple):
    """When a signal was raised, and on which rank: the semaphore `of` or the event, by a stream."""

    time: float
    rank: int
    of: ir.EventName | int
    by: SimStream


def streams_of(plan: ir.DevicePlan) -> Iterator[SimStream]:
    """The streams that have actions between a run's start and its completion."""
    records = count(len(plan.semaphores))
    latest: dict[ir.EventName, Signal] = {}
    actions: dict[ir.StreamName, tuple[list[ir.Action], list[Signal]]] = {
        stream.name: ([], []) for stream in plan.streams
    }
    for action in plan.body:
        signal = -1  # none; or an event that was not recorded before, which nothing raises
        if isinstance(action, ir.RecordEvent):
            signal = latest[action.event] = next(records)
        elif isinstance(action, ir.AwaitEvent):
            signal = latest.get(action.event, -1)
        here, signals = actions[action.stream]
        here.append(action)
        signals.append(signal)
    for stream in (s for s in plan.streams if actions[s.name][0]):
        made, signals = actions[stream.name]
        rank = plan.placement.ranks(stream.device)[0] if stream.rank is None else stream.rank  # a control stream's
        following: list[tuple[str, bool]] = []
        stage, launches = "", False
        for action in reversed(made):
            match action:
                case ir.LaunchKernel(launch=number):
                    stage, launches = plan.launches[number].stages[0], True
                case ir.CopyMemory(moves=moves):
                    stage, launches = moves[0].stage if moves else stage, False
            following.append((stage, launches))
        yield SimStream(stream.name, rank, stream.label, tuple(made), tuple(signals), tuple(reversed(following)))
