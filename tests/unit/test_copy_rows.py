"""The kernel that copies inside a device, run on the CPU thread by thread."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ficco_rt.kernels import copy_rows
from ficco_rt.kernels.kernel_compiler import KERNELS
from tests.simt import amd


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> amd.OnCpu:
    folder = tmp_path_factory.mktemp("copy_rows")
    return amd.OnCpu(folder, KERNELS / copy_rows.SOURCE, ("-std=c++17",), copy_rows.ENTRY, "CopyRows", "unsigned char")


@pytest.mark.parametrize("unit", [16, 4, 2, 1])
def test_rows_are_copied_and_nothing_beside_them(kernel: amd.OnCpu, unit: int) -> None:
    draw = random.Random(unit)
    for case in range(12):
        rows, width = draw.choice([1, 2, 7, 300]), unit * draw.choice([1, 3, 256, 1000, 1025])
        pitches = [width + unit * draw.choice([0, 1, 5]) for _ in range(2)]
        at = [unit * draw.choice([0, 1, 3]) for _ in range(2)]
        bits = np.random.default_rng(case)
        source, target = (
            bits.integers(0, 256, 80 + offset + rows * pitch).astype(np.uint8)
            for offset, pitch in zip(at, pitches, strict=True)
        )
        first = [-array.ctypes.data % 16 + offset for array, offset in zip((source, target), at, strict=True)]
        wanted = target.copy()
        for row in range(rows):
            of, to = first[0] + row * pitches[0], first[1] + row * pitches[1]
            wanted[to : to + width] = source[of : of + width]
        addresses = target.ctypes.data + first[1], source.ctypes.data + first[0]
        argument = copy_rows.argument(*addresses, width, rows, pitches[1], pitches[0])
        kernel(argument, draw.choice([1, 2, copy_rows.blocks(rows * width)]), copy_rows.THREADS, case)
        assert np.array_equal(target, wanted), (rows, width, pitches, at)


def test_long_copies_take_more_blocks_than_short_ones() -> None:
    sizes = (1, copy_rows.PIECE, copy_rows.PIECE + 1, 10 * copy_rows.PIECE, 1 << 40)
    assert [copy_rows.blocks(size) for size in sizes] == [1, 1, 2, 10, copy_rows.MOST]
