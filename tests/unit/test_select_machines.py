"""Choosing on machines unlike the measured one, such as a mesh, whose links are priced at once: the model chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import ficco_rt as ficco
from ficco_rt.errors import UsageError
from ficco_rt.files import shipped
from ficco_rt.machine.profiles import profile
from ficco_rt.select import candidates, heuristics, ranking
from ficco_rt.select.choose import choose, default, question
from ficco_rt.select.defaults import open_values
from ficco_rt.select.facts import facts
from tests.unit.command_line import Ending

H200 = profile("h200-switch", 8)
SMALL = {"M": 512, "N": 256, "K": 256}
LAYER = {"M": 8192, "N": 10240, "K": 8192}


pytestmark = pytest.mark.usefixtures("own_choices")


def sets(sizes: dict[str, int]) -> list[str]:
    return [word for name, value in sizes.items() for word in ("--set", f"{name}={value}")]


@pytest.mark.parametrize(
    ("sizes", "by"),
    [
        ({"N": 50_272}, "rules"),
        ({"N": 50_260}, "model"),  # rows of C are no multiple of 16 bytes
        ({"K": 4100}, "model"),
        ({"T": "fp32"}, "model"),
        ({"T": "fp8_e4m3", "Sum": "bf16"}, "model"),
        ({"T": "fp8_e4m3", "Sum": "bf16", "transb": 1}, "rules"),
        ({"M": 64, "N": 256, "K": 252}, "rules"),  # so small that it does not matter
    ],
)
def test_rules_are_for_products_that_fast_kernels_take(sizes: dict[str, object], by: str) -> None:
    asked = question("ag_gemm", 4, "h200-switch", sizes={"M": 4096, "N": 4096, "K": 4096, **sizes})
    assert default(asked) == by
    assert asked.facts is not None
    said = heuristics.unfitted(asked.facts)
    assert said == ("" if by == "rules" else heuristics.PRODUCTS)
    assert bool(heuristics.cited(asked.facts, [heuristics.deciding(asked.facts)])) == (by == "rules")
    if by == "model":
        sizes = {"M": 4096, "N": 4096, "K": 4096, **sizes}
        assert f"{said}: for others take --by model, or by='model'" in choose("ag_gemm", 4, by="rules", sizes=sizes).why


def test_sizes_that_the_rules_schedule_does_not_take_are_for_the_model() -> None:
    sizes = {"M": 4096, "N": 3072, "K": 768}
    made = choose("gemm_ar", 3, "h200-switch", sizes=sizes)
    assert (made.by, made.schedule) == ("model", "gemm_ar/serial")
    assert made.plan.ranks == 3
    assert choose("gemm_ar", 4, "h200-switch", sizes=sizes).by == "rules"


def test_costs_of_zero() -> None:
    free = replace(H200, links=replace(H200.links, copy_time=0.0, signal_time=0.0))
    for name in ("ag_gemm/streamed", "ag_gemm/hetero_fused_1d", "gemm_rs/streamed", "gemm_rs/relay"):
        values = {v.param: v.value for v in open_values(shipped.shipped()[name], 8, LAYER, free)}
        assert all(values.values()), values
    assert choose("ag_gemm", 8, free, "rules", sizes=LAYER).predicted


MESH = profile("mi300x-mesh", 8)
MIDDLE = {"M": 2048, "N": 2560, "K": 2048}


def test_links_of_a_mesh_are_priced_at_once() -> None:
    f = facts("ag_gemm", 8, LAYER, MESH, "bf16")
    assert f is not None
    assert f.copies == f.shard + f.links.copy_time
    switch = facts("ag_gemm", 8, LAYER, H200, "bf16")
    assert switch is not None
    assert switch.copies == 7 * (switch.shard + switch.links.copy_time)


def test_on_a_mesh_the_model_chooses_and_says_so(run: Callable[..., Ending]) -> None:
    said = "rules were fitted on H200 behind a switch; mi300x-mesh is chosen by the model"
    made = ficco.choose("ag_gemm", 4, MESH.name, **MIDDLE)
    assert made.by == "model"
    assert said in made.why
    assert made.predicted == min(o.predicted for o in made.options if o.predicted is not None and not o.vendored)
    words = ("--machine", MESH.name, "--gpus", "4", *sets(MIDDLE), "--json")
    assert said in run("ficco", "choose", "ag_gemm", *words).record["why"]
    choice = run("ficco-run", "ag_gemm", "--backend", "sim", *words).record["choice"]
    assert (choice["by"], choice["schedule"]) == ("model", made.schedule)
    ruled = run("ficco", "choose", "ag_gemm", *words, "--by", "rules").record
    assert ruled["by"] == "rules"
    assert "rules were fitted on H200 behind a switch: on mi300x-mesh take --by model, or by='model'" in ruled["why"]
    assert choose("ag_gemm", 1, MESH, sizes=LAYER).by == "rules"  # one rank sends nothing
    inside = replace(MESH, ranks=16, links=replace(MESH.links, ranks=8), outer=(H200.links,))
    found = facts("ag_gemm", 16, LAYER, inside, "bf16")
    assert found is not None
    assert not heuristics.on_measured(found)  # a mesh inside


def test_the_model_tries_half_and_twice_the_pieces_of_its_best() -> None:
    asked = question("ag_gemm", 4, MESH, None, SMALL)
    assert asked.facts is not None
    one = candidates.Candidate("ag_gemm/hetero_fused_1d", (("chunks", 2),))
    assert not ranking.sensible(asked.facts, replace(one, params=(("chunks", 4),)))  # pieces of 32 rows
    found = ranking.Ranking((replace(one, predicted=1e6),))
    more = ranking._with_neighbours(replace(asked, vendor=False), found)
    assert {dict(o.params)["chunks"] for o in more.ranked} == {1, 2}
    made = choose("ag_gemm", 4, MESH, "model", sizes=MIDDLE)
    pieces_of = {dict(o.params).get("chunks") for o in made.options if o.schedule == made.schedule}
    assert len(pieces_of) > 1


@pytest.mark.parametrize(
    ("slower", "by"),
    [(1.0, "rules"), (1.2, "rules"), (2.0, "model")],
)
def test_rules_choose_where_links_and_products_are_as_fast_as_measured(slower: float, by: str) -> None:
    links, rates = H200.links, H200.device.gemm_rate
    for machine in (
        replace(H200, links=replace(links, rate=links.rate / slower)),
        replace(H200, device=replace(H200.device, gemm_rate=tuple((name, rate / slower) for name, rate in rates))),
    ):
        asked = question("ag_gemm", 8, machine, None, LAYER)
        assert default(asked) == by


def test_more_pieces_where_copies_cost_less_besides() -> None:
    def chunks(copy_time: float) -> object:
        machine = replace(H200, links=replace(H200.links, copy_time=copy_time))
        return choose("ag_gemm", 4, machine, candidates=["ag_gemm/streamed"], sizes=LAYER).options[0].params

    found = []
    for copy_time in (60.0, 6.0, 1.0):
        machine = replace(H200, links=replace(H200.links, copy_time=copy_time))
        given = open_values(shipped.shipped()["ag_gemm/streamed"], 4, LAYER, machine)
        found.append(next(g.value for g in given if g.param == "chunks"))
    assert found == sorted(found)
    assert found[0] < found[-1]
    assert chunks(6.0) == ()  # the caller's own candidates are taken as they are


def test_nodes_that_are_not_whole_are_answered() -> None:
    sizes = {"M": 12288, "N": 12288, "K": 8192}
    for operation, gpus, wanted in (
        ("ag_gemm", 12, "2 nodes of 8 GPUs .* schedules that send them take whole nodes; take 8 or 16 GPUs"),
        ("ag_gemm_backward", 12, "2 nodes of 8 GPUs .* no schedule of ag_gemm_backward sends messages; take the GPUs"),
    ):
        with pytest.raises(UsageError, match=wanted):
            choose(operation, gpus, "h200-nodes", sizes=sizes)
    assert choose("ag_gemm", 16, "h200-nodes", sizes=sizes).schedule == "ag_gemm/hierarchical"
