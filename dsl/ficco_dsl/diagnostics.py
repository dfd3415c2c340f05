"""Source locations (`Span`), and the errors and warnings (`Diagnostic`) that point to them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a schedule's text. Lines and columns count from 1; the end is exclusive."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"

    @property
    def place(self) -> str:
        """File and line, as messages and traces name a place."""
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Note:
    """A second place that explains a diagnostic: the other access, the first declaration."""

    text: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake (or one warning): its place, what is wrong, and a way to fix it."""

    span: Span
    message: str
    notes: tuple[Note, ...] = ()
    help: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.span}: {self.message}"]
        for note in self.notes:
            place = f"{note.span}: " if note.span else ""
            lines.append(f"  note: {place}{note.text}")
        if self.help:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)


class ScheduleError(Exception):
    """The schedule is wrong. Carries every mistake that one stage found, in the order of the text."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        assert diagnostics
        super().__init__("\n".join(str(d) for d in diagnostics))
        self.diagnostics = diagnostics
