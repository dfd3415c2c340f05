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
from typing import TYPE_CHECKING, Any, Literal, NewType, Protocol, TypeAlias, get_args, runtime_checkable

import numpy.typing as npt

from ..trace.model import ClockKind, TraceSpan
from ..types import Dtype

if TYPE_CHECKING:
    from ..device.run_plan import RunPlan

Array: TypeAlias = npt.NDArray[Any]

Buffer = NewType("Buffer", int)
Binding = NewType("Binding", object)  # whatever the driver makes of a plan on buffers

Memory: TypeAlias = Mapping[tuple[str, int], Buffer]  # (tensor, rank) → its buffer
OnProgress: TypeAlias = Callable[[float], None]  # called now and then with the part that is done, 0 … 1
GpuName: TypeAlias = Literal["cuda", "hip"]
DriverName: TypeAlias = Literal["host", "cuda", "hip"]
GPUS: tuple[GpuName, ...] = get_args(GpuName)
# What makes collectives: the vendor's library where it can; or it, or an error; or our own copies and sums.
CollectivesBy: TypeAlias = Literal["auto", "library", "copies"]


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
    communicators: int = 0  # of the vendor's library of collectives, one a device and queue


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A caller's dense row-major tensor in a GPU's memory."""

    address: int
    shape: tuple[int, ...]


class Driver(Protocol):
    """See the module. Every method but `close` may raise a DeviceError."""

    @property
    def name(self) -> str:
        """What messages call it: host, cuda or hip."""

    @property
    def clock(self) -> ClockKind:
        """Whether `spans` are measured on devices; if not, `ficco_rt.sim` models them for a machine."""

    @property
    def on_device(self) -> bool:
        """Whether buffers lie in devices' memory: callers then give DeviceArrays, else numpy arrays."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that this process runs. Of the others it takes no buffers, and gives none."""

    def describe(self) -> str:
        """What the ranks run on, for people."""

    @property
    def collectives(self) -> str:
        """What makes the plan's collectives, for people, and why; nothing where there are none."""

    # ---- memory

    def pools(self) -> tuple[Pool, ...]:
        """The memories behind the ranks, with what is free now. Ranks that share one share its pool."""

    def alloc(self, rank: int, shape: tuple[int, ...], dtype: Dtype) -> Buffer:
        """A dense row-major buffer of rank's memory; its content is undefined."""

    def adopt(self, rank: int, array: object, dtype: Dtype) -> Buffer:
        """A caller's array as a buffer, by reference; the executor has checked shape and dtype."""

    def reuse(self, memory: Memory) -> bool:
        """Buffers that were adopted and bound before are to be run again, at the addresses that they have had. False:
        what is there has been allocated anew, and has to be bound again."""

    def free(self, buffer: Buffer) -> None:
        """Give a buffer back (a caller's: forget it). Calls bound to it must not be issued any more."""

    def poison(self, buffer: Buffer) -> None:
        """Fill with NaN."""

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copy an array of the buffer's shape and dtype in; done on return."""

    def read(self, buffer: Buffer) -> Array:
        """A copy of the content, in host memory."""

    # ---- running

    def bind(self, memory: Memory) -> Binding:
        """The plan on buffers, one for each tensor and rank of this process. UsageError: the plan asks for what the
        driver has not."""

    def unbind(self, binding: Binding) -> None:
        """Forget it; it is not run any more."""

    def capture(self, binding: Binding) -> None:
        """Make the graphs of a binding, one a device, for `run` with `graph`. UsageError: the driver has none."""

    def run(self, binding: Binding, streams: Sequence[object] = (), *, graph: bool = False) -> bool:
        """Issue a run. It comes after all of the last run and, rank by rank, after what stands on the callers'
        `streams`, one a rank of this process, before it touches a rank's inputs and outputs; each goes on when they are
        not touched any more. No event is recorded, no flag is up at first. `graph`: by captured graphs. After an error
        nothing of it is left.

        True: the callers capture their streams, and the run has become a part of their graphs, to run whenever these
        are replayed; the binding must then stay."""

    def synchronize(self, progress: OnProgress | None = None) -> None:
        """Return when all that was issued is complete on all ranks. A run that cannot end is a DeviceError
        that names who waits for what."""

    def check(self) -> None:
        """Return if nothing that was issued was given up, here or by another process. Waits for nothing."""

    def run_plan(self) -> RunPlan:
        """The calls of the run that was issued last. UsageError: there was none, or the driver makes no such calls."""

    def elapsed(self) -> float | None:
        """Microseconds from the last run's begin to its end; None if only the spans tell. UsageError: it was
        on callers' streams, and not timed (`Traceable`)."""

    def spans(self) -> tuple[TraceSpan, ...]:
        """The last completed run's record, ordered by stream and start; nothing where the clock is virtual. A driver
        that is `Traceable` has one only of runs that were issued while `tracing` was set. In a group it is of all
        processes, which ask for it at the same step."""

    def leave(self, error: BaseException) -> None:
        """This process runs no more, because of an error: tell the others of the group. Raises nothing."""

    def holdings(self) -> Holdings:
        """What is held now; running a plan again and again adds nothing to it."""

    def close(self) -> None:
        """Give everything back. May be called twice."""

    def drop(self) -> None:
        """As `close`, for finalisers: no thread is in the midst of a run then, and no error shows."""


@runtime_checkable
class Stepped(Protocol):
    """A driver whose steps are ours to order: host. See `host.order` for what can be asked."""

    order: str


@runtime_checkable
class Traceable(Protocol):
    """A driver that records spans on demand, since timestamps cost time: of GPUs."""

    tracing: bool
    timing: bool  # runs on callers' streams are timed, too
    gated: bool  # runs on streams begin when the host has issued all of them

    @property
    def held(self) -> bool:
        """Whether the last run did."""

    @property
    def within(self) -> float:
        """Microseconds by which the spans of different processes that were given last may be off against each other."""
