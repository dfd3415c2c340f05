"""Sums by the plain kernel: their tiles, and the flags that a launch resets when all its blocks are through."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.kernels import families
from ficco_rt.kernels.family import LaunchRequest
from ficco_rt.kernels.naive.family import REDUCE
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.kernels.works import View
from ficco_rt.machine.profiles import stored
from tests.simt import nvidia
from tests.simt.memory import DTYPES, aligned
from tests.unit.hand_made import total
from tests.unit.test_kernel_waits import NAIVE, encoded

ROWS, COLUMNS, PITCH = 16, 512, 528


@pytest.mark.parametrize("off", [0, 14])
def test_blocks_without_a_tile_are_counted(off: int) -> None:
    """Where tensors lie so that accesses are wider than foreseen, there are fewer tiles than blocks."""
    memory = [aligned(ROWS * PITCH * 2 + 64)[off : off + ROWS * PITCH * 2] for _ in "ABC"]
    values = [of.view(DTYPES["bf16"]).reshape(ROWS, PITCH) for of in memory]
    flags = np.zeros(1, np.uint32)
    flag = int(flags.ctypes.data)

    def views(addresses: list[int]) -> list[View]:
        axes = Axis((Interval(0, ROWS),)), Axis((Interval(1, 1 + COLUMNS),))
        regions = [Region(name, 0, axes) for name in "ABC"]
        return [View(r, a, (ROWS, PITCH), "bf16") for r, a in zip(regions, addresses, strict=True)]

    foreseen, there = views([1 << 44, 2 << 44, 3 << 44]), views([int(of.ctypes.data) for of in memory])
    work = total(foreseen[2], (foreseen[0], foreseen[1]), (flag,), ())
    request = LaunchRequest(REDUCE, (work,), 8, streamed=True, resets=(flag,))
    (config,) = families.configure(request, Limits.of(stored("h200-switch").device))
    packed = families.tables(config, [total(there[2], (there[0], there[1]), (flag,), ())], [flag])
    assert (len(packed.tile_works) < config.blocks) == (off > 0)
    constants, scratch = aligned(len(packed.constants)), aligned(4 * packed.counters)
    constants[:] = np.frombuffer(packed.constants, np.uint8)
    (argument,) = packed.arguments(constants.ctypes.data, scratch.ctypes.data, 0, encoded)
    kernel = nvidia.Kernel(Path(tempfile.mkdtemp()), NAIVE, config.options, config.entry, "Table")
    given = np.random.default_rng(0).integers(-3, 4, (2, ROWS, PITCH)).astype(values[0].dtype)
    kernel.forget()
    kernel.gives(0, 0, 0, 0, 0, 0, 0)
    values[0][:], values[1][:] = given
    kernel.raises(1, flag)
    assert not kernel(argument, config.blocks, config.threads, 1, resident=config.blocks)
    assert np.array_equal(values[2][:, 1 : 1 + COLUMNS], (given[0] + given[1])[:, 1 : 1 + COLUMNS])
    assert not flags.any()
    assert not scratch.any()
