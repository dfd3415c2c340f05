"""Several processes for tests: forked from this one, so that a start costs little, with a store in a folder."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ficco_rt.process.group import Group
from ficco_rt.process.transports import StoreTransport

LIMIT = 60.0  # seconds that processes get, of which they need a few tenths


class FolderStore:
    """What `StoreTransport` needs of a store of torch.distributed, in files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, key: str, value: bytes) -> None:
        aside = self._path(f"{key}.{os.getpid()}")
        aside.write_bytes(value)
        aside.rename(self._path(key))

    def get(self, key: str) -> bytes:
        return self._path(key).read_bytes()

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._path(key).exists() for key in keys)

    def delete_key(self, key: str) -> bool:
        self._path(key).unlink()
        return True

    def add(self, key: str, amount: int) -> int:
        """NOTE not for several processes at once: each counts by a key of its own."""
        total = amount + (int(self.get(key)) if self.check([key]) else 0)
        self.set(key, str(total).encode())
        return total

    def names(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir())

    def _path(self, key: str) -> Path:
        return self._folder / quote(key, safe="")


def group_of(folder: Path, size: int, place: int, members: Sequence[int] | None = None) -> Group:
    return Group(StoreTransport(FolderStore(folder), members or range(size), place))


def several(folder: Path, size: int, body: Callable[[int], object]) -> list[Any]:
    """What `body(place)` returns in each process, or the error that it raises; None of a process that was killed."""
    children = []
    for place in range(size):
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: numpy's look after themselves
            child = os.fork()
        if not child:
            os.close(reading)
            _be(writing, body, place)
        os.close(writing)
        children.append((child, reading))
    deadline = time.monotonic() + LIMIT
    return [_ending(child, reading, deadline) for child, reading in children]


def _be(writing: int, body: Callable[[int], object], place: int) -> None:
    try:
        ending: object = body(place)
    except Exception as error:  # noqa: BLE001  for the test to judge
        error.add_note("".join(traceback.format_exception(error)))
        ending = error
    with os.fdopen(writing, "wb") as pipe:
        pickle.dump(ending, pipe)
    os._exit(0)


def _ending(child: int, reading: int, deadline: float) -> Any:
    with os.fdopen(reading, "rb") as pipe:
        if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"a process has hung for {LIMIT:g} s")
        data = pipe.read()
    os.waitpid(child, 0)
    return pickle.loads(data) if data else None


def dies(owner: type, name: str, call: int) -> None:
    """From now on this process is killed when it begins call number `call`, from 0, of a method."""
    method, calls = getattr(owner, name), count()

    def killing(*given: Any, **words: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*given, **words)

    setattr(owner, name, killing)
