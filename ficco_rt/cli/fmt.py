"""`ficco fmt`: format schedules."""

from __future__ import annotations

import sys
from pathlib import Path

from ..errors import ScheduleError, UsageError
from ..files.atomic import is_special, read_bytes, write_atomic
from ..report.request import STDIN, read_stdin
from ..report.sources import SourcedError


def fmt(files: tuple[str, ...], check_only: bool) -> int:
    """Format every file that parses; the errors of the others are told together at the end."""
    import ficco_dsl

    mistakes: list[ficco_dsl.Diagnostic] = []
    texts: dict[str, str] = {}
    changed = 0
    for name in files:
        if name != "-" and not check_only and is_special(Path(name)):
            raise UsageError(f"{name}: is no file that could be rewritten; 'ficco fmt -' formats standard input")
        data = read_stdin() if name == "-" else read_bytes(name)
        path = STDIN if name == "-" else name
        try:
            ficco_dsl.parse_bytes(data, path)  # says where bytes are not UTF-8, too
            text = data.decode("utf-8-sig")
            formatted = ficco_dsl.format_text(text, path)
        except ScheduleError as error:
            mistakes += error.diagnostics
            texts[path] = data.decode("utf-8", "replace")
            continue
        differs = formatted != text
        changed += differs
        if name == "-" and not check_only:
            sys.stdout.write(formatted)
        elif differs and check_only:
            sys.stdout.write(f"would format {path}\n")
        elif differs:
            write_atomic(name, formatted)
            sys.stdout.write(f"formatted {path}\n")
    if mistakes:
        raise SourcedError(tuple(mistakes), texts, "ScheduleError")
    return 1 if check_only and changed else 0
