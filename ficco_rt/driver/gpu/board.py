"""The board: host memory in which each process of a group publishes its state, and by which the others see that it is
alive.

Each process holds a lock on a byte of the memory's file (`process.descriptors`). So the others need no process id,
which would be unknown in other containers.

A process that gives up its runs publishes its *verdict* here before it forces anything. Every process reads the
verdicts after a run has completed and before it reports success. A verdict is never taken back.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from ...process.descriptors import lock, locked

Doing: TypeAlias = Literal["opens", "issues", "waits", "idles", "closed"]
_DOINGS: tuple[Doing, ...] = get_args(Doing)
_ISSUES = _DOINGS.index("issues")
_SLOT = struct.Struct("<IQQd")  # what it does, runs issued, runs seen to end, since when (CLOCK_MONOTONIC, seconds)
_VERDICT = struct.Struct("<QdH")  # the run given up (0: none), since when, bytes of the reason, which follows
_STEP = 512  # bytes from slot to slot; of the first piece, in front of them, byte 0 says that there is a verdict
_REASON = _STEP - _SLOT.size - _VERDICT.size
MOST = 64  # processes
SIZE = _STEP * (MOST + 1)


@dataclass(frozen=True, slots=True)
class Said:
    """The last state that a process has published."""

    doing: Doing
    issued: int
    ended: int
    ago: float  # seconds

    def __str__(self) -> str:
        what = {
            "opens": "opens its executor",
            "issues": f"issues run {self.issued}",
            "waits": f"waits for the end of run {self.issued}",
            "idles": "runs nothing",
            "closed": "has closed its executor",
        }[self.doing]
        return f"{what}, since {self.ago:.1f} s; {self.issued} runs issued, {self.ended} seen to end"


forks = 0  # between this process and the one that imported the module. NOTE each run asks: that is no call


def _forked() -> None:
    global forks
    forks += 1


os.register_at_fork(after_in_child=_forked)


class Board:
    """See the module. `members`: the processes of the group that have the page; this one is at `place` among them. It
    owns the descriptor, of SIZE bytes."""

    def __init__(self, descriptor: int, place: int, members: Sequence[int]) -> None:
        self._descriptor = descriptor
        self._place, self._members, self._slot = place, members, _at(place)
        self._forks = forks  # a forked process says nothing in this one's name
        self._page = mmap.mmap(descriptor, SIZE)
        self._issued = self._ended = 0
        lock(descriptor, place)
        self.say("opens")

    def say(self, doing: Doing) -> None:
        if forks != self._forks:
            return
        _SLOT.pack_into(self._page, self._slot, _DOINGS.index(doing), self._issued, self._ended, time.monotonic())

    def issues(self) -> None:
        """NOTE each run comes here."""
        self._issued += 1
        if forks == self._forks:
            _SLOT.pack_into(self._page, self._slot, _ISSUES, self._issued, self._ended, time.monotonic())

    def ends(self) -> None:
        self._ended = self._issued
        self.say("idles")

    # ---- verdicts

    def publish(self, why: str) -> None:
        """Publishes that this process gives up its runs: all that no process has checked yet. The first reason is
        kept."""
        at = self._slot + _SLOT.size
        if forks != self._forks or _VERDICT.unpack_from(self._page, at)[0]:
            return
        # NOTE whole characters, and the reason before what says that there is one
        reason = why.encode()[:_REASON].decode(errors="ignore").encode()
        self._page[at + _VERDICT.size : at + _VERDICT.size + len(reason)] = reason
        _VERDICT.pack_into(self._page, at, max(1, self._issued), time.monotonic(), len(reason))
        self._page[0] = 1

    @property
    def any_verdict(self) -> bool:
        """Whether some process has given up its runs. NOTE every run calls this."""
        return self._page[0] != 0

    def verdict(self) -> str:
        """Which other process gave up its runs first, and why; nothing: none has."""
        found: list[tuple[float, str]] = []
        for place, process in enumerate(self._members if self.any_verdict else ()):
            at = _at(place) + _SLOT.size
            run, since, size = _VERDICT.unpack_from(self._page, at)
            if run and place != self._place:
                reason = self._page[at + _VERDICT.size : at + _VERDICT.size + size].decode(errors="replace")
                found.append((since, f"process {process} gave up run {run}: {reason}"))
        return min(found)[1] if found else ""

    # ---- what they do

    def said(self, place: int) -> Said:
        doing, issued, ended, since = _SLOT.unpack_from(self._page, _at(place))
        return Said(_DOINGS[doing], issued, ended, max(0.0, time.monotonic() - since))

    def gone(self) -> list[int]:
        """The processes that have ended without closing their executors."""
        found = (p for p in range(len(self._members)) if p != self._place and not locked(self._descriptor, p))
        return [self._members[p] for p in found if not self._closed(p)]

    def all_closed(self) -> bool:
        """Whether all others have closed their executors, or have ended."""
        others = (place for place in range(len(self._members)) if place != self._place)
        return all(self._closed(place) or not locked(self._descriptor, place) for place in others)

    def _closed(self, place: int) -> bool:
        return self.said(place).doing == "closed"

    def lines(self) -> list[str]:
        """What the others have said last, a line each; a number of runs that is not ours is said."""
        gone, found, mine = self.gone(), [], self._members[self._place]
        for place, process in enumerate(self._members):
            if place == self._place:
                continue
            said = self.said(place)
            line = f"process {process} {said}"
            if process in gone:
                line = f"process {process} is gone; when it ended: it {said}"
            if said.issued != self._issued:
                line += f" (this process, {mine}, has issued {self._issued}: all run the same)"
            found.append(line)
        return found

    def close(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError, ValueError):
                self.say("closed")
            self._page.close()
            os.close(self._descriptor)
            self._descriptor = -1


def _at(place: int) -> int:
    """Where a slot begins."""
    return _STEP * (place + 1)
