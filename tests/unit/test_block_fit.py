"""Room: which blocks fit beside each other on a multiprocessor, against known figures and against trying it all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import pytest

from ficco_rt.kernels.block_fit import Fit, Footprint, Left, Resource, Several, Shape, fit, fits, left, shape
from ficco_rt.kernels.collective_blocks import blocks_of, planned, symmetric
from ficco_rt.kernels.families import FAMILIES, footprints
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.machine.profiles import stored
from tools import fit_table as fit_page

H200 = Limits.of(stored("h200-switch").device)
MI250X = Limits.of(stored("mi250x").device)
A100 = Limits("sm_80", 108, 164 << 10, 163 << 10, 1024, 32, 32, 64)
MI300X = Limits.of(stored("mi300x-mesh").device)
SMALL = Limits("sm_89", 4, 100 << 10, 99 << 10, 1024, 24, 32, 48)


def block(threads: int, registers: int, smem: int = 0, name: str = "k") -> Footprint:
    return Footprint(name, threads, registers, 0, smem)


# ---------------------------------------------------------------- known figures


NCCL_2_28 = Footprint("NCCL", 640, 96, 22592, 82240, cluster=4)
NCCL_THIN = Footprint("NCCL, 256 threads asked", 288, 96, 22592, 82240)


def test_beside_a_block_of_nccl_hopper_has_4096_registers_left() -> None:
    assert left([Several(NCCL_2_28)], H200) == Left(4096, 233472 - 105856 - 1024, 2048 - 640, 31)
    for threads, registers in ((128, 40), (256, 24)):
        assert fit(block(threads, registers), [Several(NCCL_2_28)], H200).limited_by == ("registers",)
    assert fit(block(128, 32), [Several(NCCL_2_28)], H200) == _fit(1, "registers")


def test_what_fits_beside_a_thin_block_of_nccl() -> None:
    """9 warps of 3,072 registers lie 3, 2, 2, 2 in four parts of 16,384: 7,168 and three times 10,240 are left."""
    beside = [Several(NCCL_THIN)]
    assert left(beside, H200).registers == 65536 - 27648
    assert fit(block(256, 112), beside, H200) == _fit(1, "registers")  # 2 warps of 3,584 in each part
    assert fit(block(256, 120), beside, H200) == _fit(0, "registers")  # 30,720 registers are free, not side by side
    assert fit(block(128, 128, 126 << 10), beside, H200) == _fit(0, "shared memory")
    assert fit(block(128, 128, 123 << 10), beside, H200) == _fit(1, "registers", "shared memory")


def _fit(blocks: int, *limited: Resource) -> Fit:
    return Fit(blocks, limited)


def test_a_block_that_is_larger_than_any_is_refused_for_its_shared_memory() -> None:
    assert fit(block(128, 32, H200.smem_per_block + 1), (), H200) == _fit(0, "shared memory")
    assert fit(block(2049, 8), (), H200) == _fit(0, "threads")


def test_others_that_do_not_fit_leave_no_room() -> None:
    assert not fits([Several(NCCL_2_28, 2)], H200)
    assert fit(block(32, 8), [Several(NCCL_2_28, 2)], H200) == _fit(0, "registers")


# ---------------------------------------------------------------- against trying it all


def tried(blocks: Sequence[Several], limits: Limits) -> bool:
    """Whether all blocks fit: each in turn puts its warps into the four parts, in every even way."""
    nvidia = limits.arch.startswith("sm_")
    part = 16384 if nvidia else 32768  # gfx90a and gfx942: 512 registers of 64 lanes
    grain = 128 if nvidia else 512
    taken, each = 0, []
    for several in blocks:
        for _ in range(several.count):
            b = several.block
            taken += (b.smem + limits.smem_reserved + grain - 1) // grain * grain
            each.append(((b.threads + limits.warp - 1) // limits.warp, (b.registers + 7) // 8 * 8 * limits.warp))
    if taken > limits.smem_per_sm or len(each) > limits.max_residency:
        return False
    seen = set()

    def put(at: int, free: tuple[int, ...], slots: tuple[int, ...]) -> bool:
        if min(free) < 0 or min(slots) < 0 or (at, free, slots) in seen:
            return False
        if at == len(each):
            return True
        seen.add((at, free, slots))
        warps, of_warp = each[at]
        for ways in product((warps // 4, warps // 4 + 1), repeat=4):
            if sum(ways) == warps and put(
                at + 1,
                tuple(f - n * of_warp for f, n in zip(free, ways, strict=True)),
                tuple(s - n for s, n in zip(slots, ways, strict=True)),
            ):
                return True
        return False

    return put(0, (part,) * 4, (limits.max_warps // 4,) * 4)


@pytest.mark.parametrize("limits", [H200, A100, SMALL, MI250X, MI300X], ids=lambda limits: limits.arch)
def test_room_is_what_trying_every_layout_finds(limits: Limits) -> None:
    draw = random.Random(20)
    smems = [0, 1000, 16 << 10, 33 << 10, 60 << 10, 100 << 10]
    for _ in range(60):
        kinds = [
            block(draw.choice([32, 64, 96, 128, 160, 288, 384, 512, 640]), draw.randrange(16, 256), draw.choice(smems))
            for _ in range(draw.choice([1, 2, 2, 3]))
        ]
        *others, mine = kinds
        beside = [Several(b, draw.choice([1, 1, 2])) for b in others]
        assert fits(beside, limits) == tried(beside, limits), (limits, beside)
        found = fit(mine, beside, limits)
        if mine.smem > limits.smem_per_block or not tried(beside, limits):
            assert found.blocks == 0
            continue
        n = found.blocks
        assert tried([*beside, Several(mine, n)], limits), (limits, mine, beside, found)
        assert not tried([*beside, Several(mine, n + 1)], limits), (limits, mine, beside, found)
        assert found.limited_by


def test_room_left_is_room_for_one_block() -> None:
    for smem, count in product((0, 1, 5000, 60 << 10), (1, 2, 3)):
        beside = [Several(block(128, 32, smem), count)]
        some = left(beside, H200).smem
        assert fits([*beside, Several(block(32, 8, some))], H200)
        assert not fits([*beside, Several(block(32, 8, some + 129))], H200) or some == H200.smem_per_block


# ---------------------------------------------------------------- blocks of the vendor's collectives


def threads(kinds: str, asked: int | None = None, arch: str = "sm_90a") -> dict[str, int]:
    return {b.when: b.footprint.threads for b in blocks_of(kinds.split(), asked, arch)}


def test_threads_of_nccl_s_blocks() -> None:
    rings, trees = "rings, simple protocol", "trees, simple protocol"
    assert threads("all_reduce") == {rings: 544, trees: 640, "protocol LL128": 640}
    assert threads("all_gather reduce_scatter", 256) == {rings: 288, "protocol LL128": 640}
    assert threads("all_to_all", 256) == {"sends": 640}
    assert threads("all_reduce", 512, "gfx90a") == {"any": 256}
    assert blocks_of([], None, "sm_90a") == ()


def test_what_room_is_left_for() -> None:
    assert [f.threads for f in planned({"all_reduce"}, None, "sm_90a")] == [640]
    assert [f.threads for f in planned({"all_reduce"}, 256, "sm_90a")] == [288]
    assert [f.threads for f in planned({"all_reduce", "all_to_all"}, 256, "sm_90a")] == [288, 640]
    (old,), (new,) = (planned({"all_reduce"}, 256, "sm_90a", version) for version in ((2, 28), (2, 31)))
    assert (old.smem, new.smem) == (22592 + 82240, 37824 + 82240)
    assert planned({"all_reduce"}, None, "sm_90a") == (NCCL_2_28,)
    assert symmetric().threads * symmetric().registers == 36864


def test_only_figures_that_were_read_are_called_measured() -> None:
    assert all(b.measured for b in blocks_of({"all_reduce"}, None, "sm_90a"))
    for arch in ("sm_80", "sm_100a", "gfx90a", "gfx942"):
        assert not any(b.measured or "not measured" not in b.source for b in blocks_of({"all_reduce"}, None, arch))


# ---------------------------------------------------------------- blocks that leave room


@pytest.mark.parametrize("limits", [H200, A100, MI250X, MI300X], ids=lambda limits: limits.arch)
def test_shaped_blocks_keep_out_one_more_and_leave_the_room(limits: Limits) -> None:
    leave = (*planned({"all_reduce"}, 256, limits.arch), Footprint("10 KiB", 0, 0, 0, 10 << 10))
    for own in footprints(limits):
        for count in (1, 2, 3):
            found = shape(own, count, leave, limits)
            if found is None:
                continue
            for dynamic in (max(found.least, own.dynamic_smem), found.most):
                sized = Footprint(own.kernel, own.threads, 0, own.static_smem, dynamic)  # registers keep out nobody
                assert fit(sized, (), limits).blocks == count or "threads" in fit(sized, (), limits).limited_by
                sized = Footprint(own.kernel, own.threads, own.registers, own.static_smem, dynamic)
                assert all(tried((Several(sized, count), Several(other)), limits) for other in leave)


def test_shapes_on_hopper() -> None:
    nccl = planned({"all_reduce"}, 256, "sm_90a")
    found = {own.kernel: shape(own, 1, nccl, H200) for own in footprints(H200)}
    assert {k for k, s in found.items() if s and k.startswith("sm90")} == {
        "sm90_gemm_128x128_c2_lean", "sm90_gemm_128x128_c1_lean", "sm90_gemm_64x128_c1_lean", "sm90_gemm_64x64_c1_lean",
    }  # fmt: skip
    assert found["sm90_gemm_64x64_c1_lean"] == Shape(1, 115568, 126320)
    assert not any(shape(own, 1, (NCCL_2_28,), H200) for own in footprints(H200))


def test_every_family_tells_its_blocks() -> None:
    for family in FAMILIES:
        for limits in (H200, A100, MI250X):
            if family.serves(limits.arch):
                assert [f.kernel for f in family.footprints(limits)] == [v.name for v in family.variants]


def test_the_page_has_the_models_tables() -> None:
    text = fit_page.PAGE.read_text(encoding="utf-8")
    assert fit_page.page(text) == text, "python -m tools.fit_table --write"
