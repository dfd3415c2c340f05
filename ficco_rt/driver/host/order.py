"""The order in which the host driver runs jobs that are ready.

    fifo             as issued
    random(SEED)     any that is ready, by a generator seeded anew for each run
    adversarial      the work that stands latest in the schedule: it comes too early if a wait is missing
    lazy(STREAM)     stream STREAM (its id in the plan) only when nothing else can run, the rest adversarially

`lazy` is exhaustive in a way that seeds are not: when a work of the stream finally begins, everything that may run
before it has already run. If a wait for one of that stream's works is missing, the work that should wait always runs
first.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Protocol, TypeAlias

from ...errors import UsageError
from ...plan.ir import Plan
from .tasks import HostJob

SHOWN = 8  # streams that a message names
SortKey: TypeAlias = tuple[int, ...]


class ReadyPool(Protocol):
    """The works that are ready to run."""

    def push(self, job: HostJob) -> None: ...

    def pop(self) -> HostJob:
        """The next one to run. IndexError if there is none."""


def order_form(text: object) -> str:
    """An order in its own form, `random(7)`, of that or of `random:7`, which a shell leaves alone."""
    given = text.strip() if isinstance(text, str) else ""
    match = re.fullmatch(r"(random|lazy)(?::([0-9]{1,18})|\(([0-9]{1,18})\))", given)
    if match:
        return f"{match[1]}({int(match[2] or match[3])})"
    if given in ("fifo", "adversarial"):
        return given
    raise UsageError(f"order {text}: there are fifo, random:SEED, adversarial and lazy:STREAM, such as random:7")


def host_order(text: str, plan: Plan) -> str:
    """`order_form`, where the plan has the stream that it names."""
    form = order_form(text)
    if form.startswith("lazy(") and int(form[5:-1]) not in (stream.id for stream in plan.streams):
        known = [f"{s.id} ({s.name} of rank {s.rank})" for s in plan.streams]
        if len(known) > SHOWN:
            known[SHOWN - 1 : -1] = ["…"]
        raise UsageError(f"order {text}: the plan has no stream {form[5:-1]}; it has {', '.join(known) or 'none'}")
    return form


def ready_pool(order: str) -> ReadyPool:
    """An empty pool that returns works in the given order. UsageError: there is no such order."""
    kind, _, number = order_form(order).rstrip(")").partition("(")
    match kind:
        case "fifo":
            return _Sorted(lambda job: (job.task.number, job.index))
        case "adversarial":
            return _Sorted(_latest)
        case "lazy":
            lazy = int(number)
            return _Sorted(lambda job: (job.task.stream.plan.id == lazy, *_latest(job)))
        case _:
            return _Random(int(number))


def _latest(job: HostJob) -> SortKey:
    return (-job.op, -job.task.number, -job.index)


class _Sorted:
    def __init__(self, key: Callable[[HostJob], SortKey]) -> None:
        self.key = key
        self.heap: list[tuple[SortKey, int, HostJob]] = []
        self.counter = count()

    def push(self, job: HostJob) -> None:
        heappush(self.heap, (self.key(job), next(self.counter), job))

    def pop(self) -> HostJob:
        return heappop(self.heap)[2]


class _Random:
    def __init__(self, seed: int) -> None:
        self.uniform = random.Random(seed).random
        self.jobs: list[HostJob] = []

    def push(self, job: HostJob) -> None:
        self.jobs.append(job)

    def pop(self) -> HostJob:
        jobs = self.jobs
        i = int(self.uniform() * len(jobs))
        jobs[i], jobs[-1] = jobs[-1], jobs[i]  # IndexError when empty, as promised
        return jobs.pop()
