"""A layer that PyTorch captures: two schedules and kernels of its own in `torch.cuda.graph`, replayed with new inputs.

The layer is ag_gemm, an activation of PyTorch's and gemm_rs, with a rank on each GPU, or with two ranks that share the
only one. It is captured over all GPUs, whose streams are joined by events, and as one graph a GPU (not where ranks
share a GPU: these share a graph). Each replay has another input in place; its output must have the same bits as that of
plain runs, which are compared with a product in fp32. Then the captured layer and the same layer with our own graphs,
of executors of which nothing is captured, take turns, and so does each schedule alone: `-s` shows their times.

Each environment is a process of its own: plain, `connections` (CUDA_DEVICE_MAX_CONNECTIONS=1), `expandable`
(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True). `--long 50` replays 10,000 times; FICCO_ALL=1 takes the sizes of
prefill, too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests import cases
from tests.gpu.apart import apart

ENVIRONMENTS = {
    "plain": {},
    "connections": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    "expandable": {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    },
}
SIZES = {"prefill": (8192, 8192, 8192), "decode": (256, 8192, 8192)}  # tokens, hidden, inner
SCHEDULE = "streamed"  # of ag_gemm and gemm_rs
INPUTS = 4
REPLAYS, ROUNDS = 200, 5
TIMES = 30
LAYERS = 8  # in one graph: a model has many
LIMIT = 240  # seconds of an environment


@pytest.mark.torch
@pytest.mark.parametrize("size", SIZES if cases.ALL else ["decode"])
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_replays(environment: str, size: str, gpus: int, long: int) -> None:
    each = 1 if gpus > 1 else 2
    apart(right, size, each, REPLAYS * long, limit=LIMIT * long, variables=ENVIRONMENTS[environment])


class Layer:
    """C = reduce_scatter(silu(all_gather(x) · w1) · w2), a rank a GPU, with all tensors in place."""

    def __init__(self, size: str, each: int) -> None:
        import torch

        from ficco_rt import Executor, compile, discover

        self.torch = torch
        self.ranks = ranks = torch.cuda.device_count() * each
        tokens, hidden, inner = SIZES[size]
        self.devices = [torch.device("cuda", rank // each) for rank in range(ranks)]
        make = torch.Generator().manual_seed(7)

        def random(rows: int, columns: int, rank: int, scale: float = 1.0) -> Any:
            values = torch.randn(rows, columns, generator=make) * scale
            return values.to(torch.bfloat16).to(self.devices[rank])

        all_ = range(ranks)
        self.inputs = [[random(tokens // ranks, hidden, rank) for rank in all_] for _ in range(INPUTS)]
        self.x = [torch.empty_like(x) for x in self.inputs[0]]
        self.w1 = [random(hidden, inner // ranks, rank, hidden**-0.5) for rank in all_]
        self.h = [torch.empty(tokens, inner // ranks, dtype=torch.bfloat16, device=self.devices[r]) for r in all_]
        self.w2 = [random(inner // ranks, hidden, rank, inner**-0.5) for rank in all_]
        self.y = [torch.empty(tokens // ranks, hidden, dtype=torch.bfloat16, device=self.devices[r]) for r in all_]
        machine = discover(ranks, ranks_per_gpu=each)
        first = compile(f"ag_gemm/{SCHEDULE}", ranks=ranks, machine=machine, M=tokens, N=inner, K=hidden)
        second = compile(f"gemm_rs/{SCHEDULE}", ranks=ranks, machine=machine, M=tokens, N=hidden, K=inner)
        self.gather = Executor(first, "cuda", ranks_per_gpu=each, graph=True, timeout=30)
        self.reduce = Executor(second, "cuda", ranks_per_gpu=each, graph=True, timeout=30)
        self.gathered = self.gather.bind(A=self.x, B=self.w1, C=self.h)
        self.reduced = self.reduce.bind(A=self.h, B=self.w2, C=self.y)
        self.streams = [torch.cuda.Stream(device) for device in self.devices]
        self.wait()

    def parts(self) -> dict[str, Callable[[], None]]:
        """What is timed: the layer, several of them, and each schedule alone."""

        def layers() -> None:
            for _ in range(LAYERS):
                self.run()

        return {"layer": self.run, f"{LAYERS} layers": layers, "ag_gemm": self.run_gather, "gemm_rs": self.run_reduce}

    def run_gather(self) -> None:
        self.gather.run(self.gathered, streams=self.streams)

    def run_reduce(self) -> None:
        self.reduce.run(self.reduced, streams=self.streams)

    def run(self) -> None:
        self.run_gather()
        for stream, h in zip(self.streams, self.h, strict=True):
            with self.torch.cuda.stream(stream):
                self.torch.nn.functional.silu(h, inplace=True)
        self.run_reduce()

    def give(self, number: int) -> None:
        """Another input in place, and NaN where the output goes, on the ranks' streams."""
        for rank, stream in enumerate(self.streams):
            with self.torch.cuda.stream(stream):
                self.x[rank].copy_(self.inputs[number][rank])
                self.y[rank].fill_(float("nan"))

    def wait(self) -> None:
        for device in self.devices:
            self.torch.cuda.synchronize(device)

    def plain(self, number: int) -> list[Any]:
        """The output of plain runs."""
        self.give(number)
        self.run()
        self.wait()
        return [y.clone() for y in self.y]

    def reference(self, number: int) -> list[Any]:
        """In fp32 on the first GPU; the activation's input is stored in bf16, as the layer stores it."""
        torch = self.torch
        there = self.devices[0]
        x = torch.cat([part.to(there) for part in self.inputs[number]]).float()
        total = torch.zeros(x.shape[0], self.w2[0].shape[1], device=there)
        for w1, w2 in zip(self.w1, self.w2, strict=True):
            h = (x @ w1.to(there).float()).bfloat16()
            total += torch.nn.functional.silu(h).float() @ w2.to(there).float()
        return list(total.chunk(self.ranks))

    def close(self) -> None:
        self.gather.close()
        self.reduce.close()


class Captured:
    """Something in PyTorch's graphs: one over all GPUs, or one a GPU."""

    def __init__(self, layer: Layer, what: Callable[[], None], joined: bool) -> None:
        self.torch, self.layer, self.joined = layer.torch, layer, joined
        self.graphs = [self.torch.cuda.CUDAGraph() for _ in range(1 if joined else layer.ranks)]
        self.hosts = layer.streams[: len(self.graphs)]
        layer.wait()
        for graph, stream in zip(self.graphs, self.hosts, strict=True):
            with self.torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="relaxed")  # else the end of one disturbs the others
        if joined:
            self.fork()
        what()
        if joined:
            self.join()
        for graph, stream in zip(self.graphs, self.hosts, strict=True):
            with self.torch.cuda.stream(stream):
                graph.capture_end()

    def fork(self) -> None:
        """The other streams stand behind the first one."""
        event = self.torch.cuda.Event()
        event.record(self.layer.streams[0])
        for stream in self.layer.streams[1:]:
            stream.wait_event(event)

    def join(self) -> None:
        """The first stream stands behind the others."""
        for stream in self.layer.streams[1:]:
            event = self.torch.cuda.Event()
            event.record(stream)
            self.layer.streams[0].wait_event(event)

    def replay(self) -> None:
        if self.joined:
            self.join()
        for graph, stream in zip(self.graphs, self.hosts, strict=True):
            with self.torch.cuda.stream(stream):
                graph.replay()
        if self.joined:
            self.fork()


def right(size: str, each: int, replays: int) -> bool:
    """Right in every replay, and how fast. `each`: ranks that share a GPU."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    layer, own = (Layer(size, each) for _ in range(2))  # nothing of the second in graphs
    expected = [layer.plain(number) for number in range(INPUTS)]
    worst = 0.0
    for number in range(INPUTS):
        for got, wanted in zip(expected[number], layer.reference(number), strict=True):
            wanted = wanted.to(got.device)
            worst = max(worst, float((got.float() - wanted).abs().max() / wanted.abs().max()))
    good = worst < 0.02
    where = f"{layer.ranks} × {torch.cuda.get_device_name(0)}"
    print(f"  {size} {SIZES[size]}, {where}: plain runs within {worst:.4f} of fp32")
    for joined in (True, False) if each == 1 else (True,):
        how = "one graph over all GPUs" if joined else "one graph a GPU"
        captured = Captured(layer, layer.run, joined)
        wrong = [torch.zeros((), dtype=torch.int64, device=device) for device in layer.devices]
        begun = time.monotonic()
        for replay in range(replays):
            number = replay % INPUTS
            layer.give(number)
            captured.replay()
            for rank, stream in enumerate(layer.streams):
                with torch.cuda.stream(stream):
                    wrong[rank] += (layer.y[rank] != expected[number][rank]).any()
            if replay % 997 == 996:  # a plain run among them
                layer.give(number)
                layer.run()
        layer.wait()
        count = sum(int(w) for w in wrong)
        good &= count == 0
        print(f"    {how}: {replays} replays, {count} wrong, {time.monotonic() - begun:.1f} s", flush=True)
        for one in (layer, own):  # the same numbers: what operands hold decides how much power a product takes
            one.give(0)
        for (name, part), plain in zip(layer.parts().items(), own.parts().values(), strict=True):
            alone = captured if name == "layer" else Captured(layer, part, joined)
            print(f"      {name:8} {compared(layer, plain, alone.replay, ROUNDS)}", flush=True)
    layer.close()
    own.close()
    return good


def compared(layer: Layer, own: Callable[[], None], captured: Callable[[], None], rounds: int) -> str:
    """Back to back, by turns: microseconds with our own graphs, in the caller's, and the ratio."""
    times: dict[str, list[float]] = {"own": [], "captured": []}
    for turn in range(rounds + 2):
        for name, run in [("own", own), ("captured", captured)][:: 1 if turn % 2 else -1]:
            run()
            layer.wait()
            begun = time.perf_counter()
            for _ in range(TIMES):
                run()
            layer.wait()
            if turn > 1:
                times[name].append((time.perf_counter() - begun) / TIMES * 1e6)
    ratios = [a / b for a, b in zip(times["own"], times["captured"], strict=True)]
    middle = {name: statistics.median(found) for name, found in times.items()}
    low, *_, high = sorted(ratios)
    ratio = f"ratio {statistics.median(ratios):.3f} ({low:.3f}–{high:.3f})"
    return f"own graphs {middle['own']:7.1f} µs, captured {middle['captured']:7.1f} µs, {ratio}"
