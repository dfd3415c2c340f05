"""The CDNA GEMM without a GPU: its table of tiles, what the compiler makes of it, and its numbers, thread by thread."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ficco_rt.geometry.region import Interval
from ficco_rt.graph.functions import FUNCTIONS, FunctionName
from ficco_rt.kernels import by_address
from ficco_rt.kernels.by_address import Way
from ficco_rt.kernels.family import GemmRequest
from ficco_rt.kernels.mfma import cost
from ficco_rt.kernels.mfma import variants as mfma
from ficco_rt.kernels.mfma.family import MFMA
from ficco_rt.kernels.occupancy import Limits, Window
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.tiles import Addend, Matrix, MatrixOperand, MatrixWork
from ficco_rt.machine.profiles import stored
from tests.cases import few
from tests.simt import amd
from tests.simt.memory import DTYPES, Memory, aligned
from tests.unit.gemm_tables import addends, assert_addends

MACHINES = {"gfx90a": 0x3F, "gfx942": 0x4C}  # EF_AMDGPU_MACH, LLVM's AMDGPU usage guide
LAYOUTS = list(product([False, True], [False, True]))
Spans = tuple[Interval, ...]


# ---------------------------------------------------------------- the table


@st.composite
def pieces(draw: st.DrawFn, size: int, step: int) -> Spans:
    """Disjoint pieces that sum to `size`, in any order, that begin at multiples of `step`."""
    units = -(-size // step)
    cuts = sorted(draw(st.sets(st.integers(1, units - 1), max_size=3))) if units > 1 else []
    at, out = 0, []
    for a, b in zip([0, *cuts], [*cuts, units], strict=True):
        at += draw(st.integers(0, 3))
        out.append(Interval(at * step, at * step + min(b * step, size) - a * step))
        at += b - a
    if size % step:  # only the last one ends elsewhere, so that others which are cut by it still begin well
        return (*draw(st.permutations(out[:-1])), out[-1])
    return tuple(draw(st.permutations(out)))


def flat(spans: Spans) -> np.ndarray:
    return np.concatenate([np.arange(s.start, s.stop) for s in spans])


def matrix(address: int, rows: Spans, columns: Spans) -> Matrix:
    high, wide = max(s.stop for s in rows), max(s.stop for s in columns)
    return Matrix(address, high, wide, -(-wide // 8) * 8)


@st.composite
def works(draw: st.DrawFn) -> MatrixWork:
    m, n, k = draw(st.integers(1, 700)), draw(st.integers(1, 700)), draw(st.integers(1, 800))
    left_rows, out_rows = draw(pieces(m, 1)), draw(pieces(m, 1))
    right_columns, out_columns = draw(pieces(n, 8)), draw(pieces(n, 8))
    left_columns, right_rows = draw(pieces(k, 8)), draw(pieces(k, 8))
    return MatrixWork(
        matrix(1 << 20, left_rows, left_columns), matrix(2 << 20, right_rows, right_columns),
        matrix(3 << 20, out_rows, out_columns), left_rows, left_columns, right_rows, right_columns, out_rows,
        out_columns, signals=(4096,), addends=draw(addends(m, n, 8, ("bf16", "fp32"))),
    )  # fmt: skip


@settings(deadline=None)
@given(works(), st.sampled_from(mfma.VARIANTS), st.integers(1, 140), st.integers(1, 6), st.sampled_from([None, 1, 3]))
def test_tiles_make_every_element_once_from_the_right_operands(
    work: MatrixWork, variant: mfma.Variant, units: int, splits: int, band: int | None
) -> None:
    signature = Signature("bf16", "bf16", False, False)
    made_of = by_address.build([work], variant, signature, blocks=units, stages=2, tail_splits=splits, band=band)
    table = made_of.table
    assert_addends(table, work, staged=False)
    rows = dict(zip(flat(work.out_rows).tolist(), flat(work.left_rows).tolist(), strict=True))
    columns = dict(zip(flat(work.out_columns).tolist(), flat(work.right_columns).tolist(), strict=True))
    depth = list(zip(flat(work.left_columns).tolist(), flat(work.right_rows).tolist(), strict=True))
    made = np.zeros((work.out.rows, work.out.columns), int)
    slots: dict[int, tuple[int, int]] = {}
    seen: dict[tuple[int, int], list[tuple[int, list[tuple[int, int]]]]] = {}
    for t in table.tiles:
        r, c = np.arange(t["rows"]) + t["out_row"], np.arange(t["cols"]) + t["out_col"]
        assert [rows[i] for i in r.tolist()] == list(range(t["left_row"], t["left_row"] + t["rows"]))
        assert [columns[i] for i in c.tolist()] == list(range(t["right_col"], t["right_col"] + t["cols"]))
        if t["split"] == 0:
            made[np.ix_(r, c)] += 1
        pairs: list[tuple[int, int]] = []
        left, at = int(t["k_blocks"]), int(t["k_first"])
        while left > 0:
            d = table.depths[at]
            assert 0 < d["size"] <= 64 * d["blocks"] < d["size"] + 64
            pairs += [(d["left"] + i, d["right"] + i) for i in range(d["size"])]
            left, at = left - int(d["blocks"]), at + 1
        assert left == 0
        key = (int(t["out_row"]), int(t["out_col"]))
        if t["splits"] == 1:
            assert pairs == depth
        else:
            seen.setdefault(key, []).append((int(t["split"]), pairs))
            assert slots.setdefault(int(t["slot"]), key) == key
            assert t["slot"] + t["splits"] <= table.partials
    for parts in seen.values():
        parts.sort()
        assert [s for s, _ in parts] == list(range(len(parts)))
        assert [p for _, pairs in parts for p in pairs] == depth
    wanted = np.zeros_like(made)
    wanted[np.ix_(flat(work.out_rows), flat(work.out_columns))] = 1
    assert np.array_equal(made, wanted)
    assert table.signals[0]["target"] == (table.tiles["split"] == 0).sum() * mfma.WAVES


def test_what_the_kernel_cannot_take_is_said() -> None:
    whole = (Interval(0, 256),)
    good = Matrix(0, 256, 256, 256)

    def reason(left: Matrix = good, k: Spans = whole, n: Spans = whole, turned: bool = False) -> str | None:
        work, signature = (
            MatrixWork(left, good, good, whole, k, k, n, whole, n),
            Signature("bf16", "bf16", False, turned),
        )
        return by_address.refusal([work], signature, mfma.LONGEST)

    assert reason() is None
    assert reason(k=(Interval(0, 250),), n=(Interval(8, 251),)) is None
    assert "no multiple of 16 bytes" in str(reason(Matrix(2, 256, 256, 256)))
    assert "no multiple of 16 bytes" in str(reason(Matrix(0, 256, 255, 255)))
    assert "more than 8388608" in str(reason(Matrix(0, 256, 256, 1 << 23)))
    assert "multiple of 8" in str(reason(n=(Interval(4, 12),)))
    assert "multiple of 8" in str(reason(k=(Interval(4, 36),)))


@pytest.mark.parametrize("arch", mfma.ARCHS)
def test_the_choice_follows_the_sizes_and_the_budget(arch: str) -> None:
    def fastest(
        rows: int, columns: int, most: int = mfma.LDS, residency: int | None = None
    ) -> Way[mfma.Variant] | None:
        limits = Limits.of(stored("mi300x-mesh").device)
        ways = MFMA.ways(Window(0, most), GemmRequest((), residency=residency), limits)
        return by_address.fastest(MFMA, tuple(ways), (rows,), (columns,), 8192, 304, arch)

    large = fastest(256 * 19, 128 * 16)  # one wave of the largest tile
    small = fastest(16, 2560)
    assert large is not None
    assert small is not None
    assert large.variant.tile == (256, 128)
    assert small.variant.tile == (32, 64)
    assert cost.alone(small.variant, 1, [16], [2560], 8192, 304, arch)[1] > 1  # 40 tiles for 304 units
    two = fastest(8192, 8192, most=32768, residency=2)
    assert two is not None
    assert two.variant.name == "mfma_gemm_128x128x32"
    assert fastest(8192, 8192, residency=3) is None
    assert fastest(8192, 8192, most=16384) is None


# ---------------------------------------------------------------- the compiler


@pytest.mark.parametrize(
    ("variant", "arch"),
    [(v, arch) for turn, v in enumerate(mfma.VARIANTS) for arch in few(mfma.ARCHS, 1, turn + turn // 4)],
    ids=lambda of: of if isinstance(of, str) else of.name,
)
def test_registers_without_spills_and_matrix_instructions(arch: str, variant: mfma.Variant, tmp_path: Path) -> None:
    kinds = cycle([("bf16", "bf16", False), ("fp16", "fp32", False), ("fp16", "fp16", True), ("bf16", "fp32", True)])
    turn = mfma.VARIANTS.index(variant)
    for turned, (dtype, out, terms) in few(list(zip(LAYOUTS, kinds, strict=False)), 1, turn):
        signature = Signature(dtype, out, *turned, terms)
        compiled = amd.compile_device(tmp_path, mfma.SOURCE, variant.options(signature, arch))
        assert compiled.entry == signature.entry(variant.name)
        assert (compiled.spills, compiled.scratch) == (0, 0)
        assert compiled.vector_registers <= variant.registers  # a lane's share of its SIMD's
        assert compiled.lds == 0  # all is dynamic: two stages fill what there is
        assert compiled.parameters >= by_address.PARAMETER_BYTES
        assert compiled.wave == 64
        deep = {32: 8, 16: 16}[variant.shape]
        kind = {"bf16": "bf16", "fp16": "f16"}[dtype]
        if arch == "gfx90a":
            name = f"v_mfma_f32_{variant.shape}x{variant.shape}x{deep}{kind}" + ("_1k" if dtype == "bf16" else "")
        else:
            name = f"v_mfma_f32_{variant.shape}x{variant.shape}x{deep}_{kind}"
        assert set(compiled.matrix_instructions) == {name}
        rows, columns = variant.tile
        step = rows * columns * variant.step // (mfma.WAVES * variant.shape**2 * deep)
        assert len(compiled.matrix_instructions) % step == 0  # a step is unrolled whole, with as many as it takes
        assert not re.search(r"\bflat_load_dwordx4", compiled.assembly)  # it would hold up LDS
        assert variant.smem(mfma.STAGES) <= mfma.LDS
    built = amd.code_object(tmp_path, arch, compiled)
    assert built == amd.CodeObject(MACHINES[arch], 0, 0)


# ---------------------------------------------------------------- the numbers, on the CPU


@dataclass
class Case:
    """A launch with its operands in this process's memory."""

    variant: mfma.Variant
    dtype: str
    out: str
    turned: tuple[bool, bool]
    units: int
    splits: int
    accumulate: bool
    sizes: tuple[int, int, int]
    cut: tuple[Spans, Spans, Spans]  # of rows, columns, depth in the left, right, left operand's logical axes
    terms: tuple[str, ...] = ()  # their types; "out": what the output held
    function: FunctionName | None = None

    def __str__(self) -> str:
        return f"{self.variant.name}-{self.dtype}-{self.out}-{self.turned}-{self.sizes}"


def run(case: Case, tmp_path: Path, seed: int) -> None:
    """The launch's result is exact on small integers, nothing beside it is written, and scratch ends as it began."""
    m, n, k = case.sizes
    draw = np.random.default_rng(seed)
    left_t, right_t = case.turned
    ends = [max(s.stop for s in spans) for spans in case.cut]
    a, b, c = Memory(*((ends[2], ends[0]) if left_t else (ends[0], ends[2])), case.dtype), Memory(
        *((n, ends[2]) if right_t else (ends[2], n)), case.dtype
    ), Memory(m, ends[1], case.out)  # fmt: skip
    logical = draw.integers(-4, 5, (m, k)), draw.integers(-4, 5, (k, n))
    rows, columns, depth = (flat(spans) for spans in case.cut)
    left = a.values.T if left_t else a.values
    right = b.values.T if right_t else b.values
    left[np.ix_(rows, depth)] = logical[0]
    right[depth] = logical[1]
    before = np.zeros((m, n))
    old = case.accumulate or "out" in case.terms
    if old:
        before = draw.integers(-4, 5, (m, n))
        c.values[:, columns] = before
    whole_m, whole_n = (Interval(0, m),), (Interval(0, n),)
    flags = np.array([1, 0, 0, 1], np.uint32)
    places = [int(flags.ctypes.data) + 4 * i for i in range(4)]
    added, terms, held = [], [], []
    for i, kind in enumerate(case.terms):
        if kind == "out":
            terms.append(Addend(MatrixOperand(c.matrix, whole_m, case.cut[1]), case.out))
            continue
        # in two pieces of rows, the other way round; columns end with the memory
        memory = Memory(m + 9, n + 8, kind)
        cut = m // 2 // 8 * 8  # where the left operand may be cut whichever way it lies
        spans = (Interval(m - cut + 9, m + 9), Interval(0, m - cut)) if i % 2 else (Interval(i, m + i),)
        beside = (Interval(8, n + 8),)
        data = draw.integers(-4, 5, (m, n))
        memory.values[np.ix_(flat(spans), flat(beside))] = data
        added.append(data)
        terms.append(Addend(MatrixOperand(memory.matrix, spans, beside), kind))
        held.append(memory)
    r, d = case.cut[0], case.cut[2]
    work = MatrixWork(
        a.matrix, b.matrix, c.matrix, *((d, r) if left_t else (r, d)), *((whole_n, d) if right_t else (d, whole_n)),
        whole_m, case.cut[1], case.accumulate, (places[0],), (places[1], places[2]), tuple(terms),
        (places[3],) if terms else (),
    )  # fmt: skip
    signature = Signature(case.dtype, case.out, *case.turned, bool(terms), case.function)
    assert by_address.refusal([work], signature, mfma.LONGEST) is None
    made = by_address.build(
        [work], case.variant, signature, blocks=case.units, stages=mfma.STAGES, tail_splits=case.splits
    )
    table = made.table
    constants, scratch = aligned(len(table.constants)), aligned(table.scratch_bytes)
    constants[:] = np.frombuffer(table.constants, np.uint8)
    kernel = amd.OnCpu(
        tmp_path, mfma.SOURCE, case.variant.options(signature, "gfx942"), signature.entry(case.variant.name),
        "Parameters", "Words",
    )  # fmt: skip
    parameters = made.parameters(constants.ctypes.data, scratch.ctypes.data)
    for again in range(2):
        flags[1:3] = 0
        kernel(parameters, min(case.units, len(table.tiles)), 64 * mfma.WAVES, seed + again)
        sums = logical[0] @ logical[1] + before + sum(added)
        if case.function is not None:
            of = FUNCTIONS[case.function]
            sums = of.of(1.0 * (sums - added[-1])) * added[-1] if of.factor else of.of(1.0 * sums)
        wanted = sums.astype(DTYPES[case.out])
        got = c.values[:, columns]
        close = 0 if case.function is None else 2.0**-7  # of bf16, one step
        off = np.argwhere(~np.isclose(got.astype(float), wanted.astype(float), close, close / 100))
        assert not len(off), f"run {again}: {len(off)} elements, from {off[0]} to {off[-1]}: {got[tuple(off[0])]}"
        assert flags.tolist() == [1, 1, 1, 1]
        assert not scratch[: table.counter_bytes].any()
        if not old:
            c.values[:, columns] = 7
        else:
            before = wanted.astype(float)
            if abs(before).max() > 200:
                break
    others = np.delete(c.whole, columns, axis=1)
    assert (np.ascontiguousarray(others).view(np.uint8) == 0xFF).all()
    assert all(memory.untouched() for memory in (a, b, c, *held))


def spans_of(*pairs: tuple[int, int]) -> Spans:
    return tuple(Interval(a, b) for a, b in pairs)


def cases() -> list[Case]:
    """Every variant, layout and type in turn; uneven edges, pieces in any order, K ending anywhere, splits."""
    found = []
    types = [("bf16", "bf16"), ("fp16", "fp16"), ("bf16", "fp32"), ("fp16", "fp32")]
    for i, v in enumerate(mfma.VARIANTS):
        rows, columns = v.tile
        m, n, k = rows + 17, columns + 11, 203
        cut = (spans_of((rows + 24, rows + 41), (8, rows + 8)), spans_of((16, 24), (32, n + 24)),
               spans_of((72, 136), (0, 56), (144, 227)))  # fmt: skip
        for j, turned in few(list(enumerate(LAYOUTS)), 2, i // 2):
            dtype, out = types[(i + j) % 4]
            mine = cut
            if turned[0]:  # rows lie together: they begin at multiples of 8
                mine = (spans_of((8, rows + 8), (rows + 16, rows + 33)), *cut[1:])
            terms = ((), (), (out,), (out, "fp32", "out"))[(i + j) % 4]
            splits, accumulate = 1 + (i + j) % 3, not terms and (i + j) % 4 == 0
            found.append(Case(v, dtype, out, turned, 3, splits, accumulate, (m, n, k), mine, terms))
    return found


@pytest.mark.parametrize("case", cases(), ids=str)
def test_numbers_are_exact(case: Case, tmp_path: Path) -> None:
    run(case, tmp_path, seed=len(str(case)))


@pytest.mark.parametrize(("function", "terms"), [("gelu", ()), ("silu_mul", ("bf16", "fp32"))])
def test_functions(function: FunctionName, terms: tuple[str, ...], tmp_path: Path) -> None:
    v = next(v for v in mfma.VARIANTS if v.name == "mfma_gemm_32x64x64")
    run(
        Case(v, "bf16", "bf16", (False, True), 2, 2, False, (40, 75, 72), whole(40, 75, 72), terms, function),
        tmp_path,
        3,
    )


def whole(*sizes: int) -> tuple[Spans, Spans, Spans]:
    m, n, k = (spans_of((0, s)) for s in sizes)
    return m, n, k


def test_k_shorter_than_a_step_and_one_row(tmp_path: Path) -> None:
    v = next(v for v in mfma.VARIANTS if v.name == "mfma_gemm_32x64x64")
    case = Case(v, "bf16", "fp32", (False, True), 2, 1, False, (1, 3, 5), whole(1, 3, 5))
    run(case, tmp_path, 1)
    run(replace(case, turned=(True, False), sizes=(1, 8, 129), cut=whole(1, 8, 129), splits=3), tmp_path, 2)
