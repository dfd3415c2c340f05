"""The structs that kernels and the stand-in read are those that the host writes: sizes, and each field by its name."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from ficco_dsl.diagnostics import Span
from ficco_rt.driver.gpu import naive
from ficco_rt.driver.gpu.tensors import DeviceTensor
from ficco_rt.kernels import mfma, sm80, sm90, tiles
from ficco_rt.kernels.compiler import KERNELS
from ficco_rt.plan.ir import CopyWork, GemmWork, Launch, LaunchAttributes, ReduceWork, Work
from ficco_rt.region import Axis, Interval, Region
from tests.unit.c_structs import Struct, structs

HERE = Span("test.ficco", 1, 1, 1, 1)
WHOLE = (Interval(0, 256),)


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
        ("Tile", tiles.TILE), ("TileAddends", tiles.ADDED), ("Addend", tiles.TERM), ("Depth", tiles.DEPTHS),
        ("DepthWait", tiles.DEPTH_WAITS), ("Signal", tiles.SIGNAL),
    ],
)  # fmt: skip
def test_records_of_the_table(name: str, dtype: np.dtype[np.void], of_tiles: dict[str, Struct]) -> None:
    assert dtype.fields is not None
    written = [(field.removeprefix("term_"), at, kind.itemsize) for field, (kind, at, *_) in dtype.fields.items()]
    assert [(f.name, f.offset, f.size) for f in of_tiles[name].fields] == written
    assert of_tiles[name].size == dtype.itemsize


def work() -> tiles.MatrixWork:
    a, b, c, d = (tiles.Matrix(address << 12, 256, 256, 256) for address in (1, 2, 3, 4))
    term = tiles.Term(tiles.MatrixOperand(d, WHOLE, WHOLE), "bf16")
    return tiles.MatrixWork(
        a, b, c, *(6 * (WHOLE,)), waits=(64, 128), signals=(192,), terms=(term,), term_waits=(256,)
    )  # fmt: skip


def of_table(table: tiles.Table, constants: int, scratch: int) -> dict[str, int]:
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
    variant = sm90.variant("sm90_gemm_128x256_c2")
    launch = sm90.build(
        [work()], variant, "bf16", "bf16", False, False, sms=132, stages=3, constant=(False, True), lowers=(320, 384)
    )
    data = launch.parameters(0x10000, 0x20000, [bytes([i + 1]) * 128 for i in range(4)], 0x30000, 0x40000)
    assert len(data) == layout.size == sm90.PARAMETER_BYTES
    wanted = of_table(launch.table, 0x10000, 0x20000) | {
        "stages": 3, "ended": 0x20000 + 4, "reset_first": 4, "reset_count": 2, "depth_waits": 0,
        "infos_0.out": 3 << 12, "infos_0.out_pitch": 256, "infos_0.stage_bytes": variant.stage_bytes(False),
        "infos_0.read_only": 1, "operands_0.left.opaque_0": 1, "operands_0.right.opaque_0": 2,
        "operands_0.out.opaque_0": 3, "addend_maps_0.opaque_0": 4,
    }  # fmt: skip
    assert {name: layout[name].read(data) for name in wanted} == wanted
    of_maps = [f for f in layout.fields if f.name.endswith("opaque_0")]
    assert len(of_maps) == 3 * sm90.MAX_OPERANDS + sm90.MAX_TERMS
    assert layout[f"infos_{sm90.MAX_OPERANDS - 1}.read_only"].offset < layout["table.tiles"].offset


@pytest.mark.parametrize("kernel", ["sm80", "mfma"])
def test_parameters_of_kernels_that_take_addresses(kernel: str, of_tiles: dict[str, Struct]) -> None:
    layout = of_tiles["PitchedParameters"]
    launch: sm80.Launch | mfma.Launch
    if kernel == "sm80":
        launch = sm80.build([work()], sm80.VARIANTS[0], "bf16", "bf16", False, False, blocks=132, stages=3)
    else:
        launch = mfma.build([work()], mfma.VARIANTS[0], "bf16", "bf16", False, False, blocks=132)
    data = launch.parameters(0x10000, 0x20000, 0x30000, 0x40000)
    assert len(data) == layout.size == sm80.PARAMETER_BYTES == mfma.PARAMETER_BYTES
    operands, matrices = launch.table.offsets[7:]
    wanted = of_table(launch.table, 0x10000, 0x20000) | {
        "operands": 0x10000 + operands, "addend_matrices": 0x10000 + matrices,
    }  # fmt: skip
    assert {name: layout[name].read(data) for name in wanted} == wanted
    operand, matrix = of_tiles["PitchedOperands"], of_tiles["PitchedMatrix"]
    written, added = tiles.operand_rows([work()], 2, 2), tiles.term_rows([work()])
    assert (written.nbytes, added.nbytes) == (operand.size, matrix.size)
    names = ("left", "right", "out", "left_pitch", "right_pitch", "out_pitch")
    assert [operand[name].read(written.tobytes()) for name in names] == [1 << 12, 2 << 12, 3 << 12, 512, 512, 512]
    assert [matrix[name].read(added.tobytes()) for name in ("address", "pitch", "item")] == [4 << 12, 512, 2]


# ---------------------------------------------------------------- works.h


@pytest.mark.parametrize(
    ("name", "packing"),
    [
        ("Gemm", naive.GEMM), ("Addend", naive.ADDED), ("Reduce", naive.REDUCE), ("Term", naive.TERM),
        ("Copy", naive.COPY), ("Run", naive.RUN), ("Table", naive.TABLE),
    ],
)  # fmt: skip
def test_records_of_the_naive_kernels(name: str, packing: struct.Struct, of_works: dict[str, Struct]) -> None:
    assert [(f.offset, f.size) for f in of_works[name].fields] == placed(packing)
    assert of_works[name].size == packing.size


def region(tensor: str, rows: tuple[int, int], columns: tuple[int, int]) -> Region:
    return Region(tensor, 0, tuple(Axis((Interval(*span),)) for span in (rows, columns)))


def packed(works: list[Work]) -> tuple[bytes, bytes]:
    """The kernel's argument, and what lies at address 0x10000."""
    places = {"A": 1 << 20, "B": 2 << 20, "C": 3 << 20, "D": 4 << 20}

    def resolve(region: Region) -> DeviceTensor:
        return DeviceTensor(places[region.tensor], (300, 500), "fp32" if region.tensor == "D" else "bf16", 0, False)

    command = Launch("naive", tuple(works), True, LaunchAttributes(0, None, None, None), "mm")
    (made,) = naive.pack(command, resolve, lambda flag: 8 * flag, ("-std=c++17",), 4, (96, 104, 112))
    (argument,) = made.arguments(0x10000, 0x80000)
    return argument, made.constants


def test_fields_of_the_naive_kernels_by_name(of_works: dict[str, Struct]) -> None:
    left, right, out = region("A", (0, 200), (8, 108)), region("B", (0, 100), (5, 155)), region("C", (7, 207), (0, 150))
    added, flags = region("D", (3, 203), (1, 151)), ((1, 2), (3,))
    argument, records = packed([GemmWork(out, left, right, False, False, False, (2, 2), *flags, 0, HERE, (added,))])
    table = {f.name: f.read(argument) for f in of_works["Table"].fields}
    at = {name: table[name] - 0x10000 for name in ("works", "terms", "runs", "flags")}
    assert list(at.values()) == sorted(at.values())
    assert table["counters"] == 0x80000
    numbers = ("count", "tiles", "ordered", "waits", "reset_first", "reset_count")
    assert [table[name] for name in numbers] == [1, 4, 1, 1, 3, 3]
    gemm = {f.name: f.read(records[at["works"] :]) for f in of_works["Gemm"].fields}
    assert [gemm[name] for name in ("out", "left", "right")] == [3 << 20, 1 << 20, 2 << 20]
    assert [gemm[name] for name in ("out_m", "out_n", "left_m", "left_k", "right_k", "right_n")] == 3 * [500, 1]
    assert [gemm[name] for name in ("m", "n", "k", "accumulate", "first_tile", "tiles", "columns")] == [
        200, 150, 100, 0, 0, 4, 2,
    ]  # fmt: skip
    assert [gemm[f"sync.{name}"] for name in ("first_wait", "waits", "first_signal", "signals")] == [0, 2, 2, 1]
    assert [gemm[name] for name in ("first_addend", "addends")] == [0, 1]
    addend = {f.name: f.read(records[at["terms"] :]) for f in of_works["Addend"].fields}
    assert [addend[name] for name in ("address", "m", "n", "type")] == [4 << 20, 500, 1, 2]
    runs = [struct.unpack_from("<2q", records, at["runs"] + 16 * i) for i in range(8)]  # (end, shift)

    def run(record: dict[str, int], axis: str) -> tuple[int, int]:
        assert record[f"map_{axis}.count"] == 1
        end, shift = runs[record[f"map_{axis}.first"]]
        return end, shift

    axes = ("out_m", "out_n", "left_m", "left_k", "right_k", "right_n")
    assert [run(gemm, axis) for axis in axes] == [(200, 7), (150, 0), (200, 0), (100, 8), (100, 0), (150, 5)]
    assert [run(addend, axis) for axis in ("m", "n")] == [(200, 3), (150, 1)]


def test_fields_of_sums_and_copies_by_name(of_works: dict[str, Struct]) -> None:
    out, a, b = region("C", (0, 9), (0, 40)), region("A", (2, 11), (8, 48)), region("B", (3, 12), (16, 56))
    argument, records = packed([ReduceWork(out, (a, b), (1,), (2, 3), 0, HERE)])
    works, terms = (of_works["Table"][name].read(argument) - 0x10000 for name in ("works", "terms"))
    reduce = {f.name: f.read(records[works:]) for f in of_works["Reduce"].fields}
    assert reduce == {
        "out": 3 << 20, "out_pitch": 500, "rows": 9, "columns": 40, "first_term": 0, "terms": 2, "vector": 1,
        "counter": 0, "first_tile": 0, "tiles": 1, "work": 0, "work_tiles": 1, "sync.first_wait": 0, "sync.waits": 1,
        "sync.first_signal": 1, "sync.signals": 2,
    }  # fmt: skip
    term = {f.name: f.read(records[terms:]) for f in of_works["Term"].fields}
    assert term == {"address": (1 << 20) + 2 * (2 * 500 + 8), "pitch": 500, "type": 0, "unused": 0}

    argument, records = packed([CopyWork(out, a, (1,), (2, 3), 0, HERE)])
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
