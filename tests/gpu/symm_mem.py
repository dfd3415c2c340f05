"""symm_mem's operators by ficco on GPUs, in the processes of a launcher:

    torchrun --nproc-per-node 2 -m tests.gpu.symm_mem '{"ranks": 2, "each": 2, "calls": 200}'

Random calls are compared bit by bit with PyTorch's fallback on copies in host memory, because NCCL lets no two
processes share a GPU: eagerly, on two streams in turn, and captured, with other inputs in each replay. What a call
costs the host, eagerly; and that nothing is made inside a capture.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from typing import Any

REPLAYS = 20
TIMED = 500
MOST = 35.0  # µs of the host, of a call of sizes and addresses that are known


def main(each: int, number: int) -> bool:
    import torch
    import torch.distributed as dist

    import ficco_rt.torch
    from ficco_rt.errors import UsageError
    from tests.torch import calls

    dist.init_process_group("gloo")
    group: Any = dist.group.WORLD
    rank, name = dist.get_rank(), group.group_name
    torch.cuda.set_device(0 if each > 1 else rank)
    draw = random.Random(5)
    drawn = [calls.call(draw, group, "cuda", (torch.bfloat16, torch.float16), last=0.0) for _ in range(number)]

    def right(given: Any, one: calls.Call) -> None:
        calls.same(calls.moved(given, "cpu"), one.on("cpu").theirs())

    with ficco_rt.torch.installed():
        streams = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()
        given = []
        for i, one in enumerate(drawn):
            with torch.cuda.stream(streams[i % 2]):
                given.append(one.ours())
        torch.cuda.synchronize()
        for result, one in zip(given, drawn, strict=True):
            right(result, one)

        captured, graph = drawn[:20], torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=streams[0]):
            outputs = [one.ours() for one in captured]
        for _ in range(REPLAYS):
            for one in captured:
                for tensor in one.inputs():
                    tensor.copy_(torch.randint(-1, 2, tensor.shape, device="cuda"))
            with torch.cuda.stream(streams[0]):
                graph.replay()
            torch.cuda.synchronize()
            for result, one in zip(outputs, captured, strict=True):
                right(result, one)

        x, weight = (torch.ones(shape, dtype=torch.bfloat16, device="cuda") for shape in ((16, 1024), (512, 1024)))
        gather = torch.ops.symm_mem.fused_all_gather_matmul
        costs = []
        for i in range(TIMED):
            begun = time.perf_counter()
            gather(x, [weight.t()], 0, name, return_A=False)
            costs.append((time.perf_counter() - begun) * 1e6)
            if i % 20 == 0:
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        cost = statistics.median(costs[20:])
        print(f"rank {rank}: {number} calls right, {cost:.1f} µs of the host a call", flush=True)

        refused = ""
        with torch.cuda.stream(streams[0]):
            unused = torch.cuda.CUDAGraph()
            unused.capture_begin()
            try:
                gather(x.repeat(64, 1), [weight.t()], 0, name)
            except UsageError as error:
                refused = str(error)
            unused.capture_end()
        captured_by_none = "before the capture" in refused
        gather(x, [weight.t()], 0, name)
        torch.cuda.synchronize()
    dist.destroy_process_group()
    return cost <= MOST and captured_by_none


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    sys.exit(0 if main(asked["each"], asked["calls"]) else 1)
