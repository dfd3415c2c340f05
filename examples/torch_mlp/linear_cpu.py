"""all_gather + nn.Linear as one schedule, in two processes without GPUs, compared with PyTorch.

Start it with `torchrun --nproc-per-node 2 linear_cpu.py`; up.ficco lies beside it.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

import ficco_rt as ficco

SCHEDULE = Path(__file__).parent / "up.ficco"


def main() -> None:
    dist.init_process_group("gloo")
    plan = ficco.compile(SCHEDULE, dist.get_world_size(), M=256, N=128, K=64)  # small sizes, and no machine
    with ficco.Executor(plan, group=dist.group.WORLD) as executor:  # no "cuda": the host driver
        (rank,) = executor.ranks  # this process has one rank
        shapes = {tensor.name: tensor.shapes[rank] for tensor in plan.tensors}
        linear = torch.nn.Linear(64, shapes["W"][0], bias=False, dtype=torch.bfloat16)
        weight = linear.weight.detach()  # a tensor that requires a gradient cannot be bound
        x = torch.randn(shapes["X"]).bfloat16()
        y = torch.empty(shapes["Y"], dtype=torch.bfloat16)
        layer = executor.bind(X=[x], W=[weight], Y=[y])  # lists of one tensor: that of this process's rank
        executor.run(layer)  # on the host there are no streams: the call returns when the run has ended

        parts = [torch.empty_like(x) for _ in range(plan.ranks)]
        dist.all_gather(parts, x)
        torch.testing.assert_close(y, torch.cat(parts) @ weight.T, rtol=0.02, atol=0.02)
        print(f"rank {rank} of {plan.ranks}: right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
