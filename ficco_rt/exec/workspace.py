"""What executors on the same GPUs share: a model's hundreds of operations take the memory of the largest one."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import get_ident
from types import TracebackType
from typing import Self
from weakref import WeakSet, finalize

from ..driver.api import DriverName, Options, SharedWorkspace
from ..driver.gpu.refused import Closing
from ..driver.registry import VENDORS, discover, open_workspace
from ..errors import DeviceError, UsageError
from ..files.arguments import positive, seconds
from ..machine.profiles import DEFAULT, chosen
from ..process.group import Group, as_group

TIMEOUT = 60.0  # seconds that a run on GPUs may take, if nothing else is said


class Closable(ABC):
    """What a `with` closes. An error of the body is the one to tell."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(DeviceError, UsageError):
            self.close()


class User:
    """The thread that is in a call; 0: none is."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = 0


class Workspace(Closable):
    """GPUs with all that executors on them can share: streams, events, loaded kernels, semaphores, scratch, and memory
    for partial sums. `Executor(plan, workspace=…)` runs a plan there.

    Executors of a workspace run one after another, in the order of their calls: each may follow any other, on streams,
    as graphs, and in graphs that you capture. Order the streams of graphs that you replay yourself. Scratch is the
    largest that any of the plans needs, not the sum, so `read` of scratch and a trace are those of the last run of all.

    On the host (`driver="host"`) executors share nothing, and take turns all the same: a program can be tried there.

    `ranks` is that of all plans. `driver`, `ranks_per_gpu`, `group` and `timeout` are as for an `Executor`. `limit` is
    the most bytes of each GPU that the workspace may hold; an executor or a binding that needs more is refused. In a
    group, all processes make the same executors and bindings in the same order; a run then ends when all processes have
    ended theirs, which takes some microseconds.

    Raises UsageError (no such driver), DeviceError (GPUs are too few; memory).
    """

    def __init__(
        self,
        ranks: int,
        driver: DriverName = "cuda",
        *,
        ranks_per_gpu: int = 1,
        group: object = None,
        timeout: float | None = TIMEOUT,
        limit: int | None = None,
    ) -> None:
        if driver not in (*VENDORS, "host"):
            raise UsageError(f"there is no driver {driver!r}; there are {', '.join(('host', *VENDORS))}")
        on_gpus = driver in VENDORS
        self.ranks = positive(ranks, "ranks", "ranks")
        if limit is not None:
            positive(limit, "limit", "bytes")
        self.group: Group | None = None if group is None else as_group(group)
        size = 1 if self.group is None else self.group.size
        found = discover(driver, self.ranks, ranks_per_gpu, size) if on_gpus else DEFAULT
        self.machine = chosen(found, self.ranks)
        self.driver: DriverName = driver
        self.timeout = timeout = seconds(timeout, "timeout")
        options = Options(ranks_per_gpu=ranks_per_gpu, timeout=timeout, group=self.group)
        self.shared = open_workspace(driver, self.ranks, self.machine.node, options, limit) if on_gpus else None
        self._finalizer = None if self.shared is None else finalize(self, _forgotten, self.shared)
        self._closed = False
        self.user = User()
        self._executors: WeakSet[Closable] = WeakSet()

    def add(self, executor: Closable) -> None:
        """The executor is closed with the workspace. Raises nothing."""
        self._executors.add(executor)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, the calling thread alone uses the workspace. Raises UsageError (another one does)."""
        me, before = get_ident(), self.user.thread
        if before and before != me:
            raise UsageError(
                "another thread is using the workspace, which takes one thread at a time: make a workspace for each "
                "thread, or keep threads apart by a threading.Lock"
            )
        try:
            self.user.thread = me
            yield
        finally:
            self.user.thread = before

    def still_open(self) -> None:
        """Raises UsageError (it is closed)."""
        if self._closed:
            raise UsageError("the workspace is closed; make a new one")

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes on the GPU of this process that holds most, by kind: `scratch` and `semaphores`, which other GPUs write
        to, too; `tables` of launches, `partial sums` of GEMMs whose K is split, workspaces of a vendor's `library`,
        `staging` for rows that an `Operation` copies, and `tensors` that executors hold for `write` and `read`. Sizes
        are those that were asked for. On the host there are none.

        Raises UsageError (the workspace is closed).
        """
        self.still_open()
        return {} if self.shared is None else dict(self.shared.memory)

    def close(self) -> None:
        """Close all executors of the workspace, and release everything; may be called twice.

        Raises DeviceError (the devices still run something that does not end, or refuse to give something back).
        """
        self._closed = True
        if self._finalizer is not None:
            self._finalizer.detach()
        with Closing() as closing:
            for executor in list(self._executors):
                closing(executor.close)
            if self.shared is not None:
                closing(self.shared.close)


def _forgotten(shared: SharedWorkspace) -> None:
    """Nobody has closed the workspace."""
    try:
        warnings.warn("a workspace was not closed: call close(), or use `with`", ResourceWarning, 2)
    finally:
        shared.drop()
