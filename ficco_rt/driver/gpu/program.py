"""All that a run issues, one driver call after another, in a loop with no decision in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Protocol

from ...plan.ir import Command, CopyAsync, SignalFlag
from .devices import Device
from .gpus import Gpus
from .refused import concerning, concerns
from .streams import Bound, Entry, GpuStream, Step
from .vendor import Vendor


class Issued(Protocol):
    """A bound command, as a run issues it."""

    @property
    def command(self) -> Command: ...

    def steps(self) -> Iterable[Step]:
        """Its calls."""

    def entries(self) -> Iterable[Entry]:
        """What it puts into graphs."""

    def marked(self) -> Iterable[Step]:
        """Its calls, with marks in time between its pieces."""

    def bounds(self) -> Iterable[Bound]:
        """What it puts on streams."""


def entered(vendor: Vendor, steps: Iterable[Step]) -> Iterator[Step]:
    """The steps, with those between them that make a device's context current for what needs it."""
    current: Device | None = None
    for step in steps:
        if step.device is not current and not vendor.anywhere((step.function, step.arguments)):
            current = step.device
            yield Step(current, *vendor.enter_action(current.context), "its context")
        yield step


def make(gpus: Gpus, steps: Iterable[Step]) -> None:
    """Make the calls, among which are those that change contexts (`entered`)."""
    gpus.current = None
    for device, function, arguments, what, place in steps:
        code = function(*arguments)[0]
        if code:
            error = gpus.vendor.failure(function, code)
            concerns(error, device, what, place)
            raise error


def _batch(vendor: Vendor, bounds: Iterable[Bound]) -> None:
    """Flags that stand right before a copy of their stream are raised in one batch with it, or, where the copy can be
    in none, in a batch of their own before it. A batch begins when the copies before it have come; what is in it has no
    order, and of these none waits for another."""
    flags: list[Bound] = []
    for bound in bounds:
        if isinstance(bound.command, SignalFlag) and bound.runs:
            flags.append(bound)
            continue
        if flags and isinstance(bound.command, CopyAsync):
            action = vendor.copy_batch([run for b in (*flags, bound) for run in b.runs], bound.stream.handle)
            if action is not None:
                for flag in flags:
                    flag.fast = ()
                (bound if bound.runs else flags[-1]).fast = (action,)
        flags.clear()


class Program:
    """The calls of one binding of a plan, in the order of issue."""

    def __init__(self, gpus: Gpus, calls: Sequence[Issued]) -> None:
        self._gpus = gpus
        self._calls = calls
        streams: dict[int, tuple[GpuStream, list[Bound]]] = {}
        for call in calls:
            for bound in call.bounds():
                streams.setdefault(id(bound.stream), (bound.stream, []))[1].append(bound)
        self._of_streams = list(streams.values())
        for _, bounds in self._of_streams:
            _batch(gpus.vendor, bounds)
        self._plain = list(entered(gpus.vendor, (step for call in calls for step in call.steps())))

    def steps(self, marked: bool) -> list[Step]:
        """What a run makes; `marked`: with marks in time."""
        return self._marked if marked else self._plain

    def captured(self) -> Iterator[Step]:
        """What goes into graphs."""
        return entered(self._gpus.vendor, self._captured())

    def _captured(self) -> Iterator[Step]:
        """The words that stand together on a stream, in as few calls as there are."""
        last: dict[GpuStream, list[Entry]] = {}  # whose words are not out yet
        for call in self._calls:
            for entry in call.entries():
                waiting = last.setdefault(entry.stream, [])
                if entry.calls:
                    yield from self._words(waiting)
                    waiting.clear()
                yield from map(entry.step, entry.calls)
                if entry.words:
                    waiting.append(entry)
        for waiting in last.values():
            yield from self._words(waiting)

    def _words(self, entries: Sequence[Entry]) -> Iterator[Step]:
        if entries:
            first = entries[0]
            words = [word for entry in entries for word in entry.words]
            with concerning(first.stream.device, first.what, first.place):
                actions = self._gpus.vendor.words_actions(words, first.stream.handle)
            yield from map(first.step, actions)

    @cached_property
    def _marked(self) -> list[Step]:
        return list(entered(self._gpus.vendor, (step for call in self._calls for step in call.marked())))

    def issued(self) -> None:
        """Tell the streams what is issued to them, for reports and traces."""
        for stream, bounds in self._of_streams:
            stream.issued = bounds
