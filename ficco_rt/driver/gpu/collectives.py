"""Collectives by the vendor's library, NCCL or RCCL: communicators on a run's devices, and calls of all ranks as one
driver call.

One thread drives all devices of a process, so the calls of its ranks are in one group: a call outside of a group could
wait for ranks that the same thread calls later. A call names its communicators by their number in the device plan, and
looks them up when it is made: they may have been recreated since it was bound. Each abort begins a new generation. Work
that was under way in an older generation ends with an error, and neither uses nor creates communicators of a newer one.

**Who calls the library.** Communicators do not block: their operations return at once, and the host polls until they
are complete. One thread of the process opens, polls, aborts and destroys them (`owner`). The calls of a run are made by
the thread that issues it, because captures belong to threads, and handing each call to another thread would cost some
20 µs. The issuing thread polls its call to the end, under a lock for which the owner waits before it touches these
communicators. The thread gives up when an abort is asked for, another process has given up or ended, or the time limit
has passed. Only then does the owner abort: never during a call.

A collective that fails, or whose peers do not join it, is ended by `abort`: its kernels stop waiting. The communicators
are unusable after that, and are recreated before the next run. The owner tells all communicators of an executor to stop
in one group, whose end waits until no graph holds calls of them. So whoever gives up a run must release its graphs
(`Runs`).

In several processes each opens communicators for its own ranks. Process 0 makes the data that the ranks share, and the
group distributes it. The library waits for all processes when communicators open and at the first call of a kind, and
has no time limit there; the polling thread has one. A first call is made when all processes have reached it. After an
abort no process continues (`Runs.lost`). No process destroys communicators that another one still uses: each first
announces on the node's page that it closes, and waits until all have done so. Without a common page, each begins a last
collective and waits for its end. A process that knows of a failure begins no such collective, and aborts: the others
may be in other calls, and calls of different kinds must not be matched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic, sleep
from typing import NamedTuple, TypeAlias, cast

from ... import env
from ...device.ir import CallCollective, Communicator
from ...errors import DeviceError
from ...graph.ir import CallKind
from ...types import TYPES, Dtype
from .collective_library import PENDING, CollectiveLibrary, Member, refused
from .devices import inside
from .gpus import Gpus
from .issue_order import ISSUE_ORDER, SPIN, poll
from .owner import OWNER, Job
from .refused import Closing, Refused, concerning, undo_on_error
from .vendor import DriverCall, Gpu, Handle

WARM = 32 << 20  # bytes, at most, of a collective that is made once before any run
SETTLE = 5.0  # seconds that a communicator gets to leave once no graph holds calls, and other processes to come
ANSWER = 1.0  # seconds that the owner gets to say whether communicators are well
LOOK = 0.02  # seconds between two looks at whether other processes have come
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


Opened: TypeAlias = Mapping[int, Handle]  # a queue's communicators, by rank of this process


class Communicators:
    """The communicators of device plans' tables, each on the devices of this process's ranks."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._library: CollectiveLibrary = cast(CollectiveLibrary, None)  # nobody asks it where the table is empty
        self._table: list[Communicator] = []
        self._ranks = len(gpus.placement.devices)  # of all processes
        self._open: dict[int, Opened] = {}  # by number
        self._generation = 0  # of what is open, or is being opened: each abort begins the next
        self._places: dict[int, dict[str, None]] = {}  # by number: the collectives of the plan, for people
        self._wanted: dict[_Wanted, None] = {}  # what calls were made ready for
        self._cold: list[_Wanted] = []  # of these, the ones that these communicators have not made yet
        self._leaving: list[tuple[Job, int]] = []  # and how many communicators it gives back
        self.lent = False  # callers' graphs may hold calls, too
        self._changing = threading.Lock()  # `abort` comes from other threads
        self._calling = threading.Lock()  # held in calls, until these are over, and while the owner asks for errors
        self.unfinished: int | None = None  # of a call that was given up: the number of communicators that are lost

    def add(self, library: CollectiveLibrary | None, table: Sequence[Communicator]) -> tuple[int, ...]:
        """The numbers of the communicators that a plan has in its table; equal ones are shared."""
        if library is None:
            return ()
        self._library = self._library or library
        self._table += (communicator for communicator in table if communicator not in self._table)
        return tuple(map(self._table.index, table))

    @property
    def count(self) -> int:
        return sum(map(len, self._open.values()))

    @property
    def aborted(self) -> bool:
        return len(self._open) < len(self._table)

    def ready(self) -> None:
        """They are open; after an abort they are made again."""
        if not self.aborted:
            return
        self.settle()
        generation = self._generation
        for number, communicator in enumerate(self._table):
            if number in self._open:
                continue
            what = f"the communicators of queue '{communicator.queue}'"
            with concerning(command=what):
                unique = self._unique(what)
                with self._gpus.issue_lock(), self._gpus.uncaptured():
                    made = self._make(communicator, unique, what)
                with self._changing:
                    kept = self._generation == generation
                    if kept:
                        self._open[number] = made
                if not kept:
                    self._discard(number, made)
                    raise DeviceError(f"{what} were aborted while they were opened: an earlier error has ended them")
        self._cold = list(self._wanted)
        self.warm()

    def _unique(self, what: str) -> bytes:
        peers, library = self._gpus.peers, self._library
        if peers is None:
            return library.unique()
        said = peers.agreed(f"make {what}", lambda: library.unique().hex() if peers.group.rank == 0 else "")
        return bytes.fromhex(said[0])

    def _make(self, wanted: Communicator, unique: bytes, what: str) -> Opened:
        """A queue's communicators, when all processes have come. DeviceError: not all come in time; what was made of
        the communicators is aborted then."""
        gpus, vendor, library = self._gpus, self._gpus.vendor, self._library
        made: dict[int, Handle] = {}

        def make() -> None:
            # the library goes back to the context that is current where a group begins
            with concerning(command=what), vendor.uncaptured(), inside(vendor, gpus.first), library.group():
                for rank in gpus.ranks:
                    with inside(vendor, gpus.device(rank)):
                        made[rank] = library.open(self._ranks, rank, unique, wanted.settings)

        with undo_on_error(self._discard, -1, made), threads_asked(wanted.settings.threads):
            OWNER.do(make)
            begun = monotonic()
            while self._opening(made):
                missing = self._missing(monotonic() - begun)
                if missing:
                    raise DeviceError(f"{what}: {missing}")
                ISSUE_ORDER.seen()
                sleep(LOOK / 10)
        return made

    def _opening(self, made: Opened) -> bool:
        """Whether some are not open yet. DeviceError: one will never be."""
        found: list[str] = []

        def look() -> None:
            for rank, communicator in made.items():
                with concerning(self._gpus.device(rank)):
                    state = self._library.state(communicator)
                    if state not in ("", PENDING):
                        raise refused("ncclCommInitRankConfig", state)
                found.append(state)

        OWNER.do(look)
        return PENDING in found

    def _discard(self, number: int, made: Opened) -> None:
        """Communicators that were never used."""
        job = OWNER.begin(lambda: self._abort({number: made}), lasts=True)
        if not job.done.wait(SETTLE):
            self._gpus.hang()

    def _missing(self, waited: float) -> str:
        """Why what the library waits for will not come; nothing: it may."""
        gpus = self._gpus
        if gpus.peers is None:
            limit = gpus.client.patience
            late = limit is not None and waited > limit
            return f"the library did not come to an end within {limit:g} s (--timeout)" if late else ""
        gone = gpus.peers.board.gone() if gpus.peers.board is not None else []
        if gone:
            return f"process {gone[0]} has ended"
        if gpus.timeout is not None and waited > gpus.timeout:
            return f"not all processes have come within {gpus.timeout:g} s (--timeout); NCCL_DEBUG=INFO tells more"
        return gpus.peers.verdict(far=False) or gpus.peers.group.left()

    # ---- calls

    def call(self, calls: Sequence[CallCollective], members: Sequence[tuple[int, Member]], number: int) -> DriverCall:
        """A collective: the `calls` of all ranks, and what those of this process say to the library, with their ranks.
        `number`: of the communicator."""
        self.ready()
        first, dtype = calls[0], members[0][1].dtype
        kind, place = first.kind, first.cause.origin
        assert self._library is not None
        self._library.code(dtype)  # refused here, where the place is known
        self._places.setdefault(number, {})[f"{kind} ({place.place})" if place is not None else kind] = None
        most = max(1, WARM // TYPES[dtype].bytes // self._ranks)
        to = tuple(call.to for call in calls)
        wanted = _Wanted(number, kind, dtype, min(elements_of(first, self._ranks) or 1, most), to)
        if wanted not in self._wanted:
            self._wanted[wanted] = None
            self._cold.append(wanted)
            if self._gpus.peers is None:
                self.warm()
        return self.collective, (number, kind, members)

    def collective(self, number: int, kind: CallKind, members: Sequence[tuple[int, Member]]) -> tuple[Refused | None]:
        """The driver call; what it gives is false if all is well. DeviceError: it was given up, or a communicator has
        failed."""
        library, generation = self._library, self._generation
        try:
            with self._calling:
                communicators = self._open.get(number)
                if communicators is None:
                    return (_aborted(),)
                self.unfinished = number
                with library.group():
                    for rank, member in members:
                        library.call(kind, communicators[rank], rank, self._ranks, member)
                error = self._polled(number, communicators, generation)
                if error is None:
                    self.unfinished = None
                return (error,)
        except Refused as error:
            return (error,)

    def _polled(self, number: int, communicators: Opened, generation: int) -> Refused | None:
        """Wait until a call is over: on its stream, or captured. NOTE it takes some 40 µs, so the host spins at first;
        each communicator is asked to its end, as that joins the thread that the library has made the call in."""
        begun = looked = monotonic()
        for rank, communicator in communicators.items():
            while state := self._library.state(communicator):
                if state != PENDING:
                    raise DeviceError(self._tells(state, rank, number))
                if self._generation != generation:
                    return _aborted()
                now = monotonic()
                if now - looked > LOOK:
                    looked = now
                    missing = self._missing(now - begun)
                    if missing:
                        raise DeviceError(f"{self._calls(number)}: {missing}")
                if now - begun > SPIN:
                    sleep(SPIN / 10)
        return None

    def warm(self) -> None:
        """Make each kind of call once that these communicators have not made. In several processes all do so at one
        step."""
        while self._cold:
            with self._gpus.issue_lock(), self._gpus.uncaptured():
                self._warm(self._cold.pop())

    def _warm(self, wanted: _Wanted) -> None:
        """Make such a collective once, on memory of its own. NOTE the library connects devices at the first call that
        needs it, which allocates memory and may wait for devices: while a run's streams wait for the start gate, or in
        a capture, it must not."""
        gpus, count, dtype = self._gpus, wanted.elements, wanted.dtype
        size = count * self._ranks * TYPES[dtype].bytes
        senders = {to: rank for rank, to in enumerate(wanted.to)}
        memory: list[int] = []
        try:
            members = []
            for rank in gpus.ranks:
                device = gpus.device(rank)
                for what in ("a first collective", "its result"):
                    memory.append(gpus.alloc(device, size, what, "library"))
                stream = gpus.control[device.ordinal]
                to, by = wanted.to[rank], senders.get(rank, -1)
                members.append((rank, Member(memory[-1], memory[-2], count, dtype, stream, count, to, by)))
            with gpus.inside(gpus.first):
                (error,) = self.collective(wanted.number, wanted.kind, members)
                if error:
                    error.what = "a first call"
                    raise error
            for rank, member in members:
                self._finish(gpus.device(rank), member.stream, wanted.number)
        except BaseException:
            self.abort()
            if not self._at_rest():  # nobody frees what a call may still touch
                gpus.hang()
            raise
        finally:
            closing = Closing()
            for address in memory:
                closing(gpus.free, address)
        closing.end()

    def _finish(self, device: Gpu, stream: Handle, number: int) -> None:
        """The host waits for a first call. DeviceError: it does not end, or other processes will not come to it."""
        gpus, begun = self._gpus, monotonic()
        if gpus.peers is None:
            return gpus.finish(device, stream)
        while True:
            with concerning(device):
                if gpus.vendor.idle(stream):
                    return
            missing = self._missing(monotonic() - begun)
            why = f"{self._calls(number)}: {missing}" if missing else self.ill()
            if why:
                raise DeviceError(f"a first call, {why}")
            ISSUE_ORDER.seen()
            sleep(LOOK / 10)

    # ---- errors

    def ill(self) -> str:
        """The first asynchronous error of a communicator, where it occurred, and the collectives that use this
        communicator."""
        if not self._open:
            return ""
        found: list[str] = []
        job = OWNER.begin(lambda: found.append(self._health()))
        if job.done.wait(ANSWER) and job.error is not None:
            raise job.error
        return found[0] if found else ""

    def _health(self) -> str:
        if not self._calling.acquire(blocking=False):
            return ""  # a call is under way, and looks itself
        try:
            if self.unfinished is not None:
                return ""  # they are about to be aborted
            for number, communicators in list(self._open.items()):
                for rank, communicator in communicators.items():
                    with concerning(self._gpus.device(rank)):
                        state = self._library.state(communicator)
                    if state not in ("", PENDING):
                        return self._tells(state, rank, number)
        finally:
            self._calling.release()
        return ""

    def _tells(self, state: str, rank: int, number: int) -> str:
        return f"{self._library.name} tells of {state} on {self._gpus.device(rank)}, {self._calls(number)}"

    def calls(self) -> list[str]:
        """The collectives that use the communicators of each queue, a line each."""
        return [self._calls(number) for number in range(len(self._table))]

    def _calls(self, number: int) -> str:
        return f"queue '{self._table[number].queue}': {', '.join(self._places.get(number, ()))}"

    def abort(self) -> None:
        """Aborts the communicators, so that everything that waits in a collective continues. NOTE callable from any
        thread, without the issue lock, whose holder may be waiting for this. Does not wait for the end of the abort
        (`settle`)."""
        with self._changing:
            given, self._open = self._open, {}
            self._generation += 1
            if given:
                job = OWNER.begin(lambda: self._abort(given), lasts=True)
                self._leaving.append((job, sum(map(len, given.values()))))

    def _abort(self, given: Mapping[int, Opened]) -> None:
        """NOTE in one group: all are told to stop before the end of the group waits for graphs, which may stand behind
        a collective of another queue. That of an unfinished call comes last: the library joins its thread, which may
        wait for kernels of the others."""
        with self._calling:  # later calls find no communicators; they do not wait: their thread may have to drop graphs
            last, self.unfinished = self.unfinished, None
        order = sorted(given, key=lambda number: number == last)
        left = [communicator for number in order for communicator in given[number].values()]
        with suppress(DeviceError), self._library.group():  # an error has been told already
            self._abort_all(left)
        self._abort_all(left)  # where no group was to be had

    def _abort_all(self, left: list[Handle]) -> None:
        while left:
            with suppress(DeviceError):
                self._library.abort(left.pop(0))

    def settle(self) -> None:
        """What leaves is given back. DeviceError: it is not, because a graph holds calls, or something never ends."""
        with self._changing:
            leaving, self._leaving = self._leaving, []
        limit = SETTLE * (1 if self.lent else sum(count for _, count in leaving))
        end = monotonic() + limit
        if all(job.done.wait(max(0.0, end - monotonic())) for job, _ in leaving):
            return
        if self.lent:  # these jobs end when the graphs go; no other job waits for them
            raise DeviceError(
                "the communicators stay: graphs of yours hold runs of this executor; drop them before you close it "
                "(PyTorch: graph.reset())"
            )
        self._gpus.hang()
        raise DeviceError(f"communicators are not given back within {limit:g} s")

    def close(self) -> None:
        """Releases everything. NOTE this waits for graphs that an interrupt may have left."""
        with Closing() as closing:
            if self._parted():
                with self._changing:
                    given, self._open = self._open, {}
                    self._generation += 1
                    for communicators in given.values():  # NCCL takes half a second for each
                        job = OWNER.begin(partial(self._drop, communicators, closing), lasts=True)
                        self._leaving.append((job, len(communicators)))
            else:
                self.abort()
            closing(self.settle)

    def _parted(self) -> bool:
        """Whether all processes are about to give their communicators back, with no run under way. They get SETTLE
        seconds."""
        gpus = self._gpus
        if gpus.peers is None or not self._open:
            return True
        if self.unfinished is not None or gpus.peers.lost or gpus.peers.verdict():
            return False
        if not gpus.peers.unseen:
            return gpus.peers.parted(SETTLE)
        try:
            for number in self._open:
                members = []
                for rank in gpus.ranks:
                    device = gpus.device(rank)
                    semaphore = gpus.alloc(device, 4, "a last collective")
                    members.append((rank, Member(semaphore, semaphore, 1, "fp32", gpus.control[device.ordinal])))
                with gpus.inside(gpus.first):
                    (error,) = self.collective(number, "all_reduce", members)
                if error:
                    return False
        except DeviceError:
            return False
        return self._at_rest()

    def _at_rest(self) -> bool:
        """Whether all streams come to rest within SETTLE seconds, but for those of devices that failed."""
        return poll(lambda: self._gpus.idle()[0], SETTLE)

    def _drop(self, communicators: Opened, closing: Closing) -> None:
        with self._calling:  # a health check that is under way ends
            pass
        for rank, communicator in communicators.items():
            closing(self._destroy, rank, communicator)

    def _destroy(self, rank: int, communicator: Handle) -> None:
        library, well = self._library, False
        with concerning(self._gpus.device(rank)):
            with suppress(DeviceError):
                well = not library.state(communicator)
            (library.close if well else library.abort)(communicator)


def _aborted() -> Refused:
    return Refused("collective", "aborted", advice="the communicators were aborted by an earlier error")


def elements_of(call: CallCollective, ranks: int) -> int:
    """What a rank's call tells the library: elements of its own part, or those that it sends."""
    if call.kind == "send_recv":
        return call.src.elements
    count = min(call.dst.elements, call.src.elements)
    return count // ranks if call.kind == "all_to_all" else count  # a piece for each rank
