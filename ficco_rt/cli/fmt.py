"""`ficco fmt`."""

from __future__ import annotations

import sys

from ..errors import ScheduleError
from .files import read_bytes, write_atomic
from .report import SourcedError

STDIN = "<stdin>"


def fmt(files: tuple[str, ...], check_only: bool) -> int:
    """Format every file that parses; the errors of the others are told together at the end."""
    import ficco_dsl

    mistakes: list[ficco_dsl.Diagnostic] = []
    texts: dict[str, str] = {}
    changed = 0
    for name in files:
        data = sys.stdin.buffer.read() if name == "-" else read_bytes(name)
        path = STDIN if name == "-" else name
        try:
            ficco_dsl.parse_bytes(data, path)  # says where bytes are not UTF-8, too
            text = data.decode("utf-8")
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
        raise SourcedError(tuple(mistakes), texts)
    return 1 if check_only and changed else 0
