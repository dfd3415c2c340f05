"""Shipped schedules with scaled fp8 operands, on eight ranks: right numbers on streams and as a graph."""

from __future__ import annotations

from datetime import date

import pytest

from ficco_rt.compiler import build, plan_of
from ficco_rt.driver.api import GpuName
from ficco_rt.driver.registry import discover
from ficco_rt.exec.executor import Executor
from ficco_rt.exec.verify import check_replay, verified_run
from tests import cases
from tests.gpu.apart import apart

RANKS, LIMIT = 8, 300  # seconds


def right(backend: GpuName, each: int, names: list[str]) -> bool:
    machine, wrong = discover(backend, RANKS, each), 0
    for name in names:
        turn = cases.SCALED.index(name)
        plan = plan_of(build(cases.schedule(name), RANKS, cases.scaled(name, RANKS, turn)), machine)
        with Executor(plan, backend, machine=machine, ranks_per_gpu=each, timeout=30) as executor:
            found = verified_run(executor)
            print(f"{name}: {found}", flush=True)
            check_replay(executor)
            wrong += not found.correct
    return not wrong


@pytest.mark.parametrize("operation", ["ag_gemm", "gemm_rs", "gemm_ar", "a2a_gemm"])
def test_eight_ranks(operation: str, backend: str, gpus: int) -> None:
    names = [name for name in cases.SCALED if name.startswith(operation)]
    few = cases.few(names, 3, date.today().toordinal())
    apart(right, backend, -(-RANKS // gpus), list(few), limit=LIMIT)


def pairs(backend: GpuName, each: int) -> bool:
    """PyTorch's tensors of float8 with scales of fp32, against their product in fp32."""
    import torch

    ranks = 2
    types = {"T": "fp8_e4m3 scaled 1x128", "Weight": "fp8_e4m3 scaled 128x128", "Sum": "bf16", "transb": 1}
    sizes = {"M": 1024, "N": 768, "K": 1536, **types}
    machine = discover(backend, ranks, each)
    plan = plan_of(build(cases.schedule("ag_gemm/streamed"), ranks, sizes), machine)
    torch.manual_seed(0)
    devices = [torch.device("cuda", rank // each) for rank in range(ranks)]
    given = {}
    for name, rows, blocks in (("A", 512, (512, 12)), ("B", 384, (3, 12))):
        given[name] = [
            (torch.randn(rows, 1536, device=d).to(torch.float8_e4m3fn), torch.rand(blocks, device=d) + 0.5)
            for d in devices
        ]
    y = [torch.empty(1024, 384, dtype=torch.bfloat16, device=d) for d in devices]
    plain = {
        name: [v.float() * s.repeat_interleave(v.shape[0] // s.shape[0], 0).repeat_interleave(128, 1) for v, s in of]
        for name, of in given.items()
    }
    with Executor(plan, backend, machine=machine, ranks_per_gpu=each, timeout=30) as executor:
        for executor.graph in (False, True):
            for out in y:
                out.fill_(float("nan"))
            torch.cuda.synchronize()
            executor.run(A=given["A"], B=given["B"], C=y)
            for rank, out in enumerate(y):
                wanted = torch.cat([a.to(devices[rank]) for a in plain["A"]]) @ plain["B"][rank].T
                off = ((out.float() - wanted).abs().max() / wanted.abs().max()).item()
                print(f"rank {rank}, graph {executor.graph}: off by {off:.1e} of the largest", flush=True)
                if not off < 5e-3:
                    return False
    return True


@pytest.mark.torch
def test_pairs_of_pytorch(backend: str, gpus: int) -> None:
    apart(pairs, backend, -(-2 // gpus), limit=LIMIT)


def same_bits(backend: GpuName, each: int) -> bool:
    """Scales of rows, and K so short that one step of the tensor cores adds it up: as `torch._scaled_mm`."""
    import torch

    types = {"T": "fp8_e4m3 scaled row", "Weight": "fp8_e4m3 scaled row", "Sum": "bf16", "transb": 1}
    machine = discover(backend, 2, each)
    plan = plan_of(build(cases.schedule("ag_gemm/serial"), 2, {"M": 1024, "N": 1024, "K": 64, **types}), machine)
    torch.manual_seed(0)
    devices = [torch.device("cuda", rank // each) for rank in range(2)]
    a, b = (
        [(torch.rand(512, 64, device=d).to(torch.float8_e4m3fn), torch.rand(512, 1, device=d) + 0.1) for d in devices]
        for _ in "AB"
    )
    y = [torch.full((1024, 512), float("nan"), dtype=torch.bfloat16, device=d) for d in devices]
    with Executor(plan, backend, machine=machine, ranks_per_gpu=each, timeout=30) as executor:
        executor.run(A=a, B=b, C=y)
    for device, out, (weight, of_weight) in zip(devices, y, b, strict=True):
        values, scales = (torch.cat([one[part].to(device) for one in a]) for part in (0, 1))
        wanted = torch._scaled_mm(values, weight.t(), scales, of_weight.t(), out_dtype=torch.bfloat16)
        print(f"{(out != wanted).sum().item()} of {out.numel()} differ", flush=True)
        if not torch.equal(out, wanted):
            return False
    return True


@pytest.mark.torch
def test_same_bits_as_pytorch(backend: str, gpus: int) -> None:
    apart(same_bits, backend, -(-2 // gpus), limit=LIMIT)
