"""RCCL through the bindings of hip-python. Every call is checked here; no other module handles its result codes."""

from __future__ import annotations

import ctypes
from typing import Any

from ...device.ir import Library
from ...errors import DeviceError
from ...graph.ir import CollectiveSettings
from ..gpu.collective_library import PENDING, UNIQUE, ZERO_CTAS, CollectiveLibrary, c_name, refused
from ..gpu.vendor import Handle

_MAGIC, _UNDEFINED = 0xCAFEBEEF, -(2**31)  # of a config (rccl.h, NCCL_CONFIG_INITIALIZER)
_NEEDS = (
    'engine = nccl needs {what}: pip install "rocm-bindings-systems>=10" beside ROCm; without it collectives are '
    "copies and sums"
)


class Rccl(CollectiveLibrary):
    """A `CollectiveLibrary`; see there. DeviceError: the package or the library is missing."""

    name: Library = "RCCL"

    def __init__(self) -> None:
        try:
            from hip import rccl as bindings
        except ImportError as error:
            raise DeviceError(_NEEDS.format(what="the bindings hip.rccl")) from error
        self._n: Any = bindings
        try:
            self._number = int(self._made("get_version"))
        except RuntimeError as error:  # the bindings load the library at the first call
            line = (str(error).splitlines() or [""])[0]
            raise DeviceError(_NEEDS.format(what=f"AMD's librccl.so ({line})")) from error
        self._sum, self._nobody = bindings.ncclRedOp_t.ncclSum, None

    def _made(self, call: str, *arguments: Any) -> Any:
        code, *values = getattr(self._n, c_name(call))(*arguments)
        if code and code.name != PENDING:
            raise refused(c_name(call), code.name)
        return values[0] if values else None

    def _type(self, code: int) -> Any:
        return self._n.ncclDataType_t(code)

    def unique(self) -> bytes:
        made = self._n.ncclUniqueId()
        try:
            self._made("get_unique_id", made)
        except TypeError:  # bindings of ROCm 10 on make it themselves
            made = self._made("get_unique_id")
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
        return self._made("comm_init_rank_config", ranks, known, rank, config)

    def state(self, communicator: Handle) -> str:
        found = ctypes.c_int()
        self._made("comm_get_async_error", communicator, ctypes.addressof(found))
        code = self._n.ncclResult_t(found.value)
        return str(code.name) if code else ""
