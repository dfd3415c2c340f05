"""What a run is made of on the device: bound commands, the streams that they go to, and their marks in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Any, NamedTuple, TypeAlias

from ...errors import Span as Place
from ...plan.ir import Command, CopyAsync, SignalFlag, WaitFlag
from ...plan.ir import Stream as PlanStream
from ...trace import Launched
from .devices import Device
from .gpus import Gpus
from .refused import Closing
from .vendor import Action, Function, Handle, Run, Word

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
    """A stream where `flags` of a copy stream are raised, or waited for: on the copy stream itself that would hold the
    next copy up. `event` leads from one of the two to the other."""

    stream: Handle
    event: Handle
    flags: frozenset[int]


@dataclass(slots=True, eq=False)
class GpuStream:
    """A stream of a rank's device."""

    plan: PlanStream
    device: Device
    handle: Handle
    tail: Handle  # the event that ends a run on it
    raises: Beside | None = None  # flags that copies follow on
    waits: Beside | None = None  # flags behind copies; it begins where the stream begins
    issued: list[Bound] = field(default_factory=list)  # since the run began

    def __str__(self) -> str:
        return f"rank {self.plan.rank} stream {self.plan.name}"


def raised_between(commands: Sequence[Command]) -> frozenset[int]:
    """The flags that are raised before a copy of the same stream."""
    before = _behind_copies(tuple(reversed(commands)))
    return frozenset(c.flag for c in before if isinstance(c, SignalFlag))


def awaited_between(commands: Sequence[Command]) -> frozenset[int]:
    """The flags that are waited for behind a copy of the same stream."""
    return frozenset(c.flag for c in _behind_copies(commands) if isinstance(c, WaitFlag))


def _behind_copies(commands: Sequence[Command]) -> Sequence[Command]:
    return tuple(dropwhile(lambda c: not isinstance(c, CopyAsync), commands))


class Bound:
    """A command with its driver calls ready to be made.

    `pieces` do the command one thing at a time; `fast`, where given, is how a run on streams does it, and not fit for
    a graph. In a graph `words` follow on an event's record, and stand in place of any other command's
    pieces. `runs`, if not empty, do it too, and may go out in one batch with those of what stands behind it.
    `uploads` are what the calls need in device memory; `launched` is how its first kernel launches; `event` is what a
    Record records.
    """

    __slots__ = (
        "command", "event", "fast", "gpus", "launched", "marks", "pieces", "plain", "runs", "stream", "uploads",
        "words",
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
        runs: Sequence[Run] = (),
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
        self.runs = runs
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
