"""A loop of a server: decode steps as CUDA graphs of some sizes, in one pool of memory, and prefills between them.

    torchrun --nproc-per-node 2 examples/serving/serve.py    # without GPUs: gloo, and no graphs

The model is layers of two linear ones, tensor-parallel; a request has a prompt of any length, and each of its steps
makes a row out of its last one. Each row is compared with what torch.distributed and nn.functional compute.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import ficco_rt.torch  # noqa: F401 (defines torch.ops.ficco)

LAYERS, WIDTH, HIDDEN, SIZES, STEPS = 4, 256, 512, (1, 2, 4, 8), 6
PROMPTS = (5, 17, 1, 40, 3, 9)  # rows of the requests, one of which comes at each step
Layers = list[tuple[Tensor, Tensor]]


def forward(x: Tensor, layers: Layers, group: str) -> Tensor:
    for up, down in layers:
        x = x + torch.ops.ficco.linear_all_reduce(F.silu(F.linear(x, up)), down, None, group)
    return x


def reference(x: Tensor, layers: Layers) -> Tensor:
    for up, down in layers:
        part = F.linear(F.silu(F.linear(x, up)), down)
        dist.all_reduce(part)
        x = x + part
    return x


class Decoder:
    """The step of up to SIZES[-1] requests: the smallest graph that has as many rows, or more."""

    def __init__(self, layers: Layers, group: str) -> None:
        self.layers, self.group = layers, group
        self.rows = torch.zeros(SIZES[-1], WIDTH, dtype=layers[0][0].dtype, device=layers[0][0].device)
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        pool = None
        for size in reversed(SIZES) if self.rows.is_cuda else ():  # the largest first: the others fit into its memory
            forward(self.rows[:size], layers, group)  # what has to be made once is made outside of graphs
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                made = forward(self.rows[:size], layers, group)
            pool = graph.pool()
            self.graphs[size] = graph, made

    def step(self, rows: list[Tensor]) -> list[Tensor]:
        size = next(size for size in SIZES if size >= len(rows))
        self.rows[: len(rows)] = torch.stack(rows)
        if not self.graphs:
            return list(forward(self.rows[:size], self.layers, self.group)[: len(rows)])
        graph, made = self.graphs[size]
        graph.replay()
        return list(made[: len(rows)].clone())


def main() -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("gloo")
    assert dist.group.WORLD is not None
    ranks, rank = dist.get_world_size(), dist.get_rank()
    random = torch.Generator().manual_seed(0)

    def weight(rows: int, columns: int, split: int) -> Tensor:
        whole = torch.randn(rows, columns, generator=random) * columns**-0.5
        return whole.chunk(ranks, split)[rank].to(device, torch.bfloat16).contiguous()

    layers = [(weight(HIDDEN, WIDTH, 0), weight(WIDTH, HIDDEN, 1)) for _ in range(LAYERS)]
    prompts = [torch.randn(n, WIDTH, generator=random).to(device, torch.bfloat16) for n in PROMPTS]
    with torch.no_grad():
        decoder = Decoder(layers, dist.group.WORLD.group_name)
        running: list[tuple[int, Tensor]] = []  # steps made, last row
        done = steps = 0
        while prompts or running:
            if prompts:  # a prefill, between two decode steps
                prompt = prompts.pop(0)
                rows = forward(prompt, layers, decoder.group)
                torch.testing.assert_close(rows, reference(prompt, layers), rtol=0.05, atol=0.1)
                running.append((0, rows[-1].clone()))
            last = [row for _, row in running]
            made = decoder.step(last)
            wanted = reference(torch.stack(last), layers)
            torch.testing.assert_close(torch.stack(made), wanted, rtol=0.05, atol=0.1)
            stepped = [
                (number + 1, F.normalize(row, dim=0) * 16) for (number, _), row in zip(running, made, strict=True)
            ]
            running = [request for request in stepped if request[0] < STEPS]
            done, steps = done + len(stepped) - len(running), steps + 1
    print(f"rank {rank}: {done} requests in {steps} steps, all rows right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
