"""What random programs cost the compiler, each under limits of processor time and memory, in a process that lives on.

    python -m tests.fuzz.cost --minutes 60 --seed 1     # by hand: figures, and what went beyond a limit
    python -m tests.fuzz.cost --one 12345               # one program: its text, and where its time goes

The limits go with FICCO_MAX_OPS: 20 s and 2 GB at its default. The time grows as the compiler's does, to 60 s from 16
to 256 ranks, and no further; the memory does not.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ficco_rt.graph.budget import MOST_RANKS, RANKS
from tests.fuzz.costly import Program, program

ROOT = Path(__file__).parents[2]
DEFAULT_OPS = 500_000
SECONDS, GIGABYTES = 20.0, 2.0  # at the default
MOST_GROWTH = 3.0  # of the seconds, for many ranks
FIXED_SECONDS, FIXED_GIGABYTES = 3.0, 0.25  # reading the longest text, and Python with its modules
RECYCLED = 200  # programs of a process


def seconds_allowed(ops: int, ranks: int = 1) -> float:
    """Of processor time."""
    beyond = min(1.0, max(0.0, (ranks - RANKS) / (MOST_RANKS - RANKS)))
    return (FIXED_SECONDS + (SECONDS - FIXED_SECONDS) * ops / DEFAULT_OPS) * (1 + (MOST_GROWTH - 1) * beyond)


def gigabytes_allowed(ops: int) -> float:
    return FIXED_GIGABYTES + (GIGABYTES - FIXED_GIGABYTES) * ops / DEFAULT_OPS


@dataclass(frozen=True, slots=True)
class Cost:
    """What one program cost. `at`: where it was when it went beyond its time."""

    code: int
    seconds: float
    gigabytes: float
    said: str
    at: str = ""


class OutOfTime(BaseException):
    """Not an Exception: nothing of ours may catch it."""


# ---------------------------------------------------------------- the process that compiles


def serve() -> None:
    """Answer requests, a line each: seconds that the command may take, and its words."""
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))

    def stop(_: int, __: FrameType | None) -> None:
        raise OutOfTime

    signal.signal(signal.SIGPROF, stop)
    out = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        limit, *command = json.loads(line)
        print(json.dumps(_answer(command, limit)), file=out, flush=True)


def _answer(command: Sequence[str], limit: float) -> dict[str, object]:
    from ficco_rt.cli.main import execute

    said, at, code = io.StringIO(), "", -1
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    begin = time.process_time()
    try:
        signal.setitimer(signal.ITIMER_PROF, limit)
        with redirect_stdout(io.StringIO()), redirect_stderr(said):
            code = execute(command[0], command[1:])
    except (OutOfTime, MemoryError) as error:
        frames = traceback.extract_tb(error.__traceback__)[-8:]
        at = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - begin
    return {"code": code, "seconds": seconds, "gigabytes": _peak(), "said": said.getvalue()[:1000], "at": at}


def _peak() -> float:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1e6


class Worker:
    """A process that compiles program after program."""

    def __init__(self, ops: int) -> None:
        self.ops, self.done = ops, 0
        environment = {**os.environ, "FICCO_MAX_OPS": str(ops), "PYTHONPATH": f"{ROOT}:{ROOT / 'dsl'}"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.cost", "--serve"],
            cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.folder = tempfile.TemporaryDirectory()

    def cost(self, made: Program) -> Cost:
        path = Path(self.folder.name) / "costly.ficco"
        path.write_text(made.text or "", encoding="utf-8")
        command = [str(path) if word == "FILE" else word for word in made.command]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        limit = 1.5 * seconds_allowed(self.ops, made.ranks)
        self.process.stdin.write(json.dumps([limit, *command]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        self.done += 1
        if not line:
            return Cost(-1, 0.0, 0.0, "", f"the process died: {self.process.wait()}")
        return Cost(**json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()
        self.folder.cleanup()


# ---------------------------------------------------------------- by hand


def too_dear(cost: Cost, ops: int, ranks: int) -> str | None:
    """What a program has broken, if anything."""
    seconds, gigabytes = seconds_allowed(ops, ranks), gigabytes_allowed(ops)
    if cost.at or cost.seconds > seconds:
        return f"{cost.seconds:.1f} s of {seconds:.1f}"
    if cost.gigabytes > gigabytes:
        return f"{cost.gigabytes:.2f} GB of {gigabytes:.2f}"
    if cost.code not in (0, 1, 2):
        return f"exit code {cost.code}"
    return None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=1.0, metavar="N", help="how long to go on")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="the first program's seed")
    parser.add_argument("--ops", type=int, default=DEFAULT_OPS, metavar="N", help="FICCO_MAX_OPS; fewer is faster")
    parser.add_argument("--one", type=int, metavar="SEED", help="one program alone")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve()
        return 0
    if options.one is not None:
        return _one(options.one, options.ops)
    return _many(options.seed, options.minutes, options.ops)


def _one(seed: int, ops: int) -> int:
    made, worker = program(seed, ops), Worker(ops)
    cost = worker.cost(made)
    worker.close()
    print(str(made)[:4000])
    print(f"exit code {cost.code}, {cost.seconds:.2f} s, {cost.gigabytes:.2f} GB {cost.at}\n{cost.said}")
    return 1 if too_dear(cost, ops, made.ranks) else 0


def _many(seed: int, minutes: float, ops: int) -> int:
    end, worker = time.monotonic() + 60 * minutes, Worker(ops)
    count = found = refused = 0
    slowest = {"few": (0.0, 0), "many": (0.0, 0)}  # by ranks: the limit of `few` is the plain one
    largest = (0.0, 0)
    while time.monotonic() < end:
        made = program(seed, ops)
        cost = worker.cost(made)
        count, refused = count + 1, refused + (cost.code != 0)
        ranks = "few" if made.ranks <= RANKS else "many"
        slowest[ranks] = max(slowest[ranks], (cost.seconds, seed))
        largest = max(largest, (cost.gigabytes, seed))
        wrong = too_dear(cost, ops, made.ranks)
        if wrong:
            found += 1
            print(f"seed {seed}: {wrong}; {cost.at or cost.said[:200]!r}", flush=True)
        if worker.done >= RECYCLED or worker.process.poll() is not None or cost.gigabytes > GIGABYTES / 2:
            worker.close()
            worker = Worker(ops)
        seed += 1
    worker.close()
    (few, few_seed), (many, many_seed) = slowest.values()
    print(
        f"{count} programs, {refused} refused; slowest {few:.1f} s (seed {few_seed}) on up to {RANKS} ranks and "
        f"{many:.1f} s (seed {many_seed}) on more, most memory {largest[0]:.2f} GB (seed {largest[1]}); {found} beyond "
        f"{seconds_allowed(ops):.1f} s, which is {seconds_allowed(ops, MOST_RANKS):.1f} s on {MOST_RANKS} ranks, or "
        f"{gigabytes_allowed(ops):.2f} GB"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
