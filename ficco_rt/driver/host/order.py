"""In which order the host driver takes what may run.

    fifo             as issued
    random(SEED)     any that is ready, by a generator seeded anew for each run
    adversarial      the work that stands latest in the schedule: it comes too early if a wait is missing
    lazy(STREAM)     stream STREAM (its id in the plan) only when nothing else can run, the rest adversarially

`lazy` is exhaustive in a way that seeds are not: when a work of the stream begins at last, all that may
ever run before it has run. A missing wait on that stream's works lets its waiter run first, always.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Protocol, TypeAlias

from ...errors import UsageError
from .tasks import HostJob

SortKey: TypeAlias = tuple[int, ...]


class ReadyPool(Protocol):
    """The works that may run now."""

    def push(self, job: HostJob) -> None: ...

    def pop(self) -> HostJob:
        """The next one to run. IndexError if there is none."""


@dataclass(frozen=True, slots=True)
class StepOrder:
    kind: str
    number: int  # the seed of random, the stream of lazy


def parse_order(text: str) -> StepOrder:
    match = re.fullmatch(r"(fifo|adversarial)|(random|lazy)\(([0-9]+)\)", text.strip())
    if match is None:
        raise UsageError(
            f"'{text}' is no order; there are fifo, adversarial, random(SEED) and lazy(STREAM), e.g. random(7)"
        )
    return StepOrder(match[1] or match[2], int(match[3] or 0))


def ready_pool(order: StepOrder) -> ReadyPool:
    """An empty pool that gives works out in the order."""
    match order.kind:
        case "fifo":
            return _Sorted(lambda job: (job.task.number, job.index))
        case "adversarial":
            return _Sorted(_latest)
        case "lazy":
            lazy = order.number
            return _Sorted(lambda job: (job.task.stream.id == lazy, *_latest(job)))
        case _:
            return _Random(order.number)


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
