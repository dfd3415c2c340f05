"""The room table: which kernels of a plan may share a multiprocessor."""

from __future__ import annotations

from typing import Any

from ficco_rt.device.features import usual
from ficco_rt.device.ir import Placement
from ficco_rt.device.launches import LaunchPlanner
from ficco_rt.device.room_table import RoomTable, room_table, table_facts
from ficco_rt.kernels.room import Several, fits
from tests.unit.test_leave import PRODUCT, plan


def table(asked: str, threads: str = "threads = 256", text: str = PRODUCT) -> RoomTable:
    made = plan(asked, threads, text=text)
    device = made.target.device
    planner = LaunchPlanner(made, device, Placement((0, 1)), usual(device.arch), frozenset())
    return room_table(made, device, planner.all(rank=0))


def beside(found: RoomTable, own: str, other: str) -> set[int]:
    """Blocks of a kernel that fit beside another's, for all pairs of such names."""
    names = [t.kernel for t in found.tenants]
    return {n.fit.blocks for n in found.neighbours if own in names[n.kernel] and other in names[n.beside]}


def test_what_is_left_for_nccl_is_in_the_table() -> None:
    found = table("leave = nccl")
    assert beside(found, "NCCL, rings", "sm90_gemm") == {1}
    assert beside(found, "sm90_gemm", "NCCL, rings") == {1}
    assert beside(found, "NCCL, protocol LL128", "sm90_gemm") == {0}
    plain = table("")
    assert beside(plain, "NCCL", "sm90_gemm") == beside(plain, "sm90_gemm", "NCCL") == {0}


def test_kernels_of_one_queue_are_no_neighbours() -> None:
    found = table("leave = 64 KiB")
    assert found.neighbours
    for n in found.neighbours:
        a, b = found.tenants[n.kernel], found.tenants[n.beside]
        assert a.queue != b.queue
        assert a.block is not None
        assert b.block is not None
        assert b.blocks
        assert fits([Several(b.block, b.blocks), Several(a.block, n.fit.blocks)], found.limits)
        assert not fits([Several(b.block, b.blocks), Several(a.block, n.fit.blocks + 1)], found.limits)


def test_kernels_that_nobody_knows_say_so() -> None:
    text = PRODUCT.replace("queue comm", 'kernel k(read x) from "k.cu" entry "k" { grid = 4 }\nqueue comm')
    found = table("", text=text.replace("gemm C = A * A }", "gemm C = A * A  launch k(A) }"))
    (own,) = (t for t in found.tenants if t.kernel == "k")
    assert (own.block, own.blocks, own.measured) == (None, None, False)
    facts: Any = table_facts(found)
    assert [k["threads"] for k in facts["kernels"] if k["kernel"] == "k"] == [None]
    assert facts["multiprocessor"]["registers"] == 65536
