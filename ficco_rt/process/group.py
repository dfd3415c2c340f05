"""The processes that run one plan together.

A `Group` is made from what the caller has: a `torch.distributed` process group or store, or an mpi4py communicator. A
process of a group has a *place*, 0 … size − 1. Ranks of a plan are assigned to places in order (`processes`).

All processes of a group call `exchange`, `barrier` and the things that use them in the same order. A call that some
process does not reach raises an error that names the process; so does a call that the processes make for different
steps.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..errors import DeviceError, LeftError, UsageError, cause_words
from .transports import Transport, started, transport_of

TIMEOUT = 60.0  # seconds that processes wait for each other, if nothing else is said
# The pause between two looks, in seconds and of the time waited. NOTE processes wait for each other in turn: a pause as
# long as the wait before it would grow from exchange to exchange.
_NAP, _LONGEST, _SHARE = 0.0002, 0.02, 1 / 8
_DATA, _LEFT, _PASSED = b"d", b"l", b"p"  # data; this process has left; what another one has told of leaving
_END = b"\0"
_LENGTH = struct.Struct("<Q")  # of a message's data


class Group:
    """See the module. `of`: a torch.distributed process group, an mpi4py communicator, another Group, or a Transport.

    `ranks`: the members by their ranks in `of`, in the order of places; by default all, in their own order. Only the
    members make the group. Groups over one `of` are made in the same order by all of their members.

    Raises UsageError (nothing that a group can be made of; this process is no member), DeviceError (not all members
    have come within `timeout` seconds).
    """

    def __init__(self, of: object, *, ranks: Sequence[int] | None = None, timeout: float = TIMEOUT) -> None:
        if isinstance(of, Group):
            of, ranks = of._transport, range(of.size) if ranks is None else ranks
        self._transport: Transport = transport_of(of, ranks, timeout)
        self._number = 0  # of the next exchange
        self._early: dict[int, bytes] = {}  # its messages that have come before it
        self._parts: dict[tuple[int, ...], Group] = {}
        self._over: str | None = None  # why nothing more can be exchanged

    @classmethod
    def from_env(cls, timeout: float = TIMEOUT) -> Group:
        """The processes that torchrun, mpirun or Slurm has started with this one; this process alone where none has.

        `timeout`: seconds that the making may take. Raises UsageError: the environment names processes that PyTorch or
        mpi4py is needed for, and it is not there. DeviceError: not all have come in time.
        """
        return cls(started(timeout), timeout=timeout)

    @property
    def rank(self) -> int:
        """This process's place, 0 … size − 1. Raises nothing."""
        return self._transport.place

    @property
    def size(self) -> int:
        """How many processes there are. Raises nothing."""
        return self._transport.size

    def __repr__(self) -> str:
        return f"<Group: process {self.rank} of {self.size}>"

    def exchange(self, mine: bytes, timeout: float | None, step: str = "") -> tuple[bytes, ...]:
        """Sends a value to all processes, and returns the values of all, in the order of places. `step` names the
        purpose, which must be the same in all processes.

        Raises DeviceError (a process did not call within `timeout` seconds, or has left), UsageError (a process has
        called for another step). The group is unusable after that.
        """
        if self._over is not None:
            raise DeviceError(f"the group of {self.size} processes is of no use any more: {self._over}")
        number, self._number = self._number, self._number + 1
        others = [place for place in range(self.size) if place != self.rank]
        found: dict[int, bytes] = {}
        try:
            self._transport.post(number, _DATA + _LENGTH.pack(len(mine)) + step.encode() + _END + mine)
            self._collect(number, others, found, timeout, step)
            return tuple(mine if place == self.rank else self._data(place, found[place], step) for place in self.places)
        except (DeviceError, UsageError) as error:
            self._over = str(error)
            raise
        finally:
            if number and not self._over:  # who has come to this exchange has taken all of the one before
                self._transport.forget(number - 1)

    def part(self, places: Sequence[int]) -> Group:
        """The processes at these places as a group, which is made once; this one, if they are all. This process is one
        of them, and all of them make it at the same step.

        Raises UsageError (this process is none of them), DeviceError (not all of them have come).
        """
        key = tuple(places)
        if key == tuple(self.places):
            return self
        if key not in self._parts:
            self._parts[key] = Group(self, ranks=key)
        return self._parts[key]

    def left(self) -> str:
        """Why another process has stopped, if one has announced that since the last exchange; empty if none has.

        Raises DeviceError (the store or launcher that carries messages does not answer).
        """
        for place in self.places if self._over is None else ():
            if place != self.rank and place not in self._early:
                message = self._transport.take(self._number, place)
                if message is not None:
                    self._early[place] = message
        return next((why for place, text in self._early.items() if (why := self._departure(place, text))), "")

    def barrier(self, timeout: float | None, step: str = "") -> None:
        """Return when all processes have called it. Raises DeviceError and UsageError, as `exchange` does."""
        self.exchange(b"", timeout, step)

    def leave(self, why: str | BaseException) -> None:
        """Tell the others that this process stops: their next exchange raises a LeftError with the text, or with that
        of the error. A LeftError is passed on as it is.

        Raises nothing.
        """
        text = why if isinstance(why, str) else cause_words(why)
        if self.size == 1 or self._over == text:
            return
        self._over = text
        with suppress(DeviceError):  # of a store or a launcher that is gone
            self._transport.post(self._number, (_PASSED if isinstance(why, LeftError) else _LEFT) + text.encode())
            self._number += 1

    def abandon(self, code: int) -> None:
        """This process exits with an error code, and other processes may never call: nothing may wait for them.

        Raises nothing.
        """
        self._transport.abandon(code)

    def close(self) -> None:
        """Releases the connection; the group is unusable after that. Raises nothing."""
        self._over = self._over or "it is closed"
        self._transport.close()

    @property
    def places(self) -> range:
        """0 … size − 1. Raises nothing."""
        return range(self.size)

    def _collect(
        self, number: int, others: list[int], found: dict[int, bytes], timeout: float | None, step: str
    ) -> None:
        begun, early = time.monotonic(), self._early
        self._early = {}
        while True:
            made = getattr(self._transport, "made", 0)
            for place in others:
                if place in found:
                    continue
                message = early[place] if place in early else self._transport.take(number, place)
                if message is not None:
                    found[place] = message
                    if why := self._departure(place, message):
                        raise LeftError(why)
            if made != getattr(self._transport, "made", 0):  # messages of a group that was given up
                found.clear()
                early = {}
            elif len(found) == len(others):
                return
            waited = time.monotonic() - begun
            if timeout is not None and waited > timeout:
                if not number:  # who has not come yet meets the others in the next group
                    self._transport.forget(number)
                missing = [place for place in others if place not in found]
                what = f" for {step}" if step else ""
                raise DeviceError(
                    f"process {self.rank} has waited {timeout:g} s{what}, and {_named(missing, self.size)} not come"
                )
            time.sleep(min(max(_NAP, waited * _SHARE), _LONGEST))

    def _departure(self, place: int, message: bytes) -> str:
        """What a message tells of a process that has left; nothing: it holds data."""
        kind, text = message[:1], message[1:]
        if kind == _LEFT:
            return f"process {place} of {self.size} has left: {text.decode()}"
        return text.decode() if kind == _PASSED else ""

    def _data(self, place: int, message: bytes, step: str) -> bytes:
        theirs, _, data = message[1 + _LENGTH.size :].partition(_END)
        if len(message) <= _LENGTH.size or len(data) != _LENGTH.unpack_from(message, 1)[0]:
            raise DeviceError(
                f"a message of process {place} of {self.size} for {step or 'an exchange'} did not come whole, "
                f"{len(message)} bytes came; what carries messages between the processes is broken"
            )
        if theirs.decode() != step:
            raise UsageError(
                f"processes do different things: process {self.rank} is at {step or 'an exchange'}, process {place} at "
                f"{theirs.decode() or 'an exchange'}; all processes of a group make the same calls in the same order"
            )
        return data


def as_group(given: Any, timeout: float = TIMEOUT) -> Group:
    """Returns a Group as it is, and makes a Group of anything else that one can be made of."""
    return given if isinstance(given, Group) else Group(given, timeout=timeout)


def gathered(group: Group, mine: object, timeout: float | None, step: str) -> list[Any]:
    """What every process states, as JSON has it; see `Group.exchange`."""
    return [json.loads(text) for text in group.exchange(json.dumps(mine).encode(), timeout, step)]


def agree(group: Group, facts: Mapping[str, str], timeout: float | None) -> None:
    """Return if all processes give the same facts. UsageError names what differs, with both values, and the last fact
    only where nothing else does: it may be a hash of all."""
    told = gathered(group, dict(facts), timeout, "the same facts")
    *_, last = told[0]
    names = dict.fromkeys(name for said in told for name in said if name != last)
    differ = _differing(told, names) or _differing(told, [last])
    if differ:
        raise UsageError(f"the processes do not run the same: {'; '.join(differ)}; give every process the same")


def _differing(told: Sequence[Mapping[str, str]], names: Iterable[str]) -> list[str]:
    return [
        f"{name} is {told[0].get(name, 'not there')} in process 0 and {other.get(name, 'not there')} in process {place}"
        for place, other in enumerate(told)
        for name in names
        if other.get(name) != told[0].get(name)
    ]


def processes(ranks: int, size: int) -> tuple[int, ...]:
    """The process of each rank of a plan: equally many consecutive ranks each. UsageError: the ranks cannot be divided
    evenly."""
    if ranks % size:
        raise UsageError(
            f"{ranks} ranks do not go out even on {size} processes: take a multiple of {size} ranks, or fewer processes"
        )
    return tuple(rank // (ranks // size) for rank in range(ranks))


def _named(places: Sequence[int], size: int) -> str:
    names = ", ".join(map(str, places))
    return f"process {names} of {size} has" if len(places) == 1 else f"processes {names} of {size} have"
