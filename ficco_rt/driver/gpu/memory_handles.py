"""Tries whether memory passes between the processes of a node as fabric handles: a system may forbid what it reports
as supported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from ...process.group import Group, gathered
from .refused import Closing, Refused, undo_on_error
from .sharing import Mapped, Sharing

IMEX = (
    "fabric handles need an IMEX channel that all processes may open (/dev/nvidia-caps-imex-channels/channel0, in "
    "containers too), and between machines the IMEX service on each of them"
)
_WHAT = "to see that memory passes as fabric handles"


@dataclass(slots=True)
class FabricTrial:
    """Every process of a node gives the others memory of a device as a fabric handle, and maps what they give. `places`
    are the processes' numbers, for people; `inside`: where calls of the vendor's driver are made."""

    node: Group
    places: Sequence[int]
    sharing: Sharing
    device: int
    reach: Sequence[int]
    inside: Callable[[], AbstractContextManager[None]]
    timeout: float | None
    _held: list[Mapped] = field(default_factory=list)

    def failure(self) -> str:
        """Why it fails, with the process; nothing: it does not."""
        with undo_on_error(self._drop):
            given, why = self._said("give a fabric handle", self._give)
            if not why:
                _, why = self._said("map fabric handles", lambda: self._take(given))
            _, left = self._said("give fabric handles back", self._give_back)
        return why or left

    def _drop(self) -> None:
        with self.inside():
            self._give_back()

    def _said(self, what: str, make: Callable[[], object]) -> tuple[list[Any], str]:
        """What every process has made, and why one has not."""
        mine, failed = None, ""
        try:
            with self.inside():
                mine = make()
        except Refused as error:
            error.advice = error.advice or IMEX
            failed = str(error)
        said = gathered(self.node, [mine, failed], self.timeout, what)
        why = next((f"process {p}: {text}" for p, (_, text) in zip(self.places, said, strict=True) if text), "")
        return [made for made, _ in said], why

    def _give(self) -> list[object]:
        made = self.sharing.alloc(self.device, 1, self.reach, _WHAT, leaves="fabric")
        assert made is not None
        self._held.append(made)
        return [self.sharing.exported(made.handles[0], _WHAT).hex(), made.size]

    def _take(self, given: Sequence[Any]) -> None:
        for place, (handle, size) in enumerate(given):
            if place != self.node.rank:
                self._held.append(self.sharing.map([bytes.fromhex(handle)], [size], self.reach, _WHAT))

    def _give_back(self) -> None:
        with Closing() as closing:
            while self._held:
                closing(self.sharing.unmap, self._held.pop())
