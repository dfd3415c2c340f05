"""NVIDIA GPUs through cuda.bindings: the calls of the CUDA driver API that the GPU driver needs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from threading import Lock
from typing import Any

from ... import env
from ...device.features import CONNECTIONS, usual
from ...device.ir import Features
from ...device.run_plan import Current
from ...errors import UsageError
from ...kernels.block_fit import Footprint
from ...kernels.family import TensorMap
from ...kernels.kernel_compiler import KernelSource, compile_source
from ...machine.discover import DeviceFacts
from ..gpu import vendor as gpu
from ..gpu.checked import Api, DriverFunction
from ..gpu.refused import Refused, concerning, undo_on_error
from .call import api, call
from .gemm_library import CublasLt
from .nccl import Nccl
from .sharing import CudaSharing
from .tensor_map import encode

_BATCHES = 13000  # the driver's version from which on it has `cuMemcpyBatchAsync` as the bindings call it
_LEGACY = 1
_CAPTURES = 64  # whose nodes are remembered: more than are under way at once
_DEFAULT_STREAMS = 2  # handles up to here: none, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD
_ASKING = Lock()  # the environment is the whole process's


class Cuda(gpu.Vendor):
    """A `Vendor`; see there for what each method is for. DeviceError: the bindings, the driver or a GPU is missing."""

    name = "cuda"
    visible = "CUDA_VISIBLE_DEVICES"
    topology = "nvidia-smi topo -p2p w"
    sources = (".cu", ".cuh", ".c", ".cpp")
    not_ready = "CUDA_ERROR_NOT_READY"

    def __init__(self) -> None:
        self.cu: Any
        with _ASKING:
            self.cu, self._queues = _opened()
        self.api, self.call = Api(self.cu, "cu"), call
        self._streams = _streams_of(self.cu)
        self._retained: dict[int, Any] = {}  # devices by ordinal
        self._primary: dict[int, int] = {}  # their contexts
        self._buffer_id = int(self.cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_BUFFER_ID)
        self._until = int(self.cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
        self._outside: dict[int, dict[int, gpu.Handle]] = {}  # nodes of `record_outside`, by capture and event
        self._batches = int(call(self.cu.cuDriverGetVersion)) >= _BATCHES

    # ---- devices

    def version(self) -> str:
        number = int(call(self.cu.cuDriverGetVersion))
        return f"CUDA {number // 1000}.{number % 1000 // 10}"

    def facts(self, ordinal: int) -> DeviceFacts:
        cu = self.cu
        device = call(cu.cuDeviceGet, ordinal)
        name = call(cu.cuDeviceGetName, 256, device)

        def attribute(short: str) -> int:
            code = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{short}")
            return int(call(cu.cuDeviceGetAttribute, code, device))

        return DeviceFacts(
            name=name.split(b"\0")[0].decode(),
            arch=_arch(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
            sms=attribute("MULTIPROCESSOR_COUNT"),
            smem_per_sm=attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
            smem_per_block=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            smem_reserved=attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
            max_residency=attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
            warp=attribute("WARP_SIZE"),
            max_warps=attribute("MAX_THREADS_PER_MULTIPROCESSOR") // attribute("WARP_SIZE"),
            memory=int(call(cu.cuDeviceTotalMem, device)),
            clock_khz=attribute("CLOCK_RATE"),
            memory_clock_khz=attribute("MEMORY_CLOCK_RATE"),
            bus_bits=attribute("GLOBAL_MEMORY_BUS_WIDTH"),
        )

    def ticks(self, ordinal: int) -> float:
        return 1e3  # globaltimer counts nanoseconds

    def features(self, arch: str) -> Features:
        return replace(usual(arch), queues=self._queues, copy_batches=self._batches)

    def can_access(self, a: int, b: int) -> bool:
        cu = self.cu
        return bool(call(cu.cuDeviceCanAccessPeer, call(cu.cuDeviceGet, a), call(cu.cuDeviceGet, b)))

    def linked(self, a: int, b: int) -> bool:
        """Detected by atomics on each other's memory, which the bus does not support."""
        cu = self.cu
        atomics = cu.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
        return bool(call(cu.cuDeviceGetP2PAttribute, atomics, call(cu.cuDeviceGet, a), call(cu.cuDeviceGet, b)))

    def uuid(self, ordinal: int) -> str:
        found = call(self.cu.cuDeviceGetUuid, call(self.cu.cuDeviceGet, ordinal))
        return ctypes.string_at(found.getPtr(), 16).hex()

    def exclusive(self, ordinal: int) -> str:
        cu = self.cu
        device = call(cu.cuDeviceGet, ordinal)
        mode = int(call(cu.cuDeviceGetAttribute, cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device))
        return "nvidia-smi -c DEFAULT" if mode != int(cu.CUcomputemode.CU_COMPUTEMODE_DEFAULT) else ""

    def chosen(self) -> int | None:
        if not int(self.current()):
            return None
        return int(call(self.cu.cuCtxGetDevice))

    def sharing(self) -> CudaSharing:
        return CudaSharing(self._pointer, self.allow)

    def retain(self, ordinal: int) -> gpu.Handle:
        cu = self.cu
        self._retained[ordinal] = call(cu.cuDeviceGet, ordinal)
        context = call(cu.cuDevicePrimaryCtxRetain, self._retained[ordinal])
        self._primary[ordinal] = int(context)
        return context

    def release(self, ordinal: int) -> None:
        call(self.cu.cuDevicePrimaryCtxRelease, self._retained[ordinal])

    def enable_access(self, ordinal: int, context: gpu.Handle) -> None:
        enabled = "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"
        call.succeeds(self.cu.cuCtxEnablePeerAccess, context, 0, unless=enabled, what=f"to device {ordinal}")

    def prepare(self, devices: Mapping[int, gpu.Gpu], ones: Mapping[int, int]) -> None:
        """A wait for a semaphore ends with a flush of remote writes, on devices that can: then what others wrote before
        they signalled it is visible."""
        can = self.cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES
        flags = self.cu.CUstreamWaitValue_flags
        flush = True
        for device in devices.values():
            with concerning(device):
                flush = bool(call(self.cu.cuDeviceGetAttribute, can, call(self.cu.cuDeviceGet, device.local))) and flush
        self._until = int(flags.CU_STREAM_WAIT_VALUE_GEQ)
        if flush:
            self._until |= int(flags.CU_STREAM_WAIT_VALUE_FLUSH)

    def collectives(self) -> Nccl:
        return Nccl()

    def current(self) -> gpu.Handle:
        code, context = self.cu.cuCtxGetCurrent()  # NOTE runs on default streams ask
        if code:
            raise call.failure(self.cu.cuCtxGetCurrent, code)
        return context

    def enter_action(self, context: gpu.Handle) -> gpu.DriverCall:
        return self.cu.cuCtxSetCurrent, (context,)

    def context_of(self, action: gpu.DriverCall) -> Current:
        """Calls go where their stream belongs (`tools.driver_facts` measures it); a batch fails where no context is
        current. NOTE default streams belong nowhere: each is the current context's."""
        function, arguments = action
        stream = self._streams.get(function)
        if stream is None or int(stream(arguments)) <= _DEFAULT_STREAMS:
            return "its own"
        return "some" if function is self.cu.cuMemcpyBatchAsync else "none"

    def is_usual(self, stream: gpu.Handle, context: gpu.Handle) -> bool:
        """NOTE a stream of a green context, which has a part of the multiprocessors, says that it has another one."""
        if int(stream) <= _DEFAULT_STREAMS:
            return True
        (code, priority), (unknown, its) = self.cu.cuStreamGetPriority(stream), self.cu.cuStreamGetCtx(stream)
        return not (code or unknown or priority) and int(its) == int(context)

    # ---- memory

    def alloc_flags(self, size: int, what: str) -> int:
        return self.alloc(size, what)

    def owner(self, address: int, what: str) -> int:
        # NOTE versions of cuda-bindings answer 0 for every address (NVIDIA/cuda-python issue 2928): ask the library
        return ctypes.c_int(self._pointer("DEVICE_ORDINAL", address, what)).value

    def _pointer(self, short: str, address: int, what: str) -> int:
        """A pointer's attribute."""
        attribute = getattr(self.cu.CUpointer_attribute, f"CU_POINTER_ATTRIBUTE_{short}")
        found = ctypes.c_uint64()
        code = self._attribute(ctypes.byref(found), int(attribute), ctypes.c_uint64(address))
        if code:
            raise call.failure(self.cu.cuPointerGetAttribute, self.cu.CUresult(code), what)
        return found.value

    def range_of(self, address: int, what: str) -> tuple[int, int]:
        """NOTE of mappings alone."""
        return self._pointer("MAPPING_BASE_ADDR", address, what), self._pointer("MAPPING_SIZE", address, what)

    @cached_property
    def _attribute(self) -> Any:
        return ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute  # loaded already

    def allocation(self, address: int) -> int:
        """NOTE a mapping has another one each time, also of the same memory at the same address."""
        found = ctypes.c_uint64()
        code = self._attribute(ctypes.byref(found), self._buffer_id, ctypes.c_uint64(address))
        return 0 if code else found.value

    def allocations(self, address: int, size: int, what: str) -> gpu.Numbers:
        if not any(self._pointer(short, address, what) for short in ("IS_LEGACY_CUDA_IPC_CAPABLE", "MEMPOOL_HANDLE")):
            with suppress(Refused):  # it is no mapping
                return super().allocations(address, size, what)
        return ((address, self.allocation(address)),)

    def share(self, address: int, size: int, others: Sequence[int], what: str) -> bool:
        """NOTE cuMemAlloc's memory is known by this: it alone could go to other processes by cuIpcGetMemHandle."""
        cu = self.cu
        if not others:
            return False
        if self._pointer("IS_LEGACY_CUDA_IPC_CAPABLE", address, what):
            if self._pointer("CONTEXT", address, what) != self._primary[self.owner(address, what)]:
                raise UsageError(
                    f"{what}: its memory belongs to a context that is not the primary one of its GPU, and other GPUs "
                    "cannot use it; allocate it in the primary context (cuDevicePrimaryCtxRetain), as PyTorch, CuPy "
                    "and the CUDA runtime do"
                )
            return False
        pool = self._pointer("MEMPOOL_HANDLE", address, what)
        if pool:
            access = [self._access(other) for other in others]
            call(cu.cuMemPoolSetAccess, cu.CUmemoryPool(pool), access, len(access), what=what)
            return False
        return super().share(address, size, others, what)

    def may_use(self, ordinal: int, address: int, what: str) -> bool | None:
        get, access = self.cu.cuMemGetAccess, self._access(ordinal)
        code, flags = get(access.location, address)
        if code == self.cu.CUresult.CUDA_ERROR_INVALID_VALUE:
            return None
        if code:
            raise call.failure(get, code, what)
        return int(flags) == int(self.cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)

    def allow(self, address: int, size: int, ordinals: Sequence[int], what: str) -> None:
        access = [self._access(ordinal) for ordinal in ordinals]
        call(self.cu.cuMemSetAccess, address, size, access, len(access), what=what)

    def _access(self, ordinal: int) -> Any:
        made = self.cu.CUmemAccessDesc()
        made.location.type = self.cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        made.location.id = ordinal
        made.flags = self.cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        return made

    # ---- streams and events

    def stream(self, handle: int) -> gpu.Handle:
        return self.cu.CUstream(handle)  # NOTE calls make such a one of each int, and take longer for that

    # ---- graphs

    @contextmanager
    def uncaptured(self) -> Iterator[None]:
        exchange = self.cu.cuThreadExchangeStreamCaptureMode
        before = call(exchange, self.cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        with undo_on_error(call, exchange, before):
            yield
        call(exchange, before)

    def capturing(self, streams: Sequence[gpu.Handle]) -> bool:
        """NOTE each run comes here: the legacy default stream, PyTorch's usual one, cannot be captured. Of the thread's
        own one the call may fail, as it is the current context's."""
        ask = self.cu.cuStreamIsCapturing
        for stream in streams:
            if int(stream) <= _LEGACY:
                continue
            code, status = ask(stream)
            if code and int(stream) > _DEFAULT_STREAMS:
                raise call.failure(ask, code, "of a caller's stream")
            if status and not code:
                return True
        return False

    def capture_of(self, stream: gpu.Handle) -> int | None:
        if int(stream) <= _DEFAULT_STREAMS:
            return None
        statuses = self.cu.CUstreamCaptureStatus
        status, number, *_ = call(self.cu.cuStreamGetCaptureInfo, stream)
        if status == statuses.CU_STREAM_CAPTURE_STATUS_INVALIDATED:
            raise Refused(
                "cuStreamGetCaptureInfo", status.name, "", "a call before has spoiled the capture; begin anew"
            )
        return None if status == statuses.CU_STREAM_CAPTURE_STATUS_NONE else int(number)

    def begin_capture(self, stream: gpu.Handle) -> None:
        mode = self.cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call(self.cu.cuStreamBeginCapture, stream, mode)

    def kernels_of(self, captured: gpu.Handle) -> Sequence[tuple[gpu.Handle, Footprint]]:
        """NOTE a kernel of a library that loads lazily is known by its CUkernel, not by a function."""
        cu = self.cu
        of, kernel = cu.CUfunction_attribute, cu.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
        _, count = call(cu.cuGraphGetNodes, captured)
        nodes, _ = call(cu.cuGraphGetNodes, captured, count)
        found = []
        for node in nodes[:count]:
            if call(cu.cuGraphNodeGetType, node) != kernel:
                continue
            made = call(cu.cuGraphKernelNodeGetParams, node)
            # what `made` gives lies in its own memory
            function = cu.CUfunction(int(made.func)) if int(made.func) else call(cu.cuKernelGetFunction, made.kern)
            call(cu.cuFuncLoad, function)
            registers = int(call(cu.cuFuncGetAttribute, of.CU_FUNC_ATTRIBUTE_NUM_REGS, function))
            static = int(call(cu.cuFuncGetAttribute, of.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function))
            threads = int(made.blockDimX) * int(made.blockDimY) * int(made.blockDimZ)
            found.append((function, Footprint("", threads, registers, static, int(made.sharedMemBytes))))
        return found

    # ---- kernels

    def compile(self, source: KernelSource, options: Sequence[str]) -> bytes:
        return compile_source(source, options).code

    def image(self, suffix: str, code: bytes) -> bytes | None:
        if suffix == ".ptx":
            return code + b"\0"
        return code if suffix in (".cubin", ".fatbin") else None

    def allow_smem(self, function: gpu.Handle, size: int, what: str) -> None:
        attribute = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(self.cu.cuFuncSetAttribute, function, attribute, size, what=what)

    def share_smem(self, function: gpu.Handle, what: str) -> None:
        # NOTE the split between shared memory and L1 follows the kernel that comes first, and stays until it has ended:
        # measured, a block of 113 KiB kept out one of 103 KiB
        attribute = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        call(self.cu.cuFuncSetAttribute, function, attribute, 100, what=what)

    def gemms(self) -> CublasLt:
        return CublasLt()

    def tensor_map(self, wanted: TensorMap) -> bytes:
        return encode(wanted)

    # ---- actions

    def copy(self, run: gpu.LinearCopy, stream: gpu.Handle) -> gpu.DriverCall:
        return self.cu.cuMemcpyDtoDAsync, (run.dst, run.src, run.size, stream)

    def copy_rows(self, rows: gpu.PitchedCopy, stream: gpu.Handle) -> gpu.DriverCall:
        box = self.cu.CUDA_MEMCPY2D()
        box.srcMemoryType = box.dstMemoryType = self.cu.CUmemorytype.CU_MEMORYTYPE_UNIFIED
        box.dstDevice, box.srcDevice = rows.dst, rows.src
        box.dstPitch, box.srcPitch = rows.dst_pitch, rows.src_pitch
        box.WidthInBytes, box.Height = rows.width, rows.rows
        return self.cu.cuMemcpy2DAsync, (box, stream)

    def copy_batch(self, runs: Sequence[gpu.LinearCopy], stream: gpu.Handle) -> gpu.DriverCall:
        """NOTE it cannot be captured into a graph: the copies would be missing from it."""
        cu = self.cu
        attributes = cu.CUmemcpyAttributes()
        attributes.srcAccessOrder = cu.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
        attributes.flags = int(cu.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)
        to, of = [cu.CUdeviceptr(r.dst) for r in runs], [cu.CUdeviceptr(r.src) for r in runs]
        sizes = [r.size for r in runs]
        return cu.cuMemcpyBatchAsync, (to, of, sizes, len(runs), [attributes], [0], 1, stream)

    def signal_action(self, address: int, stream: gpu.Handle) -> gpu.DriverCall:
        return self.cu.cuStreamWriteValue32, (stream, address, 1, 0)

    def wait_flag_action(self, address: int, stream: gpu.Handle) -> gpu.DriverCall:
        return self.cu.cuStreamWaitValue32, (stream, address, 1, self._until)

    def mem_op_actions(self, semaphores: Sequence[gpu.MemOp], stream: gpu.Handle) -> Sequence[gpu.DriverCall]:
        if len(semaphores) == 1 and not semaphores[0].acquires:
            (semaphore,) = semaphores
            return [(self.signal_action if semaphore.signals else self.wait_flag_action)(semaphore.address, stream)]
        # an acquired semaphore is reset behind the wait
        values = [
            (semaphore.address, value)
            for semaphore in semaphores
            for value in (1 if semaphore.signals else None, *[0] * semaphore.acquires)
        ]
        parts = [self._operation(address, value) for address, value in values]
        return [(self.cu.cuStreamBatchMemOp, (stream, len(parts), parts, 0))]

    def _operation(self, address: int, written: int | None) -> Any:
        """A part of a batch: what is written to a semaphore; None: a wait until it is set."""
        kinds = self.cu.CUstreamBatchMemOpType
        made = self.cu.CUstreamBatchMemOpParams()
        if written is not None:
            made.operation = kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32
            value = made.writeValue
            value.flags = 0
        else:
            made.operation = kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32
            value = made.waitValue
            value.flags = self._until
        value.operation = made.operation
        value.address = self.cu.CUdeviceptr(address)
        value.value = self.cu.cuuint32_t(1 if written is None else written)
        return made

    def embed(self, captured: gpu.Handle, stream: gpu.Handle) -> gpu.DriverCall:
        cu = self.cu

        def cuGraphAddChildGraphNode(captured: gpu.Handle, stream: gpu.Handle) -> tuple[Any, ...]:
            code, *found = cu.cuStreamGetCaptureInfo(stream)
            if code:
                return (code,)
            _, _, graph, before, _, count = found
            code, *node = cu.cuGraphAddChildGraphNode(graph, before, count, captured)
            if code:
                return (code,)
            flags = cu.CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
            result: tuple[Any, ...] = cu.cuStreamUpdateCaptureDependencies(stream, node, None, 1, int(flags))
            return result

        return cuGraphAddChildGraphNode, (captured, stream)

    def record_outside(self, event: gpu.Handle, stream: gpu.Handle) -> gpu.DriverCall:
        """One node of a graph, behind all records of the event there. NOTE nothing comes behind it: a record between
        two kernels of a graph takes 5 µs on an H200, one beside them 0.1 µs."""
        cu = self.cu

        def cuGraphAddEventRecordNode(event: gpu.Handle, stream: gpu.Handle) -> tuple[Any, ...]:
            code, *found = cu.cuStreamGetCaptureInfo(stream)
            if code:
                return (code,)
            _, capture, graph, before, _, count = found
            nodes = self._outside.setdefault(int(capture), {})
            if int(event) in nodes:
                behind = [nodes[int(event)]] * count
                result: tuple[Any, ...] = cu.cuGraphAddDependencies(graph, before, behind, None, count)
                return result
            code, *node = cu.cuGraphAddEventRecordNode(graph, before, count, event)
            if not code:
                nodes[int(event)] = node[0]
                while len(self._outside) > _CAPTURES:
                    del self._outside[next(iter(self._outside))]
            return (code,)

        return cuGraphAddEventRecordNode, (event, stream)

    def launch_action(
        self, function: gpu.Handle, grid: gpu.Grid, arguments: Sequence[bytes], stream: gpu.Handle
    ) -> gpu.DriverCall:
        """The arguments are packed: the call reads them from memory that the action keeps."""
        cu = self.cu
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid.blocks, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = (*grid.threads, 1, 1)[:3]
        config.sharedMemBytes = grid.smem
        config.hStream = stream
        wanted = []

        def want(kind: str) -> Any:
            wanted.append(cu.CUlaunchAttribute())
            wanted[-1].id = getattr(cu.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{kind}")
            return wanted[-1]

        if grid.priority is not None:
            want("PRIORITY").value.priority = grid.priority
        if grid.cluster > 1:
            value = cu.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = grid.cluster, 1, 1
            want("CLUSTER_DIMENSION").value = value
        if grid.chained:
            want("PROGRAMMATIC_STREAM_SERIALIZATION").value.programmaticStreamSerializationAllowed = 1
        if wanted:
            config.attrs, config.numAttrs = wanted, len(wanted)
        values = [ctypes.create_string_buffer(a, len(a)) for a in arguments]
        pointers = (ctypes.c_void_p * max(1, len(values)))(*(ctypes.addressof(v) for v in values))
        return cu.cuLaunchKernelEx, (config, function, gpu.Address(pointers, values), 0)


def _opened() -> tuple[Any, int]:
    """The bindings, and how many hardware queues a device has. Contexts that are made from here on get as many as there
    can be, unless the user has said how many.

    NOTE no call tells what a context has read. If one is there already, it was made while nothing was set: it has the
    default number, and what is set now would only mislead who reads it later."""
    asked = env.ask(CONNECTIONS.name, str(CONNECTIONS.asked))
    with undo_on_error(env.withdraw, CONNECTIONS.name) if asked else nullcontext():
        cu = api()
        if asked and any(_has_context(cu, ordinal) for ordinal in range(int(call(cu.cuDeviceGetCount)))):
            env.withdraw(CONNECTIONS.name)
    return cu, CONNECTIONS.number(env.others(CONNECTIONS.name))


def _streams_of(cu: Any) -> dict[DriverFunction, Callable[[tuple[Any, ...]], gpu.Handle]]:
    """Of the calls that take their context from their stream: which of the arguments that is."""
    places = {
        cu.cuEventRecord: 1, cu.cuStreamWaitEvent: 0, cu.cuGraphLaunch: 1, cu.cuMemcpyDtoDAsync: 3,
        cu.cuMemcpy2DAsync: 1, cu.cuMemcpyBatchAsync: 7, cu.cuMemsetD32Async: 3, cu.cuStreamWriteValue32: 0,
        cu.cuStreamWaitValue32: 0, cu.cuStreamBatchMemOp: 0,
    }  # fmt: skip
    return {
        **{function: itemgetter(place) for function, place in places.items()},
        cu.cuLaunchKernelEx: lambda arguments: arguments[0].hStream,
    }


def _has_context(cu: Any, ordinal: int) -> bool:
    """Whether the device's context is there: some library of the process has made it."""
    _, active = call(cu.cuDevicePrimaryCtxGetState, call(cu.cuDeviceGet, ordinal))
    return bool(active)


def _arch(major: int, minor: int) -> str:
    """As the compiler writes it; Hopper's and later own instructions need the `a`."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"
