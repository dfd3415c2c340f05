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

from ...errors import DeviceError, InternalError, PlanError, UsageError
from ...errors import Span as Place
from ...graph.ir import Kernel
from ...plan.ir import (
    CollectiveCall,
    CopyAsync,
    Launch,
    Plan,
    Record,
    SignalFlag,
    Stream,
    WaitEvent,
    WaitFlag,
)
from ...region import Region
from ...trace import Clock, Span
from ...types import Dtype, numpy_dtype
from ..api import (
    Array,
    Buffer,
    Call,
    Event,
    Flag,
    Graph,
    Holdings,
    Memory,
    Pool,
    Program,
    Progress,
    StreamHandle,
)
from .deadlock import at, describe_deadlock
from .kernels import HostFunction, bind_transfers, bind_work, host_function
from .memory import available
from .order import parse_order, ready_pool
from .stepping import (
    CollectiveTask,
    HostStream,
    Job,
    RaiseTask,
    Signal,
    Stepper,
    WaitTask,
    WorkTask,
    unfinished,
)
from .views import View


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Regions of one command to views."""

    arrays: dict[Buffer, Array]
    memory: Memory
    place: Place

    def __call__(self, region: Region) -> View:
        return View(self.arrays[self.memory[region.tensor, region.rank]], region, self.place)


class HostDriver:
    """See the module. `order` is described in `order.py`."""

    def __init__(self, plan: Plan, *, order: str = "fifo") -> None:
        self._ranks = plan.ranks
        self.order = order
        self._arrays: dict[Buffer, Array] = {}
        self._handles = count()
        self._streams: dict[StreamHandle, HostStream] = {}
        self._events: dict[Event, Signal] = {}
        self._flags: dict[Flag, Signal] = {}
        self._functions: dict[str, HostFunction] = {}
        self._modules: dict[Path, ModuleType] = {}
        self._issued = count()

    @property
    def name(self) -> str:
        return "host"

    @property
    def clock(self) -> Clock:
        return "virtual"

    @property
    def on_device(self) -> bool:
        return False

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

    # ---- queues, and what orders them

    def stream(self, stream: Stream) -> StreamHandle:
        handle = StreamHandle(next(self._handles))
        self._streams[handle] = HostStream(stream, self._issued)
        return handle

    def event(self, rank: int) -> Event:
        event = Event(next(self._handles))
        self._events[event] = Signal("event")
        return event

    def flag(self, rank: int) -> Flag:
        flag = Flag(next(self._handles))
        self._flags[flag] = Signal("flag")
        return flag

    def kernel(self, kernel: Kernel) -> None:
        self._functions[kernel.name] = host_function(kernel, self._modules)

    # ---- binding

    def bind_copy(self, stream: StreamHandle, command: CopyAsync, memory: Memory) -> Call:
        task = WorkTask(self._streams[stream], command, command)
        run = bind_transfers(command.transfers, self._resolver(memory, command.origin))
        task.jobs.append(Job(run, max(t.op for t in command.transfers), 0, [task], command.origin))
        return task

    def bind_launch(self, stream: StreamHandle, command: Launch, memory: Memory, flags: Sequence[Flag]) -> Call:
        task = WorkTask(self._streams[stream], command, command)
        for index, work in enumerate(command.works):
            run = bind_work(work, self._resolver(memory, work.origin), self._functions)
            for flag in (*work.waits, *work.signals):
                self._flags[flags[flag]].name = f"flag {flag}"
            waits = tuple(self._flags[flags[f]] for f in work.waits)
            signals = tuple(self._flags[flags[f]] for f in work.signals)
            for signal in signals:
                signal.raiser, signal.raiser_place = task, work.origin
            task.jobs.append(Job(run, work.op, index, [task], work.origin, waits, signals))
        return task

    def bind_collective(self, stream: StreamHandle, command: CollectiveCall, memory: Memory) -> Call:
        resolve = self._resolver(memory, command.origin)
        return CollectiveTask(self._streams[stream], command, command, resolve(command.dst), resolve(command.src))

    def bind_record(self, stream: StreamHandle, command: Record, event: Event) -> Call:
        return self._bind_raise(stream, command, self._events[event], command.event)

    def bind_signal(self, stream: StreamHandle, command: SignalFlag, flag: Flag) -> Call:
        return self._bind_raise(stream, command, self._flags[flag], command.flag)

    def bind_wait_event(self, stream: StreamHandle, command: WaitEvent, event: Event) -> Call:
        signal = self._events[event]
        signal.name = f"event {command.event}"
        return WaitTask(self._streams[stream], command, signal)

    def bind_wait_flag(self, stream: StreamHandle, command: WaitFlag, flag: Flag) -> Call:
        signal = self._flags[flag]
        signal.name = f"flag {command.flag}"
        return WaitTask(self._streams[stream], command, signal)

    def _bind_raise(self, stream: StreamHandle, command: Record | SignalFlag, signal: Signal, number: int) -> Call:
        task = RaiseTask(self._streams[stream], command, signal)
        signal.name = f"{'event' if isinstance(command, Record) else 'flag'} {number}"
        signal.raiser, signal.raiser_place = task, command.origin
        return task

    def _resolver(self, memory: Memory, place: Place) -> _Resolver:
        return _Resolver(self._arrays, memory, place)

    # ---- running

    def unbind(self, calls: Sequence[Call]) -> None:
        pass  # a task that is not issued holds nothing

    def program(self, calls: Sequence[Call]) -> Program:
        return Program(tuple(calls))

    def run(self, program: Program, streams: Sequence[object] = ()) -> None:
        """Nothing runs before `synchronize`."""
        if streams:
            raise UsageError("the host driver has no streams of the caller's to wait for")
        for stream in self._streams.values():
            stream.queue.clear()
            stream.head = 0
        for signal in (*self._events.values(), *self._flags.values()):
            signal.up = False
            signal.waiters.clear()
        assert isinstance(program, tuple)
        for call in program:
            call()

    def capture(self, program: Program) -> Graph:
        raise UsageError("the host driver has no graphs; graph=True is for GPUs")

    def replay(self, graph: Graph, streams: Sequence[object] = ()) -> None:
        raise UsageError("the host driver has no graphs; graph=True is for GPUs")

    def forget(self, graph: Graph) -> None:
        raise UsageError("the host driver has no graphs; graph=True is for GPUs")

    def synchronize(self, progress: Progress | None = None) -> None:
        streams = sorted(self._streams.values(), key=lambda s: s.id)
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

    def spans(self) -> tuple[Span, ...]:
        return ()  # nothing here has a clock worth reading; see `ficco_rt.sim`

    def holdings(self) -> Holdings:
        return Holdings(len(self._streams), len(self._events), 0, sum(a.nbytes for a in self._arrays.values()))

    def close(self) -> None:
        self._streams.clear()  # tasks and streams hold each other
        self._events.clear()
        self._flags.clear()
        self._functions.clear()
        self._arrays.clear()


def _place(stepper: Stepper) -> str:
    return at(stepper.current.place) if stepper.current is not None else "before the first work"
