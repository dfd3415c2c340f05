"""Our kernels launched from Python: compiled, loaded, with their tables on the device."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver as cu
from ficco_rt.driver.cuda.tiled import encode

from ficco_rt.kernels import compiler, sm80, sm90

from .device import SMEM, arch, call

_functions: dict[tuple[object, ...], Any] = {}


def compiled(source: Path | None, *key: Any) -> bytes:
    module = sm80 if isinstance(key[0], sm80.Variant) else sm90
    return compiler.compile_file(source or module.SOURCE, module.options(*key[:5], arch(), *key[5:])).code


def function(source: Path | None, *key: Any) -> Any:
    """The loaded kernel of (variant, dtype, out dtype, left transposed, right transposed[, terms])."""
    if (source, *key) not in _functions:
        module = call("cuModuleLoadData", compiled(source, *key))
        f = call("cuModuleGetFunction", module, sm90.entry(*key).encode())
        most = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
        size = min(SMEM, most)
        call("cuFuncSetAttribute", f, cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, size)
        _functions[source, *key] = f
    return _functions[source, *key]


class Launch:
    """A launch's table on the device, and its launch on PyTorch's current stream."""

    def __init__(self, made: sm80.Launch | sm90.Launch, *key: Any, source: Path | None = None) -> None:
        self.table = table = made.table
        self.function = function(source, made.variant, *key)
        self.constants = torch.frombuffer(bytearray(table.constants), dtype=torch.uint8).cuda()
        self.scratch = torch.zeros(max(256, table.scratch_bytes), dtype=torch.uint8, device="cuda")
        places = (self.constants.data_ptr(), self.scratch.data_ptr())
        if isinstance(made, sm90.Launch):
            block, cluster = made.parameters(*places, [encode(m) for m in made.maps]), made.variant.cluster
        else:
            block, cluster = made.parameters(*places), 1
        raw = (ctypes.c_uint8 * (len(block) + 64))()
        base = -(-ctypes.addressof(raw) // 64) * 64
        ctypes.memmove(base, block, len(block))
        self.keep = (raw, (ctypes.c_void_p * 1)(base))
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = made.grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = made.variant.threads, 1, 1
        config.sharedMemBytes = made.smem
        if cluster > 1:
            attribute = cu.CUlaunchAttribute()
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            value = cu.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
            attribute.value = value
            config.attrs, config.numAttrs = [attribute], 1
        self.config = config

    def __call__(self) -> None:
        self.config.hStream = torch.cuda.current_stream().cuda_stream
        call("cuLaunchKernelEx", self.config, self.function, ctypes.addressof(self.keep[1]), 0)

    def left_counters(self) -> bool:
        """Whether its counters are other than zero, as no launch that has ended leaves them."""
        return bool(self.scratch[: self.table.counter_bytes].any())
