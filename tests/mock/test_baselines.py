"""`ficco-run` on GPUs measures serial and ideal in turn with the schedule, of its operation, and says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import ficco_rt
from ficco_rt.analysis.causes import arrows
from ficco_rt.cli.baselines import baseline_plans, turns_among
from ficco_rt.cli.main import execute
from ficco_rt.driver.registry import discover
from ficco_rt.exec.ideal import ideal
from ficco_rt.machine.profiles import profile
from ficco_rt.report import tracefile
from ficco_rt.sim.simulate import simulate
from ficco_rt.trace.model import Arrow, Trace
from tests import cases
from tests.mock.standin import StandIn
from tests.schemas import hold

SIZES = ("--set", "M=64", "--set", "N=64", "--set", "K=64", "--set", "T=fp32")
SETTINGS: dict[str, Any] = {"M": 64, "N": 64, "K": 64, "T": "fp32"}
SQUARED = """
schedule squared  # no schedule of the library has this form
input  A[8, 16] : fp32
input  B[16 * ranks, 16] : fp32
output C[8, 16] : fp32CLAIM
scratch G[8, 16 * ranks] : fp32
COMPUTES
queue dma { engine = copy }
queue compute { engine = sm }
stage gather on dma { for p in all { copy G.cols(rank of ranks) @ p <- A } }
stage mm on compute { gemm C = G * B }
"""
Run: TypeAlias = Callable[..., dict[str, Any]]


@pytest.fixture
def run(library: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """A schedule's name or text, on two stand-ins of either vendor; what --json says, with `err`."""
    library.set("devices 2")

    def run(target: str, *words: str, code: int = 0) -> dict[str, Any]:
        if "\n" in target:
            (tmp_path / "own.ficco").write_text(target)
            target = str(tmp_path / "own.ficco")
        gpus = () if "--gpus" in words else ("--gpus", "2")
        assert execute("ficco-run", [target, "--backend", library.face, *gpus, "--json", *words]) == code
        out, err = capsys.readouterr()
        assert not library.live()
        assert not library.violations()
        found = json.loads(out)
        assert isinstance(found, dict)
        hold("run" if "time_ms" in found else "error", found)
        return found | {"err": err}

    return run


@pytest.mark.parametrize("words", [(), ("--graph",), ("--gpus", "4", "--ranks-per-gpu", "2")])
def test_serial_and_ideal_are_measured(run: Run, words: tuple[str, ...]) -> None:
    facts = run("gemm_rs/streamed", *SIZES, *words)
    assert (facts["yardsticks"], facts["yardsticks_of"], facts["serial_by"]) == (
        "measured",
        "operation",
        "gemm_rs/serial",
    )
    assert facts["iters"] == 3
    assert 0 < facts["compute_alone_ms"] < facts["serial_ms"]
    assert facts["communication_alone_ms"] > 0
    assert facts["ideal_ms"] == max(facts["compute_alone_ms"], facts["communication_alone_ms"])
    assert facts["exposed_ms"] == pytest.approx(facts["time_ms"] - facts["compute_alone_ms"])
    assert facts["exposed_of"] == "timed runs"


def test_a_measured_run_tells_of_its_model_and_its_arrows(run: Run, tmp_path: Path) -> None:
    """In its trace and on its page; the arrows of a measured run are those of the modelled one."""
    page, trace = tmp_path / "run.html", tmp_path / "run.json"
    facts = run("gemm_rs/streamed", *SIZES, "--report", str(page), "--trace", str(trace))
    kept = json.loads(trace.read_text(encoding="utf-8"))
    assert kept["otherData"]["run"] == {name: value for name, value in facts.items() if name != "err"}
    assert {part["name"] for part in facts["account"]["parts"]} > {"ideal", "exposed", "waiting"}
    assert sum(part["time_us"] for part in facts["account"]["parts"]) == pytest.approx(facts["account"]["time_us"])
    stages = {stage["stage"] for stage in facts["stages"]}
    assert {stage["stage"] for stage in facts["modelled"]["stages"]} == stages
    assert "<h2>Modelled against measured</h2>" in page.read_text(encoding="utf-8")
    measured = tracefile.from_json(trace.read_text(encoding="utf-8"), "run.json")
    plan = ficco_rt.compile("gemm_rs/streamed", 2, discover(facts["backend"], 2), **SETTINGS)
    modelled = simulate(plan, plan.target)
    assert _ops(measured, measured.arrows) == _ops(modelled, arrows(plan, modelled)) != set()


def _ops(trace: Trace, found: tuple[Arrow, ...]) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The ops at the ends of arrows between works; those of whole launches are not told alike."""
    ends = [(trace.spans[arrow.before], trace.spans[arrow.after]) for arrow in found]
    return {(a.ops, b.ops) for a, b in ends if "launch" not in (a.kind, b.kind)}


def test_the_report_says_what_was_measured(run: Run, library: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("ag_gemm/oneshot", "--backend", library.face, "--gpus", "2", *SIZES)
    assert execute("ficco-run", [*words]) == 0
    out = capsys.readouterr().out
    assert " measured, as ag_gemm/serial, 3 runs in turn with these; this is " in out
    assert ", each measured alone, " in out
    assert " more than computing alone\n" in out
    assert "modelled" not in out
    assert execute("ficco-run", [*words, "--no-baselines"]) == 0
    out = capsys.readouterr().out
    assert " for computing and moving, one after the other, both uncut; this is " in out
    assert out.count(" (modelled)\n") == 2
    assert " beside it, in a run with timestamps\n" in out


def test_without_baselines_nothing_but_the_schedule_runs(run: Run) -> None:
    facts = run("ag_gemm/streamed", *SIZES, "--no-baselines")
    assert (facts["yardsticks"], facts["iters"], facts["exposed_of"]) == ("modelled", 1, "traced run")
    facts = run("ag_gemm/streamed", *SIZES, "--no-baselines", "--ranks-per-gpu", "2")
    assert facts["communication_alone_ms"] == 0  # both ranks are on one GPU


def test_the_serial_schedule_is_its_own_baseline(run: Run) -> None:
    facts = run("ag_gemm/serial", *SIZES, "--iters", "4", "--warmup", "1")
    assert (facts["serial_by"], facts["serial_ms"]) == ("ag_gemm/serial", facts["time_ms"])
    assert facts["iters"] == 4


def test_a_form_that_the_library_has_not(run: Run) -> None:
    text = SQUARED.replace("CLAIM", "").replace("COMPUTES", "computes C = all_gather(A, cols) * B")
    facts = run(text)
    assert (facts["yardsticks"], facts["serial_by"]) == ("measured", None)
    assert facts["serial_ms"] == facts["compute_alone_ms"] + facts["communication_alone_ms"]


def test_what_claims_nothing_has_its_own_work_for_a_yardstick(
    run: Run, library: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    facts = run(SQUARED.replace("CLAIM", " unproven").replace("COMPUTES", ""))
    assert (facts["yardsticks"], facts["yardsticks_of"]) == ("modelled", "plan")
    assert execute("ficco-run", [str(tmp_path / "own.ficco"), "--backend", library.face, "--gpus", "2"]) == 0
    assert "(modelled); of this plan's own work: not all of its outputs are claimed\n" in capsys.readouterr().out


def test_no_room_for_baselines(run: Run, library: StandIn) -> None:
    library.set("memory 115536")
    facts = run("ag_gemm/oneshot", *SIZES)
    assert facts["yardsticks"] == "modelled"
    assert "warning: serial and ideal are modelled, as there is no room to measure them: they need " in facts["err"]


@pytest.mark.parametrize("operation", ["ag_gemm", "gemm_rs", "gemm_ar", "a2a_gemm"])
def test_baselines_are_the_same_for_all_schedules_of_an_operation(operation: str) -> None:
    machine = profile("h200-switch", 3)
    others = [name for name in cases.SCHEDULES if name.startswith(f"{operation}/") and not name.endswith("/serial")]
    found = []
    for name in (f"{operation}/serial", *cases.few(others, 1, 0)):
        sizes = cases.sizes(name, 3, even=True) | cases.few_chunks(name) | {"transb": 1}
        plan = ficco_rt.compile(name, 3, machine, **sizes)
        plans = baseline_plans(plan, machine, 1)
        assert plans is not None
        assert plans.serial_by == f"{operation}/serial"
        assert dict(plans.plans.get("serial", plan).params)["transb"] == 1
        assert ("serial" not in plans.plans) == (name == plans.serial_by)
        found.append({key: made for key, made in plans.plans.items() if key != "serial"})
    assert all(plans == found[0] for plans in found)


def test_baselines_of_tall_work_go_the_way_that_takes_least() -> None:
    """What is copied and multiplied is what the ideal counts."""
    machine = profile("h200-switch", 4)
    plan = ficco_rt.compile("ag_gemm/streamed", 4, machine, M=65536, N=1024, K=1024)
    plans = baseline_plans(plan, machine, 1)
    assert plans is not None
    moving, multiplying = plans.plans["moving"], plans.plans["multiplying"]
    wanted = ideal(plan, machine)
    sent = next(t for t in moving.tensors if t.name == "X").shapes[0][0] * 2
    assert sent == 2 * (3 * 1024 * 256 + 3 * 16384 * 256)
    assert sent / machine.links.rate < wanted.communication_alone
    assert multiplying.tensor("C0").shapes == ((16384, 1024),) * 4


@pytest.mark.parametrize("runs", [1, 2, 3, 5, 7, 20, 1000])
def test_turns_are_spread_over_the_runs(runs: int) -> None:
    turns = turns_among(runs)
    assert len(turns) == min(5, runs)
    assert max(turns) == runs - 1
    assert min(turns) >= 0
