"""Runs that repeat a product and its collective: how often, what they are compared with, which settings are tried."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ficco_rt
from ficco_rt.analysis.account import RankUse
from ficco_rt.analysis.concurrency import concurrent, overlap_rate
from ficco_rt.cli import shape_sweep
from ficco_rt.cli.baselines import baseline_plans
from ficco_rt.cli.shape_sweep import Effort, Sweep, by_threads, measured, measured_in_process
from ficco_rt.cli.shaping import Row, settings
from ficco_rt.exec.ideal import ideal
from ficco_rt.exec.operation import operation_of
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from ficco_rt.report.request import parse, read
from tests import cases
from tests.gpu import test_shape as shape_check
from tests.schemas import hold
from tests.unit.command_line import Ending

CONCURRENT = [name for name in cases.SCHEDULES if name.startswith("concurrent/")]
MACHINE = profile("h200-switch", 2)
SMALL = {"M": 256, "N": 128, "K": 128, "iters": 5}
WORDS = ["--gpus", "2", "--set", "M=256", "--set", "N=256", "--set", "K=256", "--set", "iters=3"]


def compiled(name: str, **params: object) -> Plan:
    return ficco_rt.compile(name, 2, MACHINE, **{**SMALL, **params})


def test_metrics() -> None:
    found = concurrent(10, time=80.0, sequential=100.0, products=60.0, collectives=40.0, overlap=0.5)
    assert (found.time_ratio, found.normalised_time, found.share_of_saving) == (0.8, 80 / 60, 0.5)
    assert found.iteration == 0.008
    assert concurrent(1, 1.0, 5.0, 5.0, 0.0, None).share_of_saving is None
    assert overlap_rate([RankUse(10.0, 4.0, 1.0), RankUse(2.0, 6.0, 5.0)]) == 4 / 6
    assert overlap_rate([RankUse(10.0, 0.0, 0.0)]) is None


@pytest.mark.parametrize("name", CONCURRENT)
def test_iterations_are_counted_by_what_is_written_anew(name: str) -> None:
    for buffers in (1, 2):
        operation = operation_of(compiled(name, buffers=buffers))
        assert operation is not None
        assert operation.repeated is not None
        assert (operation.repeated.number, operation.times) == (5, operation.times)
        assert operation.times == 5 / buffers
    once, often = (ideal(compiled(name, buffers=1, iters=n), MACHINE) for n in (2, 20))
    assert often.serial == pytest.approx(10 * once.serial)
    assert (once.iterations, often.iterations) == (2, 20)


def test_all_other_schedules_carry_out_their_operation_once() -> None:
    for name in cases.few([n for n in cases.SCHEDULES if n not in CONCURRENT], 27, 0):
        plan = ficco_rt.compile(name, 2, MACHINE, **cases.sizes(name, 2, even=True) | cases.few_chunks(name))
        operation = operation_of(plan)
        assert operation is not None
        assert (operation.times, operation.repeated) == (1, None), name


def test_baselines_are_the_same_iterations_one_after_the_other() -> None:
    plan = compiled("concurrent/a2a_vendor", **{"vendor.threads": 256})
    plans = baseline_plans(plan, MACHINE, 1, vendor=True)
    assert plans is not None
    assert plans.iterations == 5
    assert plans.plans.keys() == {"serial", "multiplying", "moving", "sharing"}
    kinds = {key: sorted({type(c).__name__ for _, c in made.commands()}) for key, made in plans.plans.items()}
    assert "CollectiveCall" in kinds["serial"]
    assert "CollectiveCall" in kinds["sharing"]
    assert "Launch" not in kinds["sharing"]
    assert kinds["multiplying"] == ["Launch"]
    assert len(list(plans.plans["multiplying"].launches())) == 2 * 5
    assert {launch.kernel for _, launch in plans.plans["serial"].launches()} == {"vendor_gemm"}
    asked = {s.collectives.threads for s in plans.plans["serial"].streams if s.collectives}
    assert asked == {256}  # the library reads it once a process


# ---------------------------------------------------------------- ficco shape


def test_each_control_is_tried() -> None:
    tried = settings(cases.schedule("concurrent/ar_vendor"), {}, MACHINE.device)
    assert tried[0] == {}
    names = {name for one in tried for name in one}
    assert names == {
        "compute.leave",
        "compute.sms", "compute.smem", "compute.residency", "compute.priority", "vendor.ctas", "vendor.threads",
        "vendor.priority",
    }  # fmt: skip
    assert {"compute.sms": 116, "vendor.ctas": 16} in tried
    by_library = settings(cases.schedule("concurrent/ar_vendor"), {"kernel": "vendor"}, MACHINE.device)
    assert not {"compute.smem", "compute.residency"} & {name for one in by_library for name in one}
    assert {"compute.leave": "nccl", "vendor.priority": "high", "compute.priority": "low"} in by_library
    copies = settings(cases.schedule("concurrent/ar_copies"), {}, MACHINE.device)
    assert {"compute.priority": "none", "dma.priority": "none", "back.priority": "none"} in copies
    assert not any(name.startswith("add.sm") for one in copies for name in one), "it multiplies nothing"


def test_settings_are_modelled_and_the_best_is_written(run: Callable[..., Ending], tmp_path: Path) -> None:
    copy, kept, drawn = (str(tmp_path / name) for name in ("best.ficco", "rows.json", "shape.svg"))
    words = ["shape", "concurrent/a2a_vendor", *WORDS, "--backend", "sim", "--rows", kept, "--plot", drawn, "-o", copy]
    sweep = ["--sweep", "compute.sms=none,16,400", "--sweep", "compute.smem=none,64KiB"]
    ended = run("ficco", *words, *sweep, "--json")
    facts = json.loads(ended.out)
    hold("shape", facts)
    assert facts["clock"] == "virtual"
    assert [row["time_us"] is None for row in facts["rows"]] == [False, False, False, False, True, True]
    assert facts["rows"][2]["free_sms"] == 116
    assert facts["best"] == min(facts["rows"][:4], key=lambda row: (round(row["time_us"], 1), len(row["setting"])))
    assert "multiprocessors left free" in Path(drawn).read_text(encoding="utf-8")
    assert run("ficco", "check", copy, "--gpus", "2").code == 0
    # what is there is not made again; a torn run goes on
    data = json.loads(Path(kept).read_text(encoding="utf-8"))
    data["rows"] = data["rows"][:2]
    Path(kept).write_text(json.dumps(data), encoding="utf-8")
    again = run("ficco", *words, *sweep)
    assert "2 rows there, 4 to be made" in again.err
    assert "modelled for h200-switch, not measured" in again.out
    assert "refused: 2 settings, such as compute.sms = 400" in again.out
    assert "best: " in again.out


def by_other_threads(driver: str = "sim", **said: object) -> Sweep:
    source = read("concurrent/ar_vendor")
    sizes = {"M": 64, "N": 64, "K": 64, "iters": 2}
    machine = profile("h200-switch", 2)
    return Sweep(parse(source), {**sizes, **said}, machine, driver, Effort(1, 5.0, False, "auto"), source)


def test_settings_by_their_threads_are_made_in_processes_of_their_own() -> None:
    """One for each number of threads, but for what the schedule says, which this process measures."""
    ctas, few, fewer = {"vendor.ctas": 8}, {"vendor.threads": 256}, {"vendor.threads": 128, "vendor.ctas": 8}
    assert list(by_threads({}, [ctas, few, {}, fewer]).values()) == [[ctas, {}], [few], [fewer]]
    said = {"vendor.threads": 256}
    assert list(by_threads(said, [ctas, {"vendor.threads": "none"}]).values()) == [[ctas], [{"vendor.threads": "none"}]]
    sweep = by_other_threads()
    rows = sent(sweep.like(few), few, {**few, "compute.sms": 400})
    assert [row.setting for row in rows] == [
        (("vendor.threads", 256),),
        (("vendor.threads", 256), ("compute.sms", 400)),
    ]
    assert rows[0].time == sweep.row(few).time
    assert "the device has 132 multiprocessors" in rows[1].problem
    # what cannot be measured at all is said of each, and what is lost
    (why,) = sent(by_other_threads("cuda").like(few), few)
    assert isinstance(why, str)
    assert why
    (ended,) = measured_in_process(partial(os._exit, 7), [few])  # type: ignore[arg-type]
    assert (ended.problem, ended.made) == ("the process for these threads ended with code 7", "")


def sent(made: Callable[[], Sweep], *settings: Mapping[str, object]) -> list[Any]:
    """What the other process would send."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    measured(theirs, pickle.loads(pickle.dumps(made)), settings)
    return [ours.recv() for _ in settings]


def test_a_sweep_on_gpus_has_a_process_for_each_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, here, there = by_other_threads("cuda"), [], []

    def row(self: Sweep, setting: Mapping[str, object]) -> Row:
        here.append(dict(setting))
        return Row(tuple(setting.items()), 1.0, made="x")

    def made(like: Callable[[], Sweep], of: Sequence[Mapping[str, object]]) -> Iterator[Row]:
        assert like().said["vendor.threads"] in (128, 256)
        there.append([dict(one) for one in of])
        return (Row(tuple(one.items()), problem="lost") for one in of)

    monkeypatch.setattr(Sweep, "row", row)
    monkeypatch.setattr(Sweep, "ready", lambda _: nullcontext())
    monkeypatch.setattr(shape_sweep, "measured_in_process", made)
    tried = [{}, {"vendor.threads": 256}, {"vendor.ctas": 8}, {"vendor.threads": 128}]
    found = [list(pair) for pair in shape_sweep.made(sweep, tried)]
    assert [one for one, _ in found] == [{}, {"vendor.ctas": 8}, {"vendor.threads": 256}, {"vendor.threads": 128}]
    assert here == [{}, {"vendor.ctas": 8}]
    assert there == [[{"vendor.threads": 256}], [{"vendor.threads": 128}]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sweep", "compute.sm=3"], "queue 'compute' has no attribute 'sm'; did you mean sms?"),
        (["--set", "compute.sms=3", "--sweep", "compute.sms=3,4"], "compute.sms is set and swept; say it once"),
        (["--backend", "host"], "there is no backend 'host' here"),
        (["--plot", "a.html"], "the picture is SVG: name it a.svg"),
        (["-o", "a.txt"], "a.txt"),
    ],
)
def test_what_cannot_be_swept(run: Callable[..., Ending], words: list[str], message: str) -> None:
    ended: Ending = run("ficco", "shape", "concurrent/ar_vendor", *WORDS, *words)
    assert ended.code == 2
    assert message in ended.err


# ---------------------------------------------------------------- tests/gpu/test_shape.py


def test_all_settings_of_the_check_compile() -> None:
    for workload in (w for w in shape_check.WORKLOADS if w.name in ("mb-ar", "mb-a2a")):
        for way in shape_check.ways(workload, False, ""):
            compiled(f"concurrent/{workload.collective}_{way.kind}", **{"iters": 2, **way.said})


def test_what_breaks_a_process_is_told_in_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are measured by the next process; one that takes too long is ended."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, sys, time\n"
        "for job in json.loads(sys.argv[-1])['jobs']:\n"
        "    print(json.dumps({'begin': job}), flush=True)\n"
        "    if job[1] == 2: sys.exit('out of luck')\n"
        "    if job[1] == 1: time.sleep(60)\n"
        "    failed = {'failed': 'no peer came', 'broken': True} if job[1] == 3 else {'times': [1.0], 'off': 0.0}\n"
        "    print(json.dumps({'end': job, **failed}), flush=True)\n"
    )
    monkeypatch.setattr(shape_check, "__file__", str(script))
    monkeypatch.setattr(shape_check, "FIRST", 60.0)
    monkeypatch.setattr(shape_check, "LIMIT", 2.5)
    told: list[str] = []
    jobs = [("cb-ar", number) for number in range(5)]
    found = shape_check.measured(jobs, 2, shape_check.Turns(1, 0.0), time.monotonic() + 60, told.append)
    assert [found[job].get("times") for job in jobs] == [[1.0], None, None, None, [1.0]]
    assert found["cb-ar", 1]["failed"].startswith("took more than ")
    assert found["cb-ar", 2]["failed"] == "its process ended with code 1: out of luck"
    assert found["cb-ar", 3]["failed"] == "no peer came"
    assert len(told) == 5
    assert shape_check.measured(jobs, 2, shape_check.Turns(1, 0.0), 0.0, told.append)[jobs[0]] == {
        "failed": "no time was left"
    }


def test_the_checks_table() -> None:
    figures = {"cb-ar": {"gemm": 0.7, "collective": 0.25, "sequential": 0.95, "overlapped": 0.94, "priority": 0.85}}
    found = {
        ("cb-ar", 0): {"times": [0.95], "off": 0.01},
        ("cb-ar", 2): {"times": [0.80, 0.75, 0.9], "off": 0.01},
        ("cb-ar", 3): {"failed": "took more than 25 s"},
        ("cb-ar", 4): {"times": [0.5], "off": 1.3},
    }
    lines = shape_check.table(["cb-ar"], figures, found).splitlines()
    assert "| PyTorch, ideal | 0.737 (100 %) |" in lines
    assert "| NCCL + cuBLAS, priority | 0.842 (60 %) * |" in lines
    assert "| NCCL + cuBLAS, priority, graph | – |" in lines
    assert "| NCCL 8 CTAs + cuBLAS, priority | – |" in lines, "it is wrong"
    (best, theirs) = shape_check.verdicts(["cb-ar"], figures, found)
    assert best.startswith("cb-ar: best: NCCL + cuBLAS, priority, 0.800 ms, 60 % of the ideal saving, 1.062 times")
    assert theirs.endswith("1.175 times as fast as PyTorch overlapped")
