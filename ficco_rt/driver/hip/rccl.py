"""RCCL, through the bindings of hip-python: every call is checked here, and no other line sees a result code."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...device.ir import Library
from ...errors import DeviceError
from ...graph.ir import CallKind, CollectiveSettings
from ...types import TYPES, Dtype
from ..gpu.collective_library import PENDING, UNIQUE, ZERO_CTAS, Member, refused
from ..gpu.refused import Refused
from ..gpu.vendor import DriverFunction, Handle

_TYPES: dict[Dtype, str] = {"bf16": "ncclBfloat16", "fp16": "ncclFloat16", "fp32": "ncclFloat32"}
_MAGIC, _UNDEFINED = 0xCAFEBEEF, -(2**31)  # of a config (rccl.h, NCCL_CONFIG_INITIALIZER)
_NEEDS = (
    'engine = nccl needs {what}: pip install "rocm-bindings-systems>=10" beside ROCm; without it collectives are '
    "copies and sums"
)


class Rccl:
    """A `CollectiveLibrary`; see there. DeviceError: the package or the library is missing."""

    name: Library = "RCCL"

    def __init__(self) -> None:
        try:
            from hip import rccl as bindings
        except ImportError as error:
            raise DeviceError(_NEEDS.format(what="the bindings hip.rccl")) from error
        self._n: Any = bindings
        try:
            self._number = int(self._made(bindings.ncclGetVersion))
        except RuntimeError as error:  # the bindings load the library at the first call
            line = (str(error).splitlines() or [""])[0]
            raise DeviceError(_NEEDS.format(what=f"AMD's librccl.so ({line})")) from error
        self._types = {dtype: getattr(bindings.ncclDataType_t, name) for dtype, name in _TYPES.items()}
        self._sum = bindings.ncclRedOp_t.ncclSum

    def version(self) -> str:
        number = self._number
        return f"RCCL {number // 10000}.{number % 10000 // 100}.{number % 100}"

    def _made(self, function: DriverFunction, *arguments: Any) -> Any:
        """A call's value. Refused: the library gave an error."""
        code, *values = function(*arguments)
        if code and code.name != PENDING:
            raise refused(getattr(function, "__name__", "a call of RCCL"), code.name)
        return values[0] if values else None

    @contextmanager
    def group(self) -> Iterator[None]:
        try:
            self._made(self._n.ncclGroupStart)
            yield
        except BaseException:
            # NOTE ranks missing from the group would be waited for: after a call that fails its end does nothing
            for spoilt in (
                (self._n.ncclAllReduce, None, None, 0, self._types["fp32"], self._sum, None, None),
                (self._n.ncclGroupEnd,),
            ):
                with suppress(Refused):  # the first error is the one to tell
                    self._made(*spoilt)
            raise
        self._made(self._n.ncclGroupEnd)

    def unique(self) -> bytes:
        made = self._n.ncclUniqueId()
        try:
            self._made(self._n.ncclGetUniqueId, made)
        except TypeError:  # bindings of ROCm 10 on make it themselves
            made = self._made(self._n.ncclGetUniqueId)
        return ctypes.string_at(made.as_c_void_p(), UNIQUE)

    def open(self, ranks: int, rank: int, unique: bytes, settings: CollectiveSettings) -> Handle:
        config = self._n.ncclConfig_t()
        for name in config.PROPERTIES():
            if name not in ("netName", "commName"):
                setattr(config, name, _UNDEFINED if name not in ("size", "magic", "version") else 0)
        config.size, config.magic, config.version = config.c_sizeof(), _MAGIC, self._number
        config.blocking = 0
        if settings.ctas:
            config.minCTAs, config.maxCTAs = 1, settings.ctas
        elif settings.ctas == 0:
            if not hasattr(config, "CTAPolicy"):
                raise DeviceError(f"ctas = 0: the bindings of {self.version()} know no such policy; leave ctas out")
            config.CTAPolicy = ZERO_CTAS
        known = self._n.ncclUniqueId()
        ctypes.memmove(known.as_c_void_p(), unique, UNIQUE)
        return self._made(self._n.ncclCommInitRankConfig, ranks, known, rank, config)

    def call(self, kind: CallKind, communicator: Handle, rank: int, ranks: int, member: Member) -> None:
        n, made = self._n, self._made
        dst, src, elements, dtype, stream, *_ = member
        kept = self._types[dtype]
        match kind:
            case "all_reduce":
                made(n.ncclAllReduce, src, dst, elements, kept, self._sum, communicator, stream)
            case "reduce_scatter":
                made(n.ncclReduceScatter, src, dst, elements, kept, self._sum, communicator, stream)
            case "all_gather":
                made(n.ncclAllGather, src, dst, elements, kept, communicator, stream)
            case "send_recv":
                made(n.ncclSend, src, elements, kept, member.to, communicator, stream)
                made(n.ncclRecv, dst, member.received, kept, member.by, communicator, stream)
            case "all_to_all":
                size = elements * TYPES[dtype].bytes
                for peer in range(ranks):
                    made(n.ncclSend, src + peer * size, elements, kept, peer, communicator, stream)
                    made(n.ncclRecv, dst + peer * size, elements, kept, peer, communicator, stream)

    def state(self, communicator: Handle) -> str:
        found = ctypes.c_int()
        self._made(self._n.ncclCommGetAsyncError, communicator, ctypes.addressof(found))
        code = self._n.ncclResult_t(found.value)
        return str(code.name) if code else ""

    def abort(self, communicator: Handle) -> None:
        self._made(self._n.ncclCommAbort, communicator)

    def close(self, communicator: Handle) -> None:
        self._made(self._n.ncclCommDestroy, communicator)
