"""The thread of a process that opens, polls, aborts and destroys communicators of NCCL and RCCL, for all executors.

NVIDIA's page on thread safety allows one thread at a time to use a communicator, and no concurrent operations on the
communicators of a device. So all such work is queued for a single thread.

An abort ends only when all graphs that hold calls of the communicator are released: never, if a caller keeps one. So an
abort is the last job of its thread: a successor takes over the queue when the job has ended, or after RELIEF seconds.
The abandoned thread waits inside that one call, and makes no other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

from ...errors import DeviceError

RELIEF = 1.0  # seconds that the end of an abort may keep the queue waiting: giving memory back takes half a second


class Job:
    """Work for the owner. `lasts`: it may wait for graphs, and so is the last job of its thread."""

    def __init__(self, work: Callable[[], object], lasts: bool) -> None:
        self.done = threading.Event()
        self.lasts = lasts
        self.error: BaseException | None = None
        self._work = work

    def make(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  raised in the thread that waits for this
            self.error = error
        finally:
            self.done.set()


class Owner:
    """See the module. One a process."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._starting = threading.Lock()
        self._pid = 0  # of the process whose thread it is; 0: no thread was needed yet

    def begin(self, work: Callable[[], object], *, lasts: bool = False) -> Job:
        """Queues work from any thread, without waiting for its end. DeviceError: this process was forked from the
        owner's."""
        if self._pid not in (0, os.getpid()):
            raise DeviceError(
                f"process {self._pid} has opened communicators and has forked this process, in which they do not work; "
                "start processes by another way than fork (multiprocessing: the method spawn)"
            )
        with self._starting:
            if not self._pid:
                self._pid = os.getpid()
                self._appoint(None)
        job = Job(work, lasts)
        self._jobs.put(job)
        return job

    def do(self, work: Callable[[], object]) -> None:
        """Queues work that does not wait for anything, and waits for its end. Raises what the work raises."""
        job = self.begin(work)
        job.done.wait()
        if job.error is not None:
            raise job.error

    def forked(self) -> None:
        """In a forked process, which has none of its threads."""
        self._starting = threading.Lock()

    def _appoint(self, before: Job | None) -> None:
        threading.Thread(target=self._serve, args=(before,), name="ficco communicators", daemon=True).start()

    def _serve(self, before: Job | None) -> None:
        if before is not None:
            before.done.wait(RELIEF)
        while True:
            job = self._jobs.get()
            if job.lasts:
                self._appoint(job)
                return job.make()
            job.make()


OWNER = Owner()
os.register_at_fork(after_in_child=OWNER.forked)
