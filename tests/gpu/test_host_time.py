"""What embedding costs the host: an executor's creation, the issue of a run, a replay; and that runs leave nothing.

Runs are on PyTorch tensors and streams, with as many ranks as GPUs, or those of `--ranks`; `-s` shows the times.
Kernels come from a warm cache: creation is measured on the second executor. `--long 10` makes 10,000 runs.
Free memory of a GPU counts what other processes take there: nothing else may use the GPUs meanwhile.
"""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any

import pytest

from ficco_rt import Executor, compile
from ficco_rt.driver.registry import discover
from ficco_rt.plan.ir import Plan
from tests.gpu.apart import apart

SIZE = 2048  # M, N and K
RUNS = 1000
LIMIT = 120  # seconds of a thousand runs, in both modes


@pytest.fixture
def ranks(request: pytest.FixtureRequest, gpus: int) -> int:
    return request.config.getoption("--ranks", 0) or gpus


@pytest.mark.torch
def test_runs_leave_nothing(ranks: int, each: int, long: int) -> None:
    apart(flat, "ag_gemm/hetero_fused_1d", ranks, each, RUNS * long, limit=LIMIT * long)


def flat(schedule: str, ranks: int, each: int, runs: int) -> bool:
    """What is held does not grow in at least a hundred runs; `each` ranks share a GPU."""
    import torch

    machine = discover("cuda", ranks, each)
    plan = compile(schedule, ranks=ranks, machine=machine, **dict.fromkeys("MNK", SIZE))
    devices = [torch.device("cuda", rank // each) for rank in range(ranks)]
    torch.zeros(1, device=devices[0])
    tensors: Any = {
        t.name: [torch.ones(s, dtype=torch.bfloat16, device=d) for s, d in zip(t.shapes, devices, strict=True)]
        for t in plan.tensors
        if t.kind != "scratch"
    }
    streams = [torch.cuda.Stream(d) for d in devices]
    commands = sum(len(s.commands) for s in plan.streams)
    print(f"{schedule} on {machine.name}, {ranks} ranks, {SIZE}³, {commands} commands")
    for _ in range(2):
        begun = time.perf_counter()
        executor = Executor(plan, "cuda", ranks_per_gpu=each, timeout=60)
        made = time.perf_counter()
        executor.run(streams=streams, **tensors)
        executor.synchronize()
        ran = time.perf_counter()
        executor.close()
    print(
        f"executor made in {1e3 * (made - begun):.1f} ms; with its first run, which binds, {1e3 * (ran - begun):.1f} ms"
    )
    good = True
    for graph in (False, True):
        good &= loop(torch, plan, each, graph, streams, tensors, runs, commands)
    return good


def loop(
    torch: Any, plan: Plan, each: int, graph: bool, streams: list[Any], tensors: Any, runs: int, commands: int
) -> bool:
    """Time the host in `runs` runs, each waited for; what is held must not grow after the first few."""
    devices = sorted({s.device.index for s in streams})
    with Executor(plan, "cuda", ranks_per_gpu=each, graph=graph, timeout=60) as executor:
        bound = executor.bind(**tensors)
        issued, whole, looked = [], [], []
        seen: list[tuple[int, Any, list[int], int]] = []
        for i in range(runs):
            begun = time.perf_counter()
            if i % 2:
                executor.run(bound, streams=streams)
                whole.append(time.perf_counter() - begun)
            else:
                executor.run(streams=streams, **tensors)
                looked.append(time.perf_counter() - begun)
            issued.append(executor.issued_in)
            executor.synchronize()
            if i + 1 in (1, 100, 1000, 3000, 10000, runs):
                free = [torch.cuda.mem_get_info(d)[0] for d in devices]
                seen.append((i + 1, executor.holdings, free, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        host = statistics.median(issued[10:])
        how = "graph replay" if graph else f"on streams, {host / commands:.2f} µs a command,"
        print(
            f"{how} host {host:.1f} µs (p90 {sorted(issued)[int(0.9 * runs)]:.1f}); run(bound) "
            f"{1e6 * statistics.median(whole):.1f} µs, run(tensors) {1e6 * statistics.median(looked):.1f} µs"
        )
        for at, held, free, rss in seen:
            print(f"  after {at:6} runs: {held}, free KiB {[f >> 10 for f in free]}, host peak {rss >> 10} MiB")
        later = [s for s in seen if s[0] >= 100]
        return later[0][1:3] == later[-1][1:3]
