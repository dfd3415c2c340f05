"""Registers and stack of the Hopper kernel's variants, as the compiler has made them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm90 import variants
from tests import cases
from tests.unit.cubin import compiled, registers_of, resources
from tests.unit.test_sm90_gemm import named

# Of the tile's entry, once a tile.
KEPT = {
    ("sm90_gemm_256x128_c2", True): 8,
    ("sm90_gemm_128x160_c2_pp", True): 8,
    ("sm90_gemm_128x192_c2_pp", False): 8,  # of fp32 outputs
    ("sm90_gemm_176x192_c1_swapped", False): 8,
    ("sm90_gemm_192x192_c1_swapped", False): 8,
    ("sm90_gemm_128x128_c2_lean", False): 8,
    ("sm90_gemm_128x128_c1_lean", False): 8,
}
KEPT_FP8 = {f"sm90_gemm_{tile}": 8 for tile in ("128x160_c2_pp", "256x160_c2", "256x168_c2")}


_SCALED = (("1x128", False), ("row", False), ("row", True), (None, True))
FP8 = [
    Signature(left, out, False, True, right_dtype=right, scaling=scaling, fast=fast)
    for left, right, out in (("fp8_e4m3", None, "bf16"), ("fp8_e5m2", "fp8_e4m3", "fp32"))
    for scaling, fast in _SCALED
]
ADDED = [replace(s, addends=True) for s in FP8 if s.out_dtype == "bf16"]
EVERY = (*variants.VARIANTS, *variants.BESIDE, *cases.few(variants.ODD, 8, 3), *variants.LEAN)


@pytest.mark.parametrize("variant", EVERY, ids=lambda v: v.name)
def test_registers_without_spills_as_the_catalogue_says(variant: variants.Variant) -> None:
    kinds = [("bf16", "bf16", False), ("fp16", "fp32", False), ("bf16", "bf16", True), ("fp16", "fp16", True)]
    layouts = [(left_t, right_t) for left_t in (False, True)[: 2 - variant.swapped] for right_t in (False, True)]
    plain = [Signature(dtype, out, *layout, added) for (dtype, out, added), layout in product(kinds, layouts)]
    turn = EVERY.index(variant)
    made = [*cases.few([s for s in plain if variant.takes(s)], 1, turn)]
    if turn % 2 or cases.ALL:
        made += cases.few([s for s in FP8 if variant.takes(s)], 1, turn // 2)
        made += [s for s in ADDED if variant.takes(s)][turn % 4 :: 4]
    for signature in made:
        added, right_t, scaling = signature.addends, signature.right_transposed, signature.scaling
        cubin = compiled(variants.SOURCE, variant.options(signature))
        found = resources(cubin)
        assert found["registers"] <= variant.registers
        kept = KEPT.get((variant.name, added), KEPT_FP8.get(variant.name, 0) if signature.fp8 else 0)
        assert found["stack"] <= kept  # no spill, no array went to local memory
        assert found["shared"] <= variants.STATIC_BYTES + 1024  # which the system keeps of every block
        assert signature.entry(variant.name).encode() in cubin
        producer, consumers = variant.trade(added)
        assert (producer + variant.consumers * consumers) * 128 <= variant.registers * variant.threads
        smem = variant.smem(variant.stages(231424, right_t, scaling), right_t, scaling)
        assert smem + variants.STATIC_BYTES <= 232448


@pytest.mark.parametrize("tile", ["256x128_c1x2", "128x192_c2", "128x128_c1", "64x64_c1"])
def test_promotion_reads_registers_of_both_banks(tile: str) -> None:
    """FFMA takes a second cycle where all three of its registers have even numbers, or odd ones."""
    variant = named(f"sm90_gemm_{tile}")
    read = registers_of(compiled(variants.SOURCE, variant.options(FP8[0])), 0x223)
    assert len(read) >= 3 * variant.blocks_m * variant.tile[1] // 2
    assert not [r for r in read if len({n % 2 for n in r}) == 1]


@pytest.mark.parametrize(("name", "added"), [("sm90_gemm_256x160_c2", False), ("sm90_gemm_128x160_c2_pp", True)])
def test_functions_of_sums_spill_no_more(name: str, added: bool) -> None:
    signature = Signature("bf16", "bf16", False, True, added, "gelu")
    found = resources(compiled(variants.SOURCE, named(name).options(signature)))
    assert found["registers"] <= named(name).registers
    assert found["stack"] <= KEPT.get((name, added), 0)


@pytest.mark.parametrize("variant", [v for v in EVERY if v.takes(FP8[0])], ids=lambda v: v.name)
def test_buffers_hold_the_boxes_in_which_a_group_stores_a_whole_tile(variant: variants.Variant) -> None:
    rows, columns = variant.tile
    for signature in FP8[::4]:
        options = variant.options(signature)
        boxed = variant.box_rows(signature) == 64
        assert f"-DSTAGING={variant.buffers('1x128')}" in options
        assert ("-DBOX_ROWS=64" in options) is boxed is (variant.boxes > 0 and signature.out_dtype == "bf16")
        if boxed:
            assert 4 * variant.buffers("1x128") * variants.CHUNK_BYTES == 2 * rows * columns // variant.consumers
