"""Verification: what is compared with what, and the reference."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import ficco_rt
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import deviation, fresh_inputs
from ficco_rt.exec.projection import project, vectors
from ficco_rt.exec.reference import evaluate, extent, take
from ficco_rt.exec.rounding import allowances
from ficco_rt.exec.verify import Verification, compare, verified_run
from ficco_rt.geometry.region import Axis, Interval, Region, whole
from ficco_rt.graph.claim_values import axis_of
from ficco_rt.graph.combine import equal_shares
from ficco_rt.graph.ir import ClaimValue, CollectiveKind, Combined, Operand, Product
from ficco_rt.types import TYPES, Dtype
from tests import cases
from tests.host.handmade import (
    array,
    blank,
    box,
    executor_of,
    gather_plan,
    gemm_work,
    launch,
    segments,
    wait,
)


@pytest.mark.parametrize("order", ["fifo", "adversarial", "lazy(0)", "lazy(2)", "random(1)", "random(2)"])
@pytest.mark.parametrize("dtype", cases.FLOATS)
def test_a_right_plan_is_verified(dtype: Dtype, order: str) -> None:
    with executor_of(gather_plan(dtype), order) as executor:
        exact = verified_run(executor, seed=3, values="exact")
        assert (exact.ok, exact.rel_err, exact.tolerance, exact.unproven) == (True, 0.0, 0.0, ())
        found = verified_run(executor, seed=3)
        unit = TYPES[dtype].unit_roundoff
        assert (found.ok, found.integers) == (True, True)
        assert found.rel_err is not None
        assert found.rel_err <= (unit if dtype != "fp32" else 4 * unit)  # fp32: its sums round too
        assert 2 * unit < found.tolerance < 16 * unit  # of so few elements none is large


def test_a_missing_wait_is_named_as_never_written() -> None:
    made = gather_plan()
    streams = list(made.streams)
    streams[3] = replace(streams[3], commands=tuple(c for c in streams[3].commands if c != wait(0, 30)))
    with executor_of(replace(made, streams=tuple(streams)), "lazy(0)") as executor:
        result = verified_run(executor)
        assert not result.ok
        assert result.rel_err == inf
        assert str(result.worst) == "C of rank 1, rows 0, columns 0: NaN, never written"
        executor.order = "fifo"  # as issued: right, by chance
        assert verified_run(executor).ok


def test_the_worst_element_is_named() -> None:
    made = gather_plan("bf16")
    inputs = fresh_inputs(made, 1, "exact")
    product = [np.concatenate(inputs["A"]).astype(np.float32) @ inputs["B"][r].astype(np.float32) for r in range(2)]
    outputs = {"C": [p.astype(inputs["A"][0].dtype) for p in product]}
    assert compare(made, inputs, outputs, "exact").ok
    outputs["C"][1][2, 1] += 1
    result = compare(made, inputs, outputs, "exact")
    want = float(product[1][2, 1])
    assert not result.ok
    assert result.rel_err == 1 / max(np.abs(p).max() for p in product)
    assert str(result.worst) == f"C of rank 1, rows 2, columns 1: {want + 1:.6g}, wanted {want:.6g}"


def test_an_output_without_a_claim_is_only_looked_through() -> None:
    made = replace(gather_plan(), claims=())
    with executor_of(made) as executor:
        result = verified_run(executor)
        assert (result.ok, result.rel_err, result.worst, result.unproven) == (True, None, None, ("C",))
        inputs = fresh_inputs(made)
        holes = [blank(4, 3), blank(4, 3)]
        holes[0].fill(0)
        holes[1][:3].fill(0)
        result = compare(made, inputs, {"C": holes})
        assert not result.ok
        assert str(result.worst) == "C of rank 1, rows 3, columns 0: NaN, never written"


def test_fresh_inputs_are_exact_or_normal() -> None:
    made = gather_plan("bf16", k=100)
    values = np.concatenate([a.astype(np.float64).ravel() for a in fresh_inputs(made, 0, "exact")["A"]])
    assert set(values) == {-1.0, 1.0}  # 100 products: 256 // 100 allows no larger
    values = np.concatenate(
        [a.astype(np.float64).ravel() for a in fresh_inputs(gather_plan("bf16", m=100), 0, "exact")["A"]]
    )
    assert set(values) == {*range(-8, 0), *range(1, 9)}  # 4 products of at most 64: none of them 0
    sparse = gather_plan("bf16", m=48, k=4096, n=64)  # 2 · 96 · 64 elements, and A's 48 rows are fewer than B's columns
    inputs = fresh_inputs(sparse, 0, "exact")
    assert set(inputs["A"][0].astype(np.float32).ravel()) == {-1.0, 1.0}
    density = np.mean([np.mean(b.astype(np.float32) != 0) for b in inputs["B"]])
    assert density == pytest.approx((256**2 / deviation(2 * 96 * 64) ** 2 - 256 / 3) / 4096, rel=0.05)
    product = np.concatenate(inputs["A"]).astype(np.float32) @ inputs["B"][0].astype(np.float32)
    assert 64 < np.abs(product).max() < 256
    normal = fresh_inputs(sparse, 0)
    spread = np.std(normal["A"][0].astype(np.float32) @ normal["B"][0].astype(np.float32))
    assert spread == pytest.approx(1, rel=0.1)
    again = fresh_inputs(sparse, 0)
    assert all((a == b).all() for a, b in zip(normal["A"], again["A"], strict=True))
    assert not (normal["A"][0] == fresh_inputs(sparse, 1)["A"][0]).all()
    assert not (normal["A"][0] == normal["A"][1]).all()


# ---------------------------------------------------------------- what random data may be off


def squares(*stores: float, terms: int = 4) -> float:
    """The squared error of a claimed value of 1: of stores to bf16, by the value's share that each one rounds."""
    unit, inner = 2.0**-16, 2.0**-48
    return unit * sum(stores) + inner * (terms + terms**2 / 16 + 1) + inner * (terms - 1)


def test_the_bound_counts_the_stores_of_partial_sums_by_their_share() -> None:
    made = gather_plan("bf16")
    assert [allowance.random for allowance in allowances(made)] == [pytest.approx(deviation(24) * squares(1) ** 0.5)]
    c, a, b = (whole(n, 0, s) for n, s in (("C", (4, 3)), ("G", (4, 4)), ("B", (4, 3))))
    twice = [launch(gemm_work(c, a, b, 40, accumulate=True)) for _ in range(3)]
    more = replace(made, streams=(*made.streams, replace(made.streams[1], id=4, commands=tuple(twice))))
    # values of 1, 2, 3 and 4: G holds A's noise
    assert allowances(more)[0].random == pytest.approx(deviation(24) * squares(1, 2, 3, 4) ** 0.5, rel=1e-3)
    summed = launch(gemm_work(c, a, b, 40, addends=(c, c)))
    more = replace(made, streams=(*made.streams, replace(made.streams[1], id=4, commands=(summed,))))
    assert allowances(more)[0].random == pytest.approx(deviation(24) * squares(1, 1, 3) ** 0.5, rel=1e-3)


SPLIT = """
schedule t
param c = 256
input A[64, 1024] : bf16
input B[1024, 64] : bf16
output C[64, 64] : bf16
computes C = A * B
queue compute {{ engine = sm }}
stage m on compute {{ {} }}
"""
ACCUMULATED = "for k in 0..c { gemm C += A.cols(k of c) * B.rows(k of c) }"
ADDED = """
  gemm C = A.cols(0 of c) * B.rows(0 of c)
  for k in 1..c { gemm C = A.cols(k of c) * B.rows(k of c) + sum(C) }
"""


def verified(tmp_path: Path, text: str, ranks: int, **params: int) -> Verification:
    (tmp_path / "t.ficco").write_text(text)
    with Executor(ficco_rt.compile(str(tmp_path / "t.ficco"), ranks, **params)) as executor:
        return verified_run(executor)


@pytest.mark.parametrize(("text", "c"), [(ACCUMULATED, 16), (ADDED, 24)])
def test_some_stored_partial_sums_are_right(tmp_path: Path, text: str, c: int) -> None:
    found = verified(tmp_path, SPLIT.format(text), 1, c=c)
    assert (found.ok, found.correct, found.integers) == (True, True, True)
    assert found.allowance == pytest.approx(2**-8 * (c + 1) / 2, rel=0.02)
    for run in (found, found.one_signed):
        assert run is not None
        assert run.rel_err is not None
        assert run.tolerance / 8 < run.rel_err < run.tolerance  # neither too little nor far too much


@pytest.mark.parametrize(("text", "c"), [(ACCUMULATED, 32), (ADDED, 64)])
def test_many_stored_partial_sums_are_not_called_right(tmp_path: Path, text: str, c: int) -> None:
    found = verified(tmp_path, SPLIT.format(text), 1, c=c)
    assert (found.ok, found.correct, found.integers) == (True, False, True)
    assert found.allowance == pytest.approx(2**-8 * (c + 1) / 2, rel=0.02)
    assert found.one_signed is not None
    assert found.one_signed.tolerance == pytest.approx(0.05)
    assert found.tolerance < 0.0500001


def test_a_sum_that_stops_growing_is_wrong(tmp_path: Path) -> None:
    found = verified(tmp_path, SPLIT.format(ACCUMULATED), 1, c=1024)
    assert (found.ok, found.correct, found.integers) == (False, False, True)
    assert found.one_signed is not None
    assert found.one_signed.rel_err == pytest.approx(0.67, abs=0.02)  # 256 of 1024 · (7/8)²
    assert found.worst == found.one_signed.worst
    assert found.worst is not None
    assert found.worst.got == 256


OVERFLOW = """
schedule t
param K = 131072
input A[8, K] : fp16
input B[K, 8] : fp16
scratch P[8, 8] : fp16
output C[8, 8] : fp32
computes C = A * B within fp16
queue compute { engine = sm }
stage m on compute { gemm P = A * B }
stage r on compute { reduce C = sum(P) }
"""


def test_a_partial_sum_that_overflows_is_wrong(tmp_path: Path) -> None:
    found = verified(tmp_path, OVERFLOW, 1)
    assert (found.ok, found.integers) == (False, True)
    assert found.one_signed is not None
    assert (found.one_signed.ok, found.one_signed.rel_err) == (False, inf)
    assert found.worst is not None
    assert found.worst.got == inf
    # a result that overflows itself is no fault of the plan: inputs are smaller then
    itself = OVERFLOW.replace("fp32", "fp16").replace(" within fp16", "")
    assert verified(tmp_path, itself, 1).correct


def test_a_result_that_is_rounded_once_needs_no_run_on_data_of_one_sign() -> None:
    with executor_of(gather_plan("bf16")) as executor:
        assert verified_run(executor).one_signed is None


def test_large_results_of_one_sign_are_compared_by_the_means_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ficco_rt.exec.verify.DOUBLE_OPERATIONS", 0)
    (tmp_path / "t.ficco").write_text(SPLIT.format(ACCUMULATED))
    for c, ok in ((16, True), (256, False)):
        with Executor(ficco_rt.compile(str(tmp_path / "t.ficco"), 1, c=c)) as executor:
            found = verified_run(executor, values="one-signed")
        assert found.ok is ok
        assert found.worst is not None
        assert len(found.worst.index) == 1  # a row
        assert str(found.worst).startswith(f"C of rank 0, rows {found.worst.index[0]}: ")


@pytest.mark.parametrize("dropped", [1, 2])
def test_a_missing_product_of_many_is_seen(tmp_path: Path, dropped: int) -> None:
    (tmp_path / "t.ficco").write_text(SPLIT.format(ACCUMULATED))
    made = ficco_rt.compile(str(tmp_path / "t.ficco"), 1)
    (stream,) = (s for s in made.streams if s.commands)
    left = (*stream.commands[:50], *stream.commands[50 + dropped :])
    streams = tuple(replace(s, commands=left) if s is stream else s for s in made.streams)
    with Executor(replace(made, streams=streams)) as executor:
        found = verified_run(executor)
        assert (found.ok, found.integers) == (False, False)
        assert found.worst is not None
        assert found.worst.got != found.worst.wanted
        assert found.worst.got == int(found.worst.got)


# ---------------------------------------------------------------- the reference


def values_of(value: ClaimValue, **inputs: list[np.ndarray]) -> list[list[object]]:
    results = [v.tolist() for v in evaluate(value, inputs)]
    assert tuple(np.shape(r) for r in results) == extent(value).shapes
    return results


def operand(name: str, *shapes: tuple[int, ...], transposed: bool = False) -> Operand:
    return Operand(tuple(whole(name, r, s) for r, s in enumerate(shapes)), transposed)


def combined(kind: CollectiveKind, value: ClaimValue, axis: int) -> Combined:
    """A collective; what it cuts, it cuts as evenly as it can."""
    shapes = extent(value).shapes
    lengths = [s[axis_of(Combined(kind, value, axis, None), len(s))] for s in shapes]
    cut = kind in ("reduce_scatter", "all_to_all")
    return Combined(kind, value, axis, tuple(equal_shares(n, len(shapes)) for n in lengths) if cut else None)


def test_reference_of_each_collective() -> None:
    x = [array([[1, 2], [3, 4]]), array([[10, 20], [30, 40]])]
    s = operand("X", (2, 2), (2, 2))
    assert values_of(Combined("all_gather", s, 0, None), X=x) == [[[1, 2], [3, 4], [10, 20], [30, 40]]] * 2
    assert values_of(Combined("all_gather", s, 1, None), X=x) == [[[1, 2, 10, 20], [3, 4, 30, 40]]] * 2
    assert values_of(Combined("all_reduce", s, 0, None), X=x) == [[[11, 22], [33, 44]]] * 2
    assert values_of(combined("reduce_scatter", s, 0), X=x) == [[[11, 22]], [[33, 44]]]
    assert values_of(Combined("reduce_scatter", s, 1, ((2, 0), (2, 0))), X=x) == [[[11, 22], [33, 44]], [[], []]]
    assert values_of(combined("all_to_all", s, 0), X=x) == [[[1, 2], [10, 20]], [[3, 4], [30, 40]]]
    assert values_of(Combined("all_to_all", s, 1, ((0, 2), (1, 1))), X=x) == [
        [[10], [30]],
        [[1, 2, 20], [3, 4, 40]],
    ]


def test_reference_of_vectors_and_uneven_shards() -> None:
    x = [array([1, 2, 3]), array([4])]
    s = operand("X", (3,), (1,))
    assert values_of(Combined("all_gather", s, 0, None), X=x) == [[1, 2, 3, 4]] * 2
    # cut at i · 3 // 2 and i · 1 // 2
    assert values_of(combined("all_to_all", s, 0), X=x) == [[1], [2, 3, 4]]


def test_reference_of_products() -> None:
    a = [array([[1, 2]]), array([[3, 4]])]
    b = [array([[1, 1], [0, 1]]), array([[2, 0], [0, 2]])]
    product = Product(operand("A", (1, 2), (1, 2)), operand("B", (2, 2), (2, 2), transposed=True))
    assert values_of(product, A=a, B=b) == [[[3, 2]], [[6, 8]]]
    assert values_of(Combined("all_reduce", product, 0, None), A=a, B=b) == [[[9, 10]]] * 2
    assert (extent(product).terms, extent(product).operations) == (2, 16)
    assert extent(combined("reduce_scatter", product, 0)).terms == 4


def test_take_follows_segments_and_drops_indices() -> None:
    x = array(np.arange(24).reshape(2, 3, 4))
    region = Region(
        "X", 0, (Axis((Interval(1, 2),), dropped=True), Axis((Interval(2, 3), Interval(0, 1))), Axis((Interval(1, 3),)))
    )
    assert take(x, region).tolist() == [[21, 22], [13, 14]]
    assert take(x[0], segments("X", 0, [(0, 1)], [(3, 4), (0, 1)])).tolist() == [[3, 0]]


def test_the_reference_does_not_follow_the_plan() -> None:
    """A plan that swaps the pieces is not verified."""
    made = gather_plan()
    own, waiting, far = made.streams[1].commands
    (work,) = far.works  # type: ignore[union-attr]
    doubled = launch(
        replace(work, body=replace(work.body, out=box("C", 0, (0, 2), (0, 3))))
    )  # the far rows land on the own ones
    swapped = [*made.streams]
    swapped[1] = replace(made.streams[1], commands=(own, waiting, doubled))
    with executor_of(replace(made, streams=tuple(swapped))) as executor:
        result = verified_run(executor)
        assert not result.ok
        assert str(result.worst) == "C of rank 0, rows 2, columns 0: NaN, never written"


# ---------------------------------------------------------------- large results, by their products with vectors


PROJECTED = [
    Product(operand("X", (3, 4), (3, 4)), operand("Y", (5, 4), (5, 4), transposed=True)),
    Product(Combined("all_gather", operand("X", (2, 4), (3, 4)), 0, None), operand("Y", (4, 2), (4, 3))),
    Product(Combined("all_gather", operand("X", (3, 1), (3, 3)), 1, None), operand("Y", (4, 2), (4, 3))),
    Product(Combined("all_to_all", operand("X", (4, 3), (3, 3)), 0, ((1, 3), (2, 1))), operand("Y", (3, 2), (3, 2))),
    Product(Combined("all_to_all", operand("X", (2, 4), (2, 3)), 1, ((1, 3), (2, 1))), operand("Y", (3, 2), (4, 2))),
    Product(operand("X", (3, 4), (3, 4)), combined("reduce_scatter", operand("Y", (4, 5), (4, 5)), 1)),
    Product(operand("X", (3, 2), (3, 2)), combined("reduce_scatter", operand("Y", (4, 5), (4, 5)), 0)),
    *(
        combined(kind, Product(operand("X", (4, 3), (4, 3)), operand("Y", (3, 6), (3, 6))), axis)
        for kind in get_args(CollectiveKind)
        for axis in (0, 1)
    ),
]


@pytest.mark.parametrize("value", PROJECTED, ids=str)
def test_a_projected_value_is_the_value_times_the_vectors(value: ClaimValue) -> None:
    rng = np.random.default_rng(1)
    regions = {o.regions[0].tensor: o.regions for o in operands(value)}
    inputs = {n: [array(rng.integers(-8, 9, (s.boxes[0].stop))) for s in held] for n, held in regions.items()}
    by = vectors(value, 3)
    wanted = [v @ x for v, x in zip(evaluate(value, inputs), by, strict=True)]
    for got, want in zip(project(value, by, inputs), wanted, strict=True):
        assert got.tolist() == want.tolist()


def operands(value: ClaimValue) -> list[Operand]:
    match value:
        case Operand():
            return [value]
        case Product(left=left, right=right):
            return [*operands(left), *operands(right)]
        case Combined(operand=inside):
            return operands(inside)


def test_large_results_are_compared_by_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ficco_rt.exec.verify.DOUBLE_OPERATIONS", 0)
    made = gather_plan("bf16", m=20, k=30, n=40)
    with executor_of(made) as executor:
        found = verified_run(executor, values="exact")
        assert (found.ok, found.rel_err, found.worst) == (True, 0.0, None)  # no element was looked at
        inputs = fresh_inputs(made, 0, "exact")
        outputs = {"C": [executor.read("C", r) for r in range(2)]}
    for rank, row, wrong in ((0, 0, 1.0), (1, 39, -2.0), (1, 7, inf)):
        damaged = {"C": [c.copy() for c in outputs["C"]]}
        damaged["C"][rank][row, 5] += wrong
        found = compare(made, inputs, damaged, "exact")
        assert not found.ok
        assert str(found.worst).startswith(f"C of rank {rank}, rows {row}, columns 5: ")
