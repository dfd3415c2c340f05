"""The source texts that diagnostics refer to, and how their places are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..files.records import LEFT_OUT, Count
from ..files.shipped import located

_BIG = 16 << 20  # source files above this are not read for their lines


class SourcedError(ScheduleError):
    """Mistakes in texts that cannot be read again, such as standard input; `texts` are theirs by path.

    `kind` is the class of the error that it stands for.
    """

    def __init__(self, diagnostics: tuple[Diagnostic, ...], texts: Mapping[str, str], kind: str) -> None:
        super().__init__(diagnostics)
        self.texts = texts
        self.kind = kind


@contextmanager
def sourced(texts: Mapping[str, str]) -> Iterator[None]:
    """Mistakes that are found in the block take along the texts that they point into."""
    try:
        yield
    except ScheduleError as error:
        if not texts or isinstance(error, SourcedError):
            raise
        raise SourcedError(error.diagnostics, texts, type(error).__name__) from error


class Sources:
    """The lines that spans point at. `known` holds texts that are not files, such as standard input."""

    def __init__(self, known: Mapping[str, str] | None = None) -> None:
        self._lines = {path: text.splitlines() for path, text in (known or {}).items()}

    def line(self, span: Span) -> str | None:
        """The span's first line, or None where there is no such text any more."""
        if span.path not in self._lines:
            self._lines[span.path] = _read_lines(span.path)
        lines = self._lines[span.path]
        return lines[span.line - 1] if 0 < span.line <= len(lines) else None


def show_place(span: Span) -> str:
    """`file:line:column`, from here if the file is below here."""
    return f"{show_path(span.path)}:{span.line}:{span.column}"


def show_path(path: str) -> str:
    """A path where the file is: from the current folder on if it is below that. Shipped schedules, which plans and
    traces call the same on every machine, may be in an installed package."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # the folder is gone
        return path
    found = located(path)
    path = path if found == Path(path) else str(found)
    return path.removeprefix(here) if os.path.isabs(path) else path


def show_paths(text: str) -> str:
    """A message with `show_path` for the shipped schedules in it."""
    return re.sub(r"(?<![\w/])schedules/[\w/.-]+", lambda found: show_path(found[0]), text)


def _read_lines(name: str) -> list[str]:
    path = located(name)
    try:
        if os.path.getsize(path) > _BIG or not os.path.isfile(path):
            return []
        return path.read_bytes().decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRecord:
    """What a diagnostic adds, with its place if it has one.

    path: The file as the command line, or the library, names it.
    line: From 1.
    column: From 1.
    end_column: Behind the last character.
    """

    message: str = ""
    path: str = LEFT_OUT
    line: Count = LEFT_OUT
    column: Count = LEFT_OUT
    end_line: Count = LEFT_OUT
    end_column: Count = LEFT_OUT


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosticRecord:
    """A mistake or a warning, with its place in a schedule.

    path: The file as the command line, or the library, names it.
    line: From 1.
    column: From 1.
    end_column: Behind the last character.
    help: A way out.
    """

    path: str = ""
    line: Count = 0
    column: Count = 0
    end_line: Count = 0
    end_column: Count = 0
    message: str = ""
    notes: tuple[NoteRecord, ...] = ()
    help: str | None = None


def diagnostic_records(diagnostics: Iterable[Diagnostic]) -> tuple[DiagnosticRecord, ...]:
    """Diagnostics as JSON knows them."""
    return tuple(
        DiagnosticRecord(
            **asdict(d.span),
            message=d.message,
            notes=tuple(NoteRecord(message=n.text, **(asdict(n.span) if n.span else {})) for n in d.notes),
            help=d.help,
        )
        for d in diagnostics
    )
