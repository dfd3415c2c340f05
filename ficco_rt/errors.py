"""The exceptions of the package: the class says whose mistake it is, and sets the exit code of a command.

ScheduleError  1  the text is wrong (syntax, names, proof); from the language package
SizesError     1  a schedule does not take these sizes, or this number of ranks
PlanError      1  a plan is wrong (malformed, race, deadlock)
UsageError     2  the command or the call is wrong
DeviceError    3  a device or driver failed
NumbersError   4  the run ended and its numbers are wrong
InternalError  5  our bug

The number is the exit code of a command; a command that Ctrl-C interrupts exits with 130. Functions of this package
raise only these exceptions; the docstring of a function says which.
"""

from __future__ import annotations

from ficco_dsl.diagnostics import Diagnostic, Note, ScheduleError, Span

__all__ = [
    "DeviceError",
    "Diagnostic",
    "InternalError",
    "LeftError",
    "Note",
    "NumbersError",
    "PlanError",
    "ScheduleError",
    "SizesError",
    "Span",
    "UsageError",
    "cause_words",
    "exit_code",
    "malformed",
]


class SizesError(ScheduleError):
    """A schedule does not take these sizes, or this number of ranks: a `where` check, a shape that is not whole."""


class PlanError(ScheduleError):
    """A plan breaks a rule. The diagnostics name the schedule's lines that the commands come from."""


class UsageError(Exception):
    """The caller asked for something that does not exist or does not fit; the text says what would."""


class DeviceError(Exception):
    """A device, a driver or its memory failed, or a run did not end."""


class LeftError(DeviceError):
    """Another process of the group has stopped or has given up a run. The text has its number and the cause."""


class NumbersError(Exception):
    """A verified run gave wrong numbers."""


class InternalError(Exception):
    """A bug in this package: it broke a rule of its own. The error carries what is needed to report it."""


def cause_words(error: BaseException) -> str:
    """Why something has ended, for those who have not seen the error."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if exit_code(error) < 5 and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


_EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (ScheduleError, 1),
    (UsageError, 2),
    (DeviceError, 3),
    (NumbersError, 4),
)


def exit_code(error: BaseException) -> int:
    """The process's exit code for an error; an exception of any other class counts as our bug."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 5)


def malformed(place: Span, message: str) -> PlanError:
    """The plan asks for something that has no meaning. `check` refuses such plans (`plan/plan_rules.py`); a driver that
    is given one unchecked must not go on."""
    return PlanError((Diagnostic(place, message),))
