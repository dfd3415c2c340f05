"""The waits and signals of NVIDIA's kernels, thread by thread on the CPU, in a memory order as weak as PTX's.

Other devices write operands while a launch runs and raise flags behind that, in any order; the launch before ends at
any time. A launch is right if its numbers are, if it reads nothing that is not ordered before the read, if each flag
goes up behind what it stands for as other devices see it, and if it ends.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.geometry.rows import Block
from ficco_rt.graph.functions import FUNCTIONS, FunctionName
from ficco_rt.kernels import by_address, families
from ficco_rt.kernels.family import LaunchRequest, TensorMap
from ficco_rt.kernels.kernel_compiler import KERNELS
from ficco_rt.kernels.marks import MARK
from ficco_rt.kernels.naive.family import COPY, REDUCE
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm90 import choice, tables
from ficco_rt.kernels.sm90 import variants as sm90
from ficco_rt.kernels.tile_table import SplitK, Table
from ficco_rt.kernels.tiles import Addend, MatrixOperand, MatrixWork, Scales
from ficco_rt.kernels.works import View, Work
from ficco_rt.machine.profiles import stored
from tests import cases
from tests.simt import nvidia
from tests.simt.memory import DTYPES, Memory, aligned
from tests.unit.hand_made import copied, total

MAP = struct.Struct("<5Q4I")  # EncodedMap of mock/src/tensor_map.h
MAGIC = 0x70616D726F736E74
MAP_TYPES = {"bf16": 9, "fp16": 6, "fp32": 7, "fp8_e4m3": 0, "fp8_e5m2": 0}
SEEDS = range(20 if "FICCO_ALL" in os.environ else 6)
NAIVE = KERNELS / "naive.cu"


def encoded(m: TensorMap) -> bytes:
    return MAP.pack(MAGIC, m.address, *m.dims, m.pitch, *m.box, MAP_TYPES[m.dtype], m.swizzle).ljust(128, b"\0")


@dataclass(frozen=True)
class Shape:
    """Works on rows of C = A · B (+ D), which wait for their rows of A, for B, for pieces of K, for their rows of D."""

    rows: tuple[int, ...]
    n: int
    k: int
    blocks: int  # or clusters
    stages: int = 3
    splits: int = 1
    resident: int = 0  # blocks that run at once, if not all
    addends: bool = False
    read_only: bool = False  # B, which then waits for nothing
    left_read_only: bool = False
    there: bool = False  # the first work's rows of A, before the launch
    by_depth: int = 0  # pieces of K that are waited for one by one
    twice: bool = False  # a work more adds A · B to the first one's rows, behind its flag
    resets: bool = False
    signals: bool = True
    before: bool = False  # the launch before writes A and B: nothing waits for flags
    free: bool = False  # A and B are read-only; works wait until another device has read their rows of C
    chained: bool = False  # a work's addends wait for the signal of the work before it
    stale: bool = False  # flags are up when the launch begins, until the launch before ends
    dtype: str = "bf16"  # of A and B
    multiple: int = 0  # elements, of whose multiples pitches are, if not of 16 bytes
    out: str = "bf16"
    turned: bool = False  # B is stored [N, K]
    left_turned: bool = False  # A is stored [K, M]
    function: FunctionName | None = None
    repeated: bool = False  # the addend is the first row of D, for all rows
    scaling: str | None = None  # of A and B, which are fp8 then; scales come with their rows, and pieces of K


class Run:
    """A launch's memory, and what is told of it."""

    def __init__(self, shape: Shape, seed: int, early: bool = True) -> None:
        """`early`: the launch may begin while the one before it on its stream runs."""
        self.shape, self.early = shape, early
        draw = np.random.default_rng(seed)
        m = sum(shape.rows)
        stored_b = (shape.n, shape.k) if shape.turned else (shape.k, shape.n)
        stored_a = (shape.k, m) if shape.left_turned else (m, shape.k)
        types = ("fp8_e4m3", "fp8_e5m2") if shape.scaling else (shape.dtype, shape.dtype)
        wide, of_out = shape.multiple or 16, shape.multiple or 8
        self.a, self.b = Memory(*stored_a, types[0], wide), Memory(*stored_b, types[1], wide)
        self.c, self.d = Memory(m, shape.n, shape.out, of_out), Memory(m, shape.n, shape.dtype, of_out)
        self.held = {
            id(memory): draw.integers(-3, 4, memory.values.shape).astype(memory.whole.dtype)
            for memory in (self.a, self.b, self.d)
        }
        self.scales: dict[int, Memory] = {}
        if shape.scaling:
            for memory, of_a in ((self.a, True), (self.b, False)):
                rows, columns = self._scales_of(of_a, Interval(0, memory.matrix.rows), Interval(0, shape.k))
                made = self.scales[id(memory)] = Memory(rows.stop, columns.stop, "fp32", 4 if columns.stop > 1 else 1)
                self.held[id(made)] = 2.0 ** draw.integers(-1, 2, made.values.shape).astype(np.float32)
                memory.matrix = replace(memory.matrix, scales=Scales(made.matrix.address, made.matrix.pitch))
        self.flags = np.zeros(64, np.uint32)
        self.gives: list[tuple[int, Memory, Interval, Interval]] = []
        self.raises: list[tuple[int, int]] = []
        self.reads: list[tuple[int, Interval]] = []
        self.promises: list[tuple[int, Interval]] = []
        self.works = self._works()

    def flag(self, number: int) -> int:
        return int(self.flags.ctypes.data) + 4 * number

    def _of_a(self, rows: Interval, along: Interval) -> tuple[Interval, Interval]:
        return (along, rows) if self.shape.left_turned else (rows, along)

    def _scales_of(self, of_a: bool, rows: Interval, columns: Interval) -> tuple[Interval, Interval]:
        """Where those of elements of A or B are."""

        def cut(axis: Interval, size: int) -> Interval:
            return Interval(axis.start // size, -(-axis.stop // size))

        blocks = self.shape.scaling == "1x128"
        return cut(rows, 128 if blocks and not of_a else 1), cut(columns, 128) if blocks else Interval(0, 1)

    def _give(self, who: int, memory: Memory, rows: Interval, columns: Interval) -> None:
        self.gives.append((who, memory, rows, columns))
        if id(memory) in self.scales:
            self.gives.append((who, self.scales[id(memory)], *self._scales_of(memory is self.a, rows, columns)))

    def _there(self, memory: Memory, rows: Interval, columns: Interval) -> None:
        """Nobody writes these."""
        at = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
        memory.values[at] = self.held[id(memory)][at]
        if id(memory) in self.scales:
            scales, of = self.scales[id(memory)], self._scales_of(memory is self.a, rows, Interval(0, 1))[0]
            scales.values[of.start : of.stop] = self.held[id(scales)][of.start : of.stop]

    def _given(self, memory: Memory, rows: Interval, columns: Interval) -> int:
        """A flag of another device, which writes these elements."""
        number = len(self.raises)
        self._give(number + 1, memory, rows, columns)
        self.raises.append((number + 1, number))
        return self.flag(number)

    def _works(self) -> list[MatrixWork]:
        s, at, works = self.shape, 0, []
        n, k = Interval(0, s.n), Interval(0, s.k)
        b_rows, b_columns = (n, k) if s.turned else (k, n)
        of_b: tuple[int, ...] = ()
        if s.before:
            self._give(0, self.a, *self._of_a(Interval(0, sum(s.rows)), k))
            self._give(0, self.b, b_rows, b_columns)
        elif s.read_only:
            self._there(self.b, b_rows, b_columns)
        else:
            of_b = (self._given(self.b, b_rows, b_columns),)
        for number, size in enumerate(s.rows):
            rows = Interval(at, at + size)
            at += size
            waits, depths, along = of_b, [], [k]
            if s.free:
                self.reads.append((len(self.raises) + 1, rows))
                self.raises.append((len(self.raises) + 1, len(self.raises)))
                waits = (self.flag(len(self.raises) - 1),)
            if s.before:
                pass
            elif s.left_read_only or (s.there and number == 0):
                self._there(self.a, *self._of_a(rows, k))
            elif number == len(s.rows) - 1 and len(s.rows) > 1 and self.early:
                self._give(0, self.a, *self._of_a(rows, k))  # the launch before writes the last rows of A
            elif s.by_depth:
                step = s.k // s.by_depth
                along = [Interval(i * step, (i + 1) * step) for i in range(s.by_depth)]
                depths = [(piece.start, (self._given(self.a, *self._of_a(rows, piece)),)) for piece in along]
            else:
                waits = (*of_b, self._given(self.a, *self._of_a(rows, k)))
            signals = (self.flag(32 + number),) if s.signals else ()
            addends: tuple[Addend, ...] = ()
            behind: tuple[int, ...] = ()
            if s.addends:
                added = replace(self.d.matrix, pitch=0) if s.repeated else self.d.matrix
                addends = (Addend(MatrixOperand(added, (rows,), (n,)), s.dtype),)
                behind = (self._given(self.d, rows, n), *([self.flag(31 + number)] if s.chained and number else []))
            of_a = (tuple(along), (rows,)) if s.left_turned else ((rows,), tuple(along))
            pieces = (*of_a, (b_rows,), (b_columns,), (rows,), (n,))
            flags = (waits, signals, addends, behind, tuple(depths))
            works.append(MatrixWork(self.a.matrix, self.b.matrix, self.c.matrix, *pieces, False, *flags))
            if s.signals:
                self.promises.append((32 + number, rows))
        if s.twice:
            behind_first = (*works[0].waits, self.flag(32))
            works.append(replace(works[0], accumulate=True, waits=behind_first, signals=(self.flag(63),)))
        return works

    def wanted(self, twice: bool) -> np.ndarray:
        """The result, behind the work that makes the first rows twice as large, or before it."""
        a, b, d = (self.held[id(memory)].astype(float) for memory in (self.a, self.b, self.d))
        for values, memory, high in ((a, self.a, 1), (b, self.b, 128)):
            if id(memory) in self.scales:
                scales = self.held[id(self.scales[id(memory)])]
                if self.shape.scaling == "1x128":
                    scales = scales.repeat(high, 0)[: len(values)].repeat(128, 1)[:, : self.shape.k]
                values *= scales
        made = (a.T if self.shape.left_turned else a) @ (b.T if self.shape.turned else b)
        if self.shape.function is not None:
            function = FUNCTIONS[self.shape.function]
            added = d[:1] if self.shape.repeated else d if self.shape.addends else 0
            made = function.of(made) * added if function.factor else function.of(made + added)
        elif self.shape.addends:
            made += d
        if twice:
            made[: self.shape.rows[0]] *= 2
        return made.astype(DTYPES[self.shape.out])

    def begin(self, kernel: nvidia.Kernel, table: Table, scratch: np.ndarray) -> None:
        """Memory as before the launch, and what the emulation is told."""
        kernel.forget()
        self.flags[:] = 0
        self.c.whole.view(np.uint8)[:] = 0xFF
        for _, memory, rows, columns in self.gives:
            memory.values[rows.start : rows.stop, columns.start : columns.stop].view(np.uint8)[:] = 0xFF
        for memory, after in ((self.a, -1), (self.b, -1), (self.d, -1), (self.c, 0 if self.early else -1)):
            kernel.region(memory.whole.ctypes.data, memory.whole.nbytes, memory.whole.itemsize, after)
        for memory in self.scales.values():
            kernel.region(memory.whole.ctypes.data, memory.whole.nbytes, 4)
        if table.partials:
            parts = scratch[table.counter_bytes :]
            kernel.region(parts.ctypes.data, len(parts) // 16 * 16, 16)
        for who, memory, rows, columns in self.gives:
            source, item = self.held[id(memory)], memory.whole.itemsize
            kernel.gives(
                who,
                memory.matrix.address + (rows.start * memory.matrix.pitch + columns.start) * item,
                memory.matrix.pitch * item,
                source.ctypes.data + (rows.start * source.shape[1] + columns.start) * item,
                source.shape[1] * item,
                rows.size,
                columns.size * item,
            )
        if self.early:
            kernel.gives(0, 0, 0, 0, 0, 0, 0)  # the launch before ends, whatever it writes
        for who, number in self.raises:
            kernel.raises(who, self.flag(number))
            if self.shape.stale:
                self.flags[number] = 1
                kernel.lowers(self.flag(number))
        item = self.c.whole.itemsize
        pitch, wide = self.c.matrix.pitch * item, self.shape.n * item
        for who, rows in self.reads:
            kernel.reads(who, self.c.matrix.address + rows.start * pitch, pitch, rows.size, wide)
        self.kept = self.wanted(False)
        for number, rows in self.promises:
            at = self.c.matrix.address + rows.start * pitch
            kernel.promises(self.flag(number), at, pitch, rows.size, wide, self.kept.ctypes.data + rows.start * wide)


def assert_right(
    kernel: nvidia.Kernel, run: Run, table: Table, scratch: np.ndarray, launch: Callable[[int], str]
) -> None:
    wanted = run.wanted(run.shape.twice)
    for seed in SEEDS:
        run.begin(kernel, table, scratch)
        assert launch(seed) == "", f"seed {seed}"
        close = 0 if run.shape.function is None else 2.0**-7  # of bf16, one step
        off = np.argwhere(~np.isclose(run.c.values.astype(float), wanted.astype(float), close, close / 100))
        assert not len(off), f"seed {seed}: {len(off)} elements, from {off[0]} to {off[-1]}; {kernel.hint()}"
        raised = {n for n, _ in run.promises} | {n for _, n in run.raises if not run.shape.resets}
        assert set(np.flatnonzero(run.flags[:63]).tolist()) == raised, f"seed {seed}"
        assert not scratch[: table.counter_bytes].any()
        assert run.c.untouched()


HOPPER = {
    "sm90_gemm_64x64_c1": {
        "waits": Shape((100, 64, 30), 128, 200, 3, stale=True),
        "in_turn": Shape((64, 64, 64), 192, 136, 1),
        "before": Shape((100,), 64, 136, 2, before=True),
        "free": Shape((64, 64), 64, 136, 2, read_only=True, left_read_only=True, free=True),
        "early": Shape((64, 64, 64), 64, 320, 2, read_only=True),
        "by_depth": Shape((64, 50, 64), 64, 512, 2, by_depth=4, resets=True),
        "splits": Shape((64, 64), 64, 512, 4, splits=4),
        # one wave that waits for nothing and raises a flag for each work: all blocks have a part
        "splits_raise": Shape((50, 64), 128, 520, 12, splits=3, read_only=True, left_read_only=True),
        "splits_in_turn": Shape((64, 64), 64, 512, 4, splits=4, resident=1),
        "twice": Shape((64, 64), 128, 192, 3, twice=True, read_only=True),
        # the blocks' first tiles are known before the table has come: of two waves, the first; of parts of K, all
        "foreseen": Shape((50,), 320, 136, 3, before=True),
        "foreseen_parts": Shape((50,), 192, 520, 7, splits=2, before=True),
    },
    "sm90_gemm_128x216_c2": {  # a cluster's blocks load 8 columns twice
        "waits": Shape((256, 40), 216, 136, 1, turned=True),
    },
    "sm90_gemm_256x168_c2": {"waits": Shape((512, 100), 168, 136, 1)},  # stored from registers, and a half of four
    "sm90_gemm_128x128_c2": {
        "waits": Shape((256, 128, 40), 128, 136, 1, resets=True, out="fp32"),
        "left": Shape((256, 128), 128, 192, 1, left_read_only=True, out="fp32"),
    },
    "sm90_gemm_128x128_c2_pp": {"waits": Shape((256, 384, 40), 128, 136, 1)},
    "sm90_gemm_64x128_c1_paced": {
        "waits": Shape((64, 128, 40), 256, 200, 2),
        "quiet": Shape((64, 40), 256, 200, 2, signals=False),
    },
    "sm90_gemm_256x160_c2": {"waits": Shape((512, 100), 160, 136, 1)},  # stored from registers
    # wgmma makes the transposed tile; rows end inside 32, and columns inside 64
    "sm90_gemm_160x256_c2_swapped": {
        "waits": Shape((346, 40), 264, 72, 1),
        "foreseen": Shape((650,), 264, 24, 6, stages=2, before=True),  # two bands, the second of one row
    },
    "sm90_gemm_144x256_c2_swapped": {
        "waits": Shape((288, 40), 136, 72, 1, turned=True),
        "foreseen": Shape((294,), 264, 72, 3, before=True, turned=True),  # the last neighbour has nothing to store
    },
    "sm90_gemm_16x128_c1_swapped": {
        "waits": Shape((16, 7), 264, 136, 3),
        "splits": Shape((16, 12), 256, 512, 8, splits=4, read_only=True),
        "foreseen_parts": Shape((9,), 264, 520, 7, splits=2, before=True),
    },
    "sm90_gemm_24x192_c1_swapped": {
        "foreseen": Shape((50,), 448, 136, 3, before=True),
        "splits": Shape((30,), 192, 512, 3, splits=3, before=True),
    },
    "sm90_gemm_80x256_c2_swapped": {
        "splits": Shape((150,), 136, 512, 2, splits=2, turned=True, stages=3, before=True),
    },
    "sm90_gemm_64x40_c1": {"foreseen_parts": Shape((200,), 72, 520, 20, splits=2, before=True, turned=True)},
    # parts of K in a cluster: some blocks have no rows to store, and one tile of two is cut
    "sm90_gemm_24x64_c2_parts": {"parts": Shape((20, 24), 136, 520, 12, splits=2, turned=True)},
    "sm90_gemm_16x128_c3_parts": {
        "parts": Shape((13,), 264, 776, 9, splits=3, before=True),
        "tail": Shape((32,), 264, 776, 3, splits=3, before=True),
    },
}
IMPATIENT = ("constexpr int PATIENCE = 128;", "constexpr int PATIENCE = 8;")  # splits of K give up in many orders
SUMS = {
    "sm90_gemm_64x64_c1": {
        "addends": Shape((100, 64, 30), 64, 136, 2, stages=2, addends=True),
        "chained": Shape((64, 64, 64), 64, 136, 1, addends=True, chained=True),
    }
}


def hopper(variant: sm90.Variant, signature: Signature, shape: Shape, kernel: nvidia.Kernel, seed: int) -> Table:
    run = Run(shape, seed)
    split_k = SplitK(shape.splits)
    with patch.object(choice, "LEVEL", 0):  # of so little K, too
        packed = tables.build(
            run.works,
            variant,
            signature,
            clusters=shape.blocks,
            stages=shape.stages,
            split_k=split_k,
            level=choice.level(variant, run.works, signature, shape.blocks, split_k),
            lockstep=choice.lockstep(variant, run.works, signature, shape.blocks, split_k),
            read_only=(shape.left_read_only, shape.read_only),
            resets=[run.flag(n) for _, n in run.raises] if shape.resets else (),
        )
    table = packed.table
    constants, scratch = aligned(len(table.constants)), aligned(table.scratch_bytes)
    constants[:] = np.frombuffer(table.constants, np.uint8)
    argument = packed.parameters(constants.ctypes.data, scratch.ctypes.data, [encoded(m) for m in packed.maps])
    grid = min(shape.blocks * variant.cluster, -(-len(table.tiles) // variant.together) * variant.together)

    def launch(order: int) -> str:
        return kernel(argument, grid, variant.threads, order, cluster=variant.together, resident=shape.resident)

    assert_right(kernel, run, table, scratch, launch)
    return table


def hopper_kernel(
    variant: sm90.Variant, addends: bool, out: str, folder: Path, source: Path = sm90.SOURCE, turned: bool = False,
    function: FunctionName | None = None, left_turned: bool = False,
) -> tuple[nvidia.Kernel, Signature]:  # fmt: skip
    signature = Signature("bf16", out, left_turned, turned, addends, function)
    options, entry = variant.options(signature), signature.entry(variant.name)
    return nvidia.Kernel(folder, source, options, entry, "Parameters", IMPATIENT), signature


@pytest.mark.parametrize("name", HOPPER)
def test_the_hopper_kernel(name: str, tmp_path: Path) -> None:
    variant = next(v for v in (*sm90.VARIANTS, *sm90.ODD) if v.name == name)
    for addends, shapes in ((False, HOPPER[name]), (True, SUMS.get(name, {}))):
        if shapes:
            first = next(iter(shapes.values()))
            kernel, signature = hopper_kernel(variant, addends, first.out, tmp_path, turned=first.turned)
            for number, shape in enumerate(shapes.values()):
                hopper(variant, signature, shape, kernel, number)


LEFT_TURNED = {
    "sm90_gemm_128x128_c2": {
        "waits": Shape((256, 128, 40), 128, 136, 1, resets=True),
        "splits": Shape((200,), 128, 512, 2, splits=3, before=True),
    },
    "sm90_gemm_64x64_c1": {
        "by_depth": Shape((64, 56, 64), 64, 512, 2, by_depth=4),
        "foreseen": Shape((50,), 320, 136, 3, before=True),
    },
}


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", LEFT_TURNED)
def test_a_transposed_left_operand(name: str, turned: bool, tmp_path: Path) -> None:
    variant = next(v for v in sm90.VARIANTS if v.name == name)
    kernel, signature = hopper_kernel(variant, False, "bf16", tmp_path, turned=turned, left_turned=True)
    for number, shape in enumerate(LEFT_TURNED[name].values()):
        hopper(variant, signature, replace(shape, turned=turned, left_turned=True), kernel, number)


FORESEEN = Shape((256, 256, 40), 392, 1288, 2, read_only=True, there=True)  # of the first work; the others wait
SCALED = {
    "1x128": {
        "sm90_gemm_64x64_c1": (
            Shape((100, 64, 30), 128, 200, 3, stale=True),
            Shape((64, 50), 64, 1024, 2, by_depth=8, resets=True),
            Shape((64, 64), 64, 1088, 4, splits=4),
            Shape((64, 40), 64, 136, 2, read_only=True, left_read_only=True, free=True),
            Shape((100,), 192, 640, 2, stages=2, before=True),
            Shape((40,), 64, 2568, 1, before=True),  # more steps than stages, and than a slot of scales has
        ),
        # steps overlap, of two consumers; one to four steps stand behind the last four
        "sm90_gemm_128x128_c1": (
            Shape((200,), 264, 2184, 2, splits=3, before=True),
            Shape((128,), 256, 1160, 2, stages=2),
        ),
        "sm90_gemm_24x64_c1_swapped": (Shape((40, 20), 136, 2184, 2), Shape((50,), 136, 264, 6, before=True)),
        "sm90_gemm_16x128_c2_parts": (
            Shape((13,), 264, 2184, 6, splits=2, before=True),
            Shape((13,), 264, 4200, 4, before=True),  # whole tiles, and more steps than two slots of scales have
        ),
        "sm90_gemm_112x128_c4_parts": (
            Shape((88,), 200, 1032, 4, splits=4, before=True),  # two blocks have no tile
            Shape((88, 20), 128, 264, 8, splits=4),  # fewer steps than parts: each block makes a whole tile
        ),
        # a tile's columns lie in two blocks, a cluster's rows in two tiles; waves go through K there and back
        "sm90_gemm_128x160_c2": (Shape((256, 40), 480, 648, 1, resets=True),),
        "sm90_gemm_256x128_c1x2": (Shape((256, 40), 328, 264, 2), replace(FORESEEN, rows=(512, 256, 40))),
        "sm90_gemm_128x192_c1": (FORESEEN,),
        "sm90_gemm_192x128_c1x2": (Shape((256, 40), 328, 648, 2),),
    },
    "row": {
        "sm90_gemm_64x64_c1": (
            Shape((100, 30), 136, 264, 3),
            Shape((64, 64), 64, 512, 4, splits=4),
            Shape((64,), 64, 1920, 1, stages=13),  # all that there are for stages
        ),
        "sm90_gemm_24x64_c1_swapped": (Shape((40, 20), 136, 648, 2), Shape((50,), 136, 264, 6, before=True)),
        "sm90_gemm_16x128_c2_parts": (Shape((13,), 264, 1096, 6, splits=2, before=True),),
        "sm90_gemm_72x192_c1_swapped": (Shape((100,), 264, 264, 2),),
        "sm90_gemm_64x72_c1": (Shape((100,), 136, 264, 3, splits=2),),
    },
}


@pytest.mark.parametrize("scaling", SCALED)
def test_the_hopper_kernel_with_scales(scaling: str, tmp_path: Path) -> None:
    for fast in (False, True) if scaling == "row" and cases.ALL else (False,):
        for name, shapes in SCALED[scaling].items():
            variant = next(v for v in (*sm90.VARIANTS, *sm90.BESIDE, *sm90.ODD) if v.name == name)
            signature = Signature("fp8_e4m3", "bf16", False, True, right_dtype="fp8_e5m2", scaling=scaling, fast=fast)
            options, entry = variant.options(signature), signature.entry(name)
            kernel = nvidia.Kernel(tmp_path, sm90.SOURCE, options, entry, "Parameters", IMPATIENT)
            for number, shape in enumerate(shapes):
                hopper(variant, signature, replace(shape, scaling=scaling, turned=True), kernel, number)
    variant = next(v for v in sm90.VARIANTS if v.name == "sm90_gemm_64x64_c1")
    signature = replace(signature, addends=True, fast=False)
    options, entry = variant.options(signature), signature.entry(variant.name)
    kernel = nvidia.Kernel(tmp_path, sm90.SOURCE, options, entry, "Parameters", IMPATIENT)
    for shape in (Shape((100, 64, 30), 64, 136, 2, stages=2), Shape((64, 64), 64, 512, 4, splits=4)):
        hopper(variant, signature, replace(shape, addends=True, scaling=scaling, turned=True), kernel, 0)


FUNCTIONAL = {
    "sm90_gemm_64x64_c1": Shape((64, 64), 64, 512, 4, splits=4, function="gelu", signals=False),
    "sm90_gemm_128x128_c2": Shape((200,), 128, 136, 1, addends=True, repeated=True, function="silu", signals=False),
    "sm80_gemm_64x64": Shape((100,), 64, 136, 2, addends=True, repeated=True, function="gelu_tanh", signals=False),
    "sm80_gemm_128x64": Shape((100, 64), 64, 136, 2, addends=True, function="silu_mul", signals=False),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functions_of_sums(name: str, tmp_path: Path) -> None:
    shape = FUNCTIONAL[name]
    if name.startswith("sm90"):
        variant = next(v for v in sm90.VARIANTS if v.name == name)
        kernel, signature = hopper_kernel(variant, shape.addends, shape.out, tmp_path, function=shape.function)
        hopper(variant, signature, shape, kernel, 0)
        return
    small = next(v for v in sm80.VARIANTS if v.name == name)
    signature = Signature("bf16", shape.out, False, False, shape.addends, shape.function)
    entry = signature.entry(name)
    kernel = nvidia.Kernel(tmp_path, sm80.SOURCE, small.options(signature, "sm_80"), entry, "Parameters")
    ampere(small, signature, shape, kernel, 0)


AMPERE = {
    "waits": Shape((100, 64, 30), 128, 200, 3),
    "splits": Shape((64, 64), 64, 512, 4, splits=3),
    "twice": Shape((64, 64), 128, 192, 2, twice=True),
    "fp32": Shape((70, 64), 64, 72, 2, out="fp32"),
}
AMPERE_SUMS = {"addends": Shape((100, 64, 30), 64, 136, 2, addends=True)}


def ampere(variant: sm80.Variant, signature: Signature, shape: Shape, kernel: nvidia.Kernel, seed: int) -> Table:
    run = Run(shape, seed, early=False)
    assert by_address.refusal(run.works, signature, sm80.LONGEST) is None
    packed = by_address.build(
        run.works, variant, signature, blocks=shape.blocks, stages=shape.stages, tail_splits=shape.splits
    )
    table, grid = packed.table, min(shape.blocks, len(packed.table.tiles))
    constants, scratch = aligned(len(table.constants)), aligned(table.scratch_bytes)
    constants[:] = np.frombuffer(table.constants, np.uint8)
    argument = packed.parameters(constants.ctypes.data, scratch.ctypes.data)
    assert_right(kernel, run, table, scratch, lambda order: kernel(argument, grid, variant.threads, order))
    return table


# Pitches of no multiple of 16 bytes; fp32, and fp32 rounded to TF32. Layouts take turns
UNALIGNED = {
    "by2": (2, "bf16", Shape((67, 30), 67, 131, 3, multiple=1)),
    "by2_sums": (2, "bf16", Shape((61, 5), 69, 195, 2, multiple=1, addends=True)),
    "by2_splits": (2, "bf16", Shape((63,), 65, 321, 4, multiple=1, splits=3, out="fp32")),
    "by4": (4, "bf16", Shape((66, 31), 70, 134, 3, multiple=2)),
    "by4_sums": (4, "bf16", Shape((66,), 130, 70, 2, multiple=2, addends=True)),
    "fp32": (16, "fp32", Shape((72, 64), 72, 100, 2, dtype="fp32", out="fp32", splits=2)),
    "fp32_by4": (4, "fp32", Shape((67,), 65, 67, 3, dtype="fp32", out="fp32", multiple=1, addends=True)),
    "tf32": (16, "tf32", Shape((72, 64), 72, 100, 2, dtype="fp32", out="fp32")),
    "tf32_by4": (4, "tf32", Shape((67,), 65, 67, 3, dtype="fp32", out="fp32", multiple=1)),
}


@pytest.mark.parametrize("name", UNALIGNED)
def test_the_ampere_kernel_loads_what_is_not_aligned_and_fp32(name: str, tmp_path: Path) -> None:
    access, dtype, shape = UNALIGNED[name]
    variant = sm80.VARIANTS[-1]
    layouts = [(lt, rt) for lt in (False, True) for rt in (False, True)]
    for lt, rt in cases.few(layouts, 1, list(UNALIGNED).index(name)):
        signature = Signature(shape.dtype, shape.out, lt, rt, shape.addends, access=access, tf32=dtype == "tf32")
        entry = signature.entry(variant.name)
        kernel = nvidia.Kernel(tmp_path, sm80.SOURCE, variant.options(signature, "sm_80"), entry, "Parameters")
        ampere(variant, signature, replace(shape, left_turned=lt, turned=rt), kernel, 0)


@pytest.mark.parametrize(("out", "addends"), [("bf16", False), ("fp32", False), ("bf16", True)])
def test_the_ampere_kernel(out: str, addends: bool, tmp_path: Path) -> None:
    variant = next(v for v in sm80.VARIANTS if v.name == "sm80_gemm_64x64")
    signature = Signature("bf16", out, False, False, addends)
    entry = signature.entry(variant.name)
    kernel = nvidia.Kernel(tmp_path, sm80.SOURCE, variant.options(signature, "sm_80"), entry, "Parameters")
    for number, shape in enumerate((AMPERE_SUMS if addends else AMPERE).values()):
        if shape.out == out:
            ampere(variant, signature, shape, kernel, number)


def test_the_naive_kernels(tmp_path: Path) -> None:
    made: list[nvidia.Kernel] = []
    for streamed in (False, True):
        naive(streamed, tmp_path, made)


def naive(streamed: bool, folder: Path, made: list[nvidia.Kernel]) -> None:
    """Copies of several tiles, one after another: the second waits for the first; the third for another device, and the
    launch before has ended when it writes."""
    rows, columns = 64, 4096
    memories = [Memory(rows, columns, "bf16") for _ in range(5)]
    flags = np.zeros(8, np.uint32)
    views = [
        View(whole_of(name, rows, columns), m.matrix.address, (rows, columns), "bf16")
        for name, m in zip("ABCDE", memories, strict=True)
    ]
    places = [int(flags.ctypes.data) + 4 * i for i in range(8)]
    works: list[Work] = [
        copied(views[1], views[0], (), (places[0],)),
        copied(views[2], views[1], (places[0],), (places[1],)),
        copied(views[4], views[3], (places[2], places[3]), (places[4],)),
    ]
    if not streamed:  # nothing waits: the launch before has written all
        works = [copied(views[1], views[0], (), (places[0],)), copied(views[4], views[3], (), (places[4],))]
    request = LaunchRequest(COPY, tuple(works), 4, streamed=streamed)
    (config,) = families.configure(request, Limits.of(stored("h200-switch").device))
    packed = families.tables(config, works)
    constants, scratch = aligned(len(packed.constants)), aligned(4 * packed.counters)
    constants[:] = np.frombuffer(packed.constants, np.uint8)
    (argument,) = packed.arguments(constants.ctypes.data, scratch.ctypes.data, 0, encoded)
    assert config.tiles >= 3 * len(works)
    if not made:
        made.append(nvidia.Kernel(folder, NAIVE, config.options, config.entry, "Table"))
    (kernel,) = made
    data = np.random.default_rng(5).integers(-3, 4, (2, rows, columns)).astype(memories[0].whole.dtype)
    for seed in SEEDS:
        kernel.forget()
        flags[:] = 0
        for m in memories:
            m.whole.view(np.uint8)[:] = 0xFF
        size = memories[0].whole.strides[0]
        for who, source, number in ((0, 0, None), (1 if streamed else 0, 3, 2), (2, None, 3)):
            if source is not None:
                kernel.gives(
                    who, memories[source].matrix.address, size, data[source // 3].ctypes.data, size, rows, size
                )
            if number is not None and streamed:
                kernel.raises(who, places[number])
        for number, target in ((0, 1), (1, 2), (4, 4)):
            at = memories[target].matrix.address
            kernel.promises(places[number], at, size, rows, size, data[target // 4].ctypes.data)
        at_once = 1 + seed % 3  # blocks: those that wait never keep out those that they wait for
        assert kernel(argument, 3, config.threads, seed, resident=at_once) == "", f"seed {seed}"
        for target, source in ((1, 0), (2, 0), (4, 1)):
            if streamed or target != 2:
                assert np.array_equal(memories[target].values, data[source]), f"seed {seed}: {kernel.hint()}"
        assert flags.tolist() == ([1, 1, 1, 1, 1, 0, 0, 0] if streamed else [1, 0, 0, 0, 1, 0, 0, 0])
        assert not scratch.any()


# tiles for some blocks, and several for each; rows of the plan that are not there
@pytest.mark.parametrize(("planned", "rows"), [(5, 5), (24, 24), (24, 1)])
def test_the_naive_sum(planned: int, rows: int, tmp_path: Path) -> None:
    """One term has been written by the launch before, the other one comes from another device: the block that ends last
    resets its flag, and no block adds before that is up."""
    columns, block = 4096, Block(planned, rows) if rows < planned else None
    memories = [Memory(rows, columns, "bf16") for _ in range(3)]
    flags = np.zeros(2, np.uint32)
    views = [
        View(whole_of(name, planned, columns), m.matrix.address, (rows, columns), "bf16", block=block)
        for name, m in zip("ABC", memories, strict=True)
    ]
    flag = int(flags.ctypes.data)
    work = total(views[2], (views[0], views[1]), (flag,), ())
    request = LaunchRequest(REDUCE, (work,), 4, streamed=True, resets=(flag,))
    (config,) = families.configure(request, Limits.of(stored("h200-switch").device))
    packed = families.tables(config, [work], [flag])
    constants, scratch = aligned(len(packed.constants)), aligned(4 * packed.counters)
    constants[:] = np.frombuffer(packed.constants, np.uint8)
    (argument,) = packed.arguments(constants.ctypes.data, scratch.ctypes.data, 0, encoded)
    kernel = nvidia.Kernel(tmp_path, NAIVE, config.options, config.entry, "Table")
    data = np.random.default_rng(6).integers(-3, 4, (2, rows, columns)).astype(memories[0].whole.dtype)
    size = memories[0].whole.strides[0]
    for seed in SEEDS:
        kernel.forget()
        flags[:] = 0
        for m in memories:
            m.whole.view(np.uint8)[:] = 0xFF
        for who in (0, 1):
            kernel.gives(who, memories[who].matrix.address, size, data[who].ctypes.data, size, rows, size)
        kernel.raises(1, flag)
        assert kernel(argument, config.blocks, config.threads, seed, resident=1 + seed % 3) == "", f"seed {seed}"
        assert np.array_equal(memories[2].values, data[0] + data[1]), f"seed {seed}: {kernel.hint()}"
        assert not flags.any()
        assert not scratch.any()


def whole_of(name: str, rows: int, columns: int) -> Region:
    return Region(name, 0, (Axis((Interval(0, rows),)), Axis((Interval(0, columns),))))


def assert_marked(marks: np.ndarray, waits: Sequence[bool]) -> None:
    """Of each tile: it came, began, ended; and of its time it waited some, if it waits for flags one by one."""
    assert (marks["came"] > 0).all()
    assert (marks["came"] < marks["began"]).all()
    assert (marks["began"] < marks["ended"]).all()
    assert (marks["waited"] > 0).all()
    assert (marks["waited"] < marks["ended"] - marks["came"]).all()
    later = marks["waited"] > marks["began"] - marks["came"]
    assert later.tolist() == list(waits)


@pytest.mark.parametrize("source", ["sm90", "sm80"])
def test_kernels_that_mark_make_the_same_numbers(source: str, tmp_path: Path) -> None:
    """And tell when each tile came, began and ended."""
    signature = Signature("bf16", "bf16", False, False)
    shapes = {"sm90": ("waits", "by_depth", "splits"), "sm80": ("waits", "splits")}[source]
    variant: sm90.Variant | sm80.Variant
    if source == "sm90":
        variant = next(v for v in sm90.VARIANTS if v.name == "sm90_gemm_64x64_c1")
        options, path = variant.options(signature), sm90.SOURCE
    else:
        variant = next(v for v in sm80.VARIANTS if v.name == "sm80_gemm_64x64")
        options, path = variant.options(signature, "sm_80"), sm80.SOURCE
    entry = signature.entry(variant.name)
    kernel = nvidia.Kernel(tmp_path, path, (*options, "-DMARKS=1"), entry, "Parameters")
    for name in shapes:
        marks = np.zeros(64, MARK)
        kernel.marks(marks.ctypes.data)
        if isinstance(variant, sm90.Variant):
            table = hopper(variant, signature, HOPPER[variant.name][name], kernel, 1)
        else:
            table = ampere(variant, signature, AMPERE[name], kernel, 1)
        assert_marked(marks[: len(table.tiles)], [bool(table.depth_waits["count"][t["k_first"]]) for t in table.tiles])
        assert not marks[len(table.tiles) :].view(np.uint64).any()
