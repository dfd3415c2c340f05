"""Random calls of symm_mem's operators, compared with PyTorch's own fallback: bits, strides, and what is returned."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch.utils._pytree import tree_leaves, tree_map_only

OPERATORS = torch.ops.symm_mem
DTYPES = (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class Call:
    """The same in all processes, except for the values. `arguments` gives the arguments of this process."""

    gathers: bool
    arguments: tuple[Any, ...]
    keywords: dict[str, bool]

    def ours(self) -> Any:
        operator = OPERATORS.fused_all_gather_matmul if self.gathers else OPERATORS.fused_matmul_reduce_scatter
        return operator(*self.arguments, **self.keywords)

    def theirs(self) -> Any:
        fallback: Callable[..., Any] = symmetric._fused_matmul_reduce_scatter_fallback
        if self.gathers:
            fallback = symmetric._fused_all_gather_matmul_fallback
        return fallback(*self.arguments, **self.keywords)

    def on(self, device: str) -> Call:
        """Of copies there."""
        return Call(self.gathers, moved(self.arguments, device), self.keywords)

    def inputs(self) -> list[torch.Tensor]:
        return [tensor for tensor in tree_leaves(self.arguments) if isinstance(tensor, torch.Tensor)]


def moved(values: Any, device: str) -> Any:
    """With copies there in the tensors' place."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), values)


def call(
    draw: random.Random, group: Any, device: str = "cpu", dtypes: Sequence[torch.dtype] = DTYPES, last: float = 0.15
) -> Call:
    """A random one of small integers, whose results are exact in any order of sums. `last`: how many of all are along
    the last dimension."""
    ranks, values = group.size(), torch.Generator().manual_seed(draw.randrange(1 << 30) * 64 + group.rank())
    dtype = draw.choice(dtypes)
    gathers = draw.random() < 0.5
    shape = [draw.choice((1, 2, 3, 5)) for _ in range(draw.choice((1, 1, 2, 3)))]
    k = draw.choice((8, 24))
    dim = draw.randrange(len(shape) + (draw.random() < last))
    columns = [draw.choice((8, 16)) for _ in range(draw.choice((1, 1, 2, 3)) if gathers else 1)]
    if dim < len(shape) and not gathers:
        shape[dim] *= ranks
    if dim == len(shape):  # along the last one
        columns = [n * ranks for n in columns]
    rows = k * ranks if gathers and dim == len(shape) else k
    A = _matrix(draw, values, [*shape, k], dtype, device)
    Bs = [_matrix(draw, values, [rows, n], dtype, device) for n in columns]
    if gathers:
        return Call(True, (A, Bs, dim, group.group_name), {"return_A": draw.random() < 0.5})
    return Call(False, (A, Bs[0], draw.choice(("sum", "sum", "avg")), dim, group.group_name), {})


def _matrix(
    draw: random.Random, values: torch.Generator, shape: list[int], dtype: torch.dtype, device: str
) -> torch.Tensor:
    """Dense, transposed, a view with gaps, or one that begins at an odd address."""

    def made(*sizes: int) -> torch.Tensor:
        return torch.randint(-1, 2, sizes, generator=values).to(dtype).to(device)

    match draw.choice(("dense", "dense", "turned", "gaps", "odd")):
        case "turned":
            order = draw.sample(range(len(shape)), len(shape)) if len(shape) > 2 else [1, 0]
            back = [order.index(i) for i in range(len(shape))]
            return made(*(shape[i] for i in order)).permute(back)
        case "gaps":
            return made(*shape[:-1], shape[-1] + 3)[..., 1:-2]
        case "odd":
            flat = made(torch.Size(shape).numel() + 1)
            return flat[1:].view(shape)
    return made(*shape)


def parts(returned: Any) -> list[torch.Tensor | None]:
    if isinstance(returned, torch.Tensor):
        return [returned]
    gathered, products = returned
    return [gathered, *products]


def same(given: Any, wanted: Any) -> None:
    """Equal bits, types, shapes, and strides where there is more than one element to step over."""
    ours, theirs = parts(given), parts(wanted)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is None or b is None:
            continue
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert layout(a) == layout(b), (a.shape, a.stride(), b.stride())
        if not b.is_meta:
            assert torch.equal(a, b)


def layout(tensor: torch.Tensor) -> list[int]:
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]


def many(number: int, seed: int, group: Any = None) -> None:
    """So many random calls; results of earlier ones stay as they were."""
    group = dist.group.WORLD if group is None else group
    draw = random.Random(seed)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for i in range(number):
        one = call(draw, group)
        given, wanted = one.ours(), one.theirs()
        try:
            same(given, wanted)
            same(given, one.on("meta").ours())  # its strides are what a compiler relies on
        except AssertionError as error:
            raise AssertionError(f"call {i} of seed {seed}: {one}") from error
        if i < 100:
            kept += [(t, t.clone()) for t in parts(given) if t is not None]
    assert all(torch.equal(t, was) for t, was in kept)
