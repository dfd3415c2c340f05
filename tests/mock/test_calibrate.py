"""`ficco calibrate` on the stand-in: it runs every probe and writes a file that --machine takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ficco_rt.calibrate import gpu_times
from ficco_rt.calibrate.probes import probes
from ficco_rt.cli import calibrate as command
from ficco_rt.cli.main import execute
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.machine import file
from tests.mock.standin import StandIn


@pytest.mark.parametrize("ranks", [2])
def test_a_machine_is_measured(
    library: StandIn, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    library.reset(f"devices {ranks}")
    # the stand-in computes: the sizes of GPUs would take it minutes
    few = [replace(p, points=tuple({str(q): q for q in p.points[:2] + p.points[-1:]}.values())) for p in probes(256)]
    monkeypatch.setattr(command, "probes", lambda: [p for p in few if p.name != "again"])
    monkeypatch.setattr(gpu_times, "RUNS", 2)
    monkeypatch.setattr(gpu_times, "REST", 0.0)
    out = tmp_path / "here.toml"
    words = ["calibrate", "--backend", library.face, "--gpus", str(ranks), "--seconds", "100", "-o", str(out)]
    assert execute("ficco", words) == 0
    told = capsys.readouterr().out
    assert f"{out}: written" in told
    assert "not measured:" in told  # two GPUs have no incast
    assert "the host issued these runs while they ran" not in told
    machine = file.load(out)
    assert machine.measured is not None
    assert machine.measured.driver.startswith({"cuda": "CUDA 13.0", "hip": "HIP "}[library.face])
    assert {name for name, _ in machine.device.overheads} >= {"frame", "event_to_copy", "event_to_kernel"}
    assert library.live() == {}
    assert not library.violations()


def test_contexts_stay_from_one_plan_to_the_next(cuda: StandIn) -> None:
    cuda.reset("devices 2")
    machine = discover("cuda", 2)
    launches = next(p for p in probes() if p.name == "launches")
    plans = [plan_of(build(launches.schedule, 2, {"count": count}), machine) for count in (1, 2)]
    clock = gpu_times.OnGpus("cuda")
    with clock.open(2):
        for plan in plans:
            taken = clock.times(plan, "streams")
            assert taken.ahead
            assert len(taken.micros) == gpu_times.RUNS
            assert cuda.live() == {"contexts": 2}
        assert cuda.called()["cuDevicePrimaryCtxRetain"] == 6  # each executor has them, too
    assert cuda.live() == {}
    assert not cuda.violations()


def test_inputs_are_views_of_one_block() -> None:
    clock = gpu_times.OnGpus("cuda")
    large, small = clock._values("bf16", (2, gpu_times.NORMAL)), clock._values("bf16", (8, 16))
    assert small.shape == (8, 16)
    assert np.shares_memory(large, small)
    assert not np.shares_memory(small, clock._values("fp32", (8, 16)))
