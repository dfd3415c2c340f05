"""NCCL, through the bindings of nccl4py: every call is checked here, and no other line sees a result code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ...device.ir import Library
from ...errors import DeviceError
from ...graph.ir import CallKind, CollectiveSettings
from ...types import TYPES, Dtype
from ..gpu.collective_library import UNIQUE, ZERO_CTAS, Member, refused
from ..gpu.refused import Refused
from ..gpu.vendor import Handle

_TYPES: dict[Dtype, str] = {"bf16": "Bfloat16", "fp16": "Float16", "fp32": "Float32"}
_NEEDS = 'engine = nccl needs {what}: pip install "nccl4py>=0.6,<0.7"; without it collectives are copies and sums'


class Nccl:
    """A `CollectiveLibrary`; see there. DeviceError: the package or the library is missing, or too old."""

    name: Library = "NCCL"

    def __init__(self) -> None:
        try:
            from nccl.bindings import nccl as bindings
        except ImportError as error:
            raise DeviceError(_NEEDS.format(what="the package nccl4py")) from error
        if not hasattr(bindings, "Comm"):
            raise DeviceError("engine = nccl needs nccl4py 0.6, and this is an older one: pip install -U nccl4py")
        self._n: Any = bindings
        try:
            number = int(bindings.get_version())
        except RuntimeError as error:  # the bindings load the library at the first call
            line = (str(error).splitlines() or [""])[0]
            raise DeviceError(_NEEDS.format(what=f"NVIDIA's libnccl.so.2 ({line})")) from error
        except bindings.NCCLError as error:
            raise DeviceError(f"NCCL does not tell its version: {error}") from error
        self._version = f"NCCL {number // 10000}.{number % 10000 // 100}.{number % 100}"
        self._types = {dtype: int(getattr(bindings.DataType, name)) for dtype, name in _TYPES.items()}
        self._sum = int(bindings.RedOp.Sum)

    def version(self) -> str:
        return self._version

    def _made(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A call's value. Refused: the library gave an error. NOTE ncclInProgress is none to the bindings."""
        try:
            return function(*arguments)
        except self._n.NCCLError as error:
            words = getattr(function, "__name__", "a call").split("_")  # all_reduce is ncclAllReduce
            raise refused(f"nccl{''.join(map(str.capitalize, words))}", self._name(error.status)) from error

    def _name(self, code: int) -> str:
        try:
            return f"nccl{self._n.Result(code).name}"
        except ValueError:
            return f"ncclResult {code}"

    @contextmanager
    def group(self) -> Iterator[None]:
        try:
            self._made(self._n.group_start)
            yield
        except BaseException:
            # NOTE ranks missing from the group would be waited for: after a call that fails its end does nothing
            for spoilt in (
                (self._n.all_reduce, 0, 0, 0, self._types["fp32"], self._sum, self._n.Comm(0), 0),
                (self._n.group_end,),
            ):
                with suppress(Refused):  # the first error is the one to tell
                    self._made(*spoilt)
            raise
        self._made(self._n.group_end)

    def unique(self) -> bytes:
        made = self._made(self._n.get_unique_id)
        return ctypes.string_at(made.ptr, UNIQUE)

    def open(self, ranks: int, rank: int, unique: bytes, settings: CollectiveSettings) -> Handle:
        config = self._n.Config()
        config.blocking = 0
        if settings.ctas:
            config.min_ctas, config.max_ctas = 1, settings.ctas
        elif settings.ctas == 0:
            config.cta_policy = ZERO_CTAS
        known = self._n.UniqueId()
        ctypes.memmove(known.ptr, unique, UNIQUE)
        return self._made(self._n.comm_init_rank_config, ranks, known, rank, config.ptr)

    def call(self, kind: CallKind, communicator: Handle, rank: int, ranks: int, member: Member) -> None:
        n, made = self._n, self._made
        dst, src, elements, dtype, stream, *_ = member
        kept, on = self._types[dtype], int(stream)
        match kind:
            case "all_reduce":
                made(n.all_reduce, src, dst, elements, kept, self._sum, communicator, on)
            case "reduce_scatter":
                made(n.reduce_scatter, src, dst, elements, kept, self._sum, communicator, on)
            case "all_gather":
                made(n.all_gather, src, dst, elements, kept, communicator, on)
            case "send_recv":
                made(n.send, src, elements, kept, member.to, communicator, on)
                made(n.recv, dst, member.received, kept, member.by, communicator, on)
            case "all_to_all":
                size = elements * TYPES[dtype].bytes
                for peer in range(ranks):
                    made(n.send, src + peer * size, elements, kept, peer, communicator, on)
                    made(n.recv, dst + peer * size, elements, kept, peer, communicator, on)

    def state(self, communicator: Handle) -> str:
        code = int(self._made(self._n.comm_get_async_error, communicator))
        return self._name(code) if code else ""

    def abort(self, communicator: Handle) -> None:
        self._made(self._n.comm_abort, communicator)

    def close(self, communicator: Handle) -> None:
        self._made(self._n.comm_destroy, communicator)
