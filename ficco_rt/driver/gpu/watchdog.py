"""A thread that watches the issue lock. When a call of a vendor's driver blocks, the calling thread cannot report it,
so the watchdog does.

For instance, the launch of a graph blocks while the device's queues are full of actions that do not end.
`Runs.synchronize` needs no watchdog: it polls and has a time limit of its own.

A call that takes longer than its client's `timeout` is reported on stderr, with the call that the host is in. Then a
second thread reports the progress of the streams, and which other runs are under way. This needs a second thread
because it calls the vendor's driver, which may not answer while another thread is inside it. The second thread signals
the semaphores of all these runs, so that waiting kernels and streams drain. No thread can raise an error in another
one's call: each executor concerned raises it when the call returns, or when its run is waited for.

A replay of a caller's graph that does not end is given up in the same way, because the caller may wait for it outside
of our calls.

The watchdog also asks clients with communicators whether the library of collectives reports an error, which no call and
no stream shows. The run of such a client is reported and released like one whose call blocks.

Runs are not slowed down: the thread sleeps, and checks a few times within the shortest time limit.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import takewhile
from types import FrameType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from ...errors import DeviceError
from .issue_order import ASKED, ISSUE_ORDER, Client, Issued, IssueOrder, free
from .steps import DriverStep, make

Held: TypeAlias = tuple[Client, float, int]  # who holds the issue lock, as `IssueOrder.held` has it

LOOKS = 8  # in a time limit
HEALTH = 0.25  # seconds between two looks at communicators
ANSWER = 5.0  # seconds that the vendor's driver gets to say where streams stand


class Watchdog:
    """See the module. One a process."""

    def __init__(self, order: IssueOrder) -> None:
        self._order = order
        self._clients: WeakSet[Client] = WeakSet()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._told: Held | None = None  # the holder that was told of last
        self._replays: WeakKeyDictionary[Client, tuple[tuple[int, ...], float]] = WeakKeyDictionary()  # since when

    def watch(self, client: Client) -> None:
        """From now on, for as long as it lives; if it has a time limit, or may be ill."""
        if client.timeout is None and client.ill is None:
            return
        with self._changed:
            self._clients.add(client)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="ficco watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forked(self) -> None:
        """In a forked process, which has none of its threads: their locks are free, and nobody is watched."""
        self._changed, self._thread = threading.Condition(), None
        for client in self._clients:
            client.lock, client.looks = free(client.lock), free(client.looks)
        self._clients.clear()

    def _watch(self) -> None:
        while True:
            with self._changed:
                naps = [client.patience / LOOKS for client in self._clients if client.patience is not None]
                naps += [HEALTH for client in self._clients if client.ill is not None]
                self._changed.wait(min(naps, default=None))
                asked = list(self._clients)
            self._look()
            for client in asked:
                self._ask_health(client)
                self._look_at_replays(client)

    def _look_at_replays(self, client: Client) -> None:
        """A caller may wait for a replay without calling us, so the watchdog enforces its time limit."""
        generation, limit = client.generation, client.timeout
        if client.replayed is None or limit is None or client.overdue:
            return
        if not client.lock.acquire(blocking=False):  # its own thread is at it, or closes it
            return
        try:
            now = client.replaying()
        except DeviceError:  # of a device that failed; the next call tells it
            return
        finally:
            client.lock.release()
        known, since = self._replays.get(client, ((), 0.0))
        if not now or now != known:
            self._replays[client] = now, time.monotonic()
        elif time.monotonic() - since > limit:
            text = f"{client.name}: a replay of a graph that holds its run did not end within {limit:g} s (--timeout)"
            say(text)
            let_go(client, text, generation)

    def _ask_health(self, client: Client) -> None:
        ill, generation = client.ill, client.generation
        idle = client.over and client.replayed is None  # callers replay their graphs at any time
        if ill is None or idle or client.overdue:
            return
        with client.asked() as there:
            try:
                why = ill() if there else ""
            except DeviceError as error:
                why = str(error)
        if why:
            _answers(self._ails, client, why, generation)

    @staticmethod
    def _ails(client: Client, why: str, generation: int) -> None:
        with suppress(DeviceError):  # of a device that is lost; who waits for the run finds that, too
            let_go(client, "\n".join([why, *told(client)]), generation, ill=True)

    def _look(self) -> None:
        held = self._order.held
        if held is None or held is self._told:
            return
        client, since, _ = held
        if client.patience is not None and time.monotonic() - since > client.patience:
            self._told = held
            self._tell(held)

    def _tell(self, held: Held) -> None:
        client, since, thread = held
        generation = client.generation
        where, issued = place_of(thread)
        client.overdue = f"{client.name}: the host has been in {where} for {time.monotonic() - since:.1f} s (--timeout)"
        say(client.overdue)
        if not _answers(self._ask, held, issued, generation):
            say(f"{client.name}: the driver does not say where the streams stand while the host is in that call")

    def _ask(self, held: Held, issued: Issued | None, generation: int) -> None:
        client, *_ = held
        in_flight = {other: other.generation for other in list(self._order.in_flight) if other is not client}
        others = {other: known for other, known in in_flight.items() if _in_flight(other)}
        lines = told(client, issued)
        for other in others:
            lines += [f"a run of {other.name} is under way, too", *told(other)]
        for line in lines:
            say(line)
        if self._order.held is not held:  # the call has come back meanwhile
            return
        client.overdue = "\n".join([client.overdue, *lines])
        for other, known in {client: generation, **others}.items():
            let_go(other, f"{other.name}: its runs were given up when a call of {client.name} did not come back", known)


def _answers(ask: Callable[..., None], *arguments: object) -> bool:
    """Ask in a thread of its own, as the vendor's driver may not answer while another is inside it. Whether it did."""
    asked = threading.Thread(target=ask, args=arguments, name="ficco watchdog asks", daemon=True)
    asked.start()
    asked.join(ANSWER)
    return not asked.is_alive()


def told(client: Client, issued: Issued | None = None) -> list[str]:
    """A report on the progress of a client's streams; `issued`: the issued part of its last run, if not all."""
    with client.asked(ASKED) as there:
        try:
            return client.report(issued) if there else []
        except DeviceError as error:
            return [str(error)]


def let_go(client: Client, why: str, generation: int, *, ill: bool = False) -> None:
    """Signals all semaphores of a client so that its run ends, and records the reason. Clients without a time limit,
    and clients whose runs of this `generation` have ended, are left alone."""
    if client.timeout is not None or ill:
        client.give_up(why, generation)


def _in_flight(client: Client) -> bool:
    with client.asked(ASKED) as there:
        try:
            return there and not client.ended()
        except DeviceError:
            return True


def place_of(thread: int) -> tuple[str, Issued | None]:
    """The call that a thread is in, and what it is for; of a run, what of it is issued. The frame of `make` tells, so
    that no run has to note it."""
    frame: FrameType | None = sys._current_frames().get(thread)
    inner = frame
    while frame is not None:
        if frame.f_code is make.__code__:
            return _step_of(frame.f_locals)
        frame = frame.f_back
    where = f"{inner.f_code.co_qualname}, line {inner.f_lineno}" if inner is not None else "a call of the driver"
    return where, None


def _step_of(known: Mapping[str, Any]) -> tuple[str, Issued]:
    """Where `make` stands, by its variables."""
    now: DriverStep | None = known.get("step")
    if now is None:
        return "a call of the driver", frozenset()
    before = takewhile(lambda step: step is not now, known["steps"])
    issued = frozenset(id(handle) for step in before for handle in step.arguments)
    name = getattr(now.function, "__name__", "a call of the driver")
    parts = [str(now.device), now.what, now.place.place if now.place is not None else ""]
    return f"{name} ({', '.join(part for part in parts if part)})", issued


def say(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"ficco_rt: {line}\n")
        sys.stderr.flush()


WATCHDOG = Watchdog(ISSUE_ORDER)
os.register_at_fork(after_in_child=WATCHDOG.forked)
