"""Prints errors: diagnostics with their source lines for people, or one object on stdout with --json."""

from __future__ import annotations

import platform
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

import click

from ficco_dsl.diagnostics import Diagnostic

from .. import __version__, env
from ..errors import DeviceError, NumbersError, ScheduleError, UsageError, exit_code
from ..files.records import json_text
from ..report.sources import DiagnosticRecord, SourcedError, Sources, diagnostic_records, show_paths
from ..report.wording import count
from .console import Style, show_diagnostic

_LEAD: dict[type[Exception], str] = {DeviceError: "device error: ", NumbersError: "the numbers are wrong: "}


def report_usage(error: click.ClickException, program: str, as_json: bool) -> int:
    """A command line that click refuses."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else program
    message = error.format_message()
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        sys.stderr.write(message + "\n")
    elif as_json:
        print_json(Failure(ErrorRecord(class_="UsageError", exit_code=2, message=message)))
    else:
        message = message[:1].lower() + message[1:].rstrip(".")
        say(f"{path}: {message}\ntry '{path} --help'")
    return 2


def report_error(error: Exception, program: str, as_json: bool) -> int:
    """Any other error; its exit code."""
    error = as_ours(error)
    code = exit_code(error)
    if code == 5 and env.get("FICCO_DEBUG"):
        traceback.print_exception(error)
    if as_json:
        print_json(Failure(error_record(error)))
    else:
        say(error_text(error, program))
    return code


def as_ours(error: Exception) -> Exception:
    """Converts errors of the operating system about files or memory into errors that are not reported as our bugs."""
    if isinstance(error, OSError) and error.filename is not None:
        return UsageError(f"{error.filename}: {error.strerror}")
    if isinstance(error, MemoryError):
        return DeviceError(f"this machine's memory is too small: {error}".rstrip(": "))
    return error


def error_text(error: Exception, program: str) -> str:
    """The error in words for people."""
    if isinstance(error, ScheduleError):
        sources = Sources(error.texts if isinstance(error, SourcedError) else None)
        style = Style(sys.stderr)
        told = [show_diagnostic(d, sources, style) for d in error.diagnostics]
        return "\n".join(told if len(told) == 1 else [*told, count(len(told), "error")])
    if exit_code(error) == 5:
        return f"{program}: {_bug(error)}"
    return f"{program}: {_LEAD.get(type(error), '')}{show_paths(str(error))}"


def error_class(error: Exception) -> str:
    """The name of the error's class, of `ficco_rt.errors`."""
    return error.kind if isinstance(error, SourcedError) else type(error).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """Why a command has failed.

    class: Of ficco_rt.errors, such as ScheduleError.
    exit_code: 1 the schedule is wrong, 2 usage, 3 device or driver, 4 the numbers are wrong, 5 a bug of ours.
    diagnostics: All mistakes of a schedule.
    """

    class_: str = ""
    exit_code: Literal[1, 2, 3, 4, 5] = 5
    message: str
    diagnostics: tuple[DiagnosticRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """What any command with --json prints where nothing else can be said. `ficco-run` adds the same `error` to a run
    whose numbers are wrong."""

    error: ErrorRecord


def error_record(error: Exception) -> ErrorRecord:
    """The error as JSON knows it."""
    code: Any = exit_code(error)
    message = _bug(error) if code == 5 else str(error)
    found = diagnostic_records(error.diagnostics) if isinstance(error, ScheduleError) else ()
    return ErrorRecord(class_=error_class(error), exit_code=code, message=message, diagnostics=found)


def warn(diagnostics: Iterable[Diagnostic], texts: Mapping[str, str]) -> None:
    """Warnings go to stderr, with or without --json. `texts` are those that are not files."""
    sources, style = Sources(texts), Style(sys.stderr)
    for diagnostic in diagnostics:
        say(show_diagnostic(diagnostic, sources, style, "warning: "))


def tell(as_json: bool, record: Callable[[], object], words: Callable[[Style], str]) -> int:
    """Prints a command's result on stdout: as one JSON object, or in words. Returns its exit code, 0."""
    if as_json:
        print_json(record())
    else:
        sys.stdout.write(words(Style(sys.stdout)))
    return 0


def print_json(value: object) -> None:
    """Prints one object on stdout, on one line; numbers that JSON cannot represent become null."""
    sys.stdout.write(json_text(value) + "\n")


def _bug(error: Exception) -> str:
    """What a bug report needs."""
    lines = ["this is a bug in ficco", f"  {type(error).__name__}: {error}"]
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        file = PurePath(frames[-1].filename)
        lines.append(f"  at {file.parent.name}/{file.name}:{frames[-1].lineno}, {frames[-1].name}")
    lines.append(f"  ficco {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    lines.append("  please report it with these lines, the command and the schedule (CONTRIBUTING.md says where);")
    lines.append("  FICCO_DEBUG=1 adds the traceback")
    return "\n".join(lines)


def say(text: str) -> None:
    """Prints a line on stderr, after everything written to stdout so far. If nobody can read it, the exit code must
    suffice."""
    sys.stdout.flush()
    with suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
