"""A function in a process of its own, with a time limit: no context, fault or hang passes to other tests."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FALSE = 3  # the exit code of a process whose function returned False
WHY = {FALSE: "it returned False", 1: "an error, or its time was over", -signal.SIGKILL: "its time was over"}
DUMP = 5  # seconds from the limit, when the process shows where its threads are, to its end


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a process that imports this checkout, also where another one is installed. The caller's path comes after."""
    paths = [str(ROOT), str(ROOT / "dsl"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(more or {})}


def apart(
    function: Callable[..., bool], *arguments: object, limit: float, variables: Mapping[str, str] | None = None
) -> None:
    """Call a function of a module, with arguments that JSON carries, where these variables are set. AssertionError: it
    returns False, raises, or takes longer than `limit` seconds. What it prints is printed."""
    asked = json.dumps([function.__module__, function.__name__, limit, arguments])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gpu.apart", asked], cwd=ROOT, env=environment(variables), start_new_session=True
    )
    try:
        code = process.wait(limit + DUMP)
    except subprocess.TimeoutExpired:
        code = -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
        process.wait()
    assert code == 0, f"{function.__name__}: {WHY.get(code, f'it ended with code {code}')}; its limit is {limit:g} s"


def main(asked: str) -> int:
    """In the process. After the limit the stack of each thread is shown."""
    module, name, limit, arguments = json.loads(asked)
    function = getattr(importlib.import_module(module), name)
    faulthandler.dump_traceback_later(limit, exit=True)
    return 0 if function(*arguments) else FALSE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
