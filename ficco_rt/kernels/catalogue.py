"""Kernels by their names in plans, with the facts that other levels use, such as tiles and clusters."""

from __future__ import annotations

from .families import NAMED
from .naive.family import COPY, GEMM, REDUCE
from .vendor_gemm import GEMM as VENDOR_GEMM

__all__ = ["CLUSTERS", "COPY", "GEMM", "REDUCE", "TILES", "VENDOR_GEMM", "copy_sms"]

COPY_SMS = 64  # the most multiprocessors that copies take if the text states none

# Rows and columns of an output tile of every kernel that a plan may name for a GEMM.
TILES: dict[str, tuple[int, int]] = {v.name: v.tile for f in NAMED for v in f.variants}

# Blocks that start together, on multiprocessors side by side
CLUSTERS: dict[str, int] = {v.name: getattr(v, "together", v.cluster) for f in NAMED for v in f.variants}


def copy_sms(sms: int) -> int:
    """Multiprocessors of a launch of copies whose text states none, on a device of `sms`."""
    return max(1, min(COPY_SMS, sms // 2))
