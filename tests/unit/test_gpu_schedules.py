"""Schedules on GPUs: the rows of `tests/gpu`, what they share, how results are held against references. Runs are the
host driver's."""

from __future__ import annotations

from itertools import groupby
from math import inf

import numpy as np
import pytest

from ficco_rt.errors import NumbersError
from ficco_rt.exec.executor import Executor
from ficco_rt.files import shipped
from ficco_rt.machine.model import Machine
from ficco_rt.machine.profiles import DEFAULT, chosen
from ficco_rt.plan.ir import Plan
from tests.gpu.numpy_data import NumpyData
from tests.gpu.repeats import Draw, Outputs, Reference, Spent, check, compare, draws
from tests.gpu.rows import SMALL, likeness, rows

RANKS = 2
EXACT = Draw(3, "exact")


@pytest.fixture(scope="module")
def machine() -> Machine:
    return chosen(DEFAULT, RANKS)


def plan(name: str, machine: Machine, label: str = "uneven bf16") -> Plan:
    (row,) = [r for r in rows("small", RANKS, name) if r.label == label and r.name == name]
    return row.plan(RANKS, machine)


# ---- rows


_LAYERS = {"ag_gemm": 8, "a2a_gemm": 8, "gemm_rs": 6, "gemm_ar": 6, "concurrent": 4}


def test_every_schedule_has_its_rows() -> None:
    found = rows("all", 4)
    for entry in shipped.entries():
        small = [r.label for r in found if r.name == entry.name and r.sizes == "small"]
        real = [r.label for r in found if r.name == entry.name and r.sizes == "real"]
        assert small == [label for label, *_ in SMALL]
        assert len(real) == _LAYERS.get(entry.name.split("/")[0], 0)


def test_rows_that_may_share_data_follow_one_another() -> None:
    found = rows("all", 4)
    assert len(list(groupby(found, key=lambda r: r.group))) == len({r.group for r in found})
    assert [r.sizes for r in found] == sorted((r.sizes for r in found), reverse=True), "small ones first"


@pytest.mark.parametrize("operation", sorted(shipped.operations()))
def test_schedules_of_an_operation_are_alike(operation: str, machine: Machine) -> None:
    for label, *_ in SMALL:
        found = [r for r in rows("small", RANKS, operation + "/") if r.label == label]
        assert len(found) > 1
        assert len({likeness(r.plan(RANKS, machine)) for r in found}) == 1


def test_other_claims_sizes_and_types_are_not_alike(machine: Machine) -> None:
    kinds = [("gemm_rs/serial", "uneven bf16"), ("gemm_ar/serial", "uneven bf16"), ("ag_gemm/serial", "uneven bf16")]
    kinds += [("gemm_rs/serial", "uneven fp32"), ("gemm_rs/serial", "large bf16")]
    assert len({likeness(plan(name, machine, label)) for name, label in kinds}) == len(kinds)


def test_draws() -> None:
    assert [str(d) for d in draws("small", 2)] == [
        "exact data, seed 0",
        "normal data, seed 0",
        "exact data, seed 1",
        "normal data, seed 1",
    ]
    real = list(draws("real", 20))
    assert [d.seed for d in real if d.values == "exact"] == list(range(20))
    assert [d.seed for d in real if d.values == "normal"] == [0, 10]


# ---- repeats


class Hosted(NumpyData):
    """The host driver has no graphs: every run is issued."""

    def run(self, *, graph: bool) -> Outputs:
        return super().run(graph=False)


class Counted(Hosted):
    """Counts the references that are computed."""

    made = 0

    def _reference(self, *given: object) -> Reference:
        self.made += 1
        return super()._reference(*given)  # type: ignore[arg-type]


def test_one_reference_a_draw_serves_all_schedules_of_an_operation(machine: Machine) -> None:
    data: Counted | None = None
    for name in ("gemm_rs/serial", "gemm_rs/ring", "gemm_rs/streamed"):
        of = plan(name, machine)
        data = data or Counted(of)
        with Executor(of, "host", machine=machine) as executor:
            facts = check(executor, data, draws("small", 2), Spent())
        assert 0 < facts.error <= facts.tolerance
        assert 0 < facts.streams < inf
        assert 0 < facts.graph < inf
    assert data is not None
    assert data.made == 4


@pytest.mark.parametrize("name", [e.name for e in shipped.entries() if e.name.startswith("quantized/")])
def test_what_is_quantized_is_near_its_reference(name: str, machine: Machine) -> None:
    of = plan(name, machine)
    with Executor(of, "host", machine=machine) as executor:
        facts = check(executor, Hosted(of), draws("small", 1), Spent())
        assert 0 < facts.error <= facts.tolerance < 0.5
        with pytest.raises(NumbersError, match=r"C of rank 1, \[2, 3\]: 100"):
            check(executor, Damaged(of, 100.0, graph=False), [EXACT], Spent())


class Damaged(Hosted):
    """Changes one element of what a run on streams, or as a graph, leaves."""

    def __init__(self, of: Plan, value: float, *, graph: bool) -> None:
        super().__init__(of)
        self.value, self.graph = value, graph

    def run(self, *, graph: bool) -> Outputs:
        outputs = super().run(graph=graph)
        if graph == self.graph:
            outputs["C"][1][2, 3] = self.value
        return outputs


@pytest.mark.parametrize(
    ("value", "graph", "message"),
    [
        (100.0, False, r"C of rank 1, \[2, 3\]: 100, wanted -?\d+; relative error \S+, allowed 0.00e\+00 \(exact data"),
        (np.nan, False, r"C of rank 1, \[2, 3\]: NaN, never written; wanted -?\d+ \(exact data, seed 3\)"),
        (100.0, True, r"C of rank 1: the graph's result differs \(exact data, seed 3\)"),
    ],
)
def test_a_wrong_element_is_seen(value: float, graph: bool, message: str, machine: Machine) -> None:
    of = plan("ag_gemm/serial", machine)
    with Executor(of, "host", machine=machine) as executor, pytest.raises(NumbersError, match=f"^{message}"):
        check(executor, Damaged(of, value, graph=graph), [EXACT], Spent())


def test_zeros_of_either_sign_are_right_on_integers_and_tolerances_hold(machine: Machine) -> None:
    of = plan("ag_gemm/serial", machine, "uneven fp32")
    (claim,) = of.claims
    data = NumpyData(of)
    zeros = [np.zeros(shape, np.float32) for shape in of.tensor("C").shapes]
    outputs = {"C": [-z for z in zeros]}
    assert compare(data, claim, Reference(zeros, 0.0, exact=True), outputs, 0.0, EXACT) == 0
    wanted = [z + 8 for z in zeros]
    outputs["C"] = [w + np.float32(1) for w in wanted]
    assert compare(data, claim, Reference(wanted, 8.0, exact=False), outputs, 0.125, EXACT) == 0.125
    with pytest.raises(NumbersError, match=r"C of rank 0, \[0, 0\]: 9, wanted 8; relative error 1.25e-01, allowed"):
        compare(data, claim, Reference(wanted, 8.0, exact=False), outputs, 0.12, EXACT)
