"""The messages of a group of processes over pipes, for tests that start the processes themselves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection


def between(count: int) -> list[list[Connection | None]]:
    """A pipe between each two of so many processes: of each process, its end of the pipe to each other one."""
    pipes: list[list[Connection | None]] = [[None] * count for _ in range(count)]
    for a in range(count):
        for b in range(a):
            pipes[a][b], pipes[b][a] = Pipe()
    return pipes


class Pipes:
    """Carries the messages of a group over pipes, one to each other process, as a `Transport` of
    `ficco_rt.process.transports`. `name` parts the groups that share pipes; `came` holds what has come for any of
    them."""

    def __init__(
        self, place: int, pipes: Sequence[Connection | None], name: str = "", came: dict[object, bytes] | None = None
    ) -> None:
        self.place, self.size = place, len(pipes)
        self._pipes, self._name = pipes, name
        self._came: dict[object, bytes] = {} if came is None else came

    def post(self, number: int, message: bytes) -> None:
        for pipe in self._pipes:
            with suppress(OSError):  # the other is gone: who waits for it will find that
                if pipe is not None:
                    pipe.send((self._name, number, message))

    def take(self, number: int, place: int) -> bytes | None:
        pipe = self._pipes[place]
        with suppress(EOFError, OSError):
            while pipe is not None and pipe.poll():
                name, key, message = pipe.recv()
                self._came[name, key, id(pipe)] = message
        return self._came.pop((self._name, number, id(pipe)), None)

    def forget(self, number: int) -> None: ...

    def among(self, places: Sequence[int], timeout: float) -> Pipes:
        name = f"{self._name}/{','.join(map(str, places))}"
        return Pipes(places.index(self.place), [self._pipes[place] for place in places], name, self._came)

    def abandon(self, code: int) -> None: ...

    def close(self) -> None: ...
