"""The driver without a device: numpy arrays, virtual streams, one thread, all ranks.

Issuing a call appends it to its stream; `synchronize` then steps any stream whose head is ready, in the
order that was asked for (see `order`). A plan that lacks a wait gives wrong data under some order; one
that waits for what never comes ends with a named deadlock. Both are repeatable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType

import numpy as np

from ...errors import DeviceError, InternalError, PlanError, Span, UsageError
from ...graph.ir import KernelCall
from ...plan.ir import (
    CollectiveCall,
    Command,
    CopyAsync,
    Launch,
    Plan,
    Record,
    Signal,
    SignalFlag,
    WaitEvent,
    WaitFlag,
)
from ...plan.issue import issue_order
from ...region import Region
from ...trace import ClockKind, TraceSpan
from ...types import Dtype, numpy_dtype
from ..api import Array, Binding, Buffer, Holdings, Memory, OnProgress, Pool
from .deadlock import at, describe_deadlock
from .kernels import bind_transfers, bind_work, host_function
from .memory import available
from .order import parse_order, ready_pool
from .stepping import Stepper, unfinished
from .tasks import CollectiveTask, HostJob, HostSignal, HostStream, RaiseTask, Task, WaitTask, WorkTask
from .views import HostView


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Regions of one command to views."""

    arrays: dict[Buffer, Array]
    memory: Memory
    place: Span

    def __call__(self, region: Region) -> HostView:
        return HostView(self.arrays[self.memory[region.tensor, region.rank]], region, self.place)


class HostDriver:
    """See the module. `order` is described in `order.py`."""

    def __init__(self, plan: Plan, *, order: str = "fifo") -> None:
        self._plan = plan
        self._ranks = plan.ranks
        self.order = order
        self._arrays: dict[Buffer, Array] = {}
        self._handles = count()
        self._issue = issue_order(plan)
        issued = count()
        self._streams = [HostStream(stream, issued) for stream in plan.streams]
        signals = (s for stream in plan.streams for c in stream.commands for s in (*c.waits, *c.signals))
        self._signals = {s: HostSignal(str(s)) for s in signals}
        modules: dict[Path, ModuleType] = {}
        used = {w.body.kernel for _, launch in plan.launches() for w in launch.works if isinstance(w.body, KernelCall)}
        self._functions = {k.name: host_function(k, modules) for k in plan.kernels if k.name in used}

    @property
    def name(self) -> str:
        return "host"

    @property
    def clock(self) -> ClockKind:
        return "virtual"

    @property
    def on_device(self) -> bool:
        return False

    @property
    def collectives(self) -> str:
        calls = any(isinstance(command, CollectiveCall) for _, command in self._plan.commands())
        return "copies and sums: the host has no library of collectives" if calls else ""

    def describe(self) -> str:
        return "numpy"

    @property
    def order(self) -> str:
        """How the next runs are stepped; it may be set between runs."""
        return self._order

    @order.setter
    def order(self, text: str) -> None:
        self._parsed_order = parse_order(text)
        self._order = text

    # ---- memory

    def pools(self) -> tuple[Pool, ...]:
        return (Pool("this machine's memory", tuple(range(self._ranks)), available()),)

    def alloc(self, rank: int, shape: tuple[int, ...], dtype: Dtype) -> Buffer:
        try:
            array = np.empty(shape, numpy_dtype(dtype))
        except MemoryError as error:
            raise DeviceError(f"numpy.empty: no memory for {list(shape)} of {dtype} on rank {rank}") from error
        return self.adopt(rank, array, dtype)

    def adopt(self, rank: int, array: object, dtype: Dtype) -> Buffer:
        if not isinstance(array, np.ndarray):
            raise UsageError(f"the host driver takes numpy arrays, not {type(array).__name__}")
        buffer = Buffer(next(self._handles))
        self._arrays[buffer] = array
        return buffer

    def reuse(self, memory: Memory) -> None: ...

    def free(self, buffer: Buffer) -> None:
        del self._arrays[buffer]

    def poison(self, buffer: Buffer) -> None:
        array = self._arrays[buffer]
        bits = np.dtype(f"u{array.itemsize}")
        array.view(bits).fill(np.iinfo(bits).max)  # a NaN in every type; numpy fills bf16 ten times as slowly

    def write(self, buffer: Buffer, array: Array) -> None:
        np.copyto(self._arrays[buffer], array, casting="no")

    def read(self, buffer: Buffer) -> Array:
        return self._arrays[buffer].copy()

    # ---- binding

    def bind(self, memory: Memory) -> Binding:
        return Binding(tuple(self._task(s, self._plan.streams[s].commands[p], memory) for s, p in self._issue))

    def _task(self, s: int, command: Command, memory: Memory) -> Task:
        stream = self._streams[s]
        match command:
            case CopyAsync():
                task = WorkTask(stream, command, command)
                run = bind_transfers(command.transfers, self._resolver(memory, command.origin))
                task.jobs.append(HostJob(run, max(t.op for t in command.transfers), 0, [task], command.origin))
                return task
            case Launch():
                return self._launch(stream, command, memory)
            case CollectiveCall():
                resolve = self._resolver(memory, command.origin)
                return CollectiveTask(stream, command, command, resolve(command.dst), resolve(command.src))
            case Record() | SignalFlag():
                signal = self._signals[command.signals[0]]
                raising = RaiseTask(stream, command, signal)
                signal.raiser, signal.raiser_place = raising, command.origin
                return raising
            case WaitEvent() | WaitFlag():
                return WaitTask(stream, command, self._signals[command.waits[0]])

    def _launch(self, stream: HostStream, command: Launch, memory: Memory) -> WorkTask:
        task = WorkTask(stream, command, command)
        for index, work in enumerate(command.works):
            run = bind_work(work, self._resolver(memory, work.origin), self._functions)
            waits, signals = (
                tuple(self._signals[Signal("flag", flag)] for flag in flags) for flags in (work.waits, work.signals)
            )
            for signal in signals:
                signal.raiser, signal.raiser_place = task, work.origin
            task.jobs.append(HostJob(run, work.op, index, [task], work.origin, waits, signals))
        return task

    def _resolver(self, memory: Memory, place: Span) -> _Resolver:
        return _Resolver(self._arrays, memory, place)

    def unbind(self, binding: Binding) -> None:
        pass  # a task that is not issued holds nothing

    # ---- running

    def capture(self, binding: Binding) -> None:
        raise UsageError("the host driver has no graphs; graph=True is for GPUs")

    def run(self, binding: Binding, streams: Sequence[object] = (), *, graph: bool = False) -> bool:
        """Nothing runs before `synchronize`."""
        if streams:
            raise UsageError("the host driver has no streams of the caller's to wait for")
        for stream in self._streams:
            stream.queue.clear()
            stream.head = 0
        for signal in self._signals.values():
            signal.up = False
            signal.waiters.clear()
        assert isinstance(binding, tuple)
        for task in binding:
            task()
        return False

    def synchronize(self, progress: OnProgress | None = None) -> None:
        streams = self._streams
        stepper = Stepper(streams, self._ranks, ready_pool(self._parsed_order))
        try:
            with np.errstate(all="ignore"):  # poison is multiplied like any number
                stepper.run(progress)
        except (UsageError, DeviceError, PlanError):
            raise
        except MemoryError as error:
            raise DeviceError(f"{_place(stepper)}: no memory for a temporary: {error}") from error
        except Exception as error:  # named with its place, and never gone on from
            raise InternalError(f"{_place(stepper)}: {type(error).__name__}: {error}") from error
        stuck = unfinished(streams)
        if stuck:
            raise DeviceError(describe_deadlock(stuck, stepper.arrived, self._ranks))

    def elapsed(self) -> float | None:
        return None

    def spans(self) -> tuple[TraceSpan, ...]:
        return ()  # nothing here has a clock worth reading; see `ficco_rt.sim`

    def holdings(self) -> Holdings:
        return Holdings(len(self._streams), self._plan.events, 0, sum(a.nbytes for a in self._arrays.values()))

    def close(self) -> None:
        self._streams.clear()  # tasks and streams hold each other
        self._signals.clear()
        self._functions.clear()
        self._arrays.clear()

    def drop(self) -> None:
        self.close()


def _place(stepper: Stepper) -> str:
    return at(stepper.current.place) if stepper.current is not None else "before the first work"
