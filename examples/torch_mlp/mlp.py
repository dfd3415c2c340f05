"""A tensor-parallel MLP in PyTorch whose all_gather + linear and linear + reduce_scatter are schedules.

    python examples/torch_mlp/mlp.py                       # all GPUs of this machine, one process
    python examples/torch_mlp/mlp.py --tokens 16384 --loops 10000

Each GPU has a shard of the tokens and a shard of the features. `Mlp.plain` is what one writes with NCCL;
`Mlp.overlapped` is the same with two executors, on the caller's tensors and streams. Both are compared with a product
in fp32, timed in turn, and the second is looped to see that nothing grows.

Exit code: 0 all well, 3 no GPUs, 4 wrong numbers, growth, or not faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.stderr.write("this is a program of PyTorch, which is not installed: pip install torch\n")
    sys.exit(3)

import ficco_rt as ficco

HERE = Path(__file__).parent
Shards = list[torch.Tensor]  # one tensor a GPU


class Mlp:
    """y = gelu(x · upᵀ) · downᵀ for x of [tokens, hidden], with `features` in between. bf16."""

    def __init__(self, gpus: int, tokens: int, hidden: int, features: int) -> None:
        self.gpus, self.tokens, self.hidden, self.features = gpus, tokens, hidden, features
        self.up = [normal(r, features // gpus, hidden) * hidden**-0.5 for r in range(gpus)]
        self.down = [normal(r, hidden, features // gpus) * features**-0.5 for r in range(gpus)]
        here = ficco.discover(gpus)
        up = ficco.compile(HERE / "up.ficco", gpus, here, M=tokens, N=features, K=hidden)
        down = ficco.compile(HERE / "down.ficco", gpus, here, M=tokens, N=hidden, K=features)
        self.executors = [ficco.Executor(plan, "cuda", graph=True, timeout=60) for plan in (up, down)]

    def plain(self, x: Shards) -> Shards:
        """With NCCL and torch's linear."""
        whole = [empty(r, self.tokens, self.hidden) for r in range(self.gpus)]
        torch.cuda.nccl.all_gather(x, whole)
        partial = [
            F.linear(F.gelu(F.linear(x, up)), down) for x, up, down in zip(whole, self.up, self.down, strict=True)
        ]
        y = [empty(r, self.tokens // self.gpus, self.hidden) for r in range(self.gpus)]
        torch.cuda.nccl.reduce_scatter(partial, y)
        return y

    def overlapped(self, x: Shards) -> Shards:
        """With the two schedules, in the order of the GPUs' current streams."""
        streams = [torch.cuda.current_stream(r) for r in range(self.gpus)]
        up, down = self.executors
        h = [empty(r, self.tokens, self.features // self.gpus) for r in range(self.gpus)]
        up.run(X=x, W=self.up, Y=h, streams=streams)
        h = [F.gelu(part) for part in h]
        y = [empty(r, self.tokens // self.gpus, self.hidden) for r in range(self.gpus)]
        down.run(X=h, W=self.down, Y=y, streams=streams)
        return y

    def reference(self, x: Shards) -> Shards:
        """In fp32 on the first GPU."""
        on = [[t.to(0, torch.float32) for t in shards] for shards in (x, self.up, self.down)]
        whole = torch.cat(on[0])
        y = sum(F.gelu(whole @ up.T) @ down.T for up, down in zip(on[1], on[2], strict=True))
        assert isinstance(y, torch.Tensor)
        return list(y.chunk(self.gpus))

    def close(self) -> None:
        for executor in self.executors:
            executor.close()


def empty(rank: int, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=f"cuda:{rank}")


def normal(rank: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=f"cuda:{rank}")


def synchronize(gpus: int) -> None:
    for rank in range(gpus):
        torch.cuda.synchronize(rank)


def error(got: Shards, wanted: Shards) -> float:
    """max|got − wanted| / max|wanted| over all GPUs."""
    off = max(float((g.to(0, torch.float32) - w).abs().max()) for g, w in zip(got, wanted, strict=True))
    return off / max(float(w.abs().max()) for w in wanted)


def milliseconds(layer: Callable[[Shards], Shards], x: Shards, calls: int) -> float:
    """Of one call among `calls`, by events of every GPU: the slowest counts."""
    gpus = len(x)
    synchronize(gpus)
    ends = []
    for rank in range(gpus):
        with torch.cuda.device(rank):
            ends.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
            ends[-1][0].record()
    for _ in range(calls):
        layer(x)
    for rank in range(gpus):
        with torch.cuda.device(rank):
            ends[rank][1].record()
    synchronize(gpus)
    return float(max(start.elapsed_time(stop) for start, stop in ends)) / calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=8192)
    parser.add_argument("--features", type=int, default=28672)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--loops", type=int, default=1000)
    options = parser.parse_args()
    if min(vars(options).values()) < 1:
        parser.error("all sizes and counts are numbers from 1")
    gpus = torch.cuda.device_count()
    if gpus < 2:
        sys.stderr.write(f"a tensor-parallel layer needs at least two GPUs; this machine has {gpus}\n")
        return 3
    torch.manual_seed(0)
    mlp = Mlp(gpus, options.tokens, options.hidden, options.features)
    good = check(mlp)
    good &= compare(mlp, options.rounds)
    good &= loop(mlp, options.loops)
    mlp.close()
    return 0 if good else 4


def check(mlp: Mlp) -> bool:
    """Both ways, on fresh tokens, against fp32."""
    worst = [0.0, 0.0]
    for _ in range(5):
        x = [normal(r, mlp.tokens // mlp.gpus, mlp.hidden) for r in range(mlp.gpus)]
        wanted = mlp.reference(x)
        for i, layer in enumerate((mlp.plain, mlp.overlapped)):
            worst[i] = max(worst[i], error(layer(x), wanted))
    print(f"error against fp32   NCCL and torch {worst[0]:.1e}   schedules {worst[1]:.1e}")
    return worst[1] < max(2 * worst[0], 1e-2)


def compare(mlp: Mlp, rounds: int) -> bool:
    """Time both ways in turn."""
    x = [normal(r, mlp.tokens // mlp.gpus, mlp.hidden) for r in range(mlp.gpus)]
    times: list[tuple[float, float]] = []
    for _ in range(rounds + 1):
        times.append((milliseconds(mlp.plain, x, 20), milliseconds(mlp.overlapped, x, 20)))
    plain, ours = (statistics.median(t[i] for t in times[1:]) for i in (0, 1))
    ratios = sorted(a / b for a, b in times[1:])
    print(
        f"{mlp.tokens} tokens, {mlp.hidden} → {mlp.features} → {mlp.hidden}, {mlp.gpus} GPUs: NCCL and torch "
        f"{plain:.3f} ms, schedules {ours:.3f} ms, {statistics.median(ratios):.2f}× ({ratios[0]:.2f}–{ratios[-1]:.2f})"
    )
    return plain > ours


def loop(mlp: Mlp, loops: int) -> bool:
    """Run on and on: what is held, and the GPUs' free memory, must not change."""
    x = [normal(r, mlp.tokens // mlp.gpus, mlp.hidden) for r in range(mlp.gpus)]

    def held() -> tuple[list[object], list[int]]:
        synchronize(mlp.gpus)
        return [executor.holdings for executor in mlp.executors], free_memory(mlp.gpus)

    for _ in range(loops // 10):
        mlp.overlapped(x)
    before = held()
    for _ in range(loops):
        mlp.overlapped(x)
    after = held()
    same = before == after
    print(f"{loops} more loops: {'nothing has grown' if same else f'before {before}, after {after}'}")
    return same


def free_memory(gpus: int) -> list[int]:
    """Bytes, by GPU."""
    return [torch.cuda.mem_get_info(rank)[0] for rank in range(gpus)]


if __name__ == "__main__":
    sys.exit(main())
