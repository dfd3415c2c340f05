"""Sweeps on the virtual clock: what is in their tables, how they go on, what they refuse, what their pictures show."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from ficco_rt import compiler
from ficco_rt.cli import console
from ficco_rt.cli.console import Progress
from ficco_rt.cli.main import execute
from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.explore import losses, measured, scenarios, summary, sweep, table
from ficco_rt.explore.table import Row, TableFile
from ficco_rt.explore.trials import Trial, asked_for, baseline, fitting, trials
from ficco_rt.files import shipped
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import profile
from ficco_rt.report.settings import parse_choices
from ficco_rt.sim.simulate import simulate
from tools import explore_page

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--set", "M=256,512", "--set", "N=256", "--set", "K=128", "--gpus", "2", "--jobs", "1")
FEW = (*SMALL, "--schedules", "uniform_*", "--param", "chunks=1,2")  # 10 rows: serial, and two schedules in 1, 2 chunks
Ran = tuple[int, str, str]


@pytest.fixture
def ficco(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run `ficco` in a folder of our own; exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Ran:
        code = execute("ficco", words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def row(scenario: str, schedule: str, time: float | None, **others: Any) -> Row:
    blank = Row(
        operation="ag_gemm",
        scenario=scenario,
        sizes=(("M", 1024), ("N", 4096), ("K", 2048)),
        ranks=8,
        machine="box",
        schedule=f"ag_gemm/{schedule}",
        params=(),
        time=time,
        serial=100.0,
        ideal=60.0,
        problem="" if time else "does not fit",
        made="x",
    )
    return replace(blank, **others)


ROWS = (
    row("a", "serial", 104.0),
    row("a", "streamed", 80.0, params=(("chunks", 4), ("deep", (1, 1)))),
    row("a", "streamed", 90.0, params=(("chunks", 8), ("deep", (1, 1)))),
    row("a", "tapered", 88.0, params=(("taper", (3, 1)),)),
    row("b <&>", "serial", 95.0, sizes=(("M", 512), ("T", "fp16"))),
    row("b <&>", "streamed", None, sizes=(("M", 512), ("T", "fp16")), params=(("chunks", 4), ("deep", (1, 1)))),
)


# ---------------------------------------------------------------- sweeps


@pytest.mark.parametrize("name", ["t.csv", "t.json"])
def test_a_sweep_makes_a_table(ficco: Callable[..., Ran], name: str) -> None:
    code, out, _ = ficco("explore", "ag_gemm", *FEW, "-o", name)
    assert code == 0
    rows = table.read(name)
    assert len(rows) == 10
    assert {r.scenario for r in rows} == {"M=256 N=256 K=128", "M=512 N=256 K=128"}
    assert {r.label for r in rows} == {"serial", *(f"uniform_fused_{d}d chunks={c}" for d in (1, 2) for c in (1, 2))}
    (serial,) = (r for r in rows if r.schedule == "ag_gemm/serial" and r.scenario.startswith("M=512"))
    plan = compiler.compile_schedule("ag_gemm/serial", 2, {"M": 512, "N": 256, "K": 128})
    assert serial.time == pytest.approx(simulate(plan, profile("h200-switch", 2)).duration, abs=1e-3)
    assert {(r.serial, r.ideal) for r in rows if r.scenario == serial.scenario} == {(serial.serial, serial.ideal)}
    assert serial.serial is not None
    assert serial.speedup == serial.serial / serial.time
    assert "ag_gemm, 2 ranks, modelled for h200-switch, not measured" in out
    assert out.count("M=512 N=256 K=128") == 1
    assert "fastest: " in out


def test_the_answer_says_which_params_are_varied_and_which_are_left(ficco: Callable[..., Ran]) -> None:
    out = ficco("explore", "ag_gemm", *SMALL, "--schedules", "streamed", "--param", "chunks=1,2", "-o", "t.csv")[1]
    said = "params: chunks = 1, 2; as the schedules' texts have them: deep (--param gives others)\n"
    assert said in out
    assert said in ficco("explore", "t.csv")[1]
    both = ficco(
        "explore", "ag_gemm", *SMALL, "--schedules", "streamed", "--param", "chunks=1", "--param", "deep=1,1:1"
    )
    assert "params: chunks = 1; deep = 1, 1:1\n" in both[1]


@pytest.mark.parametrize("name", ["t.csv", "t.json"])
def test_a_sweep_goes_on_where_it_was_interrupted(
    ficco: Callable[..., Ran], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ficco("explore", "ag_gemm", *FEW, "-o", "whole" + name)[0] == 0
    made = []

    def rows_of(part: sweep.Part) -> list[Row]:
        made.append(part)
        if len(made) == 5:
            raise KeyboardInterrupt
        return sweep_rows_of(part)

    sweep_rows_of = sweep.rows_of
    monkeypatch.setattr(sweep, "rows_of", rows_of)
    code, _, err = ficco("explore", "ag_gemm", *FEW, "-o", name)
    assert (code, err[-20:]) == (130, "\nficco: interrupted\n")
    assert len(table.read(name)) == 4

    path = Path(name)
    text = path.read_text()
    path.write_text(text.removesuffix("\n]}\n")[:-20])  # as a machine that stops leaves it
    assert len(table.read(name)) == 3
    code, _, err = ficco("explore", "ag_gemm", *FEW, "-o", name)
    assert (code, err.splitlines()[0]) == (0, f"{name}: 3 rows there, 7 to be made")
    assert len(made) == 5 + 7
    assert sorted(table.read(name), key=str) == sorted(table.read("whole" + name), key=str)
    assert json.loads(path.read_text())["ficco_explore"] == 1 if name.endswith("json") else path.read_text()[-1] == "\n"


def test_rows_of_other_versions_and_machines_are_made_again(
    ficco: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ficco("explore", "ag_gemm", *FEW, "-o", "t.csv")[0] == 0
    found = table.read("t.csv")
    stale = [replace(r, made="0" * 12, time=1.0) if i < 3 else r for i, r in enumerate(found)]
    other = replace(found[0], scenario="of another sweep")
    with TableFile("t.csv", [*stale, other], ("M", "N", "K")):
        pass
    assert "7 rows there, 3 to be made" in ficco("explore", "ag_gemm", *FEW, "-o", "t.csv")[2]
    assert sorted(table.read("t.csv"), key=str) == sorted([*found, other], key=str)

    machine = profile("h200-switch", 2)
    space = sweep.Space("ag_gemm", _scenarios(found), trials("ag_gemm", ["uniform_*"], {"chunks": (1, 2)}), (machine,))
    assert sweep.todo(space, found).rows == 0
    slower = replace(machine, links=replace(machine.links, rate=1e3))
    assert sweep.todo(replace(space, machines=(slower,)), found).rows == 10
    monkeypatch.setattr(sweep, "_sources", lambda: b"another version")
    sweep._digest.cache_clear()
    assert sweep.todo(space, found).rows == 10
    sweep._digest.cache_clear()


def _scenarios(rows: Iterable[Row]) -> tuple[scenarios.Scenario, ...]:
    return tuple(dict.fromkeys(scenarios.Scenario(r.scenario, r.sizes) for r in rows))


def test_processes_make_the_same_rows() -> None:
    machines = (profile("h200-switch", 2), profile("mi300x-mesh", 2), profile("h200-switch", 3))
    work = (scenarios.Scenario("x", (("M", 192), ("N", 192), ("K", 128))),)
    space = sweep.Space("ag_gemm", work, trials("ag_gemm", ["streamed"], {"chunks": (2,)}), machines)
    parts = sweep.todo(space, ()).parts
    assert [len(part.machines) for part in parts] == [2, 1, 2, 1]
    alone = [row for rows in sweep.make(parts, 1) for row in rows]
    assert sorted((row for rows in sweep.make(parts, 2) for row in rows), key=str) == sorted(alone, key=str)
    assert len({row.time for row in alone}) == 6


def test_ctrl_c_waits_until_all_processes_are_known() -> None:
    """Otherwise one that has just been started is not terminated, and tells what it misses."""
    inherited = []

    def begin() -> None:
        with sweep._uninterrupted():
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # another thread might take it late
            inherited.extend(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            begin()
        assert signal.SIGINT in inherited
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a shell
        begin()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_that_is_ended_from_outside_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        def __init__(self, *_: object) -> None: ...
        def submit(self, *_: object) -> object:
            raise sweep.BrokenProcessPool

        def shutdown(self, **_: object) -> None: ...

    monkeypatch.setattr(sweep, "ProcessPoolExecutor", Pool)
    space = sweep.Space("ag_gemm", _scenarios(ROWS), trials("ag_gemm"), (profile("h200-switch", 8),))
    with pytest.raises(DeviceError, match=r"ended from outside, perhaps for want of memory; .*--jobs 1"):
        list(sweep.make(sweep.todo(space, ()).parts, 2))


@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/direct", "gemm_ar/serial", "a2a_gemm/overlapped"])
def test_a_trusted_plan_is_the_same_plan(name: str) -> None:
    graph = compiler.build(compiler.load(name), 2)
    machine = profile("h200-switch", 2)
    assert compiler.plan_of(graph, machine, trusted=True) == compiler.plan_of(graph, machine)


def test_a_schedule_of_the_callers_own_is_proven(ficco: Callable[..., Ran]) -> None:
    text = (ROOT / "schedules" / "ag_gemm" / "serial.ficco").read_text()
    Path("good.ficco").write_text(text)
    Path("wrong.ficco").write_text(text.replace("copy G.rows(rank of ranks) <- A", ""))
    code, out, _ = ficco("explore", "ag_gemm", *SMALL, "--schedules", "good.ficco", "--schedules", "wrong.ficco")
    assert code == 0
    assert re.search(r"refused: 2 rows, such as wrong.ficco of M=256 N=256 K=128: .* which nothing has written", out)


def test_a_schedule_of_another_operation_is_refused(ficco: Callable[..., Ran]) -> None:
    """A may lie on other ranks, the product may be of other sizes, or nothing may be claimed."""
    text = (ROOT / "schedules" / "ag_gemm" / "serial.ficco").read_text()
    holds = "param holds = [1 // (r + 1) for r in all]\ninput   A[part(M, rank of holds), K]"
    uneven = re.sub(r"input +A\[M / ranks, K\]", holds, text).replace("rows(rank of ranks)", "rows(rank of holds)")
    others = {
        "broadcast.ficco": (uneven, "it has an all_gather of elements of 2 bytes, 32768 on rank 0, 0 on rank 1; "),
        "wide.ficco": (text.replace("N / ranks", "N"), "it has a product of bf16 to bf16, m × n × k = 256 × 256 × 128"),
        "open.ficco": (
            re.sub(r"computes .*\n", "", text).replace("C[M, N / ranks] : Sum", "C[M, N / ranks] : Sum unproven"),
            "nothing says that this is a schedule of ag_gemm: not all of its outputs have a claim; write `computes`",
        ),
    }
    for name, (other, words) in others.items():
        Path(name).write_text(other)
        code, out, _ = ficco("explore", "ag_gemm", *SMALL, "--schedules", name)
        assert code == 2  # the baseline alone has times
        assert f"refused: 2 rows, such as {name} of M=256 N=256 K=128: " in out
        assert words in out
        assert "ag_gemm/broadcast" not in out


def test_what_schedules_refuse_is_told(ficco: Callable[..., Ran]) -> None:
    code, out, _ = ficco(
        "explore", "gemm_rs", "--set", "M=255,256", "--set", "N=64", "--set", "K=64", "-n", "2", "-j", "1",
        "--schedules", "shard", "-o", "t.json",
    )  # fmt: skip
    assert code == 0
    assert re.search(r"refused: 2 rows, such as serial of M=255 N=64 K=64: .*M % ranks == 0", out)
    refused = [r for r in table.read("t.json") if r.time is None]
    assert len(refused) == 2
    assert {(r.serial, r.speedup) for r in refused} == {(None, None)}
    nothing = ("explore", "gemm_rs", "--set", "M=7", "--set", "N=8", "--set", "K=8", "-n", "2", "-j", "1")
    assert ficco(*nothing, "--schedules", "shard")[0] == 2


def test_the_exit_code_is_of_what_was_asked_for() -> None:
    serial, own = baseline("ag_gemm"), Trial("mine.ficco", b"", (), False)
    asked = [asked_for(t) for t in ([serial], trials("ag_gemm", ["streamed"]), [serial, own])]
    assert asked == [{"ag_gemm/serial"}, {"ag_gemm/streamed"}, {"mine.ficco"}]


# ---------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["ag_gem"],
            "there is no operation 'ag_gem'; did you mean ag_gemm or .*; there are a2a_gemm, a2a_gemm_backward, ",
        ),
        (["ag_gemm", "--schedules", "ring"], "--schedules ring: ag_gemm has no such schedule; it has .*shard_ring"),
        (["ag_gemm", "--schedules", "no.ficco"], "there is no schedule 'no.ficco'"),
        (
            ["ag_gemm", "--param", "chunk=2"],
            "--param chunk: no schedule here has such a param; there are K, M, ",
        ),
        (
            ["ag_gemm", "--set", "Q=1"],
            "scenario 'Q=1' sets Q, which ag_gemm/serial does not have; it has K, M, N, Sum, T, Weight",
        ),
        (["ag_gemm", "--set", "chunks=2"], "sets chunks, which is swept; give its values by --param"),
        (["ag_gemm", "--set", "M=8..4*2"], "'8..4.2' is no range; it goes from 1 or more up to its end"),
        (["ag_gemm", "--set", "M=8..64"], "'8..64' is no range; a range is 1024..16384.2 or"),
        (["ag_gemm", "--set", "M=1,,2"], "--set M=1,,2: a value is missing"),
        (["ag_gemm", "--set", "M=1", "--set", "M=2"], "M stands here twice; put its values behind one name"),
        (["ag_gemm", "--only", "nothing"], "--only nothing: no scenario has this in its name; there are qkv70b_8k"),
        (["ag_gemm", "--scenarios", "none.json"], "none.json: there is no such file"),
        (["ag_gemm", "--scenarios", "s.json"], "s.json:1:10: this is no JSON"),
        (["ag_gemm", "--machine", "h100"], "no machine is called 'h100'"),
        (["ag_gemm", "--gpus", "0"], "--gpus 0: expected numbers from 1 to 1024"),
        (["ag_gemm", "-o", "t.txt"], "t.txt: a table's name ends in .csv or .json"),
        (["ag_gemm", "-o", "other.csv"], "other.csv:1: is no table of `ficco explore`"),
        (["ag_gemm", "-o", "s.json"], "s.json: is no table of `ficco explore`"),
        (["ag_gemm", "--plot", "s.json"], "s.json: is a file; --plot draws into a folder"),
        (["ag_gemm", "--plot", "no/where"], "no/where: there is no directory 'no'"),
        (["ag_gemm", "--measured", "other.csv"], "other.csv: holds no measurements as `python -m tools.bench --json`"),
        (["other.csv"], "other.csv:1: is no table of `ficco explore`"),
        (["torn.csv"], "torn.csv: has no rows"),
        (["broken.csv"], "broken.csv:2: is no row of a table"),
        (["broken.json"], "broken.json:2: row: missing ideal_us, .*, time_us; name another file"),
        (["t.csv", "--gpus", "8", "--jobs", "2"], "--jobs belongs to a sweep; t.csv is a table"),
        (["t.csv", "--gpus", "8"], "--gpus belongs to a sweep; t.csv is a table"),
        (["missing.csv"], "missing.csv: there is no such file"),
    ],
)
def test_bad_inputs_are_answered(ficco: Callable[..., Ran], words: list[str], message: str) -> None:
    Path("s.json").write_text('{"about" "x"}')
    Path("other.csv").write_text("a,b\n1,2\n")
    with TableFile("torn.csv", [], ("M",)):
        pass
    good = Path("torn.csv").read_text()
    Path("broken.csv").write_text(good + "ag_gemm,a,eight\n")
    Path("broken.json").write_text('{"ficco_explore": 1, "rows": [\n{"operation": 1},\n{}\n]}\n')
    code, out, err = ficco("explore", *words)
    assert (code, out) == (2, "")
    assert re.search(message, err), err
    assert "bug" not in err


def test_machines_of_one_name_are_told_apart(ficco: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    def machine_of(name: str | None, ranks: int) -> Machine:
        return replace(profile("h200-switch", ranks), source=name or "")

    monkeypatch.setattr("ficco_rt.cli.explore.machine_of", machine_of)
    code, _, err = ficco("explore", "ag_gemm", *FEW, "--machine", "one.toml", "--machine", "two.toml")
    assert (code, "two machines are called 'h200-switch', and rows could not be told apart" in err) == (2, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"gemm_rs": []}', "f.json: has no scenarios of 'ag_gemm'; it has gemm_rs"),
        ("[]", "f.json: wanted an object of operations"),
        ('{"ag_gemm": []}', "f.json: ag_gemm: wanted a list of scenarios"),
        ('{"ag_gemm": [1]}', r"f.json: ag_gemm\[0\]: wanted an object"),
        ('{"ag_gemm": [{"M": 1}]}', r"f.json: ag_gemm\[0\]: 'name' is missing"),
        ('{"ag_gemm": [{"name": "x"}]}', r"f.json: ag_gemm\[0\] \(x\): has no sizes"),
        (
            '{"ag_gemm": [{"name": "x", "M": 1.5}]}',
            r"\(x\): M must be a whole number, .* it is 1.5",
        ),
        (
            '{"ag_gemm": [{"name": "x", "M": 1}, {"name": "x", "M": 2}]}',
            "there are two scenarios 'x' of ag_gemm",
        ),
    ],
)
def test_bad_files_of_scenarios_are_answered(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "f.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        scenarios.load(tmp_path / "f.json", "ag_gemm")


def test_values_of_a_param() -> None:
    given = parse_choices(["M=1024..8192*2", "N=8,16..24+4,8", "deep=1:1,[2, 1],3"], "--set")
    assert given == {"M": (1024, 2048, 4096, 8192), "N": (8, 16, 20, 24), "deep": ((1, 1), (2, 1), 3)}
    made = scenarios.combined((scenarios.Scenario("a", (("M", 1), ("N", 2))),), {"M": (4, 5)})
    assert [(s.name, s.sizes) for s in made] == [
        ("a M=4", (("M", 4), ("N", 2))),
        ("a M=5", (("M", 5), ("N", 2))),
    ]


@pytest.mark.parametrize("operation", shipped.operations())
def test_the_shipped_scenarios_fit(operation: str) -> None:
    shipped = scenarios.load(scenarios.SHIPPED, operation)
    fitting(shipped, trials(operation))
    public = json.loads((ROOT / "tools" / "bench" / "scenarios.json").read_text()).get(operation, [])
    names = {s.name: dict(s.sizes) for s in shipped}
    assert all(names[entry["name"]] == {k: v for k, v in entry.items() if k != "name"} for entry in public)
    assert len(shipped) >= {"ag_gemm": 50, "gemm_rs": 50, "gemm_ar": 50, "a2a_gemm": 15}.get(operation, 3)
    for scenario in shipped[:: len(shipped) // 3]:  # on eight ranks each can be cut
        compiler.build(baseline(operation).parsed(), 8, scenario.params(8))


# ---------------------------------------------------------------- tables


@pytest.mark.parametrize("name", ["t.csv", "t.json"])
def test_a_table_reads_back(tmp_path: Path, name: str) -> None:
    names = table.size_names(r.sizes for r in ROWS)
    with TableFile(tmp_path / name, ROWS[:2], names) as file:
        file.add(ROWS[2:4])
        assert table.read(tmp_path / name) == list(ROWS[:4])
        with pytest.raises(UsageError, match="another sweep writes to this table"):
            TableFile(tmp_path / name, (), names)
        file.add(ROWS[4:])
    assert table.read(tmp_path / name) == list(ROWS)
    with TableFile(tmp_path / name, (), names) as file:
        file.add(ROWS[:1])
    assert table.read(tmp_path / name) == list(ROWS[:1])


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TableFile(tmp_path / "t.csv", ROWS[:1], ("M", "N", "K")) as file:
        monkeypatch.setattr("os.pwrite", lambda *_: 3)
        with pytest.raises(UsageError, match=r"t.csv: cannot be written: no space left on device"):
            file.add(ROWS[1:2])


def test_what_rows_say() -> None:
    best = summary.best(ROWS)
    assert [(b.row.label, b.next_.label if b.next_ else None) for b in best] == [
        ("streamed chunks=4 deep=[1,1]", "tapered taper=[3,1]"),
        ("serial", None),
    ]
    assert best[0].lead == pytest.approx(0.1)
    assert (best[0].row.speedup, best[0].row.share) == (1.25, 0.75)
    assert summary.wins(best) == {"ag_gemm/streamed": 1, "ag_gemm/serial": 1}


def kept(
    schedule: str, single: object, mode: str | None = "streams", ranks: int = 8, **others: object
) -> dict[str, object]:
    """A row as tools.bench keeps it."""
    sizes = {"operation": "ag_gemm", "name": "x", "M": 1024, "N": 4096, "K": 2048, "ranks": ranks, "on_two": False}
    return {**sizes, "schedule": schedule, "params": {}, "mode": mode, "single": single, **others}


def bench(ranks: int) -> str:
    """A file of tools.bench."""
    fine = {"params": {"chunks": 4, "deep": [1, 1]}}
    rows = [
        kept("nccl", 120.0, "calls", ranks),
        kept("ag_gemm/serial", {"median": 104.0, "p10": 1.0}, None, ranks),
        kept("ag_gemm/streamed", 70.0, "graph", ranks, **fine),
        kept("ag_gemm/streamed", 50.0, ranks=ranks, screening=True, **fine),
        kept("ag_gemm/streamed", 60.0, ranks=ranks, on_two=True, screening=True, **fine),
        kept("ag_gemm/streamed", {"median": 100.0}, ranks=ranks, **fine),
        kept("ag_gemm/tapered", 88.0, ranks=ranks, params={"taper": [3, 1]}),
        {**kept("ag_gemm/shard_p2p", None), "failed": "does not fit"},
    ]
    return json.dumps({"version": 2, "rows": rows})


def test_modelled_against_measured(ficco: Callable[..., Ran]) -> None:
    Path("bench.json").write_text(bench(8))
    pairs = measured.pairs(ROWS, measured.load("bench.json"))
    assert [(p.row.label, p.measured) for p in pairs] == [
        ("serial", 104.0),
        ("streamed chunks=4 deep=[1,1]", 100.0),
        ("tapered taper=[3,1]", 88.0),
    ]
    fit = summary.fit(pairs)
    assert (fit.pairs, fit.median, fit.p90, fit.correlation) == (3, 0.0, pytest.approx(0.2), pytest.approx(0.5))
    with TableFile("t.csv", ROWS, ("M", "N", "K", "T")):
        pass
    code, out, _ = ficco("explore", "t.csv", "--measured", "bench.json", "--plot", "p")
    assert code == 0
    assert "modelled against measured: 3 rows, median error 0.0 %, p90 20.0 %, rank correlation 0.50" in out
    assert len(circles("p/measured.svg")) == 3
    Path("bench.json").write_text(bench(2))
    code, _, err = ficco("explore", "t.csv", "--measured", "bench.json")
    assert measured.load(ROOT / "tools" / "bench" / "measured" / "h200x4_screening.json")
    assert (code, "has measured none of these schedules" in err) == (2, True)


# ---------------------------------------------------------------- pictures


def texts(path: str) -> list[str]:
    """What a picture says, in order; it must be XML."""
    return [e.text or "" for e in ElementTree.parse(path).iter() if e.tag.endswith("}text")]


def circles(path: str) -> list[str]:
    """The tips of a picture's points."""
    points = (e for e in ElementTree.parse(path).iter() if e.tag.endswith("}circle") and len(e))
    return [point[0].text or "" for point in points]


def test_pictures_of_a_table(ficco: Callable[..., Ran]) -> None:
    with TableFile("t.csv", ROWS, ("M", "N", "K", "T")):
        pass
    code, out, _ = ficco("explore", "t.csv", "--plot", "p", "--json")
    assert code == 0
    record = json.loads(out)
    assert (record["clock"], record["rows"], record["refused"]) == ("virtual", 6, 1)
    assert record["drawn"] == ["p/speedup-ag_gemm-box-8.svg", "p/winners-ag_gemm-box-8.svg"]
    said = texts("p/speedup-ag_gemm-box-8.svg")
    assert {"a", "b <&>", "serial", "streamed", "tapered"} <= set(said)
    assert [t for t in said if re.fullmatch(r"\d\.\d\d", t)] == ["0.96", "1.25", "1.14", "1.05"]
    assert any("not measured" in t for t in said)
    edges = re.findall(r"<rect [^>]*stroke=[^>]*><title>(.*)", Path("p/speedup-ag_gemm-box-8.svg").read_text())
    assert [edge.split(":")[0] for edge in edges] == ["a", "b &lt;&amp;&gt;"]
    assert circles("p/winners-ag_gemm-box-8.svg") == [
        "a: streamed chunks=4 deep=[1,1]; next tapered taper=[3,1], +10.0 %"  # b has no N and no K
    ]
    first = Path("p/speedup-ag_gemm-box-8.svg").read_bytes()
    assert ficco("explore", "t.csv", "--plot", "p")[0] == 0
    assert Path("p/speedup-ag_gemm-box-8.svg").read_bytes() == first


def test_a_sweep_draws_its_machines_losses(ficco: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ficco_rt.cli.explore.OPERATORS", (losses.Operator(256, 256, 256),))
    code, out, _ = ficco("explore", "ag_gemm", *FEW, "--machine", "mi300x-mesh", "--plot", "p")
    assert code == 0
    assert "drawn: p/losses-mi300x-mesh-2.svg" in out
    assert "in pieces of rows" in texts("p/losses-mi300x-mesh-2.svg")


# ---------------------------------------------------------------- losses


def test_the_two_losses_of_the_model() -> None:
    machine = profile("h200-switch", 2)
    small, large = losses.Operator(256, 512, 512), losses.Operator(8192, 4096, 8192)
    found = losses.losses(machine, (small, large), (2, 8))
    assert found.source == "modelled"
    cut = {(d.of, d.axis, d.pieces): d.share for d in found.decomposition}
    assert len(cut) == 8
    assert all(0 < share <= 1 for share in cut.values())
    assert all(cut[of, axis, 8] < cut[of, axis, 2] for of in (small, large) for axis in ("rows", "K"))
    assert all(cut[small, axis, n] < cut[large, axis, n] for axis in ("rows", "K") for n in (2, 8))
    assert {(c.of, c.subject) for c in found.contention} == {
        (of, s) for of in (small, large) for s in ("gemm", "copies")
    }
    assert all(0 < c.share <= 1.0 for c in found.contention)
    assert losses.losses(replace(machine, ranks=1), (small,), (2,)).contention == ()


def test_the_two_losses_of_a_measured_machine() -> None:
    def rates(rows: int, k: int, *points: tuple[int, int, int, float]) -> SimpleNamespace:
        return SimpleNamespace(
            kernel="sm90", dtype="bf16", layout="nn", sms=0, row_pieces=rows, k_pieces=k, points=points
        )

    def beside(what: str, other: str, engine: str, factor: float) -> SimpleNamespace:
        return SimpleNamespace(what=what, beside=other, engine=engine, points=((64, 32, 16, 4096, factor),))

    tables = SimpleNamespace(
        gemms=(
            rates(1, 1, (64, 32, 16, 8e6)),
            rates(4, 1, (64, 32, 16, 6e6), (9, 9, 9, 1e6)),
            rates(1, 2, (64, 32, 16, 7e6)),
        ),
        contention=(
            beside("gemm", "copy", "copy", 1.25),
            beside("copy", "gemm", "copy", 2.0),
            beside("gemm", "copy", "sm", 9.0),
        ),
    )
    machine: Any = SimpleNamespace(name="box", ranks=2, measured=tables)
    found = losses.losses(machine, ())
    of = losses.Operator(64, 32, 16)
    assert found.source == "measured"
    assert [(d.of, d.axis, d.pieces, d.share) for d in found.decomposition] == [
        (of, "rows", 4, 0.75),
        (of, "K", 2, 0.875),
    ]
    assert [(c.of, c.subject, c.share) for c in found.contention] == [(of, "gemm", 0.8), (of, "copies", 0.5)]
    assert losses.measured(SimpleNamespace(name="box", ranks=2, measured=None)) is None  # type: ignore[arg-type]


def test_characterise(ficco: Callable[..., Ran]) -> None:
    sizes = ("--set", "M=256,512", "--set", "N=256", "--set", "K=256", "--pieces", "2,4", "-n", "2")
    code, out, _ = ficco("characterise", *sizes)
    assert code == 0
    assert out.startswith("h200-switch, 2 ranks: modelled, not measured\n")
    assert len(re.findall(r"^ +(?:256|512)  256  256 ", out, re.MULTILINE)) == 6
    code, out, _ = ficco("characterise", "--machine", "h200-nodes", *sizes[:-1], "16")
    assert (code, out.partition(": ")[0]) == (0, "h200-nodes, 8 ranks")  # of a node
    code, out, _ = ficco("characterise", *sizes, "-o", "l.svg", "--json")
    record = json.loads(out)
    assert (record["source"], len(record["decomposition"]), len(record["contention"])) == ("modelled", 8, 4)
    said = texts("l.svg")
    assert {"in pieces of rows", "in pieces of K", "GEMM beside copies", "copies beside a GEMM"} <= set(said)
    assert len(circles("l.svg")) == 12
    assert circles("l.svg")[0].startswith("256 × 256 × 256, 2 pieces: 0.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "L=1"], "--set L: a GEMM here has the sizes M, N and K, and the type T"),
        (["--set", "M=bf16"], "--set M: bf16 is no size"),
        (["--set", "T=bf16,fp16"], "--set T: one type at a time"),
        (["--set", "M=1..1000+1", "--set", "N=1..1000+1"], "at most 2000 are characterised at once"),
        (["--pieces", "1"], "--pieces 1: expected numbers from 2 to 1024"),
        (["-o", "l.png"], "l.png: a drawing's name ends in .svg"),
        (["--machine", "x"], "no machine is called 'x'"),
    ],
)
def test_bad_operators_are_answered(ficco: Callable[..., Ran], words: list[str], message: str) -> None:
    code, out, err = ficco("characterise", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_step_shows_itself_on_a_terminal_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(console, "_SLOW", 0.0)
    shown = Terminal()
    with Progress(shown).step("running"):
        while not shown.getvalue():
            time.sleep(0.001)
    assert shown.getvalue().startswith("\r\x1b[Krunning … 0 s")
    assert shown.getvalue().endswith("\r\x1b[K")


def test_the_bar_of_a_step() -> None:
    progress = Progress()
    assert progress._state(3.2) == "3 s"
    progress.report(0.25)
    assert progress._state(10.0) == "10 s, 25 % █████░░░░░░░░░░░░░░░ 30 s left"
    progress.report(1.0)
    assert progress._state(40.0) == f"40 s, 100 % {'█' * 20}"


def test_nodes_are_those_of_each_machine(ficco: Callable[..., Ran]) -> None:
    """One sweep over machines with nodes of 8 and of 72: each has its own graph. Yardsticks are there without a serial
    schedule that could run."""
    asked = ["--schedules", "hierarchical", "--gpus", "16", "--param", "chunks=1", "--set", "M=512"]
    sizes = ["--set", "N=512", "--set", "K=512", "--machine", "h200-nodes", "--machine", "gb200-nodes"]
    assert ficco("explore", "ag_gemm", *asked, *sizes, "-o", "n.csv")[0] == 0
    rows = {(r.machine, r.schedule): r for r in table.read("n.csv")}
    assert dict(rows["h200-nodes", "ag_gemm/hierarchical"].params)["node"] == 8
    assert dict(rows["gb200-nodes", "ag_gemm/hierarchical"].params)["node"] == 16
    refused = rows["h200-nodes", "ag_gemm/serial"]
    assert refused.problem.startswith("in stage 'gather' rank 0 writes G@8, the memory of another node")
    assert refused.serial


# ---------------------------------------------------------------- docs/explore.md, docs/reproduce/ficco.md

PAPER = ROOT / "docs" / "reproduce" / "ficco.md"


def test_the_page_s_commands_are_understood(ficco: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    text = ((ROOT / "docs" / "explore.md").read_text() + PAPER.read_text()).replace("\\\n", " ")
    lines = [
        line.split("#")[0] for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
    ]
    commands = [shlex.split(line) for line in lines if line.startswith("ficco ")]
    assert {words[1] for words in commands} == {"explore", "characterise"}
    spaces: list[sweep.Space] = []

    def make(space: sweep.Space, *_: object) -> list[Row]:
        spaces.append(space)
        return [replace(r, schedule=space.trials[-1].schedule) if r.time == 80.0 else r for r in ROWS]

    monkeypatch.setattr("ficco_rt.cli.explore._sweep", make)
    monkeypatch.setattr("ficco_rt.cli.explore.OPERATORS", (losses.Operator(256, 256, 256),))
    monkeypatch.setattr("ficco_rt.cli.characterise._operators", lambda _: ([losses.Operator(256, 256, 256)], "bf16"))
    Path("examples").symlink_to(ROOT / "examples")
    for words in commands:
        assert ficco(*words[1:])[0] == 0, words
    assert [len(space.scenarios) for space in spaces] == [3, 5, 63, 6, 6, 63]
    assert [len(space.machines) for space in spaces] == [1, 1, 4, 1, 1, 2]


def test_the_page_s_tables_are_made_of_a_sweep(
    ficco: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--schedules", "shard_p2p", "--schedules", "uniform_*", "--schedules", "hetero_*", "--param", "chunks=2"]
    machines = ["--machine", "h200-switch", "--machine", "mi300x-mesh"]
    assert ficco("explore", "ag_gemm", *SMALL, *asked, *machines, "-o", "t.csv")[0] == 0
    monkeypatch.setattr(explore_page, "OPERATORS", (losses.Operator(256, 256, 256), losses.Operator(2048, 256, 256)))
    page = Path("page.md")
    page.write_text(PAPER.read_text())
    assert explore_page.main(["t.csv", "--page", "page.md", "--check"]) == 1
    assert explore_page.main(["t.csv", "--page", "page.md"]) == 0
    assert explore_page.main(["t.csv", "--page", "page.md", "--check"]) == 0
    text = page.read_text()
    assert text.count("| geometric mean of all 2 |") == 2
    assert text.count("comes out") + text.count("does not come out") >= 12
    assert "| GEMMs and copies slow each other |" in text
    page.write_text("# empty\n")
    assert explore_page.main(["t.csv", "--page", "page.md"]) == 2
    assert "the page has no block 'speedups h200-switch'" in capsys.readouterr().err
