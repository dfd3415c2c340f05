"""The transports of bytes between processes: a store of torch.distributed, an MPI communicator, or none for a single
process.

torch and mpi4py are imported when they are used. There is no protocol of our own: torchrun, mpirun, Slurm or the caller
connects the processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from .. import env
from ..errors import DeviceError, UsageError

TAG = 29_041  # of making a communicator; no message of a caller's carries it


class Transport(Protocol):
    """Moves bytes among the processes of a group. Messages of a process are numbered 0, 1, …"""

    @property
    def place(self) -> int: ...

    @property
    def size(self) -> int: ...

    def post(self, number: int, message: bytes) -> None:
        """Hand a message to all other places; returns at once."""

    def take(self, number: int, place: int) -> bytes | None:
        """The message of this number of another place; None: it has not arrived yet. Each message is taken once."""

    def forget(self, number: int) -> None:
        """All others have taken the message of this number of ours."""

    def among(self, places: Sequence[int], timeout: float) -> Transport:
        """Another transport, of these places alone, in this order."""

    def abandon(self, code: int) -> None:
        """This process ends, and others may never come: nothing may wait for them."""

    def close(self) -> None: ...


class Alone:
    """A process by itself."""

    place = 0
    size = 1

    def post(self, number: int, message: bytes) -> None: ...

    def take(self, number: int, place: int) -> bytes | None:
        raise AssertionError("there is no other place")

    def forget(self, number: int) -> None: ...

    def among(self, places: Sequence[int], timeout: float) -> Transport:
        return self

    def abandon(self, code: int) -> None: ...

    def close(self) -> None: ...


_GONE = b"gone"  # in place of a group's first message, when its process waits no longer


class StoreTransport:
    """Messages are keys of a store (torch.distributed.TCPStore, FileStore, …). It is asked without waiting: a wait in a
    store holds the connection that other threads of the process use."""

    def __init__(self, store: Any, members: Sequence[int], rank: int) -> None:
        self._store = store
        self._members = members
        self.place, self.size = members.index(rank), len(members)
        self._name = "ficco/" + ",".join(map(str, members))
        self._name_next()
        self._first = b""

    def post(self, number: int, message: bytes) -> None:
        if not number:
            self._first = message
            while any(self._message(0, place) == _GONE for place in range(self.size) if place != self.place):
                self._go_on()  # others could take this message for the last that was missing
        self._call("set", self._key(number, self.place), message)

    def take(self, number: int, place: int) -> bytes | None:
        message = self._message(number, place)
        if message != _GONE:
            return message
        self._go_on()
        self.post(0, self._first)
        return None

    def _go_on(self) -> None:
        """Where another process has given up a group that this one had not come to, they meet in the next one."""
        self.forget(0)
        self._name_next()

    def _message(self, number: int, place: int) -> bytes | None:
        key = self._key(number, place)
        return bytes(self._call("get", key)) if self._call("check", [key]) else None

    def _name_next(self) -> None:
        """Groups of the same members have names of their own: numbers that each member counts."""
        self.made = self._call("add", f"{self._name}/made/{self.place}", 1)

    def forget(self, number: int) -> None:
        key = self._key(number, self.place)
        self._call("delete_key", key) if number else self._call("set", key, _GONE)

    def among(self, places: Sequence[int], timeout: float) -> Transport:
        return StoreTransport(self._store, [self._members[place] for place in places], self._members[self.place])

    def abandon(self, code: int) -> None: ...

    def close(self) -> None: ...

    def _key(self, number: int, place: int) -> str:
        return f"{self._name}/{self.made}/{number}/{place}"

    def _call(self, name: str, *arguments: object) -> Any:
        try:
            return getattr(self._store, name)(*arguments)
        except RuntimeError as error:  # torch's DistError and its kind
            raise DeviceError(f"the store of the processes does not answer ({name}): {error}") from error


class MpiTransport:
    """Messages from process to process on a communicator of our own, so that none meets a caller's."""

    def __init__(self, mpi: Any, of: Any, members: Sequence[int], timeout: float) -> None:
        inside = of.Get_group().Incl(list(members))
        key, threads = (of.py2f(), *members), mpi.Query_thread() == mpi.THREAD_MULTIPLE
        made = _within(lambda: of.Create_group(inside, TAG), timeout, key) if threads else of.Create_group(inside, TAG)
        if made is None:
            raise DeviceError(
                f"not all of the processes {', '.join(map(str, members))} of the communicator have come within "
                f"{timeout:g} s to make a group; every member makes it, with the same ranks"
            )
        self._mpi = mpi
        self._comm = made
        self.place, self.size = made.Get_rank(), made.Get_size()
        self._sent: list[Any] = []

    def post(self, number: int, message: bytes) -> None:
        self._sent += [self._comm.isend(message, place) for place in range(self.size) if place != self.place]

    def take(self, number: int, place: int) -> bytes | None:
        message = self._comm.improbe(place)
        return None if message is None else bytes(message.recv())

    def forget(self, number: int) -> None:
        self._sent = [request for request in self._sent if not request.test()[0]]

    def among(self, places: Sequence[int], timeout: float) -> Transport:
        return MpiTransport(self._mpi, self._comm, places, timeout)

    def abandon(self, code: int) -> None:
        """NOTE the end of MPI in a process waits for all others."""
        self._comm.Abort(code)

    def close(self) -> None:
        if all(request.test()[0] for request in self._sent):
            self._comm.Free()


def transport_of(of: Any, ranks: Sequence[int] | None, timeout: float) -> Transport:
    """What carries the messages of a group over what a caller has; see `Group`."""
    module = type(of).__module__.partition(".")[0]
    if module == "mpi4py":
        from mpi4py import MPI

        members = _members(ranks, of.Get_size(), of.Get_rank())
        return MpiTransport(MPI, of, members, timeout) if len(members) > 1 else Alone()
    if module == "torch" and hasattr(of, "rank") and hasattr(of, "size"):
        from torch.distributed.distributed_c10d import _get_process_group_store

        members = _members(ranks, of.size(), of.rank())
        return StoreTransport(_get_process_group_store(of), members, of.rank()) if len(members) > 1 else Alone()
    if all(hasattr(of, name) for name in ("place", "size", "post", "take", "forget", "among")):
        transport: Transport = of
        return transport if ranks is None else transport.among(_members(ranks, of.size, of.place), timeout)
    raise UsageError(
        f"no group can be made of {type(of).__name__}: give a torch.distributed process group, an mpi4py communicator, "
        "or ficco.Group.from_env()"
    )


def _members(ranks: Sequence[int] | None, size: int, rank: int) -> list[int]:
    members = list(range(size)) if ranks is None else [int(r) for r in ranks]
    if len(set(members)) != len(members) or not all(0 <= r < size for r in members) or not members:
        raise UsageError(f"ranks={members}: takes different ranks from 0 to {size - 1}")
    if rank not in members:
        raise UsageError(f"ranks={members}: this process has rank {rank}; only members make a group")
    return members


# ---------------------------------------------------------------- launchers


def launched() -> tuple[str, int]:
    """The launcher of this process in words, and the number of processes that it has started; ("", 1) without a
    launcher."""
    if env.others("TORCHELASTIC_RUN_ID") is not None:
        return "torchrun", _number("WORLD_SIZE")
    for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"):
        if env.others(name) is not None:
            return "mpirun", _number(name)
    if all(env.others(name) is not None for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return "torchrun", _number("WORLD_SIZE")
    if env.others("SLURM_PROCID") is not None and env.others("SLURM_STEP_NUM_TASKS") is not None:
        return "Slurm", _number("SLURM_STEP_NUM_TASKS")
    return "", 1


LOCAL_SIZES = (
    "LOCAL_WORLD_SIZE",  # torchrun
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
    "MV2_COMM_WORLD_LOCAL_SIZE",
    "SLURM_STEP_TASKS_PER_NODE",  # as in 4(x2)
)


def local(processes: int) -> int:
    """Number of processes that the launcher has started on this machine; `processes` if the launcher does not say."""
    for name in LOCAL_SIZES:
        count = (env.others(name) or "").partition("(")[0]
        if count.isdecimal() and int(count):
            return int(count)
    return processes


def started(timeout: float) -> Transport:
    """What carries the messages of all processes that were started together."""
    who, size = launched()
    if size == 1:
        return Alone()
    if who == "torchrun":
        return _store_of_env(timeout)
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise UsageError(
            f"{who} has started {size} processes, and mpi4py cannot be imported to talk to them ({error}): "
            "pip install mpi4py, or start one process"
        ) from error
    world = MPI.COMM_WORLD
    if world.Get_size() != size:
        raise UsageError(
            f"{who} has started {size} processes, and MPI knows of {world.Get_size()}: "
            + ("srun needs --mpi=pmix" if who == "Slurm" else "mpirun and mpi4py are of different MPIs")
        )
    return transport_of(world, None, timeout)


def _store_of_env(timeout: float) -> Transport:
    try:
        from torch import distributed
    except ImportError as error:
        raise UsageError(
            f"RANK and WORLD_SIZE are set, as torchrun does, and torch cannot be imported: {error}"
        ) from error
    try:
        store, rank, size = next(distributed.rendezvous("env://", timeout=timedelta(seconds=timeout)))
    except (RuntimeError, ValueError) as error:
        raise DeviceError(f"no meeting at MASTER_ADDR and MASTER_PORT: {error}") from error
    return StoreTransport(store, list(range(size)), rank)


def _number(name: str) -> int:
    text = env.others(name) or ""
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{name} is '{text}', not a number of processes")
    return int(text)


_MAKING: dict[tuple[int, ...], tuple[threading.Thread, list[Any]]] = {}  # what took longer, by what it makes


def _within(make: Callable[[], Any], timeout: float, key: tuple[int, ...]) -> Any:
    """What `make` returns; None if that takes longer: who asks again for the same then waits for the same call."""
    if key not in _MAKING:
        made: list[Any] = []
        thread = threading.Thread(target=lambda: made.append(make()), name="ficco group", daemon=True)
        thread.start()
        _MAKING[key] = thread, made
    thread, made = _MAKING[key]
    thread.join(timeout)
    if not thread.is_alive():
        del _MAKING[key]
    return made[0] if made else None
