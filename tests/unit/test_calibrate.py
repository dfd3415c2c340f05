"""Calibration: of a machine whose times are modelled it finds the figures that the model has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ficco_rt.calibrate import fit
from ficco_rt.calibrate.fit import Noise, constants, contention, decomposition
from ficco_rt.calibrate.measure import Series, Times, measure
from ficco_rt.calibrate.probes import Mode, Probe, probes
from ficco_rt.cli import calibrate as command
from ficco_rt.cli.console import Progress, Style
from ficco_rt.cli.main import execute
from ficco_rt.errors import DeviceError
from ficco_rt.files.records import plain
from ficco_rt.machine import file
from ficco_rt.machine.durations import OVERHEADS, vendor_gemm
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from ficco_rt.sim.simulate import simulate
from tests.schemas import hold

STORED = OVERHEADS["sm_90a"]


class Modelled:
    """Times of a machine that only the model knows."""

    def __init__(self, machine: Machine, fails: str = "", late: bool = False) -> None:
        self.machine, self.fails, self.late = machine, fails, late

    def times(self, plan: Plan, mode: Mode) -> Times:
        if self.fails in (plan.schedule, *(getattr(command, "kernel", None) for _, command in plan.commands())):
            raise DeviceError("no such thing")
        return Times((simulate(plan, self.machine, mode).duration,), ahead=mode == "streams" and not self.late)


def only(*names: str) -> list[Probe]:
    return [probe for probe in probes() if probe.name in names]


OVERHEADS = {
    "event_to_copy": 7.0, "event_to_kernel": 3.5, "copy_behind": 2.2, "inside_behind": 1.8, "record": 0.9, "frame": 8.0,
    "beside": 0.9,
}  # fmt: skip


VENDOR = {"reached": 0.95, "ends": 2.0, "start": 6.0}


def other(machine: Machine) -> Machine:
    """What is measured: not quite the machine that the driver expects."""
    links = replace(machine.links, rate=0.8 * machine.links.rate, copy_time=7.5, signal_time=5.0)
    rates = tuple((dtype, 0.9 * rate) for dtype, rate in machine.device.gemm_rate)
    device = replace(
        machine.device,
        gemm_rate=rates,
        memory_rate=0.9 * machine.device.memory_rate,
        overheads=tuple((name, value) for name, value in OVERHEADS.items() if name in fit.OVERHEADS),
        vendor_gemm=tuple(VENDOR.items()),
    )
    return replace(machine, device=device, links=links)


@pytest.fixture(autouse=True)
def _probes_are_like_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are on the virtual clock."""
    monkeypatch.setattr(fit, "FOUND", {})


@pytest.fixture(scope="module")
def base() -> Machine:
    return profile("h200-switch", 4)


@pytest.fixture(scope="module")
def series(base: Machine) -> tuple[Series, ...]:
    return measure(probes(), base, Modelled(other(base)), 1000)


def test_the_figures_are_found(base: Machine, series: tuple[Series, ...]) -> None:
    wanted = other(base)
    found = {name: c.value for name, c in constants(series, base).items()}
    assert found["rate"] == pytest.approx(wanted.links.rate, rel=0.01)
    assert found["copy_time"] == pytest.approx(7.5, rel=0.05)
    assert found["signal_time"] == pytest.approx(5.0, rel=0.1)
    assert "launch_time" not in found  # a launch behind another one is hidden
    assert found["memory_rate"] == pytest.approx(wanted.device.memory_rate, rel=0.05)
    assert found["gemm_rate"] == pytest.approx(wanted.device.gemm_rate[0][1], rel=0.05)
    assert found["fp8_rate"] == pytest.approx(dict(wanted.device.gemm_rate)["fp8_e4m3"], rel=0.05)
    assert found["sustained"] == pytest.approx(0.97, abs=0.02)
    assert found["reached"] == pytest.approx(VENDOR["reached"], rel=0.05)
    assert found["start"] == pytest.approx(VENDOR["start"], abs=1.5)
    for name, value in OVERHEADS.items():
        if name in fit.OVERHEADS:
            assert found[name] == pytest.approx(value, abs=0.02 if name == "beside" else 0.5), name


def test_what_is_measured_predicts_what_was_measured(base: Machine, series: tuple[Series, ...]) -> None:
    machine = command.calibrated(series, base, None, "CUDA 13.0")
    again = measure(probes(), base, Modelled(machine), 1000)
    errors = sorted(
        abs(a.micros / b.micros - 1)
        for s, t in zip(again, series, strict=True)
        for a, b in zip(s.points, t.points, strict=True)
    )
    assert errors[len(errors) // 2] < 0.02
    assert errors[int(0.9 * len(errors))] < 0.08


class Scattered(Modelled):
    """Runs on two ranks begin some microseconds late, each point by another time; those of chains take what they
    should."""

    def times(self, plan: Plan, mode: Mode) -> Times:
        found = super().times(plan, mode)
        if plan.schedule != "push":
            return found
        (least,) = found.micros
        late = 4.0 + 7 * (plan.tensors[0].shapes[0][0] + sum(len(stream.commands) for stream in plan.streams)) % 11
        return Times((least + late - 2, least + late, least + late + 2), found.ahead)


def test_stored_figures_change_as_far_as_probes_find_others(base: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes have all to themselves, so that they find other figures than schedules need: a machine that is like those
    GPUs gets the stored figures, another one its own share of them."""
    machine = replace(base, ranks=2)
    device = replace(machine.device, overheads=(("event_to_copy", 0.5),))
    quick = replace(machine, device=device, links=replace(machine.links, copy_time=3.0, rate=400e3))
    probed = only("push", "hops", "copy turns", "launches")
    series = measure(probed, machine, Modelled(quick), 1000)
    usual = {"copy_time": 2.6, "event_to_copy": 0.5, "rate": 400e3 / 1.02}
    monkeypatch.setattr(fit, "FOUND", {machine.device.name: usual})
    found = constants(series, machine)
    assert found["copy_time"].found == pytest.approx(3.0, abs=0.3)
    assert found["copy_time"].value == pytest.approx(machine.links.copy_time + 0.4, abs=0.3)
    assert found["event_to_copy"].value == pytest.approx(STORED.event_to_copy, abs=0.3)
    assert found["rate"].value == pytest.approx(1.02 * machine.links.rate, rel=0.01)
    assert found["signal_time"].found is None
    made = command.calibrated(series, machine, None, "CUDA 13.0")
    source = made.source_of("tiers[0].rate")
    assert source.startswith(
        "measured: probe 'push' found 400,000 bytes a µs, which changes the stored figure (measured"
    )
    with open("/dev/null", "w") as stream:
        text = command.render(series, made, machine, 1.0, Style(stream), {})
    assert "‡ the stored figure of NVIDIA H200, which is of schedules, changed by as much as the probe found" in text


def test_what_noise_hides_changes_no_stored_figure(base: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure changes if it differs by two standard errors from what was found before."""
    machine = replace(base, ranks=2)
    series = measure(only("push"), machine, Scattered(machine), 1000)
    monkeypatch.setattr(fit, "FOUND", {})
    rate = constants(series, machine)["rate"]
    assert 0.001 * rate.value < rate.error < 0.1 * rate.value
    monkeypatch.setattr(fit, "FOUND", {machine.device.name: {"rate": rate.value + 1.9 * rate.error}})
    kept = constants(series, machine)["rate"]
    assert (kept.value, kept.noise, kept.found) == (machine.links.rate, Noise(rate.value, rate.error), None)
    assert kept.measured == rate.value  # which is no noise itself: tables have it
    made = command.calibrated(series, machine, None, "CUDA 13.0")
    assert made.links.rate == machine.links.rate
    assert " of two such GPUs, " in made.source_of("tiers[0].rate")
    with open("/dev/null", "w") as stream:
        text = command.render(series, made, machine, 1.0, Style(stream), {})
    assert "bytes a µs" in text.split("the figure is the one known before; measured: ", 1)[1].splitlines()[0]
    usual = rate.value + 2.1 * rate.error
    monkeypatch.setattr(fit, "FOUND", {machine.device.name: {"rate": usual}})
    changed = constants(series, machine)["rate"]
    assert changed.value == pytest.approx(machine.links.rate * rate.value / usual)
    assert (changed.noise, changed.found) == (None, rate.value)


def test_a_figure_that_cannot_be_told_from_noise_stays_as_it_was(base: Machine) -> None:
    """Lone copies that begin late would take all of a chain's turn: its wait stays, and the sum is as measured."""
    machine = replace(base, ranks=2)
    device = replace(machine.device, overheads=(("copy_behind", 0.0),))
    wanted = replace(machine, device=device, links=replace(machine.links, copy_time=8.0))
    probed = only("push", "hops", "copy turns", "launches")
    series = measure(probed, machine, Scattered(wanted), 1000)
    found = constants(series, machine)
    assert found["copy_time"].probe == "hops"
    assert found["copy_time"].value == pytest.approx(8.0, abs=0.3)
    assert found["signal_time"].value == pytest.approx(machine.links.signal_time, abs=0.3)
    assert found["event_to_copy"].value == pytest.approx(STORED.event_to_copy, abs=0.5)
    assert found["copy_behind"].measured is None
    noise = found["copy_behind"].noise
    assert noise is not None
    assert noise.value < 2 * noise.error
    assert found["copy_behind"].value == STORED.copy_behind
    here = command.calibrated(series, machine, None, "CUDA 13.0")
    assert dict(here.device.overheads)["copy_behind"] == STORED.copy_behind
    source = here.source_of("device.overheads.copy_behind")
    assert source.startswith("as stored: probe 'push' cannot tell it from noise, ")
    assert here.measured is not None
    assert ("copy", "streams") not in {(cost.what, cost.mode) for cost in here.measured.costs}
    with open("/dev/null", "w") as stream:
        text = command.render(series, here, machine, 3.0, Style(stream), {"runs": 1.25})
    assert "push †" in text
    assert "† cannot be told from noise, so the figure is the one known before; measured: copy behind " in text


class Quicker(Modelled):
    """Small kernels take less than the model says, sums of two terms more."""

    def times(self, plan: Plan, mode: Mode) -> Times:
        (time,) = super().times(plan, mode).micros
        if plan.schedule in ("launches", "kernel_turns"):
            time -= 1.4 * sum(len(stream.commands) for stream in plan.streams if stream.rank == 0)
        if plan.schedule == "sums" and plan.tensors[0].shapes[0][0] == 2:
            time *= 1.5
        return Times((time,), ahead=True)


def test_what_a_kernel_takes_is_no_part_of_what_is_before_it(base: Machine) -> None:
    """Nor do sums of few terms say what the memory's rate is."""
    found = constants(measure(only("launches", "kernel turns", "inside", "sum"), base, Quicker(base), 1000), base)
    assert found["frame"].value == pytest.approx(STORED.frame, abs=0.1)
    assert found["event_to_kernel"].value == pytest.approx(STORED.event_to_kernel, abs=0.1)
    assert found["memory_rate"].probe == "inside"
    assert found["memory_rate"].value == pytest.approx(base.device.memory_rate, rel=0.02)


def test_a_start_of_nothing_is_kept_with_the_rate_that_it_was_found_with(base: Machine) -> None:
    own = {**VENDOR, "start": 0.0}
    wanted = replace(base, device=replace(base.device, vendor_gemm=tuple(own.items())))
    before = replace(base, device=replace(base.device, vendor_gemm=tuple({**own, "start": 9.0}.items())))
    here = command.calibrated(measure(only("vendor's product"), before, Modelled(wanted), 1000), before, None, "")
    assert dict(here.device.vendor_gemm)["start"] < 0.5


def test_where_launches_do_not_begin_early_a_chain_tells_what_each_costs() -> None:
    machine = profile("mi300x-mesh", 2)
    slower = replace(machine, device=replace(machine.device, launch_time=machine.device.launch_time + 1.5))
    found = constants(measure(only("launches"), machine, Modelled(slower), 1000), machine)
    assert found["launch_time"].value == pytest.approx(slower.device.launch_time, abs=0.01)
    assert found["frame"].value == pytest.approx(0.0, abs=0.01)
    assert not found["frame"].host


def test_runs_that_the_host_issued_late_are_marked(base: Machine) -> None:
    """Their figures say so in the file, and their times in the report; those of graphs rest on differences."""
    late = measure(only("launches", "launches as a graph"), base, Modelled(base, late=True), 1000)
    found = constants(late, base)
    assert {name: c.host for name, c in found.items()} == {
        "launch_behind": True,
        "graph_launch_behind": False,
        "frame": True,
    }
    machine = command.calibrated(late, base, None, "CUDA 13.0")
    assert machine.source_of("device.overheads.frame").startswith("measured with the time of the host in it: probe ")
    with open("/dev/null", "w") as stream:
        text = command.render(late, machine, base, 3.0, Style(stream), {"runs": 1.25})
    assert "launches *\n" in text
    assert "* the host issued these runs while they ran: the time of a short one is the host's\n" in text


def test_the_file(base: Machine, series: tuple[Series, ...], tmp_path: Path) -> None:
    machine = command.calibrated(series, base, "here", "CUDA 13.0")
    file.save(machine, tmp_path / "here.toml")
    read = file.load(tmp_path / "here.toml")
    assert read == machine
    assert read.name == "here"
    assert read.measured is not None
    assert read.measured.driver == "CUDA 13.0"
    assert {(c.what, c.mode) for c in read.measured.costs} >= {("copy", "streams"), ("launch", "graph")}
    assert any(g.k_pieces == 16 for g in read.measured.gemms)
    assert dict(read.sources)["tiers[0].rate"].startswith("measured: probe 'push', times off by ")
    assert vendor_gemm(read.device) not in (None, vendor_gemm(profile("h200-switch", 4).device))
    assert dict(read.sources)["device.vendor_gemm.reached"].startswith("measured: probe 'vendor's product', ")
    assert dict(read.sources)["device.vendor_gemm.ends"].startswith("not measured: ")
    assert any(g.kernel == "vendor_gemm" for g in read.measured.gemms)


def test_where_the_library_is_missing_the_vendors_gemm_has_no_price() -> None:
    machine = profile("mi300x-mesh", 2)
    missing = measure(only("product", "vendor's product"), machine, Modelled(machine, fails="vendor_gemm"), 1000)
    assert [s.missing for s in missing] == ["", "no such thing"]
    assert vendor_gemm(command.calibrated(missing, machine, None, "ROCm 7").device) is None


def test_what_is_told(base: Machine, series: tuple[Series, ...]) -> None:
    machine = command.calibrated(series, base, None, "CUDA 13.0")
    with open("/dev/null", "w") as stream:
        text = command.render(series, machine, base, 3.0, Style(stream), {"runs": 1.25})
    assert "copy time" in text
    assert "seconds, on GPUs: runs 1.2\n" in text
    assert "a GEMM beside copies" in text or "copies beside a GEMM" in text
    record = plain(command.record(series, machine, base))
    hold("calibrate", record)
    assert record["constants"]["copy_time"]["unit"] == "µs"
    assert len(record["probes"]) == len(series)


def test_losses(series: tuple[Series, ...]) -> None:
    found = decomposition(series)
    assert {len(losses) for losses in found.values()} == {4}
    assert len(list(contention(series))) == 3


def test_two_gpus_have_no_incast(base: Machine) -> None:
    two = profile("h200-switch", 2)
    found = {s.probe.name: s for s in measure(only("incast", "push"), two, Modelled(two), 1000)}
    assert found["incast"].missing == "needs 3 GPUs; there are 2"
    assert found["push"].points


def test_a_probe_that_fails_is_told_and_the_others_go_on(base: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "probes", lambda: only("push", "hops", "launches", "sum"))
    found = {s.probe.name: s for s in command.observed(base, Modelled(base, fails="hops"), 1000, Progress())}
    assert found["hops"].missing == "no such thing"
    assert found["sum"].points
    assert "signal_time" not in constants(tuple(found.values()), base)


def test_the_time_is_kept(base: Machine) -> None:
    found = measure(probes(), base, Modelled(base), 0)
    assert found[0].missing == "the 0 s were over after 0 of 9 points"
    assert constants(found, base) == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no GPU to be measured; `ficco machine` lists stored machines"),
        (["--backend", "host"], "times are taken on GPUs: --backend cuda or hip, not host"),
        (["-o", "x.txt"], "x.txt: a machine's name ends in .toml"),
    ],
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute("ficco", ["calibrate", *words]) in (2, 3)
    assert message in capsys.readouterr().err
