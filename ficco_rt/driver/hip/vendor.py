"""AMD GPUs through hip-python: the calls of the HIP runtime that the GPU driver needs.

Copies between devices use the copy kind that needs no compute units. On some ROCm versions such copies leave their
target unwritten without an error. So at the start some bytes are sent between all pairs of devices (`copy_trial`), and
if they do not arrive, the ordinary kind is used.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ... import env
from ...device.features import HSA_QUEUES, usual
from ...device.ir import Features
from ...device.run_plan import Current
from ...errors import InternalError
from ...kernels.block_fit import Footprint
from ...kernels.family import TensorMap
from ...kernels.kernel_compiler import HIPRTC, KernelSource, compile_source
from ...machine.discover import DeviceFacts
from ..gpu import vendor as gpu
from ..gpu.checked import Api
from ..gpu.refused import Refused
from .call import api, call, filled
from .gemm_library import HipblasLt
from .rccl import Rccl
from .sharing import HipSharing, number_of

LOG = logging.getLogger(__name__)

_XGMI = 4  # HSA_AMD_LINK_INFO_TYPE_XGMI
_ANY = 0xFFFFFFFF  # mask of a wait: all bits count
_MAX_BLOCKS = 16  # of several waves, on a compute unit: it has so many barriers
# Of HIP's functions, by the names of CUDA's, which do the same
_NAMES = {
    "CtxGetStreamPriorityRange": "DeviceGetStreamPriorityRange",
    "DeviceGetCount": "GetDeviceCount",
    "EventCreate": "EventCreateWithFlags",
    "GraphInstantiate": "GraphInstantiateWithFlags",
    "MemAlloc": "Malloc",
    "MemFree": "Free",
    "MemsetD8Async": "MemsetAsync",
    "OccupancyMaxActiveBlocksPerMultiprocessor": "ModuleOccupancyMaxActiveBlocksPerMultiprocessor",
}
# The marks of packed launch arguments. NOTE the end is 3 here, and 0 on CUDA.
_BUFFER, _SIZE, _END = 1, 2, 3


class Hip(gpu.Vendor):
    """A `Vendor`; see there for what each method is for. DeviceError: the bindings, the runtime or a GPU is missing.

    HIP has a current device in the place of contexts: a context is an ordinal.
    """

    name = "hip"
    visible = "HIP_VISIBLE_DEVICES"
    topology = "rocm-smi --showtopoaccess"
    lent = 4096
    sources = (".hip", ".cu", ".cpp", ".c")
    not_ready = "hipErrorNotReady"
    no_copy = "hipErrorInvalidValue"

    def __init__(self) -> None:
        env.ask(HSA_QUEUES.name, str(HSA_QUEUES.asked))
        self._queues = HSA_QUEUES.number(env.others(HSA_QUEUES.name))
        self.hip: Any = api()
        self.api, self.call = Api(self.hip, "hip", _NAMES), call
        kinds = self.hip.hipMemcpyKind
        self._plain, self._between = kinds.hipMemcpyDeviceToDevice, kinds.hipMemcpyDeviceToDeviceNoCU
        self._ones: Mapping[int, int] = {}  # see `Gpus.ones`; by the runtime's ordinals
        self._theirs: dict[int, int] = {}  # memory of other processes: address → bytes

    # ---- devices

    def version(self) -> str:
        number = int(call(self.hip.hipRuntimeGetVersion))
        return f"HIP {number // 10**7}.{number // 10**5 % 100}.{number % 10**5}"

    def facts(self, ordinal: int) -> DeviceFacts:
        hip = self.hip
        properties = filled(hip.hipGetDeviceProperties, hip.hipDeviceProp_t, ordinal)

        def attribute(short: str) -> int:
            code = getattr(hip.hipDeviceAttribute_t, f"hipDeviceAttribute{short}")
            return int(call(hip.hipDeviceGetAttribute, code, ordinal, what=short))

        wave = attribute("WarpSize")
        return DeviceFacts(
            name=_text(properties.name),
            arch=_text(properties.gcnArchName).split(":")[0],  # without its features: gfx942:sramecc+:xnack-
            sms=attribute("MultiprocessorCount"),
            smem_per_sm=attribute("MaxSharedMemoryPerMultiprocessor"),
            smem_per_block=attribute("MaxSharedMemoryPerBlock"),
            smem_reserved=0,
            max_residency=_MAX_BLOCKS,
            warp=wave,
            max_warps=attribute("MaxThreadsPerMultiProcessor") // wave,
            memory=int(call(hip.hipDeviceTotalMem, ordinal)),
            clock_khz=attribute("ClockRate"),
            memory_clock_khz=attribute("MemoryClockRate"),
            bus_bits=attribute("MemoryBusWidth"),
        )

    def ticks(self, ordinal: int) -> float:
        rate = self.hip.hipDeviceAttribute_t.hipDeviceAttributeWallClockRate  # kHz
        return int(call(self.hip.hipDeviceGetAttribute, rate, ordinal, what="WallClockRate")) / 1e3

    def features(self, arch: str) -> Features:
        """NOTE the runtime reads the number of queues at its first call, which may have been another library's; nothing
        tells. The number is what the variable says now."""
        return replace(usual(arch), queues=self._queues)

    def can_access(self, a: int, b: int) -> bool:
        return bool(call(self.hip.hipDeviceCanAccessPeer, a, b))

    def linked(self, a: int, b: int) -> bool:
        kind, _ = call(self.hip.hipExtGetLinkTypeAndHopCount, a, b)
        return int(kind) == _XGMI

    def uuid(self, ordinal: int) -> str:
        found = filled(self.hip.hipDeviceGetUuid, self.hip.hipUUID_t, ordinal)
        return bytes(found.bytes).hex()

    def exclusive(self, ordinal: int) -> str:
        """AMD's GPUs have no such mode."""
        return ""

    def chosen(self) -> int | None:
        """NOTE the first device is current where nobody has chosen one."""
        return int(self.current()) or None

    def sharing(self) -> HipSharing:
        return HipSharing(self._theirs, self.allow, self._own_range)

    def retain(self, ordinal: int) -> gpu.Handle:
        return ordinal

    def release(self, ordinal: int) -> None: ...

    def enable_access(self, ordinal: int, context: gpu.Handle) -> None:
        enabled = "hipErrorPeerAccessAlreadyEnabled"
        call.succeeds(self.hip.hipDeviceEnablePeerAccess, ordinal, 0, unless=enabled, what=f"to device {ordinal}")

    def prepare(self, devices: Mapping[int, gpu.Gpu], ones: Mapping[int, int]) -> None:
        self._ones = {device.local: ones[ordinal] for ordinal, device in devices.items()}

    def copy_ordinarily(self, here: gpu.Gpu, there: str) -> None:
        if self._between != self._plain:
            LOG.warning(
                "copies between %s and %s that use no compute units do not arrive on this ROCm; ordinary ones are "
                "used, which take compute units from GEMMs",
                here,
                there,
            )
            self._between = self._plain

    def collectives(self) -> Rccl:
        return Rccl()

    def current(self) -> gpu.Handle:
        return int(call(self.hip.hipGetDevice))

    def enter_action(self, context: gpu.Handle) -> gpu.DriverCall:
        return self.hip.hipSetDevice, (context,)

    def context_of(self, action: gpu.DriverCall) -> Current:
        return "its own"

    # ---- memory

    def alloc_flags(self, size: int, what: str) -> int:
        """NOTE ordinary memory may stay in a GPU's caches while a kernel runs: it would spin for ever."""
        fine = self.hip.hipDeviceMallocFinegrained
        return int(call(self.hip.hipExtMallocWithFlags, size, fine, what=what))

    def owner(self, address: int, what: str) -> int:
        hip = self.hip
        return int(filled(hip.hipPointerGetAttributes, hip.hipPointerAttribute_t, address, what=what).device)

    def allocation(self, address: int) -> int:
        number = np.zeros(1, np.uint64)
        attribute = self.hip.hipPointer_attribute.HIP_POINTER_ATTRIBUTE_BUFFER_ID
        (code,) = self.hip.hipPointerGetAttribute(number, attribute, address)
        return 0 if code else number_of(address) or int(number[0])

    def range_of(self, address: int, what: str) -> tuple[int, int]:
        """NOTE pools are not looked at: bindings of ROCm 6 and 7 do not tell whether memory is of one."""
        base, size = call(self.hip.hipMemGetAddressRange, address, what=what)
        return int(base), int(size)

    def allow(self, address: int, size: int, ordinals: Sequence[int], what: str) -> None:
        for ordinal in ordinals:  # NOTE bindings take one description, no list
            call(self.hip.hipMemSetAccess, address, size, self._access(ordinal), 1, what=what)

    def _access(self, ordinal: int) -> Any:
        """The description of a device's access to read and write."""
        access = self.hip.hipMemAccessDesc()
        access.location.type = self.hip.hipMemLocationType.hipMemLocationTypeDevice
        access.location.id = ordinal
        access.flags = self.hip.hipMemAccessFlags.hipMemAccessFlagsProtReadWrite
        return access

    def may_use(self, ordinal: int, address: int, what: str) -> bool | None:
        """Bindings of ROCm 10 return the flags, earlier ones are given where they go."""
        get, access = self.hip.hipMemGetAccess, self._access(ordinal)  # NOTE its location lives no longer than it
        try:
            code, flags = get(access.location, address)
        except TypeError:
            place = np.zeros(1, np.uint64)
            (code,), flags = get(place, access.location, address), place[0]
        if code.name in ("hipErrorInvalidValue", "hipErrorNotSupported"):
            return None
        if code:
            raise call.failure(get, code, what)
        return int(flags) == int(self.hip.hipMemAccessFlags.hipMemAccessFlagsProtReadWrite)

    def _own_range(self, address: int, what: str) -> tuple[int, int] | None:
        """An ordinary allocation's; None: memory is mapped to the address."""
        mapped = self.may_use(int(self.current()), address, what) is not None
        return None if mapped else self.range_of(address, what)

    # ---- graphs

    def uncaptured(self) -> AbstractContextManager[None]:
        """NOTE the bindings cannot set the mode, they only ask for it: it stays the caller's."""
        return nullcontext()

    def capturing(self, streams: Sequence[gpu.Handle]) -> bool:
        """NOTE where the call fails, the next one tells why. The bindings may raise ValueError then: they look at a
        status that nobody has written."""
        for stream in streams:
            with suppress(ValueError):
                code, status = self.hip.hipStreamIsCapturing(stream)
                if not code and int(status):
                    return True
        return False

    def capture_of(self, stream: gpu.Handle) -> int | None:
        return 1 if self.capturing([stream]) else None

    def begin_capture(self, stream: gpu.Handle) -> None:
        call(self.hip.hipStreamBeginCapture, stream, self.hip.hipStreamCaptureMode.hipStreamCaptureModeThreadLocal)

    def kernels_of(self, captured: gpu.Handle) -> Sequence[tuple[gpu.Handle, Footprint]]:
        raise Refused("hipGraphKernelNodeGetParams", "not asked", advice="leave out 'leave', which needs it")

    # ---- kernels

    def compile(self, source: KernelSource, options: Sequence[str]) -> bytes:
        return compile_source(source, options, by=HIPRTC).code

    def image(self, suffix: str, code: bytes) -> bytes | None:
        return code if suffix in (".hsaco", ".co", ".hipfb") else None

    def allow_smem(self, function: gpu.Handle, size: int, what: str) -> None:
        """All of LDS is every block's to ask for."""

    def share_smem(self, function: gpu.Handle, what: str) -> None:
        """LDS has one size."""

    def gemms(self) -> HipblasLt:
        return HipblasLt()

    def tensor_map(self, wanted: TensorMap) -> bytes:
        raise InternalError(f"a kernel asks for the tensor map {wanted}, and AMD's devices have none")

    # ---- actions

    def copy(self, run: gpu.LinearCopy, stream: gpu.Handle) -> gpu.DriverCall:
        return self._copy(run, stream, self._kind(run.dst, run.src))

    def copy_rows(self, rows: gpu.PitchedCopy, stream: gpu.Handle) -> gpu.DriverCall:
        return self._copy_rows(rows, stream, self._kind(rows.dst, rows.src))

    def _kind(self, dst: int, src: int) -> Any:
        """Inside of a device the ordinary kind: its copy engines are made for links, and slow there."""
        if self._is_theirs(dst) or self._is_theirs(src):
            return self._between
        inside = self.owner(dst, "a copy's target") == self.owner(src, "a copy's source")
        return self._plain if inside else self._between

    def _is_theirs(self, address: int) -> bool:
        """NOTE the runtime says of another process's memory that it is the current device's."""
        return any(begin <= address < begin + size for begin, size in self._theirs.items())

    def _copy(self, run: gpu.LinearCopy, stream: gpu.Handle, kind: Any) -> gpu.DriverCall:
        return self.hip.hipMemcpyAsync, (run.dst, run.src, run.size, kind, stream)

    def _copy_rows(self, rows: gpu.PitchedCopy, stream: gpu.Handle, kind: Any) -> gpu.DriverCall:
        places = (rows.dst, rows.dst_pitch, rows.src, rows.src_pitch)
        return self.hip.hipMemcpy2DAsync, (*places, rows.width, rows.rows, kind, stream)

    def copy_batch(self, runs: Sequence[gpu.LinearCopy], stream: gpu.Handle) -> gpu.DriverCall:
        raise InternalError(f"a batch of {len(runs)} copies, and HIP has none")

    def signal_action(self, address: int, stream: gpu.Handle) -> gpu.DriverCall:
        """By a copy of a word, without compute units on its own device too: writing a value is a kernel, which slows a
        running GEMM down, and may find no unit free."""
        device = int(call(self.hip.hipStreamGetDevice, stream))
        return self._copy(gpu.LinearCopy(address, self._ones[device], 4), stream, self._between)

    def wait_flag_action(self, address: int, stream: gpu.Handle) -> gpu.DriverCall:
        until = self.hip.hipStreamWaitValueGte
        return self.hip.hipStreamWaitValue32, (stream, address, 1, until, _ANY)

    def mem_op_actions(self, semaphores: Sequence[gpu.MemOp], stream: gpu.Handle) -> Sequence[gpu.DriverCall]:
        """One by one: a semaphore is signalled by a copy."""
        return [(self.signal_action if w.signals else self.wait_flag_action)(w.address, stream) for w in semaphores]

    def embed(self, captured: gpu.Handle, stream: gpu.Handle) -> gpu.DriverCall:
        raise InternalError("the features of HIP say that it embeds no graphs")

    def record_outside(self, event: gpu.Handle, stream: gpu.Handle) -> gpu.DriverCall:
        raise InternalError("the features of HIP say that it embeds no graphs")

    def launch_action(
        self, function: gpu.Handle, grid: gpu.Grid, arguments: Sequence[bytes], stream: gpu.Handle
    ) -> gpu.DriverCall:
        """The arguments are packed into a buffer that the action keeps. HIP launches have no priority of their own:
        the stream's counts."""
        values = ctypes.create_string_buffer(_packed(arguments))
        size = ctypes.c_size_t(len(values) - 1)  # ctypes puts a zero behind
        extra = (ctypes.c_void_p * 5)(_BUFFER, ctypes.addressof(values), _SIZE, ctypes.addressof(size), _END)
        shape = (*(*grid.blocks, 1, 1)[:3], *(*grid.threads, 1, 1)[:3])
        packed = gpu.Address(extra, values, size)
        return self.hip.hipModuleLaunchKernel, (function, *shape, grid.smem, stream, None, packed)


def _text(value: str | bytes) -> str:
    """A C string: bindings of ROCm 10 give text, earlier ones bytes."""
    return value if isinstance(value, str) else value.decode()


def _packed(arguments: Sequence[bytes]) -> bytes:
    """Arguments one after another, each where a kernel looks for it: at a multiple of its size, of 8 at most."""
    block = bytearray()
    for argument in arguments:
        step = 8 if len(argument) % 8 == 0 else 4
        block += bytes(-len(block) % step) + argument
    return bytes(block)
