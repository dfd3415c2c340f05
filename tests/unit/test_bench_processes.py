"""`tools/bench` with processes of a GPU each, and with cuBLASMp: all of it that needs no GPU."""

from __future__ import annotations

import ctypes
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from multiprocessing import Pipe, get_context
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ficco_rt.errors import DeviceError
from ficco_rt.machine import profiles
from tests.unit.bench_side import Toy, launched
from tests.unit.test_bench import AG, OURS, PEERS, RS, SETTINGS, Fake
from tools.bench import cli, crews, cublasmp, gatherers, kept, report
from tools.bench.cublasmp import Matrix, product
from tools.bench.measure import PROCESSES, TWIN, Row, in_turn, measure
from tools.bench.members import come
from tools.bench.scenarios import Scenario, decode
from tools.bench.selected import picked
from tools.bench.variants import Variant
from tools.bench.workers import Absent, Crew, Turn, answer

AR = Scenario("gemm_ar", "decode_64", 64, 32, 128)


# ---- a process a GPU beside one process


class Twins(Fake):
    """Ours in processes: 2 % slower than in one back to back, 0.5 % in single runs."""

    def load(self, gpu: int, scenario: Scenario, keys: tuple[str, ...] = ()) -> dict[str, str | None]:
        return {TWIN + key: None for key in keys}

    def check(self, gpu: int, key: str) -> float | None:
        return 1e-3

    def turn(self, gpu: int, key: str, warmup: int, singles: int, loop: int) -> Turn:
        time = OURS[key.removeprefix(TWIN)][0]
        return Turn([[time * 1.005] * singles], [(time - 2) * 1.02] if loop else [])


class Fails(Fake):
    """A crew that fails when it is asked for `method`, a number of times."""

    def __init__(self, table: dict[str, tuple[float, float, str | None]], method: str, times: int = 99) -> None:
        super().__init__(table)
        self.method, self.times, self.lives = method, times, 1
        self.closed = False

    def ask(self, method: str, *values: object) -> list[object]:
        if self.closed:
            return []
        if method == self.method and self.times:
            self.times -= 1
            raise DeviceError(f"peer 1, {method}: no luck\nand more")
        return super().ask(method, *values)

    def revive(self, timeout: float) -> None:
        self.lives += self.closed
        self.closed = False

    def close(self) -> None:
        self.closed = True


def row_of(scenario: Scenario = AG, **others: Any) -> Row:
    found = {"ours": Fake(OURS), PROCESSES: Twins({}, gpus=2), "peers": Fake(PEERS, gpus=2)} | others
    return measure(scenario, {}, SETTINGS, found, lambda text: None, 0)


def test_processes_run_what_is_fastest_in_one_process() -> None:
    twins = Twins({}, gpus=2)
    row = row_of(**{PROCESSES: twins})
    best = "streamed chunks=2 graph"
    assert row.of(PROCESSES) == [TWIN + best]
    assert [asked for asked in twins.asked if asked[0] == "load"] == [("load", AG, (best,))]
    assert [asked[1] for asked in twins.asked if asked[0] == "data"] == [7, 8]
    assert row.quotients(TWIN + best, best) == [pytest.approx(1.005)] * SETTINGS.rounds
    assert row.quotients(TWIN + best, best, True) == [pytest.approx(1.02)] * SETTINGS.rounds
    assert row.quotients("nothing", best) == row.quotients(None, best) == []


def test_a_twin_takes_its_turn_next_to_the_other() -> None:
    keys = ["a", "b", "nccl", TWIN + "a", TWIN + "b"]
    for number in range(6):
        order = in_turn(keys, 1, "loops", number)
        assert sorted(order) == sorted(keys)
        for key in ("a", "b"):
            assert order.index(TWIN + key) - order.index(key) == (1 if number % 2 == 0 else -1)


def test_the_table_marks_what_is_slower_in_processes() -> None:
    lines = [[c.strip() for c in x.strip("|").split("|")] for x in report.processes_table([row_of()]).splitlines()]
    best = "streamed chunks=2 graph"
    single, loop = "1.005 (1.005–1.005)", "1.020 (1.020–1.020)"
    assert lines[2] == ["ag x", "100.0", "100.5", single, "98.0", "100.0", loop, best, "loop"]
    assert lines[3] == ["geometric mean", "", "", "1.005", "", "", "1.020", "", ""]


def test_a_row_is_told_when_it_is_measured() -> None:
    told = "single runs one 100.0, processes 100.5, nccl 131.0, asynctp 121.0; back to back one 98.0, processes 100.0, "
    assert cli._line(row_of(), 3.0) == f"[    3 s] ag x: {told}nccl 129.0, asynctp 119.0"


def test_the_race_back_to_back() -> None:
    fast = Fake({"cublasmp": (90.0, 1e-3, None), "cublasmp graph": (0.0, 0.0, "capture: no")})
    rows = [row_of(cublasmp=fast), row_of(AR, cublasmp=Absent("cublasmp", "is not here"))]
    (few, decoded), (rest, others) = report.races(rows)
    assert (few, rest, decoded, others) == ("decode", "other rows", rows[1:], rows[:1])
    lines = [[c.strip() for c in x.strip("|").split("|")] for x in report.race_table(rows).splitlines()]
    assert lines[0] == ["scenario", "ours", "which", "nccl", "/ours", "asynctp", "/ours", "cublasmp", "/ours",
                        "ours is slower than"]  # fmt: skip
    best = "streamed chunks=2 graph"
    assert lines[2] == ["ag x", "100.0", best, "129.0", "1.291", "119.0", "1.190", "88.0", "0.880", "cublasmp"]
    assert lines[3] == ["ar decode_64", "100.0", best, "129.0", "1.291", "119.0", "1.190", "–", "–", ""]
    assert lines[4] == ["geometric mean", "", "", "", "1.291", "", "1.190", "", "0.880", ""]
    assert lines[5][0] == "least"
    assert "cublasmp (ar decode_64): is not here" in report.failures(rows)


def test_processes_that_are_not_measured_are_no_reason_to_stop() -> None:
    row = row_of(**{PROCESSES: Fails({}, "load")})
    told = "peer 1, load: no luck; started again: peer 1, load: no luck"
    assert report.failures([row])[-1] == f"processes (ag x): {told}"
    assert row.time("nccl") == 141.0
    cells = [c.strip() for c in report.processes_table([row]).splitlines()[2].strip("|").split("|")]
    assert cells == ["ag x", "100.0", "–", "–", "98.0", "–", "–", "–", ""]
    assert report.race_table([row]).splitlines()[2].rstrip(" |").endswith("not measured")


def test_processes_that_do_not_come_up_are_told() -> None:
    row = row_of(**{PROCESSES: Absent(PROCESSES, "no luck")})
    assert report.failures([row])[-1] == "processes (ag x): no luck"
    assert report.short(row, False) == "one 100.0, processes –, nccl 131.0, asynctp 121.0"
    found = kept.of_run([row], SETTINGS, {}, True)
    assert [m.failed for m in found.rows if m.processes == 2] == ["no luck"]


@pytest.mark.parametrize("method", ["check", "data", "turn", "keep"])
def test_a_peer_that_fails_shows_its_error_and_the_rest_goes_on(method: str) -> None:
    peers = Fails(PEERS, method)
    row = row_of(peers=peers)
    assert {row.entries[key].failed for key in ("nccl", "nccl graph", "asynctp")} == {f"peer 1, {method}: no luck"}
    assert row.time("nccl") is None
    assert row.time("streamed chunks=2 graph") == 100.0
    assert (peers.closed, peers.lives) == (True, 1)
    again = row_of(peers=peers)  # it is started again for the next row
    assert peers.lives == 2
    assert again.entries["asynctp graph"].failed == "capture: no"


def test_a_peer_that_fails_to_load_gets_a_second_try() -> None:
    peers = Fails(PEERS, "load", times=1)
    assert row_of(peers=peers).time("nccl") == 140.0
    assert peers.lives == 2


def test_ours_has_no_second_try() -> None:
    with pytest.raises(DeviceError, match="no luck"):
        row_of(ours=Fails(OURS, "turn"))


def test_what_processes_took_is_kept_apart(tmp_path: Path) -> None:
    found = kept.of_run([row_of()], SETTINGS, {"source": "run", "date": "", "command": "", "gpus": ""}, True)
    file = tmp_path / "out.json"
    kept.write(file, found)
    ours = [m for m in kept.read(file).rows if m.label == "streamed chunks=2 graph"]
    assert [(m.processes, m.schedule, m.single and m.single.median) for m in ours] == [
        (1, "ag_gemm/streamed", 100.0),
        (2, "ag_gemm/streamed", 100.5),
    ]
    assert ours[0].place != ours[1].place


# ---- what is measured


def test_few_rows_are_tried_in_one_shot() -> None:
    machine = profiles.chosen("h200-switch", 2)
    labels = {s.m: [v.label for v in picked(s, machine)] for s in decode((64, 2048))}
    assert "oneshot" in labels[64]
    assert "oneshot" not in labels[2048]
    assert all(len(found) == len(set(found)) > 0 for found in labels.values())


def test_the_vendors_gemm_takes_part_where_the_model_finds_it_as_good() -> None:
    machine = profiles.chosen("h200-switch", 2)
    found = picked(Scenario("ag_gemm", "x", 8192, 10240, 8192), machine)
    labels = [v.label for v in found]
    assert labels[1:] == ["hetero_fused_1d chunks=1 kernel=vendor"]
    assert [Variant.of_label("ag_gemm", label) for label in labels] == list(found)
    assert found[1].arguments(Scenario("ag_gemm", "x", 8192, 10240, 8192))["kernel"] == "vendor"
    few = picked(Scenario("gemm_rs", "x", 16384, 4096, 4096), machine)  # sums and products are of one launch there
    assert not [v.label for v in few if "vendor" in v.label]


@pytest.mark.parametrize(
    ("arguments", "count", "operations"),
    [([], 26, 3), (["--decode"], 12, 3), (["--quick"], 6, 3), (["--quick", "--only", "qkv"], 26, 3)],
)
def test_rows_of_processes(arguments: list[str], count: int, operations: int) -> None:
    found, _ = cli._scenarios(cli.parse(["--processes", *arguments]))
    assert len(found) == count
    assert len({s.operation for s in found}) == operations
    assert {s.m for s in found if s.name.startswith("decode")} <= {16, 64, 128, 256}


def test_settings_and_crews_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[str, Any]] = []

    class Made(Absent):
        def __init__(self, name: str, make: Any, arguments: Any, **settings: Any) -> None:
            super().__init__(name, "only looked at")
            made.append((name, settings))

        def ready(self, timeout: float) -> None:
            if self._contestant == "peer":
                raise DeviceError("peer 0, start: ImportError: no luck\n…")

    def one(scenario: Scenario, pieces: Any, settings: Any, up: dict[str, Any], *_: object) -> Row:
        assert (settings.rounds, settings.loop, settings.finalists) == (3, 1000, 1)
        assert list(up) == ["ours", "peers", "cublasmp", "quack", "flashinfer", PROCESSES]
        return row_of(scenario, **{kind: up[kind] for kind in ("peers", "cublasmp", "quack", "flashinfer")})

    monkeypatch.setattr(cli, "find_gpus", lambda wanted: 2)
    monkeypatch.setattr(crews, "Crew", Made)
    monkeypatch.setattr(cli, "measure", one)
    assert cli.main(["--processes", "--only", "decode_64", "--json", str(tmp_path / "out.json")]) == 4
    assert [name for name, _ in made] == ["ours", "peer", PROCESSES]
    assert all(settings["limit"] == 60.0 for name, settings in made if name != "ours")
    out = capsys.readouterr().out
    assert "A process a GPU beside one process, µs" in out
    assert "A process a GPU, back to back, µs a run: decode" in out
    assert "- peers (ag decode_64, rs decode_64, ar decode_64): peer 0, start: ImportError: no luck\n" in out
    for kind in ("cublasmp", "quack", "flashinfer"):
        assert f"- {kind} (ag decode_64, rs decode_64, ar decode_64): not measured, as " in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--ranks", "8"], "--processes has a GPU a rank"),
    ],
)
def test_what_does_not_go_with_processes(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_gpus", lambda wanted: 2)
    assert cli.main(["--processes", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"bench: {told}")


def test_what_is_skipped_has_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(crews, "Crew", lambda name, *_, **__: made.append(name))
    found = crews.crews([AG, RS], SETTINGS, None, crews.KINDS, "")
    assert (list(found), made) == (["ours"], ["ours"])


# ---- workers


class Threads(Crew):
    """A crew whose workers are threads."""

    def _start(self) -> None:
        for values in self._arguments:
            mine, theirs = Pipe()
            Thread(target=answer, args=(theirs, self._make, values), daemon=True).start()
            self._pipes.append(mine)


def test_an_error_is_told_before_a_silence_and_the_crew_starts_again() -> None:
    toys = Threads("toy", Toy, [(i, 2) for i in range(2)], limit=60, spares=1)
    toys.ready(60)
    with pytest.raises(DeviceError, match=r"^toy 1, check: ValueError: not with me$"):
        toys.ask("check", "one fails")
    toys.revive(60)  # it is not closed: nothing to do
    toys.close()
    assert toys.ask("about") == []
    toys.revive(60)
    assert toys.ask("about") == [{"worker": "0"}, {"worker": "1"}]
    toys.close()
    with pytest.raises(DeviceError, match=r"^toy failed before and is not started again$"):
        toys.revive(60)


def test_a_worker_that_hangs_is_given_up() -> None:
    toys = Threads("toy", Toy, [(0, 1)], limit=0.1)
    toys.ready(60)
    with pytest.raises(DeviceError, match=r"^toy did not answer 'check' within 0 s$"):
        toys.ask("check", "hangs")


def test_processes_of_a_launcher_are_directed_by_one_more() -> None:
    """Those of the launcher are forked here, as that is quicker; the director is not."""
    context = get_context("fork")
    ends = context.Pipe()
    pipes = [None, ends[0]], [ends[1], None]
    started = [context.Process(target=launched, args=(place, pipes[place])) for place in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of other tests sleep
        for process in started:
            process.start()
    for process in started:
        process.join(120)
    assert [process.exitcode for process in started] == [7, 0]


def test_a_director_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "here" / "bench"
    assert come(place, b"token") is None  # its folder is gone
    place.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        listening.listen()
        Thread(target=lambda: listening.accept()[0].close()).start()
        assert come(place, b"token") is None


def test_labels_are_read_back() -> None:
    for values in ([1], [1, 1], [4, 2, 1, 1], 3):
        variant = Variant("ag_gemm/streamed", (("chunks", 2), ("deep", values)))
        assert Variant.of_label("ag_gemm", variant.label) == variant


# ---- cuBLASMp


def spread_out(matrix: Matrix, whole: np.ndarray[Any, Any], ranks: int) -> list[np.ndarray[Any, Any]]:
    """What each process holds of a matrix, as cuBLASMp lays it out: blocks dealt to a grid, column-major."""
    assert whole.shape == (matrix.rows, matrix.columns)
    grid = (ranks, 1) if matrix.over == "rows" else (1, ranks)
    found = []
    for rank in range(ranks):
        place = (rank, 0) if matrix.over == "rows" else (0, rank)
        rows = [i for i in range(matrix.rows) if i // matrix.block_rows % grid[0] == place[0]]
        columns = [j for j in range(matrix.columns) if j // matrix.block_columns % grid[1] == place[1]]
        own = whole[np.ix_(rows, columns)]
        assert own.shape[0] == matrix.block_rows  # the leading dimension
        found.append(own.flatten(order="F"))
    return found


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("operation", ["ag_gemm", "gemm_rs", "gemm_ar"])
def test_matrices_lie_as_ours_do(operation: str, ranks: int) -> None:
    m, n, k = 8, 12, 16
    scenario, draw = Scenario(operation, "x", m, n, k), np.random.default_rng(1)
    a, b = draw.integers(-4, 4, (m, k)), draw.integers(-4, 4, (k, n))
    c = a @ b
    asked = product(scenario, ranks)
    assert (asked.m, asked.n, asked.k) == (n, m, k)
    theirs_a, theirs_b = (b if asked.transposed else b.T), a.T
    d = np.concatenate([c.T] * ranks, axis=1) if asked.all_reduce else c.T
    gathers = operation == "ag_gemm"
    for rank in range(ranks):
        ours_a = np.split(a, ranks, axis=0 if gathers else 1)[rank]
        ours_b = np.split(b, ranks, axis=1 if gathers else 0)[rank]
        ours_c = {
            "ag_gemm": lambda rank=rank: np.split(c, ranks, axis=1)[rank],
            "gemm_rs": lambda rank=rank: np.split(c, ranks, axis=0)[rank],
            "gemm_ar": lambda: c,
        }[operation]()
        for name, ours in zip("ABC", (ours_a, ours_b, ours_c), strict=True):
            assert ours.shape == scenario.shapes(ranks)[name]
        held = ours_b.T if asked.transposed else ours_b
        assert np.array_equal(spread_out(asked.a, theirs_a, ranks)[rank], held.flatten())
        assert np.array_equal(spread_out(asked.b, theirs_b, ranks)[rank], ours_a.flatten())
        assert np.array_equal(spread_out(asked.d, d, ranks)[rank], ours_c.flatten())


def test_blocks_fit_as_cublasmp_wants_them() -> None:
    """The rules of `cublasMpMatmul` in cublasmp.h: transA = N, transB = N, or transA = T, transB = N."""
    for operation in ("ag_gemm", "gemm_rs", "gemm_ar"):
        asked = product(Scenario(operation, "x", 64, 32, 128), 2)
        inner, outer = ("block_rows", "block_columns") if asked.transposed else ("block_columns", "block_rows")
        assert getattr(asked.a, inner) == asked.b.block_rows
        assert getattr(asked.a, outer) == asked.d.block_rows
        assert asked.b.block_columns == asked.d.block_columns


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({}, "nvmath-python is not installed, nccl4py is not installed, nvidia-cublasmp-cu13 is not installed, nvidia-"
             "nccl-cu13 is not installed: pip install"),
        ({"nvmath-python": (1, 0, 0), "nccl4py": (0, 6, 0), "nvidia-cublasmp-cu13": (0, 10, 0),
          "nvidia-nccl-cu13": (2, 28, 9)}, "nvidia-nccl-cu13 is 2.28.9: pip install"),
    ],
)  # fmt: skip
def test_what_is_missing_is_told_with_a_way_out(
    there: dict[str, tuple[int, ...]], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cublasmp, "newest", lambda name: (there[name], None) if name in there else None)
    pip = '"nvmath-python>=1.0" "nccl4py>=0.6" "nvidia-cublasmp-cu13>=0.8" "nvidia-nccl-cu13>=2.29.2"'
    assert cublasmp.libraries() == f"not measured, as {told} {pip}"


def test_the_newest_libraries_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"nvmath-python": ["1.0.0"], "nccl4py": ["0.6.0"], "nvidia-cublasmp-cu12": ["0.10.0.3695"],
             "nvidia-nccl-cu12": ["2.28.9", "2.30.4"]}  # fmt: skip

    def installed(name: str) -> list[Any]:
        return [SimpleNamespace(version=v, locate_file=lambda at, v=v: f"/{v}/{at}") for v in there.get(name, ())]

    monkeypatch.setattr(cublasmp, "distributions", installed)
    found = cublasmp.libraries()
    assert isinstance(found, cublasmp.Libraries)
    assert [str(path) for path in found.paths] == [
        "/2.30.4/nvidia/nccl/lib/libnccl.so.2",
        "/0.10.0.3695/nvidia/cublasmp/cu12/lib/libcublasmp.so.0",
    ]
    assert found.versions == "nvmath-python 1.0.0, nccl4py 0.6.0, nvidia-cublasmp-cu12 0.10.0, nvidia-nccl-cu12 2.30.4"


def test_names_of_cublasmp_are_those_of_its_bindings() -> None:
    """What the peer calls exists in nvmath-python, and enums have the names and widths that it relies on."""
    library = pytest.importorskip("nvmath.bindings.cublasMp")
    for name in (
        "create", "grid_create", "matrix_descriptor_create", "matrix_descriptor_destroy", "matmul_descriptor_create",
        "matmul_descriptor_destroy", "matmul_descriptor_set_attribute", "matmul_buffer_size", "matmul", "set_stream",
        "malloc", "free", "get_version", "cuBLASMpError", "GridLayout",
    ):  # fmt: skip
        assert hasattr(library, name), name
    assert all(name in library.MatmulAlgoType.__members__ for name in cublasmp.ALGORITHMS)
    for attribute in ("TRANSA", "TRANSB", "ALGO_TYPE", "EPILOGUE"):
        width = library.get_matmul_descriptor_attribute_dtype(library.MatmulDescriptorAttribute[attribute])
        assert np.dtype(width).itemsize == 4


class Numbers:
    """In place of a PyTorch tensor: numbers of 16 bits."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.shape, self.nbytes = array.shape, array.nbytes

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def view(self, shape: object) -> Numbers:
        return self if shape == "bf16" else Numbers(self.array.reshape(shape))

    def t(self) -> Numbers:
        return Numbers(self.array.T)

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def contiguous(self) -> Numbers:
        return Numbers(np.ascontiguousarray(self.array))

    def copy_(self, other: Numbers) -> None:
        self.array[...] = other.array


class Library:
    """In place of cuBLASMp in one process: it multiplies what it is told to, column-major."""

    def __init__(self, real: Any) -> None:
        self.MatmulDescriptorAttribute, self.MatmulAlgoType = real.MatmulDescriptorAttribute, real.MatmulAlgoType
        self.MatmulEpilogue = real.MatmulEpilogue
        self.get_matmul_descriptor_attribute_dtype = real.get_matmul_descriptor_attribute_dtype
        self.made: dict[int, Any] = {}

    def _keep(self, what: Any) -> int:
        self.made[number := len(self.made) + 1000] = what
        return number

    def matrix_descriptor_create(self, *given: int) -> int:
        return self._keep(given)

    def matmul_descriptor_create(self, compute: int) -> int:
        assert compute == 68  # CUBLAS_COMPUTE_32F
        return self._keep({})

    def matmul_descriptor_set_attribute(self, of: int, name: int, at: int, size: int) -> None:
        assert size == 4
        self.made[of][self.MatmulDescriptorAttribute(name).name] = ctypes.c_int32.from_address(at).value

    def matrix_descriptor_destroy(self, number: int) -> None:
        self.made[number] = None

    matmul_descriptor_destroy = matrix_descriptor_destroy

    def malloc(self, grid: int, size: int) -> int:
        memory = np.zeros(size // 2, np.int16)
        self.made[int(memory.ctypes.data)] = memory
        return int(memory.ctypes.data)

    def free(self, grid: int, address: int) -> None:
        self.made[address] = None

    def set_stream(self, handle: int, stream: int) -> None:
        self.stream = stream

    def matmul_buffer_size(self, handle: int, descriptor: int, *operands: int) -> tuple[int, int]:
        if self.made[descriptor]["ALGO_TYPE"] == self.MatmulAlgoType.ATOMIC_P2P:
            raise ValueError("not here")
        return 64, 0

    def matmul(self, handle: int, descriptor: int, m: int, n: int, k: int, *rest: int) -> None:
        alpha, a, _, _, desc_a, b, _, _, desc_b, beta, c, _, _, desc_c, d, _, _, desc_d, work, size, _, _ = rest
        assert (ctypes.c_float.from_address(alpha).value, ctypes.c_float.from_address(beta).value) == (1, 0)
        assert (c, desc_c, size) == (0, 0, 64)
        assert self.made[work] is not None
        whole = [
            self._matrix(address, self.made[number]) for address, number in ((a, desc_a), (b, desc_b), (d, desc_d))
        ]
        asked = self.made[descriptor]
        assert asked["TRANSB"] == 0
        left = whole[0].T if asked["TRANSA"] else whole[0]
        assert (left.shape, whole[1].shape) == ((m, k), (k, n))
        whole[2][...] = left @ whole[1]

    @staticmethod
    def _matrix(address: int, described: tuple[int, ...]) -> np.ndarray[Any, Any]:
        rows, columns, _, _, _, _, leading, kind, _ = described
        assert (leading, kind) == (rows, cublasmp.BF16)
        memory = (ctypes.c_int16 * (rows * columns)).from_address(address)
        return np.frombuffer(memory, np.int16).reshape(columns, rows).T


@pytest.mark.parametrize("transb", [0, 1])
@pytest.mark.parametrize("operation", ["ag_gemm", "gemm_rs", "gemm_ar"])
def test_cublasmp_is_asked_for_our_product(operation: str, transb: int) -> None:
    """One process stands for all: what is checked is the calls, their operands and what is given back."""
    library = Library(pytest.importorskip("nvmath.bindings.cublasMp"))
    scenario, draw = Scenario(operation, "x", 4, 6, 8, transb), np.random.default_rng(1)
    tensors = {
        name: Numbers(draw.integers(-4, 4, shape).astype(np.int16)) for name, shape in scenario.shapes(1).items()
    }
    tensors["B"] = scenario.weight(tensors["B"])
    side = cublasmp.CublasMp.__new__(cublasmp.CublasMp)
    side.errors = (ValueError,)
    side._library = library
    side._torch = SimpleNamespace(
        bfloat16="bf16",
        as_tensor=lambda memory, device: Numbers(library.made[memory.__cuda_array_interface__["data"][0]]),
        cuda=SimpleNamespace(
            current_stream=lambda: SimpleNamespace(cuda_stream=7), synchronize=lambda: None, empty_cache=lambda: None
        ),
    )
    side._scenario, side._ranks, side._tensors, side._device = scenario, 1, tensors, None
    side._hung, side._handle, side._held, side._weights = {"SPLIT_P2P"}, 5, [], None
    side._contestants, side._registered = {}, None
    side._grids = {"rows": 1, "columns": 2}
    failed: list[str] = []
    runs = side._runs(failed)
    assert (list(runs), failed) == (["DEFAULT"], ["ATOMIC_P2P: ValueError: not here"])
    runs["DEFAULT"]()
    assert np.array_equal(tensors["C"].array, tensors["A"].array @ tensors["B"].array)
    assert library.stream == 7
    asked = next(made for made in library.made.values() if isinstance(made, dict))
    assert asked.get("EPILOGUE", 0) == (1 if operation == "gemm_ar" else 0)
    side.keep(())
    assert set(map(type, library.made.values())) == {type(None)}


def test_a_library_that_is_not_there_or_is_too_old_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {"flashinfer-python": ((0, 6, 1), None)}
    monkeypatch.setattr(gatherers, "newest", found.get)
    assert gatherers.missing("quack") == (
        'not measured, as quack-kernels is not installed: pip install "quack-kernels>=0.6.4"'
    )
    assert gatherers.missing("flashinfer") == (
        'not measured, as flashinfer-python is 0.6.1: pip install "flashinfer-python>=0.6.18"'
    )
    found["quack-kernels"] = ((0, 6, 5), None)
    assert gatherers.missing("quack") is None


class Gathered:
    """QuACK's runner in one process, called as the package's: what a call of it gathers is the shard."""

    fences = 0

    def __init__(self, shard_m: int, k: int, dtype: object, group: object = None, device: object = None) -> None:
        self.shape = shard_m, k

    @contextmanager
    def gather(self, a_shard: np.ndarray[Any, Any]) -> Iterator[tuple[np.ndarray[Any, Any], str]]:
        assert a_shard.shape == self.shape
        yield a_shard, "arguments"

    def quiesce(self, last_parity: int | None = None, replay_stream: object = None) -> None:
        Gathered.fences += 1


def gemm(
    A: Any, B: Any, D: Any, C: None, tile_count_semaphore: None, tile_M: int, tile_N: int, cluster_M: int,
    cluster_N: int, cluster_K: int = 1, tile_K: int | None = None, pingpong: bool = False, *,
    ag_args: str | None = None,
) -> None:  # fmt: skip
    assert ag_args == "arguments"
    assert A.shape[0] % (tile_M * cluster_M) == 0, "AG+GEMM: a tile would span two shards"
    if (tile_M, tile_N) == (256, 128):
        raise RuntimeError("no such tile")
    assert (C, tile_count_semaphore) == (None, None)
    D[...] = A @ B.T


def all_gather_matmul(inp: Any, w: Any, group: str, *, backend: str = "auto", verbose: bool = False) -> Any:
    assert group == "world"
    return inp @ w


@pytest.mark.parametrize(
    ("module", "name", "fake"),
    [
        ("quack.distributed", "AllGatherRunner", Gathered.__init__),
        ("quack.distributed", "AllGatherRunner.gather", Gathered.gather),
        ("quack.distributed", "AllGatherRunner.quiesce", Gathered.quiesce),
        ("quack.gemm", "gemm", gemm),
        ("flashinfer.comm", "all_gather_matmul", all_gather_matmul),
    ],
)
def test_gatherers_are_called_as_their_packages_want_it(module: str, name: str, fake: Callable[..., Any]) -> None:
    """Where a package is installed: its parameters are those of the fake, in their places."""
    real: Any = pytest.importorskip(module, exc_type=ImportError)
    for part in name.split("."):
        real = getattr(real, part)
    theirs = signature(real.__init__ if isinstance(real, type) else real).parameters
    for place, mine in enumerate(signature(fake).parameters.values()):
        assert mine.name in theirs
        assert mine.default == theirs[mine.name].default
        assert mine.kind is mine.KEYWORD_ONLY or list(theirs)[place] == mine.name


def test_gatherers_are_asked_for_our_product(monkeypatch: pytest.MonkeyPatch) -> None:
    class Array(np.ndarray[Any, Any]):
        def t(self) -> Any:
            return self.T

        def copy_(self, other: Any) -> None:
            self[...] = other

    scenario, draw = Scenario("ag_gemm", "x", 256, 128, 128), np.random.default_rng(1)
    arrays = {name: draw.integers(-4, 4, shape).astype(float) for name, shape in scenario.shapes(1).items()}
    tensors = {name: array.view(Array) for name, array in arrays.items()}
    for kind, product_of in (("quack", gemm), ("flashinfer", all_gather_matmul)):
        side = gatherers.Gatherer.__new__(gatherers.Gatherer)
        side.kinds, side._scenario, side._tensors, side._device, side._runner = (kind,), scenario, tensors, None, None
        side._gather, side._product = Gathered, product_of
        side._dist = SimpleNamespace(group=SimpleNamespace(WORLD="world"))
        side._symmetric = SimpleNamespace(empty=lambda *shape, dtype, device: np.empty(shape, dtype).view(Array))
        monkeypatch.setattr(side, "_time", lambda run: run() or 1.0)
        monkeypatch.setattr(side, "_slowest", lambda took: took)
        monkeypatch.setattr(side, "_wait", lambda: None)
        made = side._made(kind)
        assert not isinstance(made, str)
        made.run()
        assert np.array_equal(made.output(), tensors["A"] @ tensors["B"])
        side._fence()
        side._scenario = Scenario("gemm_rs", "x", 4, 6, 8)
        assert side._made(kind) == "it has no such operation"
        side._scenario, side._tensors = scenario, tensors | {"A": tensors["A"][:72]}
        assert (
            side._made(kind)
            == {
                "quack": "a shard of 72 rows is no multiple of its tiles",
                "flashinfer": "a shard's rows, K and columns, (72, 128, 128), are not multiples of 128, its tiles",
            }[kind]
        )
    assert Gathered.fences == 1
    with pytest.raises(side.errors, match=r"each call gets symmetric memory"):  # FlashInfer's
        side._captured(made)
