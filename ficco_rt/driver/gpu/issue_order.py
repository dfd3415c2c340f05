"""The issue order of a process: its threads use the GPUs one after another, and runs have the same order on all
devices.

A thread holds the issue lock during every operation that may block inside a vendor's driver: issuing a run, and
creating or releasing graphs, memory or contexts. So no run is half issued while another thread's call waits for a
device, and all runs of the process have one order. The host queries whether runs have ended without the lock.

Runs that could deadlock on a device, because they leave each other no multiprocessors, wait there for one another in
that order (`device.run_residency`).

NOTE the issue order is the only state that executors of a process share, because the whole process shares its GPUs.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from threading import get_ident
from time import monotonic, sleep
from typing import Literal, NamedTuple, TypeAlias

from ...device.run_residency import Residencies, Residency, either, kept_back
from ...errors import DeviceError
from .vendor import Handle, Vendor

LEAST = 5.0  # seconds for which a thread may hold the lock at any rate: a busy machine may hold a thread up, too
LOOKS = 5  # a busy machine may hold the host up for longer than a limit between two looks
SPIN = 2e-3  # seconds that the host asks again and again before it naps
ASKED = 0.5  # seconds to wait for another thread that asks the same client
_SHARED = 16  # handles of streams that contexts or threads share are smaller


Issued: TypeAlias = frozenset[int]  # the handles, by `id`, that are in calls that have been made


class Wait(NamedTuple):
    """A stream of a device waits for an event of another client's run."""

    device: int
    stream: Handle
    event: Handle
    of: str  # whose run


@dataclass(frozen=True, slots=True)
class Submission:
    """What a run announces to other executors. `waiting_streams`: on each device, the streams that wait if the run has
    to wait there. `ends`: for each device, the event that its completion records, and the stream that records it."""

    residencies: Residencies
    waiting_streams: Mapping[int, tuple[Handle, ...]]
    ends: Mapping[int, tuple[Handle, Handle]]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Client:
    """An executor's driver, as one of those that use the GPUs of a process.

    `timeout` is the seconds that a call under the issue lock, and the wait for this lock, may take. `report` says where
    its streams stand, a line each, given what of its last run is issued, if not all. `ill` tells of a failure that no
    stream shows. `replaying` gives numbers that change from replay to replay of callers' graphs, while some are under
    way. `behind`: by device the runs of others for which its own have waited there.

    Its runs are given up under `lock`, by any thread: `overdue` says why, and then `release` signals all semaphores, so
    that whatever waits for one goes on. Under the same lock its own thread sees that runs have ended, and clears
    semaphores: then `generation` goes up, and whoever wants to give up what was under way before comes too late.
    `overdue` is raised when its thread comes back. Other threads ask its streams and events under `looks`, which its
    own thread takes for nothing but to `shut` them out: the vendor's driver may keep who asks waiting."""

    name: str
    vendor: Vendor
    timeout: float | None
    sms: dict[int, int] = field(default_factory=dict)  # by device
    report: Callable[[Issued | None], list[str]] = lambda issued: []
    release: Callable[[str], None] = lambda why: None
    ill: Callable[[], str] | None = None
    replaying: Callable[[], tuple[int, ...]] = lambda: ()
    lock: threading.RLock = field(default_factory=threading.RLock)
    looks: threading.RLock = field(default_factory=threading.RLock)
    closed: bool = False
    generation: int = 0
    overdue: str = ""
    number: int = 0  # of its last run
    seen: int = 0  # of the last one that has been seen to end
    awaited: int = 0  # of its run that another client has waited for
    submission: Submission | None = None  # of its last run
    replayed: Submission | None = None  # of its runs in callers' graphs, which may be under way at any time
    residencies: Residencies = field(default_factory=dict)  # of what it has issued, until that is over
    behind: dict[int, dict[Client, int]] = field(default_factory=dict)
    _holding: dict[int, Submission] = field(default_factory=dict)  # what `residencies` covers

    @property
    def over(self) -> bool:
        """Whether everything that it has issued is known to have ended."""
        return self.seen == self.number

    @over.setter
    def over(self, _: Literal[True]) -> None:
        self.seen = self.number

    @property
    def patience(self) -> float | None:
        """The time limit of a call."""
        return None if self.timeout is None else max(self.timeout, LEAST)

    def give_up(self, why: str, generation: int) -> bool:
        """From any thread: its runs are given up, unless they are over since `generation`. Whether they are."""
        with self.lock:
            if self.generation != generation:
                return False
            self.overdue = self.overdue or why
            self.release(self.overdue)
            return True

    @contextmanager
    def asked(self, limit: float = 0.0) -> Iterator[bool]:
        """From any thread. If this gives true, its streams and events are there until the end: `shut` waits for it."""
        got = self.looks.acquire(timeout=limit)
        try:
            yield got and not self.closed
        finally:
            if got:
                self.looks.release()

    def shut(self) -> bool:
        """Before its streams and events go: from now on no other thread asks it or gives its runs up. False: one is in
        the midst of that, and the vendor's driver does not come back."""
        self.closed, self.ill = True, None
        for lock in (self.looks, self.lock):
            if not lock.acquire(timeout=LEAST):
                return False
            try:
                self.generation += 1
                self.replaying, self.report, self.release = tuple, lambda issued: [], lambda why: None
            finally:
                lock.release()
        return True

    def submit(self, submission: Submission) -> None:
        if self.seen == self.number or self.submission is None:
            self._holding = {}
        if id(submission.residencies) not in self._holding:  # NOTE runs of many plans may follow each other
            held = (self.residencies, submission.residencies) if self._holding else (submission.residencies,)
            self._holding[id(submission.residencies)], self.residencies = submission, reduce(either, held)
        self.submission = submission
        self.number += 1

    def ended(self) -> bool:
        """Whether its last run is over. DeviceError: what ran failed."""
        # NOTE another run may be submitted meanwhile: what is seen then counts for those before it
        number, submission = self.number, self.submission
        events = [] if submission is None or self.seen == number else submission.ends.values()
        if events and all(self.vendor.ended(event) for event, _ in events):
            self.seen = number
        return self.over

    def under_way(self, devices: Set[int]) -> bool:
        """Whether a run or a replay of it is under way on these devices. None is on a device that failed: calls tell
        that at once."""
        try:
            if not self.ended() and not devices.isdisjoint(self.residencies):
                return True
            ends = {} if self.replayed is None else self.replayed.ends
            return not all(self.vendor.ended(event) for device, (event, _) in ends.items() if device in devices)
        except DeviceError:
            return False


class IssueOrder:
    """See the module. NOTE each run takes the issue lock: what `acquire`, `submit` and `release` do costs every run."""

    def __init__(self) -> None:
        self.held: tuple[Client, float, int] | None = None  # who holds the lock, when last in no call, in which thread
        self.in_flight: dict[Client, None] = {}  # those whose runs may not be over, in the order of their last runs
        self._lock = threading.RLock()
        self._depth = 0
        self._alone: Client | None = None  # the only one in `in_flight` and `_replayed`
        self._replayed: dict[Client, None] = {}  # those with runs in callers' graphs
        self._left: deque[Callable[[], None]] = deque()  # to be done when nobody holds the lock

    # ---- the issue lock

    def acquire(self, client: Client) -> None:
        """Raises DeviceError: another thread has held the lock for as long as `client` may wait."""
        if not self._lock.acquire(False):
            self._wait_for(client.patience)
        self._depth += 1
        if self._depth == 1:
            self.held = (client, monotonic(), get_ident())

    def _wait_for(self, limit: float | None) -> None:
        if not self._lock.acquire(timeout=-1 if limit is None else limit):
            held = self.held
            by = f" {held[0].name} has held them for {monotonic() - held[1]:.1f} s;" if held is not None else ""
            raise DeviceError(f"another thread uses the GPUs:{by} this one waited {limit:g} s (--timeout)")

    def release(self) -> None:
        if self._depth == 1:
            while self._left:
                self._left.popleft()()
            self.held = None
        self._depth -= 1
        self._lock.release()

    def forked(self) -> None:
        """In a forked process: another thread that holds the lock is not there to release it."""
        if free(self._lock) is not self._lock:
            self._lock, self._depth, self.held = threading.RLock(), 0, None

    def seen(self) -> None:
        """The calling thread, if it holds the lock, is in no call: it asks, again and again, whether something is
        over."""
        held = self.held
        if held is not None and held[2] == get_ident():
            self.held = (held[0], monotonic(), held[2])

    @contextmanager
    def lock(self, client: Client) -> Iterator[None]:
        self.acquire(client)
        try:
            yield
        finally:
            self.release()

    def later(self, work: Callable[[], None]) -> None:
        """Does work under the lock: at once, or, if a thread holds the lock, when it is released. For finalisers: NOTE
        Python may call these anywhere, even while their own thread holds the lock."""
        self._left.append(work)
        if not self._depth and self._lock.acquire(False):
            self._depth += 1
            self.release()

    # ---- runs

    def submit(self, client: Client, submission: Submission) -> list[Wait]:
        """Under the lock, before a run is issued: the waits that must precede it."""
        if self._alone is client:
            if client.submission is submission:
                client.number += 1
            else:
                client.submit(submission)
            return []
        waits = [*self._waits(client, submission), *self._behind_replays(client, submission)]
        client.submit(submission)
        self.in_flight.pop(client, None)
        self.in_flight[client] = None
        self._alone = client if {*self.in_flight, *self._replayed} == {client} else None
        return waits

    def embed(self, client: Client, submission: Submission) -> None:
        """Under the lock: from now on callers' graphs hold runs of the client. NOTE these wait for no other client's
        run: what a graph waits for is fixed when it is captured."""
        if client.replayed is not None:
            both = either(client.replayed.residencies, submission.residencies)
            submission = replace(submission, residencies=both)
        client.replayed = submission
        self._replayed[client] = None
        self._alone = None

    def remove(self, client: Client) -> None:
        """Under the lock: the client is about to close."""
        self.in_flight.pop(client, None)
        self._replayed.pop(client, None)
        self._alone = None
        client.over, client.submission = True, None
        client.behind.clear()

    def busy(self, vendor: str, devices: Set[int]) -> bool:
        """Under the lock: whether a run, or a replay of a caller's graph that holds one, is under way on these
        devices."""
        return any(
            other.vendor.name == vendor and other.under_way(devices) for other in {**self.in_flight, **self._replayed}
        )

    def ahead(self, client: Client) -> list[Client]:
        """Those behind whose runs the client's last one still stands."""
        found: dict[Client, None] = {}
        for behind in list(client.behind.values()):
            for other, number in list(behind.items()):
                if other.number == number and not other.over:
                    with suppress(DeviceError), other.asked(ASKED) as there:
                        if there and not other.ended():
                            found[other] = None
        return list(found)

    def _waits(self, client: Client, submission: Submission) -> list[Wait]:
        for other in [other for other in self.in_flight if other.over]:
            del self.in_flight[other]
        name = client.vendor.name
        others = [other for other in reversed(self.in_flight) if other is not client and other.vendor.name == name]
        for other in others:
            if other.awaited == other.number:  # nobody may have asked since
                with suppress(DeviceError):
                    other.ended()
        found: list[Wait] = []
        for device, residency in submission.residencies.items():
            earlier = [other for other in others if not other.over and device in other.residencies]
            if earlier:
                found += self._on(device, residency, client, submission, earlier)
        return found

    def _behind_replays(self, client: Client, submission: Submission) -> Iterator[Wait]:
        """Waits for the replays that have been launched so far of callers' graphs with runs of others."""
        for other in self._replayed:
            replayed = other.replayed
            if other is client or replayed is None or other.vendor.name != client.vendor.name:
                continue
            for device, (event, _) in replayed.ends.items():
                residency = submission.residencies.get(device)
                if residency is not None and any(
                    kept_back(residency, [replayed.residencies[device]], client.sms[device])
                ):
                    of = f"replays of {other.name}"
                    yield from (Wait(device, stream, event, of) for stream in submission.waiting_streams[device])

    @staticmethod
    def _on(
        device: int, residency: Residency, client: Client, submission: Submission, earlier: list[Client]
    ) -> Iterator[Wait]:
        """NOTE when a run is over on a device, so is what it has awaited there: that is awaited no more."""
        known = client.behind.get(device, {})
        behind = client.behind[device] = {other: known[other] for other in earlier if other in known}
        kept = kept_back(residency, [other.residencies[device] for other in earlier], client.sms[device])
        for other, waits in zip(earlier, kept, strict=True):
            assert other.submission is not None
            if not waits or behind.get(other) == other.number:
                continue
            other.awaited = other.number
            for ahead, number in (*other.behind.get(device, {}).items(), (other, other.number)):
                if ahead is not client:
                    behind[ahead] = max(number, behind.get(ahead, 0))
            event, end = other.submission.ends[device]
            for stream in submission.waiting_streams[device]:
                if not _same(stream, end):
                    yield Wait(device, stream, event, f"run {other.number} of {other.name}")


def free(lock: threading.RLock) -> threading.RLock:
    """In a forked process: the lock, or a new one if a thread has it that is not here."""
    if not lock.acquire(blocking=False):
        return threading.RLock()
    lock.release()
    return lock


def _same(a: Handle, b: Handle) -> bool:
    """Whether two handles are the same stream of a caller: what stands on one stream is in order anyway."""
    return bool(a == b) and int(a) > _SHARED


ISSUE_ORDER = IssueOrder()


def poll(over: Callable[[], bool], limit: float | None, pause: float = 1e-3, spin: float = 0.0) -> bool:
    """Polls until a condition holds: for `limit` seconds, and LOOKS times at least, or without limit if that is None.
    The host begins to pause after `spin` seconds. Returns whether the condition held in time."""
    begun, looks = monotonic(), 0
    while not over():
        waited, looks = monotonic() - begun, looks + 1
        if limit is not None and waited > limit and looks >= LOOKS:
            return False
        ISSUE_ORDER.seen()
        if waited >= spin:
            sleep(pause)
    return True


os.register_at_fork(after_in_child=ISSUE_ORDER.forked)
