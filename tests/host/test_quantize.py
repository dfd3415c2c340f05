"""`quantize` on the host: bit for bit what an independent implementation makes, and that wrong scales show."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.api import DriverName
from ficco_rt.driver.registry import discover
from ficco_rt.errors import ScheduleError
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.geometry.region import Axis, Interval
from ficco_rt.graph import ir
from ficco_rt.graph.functions import FUNCTIONS
from ficco_rt.graph.prove import prove
from ficco_rt.machine.profiles import profile
from ficco_rt.plan import codec
from ficco_rt.plan.check import check
from ficco_rt.plan.ir import CopyAsync, WaitFlag
from ficco_rt.plan.prove import prove as prove_plan
from ficco_rt.types import BLOCKS, TYPES, Scaling, numpy_dtype
from tests import cases
from tests.host.graph_damage import restaged

GATHERED = """
schedule gathered
param M = 384
param N = 64
param K = 320
input   A[M / ranks, K] : bf16
input   B[N, K]         : fp8_e4m3 scaled 128x128
output  C[M, N]         : bf16
output  G[M, K]         : fp8_e4m3 scaled 1x128
scratch Q[M / ranks, K] : fp8_e4m3 scaled 1x128
computes C = all_gather(A, rows) * B.T within fp8_e4m3
computes G = all_gather(A, rows) within fp8_e4m3
queue dma     { engine = copy }
queue compute { engine = sm }
stage round on compute {
  for c in 0..2 { quantize Q.rows(c of 2) = A.rows(c of 2) }
}
stage gather on dma {
  for c in 0..2, p in all { copy G.rows(rank of ranks, c of 2) @ p <- Q.rows(c of 2) }
}
stage mm on compute { gemm C = G * B.T }
"""

ONE = """
schedule one
param R = 24
param C = 300
type T = bf16
type To = fp8_e4m3 scaled 1x128
input  A[R, C] : T
input  X[R, C] : fp32
input  S[1]    : fp32
output Q[R, C] : To
computes Q = {value} within fp8_e4m3, fp8_e5m2
queue compute {{ engine = sm }}
stage round on compute {{ for c in 0..3 {{ quantize Q.rows(c of 3) = {of} }} }}
"""

WAYS = {  # what is claimed, and what is written
    "plain": ("A", "A.rows(c of 3)"),
    "pow2": ("A", "A.rows(c of 3) with scale = pow2"),
    "given": ("A", "A.rows(c of 3) / S"),
    "sum": ("A + X", "sum(A.rows(c of 3), X.rows(c of 3))"),
    "silu_mul": ("silu_mul(A, X)", "silu_mul(sum(A.rows(c of 3)), X.rows(c of 3))"),
}


def text_of(way: str) -> str:
    value, of = WAYS[way]
    return ONE.format(value=value, of=of)


def extreme(rng: np.random.Generator, shape: tuple[int, int], dtype: str, *, finite: bool = False) -> np.ndarray:
    """Rows of zeros, of the smallest and of the largest numbers, of powers of two and their neighbours, with infinities
    and NaN, and of any bits at all."""
    of, rows = TYPES[dtype], rng.standard_normal(shape, np.float32)
    rows[0], rows[1, :5], rows[2, ::7] = 0, of.smallest, -of.largest
    rows[3], rows[4, 130:140], rows[5, 3], rows[5, 200] = 2.0 ** rng.integers(-12, 12, shape[1]), 0, np.inf, np.nan
    rows[6], rows[7, -1], rows[8] = (
        np.nan,
        -np.inf,
        448 * np.nextafter(2.0 ** np.arange(shape[1]) % 9, 99, dtype=np.float32),
    )
    rows[9], rows[10, 128:256] = -0.0, 1e-10
    with np.errstate(over="ignore"):
        made = rows.astype(numpy_dtype(dtype))
    bits = made.view(f"u{made.dtype.itemsize}")
    bits[11:14] = rng.integers(0, 1 << (8 * made.dtype.itemsize), (3, shape[1]), bits.dtype)
    return np.nan_to_num(made.astype(np.float32)).astype(made.dtype) if finite else made


def independent(
    x: np.ndarray, dtype: str, scaling: Scaling, way: str, given: np.float32
) -> Iterator[tuple[bytes, np.float32]]:
    """The bits of each group's elements, and its scale: written down again, group by group."""
    most, f = np.float32(TYPES[dtype].largest), np.float32
    across = BLOCKS[scaling][1] or x.shape[1]
    for row in x:
        for at in range(0, len(row), across):
            group = [f(v) for v in row[at : at + across]]
            size = max([abs(v) for v in group if v == v], default=f(0))
            if way == "given":
                scale, by = given, f(1) / given
            elif scaling == "row":
                scale = max(size / most, f(1) / (most * f(512)))
            else:
                scale = max(size, f(1e-10)) / most
            if way == "pow2":
                low = np.log2(float(max(scale, f(1e-10)))) if np.isfinite(scale) else np.inf
                scale = f(2.0 ** np.ceil(float(f(low))))
            made = []
            for v in group:
                q = v * by if way == "given" else v / scale
                wrong = most if way == "given" or scaling == "row" else -most
                made.append(wrong if q != q else min(max(q, -most), most))
            yield np.array(made, f).astype(numpy_dtype(dtype)).tobytes(), scale


CASES = [
    (taken, made, scaling, way)
    for way in WAYS
    for taken in ("bf16", "fp16", "fp32")
    for made in ("fp8_e4m3", "fp8_e5m2")
    for scaling in ("row", "1x128")
]


@pytest.mark.parametrize(("taken", "made", "scaling", "way"), cases.few(CASES, 20, 0))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_bit_for_bit(taken: str, made: str, scaling: Scaling, way: str) -> None:
    rng = np.random.default_rng(CASES.index((taken, made, scaling, way)))
    graph = build(ficco_dsl.parse(text_of(way), "one.ficco"), 1, {"T": taken, "To": f"{made} scaled {scaling}"})
    a, x = extreme(rng, (24, 300), taken), extreme(rng, (24, 300), "fp32", finite=True)
    given = np.array([0.375], np.float32)
    q = np.zeros((24, 300), numpy_dtype(made)), np.full((24, 4 if scaling == "1x128" else 1), np.nan, np.float32)
    with Executor(plan_of(graph, profile("h200-switch", 1))) as executor:
        executor.run(A=[a], X=[x], S=[given], Q=[q])
    wide = a.astype(np.float32)
    value = wide + x if way == "sum" else FUNCTIONS["silu_mul"].of(wide) * x if way == "silu_mul" else wide
    groups = list(independent(value, made, scaling, way, given[0]))
    assert b"".join(bits for bits, _ in groups) == q[0].tobytes()
    wanted = np.array([scale for _, scale in groups], np.float32).reshape(24, -1)
    assert np.array_equal(q[1][:, : wanted.shape[1]], wanted)
    assert not q[1][:, wanted.shape[1] :].any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("scaling", ["row", "1x128"])
def test_verified(way: str, scaling: str) -> None:
    graph = build(ficco_dsl.parse(text_of(way), "one.ficco"), 2, {"To": f"fp8_e4m3 scaled {scaling}"})
    plan = plan_of(graph, profile("h200-switch", 2))
    assert codec.from_json(codec.to_json(plan)) == plan
    with Executor(plan) as executor:
        found = verified_run(executor)
        assert found.correct, found


def test_a_given_scale_of_a_tensor() -> None:
    graph = build(ficco_dsl.parse(text_of("given"), "one.ficco"), 2, {"To": "fp8_e4m3 scaled tensor"})
    with Executor(plan_of(graph, profile("h200-switch", 2))) as executor:
        assert verified_run(executor).correct


def test_gathered() -> None:
    with Executor(plan_of(build(ficco_dsl.parse(GATHERED, "g.ficco"), 4), profile("h200-switch", 4))) as executor:
        found = verified_run(executor)
        assert found.correct, found


RUNS = [(way, scaling, columns) for way in WAYS for scaling in ("row", "1x128") for columns in (300, 320)]


def run(backend: DriverName, way: str, scaling: str, columns: int, seed: int) -> tuple[bytes, bytes]:
    """The values and scales of a run on extreme numbers."""
    rng = np.random.default_rng(seed)
    types = {"T": ("bf16", "fp16", "fp32")[seed % 3], "To": f"fp8_e{('4m3', '5m2')[seed % 2]} scaled {scaling}"}
    graph = build(ficco_dsl.parse(text_of(way), "one.ficco"), 1, {"C": columns, **types})
    machine = profile("h200-switch", 1) if backend == "host" else discover(backend, 1)
    with Executor(plan_of(graph, machine), backend) as executor:
        executor.write("A", 0, extreme(rng, (24, columns), types["T"], finite=way == "silu_mul"))
        executor.write("X", 0, extreme(rng, (24, columns), "fp32", finite=True) % 99)
        executor.write("S", 0, np.array([0.375], np.float32))
        executor.run()
        return executor.read("Q", 0).tobytes(), executor.read("Q.scales", 0).tobytes()


# ---------------------------------------------------------------- wrong scales show

TWO = GATHERED.replace(
    "  for c in 0..2 { quantize Q.rows(c of 2) = A.rows(c of 2) }",
    "  quantize Q.rows(0 of 2) = A.rows(0 of 2)\n  quantize Q.rows(1 of 2) = A.rows(1 of 2) with scale = pow2",
)


def swapped(graph: ir.Graph, rng: random.Random) -> tuple[ir.Op, ...]:
    """The ops with a statement that computes scales of other values, or in another way, or writes them elsewhere."""
    ops = list(graph.ops)
    made = [i for i, op in enumerate(ops) if isinstance(op.body, ir.Quantize)]
    i = rng.choice(made)
    body = ops[i].body
    assert isinstance(body, ir.Quantize)
    match rng.choice(("other", "late", "again")):
        case "other":  # the scales of the other half
            j = next(j for j in made if j != i and ops[j].where.rank == ops[i].where.rank)
            other = ops[j].body
            assert isinstance(other, ir.Quantize)
            ops[i] = replace(ops[i], body=replace(body, terms=other.terms))
        case "late":  # the copies of scales first, of what was there before
            mine = [(k, op.body) for k, op in enumerate(ops) if op.where.rank == ops[i].where.rank]
            first = next(k for k, b in mine if isinstance(b, ir.Copy) and b.src == body.scales)
            ops.insert(i, ops.pop(first))
        case "again":  # computed anew, in another way, after the scales were copied
            mine = [(k, op.body) for k, op in enumerate(ops) if op.where.rank == ops[i].where.rank]
            at = next(k for k, b in mine if isinstance(b, ir.Copy) and b.src == body.out)
            ops.insert(at, replace(ops[at], body=replace(body, pow2=not body.pow2)))
    return tuple(ops)


def test_both_proofs_see_scales_of_other_values() -> None:
    graph, machine = build(ficco_dsl.parse(TWO, "two.ficco"), 4), profile("h200-switch", 4)
    right = plan_of(graph, machine)
    prove_plan(right, check(right))
    for number in range(40 if cases.ALL else 12):
        made = restaged(graph, swapped(graph, random.Random(number)))
        with pytest.raises(ScheduleError):
            prove(made)


# ---------------------------------------------------------------- streamed stages, and products of functions


def test_a_piece_is_copied_while_the_next_one_is_quantized() -> None:
    """To the first destination with its own scales; to the others all scales go at once."""
    sizes = {"M": 64, "N": 24, "K": 160, "chunks": 4, "pieces": 2}
    plan = plan_of(build(cases.schedule("quantized/ag_gemm_streamed"), 4, sizes), profile("h200-switch", 4))
    made = next(launch for _, launch in plan.launches() if isinstance(launch.works[0].body, ir.Quantize))
    assert made.streamed
    assert [work.signals for work in made.works] == [(0,), (1,)]
    dma = next(s for s in plan.streams if s.rank == 0 and s.queue == "dma")
    seen = [
        command.flag
        if isinstance(command, WaitFlag)
        else [(t.dst.rank, t.src.tensor, t.src.shape[0]) for t in command.transfers]
        for command in dma.commands
        if isinstance(command, WaitFlag | CopyAsync)
    ]
    one, two = ([(rank, "Q.scales", 8), (rank, "Q", 4)] for rank in (1, 1))
    assert seen[:6] == [0, one, [(1, "Q", 4)], 1, two, [(1, "Q", 4)]]
    assert seen[6] == [(2, "Q.scales", 16), (2, "Q", 4)]
    assert sum(t[1] == "Q.scales" for found in seen if isinstance(found, list) for t in found) == 4


@pytest.mark.parametrize(
    "name", ["quantized/gemm_rs_serial", "quantized/gemm_rs_streamed", "quantized/ag_gemm_streamed"]
)
@pytest.mark.parametrize("scaling", ["1x128", "row"])
def test_eight_ranks(name: str, scaling: str) -> None:
    sizes = cases.sizes(name, 8, even=True) | {"K": 2048, "T": "bf16", "Weight": f"fp8_e4m3 scaled {scaling}"}
    sizes |= {"Rounded" if "rs" in name else "Sent": f"fp8_e4m3 scaled {scaling}"}
    sizes["Weight"] = "fp8_e4m3 scaled 128x128" if scaling == "1x128" else sizes["Weight"]
    plan = plan_of(build(cases.schedule(name), 8, sizes), profile("h200-switch", 8))
    assert codec.from_json(codec.to_json(plan)) == plan
    with Executor(plan) as executor:
        found = verified_run(executor)
        assert found.correct, found
        assert found.integers


@pytest.mark.parametrize("seed", range(2))
def test_wrong_gates_show(seed: int) -> None:
    """In the proof: a rank that takes another function, other rows, or the factor for the argument."""
    graph = build(cases.schedule("quantized/gemm_rs_serial"), 4, {"M": 64, "N": 48, "K": 1024})
    at = [i for i, op in enumerate(graph.ops) if isinstance(op.body, ir.Quantize)][seed]
    body = graph.ops[at].body
    assert isinstance(body, ir.Quantize)
    assert body.factor is not None
    rows = body.terms[0].axes[0]
    other = replace(body.terms[0], axes=(Axis((Interval(32, 64), Interval(0, 32))), body.terms[0].axes[1]))
    assert rows.size == 64
    for wrong in (
        replace(body, function=None, factor=None),
        replace(body, function="gelu", factor=None),
        replace(body, terms=(body.factor,), factor=body.terms[0]),
        replace(body, terms=(other,)),
        replace(body, terms=(*body.terms, body.factor)),
    ):
        ops = list(graph.ops)
        ops[at] = replace(ops[at], body=wrong)
        with pytest.raises(ScheduleError):
            prove(restaged(graph, tuple(ops)))
