"""Chooses the handles by which processes of a node share memory: file descriptors or fabric handles. Each kind is
tried, because a system may forbid what it reports as supported."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ...process.group import Group
from .descriptors import NotPassedError, SocketNames, close_all, no_more_files, pass_around
from .refused import Closing, Refused, undo_on_error
from .sharing import Mapped, Sharing

LOG = logging.getLogger(__name__)

TRY = 5.0  # seconds that a first message between processes gets
IMEX = (
    "fabric handles need an IMEX channel that all processes may open (/dev/nvidia-caps-imex-channels/channel0, in "
    "containers too), and between machines the IMEX service on each of them"
)
_WHAT = "to see that memory passes as fabric handles"


def descriptors_pass(node: Group, timeout: float | None) -> SocketNames | None:
    """The kind of socket names by which file descriptors can be passed; None: neither kind works."""
    ways: tuple[SocketNames, ...] = ("abstract", "path")
    limit = TRY if timeout is None else min(TRY, timeout)
    with no_more_files():
        probe = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for way in ways:
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
        texts = self.node.exchange(json.dumps([mine, failed]).encode(), self.timeout, what)
        said = [json.loads(text) for text in texts]
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
