"""Layers of `torch.ops.ficco` with a bias, in the processes of a launcher, on integers:

    torchrun --nproc-per-node 2 -m tests.gpu.linear '{"ranks": 2, "each": 2}'

Each layer runs eagerly and in a captured graph, of bf16 and, on Hopper, of fp8 with scales; `"device": "cpu"` runs them
eagerly without a GPU.
"""

from __future__ import annotations

import json
import sys

SIZES = ((256, 256, 512), (32, 256, 512), (2048, 128, 1024), (108, 384, 320))  # rows, K, N


def main(each: int, device: str = "cuda") -> bool:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    import ficco_rt.torch  # noqa: F401
    from tests.torch import calls

    dist.init_process_group("gloo")
    assert dist.group.WORLD is not None
    rank, ranks, name = dist.get_rank(), dist.get_world_size(), dist.group.WORLD.group_name
    if device == "cuda":
        torch.cuda.set_device(0 if each > 1 else rank)
    torch.manual_seed(1)
    ops, right = torch.ops.ficco, True
    for rows, k, n in SIZES:
        x, w, b = (torch.randint(-1, 2, shape).float() for shape in ((rows, k), (n, k), (n,)))
        y = F.linear(x, w, b)

        def part(tensor: torch.Tensor, dim: int) -> torch.Tensor:
            return tensor.chunk(ranks, dim)[rank].to(device, torch.bfloat16)

        up, wide = (part(x, 0), part(w, 0), part(b, 0)), (part(x, 1), part(w, 1), b.to(device, torch.bfloat16))

        def layers(up: tuple[torch.Tensor, ...] = up, wide: tuple[torch.Tensor, ...] = wide) -> list[torch.Tensor]:
            scattered = ops.linear_reduce_scatter(*wide, 0, name)
            return [ops.all_gather_linear(*up, 0, name), scattered, ops.linear_all_reduce(*wide, name)]

        cases: list[calls.Layers] = [("bf16", layers, (part(y, 1), part(y, 0), y.to(device, torch.bfloat16)))]
        if device == "cpu" or torch.cuda.get_device_capability() == (9, 0):
            cases += [calls.scaled_layers(kind, rows, k, n, device) for kind in calls.SCALES]
        for kind, call, wanted in cases:
            made = [call()]
            if device == "cuda":
                graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
                with torch.cuda.graph(graph, stream=stream):
                    made.append(call())
                with torch.cuda.stream(stream):
                    graph.replay()
                torch.cuda.synchronize()
            for results in made:
                same = [torch.equal(*pair) for pair in zip(results, wanted, strict=True)]
                print(f"rank {rank}, {kind}, {rows} × {n} × {k}: {same}", flush=True)
                right = right and all(same)
    dist.destroy_process_group()
    return right


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    sys.exit(0 if main(asked["each"], asked.get("device", "cuda")) else 1)
