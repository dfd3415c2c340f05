"""Kernels by their names in plans, with the facts that other levels use, such as tiles and clusters."""

from __future__ import annotations

from math import ceil

from .families import NAMED
from .family import KernelConfig
from .naive.family import COPY, GEMM, REDUCE
from .vendor_gemm import GEMM as VENDOR_GEMM

__all__ = ["CLUSTERS", "COPY", "GEMM", "REDUCE", "TILES", "VENDOR_GEMM", "cluster_tiles", "copy_sms"]

COPY_SMS = 64  # the most multiprocessors that copies take if the text states none

# Rows and columns of an output tile of every kernel that a plan may name for a GEMM.
TILES: dict[str, tuple[int, int]] = {v.name: v.tile for f in NAMED for v in f.variants}

# Blocks that start together, on multiprocessors side by side
CLUSTERS: dict[str, int] = {v.name: getattr(v, "together", v.cluster) for f in NAMED for v in f.variants}

_BESIDE = {v.name for f in NAMED for v in f.variants if getattr(v, "shares_left", False)}  # a cluster's tiles


def cluster_tiles(config: KernelConfig, rows: int, columns: int) -> int:
    """Clusters' tiles of so many rows and columns of tiles."""
    cluster = max(1, config.cluster)
    return rows * ceil(columns / cluster) if config.kernel in _BESIDE else ceil(rows / cluster) * columns


def copy_sms(sms: int) -> int:
    """Multiprocessors of a launch of copies whose text states none, on a device of `sms`."""
    return max(1, min(COPY_SMS, sms // 2))
