"""What a driver does for the executor: one Protocol, filled by `host`, and by `cuda` and `hip`.

A driver serves one plan. It *binds* the plan to buffers: views or addresses are resolved, arguments packed, and what
comes back is a `Binding` that needs nothing more. A run is then

    driver.run(binding)     # puts all commands on their streams, and returns at once
    driver.synchronize()    # until all streams are through, or an error names what is in the way

with no decision in it. A plan may be bound several times, to other buffers. Events and flags hold for one run: they are
down when the next begins.

Errors: what the caller asks for and cannot have is a UsageError, a call that the device or its driver refuses is a
DeviceError with call, device, code, and the place in the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NewType, Protocol, TypeAlias, runtime_checkable

import numpy.typing as npt

from ..graph.ir import Kernel
from ..plan.ir import (
    CollectiveCall,
    Command,
    CopyAsync,
    Launch,
    Record,
    SignalFlag,
    Stream,
    WaitEvent,
    WaitFlag,
)
from ..trace import Clock, Span
from ..types import Dtype

Array: TypeAlias = npt.NDArray[Any]

Buffer = NewType("Buffer", int)
StreamHandle = NewType("StreamHandle", int)
Event = NewType("Event", int)
Flag = NewType("Flag", int)
Graph = NewType("Graph", int)
Program = NewType("Program", object)  # whatever the driver makes of calls

Memory: TypeAlias = Mapping[tuple[str, int], Buffer]  # (tensor, rank) → its buffer
Progress: TypeAlias = Callable[[float], None]  # called now and then with the part that is done, 0 … 1
DriverName: TypeAlias = Literal["host", "cuda", "hip"]


@dataclass(frozen=True, slots=True)
class Pool:
    """A memory that the buffers of `ranks` come from."""

    name: str  # for messages: "this machine's memory", "NVIDIA H200 (device 3)"
    ranks: tuple[int, ...]
    free: int  # bytes


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a driver has made and not given back."""

    streams: int
    events: int
    graphs: int
    size: int  # bytes of buffers, flags and tables


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A caller's dense row-major tensor in a GPU's memory."""

    address: int
    shape: tuple[int, ...]


class Call(Protocol):
    """A bound command."""

    @property
    def command(self) -> Command: ...


class Driver(Protocol):
    """See the module. Every method but `close` may raise a DeviceError."""

    @property
    def name(self) -> str:
        """What messages call it: host, cuda or hip."""

    @property
    def clock(self) -> Clock:
        """Whether `spans` are measured on devices; if not, `ficco_rt.sim` models them for a machine."""

    @property
    def on_device(self) -> bool:
        """Whether buffers lie in devices' memory: callers then give DeviceArrays, else numpy arrays."""

    def describe(self) -> str:
        """What the ranks run on, for people."""

    # ---- memory

    def pools(self) -> tuple[Pool, ...]:
        """The memories behind the ranks, with what is free now. Ranks that share one share its pool."""

    def alloc(self, rank: int, shape: tuple[int, ...], dtype: Dtype) -> Buffer:
        """A dense row-major buffer of rank's memory; its content is undefined."""

    def adopt(self, rank: int, array: object, dtype: Dtype) -> Buffer:
        """A caller's array as a buffer, by reference; the executor has checked shape and dtype."""

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back (a caller's: forget it). Calls bound to it must not be issued any more."""

    def poison(self, buffer: Buffer) -> None:
        """Fill with NaN."""

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copy an array of the buffer's shape and dtype in; done on return."""

    def read(self, buffer: Buffer) -> Array:
        """A copy of the content, in host memory."""

    # ---- queues, and what orders them

    def stream(self, stream: Stream) -> StreamHandle:
        """The device's counterpart of a plan's stream, with its rank, engine and priority."""

    def event(self, rank: int) -> Event:
        """An event that a stream of `rank` records."""

    def flag(self, rank: int) -> Flag:
        """A flag in rank's memory, where its waiter is."""

    def kernel(self, kernel: Kernel) -> None:
        """Load a user kernel, before any launch of it is bound."""

    # ---- binding; the command must belong to the stream

    def bind_copy(self, stream: StreamHandle, command: CopyAsync, memory: Memory) -> Call: ...

    def bind_launch(self, stream: StreamHandle, command: Launch, memory: Memory, flags: Sequence[Flag]) -> Call:
        """`flags[f]` is the flag that the plan's works call f."""

    def bind_collective(self, stream: StreamHandle, command: CollectiveCall, memory: Memory) -> Call: ...

    def bind_record(self, stream: StreamHandle, command: Record, event: Event) -> Call: ...

    def bind_wait_event(self, stream: StreamHandle, command: WaitEvent, event: Event) -> Call: ...

    def bind_signal(self, stream: StreamHandle, command: SignalFlag, flag: Flag) -> Call: ...

    def bind_wait_flag(self, stream: StreamHandle, command: WaitFlag, flag: Flag) -> Call: ...

    # ---- running

    def unbind(self, calls: Sequence[Call]) -> None:
        """Forget bound calls; none of them is issued any more."""

    def program(self, calls: Sequence[Call]) -> Program:
        """The calls of a whole binding, in the order of issue."""

    def run(self, program: Program, streams: Sequence[object] = ()) -> None:
        """Issue a run. It comes after all of the last run and, rank by rank, after what stands on the callers'
        `streams`, one a rank, before it touches a rank's inputs and outputs; each goes on when they are not touched
        any more. No event is recorded, no flag is up at first. After an error nothing of it is left."""

    def capture(self, program: Program) -> Graph:
        """The whole run as a graph, or one for each device. UsageError where the driver has none."""

    def replay(self, graph: Graph, streams: Sequence[object] = ()) -> None:
        """A run, as by `run`, by a captured graph."""

    def forget(self, graph: Graph) -> None:
        """Give a graph back."""

    def synchronize(self, progress: Progress | None = None) -> None:
        """Return when all that was issued is complete on all ranks. A run that cannot end is a DeviceError
        that names who waits for what."""

    def elapsed(self) -> float | None:
        """Microseconds from the last run's begin to its end; None if only the spans tell. UsageError: it was
        on callers' streams, and not timed (`Marked`)."""

    def spans(self) -> tuple[Span, ...]:
        """The last completed run's record, ordered by stream and start; nothing where the clock is virtual. A driver
        that is `Marked` has one only of runs that were issued while it was marking."""

    def holdings(self) -> Holdings:
        """What is held now; running a plan again and again adds nothing to it."""

    def close(self) -> None:
        """Give everything back. May be called twice."""


@runtime_checkable
class Stepped(Protocol):
    """A driver whose steps are ours to order: host. See `host.order` for what can be asked."""

    order: str


@runtime_checkable
class Marked(Protocol):
    """A driver that records spans on demand, since marks cost time: of GPUs."""

    marking: bool
    timing: bool  # runs on callers' streams are timed, too
