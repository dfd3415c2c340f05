"""Fewer rows than the plan has: regions, tables of tiles, and what the kernels make of them, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.geometry.rows import Block, Rows
from ficco_rt.kernels import by_address
from ficco_rt.kernels.mfma import variants as mfma
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm90 import tables
from ficco_rt.kernels.sm90 import variants as sm90
from ficco_rt.kernels.tile_table import SplitK, Table
from ficco_rt.kernels.tiles import Addend, MatrixOperand, MatrixWork
from tests.simt import amd, nvidia
from tests.simt.memory import Memory, aligned
from tests.unit.test_kernel_waits import IMPATIENT, encoded


def region(name: str, *rows: tuple[int, int]) -> Region:
    return Region(name, 0, (Axis(tuple(Interval(*r) for r in rows)), Axis((Interval(0, 8),))))


def listed(found: Region) -> list[int]:
    return [row for segment in found.axes[0].segments for row in range(*segment)]


@st.composite
def sides(draw: st.DrawFn) -> tuple[Rows, list[Region]]:
    """Regions of one number of rows, in tensors with rows and in others, cut anywhere."""
    planned, count = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    blocks = {name: count for name in "XY" if draw(st.booleans())}
    size = draw(st.integers(1, planned * count))
    found = []
    for name in "XYZ":
        order = [*range(planned * count)] if draw(st.booleans()) else draw(st.permutations(range(planned * count)))
        rows, cut = order[:size], []
        for row in rows:
            if cut and cut[-1][1] == row:
                cut[-1] = (cut[-1][0], row + 1)
            else:
                cut.append((row, row + 1))
        found.append(region(name, *cut))
    return Rows(planned, draw(st.integers(1, planned)), blocks), found


@drawn(sides())
def test_all_sides_leave_the_same_rows_out(case: tuple[Rows, list[Region]]) -> None:
    rows, regions = case

    def there(name: str, row: int) -> bool:
        return name not in rows.blocks or row % rows.planned < rows.given

    def lies(name: str, row: int) -> int:
        if name not in rows.blocks:
            return row
        return row // rows.planned * rows.given + row % rows.planned

    names = [r.tensor for r in regions]
    logical = zip(*map(listed, regions), strict=True)
    kept = [at for at in logical if all(map(there, names, at))]
    wanted = [[lies(name, at[i]) for at in kept] for i, name in enumerate(names)]
    assert list(map(listed, rows.fewer(regions))) == wanted


def test_whole_blocks_are_one_run() -> None:
    rows = Rows(16, 5, {"X": 4, "Y": 4, "V": 1})
    x, y = rows.fewer([region("X", (0, 64)), region("Y", (0, 64))])
    assert listed(x) == [*range(20)]
    assert len(x.axes[0].segments) == len(y.axes[0].segments) == 1
    assert rows.of([region("X", (32, 64)), region("Y", (0, 32))]) == (Block(32, 10),) * 2
    assert rows.of([region("X", (16, 64)), region("V", (0, 16))]) == (Block(16, 5),) * 2
    assert rows.of([region("X", (0, 64)), region("Z", (0, 64))]) == (Block(16, 5), None)
    assert rows.shape("X", (64, 8)) == (20, 8)
    assert rows.shape("Z", (64, 8)) == (64, 8)


# ---------------------------------------------------------------- kernels

BLOCKS, PLANNED, N, K = 2, 110, 72, 72
CUT = (80, 30)  # rows of a block that a work takes


class Launch:
    """C = A · B (+ D), where A and C have fewer rows; a work for each piece of each block, with a flag. D is scratch
    with all rows, or has fewer, too. `twice`: works behind these add A · B to C again."""

    def __init__(self, given: int, n: int, addend: str = "", twice: bool = False) -> None:
        draw = np.random.default_rng(given)
        rows = BLOCKS * given
        self.a, self.b, self.c = Memory(rows, K, "bf16"), Memory(K, n, "bf16"), Memory(rows, n, "bf16")
        self.d = Memory(BLOCKS * PLANNED if addend == "all" else rows, n, "bf16")
        for memory in (self.a, self.b, self.d):
            memory.values[:] = draw.integers(-2, 3, memory.values.shape)
        self.wanted = self.a.values.astype(np.float32) @ self.b.values.astype(np.float32)
        if addend:
            added = self.d.values.astype(np.float32)
            if addend == "all":
                added = added.reshape(BLOCKS, PLANNED, n)[:, :given].reshape(rows, n)
            self.wanted = self.wanted + added
        block = Block(PLANNED, given)
        a, c = (replace(m.matrix, block=block) for m in (self.a, self.c))
        d = replace(self.d.matrix, block=None if addend == "all" else block)
        count = BLOCKS * len(CUT)
        self.flags = np.zeros(count * (1 + twice), np.uint32)
        self.works, at = [], 0
        whole_k, whole_n = (Interval(0, K),), (Interval(0, n),)
        for number in range(count):
            piece = (Interval(at, at + CUT[number % len(CUT)]),)
            at = piece[0].stop
            signals = (int(self.flags.ctypes.data) + 4 * number,)
            addends = (Addend(MatrixOperand(d, piece, whole_n), "bf16"),) if addend else ()
            of_b = (whole_k, whole_n)
            self.works.append(
                MatrixWork(a, self.b.matrix, c, piece, whole_k, *of_b, piece, whole_n, False, (), signals, addends)
            )

        for number, w in enumerate(self.works[:count] if twice else ()):
            signals = (int(self.flags.ctypes.data) + 4 * (count + number),)
            self.works.append(replace(w, accumulate=True, waits=w.signals, signals=signals))
        self.wanted = self.wanted * (1 + twice)


def right(made: Launch | Gradient, table: Table, launch: Callable[[int, int, int], str]) -> None:
    """`launch` of the addresses of constants and scratch, and a seed."""
    constants, scratch = aligned(len(table.constants)), aligned(table.scratch_bytes)
    constants[:] = np.frombuffer(table.constants, np.uint8)
    for seed in range(2):
        made.flags[:] = 0
        made.c.whole.view(np.uint8)[:] = 0xFF
        assert launch(constants.ctypes.data, scratch.ctypes.data, seed) == ""
        assert np.array_equal(made.c.values, made.wanted.astype(made.c.values.dtype))
        assert made.c.untouched()
        assert made.flags.all()
        assert not scratch[: table.counter_bytes].any()


GIVEN = (1, 80, 95)  # of 110


@pytest.mark.parametrize(
    ("name", "addend"),
    [
        ("sm90_gemm_64x64_c1", ""),
        ("sm90_gemm_64x64_c1", "all"),
        ("sm90_gemm_64x64_c1", "fewer"),
        ("sm90_gemm_64x128_c1_paced", ""),
        ("sm90_gemm_128x128_c2_pp", ""),
        ("sm90_gemm_256x160_c2", ""),
        ("sm90_gemm_160x256_c2_swapped", ""),
    ],
)
def test_the_hopper_kernel(name: str, addend: str, tmp_path: Path) -> None:
    variant = next(v for v in (*sm90.VARIANTS, *sm90.ODD) if v.name == name)
    signature = Signature("bf16", "bf16", False, False, bool(addend))
    entry = signature.entry(name)
    kernel = nvidia.Kernel(tmp_path, sm90.SOURCE, variant.options(signature), entry, "Parameters", IMPATIENT)
    for given in GIVEN:
        hopper(kernel, variant, signature, Launch(given, N, addend))
        if name == "sm90_gemm_64x64_c1" and not addend:
            hopper(kernel, variant, signature, Launch(given, N, twice=True))


def hopper(kernel: nvidia.Kernel, variant: sm90.Variant, signature: Signature, made: Launch | Gradient) -> None:
    split_k = SplitK(1 if made.works[-1].accumulate else 2)
    packed = tables.build(made.works, variant, signature, clusters=4, stages=2, split_k=split_k)
    grid = min(4 * variant.cluster, len(packed.table.tiles))

    def launch(constants: int, scratch: int, seed: int) -> str:
        kernel.forget()
        for memory in (made.a, made.b, made.c, *([made.d] if isinstance(made, Launch) else [])):
            kernel.region(memory.whole.ctypes.data, memory.whole.nbytes, memory.whole.itemsize)
        kernel.gives(0, 0, 0, 0, 0, 0, 0)  # the launch before ends
        argument = packed.parameters(constants, scratch, [encoded(m) for m in packed.maps])
        return kernel(argument, grid, variant.threads, seed, cluster=variant.cluster)

    right(made, packed.table, launch)


@pytest.mark.parametrize("addend", ["", "all", "fewer"])
@pytest.mark.parametrize("family", ["sm80", "mfma"])
def test_kernels_by_address(family: str, addend: str, tmp_path: Path) -> None:
    signature = Signature("bf16", "bf16", False, False, bool(addend))
    kernel, variant = compiled(family, signature, tmp_path)
    for given in GIVEN:
        made = Launch(given, N, addend)
        packed = by_address.build(made.works, variant, signature, blocks=3, stages=2, tail_splits=2)
        right(made, packed.table, partial(launched, kernel, packed, variant.threads))


def compiled(family: str, signature: Signature, folder: Path) -> tuple[nvidia.Kernel | amd.OnCpu, by_address.Variant]:
    """A small variant of a family."""
    variants: tuple[by_address.Variant, ...] = sm80.VARIANTS if family == "sm80" else mfma.VARIANTS
    variant = next(v for v in variants if v.name.endswith(("64x64", "64x64x64")))
    source, arch = (sm80.SOURCE, "sm_80") if family == "sm80" else (mfma.SOURCE, "gfx942")
    options, entry = variant.options(signature, arch), signature.entry(variant.name)
    if family == "sm80":
        return nvidia.Kernel(folder, source, options, entry, "Parameters"), variant
    return amd.OnCpu(folder, source, options, entry, "Parameters", "Words"), variant


class Gradient:
    """C = Aᵀ · B over rows of A and B, some of which are there: a work over all blocks, and one over a piece that may
    have no row. `merged`: all blocks are one to the first work, as `Rows.of` makes them."""

    def __init__(self, given: int, merged: bool = False) -> None:
        draw, rows, block = np.random.default_rng(given), BLOCKS * given, Block(PLANNED, given)
        self.a, self.b, self.c = Memory(rows, K, "bf16"), Memory(rows, N, "bf16"), Memory(2 * K, N, "fp32")
        for memory in (self.a, self.b):
            memory.values[:] = draw.integers(-2, 3, memory.values.shape)
        left, right = (m.values.astype(np.float32).reshape(BLOCKS, given, -1) for m in (self.a, self.b))
        last = slice(CUT[0], None)
        self.wanted = np.concatenate([np.einsum("pki,pkj->ij", left, right), left[-1, last].T @ right[-1, last]])
        a, b = (replace(m.matrix, block=block) for m in (self.a, self.b))
        self.flags = np.zeros(2, np.uint32)
        first, second = (int(self.flags.ctypes.data) + 4 * i for i in range(2))
        wide, across = (Interval(0, K),), (Interval(0, N),)
        end = BLOCKS * PLANNED
        whole, part = (Interval(0, end),), (Interval(end - PLANNED + CUT[0], end),)
        one = Block(BLOCKS * PLANNED, BLOCKS * given) if merged else block
        of_all = [replace(m, block=one) for m in (a, b)]
        work = MatrixWork(*of_all, self.c.matrix, whole, wide, whole, across, wide, across, False, (), (first,))
        below = (Interval(K, 2 * K),)
        again = replace(work, left=a, right=b, left_rows=part, right_rows=part, out_rows=below, signals=(second,))
        self.works = [work, again]


@pytest.mark.parametrize("family", ["sm80", "mfma"])
def test_products_over_rows(family: str, tmp_path: Path) -> None:
    """Behind the rows that are there lies NaN."""
    signature = Signature("bf16", "fp32", True, False, False)
    kernel, variant = compiled(family, signature, tmp_path)
    for given in GIVEN:
        made = Gradient(given)
        packed = by_address.build(made.works, variant, signature, blocks=3, stages=2, tail_splits=2)
        right(made, packed.table, partial(launched, kernel, packed, variant.threads))


def test_products_over_rows_by_tensor_maps(tmp_path: Path) -> None:
    """Each over one block, or over all as one: the maps end with the rows that are there."""
    variant = next(v for v in sm90.VARIANTS if v.name == "sm90_gemm_64x64_c1")
    signature = Signature("bf16", "fp32", True, False)
    kernel = nvidia.Kernel(
        tmp_path, sm90.SOURCE, variant.options(signature), signature.entry(variant.name), "Parameters", IMPATIENT
    )
    for given in GIVEN:
        hopper(kernel, variant, signature, Gradient(given, merged=True))


def launched(
    kernel: nvidia.Kernel | amd.OnCpu,
    packed: by_address.PackedLaunch,
    threads: int,
    constants: int,
    zeros: int,
    seed: int,
) -> str:
    argument = packed.parameters(constants, zeros)
    if isinstance(kernel, nvidia.Kernel):
        kernel.forget()
        return kernel(argument, 3, threads, seed)
    kernel(argument, 3, threads, seed)
    return ""


def test_tables_are_the_same_for_all_rows() -> None:
    """The plan's tiles, in its order, with its waits and signals. Maps and infos tell which rows are there."""
    variant = next(v for v in sm90.VARIANTS if v.name == "sm90_gemm_64x64_c1")
    signature = Signature("bf16", "bf16", False, False, True)
    launches = [Launch(given, N, "fewer") for given in (30, 95)]
    plans = replace(launches[0].works[0].out, block=None)
    packed = [
        tables.build([replace(w, signals=(8,)) for w in made.works], variant, signature, clusters=4, stages=2)
        for made in launches
    ]
    assert packed[0].table.constants == packed[1].table.constants
    for made, found in zip(launches, packed, strict=True):
        given = made.c.matrix.rows // BLOCKS
        bases = [made.c.matrix.address + block * given * made.c.matrix.pitch * 2 for block in range(BLOCKS)]
        assert [out.address for *_, out in found.table.operands] == bases
        assert {out.rows for *_, out in found.table.operands} == {given}
        assert {m.dims for m in found.maps if m.address in bases} == {(N, given)}
        encodings = [encoded(m) for m in found.maps]
        block = found.parameters(0, 0, encodings)
        infos = [tables.INFO.unpack_from(block, tables.INFOS_AT + i * tables.INFO.size) for i in range(BLOCKS)]
        assert [(info[0], info[-1]) for info in infos] == [(base, given) for base in bases]
    assert plans.rows == BLOCKS * 30


def test_tables_by_address_are_the_same_for_all_rows() -> None:
    """Where each operand has the same rows of a block; others are left out in the table."""
    signature = Signature("bf16", "bf16", False, False, True)
    for addend, same in (("fewer", True), ("all", False)):
        launches = [[replace(w, signals=(8,)) for w in Launch(given, N, addend).works] for given in (30, 95)]
        packed = [by_address.build(w, sm80.VARIANTS[-1], signature, blocks=3, stages=2) for w in launches]
        assert (packed[0].table.constants == packed[1].table.constants) == same
        of_blocks = [[out.rows for *_, out in found.table.operands] for found in packed]
        assert (of_blocks == [[30] * BLOCKS, [95] * BLOCKS]) == same


def test_works_in_several_blocks_leave_rows_out_in_the_table() -> None:
    """And so do works of more blocks than the kernel's parameters have maps for."""
    variant = next(v for v in sm90.VARIANTS if v.name == "sm90_gemm_64x64_c1")
    signature = Signature("bf16", "bf16", False, False, False)
    for given in (30, 31):
        made = Launch(given, N)
        first, second, third, _ = made.works
        rows = (*first.out_rows, *third.out_rows)
        both = replace(first, left_rows=rows, out_rows=rows, signals=(8,))
        table = tables.build([both, replace(second, signals=(9,))], variant, signature, clusters=4, stages=2).table
        there = table.tiles["rows"] > 0
        assert table.tiles["rows"][there].tolist() == [given] * 4
        assert sorted(table.tiles["out_row"][there].tolist()) == [0, 0, given, given]
        assert not table.tiles["out_row"][~there].any()
    block, matrix = Block(64, 20), replace(made.c.matrix, rows=20 * 9)
    a, c = (replace(m, block=block) for m in (replace(made.a.matrix, rows=20 * 9), matrix))
    pieces = [(Interval(64 * i, 64 * i + 64),) for i in range(9)]
    works = [replace(first, left=a, out=c, left_rows=rows, out_rows=rows) for rows in pieces]
    table = tables.build(works, variant, signature, clusters=4, stages=2).table
    assert len(table.operands) == 1
    assert set(table.tiles["rows"].tolist()) == {20}
    assert sorted(set(table.tiles["out_row"].tolist())) == [20 * i for i in range(9)]
