"""A group of threads, each in the place of a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.process.group import Group


class Threads:
    """Carries the messages of a group of threads."""

    def __init__(self, place: int, size: int, posted: dict[tuple[int, int], bytes]) -> None:
        self.place, self.size, self._posted = place, size, posted

    def post(self, number: int, message: bytes) -> None:
        self._posted[number, self.place] = message

    def take(self, number: int, place: int) -> bytes | None:
        return self._posted.get((number, place))

    def forget(self, number: int) -> None: ...

    def among(self, places: Sequence[int], timeout: float) -> Threads:
        return self

    def abandon(self, code: int) -> None: ...

    def close(self) -> None: ...


def together(size: int, body: Callable[[Group], object]) -> list[object]:
    """What each of so many threads returns, or the error that it raises."""
    posted: dict[tuple[int, int], bytes] = {}
    found: list[object] = [None] * size

    def run(place: int) -> None:
        try:
            found[place] = body(Group(Threads(place, size, posted)))
        except (DeviceError, UsageError) as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found
