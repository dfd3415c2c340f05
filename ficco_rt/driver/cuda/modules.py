"""Kernel code on a device: compiled from source where need be, loaded, its entries looked up."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ...errors import InternalError, UsageError
from ...graph.ir import Kernel
from ...kernels.compiler import compile_text
from .call import api, call
from .devices import Device

STANDARD = "-std=c++17"


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A kernel, ready to be launched on its device."""

    name: str
    device: Device
    handle: Any
    static_smem: int  # bytes a block, besides the dynamic

    def allow(self, smem: int) -> None:
        """Let blocks ask for `smem` bytes of dynamic shared memory."""
        cu = api()
        attribute = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(cu.cuFuncSetAttribute, self.handle, attribute, smem, what=f"kernel {self.name}, {smem} bytes")

    def blocks_per_sm(self, threads: int, smem: int) -> int:
        """Blocks that fit on a multiprocessor."""
        cu = api()
        return int(call(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor, self.handle, threads, smem, what=self.name))


class Modules:
    """The modules of one driver, by device and content."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[int, bytes], Any] = {}
        self._own: dict[tuple[str, str, int, tuple[str, ...]], Entry] = {}

    def own(self, source: str, entry: str, device: Device, options: tuple[str, ...]) -> Entry:
        """An entry of one of our own sources, compiled with `options`."""
        key = (source, entry, device.ordinal, options)
        if key in self._own:
            return self._own[key]
        text = resources.files("ficco_rt.kernels").joinpath("src", source).read_text(encoding="utf-8")
        code = compile_text(text, source, options).code
        self._own[key] = self._entry(code, entry, entry, device)
        return self._own[key]

    def users(self, kernel: Kernel, device: Device) -> Entry:
        """A user kernel: cubin, fatbin, PTX or CUDA source beside the schedule."""
        place = f"{kernel.origin.path}:{kernel.origin.line}"
        path = (Path(kernel.origin.path).parent / kernel.file).resolve()
        try:
            code = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{place}: kernel '{kernel.name}': cannot read '{path}': {error.strerror}") from error
        if path.suffix in (".cu", ".cuh", ".c", ".cpp"):
            try:
                text = code.decode("utf-8")
                code = compile_text(text, str(path), [STANDARD, f"-arch={device.facts.arch}"]).code
            except (InternalError, UnicodeDecodeError) as error:  # the user's source, so no bug of ours
                raise UsageError(f"{place}: kernel '{kernel.name}': {error}") from error
        elif path.suffix == ".ptx":
            code += b"\0"
        elif path.suffix not in (".cubin", ".fatbin"):
            raise UsageError(f"{place}: kernel '{kernel.name}': '{path.name}' is not .cubin, .fatbin, .ptx or .cu")
        return self._entry(code, kernel.entry, kernel.name, device, place)

    def _entry(self, code: bytes, entry: str, name: str, device: Device, place: str = "") -> Entry:
        cu = api()
        key = (device.ordinal, hashlib.sha256(code).digest())
        what = f"{place + ': ' if place else ''}kernel {name} on {device}"
        call(cu.cuCtxPushCurrent, device.context)
        try:
            if key not in self._loaded:
                self._loaded[key] = call(cu.cuModuleLoadData, code, what=what)
            handle = call(cu.cuModuleGetFunction, self._loaded[key], entry.encode(), what=f"{what}, entry '{entry}'")
            static = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
            return Entry(name, device, handle, int(call(cu.cuFuncGetAttribute, static, handle, what=what)))
        finally:
            cu.cuCtxPopCurrent()

    def close(self, devices: Mapping[int, Device]) -> None:
        """Unload everything; no context need be current."""
        cu = api()
        for (ordinal, _), module in self._loaded.items():
            call(cu.cuCtxPushCurrent, devices[ordinal].context)
            call(cu.cuModuleUnload, module)
            cu.cuCtxPopCurrent()
        self._loaded.clear()
