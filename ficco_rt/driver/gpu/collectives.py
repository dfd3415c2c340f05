"""Collectives by the vendor's library, NCCL or RCCL: communicators on a run's devices, and calls of all ranks as one
driver call.

One thread drives all devices of a process, so the calls of its ranks stand in one group: a call outside of a group
could wait for ranks that the same thread comes to later. A call names its communicators by their number in the device
plan, and finds them when it is made: they may have been made again since it was bound.

A collective that fails, or whose peers do not come, is ended by `abort`: its kernels stop waiting. The communicators
are of no use then, and are made again before the next run. Abort returns when no graph holds calls of them any more,
so it has a thread of its own, and who gives a run up gives its graphs back (`Runs`).

In several processes each opens communicators for its own ranks. Process 0 makes what the ranks have in common, and the
group spreads it. The library waits for all processes when communicators open and at the first call of a kind, and has
no time limit there: so a thread opens them, and a first call is made when all processes have come to it. After an abort
no process goes on (`Runs.lost`). Before communicators are given back, each process begins a last collective and waits
for its end, which tells that the others have begun theirs: nobody gives back what another one still uses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import NamedTuple

from ... import env
from ...device.ir import CallCollective, Communicator
from ...errors import DeviceError
from ...graph.ir import CallKind
from ...types import TYPES, Dtype
from .collective_library import CollectiveLibrary, Member
from .devices import inside
from .gpus import Gpus
from .peers import Peers
from .refused import Closing, Refused, concerning
from .turns import TURNS
from .vendor import DriverCall, Gpu, Handle

WARM = 32 << 20  # bytes, at most, of a collective that is made once before any run
SETTLE = (
    5.0  # seconds that communicators get to leave once no run and no graph holds calls, and other processes to come
)
CALL = 0.5  # seconds that an abort waits for a call under way: more, and the call waits for what only the abort ends
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


class Communicators:
    """The communicators of a device plan's table, each on the devices of this process's ranks."""

    def __init__(self, gpus: Gpus, library: CollectiveLibrary | None, table: Sequence[Communicator]) -> None:
        self._gpus = gpus
        self._library = library
        self._table = table if library is not None else ()
        self._ranks = len(gpus.placement.devices)  # of all processes
        self._open: list[Mapping[int, Handle]] = []  # by number, by rank of this process
        self._places: dict[int, dict[str, None]] = {}  # by number: the collectives of the plan, for people
        self._wanted: dict[_Wanted, None] = {}  # what calls were made ready for
        self._cold: list[_Wanted] = []  # of these, the ones that these communicators have not made yet
        self._leaving: list[threading.Thread] = []
        self.lent = False  # callers' graphs may hold calls, too
        self._changing = threading.Lock()  # `abort` comes from other threads
        self._calling = threading.Lock()  # held in calls: an abort frees what a call of another thread may still use

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
        for communicator in self._table[len(self._open) :]:
            what = f"the communicators of queue '{communicator.queue}'"
            with concerning(command=what):
                unique = self._unique(self._library, what)
                with self._gpus.turn(), self._gpus.uncaptured():
                    self._make(self._library, communicator, unique, what)
        self._cold = list(self._wanted)
        self.warm()

    def _unique(self, library: CollectiveLibrary, what: str) -> bytes:
        peers = self._gpus.peers
        if peers is None:
            return library.unique()
        said = peers.agreed(f"make {what}", lambda: library.unique().hex() if peers.group.rank == 0 else "")
        return bytes.fromhex(said[0])

    def _make(self, library: CollectiveLibrary, wanted: Communicator, unique: bytes, what: str) -> None:
        gpus, vendor = self._gpus, self._gpus.vendor
        made: dict[int, Handle] = {}

        def make() -> None:
            asked = threads_asked(wanted.settings.threads)
            # the library goes back to the context that is current where a group begins
            with concerning(command=what), inside(vendor, gpus.first), asked, library.group():
                for rank in gpus.ranks:
                    with inside(vendor, gpus.device(rank)):
                        made[rank] = library.open(self._ranks, rank, unique, wanted.settings)

        try:
            self._with_others(make, made, what)
        except BaseException:
            self._abort(made.values())  # the first error is the one to tell
            raise
        self._open.append(made)

    def _with_others(self, make: Callable[[], None], made: dict[int, Handle], what: str) -> None:
        """What the library does when all processes have come. DeviceError: not all come in time; what was made of the
        communicators is aborted then."""
        gpus, failed = self._gpus, list[BaseException]()
        if gpus.peers is None:
            return make()

        def work() -> None:
            try:
                with gpus.vendor.uncaptured():
                    make()
            except BaseException as error:  # noqa: BLE001  raised below, in the thread that waits
                failed.append(error)

        opening = threading.Thread(target=work, name="ficco communicators", daemon=True)
        opening.start()
        begun, missing = monotonic(), ""
        while opening.is_alive() and not missing:
            opening.join(LOOK)
            TURNS.seen()
            missing = self._missing(gpus.peers, monotonic() - begun)
        if missing and opening.is_alive():
            left = list(made.values())
            made.clear()
            threading.Thread(target=self._abort, args=(left,), name="ficco communicators", daemon=True).start()
            opening.join(SETTLE)
            gpus.hung = opening.is_alive()
            raise DeviceError(f"{what}: {missing}")
        if failed:
            raise failed[0]

    def _missing(self, peers: Peers, waited: float) -> str:
        """Why the other processes will not come; nothing: they may."""
        gone = peers.board.gone() if peers.board is not None else []
        if gone:
            return f"process {gone[0]} has ended"
        limit = self._gpus.timeout
        if limit is not None and waited > limit:
            return f"not all processes have come within {limit:g} s (--timeout); NCCL_DEBUG=INFO tells more"
        return peers.group.left()

    # ---- calls

    def call(self, calls: Sequence[CallCollective], members: Sequence[tuple[int, Member]]) -> DriverCall:
        """A collective: the `calls` of all ranks, and what those of this process say to the library, with their
        ranks."""
        self.ready()
        first, dtype = calls[0], members[0][1].dtype
        number, kind, place = first.communicator, first.kind, first.cause.origin
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
        """The driver call; what it gives is false if all is well."""
        library = self._library
        assert library is not None
        try:
            with self._calling:
                communicators = self._open[number]
                with library.group():
                    for rank, member in members:
                        library.call(kind, communicators[rank], rank, self._ranks, member)
        except Refused as error:
            return (error,)
        except IndexError:
            return (Refused("collective", "aborted", advice="the communicators were aborted by an earlier error"),)
        return (None,)

    def warm(self) -> None:
        """Make each kind of call once that these communicators have not made. In several processes all do so at one
        step."""
        while self._cold:
            with self._gpus.turn(), self._gpus.uncaptured():
                self._warm(self._cold.pop())

    def _warm(self, wanted: _Wanted) -> None:
        """Make such a collective once, on memory of its own. NOTE the library connects devices at the first call that
        needs it, which allocates memory and may wait for devices: while a run's streams wait for the latch, or in a
        capture, it must not."""
        gpus, count, dtype = self._gpus, wanted.elements, wanted.dtype
        size = count * self._ranks * TYPES[dtype].bytes
        senders = {to: rank for rank, to in enumerate(wanted.to)}
        memory: list[int] = []
        try:
            members = []
            for rank in gpus.ranks:
                device = gpus.device(rank)
                for what in ("a first collective", "its result"):
                    memory.append(gpus.alloc(device, size, what))
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
            self._at_rest()  # nobody frees what a call may still touch
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
            missing = self._missing(gpus.peers, monotonic() - begun)
            why = f"{self._calls(number)}: {missing}" if missing else self.ill()
            if why:
                raise DeviceError(f"a first call, {why}")
            TURNS.seen()
            sleep(LOOK / 10)

    # ---- errors

    def ill(self) -> str:
        """The first asynchronous error of a communicator, where it is, and what goes by that communicator."""
        with self._changing:  # none is given back meanwhile
            for number, communicators in enumerate(self._open):
                for rank, communicator in communicators.items():
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
        self._give_back(lambda made: self._abort(made.values()))

    def _give_back(self, by: Callable[[Mapping[int, Handle]], None]) -> None:
        with self._changing:
            given, self._open = self._open, []
            for communicators in given:
                thread = threading.Thread(target=by, args=(communicators,), name="ficco communicators", daemon=True)
                thread.start()
                self._leaving.append(thread)

    def _abort(self, communicators: Collection[Handle]) -> None:
        """NOTE behind a call under way that ends by itself. One that waits for other processes ends by the abort alone.
        A later call finds no communicators, and must not wait for this: an abort waits for graphs that hold calls, and
        the thread of that call may have to destroy them."""
        assert self._library is not None
        if self._calling.acquire(timeout=CALL):
            self._calling.release()
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
        if not any(thread.is_alive() for thread in leaving):
            return
        if self.lent:  # the threads end when these graphs go; no other call waits for them
            raise DeviceError(
                "the communicators stay: graphs of yours hold runs of this executor; drop them before you close it "
                "(PyTorch: graph.reset())"
            )
        self._gpus.hung = True
        raise DeviceError(f"communicators are not given back within {SETTLE:g} s")

    def close(self) -> None:
        """Give everything back. NOTE in threads, as it waits for graphs that an interrupt may have left."""
        closing = Closing()

        def drop(communicators: Mapping[int, Handle]) -> None:
            for rank, communicator in communicators.items():
                closing(self._drop, rank, communicator)

        if self._parted():
            self._give_back(drop)
        else:
            self.abort()
        closing(self.settle)
        closing.end()

    def _parted(self) -> bool:
        """Whether all processes are about to give their communicators back. They get SETTLE seconds."""
        gpus = self._gpus
        if gpus.peers is None or not self._open:
            return True
        try:
            for number in range(len(self._open)):
                members = []
                for rank in gpus.ranks:
                    device = gpus.device(rank)
                    word = gpus.alloc(device, 4, "a last collective")
                    members.append((rank, Member(word, word, 1, "fp32", gpus.control[device.ordinal])))
                with gpus.inside(gpus.first):
                    (error,) = self.collective(number, "all_reduce", members)
                if error:
                    return False
        except DeviceError:
            return False
        return self._at_rest()

    def _at_rest(self) -> bool:
        """Whether all streams come to rest within SETTLE seconds."""
        begun = monotonic()
        while True:
            through, error = self._gpus.idle()
            if through or error is not None or monotonic() - begun > SETTLE:
                return through and error is None
            TURNS.seen()
            sleep(LOOK / 10)

    def _drop(self, rank: int, communicator: Handle) -> None:
        assert self._library is not None
        with concerning(self._gpus.device(rank)):
            self._library.close(communicator)


def elements_of(call: CallCollective, ranks: int) -> int:
    """What a rank's call tells the library: elements of its own part, or those that it sends."""
    if call.kind == "send_recv":
        return call.src.elements
    count = min(call.dst.elements, call.src.elements)
    return count // ranks if call.kind == "all_to_all" else count  # a piece for each rank
