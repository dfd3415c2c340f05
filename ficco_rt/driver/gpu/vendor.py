"""The interface to a vendor's driver. Methods with a body make calls that are alike in CUDA and HIP.

There are two kinds of methods. Methods that *act* make the call and check it: a refused call raises a DeviceError with
the call, its code, and `what` it was for (`refused.Refused`); the caller adds the device and the plan's command.
Methods that *prepare* return a DriverCall with its arguments, which every run makes again; its result begins with the
code for `failure`, which is false on success.

Handles (contexts, streams, events, graphs, modules, functions) are objects of the vendor's bindings. Device ordinals
are the vendor's. Addresses, sizes and pitches are in bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from ...device.ir import Features
from ...device.run_plan import Current
from ...errors import DeviceError
from ...kernels.block_fit import Footprint
from ...kernels.family import TensorMap
from ...kernels.kernel_compiler import KernelSource
from ...machine.discover import DeviceFacts
from .blas_lt import BlasLt
from .checked import Api, Checked
from .checked import DriverCall as DriverCall
from .checked import DriverFunction as DriverFunction
from .checked import Handle as Handle
from .collective_library import CollectiveLibrary
from .refused import Refused
from .sharing import Sharing

Numbers: TypeAlias = tuple[tuple[int, int], ...]  # of allocations or mappings, by addresses in them


# Flags, which are the same numbers in CUDA and HIP
_NON_BLOCKING = 1  # of a stream: it does not wait for the default one
_NO_TIMING = 2  # of an event
_NODE_PRIORITIES = 8  # of a graph's instance: nodes keep their own


class Address(int):
    """Where an object of ctypes lies. It keeps that object, and what this points at, for as long as it lives itself."""

    _keeps: tuple[object, ...]

    def __new__(cls, lies: Any, *points_at: object) -> Address:
        made = super().__new__(cls, ctypes.addressof(lies))
        made._keeps = (lies, points_at)
        return made


@dataclass(frozen=True, slots=True, eq=False)
class Gpu:
    """A GPU with its context, which other libraries of the process share. `ordinal` is its number in the placement,
    `local` the vendor's in this process; the two differ where other processes drive other devices."""

    ordinal: int
    facts: DeviceFacts
    context: Handle
    local: int

    def __str__(self) -> str:
        here = f", {self.local} of this process" if self.local != self.ordinal else ""
        return f"{self.facts.name} (device {self.ordinal}{here})"


@dataclass(frozen=True, slots=True)
class LinearCopy:
    """Bytes that lie together on both sides of a copy."""

    dst: int
    src: int
    size: int


@dataclass(frozen=True, slots=True)
class PitchedCopy:
    """Rows of one pitch on each side of a copy."""

    dst: int
    src: int
    width: int
    rows: int
    dst_pitch: int
    src_pitch: int


@dataclass(frozen=True, slots=True)
class MemOp:
    """A stream signals a semaphore in the memory of some device, or waits until it is set, and with `acquires` resets
    it."""

    address: int
    signals: bool
    acquires: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """The shape of a launch. `priority` as `priorities` counts, or None for the stream's. `chained`: it may begin while
    the launch before it on its stream ends; a vendor that cannot do this starts it behind that one."""

    blocks: tuple[int, ...]
    threads: tuple[int, ...]
    smem: int  # dynamic, bytes
    priority: int | None = None
    cluster: int = 1
    chained: bool = False


class Vendor(Protocol):
    """See the module."""

    name: str  # of the driver: cuda, hip
    visible: str  # the environment variable that chooses devices
    topology: str  # a command that shows which devices reach each other
    lent: int = 0  # bytes of a device's memory on which another one tries its copies (`copy_trial`); 0: it tries none
    no_copy: str = ""  # the code of a copy that is not made
    sources: tuple[str, ...]  # endings of source files that `compile` takes
    not_ready: str  # the code of a query when work is still under way
    api: Api
    call: Checked

    # ---- errors

    def failure(self, function: DriverFunction, code: Any) -> Refused:
        """The error of an action that gave `code`."""
        return self.call.failure(function, code)

    # ---- devices

    def version(self) -> str:
        """The version of the driver, with the vendor's name for it."""

    def count(self) -> int:
        """Devices that this process may use."""
        return int(self.call(self.api.DeviceGetCount))

    def facts(self, ordinal: int) -> DeviceFacts: ...

    def ticks(self, ordinal: int) -> float:
        """Ticks in a microsecond of the clock by which kernels mark times."""

    def features(self, arch: str) -> Features:
        """The features of the driver for runs on devices of an architecture."""

    def can_access(self, a: int, b: int) -> bool:
        """Whether device a may read and write b's memory directly."""

    def linked(self, a: int, b: int) -> bool:
        """Whether a link of GPUs (NVLink, xGMI) connects them, and not only the host's bus."""

    def uuid(self, ordinal: int) -> str:
        """The identifier by which all processes know the device; for a part of a GPU (MIG) that of the part."""

    def exclusive(self, ordinal: int) -> str:
        """The command that allows several processes to use the device; empty if they already may."""

    def chosen(self) -> int | None:
        """The device whose context the calling thread has made current; None: it has made none."""

    def sharing(self) -> Sharing:
        """Memory that several processes use. DeviceError: the vendor's bindings have no such calls."""

    def retain(self, ordinal: int) -> Handle:
        """The device's context, shared with the process's other libraries."""

    def release(self, ordinal: int) -> None:
        """One call: with another before it, that one's failure would keep the context."""

    def enable_access(self, ordinal: int, context: Handle) -> None:
        """Let the current device use the memory of `ordinal`, whose context it is; enabled already is fine."""

    def prepare(self, devices: Mapping[int, Gpu], ones: Mapping[int, int]) -> None:
        """All devices are there and connected: see what the vendor counts on. `ones`: a word of each device's memory
        that holds 1."""

    def copy_ordinarily(self, here: Gpu, there: str) -> None:
        """Copies between these devices do not arrive: from now on they go another way, if there is one."""
        raise DeviceError(f"copies between {here} and {there} do not arrive")

    def current(self) -> Handle:
        """The current context, which `enter` takes."""

    def enter(self, context: Handle) -> None:
        """Make a context current."""
        function, arguments = self.enter_action(context)
        self.call(function, *arguments)

    def enter_action(self, context: Handle) -> DriverCall: ...

    def context_of(self, action: DriverCall) -> Current:
        """Which context has to be current when it is made."""

    def collectives(self) -> CollectiveLibrary:
        """The library of collectives. DeviceError, with the way out: its package or the library is missing."""

    # ---- memory of the current device

    def free_memory(self) -> int:
        free, _ = self.call(self.api.MemGetInfo)
        return int(free)

    def alloc(self, size: int, what: str) -> int:
        return int(self.call(self.api.MemAlloc, size, what=what))

    def alloc_flags(self, size: int, what: str) -> int:
        """Memory whose words other devices write while kernels look at them."""

    def free(self, address: int) -> None:
        self.call(self.api.MemFree, address)

    def owner(self, address: int, what: str) -> int:
        """The device of an allocation."""

    def allocation(self, address: int) -> int:
        """The number of the allocation or mapping at an address, which no other one ever has; 0: there is none.
        NOTE runs ask for it."""

    def range_of(self, address: int, what: str) -> tuple[int, int]:
        """Where the allocation or mapping that holds an address begins, and its bytes."""

    def allocations(self, address: int, size: int, what: str) -> Numbers:
        """The numbers of all allocations and mappings that hold these bytes."""
        found, at = [], address
        while at < address + size:
            found.append((at, self.allocation(at)))
            at = sum(self.range_of(at, what))
        return tuple(found)

    def may_use(self, ordinal: int, address: int, what: str) -> bool | None:
        """Whether a device may read and write memory that is mapped to an address; None: none is."""

    def allow(self, address: int, size: int, ordinals: Sequence[int], what: str) -> None:
        """Lets devices read and write a mapped range."""

    def share(self, address: int, size: int, others: Sequence[int], what: str) -> bool:
        """Let other devices touch a caller's memory to which `enable_access` does not lead: mapped ranges of addresses
        (PyTorch's expandable segments) and, where the vendor tells, pools. True: they lose that when it is mapped anew,
        so that this is to be called again before the memory is used again."""
        at = address
        while others and at < address + size:
            able = {other: self.may_use(other, at, what) for other in others}
            if None in able.values():
                return False
            base, length = self.range_of(at, what)
            missing = [other for other, may in able.items() if not may]
            if missing:
                self.allow(base, length, missing, what)
            at = base + length
        return bool(others)

    def fill(self, address: int, byte: int, size: int, stream: Handle) -> None:
        self.call(self.api.MemsetD8Async, address, byte, size, stream)

    def to_device(self, address: int, source: int, size: int, stream: Handle) -> None:
        self.call(self.api.MemcpyHtoDAsync, address, source, size, stream)

    def to_host(self, target: int, address: int, size: int) -> None:
        """Copies to the host; complete on return."""
        self.call(self.api.MemcpyDtoH, target, address, size)

    def peek(self, address: int, stream: Handle) -> int:
        """The current value of a word, readable even while other streams and kernels wait; `stream` must be idle."""
        found = np.zeros(1, np.uint32)
        self.call(self.api.MemcpyDtoHAsync, found.ctypes.data, address, 4, stream)
        self.call(self.api.StreamSynchronize, stream)
        return int(found[0])

    # ---- streams and events of the current device

    def priorities(self) -> tuple[int, int]:
        """Least and greatest. NOTE a greater priority is a smaller number."""
        least, greatest = self.call(self.api.CtxGetStreamPriorityRange)
        return int(least), int(greatest)

    def stream(self, handle: int) -> Handle:
        """A caller's stream, as the calls take it at the least cost."""
        return handle

    def is_usual(self, stream: Handle, context: Handle) -> bool:
        """Whether a caller's stream is as one that the context makes without a priority."""
        return True

    def new_stream(self, priority: int) -> Handle:
        return self.call(self.api.StreamCreateWithPriority, _NON_BLOCKING, priority)

    def destroy_stream(self, stream: Handle) -> None:
        self.call(self.api.StreamDestroy, stream)

    def idle(self, stream: Handle) -> bool:
        """Whether all on it is done. DeviceError: what ran on the device failed."""
        return self.call.succeeds(self.api.StreamQuery, stream, unless=self.not_ready)

    def new_event(self, timing: bool) -> Handle:
        return self.call(self.api.EventCreate, 0 if timing else _NO_TIMING)

    def destroy_event(self, event: Handle) -> None:
        self.call(self.api.EventDestroy, event)

    def record(self, event: Handle, stream: Handle, what: str = "") -> None:
        self.call(self.api.EventRecord, event, stream, what=what)

    def wait(self, stream: Handle, event: Handle) -> None:
        self.call(self.api.StreamWaitEvent, stream, event, 0)

    def ended(self, event: Handle) -> bool:
        """DeviceError: what ran before it failed."""
        return self.call.succeeds(self.api.EventQuery, event, unless=self.not_ready)

    def milliseconds(self, start: Handle, stop: Handle) -> float:
        return float(self.call(self.api.EventElapsedTime, start, stop))

    def force(self, address: int, stream: Handle) -> None:
        """Writes a 1 there, even while kernels hold all multiprocessors."""
        function, arguments = self.signal_action(address, stream)
        self.call(function, *arguments)

    # ---- graphs

    def uncaptured(self) -> AbstractContextManager[None]:
        """Inside, calls that may not be captured neither fail nor spoil a capture that is under way, of any stream that
        they do not touch."""

    def capturing(self, streams: Sequence[Handle]) -> bool:
        """Whether any of the callers' streams is being captured."""

    def capture_of(self, stream: Handle) -> int | None:
        """Which capture a stream takes part in; None: none, as of default streams. DeviceError: a call before has
        spoiled the capture."""

    def begin_capture(self, stream: Handle) -> None: ...

    def end_capture(self, stream: Handle) -> Handle:
        return self.call(self.api.StreamEndCapture, stream)

    def drop_capture(self, stream: Handle) -> None:
        """End a capture whose calls failed. Unchecked."""
        code, graph = self.api.StreamEndCapture(stream)
        if not code and graph:
            self.api.GraphDestroy(graph)

    def instantiate(self, captured: Handle) -> Handle:
        """Kernel nodes keep their priorities."""
        return self.call(self.api.GraphInstantiate, captured, _NODE_PRIORITIES)

    def upload(self, graph: Handle, stream: Handle) -> None:
        """What a graph's first launch would do for it on its device."""
        self.call(self.api.GraphUpload, graph, stream)

    def destroy_captured(self, captured: Handle) -> None:
        self.call(self.api.GraphDestroy, captured)

    def destroy_graph(self, graph: Handle) -> None:
        self.call(self.api.GraphExecDestroy, graph)

    def kernels_of(self, captured: Handle) -> Sequence[tuple[Handle, Footprint]]:
        """The functions of a captured graph's kernels, which are loaded then, and what their blocks take."""

    # ---- kernels

    def compile(self, source: KernelSource, options: Sequence[str]) -> bytes:
        """Machine code. InternalError with the compiler's log if it refuses the source."""

    def image(self, suffix: str, code: bytes) -> bytes | None:
        """A user's compiled file as `load` takes it; None if it is none of this vendor's."""

    def load(self, code: bytes, what: str) -> Handle:
        return self.call(self.api.ModuleLoadData, code, what=what)

    def unload(self, module: Handle) -> None:
        self.call(self.api.ModuleUnload, module)

    def function(self, module: Handle, entry: str, what: str) -> Handle:
        return self.call(self.api.ModuleGetFunction, module, entry.encode(), what=what)

    def allow_smem(self, function: Handle, size: int, what: str) -> None:
        """Allows blocks to request this much dynamic shared memory."""

    def share_smem(self, function: Handle, what: str) -> None:
        """While a block of the kernel is on a multiprocessor, blocks of other kernels can have all of the shared memory
        that it leaves. Otherwise the driver may set it up for this kernel alone."""

    def blocks_per_sm(self, function: Handle, threads: int, smem: int, what: str) -> int:
        return int(self.call(self.api.OccupancyMaxActiveBlocksPerMultiprocessor, function, threads, smem, what=what))

    def tensor_map(self, wanted: TensorMap) -> bytes:
        """A tensor map as kernels take it; only kernels of the vendor's own devices ask for any."""

    def gemms(self) -> BlasLt:
        """The vendor's library of GEMMs. DeviceError: it, or its bindings, are not installed."""

    def has_gemms(self) -> bool:
        """Whether the library of GEMMs is there."""
        try:
            self.gemms()
        except DeviceError:
            return False
        return True

    # ---- actions

    def copy(self, run: LinearCopy, stream: Handle) -> DriverCall: ...

    def copy_rows(self, rows: PitchedCopy, stream: Handle) -> DriverCall: ...

    def copy_batch(self, runs: Sequence[LinearCopy], stream: Handle) -> DriverCall:
        """All of them in one call, with no order among them, where the features have such. It need not be fit for
        capture."""

    def zero_action(self, address: int, semaphores: int, stream: Handle) -> DriverCall:
        """32-bit words."""
        return self.api.MemsetD32Async, (address, 0, semaphores, stream)

    def record_action(self, event: Handle, stream: Handle) -> DriverCall:
        return self.api.EventRecord, (event, stream)

    def wait_action(self, stream: Handle, event: Handle) -> DriverCall:
        return self.api.StreamWaitEvent, (stream, event, 0)

    def signal_action(self, address: int, stream: Handle) -> DriverCall:
        """Raises a word."""

    def mem_op_actions(self, semaphores: Sequence[MemOp], stream: Handle) -> Sequence[DriverCall]:
        """A stream signals these semaphores of any device, or waits for them, in order, in as few calls as possible.
        Semaphores are acquired only where `Features.batched_mem_ops` says that this needs no multiprocessor."""

    def graph_action(self, graph: Handle, stream: Handle) -> DriverCall:
        """A launch of an instantiated graph."""
        return self.api.GraphLaunch, (graph, stream)

    def embed(self, captured: Handle, stream: Handle) -> DriverCall:
        """A captured graph as a part of the graph that a caller captures on the stream, where the features have it."""

    def record_outside(self, event: Handle, stream: Handle) -> DriverCall:
        """Captured: whoever waits for the event outside of the graph waits for its last replay."""

    def launch_action(self, function: Handle, grid: Grid, arguments: Sequence[bytes], stream: Handle) -> DriverCall: ...
