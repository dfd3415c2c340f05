"""Operations whose rows are known when they run, on the host: every m, in any order, and what does not fit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from ml_dtypes import float8_e4m3fn

import ficco_dsl
import ficco_rt as ficco
from ficco_rt.compiler import build, plan_of
from ficco_rt.errors import UsageError
from ficco_rt.exec import padded
from ficco_rt.exec.executor import Executor
from ficco_rt.files import shipped
from ficco_rt.geometry.rows import Rows
from ficco_rt.machine.profiles import profile
from ficco_rt.plan.ir import Launch
from tests import cases

RANKS, N, K, MOST = 4, 128, 64, 600
DRAWN = MOST + 1 if cases.ALL else 4
OPERATIONS = tuple(shipped.operations())


@pytest.fixture(scope="module")
def operations() -> Iterator[dict[str, ficco.Operation]]:
    with ficco.Workspace(RANKS, "host") as workspace:
        sizes: dict[str, Any] = {"N": N, "K": K, "T": "fp32"}
        buckets = (16, 64, 200)
        yield {n: ficco.Operation(workspace, n, max_m=MOST, buckets=buckets, **sizes) for n in OPERATIONS}


def tensors(operation: str, m: int, seed: int, **sizes: object) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Inputs and spoilt outputs with m rows a rank, and what must come out."""
    return cases.numbers(operation, RANKS, m, N, K, seed, **sizes)


def test_every_number_of_rows(operations: dict[str, ficco.Operation]) -> None:
    """FICCO_ALL=1: 0 to 600 of every operation, one behind another by chance, each in an order of its own; else a draw,
    with the ends of the buckets."""
    chance = random.Random(5)
    edges = [0, 1, 15, 16, 17, 64, 65, 200, MOST]
    asked = [(name, m) for name in OPERATIONS for m in chance.sample([*range(MOST + 1)], DRAWN) + edges]
    chance.shuffle(asked)
    for turn, (name, m) in enumerate(asked):
        given, wanted = tensors(name, m, turn)
        operations[name].executor(m).order = chance.choice(("fifo", "adversarial", f"random({turn})"))
        operations[name].run(**given)
        assert all(np.array_equal(given[t], w) for t, w in wanted.items()), (turn, name, m)
    for operation in operations.values():
        assert operation.buckets == (16, 64, 200, MOST)
        assert operation.executor(65) is operation.executor(200)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if not name.endswith("backward")])
def test_weights_as_linear_stores_them(name: str) -> None:
    sizes: dict[str, Any] = {"transb": 1} if name == "gemm_a2a" else {"transb": 1, "bias": 1}
    with ficco.Workspace(RANKS, "host") as workspace:
        operation = ficco.Operation(workspace, name, max_m=40, buckets=(8,), N=N, K=K, T="fp32", **sizes)
        for m in (0, 3, 8, 9, 40):
            given, wanted = tensors(name, m, m, **sizes)
            assert ("b" in given) == ("bias" in sizes)
            operation.run(**given)
            assert all(np.array_equal(given[t], w) for t, w in wanted.items()), m
        usual, _ = tensors(name, 3, 0, **{**sizes, "transb": 0})
        with pytest.raises(UsageError, match=r"input [BW], rank 0: wanted fp32 of shape"):
            operation.run(**usual)


@pytest.mark.parametrize("name", cases.SCALED_OPERATIONS)
def test_values_and_scales(name: str) -> None:
    """Scales of blocks, 2 and 4, whose rows are those of the values."""
    k = 160 * RANKS if name in ("gemm_rs", "gemm_ar") else 160
    types = {"T": "fp8_e4m3 scaled 1x128", "Weight": "fp8_e4m3 scaled 128x128", "Sum": "fp32", "transb": 1}
    with ficco.Workspace(RANKS, "host") as workspace:
        operation = ficco.Operation(workspace, name, max_m=40, buckets=(16,), N=N, K=k, **types)
        for m in (0, 1, 16, 17, 40):
            values, wanted = cases.numbers(name, RANKS, m, N, k, m, transb=1)
            given: dict[str, Any] = {"C": values.pop("C")}
            for tensor, arrays in values.items():
                of_weight = tensor in "BW"
                blocks = [(-(-len(array) // 128) if of_weight else len(array), 4) for array in arrays]
                number = np.nan if tensor == "R" else 4 if of_weight else 2
                scales = [np.full(shape, number, np.float32) for shape in blocks]
                given[tensor] = [*zip([array.astype(float8_e4m3fn) for array in arrays], scales, strict=True)]
            operation.run(**given)
            assert all(np.array_equal(y, 8 * right) for y, right in zip(given["C"], wanted["C"], strict=True)), m
            for (kept, scales), right in zip(given.get("R", ()), wanted.get("R", ()), strict=True):
                assert np.array_equal(kept.astype(np.float32), right)
                assert (scales[:, :2] == 2).all()


GRADIENT = """schedule gradient
param M = 64
input A[M / ranks, 8] : fp32
input D[M, 4] : fp32
output W[8, 4] : fp32
scratch G[M, 8] : fp32
computes W = all_gather(A.T, cols) * D
queue copies  { engine = copy }
queue compute { engine = sm }
stage own on copies { copy G.rows(rank of ranks) <- A }
stage share on copies { for p in peers { copy G.rows(rank of ranks) @ p <- A } }
stage mm on compute { gemm W = G.T * D }
"""


def test_sums_over_rows() -> None:
    """Over those that are there; of none, zeros."""
    rng, text = np.random.default_rng(0), ficco_dsl.parse(GRADIENT, "gradient.ficco")
    plan = plan_of(build(text, RANKS, {}), profile("h200-switch", RANKS))
    with ficco.Workspace(RANKS, "host") as workspace, Executor(plan, workspace=workspace) as executor:
        for m in (0, 1, 13, 16):
            a, d = (rng.integers(-2, 3, (RANKS, *shape)).astype(np.float32) for shape in ((m, 8), (m * RANKS, 4)))
            w = [np.full((8, 4), np.nan, np.float32) for _ in range(RANKS)]
            rows = Rows(16, m, {"A": 1, "D": RANKS})
            padded.run(workspace, executor, {"A": [*a], "D": [*d], "W": w}, rows, 16, None, None, {})
            assert all(np.array_equal(found, a.reshape(-1, 8).T @ of) for found, of in zip(w, d, strict=True))


def test_buckets_are_powers_of_two() -> None:
    with ficco.Workspace(RANKS, "host") as workspace:
        operation = ficco.Operation(workspace, "ag_gemm", max_m=100, N=N, K=K)
        assert operation.buckets == (16, 32, 64, 100)
        assert [operation.bucket(m) for m in (0, 1, 16, 17, 100)] == [16, 16, 16, 32, 100]
        assert ficco.Operation(workspace, "ag_gemm", max_m=3, N=N, K=K).buckets == (3,)
        assert not workspace.memory


def test_mistakes(operations: dict[str, ficco.Operation]) -> None:
    operation = operations["ag_gemm"]
    given, _ = tensors("ag_gemm", 5, 1)
    wrong: list[tuple[dict[str, Any], str]] = [
        (given | {"A": [np.ones((601, K), np.float32)] * RANKS}, "601 rows of a rank, and the operation takes 600"),
        (
            given | {"A": [*given["A"][:3], given["A"][3][:4]]},
            r"input A, rank 3: wanted fp32 of shape \[5, 64\]; given fp32 of shape \[4, 64\]: all ranks have the same "
            "number of rows, 5 as A of the first one",
        ),
        (given | {"C": [c[:19] for c in given["C"]]}, r"output C, rank 0: wanted fp32 of shape \[20, 32\]; given"),
        (given | {"B": given["B"][:2]}, "B: wanted a list of 4, one a rank; given 2"),
        (given | {"B": 5}, "B: wanted a list of 4, one a rank; given one int"),
        (given | {"streams": []}, "streams: wanted one a rank, 4; given 0"),
        (given | {"D": given["B"]}, "give each of A, B, C, and nothing else; D is not so"),
        ({"A": given["A"], "B": given["B"]}, "give each of A, B, C, and nothing else; C is not so"),
        (given | {"A": []}, "A: wanted a list of tensors, one a rank, whose rows tell how many there are"),
        (given | {"C": [c.T.copy().T for c in given["C"]]}, "given one with gaps or another order of dimensions"),
    ]
    for more, said in wrong:
        with pytest.raises(UsageError, match=said):
            operation.run(**more)
    rows, _ = tensors("gemm_rs", 5, 1)
    with pytest.raises(UsageError, match="A has 19 rows, which are not the same number of 4 ranks"):
        operations["gemm_rs"].run(**(rows | {"A": [a[:19] for a in rows["A"]]}))


def test_no_ranks() -> None:
    with pytest.raises(UsageError, match="ranks is a number of ranks, at least 1; given 0"):
        ficco.Workspace(0, "host")


def test_operations_that_are_none() -> None:
    with ficco.Workspace(RANKS, "host") as workspace:
        made: list[tuple[str, dict[str, Any], str]] = [
            ("concurrent", {}, "'concurrent' has no number of rows that may change; ag_gemm, ag_gemm_kept, "),
            ("ag_gemm", {"M": 64}, "M is given by the tensors of each run: say max_m"),
            ("gemm_a2a", {"counts": [[1]]}, "counts is given by the tensors of each run: say max_m"),
            ("ag_gemm", {"max_m": 0}, "max_m is a number of rows, at least 1; given 0"),
            ("ag_gemm", {"leave": -1}, "leave is a number of multiprocessors, 0 or more; given -1"),
            ("ag_gemm", {"buckets": (0,)}, "a bucket is a number of rows, at least 1; given 0"),
            ("ag_gemm", {"buckets": 5}, r"buckets are numbers of rows, such as \[256, 1024\]; given 5"),
            ("ag_gemm", {"buckets": (65,)}, "a bucket of 65 rows is larger than max_m, 64"),
        ]
        for name, more, said in made:
            options = {"max_m": 64, "N": N, "K": K} | more
            with pytest.raises(UsageError, match=said):
                ficco.Operation(workspace, name, **options)


@pytest.mark.parametrize("name", OPERATIONS)
def test_launches_that_wait_leave_multiprocessors(name: str) -> None:
    """Also copies, which take no more than without it; a product that waits for nothing may take all."""
    held: dict[int, list[tuple[bool, int]]] = {}
    for leave in (0, 32):
        with ficco.Workspace(RANKS, "host") as workspace:
            operation = ficco.Operation(workspace, name, max_m=64, buckets=[64], leave=leave, N=N, K=K)
            plan = operation.executor(64).plan
            total = plan.target.device.sms
            launches = [c for s in plan.streams for c in s.commands if isinstance(c, Launch) and c.streamed]
            held[leave] = [(bool(launch.waits), launch.attributes.sms or total) for launch in launches]
    assert any(waits for waits, _ in held[0]) == (name in ("ag_gemm", "ag_gemm_kept", "gemm_rs", "gemm_ar"))
    assert held[32] == [(waits, min(sms, total - 32) if waits else sms) for waits, sms in held[0]]
