"""Memory that the processes of a group on one machine share. Each process holds a lock on a byte of it, so that the
others see at once when it ends (`process.descriptors`)."""

from __future__ import annotations

import mmap
import socket
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

import numpy as np

from ...errors import DeviceError, UsageError
from ...process.descriptors import descriptors_pass, lock, locked, made, pass_around
from ...process.group import Group, gathered
from ..api import Array

_CANNOT = "the processes cannot share memory"
_CONTAINERS = "give containers a common network namespace, or a common folder for temporary files (TMPDIR)"


class Segment:
    """Zeroed memory of so many bytes. All processes of the group make it together.

    Raises UsageError (they are not on one machine, or in containers that do not see each other), DeviceError (memory;
    a process has not come within `timeout` seconds).
    """

    def __init__(self, group: Group, size: int, timeout: float | None) -> None:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        told = gathered(group, [machine, socket.gethostname()], timeout, "memory to share")
        first, host = told[0]
        where = "it is on {} and process 0 on {}; the host driver runs all ranks on one machine"
        _refuse("" if other == first else where.format(name, host) for other, name in told)
        way = descriptors_pass(group, timeout)
        if way is None:
            raise UsageError(f"{_CANNOT}: file descriptors do not pass between them; {_CONTAINERS}")
        try:
            mine = [made(size)] if group.rank == 0 else []
        except OSError as error:
            raise DeviceError(f"no memory of {size} bytes to share among processes: {error.strerror}") from error
        came = pass_around(group, mine, [1] + [0] * (group.size - 1), way, timeout)
        self._file = FileIO((mine or came[0])[0], "r+")
        problem = ""
        try:
            lock(self._file.fileno(), group.rank)
            self.memory: Array = np.frombuffer(mmap.mmap(self._file.fileno(), size), np.uint8)
        except OSError as error:
            problem = str(error)
        _refuse(text.decode() for text in group.exchange(problem.encode(), timeout, "memory that is shared"))

    def ended(self, place: int) -> bool:
        """Whether the process at another place has ended, or has closed the segment."""
        return not locked(self._file.fileno(), place)

    def close(self) -> None:
        """The memory itself goes with the last array of it."""
        self._file.close()


def _refuse(problems: Iterable[str]) -> None:
    """UsageError: a process has one."""
    bad = [f"process {place}: {text}" for place, text in enumerate(problems) if text]
    if bad:
        raise UsageError(f"{_CANNOT}: {'; '.join(bad)}")
