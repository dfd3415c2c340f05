"""The driver without a device: numpy arrays and virtual streams, stepped by one thread. It runs all ranks, or in a
group those of its process.

Issuing a call appends it to its stream; `synchronize` then steps any stream whose head is ready, in the selected order
(see `order`). A plan that lacks a wait gives wrong data in some order; a plan that waits for a signal that never comes
ends with a named deadlock. Both are repeatable.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from ...errors import DeviceError, InternalError, PlanError, Span, UsageError
from ...geometry.region import Region
from ...geometry.rows import Rows
from ...graph.ir import KernelCall
from ...plan.ir import CollectiveCall, Command, CopyAsync, Launch, Plan, Record, Signal, SignalFlag, WaitEvent, WaitFlag
from ...plan.issue import issue_order
from ...trace.model import ClockKind
from ...types import Dtype, numpy_dtype
from ..api import DEFAULTS, Array, Binding, Buffer, Driver, Holdings, Memory, OnProgress, Options, Pool
from .deadlock import at, describe_deadlock
from .kernels import Resolve, bind_collective, bind_transfers, bind_work, host_function
from .memory import available
from .order import ready_pool
from .peers import Peers
from .stepping import Stepper, unfinished
from .tasks import HostJob, HostSignal, HostStream, RaiseTask, Task, WaitTask, WorkTask
from .views import HostView

if TYPE_CHECKING:
    from ...device.run_plan import RunPlan


@dataclass(frozen=True, slots=True)
class _Bound:
    """The plan on buffers. `shared`: those of which the processes have a copy, an input's or not."""

    tasks: tuple[Task, ...]
    shared: tuple[tuple[Array, Array, bool], ...]


class HostDriver(Driver):
    """See the module. A run in a group is given up when no process moves for `timeout` seconds."""

    name = "host"
    clock: ClockKind = "virtual"
    on_device = False

    def __init__(self, plan: Plan, options: Options = DEFAULTS) -> None:
        self._plan, group = plan, options.group
        self.order = options.order
        self._arrays: dict[Buffer, Array] = {}
        self._handles = count()
        modules: dict[Path, ModuleType] = {}
        used = {w.body.kernel for _, launch in plan.launches() for w in launch.works if isinstance(w.body, KernelCall)}
        self._functions = {k.name: host_function(k, modules) for k in plan.kernels if k.name in used}
        self._peers = Peers(plan, group, options.timeout) if group is not None and group.size > 1 else None
        self._pid = os.getpid()
        self.ranks = tuple(range(plan.ranks)) if self._peers is None else self._peers.ranks
        self._streams = {s: HostStream(x) for s, x in enumerate(plan.streams) if x.rank in self.ranks}
        self._issue = [(s, p) for s, p in issue_order(plan) if s in self._streams]
        self._calls: dict[int, dict[int, CollectiveCall]] = defaultdict(dict)  # by collective and rank
        for stream, command in plan.commands():
            if isinstance(command, CollectiveCall):
                self._calls[command.group][stream.rank] = command
        self.collectives = "copies and sums: the host has no library of collectives" if self._calls else ""
        self._signals = self._named_signals()
        self._incoming = [signal for signal in self._signals.values() if signal.elsewhere]
        self._issued: _Bound | None = None  # the run that is still to be stepped

    def _named_signals(self) -> dict[Signal | tuple[str, int, int], HostSignal]:
        """Events and flags; of a collective that each rank has come, and has read."""
        commands = (c for stream in self._plan.streams for c in stream.commands)
        found: dict[Signal | tuple[str, int, int], HostSignal] = {
            s: HostSignal(str(s)) for c in commands for s in (*c.waits, *c.signals)
        }
        for group in self._calls:
            for rank in range(self._plan.ranks):
                found["call", group, rank] = HostSignal(f"rank {rank} to call it")
                found["read", group, rank] = HostSignal(f"rank {rank} to have read")
        if self._peers is not None:
            for name, (word, process, who) in self._peers.crossing.items():
                found[name].word = word
                found[name].elsewhere = who if process != self._peers.place else ""
        return found

    def describe(self) -> str:
        return "numpy"

    # ---- memory

    def pools(self) -> tuple[Pool, ...]:
        return (Pool("this machine's memory", self.ranks, available()),)

    def alloc(self, rank: int, shape: tuple[int, ...], dtype: Dtype, *, scratch: str = "") -> Buffer:
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

    # ---- binding

    def bind(self, memory: Memory, rows: Rows | None = None) -> Binding:
        tasks = (t for s, p in self._issue for t in self._tasks(s, p, self._plan.streams[s].commands[p], memory))
        return Binding(_Bound(tuple(tasks), tuple(self._shared(memory))))

    def _shared(self, memory: Memory) -> Iterator[tuple[Array, Array, bool]]:
        for (name, rank), area in self._peers.areas.items() if self._peers is not None else ():
            if rank in self.ranks:
                yield self._arrays[memory[name, rank]], area, self._plan.tensor(name).kind == "input"

    def _tasks(self, s: int, p: int, command: Command, memory: Memory) -> Iterator[Task]:
        stream = self._streams[s]
        match command:
            case CopyAsync():
                task = WorkTask(stream, p, command)
                run = bind_transfers(command.transfers, self._resolver(memory, command.origin))
                task.jobs.append(HostJob(run, max(t.op for t in command.transfers), 0, task, command.origin))
                yield task
            case Launch():
                yield self._launch(stream, p, command, memory)
            case CollectiveCall():
                yield from self._collective(stream, p, command, memory)
            case Record() | SignalFlag():
                yield self._raise(stream, p, command, self._signals[command.signals[0]])
            case WaitEvent() | WaitFlag():
                yield WaitTask(stream, p, command, self._signals[command.waits[0]])

    @staticmethod
    def _raise(stream: HostStream, p: int, command: Command, signal: HostSignal) -> RaiseTask:
        raising = RaiseTask(stream, p, command, signal)
        signal.raiser, signal.raiser_place = raising, command.origin
        return raising

    def _collective(self, stream: HostStream, p: int, command: CollectiveCall, memory: Memory) -> Iterator[Task]:
        group, rank, calls = command.group, stream.plan.rank, self._calls[command.group]
        others = [r for r in range(self._plan.ranks) if r != rank]
        yield self._raise(stream, p, command, self._signals["call", group, rank])
        read, write = WorkTask(stream, p, command), WorkTask(stream, p, command)
        if len(calls) < self._plan.ranks:  # nobody ever gets beyond the first wait
            reading = writing = _nothing
        else:
            each = [calls[r] for r in range(self._plan.ranks)]
            reading, writing = bind_collective(each, rank, self._resolver(memory, command.origin))
        come = tuple(self._signals["call", group, r] for r in others)
        done = tuple(self._signals["read", group, r] for r in others)
        told = self._signals["read", group, rank]
        told.raiser, told.raiser_place = read, command.origin
        read.jobs.append(HostJob(reading, command.op, 0, read, command.origin, come, (told,)))
        write.jobs.append(HostJob(writing, command.op, 0, write, command.origin, done))
        yield read
        yield write

    def _launch(self, stream: HostStream, p: int, command: Launch, memory: Memory) -> WorkTask:
        task = WorkTask(stream, p, command)
        for index, work in enumerate(command.works):
            run = bind_work(work, self._resolver(memory, work.origin), self._functions)
            waits, signals = (
                tuple(self._signals[Signal("flag", flag)] for flag in flags) for flags in (work.waits, work.signals)
            )
            for signal in signals:
                signal.raiser, signal.raiser_place = task, work.origin
            task.jobs.append(HostJob(run, work.op, index, task, work.origin, waits, signals))
        return task

    def _resolver(self, memory: Memory, place: Span) -> Resolve:
        """Regions of one command to views."""
        areas = {} if self._peers is None else self._peers.areas

        def resolve(region: Region) -> HostView:
            area = areas.get((region.tensor, region.rank))
            array = self._arrays[memory[region.tensor, region.rank]] if area is None else area
            return HostView(array, region, place)

        return resolve

    def unbind(self, binding: Binding) -> None:
        pass  # a task that is not issued holds nothing

    # ---- running

    def run(self, binding: Binding, streams: Sequence[object] = (), *, graph: bool | None = False) -> bool:
        """Issues only: nothing runs before `synchronize`."""
        if streams:
            raise UsageError("the host driver has no streams of the caller's to wait for")
        self._answers()
        for stream in self._streams.values():
            stream.queue.clear()
            stream.head = 0
        for signal in self._signals.values():
            signal.up = False
            signal.waiters.clear()
        assert isinstance(binding, _Bound)
        for number, task in enumerate(binding.tasks):
            task.number = number
            task.stream.queue.append(task)
        self._issued = binding
        return False

    def check(self) -> None:
        """A run is under way in `synchronize` alone, which tells how it ended."""

    def run_plan(self) -> RunPlan:
        raise UsageError("the host driver runs a plan in numpy: it makes no driver calls, and has no run plan")

    def synchronize(self, progress: OnProgress | None = None) -> None:
        issued, self._issued = self._issued, None
        if issued is None:
            return
        self._answers()
        if self._peers is None:
            self._step(progress)
            return
        try:
            for own, area, _ in issued.shared:
                np.copyto(area, own)
            self._peers.enter(self._incoming)
            self._step(progress)
            self._peers.end()
            for own, area, is_input in issued.shared:
                if not is_input:
                    np.copyto(own, area)
        except BaseException as error:  # the others wait for this process, whatever ends its run
            self._peers.fail(error)
            raise

    @property
    def _here(self) -> bool:
        """Whether this is the process that has made it, and none that it has forked."""
        return os.getpid() == self._pid

    def _answers(self) -> None:
        """DeviceError: in a forked process the memory that processes share is still the parent's."""
        if self._peers is not None and not self._here:
            raise DeviceError(
                f"process {self._pid} has made this executor, of a group, and has forked this process, in which it "
                "does not work; start processes by another way than fork (multiprocessing: the method spawn)"
            )

    def _step(self, progress: OnProgress | None) -> None:
        streams = list(self._streams.values())
        stepper = Stepper(streams, ready_pool(self.order), self._peers)
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
            raise DeviceError(describe_deadlock(stuck))

    def leave(self, error: BaseException) -> None:
        if self._peers is not None and self._streams and self._here:
            self._peers.leave(error)

    def holdings(self) -> Holdings:
        return Holdings(len(self._streams), self._plan.events, 0, sum(a.nbytes for a in self._arrays.values()))

    def close(self) -> None:
        if self._peers is not None and self._streams and self._here:
            self._peers.close()
        self._issued = None
        self._streams.clear()  # tasks and streams hold each other
        self._signals.clear()
        self._functions.clear()
        self._arrays.clear()


def _nothing() -> None: ...


def _place(stepper: Stepper) -> str:
    return at(stepper.current.place) if stepper.current is not None else "before the first work"
