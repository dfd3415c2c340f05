"""A plan in two processes, each with a GPU of its own: right in any order, and every trouble told in both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ficco_rt.compiler import build
from ficco_rt.exec.inputs import fresh_inputs
from ficco_rt.exec.verify import compare
from tests import cases
from tests.mock.processes import Processes

DRAWN = cases.few(cases.SCHEDULES, 6, 1)
SEEDS = 20 if cases.ALL else 4


@pytest.fixture(scope="module")
def both() -> Iterator[Processes]:
    with Processes(2) as started:
        yield started


def _right(name: str, answers: list[Any]) -> None:
    """Both processes' outputs of each seed are what the schedule claims, and nothing is left."""
    for answer in answers:
        assert not isinstance(answer, str), answer
        assert answer[1] == ""
    graph = build(cases.schedule(name), 2, cases.sizes(name, 2, True) | cases.few_chunks(name))
    for seed, parts in enumerate(zip(*(found for found, _ in answers), strict=True)):
        got = {key: array for part in parts for key, array in part.items()}
        names = [t.name for t in graph.tensors if t.kind == "output"]
        outputs = {name: [got[name, rank] for rank in range(2)] for name in names}
        result = compare(graph, fresh_inputs(graph, seed, "exact"), outputs, "exact")
        assert result.ok, (seed, result.worst)


@pytest.mark.parametrize("name", DRAWN)
def test_right_in_every_order(both: Processes, name: str) -> None:
    settings = "flush 1" if DRAWN.index(name) % 2 else ""
    _right(name, both.ask("shipped", name, SEEDS, settings=settings))


@pytest.mark.parametrize("name", cases.few(cases.SCHEDULES, 1, 3))
def test_graphs_of_callers_are_replayed_in_each_process(both: Processes, name: str) -> None:
    _right(name, both.ask("captured", name, SEEDS))


def test_memory_by_handles_where_descriptors_do_not_pass(both: Processes) -> None:
    settings = "way 0; shared 1"
    assert both.ask("opened", "ag_gemm/streamed", settings=settings) == ["IPC handles"] * 2


def test_each_process_sees_its_own_gpu_alone(both: Processes) -> None:
    settings = "devices 1; uuid PLACE"
    assert both.ask("opened", "gemm_rs/streamed", settings=settings) == ["file descriptors"] * 2


def test_groups_that_are_not_the_job(both: Processes) -> None:
    assert both.ask("alone", "ag_gemm/streamed") == ["GPU 0", "GPU 1"]
    _right("gemm_rs/streamed", both.ask("reversed", "gemm_rs/streamed"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("devices 1", "UsageError: processes 0 and 1 have the same GPU"),
        ("link 0 1 0", "has no direct access to the memory of process"),
    ],
)
def test_gpus_that_do_not_go_together(both: Processes, settings: str, said: str) -> None:
    for answer in both.ask("opened", "ag_gemm/streamed", settings=settings):
        assert said in answer or "process 0 failed" in answer or "all but 0" in answer, answer
        assert "LEFT" not in answer


def test_another_plan_is_told_with_both(both: Processes) -> None:
    for answer in both.ask("other_plans"):
        assert answer.startswith("UsageError: the processes do not run the same: plan is "), answer
        assert "in process 0 and " in answer
        assert "LEFT" not in answer


def test_another_order_is_told(both: Processes) -> None:
    answers = both.ask("other_orders")
    assert answers[0].startswith(
        "UsageError: processes do different things: process 0 is at capture, process 1 at bind"
    )
    assert answers[1].startswith("UsageError: processes do different things: process 1 is at bind tensors, process 0")
    assert not any("LEFT" in answer for answer in answers)


FUNCTIONS = (
    "cuMemCreate",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemGetAllocationGranularity",
    "cuDeviceGetUuid",
)


def test_each_call_of_the_exchange_fails_once(both: Processes) -> None:
    """The process whose call fails tells it; the other one tells that the first has failed; then all is well."""
    mine, theirs = both.ask("faults", "ag_gemm/streamed", FUNCTIONS, limit=120)
    for function, said, told in zip(FUNCTIONS, mine, theirs, strict=True):
        assert said.startswith(f"{function}: {function}"), said
        assert "CUDA_ERROR_UNKNOWN" in said
        assert f"process 0 failed: {function}" in told or f"process 0 of 2 has left: {function}" in told, told
        assert "LEFT" not in said + told, (said, told)


@pytest.mark.parametrize(("kind", "settings"), [("empty", ""), ("ordinary", "shared 1"), ("empty", "way 0; shared 1")])
def test_tensors_of_callers(both: Processes, kind: str, settings: str) -> None:
    answers = both.ask("given", kind, settings=settings)
    for answer in answers:
        assert not isinstance(answer, str), answer
        assert answer[1] == ""
    name = "gemm_ar/streamed"  # whose outputs other ranks write
    graph = build(cases.schedule(name), 2, cases.sizes(name, 2, True) | cases.few_chunks(name))
    got = {key: array for found, _ in answers for key, array in found.items()}
    outputs = {"C": [got["C", rank] for rank in range(2)]}
    result = compare(graph, fresh_inputs(graph, 3, "exact"), outputs, "exact")
    assert result.ok, result.worst


def test_memory_that_cannot_leave_the_process(both: Processes) -> None:
    answers = both.ask("given", "pooled", settings="shared 1")
    assert any("cannot be given to other processes; take tensors of ficco_rt.empty" in answer for answer in answers), (
        answers
    )
    assert not any("LEFT" in answer for answer in answers), answers


def test_runs_leave_nothing(both: Processes) -> None:
    for before, after in both.ask("flat", "gemm_rs/ring", 100):
        assert before == after


KILLS = [(1, 61, True), (0, 37, False), (0, 5, True)]


@pytest.mark.parametrize(("dies", "call", "graph"), KILLS if cases.ALL else KILLS[:1])
def test_a_killed_process_ends_the_other(both: Processes, dies: int, call: int, graph: bool) -> None:
    """And the next start works: the next case asks again."""
    answers = both.ask("doomed", "ag_gemm/streamed", dies, call, graph, once=True)
    assert answers[dies] == "gone"
    assert answers[1 - dies].startswith(f"DeviceError: process {dies} ended in the midst of a run\n"), answers[1 - dies]
    assert f"process {dies} is gone; when it ended: it" in answers[1 - dies]
    assert "LEFT" not in answers[1 - dies]
