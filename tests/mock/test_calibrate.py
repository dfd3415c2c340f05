"""`ficco calibrate` on the stand-in: it runs every probe and writes a file that --machine takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ficco_rt.calibrate.probes import probes
from ficco_rt.cli import calibrate as command
from ficco_rt.cli.main import execute
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
    out = tmp_path / "here.toml"
    words = ["calibrate", "--backend", library.face, "--gpus", str(ranks), "--seconds", "100", "-o", str(out)]
    assert execute("ficco", words) == 0
    told = capsys.readouterr().out
    assert f"{out}: written" in told
    assert "not measured:" in told  # two GPUs have no incast
    machine = file.load(out)
    assert machine.measured is not None
    assert machine.measured.driver.startswith({"cuda": "CUDA 13.0", "hip": "HIP "}[library.face])
    assert library.live() == {}
    assert not library.violations()
