"""`ficco tune`, and an operation in place of a schedule, on stand-in GPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ficco_rt.cli.main import execute
from ficco_rt.select import measurements, tune
from tests.gpu import test_choice as choice_check
from tests.mock.standin import StandIn
from tests.schemas import hold

SIZES = ("--set", "M=96", "--set", "N=48", "--set", "K=96", "--set", "T=fp32")
FEW = ("--best", "2", "--rounds", "2", "--iters", "2")


@pytest.fixture
def record(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command line in this process and read its JSON; times are remembered in a file of this test's own."""
    monkeypatch.setenv("FICCO_MEASURED", str(tmp_path / "times.json"))

    def call(program: str, *words: str) -> Any:
        code = execute(program, [*words, "--json"])
        out, err = capsys.readouterr()
        found = json.loads(out)
        hold("run" if "time_ms" in found else "error" if "error" in found else words[0], found)
        return {"code": code, "err": err, **found}

    return call


def test_what_tune_measures_decides_a_run(record: Any, library: StandIn, tmp_path: Path) -> None:
    operation = "ag_gemm" if library.face == "cuda" else "ag_gemm_backward"  # which has no rules
    library.reset("devices 2")
    (tmp_path / "times.json").write_text('{"ficco_measured": 1, "settings": []}')
    tuned = record("ficco", "tune", operation, *SIZES, *FEW)
    assert tuned["code"] == 0, tuned
    assert tuned["ranks"] == 2
    assert {t["mode"] for t in tuned["times"]} == {"graph", "streams"}
    assert len(tuned["times"]) == 4
    assert {t["runs"] for t in tuned["times"]} == {4}
    ran = record("ficco-run", operation, "--backend", library.face, "--by", "measured", *SIZES)
    assert ran["code"] == 0, ran
    assert ran["verified"] is True
    best = tuned["times"][0]
    assert ran["choice"]["schedule"] == best["schedule"]
    assert ran["choice"]["predicted_us"] == best["us"]
    assert ran["graph"] == (best["mode"] == "graph")
    plain = record("ficco-run", operation, "--backend", library.face, "--by", "measured", "--no-graph", *SIZES)
    assert plain["graph"] is False
    shared = ("--ranks-per-gpu", "2")
    refused = record("ficco-run", operation, "--backend", library.face, "--by", "measured", *shared, *SIZES)
    assert "on 4 ranks, 2 a GPU of" in refused["error"]["message"]
    again = record("ficco", "tune", operation, *SIZES, *FEW, "--no-verify")
    known = measurements.load(tmp_path / "times.json")
    assert [len(times) for times in known.times.values()] == [4]  # later times of the same
    assert {t.median for times in known.times.values() for t in times} == {t["us"] for t in again["times"]}


def test_a_candidate_without_room_is_left_out(record: Any, cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.reset("devices 2")
    real, asked = tune.Executor, []

    def first_has_no_room(*given: Any, **words: Any) -> Any:
        asked.append(given)
        if len(asked) == 1:
            raise tune.DeviceError("out of memory on device 0\nmore")
        return real(*given, **words)

    monkeypatch.setattr(tune, "Executor", first_has_no_room)
    tuned = record("ficco", "tune", "ag_gemm", *SIZES, "--best", "2", "--rounds", "1", "--iters", "1", "--no-verify")
    assert tuned["code"] == 0, tuned
    assert [f["reason"] for f in tuned["failed"]] == ["out of memory on device 0"]
    assert len({t["schedule"] for t in tuned["times"]}) == 1


def test_choices_are_measured(
    cuda: StandIn, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice_check, "LAYERS", (("ag_gemm", 64, 64, 64), ("gemm_rs", 64, 64, 64), ()))
    cuda.reset("devices 2")
    assert choice_check.as_measured("cuda", 2, layers=2, best=1)
    head, *rows = capsys.readouterr().out.splitlines()[1:]
    assert head.split() == ["layer", "best", "measured", "µs", "rules", "model", "serial"]
    assert [row.split()[0] for row in rows] == ["ag_gemm", "gemm_rs"]
