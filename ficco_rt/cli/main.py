"""The two commands' outermost layer: every ending becomes an exit code, and every error clean words.

0 ok · 1 the schedule is wrong · 2 usage · 3 device · 4 the numbers are wrong · 5 our bug · 130 Ctrl-C
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from .. import env

INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell shows for a command that SIGPIPE ended


def ficco_run() -> NoReturn:
    """The command `ficco-run`."""
    sys.exit(execute("ficco-run", sys.argv[1:]))


def ficco() -> NoReturn:
    """The command `ficco`."""
    sys.exit(execute("ficco", sys.argv[1:]))


def execute(program: str, arguments: Sequence[str]) -> int:
    """Run a command line; its exit code. All output is flushed."""
    from .app import ficco as verbs
    from .app import run

    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="replace")  # a terminal that lacks a character gets a '?', not a traceback
    if env.get("FICCO_DEBUG"):
        logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s")
    as_json = "--json" in arguments
    try:
        code = _invoke(run if program == "ficco-run" else verbs, program, list(arguments), as_json)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # the reader has gone; a second flush at exit must not complain either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{program}: interrupted\n")
        return INTERRUPTED


def _invoke(command: click.Command, program: str, arguments: list[str], as_json: bool) -> int:
    verb = arguments[0] if arguments else ""
    name = f"{program} {verb}" if verb in getattr(command, "commands", ()) else program
    try:
        with command.make_context(program, arguments) as context:
            result = command.invoke(context)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, click.Abort):
        raise KeyboardInterrupt from None
    except BrokenPipeError:
        raise
    except click.ClickException as error:
        from .report import report_usage

        return report_usage(error, name, as_json)
    except Exception as error:  # noqa: BLE001  the last line of defence: what is left is our bug and says so
        from .report import report_error

        return report_error(error, name, as_json)
