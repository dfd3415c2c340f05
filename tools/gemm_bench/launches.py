"""What a launch costs that does nothing: the part of a small product's time that no tile can save.

Empty kernels in a graph, one after another, with the Hopper kernel's threads and blocks of a product of few rows: by
bytes of parameters, by shared memory, in clusters, and chained as plans chain launches (programmatic stream
serialization).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch
from cuda.bindings import driver as cu

from ficco_rt.kernels import compiler
from ficco_rt.kernels.sm90.tables import PARAMETER_BYTES
from ficco_rt.kernels.target import options

from .device import SMEM, arch, call
from .launch import attribute
from .timing import graph, spread, times

SOURCE = """
struct Parameters { int words[BYTES / 4]; };
extern "C" __global__ void __launch_bounds__(256, 1) empty(const __grid_constant__ Parameters p) {
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (p.words[BYTES / 4 - 1]) __trap();
}
"""
BLOCKS, THREADS = 112, 256  # as `64x64_c1` makes 64 × 7168
LAUNCHES = 64  # in a graph


@dataclass(frozen=True)
class Empty:
    """An empty launch."""

    parameters: int  # bytes
    smem: int
    cluster: int
    chained: bool

    def launch(self) -> Callable[[], Any]:
        code = compiler.compile_text(SOURCE, "empty.cu", (*options(arch()), f"-DBYTES={self.parameters}")).code
        function = call("cuModuleGetFunction", call("cuModuleLoadData", code), b"empty")
        most = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call("cuFuncSetAttribute", function, most, self.smem)
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = BLOCKS, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
        config.sharedMemBytes = self.smem
        attributes = []
        if self.cluster > 1:
            value = cu.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = self.cluster, 1, 1
            attributes.append(attribute("CLUSTER_DIMENSION", value))
        if self.chained:
            value = cu.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute("PROGRAMMATIC_STREAM_SERIALIZATION", value))
        config.attrs, config.numAttrs = attributes, len(attributes)
        return partial(_run, config, function, bytearray(self.parameters))


def _run(config: Any, function: Any, parameters: bytearray) -> None:
    raw = (ctypes.c_uint8 * len(parameters)).from_buffer(parameters)
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(raw))
    config.hStream = torch.cuda.current_stream().cuda_stream
    call("cuLaunchKernelEx", config, function, ctypes.addressof(pointers), 0)


def launches(rounds: int) -> int:
    """Print what each kind of launch takes; 0."""
    kinds = [Empty(n, smem, 1, c) for n, smem, c in product((64, 1024, PARAMETER_BYTES), (0, SMEM), (False, True))]
    kinds += [Empty(n, SMEM, 2, False) for n in (64, PARAMETER_BYTES)]
    taken = times([graph([kind.launch()] * LAUNCHES) for kind in kinds], LAUNCHES, rounds)
    print(f"{'parameters':>10} {'smem':>7} {'cluster':>7} {'chained':>7} {'µs':>6} {'spread %':>8}")
    for kind, t in zip(kinds, taken, strict=True):
        print(f"{kind.parameters:>10} {kind.smem:>7} {kind.cluster:>7} {'yes' if kind.chained else 'no':>7} "
              f"{median(t):>6.2f} {spread(t):>8.1f}")  # fmt: skip
    return 0
