"""The graph of a device with fewer hardware queues than streams: its nodes one after another.

A graph says which node waits for which. What it leaves open the driver orders as it likes when nodes share a queue: it
may put a wait before what would end that wait. So nothing is left open. The order is that of issue, in which every
signal of a stream comes before its waits. A kernel that cannot end before later nodes of its device begin has no place
in a chain: the check of the device plan finds that as a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from .ir import Action, AwaitEvent, EventName, RecordEvent, StreamName


def chained(body: Iterable[Action], device_of: Callable[[StreamName], int], crowded: Iterable[int]) -> Iterator[Action]:
    """The actions, with an event wherever the chain of a crowded device goes on to another stream."""
    last: dict[int, StreamName | None] = dict.fromkeys(crowded)  # the stream of each chain's end
    events = 0
    for action in body:
        device = device_of(action.stream)
        if device in last and is_node(action):
            before, last[device] = last[device], action.stream
            if before not in (None, action.stream):
                event, events = EventName("chain", events), events + 1
                yield RecordEvent(before, event, action.cause)
                yield AwaitEvent(action.stream, event, action.cause)
        yield action


def postponed(body: Iterable[Action]) -> Iterator[Action]:
    """The actions, each timestamp as late as its stream allows: while a kernel runs, the timestamp behind it would keep
    back all that stands behind it in the same hardware queue."""
    waiting: dict[StreamName, list[Action]] = {}
    for action in body:
        if isinstance(action, RecordEvent) and action.event.kind == "timestamp":
            waiting.setdefault(action.stream, []).append(action)
            continue
        yield from waiting.pop(action.stream, ())
        yield action
    for timestamps in waiting.values():
        yield from timestamps


def is_node(action: Action) -> bool:
    """Whether a captured action becomes a node. Records and waits for events become the edges."""
    return not isinstance(action, RecordEvent | AwaitEvent)
