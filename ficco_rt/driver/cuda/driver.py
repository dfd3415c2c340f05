"""NVIDIA GPUs through cuda.bindings: one process, all devices, a plan's commands on streams or as one graph.

A run on streams: the origin, a stream of the first device, waits for the callers' streams and for the last run;
every stream of the plan waits for it; commands follow; the origin waits for all streams' ends, and the callers'
streams for that. So everything of a run is complete, on all ranks, before the next overwrites it. Flags are words
in the waiter's memory, 0 between runs: each device takes its own down behind the end.

A run as a graph is the same calls, captured once, and one call a run.

NOTE streams share the device's hardware queues, and a wait at the head of one holds up all that share it. The
order of issue keeps that harmless (a signal is issued before its waits), but not for waits of kernels; so as many
queues as there can be are asked for (env.py, CUDA_DEVICE_MAX_CONNECTIONS).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from ... import env
from ...errors import DeviceError, UsageError
from ...errors import Span as Place
from ...graph.ir import ITEM_BYTES, Dtype, Kernel
from ...kernels import sm90
from ...plan.ir import (
    CollectiveCall,
    Command,
    CopyAsync,
    GemmWork,
    KernelWork,
    Launch,
    LaunchAttributes,
    Plan,
    Record,
    SignalFlag,
    Stream,
    WaitEvent,
    WaitFlag,
)
from ...region import Region
from ...trace import Clock, Span
from ..api import (
    NUMPY_DTYPES,
    Array,
    Buffer,
    Call,
    DeviceArray,
    Event,
    Flag,
    Graph,
    Memory,
    Pool,
    Progress,
    StreamHandle,
)
from . import hopper, naive
from .call import Action, api, call, failure
from .cells import cells, part
from .devices import Device, close_devices, homes, open_devices
from .modules import STANDARD, Entry, Modules
from .spans import place_of, raisers_of, spans_of, stuck
from .streams import Bound, CollectiveGroup, CollectiveMember, CudaStream, Piece
from .tensors import Resolve, Tensor

PLAIN = LaunchAttributes(smem=0, residency=None, sms=None, priority=None)
DRAIN = 5.0  # seconds that a given-up run gets to end once its flags are forced up


@dataclass(slots=True, eq=False)
class _PlanEvent:
    device: Device
    handle: Any


@dataclass(frozen=True, slots=True)
class _Flag:
    address: int


@dataclass(frozen=True, slots=True)
class _Upload:
    """A launch's table in device memory. `counters` are words that must be 0 before a run."""

    device: Device
    address: int
    counters: int
    words: int


class CudaDriver:
    """See the module. `timeout` is the seconds that `synchronize` waits; None: for ever."""

    def __init__(self, plan: Plan, *, ranks_per_gpu: int = 1, timeout: float | None = None) -> None:
        env.ask("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        self.cu = cu = api()
        self.timeout = timeout
        self.marking = False
        self.capturing = False
        self.current: Device | None = None  # whose context is current, while a run is issued
        self._plan = plan
        self._homes = homes(plan.ranks, ranks_per_gpu)
        self._devices = open_devices(tuple(dict.fromkeys(self._homes)))
        self._handles = count()
        self._buffers: dict[Buffer, Tensor] = {}
        self._streams: dict[StreamHandle, CudaStream] = {}
        self._events: dict[Event, _PlanEvent] = {}
        self._flags: dict[Flag, _Flag] = {}
        self._flag_memory: dict[int, tuple[int, int]] = {}  # device → address, words
        self._modules = Modules()
        self._kernels: dict[str, Kernel] = {}
        self._uploads: list[_Upload] = []
        self._groups: dict[int, CollectiveGroup] = {}
        self._graphs: dict[Graph, Any] = {}
        self._made_events: list[Any] = []
        self._made_streams: list[Any] = []
        self._saved: Any = None  # the caller's context during a run
        self._callers: list[tuple[Device, Any]] = []
        self._running = False  # issued, not seen to end
        self._dirty = False  # a run was given up: flags and counters may be up
        self._lost = False  # the device does not answer any more: nothing can be given back
        self._replayed = False
        self._marked = False
        self._closed = False
        try:
            first, *_ = self._devices.values()
            with self._in(first):
                self.origin = self._new_stream(0)
                self._start, self._stop = self._new_event(timing=True), self._new_event(timing=True)
                self._fork = self._new_event()
            self._origin_device = first
            self._control: dict[int, Any] = {}  # takes flags down behind a run
            self._rescue: dict[int, Any] = {}  # never waits: what must be done while a run is stuck
            self._reset: dict[int, Any] = {}
            self._base: dict[int, Any] = {}
            self._caller_events: dict[int, Any] = {}
            for i, device in self._devices.items():
                with self._in(device):
                    self._control[i], self._rescue[i] = self._new_stream(0), self._new_stream(0)
                    self._reset[i], self._base[i] = self._new_event(), self._new_event(timing=True)
            for rank in range(plan.ranks):
                with self._in(self._device(rank)):
                    self._caller_events[rank] = self._new_event()
            for i, device in self._devices.items():
                words = sum(self._homes[home] == i for home in plan.flag_homes)
                if words:
                    with self._in(device):
                        self._flag_memory[i] = (int(call(cu.cuMemAlloc, 4 * words, what="flags")), words)
            self._flags_at = {i: address for i, (address, _) in self._flag_memory.items()}
            self._clear()
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        return "cuda"

    @property
    def clock(self) -> Clock:
        return "device"

    @property
    def on_device(self) -> bool:
        return True

    def describe(self) -> str:
        """The devices in use, for people."""
        names = [d.facts.name for d in self._devices.values()]
        shared = -(-self._plan.ranks // len(names))
        return f"{len(names)} × {names[0]}" + (f", {shared} ranks each" if shared > 1 else "")

    # ---- contexts, streams, events

    def _device(self, rank: int) -> Device:
        return self._devices[self._homes[rank]]

    @contextmanager
    def _in(self, device: Device) -> Iterator[None]:
        """Inside, the device's context is current; after, the caller's again."""
        call(self.cu.cuCtxPushCurrent, device.context)
        try:
            yield
        finally:
            self.cu.cuCtxPopCurrent()

    def enter(self, device: Device) -> None:
        """Make the device's context current, during a run."""
        if self.current is not device:
            call(self.cu.cuCtxSetCurrent, device.context)
            self.current = device

    def _new_stream(self, priority: int) -> Any:
        stream = call(self.cu.cuStreamCreateWithPriority, self.cu.CUstream_flags.CU_STREAM_NON_BLOCKING, priority)
        self._made_streams.append(stream)
        return stream

    def _new_event(self, *, timing: bool = False) -> Any:
        flags = self.cu.CUevent_flags
        event = call(self.cu.cuEventCreate, flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING)
        self._made_events.append(event)
        return event

    def timer(self, device: Device) -> Any:
        """A timing event; the device's context is current."""
        return self._new_event(timing=True)

    def mark(self, event: Any, stream: CudaStream) -> None:
        call(self.cu.cuEventRecord, event, stream.handle)

    record = mark

    def wait(self, event: Any, stream: CudaStream) -> None:
        call(self.cu.cuStreamWaitEvent, stream.handle, event, 0)

    def stream(self, stream: Stream) -> StreamHandle:
        device = self._device(stream.rank)
        with self._in(device):
            made = CudaStream(stream, device, self._new_stream(self._priority(stream.priority)), self._new_event())
        handle = StreamHandle(next(self._handles))
        self._streams[handle] = made
        return handle

    def _priority(self, name: str) -> int:
        """NOTE a greater priority is a smaller number."""
        with self._in(self._origin_device):
            least, greatest = call(self.cu.cuCtxGetStreamPriorityRange)
        return {"low": int(least), "normal": (int(least) + int(greatest)) // 2, "high": int(greatest)}[name]

    def event(self, rank: int) -> Event:
        device = self._device(rank)
        with self._in(device):
            made = _PlanEvent(device, self._new_event())
        event = Event(next(self._handles))
        self._events[event] = made
        return event

    def flag(self, rank: int) -> Flag:
        home = self._homes[rank]
        flag = Flag(next(self._handles))
        self._flags[flag] = _Flag(self._flags_at[home])
        self._flags_at[home] += 4
        return flag

    def kernel(self, kernel: Kernel) -> None:
        self._kernels[kernel.name] = kernel

    # ---- memory

    def pools(self) -> tuple[Pool, ...]:
        pools = []
        for i, device in self._devices.items():
            with self._in(device):
                free, _ = call(self.cu.cuMemGetInfo)
            ranks = tuple(r for r in range(self._plan.ranks) if self._homes[r] == i)
            pools.append(Pool(str(device), ranks, int(free)))
        return tuple(pools)

    def alloc(self, rank: int, shape: tuple[int, ...], dtype: Dtype) -> Buffer:
        self._answers()
        size = _size(shape, dtype)
        with self._in(self._device(rank)):
            what = f"{list(shape)} of {dtype} for rank {rank} on {self._device(rank)}"
            address = int(call(self.cu.cuMemAlloc, max(16, size), what=what))
        return self._buffer(Tensor(address, shape, dtype, rank, owned=True))

    def adopt(self, rank: int, array: object, dtype: Dtype) -> Buffer:
        if not isinstance(array, DeviceArray):
            raise UsageError(f"the cuda driver takes tensors on a GPU, not {type(array).__name__}")
        attribute = self.cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        where = int(call(self.cu.cuPointerGetAttribute, attribute, array.address, what=f"rank {rank}'s tensor"))
        if where != self._homes[rank]:
            raise UsageError(f"rank {rank} runs on device {self._homes[rank]}; its tensor lies on device {where}")
        return self._buffer(Tensor(array.address, array.shape, dtype, rank, owned=False))

    def _buffer(self, tensor: Tensor) -> Buffer:
        buffer = Buffer(next(self._handles))
        self._buffers[buffer] = tensor
        return buffer

    def free(self, buffer: Buffer) -> None:
        self._quiet()
        tensor = self._buffers.pop(buffer)
        if tensor.owned:
            with self._in(self._device(tensor.rank)):
                call(self.cu.cuMemFree, tensor.address)

    def poison(self, buffer: Buffer) -> None:
        self._quiet()
        tensor = self._buffers[buffer]
        stream = self._control[self._homes[tensor.rank]]
        with self._in(self._device(tensor.rank)):  # all bits set are a NaN in every type
            call(self.cu.cuMemsetD8Async, tensor.address, 0xFF, _size(tensor.shape, tensor.dtype), stream)
            call(self.cu.cuStreamSynchronize, stream)

    def write(self, buffer: Buffer, array: Array) -> None:
        self._quiet()
        tensor = self._buffers[buffer]
        self._to_device(self._device(tensor.rank), tensor.address, np.ascontiguousarray(array))

    def _to_device(self, device: Device, address: int, values: Array) -> None:
        """Done on return: the copy goes by a stream that does not wait for the default one, as the plan's do not."""
        stream = self._control[device.ordinal]
        with self._in(device):
            call(self.cu.cuMemcpyHtoDAsync, address, values.ctypes.data, values.nbytes, stream)
            call(self.cu.cuStreamSynchronize, stream)

    def _quiet(self) -> None:
        """The last run has ended, and the devices answer."""
        self.synchronize()
        self._answers()

    def _answers(self) -> None:
        if self._lost:
            raise DeviceError("the GPUs do not answer since an earlier error; start a new process")

    def read(self, buffer: Buffer) -> Array:
        self._quiet()
        tensor = self._buffers[buffer]
        values = np.empty(tensor.shape, NUMPY_DTYPES[tensor.dtype])
        with self._in(self._device(tensor.rank)):
            call(self.cu.cuMemcpyDtoH, values.ctypes.data, tensor.address, values.nbytes)
        return values

    # ---- binding

    def bind_copy(self, stream: StreamHandle, command: CopyAsync, memory: Memory) -> Call:
        to = self._streams[stream]
        resolve = self._resolver(memory)
        if to.plan.engine == "sm":
            sums = [naive.sum_of(t.dst, (t.src,), resolve) for t in command.transfers]
            packed = [self._naive(to, PLAIN, s, False, command.origin) for s in sums]
            return Bound(self, to, command, packed)
        pieces: list[Piece] = []
        runs: list[tuple[int, int, int]] = []  # dst, src, bytes
        rest: list[Action] = []  # what is not one run
        for t in command.transfers:
            dst, src = resolve(t.dst), resolve(t.src)
            item = ITEM_BYTES[dst.dtype]
            piece: list[Action] = []
            for cell in cells((t.dst, t.src), (dst.shape, src.shape)):
                a, b = (
                    tensor.address + side.offset * item for tensor, side in zip((dst, src), cell.sides, strict=True)
                )
                if cell.rows == 1:
                    size = cell.columns * item
                    runs.append((a, b, size))
                    piece.append((self.cu.cuMemcpyDtoDAsync, (a, b, size, to.handle)))
                    continue
                box = self._pitched(a, b, cell.rows, cell.columns * item, *(s.pitch * item for s in cell.sides))
                piece.append((self.cu.cuMemcpy2DAsync, (box, to.handle)))
                rest.append(piece[-1])
            pieces.append(tuple(piece))
        return Bound(self, to, command, pieces, self._batch(to, runs, rest))

    def _batch(self, to: CudaStream, runs: list[tuple[int, int, int]], rest: list[Action]) -> Piece | None:
        """Several runs in one call. NOTE it cannot be captured into a graph: the copies would be missing from it."""
        if len(runs) < 2 or not hasattr(self.cu, "cuMemcpyBatchAsync"):
            return None
        cu = self.cu
        attributes = cu.CUmemcpyAttributes()
        attributes.srcAccessOrder = cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        attributes.flags = int(cu.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
        to_, from_ = ([cu.CUdeviceptr(run[i]) for run in runs] for i in (0, 1))
        sizes = [size for *_, size in runs]
        arguments = (to_, from_, sizes, len(runs), [attributes], [0], 1, to.handle)
        return ((cu.cuMemcpyBatchAsync, arguments), *rest)

    def _pitched(self, dst: int, src: int, rows: int, width: int, dst_pitch: int, src_pitch: int) -> Any:
        box = self.cu.CUDA_MEMCPY2D()
        box.srcMemoryType = box.dstMemoryType = self.cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        box.dstDevice, box.srcDevice = dst, src
        box.dstPitch, box.srcPitch = dst_pitch, src_pitch
        box.WidthInBytes, box.Height = width, rows
        return box

    def bind_launch(self, stream: StreamHandle, command: Launch, memory: Memory, flags: Sequence[Flag]) -> Call:
        to = self._streams[stream]
        resolve = self._resolver(memory)

        def address(flag: int) -> int:
            return self._flags[flags[flag]].address

        works = [w for w in command.works if isinstance(w, KernelWork)]
        if works:
            pieces = [self._user(to, command, work, resolve) for work in works]
            return Bound(self, to, command, [tuple(action for piece in pieces for action in piece)])
        # the one place where the plan's choice picks the kernel: catalogue name → what packs and launches it
        if hopper.is_hopper(command.kernel):
            action = self._hopper(to, command, resolve, address)
            if action is not None:
                return Bound(self, to, command, [(action,)])
        if command.kernel in ("naive_gemm", "naive_reduce") or hopper.is_hopper(command.kernel):
            packed = naive.pack(command, resolve, address)
            launches = [self._naive(to, command.attributes, p, command.streamed, command.origin) for p in packed]
            return Bound(self, to, command, [tuple(action for launch in launches for action in launch)])
        raise UsageError(
            f"{place_of(command.origin)}: the plan asks for kernel '{command.kernel}', which this version cannot "
            f"launch; compile the schedule again"
        )

    def _hopper(
        self, to: CudaStream, command: Launch, resolve: Resolve, address: Callable[[int], int]
    ) -> Action | None:
        device, attributes = to.device, command.attributes
        sms = attributes.sms or device.facts.sms
        if command.streamed:
            sms = min(sms, self._room(device))
        packed = hopper.pack(command, resolve, address, sms)
        if packed is None:
            return None
        table, dtype, out_dtype = packed
        first = command.works[0]
        assert isinstance(first, GemmWork)
        key = (table.variant, dtype, out_dtype, first.left_transposed, first.right_transposed)
        entry = self._modules.own(sm90.SOURCE.name, sm90.entry(*key), device, sm90.options(*key))
        with self._in(device):
            entry.allow(table.smem)
            size = len(table.constants) + 256 + table.scratch_bytes
            base = int(call(self.cu.cuMemAlloc, size, what=f"a launch's table on {device}"))
            scratch = base + -(-len(table.constants) // 256) * 256
            self._uploads.append(_Upload(device, base, scratch, table.counter_bytes // 4))
            self._to_device(device, base, np.frombuffer(table.constants, np.uint8))
            if table.scratch_bytes:
                self._to_device(device, scratch, np.zeros(table.scratch_bytes, np.uint8))
            parameters = table.parameters(base, scratch, [hopper.encode(m) for m in table.maps])
        block = (table.variant.threads,)
        cluster = table.variant.cluster
        return self._launch(to, entry, (table.grid,), block, attributes, table.smem, [parameters], cluster)

    def _naive(
        self, to: CudaStream, attributes: LaunchAttributes, packed: naive.Packed, streamed: bool, place: Place
    ) -> Piece:
        device = to.device
        defines = [f"-D{k}={v}" for k, v in sorted(packed.defines.items())]
        options = (STANDARD, f"-arch={device.facts.arch}", *defines)
        entry = self._modules.own("naive.cu", packed.entry, device, options)
        # what the text asks for counts all of a block's shared memory
        smem = max(packed.smem, attributes.smem - entry.static_smem)
        with self._in(device):
            entry.allow(smem)
            fitting = entry.blocks_per_sm(naive.THREADS, smem)
            if not fitting:
                raise DeviceError(
                    f"{place_of(place)}: kernel {entry.name} with {smem} bytes of shared memory does not fit {device}"
                )
            upload, offsets = self._upload(device, packed)
        blocks = (attributes.sms or device.facts.sms) * fitting
        if streamed:
            blocks = min(blocks, self._room(device))
        table = naive.TABLE.pack(*(upload.address + o for o in offsets), packed.count, packed.tiles, int(streamed), 0)
        return (self._launch(to, entry, (min(blocks, packed.tiles),), (naive.THREADS,), attributes, smem, [table]),)

    def _room(self, device: Device) -> int:
        """Blocks that a streamed launch may hold. Its blocks wait while they hold their multiprocessors, so all
        streamed launches of a device together leave one free for what they wait for: ranks that share the device,
        and copies inside a device, which may run on multiprocessors."""
        waiting = [s for s in self._plan.streams if self._homes[s.rank] == device.ordinal]
        launches = sum(any(isinstance(c, Launch) and c.streamed for c in s.commands) for s in waiting)
        alone = sum(home == device.ordinal for home in self._homes) == 1
        local = any(
            isinstance(c, CopyAsync) and any(self._homes[t.src.rank] == self._homes[t.dst.rank] for t in c.transfers)
            for s in waiting
            for c in s.commands
        )
        if alone and launches == 1 and not local:
            return 2**31 - 1
        return max(1, (device.facts.sms - 1) // max(1, launches))

    def _upload(self, device: Device, packed: naive.Packed) -> tuple[_Upload, list[int]]:
        """The launch's table in device memory, and where in it works, runs, flags and counters begin."""
        parts = [bytes(packed.works), bytes(packed.runs), bytes(packed.flags), bytes(4 * packed.counters)]
        image, offsets = bytearray(), []
        for data in parts:
            image += bytes(-len(image) % 16)
            offsets.append(len(image))
            image += data
        address = int(call(self.cu.cuMemAlloc, len(image), what=f"a launch's table on {device}"))
        upload = _Upload(device, address, address + offsets[3], packed.counters)
        self._uploads.append(upload)
        self._to_device(device, address, np.frombuffer(bytes(image), np.uint8))
        return upload, offsets

    def _launch(
        self,
        to: CudaStream,
        entry: Entry,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        attributes: LaunchAttributes,
        smem: int,
        arguments: Sequence[bytes],
        cluster: int = 1,
    ) -> Action:
        """A launch with its arguments packed: the call reads them from memory that the action keeps."""
        cu = self.cu
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
        config.sharedMemBytes = smem
        config.hStream = to.handle
        wanted = []
        if attributes.priority is not None:  # otherwise the stream's, in a captured node too
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY
            attribute.value.priority = self._priority(attributes.priority)
            wanted.append(attribute)
        if cluster > 1:
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = cu.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
            attribute.value = value
            wanted.append(attribute)
        if wanted:
            config.attrs, config.numAttrs = wanted, len(wanted)
        values = [ctypes.create_string_buffer(a, len(a)) for a in arguments]
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(v) for v in values))
        launch = cu.cuLaunchKernelEx

        def cuLaunchKernelEx(config: Any, handle: Any, pointers: Any, _keep: Any) -> tuple[Any, ...]:
            result: tuple[Any, ...] = launch(config, handle, ctypes.addressof(pointers), 0)
            return result

        return cuLaunchKernelEx, (config, entry.handle, pointers, values)

    def _user(self, to: CudaStream, command: Launch, work: KernelWork, resolve: Resolve) -> Piece:
        """A user kernel gets the address of each region's first element, and each int as a C int."""
        place = place_of(work.origin)
        if work.waits or work.signals:
            raise UsageError(f"{place}: kernel '{work.kernel}' cannot be streamed")
        entry = self._modules.users(self._kernels[work.kernel], to.device)
        arguments: list[bytes] = []
        for a in work.arguments:
            if not isinstance(a.value, Region):
                arguments.append(bytes(ctypes.c_int(a.value)))
                continue
            tensor = resolve(a.value)
            if len(a.value.boxes) != 1:
                raise UsageError(f"{place}: kernel '{work.kernel}', argument {a.name}: one piece, not a set of pieces")
            first = next(cells((a.value,), (tensor.shape,)))
            address = tensor.address + first.sides[0].offset * ITEM_BYTES[tensor.dtype]
            arguments.append(bytes(ctypes.c_uint64(address)))
        if command.attributes.smem:
            with self._in(to.device):
                entry.allow(command.attributes.smem)
        return (self._launch(to, entry, work.grid, work.block, command.attributes, command.attributes.smem, arguments),)

    def bind_collective(self, stream: StreamHandle, command: CollectiveCall, memory: Memory) -> Call:
        """Done with our own copies and sums, so that it runs wherever plans run: ranks that share a GPU, too."""
        to = self._streams[stream]
        group = self._groups.setdefault(command.group, CollectiveGroup(self, self._plan.ranks))
        known = group.members.get(to.plan.rank)
        if known is not None:
            before, after = known.before, known.after
        else:
            with self._in(to.device):
                before, after = self._new_event(), self._new_event()
        bound = Bound(self, to, command, [self._collective(to, command, self._peers_calls(command), memory)])
        group.members[to.plan.rank] = CollectiveMember(command, group, bound, before, after)
        return group.members[to.plan.rank]

    def _peers_calls(self, command: CollectiveCall) -> list[CollectiveCall]:
        """All ranks' calls of a collective, by rank."""
        found = [
            (s.rank, c)
            for s in self._plan.streams
            for c in s.commands
            if isinstance(c, CollectiveCall) and c.group == command.group
        ]
        return [c for _, c in sorted(found, key=lambda pair: pair[0])]

    def _collective(
        self, to: CudaStream, command: CollectiveCall, calls: list[CollectiveCall], memory: Memory
    ) -> tuple[Action, ...]:
        resolve = self._resolver(memory)
        rank, ranks = to.plan.rank, len(calls)
        actions: list[Action] = []

        def copy(dst: Region, src: Region) -> None:
            if dst == src:
                return
            a, b = resolve(dst), resolve(src)
            item = ITEM_BYTES[a.dtype]
            for cell in cells((dst, src), (a.shape, b.shape)):
                x, y = (t.address + s.offset * item for t, s in zip((a, b), cell.sides, strict=True))
                box = self._pitched(x, y, cell.rows, cell.columns * item, *(s.pitch * item for s in cell.sides))
                actions.append(
                    (self.cu.cuMemcpyDtoDAsync, (x, y, cell.columns * item, to.handle))
                    if cell.rows == 1
                    else (self.cu.cuMemcpy2DAsync, (box, to.handle))
                )

        def add(dst: Region, sources: list[Region]) -> None:
            packed = naive.sum_of(dst, sources, resolve)
            actions.extend(self._naive(to, PLAIN, packed, False, command.origin))

        peers = [(rank + i) % ranks for i in range(1, ranks)]
        in_place = resolve(command.dst).address == resolve(command.src).address
        if in_place and command.kind in ("reduce_scatter", "all_to_all"):
            raise UsageError(f"{place_of(command.origin)}: cuda has no {command.kind} in place; take two tensors")
        match command.kind:
            case "all_gather":
                starts = _starts([c.src.shape[0] for c in calls])
                for p in (*peers, rank):  # staggered pushes
                    copy(part(calls[p].dst, starts[rank], starts[rank + 1]), command.src)
            case "all_to_all":
                rows = command.src.shape[0]
                for p in (*peers, rank):
                    a, b = p * rows // ranks, (p + 1) * rows // ranks
                    before = sum((p + 1) * c.src.shape[0] // ranks - p * c.src.shape[0] // ranks for c in calls[:rank])
                    if a < b:
                        copy(part(calls[p].dst, before, before + b - a), part(command.src, a, b))
            case "reduce_scatter":
                starts = _starts([c.dst.shape[0] for c in calls])
                a, b = starts[rank], starts[rank + 1]
                add(command.dst, [part(calls[p].src, a, b) for p in (rank, *peers)])
            case "all_reduce":  # every rank sums a share of the rows and pushes it to all
                rows = command.src.shape[0]
                a, b = rank * rows // ranks, (rank + 1) * rows // ranks
                if a < b:
                    add(part(command.dst, a, b), [part(calls[p].src, a, b) for p in (rank, *peers)])
                    for p in peers:
                        copy(part(calls[p].dst, a, b), part(command.dst, a, b))
        return tuple(actions)

    def bind_record(self, stream: StreamHandle, command: Record, event: Event) -> Call:
        to = self._streams[stream]
        return self._bound(to, command, (self.cu.cuEventRecord, (self._events[event].handle, to.handle)))

    def bind_wait_event(self, stream: StreamHandle, command: WaitEvent, event: Event) -> Call:
        to = self._streams[stream]
        return self._bound(to, command, (self.cu.cuStreamWaitEvent, (to.handle, self._events[event].handle, 0)))

    def bind_signal(self, stream: StreamHandle, command: SignalFlag, flag: Flag) -> Call:
        to = self._streams[stream]
        return self._bound(to, command, (self.cu.cuStreamWriteValue32, (to.handle, self._flags[flag].address, 1, 0)))

    def bind_wait_flag(self, stream: StreamHandle, command: WaitFlag, flag: Flag) -> Call:
        to = self._streams[stream]
        until = int(self.cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
        arguments = (to.handle, self._flags[flag].address, 1, until)
        return self._bound(to, command, (self.cu.cuStreamWaitValue32, arguments))

    def _bound(self, to: CudaStream, command: Command, action: Action) -> Bound:
        return Bound(self, to, command, ((action,),))

    def _resolver(self, memory: Memory) -> Resolve:
        return lambda region: self._buffers[memory[region.tensor, region.rank]]

    def unbind(self) -> None:
        """All bound calls are forgotten: their tables are given back."""
        self._quiet()
        for upload in self._uploads:
            with self._in(upload.device):
                call(self.cu.cuMemFree, upload.address)
        self._uploads.clear()

    # ---- running

    def begin_run(self, streams: Sequence[object] = ()) -> None:
        self._prepare()
        self._replayed, self._marked = False, self.marking
        for stream in self._streams.values():
            stream.issued.clear()
        self._join_callers(streams)
        self.enter(self._origin_device)
        call(self.cu.cuEventRecord, self._start, self.origin)
        self._running = True
        self._open_run()
        if self.marking:
            for i, device in self._devices.items():
                self.enter(device)
                call(self.cu.cuStreamWaitEvent, self._control[i], self._fork, 0)
                call(self.cu.cuEventRecord, self._base[i], self._control[i])

    def end_run(self) -> None:
        self._close_run()
        self.enter(self._origin_device)
        call(self.cu.cuEventRecord, self._stop, self.origin)
        self._release_callers()
        self._restore()

    def _prepare(self) -> None:
        self._answers()
        if self._dirty:
            self._clear()
        self._saved = call(self.cu.cuCtxGetCurrent)
        self.current = None

    def _join_callers(self, streams: Sequence[object]) -> None:
        """The origin waits for what stands on the callers' streams now."""
        self._callers = []
        if not streams:
            return
        if len(streams) != self._plan.ranks:
            raise UsageError(f"streams: wanted one a rank, {self._plan.ranks}; given {len(streams)}")
        for rank, given in enumerate(streams):
            handle = stream_handle(given, rank)
            device = self._device(rank)
            self.enter(device)
            event = self._caller_events[rank]
            call(self.cu.cuEventRecord, event, handle, what=f"the caller's stream of rank {rank}")
            self._callers.append((device, handle))
            call(self.cu.cuStreamWaitEvent, self.origin, event, 0)

    def _release_callers(self) -> None:
        for device, handle in self._callers:
            self.enter(device)
            call(self.cu.cuStreamWaitEvent, handle, self._stop, 0)
        self._callers = []

    def _restore(self) -> None:
        self.current = None
        call(self.cu.cuCtxSetCurrent, self._saved)

    def _open_run(self) -> None:
        """All streams of the plan begin when the origin gets here."""
        cu = self.cu
        self.enter(self._origin_device)
        call(cu.cuEventRecord, self._fork, self.origin)
        for stream in self._streams.values():
            self.enter(stream.device)
            call(cu.cuStreamWaitEvent, stream.handle, self._fork, 0)

    def _close_run(self) -> None:
        """The origin goes on when all streams are through and the flags are down again."""
        cu = self.cu
        for stream in self._streams.values():
            self.enter(stream.device)
            call(cu.cuEventRecord, stream.tail, stream.handle)
        self.enter(self._origin_device)
        for stream in self._streams.values():
            call(cu.cuStreamWaitEvent, self.origin, stream.tail, 0)
        if not self._flag_memory:
            return
        call(cu.cuEventRecord, self._fork, self.origin)
        for i, (address, words) in self._flag_memory.items():
            self.enter(self._devices[i])
            call(cu.cuStreamWaitEvent, self._control[i], self._fork, 0)
            call(cu.cuMemsetD32Async, address, 0, words, self._control[i])
            call(cu.cuEventRecord, self._reset[i], self._control[i])
        self.enter(self._origin_device)
        for i in self._flag_memory:
            call(cu.cuStreamWaitEvent, self.origin, self._reset[i], 0)

    def abandon(self) -> None:
        """The run that is being issued will not be whole: what was issued is let through, the rest forgotten."""
        if self._lost:
            return
        self._running = self._dirty = True
        self._callers = []
        self.current = None
        self._release()
        if self._saved is not None:
            self.cu.cuCtxSetCurrent(self._saved)

    # ---- graphs

    def capture(self, calls: Sequence[Call]) -> Graph:
        """The calls of a run as one graph over all devices."""
        cu = self.cu
        self._quiet()
        self._saved = call(cu.cuCtxGetCurrent)
        self.current = None
        self.enter(self._origin_device)
        call(cu.cuStreamBeginCapture, self.origin, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        self.capturing = True
        try:
            self._open_run()
            for issue in calls:
                issue()
            self._close_run()
        except BaseException:
            self.capturing = False
            self.enter(self._origin_device)
            cu.cuStreamEndCapture(self.origin)  # gives nothing usable; the first error is the one to tell
            self._restore()
            raise
        self.capturing = False
        self.enter(self._origin_device)
        captured = call(cu.cuStreamEndCapture, self.origin)
        try:
            flags = int(cu.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)
            made = call(cu.cuGraphInstantiate, captured, flags)
        finally:
            call(cu.cuGraphDestroy, captured)
            self._restore()
        graph = Graph(next(self._handles))
        self._graphs[graph] = made
        return graph

    def replay(self, graph: Graph, streams: Sequence[object] = ()) -> None:
        if self._lost:
            raise DeviceError("the GPUs do not answer since an earlier error; start a new process")
        if self._dirty:
            self._clear()
        cu = self.cu
        self._saved = call(cu.cuCtxGetCurrent)
        self.current = None
        self._replayed, self._marked = True, False
        self._join_callers(streams)
        self.enter(self._origin_device)
        call(cu.cuEventRecord, self._start, self.origin)
        self._running = True
        call(cu.cuGraphLaunch, self._graphs[graph], self.origin)
        call(cu.cuEventRecord, self._stop, self.origin)
        self._release_callers()
        self._restore()

    def forget(self, graph: Graph) -> None:
        self._quiet()
        call(self.cu.cuGraphExecDestroy, self._graphs.pop(graph))

    # ---- the end of a run

    def synchronize(self, progress: Progress | None = None) -> None:
        if not self._running or self._lost:
            return
        begun = time.monotonic()
        naps = 0
        while not self._ended(self._stop):
            waited = time.monotonic() - begun
            if self.timeout is not None and waited > self.timeout:
                self._give_up(waited)
            naps += 1
            if waited > 2e-3:
                time.sleep(min(1e-3, 1e-5 * naps))
        self._running = False

    def _ended(self, event: Any) -> bool:
        (code,) = self.cu.cuEventQuery(event)
        if not code:
            return True
        if code.name == "CUDA_ERROR_NOT_READY":
            return False
        self._lost = True  # errors of running work stay with the context
        raise DeviceError("\n".join([str(failure(self.cu.cuEventQuery, code, "while the plan ran")), *self._report()]))

    def _give_up(self, waited: float) -> None:
        report = self._report() or ["a replayed graph does not tell how far it got; --no-graph does"]
        self._dirty = True
        state = "" if self._release() else "\nthe GPUs still run it: this process can use them no more"
        raise DeviceError(f"the run did not end within {waited:.0f} s (--timeout)\n" + "\n".join(report) + state)

    def _report(self) -> list[str]:
        """A line for each stream that is not through."""
        if self._replayed:
            return []
        streams = list(self._streams.values())
        raisers = raisers_of(streams)
        lines = [stuck(stream, self._done, raisers) for stream in streams]
        return [line for line in lines if line is not None]

    def _done(self, bound: Bound) -> bool | None:
        if self._marked and bound.marks:
            return bool(not self.cu.cuEventQuery(bound.marks[-1])[0])
        if isinstance(bound.command, Record):
            return bool(not self.cu.cuEventQuery(bound.plain[0][1][0])[0])
        if not self.cu.cuEventQuery(bound.stream.tail)[0]:
            return True
        return None

    def _release(self) -> bool:
        """Force all flags up, so that whatever waits for one goes on, and wait a little: is all through now?"""
        cu = self.cu
        for i, (address, words) in self._flag_memory.items():
            with self._in(self._devices[i]):
                for word in range(words):  # NOTE no memset: that is a kernel, and may find no multiprocessor free
                    cu.cuStreamWriteValue32(self._rescue[i], address + 4 * word, 1, 0)
        begun = time.monotonic()
        while any(cu.cuStreamQuery(s)[0] for s in self._made_streams):
            if time.monotonic() - begun > DRAIN:
                self._lost = True
                return False
            time.sleep(1e-3)
        self._running = False
        return True

    def _clear(self) -> None:
        """Flags and counters are down, whatever a given-up run has left."""
        words = [(self._devices[i], address, n) for i, (address, n) in self._flag_memory.items()]
        words += [(u.device, u.counters, u.words) for u in self._uploads]
        for device, address, n in words:
            self._to_device(device, address, np.zeros(n, np.uint32))
        for group in self._groups.values():
            group.arrived = 0
        self._dirty = False

    def elapsed(self) -> float:
        self.synchronize()
        return 1e3 * float(call(self.cu.cuEventElapsedTime, self._start, self._stop))

    def spans(self) -> tuple[Span, ...]:
        """Of the last marked run. Devices' clocks are set to one another by the event that begins the run: they
        agree to some microseconds, the time that it takes to reach them."""
        if not self._marked:
            return ()
        self.synchronize()
        streams = list(self._streams.values())
        raisers = raisers_of(streams)
        dtypes = {t.name: t.dtype for t in self._plan.tensors}
        found: list[Span] = []
        for stream in streams:
            base = self._base[stream.device.ordinal]

            def since(mark: Any, base: Any = base) -> float:
                return max(0.0, 1e3 * float(call(self.cu.cuEventElapsedTime, base, mark)))

            with self._in(stream.device):
                found.extend(spans_of(stream, dtypes, since, raisers))
        return tuple(sorted(found, key=lambda s: (s.stream, s.start, s.stop)))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._lost:
            return  # any call would block or fail; the process's end gives everything back
        if self._running:
            begun = time.monotonic()
            while any(self.cu.cuStreamQuery(s)[0] for s in self._made_streams) and time.monotonic() - begun < DRAIN:
                time.sleep(1e-3)
            if not self._release():
                return
        cu = self.cu
        for graph in self._graphs.values():
            call(cu.cuGraphExecDestroy, graph)
        for event in self._made_events:
            call(cu.cuEventDestroy, event)
        for stream in self._made_streams:
            call(cu.cuStreamDestroy, stream)
        for upload in self._uploads:
            with self._in(upload.device):
                call(cu.cuMemFree, upload.address)
        for tensor in self._buffers.values():
            if tensor.owned:
                with self._in(self._device(tensor.rank)):
                    call(cu.cuMemFree, tensor.address)
        for i, (address, _) in self._flag_memory.items():
            with self._in(self._devices[i]):
                call(cu.cuMemFree, address)
        self._modules.close(self._devices)
        close_devices(self._devices)


def stream_handle(given: object, rank: int) -> Any:
    """A caller's stream: an int handle, or an object with `cuda_stream` (PyTorch), `ptr` (CuPy) or
    `__cuda_stream__`."""
    protocol = getattr(given, "__cuda_stream__", None)
    if callable(protocol):
        return int(protocol()[1])
    for name in ("cuda_stream", "ptr"):
        if isinstance(getattr(given, name, None), int):
            return getattr(given, name)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    raise UsageError(f"streams: rank {rank}'s is {type(given).__name__}, not a CUDA stream")


def _starts(sizes: Sequence[int]) -> list[int]:
    starts = [0]
    for n in sizes:
        starts.append(starts[-1] + n)
    return starts


def _size(shape: tuple[int, ...], dtype: Dtype) -> int:
    size = ITEM_BYTES[dtype]
    for n in shape:
        size *= n
    return size
