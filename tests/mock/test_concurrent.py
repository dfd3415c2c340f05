"""Schedules that repeat a product and its collective, on the stand-ins: their yardsticks are measured in turn, by the
vendors' libraries; `ficco shape` measures settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ficco_rt.cli.main import execute
from tests.mock.standin import StandIn
from tests.mock.test_library import BINDINGS
from tests.schemas import hold

SIZES = ("--set", "M=64", "--set", "N=64", "--set", "K=64", "--set", "iters=3")


@pytest.mark.parametrize("name", ["ar_vendor", "a2a_copies"])
def test_iterations_are_measured_beside_the_same_one_after_the_other(
    name: str, library: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    library.set("devices 2")
    words = [f"concurrent/{name}", "--backend", library.face, "--gpus", "2", *SIZES]
    assert execute("ficco-run", [*words, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    hold("run", facts)
    found = facts["concurrent"]
    assert (facts["serial_by"], facts["yardsticks"]) == ("iterations one after the other", "measured")
    assert found["iterations"] == 3
    assert found["sequential_ms"] == pytest.approx(facts["serial_ms"] / 3)
    assert found["time_ratio"] == pytest.approx(facts["time_ms"] / facts["serial_ms"])
    assert found["products_ms"] == pytest.approx(facts["compute_alone_ms"] / 3)
    assert found["collectives_ms"] > 0
    assert 0 <= found["overlap_rate"] <= 1
    assert not library.live()
    assert not library.violations()


def test_by_the_vendors_library_on_fewer_multiprocessors(library: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    """The schedule's products and those of its yardsticks; hipBLASLt has no word for it."""
    package, module = BINDINGS[library.face]
    pytest.importorskip(f"{package}.{module}" if package != "hip" else "rocm.bindings.hipblaslt")
    library.gemms()
    library.set("devices 2")
    words = ["concurrent/ar_vendor", "--backend", library.face, "--gpus", "2", *SIZES, "--set", "kernel=vendor"]
    code = execute("ficco-run", [*words, "--set", "compute.sms=3", "--json"])
    out = json.loads(capsys.readouterr().out)
    if library.face == "hip":
        assert "cannot be had of the vendor's kernels" in out["error"]["message"]
        return
    assert code == 0
    assert "library_matmul" in {a.entry for a in library.launches()}
    assert out["params"]["compute.sms"] == 3


def test_settings_are_measured(library: StandIn, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each verified; what cannot be had is told; the best is said by a copy of the schedule, which runs."""
    library.set("devices 2")
    copy, kept = str(tmp_path / "best.ficco"), str(tmp_path / "rows.json")
    sweep = ("--sweep", "compute.sms=none,3", "--sweep", "compute.smem=none,300KiB", "--iters", "1", "--rows", kept)
    words = ["shape", "concurrent/ar_vendor", "--backend", library.face, "--gpus", "2", *SIZES, *sweep, "--json"]
    assert execute("ficco", [*words, "-o", copy]) == 0
    facts = json.loads(capsys.readouterr().out)
    hold("shape", facts)
    assert facts["clock"] == "device"
    assert [row["time_us"] is not None for row in facts["rows"]] == [True, False, True, False]
    assert all("a block has at most" in row["problem"] for row in facts["rows"] if row["time_us"] is None)
    assert not library.live()
    assert execute("ficco-run", [copy, "--backend", "sim", "--gpus", "2", *SIZES]) == 0
