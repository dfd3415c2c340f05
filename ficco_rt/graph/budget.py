"""Limits what one schedule may cost the compiler, so that no text makes it run for hours or fill the memory.

The text itself is bounded (`ficco_dsl.parser`: bytes, words, depth). Whatever grows faster than the text is counted
here while it is created, and refused at the statement that exceeds a limit. Each kind of object has a limit of its own,
which bounds memory. All kinds together draw on one meter of steps, which bounds time: a step is about a microsecond of
one core. FICCO_MAX_OPS scales all limits. The user and not the text sets the number of ranks: beyond 8 ranks the meter
grows, to 4.9 times as much at 256 ranks and no further, and so does the number of statements. Memory does not grow.

The budget counts and does not measure time, so the same text gets the same answer on every machine.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from .. import env
from ..errors import SizesError, UsageError

METER = 22  # steps of the meter, as a multiple of FICCO_MAX_OPS: 11 seconds by default, 19 on a busy machine
RANKS, MOST_RANKS, MOST_GROWTH = 8, 256, 4.9  # the meter grows from the first number of ranks to the second
LEAST = 1_000_000  # steps of the meter: a small FICCO_MAX_OPS bounds statements, not seconds

MANY = 100_000  # new values that a search for cycles takes long for, a tenth of a second

RAISE = "or raise FICCO_MAX_OPS"
PIECES_WAY_OUT = f"take fewer, larger pieces, {RAISE}"
CHUNKS_WAY_OUT = f"take fewer chunks or ranks, {RAISE}"
COLLECTIVES_WAY_OUT = f"take fewer collectives or ranks, {RAISE}"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object that a compilation makes many of."""

    what: str  # in the plural
    most: float  # as a multiple of FICCO_MAX_OPS
    steps: float  # that one of them takes, with all that later passes do with it where these count nothing of their own
    message: str
    help: str = PIECES_WAY_OUT
    grows: bool = False  # as the meter does: of what leaves little in memory


TENSORS = Kind(
    "tensors", 1, 4, "the schedule declares more than {most} tensors over all ranks", "declare fewer tensors"
)
NAMES = Kind("names", 40, 0.05, "the schedule declares more than {most} names over all ranks", "declare fewer")
STATEMENTS = Kind(
    "statements", 1, 2, "the schedule expands to more than {most} statements over all ranks", CHUNKS_WAY_OUT, grows=True
)
OPERATIONS = Kind("operations", 1, 40, "the schedule has more than {most} operations over all ranks")
LISTS = Kind(
    "members of lists",
    40,
    0.2,
    "the lists of this schedule have more than {most} members in all, over all ranks",
    f"write numbers of pieces instead of lists, {RAISE}",
)
PIECES = Kind("pieces of regions", 4, 5, "the regions of the schedule have more than {most} pieces over all ranks")
SUMS = Kind("pieces of sums", 8, 1, "the sums of the schedule meet in more than {most} pieces of its tensors")
EXPRESSIONS = Kind(
    "parts of expressions",
    400,
    0.15,
    "the expressions of the schedule have more than {most} parts to work out, over all ranks and turns",
    f"write shorter expressions, or fewer turns, {RAISE}",
)
ACCESSES = Kind("accesses", 12, 1, "the accesses of the schedule meet in more than {most} pieces of its tensors")
PROOF_PIECES = Kind("pieces in the proof", 8, 2, "the proof meets more than {most} pieces of tensors")
PROOF_TERMS = Kind("terms in the proof", 10, 2, "the proof meets sums of more than {most} terms in all")
WAITS = Kind("waits to choose from", 40, 0.3, "the statements have more than {most} waits to choose from")
COPIED = Kind("entries of clocks", 20_000, 0.002, "the dependencies compare clocks of more than {most} entries in all")
ROUNDS = Kind(
    "copies to put in order",
    40,
    0.5,
    "putting copies in rounds looks at more than {most} of them",
    f"leave out 'order = auto', or take fewer copies, {RAISE}",
)
CLOCKS = Kind("entries of clocks", 700, 0, "the dependencies need clocks of more than {most} entries")
RUNS = Kind(
    "runs of memory", 1, 10, "the copies are more than {most} runs of memory", "copy whole rows, or fewer pieces"
)
PLAN_PIECES = Kind("pieces in the plan", 4, 3, "the regions of the plan have more than {most} pieces")
CHECKED = Kind("accesses in the plan", 8, 2, "the accesses of the plan meet in more than {most} pieces of its tensors")
CHECKED_CLOCKS = Kind("entries of clocks", 700, 0, "the check of the plan needs clocks of more than {most} entries")
WORKS = Kind("works to find kernels for", 40, 30, "kernels are looked for for more than {most} works")
OPERANDS = Kind("operands of launches", 40, 1.5, "the launches of the plan have more than {most} operands")
COLLECTED = Kind(
    "parts of collectives",
    4,
    20,
    "the collectives of the plan are more than {most} copies and sums",
    COLLECTIVES_WAY_OUT,
)
SEMAPHORES = Kind(
    "semaphores of devices", 5, 4, "the devices of the plan need more than {most} semaphores", COLLECTIVES_WAY_OUT
)
NODES = Kind("actions of runs in a row", 8, 4, "the check of the device plan has more than {most} actions")
MODELLED = Kind("modelled works", 40, 60, "the modelled run has more than {most} works and copies", CHUNKS_WAY_OUT)
SHARED = Kind(
    "changes of rates",
    40,
    2,
    "the copies of the plan change each other's rates more than {most} times",
    f"take fewer copies that meet at a port, {RAISE}",
)
ACTIONS = Kind(
    "actions of devices",
    4,
    20,
    "a run of the plan is more than {most} driver calls",
    f"take fewer collectives, ranks or chunks, {RAISE}",
)
VALUES = Kind(
    "values of a file",
    40,
    0.5,
    "the file holds more than {most} values",
    f"compile it again for fewer ranks or chunks, {RAISE}",
)


def most_ops() -> int:
    """Statements that a schedule may expand to, over all ranks."""
    text = env.get("FICCO_MAX_OPS")
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) <= 10**9):
        raise UsageError(f"FICCO_MAX_OPS = {text[:40]}: a whole number from 1 to 1000000000 is needed")
    return int(text)


def growth(ranks: int) -> float:
    """How much longer a compilation may take for `ranks` ranks than for few."""
    beyond = (ranks - RANKS) / (MOST_RANKS - RANKS)
    return 1 + (MOST_GROWTH - 1) * min(1.0, max(0.0, beyond))


@contextmanager
def without_collection() -> Iterator[None]:
    """Context manager that disables Python's cyclic garbage collection. Compilations and modelled runs make many small
    values and few cycles, and the collection would take a third of their time. Objects made inside count as old
    afterwards, and are searched with all of the process's memory."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            # NOTE the second question counts all that is frozen; whoever has frozen values wants them to stay so
            if gc.get_count()[0] > MANY and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class _Meter:
    """Steps that are left, and the budgets that take them."""

    __slots__ = ("budgets", "growth", "left", "most")

    def __init__(self, ranks: int) -> None:
        self.growth = growth(ranks)
        self.most = self.left = self.growth * max(METER * most_ops(), LEAST)
        self.budgets: list[Budget] = []

    def dearest(self) -> tuple[Kind, float]:
        """The kind that has taken most steps, and how many."""
        taken: dict[Kind, float] = {}
        for budget in self.budgets:
            taken[budget.kind] = taken.get(budget.kind, 0.0) + budget.steps
        return max(taken.items(), key=lambda of: of[1])


_METER: ContextVar[_Meter | None] = ContextVar("meter", default=None)


@contextmanager
def one_meter(ranks: int) -> Iterator[None]:
    """Context manager for one compilation, on `ranks` ranks: budgets that are created inside draw on one meter."""
    token = _METER.set(_METER.get() or _Meter(ranks))
    try:
        yield
    finally:
        _METER.reset(token)


class Budget:
    """Counts down, and refuses the statement at which it falls below zero. Each build or pass has its own.

    >>> Budget(PROOF_PIECES).spend(8, span)
    """

    __slots__ = ("error", "kind", "left", "meter", "most", "steps")

    def __init__(self, kind: Kind, error: type[ScheduleError] = SizesError) -> None:
        self.kind, self.error = kind, error
        self.meter = _METER.get() or _Meter(1)
        self.most = self.left = int(kind.most * most_ops() * (self.meter.growth if kind.grows else 1))
        self.steps = 0.0  # taken
        self.meter.budgets.append(self)

    def foresee(self, amount: int, span: Span) -> None:
        """Refuse now if `amount`, which is in use or still to be spent, is too much."""
        if self.left < amount or self.meter.left < amount * self.kind.steps:
            self.spend(amount, span)

    def spend(self, amount: int, span: Span, times: float = 1) -> None:
        """Take `amount`, for what stands at `span`; one of it takes so many times the kind's steps. Raises
        ScheduleError: what goes too far ends the compilation."""
        steps = amount * self.kind.steps * times
        self.left -= amount
        self.steps += steps
        self.meter.left -= steps
        if self.left < 0 or self.meter.left < 0:
            raise self._refusal(span)

    def _refusal(self, span: Span) -> ScheduleError:
        if self.left < 0:
            text, help = self.kind.message.format(most=f"{self.most:,}"), self.kind.help
        else:
            kind, steps = self.meter.dearest()
            text = (
                f"compiling this takes more than {self.meter.most:,.0f} steps, {steps:,.0f} of them so far for "
                f"{kind.what}"
            )
            help = CHUNKS_WAY_OUT
        return self.error((Diagnostic(span, text, help=help),))
