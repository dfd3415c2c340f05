"""symm_mem's operators by ficco on GPUs, in the processes of a launcher:

    torchrun --nproc-per-node 2 -m tests.gpu.symm_mem '{"ranks": 2, "each": 2, "calls": 200}'

Random calls are compared bit by bit with PyTorch's fallback on copies in host memory, because NCCL lets no two
processes share a GPU: eagerly, on two streams in turn and several times on other inputs, and captured, with other
inputs in each replay, and an eager call on another stream behind each. What a call costs the host, eagerly; and that
nothing is made inside a capture.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

REPLAYS, TIMES = 20, 3  # the first runs of a call are not yet known to `torch.groups`
ROUNDS, BURST, BUSY = 60, 64, 5e-3  # seconds of other work of the host before a burst
MOST = 35.0  # µs of the host, of a call of sizes and addresses that are known, among others that nobody waits for


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
    hopper = torch.cuda.get_device_capability() == (9, 0)  # elsewhere PyTorch serves fp8, by NCCL
    drawn = [
        calls.scaled_call(draw, group, "cuda")
        if hopper and i % 4 == 3
        else calls.call(draw, group, "cuda", (torch.bfloat16, torch.float16), last=0.0)
        for i in range(number)
    ]

    def right(given: Any, one: calls.Call) -> None:
        calls.same(calls.moved(given, "cpu"), one.on("cpu").theirs())

    with ficco_rt.torch.installed():
        streams = [torch.cuda.Stream() for _ in range(2)]
        torch.cuda.synchronize()
        for turn in range(TIMES):
            given = []
            for i, one in enumerate(drawn):
                with torch.cuda.stream(streams[i % 2]):
                    for tensor in one.inputs() if turn else ():
                        tensor.copy_(torch.randint(-1, 2, tensor.shape, device="cuda"))
                    given.append(one.ours())
            torch.cuda.synchronize()
            for result, one in zip(given, drawn, strict=True):
                right(result, one)

        if hopper:  # scales that are no powers of two, and sums that are exact: the bits tell the order of the factors
            fp8, weight = (torch.rand(n, 32, device="cuda").to(torch.float8_e4m3fn) for n in (64, 16))
            scales, rest = [torch.tensor(n, device="cuda") for n in (0.1, 0.37)], (None, None, torch.float32, False)
            scaled = torch.ops.symm_mem.fused_all_gather_scaled_matmul
            product = fp8, [weight.t()], scales[0], scales[1:], 0, name, *([one] for one in rest)
            gathered, [y] = scaled(*product)
            assert torch.equal(y, torch._scaled_mm(gathered, weight.t(), *scales, *rest))
        x, weight = (torch.ones(shape, dtype=torch.bfloat16, device="cuda") for shape in ((16, 1024), (512, 1024)))
        gather = torch.ops.symm_mem.fused_all_gather_matmul

        def call() -> None:
            gather(x, [weight.t()], 0, name, return_A=False)

        def wait() -> None:
            torch.cuda.synchronize()
            dist.barrier()

        cost, waited = host_time(call, wait)
        print(
            f"rank {rank}: {number} calls right; a call takes the host {cost:.1f} µs among others, {waited:.1f} alone",
            flush=True,
        )

        captured, graph = drawn[:20], torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=streams[0]):
            outputs = [one.ours() for one in captured]
        for turn in range(REPLAYS):
            with torch.cuda.stream(streams[0]):
                for one in captured:
                    for tensor in one.inputs():
                        tensor.copy_(torch.randint(-1, 2, tensor.shape, device="cuda"))
                graph.replay()
            alone = drawn[len(captured) + turn % (number - len(captured))]
            with torch.cuda.stream(streams[1]):
                behind = alone.ours()
            torch.cuda.synchronize()
            for result, one in zip((*outputs, behind), (*captured, alone), strict=True):
                right(result, one)

        after, waited = host_time(call, wait)
        print(f"rank {rank}: behind replays {after:.1f} µs, {waited:.1f} alone", flush=True)

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
    return max(cost, after) <= MOST and captured_by_none


def host_time(call: Callable[[], None], wait: Callable[[], None]) -> tuple[float, float]:
    """Medians of µs of the host: of calls in a burst that nobody waits for, by a host that has been at work, as an
    eager model makes them (the quickest of some: others use the machine); and of calls by a host that has slept."""

    def made(count: int, busy: float = 0.0) -> float:
        took = []
        wait()
        until = time.perf_counter() + busy
        while time.perf_counter() < until:
            pass
        for _ in range(count):
            begun = time.perf_counter()
            call()
            took.append(1e6 * (time.perf_counter() - begun))
        return statistics.median(took)

    made(BURST)  # it becomes a graph
    return min(made(BURST, BUSY) for _ in range(ROUNDS)), statistics.median(made(1) for _ in range(BURST))


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    sys.exit(0 if main(asked["each"], asked["calls"]) else 1)
