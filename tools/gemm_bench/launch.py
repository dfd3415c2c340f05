"""Our kernels launched from Python: compiled, loaded, with their tables on the device."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver as cu

from ficco_rt.driver.cuda.tensor_map import encode
from ficco_rt.kernels import by_address, compiler
from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm90 import tables
from ficco_rt.kernels.sm90 import variants as sm90
from ficco_rt.kernels.tile_table import WHOLE_K, SplitK
from ficco_rt.kernels.tiles import MatrixWork

from .device import SMEM, arch, call
from .variants import Key

_functions: dict[tuple[Path | None, Key], Any] = {}


@dataclass(frozen=True)
class Built:
    """A launch of a kernel, before it has memory."""

    key: Key
    made: by_address.PackedLaunch | tables.PackedLaunch
    blocks: int
    smem: int


def build(
    works: Sequence[MatrixWork],
    key: Key,
    *,
    blocks: int,
    stages: int,
    split_k: SplitK = WHOLE_K,
    band: int | None = None,
    foreseen: bool = True,
    read_only: tuple[bool, bool] = (False, False),
    resets: Sequence[int] = (),
) -> Built:
    """Of so many blocks at work at once; the Ampere kernel splits K of the last wave only. Not `foreseen`: all blocks
    read the table before they load. `read_only` and `resets` as the Hopper kernel's `build` has them."""
    v, signature = key.variant, key.signature
    if isinstance(v, sm90.Variant):
        clusters = v.clusters(blocks)
        made = tables.build(
            works,
            v,
            signature,
            clusters=clusters,
            stages=stages,
            split_k=split_k,
            band=band,
            read_only=read_only,
            resets=resets,
        )
        made = made if foreseen else replace(made, first=None)
        smem = v.smem(stages, signature.right_transposed)
        return Built(key, made, min(clusters * v.cluster, len(made.table.tiles)), smem)
    other = by_address.build(works, v, signature, blocks=blocks, stages=stages, tail_splits=split_k.tail, band=band)
    return Built(key, other, min(blocks, len(other.table.tiles)), v.smem(stages))


def source_of(key: Key) -> Path:
    return sm90.SOURCE if isinstance(key.variant, sm90.Variant) else sm80.SOURCE


def compiled(source: Path | None, key: Key) -> bytes:
    v = key.variant
    if isinstance(v, sm90.Variant):
        options = sm90.options(v, key.signature)
    else:
        options = sm80.options(v, key.signature, arch())
    return compiler.compile_file(source or source_of(key), options).code


def function(source: Path | None, key: Key) -> Any:
    """The loaded kernel."""
    if (source, key) not in _functions:
        module = call("cuModuleLoadData", compiled(source, key))
        f = call("cuModuleGetFunction", module, key.entry.encode())
        most = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
        size = min(SMEM, most)
        call("cuFuncSetAttribute", f, cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, size)
        _functions[source, key] = f
    return _functions[source, key]


def attribute(name: str, value: Any) -> Any:
    """One of a launch's attributes."""
    made = cu.CUlaunchAttribute()
    made.id = getattr(cu.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    made.value = value
    return made


class Launch:
    """A launch's table on the device, and its launch on PyTorch's current stream."""

    def __init__(
        self, built: Built, source: Path | None = None, promotion: str = "L2_256B", chained: bool = False
    ) -> None:
        """`promotion`: see `encode`. `chained`: it may start while the launch before it ends, as plans launch it."""
        made = built.made
        self.table = table = made.table
        self.function = function(source, built.key)
        self.constants = torch.frombuffer(bytearray(table.constants), dtype=torch.uint8).cuda()
        self.scratch = torch.zeros(max(256, table.scratch_bytes), dtype=torch.uint8, device="cuda")
        places = (self.constants.data_ptr(), self.scratch.data_ptr())
        cluster = built.key.variant.cluster
        if isinstance(made, tables.PackedLaunch):
            block = made.parameters(*places, [encode(m, promotion) for m in made.maps])
        else:
            block = made.parameters(*places)
        raw = (ctypes.c_uint8 * (len(block) + 64))()
        base = -(-ctypes.addressof(raw) // 64) * 64
        ctypes.memmove(base, block, len(block))
        self.keep = (raw, (ctypes.c_void_p * 1)(base))
        config = cu.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = built.blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = built.key.variant.threads, 1, 1
        config.sharedMemBytes = built.smem
        attributes = []
        if cluster > 1:
            value = cu.CUlaunchAttributeValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
            attributes.append(attribute("CLUSTER_DIMENSION", value))
        if chained:
            value = cu.CUlaunchAttributeValue()
            value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute("PROGRAMMATIC_STREAM_SERIALIZATION", value))
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        self.config = config

    def __call__(self) -> None:
        self.config.hStream = torch.cuda.current_stream().cuda_stream
        call("cuLaunchKernelEx", self.config, self.function, ctypes.addressof(self.keep[1]), 0)

    def left_counters(self) -> bool:
        """Whether its counters are other than zero, as no launch that has ended leaves them."""
        return bool(self.scratch[: self.table.counter_bytes].any())
