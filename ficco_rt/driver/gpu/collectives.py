"""Collectives by the vendor's library, NCCL or RCCL: communicators on a run's devices, and calls of all ranks as one
driver call.

One thread drives all devices, so the calls of all ranks stand in one group: a call outside of a group could wait for
ranks that the same thread comes to later. A call names its communicators by their number in the device plan, and finds
them when it is made: they may have been made again since it was bound.

A collective that fails, or whose peers do not come, is ended by `abort`: its kernels stop waiting. The communicators
are of no use then, and are made again before the next run. Abort returns when no graph holds calls of them any more,
so it has a thread of its own, and who gives a run up gives its graphs back (`Runs`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import NamedTuple

from ... import env
from ...device.ir import Communicator
from ...errors import DeviceError, Span
from ...graph.ir import CallKind
from ...types import TYPES, Dtype
from .collective_library import CollectiveLibrary, Member
from .gpus import Gpus
from .refused import Closing, Refused, concerning
from .vendor import DriverCall, Handle

WARM = 32 << 20  # bytes, at most, of a collective that is made once before any run
SETTLE = 5.0  # seconds that communicators get to leave once no run and no graph holds calls
NTHREADS = "NCCL_NTHREADS"
_READ: list[int | None] = []  # the threads that the library has read, once a process


@contextmanager
def threads_asked(threads: int | None) -> Iterator[None]:
    """Inside, a library that opens its first communicators finds the threads that a queue asks for. DeviceError: the
    process asks for two numbers. NOTE a library reads them once, from the environment, for all communicators."""
    if _READ and _READ[0] != threads:
        said = "its own choice" if _READ[0] is None else _READ[0]
        raise DeviceError(
            f"threads = {'its own choice' if threads is None else threads}: the first communicators of this process "
            f"have {said}, and NCCL and RCCL read NCCL_NTHREADS once; run the other schedule in a process of its own"
        )
    asked = threads is not None and env.ask(NTHREADS, str(threads))
    if threads is not None and env.others(NTHREADS) != str(threads):
        raise DeviceError(f"threads = {threads}, and the environment says {NTHREADS}={env.others(NTHREADS)}")
    try:
        yield
        _READ[:] = [threads]
    finally:
        if asked:
            env.withdraw(NTHREADS)


class _Wanted(NamedTuple):
    """A call that was made ready for. `to`: of a send_recv, by rank, whom it sends to."""

    number: int  # of the communicator
    kind: CallKind
    dtype: Dtype
    elements: int
    to: tuple[int, ...]


class Communicators:
    """The communicators of a device plan's table, each on every rank's device."""

    def __init__(self, gpus: Gpus, library: CollectiveLibrary | None, table: Sequence[Communicator]) -> None:
        self._gpus = gpus
        self._library = library
        self._table = table if library is not None else ()
        self._open: list[list[Handle]] = []  # by number, by rank
        self._places: dict[int, dict[str, None]] = {}  # by number: the collectives of the plan, for people
        self._wanted: dict[_Wanted, None] = {}  # what calls were made ready for
        self._leaving: list[threading.Thread] = []
        self._changing = threading.Lock()  # `abort` comes from other threads

    @property
    def count(self) -> int:
        return sum(map(len, self._open))

    @property
    def aborted(self) -> bool:
        return len(self._open) < len(self._table)

    def ready(self) -> None:
        """They are open; after an abort they are made again."""
        if self._library is None or not self.aborted:
            return
        self.settle()
        with self._gpus.turn(), self._gpus.uncaptured():
            for communicator in self._table[len(self._open) :]:
                self._make(self._library, communicator)
            for wanted in self._wanted:
                self._warm(wanted)

    def _make(self, library: CollectiveLibrary, wanted: Communicator) -> None:
        devices = [self._gpus.device(rank) for rank in range(len(self._gpus.placement.devices))]
        made: list[Handle] = []
        try:
            with concerning(command=f"the communicators of queue {wanted.queue}"):
                unique = library.unique()
                # the library goes back to the context that is current where a group begins
                with self._gpus.inside(devices[0]), threads_asked(wanted.settings.threads), library.group():
                    for rank, device in enumerate(devices):
                        with self._gpus.inside(device):
                            made.append(library.open(len(devices), rank, unique, wanted.settings))
        except BaseException:
            self._abort(made)  # the first error is the one to tell
            raise
        self._open.append(made)

    # ---- calls

    def call(self, number: int, kind: CallKind, members: Sequence[Member], place: Span | None) -> DriverCall:
        """A collective of all ranks, of the schedule's line `place`; `members` by rank."""
        self.ready()
        first = members[0]
        self._places.setdefault(number, {})[f"{kind} ({place.place})" if place is not None else kind] = None
        most = max(1, WARM // TYPES[first.dtype].bytes // len(members))
        wanted = _Wanted(number, kind, first.dtype, min(first.elements or 1, most), tuple(m.to for m in members))
        if wanted not in self._wanted:
            self._wanted[wanted] = None
            with self._gpus.turn(), self._gpus.uncaptured():
                self._warm(wanted)
        return self.collective, (number, kind, members)

    def collective(self, number: int, kind: CallKind, members: Sequence[Member]) -> tuple[Refused | None]:
        """The driver call; what it gives is false if all is well."""
        library = self._library
        assert library is not None
        try:
            communicators = self._open[number]
            with library.group():
                for rank, member in enumerate(members):
                    library.call(kind, communicators[rank], rank, len(members), member)
        except Refused as error:
            return (error,)
        except IndexError:
            return (Refused("collective", "aborted", advice="the communicators were aborted by an earlier error"),)
        return (None,)

    def _warm(self, wanted: _Wanted) -> None:
        """Make such a collective once, on memory of its own. NOTE the library connects devices at the first call that
        needs it, which allocates memory and may wait for devices: while a run's streams wait for the latch, or in a
        capture, it must not."""
        gpus, ranks = self._gpus, len(self._gpus.placement.devices)
        count, dtype = wanted.elements, wanted.dtype
        size = count * ranks * TYPES[dtype].bytes
        senders = {to: rank for rank, to in enumerate(wanted.to)}
        memory: list[int] = []
        try:
            members = []
            for rank in range(ranks):
                device = gpus.device(rank)
                for what in ("a first collective", "its result"):
                    memory.append(gpus.alloc(device, size, what))
                stream = gpus.control[device.ordinal]
                to, by = wanted.to[rank], senders.get(rank, -1)
                members.append(Member(memory[-1], memory[-2], count, dtype, stream, count, to, by))
            with gpus.inside(gpus.device(0)):
                (error,) = self.collective(wanted.number, wanted.kind, members)
                if error:
                    error.what = "a first call"
                    raise error
            for rank, member in enumerate(members):
                gpus.finish(gpus.device(rank), member.stream)
        except BaseException:
            self.abort()
            raise
        finally:
            closing = Closing()
            for address in memory:
                closing(gpus.free, address)
        closing.end()

    # ---- errors

    def ill(self) -> str:
        """The first asynchronous error of a communicator, where it is, and what goes by that communicator."""
        with self._changing:  # none is given back meanwhile
            for number, communicators in enumerate(self._open):
                for rank, communicator in enumerate(communicators):
                    assert self._library is not None
                    with concerning(self._gpus.device(rank)):
                        code = self._library.error(communicator)
                    if code:
                        where = self._gpus.device(rank)
                        return f"{self._library.name} tells of {code} on {where}, {self._calls(number)}"
        return ""

    def calls(self) -> list[str]:
        """What goes by the communicators of each queue, a line each."""
        return [self._calls(number) for number in range(len(self._table))]

    def _calls(self, number: int) -> str:
        return f"queue '{self._table[number].queue}': {', '.join(self._places.get(number, ()))}"

    def abort(self) -> None:
        """Whatever waits in a collective goes on. NOTE from any thread, without a turn: who has it may be waiting for
        this. Its end is not waited for (`settle`). Each queue's communicators have a thread: the last one's abort waits
        for the graphs that hold calls, which may stand behind a collective of another queue."""
        self._give_back(self._abort)

    def _give_back(self, by: Callable[[Sequence[Handle]], None]) -> None:
        with self._changing:
            given, self._open = self._open, []
            for communicators in given:
                thread = threading.Thread(target=by, args=(communicators,), name="ficco communicators", daemon=True)
                thread.start()
                self._leaving.append(thread)

    def _abort(self, communicators: Sequence[Handle]) -> None:
        assert self._library is not None
        for communicator in communicators:
            with suppress(DeviceError):  # an error has been told already
                self._library.abort(communicator)

    def settle(self) -> None:
        """What leaves is given back. DeviceError: it is not, because a graph holds calls, or something never ends."""
        with self._changing:
            leaving, self._leaving = self._leaving, []
        until = monotonic() + SETTLE
        for thread in leaving:
            thread.join(max(0.0, until - monotonic()))
        if any(thread.is_alive() for thread in leaving):
            self._gpus.hung = True
            raise DeviceError(f"communicators are not given back within {SETTLE:.3g} s")

    def close(self) -> None:
        """Give everything back. NOTE in threads, as it waits for graphs that an interrupt may have left."""
        closing = Closing()

        def drop(communicators: Sequence[Handle]) -> None:
            assert self._library is not None
            for rank, communicator in enumerate(communicators):
                closing(self._drop, rank, communicator)

        self._give_back(drop)
        closing(self.settle)
        closing.end()

    def _drop(self, rank: int, communicator: Handle) -> None:
        assert self._library is not None
        with concerning(self._gpus.device(rank)):
            self._library.close(communicator)
