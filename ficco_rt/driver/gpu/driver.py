"""GPUs of any vendor: one process, all devices, a plan's commands on streams or as a graph for each.

The driver puts its parts together: `gpus` (devices and what is made on them), `flags`, `launches`, `copies`,
`collectives`, `runs`. What differs between vendors is behind `vendor.Vendor`.

NOTE streams share the device's hardware queues, and a wait at the head of one holds up all that share it. The
order of issue keeps that harmless (a signal is issued before its waits), but not for waits of kernels; so vendors
ask for as many queues as there can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import count

import numpy as np

from ...errors import DeviceError, UsageError
from ...graph.ir import Kernel
from ...plan.ir import (
    CollectiveCall,
    Command,
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
from .. import api
from ..api import (
    Array,
    Buffer,
    Call,
    DeviceArray,
    Event,
    Flag,
    Graph,
    Holdings,
    Memory,
    Pool,
    Progress,
    StreamHandle,
)
from . import collectives, copies
from .crossings import Crossings, crossings
from .flags import Flags, lowered
from .gpus import Gpus
from .launches import Launches
from .program import Program
from .refused import Closing, concerning
from .runs import Captured, Runs, handles
from .spans import raisers_of, spans_of
from .streams import Beside, Bound, GpuStream, Piece, Upload, awaited_between, raised_between
from .tensors import Resolve, Tensor
from .vendor import Handle, Run, Vendor, Word


class GpuDriver:
    """See the module. `timeout` is the seconds that `synchronize` waits; None: for ever."""

    def __init__(self, vendor: Vendor, plan: Plan, *, ranks_per_gpu: int = 1, timeout: float | None = None) -> None:
        self.name = vendor.name
        self._vendor = vendor
        self._plan = plan
        self._numbers = count()
        self._buffers: dict[Buffer, Tensor] = {}
        self._streams: dict[StreamHandle, GpuStream] = {}
        self._of_plan: list[GpuStream] = []
        self._events: dict[Event, Handle] = {}
        self._flags: dict[Flag, int] = {}
        self._graphs: dict[Graph, Captured] = {}
        self._groups: dict[int, collectives.Group] = {}  # the one that is being bound, by number
        self._bound: set[Bound | collectives.Member] = set()
        self._closed = False
        self._gpus = Gpus(vendor, plan.ranks, ranks_per_gpu, timeout)
        try:
            devices = crossings(plan, self._gpus.homes)
            self._by_launches = lowered(plan)
            words = [i for of in devices.values() for i in of]
            self._flag_words = Flags(self._gpus, plan.flag_homes, words, self._by_launches)
            self._crossings = Crossings(devices, self._flag_words)
            self._launches = Launches(self._gpus, plan, self._by_launches)
            self._runs = Runs(self._gpus, self._flag_words, plan, self._of_plan, self._uploads)
        except BaseException:
            if not self._gpus.hung:
                with suppress(DeviceError):  # the first error is the one to tell
                    self._gpus.close()
            raise

    @property
    def clock(self) -> Clock:
        return "device"

    @property
    def on_device(self) -> bool:
        return True

    @property
    def marking(self) -> bool:
        return self._gpus.marking

    @marking.setter
    def marking(self, on: bool) -> None:
        self._gpus.marking = on

    @property
    def timing(self) -> bool:
        return self._gpus.timing

    @timing.setter
    def timing(self, on: bool) -> None:
        self._gpus.timing = on

    def describe(self) -> str:
        """The devices in use, for people."""
        names = [d.facts.name for d in self._gpus.devices.values()]
        shared = -(-self._plan.ranks // len(names))
        return f"{len(names)} × {names[0]}" + (f", {shared} ranks each" if shared > 1 else "")

    # ---- memory

    def pools(self) -> tuple[Pool, ...]:
        pools = []
        for i, device in self._gpus.devices.items():
            with self._gpus.inside(device):
                free = self._vendor.free_memory()
            ranks = tuple(r for r in range(self._plan.ranks) if self._gpus.homes[r] == i)
            pools.append(Pool(str(device), ranks, free))
        return tuple(pools)

    def alloc(self, rank: int, shape: tuple[int, ...], dtype: Dtype) -> Buffer:
        self._runs.answers()
        device = self._gpus.device(rank)
        tensor = Tensor(0, shape, dtype, rank, owned=True)
        address = self._gpus.alloc(device, tensor.size, f"{list(shape)} of {dtype} for rank {rank}")
        return self._buffer(Tensor(address, shape, dtype, rank, owned=True))

    def adopt(self, rank: int, array: object, dtype: Dtype) -> Buffer:
        if not isinstance(array, DeviceArray):
            raise UsageError(f"the {self.name} driver takes tensors on a GPU, not {type(array).__name__}")
        home = self._gpus.homes[rank]
        with concerning(self._gpus.device(rank)):
            where = self._vendor.owner(array.address, f"rank {rank}'s tensor")
        if where != home:
            raise UsageError(f"rank {rank} runs on device {home}; its tensor lies on device {where}")
        return self._buffer(Tensor(array.address, array.shape, dtype, rank, owned=False))

    def _buffer(self, tensor: Tensor) -> Buffer:
        buffer = Buffer(next(self._numbers))
        self._buffers[buffer] = tensor
        return buffer

    def free(self, buffer: Buffer) -> None:
        tensor = self._buffers[buffer]
        if tensor.owned:
            self._runs.quiet()
            self._gpus.free(tensor.address)
        del self._buffers[buffer]

    def poison(self, buffer: Buffer) -> None:
        self._runs.quiet()
        tensor = self._buffers[buffer]
        device = self._gpus.device(tensor.rank)
        stream = self._gpus.control[device.ordinal]
        with self._gpus.inside(device):
            self._vendor.fill(tensor.address, 0xFF, tensor.size, stream)  # all bits set are a NaN in every type
            self._gpus.finish(device, stream)

    def write(self, buffer: Buffer, array: Array) -> None:
        self._runs.quiet()
        tensor = self._buffers[buffer]
        self._gpus.put(self._gpus.device(tensor.rank), tensor.address, np.ascontiguousarray(array))

    def read(self, buffer: Buffer) -> Array:
        self._runs.quiet()
        tensor = self._buffers[buffer]
        values: Array = np.empty(tensor.shape, numpy_dtype(tensor.dtype))
        with self._gpus.inside(self._gpus.device(tensor.rank)):
            self._vendor.to_host(values.ctypes.data, tensor.address, values.nbytes)
        return values

    # ---- queues, and what orders them

    def stream(self, stream: Stream) -> StreamHandle:
        device = self._gpus.device(stream.rank)
        handle = self._gpus.new_stream(device, stream.priority)
        made = GpuStream(stream, device, handle, self._gpus.new_event(device))
        if stream.engine == "copy":
            made.raises = self._beside(made, raised_between(stream.commands))
            made.waits = self._beside(made, awaited_between(stream.commands)) if self._vendor.waits_beside else None
        number = StreamHandle(next(self._numbers))
        self._streams[number] = made
        self._of_plan.append(made)
        return number

    def _beside(self, stream: GpuStream, flags: frozenset[int]) -> Beside | None:
        if not flags:
            return None
        handle = self._gpus.new_stream(stream.device, stream.plan.priority)
        return Beside(handle, self._gpus.new_event(stream.device), flags)

    def event(self, rank: int) -> Event:
        event = Event(next(self._numbers))
        self._events[event] = self._gpus.new_event(self._gpus.device(rank))
        return event

    def flag(self, rank: int) -> Flag:
        flag = Flag(next(self._numbers))
        self._flags[flag] = self._flag_words.take(rank)
        return flag

    def kernel(self, kernel: Kernel) -> None:
        self._launches.kernels[kernel.name] = kernel

    # ---- binding

    def bind_copy(self, stream: StreamHandle, command: CopyAsync, memory: Memory) -> Call:
        to, resolve = self._streams[stream], self._resolver(memory)
        with self._of(to, command):
            made = copies.bind(self._vendor, command, resolve, to.handle)
        return self._keep(Bound(self._gpus, to, command, made.pieces, made.fast, runs=made.runs))

    def bind_launch(self, stream: StreamHandle, command: Launch, memory: Memory, flags: Sequence[Flag]) -> Call:
        to = self._streams[stream]

        def address(flag: int) -> int:
            return self._flags[flags[flag]]

        with self._of(to, command):
            ready = self._launches.bind(to, command, self._resolver(memory), address)
        return self._keep(Bound(self._gpus, to, command, [tuple(ready.actions)], ready=ready))

    def bind_collective(self, stream: StreamHandle, command: CollectiveCall, memory: Memory) -> Call:
        to, resolve = self._streams[stream], self._resolver(memory)
        steps = collectives.steps(command, to.plan.rank, self._plan, resolve)
        sums = [] if steps.sum is None else [steps.sum]
        with self._of(to, command):
            ready = self._launches.sums(to, sums, resolve, command.origin)
            piece = list(ready.actions)
            for dst, src in steps.copies:
                piece += [copies.action(self._vendor, part, to.handle) for part in copies.parts(dst, src, resolve)]
        group = self._groups.get(command.group)
        if group is None or group.whole:
            group = self._groups[command.group] = collectives.Group(
                self._gpus, self._crossings, self._plan.ranks, command.group
            )
        with self._of(to, command):
            return self._keep(group.add(Bound(self._gpus, to, command, [tuple(piece)], ready=ready)))

    def bind_record(self, stream: StreamHandle, command: Record, event: Event) -> Call:
        to, handle = self._streams[stream], self._events[event]
        piece: Piece = (self._vendor.record_action(handle, to.handle),)
        raised = self._crossings.raised(command.event)
        return self._keep(Bound(self._gpus, to, command, (piece,), event=handle, words=raised))

    def bind_wait_event(self, stream: StreamHandle, command: WaitEvent, event: Event) -> Call:
        to = self._streams[stream]
        piece: Piece = (self._vendor.wait_action(to.handle, self._events[event]),)
        awaited = self._crossings.awaited(command.event, to.device.ordinal)
        return self._keep(Bound(self._gpus, to, command, (piece,), words=awaited))

    def bind_signal(self, stream: StreamHandle, command: SignalFlag, flag: Flag) -> Call:
        to, vendor, word = self._streams[stream], self._vendor, self._flags[flag]
        fast: Piece | None = None
        runs: list[Run] = []
        with self._of(to, command):
            piece: Piece = (vendor.signal_action(word, to.handle),)
            if to.raises is not None and command.flag in to.raises.flags:
                beside = to.raises
                fast = (
                    vendor.record_action(beside.event, to.handle),
                    vendor.wait_action(beside.stream, beside.event),
                    vendor.signal_action(word, beside.stream),
                )
                if self._goes_with_copies(to, command.flag):
                    runs = [Run(word, self._gpus.ones[to.device.ordinal], 4)]
        return self._keep(Bound(self._gpus, to, command, (piece,), fast, words=(Word(word, raised=True),), runs=runs))

    def _goes_with_copies(self, to: GpuStream, flag: int) -> bool:
        """Whether a copied word may raise the flag, as late as the next copy is issued. NOTE no stream may wait for it:
        the wait might be issued first. And copies inside a device may be kernels, which find no multiprocessor free."""
        elsewhere = self._gpus.homes[self._plan.flag_homes[flag]] != to.device.ordinal
        return elsewhere and flag in self._by_launches

    def bind_wait_flag(self, stream: StreamHandle, command: WaitFlag, flag: Flag) -> Call:
        to, vendor, word = self._streams[stream], self._vendor, self._flags[flag]
        fast: Piece | None = None
        piece: Piece = (vendor.wait_flag_action(word, to.handle),)
        if to.waits is not None and command.flag in to.waits.flags:
            beside = to.waits
            fast = (
                vendor.wait_flag_action(word, beside.stream),
                vendor.record_action(beside.event, beside.stream),
                vendor.wait_action(to.handle, beside.event),
            )
        return self._keep(Bound(self._gpus, to, command, (piece,), fast, words=(Word(word, raised=False),)))

    def _of(self, to: GpuStream, command: Command) -> AbstractContextManager[None]:
        return concerning(to.device, f"{type(command).__name__} on {to}", command.origin)

    def _keep(self, call: Bound | collectives.Member) -> Call:
        self._bound.add(call)
        return call

    def _uploads(self) -> list[Upload]:
        """The tables of all bound launches."""
        bounds = (b.bound if isinstance(b, collectives.Member) else b for b in self._bound)
        return [upload for bound in bounds for upload in bound.uploads]

    def _resolver(self, memory: Memory) -> Resolve:
        inputs = {t.name for t in self._plan.tensors if t.kind == "input"}

        def resolve(region: Region) -> Tensor:
            tensor = self._buffers[memory[region.tensor, region.rank]]
            return replace(tensor, written=region.tensor not in inputs)

        return resolve

    def unbind(self, calls: Sequence[Call]) -> None:
        self._groups.clear()  # what an error left half bound goes on nowhere
        self._runs.quiet()
        closing = Closing()
        for call in calls:
            bound = _ours(call)
            self._bound.discard(bound)
            closing(bound.release)
        closing.end()

    # ---- running

    def program(self, calls: Sequence[Call]) -> api.Program:
        return api.Program(Program(self._gpus, [_ours(call) for call in calls]))

    def run(self, program: api.Program, streams: Sequence[object] = ()) -> None:
        assert isinstance(program, Program)
        self._runs.run(program, handles(streams, self._plan.ranks))

    def capture(self, program: api.Program) -> Graph:
        assert isinstance(program, Program)
        graph = Graph(next(self._numbers))
        self._graphs[graph] = self._runs.capture(program)
        return graph

    def replay(self, graph: Graph, streams: Sequence[object] = ()) -> None:
        self._runs.replay(self._graphs[graph], handles(streams, self._plan.ranks))

    def forget(self, graph: Graph) -> None:
        self._runs.quiet()
        self._drop_graph(graph)

    def _drop_graph(self, graph: Graph) -> None:
        self._runs.drop(self._graphs.pop(graph))

    def synchronize(self, progress: Progress | None = None) -> None:
        self._runs.synchronize()

    def elapsed(self) -> float:
        return self._runs.microseconds()

    def spans(self) -> tuple[Span, ...]:
        """Of the last marked run."""
        runs = self._runs
        if not runs.marked:
            return ()
        runs.synchronize()
        for ordinal, stream in self._gpus.control.items():  # where the marks begin; no command waits for it
            self._gpus.finish(self._gpus.devices[ordinal], stream)
        raisers = raisers_of(self._of_plan)
        dtypes = {t.name: t.dtype for t in self._plan.tensors}
        found: list[Span] = []
        for stream in self._of_plan:

            def since(mark: Handle, stream: GpuStream = stream) -> float:
                return runs.since(stream, mark)

            with self._gpus.inside(stream.device):
                found.extend(spans_of(stream, dtypes, since, raisers))
        return tuple(sorted(found, key=lambda s: (s.stream, s.start, s.stop)))

    def holdings(self) -> Holdings:
        streams, events, size = self._gpus.held()
        return Holdings(streams, events, len(self._graphs), size)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        told = self._runs.lost
        closing = Closing()
        closing(self._runs.settle)
        if self._gpus.hung:
            return  # any call may block; the process's end gives everything back
        for graph in list(self._graphs):
            closing(self._drop_graph, graph)
        closing(self._launches.close)
        closing(self._gpus.close)
        if not told:  # after it calls may fail for the same reason
            closing.end()


def _ours(call: Call) -> Bound | collectives.Member:
    assert isinstance(call, Bound | collectives.Member)
    return call
