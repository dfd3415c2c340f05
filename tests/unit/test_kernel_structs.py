"""The structs that kernels and the stand-in read are those that the host writes: sizes, and each field by its name."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.kernels import by_address, copy_rows, device_barrier, tile_table, tiles
from ficco_rt.kernels.families import configure, tables
from ficco_rt.kernels.family import LaunchRequest
from ficco_rt.kernels.kernel_compiler import KERNELS
from ficco_rt.kernels.marks import MARK
from ficco_rt.kernels.mfma import variants as mfma
from ficco_rt.kernels.naive import plain_kernels as naive
from ficco_rt.kernels.naive.family import COPY, GEMM, REDUCE
from ficco_rt.kernels.naive.tables import RUN, TABLE
from ficco_rt.kernels.occupancy import Limits
from ficco_rt.kernels.signature import Signature
from ficco_rt.kernels.sm80 import variants as sm80
from ficco_rt.kernels.sm90 import tables as sm90
from ficco_rt.kernels.sm90 import variants as hopper
from ficco_rt.kernels.works import View, Work
from tests.unit.c_structs import Struct, structs
from tests.unit.hand_made import copied, product, total

WHOLE = (Interval(0, 256),)
ADDED = Signature("bf16", "bf16", False, False, addends=True)


@pytest.fixture(scope="module")
def of_tiles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Struct]:
    return structs(KERNELS / "tiles.h", tmp_path_factory.mktemp("tiles"))


@pytest.fixture(scope="module")
def of_works(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Struct]:
    return structs(KERNELS / "works.h", tmp_path_factory.mktemp("works"))


def placed(packing: struct.Struct) -> list[tuple[int, int]]:
    """Offset and size of each number of a packing without padding."""
    assert packing.format[0] == "<"
    codes = [code for count, code in re.findall(r"(\d*)([a-zA-Z])", packing.format) for _ in range(int(count or 1))]
    sizes = [struct.calcsize("<" + code) for code in codes]
    return [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]


# ---------------------------------------------------------------- tiles.h


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Tile", tile_table.TILE), ("TileAddends", tile_table.TILE_ADDENDS), ("Addend", tile_table.ADDEND),
        ("Depth", tile_table.DEPTHS), ("DepthWait", tile_table.DEPTH_WAITS), ("Signal", tile_table.SIGNAL),
    ],
)  # fmt: skip
def test_records_of_the_table(name: str, dtype: np.dtype[np.void], of_tiles: dict[str, Struct]) -> None:
    assert dtype.fields is not None
    written = [(field, at, kind.itemsize) for field, (kind, at, *_) in dtype.fields.items()]
    assert [(f.name, f.offset, f.size) for f in of_tiles[name].fields] == written
    assert of_tiles[name].size == dtype.itemsize


def test_records_of_marks(tmp_path: Path) -> None:
    assert MARK.fields is not None
    written = [(field, at, kind.itemsize) for field, (kind, at, *_) in MARK.fields.items()]
    assert [(f.name, f.offset, f.size) for f in structs(KERNELS / "marks.h", tmp_path)["Mark"].fields] == written


def work(first: int = 1) -> tiles.MatrixWork:
    """On four matrices; `first` is the page of the first one."""
    a, b, c, d = (tiles.Matrix(page << 12, 256, 256, 256) for page in range(first, first + 4))
    addend = tiles.Addend(tiles.MatrixOperand(d, WHOLE, WHOLE), "bf16")
    return tiles.MatrixWork(
        a, b, c, *(6 * (WHOLE,)), waits=(64, 128), signals=(192,), addends=(addend,), addend_waits=(256,)
    )  # fmt: skip


def of_table(table: tile_table.Table, constants: int, scratch: int) -> dict[str, int]:
    """What the kernels' common parameters must hold."""
    tiles_at, depths, flags, signals, tile_addends, addends, *_ = (constants + at for at in table.offsets)
    signal_bytes = -(-4 * (len(table.signals) + 1) // 256) * 256
    return {
        "table.tiles": tiles_at, "table.depths": depths, "table.flags": flags, "table.signals": signals,
        "table.signal_counts": scratch, "table.split_counts": scratch + signal_bytes,
        "table.epoch": 0x30000, "table.abort": 0x40000, "tile_count": len(table.tiles),
        "tile_addends": tile_addends, "addends": addends,
    }  # fmt: skip


def test_parameters_of_sm90(of_tiles: dict[str, Struct]) -> None:
    layout = of_tiles["MappedParameters"]
    variant = next(v for v in hopper.VARIANTS if v.name == "sm90_gemm_128x256_c2")
    launch = sm90.build([work()], variant, ADDED, clusters=66, stages=3, read_only=(False, True), resets=(320, 384))
    data = launch.parameters(0x10000, 0x20000, [bytes([i + 1]) * 128 for i in range(4)], 0x30000, 0x40000)
    assert len(data) == layout.size == sm90.PARAMETER_BYTES
    wanted = of_table(launch.table, 0x10000, 0x20000) | {
        "stages": 3, "ended": 0x20000 + 4, "reset_first": 4, "reset_count": 2, "depth_waits": 0,
        "infos_0.out": 3 << 12, "infos_0.out_pitch": 256, "infos_0.stage_bytes": variant.stage_bytes(False),
        "infos_0.read_only": 1, "operands_0.left.opaque_0": 1, "operands_0.right.opaque_0": 2,
        "operands_0.out.opaque_0": 3, "addend_maps_0.opaque_0": 4,
    }  # fmt: skip
    assert {name: layout[name].read(data) for name in wanted} == wanted
    few = replace(work(), waits=(), addends=(), addend_waits=())
    variant = next(v for v in hopper.VARIANTS if v.name == "sm90_gemm_64x64_c1")
    few = replace(few, left_rows=(Interval(8, 64),), out_rows=(Interval(0, 56),))
    launch = sm90.build([few], variant, replace(ADDED, addends=False), clusters=66, stages=3)
    data = launch.parameters(0x10000, 0x20000, [bytes(128)] * 3)
    assert [layout[f"first.{name}"].read(data) for name in sm90.FirstGrid._fields] == [
        8, 0, 0, 0, 4, 1, 4, 1, 1, 256, 256, 0, 192,
    ]  # fmt: skip
    of_maps = [f for f in layout.fields if f.name.endswith("opaque_0")]
    assert len(of_maps) == 3 * sm90.MAX_OPERANDS + sm90.MAX_ADDENDS
    assert layout[f"infos_{sm90.MAX_OPERANDS - 1}.read_only"].offset < layout["table.tiles"].offset


@pytest.mark.parametrize("kernel", ["sm80", "mfma"])
def test_parameters_of_kernels_that_take_addresses(kernel: str, of_tiles: dict[str, Struct]) -> None:
    layout = of_tiles["PitchedParameters"]
    variant: by_address.Variant = sm80.VARIANTS[0] if kernel == "sm80" else mfma.VARIANTS[0]
    stages = 3 if kernel == "sm80" else mfma.STAGES
    launch = by_address.build([work(), work(5)], variant, ADDED, blocks=132, stages=stages)
    data = launch.parameters(0x10000, 0x20000, 0x30000, 0x40000)
    assert len(data) == layout.size == by_address.PARAMETER_BYTES
    wanted = of_table(launch.table, 0x10000, 0x20000) | {"stages": stages}
    for i, first in enumerate((1, 5)):
        pages = [page << 12 for page in range(first, first + 4)]
        operands = ("left", "right", "out", "left_pitch", "right_pitch", "out_pitch", "rows")
        values = zip(operands, (*pages[:3], 512, 512, 512, 256), strict=True)
        wanted |= {f"operands_{i}.{name}": value for name, value in values}
        values = zip(("address", "pitch", "item"), (pages[3], 512, 2), strict=True)
        wanted |= {f"addend_matrices_{i}.{name}": value for name, value in values}
    assert {name: layout[name].read(data) for name in wanted} == wanted
    ends = f"operands_{by_address.MAX_OPERANDS - 1}.rows", f"addend_matrices_{by_address.MAX_ADDENDS - 1}.item"
    assert all(any(field.name == end for field in layout.fields) for end in ends)


# ---------------------------------------------------------------- works.h


@pytest.mark.parametrize(
    ("name", "packing"),
    [
        ("Gemm", naive.GEMM), ("Addend", naive.ADDEND), ("Reduce", naive.REDUCE), ("Term", naive.TERM),
        ("Copy", naive.COPY), ("Quantize", naive.QUANTIZE), ("Scales", naive.SCALES), ("Run", RUN), ("Table", TABLE),
    ],
)  # fmt: skip
def test_records_of_the_naive_kernels(name: str, packing: struct.Struct, of_works: dict[str, Struct]) -> None:
    assert [(f.offset, f.size) for f in of_works[name].fields] == placed(packing)
    assert of_works[name].size == packing.size


def view(tensor: str, rows: tuple[int, int], columns: tuple[int, int]) -> View:
    region = Region(tensor, 0, tuple(Axis((Interval(*span),)) for span in (rows, columns)))
    address = {"A": 1 << 20, "B": 2 << 20, "C": 3 << 20, "D": 4 << 20}[tensor]
    return View(region, address, (300, 500), "fp32" if tensor == "D" else "bf16")


def packed(kernel: str, work: Work) -> tuple[bytes, bytes]:
    """The kernel's argument, and what lies at address 0x10000. The launch resets the flags 12, 13 and 14."""
    limits = Limits("sm_75", 4, 64 << 10, 64 << 10, 0, 16, 32, 32)
    request = LaunchRequest(kernel, (work,), sms=4, streamed=True, resets=(12, 13, 14))
    (config,) = configure(request, limits)
    assert (config.kernel, config.resets) == (kernel, request.resets)
    made = tables(config, (work,), (96, 104, 112))
    (argument,) = made.arguments(0x10000, 0x80000, 0, lambda tensor_map: b"")
    return argument, made.constants


def flags(of_table: Struct, argument: bytes, records: bytes, count: int) -> list[int]:
    return list(struct.unpack_from(f"<{count}Q", records, of_table["flags"].read(argument) - 0x10000))


def test_fields_of_the_naive_kernels_by_name(of_works: dict[str, Struct]) -> None:
    left, right, out = view("A", (0, 200), (8, 108)), view("B", (0, 100), (5, 155)), view("C", (7, 207), (0, 150))
    added = view("D", (3, 203), (1, 151))
    work = product(out, left, right, addends=(added,), waits=(8, 16), signals=(24,))
    argument, records = packed(GEMM, work)
    table = {f.name: f.read(argument) for f in of_works["Table"].fields}
    at = {name: table[name] - 0x10000 for name in ("works", "terms", "runs", "flags")}
    assert list(at.values()) == sorted(at.values())
    assert table["counters"] == 0x80000
    numbers = ("count", "tiles", "ordered", "waits", "reset_first", "reset_count")
    assert [table[name] for name in numbers] == [1, 4, 1, 1, 3, 3]
    assert flags(of_works["Table"], argument, records, 6) == [8, 16, 24, 96, 104, 112]
    gemm = {f.name: f.read(records[at["works"] :]) for f in of_works["Gemm"].fields}
    assert table["bases_0"] == 0
    assert [gemm[name] for name in ("out", "left", "right")] == [3 << 20, 1 << 20, 2 << 20]
    assert [gemm[name] for name in ("out_m", "out_n", "left_m", "left_k", "right_k", "right_n")] == 3 * [500, 1]
    assert [gemm[name] for name in ("m", "n", "k", "accumulate", "first_tile", "tiles", "columns")] == [
        200, 150, 100, 0, 0, 4, 2,
    ]  # fmt: skip
    assert [gemm[f"sync.{name}"] for name in ("first_wait", "waits", "first_signal", "signals")] == [0, 2, 2, 1]
    assert [gemm[name] for name in ("first_addend", "addends")] == [0, 1]
    addend = {f.name: f.read(records[at["terms"] :]) for f in of_works["Addend"].fields}
    assert [addend[name] for name in ("place", "m", "n", "type")] == [4 << 20, 500, 1, 2]
    runs = [struct.unpack_from("<2q", records, at["runs"] + 16 * i) for i in range(8)]  # (end, shift)

    def run(record: dict[str, int], axis: str) -> tuple[int, int]:
        assert record[f"map_{axis}.count"] == 1
        end, shift = runs[record[f"map_{axis}.first"]]
        return end, shift

    axes = ("out_m", "out_n", "left_m", "left_k", "right_k", "right_n")
    assert [run(gemm, axis) for axis in axes] == [(200, 7), (150, 0), (200, 0), (100, 8), (100, 0), (150, 5)]
    assert [run(addend, axis) for axis in ("m", "n")] == [(200, 3), (150, 1)]


def test_fields_of_sums_and_copies_by_name(of_works: dict[str, Struct]) -> None:
    out, a, b = view("C", (0, 9), (0, 40)), view("A", (2, 11), (8, 48)), view("B", (3, 12), (16, 56))
    argument, records = packed(REDUCE, total(out, (a, b), waits=(8,), signals=(16, 24)))
    assert flags(of_works["Table"], argument, records, 6) == [8, 16, 24, 96, 104, 112]
    works, terms = (of_works["Table"][name].read(argument) - 0x10000 for name in ("works", "terms"))
    reduce = {f.name: f.read(records[works:]) for f in of_works["Reduce"].fields}
    assert reduce == {
        "out": 3 << 20, "out_pitch": 500, "rows": 9, "columns": 40, "first_term": 0, "terms": 2, "vector": 1,
        "counter": 0, "first_tile": 0, "tiles": 1, "work": 0, "work_tiles": 1, "sync.first_wait": 0, "sync.waits": 1,
        "sync.first_signal": 1, "sync.signals": 2,
    }  # fmt: skip
    term = {f.name: f.read(records[terms:]) for f in of_works["Term"].fields}
    assert term == {"place": (1 << 20) + 2 * (2 * 500 + 8), "pitch": 500, "type": 0, "unused": 0}

    argument, records = packed(COPY, copied(out, a, waits=(8,), signals=(16, 24)))
    assert flags(of_works["Table"], argument, records, 6) == [8, 16, 24, 96, 104, 112]
    copy = {
        f.name: f.read(records[of_works["Table"]["works"].read(argument) - 0x10000 :]) for f in of_works["Copy"].fields
    }
    assert copy == {
        "to": 3 << 20, "from": (1 << 20) + 2 * (2 * 500 + 8), "to_pitch": 1000, "from_pitch": 1000, "rows": 9,
        "units": 10, "unit": 8, "work": 0, "work_tiles": 1, "unused": 0, "sync.first_wait": 0, "sync.waits": 1,
        "sync.first_signal": 1, "sync.signals": 2,
    }  # fmt: skip


def test_kernels_and_stand_in_declare_no_struct_of_their_own_for_these(
    of_tiles: dict[str, Struct], of_works: dict[str, Struct]
) -> None:
    stand_in = Path(__file__).parents[1] / "mock" / "src"
    sources = [f for f in (*KERNELS.rglob("*"), *stand_in.glob("*.c")) if f.is_file() and f.suffix != ".h"]
    for file in sources:
        declared = set(re.findall(r"\bstruct\s+(?:alignas\(\d+\)\s+)?(\w+)\s*\{", file.read_text(encoding="utf-8")))
        assert not declared & {*of_tiles, *of_works}, file


# ---------------------------------------------------------------- device_barrier.h


def test_steps_of_meetings(tmp_path: Path) -> None:
    found = structs(KERNELS / "device_barrier.h", tmp_path)["BarrierList"]
    steps = [
        device_barrier.Step(0x1122334455667788 + i, 3 + i, device_barrier.KINDS["reset"])
        for i in range(device_barrier.MOST + 1)
    ]
    first, second = (
        device_barrier.argument(0x99 << 40, part)
        for part in (steps[: device_barrier.MOST], steps[device_barrier.MOST :])
    )
    assert found.size == len(first) == len(second)
    assert {name: found[name].read(first) for name in ("runs", "count")} == {
        "runs": 0x99 << 40,
        "count": device_barrier.MOST,
    }
    assert (found["runs"].read(second), found["count"].read(second)) == (0x99 << 40, 1)
    for i, step in enumerate(steps):
        data, at = (first, f"steps_{i}") if i < device_barrier.MOST else (second, "steps_0")
        read = {name: found[f"{at}.{name}"].read(data) for name in ("address", "count", "kind")}
        assert read == {"address": step.address, "count": step.count, "kind": 2}
    text = (KERNELS / "device_barrier.h").read_text()
    assert all(f"BARRIER_{name.upper()} = {kind}" in text for name, kind in device_barrier.KINDS.items())


def test_rows_to_be_copied(tmp_path: Path) -> None:
    found = structs(KERNELS / "copy_rows.h", tmp_path)["CopyRows"]
    given = {"to": 0x11 << 40, "from": 0x22 << 40, "width": 24, "rows": 5, "to_pitch": 64, "from_pitch": 48}
    data = copy_rows.argument(*given.values())
    assert found.size == len(data)
    assert {name: found[name].read(data) for name in given} == given
    text = (KERNELS / "copy_rows.h").read_text()
    assert f"COPY_THREADS = {copy_rows.THREADS}, COPY_LOADS = {copy_rows.LOADS} " in text
