"""The message for a run that cannot continue: which task waits for what, and which task should have signalled it."""

from __future__ import annotations

from ...errors import Span
from ...plan.ir import CollectiveCall, Launch
from .tasks import HostSignal, HostStream, Task, WaitTask, WorkTask

SHOWN = 8  # streams that are written out; in a large run they all wait for a few


def at(place: Span) -> str:
    return f"{place.path}:{place.line}"


def describe_deadlock(stuck: list[HostStream]) -> str:
    """One line a stuck stream, as `deadlock: rank 1 stream compute waits for event 3 (x.ficco:20), which …`."""
    return "\n".join(f"deadlock: {line}" for line in describe_waits(stuck))


def describe_waits(stuck: list[HostStream]) -> list[str]:
    """What the streams that cannot continue wait for."""
    lines = [_waits(stream) for stream in stuck[:SHOWN]]
    if len(stuck) > SHOWN:
        lines.append(f"and {len(stuck) - SHOWN} more streams wait")
    return lines


def _waits(stream: HostStream) -> str:
    task = stream.queue[stream.head]
    match task:
        case WaitTask(signal=signal):
            return f"{stream} waits for {signal.name} ({at(task.command.origin)}), {_raiser(signal)}"
        case WorkTask(command=CollectiveCall() as call):
            missing = ", ".join(signal.name for signal in task.jobs[0].waits if not signal.up)
            return f"{stream} waits in {call.kind}, collective {call.group} ({at(call.origin)}), for {missing}"
        case WorkTask():
            assert isinstance(task.command, Launch)  # copies wait on their stream
            waiting = [j for j in task.jobs if j.missing]
            job = waiting[0]
            signal = next(s for s in job.waits if not s.up)
            more = f"; {len(waiting) - 1} more works of the launch wait" if len(waiting) > 1 else ""
            return (
                f"{stream} waits in the launch of stage '{task.command.stage_of(job.index)}': its work {job.index} "
                f"({at(job.place)}) waits for {signal.name}, {_raiser(signal)}{more}"
            )
        case _:
            raise AssertionError(f"{task} cannot wait")


def _raiser(signal: HostSignal) -> str:
    if signal.elsewhere:
        return f"which {signal.elsewhere}"
    task, place = signal.raiser, signal.raiser_place
    verb = "records" if signal.name.startswith("event") else "raises"
    if task is None or place is None:
        return f"which nothing {verb}"
    who = f"which {task.stream} {verb} ({at(place)})"
    queue = task.stream.queue
    position = next((i for i, t in enumerate(queue) if t is task), None)
    if position is None:
        return f"{who}, but that command was never issued"
    if position == task.stream.head:
        return f"{who} when its own work is done"
    return f"{who} after {_head(queue[task.stream.head])}"


def _head(task: Task) -> str:
    match task:
        case WaitTask(signal=signal):
            return f"its own wait for {signal.name} ({at(task.command.origin)})"
        case WorkTask(command=CollectiveCall() as call):
            return f"{call.kind}, collective {call.group} ({at(call.origin)})"
        case WorkTask(command=body):
            return f"its launch of stage '{body.stage}' ({at(body.origin)})"
        case _:
            return f"what stands at {at(task.command.origin)}"
