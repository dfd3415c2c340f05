"""`quantize` on a GPU: bit for bit as on the host and as PyTorch's arithmetic has it, and before an all-gather."""

from __future__ import annotations

import numpy as np
import pytest

import ficco_dsl
from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.api import GpuName
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import check_replay, verified_run
from tests import cases
from tests.gpu.apart import apart
from tests.host.test_quantize import GATHERED, RUNS, run, text_of

LIMIT = 300  # seconds


def as_on_the_host(backend: GpuName) -> bool:
    wrong = 0
    for seed, (way, scaling, columns) in enumerate(RUNS):
        wanted, found = (run(driver, way, scaling, columns, seed) for driver in ("host", backend))
        same = wanted == found
        if way == "silu_mul":  # whose own error is larger
            off = np.frombuffer(wanted[1], np.float32) / np.frombuffer(found[1], np.float32) - 1
            same = bool(np.nanmax(abs(off)) < 1e-5)
        print(f"{way}, {scaling}, {columns} columns: {'same' if same else 'WRONG'}", flush=True)
        wrong += not same
    return not wrong


def test_as_on_the_host(backend: str) -> None:
    apart(as_on_the_host, backend, limit=LIMIT)


def gathered(backend: GpuName, each: int) -> bool:
    machine, right = discover(backend, 8, each), True
    shipped = [(name, cases.sizes(name, 8, even=True)) for name in cases.SCHEDULES if name.startswith("quantized/")]
    graphs = [build(cases.schedule(name), 8, sizes | {"K": 512, "T": "bf16"}) for name, sizes in shipped]
    for graph in (build(ficco_dsl.parse(GATHERED, "gathered.ficco"), 8), *graphs):
        with Executor(plan_of(graph, machine), backend, machine=machine, ranks_per_gpu=each, timeout=30) as executor:
            found = verified_run(executor)
            print(f"{graph.schedule}: {found}", flush=True)
            check_replay(executor)
            right = right and found.correct
    return right


def test_gathered(backend: str, gpus: int) -> None:
    apart(gathered, backend, -(-8 // gpus), limit=LIMIT)


def as_pytorch(backend: GpuName) -> bool:
    """Large tensors, and scales that lie near powers of two; with the times of a run."""
    import torch

    near = torch.tensor([[2.0**e * (1 + k * 2.0**-23) * 448 for k in range(-8, 56)] for e in range(-33, 119)])
    right = True
    for rows, scaling, way, taken in (
        (16384, "1x128", "plain", "bf16"),
        (16384, "row", "plain", "bf16"),
        (16384, "1x128", "pow2", "bf16"),
        (64, "1x128", "plain", "bf16"),
        (near.numel() // 56, "1x128", "pow2", "fp32"),
    ):
        text = text_of(way).replace("c in 0..3", "c in 0..1").replace("c of 3", "c of 1")
        types = {"R": rows, "C": 7168, "T": taken, "To": f"fp8_e4m3 scaled {scaling}"}
        plan = plan_of(build(ficco_dsl.parse(text, "one.ficco"), 1, types), discover(backend, 1))
        torch.manual_seed(0)
        a = torch.randn(rows, 7168, device="cuda", dtype=getattr(torch, {"bf16": "bfloat16"}.get(taken, "float32")))
        if taken == "fp32":
            a = torch.zeros(rows, 56, 128, device="cuda")
            a[..., 77] = near.flatten()[: rows * 56].reshape(rows, 56).cuda()
            a = a.reshape(rows, 7168)
        across = 128 if scaling == "1x128" else 7168
        blocks, most = a.float().reshape(rows, -1, across), torch.tensor(448.0, device="cuda")  # NOTE / 448 multiplies
        size = blocks.abs().amax(-1)
        wanted = torch.clamp(size, min=1e-10) / most if across == 128 else torch.clamp(size / most, min=1 / (448 * 512))
        if way == "pow2":
            wanted = torch.exp2(torch.ceil(torch.log2(torch.clamp(wanted, min=1e-10))))
        values = torch.clamp(blocks / wanted[..., None], -448, 448).reshape(rows, 7168).to(torch.float8_e4m3fn)
        q = torch.zeros(rows, 7168, device="cuda", dtype=torch.float8_e4m3fn)
        found = torch.empty(rows, wanted.shape[1], device="cuda")
        x, s = torch.zeros(rows, 7168, device="cuda"), torch.ones(1, device="cuda")
        with Executor(plan, backend, timeout=30) as executor:
            bound = executor.bind(A=[a], X=[x], S=[s], Q=[(q, found)])
            executor.graph = True
            stream, begin, end = (torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in range(2)))
            for turn in range(60):
                if turn == 10:
                    begin.record(stream)
                executor.run(bound, streams=[stream])
            end.record(stream)
            torch.cuda.synchronize()
            same = torch.equal(found, wanted) and torch.equal(q.view(torch.uint8), values.view(torch.uint8))
        took = begin.elapsed_time(end) / 50
        print(
            f"{rows} x 7168 {taken}, {scaling}, {way}: {'same' if same else 'WRONG'}, {1e3 * took:.1f} us", flush=True
        )
        right = right and same
    return right


@pytest.mark.torch
def test_as_pytorch(backend: str, gpus: int) -> None:
    apart(as_pytorch, backend, limit=LIMIT)
