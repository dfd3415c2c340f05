"""Kept measurements: their files, and what of a run of the bench is kept."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ficco_rt.errors import UsageError
from tests import cases
from tests.unit.test_bench import AG, SETTINGS, measured
from tools.bench import families, kept
from tools.bench.kept import Figure, Kept, Measurement
from tools.bench.scenarios import DEFAULT_FILE, Scenario, load
from tools.bench.variants import variants

ABOUT = {"source": "run", "date": "2026-11-22", "command": "python -m tools.bench", "gpus": "2 × none"}
ROW = Measurement(
    AG, 4, True, "ag_gemm/streamed", (("chunks", 4), ("deep", [1, 1])), "graph", Figure(460.75, 460, 461, 9)
)


def test_a_run_is_kept_whole(tmp_path: Path) -> None:
    run = kept.of_run([measured()[0]], SETTINGS, ABOUT, complete=False)
    kept.write(tmp_path / "run.json", run)
    found = kept.read(tmp_path / "run.json")
    assert found == run
    assert (found.about, found.complete, found.settings["rounds"]) == (ABOUT, False, 4)
    rows = {(row.schedule, row.mode): row for row in found.rows}
    assert rows["nccl", "calls"].single == Figure(141.0, 141.0, 141.0, 12)
    assert rows["nccl", "graph"].loop == Figure(129.0, 129.0, 129.0, 4)
    assert rows["limit gemm", "calls"].single == Figure(80.0, 80.0, 80.0, 12)
    best = rows["ag_gemm/streamed", "graph"]
    assert (best.params, best.ours, best.screening, best.ranks, best.on_two) == (
        (("chunks", 2),),
        True,
        False,
        2,
        False,
    )
    assert rows["ag_gemm/serial", "graph"].single == Figure(150.0)
    assert rows["ag_gemm/serial", "graph"].screening
    assert rows["ag_gemm/broken", "graph"].single is None
    assert str(rows["ag_gemm/broken", "graph"].failed).startswith("relative error inf")
    assert rows["asynctp", "graph"].failed == "capture: no"


def test_the_layout_of_a_weight_is_kept(tmp_path: Path) -> None:
    turned = replace(ROW, scenario=replace(AG, transb=1), params=(("chunks", 4),))
    kept.write(tmp_path / "run.json", Kept(ABOUT, (ROW, turned), {}))
    found = kept.read(tmp_path / "run.json").rows
    assert found[1] == turned
    assert found[0].place != found[1].place
    assert found[1].variant.arguments(found[1].scenario)["transb"] == 1
    listed = tmp_path / "scenarios.json"
    listed.write_text('{"ag_gemm": [{"name": "x", "M": 8, "N": 8, "K": 8, "transb": 1}]}')
    assert load(listed)[0][0].sizes == {"M": 8, "N": 8, "K": 8, "T": "bf16", "transb": 1}


def test_a_row_is_a_line() -> None:
    run = Kept(ABOUT, (ROW, ROW), {})
    lines = kept.text(run).splitlines()
    assert sum('"schedule"' in line for line in lines) == 2
    assert json.loads(kept.text(Kept(ABOUT, (), {})))["rows"] == []


def test_what_is_the_same_measurement() -> None:
    assert ROW.label == "streamed chunks=4 deep=1:1 graph"
    assert ROW.key == (*ROW.place, "ag_gemm/streamed", '{"chunks": 4, "deep": [1, 1]}', "graph")
    assert ROW.place == ("ag_gemm", 64, 32, 128, 0, "", 4, True, 1)
    assert Measurement(AG, 4, False, "limit gemm", (), "calls").label == "limit gemm calls"


@pytest.mark.parametrize("operation", ["ag_gemm", "gemm_rs", "gemm_ar"])
def test_labels_tell_all_of_a_variant(operation: str) -> None:
    for variant in variants(operation):
        assert type(variant).of_label(operation, variant.label) == variant


GOOD = json.loads(kept.text(Kept(ABOUT, (ROW,), {})))


def damaged(**changes: object) -> str:
    return json.dumps(GOOD | {"rows": [GOOD["rows"][0] | changes]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "FILE:1:2: is not JSON: Expecting property name enclosed in double quotes"),
        ("[" * 100_000, "FILE: is nested too deep to be measurements"),
        ("[]", "FILE: wanted measurements, as python -m tools.bench --json writes them"),
        (json.dumps(GOOD | {"version": 1}), "FILE: has version 1; version 2 is read"),
        (json.dumps(GOOD | {"about": {"source": "run"}}), "FILE: about: 'date' is missing or no text"),
        (json.dumps(GOOD | {"rows": [3]}), "FILE: rows[0]: wanted an object"),
        (damaged(operation="x"), "FILE: rows[0]: operation 'x' is not known; there are ag_gemm, gemm_rs, gemm_ar"),
        (damaged(M=True), "FILE: rows[0]: M must be of type int; it is true"),
        (damaged(K=0), "FILE: rows[0]: M, N, K and ranks are whole numbers from 1"),
        (damaged(params=[]), "FILE: rows[0]: params must be of type dict; it is []"),
        (damaged(mode="fast"), 'FILE: rows[0]: mode is one of graph, streams, calls, null; it is "fast"'),
        (damaged(single=-3), "FILE: rows[0]: single: wanted microseconds, or an object with their median"),
        (damaged(loop={"median": 3, "p10": -1}), "FILE: rows[0]: loop: p10, p90 and samples are numbers above 0"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        kept.read(file)
    assert str(caught.value) == message.replace("FILE", str(file))


def test_a_folder_stands_for_its_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r": there are no \.json files in it$"):
        list(kept.files([tmp_path]))
    for name in ("b.json", "a.json", "c.txt"):
        (tmp_path / name).write_text("")
    assert [p.name for p in kept.files([tmp_path, tmp_path / "c.txt"])] == ["a.json", "b.json", "c.txt"]


def test_sizes_of_scenarios_are_kept(tmp_path: Path) -> None:
    row = Measurement(Scenario("gemm_ar", "y", 16, 8, 4), 2, False, "gemm_ar/oneshot", (), None, None, Figure(3.0))
    kept.write(tmp_path / "x.json", Kept(ABOUT, (row,), {}))
    assert kept.read(tmp_path / "x.json").rows == (row,)


# ---- what is kept in the repository


def test_the_wide_scenarios() -> None:
    """Many models and sizes, the same at every writing; half of them for nobody to fit anything to."""
    assert families.FILE.read_text() == families.text()
    found, notes = load(families.FILE)
    assert notes == ()
    assert len(found) >= 60
    assert len({m.family for m in families.MODELS}) >= 6
    assert all(s.misfit(ranks) is None for s in found for ranks in (2, 4, 8))
    assert (min(s.m for s in found), max(s.m for s in found)) == (16, 32768)
    assert sum(s.m % 128 != 0 for s in found) > 20
    assert {s.operation for s in found} == {"ag_gemm", "gemm_rs"}
    split = Counter(families.splits().values())
    assert abs(split["fitted"] - split["unseen"]) <= 1
    public = {(s.operation, s.m, s.n, s.k) for s in load(DEFAULT_FILE)[0]}
    assert not public & set(families.splits())


def test_the_kept_measurements_can_be_read() -> None:
    names = []
    for path in kept.files([kept.FOLDER]):
        run = kept.read(path)
        names.append(path.stem)
        assert run.complete
        assert len({row.key for row in run.rows}) == len(run.rows), path
        for row in run.rows:
            assert row.single or row.loop or row.failed, (path, row)
            if row.ours:
                declared = {p.name for p in cases.schedule(row.schedule).params}
                assert {name for name, _ in row.params} <= declared, (path, row)
    assert {"h200x4_rounds", "h200x4_screening", "h200x2_rounds", "h200x2_rank_of_4"} <= set(names)
