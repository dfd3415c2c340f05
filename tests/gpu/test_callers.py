"""Schedules under every caller: on the GPUs of this machine, with a time limit on everything.

threads: each thread makes an executor, runs it, on streams and as a graph in turn, waits after each run or after
several, verifies it on fresh integers, closes it and takes another schedule's. No run waits for another thread's by our
doing: all eight use the same GPUs at once. `--long 20` starts 20 processes, one after another.

foreign: PyTorch's matrix products on another stream of each GPU, NCCL's all-reduce on a third one, and between them
runs of a schedule, on streams and as a graph in turn. The result must be in every bit what it is alone. Streamed stages
leave NCCL its multiprocessors (by `sms` in the text): docs/embed/reference.md says why. Where ranks share a GPU, a run
as a graph may take three times as long as on streams: a graph's own copies inside a GPU would stand behind all blocks
of the products. A part of the schedules is run each day, all with FICCO_ALL=1.
"""

from __future__ import annotations

from datetime import date

import pytest

from tests import cases
from tests.gpu import callers
from tests.gpu.apart import apart

THREADS, EXECUTORS, RUNS = 8, 2, 200  # of a process; of a thread, in turn; of a thread
LIMIT = 120  # seconds of a process: kernels are compiled in the first
FOREIGN_RUNS, FOREIGN_LIMIT = 40, 25  # of a schedule; seconds of it
ROOM = 32  # multiprocessors that are left to other libraries
STARTS = 150  # seconds for PyTorch, NCCL and the first kernels
DAYS = 6  # in which each schedule has its turn


def test_threads(backend: str, ranks: int, each: int, long: int) -> None:
    for number in range(long):
        count = date.today().toordinal() + number
        apart(callers.threads, backend, ranks, each, count, THREADS, EXECUTORS, RUNS, LIMIT, limit=LIMIT)


@pytest.mark.torch
def test_foreign(backend: str, ranks: int, each: int, long: int) -> None:
    names = callers.NAMES if cases.ALL else callers.NAMES[date.today().toordinal() % DAYS :: DAYS]
    limit, runs = FOREIGN_LIMIT * long, FOREIGN_RUNS * long
    apart(callers.foreign, backend, ranks, each, names, runs, ROOM, limit, limit=STARTS + limit * len(names))
