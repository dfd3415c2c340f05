"""Choosing on machines to which no rule was fitted: the answer beside all candidates of the virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from ficco_rt import compiler
from ficco_rt.errors import ScheduleError, UsageError
from ficco_rt.machine.durations import was_measured
from ficco_rt.machine.profiles import NAMES, profile
from ficco_rt.select import heuristics
from ficco_rt.select.candidates import by_rules, open_params, streams_products, text_of, within_reach
from ficco_rt.select.choose import choose, question
from ficco_rt.select.operations import OPERATIONS
from ficco_rt.select.params import SHARES
from ficco_rt.select.ranking import Question
from ficco_rt.sim.simulate import simulate
from tests.cases import few

pytestmark = pytest.mark.usefixtures("own_choices")

MACHINES = ("b200-switch", "gb200-nvl72", "a100-switch", "mi300x-mesh")
COUNTS = {2: [[512, 512], [512, 512]], 4: [[512] * 4] * 4}
WORK: list[tuple[str, int, dict[str, Any]]] = [
    ("ag_gemm", 2, {"M": 4096, "N": 51200, "K": 5120}),
    ("ag_gemm", 4, {"M": 8192, "N": 10240, "K": 8192}),
    ("ag_gemm", 4, {"M": 16384, "N": 2048, "K": 4096}),
    ("ag_gemm", 2, {"M": 64, "N": 10240, "K": 8192}),
    ("ag_gemm", 2, {"M": 2000, "N": 37888, "K": 3584}),
    ("gemm_rs", 4, {"M": 8192, "N": 8192, "K": 28672}),
    ("gemm_rs", 2, {"M": 2048, "N": 8192, "K": 8192}),
    ("gemm_rs", 2, {"M": 16384, "N": 4096, "K": 4096}),
    ("gemm_ar", 2, {"M": 4096, "N": 8192, "K": 8192}),
    ("gemm_ar", 4, {"M": 64, "N": 8192, "K": 8192}),
    ("a2a_gemm", 4, {"counts": COUNTS[4], "N": 4096, "K": 4096}),
    ("gemm_a2a", 2, {"counts": COUNTS[2], "N": 4096, "K": 4096}),
    ("ag_gemm_kept", 2, {"M": 8192, "N": 10240, "K": 8192}),
    ("ag_gemm_backward", 4, {"M": 4096, "N": 10240, "K": 8192}),
    ("gemm_rs_backward", 4, {"M": 8192, "N": 8192, "K": 28672}),
]
CASES = [(machine, *work) for work in WORK for machine in MACHINES]


def times(asked: Question) -> Iterator[float]:
    """Of each schedule with all values of its params that a choice knows, by our kernels and by the library."""
    for schedule in within_reach(asked.operation, asked.facts):
        given = dict(by_rules(asked.facts, schedule)[0].params)
        names = [name for name in open_params(schedule) if name in ("chunks", *SHARES)]
        kernels = ({},) if streams_products(schedule) else ({}, {"kernel": "vendor"})
        for values in product(*(SHARES.get(name, (1, 2, 4, 8)) for name in names)):
            for kernel in kernels:
                params = {**asked.sizes, **given, **dict(zip(names, values, strict=True)), **kernel}
                try:
                    graph = compiler.build(text_of(schedule), asked.ranks, params)
                    plan = compiler.plan_of(graph, asked.machine, trusted=True)
                except (ScheduleError, UsageError):  # sums in a GEMM are not the library's
                    continue
                yield simulate(plan, asked.machine).duration


@pytest.mark.parametrize(("machine", "operation", "ranks", "sizes"), few(CASES, 8, 0))
def test_the_answer_is_within_2_percent_of_the_fastest(
    machine: str, operation: str, ranks: int, sizes: dict[str, Any]
) -> None:
    made = choose(operation, ranks, machine, "model", sizes=sizes)
    assert made.predicted is not None
    assert made.predicted <= 1.02 * min(times(question(operation, ranks, machine, sizes=sizes))), made.options[0].label


def test_the_cases_are_sixty_of_all_operations() -> None:
    assert len(CASES) == 60
    assert {operation for _, operation, _, _ in CASES} >= set(OPERATIONS) - {"a2a_gemm_backward"}
    assert {name for name in NAMES if was_measured(profile(name, 1).device.arch)}.isdisjoint(MACHINES)


@pytest.mark.parametrize("operation", ["ag_gemm", "gemm_rs", "gemm_ar", "ag_gemm_kept"])
@pytest.mark.parametrize("rows", [64, 8192])
def test_rules_stream_nothing_where_no_gemm_of_ours_is_made(operation: str, rows: int) -> None:
    sizes = {"M": rows, "N": 28672, "K": 8192}
    made = choose(operation, 2, "b200-switch", "rules", sizes=sizes)
    assert not streams_products(made.schedule)
    assert made.vendored
    assert "kernel" not in made.params  # so that it runs without the library, too
    assert not choose(operation, 2, "b200-switch", "rules", sizes=sizes, vendor=False).vendored


def test_room_for_other_libraries_is_priced() -> None:
    sizes = {"M": 8192, "N": 10240, "K": 8192}
    full, left = (choose("ag_gemm", 2, sizes=sizes, leave=leave) for leave in (0, 32))
    assert streams_products(full.schedule)
    assert not streams_products(left.schedule)
    assert "a GEMM that waits leaves 32 of 132 multiprocessors" in left.why[0]
    assert full.predicted is not None
    assert left.predicted is not None
    assert left.predicted < 1.05 * full.predicted
    streamed = choose("ag_gemm", 2, by="model", candidates=["ag_gemm/streamed"], sizes=sizes, leave=32)
    assert streamed.predicted is not None
    assert streamed.predicted > 1.2 * full.predicted
    assert {launch.attributes.sms for _, launch in streamed.plan.launches() if launch.waits} == {100}


def test_decode_keeps_its_schedule_beside_other_libraries() -> None:
    found = question("ag_gemm", 4, sizes={"M": 64, "N": 10240, "K": 8192}, leave=32).facts
    assert found is not None
    assert heuristics.deciding(found).name == "small"
