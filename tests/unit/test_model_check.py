"""`tools/model_check`: figures of the model against kept measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ficco_rt.errors import UsageError
from ficco_rt.machine.file import save
from ficco_rt.machine.profiles import stored
from tools.bench import families, kept, selected
from tools.bench.kept import Figure, Kept, Measurement
from tools.bench.scenarios import Scenario
from tools.bench.variants import Variant
from tools.model_check import choosers, cli, figures
from tools.model_check.cases import Case, Timed, cases, on_two_pairs, split_of

ABOUT = {"source": "run", "date": "2026-11-22", "command": "python -m tools.bench", "gpus": "2 × none"}
AG = Scenario("ag_gemm", "x", 64, 32, 128)


def case(split: str = "fitted", **times: tuple[float, float]) -> Case:
    """Of schedules with what was measured and what is modelled."""
    timed = (Timed(Variant(f"ag_gemm/{name}", ()), "graph", *pair) for name, pair in times.items())
    return Case("x.json", AG, 4, False, split, tuple(timed))


GOOD = case(serial=(200.0, 210.0), shard_p2p=(110.0, 110.0), streamed=(100.0, 90.0), tapered=(105.0, 100.0))
MISSED = case("unseen", serial=(100.0, 150.0), shard_p2p=(130.0, 100.0), streamed=(150.0, 140.0))


def test_errors() -> None:
    found = figures.errors([GOOD, MISSED])
    assert (found.variants, found.cases) == (7, 2)
    assert found.median == pytest.approx(1 / 15)
    assert found.p90 == pytest.approx(0.6 * 3 / 13 + 0.4 * 0.5)
    assert found.signed == pytest.approx(-1 / 21)


def test_rank_correlation() -> None:
    assert figures.spearman([1, 2, 3], [10, 20, 30]) == 1
    assert figures.spearman([1, 2, 3], [3, 2, 1]) == -1
    assert figures.spearman([1, 2, 3], [5, 5, 5]) == 0
    assert figures.spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)
    alike = case(serial=(100.0, 300.0), shard_p2p=(101.0, 200.0), streamed=(102.0, 100.0))  # too near to be told apart
    assert figures.ranks([GOOD, MISSED, alike]) == figures.Ranks(2, pytest.approx(0.25))
    assert figures.ranks([alike]) == figures.Ranks(0, None)


def test_losses_of_a_choice() -> None:
    found = figures.losses([GOOD, MISSED, case(serial=(1.0, 1.0))], choosers.modelled_best)
    assert (found.cases, found.near, found.unmeasured) == (2, 1, 0)
    assert (found.mean, found.most) == (pytest.approx(0.15), pytest.approx(0.3))
    assert found.misses == (figures.Miss("ag x (4)", "shard_p2p", "serial", pytest.approx(0.3)),)
    assert figures.losses([GOOD, MISSED], choosers.measured_of_few).most == 0
    nowhere = figures.losses([GOOD], lambda _: Variant("ag_gemm/oneshot", ()))
    assert (nowhere.cases, nowhere.unmeasured, nowhere.mean) == (0, 1, None)


def test_always_one_schedule() -> None:
    (found,) = figures.figures([GOOD, MISSED], {}).always
    assert (found.operation, found.schedule, found.cases) == ("ag_gemm", "shard_p2p", 2)
    assert (found.mean, found.most) == (pytest.approx(0.2), pytest.approx(0.3))


def test_cases_by_what_may_be_fitted() -> None:
    assert split_of([GOOD, MISSED]) == {"fitted": [GOOD], "unseen": [MISSED], "all": [GOOD, MISSED]}
    assert split_of([MISSED]) == {"unseen": [MISSED]}


def row(scenario: Scenario, schedule: str, time: float, **more: object) -> Measurement:
    given = {"ranks": 2, "on_two": False, "params": (), "mode": "graph"} | more
    return Measurement(scenario, schedule=schedule, single=Figure(time), **given)  # type: ignore[arg-type]


def test_cases_of_files(tmp_path: Path) -> None:
    """The better mode counts; what is not ours, failed, or cannot be compiled is left out."""
    unseen = next(key for key, split in families.splits().items() if split == "unseen" and key[0] == "gemm_rs")
    wide = Scenario("gemm_rs", "w", *unseen[1:])
    rows = (
        row(AG, "ag_gemm/serial", 50.0), row(AG, "ag_gemm/serial", 40.0, mode="streams"),
        row(AG, "nccl", 3.0), row(AG, "ag_gemm/streamed", 30.0, params=(("chunks", 2), ("deep", [1, 1]))),
        row(AG, "ag_gemm/streamed", 20.0, params=(("chunk", 2),)), row(wide, "gemm_rs/serial", 50.0),
    )  # fmt: skip
    kept.write(tmp_path / "a.json", Kept(ABOUT, rows, {}))
    found, notes = cases([tmp_path / "a.json"], [], "h200-switch", 1)
    assert [(c.label, c.split) for c in found] == [("ag x (2)", "fitted"), ("rs w (2)", "unseen")]
    assert [(v.variant.label, v.mode, v.measured) for v in found[0].variants] == [
        ("serial", "streams", 40.0),
        ("streamed chunks=2 deep=1:1", "graph", 30.0),
    ]
    assert all(v.modelled > 0 for c in found for v in c.variants)
    (note,) = notes
    assert note.startswith("a.json: ag x, streamed chunk=2 graph: ")


def test_a_machine_of_a_file_is_held_against_them(tmp_path: Path) -> None:
    kept.write(tmp_path / "a.json", Kept(ABOUT, (row(AG, "ag_gemm/serial", 50.0),), {}))
    here = stored("h200-switch")
    links = replace(here.links, copy_time=60.0)
    save(replace(here, name="here", links=links, ranks=2), tmp_path / "here.toml")
    named, filed = (cases([tmp_path / "a.json"], [], m, 1)[0][0] for m in ("h200-switch", str(tmp_path / "here.toml")))
    assert filed.variants[0].modelled > named.variants[0].modelled + 40
    assert set(choosers.choosers(str(tmp_path / "here.toml"))) == set(choosers.choosers("h200-switch"))


def test_a_rank_of_r_beside_r_gpus(tmp_path: Path) -> None:
    rows = (
        row(AG, "ag_gemm/serial", 50.0, ranks=4, screening=True),
        row(AG, "ag_gemm/serial", 40.0, ranks=4, mode="streams"),
        row(AG, "ag_gemm/serial", 44.0, ranks=4, on_two=True), row(AG, "ag_gemm/serial", 44.0, ranks=8, on_two=True),
    )  # fmt: skip
    kept.write(tmp_path / "a.json", Kept(ABOUT, rows, {}))
    kept.write(tmp_path / "b.json", Kept(ABOUT, (row(AG, "ag_gemm/serial", 45.0, ranks=4),), {}))
    (pair,) = on_two_pairs([tmp_path / "a.json", tmp_path / "b.json"])
    assert (pair.case, pair.what, pair.on_two, pair.whole) == ("ag x (4)", "serial graph", 44.0, 45.0)


def test_the_tool_on_kept_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The four-GPU screening and the rows of a rank of four, of a scenario."""
    out = tmp_path / "out.json"
    files = [str(kept.FOLDER / name) for name in ("h200x4_screening.json", "h200x2_rank_of_4.json")]
    asked = [*files, "--only", "rs o8b", "--jobs", "1", "--json", str(out)]
    assert cli.main(asked) == 0
    shown = capsys.readouterr().out
    for told in (
        "modelled against measured: median error",
        "model: within 2 % of the best",
        "Greatest errors",
        "A rank of R on two GPUs, beside R GPUs",
    ):
        assert told in shown
    found = json.loads(out.read_text())
    assert found["figures"]["fitted"]["errors"]["cases"] == len(found["cases"])
    assert found["figures"]["fitted"]["ranks"]["cases"] >= 1
    assert {c["file"] for c in found["cases"]} >= {"h200x4_screening.json", "h200x2_rank_of_4.json"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/nowhere/x.json"], "/nowhere/x.json: there is no such file"),
        (["--only", "zzz"], "no shipped schedule was measured in these files, or in no case of --only"),
        (["--machine", "abacus"], "no machine is called 'abacus'; stored are "),
        (["--machine", "/nowhere/x.toml"], "/nowhere/x.toml: there is no such file"),
        (["--json", "/nowhere/x.json"], "/nowhere/x.json: there is no directory '/nowhere'"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*arguments, "--jobs", "1"]) == 2
    assert capsys.readouterr().err.startswith(f"model_check: {message}")


def test_ways_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        schedule = "ag_gemm/streamed"
        params = {"M": 64, "N": 32, "K": 128, "T": "bf16", "chunks": 2, "deep": (1, 1)}  # noqa: RUF012

    def choose(operation: str, ranks: int, machine: object, by: str, sizes: object, vendor: bool) -> Answer:
        if by == "model":
            raise UsageError("no such thing")
        assert (operation, ranks, sizes) == ("ag_gemm", 4, {"M": 64, "N": 32, "K": 128, "T": "bf16"})
        assert not vendor
        return Answer()

    monkeypatch.setattr(selected, "choose", choose)
    ways = choosers.choosers("h200-switch")
    assert ways["choose by rules"](GOOD) == Variant("ag_gemm/streamed", (("chunks", 2), ("deep", [1, 1])))
    assert ways["choose by model"](GOOD) is None


def test_parameters_are_the_same_whether_said_or_not(tmp_path: Path) -> None:
    scenario = Scenario("gemm_rs", "y", 512, 64, 128)
    rows = (row(scenario, "gemm_rs/relay", 5.0), row(scenario, "gemm_rs/serial", 6.0))
    kept.write(tmp_path / "a.json", Kept(ABOUT, rows, {}))
    ((made,), _) = cases([tmp_path / "a.json"], [], "h200-switch", 1)
    said = Variant("gemm_rs/relay", (("first", [1, 1, 2]), ("last", [2, 1, 1])))
    found = figures.measured_as(made, said)
    assert found is not None
    assert found.measured == 5.0
    other = Variant("gemm_rs/relay", (("first", [1, 1]),))
    assert figures.measured_as(made, other) is None
    assert figures.measured_as(made, Variant("gemm_rs/relay", (("chunks", 3),))) is None


def test_a_time_of_another_kernel_is_left_out(tmp_path: Path) -> None:
    """A kept time holds for the kernels that it was measured with, if these are known."""
    given = kept.read(kept.FOLDER / "h200x2_campaign.json")
    rows = [r for r in given.rows if r.scenario.label == "rs llama8b_o_1024" and r.ranks == 2 and r.kernels]
    assert rows
    path = tmp_path / "some.json"
    kept.write(path, replace(given, rows=tuple(rows)))
    assert kept.read(path).rows == tuple(rows)
    (known,), _ = cases([path], [], "h200-switch", 1)
    kept.write(path, replace(given, rows=tuple(replace(r, kernels="00000000") for r in rows[:1]) + tuple(rows[1:])))
    (left,), notes = cases([path], [], "h200-switch", 1)
    assert len(left.variants) <= len(known.variants)
    assert any("measured with other kernels than are chosen today" in note for note in notes)
    kept.write(path, replace(given, rows=tuple(replace(r, kernels="") for r in rows)))
    (every,), notes = cases([path], [], "h200-switch", 1)
    assert not notes
    assert len(every.variants) > len(left.variants)
