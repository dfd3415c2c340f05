"""Our kernels launched from Python: compiled, loaded, with their tables on the device."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ficco_rt.driver.cuda.tensor_map import encode
from ficco_rt.kernels import by_address, kernel_compiler
from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm90 import choice, tables
from ficco_rt.kernels.sm90 import variants as sm90
from ficco_rt.kernels.tile_table import WHOLE_K, SplitK
from ficco_rt.kernels.tiles import MatrixWork

from .device import SMEM, Kernel, arch, loaded
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
            level=choice.level(v, works, signature, clusters, split_k),
            lockstep=choice.lockstep(v, works, signature, clusters, split_k),
            read_only=read_only,
            resets=resets,
        )
        made = made if foreseen else replace(made, first=None)
        blocks = min(clusters * v.cluster, -(-len(made.table.tiles) // v.together) * v.together)
        return Built(key, made, blocks, v.smem(stages, signature.right_transposed, signature.scaling))
    other = by_address.build(works, v, signature, blocks=blocks, stages=stages, tail_splits=split_k.tail, band=band)
    return Built(key, other, min(blocks, len(other.table.tiles)), v.smem(stages))


def compiled(source: Path | None, key: Key) -> bytes:
    """By a source of the caller's, or by ours."""
    v = key.variant
    if isinstance(v, sm90.Variant):
        ours, options = sm90.SOURCE, v.options(key.signature)
    else:
        ours, options = sm80.SOURCE, v.options(key.signature, arch())
    return kernel_compiler.compile_file(source or ours, options).code


def function(source: Path | None, key: Key) -> Any:
    """The loaded kernel."""
    if (source, key) not in _functions:
        most = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
        _functions[source, key] = loaded(compiled(source, key), key.entry, min(SMEM, most))
    return _functions[source, key]


class Launch(Kernel):
    """A launch's table on the device, and its launch on PyTorch's current stream."""

    def __init__(
        self, built: Built, source: Path | None = None, promotion: str = "L2_256B", chained: bool = False
    ) -> None:
        """`promotion`: see `encode`. `chained`: it may start while the launch before it ends, as plans launch it."""
        made = built.made
        self.table = table = made.table
        self.constants = torch.frombuffer(bytearray(table.constants), dtype=torch.uint8).cuda()
        self.scratch = torch.zeros(max(256, table.scratch_bytes), dtype=torch.uint8, device="cuda")
        places = (self.constants.data_ptr(), self.scratch.data_ptr())
        if isinstance(made, tables.PackedLaunch):
            block = made.parameters(*places, [encode(m, promotion) for m in made.maps])
        else:
            block = made.parameters(*places)
        raw = (ctypes.c_uint8 * (len(block) + 64))()
        base = -(-ctypes.addressof(raw) // 64) * 64
        ctypes.memmove(base, block, len(block))
        self.keep = raw
        v = built.key.variant
        kernel = function(source, built.key)
        super().__init__(kernel, built.blocks, v.threads, built.smem, [base], getattr(v, "together", 1), chained)

    def left_counters(self) -> bool:
        """Whether its counters are other than zero, as no launch that has ended leaves them."""
        return bool(self.scratch[: self.table.counter_bytes].any())
