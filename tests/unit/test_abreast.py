"""Clusters of the Hopper kernel that wait for each other at each of their tiles: in which launches, and that the kernel
is told so. That the numbers are right is checked by tests/unit/test_kernel_waits.py."""

from __future__ import annotations

import struct

import pytest

from ficco_rt.geometry.region import Interval
from ficco_rt.kernels import tiles
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm90 import tables
from ficco_rt.kernels.sm90.variants import ODD, VARIANTS


@pytest.mark.parametrize(
    ("name", "rows", "k", "dtype", "abreast"),
    [
        ("128x256_c2", 8192, 2048, "bf16", True),
        ("128x256_c2", 2048, 2048, "bf16", False),  # one wave: 8 clusters high, 8 wide
        ("128x256_c2", 8192, 1984, "bf16", False),  # too short to drift apart
        ("128x256_c1", 8192, 4096, "fp8_e4m3", True),  # steps are 128 deep
        ("128x256_c1", 8192, 2048, "fp8_e4m3", False),
        ("16x64_c8_parts", 8192, 8192, "bf16", False),  # parts of K in a cluster meet anyway
    ],
)
def test_clusters_of_long_launches_stay_abreast(name: str, rows: int, k: int, dtype: str, abreast: bool) -> None:
    variant = next(v for v in (*VARIANTS, *ODD) if v.name == f"sm90_gemm_{name}")
    a, b, c = (tiles.Matrix(page << 32, 8192, 8192, 8192) for page in (1, 2, 3))
    m, n, deep = ((Interval(0, size),) for size in (rows, 2048, k))
    turned = dtype != "bf16"  # fp8 operands lie along K
    work = tiles.MatrixWork(a, b, c, m, deep, *((n, deep) if turned else (deep, n)), m, n)
    signature = Signature(dtype, "bf16", False, turned)
    launch = tables.build([work], variant, signature, clusters=variant.clusters(132), stages=3)
    data = launch.parameters(1 << 16, 1 << 20, [bytes(128)] * len(launch.maps))
    at = tables.POINTERS_AT + tables.POINTERS.size - 4
    assert struct.unpack_from("<i", data, at) == (abreast,)
    assert launch.table.counter_bytes >= 8  # of blocks that have ended, of tiles that have begun
