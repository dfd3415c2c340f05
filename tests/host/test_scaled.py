"""Scaled tensors on the host: what callers give, numbers against fp64, and that wrong scales show."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import ficco_dsl
import ficco_rt as ficco
from ficco_rt.compiler import build, plan_of
from ficco_rt.errors import PlanError, ScheduleError, UsageError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.geometry.region import Axis, Interval, Region
from ficco_rt.graph import ir
from ficco_rt.graph.prove import prove
from ficco_rt.graph.scales import is_scales, spread
from ficco_rt.machine.profiles import profile
from ficco_rt.plan import codec
from ficco_rt.plan.check import check
from ficco_rt.plan.ir import Plan
from ficco_rt.plan.lower import lower
from ficco_rt.plan.prove import prove as prove_plan
from ficco_rt.types import BLOCKS, numpy_dtype
from tests import cases
from tests.host.graph_damage import mutants, restaged

TEXT = """
schedule with_scales
param M = 12
param N = 160
param K = 288
type TA = fp8_e4m3 scaled 1x128
type TB = fp8_e4m3 scaled 128x128
type O = fp32
input   A[M / ranks, K] : TA
input   B[N, K] : TB
output  C[M, N] : O
scratch G[M, K] : TA
computes C = all_gather(A, rows) * B.T
queue dma     { engine = copy }
queue compute { engine = sm }
stage gather on dma {
  for c in 0..2, p in all { copy G.rows(rank of ranks, c of 2) @ p <- A.rows(c of 2) }
}
stage mm on compute { for p in all, c in 0..2 {
  gemm C.rows(p of ranks, c of 2) = G.rows(p of ranks, c of 2) * B.T
} }
"""
RANKS = 3
MUTANTS = 200 if cases.ALL else 50


def graph_of(**params: object) -> ir.Graph:
    return build(ficco_dsl.parse(TEXT, "scaled.ficco"), RANKS, params)


def plan_with(**params: object) -> Plan:
    return plan_of(graph_of(**params), profile("h200-switch", RANKS))


def drawn(plan: Plan, name: str, seed: int) -> list[np.ndarray]:
    """Values with a magnitude of about 1."""
    (tensor,) = (t for t in plan.tensors if t.name == name)
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(numpy_dtype(tensor.dtype)) for shape in tensor.shapes]


def result(plan: Plan, given: dict[str, list[tuple[np.ndarray, object]]]) -> list[np.ndarray]:
    with Executor(plan) as executor:
        for name, pairs in given.items():
            for rank, pair in enumerate(pairs):
                executor.write(name, rank, pair)
        executor.run()
        return [executor.read("C", rank).astype(np.float64) for rank in range(RANKS)]


def wanted(given: dict[str, list[tuple[np.ndarray, object]]]) -> list[np.ndarray]:
    def plain(values: np.ndarray, scales: object) -> np.ndarray:
        array = np.asarray(scales, np.float64)
        array = np.broadcast_to(array, (values.shape[0], 1)) if array.ndim < 2 else array
        return values.astype(np.float64) * spread(array, values.shape)

    left = np.concatenate([plain(*pair) for pair in given["A"]])
    return [left @ plain(*pair).T for pair in given["B"]]


SCALINGS = [*cases.SCALINGS, ("tensor", "tensor"), ("1x128", "1x128"), ("128x128", "128x128"), ("128x128", "1x128")]


def assert_close(found: list[np.ndarray], given: dict[str, list[tuple[np.ndarray, object]]]) -> None:
    """Each sum is that of fp64, up to the roundings of fp32: of scaled elements, of products and of sums."""
    sizes = {name: [(abs(v.astype(np.float32)), np.abs(s)) for v, s in pairs] for name, pairs in given.items()}
    for got, exact, size in zip(found, wanted(given), wanted(sizes), strict=True):  # type: ignore[arg-type]
        assert (np.abs(got - exact) <= (288 + 3) * 2.0**-24 * size).all()


def scales(scaling: str, shape: Sequence[int], rng: np.random.Generator) -> object:
    """Without padding, as callers have them: of all sizes that scales of one product have, and some of zero."""
    if scaling == "tensor":
        return float(2.0 ** rng.uniform(-8, 8))
    down, across = BLOCKS[scaling]  # type: ignore[index]
    blocks = -(-shape[0] // down), -(-shape[1] // across) if across else 1
    found = 2.0 ** rng.uniform(-10, 10, blocks)
    return np.where(rng.random(blocks) < 0.1, 0, found).astype(np.float32)


@pytest.mark.parametrize(("left", "right"), SCALINGS)
def test_numbers_are_those_of_fp64(left: str, right: str) -> None:
    """Roundings of fp32 alone: that of a scale on every element, and those of the sum."""
    for turn, dtypes in enumerate([("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e4m3"), ("fp8_e4m3", "fp8_e5m2")]):
        rows = 256 if left == "128x128" else 4
        plan = plan_with(TA=f"{dtypes[0]} scaled {left}", TB=f"{dtypes[1]} scaled {right}", M=RANKS * rows)
        rng = np.random.default_rng(turn)
        given = {
            name: [(v, scales(s, v.shape, rng)) for v in drawn(plan, name, turn)]
            for name, s in (("A", left), ("B", right))
        }
        assert_close(result(plan, given), given)


@pytest.mark.parametrize("scale", [0.0, 2.0**-140, 2.0**100, 2.0**20])
def test_one_block_with_a_scale_of_its_own(scale: float) -> None:
    plan = plan_with()
    ones = np.ones((4, 3), np.float32)
    odd = ones.copy()
    odd[2, 1] = scale
    given = {
        "A": [(v, odd if rank == 1 else ones) for rank, v in enumerate(drawn(plan, "A", 1))],
        "B": [(v, np.ones((2, 3), np.float32)) for v in drawn(plan, "B", 2)],
    }
    assert_close(result(plan, given), given)


# ---------------------------------------------------------------- what callers give


@pytest.mark.parametrize("scale", [2, 2.0, np.float32(2), np.int64(2), np.full(1, 2, np.float32)])
def test_one_number_scales_a_tensor(scale: object) -> None:
    types = {"T": "fp8_e4m3 scaled tensor", "Sum": "fp32", "transb": 1}
    plan = ficco.compile("ag_gemm/serial", RANKS, M=8 * RANKS, N=16 * RANKS, K=32, **types)
    with Executor(plan) as executor:
        for name in "AB":
            for rank, shape in enumerate(plan.tensor(name).shapes):
                executor.write(name, rank, (np.ones(shape, numpy_dtype("fp8_e4m3")), scale))
        executor.run()
        assert (executor.read("C", 1) == 32 * 4).all()


def test_callers_give_pairs() -> None:
    plan = plan_with(K=512)  # four scales in a row, which need no padding
    a, b = drawn(plan, "A", 1), drawn(plan, "B", 2)
    one, other = np.full((4, 4), 2, np.float32), np.full((2, 4), 0.5, np.float32)
    with Executor(plan) as executor:
        out = [np.empty((12, 160), np.float32) for _ in range(RANKS)]
        executor.run(A=[(v, one) for v in a], B=[(v, other) for v in b], C=out)
        first = out[1].copy()
        one[:] = 4  # bound by reference
        executor.run(A=[(v, one) for v in a], B=[(v, other) for v in b], C=out)
        assert np.array_equal(out[1], 2 * first)
        with pytest.raises(
            UsageError,
            match=r"input A, number 0 of the list: it is scaled 1x128; give a pair \(values, "
            r"scales\), of shapes \[4, 512\] and \[4, 4\]; given ndarray",
        ):
            executor.run(A=a, B=[(v, other) for v in b])
        with pytest.raises(
            UsageError, match=r"input A.scales, rank 0: wanted float32 of shape \[4, 4\]; given float32 of"
        ):
            executor.run(A=[(v, one[:2]) for v in a], B=[(v, other) for v in b])
    with Executor(plan) as executor:
        executor.write("A", 0, a[0])
        for rank, v in enumerate(b):
            executor.write("B", rank, (v, other))
        with pytest.raises(UsageError, match="input A of rank 1 has no value"):
            executor.run()
        for rank, v in enumerate(a):
            executor.write("A", rank, v)
        with pytest.raises(UsageError, match="input A of rank 0 has values and no scales: give pairs of both"):
            executor.run()
        with pytest.raises(UsageError, match=r"B.scales, rank 0: wanted float32 of shape \[2, 4\]; given float32 of"):
            executor.write("B", 0, (b[0], np.ones((2, 5), np.float32)))


# ---------------------------------------------------------------- wrong scales show


def damaged(rng: random.Random, graph: ir.Graph) -> tuple[ir.Op, ...]:
    """The ops with scales that are other values': of another piece, shifted, of another rank, or not copied."""
    ops = list(graph.ops)
    copies = [i for i, op in enumerate(ops) if isinstance(op.body, ir.Copy) and is_scales(op.body.src.tensor)]
    i = rng.choice(copies)
    body = ops[i].body
    assert isinstance(body, ir.Copy)
    match rng.choice(("shift", "swap", "drop", "half", "columns")):
        case "drop":
            del ops[i]
        case "swap":
            j = rng.choice([j for j in copies if ops[j].body.dst.rank == body.dst.rank and j != i])  # type: ignore[attr-defined]
            other = ops[j].body
            assert isinstance(other, ir.Copy)
            ops[i], ops[j] = (
                replace(ops[i], body=replace(body, dst=other.dst)),
                replace(ops[j], body=replace(other, dst=body.dst)),
            )
        case "half":  # the last row keeps what it had
            ops[i] = replace(ops[i], body=ir.Copy(*(_rows(r, 0, -1) for r in (body.dst, body.src))))
        case "shift":  # rows go round
            first = [_rows(body.dst, 0, -1), _rows(body.src, 1, 0)]
            last = [_rows(body.dst, 3, 0), _rows(body.src, 0, -3)]
            ops[i : i + 1] = [replace(ops[i], body=ir.Copy(*r)) for r in (first, last)]
        case "columns":  # of the first two blocks of K in each other's place
            sides = [(_cols(body.dst, a), _cols(body.src, 1 - a)) for a in (0, 1)]
            ops[i + 1 : i + 1] = [replace(ops[i], body=ir.Copy(*r)) for r in sides]
    return tuple(ops)


def _rows(region: Region, first: int, last: int) -> Region:
    (start, stop), columns = region.axes[0].segments[0], region.axes[1]
    return replace(region, axes=(Axis((Interval(start + first, stop + last),)), columns))


def _cols(region: Region, column: int) -> Region:
    return replace(region, axes=(region.axes[0], Axis((Interval(column, column + 1),))))


def test_verification_and_both_proofs_see_wrong_scales() -> None:
    graph, rng, machine = graph_of(O="bf16"), random.Random(0), profile("h200-switch", RANKS)
    right = plan_of(graph, machine)
    prove_plan(right, check(right))
    for number in range(MUTANTS):
        ops = damaged(rng, graph)
        if ops == graph.ops:
            continue
        made = restaged(graph, ops)
        with pytest.raises(ScheduleError):
            prove(made)
        plan = lower(made, machine)
        with pytest.raises(PlanError):
            prove_plan(plan, check(plan))
        with Executor(plan) as executor:
            found = verified_run(executor, seed=number, values=("exact", "normal")[number % 2])
            assert not found.ok, number


def test_a_stored_plan_without_its_scales_is_refused() -> None:
    plan = plan_with()
    assert codec.from_json(codec.to_json(plan)) == plan
    without = replace(plan, tensors=tuple(t for t in plan.tensors if t.name != "A.scales"))
    with pytest.raises(PlanError, match=r"A is scaled 1x128, and its scales are not in the plan"):
        check(without)
    (stream, launch), *_ = plan.launches()
    work = launch.works[0]
    bare = replace(launch, works=(replace(work, body=replace(work.body, scales=())),))
    commands = tuple(bare if command is launch else command for command in stream.commands)
    streams = tuple(replace(s, commands=commands) if s is stream else s for s in plan.streams)
    with pytest.raises(PlanError, match="gemm: the scales that it reads are not those of its operands"):
        check(replace(plan, streams=streams))


@pytest.mark.parametrize("name", ["ag_gemm/streamed", "gemm_rs/ring", "a2a_gemm/serial"])
def test_damage_of_all_kinds_is_refused_or_right(name: str) -> None:
    graph = build(cases.schedule(name), RANKS, cases.scaled(name, RANKS, 0))
    refused = 0
    for mutant in mutants(graph, seed=1, count=96 if cases.ALL else 24):
        try:
            plan = plan_of(restaged(graph, mutant.ops), profile("h200-switch", RANKS))
        except ScheduleError:
            refused += 1
            continue
        with Executor(plan) as executor:
            assert verified_run(executor, values="exact").ok, mutant.what
    assert refused >= 12


def test_every_scaling_is_verified_on_the_host() -> None:
    for (left, right), (a, b) in product(SCALINGS[:6], [("fp8_e4m3", "fp8_e5m2"), ("fp8_e5m2", "fp8_e4m3")]):
        plan = plan_with(TA=f"{a} scaled {left}", TB=f"{b} scaled {right}", O="fp16")
        with Executor(plan) as executor:
            found = verified_run(executor)
            assert found.correct, (left, right, found)


WITHIN = """
schedule quantised_partials
param M = 48
param N = 32
param K = 96
type Result = bf16
input   A[M, K / ranks] : fp8_e4m3 scaled row
input   B[N, K / ranks] : fp8_e5m2 scaled row
output  C[M / ranks, N] : Result
scratch P[M, N] : fp8_e4m3
scratch S[M, N] : fp8_e4m3
computes C = reduce_scatter(A * B.T, rows) within fp8_e4m3
queue dma { engine = copy }
queue compute { engine = sm }
stage mm on compute { for p in all { gemm P.rows(p of ranks) = A.rows(p of ranks) * B.T } }
stage scatter on dma { for p in all { copy S.rows(rank of ranks) @ p <- P.rows(p of ranks) } }
stage add on compute { reduce C = sum(S.rows(all of ranks)) }
"""


@pytest.mark.parametrize("result", ["bf16", "fp32", "fp8_e4m3"])
def test_partial_sums_in_fp8_where_the_claim_admits_them(result: str) -> None:
    graph = build(ficco_dsl.parse(WITHIN, "within.ficco"), RANKS, {"Result": result})
    with Executor(plan_of(graph, profile("h200-switch", RANKS))) as executor:
        found = verified_run(executor)
        assert found.correct, found
        assert found.one_signed is not None
        assert found.tolerance < 0.4


@pytest.mark.parametrize("name", ["ag_gemm", "gemm_rs", "gemm_ar", "a2a_gemm"])
@pytest.mark.parametrize(("left", "right"), [("1x128", "128x128"), ("row", "tensor")])
def test_any_number_of_rows(name: str, left: str, right: str) -> None:
    """Scales that change nothing, powers of two, give what the values alone give, multiplied."""
    types = {"T": f"fp8_e4m3 scaled {left}", "Weight": f"fp8_e4m3 scaled {right}", "Sum": "fp32", "transb": 1}
    deep = {"gemm_rs": 160 * RANKS, "gemm_ar": 160 * RANKS}.get(name, 160)
    with ficco.Workspace(RANKS, "host") as workspace:
        operation = ficco.Operation(workspace, name, max_m=40, buckets=(16,), N=24 * RANKS, K=deep, **types)
        for turn, m in enumerate((5, 16, 17, 40)):
            given, expected = cases.numbers(name, RANKS, m, 24 * RANKS, deep, turn, transb=1)
            inputs = [n for n in given if n not in expected]
            pairs: dict[str, list[object]] = {}
            for number, n in enumerate(inputs):
                scaling = (left, right)[number]
                down, across = BLOCKS[scaling]  # type: ignore[index]
                pairs[n] = []
                for values in given[n]:
                    shape = -(-values.shape[0] // down), -(-values.shape[1] // across // 4) * 4 if across else 1
                    pairs[n].append(
                        (values.astype(numpy_dtype("fp8_e4m3")), np.full(shape, 2.0 ** (number + 1), np.float32))
                    )
            operation.run(**pairs, **{n: given[n] for n in expected})
            for n, arrays in expected.items():
                assert all(np.array_equal(got, 8 * w) for got, w in zip(given[n], arrays, strict=True)), (name, m)
