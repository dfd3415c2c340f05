"""Clusters of the Hopper kernel in lockstep: in which launches they wait for each other at each tile, and that they do.
That the numbers are right is checked by tests/unit/test_kernel_waits.py."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from ficco_rt.compiler import compile_schedule
from ficco_rt.device.check import check
from ficco_rt.device.codec import from_json, to_json
from ficco_rt.device.text import to_text
from ficco_rt.errors import PlanError
from ficco_rt.kernels.families import configure, tables
from ficco_rt.kernels.family import LaunchRequest
from ficco_rt.kernels.marks import MARK
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm90 import tables as sm90
from ficco_rt.kernels.sm90.variants import SOURCE, VARIANTS
from ficco_rt.machine.profiles import profile
from ficco_rt.types import Dtype
from tests.simt import nvidia
from tests.unit import test_kernel_waits as waits
from tests.unit.test_families import H100, gemm
from tests.unit.test_vendor import on_device


@pytest.mark.parametrize(
    ("name", "rows", "k", "dtype", "lockstep"),
    [
        ("128x256_c2", 8192, 2048, "bf16", True),
        ("128x256_c2", 2048, 2048, "bf16", False),  # one wave: 8 clusters high, 8 wide
        ("128x256_c2", 8192, 1984, "bf16", False),  # too short to drift apart
        ("128x192_c1", 8192, 4096, "fp8_e4m3", True),  # of half as many bytes
        ("128x192_c1", 8192, 2048, "fp8_e4m3", False),
        ("16x64_c8_parts", 8192, 8192, "bf16", False),  # parts of K in a cluster meet anyway
    ],
)
def test_clusters_of_long_launches_are_in_lockstep(name: str, rows: int, k: int, dtype: Dtype, lockstep: bool) -> None:
    """As the launch is configured, and as the kernel is told."""
    work = gemm(rows, 2048, k, dtype, "bf16", right_t=dtype != "bf16")
    (config,) = configure(LaunchRequest(f"sm90_gemm_{name}", (work,), 132, smem=230400), H100)
    assert (config.family, config.lockstep) == ("sm90", lockstep)
    (data,) = tables(config, (work,)).arguments(1 << 16, 1 << 20, 1 << 24, lambda _: bytes(128))
    at = sm90.POINTERS_AT + sm90.POINTERS.size - 4
    assert struct.unpack_from("<i", data, at) == (lockstep,)


def test_a_device_plan_tells_of_lockstep() -> None:
    for k, lockstep in ((2048, True), (1024, False)):
        sizes = {"M": 8192, "N": 2048, "K": k, "kernel": "sm90_gemm_128x256_c2"}
        made = on_device(compile_schedule("ag_gemm/serial", 1, sizes, profile("h200-switch", 1)))
        check(made)
        assert from_json(to_json(made)) == made
        assert (", clusters in lockstep" in to_text(made)) == lockstep
        config = replace(made.launches[0].config, lockstep=not lockstep)
        with pytest.raises(PlanError, match="its works on NVIDIA H200 ask for another launch"):
            check(replace(made, launches=(replace(made.launches[0], config=config),)))


def test_the_count_of_tiles_lies_before_those_of_parts_of_k() -> None:
    for signals in (1, 62, 63, 64):
        works = waits.Run(waits.Shape((64,) * signals, 64, 128, 2), 0).works
        launch = sm90.build(works, VARIANTS[0], Signature("bf16", "bf16", False, False), clusters=66, stages=3)
        data = launch.parameters(1 << 16, 1 << 20, [bytes(128)] * len(launch.maps))
        (of_parts,) = struct.unpack_from("<Q", data, sm90.POINTERS_AT + 5 * 8)
        (ended,) = struct.unpack_from("<Q", data, sm90.POINTERS_AT + 96)
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
