"""What one schedule may cost the compiler: no text makes it run for hours or fill the memory.

The text itself is bounded (`ficco_dsl.parser`: bytes, words, depth). What grows faster than the text is counted
here, as it comes into being, and refused at the statement that goes too far. FICCO_MAX_OPS scales all of it.
"""

from __future__ import annotations

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from .. import env
from ..errors import UsageError

# All as multiples of FICCO_MAX_OPS.
STEPS = 40  # of expressions: members of the lists that are made or walked
PIECES = 4  # boxes that the regions of all ops consist of
NAMES = 40  # in scope on all ranks
CELLS = 40  # pieces of tensors that one pass of the compiler looks at
CHECKED = 10  # pieces of tensors that the check of a plan looks at; it does more for each
TERMS = 20  # of the formal sums of the proof
CLOCKS = 1000  # 32-bit entries of the vector clocks that are alive

WAY_OUT = "take fewer, larger pieces, or raise FICCO_MAX_OPS"


def most_ops() -> int:
    """Statements that a schedule may expand to, over all ranks."""
    text = env.get("FICCO_MAX_OPS")
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) <= 10**9):
        raise UsageError(f"FICCO_MAX_OPS = {text[:40]}: a whole number from 1 to 1000000000 is needed")
    return int(text)


class Budget:
    """Counts down; whoever goes below zero is told. One object a build or pass.

    >>> Budget(8, "the proof looks at more than {most} pieces").spend(8, span)
    """

    __slots__ = ("error", "help", "left", "message", "most")

    def __init__(
        self, most: int, message: str, help: str = WAY_OUT, error: type[ScheduleError] = ScheduleError
    ) -> None:
        self.most = self.left = most
        self.message, self.help, self.error = message, help, error

    def foresee(self, amount: int, span: Span) -> None:
        """Tell now that `amount`, which is in use or still to be spent, is too much."""
        if self.left < amount:
            self.spend(amount, span)

    def spend(self, amount: int, span: Span) -> None:
        """Take `amount`, for what stands at `span`. Raises ScheduleError: what goes too far ends the compilation."""
        self.left -= amount
        if self.left < 0:
            text = self.message.format(most=f"{self.most:,}")
            raise self.error((Diagnostic(span, text, help=self.help),))


def steps() -> Budget:
    return Budget(
        STEPS * most_ops(),
        "the lists of this schedule have more than {most} members in all, over all ranks",
        "write numbers of pieces instead of lists, or raise FICCO_MAX_OPS",
    )
