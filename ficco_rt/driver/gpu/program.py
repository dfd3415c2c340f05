"""All that a run issues, one driver call after another, in a loop with no decision in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

from ...plan.ir import Command
from .gpus import Gpus
from .refused import concerns
from .streams import Bound, GpuStream, Step


class Issued(Protocol):
    """A bound command, as a run issues it."""

    @property
    def command(self) -> Command: ...

    def steps(self, captured: bool) -> Iterable[Step]:
        """Its calls; `captured`: they are to go into a graph."""

    def marked(self) -> Iterable[Step]:
        """Its calls, with marks in time between its pieces."""

    def bounds(self) -> Iterable[Bound]:
        """What it puts on streams."""


def make(gpus: Gpus, steps: Iterable[Step]) -> None:
    """Make the calls, each in its device's context."""
    current = gpus.current
    for device, function, arguments, what, place in steps:
        if current is not device:
            gpus.enter(device)
            current = device
        code = function(*arguments)[0]
        if code:
            error = gpus.vendor.failure(function, code)
            concerns(error, device, what, place)
            raise error


class Program:
    """The calls of one binding of a plan, in the order of issue."""

    def __init__(self, gpus: Gpus, calls: Sequence[Issued]) -> None:
        self._gpus = gpus
        self._calls = calls
        self._plain = [step for call in calls for step in call.steps(captured=False)]
        streams: dict[int, tuple[GpuStream, list[Bound]]] = {}
        for call in calls:
            for bound in call.bounds():
                streams.setdefault(id(bound.stream), (bound.stream, []))[1].append(bound)
        self._of_streams = list(streams.values())

    def steps(self, marked: bool) -> list[Step]:
        """What a run makes; `marked`: with marks in time."""
        return self._marked if marked else self._plain

    @cached_property
    def captured(self) -> list[Step]:
        """What goes into a graph."""
        return [step for call in self._calls for step in call.steps(captured=True)]

    @cached_property
    def _marked(self) -> list[Step]:
        return [step for call in self._calls for step in call.marked()]

    def issued(self) -> None:
        """Tell the streams what is issued to them, for reports and traces."""
        for stream, bounds in self._of_streams:
            stream.issued = bounds
