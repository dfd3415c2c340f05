"""The order in which a plan's commands are issued to a driver."""

from __future__ import annotations

from collections import defaultdict
from heapq import heapify, heappop, heappush

from ..plan.ir import CollectiveCall, CopyAsync, Launch, Plan, Signal, WaitEvent, WaitFlag


def issue_order(plan: Plan, *, patient: bool = False) -> tuple[tuple[int, int], ...]:
    """(stream, position) of every command, as indices into `plan.streams` and its `commands`.

    Each stream's commands keep their order, and every Record and SignalFlag, and every launch whose works raise a flag,
    comes before the WaitEvents and WaitFlags for it: a device takes a wait for an event that has not been recorded as
    no wait at all. Works of a streamed launch wait on the device, so they delay no command. The calls of one collective
    are adjacent, after what every rank does before its call. Within these rules, streams advance in turn, a copy or
    launch at a time, so that all devices get work early. `patient`: a streamed launch is issued only when nothing else
    can be, so that what it waits for precedes it if possible.

    In a plan with a deadlock nothing raises some signals before their waits; the remaining commands then follow stream
    by stream, and the driver reports the deadlock.
    """
    issued: list[tuple[int, int]] = []
    raised: set[Signal] = set()
    waiting: dict[Signal, list[int]] = defaultdict(list)
    called: dict[int, list[int]] = defaultdict(list)  # collective → streams that have come to it
    streams = [stream.commands for stream in plan.streams]
    position = [0] * len(streams)
    turns = [0] * len(streams)

    def late(s: int) -> bool:
        """Whether the stream's next command is issued only when no other command can be."""
        if not patient:
            return False
        command = streams[s][position[s]] if position[s] < len(streams[s]) else None
        return isinstance(command, Launch) and command.streamed

    heads = [(late(s), 0, s) for s in range(len(streams))]
    heapify(heads)

    def issue(s: int) -> None:
        """The stream's next command."""
        at = position[s]
        issued.append((s, at))
        position[s] = at + 1
        for signal in streams[s][at].signals:
            raised.add(signal)
            for waiter in waiting.pop(signal, ()):
                heappush(heads, (late(waiter), turns[waiter], waiter))

    def turn(s: int) -> bool:
        """Issue up to the stream's next copy or launch, and the signals behind it. False: it has to wait first."""
        commands = streams[s]
        first, worked = position[s], False
        while position[s] < len(commands):
            command = commands[position[s]]
            if position[s] > first and late(s):
                return True
            if isinstance(command, WaitEvent | WaitFlag):
                if worked:
                    return True
                (need,) = command.waits
                if need not in raised:
                    waiting[need].append(s)
                    return False
            elif worked and command.parts:
                return True
            if isinstance(command, CollectiveCall):
                members = called[command.group]
                members.append(s)
                if len(members) < plan.ranks:
                    return False
                for member in members:
                    issue(member)
                    if member != s:
                        heappush(heads, (late(member), turns[member], member))
                return True
            issue(s)
            worked = worked or isinstance(command, CopyAsync | Launch)
        return True

    while heads:
        *_, s = heappop(heads)
        if turn(s) and position[s] < len(streams[s]):
            turns[s] += 1
            heappush(heads, (late(s), turns[s], s))

    for s, commands in enumerate(streams):
        issued.extend((s, p) for p in range(position[s], len(commands)))
    return tuple(issued)
