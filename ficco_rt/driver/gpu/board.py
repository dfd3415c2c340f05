"""A page of host memory in which each process of a group says what it does, and by which the others see that it lives.

Each process holds a lock on a byte of the page's file. The system gives the lock back when the process ends, however it
ends, so that the others need no process id, which other containers do not know.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Doing: TypeAlias = Literal["opens", "issues", "waits", "idles", "closed"]
_DOINGS: tuple[Doing, ...] = get_args(Doing)
_SLOT = struct.Struct("<IQQd")  # what it does, runs issued, runs seen to end, since when (CLOCK_MONOTONIC, seconds)
_STEP = 64  # bytes from slot to slot
_LOCK = struct.Struct("hhqqi0q")  # of fcntl: type, from where, first byte, bytes, process


@dataclass(frozen=True, slots=True)
class Said:
    """What a process has said last."""

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


def made() -> int:
    """A file for the page, which nothing but its descriptors names."""
    descriptor = os.memfd_create("ficco", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor


class Board:
    """See the module. `members`: the processes of the group that have the page; this one is at `place` among them. NOTE
    it owns the descriptor, and nobody closes another one of the same file: that would give the lock back."""

    def __init__(self, descriptor: int, place: int, members: Sequence[int]) -> None:
        self._descriptor = descriptor
        self._place, self._members = place, members
        self._page = mmap.mmap(descriptor, mmap.PAGESIZE)
        self._issued = self._ended = 0
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        self.say("opens")

    def say(self, doing: Doing) -> None:
        _SLOT.pack_into(
            self._page, self._place * _STEP, _DOINGS.index(doing), self._issued, self._ended, time.monotonic()
        )

    def issues(self) -> None:
        self._issued += 1
        self.say("issues")

    def ends(self) -> None:
        self._ended = self._issued
        self.say("idles")

    def said(self, place: int) -> Said:
        doing, issued, ended, since = _SLOT.unpack_from(self._page, place * _STEP)
        return Said(_DOINGS[doing], issued, ended, max(0.0, time.monotonic() - since))

    def gone(self) -> list[int]:
        """The processes that have ended without closing their executors."""
        found = (p for p in range(len(self._members)) if p != self._place and not self._held(p))
        return [self._members[p] for p in found if not self._closed(p)]

    def _closed(self, place: int) -> bool:
        return self.said(place).doing == "closed"

    def _held(self, place: int) -> bool:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
        kind, *_ = _LOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
        return bool(kind != fcntl.F_UNLCK)

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


MOST = mmap.PAGESIZE // _STEP  # processes on a page
