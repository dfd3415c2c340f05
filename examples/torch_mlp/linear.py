"""all_gather + nn.Linear as one schedule, a process for each GPU, forward and backward.

Start it with `torchrun --nproc-per-node 2 linear.py`; up.ficco lies beside it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ficco_rt as ficco

HERE = Path(__file__).parent
TOKENS, HIDDEN, FEATURES = 8192, 4096, 16384  # over all processes


class GatheredLinear(torch.nn.Module):
    """y = all_gather(x) · weightᵀ + bias, of x [TOKENS / world, HIDDEN]; a process has FEATURES / world features."""

    def __init__(self, linear: torch.nn.Linear, executor: ficco.Executor) -> None:
        super().__init__()
        self.linear, self.executor = linear, executor
        (rank,) = executor.ranks  # this process has one rank
        shapes = {tensor.name: tensor.shapes[rank] for tensor in executor.plan.tensors}
        self.x, self.y = (torch.empty(shapes[name], dtype=torch.bfloat16, device="cuda") for name in ("X", "Y"))
        # all processes bind, once: a list has one tensor for each rank of the process; detached, and contiguous
        self.bound = executor.bind(X=[self.x], W=[linear.weight.detach()], Y=[self.y])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Product.apply(x, self.linear.weight, self) + self.linear.bias


class Product(torch.autograd.Function):
    """all_gather(x) · weightᵀ: forward by the schedule, backward by PyTorch and NCCL."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: GatheredLinear) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        layer.x.copy_(x)
        layer.executor.run(layer.bound, streams=[torch.cuda.current_stream()])  # returns at once
        return layer.y.clone()  # autograd may keep it, and the next call writes into layer.y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weight = ctx.saved_tensors
        return scattered(grad @ weight), grad.T @ gathered(x), None


def gathered(x: torch.Tensor) -> torch.Tensor:
    whole = x.new_empty(TOKENS, x.shape[1])
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def scattered(whole: torch.Tensor) -> torch.Tensor:
    mine = whole.new_empty(TOKENS // dist.get_world_size(), whole.shape[1])
    dist.reduce_scatter_tensor(mine, whole.contiguous())
    return mine


def main() -> None:
    dist.init_process_group()
    world = dist.get_world_size()
    machine = ficco.discover(world, processes=world)  # before the first tensor on a GPU: see Hardware queues
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    plan = ficco.compile(HERE / "up.ficco", world, machine, M=TOKENS, N=FEATURES, K=HIDDEN)
    linear = torch.nn.Linear(HIDDEN, FEATURES // world, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(TOKENS // world, HIDDEN, dtype=torch.bfloat16, device="cuda", requires_grad=True)

    with ficco.Executor(plan, "cuda", group=dist.group.WORLD) as executor:
        layer = GatheredLinear(linear, executor)
        for _ in range(3):
            y = layer(x)
            grad = torch.randn_like(y)
            mine = torch.autograd.grad(y, (x, linear.weight, linear.bias), grad)
            check(x, linear, grad, (y, *mine))
    if dist.get_rank() == 0:
        print(f"{world} processes: right, forward and backward")
    dist.destroy_process_group()


def check(x: torch.Tensor, linear: torch.nn.Linear, grad: torch.Tensor, got: tuple[torch.Tensor, ...]) -> None:
    """Compare with the same by NCCL and nn.Linear."""
    whole = gathered(x.detach()).requires_grad_()
    y = linear(whole)
    of_whole, *others = torch.autograd.grad(y, (whole, linear.weight, linear.bias), grad)
    for name, a, b in zip(("y", "x", "weight", "bias"), got, (y, scattered(of_whole), *others), strict=True):
        off = float((a - b).detach().abs().max() / b.detach().abs().max())
        assert off < 1e-2, f"{name}: off by {off:.1e}"


if __name__ == "__main__":
    main()
