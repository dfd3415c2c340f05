"""The GPU: calls of its driver, what it has, and kernels on it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from cuda.bindings import driver as cu

SMEM = 232448 - 1024  # what a block may ask for beside the Hopper kernel's static barriers


def call(name: str, *args: Any) -> Any:
    code, *values = getattr(cu, name)(*args)
    if code != cu.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"{name}: {code.name}")
    return values[0] if len(values) == 1 else values


def arch() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def sms() -> int:
    return int(torch.cuda.get_device_properties(0).multi_processor_count)


def shared(blocks: int) -> int:
    """The most shared memory of each of `blocks` blocks on a multiprocessor."""
    properties = torch.cuda.get_device_properties(0)
    share = properties.shared_memory_per_multiprocessor // blocks - 1024
    return int(min(share, properties.shared_memory_per_block_optin))


def loaded(code: bytes, entry: str, smem: int = 0) -> Any:
    """A kernel of compiled code, whose blocks may have so much dynamic shared memory."""
    function = call("cuModuleGetFunction", call("cuModuleLoadData", code), entry.encode())
    if smem:
        most = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call("cuFuncSetAttribute", function, most, smem)
    return function


class Kernel:
    """A loaded kernel and its grid, launched on PyTorch's current stream. `parameters` has the address of each, whose
    memory the caller keeps. `chained`: it may start while the launch before it ends, as plans launch it."""

    def __init__(
        self, function: Any, blocks: int, threads: int, smem: int, parameters: Sequence[int],
        cluster: int = 1, chained: bool = False,
    ) -> None:  # fmt: skip
        self.function = function
        self.parameters = (ctypes.c_void_p * len(parameters))(*parameters)
        self.config = config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = smem
        attributes = []
        if cluster > 1:
            value = cu.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
            attributes.append(_attribute("CLUSTER_DIMENSION", value))
        if chained:
            value = cu.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            attributes.append(_attribute("PROGRAMMATIC_STREAM_SERIALIZATION", value))
        config.attrs, config.numAttrs = attributes, len(attributes)

    def __call__(self) -> None:
        self.config.hStream = torch.cuda.current_stream().cuda_stream
        call("cuLaunchKernelEx", self.config, self.function, ctypes.addressof(self.parameters), 0)


def _attribute(name: str, value: Any) -> Any:
    made = cu.CUlaunchAttribute()
    made.id = getattr(cu.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    made.value = value
    return made
