"""Steps the host driver: runs jobs one after another, in the order given by a pool of ready jobs.

Waits, records and signals are executed as soon as possible; the order chooses among jobs only. Every order of jobs that
a device could show remains possible.
"""

from __future__ import annotations

from time import monotonic

from ..api import OnProgress
from .order import ReadyPool
from .peers import Peers
from .tasks import HostJob, HostSignal, HostStream, RaiseTask, WaitTask, WorkTask


class Stepper:
    """Steps all streams from what is issued to their ends. `peers`: the processes that step other ranks' streams."""

    def __init__(self, streams: list[HostStream], pool: ReadyPool, peers: Peers | None = None) -> None:
        self.streams = streams
        self.pool = pool
        self.peers = peers
        self.waiting = 0  # jobs in the pool
        self.awake: list[HostStream] = []  # streams whose head may have become ready
        self.current: HostJob | None = None  # for whoever reports an error

    def run(self, progress: OnProgress | None) -> None:
        """Returns when nothing can continue: everything is done, or the rest is deadlocked."""
        pool = self.pool
        total = sum(len(t.jobs) if isinstance(t, WorkTask) else 1 for s in self.streams for t in s.queue)
        done, told = 0, monotonic()
        self.awake.extend(reversed(self.streams))
        self._advance_awake()
        while self.waiting or self._others_go_on():
            if self.peers is not None:
                self._hear(self.peers)
            if not self.waiting:
                continue
            self.waiting -= 1
            self.current = job = pool.pop()
            if self.peers is not None:
                self.peers.at(job)
            job.run()
            for signal in job.signals:
                self._raise(signal)
            task = job.task
            task.left -= 1
            if not task.left:
                task.stream.head += 1
                self.awake.append(task.stream)
            self._advance_awake()
            done += 1
            if progress is not None and monotonic() - told > 0.2:
                told = monotonic()
                progress(done / total)

    def _others_go_on(self) -> bool:
        """Nothing can run here: whether what other processes do will let something run."""
        return self.peers is not None and bool(stuck := unfinished(self.streams)) and self.peers.wait(stuck)

    def _hear(self, peers: Peers) -> None:
        """Take note of what other processes have raised."""
        for signal in peers.heard():
            self._up(signal)
        self._advance_awake()

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
            stream.head += 1

    def _raise(self, signal: HostSignal) -> None:
        if self.peers is not None and signal.word is not None:
            self.peers.tell(signal.word)
        self._up(signal)

    def _up(self, signal: HostSignal) -> None:
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


def unfinished(streams: list[HostStream]) -> list[HostStream]:
    return [s for s in streams if s.head < len(s.queue)]
