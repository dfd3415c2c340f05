"""File descriptors of memory that has no name, and how they pass between the processes of a group: over Unix sockets
(SCM_RIGHTS). Nothing of such memory remains, whichever process is killed. A process may hold a lock on a byte of it:
the system releases the lock when the process ends, however it ends, even across PID namespaces.

Each process opens a datagram socket, sends the socket's name to the group, sends its descriptors to every other process
and receives theirs. Then it closes the socket. Names are abstract, that is, local to the network namespace. Processes
of different namespaces (containers) use a path in a folder that all of them see; the folder is removed at once.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import select
import socket
import struct
import tempfile
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from ..errors import DeviceError
from .group import Group

LOG = logging.getLogger(__name__)

SocketNames: TypeAlias = Literal["abstract", "path"]
_WAYS: tuple[SocketNames, ...] = get_args(SocketNames)

TRY = 5.0  # seconds that a first message between processes gets
LONG = 86400.0  # seconds that stand for no limit
_TOKEN = 16  # bytes that each message begins with: nobody else's message is taken for one of ours
_HEAD = struct.Struct("<16sII")  # of a message: the receiver's token, the sender, where its descriptors begin
_LOCK = struct.Struct("hhqqi0q")  # of fcntl: type, from where, first byte, bytes, process
_MOST = 128  # descriptors in a message; Linux takes 253


@contextmanager
def no_more_files() -> Iterator[None]:
    """Inside, files are opened for what processes share. DeviceError: none can be."""
    try:
        yield
    except OSError as error:
        raise DeviceError(
            f"this process can open no file for memory that processes share: {error} (ulimit -n)"
        ) from error


def close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def made(size: int) -> int:
    """A file of zeroed memory, which nothing but its descriptors names."""
    descriptor = os.memfd_create("ficco", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size)
    return descriptor


def lock(descriptor: int, place: int) -> None:
    """Holds the lock on a byte for as long as this process lives. OSError: another process has it. NOTE this process
    closes no other descriptor of the file: that would give the lock back."""
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)


def locked(descriptor: int, place: int) -> bool:
    """Whether another process that lives holds the lock on a byte."""
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, place, 1, 0)
    kind, *_ = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return bool(kind != fcntl.F_UNLCK)


class NotPassedError(DeviceError):
    """The processes are all there, and descriptors do not pass between them in this way."""


def pass_around(
    group: Group, mine: Sequence[int], counts: Sequence[int], way: SocketNames, timeout: float | None
) -> list[list[int]]:
    """Every process's descriptors, in order of processes; the own ones are left out. `counts`: how many each process
    has. The caller closes what comes. NotPassedError, in every process: somebody's did not come. Another DeviceError: a
    process did not come, or has left."""
    came: list[list[int]] = [[] for _ in range(group.size)]
    failed = ""  # a process that fails goes on until all know
    with ExitStack() as undo:
        undo.callback(lambda: close_all(chain(*came)))
        with ExitStack() as stack:
            mailbox = None
            try:
                mailbox = stack.enter_context(_Mailbox(way, group.rank))
            except OSError as error:
                failed = f"process {group.rank} gets no socket: {error}"
            names = group.exchange(mailbox.name if mailbox is not None else b"", timeout, "tell sockets' names")
            try:
                if mailbox is not None and all(names):
                    until = time.monotonic() + (timeout or LONG)
                    try:
                        mailbox.exchange(names, mine, counts, came, until)
                    except OSError as error:
                        failed = f"process {group.rank}: {error}"
                told = group.exchange(failed.encode(), timeout and 2 * timeout, "pass descriptors")
            except BaseException:
                for name in names:  # a process that was killed removes nothing
                    _remove(name[_TOKEN:])
                raise
        troubles = [text.decode() for text in told if text]
        if troubles:
            raise NotPassedError("file descriptors did not pass between the processes: " + "; ".join(troubles))
        undo.pop_all()
    return came


def descriptors_pass(node: Group, timeout: float | None) -> SocketNames | None:
    """The kind of socket names by which file descriptors can be passed; None: neither kind works."""
    limit = TRY if timeout is None else min(TRY, timeout)
    with no_more_files():
        probe = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for way in _WAYS:
            try:
                came = pass_around(node, [probe], [1] * node.size, way, limit)
            except NotPassedError as error:
                LOG.debug("%s", error)
                continue
            close_all(chain(*came))
            return way
    finally:
        os.close(probe)
    return None


class _Mailbox:
    """A socket with a name. What it is told by is its token and its name."""

    def __init__(self, way: SocketNames, place: int) -> None:
        self.place = place  # of the process
        self.token = secrets.token_bytes(_TOKEN)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._name = b"\0ficco-" + secrets.token_hex(_TOKEN).encode()
        with ExitStack() as undo:
            undo.callback(self._close)
            if way == "path":
                self._name = os.fsencode(Path(tempfile.mkdtemp(prefix="ficco-")).absolute() / "peers")
            self.socket.bind(self._name)
            undo.pop_all()
        self.name = self.token + self._name

    def exchange(
        self, names: Sequence[bytes], mine: Sequence[int], counts: Sequence[int], came: list[list[int]], until: float
    ) -> None:
        """Sends all others this process's descriptors, by their names, and takes theirs. Raises OSError."""
        others = [other for other in range(len(names)) if other != self.place]
        sending = [(other, at) for other in others for at in range(0, len(mine), _MOST)]
        waiting = {other for other in others if counts[other]}
        poll = select.poll()  # NOTE `select.select` takes no descriptor from 1024 on
        while sending or waiting:
            left = until - time.monotonic()
            if left <= 0:
                raise OSError(f"no message from process {min(waiting)}" if waiting else "a socket stays full")
            poll.register(self.socket, select.POLLIN | (select.POLLOUT if sending else 0))
            ready = dict(poll.poll(1000 * left)).get(self.socket.fileno(), 0)
            if ready & ~select.POLLOUT:
                message, descriptors = self.take()
                if len(message) < _HEAD.size or message[:_TOKEN] != self.token:
                    close_all(descriptors)
                    continue
                _, sender, at = _HEAD.unpack(message)
                came[sender][at : at + len(descriptors)] = descriptors
                if len(came[sender]) == counts[sender]:
                    waiting.discard(sender)
            elif ready:
                other, at = sending[0]
                token, name = names[other][:_TOKEN], names[other][_TOKEN:]
                try:
                    self.send(_HEAD.pack(token, self.place, at), mine[at : at + _MOST], name)
                    sending.pop(0)
                except BlockingIOError:  # the receiver's queue is full: another one's turn
                    sending.append(sending.pop(0))
                    time.sleep(1e-4)
                except OSError as error:
                    raise OSError(f"process {other} is not reached: {os.strerror(error.errno or 0)}") from error

    def send(self, message: bytes, descriptors: Sequence[int], name: bytes) -> None:
        """NOTE `socket.send_fds` of Python 3.11 sends to nobody's name."""
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
        self.socket.sendmsg([message], [rights], socket.MSG_DONTWAIT, name)

    def take(self) -> tuple[bytes, list[int]]:
        found = array("i")
        room = socket.CMSG_SPACE(_MOST * found.itemsize)
        flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
        message, rights, came, _ = self.socket.recvmsg(_HEAD.size, room, flags)
        for level, kind, data in rights:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
        if came & socket.MSG_CTRUNC:
            close_all(found)
            raise OSError("the descriptors that came find no room: too many files are open (ulimit -n)")
        return message, found.tolist()

    def __enter__(self) -> _Mailbox:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        """NOTE the descriptors of messages that nobody has taken are closed with the socket."""
        self.socket.close()
        _remove(self._name)


def _remove(name: bytes) -> None:
    """A socket's path with its folder; an abstract name is gone by itself."""
    if name[:1] != b"/":
        return
    with suppress(OSError):
        os.unlink(name)
    with suppress(OSError):
        os.rmdir(os.path.dirname(name))
