"""A decoder with Llama-3-70B's layers, tensor-parallel with sequence parallelism, in three ways beside each other.

    torchrun --nproc-per-node 2 examples/llama_tp/llama.py train                     # on GPUs
    torchrun --nproc-per-node 2 examples/llama_tp/llama.py decode
    torchrun --nproc-per-node 2 examples/llama_tp/llama.py train --small --steps 5   # small sizes, on CPU without GPUs

The layers are written once. What differs is who multiplies and communicates (`WAYS`):

    ficco     torch.ops.ficco.* of ficco_rt.torch
    nccl      torch.distributed's collectives, then nn.functional.linear (on CPU: gloo's)
    asynctp   PyTorch's own fused operators, torch.ops.symm_mem.* (on GPUs only)
    plain     no communication: process 0 has the whole model, the reference of losses

`train` makes the same steps in each way from the same weights, and compares losses; `decode` generates with a cache of
keys and values, on GPUs as CUDA graphs. Both print times beside each other.

Exit code: 0 all well, 3 something is missing, 4 losses or tokens differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
except ImportError:
    sys.stderr.write("this is a program of PyTorch, which is not installed: pip install torch\n")
    sys.exit(3)
from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """Llama-3-70B, but for the number of layers and of words."""

    width: int = 8192
    heads: int = 64
    kv_heads: int = 8
    ffn: int = 28672
    words: int = 4096
    layers: int = 2

    @property
    def head(self) -> int:
        return self.width // self.heads


SMALL = Sizes(width=64, heads=8, kv_heads=4, ffn=128, words=64, layers=2)


# ---------------------------------------------------------------- who multiplies and communicates


class Way:
    """Products of a layer: rows are tokens, weights lie as nn.Linear stores them, a shard on each rank."""

    def __init__(self) -> None:
        self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
        assert dist.group.WORLD is not None
        self.group = dist.group.WORLD.group_name

    def gathered(self, x: Tensor, w: Tensor) -> Tensor:
        """all_gather(x) · wᵀ: a rank has some of the tokens, and some of w's features."""
        raise NotImplementedError

    def scattered(self, x: Tensor, w: Tensor) -> Tensor:
        """reduce_scatter(x · wᵀ): a rank has some of w's width, and gets some of the tokens."""
        raise NotImplementedError

    def reduced(self, x: Tensor, w: Tensor) -> Tensor:
        """all_reduce(x · wᵀ)."""
        raise NotImplementedError


class Plain(Way):
    def __init__(self) -> None:
        super().__init__()
        self.ranks, self.rank = 1, 0

    def gathered(self, x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w)

    scattered = reduced = gathered


class Ficco(Way):
    def __init__(self) -> None:
        super().__init__()
        import ficco_rt.torch  # noqa: F401 (defines torch.ops.ficco)

        self.ops = torch.ops.ficco

    def gathered(self, x: Tensor, w: Tensor) -> Tensor:
        return self.ops.all_gather_linear(x, w, None, 0, self.group)

    def scattered(self, x: Tensor, w: Tensor) -> Tensor:
        return self.ops.linear_reduce_scatter(x, w, None, 0, self.group)

    def reduced(self, x: Tensor, w: Tensor) -> Tensor:
        return self.ops.linear_all_reduce(x, w, None, self.group)


class Nccl(Way):
    def gathered(self, x: Tensor, w: Tensor) -> Tensor:
        return F.linear(_Gathered.apply(x), w)

    def scattered(self, x: Tensor, w: Tensor) -> Tensor:
        return _Scattered.apply(F.linear(x, w))

    def reduced(self, x: Tensor, w: Tensor) -> Tensor:
        y = F.linear(x, w)
        dist.all_reduce(y)
        return y


class AsyncTp(Nccl):
    def __init__(self) -> None:
        super().__init__()
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group

        enable_symm_mem_for_group(self.group)

    def gathered(self, x: Tensor, w: Tensor) -> Tensor:
        return _FusedGathered.apply(x, w, self.group)

    def scattered(self, x: Tensor, w: Tensor) -> Tensor:
        return _FusedScattered.apply(x, w, self.group)


WAYS = {"ficco": Ficco, "nccl": Nccl, "asynctp": AsyncTp, "plain": Plain}


def _gather(x: Tensor) -> Tensor:
    whole = x.new_empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def _scatter(x: Tensor) -> Tensor:
    mine = x.new_empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
    dist.reduce_scatter_tensor(mine, x.contiguous())
    return mine


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _gather(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _scatter(grad)


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _scatter(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _gather(grad)


class _FusedGathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, group: str) -> Tensor:
        whole, (y,) = torch.ops.symm_mem.fused_all_gather_matmul(x, [w.t()], 0, group)
        ctx.save_for_backward(whole, w)
        ctx.group = group
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        whole, w = ctx.saved_tensors
        dx = torch.ops.symm_mem.fused_matmul_reduce_scatter(grad, w, "sum", 0, ctx.group)
        return dx, grad.t() @ whole, None


class _FusedScattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, group: str) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.group = group
        return torch.ops.symm_mem.fused_matmul_reduce_scatter(x, w.t(), "sum", 0, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, w = ctx.saved_tensors
        whole, (dx,) = torch.ops.symm_mem.fused_all_gather_matmul(grad.contiguous(), [w], 0, ctx.group)
        return dx, whole.t() @ x, None


# ---------------------------------------------------------------- the model


class Weights:
    """The same numbers in each way and on each rank, of which a rank keeps its shard."""

    def __init__(self, way: Way, device: torch.device, dtype: torch.dtype) -> None:
        self.way, self.device, self.dtype = way, device, dtype
        self.random = torch.Generator(device).manual_seed(1)

    def __call__(self, rows: int, columns: int, split: int | None = None) -> Tensor:
        """Split in as many shards as there are ranks: by rows (0) or columns (1)."""
        whole = torch.randn(rows, columns, generator=self.random, device=self.device) * columns**-0.5
        part = whole if split is None else whole.chunk(self.way.ranks, split)[self.way.rank]
        return part.to(self.dtype).contiguous()

    def ones(self, n: int) -> Tensor:
        return torch.ones(n, device=self.device, dtype=self.dtype)


class Cache:
    """Keys and values of earlier tokens of `batch` sequences, and how many these are, on the device."""

    def __init__(self, sizes: Sizes, way: Way, batch: int, length: int, weights: Weights) -> None:
        shape = batch, sizes.kv_heads // way.ranks, length, sizes.head
        made = {"device": weights.device, "dtype": weights.dtype}
        self.kv = [[torch.zeros(shape, **made) for _ in "kv"] for _ in range(sizes.layers)]
        self.places = torch.arange(length, device=weights.device)
        self.at = torch.zeros(1, dtype=torch.long, device=weights.device)


class Layer(nn.Module):
    def __init__(self, sizes: Sizes, way: Way, weights: Weights) -> None:
        super().__init__()
        self.sizes, self.way = sizes, way
        d, kv = sizes.width, sizes.kv_heads * sizes.head
        self.norms = nn.ParameterList(nn.Parameter(weights.ones(d)) for _ in range(2))
        self.qkv = nn.Parameter(torch.cat([weights(n, d, split=0) for n in (d, kv, kv)]))
        self.out = nn.Parameter(weights(d, d, split=1))
        self.up = nn.Parameter(torch.cat([weights(sizes.ffn, d, split=0) for _ in range(2)]))
        self.down = nn.Parameter(weights(d, sizes.ffn, split=1))

    def forward(self, x: Tensor) -> Tensor:
        """x: [tokens / ranks, width]."""
        way = self.way
        qkv = way.gathered(_normed(x, self.norms[0]), self.qkv)
        q, k, v = (t.unsqueeze(0) for t in self.heads(qkv))
        places = torch.arange(len(qkv), device=x.device)
        mixed = _attention(_turned(q, places), _turned(k, places), v, is_causal=True)
        x = x + way.scattered(mixed.squeeze(0).transpose(0, 1).flatten(1), self.out)
        gate, up = way.gathered(_normed(x, self.norms[1]), self.up).chunk(2, 1)
        return x + way.scattered(F.silu(gate) * up, self.down)

    def decode(self, x: Tensor, cache: Cache, number: int) -> Tensor:
        """x: [batch, width], the same on all ranks; one token of each sequence."""
        way, (keys, values) = self.way, cache.kv[number]
        q, k, v = (t.transpose(0, 1).unsqueeze(2) for t in self.heads(F.linear(_normed(x, self.norms[0]), self.qkv)))
        keys.index_copy_(2, cache.at, _turned(k, cache.at))
        values.index_copy_(2, cache.at, v)
        mixed = _attention(_turned(q, cache.at), keys, values, attn_mask=(cache.places <= cache.at).view(1, 1, 1, -1))
        x = x + way.reduced(mixed.flatten(1), self.out)
        gate, up = F.linear(_normed(x, self.norms[1]), self.up).chunk(2, 1)
        return x + way.reduced(F.silu(gate) * up, self.down)

    def heads(self, qkv: Tensor) -> list[Tensor]:
        """This rank's heads of queries, keys and values: [heads, rows, head]."""
        sizes, ranks = self.sizes, self.way.ranks
        parts = qkv.split([n // ranks * sizes.head for n in (sizes.heads, sizes.kv_heads, sizes.kv_heads)], dim=1)
        return [part.view(len(qkv), -1, sizes.head).transpose(0, 1) for part in parts]


class Decoder(nn.Module):
    def __init__(self, sizes: Sizes, way: Way, weights: Weights) -> None:
        super().__init__()
        self.way = way
        self.embedding = nn.Parameter(weights(sizes.words, sizes.width))
        self.layers = nn.ModuleList(Layer(sizes, way, weights) for _ in range(sizes.layers))
        self.norm = nn.Parameter(weights.ones(sizes.width))
        self.logits = nn.Parameter(weights(sizes.words, sizes.width))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """This rank's share of the mean loss over all tokens; it takes its own tokens."""
        x = F.embedding(tokens, self.embedding)
        for layer in self.layers:
            x = layer(x)
        scores = F.linear(_normed(x, self.norm), self.logits)
        return F.cross_entropy(scores.float(), targets, reduction="sum") / (len(tokens) * self.way.ranks)

    def decode(self, tokens: Tensor, cache: Cache) -> Tensor:
        """The next token of each sequence, the likeliest one."""
        x = F.embedding(tokens, self.embedding)
        for number, layer in enumerate(self.layers):
            x = layer.decode(x, cache, number)
        cache.at += 1
        return F.linear(_normed(x, self.norm), self.logits).argmax(1)

    def replicated(self) -> list[nn.Parameter]:
        """Parameters that all ranks have whole; a rank's gradient is that of its own tokens."""
        norms = [norm for layer in self.layers for norm in layer.norms]
        return [self.embedding, self.norm, self.logits, *norms]


def _normed(x: Tensor, scale: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], scale, 1e-5)


def _turned(x: Tensor, places: Tensor) -> Tensor:
    """Rotary position embedding of [..., places, head]."""
    half = x.shape[-1] // 2
    rates = 500_000.0 ** (-torch.arange(half, device=x.device) / half)
    angles = places.float().unsqueeze(-1) * rates
    a, b = x.float().chunk(2, -1)
    sine, cosine = angles.sin(), angles.cos()
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).to(x.dtype)


def _attention(q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **how)


# ---------------------------------------------------------------- training


class Training:
    def __init__(self, way: Way, sizes: Sizes, options: argparse.Namespace, device: torch.device) -> None:
        self.way, self.capture = way, options.mode == "capture"
        weights = Weights(way, device, _dtype(device))
        self.model = Decoder(sizes, way, weights)
        self.loss_of = torch.compile(self.model, fullgraph=True) if options.mode == "compile" else self.model
        # NOTE wider layers answer a step more strongly: with 1e-3 at this width training amplifies rounding
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=min(1e-3, 0.5 / sizes.width))
        words = torch.arange(options.tokens + 1, device=device) * 7 % sizes.words  # each word tells the next one
        mine = slice(way.rank * options.tokens // way.ranks, (way.rank + 1) * options.tokens // way.ranks)
        self.tokens, self.targets = words[:-1][mine].contiguous(), words[1:][mine].contiguous()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.done = 0

    def step(self) -> float:
        """The loss before the step."""
        if self.capture and self.done == 3:
            self.graph = torch.cuda.CUDAGraph()
            self.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
                self.loss = self._gradients()
        if self.graph is None:
            self.optimizer.zero_grad(set_to_none=True)
            self.loss = self._gradients()
        else:
            self.graph.replay()  # which writes the same gradients anew
        loss = self.loss.clone()
        if self.way.ranks > 1:
            for summed in (loss, *(p.grad for p in self.model.replicated())):
                dist.all_reduce(summed)
        self.optimizer.step()
        self.done += 1
        return float(loss)

    def _gradients(self) -> Tensor:
        loss = self.loss_of(self.tokens, self.targets)
        loss.backward()
        return loss.detach()


def train(ways: dict[str, Way], sizes: Sizes, options: argparse.Namespace, device: torch.device) -> bool:
    made = {name: Training(way, sizes, options, device) for name, way in ways.items() if _here(way)}
    losses: dict[str, list[float]] = {name: [] for name in made}
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(options.steps):
        for name in ways:
            if name in made:
                with _timed(times[name], device):
                    losses[name].append(made[name].step())
            dist.barrier()
    good: bool = True
    if dist.get_rank() == 0:
        names = list(made)
        known = _reference(names)
        for name in names:
            off = max(abs(a - b) for a, b in zip(losses[name], losses[known], strict=True))
            good &= off <= options.off and losses[name][-1] < losses[name][0]
            print(f"{name:8} loss {losses[name][0]:.4f} → {losses[name][-1]:.4f}, off {known}'s by at most {off:.1e}")
        _print_times(times, "a training step")
    return good


# ---------------------------------------------------------------- decoding


class Decoding:
    """`batch` sequences, from their first tokens."""

    def __init__(self, way: Way, sizes: Sizes, options: argparse.Namespace, batch: int, model: Decoder) -> None:
        device = model.norm.device
        weights = Weights(way, device, model.norm.dtype)
        self.model, self.cache = model, Cache(sizes, way, batch, options.steps + 4, weights)
        self.tokens = torch.arange(batch, device=device) % sizes.words
        self.graph: torch.cuda.CUDAGraph | None = None
        self.capture, self.done = device.type == "cuda", 0

    def step(self) -> Tensor:
        """The tokens of all sequences."""
        if self.capture and self.done == 2:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.tokens.copy_(self.model.decode(self.tokens, self.cache))
        if self.graph is None:
            self.tokens.copy_(self.model.decode(self.tokens, self.cache))
        else:
            self.graph.replay()
        self.done += 1
        return self.tokens


def decode(ways: dict[str, Way], sizes: Sizes, options: argparse.Namespace, device: torch.device) -> bool:
    dtype = _dtype(device)
    models = {name: Decoder(sizes, way, Weights(way, device, dtype)) for name, way in ways.items() if _here(way)}
    good = True
    for batch in options.batches:
        made = {name: Decoding(ways[name], sizes, options, batch, model) for name, model in models.items()}
        times: dict[str, list[float]] = {name: [] for name in made}
        found: dict[str, list[Tensor]] = {name: [] for name in made}
        for _ in range(options.steps):
            for name in ways:
                if name in made:
                    with torch.no_grad(), _timed(times[name], device):
                        tokens = made[name].step()
                    found[name].append(tokens.clone())
                dist.barrier()
        if dist.get_rank() == 0:
            known = _reference(list(made))
            for name in made:
                same = _agreement(found[name], found[known])
                good &= same >= options.same
                print(f"{name:8} {100 * same:.1f} % of the tokens that follow the same text as {known}'s")
            _print_times(times, f"a step of {batch} tokens")
    return good


def _reference(names: list[str]) -> str:
    """The way that others are compared with."""
    return next((name for name in ("plain", "nccl") if name in names), names[0])


def _agreement(found: list[Tensor], known: list[Tensor]) -> float:
    """The share of equal tokens, of those before which a sequence was the same: from its first other token on, which
    two scores within rounding suffice for, it is another text."""
    equal = torch.stack([a == b for a, b in zip(found, known, strict=True)])
    until = equal.cumprod(0)
    followed = torch.cat([torch.ones_like(until[:1]), until[:-1]])
    return float(until.sum() / followed.sum())


# ---------------------------------------------------------------- times


def _dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def _here(way: Way) -> bool:
    return bool(way.ranks > 1 or dist.get_rank() == 0)


@contextmanager
def _timed(times: list[float], device: torch.device) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    if device.type == "cuda":
        torch.cuda.synchronize()
    times.append(1e3 * (time.perf_counter() - begun))


def _print_times(times: dict[str, list[float]], what: str) -> None:
    """Medians without the first steps, which compile and warm."""
    for name, all_times in times.items():
        later = sorted(all_times[len(all_times) // 3 :])
        print(f"{name:8} {what}: {statistics.median(later):.3f} ms ({later[0]:.3f}–{later[-1]:.3f})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "decode"))
    parser.add_argument("--ways", help="of ficco, nccl, asynctp, plain, separated by commas")
    parser.add_argument("--small", action="store_true", help="small sizes; in fp32 if there is no GPU")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tokens", type=int, help="of a training step; 8192, small 64")
    parser.add_argument("--batches", type=numbers, help="tokens of a decode step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--mode", choices=("eager", "compile", "capture"), default="eager", help="of a training step; capture on GPUs"
    )
    parser.add_argument(
        "--leave",
        type=int,
        help="multiprocessors that ficco leaves to NCCL; not beside asynctp, which install replaces",
    )
    options = parser.parse_args()
    on_gpus = torch.cuda.is_available()
    if not (on_gpus or options.small):
        sys.stderr.write("this machine has no GPU: add --small\n")
        return 3
    if "LOCAL_RANK" not in os.environ:
        sys.stderr.write("start it with torchrun --nproc-per-node 2\n")
        return 3
    if options.mode == "capture" and not on_gpus:
        parser.error("--mode capture needs a GPU")
    if options.leave is not None and options.leave < 0:
        parser.error("--leave is a number of multiprocessors, 0 or more")
    if min(options.layers, options.steps, options.tokens or 1, *(options.batches or [1])) < 1:
        parser.error("all sizes and counts are numbers from 1")
    options.tokens = options.tokens or (64 if options.small else 8192)
    options.batches = options.batches or ([1, 4] if options.small else [1, 16, 64, 256])
    options.off, options.same = (5e-2, 0.9) if on_gpus else (1e-4, 1.0)
    dist.init_process_group("gloo" if shared_gpu() or not on_gpus else None)
    device = torch.device("cpu")
    if on_gpus:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.cuda.set_stream(torch.cuda.Stream())  # NOTE the default stream cannot be captured
    with_nccl = on_gpus and not shared_gpu()
    asked = options.ways or (
        "ficco,nccl,asynctp" if with_nccl else "ficco,nccl,plain" if not on_gpus else "ficco,plain"
    )
    wrong = sorted(set(asked.split(",")) - set(WAYS))
    if wrong:
        parser.error(f"no way {', '.join(wrong)}; there are {', '.join(WAYS)}")
    if options.tokens % dist.get_world_size():
        parser.error(f"{options.tokens} tokens are not the same number for each of {dist.get_world_size()} processes")
    sizes = replace(SMALL if options.small else Sizes(), layers=options.layers)
    ways = {name: WAYS[name]() for name in asked.split(",")}
    if options.leave is not None:
        if "ficco" not in ways or "asynctp" in ways:
            parser.error("--leave is for ficco, and not beside asynctp: add --ways ficco,nccl")
        import ficco_rt.torch

        ficco_rt.torch.install(leave=options.leave)
    good = {"train": train, "decode": decode}[options.what](ways, sizes, options, device)
    dist.destroy_process_group()
    return 0 if good else 4


def numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def shared_gpu() -> bool:
    """Whether processes share a GPU, where there is no NCCL."""
    return bool(0 < torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]))


if __name__ == "__main__":
    sys.exit(main())
