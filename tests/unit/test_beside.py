"""`tools/beside`, all of it that needs no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ficco_rt import compiler
from ficco_rt.errors import DeviceError
from ficco_rt.files import shipped
from tests.unit import beside_worker
from tools.bench import gpus
from tools.bench.scenarios import DEFAULT_FILE, load
from tools.beside import cli, pair, report
from tools.beside.cases import COMPILATIONS, FORMS, HOST, rows
from tools.beside.measure import (
    HOST_ROUNDS,
    HOST_RUNS,
    Compared,
    CompileRow,
    HostRow,
    Row,
    by_best,
    by_medians,
    loop_length,
    measure,
    measure_compile,
    measure_host,
    memory,
    over_starts,
)
from tools.beside.pair import Both, Pair, Refused, Worker
from tools.beside.report import Results

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(beside_worker.__file__)
CASE = rows(["qkv70b_2k"], 2)[0]
GIB = 2**30


# ---- what is compared


def test_every_scenario_of_the_bench_has_a_row() -> None:
    scenarios = {s.name: s for s in load(DEFAULT_FILE)[0]}
    assert list(FORMS) == list(scenarios)
    for case in rows(None, 2):
        assert case.form.variant.schedule.startswith(case.scenario.operation + "/")
        assert case.form.mode in ("graph", "streams")
    assert len({case.label for case in rows(None, 2)}) == sum(map(len, FORMS.values()))


def test_cases_name_shipped_schedules_and_their_parameters() -> None:
    names = {entry.name for entry in shipped.entries()}
    variants = [case.form.variant for case in (*rows(None, 2), *HOST)] + [c.variant for c in COMPILATIONS]
    for variant in variants:
        assert variant.schedule in names
        declared = {p.name for p in compiler.load(variant.schedule).params}
        assert {name for name, _ in variant.parameters} <= declared, variant


def test_labels() -> None:
    assert CASE.label == "ag qkv70b_2k, streamed chunks=1 streams"
    assert COMPILATIONS[0].label == "ag_gemm/hetero_fused_1d chunks=8 ranks=8"


def test_both_sides_fit_the_memory_of_a_large_gpu() -> None:
    assert max(memory(case.scenario, 2) for case in rows(None, 2)) < 40 * GIB


# ---- statistics


def test_ratios_are_taken_within_a_round() -> None:
    # the second round is twice as slow for both: no ratio sees it
    found = by_medians([Both([10.0, 11.0, 30.0], [11.0, 22.0, 1.0]), Both([20.0, 22.0, 60.0], [22.0, 44.0, 2.0])])
    assert found.ratios == (1.0, 1.0)
    assert (found.this, found.other, found.ratio, found.spread) == (21.0, 16.5, 1.0, 0.0)


def test_the_spread_is_that_of_the_ratios() -> None:
    found = by_medians([Both([10.0], [10.0 * ratio]) for ratio in (0.9, 1.0, 1.1)])
    assert found.ratio == pytest.approx(1.0)
    assert found.spread == pytest.approx(0.16)


def test_best_of_all_rounds() -> None:
    found = by_best([Both(3.0, 4.0), Both(2.0, 5.0), Both(4.0, 3.0)])
    assert (found.this, found.other, found.ratio) == (2.0, 3.0, 1.5)


def test_loops_take_40_milliseconds_at_most() -> None:
    assert [loop_length(time) for time in (100.0, 2000.0, 4000.0, 1e6)] == [20, 20, 10, 2]


# ---- rows


class Fake:
    """In place of a pair: this side takes 100 µs for a run, the other one `ratio` as long."""

    def __init__(self, ratio: float = 1.0, wrong: int = 0, refuses: str = "", other_plan: str = "a") -> None:
        self.ratio, self.wrong, self.refuses, self.other_plan = ratio, wrong, refuses, other_plan
        self.asked: list[tuple[str, dict[str, object]]] = []

    def at_once(self, what: str, **values: object) -> Both:
        self.asked.append((what, values))
        if what == self.refuses:
            raise Refused(f"the other checkout, {what}: no such thing")
        if what == "load":
            return Both({"hash": "a", "commands": 10}, {"hash": self.other_plan, "commands": 20})
        return Both(0, self.wrong) if what == "check" else Both(None, None)

    def by_turns(self, number: int, rest: float, what: str, **values: object) -> Both:
        self.asked.append((what, values))
        if what == self.refuses:
            raise Refused(f"the other checkout, {what}: no such thing")
        if what == "turn":
            # the second GPU is the slower one
            sides = [
                {"singles": [[t - 1.0] * 8, [t] * 8], "loop": [t - 10.0, t - 5.0]} for t in (100.0, 100.0 * self.ratio)
            ]
            return Both(*sides)
        if what == "host":
            return Both([50.0] * HOST_RUNS, [50.0 * self.ratio] * HOST_RUNS)
        return Both({"seconds": 1.0 + number, "hash": "a"}, {"seconds": self.ratio + number, "hash": self.other_plan})


def test_a_row() -> None:
    side = Fake(1.25)
    row = measure(CASE, 2, 4, side, 80 * GIB, 0)
    assert (row.same_plan, row.wrong, row.failed) == (True, False, None)
    assert row.single is not None
    assert row.loop is not None
    assert (row.single.this, row.single.other, row.single.ratios) == (100.0, 125.0, (1.25,) * 4)
    assert (row.loop.this, row.loop.other) == (95.0, 120.0)
    assert [what for what, _ in side.asked] == ["drop", "load", "check", "fill", *["turn"] * 5]
    assert side.asked[1][1] == {
        "schedule": "ag_gemm/streamed",
        "arguments": {"M": 2048, "N": 10240, "K": 8192, "T": "bf16", "chunks": 1},
        "shapes": {"A": (1024, 8192), "B": (8192, 5120), "C": (2048, 5120)},
        "graph": False,
    }
    assert side.asked[-1][1] == {"warmup": 3, "singles": 8, "loop": 20}


def test_rows_that_are_not_measured() -> None:
    row = measure(CASE, 2, 1, Fake(), GIB // 2, 0)
    assert row.failed == "both sides need 0.9 GiB a rank; 0.5 are free"
    row = measure(CASE, 2, 1, Fake(refuses="load"), 80 * GIB, 0)
    assert (row.failed, row.wrong) == ("the other checkout, load: no such thing", False)
    row = measure(CASE, 2, 1, Fake(wrong=3), 80 * GIB, 0)
    assert (row.failed, row.wrong) == ("wrong elements of C: 0 of this checkout's, 3 of the other one's", True)
    assert measure_host(HOST[0], 2, Fake(refuses="host")).failed == "the other checkout, host: no such thing"
    assert measure_compile(COMPILATIONS[0], 1, Fake(refuses="compile")).failed is not None


def test_the_host_and_compilations() -> None:
    side = Fake(1.5, other_plan="b")
    host = measure_host(HOST[0], 2, side)
    assert (host.commands, host.failed) == (Both(10, 20), None)
    assert host.issue is not None
    assert (host.issue.this, host.issue.other, len(host.issue.ratios)) == (50.0, 75.0, HOST_ROUNDS)
    compiled = measure_compile(COMPILATIONS[0], 8, side)
    assert compiled.same_plan is False
    assert compiled.time is not None
    assert (compiled.time.this, compiled.time.other, len(compiled.time.ratios)) == (1.0, 1.5, 5)


def test_the_host_in_several_pairs_of_processes() -> None:
    rows = [HostRow(HOST[0], Both(10, 20), compared(ratio)) for ratio in (0.5, 2.0, 8.0)]
    issue = over_starts(rows).issue
    assert issue is not None
    assert (issue.this, issue.other, issue.ratio, issue.ratios) == (200.0, 400.0, pytest.approx(2.0), (0.5, 2.0, 8.0))
    failed = HostRow(HOST[0], failed="no such thing")
    assert over_starts([rows[0], failed, rows[1]]) == failed


# ---- tables and verdicts


def compared(ratio: float) -> Compared:
    return Compared(200.0, 200.0 * ratio, ratio, (ratio - 0.01, ratio, ratio + 0.01))


def results(single: float, host: float = 1.0, compiled: float = 1.0) -> Results:
    return Results(
        (Row(CASE, True, compared(single), compared(1.2)), Row(CASE, failed="no such schedule")),
        (HostRow(HOST[0], Both(10, 20), compared(host)), HostRow(HOST[1], Both(10, 20), compared(host))),
        (CompileRow(COMPILATIONS[0], False, compared(compiled)),),
    )


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_table_of_rows() -> None:
    found = cells(report.rows_table(results(1.05).rows))
    name = ["ag qkv70b_2k", "streamed chunks=1 streams"]
    assert found[2] == [*name, "same", "200.0", "210.0", "1.050", "1.6 %", "200.0", "240.0", "1.200"]
    assert found[3] == [*name, *["–"] * 8]
    assert found[4] == ["geometric mean", "", "", "", "", "1.0500", "", "", "", "1.2000"]
    assert len({len(line) for line in report.rows_table(results(1.05).rows).splitlines()}) == 1


def test_the_tables_of_the_host_and_of_compilations() -> None:
    found = cells(report.host_table(results(1.0).host))
    assert found[2][1:] == ["200.0", "200.0", "1.000", "1.6 %", "20.00", "10.00"]
    assert found[3][1:] == ["200.0", "200.0", "1.000", "1.6 %", "–", "–"]  # a replay
    assert cells(report.compile_table(results(1.0).compiled))[2][1:4] == ["different", "200000.0", "200000.0"]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (results(0.9995), []),
        (results(0.985), [f"slower by more than 1 %: {CASE.label} 0.985", "slower in the geometric mean: 0.9850"]),
        (results(0.995), ["slower in the geometric mean: 0.9950"]),
        (
            results(1.0, host=0.96),
            [f"slower by more than 3 %: host, {HOST[i].label} 0.960" for i in (0, 1)],
        ),
        (results(1.0, host=0.98, compiled=0.95), []),
        (results(1.0, compiled=0.8), [f"slower by more than 10 %: compile {COMPILATIONS[0].label} 0.800"]),
    ],
)
def test_verdicts(found: Results, told: list[str]) -> None:
    assert report.slower(found) == told
    assert report.failures(found) == [f"not measured: {CASE.label}: no such schedule"]


def test_the_record_is_json() -> None:
    found = json.loads(json.dumps(report.record(results(0.98), {"this": "x"}, complete=True), allow_nan=False))
    assert (found["version"], found["complete"], found["about"]) == (1, True, {"this": "x"})
    assert found["geometric_mean"] == pytest.approx(0.98)
    assert found["rows"][0]["case"]["scenario"]["name"] == "qkv70b_2k"
    assert found["rows"][0]["single"]["ratios"] == pytest.approx([0.97, 0.98, 0.99])
    assert found["host"][0]["commands"] == {"this": 10, "other": 20}


# ---- worker processes


@pytest.fixture
def checkouts(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def sides(checkouts: tuple[Path, Path]) -> Iterator[Pair]:
    made = Pair(*(Worker(f"side {path.name}", path, 2, 1, FAKE) for path in checkouts))
    yield made
    made.close()


def test_both_answer_what_they_are_asked(sides: Pair, checkouts: tuple[Path, Path]) -> None:
    about = sides.ready()
    assert (about.this["checkout"], about.other["checkout"]) == tuple(map(str, checkouts))
    assert sides.at_once("load", schedule="x").other == {"do": "load", "with": {"schedule": "x"}}
    for number in (0, 1):
        assert sides.by_turns(number, 0, "turn", loop=number).this == {"do": "turn", "with": {"loop": number}}
    assert len(sides.by_turns(0, 0, "load", schedule="long").this) == 200_000
    sides.close()
    sides.close()  # twice is once


def test_what_one_refuses_leaves_both_ready(sides: Pair) -> None:
    sides.ready()
    with pytest.raises(Refused, match="side a, load: ValueError: no such schedule"):
        sides.at_once("load", schedule="refused")
    assert sides.at_once("drop") == Both({"do": "drop", "with": {}}, {"do": "drop", "with": {}})


def test_turns_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Heard(Worker):
        def __init__(self, name: str) -> None:
            self.name = name

        def send(self, what: str, values: object) -> None:
            order.append(self.name)

        def answer(self, what: str, timeout: float = 1.0) -> str:
            return self.name

    both = Pair(Heard("A"), Heard("B"))
    slept: list[float] = []
    monkeypatch.setattr(pair.time, "sleep", slept.append)
    assert [both.by_turns(i, 0.1, "turn") for i in range(4)] == [Both("A", "B")] * 4
    assert order == list("ABBAABBA")
    assert slept == [0.1] * 8


def test_a_worker_that_dies(sides: Pair) -> None:
    sides.ready()
    with pytest.raises(DeviceError, match="side a ended during 'load'; what it wrote above says why"):
        sides.at_once("load", schedule="dies")


def test_a_worker_that_hangs_is_killed(checkouts: tuple[Path, Path]) -> None:
    worker = Worker("side a", checkouts[0], 2, 1, FAKE)
    try:
        worker.ready()
        worker.send("load", {"schedule": "hangs"})
        with pytest.raises(DeviceError, match="side a did not answer 'load' within 0 s, and was killed"):
            worker.answer("load", 0.2)
    finally:
        worker.close()


def test_a_worker_that_cannot_start(checkouts: tuple[Path, Path]) -> None:
    worker = Worker("side a", checkouts[0], 7, 1, FAKE)
    try:
        with pytest.raises(DeviceError, match="side a, start: DeviceError: no GPU"):
            worker.ready()
    finally:
        worker.close()


def test_a_checkout_must_be_the_one_that_is_imported(
    checkouts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'dsl'}")  # behind the empty checkout
    worker = Worker("the other checkout", checkouts[1], 0, 1)
    try:
        with pytest.raises(DeviceError, match=f"the other checkout took the ficco_rt of {ROOT}, not that of "):
            worker.ready()
    finally:
        worker.close()


# ---- the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere"], "/nowhere: there is no such directory; give the root of a checkout, such as `git worktree add "),
        ([str(ROOT / "docs")], f"{ROOT / 'docs'}: has no ficco_rt and dsl in it; give the root of a checkout, such as"),
        ([str(ROOT), "--rows", "qkv70b_2k,zzz"], "--rows: no scenario is called 'zzz'; there are qkv70b_8k, "),
        ([str(ROOT), "--gpus", "3"], "qkv70b_8k: M = 8192 and N = 10240: not a multiple of 3 GPUs"),
        ([str(ROOT), "--json", "/nowhere/x.json"], "/nowhere/x.json: there is no directory '/nowhere'"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"beside: {message}")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["x", "--gpus", "1"],
        ["x", "--gpus", "1", "--ranks-per-gpu", "1"],
        ["x", "--ranks-per-gpu", "0"],
        ["x", "--rounds", "0"],
        ["x", "--compile-only", "--rows", "qkv70b_2k"],
        ["x", "--starts", "0"],
        ["x", "--compile-only", "--host-only"],
        ["x", "--host-only", "--rows", "qkv70b_2k"],
    ],
)
def test_arguments_that_argparse_refuses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: python -m tools.beside" in capsys.readouterr().err


def test_no_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpus, "find_spec", lambda name: name)
    monkeypatch.setattr(gpus, "device_count", lambda name: 0)
    assert cli.main([str(ROOT)]) == 3
    told = "beside: 2 GPUs are needed; this machine has no NVIDIA GPU, driver or cuda-bindings\n"
    assert capsys.readouterr().err == told


def test_compilations_of_a_checkout_beside_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "COMPILATIONS", COMPILATIONS[:2])
    file = tmp_path / "out.json"
    code = cli.main([str(ROOT), "--compile-only", "--rounds", "1", "--json", str(file)])
    shown = capsys.readouterr().out
    found = json.loads(file.read_text())
    assert code == (1 if found["slower"] else 0)  # one round each says little about the time
    assert [row["same_plan"] for row in found["compiled"]] == [True, True]
    assert (found["complete"], found["rows"], found["host"]) == (True, [], [])
    assert shown.count("| same |") == 2


class Sides(Fake):
    """A pair that is started and ended."""

    def ready(self) -> Both:
        about = {"checkout": "", "free": 80 * GIB, "gpus": "2 × none"}
        return Both(about, about)

    def close(self) -> None:
        pass


def test_the_host_alone_in_pairs_of_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = []

    def start(checkouts: tuple[Path, Path], gpus: int, each: int, *, other_first: bool = False) -> Sides:
        started.append((gpus, each, other_first))
        return Sides(0.96 if other_first else 1.0)

    monkeypatch.setattr(cli, "find_gpus", lambda wanted: wanted)
    monkeypatch.setattr(cli, "start", start)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    shared = ["--gpus", "1", "--ranks-per-gpu", "2"]
    assert cli.main([str(ROOT), "--host-only", "--starts", "3", *shared]) == 0
    assert started == [(1, 2, False), (1, 2, True), (1, 2, False)]
    assert capsys.readouterr().out.count("| 0.986 |") == len(HOST)


class Ended(Sides):
    """A pair whose second row ends the run."""

    def at_once(self, what: str, **values: object) -> Both:
        if what == "load" and len([1 for asked, _ in self.asked if asked == "load"]) == 1:
            raise DeviceError("the other checkout ended during 'load'")
        return super().at_once(what, **values)


def test_a_run_that_ends_early_tells_the_rows_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_gpus", lambda wanted: wanted)
    monkeypatch.setattr(cli, "start", lambda checkouts, gpus, each: Ended(0.9))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    file = tmp_path / "out.json"
    assert cli.main([str(ROOT), "--rows", "qkv70b_2k", "--rounds", "1", "--json", str(file)]) == 3
    shown = capsys.readouterr()
    assert shown.err.endswith("beside: the other checkout ended during 'load'\n")
    assert f"slower by more than 1 %: {CASE.label} 0.900" in shown.out
    found = json.loads(file.read_text())
    assert (found["complete"], len(found["rows"])) == (False, 1)


@pytest.mark.parametrize(("side", "code"), [(Fake(), 0), (Fake(0.9), 1), (Fake(refuses="fill"), 3), (Fake(wrong=1), 4)])
def test_exit_codes(side: Fake, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Results((measure(CASE, 2, 1, side, 80 * GIB, 0),))
    assert cli._code(found) == code
