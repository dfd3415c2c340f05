"""File descriptors between processes, here between threads: what comes, what is refused, and that nothing is left."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import resource
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ficco_rt.errors import DeviceError
from ficco_rt.process import descriptors
from ficco_rt.process.descriptors import SocketNames, _Mailbox, pass_around
from ficco_rt.process.group import Group, LeftError
from tests.unit.threads import together

WAYS: tuple[SocketNames, ...] = ("abstract", "path")


def held() -> set[tuple[str, str]]:
    """The descriptors of this process, each with what it is open on."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What earlier tests left may close meanwhile."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = held()
    yield
    assert held() <= before
    assert not list(tmp_path.iterdir())


def passed(way: SocketNames, counts: Sequence[int], timeout: float = 10) -> list[object]:
    """Each process passes so many pipes' ends; what each of the others reads from what has come."""

    def body(group: Group) -> object:
        mine = [os.pipe() for _ in range(counts[group.rank])]
        for number, (_, end) in enumerate(mine):
            os.write(end, f"{group.rank}.{number} ".encode() * (group.size - 1))
        try:
            came = pass_around(group, [end for end, _ in mine], counts, way, timeout)
            group.barrier(timeout)
            said = [
                [os.read(end, len(f"{p}.{n} ")).decode() for n, end in enumerate(some)] for p, some in enumerate(came)
            ]
            for end in (end for some in came for end in some):
                assert not os.get_inheritable(end)
                os.close(end)
            group.barrier(timeout)
            return said
        finally:
            for end in (end for both in mine for end in both):
                os.close(end)

    return together(len(counts), body)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("counts", [(2, 3, 0), (300, 1)])
def test_descriptors_come_in_order(way: SocketNames, counts: tuple[int, ...]) -> None:
    """More than a message takes, too."""
    for place, said in enumerate(passed(way, counts)):
        wanted = [[f"{p}.{n} " for n in range(count)] if p != place else [] for p, count in enumerate(counts)]
        assert said == wanted


@pytest.mark.parametrize("way", WAYS)
def test_a_process_with_many_files_open(way: SocketNames, monkeypatch: pytest.MonkeyPatch) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most[1], most[1]))
    try:

        class High(socket.socket):
            def __init__(self, *arguments: int) -> None:
                low = socket.SocketType(*arguments)
                super().__init__(fileno=fcntl.fcntl(low.fileno(), fcntl.F_DUPFD_CLOEXEC, 1200))
                low.close()

        monkeypatch.setattr(descriptors.socket, "socket", High)
        assert passed(way, (1, 1)) == [[[], ["1.0 "]], [["0.0 "], []]]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)


def all_told(answers: Sequence[object], said: str) -> None:
    for answer in answers:
        assert isinstance(answer, DeviceError)
        assert str(answer).startswith("file descriptors did not pass between the processes: ")
        assert said in str(answer)


@pytest.mark.parametrize("way", WAYS)
def test_a_name_that_nobody_reaches_is_told_in_both(way: SocketNames, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another network namespace, or a folder that only one process sees."""

    def refused(*_: object) -> None:
        raise OSError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(_Mailbox, "send", refused)
    all_told(passed(way, (1, 1)), "process 0: process 1 is not reached: Connection refused; process 1: process 0 is")


def test_a_process_that_gets_no_socket_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(descriptors.tempfile, "mkdtemp", full)
    all_told(passed("path", (1, 1)), "process 0 gets no socket: [Errno 28] No space left on device")


def test_descriptors_that_find_no_room_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system drops what a process at its limit of open files cannot hold, and says so in a flag."""
    right = socket.socket.recvmsg

    def cut(self: socket.socket, *arguments: int) -> object:
        message, rights, flags, address = right(self, *arguments)
        return message, rights, flags | socket.MSG_CTRUNC, address

    class Cut(socket.socket):
        recvmsg = cut

    monkeypatch.setattr(descriptors.socket, "socket", Cut)
    all_told(passed("abstract", (1, 0)), "process 1: the descriptors that came find no room: too many files are open")


def test_messages_of_strangers_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones, and ones without the receiver's token; with the descriptors that they bring."""
    right = _Mailbox.send

    def after_strangers(self: _Mailbox, message: bytes, mine: Sequence[int], name: bytes) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", mine))]
        for wrong in (b"", message[:10], b"x" * len(message)):
            self.socket.sendmsg([wrong], rights, socket.MSG_DONTWAIT, name)
        right(self, message, mine, name)

    monkeypatch.setattr(_Mailbox, "send", after_strangers)
    assert passed("abstract", (2, 1)) == [[[], ["1.0 "]], [["0.0 ", "0.1 "], []]]


def test_a_message_that_does_not_come_is_told_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _Mailbox.send

    def to_the_second_alone(self: _Mailbox, message: bytes, mine: Sequence[int], name: bytes) -> None:
        if len(mine) == 2:
            right(self, message, mine, name)

    monkeypatch.setattr(_Mailbox, "send", to_the_second_alone)
    all_told(passed("path", (2, 1), timeout=0.3), "process 0: no message from process 1")


def test_a_process_that_leaves_ends_the_exchange(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What has come is closed, and the socket of a process that could not remove its own is removed."""

    def body(group: Group) -> object:
        end, other = os.pipe()
        try:
            if group.rank == 0:
                return pass_around(group, [end], [1, 1], "path", 10)
            with _Mailbox("path", 1) as mailbox:
                monkeypatch.setattr(mailbox, "_close", mailbox.socket.close)  # as if it were killed
                names = group.exchange(mailbox.name, 10, "tell sockets' names")
                mailbox.send(names[0][:16] + (1).to_bytes(4, "little") + bytes(4), [end], names[0][16:])
                group.leave("this is over")
            return None
        finally:
            os.close(end)
            os.close(other)

    told, _ = together(2, body)
    assert isinstance(told, LeftError)
    assert str(told) == "process 1 of 2 has left: this is over"
