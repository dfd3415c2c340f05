"""The fit table: which kernels of a plan may share a multiprocessor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ficco_rt.device.features import usual
from ficco_rt.device.fit_table import FitTable, fit_table, too_little_left
from ficco_rt.device.ir import Placement
from ficco_rt.device.launches import LaunchPlanner
from ficco_rt.kernels.block_fit import Several, fits
from ficco_rt.kernels.marks import MARK, blocks_at_once
from ficco_rt.kernels.occupancy import Limits
from tests.unit.test_leave import PRODUCT, plan


def table(asked: str, threads: str = "threads = 256", text: str = PRODUCT) -> FitTable:
    made = plan(asked, threads, text=text)
    device = made.target.device
    planner = LaunchPlanner(made, device, Placement((0, 1)), usual(device.arch), frozenset())
    return fit_table(made, device, planner.all(rank=0))


def beside(found: FitTable, own: str, other: str) -> set[int]:
    """Blocks of a kernel that fit beside another's, for all pairs of such names."""
    names = [t.kernel for t in found.kernels]
    return {n.blocks for n in found.beside if own in names[n.kernel] and other in names[n.beside]}


def test_what_is_left_for_nccl_is_in_the_table() -> None:
    found = table("leave = nccl")
    assert beside(found, "NCCL, rings", "sm90_gemm") == {1}
    assert beside(found, "sm90_gemm", "NCCL, rings") == {1}
    assert beside(found, "NCCL, protocol LL128", "sm90_gemm") == {0}
    plain = table("")
    assert beside(plain, "NCCL", "sm90_gemm") == beside(plain, "sm90_gemm", "NCCL") == {0}


def test_kernels_of_one_queue_are_no_neighbours() -> None:
    found = table("leave = 64 KiB")
    assert found.beside
    for n in found.beside:
        a, b = found.kernels[n.kernel], found.kernels[n.beside]
        assert a.queue != b.queue
        assert a.block is not None
        assert b.block is not None
        assert b.blocks
        assert fits([Several(b.block, b.blocks), Several(a.block, n.blocks)], found.limits)
        assert not fits([Several(b.block, b.blocks), Several(a.block, n.blocks + 1)], found.limits)


@pytest.mark.parametrize(("library", "enough"), [("NCCL 2.28.9", True), ("NCCL 2.32.3", False), ("NCCL", True)])
def test_a_library_whose_blocks_take_more_is_told_of(library: str, enough: bool) -> None:
    made = plan("leave = nccl", text=PRODUCT)
    device = made.target.device
    launches = LaunchPlanner(made, device, Placement((0, 1)), usual(device.arch), frozenset()).all()
    found = too_little_left(made, launches, Limits.of(device), library)
    assert (found is None) == enough
    if found is not None:
        assert "takes 27648 registers and 120064 bytes" in found[1]
        assert "leave 36864 and " in found[1]


def test_kernels_that_nobody_knows_say_so() -> None:
    text = PRODUCT.replace("queue comm", 'kernel k(read x) from "k.cu" entry "k" { grid = 4 }\nqueue comm')
    found = table("", text=text.replace("gemm C = A * A }", "gemm C = A * A  launch k(A) }"))
    (own,) = (t for t in found.kernels if t.kernel == "k")
    assert (own.block, own.blocks, own.measured) == (None, None, False)
    assert (own.threads, found.multiprocessor.registers) == (None, 65536)


# ---------------------------------------------------------------- what marks tell


def marks(*tiles: tuple[int, int, int, int]) -> np.ndarray[Any, Any]:
    """Of tiles: multiprocessor, block, when its block came to it, when it ended."""
    return np.array([(came, came, ended, 0, block << 32 | sm) for sm, block, came, ended in tiles], MARK)


def test_blocks_that_share_a_multiprocessor_are_counted() -> None:
    one = marks((0, 0, 10, 20), (0, 0, 20, 30), (1, 1, 10, 30), (0, 2, 30, 40))
    assert blocks_at_once([one]) == 1  # block 2 came when block 0 had gone
    two = marks((0, 0, 15, 25), (1, 1, 40, 50))
    assert blocks_at_once([two]) == 1
    assert blocks_at_once([one, two]) == 2
    assert blocks_at_once([marks((5, 1, 1, 9), (5, 2, 2, 8), (5, 3, 3, 7), (6, 4, 1, 9))]) == 3


def test_marks_that_tell_no_place_tell_no_residency() -> None:
    unknown = marks((0, 0, 10, 20))
    unknown["where"] = 2**64 - 1
    assert blocks_at_once([unknown]) is None
    given_up = marks((0, 0, 10, 0))
    assert blocks_at_once([given_up]) is None
