"""Loads kernel code on a device: compiles it from source where needed, and looks up its entries."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ...errors import InternalError, UsageError
from ...graph.ir import Kernel
from ...kernels.kernel_compiler import KERNELS, KernelSource
from ...kernels.target import options
from ...plan.kernel_files import read
from .gpus import Gpus
from .refused import Closing
from .vendor import Gpu, Handle


@dataclass(frozen=True, slots=True, eq=False)
class LoadedKernel:
    """A kernel, ready to be launched on its device."""

    name: str
    handle: Handle


class Modules:
    """The modules of one driver, by device and content."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._loaded: dict[tuple[int, bytes], Handle] = {}
        self._own: dict[tuple[str, str, int, tuple[str, ...]], LoadedKernel] = {}
        self._codes: dict[tuple[str, tuple[str, ...]], bytes] = {}  # of our own sources

    def own(self, source: str, entry: str, device: Gpu, options: tuple[str, ...]) -> LoadedKernel:
        """An entry of one of our own sources, compiled with `options`."""
        key = (source, entry, device.ordinal, options)
        if key not in self._own:
            if (source, options) not in self._codes:
                self._codes[source, options] = self._gpus.vendor.compile(KernelSource.of(KERNELS / source), options)
            self._own[key] = self._entry(self._codes[source, options], entry, entry, device)
        return self._own[key]

    def users(self, kernel: Kernel, device: Gpu) -> LoadedKernel:
        """A user kernel: source, or the output of the vendor's compiler, next to the schedule."""
        vendor = self._gpus.vendor
        place = f"{kernel.origin.place}: kernel '{kernel.name}'"
        path, code = read(kernel, "file")
        if path.suffix in vendor.sources:
            try:
                image = vendor.compile(KernelSource(str(path), code.decode("utf-8")), options(device.facts.arch))
            except (InternalError, UnicodeDecodeError) as error:  # the user's source, so no bug of ours
                raise UsageError(f"{place}: {error}") from error
        else:
            known = vendor.image(path.suffix, code)
            if known is None:
                raise UsageError(
                    f"{place}: '{path.name}' is nothing that the {vendor.name} driver loads; source is "
                    f"{', '.join(vendor.sources)}"
                )
            image = known
        what = f"kernel '{kernel.name}' of {kernel.file}, declared at {kernel.origin.place}"
        return self._entry(image, kernel.entry, kernel.name, device, what)

    def _entry(self, code: bytes, entry: str, name: str, device: Gpu, what: str = "") -> LoadedKernel:
        vendor = self._gpus.vendor
        what = what or f"kernel {name}"
        key = (device.ordinal, hashlib.sha256(code).digest())
        with self._gpus.inside(device):
            if key not in self._loaded:
                self._loaded[key] = vendor.load(code, what)
            handle = vendor.function(self._loaded[key], entry, f"{what}, entry '{entry}'")
            return LoadedKernel(name, handle)

    def close(self) -> None:
        """Unload everything."""
        with Closing() as closing:
            for _ in range(2):  # once more what a context that was not to be had has kept
                for key in list(self._loaded):
                    closing(self._unload, key)

    def _unload(self, key: tuple[int, bytes]) -> None:
        with self._gpus.inside(self._gpus.devices[key[0]]):
            self._gpus.vendor.unload(self._loaded.pop(key))
