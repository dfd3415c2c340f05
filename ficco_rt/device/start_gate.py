"""The latch of a run: a word that holds back the run until the host has issued all of it. Traced runs have one, and
those in the mode `latched`.

Without a latch, actions that the host issues late would begin late, and the trace, or the time of a short run, would
show the delay of the host as a delay of the plan. The start of the run stands behind the latch, on the first device. A
stream that waits for nothing else of the run raises the latch, by the last call of the run.

NOTE the actions that are issued meanwhile fill the hardware queues. A call that finds its queue full blocks the host,
which has not raised the latch yet. So a run of more than `MOST` actions on a stream has no latch. On a crowded device
the latch's stream might share a queue with an action that waits for the latch, so there is none either. Devices that
share no events have none, because they do not begin together.

If issuing fails, or the watchdog finds a call that blocks, all words are raised, the latch included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ficco_dsl.diagnostics import Diagnostic

from .ir import (
    PLACELESS,
    Action,
    AwaitEvent,
    Cause,
    ChangeWords,
    DevicePlan,
    EventName,
    RecordEvent,
    ResetWords,
    StreamName,
    Word,
    WordChange,
    manners,
)

MOST = 400  # actions of a run's body on a stream: a hardware queue holds some thousand calls
START = EventName("start", 0)
LATCH = Cause("the latch of a run")


def short(body: Iterable[Action]) -> bool:
    """Whether the host can issue a run without filling a queue."""
    return max(Counter(action.stream for action in body).values(), default=0) <= MOST


class Latch:
    """The actions of the latch whose word stands at this place in the table."""

    def __init__(self, number: int, word: Word) -> None:
        self.number, self.word = number, word
        self.stream, self.control = StreamName("latch", word.device), StreamName("control", word.device)

    def awaited(self) -> Iterator[Action]:
        """Before the start. It is not raised before the run before has reset it."""
        yield AwaitEvent(self.stream, EventName("completion", self.word.device), LATCH, "behind")
        yield ChangeWords(self.control, (WordChange(self.number, False),), LATCH)

    def reset(self) -> Action:
        """Before the completion of its device."""
        return ResetWords(self.control, self.word.index, 1, LATCH)

    def raised(self) -> Action:
        """The last action of the run."""
        return ChangeWords(self.stream, (WordChange(self.number, True),), LATCH)


def latches_open_last(plan: DevicePlan) -> Iterator[Diagnostic]:
    """The last action of a run raises its latch, on a stream that otherwise waits for the run before only. The start
    stands right behind the wait for the latch, and is recorded nowhere else. A run with a latch is short, and its
    devices are not crowded."""
    latches = {i for i, word in enumerate(plan.words) if word.used == "latched"}
    if not latches and not any(stream.name.kind == "latch" for stream in plan.streams):
        return
    if not short(plan.body) or plan.crowded:
        yield _at(None, f"a latch, and {'a device is crowded' if plan.crowded else 'a stream has too many actions'}")
    for frame in dict.fromkeys(map(plan.frame, manners(plan))):
        actions = (*frame.begin, *plan.body, *frame.end)
        last = actions[-1] if actions else None
        if not isinstance(last, ChangeWords) or set(last.raises) != latches:
            yield _at(last, "the last action of the run does not raise the latch")
        for action in actions[:-1]:
            waits = isinstance(action, AwaitEvent) and action.event.kind == "completion" and action in frame.begin
            if action.stream.kind == "latch" and not waits:
                yield _at(action, f"{action.stream} does something else than to raise the latch")
        before: Action | None = None
        control = [a for a in frame.begin if not isinstance(a, AwaitEvent) and a.stream.kind == "control"]
        for action in control:
            if isinstance(action, RecordEvent) and action.event == START and not _waits(before, latches):
                yield _at(action, f"{START} is recorded, and not right behind the wait for the latch")
            before = action
        if not any(isinstance(action, RecordEvent) and action.event == START for action in control):
            yield _at(None, f"a latch, and no {START}")


def _waits(action: Action | None, words: set[int]) -> bool:
    return isinstance(action, ChangeWords) and set(action.awaits) == words


def _at(action: Action | None, message: str) -> Diagnostic:
    return Diagnostic(PLACELESS, f"{LATCH.text}: {message}") if action is None else action.mistake(message)
