"""Products of fp8 operands on Hopper: their steps, estimates and limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ficco_rt.geometry.region import Interval
from ficco_rt.kernels import tiles
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm90 import choice, cost, tables, variants
from ficco_rt.kernels.tile_table import SplitK
from tests.unit.test_sm90_gemm import PLAIN, assert_whole, in_pieces, named


def scaled(scaling: str | None = "1x128", **changes: Any) -> tuple[tiles.MatrixWork, Signature]:
    """A product of fp8 matrices, of 300 rows, 576 columns, 1160 deep. `changes`: of the work, or of its types."""
    m, n, k = (Interval(0, 300),), (Interval(0, 576),), (Interval(0, 1160),)
    pitch = 12 if scaling == "1x128" else 1
    left = tiles.Matrix(1 << 20, 300, 1160, 1168, scales=tiles.Scales(4 << 20, pitch))
    right = tiles.Matrix(2 << 20, 576, 1160, 1168, scales=tiles.Scales(5 << 20, pitch))
    work = tiles.MatrixWork(left, right, tiles.Matrix(3 << 20, 300, 576, 576), m, k, n, k, m, n)
    types = {
        name: changes.pop(name) for name in ("dtype", "right_dtype", "right_transposed", "fast") if name in changes
    }
    signature = replace(Signature("fp8_e4m3", "bf16", False, True, scaling=scaling), **types)
    return replace(work, **changes), signature


def test_steps_of_fp8_operands_are_128_deep() -> None:
    work, signature = scaled()
    v = named("sm90_gemm_128x160_c2")
    launch = tables.build([work], v, signature, clusters=4, stages=4, split_k=SplitK(2))
    assert_whole(launch.table, work, False, True, 128)
    assert [(m.dtype, m.box) for m in launch.maps] == [
        ("fp8_e4m3", (128, 128)),
        ("fp8_e4m3", (128, 80)),
        ("bf16", (64, 16)),
        ("fp32", (8, 128)),
    ]
    scales = launch.maps[3]
    assert (scales.dims, scales.pitch, scales.swizzle, scales.offset) == ((10, 300), 48, 0, tables.PARAMETER_BYTES)
    few = tables.build([work], named("sm90_gemm_64x64_c1"), signature, clusters=4, stages=4).maps[3]
    assert (few.box, few.swizzle) == ((16, 64), 64)
    whole = tables.build([work], named("sm90_gemm_128x128_c2"), signature, clusters=4, stages=4)
    assert whole.maps[2].box == (64, 64)  # a group's, of four warps
    data = launch.parameters(1 << 30, 1 << 31, [bytes([i]) * 128 for i in range(4)])
    assert data[tables.PARAMETER_BYTES :] == bytes([3]) * 128 + bytes(7 * 128)
    assert tables.INFO.unpack_from(data, tables.INFOS_AT)[2:4] == (128 * (128 + 160), 4 * 8 * 128)
    assert tables.SCALES.unpack_from(data, tables.SCALES_AT) == (4 << 20, 5 << 20, 12, 12)
    moved = launch.moved(lambda address: address + 4096)
    data = moved.parameters(1 << 30, 1 << 31, [bytes(128)] * 4)
    assert tables.SCALES.unpack_from(data, tables.SCALES_AT)[:2] == ((4 << 20) + 4096, (5 << 20) + 4096)


def test_a_step_of_fp8_costs_what_one_of_bf16_does() -> None:
    every = tuple(v for v in variants.VARIANTS if v.takes(scaled()[1]))
    assert not any(v.pingpong or v.tile[0] * v.tile[1] > 256 * 128 for v in every)
    one = [named(f"sm90_gemm_{tile}") for tile in ("128x128_c1", "128x128_c1_swapped", "128x192_c1")]
    for promoted, tile in (("scales", "128x128_c1"), (None, "256x128_c2")):
        made = choice.ranked([512], [7168], 2048, 132, True, variants=every, scaling="1x128", promoted=promoted)[0]
        assert made.variant == named(f"sm90_gemm_{tile}")
    assert choice.band(one[0], [scaled()[0]], PLAIN.transposed, 132, 1) == 8
    m, n = (Interval(0, 4096),), (Interval(0, 4608),)
    for tile, k, rows in (("256x128_c1x2", 5120, 16), ("256x128_c1x2", 5248, 8), ("128x192_c1", 10240, 16)):
        of = (Interval(0, k),)  # several waves with little of K: bands of twice as many rows
        work = scaled(left_rows=m, left_columns=of, right_rows=n, right_columns=of, out_rows=m, out_columns=n)[0]
        assert choice.band(named(f"sm90_gemm_{tile}"), [work], (False, True), 132, 1) == rows
    least = [[cost.least(v, [128], [128], 2048, 132, by) for by in (None, "sums", "scales")] for v in one]
    assert [[found > times[0] for found in times[1:]] for times in least] == [[True, False], [True, True], [True, True]]
    # the first hides additions with scales of blocks; the second reads scales of all its rows
    assert [times[1] == times[2] for times in least] == [False, False, True]
    every = tuple(v for v in (*variants.VARIANTS, *variants.BESIDE) if v.takes(scaled()[1]))
    waits = tuple(cost.WaitGroup((4096,), at, at) for at in (0.0, 60.0))  # of equal tiles, the one that loads less
    made = choice.ranked([4096] * 2, [2560], 4096, 132, True, late=waits, variants=every, promoted="scales")[0]
    assert made.variant == named("sm90_gemm_256x128_c1x2")
    more: Any = {"late": tuple(replace(w, rows=(2048,)) for w in waits), "variants": every}  # no clusters for L2's sake
    made = choice.ranked([2048] * 2, [4608], 3584, 132, True, **more, promoted="scales")[0]
    assert made.variant == named("sm90_gemm_128x192_c1")
    late = [replace(work, waits=(8,)) for work in in_pieces(512)]
    assert choice.wait_groups(late, 8192, item=1) == choice.wait_groups(late, 4096)


def test_what_of_fp8_the_kernel_cannot_take_is_said() -> None:
    def reason(scaling: str | None = "1x128", **changes: Any) -> str | None:
        work, signature = scaled(scaling, **changes)
        return tables.refusal([work], signature)

    half = (Interval(0, 64),)
    for scaling in ("1x128", "row", None):
        assert reason(scaling) is None
    assert reason(dtype="fp8_e5m2") is not None
    assert reason(dtype="fp8_e5m2", right_dtype="fp8_e4m3") is None
    assert "lie along K" in str(reason(right_transposed=False))
    assert "no meaning" in str(reason(fast=True))
    assert reason("row", fast=True) is None
    bare = tiles.Matrix(1 << 20, 300, 1160, 1168)
    assert "one has no scales" in str(reason(left=bare))
    assert reason(None, left=bare) is None
    for start, refused in ((8, True), (16, False)):
        part = (Interval(start, start + 512),)
        found = reason(None, left_columns=part, right_columns=part)
        assert ("a piece of K does not start at a multiple of 16; let" in str(found)) == refused
    assert "16 bytes" in str(reason(None, left=replace(bare, pitch=1160)))
    assert "scales start at no multiple" in str(reason(left=replace(bare, scales=tiles.Scales(4 << 20, 10))))
    assert "of K starts inside" in str(reason(left_columns=(Interval(64, 192),), right_columns=(Interval(64, 192),)))
    assert "of columns starts inside" in str(reason(right_rows=(Interval(64, 128),), out_columns=half))
    assert reason("row", right_rows=(Interval(64, 128),), out_columns=half) is None
    addend = tiles.Addend(tiles.MatrixOperand(bare, (Interval(0, 300),), (Interval(0, 576),)), "bf16")
    assert reason(addends=(addend,)) is None
    assert "an addend is fp32" in str(reason(addends=(replace(addend, dtype="fp32"),)))
