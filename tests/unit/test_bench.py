"""`tools/bench`, all of it that needs no GPU."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest

import ficco_rt
from ficco_rt import compiler
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.files import shipped
from ficco_rt.machine import profiles
from tests.unit.bench_side import Toy
from tools.bench import cli, crews, gpus, kept, report
from tools.bench.executors import Executors
from tools.bench.measure import (
    COPIES,
    GEMM,
    Entry,
    Row,
    Settings,
    finalists,
    loop_length,
    loop_warmup,
    measure,
    shuffled,
)
from tools.bench.ours import Ours, ways
from tools.bench.peers import SWITCHES, multicast
from tools.bench.scenarios import DECODE_ROWS, DEFAULT_FILE, OPERATIONS, SCALES, Scenario, chosen, decode, load
from tools.bench.stats import Spread, geomean, slowest, spread, tolerance, work
from tools.bench.variants import CHOICES, MODES, SENT, variants
from tools.bench.workers import Crew, Turn

AG = Scenario("ag_gemm", "x", 64, 32, 128)
RS = Scenario("gemm_rs", "x", 64, 32, 128)
SETTINGS = Settings(ranks=2, gpus=2, rounds=4, singles=3, loop=20, warmup=1, finalists=1, seed=7)


# ---- scenarios


def test_the_shipped_scenarios() -> None:
    found, notes = load(DEFAULT_FILE)
    assert [s.operation for s in found] == ["ag_gemm"] * 8 + ["gemm_rs"] * 6
    assert found[0] == Scenario("ag_gemm", "qkv70b_8k", 8192, 10240, 8192)
    assert notes == (f"{DEFAULT_FILE}: 'concurrent' is left out; operations here are {', '.join(OPERATIONS)}",)
    assert all(s.misfit(ranks) is None for s in found for ranks in (2, 4, 8))


def test_the_shipped_rows_of_all_reduce() -> None:
    found, notes = load(DEFAULT_FILE.with_name("all_reduce.json"))
    assert (notes, {s.operation for s in found}) == ((), {"gemm_ar"})
    assert all(s.misfit(ranks) is None for s in found for ranks in (2, 4, 8))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_tall_products_are_made_of_less_than_is_usually_sent(ranks: int) -> None:
    found, notes = load(DEFAULT_FILE.with_name("tall.json"))
    assert notes == ()
    assert {s.operation for s in found} == {"ag_gemm", "gemm_rs"}
    for s in found:
        assert s.misfit(ranks) is None
        rows, columns, depth = s.m // ranks, s.n, s.k
        if s.operation == "ag_gemm":
            assert (depth + rows) * columns // ranks < rows * depth, s.label
        else:
            assert (rows + columns) * depth // ranks < rows * columns, s.label


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "FILE:1:2: is not JSON: Expecting property name enclosed in double quotes"),
        ("[" * 100_000, "FILE: is nested too deep to be a list of scenarios"),
        ("[]", 'FILE: wanted an object of operations, such as {"ag_gemm": [...]}'),
        ('{"ag_gemm": 3}', "FILE: ag_gemm: wanted a list of scenarios"),
        (
            '{"ag_gemm": [1]}',
            'FILE: ag_gemm[0]: wanted an object such as {"name": "x", "M": 8192, "N": 10240, "K": 8192}',
        ),
        ('{"gemm_rs": [{"M": 1}]}', "FILE: gemm_rs[0]: 'name' is missing or no text"),
        (
            '{"gemm_ar": [{"name": "a", "M": 8, "N": 8}]}',
            "FILE: gemm_ar[0] (a): K must be a whole number from 1; it is null",
        ),
        (
            '{"ag_gemm": [{"name": "a", "M": true, "N": 8, "K": 8}]}',
            "FILE: ag_gemm[0] (a): M must be a whole number from 1; it is true",
        ),
        (
            '{"ag_gemm": [{"name": "a", "M": 8, "N": 0, "K": 8}]}',
            "FILE: ag_gemm[0] (a): N must be a whole number from 1; it is 0",
        ),
        (
            '{"ag_gemm": [{"name": "a", "M": 8, "N": 8, "K": 8, "k": 8}]}',
            "FILE: ag_gemm[0] (a): 'k' is not known; a scenario has name, M, N, K, transb, scales",
        ),
        (
            '{"ag_gemm": [{"name": "a", "M": 8, "N": 8, "K": 8, "scales": "8x8"}]}',
            'FILE: ag_gemm[0] (a): scales are 1x128 or row; it is "8x8"',
        ),
        (
            '{"ag_gemm": [{"name": "a", "M": 8, "N": 8, "K": 8}, {"name": "a", "M": 8, "N": 8, "K": 8}]}',
            "FILE: there are two scenarios 'ag a'; give each its own name",
        ),
    ],
)
def test_a_wrong_file_is_told_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(file)
    assert str(caught.value) == message.replace("FILE", str(file))


def test_choosing_scenarios() -> None:
    found, _ = load(DEFAULT_FILE)
    assert [s.label for s in chosen(found, ["rs o8b", "70b_2k"], 4)] == ["ag qkv70b_2k", "rs o8b_16k"]
    with pytest.raises(UsageError, match=r"^--only nothing: no scenario matches; there are ag qkv70b_8k, "):
        chosen(found, ["70b", "nothing"], 4)
    with pytest.raises(UsageError, match=r"^there is no scenario to measure$"):
        chosen((), [], 4)
    with pytest.raises(UsageError, match=r"^ag a: M = 10 and N = 6: not a multiple of 4 GPUs$"):
        chosen([Scenario("ag_gemm", "a", 10, 6, 3)], [], 4)
    with pytest.raises(UsageError, match=r"^rs a: K = 3: not a multiple of 4 GPUs$"):
        chosen([Scenario("gemm_rs", "a", 8, 6, 3)], [], 4)
    with pytest.raises(
        UsageError, match=r"^rs a fp8 row: N = 64 and K = 256 on a GPU: with scales N is a multiple of 128"
    ):
        chosen([Scenario("gemm_rs", "a", 8, 64, 1024, 1, "row")], [], 4)


def test_decode_sizes() -> None:
    assert [s.m for s in decode()] == 2 * list(DECODE_ROWS)
    assert {(s.n, s.k) for s in decode()} == {(10240, 8192)}
    assert all(s.misfit(4) is None for s in decode())


def test_shapes_of_a_rank_are_those_of_the_shipped_schedules() -> None:
    for operation, transb in product(OPERATIONS, (0, 1)):
        scenario = Scenario(operation, "x", 64, 32, 128, transb)
        plan = ficco_rt.compile(f"{operation}/serial", 4, **scenario.sizes)
        given = {t.name: set(t.shapes) for t in plan.tensors if t.kind != "scratch"}
        assert given == {name: {shape} for name, shape in scenario.shapes(4).items()}


def test_layouts_of_scaled_operands_are_those_of_the_shipped_schedules() -> None:
    for operation, scales in product(OPERATIONS, SCALES):
        scenario = Scenario(operation, "x", 64, 512, 2048, 1, scales)
        plan = ficco_rt.compile(f"{operation}/serial", 4, **scenario.sizes)
        given = {t.name: prod(t.shapes[0]) for t in plan.tensors if t.kind != "scratch"}
        layouts = scenario.layouts(4)
        assert {name: prod(layouts[name][0]) for name in "ABC"} == {name: given[name] for name in "ABC"}
        for name in "AB":
            shape, blocks = layouts[name]
            assert blocks is not None
            assert given[f"{name}.scales"] == prod(shape) // prod(blocks)
    one = work(Scenario("ag_gemm", "x", 8192, 10240, 8192, 1, "1x128"), 2)
    assert one.bytes_sent == 4096 * (8192 + 4 * 64)


# ---- figures


def test_slowest_gpu_counts() -> None:
    assert slowest([[1.0, 5.0], [4.0, 2.0], [3.0, 3.0]]) == [4.0, 5.0]
    with pytest.raises(ValueError, match="zip"):
        slowest([[1.0], [1.0, 2.0]])


def test_spread() -> None:
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0, 1)
    found = spread([float(v) for v in reversed(range(11))])
    assert (found.median, found.p10, found.p90, found.samples) == (5.0, 1.0, 9.0, 11)
    assert found.width == pytest.approx(1.6)
    assert spread([1.0, 2.0]).median == 1.5


def test_geometric_mean() -> None:
    assert geomean([0.5, 2.0]) == pytest.approx(1.0)
    assert geomean([0.9]) == pytest.approx(0.9)


def test_work_of_a_gpu() -> None:
    gather = work(Scenario("ag_gemm", "x", 8192, 10240, 8192), 4)
    assert gather.operations == 2 * 8192 * 2560 * 8192
    assert gather.bytes_sent == 3 * 2048 * 8192 * 2
    assert gather.tflops(500.0) == pytest.approx(687.2, abs=0.1)
    assert gather.gbps(260.8) == pytest.approx(386.0, abs=0.1)
    scatter = work(Scenario("gemm_rs", "x", 16384, 8192, 8192), 4)
    assert scatter.bytes_sent == 3 * 4096 * 8192 * 2
    assert work(Scenario("gemm_ar", "x", 16384, 8192, 8192), 4).bytes_sent == 2 * scatter.bytes_sent


def test_tolerance_counts_ranks_or_pieces() -> None:
    assert tolerance(4, 1, 512) == pytest.approx(2 * 2**-8 * 5**0.5 + 4 * 2**-24 * 512**0.5)
    assert tolerance(4, 8, 512) == pytest.approx(2 * 2**-8 * 8**0.5 + 4 * 2**-24 * 512**0.5)


# ---- variants


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_shipped_schedule_of_an_operation_takes_part(operation: str) -> None:
    found = variants(operation)
    assert {v.schedule for v in found} == {e.name for e in shipped.entries() if e.name.startswith(operation + "/")}
    labels = [v.label for v in found]
    assert len(set(labels)) == len(labels)
    for variant in found:
        declared = {p.name for p in compiler.load(variant.schedule).params}
        choices = CHOICES if operation == "ag_gemm" else CHOICES | SENT
        open_ = {name for name in declared & set(choices) if None not in choices[name]}
        assert open_ <= {name for name, _ in variant.parameters} <= declared & set(choices)
        ficco_rt.compile(variant.schedule, 2, **variant.arguments(Scenario(operation, "x", 64, 32, 128)))


def test_fewer_values_for_a_quick_look() -> None:
    assert [v.label for v in variants("ag_gemm", 2) if v.label.startswith(("tapered", "streamed"))] == [
        "streamed chunks=2",
        "streamed chunks=2 deep=1:1:1:1",
        "streamed chunks=1",
        "streamed chunks=1 deep=1:1:1:1",
        "tapered taper=4:2:1:1",
        "tapered taper=3:1",
    ]
    assert [v.pieces for v in variants("ag_gemm", 2) if v.label.startswith("tapered")] == [4, 2]
    assert [v.label for v in variants("gemm_rs", 1) if v.label.startswith("tapered")] == [
        "tapered first=1:1:2 last=2:1:1"
    ]
    stored = [v.label for v in variants("gemm_rs", 2) if v.label.startswith("direct")]
    assert stored == ["direct chunks=16", "direct chunks=8"]


# ---- measuring


class Fake:
    """A crew of `gpus` workers that answers from a table: key → microseconds, relative error, why it is absent."""

    def __init__(self, table: dict[str, tuple[float, float, str | None]], gpus: int = 1) -> None:
        self.table = table
        self.gpus = gpus
        self.asked: list[tuple[object, ...]] = []

    def ask(self, method: str, *values: object) -> list[object]:
        self.asked.append((method, *values))
        return [getattr(self, method)(gpu, *values) for gpu in range(self.gpus)]

    def revive(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass

    def load(self, gpu: int, scenario: Scenario) -> dict[str, str | None]:
        return {key: why for key, (_, _, why) in self.table.items()}

    def data(self, gpu: int, seed: int) -> None:
        pass

    def keep(self, gpu: int, keys: tuple[str, ...]) -> None:
        pass

    def check(self, gpu: int, key: str) -> float | None:
        return self.table[key][1]

    def turn(self, gpu: int, key: str, warmup: int, singles: int, loop: int) -> Turn:
        time = self.table[key][0] + gpu
        return Turn([[time] * singles], [time - 2] if loop else [], [time - 5] * singles if "graph" in key else [])


OURS: dict[str, tuple[float, float, str | None]] = {
    GEMM: (80.0, 1e-3, None),
    COPIES: (60.0, 0.0, None),
    "serial graph": (150.0, 2e-3, None),
    "streamed chunks=2 graph": (100.0, 2e-3, None),
    "broken graph": (10.0, math.inf, None),
    "ring graph": (0.0, 0.0, "cannot run"),
}
PEERS: dict[str, tuple[float, float, str | None]] = {
    "nccl": (140.0, 3e-3, None),
    "nccl graph": (130.0, 3e-3, None),
    "asynctp": (120.0, 3e-3, None),
    "asynctp graph": (0.0, 0.0, "capture: no"),
}


def measured(scenario: Scenario = AG) -> tuple[Row, Fake, Fake, list[str]]:
    ours, peers = Fake(OURS), Fake(PEERS, gpus=2)
    said: list[str] = []
    row = measure(scenario, {"streamed chunks=2 graph": 2}, SETTINGS, {"ours": ours, "peers": peers}, said.append, 0)
    return row, ours, peers, said


def test_a_row_measured() -> None:
    row, ours, peers, said = measured()
    assert (row.limit(), row.limit(True)) == (80.0, 78.0)
    assert report.our_time(row) == ("streamed chunks=2 graph", 100.0)
    assert report.rival_time(row, "nccl") == 131.0  # the slower of two GPUs, the better of two forms
    assert row.entries["nccl"].single == Spread(141.0, 141.0, 141.0, 12)
    assert row.entries["streamed chunks=2 graph"].loop == Spread(98.0, 98.0, 98.0, 4)
    assert row.entries["streamed chunks=2 graph"].own == Spread(95.0, 95.0, 95.0, 12)
    # screened, and out: one of ours is a finalist
    assert row.entries["serial graph"].screened == 150.0
    assert row.entries["serial graph"].single is None
    # the kept ones alone hold something, each side is told its own
    assert ("keep", (GEMM, COPIES, "streamed chunks=2 graph")) in ours.asked
    assert ("keep", ("nccl", "nccl graph", "asynctp")) in peers.asked
    # everybody is checked on two seeds, finalists twice
    assert [a for a in ours.asked if a[0] == "data"] == [("data", 7), ("data", 8)]
    assert ours.asked.count(("check", "streamed chunks=2 graph")) == 2
    assert ours.asked.count(("check", "serial graph")) == 1
    # wrong numbers have no time
    broken = row.entries["broken graph"]
    assert broken.wrong
    assert broken.single is None
    assert broken.screened is None
    assert said == [f"ag x: broken graph: WRONG: {broken.failed}"]
    assert broken.failed == f"relative error inf, tolerance {tolerance(2, 2, 128):.2e}, seed 7"
    assert report.failures([row]) == [
        f"broken graph (ag x): {broken.failed}",
        "ring graph (ag x): cannot run",
        "asynctp graph (ag x): capture: no",
    ]


def test_a_rank_of_four_on_two_has_no_numbers_to_compare() -> None:
    """What its check tells is whether all outputs were written."""

    class OnTwo(Fake):
        def check(self, gpu: int, key: str) -> float | None:
            return math.inf if key == "broken graph" else None

    row = measure(AG, {}, replace(SETTINGS, ranks=4), {"ours": OnTwo(OURS)}, lambda text: None, 0)
    assert row.label == "ag x, rank of 4 on two"
    assert row.work == work(AG, 4)
    assert row.entries["serial graph"].rel_err is None
    assert row.entries["serial graph"].screened == 150.0
    assert row.entries["broken graph"].wrong
    assert "| ag x, rank of 4 on two |" in report.main_table([row])


def test_copies_of_the_limit_go_where_they_would() -> None:
    """Staggered; on two GPUs all to the other one, which gets every shard but its own."""
    assert ways(1, (0, 1, 2, 3), 4) == [(2, 2, 1), (3, 3, 1), (0, 0, 1)]
    assert ways(0, (0, 2), 4) == [(1, 1, 1), (2, 1, 0), (3, 1, 3)]
    assert ways(1, (0, 2), 4) == [(3, 0, 3), (0, 0, 2), (1, 0, 1)]
    for ranks in (3, 5, 8):
        places = (0, ranks // 2)
        for gpu in (0, 1):
            sent = ways(gpu, places, ranks)
            assert [peer for peer, _, _ in sent] == [(places[gpu] + i) % ranks for i in range(1, ranks)]
            assert {place for _, _, place in sent} == set(range(ranks)) - {places[1 - gpu]}


def test_numbers_that_go_wrong_while_measured_count_as_wrong() -> None:
    class Late(Fake):
        def check(self, gpu: int, key: str) -> float | None:
            return math.nan if ("data", 8) in self.asked and key == "nccl" else self.table[key][1]

    row = measure(AG, {}, SETTINGS, {"ours": Fake(OURS), "peers": Late(PEERS)}, lambda text: None, 0)
    assert row.entries["nccl"].wrong
    assert row.entries["nccl"].single is None
    assert report.rival_time(row, "nccl") == 130.0


def test_contestants_take_turns() -> None:
    _, _, peers, _ = measured()
    turns = [a for a in peers.asked if a[0] == "turn"][3:]  # after the screening
    everybody = {"nccl", "nccl graph", "asynctp"}
    assert len(turns) == 2 * 3 * SETTINGS.rounds
    for i in range(0, len(turns), 6):  # a pass of single runs, then one of loops
        for part, singles, loop in ((turns[i : i + 3], SETTINGS.singles, 0), (turns[i + 3 : i + 6], 0, SETTINGS.loop)):
            assert {a[1] for a in part} == everybody
            assert {a[3:] for a in part} == {(singles, loop)}
    orders = [shuffled("abcd", 1, f"singles {i}") for i in range(40)]
    assert all(sorted(order) == list("abcd") for order in orders)
    after_a = {order[order.index("a") + 1] for order in orders if order[-1] != "a"}
    assert after_a == set("bcd")  # nobody always follows the same neighbour
    assert shuffled("abcd", 1, "singles 0") == orders[0]


def test_long_contestants_loop_less() -> None:
    assert [loop_length(time, 20) for time in (100.0, 3000.0, 4000.0, 10_000.0, 1e6)] == [20, 20, 15, 6, 3]
    assert [loop_warmup(time, 2) for time in (0.0, 100.0, 4000.0, 10_000.0)] == [2, 100, 2, 2]


def test_finalists_are_the_fastest_of_ours_and_all_others() -> None:
    row = Row(AG, work(AG, 2), 1e-2)
    row.entries = {
        "a": Entry("ours", screened=3.0),
        "b": Entry("ours", screened=1.0),
        "c": Entry("ours", screened=2.0),
        "d": Entry("ours", failed="no"),
        "nccl": Entry("peers", screened=9.0),
        GEMM: Entry("limit", screened=1.0),
    }
    assert finalists(row, 2) == ["b", "c", "nccl", GEMM]


def test_the_fastest_takes_part_in_both_forms() -> None:
    row = Row(AG, work(AG, 2), 1e-2)
    times = {"a x=1 graph": 3.0, "a x=1 streams": 1.0, "a x=2 graph": 2.0, "a x=2 streams": 2.5, "b graph": 1.5}
    row.entries = {key: Entry("ours", screened=time) for key, time in times.items()}
    assert finalists(row, 2) == ["a x=1 graph", "a x=1 streams", "b graph"]
    assert finalists(row, 1) == ["a x=1 graph", "a x=1 streams"]


# ---- reports


def test_main_table() -> None:
    lines = report.main_table([measured()[0], measured(RS)[0]]).splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    assert cells[0] == [
        "scenario", "nccl", "graph", "asynctp", "graph", "ours", "which", "GEMM", "copies", "limit",
        "limit/ours", "nccl/ours", "asynctp/ours",
    ]  # fmt: skip
    assert cells[2] == [
        "ag x", "141.0", "131.0", "121.0", "–", "100.0", "streamed chunks=2 graph", "80.0", "60.0", "80.0",
        "0.800", "1.310", "1.210",
    ]  # fmt: skip
    assert cells[4] == ["geometric mean", *[""] * 9, "0.800", "1.310", "1.210"]
    assert len({len(line) for line in lines}) == 1


def test_loop_table() -> None:
    lines = [[c.strip() for c in x.strip("|").split("|")] for x in report.loop_table([measured()[0]]).splitlines()]
    which = "streamed chunks=2 graph"
    assert lines[2] == ["ag x", "129.0", "119.0", "98.0", which, "78.0", "0.796", "1.316", "1.214"]
    assert lines[3] == ["geometric mean", *[""] * 5, "0.796", "1.316", "1.214"]


def test_back_to_back_another_one_may_be_faster() -> None:
    row = measured()[0]
    row.entries["serial graph"].single = Spread(150.0, 150.0, 150.0, 12)
    row.entries["serial graph"].loop = Spread(78.0, 78.0, 78.0, 4)
    assert report.our_time(row) == ("streamed chunks=2 graph", 100.0)
    line = [c.strip() for c in report.loop_table([row]).splitlines()[2].strip("|").split("|")]
    assert line[3:] == ["78.0", "serial graph", "78.0", "1.000", "1.654", "1.526"]


def test_detail_and_schedules() -> None:
    row = measured()[0]
    line = [c.strip() for c in report.detail_table([row]).splitlines()[2].strip("|").split("|")]
    assert line == ["ag x", "100.0", "95.0", *["0.0 %"] * 3, "cuBLAS", "0.0 %", "0", "0", "2.0e-03"]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in report.schedules_table([row]).splitlines()]
    assert cells[0] == ["schedule", "ag x"]
    assert cells[2:] == [["serial", "150.0 g"], ["streamed", "100.0 2 g"], ["broken", "–"], ["ring", "–"]]


def test_a_table_without_figures() -> None:
    row = Row(AG, work(AG, 2), 1e-2)
    assert "| ag x " in report.main_table([row])
    assert "| ag x " in report.loop_table([row])
    assert "| ag x " in report.detail_table([row])
    assert report.main_table([row]).splitlines()[-1].count("–") == 3


def test_microseconds() -> None:
    assert [report.microseconds(v) for v in (None, 67.25, 999.94, 1574.4)] == ["–", "67.2", "999.9", "1574"]


# ---- workers


@contextmanager
def crew(workers: int, of: int | None = None) -> Iterator[Crew]:
    made = Crew("toy", Toy, [(i, workers if of is None else of) for i in range(workers)])
    try:
        yield made
    finally:
        made.close()


def test_workers_answer_and_a_row_comes_together() -> None:
    with crew(2) as toys, crew(1) as alone:
        toys.ready(300)
        alone.ready(300)
        assert toys.ask("about") == [{"worker": "0"}, {"worker": "1"}]
        row = measure(AG, {}, SETTINGS, {"peers": toys}, lambda text: None, 0)
        assert row.time("fast") == 101.0
        assert row.entries["slow"].rel_err == 1e-3
        assert row.entries["absent"].failed == "is not there"
        with pytest.raises(DeviceError, match=r"^toy [01], check: ValueError: no numbers today$"):
            toys.ask("check", "fails", timeout=300)  # both fail, and who answers first is told
        with pytest.raises(DeviceError, match=r"^toy did not answer 'check' within 0 s$"):
            alone.ask("check", "hangs", timeout=0.2)


def test_a_worker_that_dies_is_told() -> None:
    with crew(1) as toys:
        toys.ready(300)
        with pytest.raises(DeviceError, match=r"^toy ended during 'check'; what it wrote above says why$"):
            toys.ask("check", "dies", timeout=300)


def test_a_worker_that_does_not_come_up_is_told() -> None:
    with crew(1, of=0) as toys, pytest.raises(DeviceError, match=r"^toy, start: RuntimeError: no device here$"):
        toys.ready(300)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_gemm_alone_multiplies_what_an_all_gather_brings(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is checked before it is timed, and where two GPUs stand for more: not zeros."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    side = Ours.__new__(Ours)
    Executors.__init__(side, ranks, [torch.device("cpu")] * 2, profiles.chosen("h200-switch", ranks))
    side._of_two, side._places, side._own = ranks > 2, (0, ranks // 2), {}
    monkeypatch.setattr(side, "_wait", lambda: None)
    side.begin(AG)
    side.data(3)
    left = side._own["left"][1]
    assert left.shape == (AG.m, AG.k)
    assert left.count_nonzero() > 0.9 * left.numel()
    for piece, a in zip(left.chunk(ranks)[:2], side._tensors["A"], strict=True):
        assert piece.equal(a)


def test_multicast_is_told_from_the_switches() -> None:
    off = "off (NCCL_NVLS_ENABLE=0, TORCH_SYMM_MEM_DISABLE_MULTICAST=1, NVSHMEM_DISABLE_NVLS=1)"
    assert multicast(SWITCHES) == off
    assert multicast(SWITCHES | {"NCCL_NVLS_ENABLE": "1"}).startswith("on where the machine has it (NCCL_NVLS_ENABLE=1")


# ---- the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--decode", "--scenarios", "x"], "--decode and --scenarios both say what to measure; give one of them"),
        (["--scenarios", "/nowhere/x.json"], "/nowhere/x.json: there is no such file"),
        (["--json", "/nowhere/x.json"], "/nowhere/x.json: there is no directory '/nowhere'"),
        (["--only", "zzz", "--decode"], "--only zzz: no scenario matches; there are ag decode_16, "),
        (["--gpus", "3", "--only", "qkv8b"], "ag qkv8b_16k: M = 16384: not a multiple of 3 GPUs"),
        (["--gpus", "2", "--ranks", "3", "--only", "qkv8b"], "ag qkv8b_16k: M = 16384: not a multiple of 3 GPUs"),
        (["--ranks", "2"], "--ranks 2 of 4 GPUs: --gpus 2 takes as many GPUs as ranks"),
        (["--ranks", "8"], "--ranks 8 on 4 GPUs: only two GPUs can stand for more ranks; add --gpus 2"),
        (
            ["--gpus", "2", "--ranks", "4", "--scales", "row", "--only", "qkv8b"],
            "--ranks 4 on 2 GPUs: they stand for more ranks on bf16 alone; leave scales out",
        ),
    ],
)
def test_wrong_arguments(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_gpus", lambda wanted: wanted or 4)
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"bench: {message}")


@pytest.mark.parametrize("arguments", [["--gpus", "1"], ["--rounds", "0"], ["--loop", "two"], ["--skip", "ours"]])
def test_arguments_that_argparse_refuses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert f"argument {arguments[0]}" in capsys.readouterr().err


def test_no_torch_or_too_few_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpus, "find_spec", lambda name: None)
    assert cli.main([]) == 3
    told = "bench: PyTorch is not installed, and the clock is PyTorch's: pip install torch\n"
    assert capsys.readouterr().err == told
    monkeypatch.setattr(gpus, "find_spec", lambda name: name)
    for there, arguments, message in (
        (0, [], "2 GPUs are needed; this machine has no NVIDIA GPU, driver or cuda-bindings"),
        (1, [], "2 GPUs are needed; this machine has 1 NVIDIA GPU"),
        (2, ["--gpus", "4"], "4 GPUs are needed; this machine has 2 NVIDIA GPUs"),
    ):
        monkeypatch.setattr(gpus, "device_count", lambda name, there=there: there)
        assert cli.main(arguments) == 3
        assert capsys.readouterr().err == f"bench: {message}\n"


class Quiet:
    """In place of a crew."""

    def __init__(self, name: str, make: Callable[..., Any], arguments: list[tuple[Any, ...]], **_: object) -> None:
        self.closed = False

    def ready(self, timeout: float) -> None:
        pass

    def ask(self, method: str, *values: object) -> list[dict[str, str]]:
        return [{"gpus": "2 × none"}]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("stop", "code", "told"),
    [(KeyboardInterrupt(), 130, "interrupted"), (DeviceError("peer 1 ended"), 3, "peer 1 ended")],
)
def test_an_interrupted_run_leaves_the_rows_that_are_done(
    stop: BaseException,
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done = iter([measured()[0]])

    def one(*_: object) -> Row:
        row = next(done, None)
        if row is None:
            raise stop
        return row

    monkeypatch.setattr(cli, "find_gpus", lambda wanted: 2)
    monkeypatch.setattr(crews, "Crew", Quiet)
    monkeypatch.setattr(cli, "measure", one)
    file = tmp_path / "out.json"
    assert cli.main(["--only", "qkv70b", "--json", str(file)]) == code
    shown = capsys.readouterr()
    assert shown.err.endswith(f"bench: {told}\n")
    assert "| ag x " in shown.out
    found = json.loads(file.read_text())
    assert found["complete"] is False
    assert {(row["operation"], row["name"]) for row in found["rows"]} == {("ag_gemm", "x")}
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]


def test_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings: list[Settings] = []

    def one(scenario: Scenario, pieces: dict[str, int], given: Settings, *_: object) -> Row:
        settings.append(given)
        assert set(pieces) == {f"{v.label} {m}" for v in variants(scenario.operation, 2) for m in MODES}
        return measured(scenario)[0]

    monkeypatch.setattr(cli, "find_gpus", lambda wanted: 2)
    monkeypatch.setattr(crews, "Crew", Quiet)
    monkeypatch.setattr(cli, "measure", one)
    file = tmp_path / "out.json"
    assert cli.main(["--quick", "--only", "_2k", "--only", "o8b", "--json", str(file)]) == 4  # one of ours is wrong
    out = capsys.readouterr().out
    assert "gpus: 2 × none" in out
    assert "Ours, gemm_rs" in out
    assert json.loads(file.read_text())["complete"] is True
    assert {(s.rounds, s.finalists) for s in settings} == {(3, 2)}


def test_two_gpus_for_more_ranks_measure_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[str, list[tuple[Any, ...]]]] = []

    class Told(Quiet):
        def __init__(self, name: str, make: Callable[..., Any], arguments: list[tuple[Any, ...]], **_: object) -> None:
            given.append((name, arguments))

        def close(self) -> None:
            pass

    def one(scenario: Scenario, pieces: dict[str, int], settings: Settings, crews: dict[str, Any], *_: object) -> Row:
        assert (settings.ranks, settings.gpus, list(crews)) == (8, 2, ["ours"])
        return measure(
            scenario, {}, settings, {"ours": Fake({"streamed chunks=2 graph": (100.0, 0.0, None)})}, print, 0
        )

    monkeypatch.setattr(cli, "find_gpus", lambda wanted: 2)
    monkeypatch.setattr(crews, "Crew", Told)
    monkeypatch.setattr(cli, "measure", one)
    file = tmp_path / "out.json"
    assert cli.main(["--ranks", "8", "--only", "qkv8b", "--quick", "--json", str(file)]) == 0
    assert given == [("ours", [(8, 2, 2)])]
    out = capsys.readouterr().out
    assert "ranks: 8, for which two GPUs stand: numbers are not verified, peers not measured" in out
    assert "| ag qkv8b_16k, rank of 8 on two |" in out
    (row,) = kept.read(file).rows
    assert (row.ranks, row.on_two, row.label) == (8, True, "streamed chunks=2 graph")


def test_help_tells_the_exit_codes() -> None:
    text = io.StringIO(cli.DESCRIPTION).read()
    assert "Exit codes: 0, 2 wrong arguments, 3 no PyTorch" in text
