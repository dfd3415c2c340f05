"""The interface between the executor and drivers: one Protocol, implemented by `host`, `cuda` and `hip`.

A driver serves one plan. It *binds* the plan to buffers: it resolves views or addresses, packs arguments, and returns a
`Binding` that is ready to run. A run is then

    driver.run(binding)     # puts all commands on their streams, and returns at once
    driver.synchronize()    # until all streams have ended, or an error names what blocks them

and contains no decision. A plan may be bound several times, to other buffers. Events and flags are valid for one run:
they are reset before the next run begins.

Errors: a request that cannot be met raises a UsageError; a call that the device or its driver refuses raises a
DeviceError with call, device, code, and the place in the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NewType, Protocol, TypeAlias, get_args

import numpy.typing as npt

from ..errors import UsageError
from ..files.store import Store
from ..geometry.rows import Rows
from ..process.group import Group
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
class Options:
    """How a driver runs a plan. `order`: how the host driver steps through what may run (see `host.order`). On GPUs
    `ranks_per_gpu` ranks share one; `timeout` is the seconds that a run may take, and that a call may block, None
    without limit; `collectives` says what makes these. `group`: the processes that run the plan together. `workspace`:
    what the driver shares with others, which then has the other options, too. `store`: what keeps checked device
    plans."""

    order: str = "fifo"
    ranks_per_gpu: int = 1
    timeout: float | None = None
    collectives: CollectivesBy = "auto"
    group: Group | None = None
    workspace: SharedWorkspace | None = None
    store: Store | None = None


DEFAULTS = Options()


def size_words(size: int) -> str:
    """A number of bytes, for people."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """A copy on a rank's device: blocks of `width` bytes, whose first bytes lie `dst_pitch` and `src_pitch` apart.
    `zeros`: 32-bit words from `dst` on that are zeroed before it."""

    rank: int
    dst: int
    src: int
    width: int
    blocks: int
    dst_pitch: int
    src_pitch: int
    zeros: int = 0


class SharedWorkspace(Protocol):
    """What drivers of GPUs share (`gpu.workspace`)."""

    closed: bool

    def staging(self, rank: int, name: str, size: int) -> int:
        """The address of memory for a tensor that stands for a caller's: the same for all runs, and no scratch."""

    def copy_rows(self, copies: Sequence[CopiedRows], streams: Sequence[object] | None, *, first: bool) -> None:
        """Copies to or from staging, on callers' streams; without these it ends before the return. `first`: before a
        run, behind the copies after the run before."""

    def wait_for_rows(self) -> None:
        """The host waits until rows are copied from staging. Raises DeviceError: they are not, in time."""

    @property
    def memory(self) -> Mapping[str, int]:
        """Bytes by kind, of the device that holds most."""

    def close(self) -> None: ...

    def drop(self) -> None:
        """Closes from a finaliser."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A memory that the buffers of `ranks` come from."""

    name: str  # for messages: "this machine's memory", "NVIDIA H200 (device 3)"
    ranks: tuple[int, ...]
    free: int  # bytes


@dataclass(frozen=True, slots=True)
class Holdings:
    """The resources that a driver holds: created and not yet released."""

    streams: int
    events: int
    graphs: int
    size: int  # bytes of buffers, flags and tables
    communicators: int = 0  # of the vendor's library of collectives, one a device and queue


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A caller's tensor in a GPU's memory, as its library describes it. Tensors that are bound are dense."""

    address: int
    shape: tuple[int, ...]
    dtype: str = field(default="", compare=False)
    dense: bool = field(default=True, compare=False)  # row-major, without gaps
    read_only: bool = field(default=False, compare=False)


class Driver(Protocol):
    """See the module. Every method but `close` may raise a DeviceError. What has a body here suits a driver without
    devices."""

    name: str  # what messages call it: host, cuda or hip
    clock: ClockKind  # whether `spans` are measured on devices; if not, `ficco_rt.sim` models them for a machine
    on_device: bool  # whether buffers are in devices' memory: callers then give DeviceArrays, else numpy arrays
    ranks: tuple[int, ...]  # those that this process runs; of the others it takes no buffers, and gives none
    collectives: str  # what makes the plan's collectives, and why, for people; empty if the plan has none
    order: str = ""  # how the host driver steps (`host.order`); it may be set between runs. Other drivers have none
    tracing: bool = False  # spans are recorded, on demand, since timestamps cost time
    timing: bool = False  # runs on callers' streams are timed, too
    gated: bool = False  # runs on streams begin when the host has issued all of them
    within: float = 0.0  # µs by which spans of different processes, as returned last, may be off against each other

    @property
    def held(self) -> bool:
        """Whether the last run began when the host had issued all of it."""
        return False

    def describe(self) -> str:
        """What the ranks run on, for people."""

    # ---- memory

    def pools(self) -> tuple[Pool, ...]:
        """The memories behind the ranks, with what is free now. Ranks that share one share its pool."""

    def alloc(self, rank: int, shape: tuple[int, ...], dtype: Dtype, *, scratch: str = "") -> Buffer:
        """A dense row-major buffer of rank's memory; its content is undefined. `scratch`: the plan's name of scratch,
        which other plans' runs may use between two runs."""

    def adopt(self, rank: int, array: object, dtype: Dtype) -> Buffer:
        """A caller's array as a buffer, by reference; the executor has checked shape and dtype."""

    def reuse(self, memory: Memory) -> bool:
        """Prepares buffers that were adopted and bound before for another run, at the same addresses. False: their
        memory has been reallocated, so they must be bound again."""
        return True

    def free(self, buffer: Buffer) -> None:
        """Releases a buffer; a caller's buffer is only forgotten. Calls bound to it must not be issued any more."""

    def poison(self, buffer: Buffer) -> None:
        """Fill with NaN."""

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copies an array of the buffer's shape and dtype into the buffer; complete on return."""

    def read(self, buffer: Buffer) -> Array:
        """A copy of the content, in host memory."""

    # ---- running

    def staged(self, rows: Rows) -> frozenset[str]:
        """The tensors that must lie in staging memory, of the plan's number of rows, when a run has these `rows`: the
        same in all processes, and nothing where the callers' own tensors are used."""
        return frozenset()

    def bind(self, memory: Memory, rows: Rows | None = None) -> Binding:
        """The plan on buffers, one for each tensor and rank of this process. With `rows`, which the driver `takes`,
        inputs and outputs have no more than these. UsageError: the plan asks for what the driver has not."""

    def unbind(self, binding: Binding) -> None:
        """Forgets a binding, which must not run any more."""

    def capture(self, binding: Binding) -> None:
        """Make the graphs of a binding, one a device, for `run` with `graph`. UsageError: the driver has none."""
        raise UsageError(f"the {self.name} driver has no graphs; graph=True is for GPUs")

    def run(self, binding: Binding, streams: Sequence[object] = (), *, graph: bool | None = False) -> bool:
        """Issue a run. It comes after all of the last run and, rank by rank, after what stands on the callers'
        `streams`, one a rank of this process, before it touches a rank's inputs and outputs; each goes on when they are
        not touched any more. No event is recorded, no flag is up at first. `graph`: by captured graphs; None: where
        that pays. After an error nothing of it is left.

        True: the callers capture their streams, and the run has become a part of their graphs, to run whenever these
        are replayed; the binding must then stay."""

    def synchronize(self, progress: OnProgress | None = None) -> None:
        """Return when all that was issued is complete on all ranks. A run that cannot end is a DeviceError
        that names who waits for what."""

    def check(self) -> None:
        """Returns if no issued run was given up, here or by another process. Does not wait."""

    def run_plan(self) -> RunPlan:
        """The calls of the run that was issued last. UsageError: there was none, or the driver makes no such calls."""

    def elapsed(self) -> float | None:
        """Microseconds from the last run's begin to its end; None if only the spans tell. UsageError: it was
        on callers' streams, and not timed (`timing`)."""
        return None

    def spans(self) -> tuple[TraceSpan, ...]:
        """The last completed run's record, ordered by stream and start; nothing where the clock is virtual, and of
        runs that were issued without `tracing`. In a group it is of all processes, which ask for it at the same
        step."""
        return ()

    def leave(self, error: BaseException) -> None:
        """Tells the other processes of the group that this process runs no more, because of an error. Raises
        nothing."""

    def holdings(self) -> Holdings:
        """The resources held now. Running a plan again and again adds nothing to them."""

    def close(self) -> None:
        """Releases everything. May be called twice."""

    def drop(self) -> None:
        """Like `close`, for finalisers: no thread is inside a run then, and errors are not raised."""
        self.close()
