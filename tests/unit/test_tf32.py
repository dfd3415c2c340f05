"""`within tf32`: which products round their operands, what verification then admits, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ficco_dsl
from ficco_rt.compiler import build, lint, plan_of
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.inputs import exact_limit
from ficco_rt.exec.verify import verified_run
from ficco_rt.graph.ir import Gemm
from ficco_rt.machine.profiles import profile
from ficco_rt.plan import codec
from ficco_rt.plan.ir import Plan
from ficco_rt.sim.simulate import simulate

TEXT = """
schedule products
param M = 512
type T = fp32
input  A[M, 512] : T
input  B[512, 512] : T
output C[M, 512] : T
output D[M, 512] : T
computes C = A * B WITHIN
computes D = A * B OTHER
queue compute { engine = sm }
stage mm on compute {
  gemm C = A * B
  gemm D = A * B
}
"""


def plan(within: str, other: str | None = None, **params: object) -> Plan:
    text = TEXT.replace("WITHIN", within).replace("OTHER", within if other is None else other)
    return plan_of(build(ficco_dsl.parse(text, "products.ficco"), 1, params), profile("h200-switch", 1))


def rounded(made: Plan) -> list[bool]:
    return [w.body.tf32 for _, launch in made.launches() for w in launch.works if isinstance(w.body, Gemm)]


def test_products_are_rounded_where_all_claims_admit_it() -> None:
    assert rounded(plan("")) == [False, False]
    assert rounded(plan("within tf32", "")) == [False, False]
    assert rounded(plan("within bf16, tf32")) == [True, True]
    assert rounded(plan("within tf32", T="bf16")) == [False, False]
    made = plan("within tf32")
    assert [claim.text for claim in made.claims] == ["C = A * B within tf32", "D = A * B within tf32"]
    assert not any(claim.within for claim in made.claims)
    assert codec.from_json(codec.to_json(made)) == made
    assert codec.content_hash(made) != codec.content_hash(plan(""))


def test_another_word_is_unknown() -> None:
    with pytest.raises(ficco_dsl.ScheduleError, match="within unknown type 'tf31'"):
        plan("within tf31")


@pytest.mark.parametrize("values", ["normal", "one-signed"])
def test_the_bound_takes_in_the_rounding_and_no_coarser_one(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operands as tensor cores take them, and with two bits less, on the host."""
    whole = np.matmul

    def product(bits: int) -> object:
        def rounded(x: np.ndarray) -> np.ndarray:
            half, mask = np.uint32(1 << (bits - 1)), np.uint32(0xFFFFFFFF << bits & 0xFFFFFFFF)
            return ((np.ascontiguousarray(x).view(np.uint32) + half) & mask).view(np.float32)

        return lambda a, b, **kept: whole(rounded(a), rounded(b), **kept)

    def ok(within: str, bits: int) -> bool:
        with Executor(plan(within)) as executor:
            if bits:
                monkeypatch.setattr("ficco_rt.graph.ops.gemm.np.matmul", product(bits))
            found = verified_run(executor, values=values).ok
            monkeypatch.undo()
        return found

    assert ok("within tf32", 0)
    assert ok("within tf32", 13)
    if values == "normal":
        assert not ok("within tf32", 17)
        assert not ok("", 13)


def test_integers_stay_exact() -> None:
    assert exact_limit(plan("within tf32")) == 1 << 11
    assert exact_limit(plan("")) == 1 << 24


def test_it_is_faster_and_not_warned_of() -> None:
    machine = profile("h200-switch", 1)
    slow, fast = (simulate(plan(within, M=8192), machine).duration for within in ("", "within tf32"))
    assert 2 * fast < slow
    for within, count in (("", 1), ("within tf32", 0)):
        text = TEXT.replace("WITHIN", within).replace("OTHER", within)
        graph = build(ficco_dsl.parse(text, "products.ficco"), 1, {"M": 65536})
        assert len(lint(graph, machine)) == count
    made = plan("within tf32")
    assert replace(made.claims[0], tf32=False) != made.claims[0]
