"""What of the GPU drivers needs no GPU: where regions lie, how works are packed, what tensors and devices tell."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

import ficco_dsl
from ficco_rt import compiler
from ficco_rt.device.semaphores import private_flags
from ficco_rt.driver import api, registry
from ficco_rt.driver.cuda.call import call
from ficco_rt.driver.cuda.vendor import Cuda
from ficco_rt.driver.gpu.runs import handles, steady
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.exec.bindings import checked_on_device
from ficco_rt.exec.device_arrays import key_of, look, tells
from ficco_rt.geometry.cells import cells, part
from ficco_rt.geometry.region import Axis, Interval, Region, summary, way
from ficco_rt.graph.ir import Gemm
from ficco_rt.kernels import families, tiles
from ficco_rt.kernels.family import KernelConfig, LaunchRequest, Tables
from ficco_rt.kernels.naive import plain_kernels as naive
from ficco_rt.kernels.naive.tables import FLAG, RUN, TABLE
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.kernels.sm90 import tables as sm90
from ficco_rt.kernels.works import Look, View, Work, kernel_work, only
from ficco_rt.machine.discover import DeviceFacts, machine
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import CollectiveCall, Command, Launch, Plan, WaitFlag
from ficco_rt.plan.issue import issue_order
from tests.cases import few
from tests.unit.cubin import resources as resources_of
from tests.unit.hand_made import copied

# ---------------------------------------------------------------- regions


def regions(rng: random.Random) -> tuple[list[Region], list[tuple[int, ...]]]:
    """Three regions of one logical shape, each cut its own way in a tensor of its own shape."""
    logical = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
    found, shapes = [], []
    for name in "abc":
        axes, shape = [], []
        for n in logical:
            if rng.random() < 0.2:
                shape.append(rng.randint(1, 3))
                at = rng.randrange(shape[-1])
                axes.append(Axis((Interval(at, at + 1),), dropped=True))
            cuts = sorted({0, n, *(rng.randint(0, n) for _ in range(rng.randint(0, 2)))})
            sizes = [b - a for a, b in pairwise(cuts)]
            gaps = [rng.randint(0, 2) if rng.random() < 0.5 else 0 for _ in sizes]
            places, at = [], 0
            for size, gap in zip(sizes, gaps, strict=True):
                places.append(Interval(at + gap, at + gap + size))
                at += gap + size
            rng.shuffle(places)
            # the logical order is that of the list: sizes must match, so shuffle the tensor's order of whole pieces
            axes.append(Axis(tuple(places)))
            shape.append(at + rng.randint(0, 2))
        found.append(Region(name, 0, tuple(axes)))
        shapes.append(tuple(shape))
    return found, shapes


@pytest.mark.parametrize("seed", range(200))
def test_cells_cover_regions_in_step(seed: int) -> None:
    given, shapes = regions(random.Random(seed))
    wanted = [_logical(region, shape) for region, shape in zip(given, shapes, strict=True)]
    together: list[tuple[int, ...]] = []
    for cell in cells(given, shapes):
        for row in range(cell.rows):
            for column in range(cell.columns):
                together.append(tuple(side.offset + row * side.pitch + column for side in cell.sides))
    assert sorted(together) == sorted(zip(*wanted, strict=True)), f"seed {seed}"


def test_a_dense_region_is_one_row() -> None:
    region = Region("a", 0, (Axis((Interval(2, 4),)), Axis((Interval(0, 8),))))
    (cell,) = cells((region, region), ((6, 8), (6, 8)))
    assert (cell.rows, cell.columns, cell.sides[0].offset) == (1, 16, 16)


@pytest.mark.parametrize("seed", range(50))
def test_part_takes_logical_rows(seed: int) -> None:
    rng = random.Random(seed)
    (region, *_), (shape, *_) = regions(rng)
    n = region.shape[0]
    a = rng.randint(0, n - 1)
    b = rng.randint(a + 1, n)
    inner = len(_logical(region, shape)) // n
    assert _logical(part(region, a, b), shape) == _logical(region, shape)[a * inner : b * inner]


def _logical(region: Region, shape: tuple[int, ...]) -> list[int]:
    """The region's elements, as offsets in its tensor, in logical order."""
    offsets = np.arange(int(np.prod(shape))).reshape(shape)
    index = np.ix_(*([i for s in axis.segments for i in range(s.start, s.stop)] for axis in region.axes))
    return [int(i) for i in offsets[index].ravel()]


# ---------------------------------------------------------------- the naive kernels' tables


def test_structs_have_the_sizes_of_the_source() -> None:
    kinds = (naive.GEMM, naive.ADDEND, naive.SCALES, naive.REDUCE, naive.QUANTIZE, naive.COPY, naive.TERM, RUN, TABLE)
    assert [s.size for s in kinds] == [184, 48, 48, 80, 112, 72, 24, 16, 512]


CONSTANTS, SCRATCH = 1 << 20, 1 << 21  # addresses


T4 = DeviceFacts("T4", "sm_75", 16, 65536, 65536, 0, 16, 32, 32, 16 * 10**9, 1590000, 5001000, 256)


def packed(name: str, ranks: int) -> Iterator[tuple[Launch, KernelConfig, Tables]]:
    plan = compiler.compile_schedule(name, ranks)
    tensors = {t.name: t for t in plan.tensors}

    def look(region: Region) -> View:
        return View(region, 4096, tensors[region.tensor].shapes[region.rank], tensors[region.tensor].dtype)

    for stream in plan.streams:
        for command in stream.commands:
            if isinstance(command, Launch):
                request = LaunchRequest(command.kernel, works_of(command, look), 16)
                (config,) = families.plain(request, Limits.of(T4))
                yield command, config, families.tables(config, works_of(command, look, 8))


def works_of(launch: Launch, look: Look, step: int = 1) -> tuple[Work, ...]:
    """A launch's works, whose flags lie `step` bytes apart."""

    def places(flags: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(step * flag for flag in flags)

    return tuple(kernel_work(w.body, look, places(w.waits), places(w.signals)) for w in launch.works)


@pytest.mark.parametrize(
    "name",
    ["ag_gemm/hetero_fused_1d", "ag_gemm/streamed", "ag_gemm/oneshot", "gemm_rs/streamed", "gemm_rs/ring",
     "gemm_rs/oneshot"],
)  # fmt: skip
def test_every_work_is_packed_once(name: str) -> None:
    for command, config, launch in packed(name, 4):
        (table,) = launch.arguments(CONSTANTS, SCRATCH, 0, lambda m: b"")
        works, terms, runs, flags, counters, count, tiles, ordered, *_ = TABLE.unpack(table)
        assert (counters, tiles) == (SCRATCH, config.tiles)
        assert ordered == (any(w.waits for w in command.works) and any(w.signals for w in command.works))
        assert CONSTANTS == works <= terms <= runs <= flags <= CONSTANTS + len(launch.constants)
        raised = [8 * f for w in command.works for f in (*w.waits, *w.signals)]
        assert [f for (f,) in FLAG.iter_unpack(launch.constants[flags - CONSTANTS :])] == raised
        if isinstance(command.works[0].body, Gemm):
            assert config.entry == "naive_gemm_bf16_bf16"
            assert count == len(command.works)
            before = 0
            for i, work in enumerate(command.works):
                gemm = work.body
                assert isinstance(gemm, Gemm)
                fields = naive.GEMM.unpack_from(launch.constants, i * naive.GEMM.size)
                m, n, k, accumulate, first = fields[21:26]
                assert (m, n) == gemm.out.shape
                assert k == gemm.left.shape[1]
                assert accumulate == gemm.accumulate
                assert first == before
                assert fields[34] == len(gemm.addends)
                before += fields[26]
            assert before == tiles


GATE = "QUANTIZE of silu_mul"
# a kernel with the types that it is compiled for: the operands', the result's
NAIVE = [
    *(("GEMM", *types) for types in ((0, 0), (1, 1), (2, 2), (0, 2))),
    *(("REDUCE", t, t) for t in (0, 1, 2)),
    *((kind, taken, made) for kind in ("QUANTIZE", GATE) for taken, made in ((0, 3), (1, 4), (2, 3))),
    ("COPY", 0, 0),
]


@pytest.mark.parametrize(
    ("kind", "taken", "made", "arch"),
    [
        *few([(*of, arch) for of in NAIVE for arch in ("sm_75", "sm_80", "sm_90a")], 12, 0),
        ("QUANTIZE", 0, 3, "sm_90a"),
        (GATE, 0, 3, "sm_90a"),
        *((*of, "sm_100a") for of in NAIVE),  # copies, flags and sums beside the library's GEMM
    ],
)
def test_naive_kernels_compile_without_spills(kind: str, taken: int, made: int, arch: str, tmp_path: Any) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC is in the extra `cuda`")
    from ficco_rt.kernels.kernel_compiler import KERNELS, compile_file

    kind, *gated = kind.split(" of ")
    options = ["-std=c++17", f"-arch={arch}", f"-D{kind}=the_entry", f"-DIN={taken}", f"-DOUT={made}"]
    options += ["-DFUNCTION=3", "-DFACTOR=1"] if gated else []
    compiled = compile_file(KERNELS / "naive.cu", [*options, "--ptxas-options=-v"], tmp_path)
    assert b"the_entry" in compiled.code
    found = resources_of(compiled.code)
    # on sm_100a a sum of 16-bit types spills 8 bytes; with NVRTC 13.5 so does a quantize of these, which has 64
    # registers, but none on Hopper to fp8_e4m3: without a gate, and with one
    spilled = 8 if (kind, arch) == ("REDUCE", "sm_100a") else 0
    if kind == "QUANTIZE" and taken < 2:
        on_hopper = 8 if made == 4 else 0
        spilled = {"sm_90a": (on_hopper, 32), "sm_100a": (32, 48)}.get(arch, (16, 32))[len(gated)]
    assert found["stack"] <= spilled, compiled.log
    assert spilled or compiled.log.count(" 0 bytes spill stores, 0 bytes spill loads") == 1, compiled.log
    block = next(k.needs for k in naive.KERNELS if k.name == f"naive_{kind.lower()}")
    assert found["registers"] <= block.registers
    assert found["shared"] in (block.static_smem, block.static_smem + 1024)  # with what the system keeps


@pytest.mark.parametrize("source", ["copy_rows.cu", "device_barrier.cu"])
def test_kernels_of_runs_compile_for_blackwell(source: str, tmp_path: Any) -> None:
    pytest.importorskip("cuda.bindings", reason="NVRTC is in the extra `cuda`")
    from ficco_rt.kernels.kernel_compiler import KERNELS, compile_file

    made = compile_file(KERNELS / source, ["-std=c++17", "-arch=sm_100a"], tmp_path)
    assert made.log == ""
    assert resources_of(made.code)["stack"] == 0


# ---------------------------------------------------------------- order of issue


def test_the_calls_of_a_collective_stand_together() -> None:
    plan = compiler.compile_schedule("gemm_ar/serial", 4)
    issued = [plan.streams[s].commands[p] for s, p in issue_order(plan)]
    places = [i for i, c in enumerate(issued) if isinstance(c, CollectiveCall)]
    assert len(places) == 4
    assert places == list(range(places[0], places[0] + 4))
    assert len(issued) == sum(len(s.commands) for s in plan.streams)


# ---------------------------------------------------------------- callers' tensors and streams


class OnGpu:
    """A tensor that says where it lies, and is nowhere."""

    def __init__(self, address: int, shape: tuple[int, ...], typestr: str = "<f4", **more: Any) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": shape, "typestr": typestr, "version": 3, **more,
        }  # fmt: skip


class Dlpack:
    """The same by DLPack."""

    def __init__(self, address: int, shape: tuple[int, ...], code: int, bits: int, device: int = 2) -> None:
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.device = device
        data = np.zeros(48, np.uint8)
        data[0:8] = np.array([address], np.uint64).view(np.uint8)
        data[8:20] = np.array([device, 0, len(shape)], np.int32).view(np.uint8)
        data[20:22] = (code, bits)
        data[22:24] = np.array([1], np.uint16).view(np.uint8)
        data[24:32] = np.array([ctypes.addressof(self.shape)], np.uint64).view(np.uint8)
        self.data = data

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, stream: int | None = None) -> object:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(self.data.ctypes.data, b"dltensor", None)


def test_tensors_are_looked_at() -> None:
    seen = look(Dlpack(4096, (3, 5), 4, 16), lambda: "x")
    assert (seen.address, seen.shape, seen.dtype, seen.dense) == (4096, (3, 5), "bf16", True)
    seen = look(OnGpu(64, (4, 2), "<f2", strides=(4, 2)), lambda: "x")
    assert (seen.dtype, seen.dense) == ("fp16", True)
    assert not look(OnGpu(64, (4, 2), "<f2", strides=(2, 8)), lambda: "x").dense


def test_tensors_of_pytorch_are_looked_at_from_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    @contextmanager
    def device(index: int) -> Iterator[None]:
        before, current[0] = current[0], index
        yield
        current[0] = before

    class Torch(Dlpack):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.device = 1

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 1

        def __dlpack__(self, stream: int | None = None) -> object:
            if current[0] != self.device:
                raise BufferError("exported from its own device alone")
            return super().__dlpack__(stream)

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Torch, cuda=SimpleNamespace(device=device)))
    assert look(Torch(4096, (3, 5), 4, 16), lambda: "x").address == 4096
    assert current == [0]
    assert look(Dlpack(8192, (3, 5), 4, 16), lambda: "x").address == 8192  # another library's


def test_the_key_of_tensors_of_pytorch() -> None:
    class Torch(SimpleNamespace):
        def data_ptr(self) -> int:
            if self.layout:
                raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")
            return 4096

        def is_contiguous(self) -> bool:
            return bool(self.dense)

    facts = {"shape": (3, 5), "dtype": "bfloat16", "requires_grad": False, "is_cuda": True, "dense": True, "layout": ""}
    known = key_of({"A": [Torch(**facts)]})
    assert known is not None
    assert known == key_of({"A": (Torch(**facts),)})
    assert tells(known, [api.DeviceArray(4096, (3, 5))])
    assert not tells(known, [api.DeviceArray(8192, (3, 5))])
    for other in ({"shape": (5, 3)}, {"dtype": "half"}):
        assert key_of({"A": [Torch(**(facts | other))]}) not in (None, known), other
    for refused in ({"requires_grad": True}, {"is_cuda": False}, {"dense": False}):
        assert key_of({"A": [Torch(**(facts | refused))]}) is None, refused
    assert key_of({"A": [Torch(**(facts | {"requires_grad": True}))]}, gradients=True) == known
    assert key_of({"B": [Torch(**facts)]}) != known
    for none in ([Torch(**(facts | {"layout": "sparse"}))], [OnGpu(4096, (3, 5))], Torch(**facts)):
        assert key_of({"A": none}) is None


def test_the_device_of_an_address_is_the_librarys_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of cuda-bindings, of which some versions answer 0 for every address."""
    asked = []

    def attribute(found: Any, which: int, address: ctypes.c_uint64) -> int:
        asked.append((which, address.value))
        found._obj.value = 3
        return 0 if address.value else 1  # CUDA_ERROR_INVALID_VALUE

    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuPointerGetAttribute=attribute))
    cuda = object.__new__(Cuda)
    cuda.cu = driver
    assert cuda.owner(1 << 40, "x") == 3
    assert asked == [(9, 1 << 40)]  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    with pytest.raises(DeviceError, match=r"^cuPointerGetAttribute \(rank 0's tensor\): CUDA_ERROR_INVALID_VALUE"):
        cuda.owner(0, "rank 0's tensor")


def test_tensors_that_do_not_fit() -> None:
    plan = compiler.compile_schedule("ag_gemm/serial", 2, {"M": 8, "N": 8, "K": 8, "T": "fp32"})

    def refused(c: list[object]) -> str:
        with pytest.raises(UsageError) as caught:
            checked_on_device(plan, {"C": c}, range(2))
        return str(caught.value)

    good = [OnGpu(4096, (8, 4)), OnGpu(8192, (8, 4))]
    assert checked_on_device(plan, {"C": good}, range(2))["C", 1] == api.DeviceArray(8192, (8, 4))
    wanted = "output C, rank 0: wanted fp32 of shape [8, 4]"
    assert refused([np.zeros((8, 4), np.float32), good[1]]) == f"{wanted}, on a GPU; given ndarray in host memory"
    assert refused([OnGpu(4096, (4, 8)), good[1]]) == f"{wanted}; given fp32 of shape [4, 8]"
    assert refused([OnGpu(4096, (8, 4), "<f2"), good[1]]) == f"{wanted}; given fp16 of shape [8, 4]"
    assert refused([OnGpu(4096, (8, 4), strides=(4, 32)), good[1]]) == (
        f"{wanted}; given one with gaps or another order of dimensions: take .contiguous(), of a numpy array "
        "numpy.ascontiguousarray(…)"
    )
    assert refused([OnGpu(4096, (8, 4), data=(4096, True)), good[1]]).endswith("given a tensor that cannot be written")
    assert (
        refused([good[0], OnGpu(4100, (8, 4))]) == "C of rank 0 and C of rank 1 share memory; an output needs its own"
    )
    assert refused(good[:1]) == "output C: wanted a list of 2 tensors, one a rank; given 1 tensors"
    assert refused([None, good[1]]).startswith(
        f"{wanted}, on a GPU, with DLPack or __cuda_array_interface__; given None"
    )


def test_streams_of_other_libraries() -> None:
    given = [SimpleNamespace(cuda_stream=7), SimpleNamespace(ptr=8), SimpleNamespace(__cuda_stream__=lambda: (0, 9)), 0]
    assert handles(given, range(4), int) == (7, 8, 9, 0)
    assert handles((), range(4), int) == ()
    assert [steady(given[:count]) for count in range(4)] == [True, True, False, False]
    with pytest.raises(UsageError, match="rank 1's is str, not a stream of a GPU"):
        handles([0, "x"], range(2), int)
    with pytest.raises(UsageError, match="wanted one a rank, 3; given 2"):
        handles([0, 0], range(3), int)
    with pytest.raises(UsageError, match="holds a number that is no handle"):
        handles([0, -1], range(2), lambda handle: handle.to_bytes(8, "little"))


# ---------------------------------------------------------------- devices and errors

H200 = DeviceFacts("NVIDIA H200", "sm_90a", 132, 233472, 232448, 1024, 32, 32, 64, 150 * 10**9, 1980000, 3201000, 6144)


def test_a_machine_of_what_the_driver_says() -> None:
    known = machine([H200] * 4, 4)
    assert (known.name, known.ranks, known.device.arch) == ("4×NVIDIA H200", 4, "sm_90a")
    assert known.device.gemm_rate == (("bf16", 760e6), ("fp16", 760e6), ("fp32", 50e6), ("fp8_e4m3", 1440e6))
    other = machine([replace(H200, name="NVIDIA A100", arch="sm_80", sms=108, clock_khz=1410000)], 4, 4)
    assert (other.name, other.device.arch) == ("1×NVIDIA A100, 4 ranks each", "sm_80")
    assert 150e6 < dict(other.device.gemm_rate)["bf16"] < 312e6
    assert (other.links.kind, other.links.rate) == ("switch", 255e3)
    assert machine([H200] * 4, 4, linked=False).links.rate == 20e3
    assert machine([replace(H200, name="AMD", arch="gfx942")] * 4, 4).links.kind == "mesh"
    assert machine([replace(H200, name="old", arch="sm_60")] * 2, 2).links.rate == 20e3
    plan = compiler.compile_schedule("ag_gemm/hetero_fused_1d", 4, machine=other)
    assert plan.machine == other.name
    with pytest.raises(UsageError, match="device 1 is NVIDIA A100 and device 0 is NVIDIA H200"):
        machine([H200, replace(H200, name="NVIDIA A100")], 2)


def test_an_error_names_call_code_and_advice() -> None:
    def cuMemAlloc(size: int) -> tuple[object, None]:
        code = SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY")
        return code, None

    with pytest.raises(DeviceError) as caught:
        call(cuMemAlloc, 8, what="[4, 2] of fp32 for rank 1")
    assert str(caught.value) == (
        "cuMemAlloc ([4, 2] of fp32 for rank 1): CUDA_ERROR_OUT_OF_MEMORY: the GPU's memory is full; "
        "take smaller sizes with --set"
    )
    assert call(lambda: (0, 5)) == 5
    assert call(lambda: (0, 5, 6)) == (5, 6)


def test_without_gpus_there_are_none() -> None:
    assert registry.device_count("host") == 0
    with pytest.raises(UsageError, match="the host driver has no GPUs to discover"):
        registry.discover("host", 2)
    for wrong in ({"ranks": 0}, {"ranks": 2.0}, {"ranks_per_gpu": 0}, {"processes": 0}, {"node": -1}):
        with pytest.raises(UsageError, match=f"^{next(iter(wrong))} is a "):
            registry.discover("cuda", **{"ranks": 2, **wrong})  # type: ignore[arg-type]


def test_a_product_of_inputs_waits_for_its_terms_alone() -> None:
    plan = compiler.compile_schedule("gemm_rs/streamed", 4)
    kinds = {t.name: t.kind for t in plan.tensors}

    def waits(inputs_are_known: bool) -> list[tuple[int, int, int]]:
        found = []
        for stream in plan.streams:
            for command in stream.commands:
                if isinstance(command, Launch) and any(
                    isinstance(w.body, Gemm) and w.body.addends for w in command.works
                ):

                    def look(r: Region) -> View:
                        tensor = next(t for t in plan.tensors if t.name == r.tensor)
                        written = not inputs_are_known or kinds[r.tensor] != "input"
                        return View(r, 1 << 20, tensor.shapes[r.rank], tensor.dtype, written)

                    made = [tiles.work_of(w) for w in only(works_of(command, look, 8), Gemm)]
                    found += [(len(w.waits), len(w.addend_waits), len(w.addends)) for w in made if w and w.addends]
        return found

    late, early = waits(True), waits(False)
    assert late
    assert [(b, a, n) for a, b, n in late] == early  # the same flags, waited for at another place
    assert all(waits == 0 and flags > 0 and terms == 3 for waits, flags, terms in late)


@pytest.mark.parametrize(("right", "read_only"), [("B", (True, True)), ("W", (True, False))])
def test_only_inputs_may_be_read_before_the_launch_ahead_has_ended(right: str, read_only: tuple[bool, bool]) -> None:
    """A launch that begins early reads an operand at once if no command of the plan can write it."""
    text = WEIGHTS.replace("RIGHT", right)
    plan = compiler.plan_of(compiler.build(ficco_dsl.parse(text, "weights.ficco"), 1, {}), profile("h200-switch", 1))
    inputs = {t.name for t in plan.tensors if t.kind == "input"}

    def look(region: Region) -> View:
        tensor = next(t for t in plan.tensors if t.name == region.tensor)
        return View(region, 1 << 20, tensor.shapes[0], tensor.dtype, region.tensor not in inputs)

    (launch,) = (c for s in plan.streams for c in s.commands if isinstance(c, Launch))
    request = LaunchRequest(launch.kernel, works_of(launch, look), 132, SMEM)
    (config,) = families.configure(request, Limits.of(H200))
    assert config.read_only == read_only
    (data,) = families.tables(config, request.works).arguments(0, 0, 0, lambda m: bytes(128))
    assert sm90.INFO.unpack_from(data, sm90.INFOS_AT)[4] == 2 * read_only[0] + read_only[1]


SMEM = 200 << 10
WEIGHTS = """
schedule weights
input   A[128, 128] : bf16
input   B[128, 128] : bf16
output  C[128, 128] : bf16
scratch W[128, 128] : bf16
computes C = A * B
queue dma     { engine = copy }
queue compute { engine = sm }
stage load on dma { copy W <- B }
stage mm on compute { gemm C = A * RIGHT }
"""


def test_a_launch_resets_the_flags_that_nothing_else_waits_for() -> None:
    plan = compiler.compile_schedule("ag_gemm/oneshot", 2)
    assert private_flags(plan) == set(range(len(plan.flag_homes)))
    at, stream, launch = next(
        (i, s, c) for i, s in enumerate(plan.streams) for c in s.commands if isinstance(c, Launch) and c.waits
    )
    awaited = {signal.number for signal in launch.waits}
    assert awaited < private_flags(plan)

    def beside(command: Command) -> Plan:
        streams = list(plan.streams)
        streams[at] = replace(stream, commands=(*stream.commands, command))
        return replace(plan, streams=tuple(streams))

    for other in (launch, WaitFlag(min(awaited), launch.origin)):
        left = private_flags(plan) - (awaited if isinstance(other, Launch) else {other.flag})
        assert private_flags(beside(other)) == left


def test_a_part_that_is_empty_has_a_name() -> None:
    """An expert without tokens: its product is in traces and reports like any other."""
    nothing = Region("C", 0, (Axis(()), Axis((Interval(0, 8),))))
    assert summary(nothing) == "nothing"
    assert way(nothing, Region("A", 1, nothing.axes), 0) == "A@1 → C nothing"
    assert summary(Region("C", 0, (Axis((Interval(0, 2), Interval(4, 6))),))).endswith("and 1 more")


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 64])
@pytest.mark.parametrize("columns", [1, 5, 64, 1000])
@pytest.mark.parametrize("about", [16, 100, 128, 4096])
def test_tiles_of_a_copy_are_counted_as_they_are_made(rows: int, columns: int, about: int) -> None:
    axes = (Axis((Interval(0, rows),)), Axis((Interval(0, columns),)))
    view = View(Region("T", 0, axes), 4096, (rows, columns + 3), "fp32", True)  # a pitch
    kernel, work = naive.NaiveCopy(), copied(view, view)
    assert kernel.tiles(work, (1, about)) == len(list(kernel.blocks(work, about)))
