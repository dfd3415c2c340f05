"""The start gate of a run: a semaphore that delays the run until the host has issued all of it. Runs in the modes
`traced` and `gated` have a start gate.

Without a start gate, actions that the host issues late would begin late, and the trace, or the time of a short run,
would show the delay of the host as a delay of the plan. The start of the run waits for the gate, on the first device. A
stream that waits for nothing else of the run opens the gate, by the last call of the run but those with which callers'
streams wait for it.

NOTE the actions that are issued before the gate opens fill the hardware queues. A call that finds its queue full blocks
the host, which has not opened the gate yet. So a run of more than `MOST` actions on a stream has no start gate. On a
crowded device the gate's stream might share a queue with an action that waits for the gate, so runs there have no start
gate either. Nor do runs on devices that share no events, because these devices do not begin together.

If issuing fails, or the watchdog finds a call that blocks, all semaphores are signalled, the start gate included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ficco_dsl.diagnostics import Diagnostic

from . import ir

MOST = 400  # actions of a run's body on a stream: a hardware queue holds some thousand calls
START_GATE = ir.Cause("the start gate of a run")


def short(body: Iterable[ir.Action]) -> bool:
    """Whether the host can issue a run without filling a queue."""
    return max(Counter(action.stream for action in body).values(), default=0) <= MOST


def start_gates_open_last(plan: ir.DevicePlan) -> Iterator[Diagnostic]:
    """The last action of a run, behind which only callers wait, opens its start gate, on a stream that otherwise waits
    for the run before only. The start stands right behind the wait for the start gate, and is recorded nowhere else. A
    run with a start gate is short, and its devices are not crowded."""
    start_gates = {i for i, semaphore in enumerate(plan.semaphores) if semaphore.used == "gated"}
    if not start_gates and not any(stream.name.kind == "gate" for stream in plan.streams):
        return
    if not short(plan.body) or plan.crowded:
        yield _at(
            None, f"a start gate, and {'a device is crowded' if plan.crowded else 'a stream has too many actions'}"
        )
    for run_ends in dict.fromkeys(map(plan.run_ends, ir.manners(plan))):
        actions = (*run_ends.prologue, *plan.body, *run_ends.epilogue)
        while actions and isinstance(actions[-1], ir.AwaitEvent) and actions[-1].stream.kind == "caller":
            actions = actions[:-1]
        last = actions[-1] if actions else None
        if not isinstance(last, ir.StreamMemOps) or set(last.signals) != start_gates:
            yield _at(last, "the last action of the run does not open the start gate")
        for action in actions[:-1]:
            waits = (
                isinstance(action, ir.AwaitEvent) and action.event.kind == "completion" and action in run_ends.prologue
            )
            if action.stream.kind == "gate" and not waits:
                yield _at(action, f"{action.stream} does something else than to open the start gate")
        before: ir.Action | None = None
        started = 0
        for action in actions:
            if isinstance(action, ir.RecordEvent) and action.event.kind == "start":
                started += 1
                if action.stream.kind != "control" or not _waits(before, start_gates):
                    yield _at(action, "the start is recorded, and not right behind the wait for the start gate")
            if not isinstance(action, ir.AwaitEvent) and action.stream.kind == "control":
                before = action
        if started != 1:
            yield _at(None, f"a start gate, and {started} starts")


def _waits(action: ir.Action | None, semaphores: set[int]) -> bool:
    return isinstance(action, ir.StreamMemOps) and set(action.awaits) == semaphores


def _at(action: ir.Action | None, message: str) -> Diagnostic:
    return Diagnostic(ir.PLACELESS, f"{START_GATE.text}: {message}") if action is None else action.mistake(message)
