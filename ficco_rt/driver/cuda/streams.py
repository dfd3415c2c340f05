"""What a run is made of on the device: bound commands, the streams that they go to, and their marks in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...plan.ir import CollectiveCall, Command
from ...plan.ir import Stream as PlanStream
from .call import Action, failure
from .devices import Device

if TYPE_CHECKING:
    from .driver import CudaDriver

Piece = tuple[Action, ...]  # driver calls that are one thing in a trace: a transfer, a launch


@dataclass(slots=True, eq=False)
class CudaStream:
    """A stream of a rank's device."""

    plan: PlanStream
    device: Device
    handle: Any
    tail: Any  # the event that ends a run on it
    issued: list[Bound] = field(default_factory=list)  # since the run began

    def __str__(self) -> str:
        return f"rank {self.plan.rank} stream {self.plan.name}"


class Bound:
    """A command with its driver calls ready to be made. Calling it makes them.

    `pieces` do the command one thing at a time; `fast`, where given, does it in fewer calls that cannot be
    captured into a graph.
    """

    __slots__ = ("command", "driver", "fast", "marks", "pieces", "plain", "stream")

    def __init__(
        self,
        driver: CudaDriver,
        stream: CudaStream,
        command: Command,
        pieces: Sequence[Piece],
        fast: Piece | None = None,
    ) -> None:
        self.driver = driver
        self.stream = stream
        self.command = command
        self.pieces = pieces
        self.plain: Piece = tuple(action for piece in pieces for action in piece)
        self.fast = self.plain if fast is None else fast
        self.marks: list[Any] = []  # timing events: before the first piece, after each

    def __call__(self) -> None:
        driver, stream = self.driver, self.stream
        if driver.current is not stream.device:
            driver.enter(stream.device)
        if not driver.capturing:
            stream.issued.append(self)
            if driver.marking:
                self._marked()
                return
        for function, arguments in self.plain if driver.capturing else self.fast:
            code = function(*arguments)[0]
            if code:
                raise self.error(function, code)

    def _marked(self) -> None:
        if not self.marks:
            self.marks = [self.driver.timer(self.stream.device) for _ in range(len(self.pieces) + 1)]
        self.driver.mark(self.marks[0], self.stream)
        for piece, mark in zip(self.pieces, self.marks[1:], strict=True):
            for function, arguments in piece:
                code = function(*arguments)[0]
                if code:
                    raise self.error(function, code)
            self.driver.mark(mark, self.stream)

    def error(self, function: Callable[..., Any], code: Any) -> Exception:
        what = f"{type(self.command).__name__} on {self.stream}, {self.stream.device}"
        return failure(function, code, what, self.command.origin)


class CollectiveGroup:
    """A collective of all ranks, made of our own copies and sums: issued when the last rank calls it, with all
    ranks' streams held together before and after."""

    def __init__(self, driver: CudaDriver, ranks: int) -> None:
        self.driver = driver
        self.ranks = ranks
        self.members: dict[int, CollectiveMember] = {}
        self.arrived = 0

    def arrive(self) -> None:
        self.arrived += 1
        if self.arrived < self.ranks:
            return
        self.arrived = 0
        members = [self.members[r] for r in sorted(self.members)]
        self._meet(members, [m.before for m in members])
        for member in members:
            member.bound()
        self._meet(members, [m.after for m in members])

    def _meet(self, members: list[CollectiveMember], events: list[Any]) -> None:
        driver = self.driver
        for member, event in zip(members, events, strict=True):
            driver.enter(member.bound.stream.device)
            driver.record(event, member.bound.stream)
        for member in members:
            driver.enter(member.bound.stream.device)
            for other, event in zip(members, events, strict=True):
                if other is not member:
                    driver.wait(event, member.bound.stream)


@dataclass(slots=True, eq=False)
class CollectiveMember:
    """One rank's call."""

    command: CollectiveCall
    group: CollectiveGroup
    bound: Bound
    before: Any
    after: Any

    def __call__(self) -> None:
        self.group.arrive()
