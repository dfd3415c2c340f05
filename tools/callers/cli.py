"""Schedules under every caller: on the GPUs of this machine, with a time limit on everything.

    python -m tools.callers threads    # 20 processes, one after another, of eight threads with executors of their own
    python -m tools.callers foreign    # every shipped schedule beside PyTorch's products and NCCL's all-reduces

threads: each thread makes an executor, runs it, on streams and as a graph in turn, waits after each run or after
several, verifies it on fresh integers, closes it and takes another schedule's. No run waits for another thread's by our
doing: all eight use the same GPUs at once.

foreign: PyTorch's matrix products on another stream of each GPU, NCCL's all-reduce on a third one, and between them
runs of a schedule, on streams and as a graph in turn. The result must be in every bit what it is alone. Streamed stages
leave NCCL its multiprocessors (`--room`, by `sms` in the text; docs/embed/reference.md). `--room 0` leaves none, to see
what happens then. With `--ranks-per-gpu` ranks share a GPU, and a run as a graph may take three times as long as on
streams: a graph's own copies inside a GPU would stand behind all blocks of the products.

Every process has a time limit: a hang is told, with the stack of each thread, and the rest goes on. A short table comes
last. Exit code 2 for bad arguments, 3 without GPUs or PyTorch, 4 if anything is wrong or hangs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from ficco_rt.driver.registry import VENDORS, device_count

from . import foreign, threads


def main(argv: Sequence[str]) -> int:
    """The process's exit code."""
    options = _parser().parse_args(argv)
    if options.child is None:
        there = device_count(options.backend)
        needed = -(-options.ranks // options.ranks_per_gpu)
        if there < needed:
            sys.stderr.write(f"callers: {needed} GPUs are needed, one a rank (--ranks); here are {there}\n")
            return 3
    if options.what == "foreign" and find_spec("torch") is None:
        sys.stderr.write("callers: foreign needs PyTorch\n")
        return 3
    return threads.main(options) if options.what == "threads" else foreign.main(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="callers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)  # in a process of its own: which part of the work
    what = parser.add_subparsers(dest="what", required=True)
    of_threads = what.add_parser("threads", help="executors in threads")
    of_foreign = what.add_parser("foreign", help="work of other libraries beside runs")
    for one, runs, limit in ((of_threads, 500, 60), (of_foreign, 40, 25)):
        one.add_argument("--backend", choices=list(VENDORS), default="cuda")
        one.add_argument("--ranks", type=_count, default=2, metavar="N", help="one GPU each, or R (2)")
        one.add_argument("--ranks-per-gpu", type=_count, default=1, metavar="R", help="that share a GPU (1)")
        one.add_argument("--runs", type=_count, default=runs, metavar="N", help=f"of a thread, or a schedule ({runs})")
        one.add_argument("--limit", type=_count, default=limit, metavar="S", help=f"seconds of a part ({limit})")
    of_threads.add_argument("--processes", type=_count, default=20, metavar="N", help="one after another (20)")
    of_threads.add_argument("--threads", type=_count, default=8, metavar="N", help="of a process (8)")
    of_threads.add_argument("--executors", type=_count, default=2, metavar="N", help="of a thread, in turn (2)")
    of_foreign.add_argument("--room", type=int, default=32, metavar="N", help="multiprocessors left to others (32)")
    of_foreign.add_argument("--only", default="", metavar="TEXT", help="schedules whose names have this")
    return parser


def _count(text: str) -> int:
    n = int(text)
    if n < 1:
        raise argparse.ArgumentTypeError(f"{n}: 1 or more")
    return n
