"""One side of a comparison: a process that answers requests, each a line of JSON.

    PYTHONPATH=CHECKOUT:CHECKOUT/dsl python -P tools/beside/worker.py GPUS RANKS_PER_GPU

The checkout that is measured may be older than this file. So only public functions of ficco_rt are called, and what
is imported besides comes from this file's checkout and imports nothing of ficco_rt. Without GPUs (0) a worker compiles.

A request is `{"do": "turn", "with": {"warmup": 3, …}}`, an answer `{"value": …}` or `{"error": "…"}`. The first answer
comes unasked: it says what is measured with.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ficco_rt
from ficco_rt.compiler import compile_schedule

Handlers = Mapping[str, Callable[..., object]]


def compiled(schedule: str, ranks: int, arguments: dict[str, Any]) -> dict[str, object]:
    """Seconds of the CPU that a compilation takes, and the plan's hash."""
    begun = time.process_time()  # compiling is one thread's work: what else runs on the machine should not count
    plan = compile_schedule(schedule, ranks, arguments)  # what is left open is the text's own in both checkouts
    return {"seconds": time.process_time() - begun, "hash": ficco_rt.plan_hash(plan)}


def handlers(gpus: int, each: int) -> tuple[dict[str, object], Handlers]:
    """What is measured with, and what can be asked for."""
    about: dict[str, object] = {"checkout": str(Path(ficco_rt.__file__).resolve().parents[1])}
    if not gpus:
        return about, {"compile": compiled}
    # ficco_rt and its language are imported from the measured checkout; `tools` must be this one's
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from tools.beside.gpus import Gpus

    side = Gpus(gpus, each)
    asked = (side.load, side.check, side.fill, side.turn, side.host, side.drop)
    return about | side.about(), {"compile": compiled} | {f.__name__: f for f in asked}


def answered(make: Callable[[], object]) -> tuple[bool, str]:
    """Whether it went well, and the line to send."""
    try:
        return True, json.dumps({"value": make()})
    except Exception as error:  # noqa: BLE001  it is told where somebody listens
        if os.environ.get("FICCO_DEBUG"):
            traceback.print_exc()
        return False, json.dumps({"error": f"{type(error).__name__}: {error}"})


def main(arguments: list[str]) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to stderr
    known: dict[str, Callable[..., object]] = {}

    def start() -> object:
        about, asked = handlers(*map(int, arguments))
        known.update(asked)
        return about

    good, line = answered(start)
    print(line, file=answers, flush=True)
    if not good:
        return 1
    for text in sys.stdin:
        request: dict[str, Any] = json.loads(text)
        _, line = answered(lambda request=request: known[request["do"]](**request["with"]))  # type: ignore[misc]
        print(line, file=answers, flush=True)
    if "drop" in known:
        answered(known["drop"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
