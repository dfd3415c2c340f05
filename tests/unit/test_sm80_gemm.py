"""The GEMM for tensor cores since Ampere, without a GPU: its tables, its parameters, its choice, what the compiler
makes of it."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ficco_rt.geometry.region import Interval
from ficco_rt.kernels import by_address, catalogue, tiles
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm80.family import SM80
from ficco_rt.kernels.sm90 import variants as sm90
from ficco_rt.kernels.tile_table import SplitK, count
from tests.cases import few
from tests.unit.cubin import compiled, resources
from tests.unit.gemm_tables import addends, assert_addends, assert_whole, matrix, pieces

Spans = tuple[Interval, ...]


def refusal(work: tiles.MatrixWork, dtype: str = "bf16", left_t: bool = False, right_t: bool = False) -> str | None:
    return by_address.refusal([work], Signature(dtype, dtype, left_t, right_t), sm80.LONGEST)


@st.composite
def ragged(draw: st.DrawFn, size: int) -> Spans:
    """Pieces that start at multiples of 8; the last ends anywhere."""
    *others, last = draw(pieces(-(-size // 8) * 8, 8))
    return (*others, Interval(last.start, last.stop - -size % 8))


@st.composite
def works(draw: st.DrawFn) -> tuple[tiles.MatrixWork, bool, bool]:
    m, n, k = draw(st.integers(1, 700)), draw(st.integers(1, 600)), draw(st.integers(1, 500))
    left_t, right_t = draw(st.booleans()), draw(st.booleans())
    rows = ragged(m) if left_t else pieces(m, 1)
    left_m, out_m = draw(rows), draw(rows)
    left_k, right_k = draw(ragged(k)), draw(ragged(k))
    right_n, out_n = draw(ragged(n)), draw(ragged(n))
    left = (left_k, left_m) if left_t else (left_m, left_k)
    right = (right_n, right_k) if right_t else (right_k, right_n)
    matrices = (matrix(1 << 20, *left), matrix(2 << 20, *right), matrix(3 << 20, out_m, out_n))
    terms = draw(addends(m, n, 8, ("bf16", "fp32")))
    waits = (64, 128) if terms else ()
    work = tiles.MatrixWork(*matrices, *left, *right, out_m, out_n, signals=(4096,), addends=terms, addend_waits=waits)
    assume(refusal(work, left_t=left_t, right_t=right_t) is None)  # terms may cut rows that lie together
    return work, left_t, right_t


@settings(deadline=None)
@given(works(), st.sampled_from(sm80.VARIANTS), st.integers(1, 300), st.integers(1, 6), st.sampled_from([None, 1, 3]))
def test_tiles_make_every_element_once_from_the_right_operands(
    made: tuple[tiles.MatrixWork, bool, bool], variant: sm80.Variant, blocks: int, splits: int, band: int | None
) -> None:
    work, *turned = made
    signature = Signature("bf16", "bf16", *turned)
    launch = by_address.build([work], variant, signature, blocks=blocks, stages=2, tail_splits=splits, band=band)
    assert_whole(launch.table, work, turned[0], turned[1])
    assert_addends(launch.table, work, staged=False)
    counted = count([work], variant.tile, signature.transposed, groups=blocks, split_k=SplitK(splits))
    assert counted == len(launch.table.tiles)
    assert launch.table.signals[0]["target"] == (launch.table.tiles["split"] == 0).sum() * variant.warps


def test_parameters_hold_what_the_kernel_reads() -> None:
    spans = (Interval(0, 256),)
    a, b, c, d = (tiles.Matrix(address, 256, 256, 264) for address in (0x1000, 0x2000, 0x3000, 0x4000))
    e = tiles.Matrix(0x5000, 512, 256, 264)
    terms = [
        tiles.Addend(tiles.MatrixOperand(m, (Interval(r, r + 256),), spans), "fp32")
        for m, r in ((c, 0), (e, 0), (e, 256))
    ]
    works = [
        tiles.MatrixWork(a, b, out, spans, spans, spans, spans, spans, spans, waits=(0x40,), addends=tuple(terms))
        for out in (c, d)
    ]
    launch = by_address.build(works, sm80.VARIANTS[2], Signature("bf16", "fp32", False, True), blocks=264, stages=3)
    data = launch.parameters(0x10000, 0x20000, epoch=0x30000, abort=0x40000)
    assert len(data) == by_address.PARAMETER_BYTES
    fields = by_address.POINTERS.unpack_from(data)
    assert fields[0] == 0x10000
    assert fields[4] == 0x20000
    assert fields[7:9] == (0x30000, 0x40000)
    assert fields[9:11] == (8, 3)
    assert fields[11:] == tuple(0x10000 + at for at in launch.table.offsets[4:6])
    assert launch.table.tiles["operands"].tolist() == [0] * 4 + [1] * 4
    size = by_address.MATRIX.size
    matrices = [by_address.MATRIX.unpack_from(data, by_address.MATRICES_AT + i * size) for i in range(3)]
    assert matrices == [(0x3000, 1056, 4), (0x5000, 1056, 4), (0, 0, 0)]
    assert launch.table.addends.tolist()[3:6] == [(0, 128, 0, 0), (1, 128, 0, 0), (1, 384, 0, 0)]
    at = (by_address.POINTERS.size + i * by_address.OPERANDS.size for i in range(2))
    records = [by_address.OPERANDS.unpack_from(data, first) for first in at]
    assert records == [(0x1000, 0x2000, out, 528, 528, 1056, 256) for out in (0x3000, 0x4000)]
    elsewhere = launch.moved(lambda address: address + 0x10000)
    assert elsewhere.table.constants == launch.table.constants
    moved = by_address.OPERANDS.unpack_from(elsewhere.parameters(0, 0), by_address.POINTERS.size)
    assert moved[:3] == (0x11000, 0x12000, 0x13000)


def test_what_the_kernel_cannot_take_is_said() -> None:
    whole = (Interval(0, 256),)
    good = tiles.Matrix(0, 256, 256, 256)

    def reason(left: tiles.Matrix = good, k: Spans = whole, n: Spans = whole) -> str | None:
        return refusal(tiles.MatrixWork(left, good, good, whole, k, k, n, whole, n))

    assert reason() is None
    assert reason(k=(Interval(0, 13), Interval(16, 17))) is None
    assert reason(n=(Interval(8, 9),)) is None
    assert "no multiple of 16 bytes" in str(reason(tiles.Matrix(2, 256, 256, 256)))
    assert "no multiple of 16 bytes" in str(reason(tiles.Matrix(0, 256, 255, 255)))
    assert "left operand's columns starts at 4" in str(reason(k=(Interval(4, 36),)))
    assert "right operand's columns starts at 12" in str(reason(n=(Interval(12, 36),)))
    assert "more than" in str(reason(tiles.Matrix(0, 256, 256, 1 << 25)))
    many = [tiles.MatrixWork(good, good, tiles.Matrix(i << 20, 256, 256, 256), *(6 * (whole,))) for i in range(41)]
    found = by_address.refusal(many, Signature("bf16", "bf16", False, False), sm80.LONGEST)
    assert found == "more than 40 different triples of operands in one launch"

    def of_term(dtype: str, address: int, rows: Spans, column: int = 0, left_t: bool = False) -> str | None:
        place = tiles.MatrixOperand(tiles.Matrix(address, 512, 512, 512), rows, (Interval(column, column + 256),))
        work = tiles.MatrixWork(
            good, good, good, whole, whole, whole, whole, whole, whole, addends=(tiles.Addend(place, dtype),)
        )
        return refusal(work, left_t=left_t)

    cut = (Interval(100, 103), Interval(0, 253))
    assert of_term("fp32", 16, cut) is None
    assert of_term("fp16", 16, cut) == "operands are bf16, an addend is fp16"
    assert "added operand's address" in str(of_term("bf16", 8, cut))
    assert "added operand's columns starts at 4" in str(of_term("bf16", 16, whole, 4))
    assert "left operand's columns starts at 3" in str(of_term("bf16", 16, cut, left_t=True))


# ---------------------------------------------------------------- the choice


def test_few_rows_get_small_tiles_and_split_depth() -> None:
    budgets = {r: (164 << 10) // r - 1024 for r in (1, 2, 3, 4)}
    ways = tuple(by_address.Way(v, min(r, v.residency), 0, b) for v in sm80.VARIANTS for r, b in budgets.items())
    few = by_address.fastest(SM80, ways, (16,), (2560,), 8192, 108, "sm_80")
    many = by_address.fastest(SM80, ways, (8192,), (8192,), 8192, 108, "sm_80")
    assert few is not None
    assert many is not None
    assert few.variant.tile[0] == 64
    assert SM80.estimate(few, [16], [2560], 8192, 108, "sm_80")[1] > 1
    assert many.variant.tile[0] * many.variant.tile[1] >= 128 * 128


# ---------------------------------------------------------------- the compiler

# On Hopper, which has a GEMM of its own, the compiler keeps a few bytes in local memory, other ones in each version.
KEPT = {"sm_80": 0, "sm_90a": 32}
TYPES = (("bf16", "bf16"), ("fp16", "fp32"))
LAYOUTS = [(lt, rt) for lt in (False, True) for rt in (False, True)]


@pytest.mark.parametrize("variant", sm80.VARIANTS, ids=lambda v: v.name)
def test_registers_without_spills_as_the_catalogue_says(variant: sm80.Variant) -> None:
    cases = [("sm_80", TYPES[i % 2], lt, rt, i > 1) for i, (lt, rt) in enumerate(LAYOUTS)]
    cases += [("sm_90a", TYPES[(i + 1) % 2], lt, rt, i % 2 > 0) for i, (lt, rt) in enumerate(LAYOUTS)]
    for arch, types, *turned, terms in few(cases, 2, sm80.VARIANTS.index(variant)):
        signature = Signature(*types, *turned, terms)
        cubin = compiled(sm80.SOURCE, variant.options(signature, arch))
        found = resources(cubin)
        assert found["registers"] <= variant.registers
        assert found["stack"] <= KEPT[arch]
        assert found["shared"] <= 1024  # which the system keeps of every block
        assert signature.entry(variant.name).encode() in cubin


# fp32, TF32, and operands that go through registers: types, the signature's other fields, bytes of the stack
OTHERS = (
    ("fp32", {}, 64), ("fp32", {"tf32": True}, 0), ("bf16", {"access": 4}, 64),
    ("bf16", {"access": 2}, 16), ("fp32", {"access": 4}, 64), ("fp32", {"access": 4, "tf32": True}, 96),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_registers_for_fp32_and_what_is_not_aligned(number: int) -> None:
    dtype, fields, stack = OTHERS[number]
    cases = [(v, Signature(dtype, dtype, lt, rt, **fields)) for v in sm80.VARIANTS for lt, rt in LAYOUTS]
    taken = [(v, s) for v, s in cases if SM80.takes(v, s)]
    for variant, signature in few(taken, 2, 5 * number):
        found = resources(compiled(sm80.SOURCE, variant.options(signature, "sm_90a")))
        assert found["registers"] <= variant.registers
        assert found["stack"] <= stack


def test_both_kernels_have_their_tiles_in_the_catalogue() -> None:
    names = [v.name for v in (*sm80.VARIANTS, *sm90.VARIANTS)]
    assert len(set(names)) == len(names)
    assert set(names) < set(catalogue.TILES)
