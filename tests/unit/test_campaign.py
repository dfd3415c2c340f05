"""`python -m tools.bench campaign`, all of it that needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ficco_rt.errors import DeviceError
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Plan
from tools.bench import campaign, candidates, finals, kept
from tools.bench.campaign import Campaign
from tools.bench.candidates import Item, Prepared, items, sensible, worth_it
from tools.bench.kept import Figure, Kept, Measurement
from tools.bench.measure import COPIES, GEMM
from tools.bench.scenarios import Scenario
from tools.bench.variants import Variant, variants
from tools.bench.workers import Turn

AR = Scenario("gemm_ar", "x", 512, 64, 128)


PREPARED: dict[tuple[Item, str], Prepared] = {}


def prepared(item: Item, machine: Machine, variant: Variant, prepare: Any = candidates.prepare) -> Prepared:
    key = (item, variant.label)
    if key not in PREPARED:
        PREPARED[key] = prepare(item, machine, variant)
    return PREPARED[key]


@pytest.fixture(autouse=True)
def _hope(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes leave the model few candidates, and few are enough. Each is compiled once for all tests."""
    monkeypatch.setattr(campaign, "prepare", prepared)
    monkeypatch.setattr(candidates, "HOPELESS", 100.0)
    monkeypatch.setattr(campaign, "variants", lambda operation: variants(operation, 2))


class Inline(Pool):
    """Does what it is given at once."""

    def submit(self, work: Callable[..., Any], /, *values: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*values, **named))
        return done


@dataclass
class Fake:
    """GPUs on which a variant takes what a table says, and everything else 100 µs. A turn takes a second of their
    clock."""

    ranks: int
    times: Mapping[str, float] = field(default_factory=dict)
    wrong: Mapping[str, float | None] = field(default_factory=dict)
    breaks: str = ""
    now: float = 0.0
    asked: list[tuple[object, ...]] = field(default_factory=list)

    @property
    def machine(self) -> Machine:
        return profile("h200-switch", self.ranks)

    def begin(self, scenario: Scenario) -> dict[str, str | None]:
        self.asked.append(("begin", scenario.label))
        return {}

    def add(self, variant: Variant, make: Callable[[], Plan]) -> dict[str, str | None]:
        assert make().ranks == 2
        self.asked.append(("add", variant.label))
        why = "no memory" if variant.label == "overlapped chunks=1" else None
        return {f"{variant.label} {mode}": why for mode in ("graph", "streams")}

    def data(self, seed: int) -> None:
        pass

    def check(self, key: str) -> float | None:
        if key == self.breaks:
            raise DeviceError("the device is lost\nmore")
        return self.wrong.get(key, None)

    def turn(self, key: str, warmup: int, singles: int, loop: int) -> Turn:
        self.asked.append(("turn", key, singles))
        self.now += 1
        time = self.times.get(key, 100.0)
        return Turn([[time] * singles, [time - 1] * singles], [])

    def keep(self, keys: Sequence[str]) -> None:
        self.asked.append(("keep", tuple(keys)))

    def added(self) -> list[object]:
        return [what[1] for what in self.asked if what[0] == "add"]


def run(gpus: Fake, work: Sequence[Item], rows: list[Measurement], until: float = 1e9) -> tuple[Campaign, list[int]]:
    """A run, and how many rows there were at each save."""
    saved: list[int] = []
    by_ranks = dict.fromkeys((2, 4), gpus)
    made = Campaign(by_ranks, rows, {}, lambda new: saved.append(len(rows)), until, lambda: gpus.now, rest=0)
    made.run(work, Inline())
    return made, saved


def test_a_share_is_a_fair_part_of_the_work() -> None:
    scenarios = [Scenario("gemm_rs", str(i), 8 * i, 8, 8) for i in range(1, 9)]
    whole = items(scenarios, (2, 8), (1, 1), 1)
    assert len(whole) == 16
    parts = [items(scenarios, (2, 8), (i, 3), 1) for i in (1, 2, 3)]
    assert sorted(item.key for part in parts for item in part) == sorted(item.key for item in whole)
    assert items(scenarios, (2, 8), (1, 1), 1) == whole
    assert items(scenarios, (2, 8), (1, 1), 2) != whole
    assert items([Scenario("gemm_rs", "odd", 6, 8, 8)], (2, 4), (1, 1), 1)[0].ranks == 2  # 4 does not divide 6


def test_what_makes_no_sense_is_not_measured() -> None:
    few = [v.label for v in variants("ag_gemm") if sensible(Scenario("ag_gemm", "d", 16, 8192, 8192), 2, v)]
    assert "oneshot" in few
    assert "serial" in few
    assert "streamed chunks=1" in few
    assert not [label for label in few if "streamed chunks=2" in label or "taper" in label]
    assert any("hierarchical" in v.label for v in variants("ag_gemm"))
    assert not [label for label in few if "hierarchical" in label]  # the GPUs are in one node
    many = [v.label for v in variants("ag_gemm") if sensible(Scenario("ag_gemm", "p", 16384, 8192, 8192), 4, v)]
    assert "oneshot" not in many
    assert set(many) > {"streamed chunks=8 deep=1:1:1:1", "tapered taper=6:3:2:1", "uniform_fused_2d chunks=8"}
    shallow = [v.label for v in variants("ag_gemm") if sensible(Scenario("ag_gemm", "s", 16384, 8192, 1024), 4, v)]
    assert "uniform_fused_2d chunks=4" not in shallow
    assert "streamed chunks=8 deep=1:1:1:1" not in shallow


def test_what_the_model_finds_hopeless_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "HOPELESS", 1.6)
    (plan,) = [candidates.prepare(Item(AR, 2), profile("h200-switch", 2), Variant("gemm_ar/serial", ())).plan]

    def of(name: str, modelled: float) -> Prepared:
        return Prepared(Variant(f"gemm_ar/{name}", ()), plan, modelled)

    found = worth_it([of("serial", 500.0), of("streamed", 100.0), of("overlapped", 161.0), of("oneshot", 90.0)])
    assert [p.variant.label for p in found] == ["oneshot", "streamed", "serial"]
    assert worth_it([Prepared(Variant("gemm_ar/serial", ()), failed="no")]) == []
    chosen = replace(of("overlapped", 161.0), chosen=True)  # what users get is measured, whatever the model finds
    assert worth_it([of("oneshot", 90.0), chosen])[1] is chosen


def test_an_item_is_measured() -> None:
    """The most promising first, a graph for what is near the best, no more runs for what is slow."""
    times = {"oneshot streams": 50.0, "oneshot graph": 49.0, "serial streams": 52.0, "streamed chunks=1 streams": 80.0}
    gpus = Fake(2, times)
    rows: list[Measurement] = []
    made, saved = run(gpus, [Item(AR, 2)], rows)
    found = {row.label: row for row in rows}
    assert found["limit gemm calls"].single == Figure(100.0, 100.0, 100.0, 5)
    assert found["limit copies calls"].single is not None
    assert found["oneshot graph"].single == Figure(49.0, 49.0, 49.0, 5)
    assert found["serial streams"].single == Figure(52.0, 52.0, 52.0, 5)
    assert "serial graph" in found  # within a tenth
    slow = found["streamed chunks=1 streams"].single
    assert slow == Figure(80.0, 80.0, 80.0, 2)
    assert "streamed chunks=1 graph" not in found
    assert (made.best, list(made.finished)) == (49.0, [Item(AR, 2).key])
    assert all(row.ranks == 2 and not row.on_two for row in rows)
    assert saved == sorted(saved)
    assert len(saved) == len(gpus.added()) + 3  # the two limits, each variant, the end
    assert gpus.asked[-1] == ("keep", ())
    assert ("keep", (GEMM, COPIES)) in gpus.asked


def test_a_run_goes_on_where_one_stopped() -> None:
    work = [Item(AR, 4)]
    whole: list[Measurement] = []
    run(Fake(4), work, whole)
    assert {(row.ranks, row.on_two) for row in whole} == {(4, True)}
    rows: list[Measurement] = []
    first, second, third = Fake(4), Fake(4), Fake(4)
    made, _ = run(first, work, rows, until=16)
    assert made.finished == {}
    assert 0 < len(rows) < len(whole)
    made, _ = run(second, work, rows)
    assert [row.key for row in rows] == [row.key for row in whole]
    assert not set(first.added()) & set(second.added())
    again = Campaign({4: third}, rows, made.finished, lambda new: None, 1e9, lambda: third.now, 0)
    again.run(work, Inline())
    assert third.asked == []


def test_what_would_be_chosen_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = Variant("gemm_ar/streamed", (("chunks", 3),))
    monkeypatch.setattr(candidates.selected, "variant", lambda by, *_: choice if by == "rules" else None)
    gpus = Fake(2)
    run(gpus, [Item(AR, 2)], [])
    assert "streamed chunks=3" in gpus.added()


def test_wrong_numbers_and_failures_are_kept_as_such() -> None:
    gpus = Fake(2, wrong={"serial streams": 0.5, "oneshot streams": 1e-4})
    rows: list[Measurement] = []
    run(gpus, [Item(Scenario("gemm_ar", "z", 128, 64, 128), 2)], rows)
    found = {row.label: row for row in rows}
    assert str(found["serial streams"].failed).startswith("relative error 5.00e-01, tolerance ")
    assert found["oneshot streams"].failed is None
    assert found["overlapped chunks=1 streams"].failed == "no memory"


def test_what_cannot_be_compiled_is_kept_with_its_reason() -> None:
    rows: list[Measurement] = []
    gpus = Fake(4)
    run(gpus, [Item(AR, 4)], rows)
    (row,) = [r for r in rows if r.failed and r.schedule == "gemm_ar/serial"]
    assert "all_reduce is a collective of all 4 ranks" in str(row.failed)
    assert "serial" not in gpus.added()


def test_a_lost_device_ends_the_run_and_is_not_tried_again() -> None:
    gpus = Fake(2, breaks="serial streams")
    rows: list[Measurement] = []
    with pytest.raises(DeviceError, match="the device is lost"):
        run(gpus, [Item(AR, 2)], rows)
    assert rows[-1].failed == "the device is lost"
    before = len(rows)
    run(Fake(2), [Item(AR, 2)], rows)
    assert "serial streams" not in [row.label for row in rows[before:]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "2,x"], "--ranks 2,x: wanted whole numbers from 2, such as 2,4,8"),
        (["--share", "3/2"], "--share 3/2: wanted I/N, such as 1/4, the first of four shares"),
        (["--share", "1"], "--share 1: wanted I/N, such as 1/4, the first of four shares"),
        (["--again", "0"], "--again 0: {json}: there is no such file"),
        (["--only", "zzz"], "there is no scenario to measure"),
        (["--scenarios", "/nowhere/x.json"], "/nowhere/x.json: there is no such file"),
    ],
)
def test_wrong_arguments(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "x.json")
    assert campaign.main([*arguments, "--json", file]) == 2
    assert capsys.readouterr().err == f"bench: {message.replace('{json}', file)}\n"


def test_a_whole_run_and_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Ours(Fake):
        def __init__(self, ranks: int, values: None, gpus: int) -> None:
            super().__init__(ranks)

        def about(self) -> dict[str, str]:
            return {"gpus": "2 × none", "ficco_rt": "0"}

    class Pools(Inline):
        def __init__(self, jobs: int, context: object) -> None:
            pass

    monkeypatch.setattr(campaign, "find_gpus", lambda wanted: wanted)
    monkeypatch.setattr(campaign, "Ours", Ours)
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", Pools)
    file = tmp_path / "x.json"
    asked = ["--json", str(file), "--only", "gemma2_27b_down_512", "--ranks", "4"]
    assert campaign.main(asked) == 0
    found = kept.read(file)
    assert found.about["gpus"] == "2 × none"
    assert found.about["command"].startswith("python -m tools.bench campaign --json ")
    assert len(found.settings["finished"]) == 1  # type: ignore[arg-type]
    out = capsys.readouterr().out
    assert "rows in " in out
    assert "rs gemma2_27b_down_512 (4) shard streams: 100.0 µs" in out
    assert campaign.main(asked) == 0
    assert capsys.readouterr().out.startswith("0 rows in ")
    assert campaign.main([*asked, "--again", "3"]) == 0
    assert capsys.readouterr().out.endswith("1 of 1 are done\n")
    once_more = kept.read(file)
    assert once_more.settings["finals"] == found.settings["finished"]
    assert {row.single.samples for row in once_more.rows if row.single is not None} == {3, 5}
    assert campaign.main([*asked, "--again", "0"]) == 2
    assert capsys.readouterr().err == "bench: --again 0: wanted a whole number from 1\n"
    kept.write(file, Kept({**found.about, "gpus": "2 × other"}, found.rows, found.settings))
    assert campaign.main(asked) == 2
    told = "is of gpus 2 × other, here it is 2 × none; give another file\n"
    assert capsys.readouterr().err.endswith(told)


# ---- what is near the best, once more


def again(gpus: Fake, rows: list[Measurement], until: float = 1e9) -> tuple[finals.Finals, list[Measurement]]:
    saved: list[Measurement] = []
    made = finals.Finals(dict.fromkeys((2, 4), gpus), rows, {}, saved.extend, until, 4, lambda: gpus.now, rest=0)
    made.run([Item(AR, 2)], Inline())
    return made, saved


FAST = {"oneshot streams": 50.0, "oneshot graph": 49.0, "serial streams": 50.2, "serial graph": 53.0}


def test_what_is_near_the_best_is_measured_again_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates.selected, "variant", lambda *_: None)
    rows: list[Measurement] = []
    run(Fake(2, FAST), [Item(AR, 2)], rows)
    before, gpus = [*rows], Fake(2, {key: time + 10 for key, time in FAST.items()})
    made, saved = again(gpus, rows)
    new = {row.label: row.single for row in saved}
    assert new == {
        "oneshot graph": Figure(59.0, 59.0, 59.0, 4),
        "oneshot streams": Figure(60.0, 60.0, 60.0, 4),
        "serial streams": Figure(60.2, 60.2, 60.2, 4),
    }
    assert list(made.finished) == [Item(AR, 2).key]
    assert [row.key for row in rows] == [row.key for row in before]
    assert [row for row in rows if row not in before] == [row for row in rows if row.label in new]
    turns = [what[1] for what in gpus.asked if what[0] == "turn"]
    assert [set(turns[i : i + 3]) for i in (0, 3, 6, 9)] == [set(new)] * 4  # a round has one run of each
    assert len({tuple(turns[i : i + 3]) for i in (0, 3, 6, 9)}) > 1  # in an order of its own
    assert gpus.asked[-1] == ("keep", ())
    asked = len(gpus.asked)
    made.run([Item(AR, 2)], Inline())
    assert len(gpus.asked) == asked  # once is enough


def test_what_would_be_chosen_is_measured_again_however_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Measurement] = []
    run(Fake(2, FAST), [Item(AR, 2)], rows)
    choice = Variant("gemm_ar/streamed", (("chunks", 2),))
    monkeypatch.setattr(candidates.selected, "variant", lambda by, *_: choice if by == "rules" else None)
    _, saved = again(Fake(2, {"streamed chunks=2 streams": 70.0}), rows)
    assert [row.single for row in saved if row.schedule == "gemm_ar/streamed"] == [Figure(70.0, 70.0, 70.0, 4)]


def test_times_stay_that_cannot_be_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other kernels, those of what is wrong today, those of a case for which there is no time."""
    monkeypatch.setattr(candidates.selected, "variant", lambda *_: None)
    rows: list[Measurement] = []
    run(Fake(2, FAST), [Item(AR, 2)], rows)
    before = [*rows]
    made, saved = again(Fake(2), rows, until=0.5)
    assert (made.finished, saved, rows) == ({}, [], before)
    _, saved = again(Fake(2, wrong={"serial streams": 0.5}), rows)
    assert sorted(row.label for row in saved) == ["oneshot graph", "oneshot streams"]
    rows[:] = [replace(row, kernels="other") if row.schedule.endswith("oneshot") else row for row in before]
    _, saved = again(Fake(2), rows)
    assert [row.label for row in saved] == ["serial streams"]


def test_a_lost_device_leaves_the_old_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates.selected, "variant", lambda *_: None)
    rows: list[Measurement] = []
    run(Fake(2, FAST), [Item(AR, 2)], rows)
    before = [*rows]
    with pytest.raises(DeviceError, match="the device is lost"):
        again(Fake(2, breaks="serial streams"), rows)
    assert rows == before
