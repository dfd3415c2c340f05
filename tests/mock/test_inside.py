"""What traced runs tell of the works inside streamed launches, through the real GPU driver on the stand-in, whose
kernels mark their tiles as ours do, each device by a clock of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ficco_rt.cli.main import execute
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Launch, Plan
from ficco_rt.report import tracefile
from ficco_rt.sim.simulate import simulate
from ficco_rt.trace.inside import launches, pairs
from ficco_rt.trace.model import Trace
from tests.gpu import test_inside as inside_check
from tests.mock.standin import StandIn
from tests.mock.test_launches import planned

ARCHS = {"cuda": "arch sm_75", "hip": "arch gfx90a"}  # the naive kernels, and tuned ones


def traced(plan: Plan, library: StandIn) -> Trace:
    with Executor(plan, library.face, timeout=30) as executor:
        executor.traced = True
        assert verified_run(executor, seed=1, values="exact").rel_err == 0
        found = executor.trace
        executor.traced = False
        library.calm()
        assert verified_run(executor, seed=2, values="exact").rel_err == 0  # by the kernels that do not mark
        return found


def streamed_ops(plan: Plan) -> set[tuple[int, int]]:
    """Rank and op of each work of a streamed launch."""
    commands = [(s.rank, c) for s, c in plan.commands() if isinstance(c, Launch) and c.streamed]
    return {(rank, work.op) for rank, command in commands for work in command.works}


@pytest.mark.parametrize("schedule", ["ag_gemm/streamed", "gemm_rs/streamed"])
def test_works_are_told_as_the_model_tells_them(library: StandIn, schedule: str) -> None:
    """Each work once, on the run's clock though no device's clock begins with the run, and in what order it must be."""
    plan = planned(library, schedule, ARCHS[library.face], chunks=2)
    trace = traced(plan, library)
    found = launches(trace)
    assert {(work.rank, op) for launch in found for work in launch.works for op in work.ops} == streamed_ops(plan)
    for launch in found:
        span = launch.span
        assert 0 < span.within < 50
        assert span.waited == pytest.approx(sum(work.waited for work in launch.works), abs=2.0 * len(launch.works))
        for work in launch.works:
            assert span.start - 0.1 <= work.came <= work.began < work.ended <= span.stop + 0.1
            assert work.waited == 0 or work.awaited.startswith("waits for flag ")
    modelled = simulate(plan, discover(library.face, 2))
    sides = pairs(trace, modelled)
    assert len(sides) == sum(len(launch.works) for launch in found)
    for side in sides:
        assert side.other is not None
        assert (side.other.rank, side.other.ops, side.other.place) == (side.work.rank, side.work.ops, side.work.place)
        assert side.other.began <= side.other.ended
    assert [launch.span.ops for launch in launches(modelled)] == [launch.span.ops for launch in found]


def test_flags_that_come_late_are_what_a_launch_waits_for(cuda: StandIn) -> None:
    """A copy that is late by some hundred steps: the work that reads it waits, and the launch says for what."""
    plan = planned(cuda, "ag_gemm/streamed", "arch sm_75; order 1", chunks=2)
    plain = [launch.span.waited for launch in launches(traced(plan, cuda))]
    cuda.reset("devices 2; arch sm_75; order 1; delay 3 400")
    late = launches(traced(plan, cuda))
    assert max(launch.span.waited for launch in late) > max(plain) + 20
    worst = max(late, key=lambda launch: launch.span.waited)
    assert worst.longest is not None
    assert worst.longest.waited == max(work.waited for work in worst.works)
    assert " stream dma (" in worst.longest.awaited


def test_products_that_are_added_up_in_registers_are_told_as_one_work(cuda: StandIn) -> None:
    """Which waits for each piece of K. The model's works are put together to be held against it."""
    deep = {"M": 256, "K": 1024, "chunks": 2, "deep": [2, 1, 1]}
    plan = planned(cuda, "ag_gemm/streamed", "arch sm_90; sms 12", **deep)
    trace = traced(plan, cuda)
    for launch in launches(trace):
        assert launch.span.launched is not None
        assert launch.span.launched.kernel.startswith("sm90_gemm")
        assert [len(work.ops) for work in sorted(launch.works, key=lambda work: work.ops)] == [1, 1, 3]
    (one, two) = [p for p in pairs(trace, simulate(plan, profile("h200-switch", 2))) if len(p.work.ops) == 3]
    for side in (one, two):
        assert side.work.label.endswith(" in 3 parts")
        assert "and 2 more flags" in side.work.awaited
        assert side.other is not None
        assert side.other.ops == side.work.ops


def test_the_commands_tell_of_works(
    cuda: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cuda.reset("devices 2; arch sm_75")
    run = ["ag_gemm/streamed", "--gpus", "2", "--set", "M=64", "--set", "N=128", "--set", "K=128"]
    assert execute("ficco-run", [*run, "--backend", "cuda", "--trace", "x.json"]) == 0
    assert "  inside   rank " in capsys.readouterr().out
    assert execute("ficco-run", [*run, "--backend", "sim", "--trace", "model.json", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [launch["rank"] for launch in facts["launches"]] == [0, 1]
    assert all(work["began_us"] < work["ended_us"] for launch in facts["launches"] for work in launch["works"])
    read = tracefile.from_json((tmp_path / "x.json").read_text(), "x.json")
    assert tracefile.from_json(tracefile.to_json(read), "again") == read
    assert {span.kind for span in read.spans} == {"copy", "launch", "wait", "gemm"}
    assert execute("ficco", ["timeline", "x.json", "--works", "--against", "model.json"]) == 0
    out = capsys.readouterr().out
    assert out.count(" mm: waited ") == 2
    assert out.count("began'") == 2


def test_the_check_for_gpus(
    library: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library.reset(f"devices 2; {ARCHS[library.face]}")
    assert inside_check.right(["ag_gemm/streamed"], library.face, 2, 1, 128)
    first, *lines = capsys.readouterr().out.splitlines()
    assert "128³ on 2 × " in first
    assert ": right; run " in first
    assert [line.split(" mm: waited ")[0] for line in lines] == ["  rank 0", "  rank 1"]
    plan = planned(library, "ag_gemm/streamed", ARCHS[library.face], chunks=2)
    trace = traced(plan, library)
    assert inside_check.wrong(plan, trace) == []
    late = [s._replace(start=s.start + 500, stop=s.stop + 500) if s.kind == "gemm" else s for s in trace.spans]
    assert len(inside_check.wrong(plan, replace(trace, spans=tuple(late)))) >= 2
    none = replace(trace, spans=tuple(s for s in trace.spans if s.kind != "gemm"))
    assert inside_check.wrong(plan, none) == ["6 works, 0 told"]
