"""Random calls of symm_mem's operators, compared with PyTorch's own fallback: bits, strides, and what is returned."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch.utils._pytree import tree_leaves, tree_map_only

OPERATORS = torch.ops.symm_mem
DTYPES = (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16, torch.float16, torch.float64)
FP8 = torch.float8_e4m3fn
EVERY = 4 if "FICCO_ALL" in os.environ else 12  # so many calls have one of fp8 among them


@dataclass(frozen=True)
class Call:
    """Of an operator of `OPERATORS`. The same in all processes, except for the values. `arguments` gives the arguments
    of this process."""

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, bool]

    def ours(self) -> Any:
        return getattr(OPERATORS, self.name)(*self.arguments, **self.keywords)

    def theirs(self) -> Any:
        if self.name == "fused_all_gather_scaled_matmul":
            return scaled_gather(*self.arguments)
        if self.name == "fused_scaled_matmul_reduce_scatter":
            return scaled_scatter(*self.arguments)
        return getattr(symmetric, f"_{self.name}_fallback")(*self.arguments, **self.keywords)

    def on(self, device: str) -> Call:
        """Of copies there."""
        return Call(self.name, moved(self.arguments, device), self.keywords)

    def inputs(self) -> list[torch.Tensor]:
        """But for scales and biases of fp8."""
        found = [tensor for tensor in tree_leaves(self.arguments) if isinstance(tensor, torch.Tensor)]
        return [tensor for tensor in found if tensor.dtype == FP8] if "scaled" in self.name else found


def scaled_gather(
    A: torch.Tensor, Bs: Any, A_scale: torch.Tensor, B_scales: Any, dim: int, group_name: str, *lists: Any
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """What PyTorch's fallback makes. NOTE gloo gathers no fp8, so that it fails on the CPU."""
    ranks = torch.distributed.distributed_c10d._get_group_size_by_name(group_name)

    def gathered(shard: torch.Tensor) -> torch.Tensor:
        parts = torch.ops._c10d_functional.all_gather_into_tensor(shard.contiguous(), ranks, group_name)
        parts = torch.ops._c10d_functional.wait_tensor(parts).view(ranks, *shard.shape)
        return parts.movedim(dim + 1, 1).flatten(0, 1)

    whole, by = gathered(A.view(torch.uint8)).view(A.dtype), A_scale
    if A_scale.shape == (*A.shape[:-1], 1):
        by = gathered(A_scale)
    elif A_scale.numel() > 1:
        by = A_scale.movedim(dim, 0)
    by = by.flatten(0, -2) if by.numel() > 1 else by
    made = [
        scaled_mm(whole.flatten(0, -2), *of).unflatten(0, whole.shape[:-1]).movedim(0, dim)
        for of in zip(Bs, [by] * len(Bs), B_scales, *lists, strict=True)
    ]
    return whole.movedim(0, dim), made


def scaled_scatter(A: torch.Tensor, B: torch.Tensor, A_scale: torch.Tensor, B_scale: torch.Tensor, *rest: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_scaled_mm", scaled_mm)
        return symmetric._fused_scaled_matmul_reduce_scatter_fallback(A, B, A_scale, B_scale, *rest)


_OWN = torch._scaled_mm


def scaled_mm(
    A: torch.Tensor, B: torch.Tensor, by: torch.Tensor, scale: torch.Tensor, bias: Any, result: Any, out: Any, fast: Any
) -> torch.Tensor:
    """NOTE of rows, PyTorch's has it on the CPU since 2.13 or so."""
    try:
        return _OWN(A, B, by, scale, bias, result, out, fast)
    except RuntimeError as error:
        if "only supports per-tensor" not in str(error):
            raise
        y = (A.float() * by) @ (B.float() * scale)
        return (y if bias is None else y + bias).to(out)


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
        return Call("fused_all_gather_matmul", (A, Bs, dim, group.group_name), {"return_A": draw.random() < 0.5})
    reduce_op = draw.choice(("sum", "sum", "avg"))
    return Call("fused_matmul_reduce_scatter", (A, Bs[0], reduce_op, dim, group.group_name), {})


def scaled_call(draw: random.Random, group: Any, device: str = "cpu") -> Call:
    """A random one of fp8, with scales of tensors, or of rows that are a rank's own or those of all."""
    ranks, mine = group.size(), torch.Generator().manual_seed(draw.randrange(1 << 30) * 64 + group.rank())
    alike = torch.Generator().manual_seed(draw.randrange(1 << 30))
    shape = [draw.choice((1, 2, 3, 5)) for _ in range(draw.choice((1, 1, 2, 3)))]
    gathers, mode = draw.random() < 0.5, draw.choice(("tensor", "row", "whole"))
    k, dim = draw.choice((16, 144)), draw.randrange(len(shape))
    whole = [n * ranks if i == dim else n for i, n in enumerate(shape)]
    columns = [draw.choice((16, 32)) for _ in range(draw.choice((1, 1, 3)) if gathers else 1)]
    rows = shape if gathers else whole
    ways = ("dense",) if len(columns) > 1 else ("dense", "gaps", "odd")  # PyTorch asks for columns that lie dense

    def scales(*sizes: int, of: torch.Generator = mine) -> torch.Tensor:
        """NOTE of a tensor they are the same in all processes."""
        drawn = torch.randint(0, 2, sizes, generator=of if sizes else alike)
        return (drawn + 1).float().to(device)

    A = _matrix(draw, mine, [*rows, k], FP8, device)
    Bs = [_matrix(draw, mine, [n, k], FP8, device, ways).t() for n in columns]
    if mode == "tensor":
        A_scale, B_scales = scales(), [scales() for _ in columns]
    else:
        of_all = gathers and mode == "whole"
        A_scale = scales(*(whole if of_all else rows), 1, of=alike if of_all else mine)
        B_scales = [scales(1, n) for n in columns]
    outs = [draw.choice((torch.bfloat16, torch.float32) if len(columns) == 1 else (torch.bfloat16,)) for _ in columns]
    fast = [draw.random() < 0.5 for _ in columns]
    if gathers:
        biased = [draw.random() < 0.3 for _ in columns]
        biases = [
            _matrix(draw, mine, [n], torch.bfloat16, device, ways) if b else None
            for n, b in zip(columns, biased, strict=True)
        ]
        lists = biases, [None] * len(Bs), outs, fast
        return Call("fused_all_gather_scaled_matmul", (A, Bs, A_scale, B_scales, dim, group.group_name, *lists), {})
    n, flat = columns[0], draw.random() < 0.4
    if flat:  # as Inductor calls it
        A, A_scale = A.flatten(0, -2), A_scale.flatten(0, -2) if A_scale.dim() else A_scale
    reduce_op = draw.choice(("sum", "sum", "avg"))
    arguments = A, Bs[0], A_scale, B_scales[0], reduce_op, dim, 0 if flat else dim, group.group_name, [*whole, n]
    return Call("fused_scaled_matmul_reduce_scatter", (*arguments, None, None, outs[0], fast[0]), {})


WAYS = ("dense", "dense", "turned", "gaps", "odd")


def _matrix(
    draw: random.Random,
    values: torch.Generator,
    shape: list[int],
    dtype: torch.dtype,
    device: str,
    ways: Sequence[str] = WAYS,
) -> torch.Tensor:
    """Dense, transposed, a view with gaps, or one that begins at an odd address."""

    def made(*sizes: int) -> torch.Tensor:
        return torch.randint(-1, 2, sizes, generator=values).to(dtype).to(device)

    match draw.choice(ways):
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
            assert torch.equal(*((t.view(torch.uint8) for t in (a, b)) if a.itemsize == 1 else (a, b)))


def layout(tensor: torch.Tensor) -> list[int]:
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]


Layers: TypeAlias = tuple[str, Callable[[], list[torch.Tensor]], Sequence[torch.Tensor]]
SCALES = "blocks", "blocks, M-major", "rows", "one", "one and rows"


def scaled_layers(kind: str, rows: int, k: int, n: int, device: str = "cpu") -> Layers:
    """Three layers on fp8, of `n` columns and sums over `k` of all ranks, and what they must give. All processes draw
    the same; scales are 1 or 2."""
    name, ranks, rank = dist.group.WORLD.group_name, dist.get_world_size(), dist.get_rank()

    def operand(rows: int, k: int, down: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Values, scales and their product. `down`: rows of a block."""
        each = kind if " and " not in kind else kind.split(" and ")[down > 1]
        shape = {"rows": (rows, 1), "one": (1, 1)}.get(each, (-(-rows // down), -(-k // 128)))
        values, scales = torch.randint(-1, 2, (rows, k)).float(), torch.randint(1, 3, shape).float()
        across = 128 if each.startswith("blocks") else k
        wide = scales.repeat_interleave(-(-rows // shape[0]), 0) if across == k else scales.repeat_interleave(down, 0)
        given = scales.t().contiguous().t() if "M-major" in kind else scales
        by = wide[:rows].repeat_interleave(across, 1)[:, :k]
        return values.to(device, FP8), given.to(device), values * by

    narrow = [[operand(m // ranks, k, down) for _ in range(ranks)] for m, down in ((rows, 1), (n, 128))]
    whole = [[operand(m, k // ranks, down) for _ in range(ranks)] for m, down in ((rows, 1), (n, 128))]
    b = torch.randint(-1, 2, (n // ranks,)).to(device, torch.bfloat16)

    def layers() -> list[torch.Tensor]:
        ops, ((x, s, _), (w, of_w, _)), ((xs, ss, _), (ws, of_ws, _)) = (
            torch.ops.ficco,
            *(tuple(side[rank] for side in sides) for sides in (narrow, whole)),
        )
        return [
            ops.all_gather_linear_scaled(x, w, s, of_w, b, 0, name),
            ops.linear_reduce_scatter_scaled(xs, ws, ss, of_ws, None, 0, name),
            ops.linear_all_reduce_scaled(xs, ws, ss, of_ws, None, name, out_dtype=torch.float32),
        ]

    gathered = torch.cat([x[2] for x in narrow[0]]) @ narrow[1][rank][2].t() + b.float().cpu()
    summed = torch.stack([x[2] @ w[2].t() for x, w in zip(*whole, strict=True)]).sum(0)
    wanted = gathered.to(torch.bfloat16), summed.chunk(ranks)[rank].to(torch.bfloat16), summed
    return kind, layers, tuple(t.to(device) for t in wanted)


def many(number: int, seed: int, group: Any = None) -> None:
    """So many random calls; results of earlier ones stay as they were."""
    group = dist.group.WORLD if group is None else group
    draw = random.Random(seed)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for i in range(number):
        one = scaled_call(draw, group) if i % EVERY == 1 else call(draw, group)
        given, wanted = one.ours(), one.theirs()
        try:
            same(given, wanted)
            same(given, one.on("meta").ours())  # its strides are what a compiler relies on
        except AssertionError as error:
            raise AssertionError(f"call {i} of seed {seed}: {one}") from error
        if i < 100:
            kept += [(t, t.clone()) for t in parts(given) if t is not None]
    assert all(torch.equal(t, was) for t, was in kept)
