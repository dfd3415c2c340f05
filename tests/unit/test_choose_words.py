"""Choosing: the words of a reason, and candidates that are of another operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from ficco_rt.files import shipped
from ficco_rt.machine.profiles import profile
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
        f"shards come slower than they are multiplied. Each further piece costs {more} of 6 µs and shortens the GEMM "
    )


def test_a_candidate_of_another_operation_is_refused(tmp_path: Path) -> None:
    text = shipped.shipped()["ag_gemm/serial"].read_text(encoding="utf-8")
    mine = tmp_path / "wide.ficco"
    mine.write_text(text.replace("N / ranks", "N"))
    made = choose("ag_gemm", 2, by="model", candidates=[mine, "gemm_rs/serial", "ag_gemm/serial"], sizes=SMALL)
    assert [o.schedule for o in made.options] == ["ag_gemm/serial"]
    assert len([words for words in made.why if "this is no schedule of ag_gemm: it has a" in words]) == 2


@pytest.mark.parametrize("by", ["rules", "model"])
def test_a_choice_for_more_gpus_than_were_measured_says_so(by: By) -> None:
    said = "choices were compared with measurements on 2 GPUs, none on 4"
    assert choose("ag_gemm", 4, by=by, sizes=SMALL).sources[-1] == said
    for few in (choose("ag_gemm", 2, by=by, sizes=SMALL), choose("ag_gemm", 4, by=by, sizes=SMALL, ranks_per_gpu=2)):
        assert not any("compared with measurements" in source for source in few.sources)
