"""NCCL through the bindings of nccl4py. Every call is checked here; no other module handles its result codes."""

from __future__ import annotations

import ctypes
from typing import Any

from ...device.ir import Library
from ...errors import DeviceError
from ...graph.ir import CollectiveSettings
from ..gpu.collective_library import UNIQUE, ZERO_CTAS, CollectiveLibrary, c_name, refused
from ..gpu.vendor import Handle

_NEEDS = 'engine = nccl needs {what}: pip install "nccl4py>=0.6,<0.7"; without it collectives are copies and sums'


class Nccl(CollectiveLibrary):
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
            self._number = int(bindings.get_version())
        except RuntimeError as error:  # the bindings load the library at the first call
            line = (str(error).splitlines() or [""])[0]
            raise DeviceError(_NEEDS.format(what=f"NVIDIA's libnccl.so.2 ({line})")) from error
        except bindings.NCCLError as error:
            raise DeviceError(f"NCCL does not tell its version: {error}") from error
        self._sum, self._nobody = int(bindings.RedOp.Sum), bindings.Comm(0)

    def _made(self, call: str, *arguments: Any) -> Any:
        """NOTE ncclInProgress is no error to the bindings."""
        try:
            return getattr(self._n, call)(*arguments)
        except self._n.NCCLError as error:
            raise refused(c_name(call), self._name(error.status)) from error

    def _type(self, code: int) -> int:
        return code

    def _name(self, code: int) -> str:
        try:
            return f"nccl{self._n.Result(code).name}"
        except ValueError:
            return f"ncclResult {code}"

    def unique(self) -> bytes:
        made = self._made("get_unique_id")
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
        return self._made("comm_init_rank_config", ranks, known, rank, config.ptr)

    def state(self, communicator: Handle) -> str:
        code = int(self._made("comm_get_async_error", communicator))
        return self._name(code) if code else ""
