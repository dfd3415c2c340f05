"""A decode step of a model: 320 operations of a few rows, captured into one graph of PyTorch's and replayed; in this
process or in those of a launcher:

    python -m tests.gpu.decode '{"ranks": 2, "each": 2, "steps": 100}'

Right numbers of every operation, after the first step and after the last; nothing grows; and what a step takes more
than the same kernels and copies alone, one behind the other, whose flags are up before they are looked for.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from functools import partial
from typing import Any

import ficco_rt as ficco
from ficco_rt.device.ir import CopyMemory, LaunchKernel
from ficco_rt.device.run_plan import Together, calls_of
from ficco_rt.driver.gpu.steps import DriverStep, entered, make

LAYERS, ROWS = 80, 16
SIZES = (("gemm_ar", 1024, 1024), ("ag_gemm", 1024, 512), ("gemm_ar", 512, 1024), ("ag_gemm", 512, 512))
REPEATS = 30
MORE = 0.3  # ms that a step may take more


class Layer:
    """An operation's tensors in a layer: those of all ranks, of which this process's take part."""

    def __init__(self, operation: ficco.Operation, name: str, n: int, k: int, ranks: int, seed: int) -> None:
        import torch

        self.torch, self.operation, self.name = torch, operation, name
        self.mine = operation.executor(ROWS).ranks
        left, right, out = {
            "ag_gemm": ((ROWS, k), (k, n // ranks), (ROWS * ranks, n // ranks)),
            "gemm_ar": ((ROWS, k // ranks), (k // ranks, n), (ROWS, n)),
        }[name]
        made = torch.Generator("cuda").manual_seed(seed)
        self.a, self.b = (
            [torch.randint(-1, 2, shape, generator=made, device="cuda").bfloat16() for _ in range(ranks)]
            for shape in (left, right)
        )
        self.c = [torch.full(out, float("nan"), dtype=torch.bfloat16, device="cuda") for _ in self.mine]

    def run(self, streams: list[Any]) -> None:
        self.operation.run(
            streams=streams, A=[self.a[r] for r in self.mine], B=[self.b[r] for r in self.mine], C=self.c
        )

    def right(self) -> bool:
        if self.name == "ag_gemm":
            gathered = self.torch.cat(self.a).float()
            wanted = [gathered @ self.b[rank].float() for rank in self.mine]
        else:
            wanted = [sum(a.float() @ b.float() for a, b in zip(self.a, self.b, strict=True))] * len(self.mine)
        return all(bool((c.float() == w).all()) for c, w in zip(self.c, wanted, strict=True))


def decode(ranks: int, each: int, steps: int) -> bool:
    import torch

    group = ficco.Group.from_env()
    apart = group.size > 1
    torch.cuda.set_device(0 if each > 1 else group.rank)
    with ficco.Workspace(ranks, ranks_per_gpu=each, group=group if apart else None) as workspace:
        made = [(ficco.Operation(workspace, name, max_m=ROWS, N=n, K=k), name, n, k) for name, n, k in SIZES]
        for operation, *_ in made:
            operation.warm()
        layers = [Layer(*of, ranks, 4 * layer + i) for layer in range(LAYERS) for i, of in enumerate(made)]
        stream = torch.cuda.Stream()
        streams = [stream] * len(layers[0].mine)
        torch.cuda.synchronize()
        for one in layers[: len(made)]:  # what is made at a first run is made before the capture
            one.run(streams)
        made[0][0].synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for one in layers:
                one.run(streams)

        def timed(of: Any, times: int) -> list[float]:
            found = []
            for _ in range(times):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record(stream)
                with torch.cuda.stream(stream):
                    of.replay()
                end.record(stream)
                stream.synchronize()
                found.append(begin.elapsed_time(end))
            return found

        for one in layers:
            for c in one.c:
                c.fill_(float("nan"))
        torch.cuda.synchronize()
        timed(graph, 1)
        good = all(one.right() for one in layers)
        first = statistics.median(timed(graph, REPEATS))
        there = held(workspace, made[0][0])
        for _ in range(steps):
            with torch.cuda.stream(stream):
                graph.replay()
        stream.synchronize()
        made[0][0].executor(ROWS).check()
        flat = held(workspace, made[0][0]) == there
        good &= all(one.right() for one in layers)
        last = statistics.median(timed(graph, REPEATS))
        alone = 0.0
        if not apart:
            bare = torch.cuda.CUDAGraph()
            with torch.cuda.graph(bare, stream=stream):
                for one in layers:
                    kernels(one, int(stream.cuda_stream))
            alone = statistics.median(timed(bare, REPEATS))
        made[0][0].synchronize()
    print(
        f"a step of {len(layers)} operations, ranks {layers[0].mine}: {'right' if good else 'WRONG'}, "
        f"{first:.3f} ms, {last:.3f} ms after {steps} steps, its kernels alone {alone:.3f} ms"
        + ("" if flat else "; it GROWS"),
        flush=True,
    )
    return good and flat and (apart or last <= alone + MORE)


def kernels(layer: Layer, stream: int) -> None:
    """Captures the kernels and copies of a layer's operation on one stream. Those that wait for flags come last."""
    prepared = layer.operation._prepared[_key(layer)]
    bound = prepared.bound()
    assert bound is not None
    binding: Any = bound.binding
    driver: Any = prepared.executor.driver
    plan, binder = binding.plans.of("embedded"), driver._binder
    actions = [action for action in plan.body if isinstance(action, LaunchKernel | CopyMemory)]
    actions.sort(key=lambda a: isinstance(a, LaunchKernel) and any(w.waits for w in plan.launches[a.launch].works))
    on = {s.name: (driver._gpus.devices[s.device], driver._vendor.stream(stream)) for s in plan.streams}
    steps = []
    for action, call in calls_of(plan, actions, on, partial(binder._marks, plan)):
        assert not isinstance(call, Together)
        device, queue = on[call.stream]
        function, arguments = binder._made(binding, plan, call, device, queue)
        steps.append(DriverStep(device, function, arguments, action.cause.text))
    with driver._gpus.issue_lock(), driver._gpus.issuing():
        make(driver._gpus, list(entered(driver._vendor, steps, captured=True)))


def _key(layer: Layer) -> Any:
    from ficco_rt.exec.device_arrays import key_of

    return key_of({"A": [layer.a[r] for r in layer.mine], "B": [layer.b[r] for r in layer.mine], "C": layer.c})


def held(workspace: ficco.Workspace, operation: ficco.Operation) -> tuple[Any, ...]:
    import torch

    free, _ = torch.cuda.mem_get_info()
    descriptors = len(os.listdir("/proc/self/fd"))
    return dict(workspace.memory), operation.executor(ROWS).holdings, descriptors, free


if __name__ == "__main__":
    sys.exit(0 if decode(**json.loads(sys.argv[1])) else 1)
