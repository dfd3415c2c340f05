"""Makes device plans safe on crowded devices, which have fewer hardware queues than streams.

On a crowded device streams share queues, and the driver chooses which ones do. A kernel launch leaves its queue when
the kernel begins; any other action leaves its queue when the action has ended. The next action of the queue cannot
begin before that. Therefore, on a crowded device,

- a launch of several streamed stages becomes one launch for each stage (`parted`), and a launch that waits is issued
  only when nothing else can be (`plan.issue`): then everything that the kernel waits for precedes it in the queue;
- a timestamp is issued as late as its stream allows (`postponed`);
- a graph is a chain of nodes (`chained`). A graph says which node waits for which; the driver is free to order the
  rest, and might put a wait before the action that ends this wait.

A kernel that can end only after later work of its device has begun cannot run on a crowded device: the check of the
device plan reports a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from ..plan.ir import Command, Launch, Plan
from .ir import Action, AwaitEvent, EventName, RecordEvent, StreamName


def parted(plan: Plan) -> Plan:
    """The plan with a launch for each stage."""
    streams = tuple(
        replace(stream, commands=tuple(part for command in stream.commands for part in _parts(command)))
        for stream in plan.streams
    )
    return replace(plan, streams=streams)


def _parts(command: Command) -> Iterator[Command]:
    if not isinstance(command, Launch) or not command.joined:
        yield command
        return
    begins = (0, *(first for first, _ in command.joined), len(command.works))
    for stage, (first, end) in zip(command.stages, pairwise(begins), strict=True):
        yield replace(command, works=command.works[first:end], stage=stage, joined=())


def chained(body: Iterable[Action], device_of: Callable[[StreamName], int], crowded: Iterable[int]) -> Iterator[Action]:
    """The actions, with an event wherever the chain of a crowded device continues on another stream."""
    last: dict[int, StreamName | None] = dict.fromkeys(crowded)  # the stream of each chain's end
    events = 0
    for action in body:
        device = device_of(action.stream)
        if device in last and is_node(action):
            before, last[device] = last[device], action.stream
            if before not in (None, action.stream):
                event, events = EventName("chain", events, device), events + 1
                yield RecordEvent(before, event, action.cause)
                yield AwaitEvent(action.stream, event, action.cause)
        yield action


def postponed(body: Iterable[Action]) -> Iterator[Action]:
    """The actions, each timestamp as late as its stream allows: while a kernel runs, the timestamp after the kernel
    would block everything that follows it in the same hardware queue."""
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
