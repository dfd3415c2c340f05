"""Clusters of the Hopper kernel that wait for each other at each of their tiles: in which launches, and that they do.
That the numbers are right is checked by tests/unit/test_kernel_waits.py."""

from __future__ import annotations

import struct
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from ficco_rt.geometry.region import Interval
from ficco_rt.kernels import tiles
from ficco_rt.kernels.marks import MARK
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm90 import tables
from ficco_rt.kernels.sm90.variants import ODD, SOURCE, VARIANTS
from tests.simt import nvidia
from tests.unit import test_kernel_waits as waits


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


def test_the_count_of_tiles_lies_before_those_of_parts_of_k() -> None:
    for signals in (1, 62, 63, 64):
        works = waits.Run(waits.Shape((64,) * signals, 64, 128, 2), 0).works
        launch = tables.build(works, VARIANTS[0], Signature("bf16", "bf16", False, False), clusters=66, stages=3)
        data = launch.parameters(1 << 16, 1 << 20, [bytes(128)] * len(launch.maps))
        (of_parts,) = struct.unpack_from("<Q", data, tables.POINTERS_AT + 5 * 8)
        (ended,) = struct.unpack_from("<Q", data, tables.POINTERS_AT + 96)
        assert len(launch.table.signals) == signals
        assert ended + 8 <= of_parts  # of blocks that have ended, and of tiles that have begun


@pytest.mark.parametrize("looks", [1 << 30, 0])
def test_no_tile_is_made_before_all_clusters_have_begun_as_many(looks: int, tmp_path: Path) -> None:
    """Two blocks, two tiles each, of five steps, of which the pipeline holds three: a block comes to its second tile
    when its first one's rows have come. The other block's second tile ends later; without looks, not always."""
    shape = waits.Shape((64, 64, 64, 64), 64, 320, 2, read_only=True)
    signature = Signature("bf16", "bf16", False, False)
    variant = next(v for v in VARIANTS if v.name == "sm90_gemm_64x64_c1")
    options, change = (*variant.options(signature), "-DMARKS=1"), ("looks = 1 + blocks / 8;", f"looks = {looks};")
    kernel = nvidia.Kernel(tmp_path, SOURCE, options, signature.entry(variant.name), "Parameters", change)
    early = 0
    for seed in range(60):
        marks = np.zeros(4, MARK)
        kernel.marks(marks.ctypes.data)
        with patch.object(waits, "SEEDS", (seed,)):
            waits.hopper(variant, signature, shape, kernel, seed)
        early += bool((marks["ended"][2:] < marks["began"][:2][::-1]).any())
    assert bool(early) == (looks == 0)
