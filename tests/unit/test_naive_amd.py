"""The naive kernels as HIP: compiled for AMD GPUs, and run on the CPU thread by thread."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.graph.functions import FUNCTIONS, FunctionName
from ficco_rt.graph.ir import Copy, Gemm, Reduce
from ficco_rt.kernels import families
from ficco_rt.kernels.family import KernelConfig, LaunchRequest, Tables
from ficco_rt.kernels.kernel_compiler import KERNELS as KERNEL_SOURCES
from ficco_rt.kernels.naive.family import kernel_of
from ficco_rt.kernels.naive.plain_kernels import KERNELS
from ficco_rt.kernels.naive.tables import TABLE
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.kernels.works import View, Work, WorkOf
from ficco_rt.machine.profiles import stored
from ficco_rt.types import ELEMENT_TYPES, Dtype, numpy_dtype
from tests.cases import few
from tests.simt import amd
from tests.unit import hand_made

SOURCE = KERNEL_SOURCES / "naive.cu"
DTYPES = {cast(Dtype, t.name): t.number for t in ELEMENT_TYPES if t.number is not None}


def region(tensor: str, *axes: tuple[tuple[int, int], ...]) -> Region:
    return Region(tensor, 0, tuple(Axis(tuple(Interval(a, b) for a, b in pieces)) for pieces in axes))


class Tensors:
    """Tensors of small integers in this process's memory."""

    def __init__(self, seed: int, **shapes: tuple[Dtype, tuple[int, int]]) -> None:
        draw = np.random.default_rng(seed)
        self.arrays = {
            name: draw.integers(-4, 5, shape).astype(numpy_dtype(dtype)) for name, (dtype, shape) in shapes.items()
        }
        self.dtypes = {name: dtype for name, (dtype, _) in shapes.items()}

    def view(self, region: Region) -> View:
        array = self.arrays[region.tensor]
        return View(region, array.ctypes.data, array.shape, self.dtypes[region.tensor])

    def product(
        self, out: Region, left: Region, right: Region, left_t: bool, right_t: bool, accumulate: bool,
        waits: tuple[int, ...], signals: tuple[int, ...], addends: tuple[Region, ...] = (),
    ) -> WorkOf[Gemm]:  # fmt: skip
        views = tuple(map(self.view, addends))
        sides = self.view(out), self.view(left), self.view(right)
        return hand_made.product(*sides, left_t, right_t, accumulate, views, waits, signals)

    def sum(self, out: Region, terms: tuple[Region, ...], signals: tuple[int, ...]) -> WorkOf[Reduce]:
        return hand_made.total(self.view(out), tuple(map(self.view, terms)), (), signals)

    def copy(self, dst: Region, src: Region, waits: tuple[int, ...], signals: tuple[int, ...]) -> WorkOf[Copy]:
        return hand_made.copied(self.view(dst), self.view(src), waits, signals)

    def of(self, region: Region) -> np.ndarray:
        """A copy of the region's logical matrix, in fp64."""
        return self.arrays[region.tensor][self._index(region)].astype(float)

    def put(self, region: Region, values: np.ndarray) -> np.ndarray:
        """The tensor as it is when the region has these values."""
        whole = self.arrays[region.tensor].copy()
        whole[self._index(region)] = values
        return whole

    @staticmethod
    def _index(region: Region) -> tuple[np.ndarray, ...]:
        return np.ix_(*([i for s in axis.segments for i in range(s.start, s.stop)] for axis in region.axes))


@dataclass(frozen=True)
class Made:
    """A launch in this process's memory."""

    config: KernelConfig
    tables: Tables


def launch(works: list[Work], flags: np.ndarray, streamed: bool) -> Made:
    kernel = kernel_of([works[0].body]).name
    (config,) = families.configure(
        LaunchRequest(kernel, tuple(works), 4, streamed=streamed), Limits.of(stored("mi300x-mesh").device)
    )

    def places(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(flags.ctypes.data) + 4 * n for n in numbers)

    placed = [replace(w, waits=places(w.waits), signals=places(w.signals)) for w in works]
    return Made(config, families.tables(config, placed))


def run(made: Made, grid: int, seed: int, folder: Path) -> None:
    packed, config = made.tables, made.config
    memory = np.zeros(len(packed.constants) + 4 * packed.counters + 512, np.uint8)
    start = -memory.ctypes.data % 256
    behind = start + -(-len(packed.constants) // 256) * 256
    memory[start : start + len(packed.constants)] = np.frombuffer(packed.constants, np.uint8)
    (table,) = packed.arguments(memory.ctypes.data + start, memory.ctypes.data + behind, 0, lambda m: b"")
    kernel = amd.OnCpu(folder, SOURCE, config.options, config.entry, "Table", "unsigned char")
    kernel(table, grid, config.threads, seed)
    assert not memory[behind : behind + 4 * packed.counters].any()  # as it was found


@pytest.mark.parametrize(("turn", "arch"), [(0, "gfx90a"), (1, "gfx942")])
def test_compiled_for_amd_without_spills(turn: int, arch: str, tmp_path: Path) -> None:
    options = ("-std=c++17", "-O3", f"--offload-arch={arch}")
    numbers = DTYPES.values()
    quantized = product(["QUANTIZE"], product((0, 1, 2), (3, 4)))
    kinds = [*product(["GEMM"], product(numbers, repeat=2)), *(("REDUCE", (i, i)) for i in numbers), ("COPY", (0, 0))]
    kinds += quantized
    for kind, (left, out) in few(kinds, 7, 7 * turn):
        compiled = amd.compile_device(
            tmp_path, SOURCE, (*options, f"-D{kind}=naive_{kind}", f"-DIN={left}", f"-DOUT={out}")
        )
        spilled = 16 if kind == "QUANTIZE" else 0  # scalar registers, to vector registers
        assert compiled.spills <= spilled
        assert (compiled.scratch, compiled.wave) == (0, 64)
        block = next(k.needs for k in KERNELS if k.name == f"naive_{kind.lower()}")
        assert compiled.vector_registers <= block.vector_registers
        assert compiled.lds <= block.static_smem
        assert compiled.parameters >= TABLE.size
    amd.code_object(tmp_path, arch, compiled)


def test_without_rocm_the_compiler_says_what_it_needs(tmp_path: Path) -> None:
    """In a process of its own: in this one a stand-in for hipRTC may be loaded."""
    program = (
        "from ficco_rt.kernels.kernel_compiler import HIPRTC, compile_text\n"
        f"compile_text('', 'x.hip', ['--offload-arch=gfx942'], '{tmp_path}', HIPRTC)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert re.search(r"DeviceError: hipRTC cannot be loaded \(.*libhiprtc\.so.*\): it comes with ROCm$", done.stderr)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("streamed", [False, True])
def test_products(dtype: Dtype, streamed: bool, tmp_path: Path) -> None:
    """Pieces in any order, both operands turned, flags waited for and raised, sums added to."""
    tensors = Tensors(7, A=(dtype, (200, 61)), B=(dtype, (150, 70)), C=("fp32", (210, 160)), D=("fp32", (61, 150)))
    left = region("A", ((100, 150), (0, 90)), ((10, 40), (41, 56)))
    right = region("B", ((70, 150), (0, 57)), ((0, 20), (30, 55)))  # stored turned
    out = region("C", ((3, 143),), ((20, 157),))
    turned = region("A", ((0, 45),), ((0, 61),))  # read as 61 × 45
    other = region("B", ((2, 47),), ((0, 70),))
    wide = region("D", ((0, 61),), ((5, 75),))
    works: list[Work] = [
        tensors.product(out, left, right, False, True, True, (0,), (1, 2)),
        tensors.product(wide, turned, other, True, False, False, (), (3,)),
    ]
    wanted = {
        "C": tensors.put(out, tensors.of(left) @ tensors.of(right).T + tensors.of(out)),
        "D": tensors.put(wide, tensors.of(turned).T @ tensors.of(other)),
    }
    flags = np.array([1, 0, 0, 0], np.uint32)
    run(launch(works, flags, streamed), 2, 11, tmp_path)
    for name, values in wanted.items():
        assert np.array_equal(tensors.arrays[name], values)
    assert flags.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_with_terms(dtype: Dtype, tmp_path: Path) -> None:
    """Terms in pieces, of the result's type and fp32, one of them the result itself."""
    tensors = Tensors(
        9, A=(dtype, (150, 40)), B=(dtype, (40, 140)), C=(dtype, (180, 150)), D=("fp32", (150, 141)), E=(dtype, (4, 4))
    )
    left, right = region("A", ((0, 150),), ((0, 40),)), region("B", ((0, 40),), ((0, 140),))
    whole = region("C", ((20, 170),), ((5, 145),))
    terms = (whole, region("D", ((100, 150), (0, 100)), ((0, 60), (61, 141))), region("D", ((0, 150),), ((1, 141),)))
    corner = region("E", ((0, 3),), ((1, 4),))
    small = region("A", ((7, 10),), ((0, 40),)), region("B", ((0, 40),), ((9, 12),))
    works: list[Work] = [
        tensors.product(whole, left, right, False, False, False, (), (0,), terms),
        tensors.product(corner, *small, False, False, False, (), (1,), (region("C", ((0, 3),), ((2, 5),)),)),
    ]
    product = tensors.of(left) @ tensors.of(right) + sum(map(tensors.of, terms))
    other = tensors.of(small[0]) @ tensors.of(small[1]) + tensors.of(region("C", ((0, 3),), ((2, 5),)))
    wanted = {"C": tensors.put(whole, product.astype(numpy_dtype(dtype))), "E": tensors.put(corner, other)}
    flags = np.zeros(2, np.uint32)
    run(launch(works, flags, False), 2, 4, tmp_path)
    for name, values in wanted.items():
        assert np.array_equal(tensors.arrays[name], values)
    assert flags.tolist() == [1, 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("other", DTYPES)
def test_sums_of_terms_of_another_type(dtype: Dtype, other: Dtype, tmp_path: Path) -> None:
    """A term of fp32 goes into any sum, and any term into one of fp32: elements of 16 bytes and alone."""
    wide = dtype if other == "fp32" else "fp32"
    tensors = Tensors(5, A=(other, (32, 96)), B=(dtype, (32, 96)), C=(wide, (32, 96)))
    wanted, works = tensors.arrays["C"].astype(float), []
    for rows, columns in (((0, 20), (8, 88)), ((20, 32), (3, 50))):
        terms = [region(name, (rows,), (columns,)) for name in "ABC"]
        wanted[slice(*rows), slice(*columns)] = sum(map(tensors.of, terms))
        works.append(tensors.sum(terms[2], tuple(terms), ()))
    wanted = wanted.astype(numpy_dtype(wide))
    run(launch(works, np.zeros(1, np.uint32), False), 3, 5, tmp_path)
    assert np.array_equal(tensors.arrays["C"], wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums(dtype: Dtype, tmp_path: Path) -> None:
    """By 16 bytes at a time where all lies so, by element otherwise."""
    tensors = Tensors(3, A=(dtype, (64, 96)), B=(dtype, (70, 96)), C=(dtype, (64, 96)))
    even = region("C", ((0, 40),), ((0, 96),))
    uneven = region("C", ((41, 60),), ((3, 50),))
    terms = [(region("A", ((8, 48),), ((0, 96),)), region("B", ((30, 70),), ((0, 96),))),
             (region("A", ((0, 19),), ((1, 48),)), region("B", ((2, 21),), ((7, 54),)))]  # fmt: skip
    outs = (even, uneven)
    works: list[Work] = [tensors.sum(o, t, (i,)) for i, (o, t) in enumerate(zip(outs, terms, strict=True))]
    wanted = tensors.arrays["C"].astype(float)
    for o, t in zip(outs, terms, strict=True):
        wanted[Tensors._index(o)] = sum(tensors.of(x) for x in t)
    flags = np.zeros(2, np.uint32)
    run(launch(works, flags, False), 3, 5, tmp_path)
    assert np.array_equal(tensors.arrays["C"], wanted.astype(numpy_dtype(dtype)))
    assert flags.tolist() == [1, 1]


FUNCTIONAL: list[tuple[Dtype, FunctionName]] = [
    ("bf16", "gelu"), ("fp16", "gelu_tanh"), ("fp32", "silu"), ("bf16", "silu_mul"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "function"), FUNCTIONAL)
def test_functions(dtype: Dtype, function: FunctionName, tmp_path: Path) -> None:
    """Of products and of sums, in which one row is added to every row; of elements of 16 bytes and alone."""
    shape = (40, 96)
    shapes = {"A": (40, 24), "B": (24, 96), "bias": (1, 96), "D": shape, "C": shape, "F": shape, "G": shape}
    tensors = Tensors(6, **{name: (dtype, of) for name, of in shapes.items()})
    view = {name: tensors.view(region(name, ((0, m),), ((0, n),))) for name, (m, n) in shapes.items()}
    bias = replace(view["bias"], region=view["D"].region, shape=shape, repeated=True)
    inner = [tensors.view(region(name, ((0, 40),), ((1, 94),))) for name in "GFD"]
    a, b, d, row = (tensors.arrays[name].astype(float) for name in ("A", "B", "D", "bias"))

    def assert_made(work: Work, total: np.ndarray, last: np.ndarray, columns: slice) -> None:
        run(launch([work], np.zeros(1, np.uint32), False), 3, 5, tmp_path)
        of = FUNCTIONS[function]
        wanted = of.of(total) * last if of.factor else of.of(total + last)
        got = tensors.arrays[work.views[0].region.tensor].astype(float)[:, columns]
        assert np.allclose(got, wanted, 2.0**-7 if dtype == "bf16" else 2.0**-10, 1e-5)

    terms = (bias, view["D"])
    product = hand_made.product(view["C"], view["A"], view["B"], addends=terms, function=function)
    assert_made(product, a @ b + row, d, slice(None))
    assert_made(hand_made.total(view["F"], (view["D"], *terms), function=function), d + row, d, slice(None))
    f = tensors.arrays["F"].astype(float)[:, 1:94]
    assert_made(hand_made.total(inner[0], tuple(inner[1:]), function=function), f, d[:, 1:94], slice(1, 94))


def copies(tensors: Tensors, flags: np.ndarray, streamed: bool = True) -> tuple[Made, np.ndarray]:
    """Copies in accesses of 16, 8, 4 and 2 bytes, of whole rows, of parts of them, of pieces in any order; and what B
    is then."""
    moves = [
        (region("B", ((0, 10),), ((0, 96),)), region("A", ((20, 30),), ((0, 96),))),
        (region("B", ((10, 24),), ((8, 24),)), region("A", ((3, 17),), ((40, 56),))),
        (region("B", ((24, 40),), ((4, 24),)), region("A", ((0, 16),), ((8, 28),))),
        (region("B", ((40, 50),), ((2, 12),)), region("A", ((1, 11),), ((4, 14),))),
        (region("B", ((60, 64), (50, 57)), ((0, 40), (50, 71))), region("A", ((30, 41),), ((3, 64),))),
    ]
    works: list[Work] = [tensors.copy(b, a, (), (i,)) for i, (b, a) in enumerate(moves)]
    wanted = tensors.arrays["B"].copy()
    for b, a in moves:
        wanted[Tensors._index(b)] = tensors.arrays["A"][Tensors._index(a)]
    return launch(works, flags, streamed), wanted


@pytest.mark.parametrize("dtype", DTYPES)
def test_copies(dtype: Dtype, tmp_path: Path) -> None:
    tensors = Tensors(5, A=(dtype, (64, 96)), B=(dtype, (64, 96)))
    bits = np.random.default_rng(1).integers(0, 256, tensors.arrays["A"].nbytes, np.uint8)
    tensors.arrays["A"] = bits.view(numpy_dtype(dtype)).reshape(64, 96)  # NaNs too, all of their bits
    flags = np.zeros(5, np.uint32)
    packed, wanted = copies(tensors, flags)
    run(packed, 3, 5, tmp_path)
    assert tensors.arrays["B"].tobytes() == wanted.tobytes()
    assert flags.tolist() == [1] * 5


@pytest.mark.parametrize("seed", range(3))
def test_copies_of_several_tiles_wait_and_signal_in_order(seed: int, tmp_path: Path) -> None:
    """The second copy reads what the first has written, and waits for its flag; one block makes all."""
    tensors = Tensors(5, A=("bf16", (40, 4096)), B=("bf16", (40, 4096)), C=("bf16", (40, 4096)))
    whole = [region(t, ((0, 40),), ((0, 4096),)) for t in "ABC"]
    works: list[Work] = [
        tensors.copy(whole[1], whole[0], (), (0,)),
        tensors.copy(whole[2], whole[1], (0,), (1,)),
    ]
    flags = np.zeros(2, np.uint32)
    packed = launch(works, flags, True)
    assert packed.config.tiles > 4
    run(packed, 1, seed, tmp_path)
    assert np.array_equal(tensors.arrays["C"], tensors.arrays["A"])
    assert flags.tolist() == [1, 1]
