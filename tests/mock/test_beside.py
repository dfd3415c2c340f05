"""Streamed launches beside one another on a device: together no more than it has, whichever comes first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.cuda.vendor import Cuda
from ficco_rt.driver.gpu.vendor import Grid
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import verified_run
from ficco_rt.plan.ir import Command, Launch, Plan
from tests.mock.standin import StandIn

GATHER = """
schedule gathered
param M = 384
param pushers = 2
input   A[M / ranks, 128] : bf16
input   B[128, 128]       : bf16
output  C[M, 128]         : bf16
scratch G[M, 128]         : bf16
computes C = all_gather(A, rows) * B
queue push    { engine = sm  sms = pushers }
queue compute { engine = sm }
stage gather on push streamed {
  for s in 0..ranks, c in 0..3 {
    copy G.rows(rank of ranks, c of 3) @ (rank + s) % ranks <- A.rows(c of 3)
  }
}
stage mm on compute streamed {
  for s in 0..ranks, c in 0..3 {
    gemm C.rows((rank + ranks - s) % ranks of ranks, c of 3) = G.rows((rank + ranks - s) % ranks of ranks, c of 3) * B
  }
}
"""
SCATTER = """
schedule scattered
param M = 384
param pushers = 2
input   A[M, 128]         : bf16
input   B[128, 128]       : bf16
output  C[M / ranks, 128] : bf16
scratch P[M, 128]         : bf16
scratch S[M, 128]         : bf16
computes C = reduce_scatter(A * B, rows)
queue push    { engine = sm  sms = pushers }
queue compute { engine = sm }
stage mm on compute streamed {
  for p in peers, c in 0..2 { gemm P.rows(p of ranks, c of 2) = A.rows(p of ranks, c of 2) * B }
  gemm P.rows(rank of ranks) = A.rows(rank of ranks) * B
}
stage scatter on push streamed {
  for p in peers, c in 0..2 { copy S.rows(rank of ranks, c of 2) @ p <- P.rows(p of ranks, c of 2) }
}
stage sum on compute streamed {
  for c in 0..2 {
    reduce C.rows(c of 2) = sum(P.rows(rank of ranks, c of 2), S.rows(peers of ranks, c of 2))
  }
}
"""


def made(library: StandIn, text: str, ranks: int, pushers: int | None = None, ranks_per_gpu: int = 1) -> Plan:
    given = {"pushers": pushers} if pushers else {}
    graph = build(ficco_dsl.parse(text, "beside.ficco"), ranks, given)
    return plan_of(graph, discover(library.face, ranks, ranks_per_gpu))


def right(library: StandIn, plan: Plan, ranks_per_gpu: int = 1) -> None:
    with Executor(plan, library.face, timeout=30, ranks_per_gpu=ranks_per_gpu) as executor:
        for executor.graph in (False, True):
            for seed in range(12):
                library.set(f"seed {seed}; call_steps {seed % 4}; query_steps 5000")
                result = verified_run(executor, seed=seed, values="exact")
                assert result.ok, f"seed {seed}, graph {executor.graph}: {result.worst}"
    assert not library.violations()
    assert not library.live()


@pytest.mark.parametrize(("sms", "pushers", "ranks_per_gpu"), [(4, 2, 1), (3, 1, 1), (12, 5, 1), (16, 2, 3)])
@pytest.mark.parametrize("text", [GATHER, SCATTER], ids=["gather", "scatter"])
def test_right_in_every_order(library: StandIn, text: str, sms: int, pushers: int, ranks_per_gpu: int) -> None:
    """As a device's only rank, and where ranks share it and all have less than they want."""
    library.reset(f"devices {3 // ranks_per_gpu}; sms {sms}")
    right(library, made(library, text, 3, pushers, ranks_per_gpu), ranks_per_gpu)


@pytest.mark.parametrize(
    ("kernel", "pushers", "ranks_per_gpu", "grids"),
    [
        ("sm90_gemm_64x64_c1", 3, 1, {("naive", 3, 1), ("sm90", 9, 1)}),
        ("sm90_gemm_128x128_c2", 3, 1, {("naive", 2, 2), ("sm90", 8, 2)}),
        ("sm90_gemm_128x128_c2", 1, 1, {("naive", 1, 1), ("sm90", 10, 2)}),
        ("sm90_gemm_128x128_c2", 6, 3, {("naive", 1, 1), ("sm90", 2, 2)}),
    ],
)
def test_copies_leave_clusters_their_room(
    cuda: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    pushers: int,
    ranks_per_gpu: int,
    grids: set[tuple[str, int, int]],
) -> None:
    cuda.reset(f"devices {3 // ranks_per_gpu}; arch sm_90; sms 12")
    seen = set()
    launch_action = Cuda.launch_action

    def launched(self: Cuda, function: Any, grid: Grid, arguments: Any, stream: Any) -> Any:
        seen.add(("naive" if grid.threads == (512,) else "sm90", *grid.blocks, grid.cluster))
        return launch_action(self, function, grid, arguments, stream)

    monkeypatch.setattr(Cuda, "launch_action", launched)

    def swapped(command: Command) -> Command:
        if not isinstance(command, Launch) or command.kernel == "naive_copy":
            return command
        return replace(command, kernel=kernel, attributes=replace(command.attributes, smem=200 << 10))

    plan = made(cuda, GATHER.replace("M = 384", "M = 4608"), 3, pushers, ranks_per_gpu)
    streams = tuple(replace(s, commands=tuple(map(swapped, s.commands))) for s in plan.streams)
    right(cuda, replace(plan, streams=streams), ranks_per_gpu)
    assert seen == grids


AWAITED = """
schedule awaited
input   A[256, 128]  : bf16
input   B[128, 128]  : bf16
output  C[256, 128]  : bf16
output  D[256, 128]  : bf16 unproven
scratch S[256, 128]  : bf16
computes C = A * B
queue first { engine = sm }
queue dma   { engine = copy }
queue next  { engine = sm  sms = 5 }
stage mm on first { gemm C = A * B }
stage move on dma { for p in peers { copy S @ p <- C } }
stage on_next on next streamed { gemm D = S * B }
"""


def test_launches_that_wait_leave_room_for_a_cluster_that_they_wait_for(cuda: StandIn) -> None:
    """Two ranks on five multiprocessors: with one left of two launches that wait, no cluster of two could begin."""
    cuda.reset("devices 1; arch sm_90; sms 5")
    plan = made(cuda, AWAITED, 2, ranks_per_gpu=2)

    def swapped(command: Command) -> Command:
        if not isinstance(command, Launch):
            return command
        kernel = "sm90_gemm_64x64_c1" if command.streamed else "sm90_gemm_128x128_c2"
        return replace(command, kernel=kernel, attributes=replace(command.attributes, smem=200 << 10))

    streams = tuple(replace(s, commands=tuple(map(swapped, s.commands))) for s in plan.streams)
    right(cuda, replace(plan, streams=streams), ranks_per_gpu=2)
