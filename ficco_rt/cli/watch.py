"""`ficco watch`: prove, check and model a schedule again whenever its file is saved."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ..errors import UsageError
from ..files.atomic import PAGE, check_outputs, write_atomic
from ..report.job import compile_job
from ..report.request import Request, read
from ..report.wording import show_time
from .console import Progress, Style
from .job_runs import modelled_run
from .messages import as_ours, error_text, say, warn
from .result import Result, record, report
from .run import sketched, with_arrows

EVERY = 0.25  # seconds between two looks at the file
GONE = 4  # looks for which it is not there, until that is told: editors take a moment to put a new one there
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"

Stamp = tuple[int, int, int]  # of a file: time of its last change, size, inode


def watch(
    target: str, gpus: int | None, settings: tuple[str, ...], machine: str | None, output: str | None
) -> int:  # fmt: skip
    """Until Ctrl-C. A wrong schedule is answered with its messages; only what is wrong before the first look ends the
    command."""
    file = read(target).file
    if isinstance(file, int) or not Path(file).is_file():
        raise UsageError(f"{target}: cannot be saved again; watch takes a file")
    check_outputs([(PAGE, output)], [file])
    progress = Progress()
    seen: Stamp | None = None
    last: Result | None = None  # of the last schedule that was right
    first = True
    absent = 0
    while True:
        stamp = _stamp(Path(file))
        absent = 0 if stamp is not None else absent + 1
        if absent == GONE:
            seen = None  # the same file may come back
            gone = UsageError(f"{target}: the file is gone; the watch goes on when it is back, Ctrl-C ends it")
            _tell_wrong(target, gone, last, output)
        if stamp is not None and stamp != seen:
            seen = stamp
            try:
                job = compile_job(Request.of(target, gpus, settings, machine), progress.step)
                last = _draw(target, with_arrows(modelled_run(job, 0, progress)), last, output)
            except UsageError as error:
                if first:
                    raise
                _tell_wrong(target, error, last, output)
            except Exception as error:  # noqa: BLE001  told, then the next save has its turn
                _tell_wrong(target, as_ours(error), last, output)
            first = False
        time.sleep(EVERY)


def _stamp(file: Path) -> Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _draw(target: str, result: Result, last: Result | None, output: str | None) -> Result:
    style = Style(sys.stdout)
    _head(target, style)
    sys.stdout.write(report(result, style))
    if last is not None and last.plan_hash != result.plan_hash and last.time:
        change = 100 * (result.time / last.time - 1)
        sys.stdout.write(f"  before   {show_time(last.time)}; this takes {change:+.1f} %\n")
    sys.stdout.write(sketched(result, style))
    sys.stdout.flush()
    warn(result.job.warnings, result.job.texts)
    _write(target, result, None, output)
    return result


def _tell_wrong(target: str, error: Exception, last: Result | None, output: str | None) -> None:
    _head(target, Style(sys.stdout))
    sys.stdout.flush()
    words = error_text(error, "ficco watch")
    say(words)
    _write(target, last, words, output)


def _head(target: str, style: Style) -> None:
    """The time of the look, on an empty screen where there is one."""
    clear = _CLEAR if style.on else ""
    sys.stdout.write(f"{clear}{style(time.strftime('%H:%M:%S'), 'dim')} {target}\n")


def _write(target: str, result: Result | None, wrong: str | None, output: str | None) -> None:
    if output is None:
        return
    from ..report.tracefile import kept
    from .page.page_run import of_run
    from .page.write import Watched, page

    runs = [] if result is None else [of_run(target, record(result), kept(result.trace))]
    write_atomic(output, page(runs, Watched(target, time.strftime("%H:%M:%S"), wrong)))
