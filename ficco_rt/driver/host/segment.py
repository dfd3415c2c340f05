"""Memory that the processes of a group on one machine share. It has no name, so nothing of it remains, whichever
process is killed.

Each process holds a lock on a byte of the memory's file for as long as it lives. When the process ends, by whatever
signal, the system releases the lock. So the others see at once which process has ended, even across PID namespaces.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import secrets
import socket
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

import numpy as np

from ...errors import DeviceError, UsageError
from ...process.group import Group
from ..api import Array


class Segment:
    """Zeroed memory of so many bytes. All processes of the group make it together.

    Raises UsageError (they are not on one machine, or in containers that do not see each other), DeviceError (memory;
    a process has not come within `timeout` seconds).
    """

    def __init__(self, group: Group, size: int, timeout: float | None) -> None:
        self._place = group.rank
        name = f"ficco-{secrets.token_hex(8)}"
        file = _made(name, size) if group.rank == 0 else None
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        here = {"machine": machine, "host": socket.gethostname(), "namespace": os.readlink("/proc/self/ns/pid")}
        if file is not None:
            here |= {"name": name, "pid": str(os.getpid()), "file": str(file.fileno())}
        told = [json.loads(data) for data in group.exchange(json.dumps(here).encode(), timeout, "memory to share")]
        problem = ""
        try:
            self._file = file if file is not None else _opened(told[0], here)
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._place)
            # NOTE no other descriptor of the file may be closed by this process: that would give its lock back
            self.memory: Array = np.frombuffer(mmap.mmap(self._file.fileno(), size), np.uint8)
        except (OSError, UsageError) as error:
            problem = str(error)
        problems = group.exchange(problem.encode(), timeout, "memory that is shared")
        bad = [f"process {place}: {text.decode()}" for place, text in enumerate(problems) if text]
        if bad:
            raise UsageError("the processes cannot share memory: " + "; ".join(bad))

    def ended(self, place: int) -> bool:
        """Whether the process at another place has ended, or has closed the segment."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)
        return True

    def close(self) -> None:
        """The memory itself goes with the last array of it."""
        self._file.close()


def _made(name: str, size: int) -> FileIO:
    try:
        file = FileIO(os.memfd_create(name), "r+")
        file.truncate(size)
    except OSError as error:
        raise DeviceError(f"no memory of {size} bytes to share among processes: {error.strerror}") from error
    return file


def _opened(told: Mapping[str, str], here: Mapping[str, str]) -> FileIO:
    """The file of the process at place 0, by the way that the system has for it."""
    if told["machine"] != here["machine"]:
        raise UsageError(
            f"it is on {here['host']} and process 0 on {told['host']}; the host driver runs all ranks on one machine"
        )
    path = f"/proc/{told['pid']}/fd/{told['file']}"
    try:
        if told["name"] in os.readlink(path):
            return FileIO(path, "r+")
        reason = "another process has its number"
    except OSError as error:
        reason = error.strerror or str(error)
    where = "" if told["namespace"] == here["namespace"] else ", as they are in different PID namespaces"
    raise UsageError(
        f"it does not see process 0{where} ({reason}); start all processes as one user, in one container or with "
        "--pid=host"
    )
