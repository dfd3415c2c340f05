"""The operands of `tools.bench --scales`: values, scales and plain numbers of one rank are told alike everywhere. What
the process of `test_bench_scaled.py` does."""

from __future__ import annotations

import torch

from tools.bench.data import empty, fill, operand, plain, reference
from tools.bench.scaled import products
from tools.bench.scenarios import Scenario


def everything() -> None:
    for scales in ("1x128", "row"):
        operands_and_their_product(scales)
    left_scales_are_turned()


def operands_and_their_product(scales: str) -> None:
    scenario = Scenario("ag_gemm", "x", 32, 256, 512, 1, scales)
    layouts, cpu = scenario.layouts(2), torch.device("cpu")
    pairs = {(name, rank): empty(layouts[name], cpu) for name in "AB" for rank in range(2)}
    for (name, rank), pair in pairs.items():
        fill(pair, name, rank, scenario.k, 7)
        values, by = pair
        wide = values.shape[1] // by.shape[1]
        assert values.float().abs().max() == 448
        drawn = torch.empty(values.shape)
        generator = torch.Generator().manual_seed((7 * 1_000_003 + rank) * 2 + "AB".index(name))
        drawn.normal_(generator=generator).mul_(512**-0.25)
        spread = by.repeat_interleave(values.shape[0] // by.shape[0], 0).repeat_interleave(wide, 1)
        assert torch.equal(plain(pair), values.float() * spread)
        assert bool(((plain(pair) - drawn).abs() <= drawn.abs() / 16 + spread * 2**-9).all())
        assert torch.equal(operand(layouts, scenario.k, 7, cpu)(name, rank), plain(pair))
    of = operand(layouts, scenario.k, 7, cpu)
    wanted = torch.cat([of("A", 0), of("A", 1)]) @ of("B", 1).T
    found = reference("all_gather", (32, 128), 2, 1, lambda q: of("A", q), lambda q: of("B", q), cpu, 1)
    torch.testing.assert_close(found, wanted)


def left_scales_are_turned() -> None:
    left, right = (empty(((rows, 512), blocks), "cpu") for rows, blocks in ((32, (1, 128)), (256, (128, 128))))
    for name, pair in zip("AB", (left, right), strict=True):
        fill(pair, name, 0, 512, 1)
    product = products(left, right, torch.empty(32, 256, dtype=torch.bfloat16))["cuBLASLt"]
    turned = product.prepare()
    assert isinstance(turned, torch.Tensor)
    assert turned.stride() == (1, 32)
    assert torch.equal(turned, left[1])
