"""Processes with a time limit, which tell what they did line by line."""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ficco_rt.errors import DeviceError, InternalError, NumbersError, ScheduleError, UsageError

ERRORS = (DeviceError, InternalError, NumbersError, ScheduleError, UsageError)
ROOT = Path(__file__).resolve().parents[2]
DUMP = 5  # seconds before the limit, at which a process shows where its threads stand


@dataclass(frozen=True, slots=True)
class Told:
    """What a process says of one thing it did; `error` is empty if it is right. `times`: median milliseconds of a run
    on streams and as a graph, from before the foreign work to the end of the run."""

    name: str
    runs: int
    seconds: float
    error: str
    times: tuple[float, ...] = ()


def tell(told: Told) -> None:
    """In the child."""
    sys.stdout.write(json.dumps(asdict(told)) + "\n")
    sys.stdout.flush()


def limited(seconds: float) -> None:
    """In the child: show all threads' stacks and end, if it takes so long."""
    faulthandler.dump_traceback_later(seconds, exit=True)


def run(arguments: Sequence[str], limit: float) -> tuple[list[Told], str]:
    """A child: what it told, and why it did not end well, or nothing."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.callers", *arguments], stdout=out, stderr=err, cwd=ROOT, env=os.environ
        )
        why = ""
        try:
            process.wait(limit + DUMP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        out.seek(0)
        err.seek(0)
        said = [Told(**json.loads(line)) for line in out.read().splitlines() if line.startswith("{")]
        if process.returncode:
            text = err.read()
            hangs = "Timeout (" in text or process.returncode < 0
            why = (f"HANG: not over after {limit:.0f} s" if hangs else f"exit code {process.returncode}") + f"\n{text}"
        return said, why
