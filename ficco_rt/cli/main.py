"""The entry points of both commands: every outcome becomes an exit code, and every error a readable message.

0 ok · 1 the schedule is wrong · 2 usage · 3 device · 4 the numbers are wrong · 5 our bug · 130 Ctrl-C
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TextIO, cast

import click
from click.shell_completion import shell_complete

from .. import env

INTERRUPTED = 130
NO_OUTPUT = 3  # a device: the disk is full
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

    if sys.stderr is None:  # closed by the shell
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  until the process ends
    if sys.stdout is None:
        sys.stderr.write(f"{program}: standard output is closed\n")
        return NO_OUTPUT
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="replace")  # a terminal that lacks a character gets a '?', not a traceback
    if env.get("FICCO_DEBUG"):
        logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s")
    as_json = "--json" in arguments
    stdout, unraisable = sys.stdout, sys.unraisablehook
    sys.stdout = cast(TextIO, _Output(stdout))
    sys.unraisablehook = lambda caught: _repeat_interrupt(caught) or unraisable(caught)
    try:
        code = _invoke(run if program == "ficco-run" else verbs, program, list(arguments), as_json)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _forget(stdout)  # the reader has gone
        return BROKEN_PIPE
    except _OutputError as error:
        _forget(stdout)
        with suppress(OSError):
            sys.stderr.write(f"{program}: {error}\n")
        return NO_OUTPUT
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{program}: interrupted\n")
        return INTERRUPTED
    finally:
        sys.stdout, sys.unraisablehook = stdout, unraisable
        try:
            sys.stderr.flush()
        except OSError:
            _forget(sys.stderr)


def _repeat_interrupt(caught: sys.UnraisableHookArgs) -> bool:
    """NOTE Python drops a Ctrl-C that arrives in a destructor or in the callback of a weak reference. It is sent to the
    main thread again once that is over, unless the command has ended by then. Returns whether it was a Ctrl-C."""
    if caught.exc_type is not KeyboardInterrupt:
        return False
    hook = sys.unraisablehook

    def send() -> None:
        if sys.unraisablehook is hook and (main := threading.main_thread().ident) is not None:
            signal.pthread_kill(main, signal.SIGINT)

    again = threading.Timer(0.01, send)
    again.daemon = True
    again.start()
    return True


class _OutputError(Exception):
    """Standard output cannot be written: its disk is full, say."""


class _Output:
    """Standard output with its errors told from those of other files; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _telling():
            return self._stream.write(text)

    def flush(self) -> None:
        with _telling():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise _OutputError(f"standard output cannot be written: {reason[:1].lower()}{reason[1:]}") from error


def _forget(stream: TextIO) -> None:
    """Whatever is still to be written goes nowhere: the flush at exit must not complain as well."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _invoke(command: click.Command, program: str, arguments: list[str], as_json: bool) -> int:
    variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
    wanted = env.others(variable)
    if wanted:  # a shell asks: bash_source, bash_complete, …
        return shell_complete(command, {}, program, variable, wanted)
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
    except (BrokenPipeError, _OutputError):
        raise
    except click.ClickException as error:
        from .messages import report_usage

        return report_usage(error, name, as_json)
    except Exception as error:  # noqa: BLE001  the last line of defence: what is left is our bug and says so
        from .messages import report_error

        return report_error(error, name, as_json)
