"""Choosing: the words of a reason, and candidates that are of another operation."""

from __future__ import annotations

from pathlib import Path

import pytest

import ficco_rt as ficco
from ficco_rt.cli.main import execute
from ficco_rt.errors import ScheduleError, UsageError
from ficco_rt.files import shipped
from ficco_rt.machine.profiles import profile
from ficco_rt.select import heuristics
from ficco_rt.select.choose import By, choose
from ficco_rt.select.defaults import open_values

H200 = profile("h200-switch", 8)
SMALL = {"M": 512, "N": 256, "K": 256}


pytestmark = pytest.mark.usefixtures("own_choices")


@pytest.mark.parametrize(("ranks", "more"), [(2, "1 more copy"), (4, "3 more copies")])
def test_the_reason_for_pieces_is_a_sentence(ranks: int, more: str) -> None:
    given = open_values(shipped.shipped()["ag_gemm/streamed"], ranks, {"M": 2048, "N": 1024, "K": 4096}, H200)
    why = next(g.why for g in given if g.param == "chunks")
    assert why.startswith(
        "shards arrive more slowly than they are multiplied, so pieces only shorten the GEMM after the last copy, "
    )
    assert why.endswith(f" µs with whole shards; each further piece costs {more} of 6 µs")


def test_what_is_slow_about_the_chosen_schedule_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    types = ("T=fp8_e4m3 scaled 1x128", "Weight=fp8_e4m3 scaled 128x128", "Sum=bf16")
    words = [word for setting in ("M=2048", "N=2048", "K=2048", *types) for word in ("--set", setting)]
    assert execute("ficco", ["choose", "ag_gemm", "--gpus", "2", *words]) == 0
    assert "warning: a plain kernel (naive_gemm) multiplies here" in capsys.readouterr().err
    assert execute("ficco", ["choose", "ag_gemm", "--gpus", "2", *words, "--set", "transb=1"]) == 0
    assert capsys.readouterr().err == ""


def test_outputs_of_fp8_that_no_proof_admits_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for setting in ("M=512", "N=512", "K=512", "T=fp8_e4m3") for word in ("--set", setting)]
    for more in (["--by", "rules"], ["--by", "model"]):
        assert execute("ficco", ["choose", "ag_gemm", "--gpus", "4", *words, *more]) == 2
        told = capsys.readouterr()
        assert "ag_gemm/oneshot" in told.err
        assert "stage 'mm' stores in C, which is fp8_e4m3, what C@0" in told.err
        assert "; make C bf16, or admit the rounding: end the claim with 'within fp8_e4m3'" in told.err
        assert "keeps partial sums" not in told.err
        assert execute("ficco", ["choose", "ag_gemm", "--gpus", "4", *words, "--set", "Sum=bf16", *more]) == 0
        capsys.readouterr()


def test_a_candidate_of_another_operation_is_refused(tmp_path: Path) -> None:
    text = shipped.shipped()["ag_gemm/serial"].read_text(encoding="utf-8")
    mine = tmp_path / "wide.ficco"
    mine.write_text(text.replace("N / ranks", "N"))
    made = choose("ag_gemm", 2, by="model", candidates=[mine, "gemm_rs/serial", "ag_gemm/serial"], sizes=SMALL)
    assert [o.schedule for o in made.options] == ["ag_gemm/serial"]
    assert len([words for words in made.why if "this is no schedule of ag_gemm: it has a" in words]) == 2


def test_a_candidate_whose_weight_is_stored_otherwise_is_refused(tmp_path: Path) -> None:
    text = shipped.shipped()["ag_gemm/serial"].read_text(encoding="utf-8")
    mine = tmp_path / "mine.ficco"
    mine.write_text(text.replace(" transposed if transb == 1", ""))
    for b, refused in ((0, False), (1, True)):
        sizes = {**SMALL, "transb": b}
        made = choose("ag_gemm", 2, by="model", candidates=[mine, "ag_gemm/serial"], sizes=sizes)
        assert (len(made.options) == 1) == refused
    assert any(
        "no schedule of ag_gemm: it takes C = all_gather(A, rows) * B; ag_gemm takes C = all_gather(A, rows) * B.T" in w
        for w in made.why
    )


@pytest.mark.parametrize("by", ["rules", "model"])
def test_a_weight_may_be_stored_transposed_and_a_bias_added(by: By) -> None:
    usual, turned = (choose("ag_gemm", 2, by=by, sizes={**SMALL, "transb": b}) for b in (0, 1))
    assert "transb" not in usual.params  # so measured times of before still apply
    assert turned.params == {**usual.params, "transb": 1}
    assert turned.schedule == usual.schedule
    biased = choose("ag_gemm", 2, by=by, sizes={**SMALL, "bias": 1})
    assert biased.params == {**usual.params, "bias": 1}
    assert biased.plan.claims[0].text.endswith(" * B + b")
    (b,) = (t for t in turned.plan.tensors if t.name == "B")
    assert b.shapes[0] == (SMALL["N"] // 2, SMALL["K"])
    with pytest.raises(ScheduleError, match="transb = 2 breaks its check"):
        choose("ag_gemm", 2, sizes={**SMALL, "transb": 2})


@pytest.mark.parametrize("by", ["rules", "model"])
def test_a_choice_for_more_gpus_than_were_measured_says_so(by: By) -> None:
    said = "choices of ag_gemm and gemm_rs were compared with measurements on two H200, none on 4 GPUs"
    assert choose("ag_gemm", 4, by=by, sizes=SMALL).sources[-1] == said
    for few in (choose("ag_gemm", 2, by=by, sizes=SMALL), choose("ag_gemm", 4, by=by, sizes=SMALL, ranks_per_gpu=2)):
        assert not any("compared with measurements" in source for source in few.sources)


def test_the_library_makes_products_that_run_alone_where_it_is_estimated_to_be_faster() -> None:
    sizes: dict[str, object] = {"M": 128, "N": 10240, "K": 2048}
    made = choose("ag_gemm", 1, "h200-switch", "rules", sizes=sizes)
    assert made.vendored
    assert made.params["kernel"] == "vendor"
    assert "kernel = vendor: nothing runs beside a rank's products, which are estimated to take 1" in made.why[1]
    assert made.why[1].endswith(" by our kernels")
    assert "docs/results/kernels.md" in made.sources[1]
    assert made.plan.ranks == 1
    assert choose("ag_gemm", 1, "h200-switch", "model", sizes=sizes).vendored
    for more in ({"vendor": False}, {"leave": 8}, {"ranks_per_gpu": 2}):
        assert not choose("ag_gemm", 1, "h200-switch", "rules", sizes=sizes, **more).vendored  # type: ignore[arg-type]
    for other in (
        {"M": 4, "N": 8704, "K": 6464},  # ours is faster
        {"M": 8192, "N": 8192, "K": 8192},  # both are as fast
        {**sizes, "bias": 1},  # not compared
        {**sizes, "T": "fp8_e4m3"},
    ):
        assert not choose("ag_gemm", 1, "h200-switch", "rules", sizes=other).vendored


def test_measurements_are_cited_where_they_were_made_alone() -> None:
    sizes = {"counts": [[512, 512], [512, 512]], "N": 4096, "K": 4096}
    said = "choices of ag_gemm and gemm_rs were compared with measurements on two H200, none of a2a_gemm"
    assert choose("a2a_gemm", 2, sizes=sizes, vendor=False).sources == (said,)
    layer = {"M": 4096, "N": 4096, "K": 4096}
    assert choose("ag_gemm", 2, sizes=layer).sources[0].startswith("docs/results/choice.md: `streamed` is within 2 %")
    assert choose("ag_gemm", 2, "h100-switch", sizes=layer).by == "model"
    ruled = choose("ag_gemm", 2, "h100-switch", "rules", sizes=layer)
    assert ruled.sources[-1] == said.replace("of a2a_gemm", "on NVIDIA H100 80GB HBM3")
    assert not any("docs/" in source for source in ruled.sources)
    assert "rules were fitted on H200 behind a switch: on h100-switch take --by model, or by='model'" in ruled.why
    for rule in heuristics.RULES:
        assert set(rule.measured) <= {"ag_gemm", "gemm_rs", "gemm_ar"}, rule.name


def test_a_predicted_time_is_that_of_the_virtual_clock() -> None:
    """The rules said `relay` once, by a formula 150 µs, on the virtual clock 205; `shard` takes 169."""
    made = choose("gemm_rs", 4, sizes={"M": 4096, "N": 5120, "K": 8192})
    assert (made.by, made.schedule) == ("rules", "gemm_rs/shard")
    assert made.predicted == pytest.approx(ficco.simulate(made.plan).duration)
    assert made.predicted == min(o.predicted for o in made.options if o.predicted is not None)
    assert len(made.runners_up) == 4
    assert "gemm_rs/serial" in {o.schedule for o in made.runners_up}
    number = sum(1 for _ in made.plan.commands())
    assert f"some {2.75 * number:.0f} µs" in made.why[-1]


def test_what_is_too_much_to_be_modelled_at_once_is_chosen_without_a_time() -> None:
    made = choose("ag_gemm", 64, "h200-nodes", "rules", sizes={"M": 1 << 15, "N": 1 << 15, "K": 8192})
    assert (made.schedule, made.predicted, made.mode) == ("ag_gemm/hierarchical", None, "graph")
    assert made.why[-1] == "a graph: a run has so many commands that on streams the host would be late"
    assert not made.runners_up


@pytest.mark.parametrize(
    ("given", "reason"),
    [({"fast": 1}, "fast = 1 is for products of fp8"), ({"T": "fp8_e5m2"}, "one at least is fp8_e4m3")],
)
def test_rules_choose_nothing_that_cannot_be_compiled(given: dict[str, object], reason: str) -> None:
    sizes: dict[str, object] = {"M": 512, "N": 512, "K": 512, **given}
    made = choose("ag_gemm", 2, profile("h200-switch", 2), "rules", sizes=sizes)
    with pytest.raises(UsageError, match=f"ag_gemm/oneshot cannot be chosen for these sizes: .*{reason}"):
        assert made.options
