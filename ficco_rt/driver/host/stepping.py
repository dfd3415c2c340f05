"""The host driver's steps: jobs run one after another, in the order of a pool of those that may run.

Waits, records and signals are passed at once when they can be; only jobs are chosen among. That loses no order of jobs
that a device could show.
"""

from __future__ import annotations

from time import monotonic

from ..api import OnProgress
from .kernels import collective
from .order import ReadyPool
from .tasks import CollectiveTask, Doing, HostJob, HostSignal, HostStream, RaiseTask, WaitTask, WorkTask


class Stepper:
    """Takes all streams from what is issued to their ends."""

    def __init__(self, streams: list[HostStream], ranks: int, pool: ReadyPool) -> None:
        self.streams = streams
        self.ranks = ranks
        self.pool = pool
        self.waiting = 0  # jobs in the pool
        self.arrived: dict[int, list[CollectiveTask]] = {}  # by group
        self.awake: list[HostStream] = []  # streams whose head may have become ready
        self.current: HostJob | None = None  # for whoever reports an error

    def run(self, progress: OnProgress | None) -> None:
        """Returns when nothing can go on: all is done, or the rest is deadlocked."""
        pool = self.pool
        total = sum(len(t.jobs) if isinstance(t, WorkTask) else 1 for s in self.streams for t in s.queue)
        done, told = 0, monotonic()
        self.awake.extend(reversed(self.streams))
        self._advance_awake()
        while self.waiting:
            self.waiting -= 1
            self.current = job = pool.pop()
            job.run()
            for signal in job.signals:
                self._raise(signal)
            for task in job.tasks:
                task.left -= 1
                if not task.left:
                    task.stream.head += 1
                    self.awake.append(task.stream)
            self._advance_awake()
            done += 1
            if progress is not None and monotonic() - told > 0.2:
                told = monotonic()
                progress(done / total)

    def _advance_awake(self) -> None:
        while self.awake:
            self._advance(self.awake.pop())

    def _advance(self, stream: HostStream) -> None:
        """Pass what only orders; put the jobs of the first task that has some into the pool."""
        queue = stream.queue
        end = len(queue)
        while stream.head < end:
            task = queue[stream.head]
            match task:
                case WorkTask():
                    task.left = len(task.jobs)
                    for job in task.jobs:
                        job.missing = 0
                        for signal in job.waits:
                            if not signal.up:
                                signal.waiters.append(job)
                                job.missing += 1
                        if not job.missing:
                            self.waiting += 1
                            self.pool.push(job)
                    return
                case WaitTask():
                    if not task.signal.up:
                        task.signal.waiters.append(stream)
                        return
                case RaiseTask():
                    self._raise(task.signal)
                case CollectiveTask():
                    arrived = self.arrived.setdefault(task.call.group, [])
                    arrived.append(task)
                    task.left = 1
                    if len(arrived) == self.ranks:
                        self.waiting += 1
                        self.pool.push(_collective_job(arrived))
                    return
            stream.head += 1

    def _raise(self, signal: HostSignal) -> None:
        signal.up = True
        waiters, signal.waiters = signal.waiters, []
        for waiter in waiters:
            if isinstance(waiter, HostJob):
                waiter.missing -= 1
                if not waiter.missing:
                    self.waiting += 1
                    self.pool.push(waiter)
            else:
                self.awake.append(waiter)


def _collective_job(arrived: list[CollectiveTask]) -> HostJob:
    members = sorted(arrived, key=lambda t: t.stream.rank)
    calls = [(t.call, t.dst, t.src) for t in members]
    tasks: list[Doing] = [*sorted(arrived, key=lambda t: t.number)]
    call = calls[0][0]
    return HostJob(lambda: collective(calls), max(c.op for c, _, _ in calls), 0, tasks, call.origin)


def unfinished(streams: list[HostStream]) -> list[HostStream]:
    return [s for s in streams if s.head < len(s.queue)]
