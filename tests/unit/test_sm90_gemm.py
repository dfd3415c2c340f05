"""The Hopper GEMM without a GPU: its table of tiles, its parameters, and what the compiler makes of it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ficco_rt.geometry.region import Interval
from ficco_rt.kernels import tile_table, tiles
from ficco_rt.kernels.pace import Pace
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm90 import choice, cost, tables, variants
from ficco_rt.kernels.tile_table import TILE, SplitK
from tests.unit.gemm_tables import addends, assert_addends, assert_whole, matrix, pieces

Spans = tuple[Interval, ...]
PLAIN = Signature("bf16", "bf16", False, False)
TURNED = Signature("bf16", "bf16", False, True)


def named(name: str) -> variants.Variant:
    return next(v for v in (*variants.VARIANTS, *variants.BESIDE, *variants.ODD) if v.name == name)


@st.composite
def works(draw: st.DrawFn, left_t: bool = False) -> tiles.MatrixWork:
    m, n = draw(st.integers(1, 700)), draw(st.integers(1, 90)) * 8
    m = -(-m // 8) * 8 if left_t else m
    left_rows, out_rows = draw(pieces(m, 8 if left_t else 1)), draw(pieces(m, 8 if left_t else 1))
    right_columns, out_columns = draw(pieces(n, 8)), draw(pieces(n, 8))
    if draw(st.booleans()):
        k = draw(st.integers(1, 12)) * 64
        left_columns, right_rows = draw(pieces(k, 64)), draw(pieces(k, 64))
    else:
        k = draw(st.integers(1, 100)) * 8
        left_columns = right_rows = (Interval(0, k),)
    if left_t:
        left_rows, left_columns = left_columns, left_rows
    return tiles.MatrixWork(
        matrix(1 << 20, left_rows, left_columns), matrix(2 << 20, right_rows, right_columns),
        matrix(3 << 20, out_rows, out_columns), left_rows, left_columns, right_rows, right_columns, out_rows,
        out_columns, signals=(4096,), addends=(added := () if left_t else draw(addends(m, n, 8, ("bf16",)))),
        addend_waits=(64, 128) if added else (),
    )  # fmt: skip


@settings(deadline=None)
@given(
    st.booleans().flatmap(lambda left_t: st.tuples(st.just(left_t), works(left_t))),
    st.sampled_from((*variants.VARIANTS, *variants.BESIDE)),
    st.integers(1, 140),
    st.integers(1, 6),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
)
def test_tiles_make_every_element_once_from_the_right_operands(
    drawn: tuple[bool, tiles.MatrixWork],
    variant: variants.Variant,
    sms: int,
    splits: int,
    band: int | None,
    whole: bool,
) -> None:
    left_t, work = drawn
    signature = replace(PLAIN, left_transposed=left_t)
    split_k = SplitK(works=(splits,)) if whole else SplitK(tail=splits)
    clusters = variant.clusters(sms)
    table = tables.build([work], variant, signature, clusters=clusters, stages=2, band=band, split_k=split_k).table
    counted = tile_table.count(
        [work], variant.tile, signature.transposed, groups=clusters, cluster=variant.cluster,
        across=variant.shares_left, split_k=split_k,
    )  # fmt: skip
    assert counted == len(table.tiles)
    assert_whole(table, work, *signature.transposed)
    assert_addends(table, work, staged=True)
    if work.addends:
        # behind a step of K each, the first behind the tile's first at the earliest; the same in both of a cluster
        at, gap, count = (table.tile_addends[name].astype(int) for name in ("at", "gap", "count"))
        last = at + gap * np.maximum(0, count * variant.addend_steps - 1)
        assert ((at >= 1) & (last <= table.tiles["k_blocks"])).all()
        assert ((gap > 0) | (at == table.tiles["k_blocks"])).all()
        assert not (variant.pingpong and gap.any())  # nothing is multiplied meanwhile but the next tile
        for values in (at, gap, count):
            assert (values.reshape(-1, variant.cluster) == values.reshape(-1, variant.cluster)[:, :1]).all()
    # neighbours of a cluster read the same columns or rows, and the same depth, and no cluster is half there
    assert len(table.tiles) % variant.cluster == 0
    for name in ("left_row" if variant.shares_left else "right_col", "k_first", "k_blocks", "wait_first"):
        grouped = table.tiles[name].reshape(-1, variant.cluster)
        assert (grouped == grouped[:, :1]).all()
    # every other wave goes through K backwards
    wave = sms // variant.cluster * variant.cluster or variant.cluster
    back = table.depths["size"][table.tiles["k_first"]] < 0
    assert (back == (np.arange(len(table.tiles)) // wave % 2 == 1)).all()
    # a signal's target is what the storing warps of all parts of tiles count: each stores a share
    assert table.signals[0]["target"] == len(table.tiles) * variant.warps


def in_pieces(*rows: int, n: int = 2560, k: int = 8192, signals: bool = False) -> list[tiles.MatrixWork]:
    """A product's rows in pieces, of which all but the first wait for a flag."""
    edges = [sum(rows[:i]) for i in range(len(rows) + 1)]
    left, right, out = (tiles.Matrix(i << 20, *shape, shape[1])
                        for i, shape in enumerate([(edges[-1], k), (k, n), (edges[-1], n)]))  # fmt: skip
    depth, columns = (Interval(0, k),), (Interval(0, n),)
    pieces = [(Interval(a, b),) for a, b in pairwise(edges)]
    return [
        tiles.MatrixWork(left, right, out, piece, depth, depth, columns, piece, columns, waits=(64 * i,) if i else (),
                   signals=(4096,) if signals else ())
        for i, piece in enumerate(pieces)
    ]  # fmt: skip


def test_pieces_of_k_that_wait_are_walked_in_their_order() -> None:
    """Whichever wave they are in; what waits for nothing, or for all of it at once, goes there and back."""
    *firsts, last = in_pieces(512, 512, 512)
    pieces = tuple(Interval(2048 * i, 2048 * (i + 1)) for i in range(4))
    along_k = replace(last, left_columns=pieces, right_rows=pieces,
                      depth_waits=tuple((2048 * i, (4096 + 64 * i,)) for i in range(1, 4)))  # fmt: skip
    v = named("sm90_gemm_128x160_c2")
    table = tables.build([*firsts, along_k], v, PLAIN, clusters=v.clusters(32), stages=4).table
    odd = np.arange(len(table.tiles)) // 32 % 2 == 1
    of_last = table.tiles["out_row"] >= 1024
    for piece in range(4):
        depths = table.depths[table.tiles["k_first"][of_last] + piece]
        assert (depths["size"] == 2048).all()
        assert (depths["left"] == 2048 * piece).all()
    assert ((table.depths["size"][table.tiles["k_first"][~of_last]] < 0) == odd[~of_last]).all()
    assert odd[of_last].any()
    assert odd[~of_last].any()


def test_works_that_come_one_by_one_and_make_few_tiles_are_cut() -> None:
    v = named("sm90_gemm_128x160_c2")  # 64 tiles of 512 rows: half of the multiprocessors
    works = in_pieces(512, 512, 512, 512)
    assert choice.split_k_of(v, works, [2560], 8192, 132) == SplitK(works=(2, 2, 2, 2))
    assert choice.split_k_of(v, in_pieces(512, 512, signals=True), [2560], 8192, 132) == SplitK()
    assert choice.split_k_of(v, in_pieces(512), [2560], 8192, 132) == SplitK(tail=2)
    assert choice.split_k_of(v, in_pieces(2048, 2048), [2560], 8192, 132).works == ()  # each fills the device
    # many small pieces: what they leave in memory has a limit, and the first ones are not cut before the last
    parts = choice.split_k_of(v, in_pieces(*[128] * 64), [2560], 8192, 132).works
    assert list(parts) == sorted(parts)
    # their ends are hidden where consumers take turns; the last ones stay whole if they come early, or along K
    late = choice.wait_groups(works, 8192, 92.0)
    by_turns = choice.ranked([512] * 4, [2560], 8192, 132, False, late=late)[0].variant
    assert by_turns.pingpong
    assert by_turns.tile == v.tile
    assert not choice.ranked([512] * 4, [2560], 8192, 132, False, late=late, addends=1)[0].variant.pingpong
    *firsts, last = works
    along_k = replace(last, depth_waits=tuple((2048 * i, (4096 + 64 * i,)) for i in range(1, 4)))
    assert choice.split_k_of(v, [*firsts, along_k], [2560], 8192, 132) == SplitK(works=(2, 2, 1, 1))


def added_late(works: Sequence[tiles.MatrixWork], signals: int = 0) -> list[tiles.MatrixWork]:
    """The same with a term each, whose flags are waited for in place of the operands'; the first `signals` signal."""
    term = tiles.Matrix(9 << 20, works[0].out.rows, works[0].out.columns, works[0].out.pitch)
    return [
        replace(w, waits=(), addend_waits=w.waits, signals=(4096 + 64 * i,) if i < signals else (),
                addends=(tiles.Addend(tiles.MatrixOperand(term, w.out_rows, w.out_columns), "bf16"),))
        for i, w in enumerate(works)
    ]  # fmt: skip


@pytest.mark.parametrize(("rows", "tail"), [((512, 512, 512, 512, 512), 2), ((512, 512, 512, 256), 1)])
def test_the_last_wave_is_cut_if_nothing_in_it_signals(rows: tuple[int, ...], tail: int) -> None:
    """32 clusters' tiles of 512 rows for 66 clusters: 28 in the last wave, of a work that does not signal; or 46, of
    which the last work has 16."""
    v = named("sm90_gemm_128x160_c2")
    works = added_late(in_pieces(*rows), signals=len(rows) - 1)
    cuts = choice.split_k_of(v, works, [2560], 8192, 132)
    assert cuts == SplitK(tail=tail)
    made = tables.build(works, v, PLAIN, clusters=v.clusters(132), stages=4, split_k=cuts).table
    cut = made.tiles["splits"] > 1
    assert cut.any() == (tail > 1)
    assert (made.tiles["signal"][cut] == -1).all()
    every = added_late(in_pieces(*rows), signals=len(rows))
    assert choice.split_k_of(v, every, [2560], 8192, 132) == SplitK()


def test_what_is_added_comes_behind_the_operands() -> None:
    """A wait for it is for the end of a work: the operands are there."""
    works = added_late(in_pieces(512, 512, 512))
    free, *late = choice.wait_groups(works, 8192)
    assert (free.first, free.last, free.share) == (0.0, 0.0, 1.0)
    assert [p.first for p in late] == [0.0, 0.0]
    assert [p.share for p in late] == [0.0, 0.0]
    assert 0 < late[0].last < late[1].last
    assert late[1].last == pytest.approx(2 * late[0].last)
    waited = choice.wait_groups(in_pieces(512, 512, 512), 8192)  # 8192 operands a row, 2560 that are added
    assert late[1].last < waited[2].last
    assert choice.wait_groups(works, 8192, 50.0)[-1].last == pytest.approx(50.0)


def test_of_variants_that_wait_alike_the_fastest_is_chosen() -> None:
    """If what is added comes last of all, no variant ends before another: then what one does alone counts."""
    sizes = ([512] * 4, [2560], 8192, 132, False)
    alone = choice.ranked(*sizes, addends=1)[0]
    late = choice.wait_groups(added_late(in_pieces(512, 512, 512, 512)), 8192, 10_000.0)
    found = choice.ranked(*sizes, late=late, addends=1)[0]
    assert found.variant == alone.variant != variants.VARIANTS[0]
    assert found.estimate == pytest.approx(10_000, abs=20)


def in_depth(
    *sizes: int, waits: Sequence[tuple[int, ...]], signals: Sequence[tuple[int, ...]] = ()
) -> list[tiles.MatrixWork]:
    """A product as a work for each piece of K, each but the first added to what is there."""
    m, n, k = 512, 512, sum(sizes)
    a, b, c = (tiles.Matrix(i << 20, *shape, shape[1]) for i, shape in enumerate([(m, k), (k, n), (m, n)]))
    rows, columns = (Interval(0, m),), (Interval(0, n),)
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    pieces = [(Interval(low, high),) for low, high in pairwise(edges)]
    return [
        tiles.MatrixWork(
            a, b, c, rows, piece, piece, columns, rows, columns, i > 0, waits[i], signals[i] if signals else ()
        )
        for i, piece in enumerate(pieces)
    ]


def test_pieces_of_k_that_are_added_one_after_another_stay_in_registers() -> None:
    turned = (False, False)
    chain = in_depth(256, 128, 128, waits=[(8,), (16, 4), (24, 12)], signals=[(4,), (12,), (96,)])
    (work,) = tiles.in_registers(chain, turned, {4, 12}).works
    assert work.left_columns == work.right_rows == (Interval(0, 256), Interval(256, 384), Interval(384, 512))
    assert (work.accumulate, work.waits, work.signals) == (False, (8,), (96,))
    assert work.depth_waits == ((256, (16,)), (384, (24,)))
    assert tiles.depth_of([work], turned) == 512
    # somebody else waits for what lies between, there is another product between, a piece ends inside a step, or the
    # first piece waits for nothing
    assert list(tiles.in_registers(chain, turned, {4}).works) == [replace(work, left_columns=work.left_columns[:2],
        right_rows=work.right_rows[:2], signals=(12,), depth_waits=((256, (16,)),)), chain[2]]  # fmt: skip
    other = replace(chain[0], out=replace(chain[0].out, address=9 << 20), signals=())
    assert tiles.in_registers([chain[0], other, chain[1]], turned, {4}).works == (chain[0], other, chain[1])
    for apart in (in_depth(200, 312, waits=[(8,), (16,)]), in_depth(256, 256, waits=[(), (16,)])):
        assert tiles.in_registers(apart, turned) == tiles.Merged(tuple(apart), ((0,), (1,)))


def test_merged_works_say_which_they_are_and_are_merged_again_on_memory() -> None:
    turned = (False, False)
    chain = in_depth(256, 128, 128, waits=[(8,), (16, 4), (24, 12)], signals=[(4,), (12,), (96,)])
    found = tiles.in_registers(chain, turned, {4})
    assert found.groups == ((0, 1), (2,))
    placed = [
        replace(w, waits=tuple(4096 + f for f in w.waits), signals=tuple(4096 + f for f in w.signals)) for w in chain
    ]
    again = tiles.merged(placed, turned, found.groups)
    assert again == tiles.in_registers(placed, turned, {4100}).works
    assert [w.depth_waits for w in again] == [((256, (4112,)),), ()]


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(1, 5), st.sampled_from(variants.VARIANTS))
def test_pieces_of_k_keep_their_flags_however_k_is_split(
    sizes: list[int], splits: int, variant: variants.Variant
) -> None:
    works = in_depth(*(64 * n for n in sizes), waits=[(4096 + 64 * i,) for i in range(len(sizes))])
    (work,) = tiles.in_registers(works, (False, False)).works
    launch = tables.build([work], variant, PLAIN, clusters=variant.clusters(132), stages=4, split_k=SplitK(tail=splits))
    table = launch.table
    assert_whole(table, work, False, False)
    starts = np.cumsum([0, *sizes])
    for t in table.tiles:
        assert table.flags[t["wait_first"] : t["wait_first"] + t["wait_count"]].tolist() == [4096]
        left, at = int(t["k_blocks"]), int(t["k_first"])
        while left:
            first, count = table.depth_waits[at]
            piece = int(np.searchsorted(starts, int(table.depths["left"][at]) // 64, side="right")) - 1
            assert table.flags[first : first + count].tolist() == ([4096 + 64 * piece] if piece else [])
            left, at = left - int(table.depths["blocks"][at]), at + 1
    data = launch.parameters(1 << 30, 1 << 31, [bytes(128)] * len(launch.maps))
    (pointer,) = struct.unpack_from("<Q", data, tables.POINTERS_AT + 112)
    assert pointer == (1 << 30) + table.offsets[6]
    # a left operand is then not loaded before its flags, whatever writes it
    made = [
        tables.build([w], variant, PLAIN, clusters=variant.clusters(132), stages=4, read_only=(True, True)).read_only
        for w in (work, works[0])
    ]
    assert made == [(False, True), (True, True)]


def test_stores_of_short_products_are_hidden_by_consumers_that_alternate() -> None:
    """48.0 µs at 5000 × 2880 × 1024 on an H200, where other tiles took 51.8 and more."""

    def chosen(m: int, n: int, k: int, **more: Any) -> variants.Variant:
        return choice.ranked([m], [n], k, 132, False, **more)[0].variant

    assert chosen(5000, 2880, 1024).pingpong
    assert not chosen(5000, 2880, 1024).throttled
    assert not chosen(5000, 2880, 1024, addends=1).pingpong
    assert not chosen(8192, 14336, 8192).pingpong
    # 777 µs, 128 × 160 863, 128 × 256 899
    assert chosen(32768, 16384, 512).name == "sm90_gemm_128x192_c2_pp"
    halves = choice.wait_groups(in_pieces(16384, 16384), 512, 45.0)
    assert choice.ranked([16384] * 2, [16384], 512, 132, False, late=halves)[0].variant is chosen(32768, 16384, 512)
    assert chosen(16384, 4096, 1024, throttled=True).throttled


@pytest.mark.parametrize(("k", "rows"), [(1024, 4), (1088, 8)])
def test_paced_tiles_of_short_products_are_walked_in_narrow_bands(k: int, rows: int) -> None:
    """So many rows of clusters' tiles come before the first tile of the next ones."""
    m, n, depth = ((Interval(0, size),) for size in (16384, 4096, k))
    left, right, out = matrix(1 << 20, m, depth), matrix(2 << 20, depth, n), matrix(3 << 20, m, n)
    work = tiles.MatrixWork(left, right, out, m, depth, depth, n, m, n)
    v = named("sm90_gemm_128x256_c2_paced")
    band = choice.band(v, [work], PLAIN.transposed, 132)
    made = tables.build([work], v, PLAIN, clusters=v.clusters(132), stages=3, band=band)
    first = made.table.tiles["left_row"][: rows * 16 * 2]
    assert first.max() == (rows * 2 - 1) * 128
    assert made.table.tiles["left_row"][len(first)] == rows * 2 * 128


@pytest.mark.parametrize(
    ("m", "tile", "band"),
    [
        (832, "104x64_c1_swapped", 4),  # eight rows of tiles
        (785, "64x96_c1", 7),  # seven and six
        (534, "64x160_c1", 5),  # five and four
        (785, "64x192_c1", 1),  # five across
        (384, "64x160_c1", None),  # six
        (785, "64x48_c1", None),  # more than are at work at once
        (832, "128x64_c2_parts", None),
    ],
)
def test_single_blocks_at_work_at_once_are_walked_in_even_bands(m: int, tile: str, band: int | None) -> None:
    """Blocks that start one after another load the same."""
    rows, n, depth = (Interval(0, m),), (Interval(0, 960),), (Interval(0, 512),)
    left, right, out = matrix(1 << 20, rows, depth), matrix(2 << 20, n, depth), matrix(3 << 20, rows, n)
    work, v = tiles.MatrixWork(left, right, out, rows, depth, n, depth, rows, n), named(f"sm90_gemm_{tile}")
    assert choice.band(v, [work], TURNED.transposed, 132) == band
    assert choice.band(v, [work, work], TURNED.transposed, 132) is None
    made = tables.build([work], v, TURNED, clusters=v.clusters(132), stages=3, band=band)
    assert made.first is not None
    if band and band > 1:
        assert len(set(made.table.tiles["left_row"][: 2 * band].tolist())) == band


def test_a_variant_fits_what_it_is_given() -> None:
    def chosen(smem: int = 200 << 10, sms: int = 132, throttled: bool = False) -> variants.Variant:
        return choice.ranked([4096], [4096], 4096, sms, False, smem, throttled=throttled)[0].variant

    assert chosen(throttled=True).throttled
    assert not chosen().throttled
    small = chosen(50 << 10, throttled=True)  # no buffers for a whole tile
    assert not small.throttled
    assert small.stages(50 << 10, False) >= 2
    assert chosen(sms=1).cluster == 1
    assert not choice.ranked([4096], [4096], 4096, 132, False, 30000)


def test_odd_widths_are_for_plain_products_that_leave_waves_half_empty() -> None:
    def chosen(m: int, n: int, k: int, **more: Any) -> variants.Variant:
        return choice.ranked([m], [n], k, 132, False, lines=(k % 64 == 0, n % 64 == 0), **more)[0].variant

    assert chosen(5000, 1000, 3000).tile == (256, 168)  # 60 of 66 clusters, once
    assert not chosen(3000, 2304, 7168).odd  # 66 clusters, twice, but each row of a box starts inside a sector of L2
    assert not chosen(8192, 2560, 8192).odd
    assert not chosen(5000, 1000, 3000, addends=1).odd
    assert not chosen(5000, 1000, 3000, late=[cost.WaitGroup((5000,), 10.0, 10.0)]).odd


def test_transposed_tiles_are_for_plain_products_that_fill_whole_waves() -> None:
    every = (*variants.VARIANTS, *variants.ODD)

    def chosen(m: int, n: int, k: int, **more: Any) -> variants.Variant:
        lines = (k % 64 == 0, n % 64 == 0)
        return choice.ranked([m], [n], k, 132, False, variants=every, lines=lines, **more)[0].variant

    assert (chosen(5000, 1000, 3000).tile, chosen(5000, 1000, 3000).swapped) == ((160, 256), True)  # 64 of 66 clusters
    assert chosen(7001, 1496, 2040).tile == (160, 256)  # 66 clusters, twice
    assert chosen(3000, 3000, 3000).tile == (144, 256)  # the same
    assert (chosen(16, 8192, 4096).tile, chosen(17, 8192, 4096).swapped) == ((16, 64), False)  # few rows: a tile's
    assert not chosen(8192, 2560, 8192).swapped
    assert not chosen(5000, 1000, 3000, addends=1).swapped
    assert not chosen(5000, 1000, 3000, late=[cost.WaitGroup((5000,), 10.0, 10.0)]).swapped
    assert not chosen(5000, 1000, 3000, throttled=True).swapped


def test_rows_that_start_inside_lines_cost_a_sector_more() -> None:
    v = named("sm90_gemm_128x192_c2")
    times = [cost.alone(v, [3000], [3000], 3000, 132, 0, True, (a, b))[0] for a in (True, False) for b in (True, False)]
    assert times == sorted(times)
    assert times[0] < 0.9 * times[3]
    (work,) = in_pieces(512)
    assert choice.whole_lines([work]) == (True, True)
    assert choice.whole_lines([work, replace(work, left=replace(work.left, pitch=3000))]) == (False, True)
    assert choice.whole_lines([replace(work, right=replace(work.right, address=64))]) == (True, False)


@pytest.mark.parametrize("rows", [16, 64])
def test_few_rows_take_what_is_fastest_on_an_h200(rows: int) -> None:
    """Within 4 % of the best, of 14 to 22 that were measured."""

    def chosen(n: int, k: int) -> tuple[tuple[int, int], int]:
        found = choice.ranked([rows], [n], k, 132, False)[0]
        return found.variant.tile, found.tail_splits

    assert chosen(10240, 4096) == ((64, 128), 1)  # 80 blocks: 23.8 µs for 16 rows, where 54 of 192 columns take 24.3
    assert chosen(4608, 7168) == ((64, 64), 1)  # 72: 19.7
    assert chosen(2560, 8192) == ((64, 64), 3)  # 120: 16.6; two parts take 16.0
    assert chosen(7168, 4096) == ((64, 64), 1)  # 112: 18.2; 56 of 128 columns take 17.8
    assert chosen(16384, 2048) == ((64, 128), 1)  # 128: 19.6
    assert chosen(5120, 8192) == ((64, 64), 1)  # 80: 23.9


def test_few_rows_that_wait_for_the_same_flags_split_k_as_others_do() -> None:
    late = [cost.WaitGroup((64,), 5.8, 5.8)]
    found = choice.ranked([64], [2560], 8192, 132, False, late=late)[0]
    assert (found.variant.tile, found.tail_splits) == ((64, 64), 3)
    (work,) = in_pieces(64, n=2560, k=8192)
    assert choice.split_k_of(found.variant, [replace(work, waits=(8,))], [2560], 8192, 132) == SplitK(3)


def test_the_estimate_is_close_to_times_on_an_h200() -> None:
    """Of tiles near the best, in µs."""
    times = {
        (16, 5120, 8192, "64x64_c1"): 23.9,
        (64, 10240, 4096, "64x192_c1"): 24.7,
        (256, 10240, 2048, "128x160_c2"): 21.0,
        (785, 960, 4864, "64x192_c1"): 16.9,
        (1303, 2240, 1024, "128x192_c1"): 13.1,
        (2048, 2560, 8192, "256x160_c2"): 123.5,
    }
    for (m, n, k, name), time in times.items():
        assert cost.alone(named(f"sm90_gemm_{name}"), [m], [n], k, 132, 0, True)[0] == pytest.approx(time, rel=0.15)


def test_works_that_signal_split_k_where_all_tiles_are_at_work_at_once() -> None:
    """40 tiles of 64 × 128 in three parts each; 160 tiles are two waves, and works whose flags differ come in turn."""
    v = named("sm90_gemm_64x128_c1")
    (work,) = in_pieces(64, n=5120, k=8192, signals=True)
    for waits in ((), (8,)):
        assert choice.split_k_of(v, [replace(work, waits=waits)], [5120], 8192, 132) == SplitK(3)
    (wide,) = in_pieces(64, n=20480, k=8192)
    assert choice.split_k_of(v, [wide], [20480], 8192, 132).tail > 1
    assert choice.split_k_of(v, [replace(wide, signals=(8,))], [20480], 8192, 132) == tile_table.WHOLE_K
    works = in_pieces(32, 32, n=5120, k=8192, signals=True)
    assert choice.split_k_of(v, works, [5120], 8192, 132).works == ()
    assert choice.split_k_of(v, works, [5120], 8192, 132) == tile_table.WHOLE_K
    works = [replace(w, waits=()) for w in works]  # one for each rank that reads it
    assert choice.split_k_of(v, works, [2560], 8192, 132) == SplitK(3)


def foreseen(*works: tiles.MatrixWork, name: str = "sm90_gemm_64x64_c1", splits: int = 1) -> tuple[int, ...] | None:
    v = named(name)
    launch = tables.build(works, v, PLAIN, clusters=v.clusters(132), stages=4, split_k=SplitK(splits))
    data = launch.parameters(1 << 30, 1 << 31, [bytes(128)] * len(launch.maps))
    written = tables.FIRST_GRID.unpack_from(data, tables.FIRST_GRID_AT)
    assert written == (launch.first or (0,) * 13)
    if launch.first is None:
        return None
    assert launch.first[9:11] == (works[0].left.rows, works[0].right.rows)
    return launch.first[:9]


def test_blocks_foresee_first_tiles_that_lie_side_by_side() -> None:
    (work,) = in_pieces(50, n=2560, k=8192)
    assert foreseen(work) == (0, 0, 0, 0, 128, 1, 40, 1, 1)
    assert foreseen(work, splits=3) == (0, 0, 0, 0, 128, 1, 40, 1, 3)
    (wide,) = in_pieces(50, n=10240, k=520)  # 160 tiles: the last 28 stand in the table alone
    assert foreseen(wide) == (0, 0, 0, 0, 9, 1, 160, 1, 1)
    assert foreseen(wide, splits=4) == (0, 0, 0, 0, 9, 1, 160, 1, 1)
    part = Interval(1024, 2048)
    inner = replace(
        work, left_columns=(part,), right_rows=(part,), left_rows=(Interval(8, 50),), out_rows=(Interval(0, 42),)
    )
    assert foreseen(inner) == (8, 0, 1024, 1024, 16, 1, 40, 1, 1)
    assert foreseen(*in_pieces(65)) == (0, 0, 0, 0, 128, 2, 40, 2, 1)
    assert foreseen(work, name="sm90_gemm_128x64_c1", splits=2) == (0, 0, 0, 0, 128, 1, 40, 1, 2)


def test_long_products_have_clusters_of_two() -> None:
    """Whose consumers alternate over no more than 4096 of K: 1349 and 1354 µs of 16384 × 8192 × 4096."""
    alternate, both = "sm90_gemm_128x192_c2_pp", "sm90_gemm_128x256_c2"
    for m, n, k in ((8192, 14336, 4096), (4096, 28672, 8192), (16384, 8192, 4096), (8192, 5120, 8192)):
        made = choice.ranked([m], [n], k, 132, False, variants=(*variants.VARIANTS, *variants.ODD))[0]
        assert made.variant.name == (alternate if k == 4096 else both)


def test_clusters_foresee_first_tiles() -> None:
    (work,) = in_pieces(5000, n=1000, k=3000)
    for v in (*variants.ODD, named("sm90_gemm_256x128_c1x2")):
        launch = tables.build([work], v, PLAIN, clusters=v.clusters(132), stages=4)
        rows, columns = (-(-size // side) for size, side in zip((5000, 1000), v.cluster_tile, strict=True))
        band = tile_table.band_of(v.clusters(132), v.cluster_tile)
        assert launch.first is not None
        assert launch.first[:11] == (0, 0, 0, 0, 47, rows, columns, min(rows, band), 1, 5000, 3000)
    part, name = Interval(1000, 2000), "sm90_gemm_144x256_c2_swapped"
    rows = (Interval(0, 1000), Interval(2000, 6000))
    inner = replace(work, left_columns=(part,), right_rows=(part,))
    assert foreseen(inner, name=name) == (0, 0, 1000, 1000, 16, 18, 4, 8, 1)
    assert foreseen(replace(work, waits=(64,)), name=name) is None
    assert foreseen(work, work, name=name) == foreseen(work, name=name) == (0, 0, 0, 0, 47, 18, 4, 8, 1)
    (less,) = in_pieces(3000, n=1000, k=3000)  # 44 tiles, of the 66 at work at once
    assert foreseen(less, less, name=name) is None
    assert foreseen(replace(work, left=replace(work.left, rows=6000), left_rows=rows), name=name) is None


def test_the_last_tiles_of_one_wave_are_as_large_as_the_others() -> None:
    """They begin in those before. Nothing is stored twice that is added to, or whose sums are made otherwise."""
    swapped = "sm90_gemm_96x64_c1_swapped"

    def starts(m: int, n: int, k: int, name: str = swapped, splits: int = 1, right_t: bool = True, **more: Any) -> Any:
        v, (work,) = named(name), in_pieces(m, n=n, k=k)
        if right_t:
            turned = replace(work.right, rows=n, columns=k, pitch=k)
            work = replace(work, right=turned, right_rows=work.right_columns, right_columns=work.right_rows)
        signature, split_k = replace(PLAIN, right_transposed=right_t), SplitK(splits)
        clusters = v.clusters(132)
        works = [replace(work, **more)]
        level = choice.level(v, works, signature, clusters, split_k)
        made = tables.build(works, v, signature, clusters=clusters, stages=4, split_k=split_k, level=level)
        t = made.table.tiles
        assert made.first is not None
        stored = np.zeros((m, n), int)
        for tile in t[t["split"] == 0]:
            stored[tile["out_row"] :, tile["out_col"] :][: tile["rows"], : tile["cols"]] += 1
        assert stored.min() == 1
        assert not more or stored.max() == 1
        return [np.unique(t[axis]).tolist() for axis in ("left_row", "right_col", "rows", "cols")]

    level, uneven = [0, 96, 174], [0, 96, 192]
    columns = [64 * i for i in range(37)]
    assert starts(270, 2360, 2048) == [level, [*columns[:-1], 2296], [96], [64]]
    assert starts(270, 2360, 2048, right_t=False) == [level, columns, [96], [56, 64]]  # else its boxes span lines
    assert starts(90, 2360, 2048) == [[0], columns, [90], [56, 64]]
    assert starts(270, 2360, 2040)[0] == starts(270, 2360, 2048, splits=2)[0] == uneven
    assert starts(270, 2880, 2048)[0] == uneven  # 135 tiles: every other wave walks K backwards
    assert starts(270, 1280, 2048, name="sm90_gemm_64x64_c1")[0][-1] == 206
    assert starts(270, 1280, 2048, name="sm90_gemm_64x64_c1", accumulate=True)[0][-1] == 256
    work, v = in_pieces(270, n=1280, k=2048)[0], named("sm90_gemm_64x64_c1")
    for operand, found in ((work.left, (True, False)), (work.out, (False, False))):
        term = tiles.Addend(tiles.MatrixOperand(operand, work.out_rows, work.out_columns), "bf16")
        assert choice.level(v, [replace(work, addends=(term,))], PLAIN, 132, SplitK(1)) == found
    assert starts(270, 2360, 2048, name="sm90_gemm_128x128_c2")[0][-1] == 256


def test_blocks_of_a_cluster_have_parts_of_k_of_one_tile() -> None:
    v, (work,) = named("sm90_gemm_32x64_c3_parts"), in_pieces(30, n=2496, k=8192)
    launch = tables.build([work], v, PLAIN, clusters=v.clusters(132), stages=4, split_k=SplitK(3))
    tiles = launch.table.tiles
    assert tiles["right_col"].tolist() == [64 * i for i in range(39) for _ in range(3)]
    assert tiles["split"].tolist() == [0, 1, 2] * 39
    assert launch.first == (0, 0, 0, 0, 128, 1, 39, 1, 3, 30, 8192, 0, 64 * 38)
    assert choice.split_k_of(v, [work], [2496], 8192, 132) == SplitK(3)
    (wide,) = in_pieces(30, n=2560, k=8192)  # a block has a part of one tile at most
    assert choice.split_k_of(v, [wide], [2560], 8192, 132) == tile_table.WHOLE_K
    assert (
        tables.build([wide], v, PLAIN, clusters=v.clusters(132), stages=4, split_k=SplitK(3)).table.tiles["splits"] == 1
    ).all()


def test_only_the_smallest_of_odd_tiles_that_cut_alike_are_estimated() -> None:
    def found(n: int, right_transposed: bool) -> set[str]:
        return {v.name for v in choice.worthwhile(variants.ODD, [64], [n], 132, right_transposed)}

    assert {"sm90_gemm_64x48_c1", "sm90_gemm_64x80_c1"} <= found(6144, True)
    assert {"sm90_gemm_64x112_c1"} == found(320, True) & {"sm90_gemm_64x112_c1", "sm90_gemm_64x120_c1"}  # three tiles
    assert not {n for n in found(6144, False) if n.endswith(("x48_c1", "x80_c1"))}
    assert {n for n in found(6144, False) if "64x" in n and "_swapped" in n}
    assert not {n for n in found(6144, True) if n.endswith("x64_c2_parts")}  # 96 tiles, of 66 that fit


def test_what_blocks_do_not_foresee() -> None:
    (work,) = in_pieces(50, n=2560, k=8192)
    two = (Interval(0, 4096), Interval(4096, 8192))
    assert foreseen(replace(work, waits=(64,))) is None
    assert foreseen(added_late([work])[0]) is None
    assert foreseen(replace(work, left_columns=two, right_rows=two)) is None
    columns = (Interval(0, 64), Interval(128, 2624))  # not side by side
    apart = replace(work, right_columns=columns, right=replace(work.right, columns=2624, pitch=2624))
    assert foreseen(apart) is None


def test_parts_of_works_lie_apart() -> None:
    v = variants.VARIANTS[0]
    launch = tables.build(
        in_pieces(512, 300, 512), v, PLAIN, clusters=v.clusters(132), stages=4, split_k=SplitK(works=(3, 1, 2))
    )
    t = launch.table.tiles
    cut = t[t["splits"] > 1]
    places = cut["slot"] + cut["split"]
    assert len(set(places.tolist())) == len(cut) == launch.table.partials
    # works keep their order: a piece's tiles never stand behind a later one's
    assert (np.diff(t["wait_first"]) >= 0).all()


def test_parameters_hold_what_the_kernel_reads() -> None:
    spans = (Interval(0, 256),)
    a, b, c = (tiles.Matrix(address, 256, 256, 256) for address in (0x1000, 0x2000, 0x3000))
    work = tiles.MatrixWork(a, b, c, spans, spans, spans, spans, spans, spans, waits=(0x40, 0x80), signals=(0xC0,))
    launch = tables.build([work], variants.VARIANTS[0], TURNED, clusters=66, stages=4)
    maps = [bytes([i + 1]) * 128 for i in range(3)]
    table = launch.table
    data = launch.parameters(0x10000, 0x20000, maps, epoch=0x30000, abort=0x40000)
    assert len(data) == tables.PARAMETER_BYTES
    assert [data[128 * i] for i in range(3)] == [1, 2, 3]
    assert struct.unpack_from("<QqQ", data, tables.INFOS_AT) == (0x3000, 256, 128 * (128 + 256))
    pointers = struct.unpack_from("<9Q2i", data, tables.POINTERS_AT)
    assert pointers[0] == 0x10000
    assert pointers[4] == 0x20000
    assert pointers[7:] == (0x30000, 0x40000, 2, 4)
    assert table.flags.tolist() == [0x40, 0x80, 0xC0]
    assert table.tiles["wait_count"].tolist() == [2, 2]
    assert [m.box for m in launch.maps] == [(64, 128), (64, 128), (64, 16)]
    assert struct.unpack_from("<2Q", data, tables.POINTERS_AT + 80) == tuple(0x10000 + at for at in table.offsets[4:6])
    assert table.constants[: TILE.itemsize * 2] == table.tiles.tobytes()


def test_slices_of_a_cluster_are_whole_atoms() -> None:
    """Of 216 columns stored [N, K] two blocks load 112 each, 8 of them twice: so many bytes come into a stage."""
    work = in_pieces(256, n=432, k=256)[0]
    turned = replace(work, right=tiles.Matrix(1 << 20, 432, 256, 256), right_rows=work.right_columns,
                     right_columns=work.right_rows)  # fmt: skip
    for w, signature, box, rows in ((turned, TURNED, (64, 112), 224), (work, PLAIN, (64, 64), 256)):
        launch = tables.build([w], named("sm90_gemm_128x216_c2"), signature, clusters=66, stages=4)
        assert launch.maps[1].box == box
        data = launch.parameters(1 << 30, 1 << 31, [bytes(128)] * 3)
        assert struct.unpack_from("<Q", data, tables.INFOS_AT + 16) == (128 * (128 + rows),)


def test_parameters_hold_the_maps_of_addends() -> None:
    spans = (Interval(0, 256),)
    a, b, c, d = (tiles.Matrix(address, 256, 256, 256) for address in (0x1000, 0x2000, 0x3000, 0x4000))
    e = tiles.Matrix(0x5000, 512, 256, 264)
    added = [tiles.Addend(tiles.MatrixOperand(m, rows, spans), "bf16")
             for m, rows in ((d, spans), (e, (Interval(256, 512),)), (e, spans))]  # fmt: skip
    work = tiles.MatrixWork(a, b, c, spans, spans, spans, spans, spans, spans, addends=tuple(added))
    launch = tables.build([work], variants.VARIANTS[0], TURNED, clusters=66, stages=4)
    maps = [bytes([i + 1]) * 128 for i in range(5)]
    data = launch.parameters(0x10000, 0x20000, maps)
    assert [data[tables.ADDEND_MAPS_AT + 128 * i] for i in range(2)] == [4, 5]
    assert [(m.address, m.dims, m.pitch, m.box) for m in launch.maps[3:]] == [
        (0x4000, (256, 256), 512, (64, 64)), (0x5000, (256, 512), 528, (64, 64)),
    ]  # fmt: skip
    assert launch.table.addends.tolist()[:3] == [(0, 0, 0, 0), (1, 256, 0, 0), (1, 0, 0, 0)]
    assert launch.table.tile_addends.tolist()[1] == (3, 3, 4, 0, 0, 0, 0, 0)


def test_what_the_kernel_cannot_take_is_said() -> None:
    whole = (Interval(0, 256),)
    good = tiles.Matrix(0, 256, 256, 256)

    def of_terms(*dtypes: str, address: int = 0, column: int = 0, apart: int = 0, out: str = "bf16") -> str | None:
        terms = []
        for i, dtype in enumerate(dtypes):
            place = tiles.Matrix(address + i * apart, 256, 512, 512)
            terms.append(tiles.Addend(tiles.MatrixOperand(place, whole, (Interval(column, column + 256),)), dtype))
        work = tiles.MatrixWork(good, good, good, whole, whole, whole, whole, whole, whole, addends=tuple(terms))
        return tables.refusal([work], Signature("bf16", out, False, False))

    assert of_terms(*["bf16"] * 9) is None
    assert of_terms("bf16", "fp32") == "operands are bf16, an addend is fp32"
    assert of_terms("bf16", out="fp32") == "addends are added, and the output is fp32"
    assert "more than 4 different matrices" in str(of_terms(*["bf16"] * 5, apart=16))
    assert "addend's address" in str(of_terms("bf16", address=8))
    assert "multiples of 8" in str(of_terms("bf16", column=4))

    def to_peers(count: int) -> str | None:
        outs = [tiles.Matrix(p << 32, 256, 256, 256) for p in range(count)]
        works = [tiles.MatrixWork(good, good, out, whole, whole, whole, whole, whole, whole) for out in outs]
        return tables.refusal(works, PLAIN)

    assert to_peers(8) is None
    assert to_peers(9) == "more than 8 different triples of operands in one launch"

    def reason(left: tiles.Matrix = good, k: Spans = whole, n: Spans = whole) -> str | None:
        return tables.fits(tiles.MatrixWork(left, good, good, whole, k, k, n, whole, n), PLAIN)

    assert reason() is None
    assert "no multiple of 16 bytes" in str(reason(tiles.Matrix(2, 256, 256, 256)))
    assert "no multiple of 16 bytes" in str(reason(tiles.Matrix(0, 256, 255, 255)))
    assert "multiples of 8" in str(reason(n=(Interval(0, 252),)))
    assert "multiple of 8" in str(reason(k=(Interval(4, 36),)))
    assert "multiple of 64" in str(reason(k=(Interval(0, 72), Interval(80, 152))))

    def turned(m: Spans, k: Spans = whole) -> str | None:
        return tables.fits(
            tiles.MatrixWork(good, good, good, k, m, k, whole, whole, whole), replace(PLAIN, left_transposed=True)
        )

    assert turned(whole, (Interval(4, 36),)) is None
    assert "left operand's columns does not start at a multiple of 8" in str(turned((Interval(4, 260),)))


# ---------------------------------------------------------------- the compiler


def test_the_price_of_a_tile_knows_where_its_addends_stand() -> None:
    pace = Pace(1, 1.0, addend_steps=2, addend_gap=4)
    assert pace.behind_addends(1, 4096) == 8 / 64
    assert pace.behind_addends(3, 2048) == 24 / 32
    assert pace.behind_addends(7, 1024) == 14 / 16  # one step apart: there is no more room
    assert Pace(1, 1.0).behind_addends(3, 2048) == 0.0  # added where the tile is stored
