"""What a run is made of on the device: bound commands, the streams that they go to, and their marks in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ...errors import Span as Place
from ...plan.ir import Command
from ...plan.ir import Stream as PlanStream
from ...trace import Launched
from .devices import Device
from .gpus import Gpus
from .refused import Closing
from .vendor import Action, Function, Handle, Word

Piece: TypeAlias = tuple[Action, ...]  # driver calls that are one thing in a trace: a transfer, a launch


@dataclass(frozen=True, slots=True)
class Upload:
    """A launch's table in device memory. `words` words at `counters` must be 0 before a run."""

    device: Device
    address: int
    counters: int
    words: int


class Step(NamedTuple):
    """A driver call with the device whose context it needs, and what it is for: words, and the schedule's line."""

    device: Device
    function: Function
    arguments: tuple[Any, ...]
    what: str
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What a stream puts into a graph next: calls, then words."""

    stream: GpuStream
    calls: Piece
    words: tuple[Word, ...]
    what: str
    place: Place

    def step(self, action: Action) -> Step:
        return Step(self.stream.device, *action, self.what, self.place)


@dataclass(slots=True)
class Ready:
    """Launches that are ready to be made: their calls, what these need in device memory, and how they launch."""

    actions: list[Action] = field(default_factory=list)
    uploads: list[Upload] = field(default_factory=list)
    launched: list[Launched] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Beside:
    """Where a copy stream's flags are raised, so that the next copy does not wait for that: writing a flag holds its
    stream up until all that was written before is seen by every device. Each raise waits for `sent`, the stream's
    event behind the copies. `flags`: those that copies follow on; the last ones are raised by the stream itself."""

    stream: Handle
    sent: Handle
    flags: frozenset[int]


@dataclass(slots=True, eq=False)
class GpuStream:
    """A stream of a rank's device."""

    plan: PlanStream
    device: Device
    handle: Handle
    tail: Handle  # the event that ends a run on it
    beside: Beside | None = None
    issued: list[Bound] = field(default_factory=list)  # since the run began

    def __str__(self) -> str:
        return f"rank {self.plan.rank} stream {self.plan.name}"


class Bound:
    """A command with its driver calls ready to be made.

    `pieces` do the command one thing at a time; `fast`, where given, is how a run on streams does it, and not fit for
    a graph. In a graph `words` follow on an event's record, and stand in place of any other command's
    pieces. `uploads` are what the calls need in device memory; `launched` is how its first kernel launches; `event`
    is what a Record records.
    """

    __slots__ = (
        "command", "event", "fast", "gpus", "launched", "marks", "pieces", "plain", "stream", "uploads", "words",
    )  # fmt: skip

    def __init__(
        self,
        gpus: Gpus,
        stream: GpuStream,
        command: Command,
        pieces: Sequence[Piece],
        fast: Piece | None = None,
        ready: Ready | None = None,
        event: Handle | None = None,
        words: tuple[Word, ...] = (),
    ) -> None:
        self.gpus = gpus
        self.stream = stream
        self.command = command
        self.pieces = pieces
        self.plain: Piece = tuple(action for piece in pieces for action in piece)
        self.fast = self.plain if fast is None else fast
        self.uploads: Sequence[Upload] = ready.uploads if ready is not None else ()
        self.launched = ready.launched[0] if ready is not None and ready.launched else None
        self.event = event
        self.words = words
        self.marks: list[Handle] = []  # timing events: before the first piece, after each

    def steps(self) -> Iterator[Step]:
        for function, arguments in self.fast:
            yield self._step(function, arguments)

    def entries(self) -> Iterator[Entry]:
        """What it puts into a graph."""
        calls = () if self.words and self.event is None else self.plain
        yield Entry(self.stream, calls, self.words, self._what, self.command.origin)

    def _step(self, function: Function, arguments: tuple[Any, ...]) -> Step:
        return Step(self.stream.device, function, arguments, self._what, self.command.origin)

    @property
    def _what(self) -> str:
        return f"{type(self.command).__name__} on {self.stream}"

    def bounds(self) -> Iterator[Bound]:
        yield self

    def prepare_marks(self) -> None:
        while len(self.marks) <= len(self.pieces):
            self.marks.append(self.gpus.new_event(self.stream.device, timing=True))

    def marked(self) -> Iterator[Step]:
        """Its calls, with a mark before the first piece and after each."""
        record, stream = self.gpus.vendor.record_action, self.stream.handle
        self.prepare_marks()
        yield self._step(*record(self.marks[0], stream))
        for piece, mark in zip(self.pieces, self.marks[1:], strict=True):
            for function, arguments in piece:
                yield self._step(function, arguments)
            yield self._step(*record(mark, stream))

    def release(self) -> None:
        """Give back what it holds; it is not called again."""
        closing = Closing()
        while self.marks:
            closing(self.gpus.drop_event, self.marks.pop())
        for upload in self.uploads:
            closing(self.gpus.free, upload.address)
        self.uploads = ()
        closing.end()
