"""Copies by multiprocessors through the real GPU driver: one launch, streamed or not, in any order, with few blocks."""

from __future__ import annotations

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Launch
from tests.mock.standin import StandIn

FRAME = """
schedule gather

param M = 4
param N = 8
type T = bf16

input  A[M, N]         : T
output G[M * ranks, N] : T

computes G = all_gather(A, rows)

queue work { engine = sm  sms = 2 }

stage move on work OPTIONS {
  copy G.rows(rank of ranks) <- A
  REST
}
"""

PUSH = "for p in peers, c in 0..2 { copy G.rows(rank of ranks).cols(c of 2) @ p <- A.cols(c of 2) }"
RING = """
  step s in 1..ranks {
    let q = (rank + 1 - s) % ranks
    copy G.rows(q of ranks) @ (rank + 1) % ranks <- G.rows(q of ranks)
  }
"""


@pytest.mark.parametrize(("rows", "columns"), [(4, 8), (3, 7), (5, 8200)])
@pytest.mark.parametrize("options", ["", "streamed"])
@pytest.mark.parametrize("rest", [PUSH, RING], ids=["push", "ring"])
def test_right_in_every_order(library: StandIn, rest: str, options: str, rows: int, columns: int) -> None:
    """Tiles of few bytes and of many, accesses of 16 bytes down to 2; on streams and as a graph."""
    library.reset("devices 3; sms 4")
    schedule = ficco_dsl.parse(FRAME.replace("OPTIONS", options).replace("REST", rest), "copies.ficco")
    plan = plan_of(build(schedule, 3, {"M": rows, "N": columns}), discover(library.face, 3))
    launches = [c for s in plan.streams for c in s.commands if isinstance(c, Launch)]
    assert {(c.kernel, c.attributes.sms, c.streamed) for c in launches} == {("naive_copy", 2, bool(options))}
    with Executor(plan, library.face, timeout=30) as executor:
        for executor.graph in (False, True):
            for seed in range(10):
                library.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
                result = verified_run(executor, seed=seed)
                assert result.ok, f"seed {seed}, graph {executor.graph}: {result.worst}"
                assert result.rel_err == 0
    assert not library.violations()
    assert not library.live()
