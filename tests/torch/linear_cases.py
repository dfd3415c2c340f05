"""What each process of a group does in the tests of `test_linear.py`. Every function is called by all processes."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import ficco_rt as ficco
from ficco_rt.errors import UsageError
from ficco_rt.torch import groups, install, installed, uninstall
from ficco_rt.torch import layers as parallel
from tests.torch import calls

OPS = torch.ops.ficco
K, N = 8, 12
ALL = "FICCO_ALL" in os.environ
SHAPES = (((8,), 0), ((8, 3), 0), ((3, 8), 1), ((2, 8, 2), 1))  # of rows, and the dimension that is sharded


def world() -> tuple[str, int, int]:
    assert dist.group.WORLD is not None
    return dist.group.WORLD.group_name, dist.get_world_size(), dist.get_rank()


def integers(*shape: int) -> Tensor:
    """So small that no sum rounds."""
    return torch.randint(-3, 4, shape).float()


Call = Callable[[Tensor], Tensor]
Layer = tuple[str, Callable[..., Tensor], tuple[Tensor, ...], Tensor, Tensor, tuple[Tensor, ...]]


def layers(shape: tuple[int, ...], dim: int, make: Callable[..., Tensor] = integers) -> Iterator[Layer]:
    """Of each operator: its name, the call, this rank's input, weight and bias, the gradient of its output; and what an
    nn.Linear of all ranks together makes: output and gradients."""
    name, ranks, rank = world()
    x, w, b = (t.requires_grad_() for t in (make(*shape, K), make(N, K), make(N)))
    y = F.linear(x, w, b)
    dy = make(*y.shape)
    of_x, of_w, of_b = torch.autograd.grad(y, (x, w, b), dy)

    def part(tensor: Tensor, dim: int) -> Tensor:
        return tensor.detach().chunk(ranks, dim)[rank].clone()

    def gathered(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return OPS.all_gather_linear(x, w, b, dim, name)

    def scattered(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return OPS.linear_reduce_scatter(x, w, b, dim, name)

    def reduced(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return OPS.linear_all_reduce(x, w, b, name)

    wide = part(x, -1), part(w, 1), b.detach().clone()
    of_wide = part(of_x, -1), part(of_w, 1), of_b
    mine = part(x, dim), part(w, 0), part(b, 0)
    yield "all_gather", gathered, mine, part(dy, -1), part(y, -1), (part(of_x, dim), part(of_w, 0), part(of_b, 0))
    yield "reduce_scatter", scattered, wide, part(dy, dim), part(y, dim), of_wide
    yield "all_reduce", reduced, wide, dy, y.detach(), of_wide


def exchanged(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return OPS.all_to_all_linear(x, w, b, world()[0])


def case_results_and_gradients_are_those_of_one_layer() -> None:
    for shape, dim in SHAPES:
        for name, call, tensors, dy, wanted, of in layers(shape, dim):
            tensors = tuple(t.requires_grad_() for t in tensors)
            y = call(*tensors)
            assert torch.equal(y, wanted), (name, shape)
            for what, grad, right in zip("xwb", torch.autograd.grad(y, tensors, dy), of, strict=True):
                assert torch.equal(grad, right), (name, shape, what)


def case_results_are_changed_in_place() -> None:
    every = [(call, tensors) for shape, dim in SHAPES for _, call, tensors, *_ in layers(shape, dim)]
    for call, tensors in (*every, (exchanged, (integers(8, K), integers(N, K), integers(N)))):
        given = [t.requires_grad_() for t in tensors]
        y = call(*given)
        assert not y._is_view()
        wanted = torch.autograd.grad(torch.relu(y).sum(), given)
        assert all(map(torch.equal, torch.autograd.grad(torch.relu_(call(*given)).sum(), given), wanted))


def case_autocast() -> None:
    """As of F.linear: layers of fp32 behind others, whose results have the other type."""
    for dtype in (torch.bfloat16, torch.float16):
        for name, call, tensors, dy, wanted, of in layers((8,), 0):
            x, w, b = (t.requires_grad_() for t in tensors)
            with torch.autocast("cpu", dtype):
                y = call(x.to(dtype), w, b)
            assert torch.equal(y, wanted.to(dtype)), name
            assert all(map(torch.equal, torch.autograd.grad(y, (x, w, b), dy.to(dtype)), of)), name
    with torch.autocast("cpu", dtype):
        assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(x, w, b), y)
        assert call(*(t.double() for t in tensors)).dtype == torch.float64
        assert OPS.linear_all_reduce_scaled(*_blocks(8), None, world()[0]).dtype == torch.bfloat16


def case_without_bias_and_with_frozen_tensors() -> None:
    for name, call, (x, w, _), dy, _, (of_x, of_w, _) in layers((8,), 0):
        for tensor, others, right in ((x, w, of_x), (w, x, of_w)):
            tensor.requires_grad_()
            others.requires_grad_(False)
            (grad,) = torch.autograd.grad(call(x, w, None), (tensor,), dy)
            assert torch.equal(grad, right), name


def case_the_operation_adds_the_bias_of_rank_0() -> None:
    name, _, rank = world()
    for dtype in (torch.float32, torch.float64):  # the latter by PyTorch
        x, w, b = (integers(*shape).to(dtype) for shape in ((8, K), (N, K), (N,)))
        y = OPS.linear_all_reduce(x, w, b if rank == 0 else b + 1, name)
        assert torch.equal(y, OPS.linear_all_reduce(x, w, None, name) + b)


def case_processes_with_other_rows_are_refused() -> None:
    _, ranks, rank = world()
    with ficco.Workspace(ranks, "host", group=dist.group.WORLD, timeout=20) as workspace:
        operation = ficco.Operation(workspace, "gemm_rs", max_m=16, N=N, K=K * ranks, T="fp32")
        for m in (5 + 2 * rank, rank):
            x, w, y = integers(m * ranks, K), integers(K, N), torch.empty(m, N)
            with pytest.raises(UsageError, match=r"the rows of a rank is . in process 0 and . in process 1"):
                operation.run(A=[x], B=[w], C=[y])
        with pytest.raises(UsageError, match="A: wanted a list of tensors"):
            operation.run(A=x, B=[w], C=[y])


def case_settings_come_before_the_first_call() -> None:
    name, _, _ = world()
    x, w = integers(8, K), integers(N, K)
    OPS.linear_all_reduce(x, w, None, name)
    with pytest.raises(UsageError, match=r"have run with other settings: .* call uninstall\(\) first"):
        install(timeout=30)
    uninstall()
    with installed(timeout=30, buckets=[5]):
        with installed(timeout=30, buckets=(5,)):
            pass  # installed outside
        OPS.linear_all_reduce(x, w, None, name)
        assert groups.operations(name, x.device).workspace.timeout == 30
        torch.ops.symm_mem.fused_all_gather_matmul(x, [w.t()], 0, name)
    with pytest.raises(UsageError, match="check is True or False; given 'no'"):
        install(check="no")


def case_a_frozen_layer_has_frozen_shards() -> None:
    whole = nn.Linear(K, N)
    whole.weight.requires_grad_(False)
    for kind in (parallel.ColumnParallelLinear, parallel.RowParallelLinear):
        made = kind.from_linear(whole)
        assert not made.weight.requires_grad
        assert made.bias.requires_grad


def case_new_layers_are_shards_of_one() -> None:
    """Drawn with one seed or with several, as a whole layer is."""
    _, ranks, rank = world()
    whole = nn.Linear(64 * ranks, 48 * ranks)
    for seed in (1, rank):
        torch.manual_seed(seed)
        column = parallel.ColumnParallelLinear(64 * ranks, 48 * ranks)
        row = parallel.RowParallelLinear(64 * ranks, 48 * ranks)
        for layer, bound in ((column, whole.in_features**-0.5), (row, whole.in_features**-0.5)):
            others = of_all(layer.weight.detach())
            assert all(not torch.equal(others[0], other) for other in others[1:])
            assert 0.95 * bound < layer.weight.abs().max() <= bound
        assert all(torch.equal(row.bias, other) for other in of_all(row.bias.detach()))
        assert not torch.equal(*of_all(column.bias.detach())[:2])
    before = torch.get_rng_state()
    made = parallel.RowParallelLinear.from_linear(whole)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(p.is_meta for p in made.parameters())
    meta = parallel.ColumnParallelLinear(8, 4 * ranks, device="meta").to_empty(device="cpu")
    meta.weight.data.fill_(float("nan"))
    meta.reset_parameters()
    assert meta.weight.isfinite().all()
    with torch.device("meta"):
        assert parallel.ColumnParallelLinear(8, 4 * ranks, device="cpu").weight.isfinite().all()
    with FakeTensorMode():
        assert parallel.ColumnParallelLinear(8, 4 * ranks).weight.shape == (4, 8)


def case_groups_that_are_destroyed_leave_nothing() -> None:
    name, ranks, _ = world()
    x, w = integers(8, K), integers(N, K)
    for _ in range(3):
        group = dist.new_group(list(range(ranks)))
        OPS.linear_all_reduce(x, w, None, group.group_name)
        dist.destroy_process_group(group)
    OPS.linear_all_reduce(x, w, None, name)
    assert {key[0] for key in groups._OPERATIONS} <= {name, group.group_name}
    uninstall()
    OPS.linear_all_reduce(x, w, None, name)
    assert {key[0] for key in groups._OPERATIONS} == {name}


def of_all(mine: Tensor) -> list[Tensor]:
    found = [torch.empty_like(mine) for _ in range(world()[1])]
    dist.all_gather(found, mine.contiguous())
    return found


def case_rows_in_one_process_alone_are_told_in_all() -> None:
    name, ranks, rank = world()
    w = integers(N, K)
    with pytest.raises(UsageError, match="the implementation is "):
        OPS.all_to_all_linear(integers(0 if rank == 0 else 2 * ranks, K), w, None, name)
    uninstall()  # no group of ours works behind that
    x, none = integers(4, 0), integers(N, 0)
    assert torch.equal(OPS.all_gather_linear(x, none, None, 0, name), torch.zeros(4 * ranks, N))


def case_a_process_outside_of_the_group_makes_no_layer() -> None:
    group, rank = dist.new_group([0]), world()[2]
    if rank:
        with pytest.raises(UsageError, match="this process is not in the group"):
            parallel.RowParallelLinear(K, N, group=group)


def case_each_rank_of_an_all_to_all_has_a_layer_of_its_own() -> None:
    _, ranks, rank = world()
    xs, ws, bs = ([integers(*shape).requires_grad_() for _ in range(ranks)] for shape in ((4 * ranks, K), (N, K), (N,)))
    inward = [torch.cat([x.chunk(ranks)[r] for x in xs]) for r in range(ranks)]
    ys = [F.linear(x, w, b) for x, w, b in zip(inward, ws, bs, strict=True)]
    dys = [integers(*y.shape) for y in ys]
    right = torch.autograd.grad(ys, (xs[rank], ws[rank], bs[rank]), dys)
    tensors = [t[rank].detach().clone().requires_grad_() for t in (xs, ws, bs)]
    y = exchanged(*tensors)
    assert torch.equal(y, ys[rank])
    for what, grad, wanted in zip("xwb", torch.autograd.grad(y, tensors, dys[rank]), right, strict=True):
        assert torch.equal(grad, wanted), what


def case_gradients_are_the_differences_of_the_loss() -> None:
    """Of the sum of all ranks' losses, in fp32: products are linear, so a step of 1 is as good as a small one."""
    _, ranks, rank = world()
    calls = [*layers((4 * ranks,), 0)][:2]
    rows = integers(ranks, K), integers(N, K), integers(N)
    calls.append(("all_to_all", exchanged, rows, integers(ranks, N), *calls[0][4:]))
    for name, call, tensors, dy, *_ in calls:
        tensors = tuple(t.requires_grad_() for t in tensors)
        grads = torch.autograd.grad(call(*tensors), tensors, dy)

        def loss(tensors: tuple[Tensor, ...], call: Callable[..., Tensor] = call, dy: Tensor = dy) -> float:
            found = (call(*tensors) * dy).sum()
            dist.all_reduce(found)
            return float(found)

        plain = tuple(t.detach() for t in tensors)
        before = loss(plain)
        for source in range(ranks):
            for i in range(3):
                at = 0 if plain[i].dim() == 1 else (1, 1)
                if i == 2 and name == "reduce_scatter":
                    continue  # all ranks have the bias: see the first case
                changed = [t.clone() for t in plain]
                if rank == source:
                    changed[i][at] += 1
                difference = loss(tuple(changed)) - before
                if rank == source:
                    assert difference == float(grads[i][at]), (name, i)


def case_there_are_no_second_derivatives() -> None:
    name, ranks, _ = world()
    names = "all_gather_linear", "linear_reduce_scatter", "linear_all_reduce", "all_to_all_linear"
    x, w = integers(2 * ranks, K).requires_grad_(), integers(N, K).requires_grad_()

    def forward(operator: str, dims: tuple[int, ...], given: Tensor) -> Tensor:
        made: Tensor = getattr(OPS, operator)(given, w.detach(), None, *dims, name)
        return made

    for operator, dims in zip(names, ((0,), (0,), (), ()), strict=True):
        y = getattr(OPS, operator)(x, w, None, *dims, name)
        with pytest.raises(UsageError, match=f"ficco::{operator} has no second derivative, because autograd cannot"):
            torch.autograd.grad(y.square().sum(), x, create_graph=True)
        with pytest.raises(UsageError, match="operators of ficco have no forward-mode derivative"):
            torch.func.jvp(partial(forward, operator, dims), (x.detach(),), (torch.ones_like(x),))
        with forward_ad.dual_level():  # which concerns no tensor here
            assert forward(operator, dims, x.detach()).isfinite().all()


def case_opcheck() -> None:
    name, _, _ = world()
    names = "all_gather_linear", "linear_reduce_scatter", "linear_all_reduce"
    for operator, (_, _, tensors, dy, *_) in zip(names, layers((3, 8), 1), strict=True):
        x, w, b = (t.requires_grad_() for t in tensors)
        rest = (name,) if operator == "linear_all_reduce" else (1, name)
        torch.library.opcheck(getattr(OPS, operator).default, (x, w, b, *rest))
        if operator != "linear_all_reduce":
            torch.library.opcheck(getattr(OPS, f"{operator}_backward").default, (dy, x.detach(), w.detach(), *rest))
    x, w, b, dy = (integers(*shape).requires_grad_() for shape in ((8, K), (N, K), (N,), (8, N)))
    torch.library.opcheck(OPS.all_to_all_linear.default, (x, w, b, name))
    torch.library.opcheck(OPS.all_to_all_linear_backward.default, (dy.detach(), x.detach(), w.detach(), name))


def case_fp8_with_scales() -> None:
    _, ranks, _ = world()
    for kind in calls.SCALES:
        for rows, k, n in ((6, 144, 160),) if not ALL else ((6, 144, 160), (1, 640, 48), (40, 96, 130)):
            _, call, wanted = calls.scaled_layers(kind, rows * ranks, k * ranks, n * ranks)
            for given, right in zip(call(), wanted, strict=True):
                assert given.dtype == right.dtype, (kind, rows)
                assert torch.equal(given, right), (kind, rows, k, n)


FP8, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SCALED = (
    ("all_gather_linear_scaled", (1,)), ("linear_reduce_scatter_scaled", (1,)), ("linear_all_reduce_scaled", ()),
    ("all_to_all_linear_scaled", ()),
)  # fmt: skip


def _blocks(*lead: int, dtype: torch.dtype = FP8) -> tuple[Tensor, ...]:
    """An input, a weight and their scales of blocks."""
    shapes = (*lead, 2), (2, 2)
    return (
        *(integers(*shape).sign().to(of) for shape, of in (((*lead, 144), dtype), ((160, 144), FP8))),
        *(torch.randint(1, 3, shape).float() for shape in shapes),
    )


def case_fp8_of_any_layout() -> None:
    """More dimensions, scales with padding and between others, e5m2, and an exchange: as of the matrices."""
    name, ranks, rank = world()
    x, w, s, of_w = _blocks(2, 2 * ranks, dtype=E5M2)
    wide = x.float() * s.repeat_interleave(128, -1)[..., :144]
    by = of_w.repeat_interleave(128, 0)[:160].repeat_interleave(128, 1)[:, :144]
    y = (wide @ (w.float() * by).t()).bfloat16()  # the same in all processes
    padded = F.pad(s, (0, 2), value=float("nan"))
    for scales in (s, padded, torch.stack([s, s], -1)[..., 0]):
        given = OPS.all_gather_linear_scaled(x, w, scales, of_w, None, 1, name)
        assert torch.equal(given, torch.cat([y] * ranks, 1))
        given = OPS.linear_reduce_scatter_scaled(x, w, scales, of_w, None, 1, name)
        assert torch.equal(given, y.chunk(ranks, 1)[rank] * ranks)
    b = integers(160).bfloat16()
    assert torch.equal(OPS.linear_all_reduce_scaled(x, w, s, of_w, b, name), y * ranks + b)
    for operator in (OPS.all_gather_linear_scaled, OPS.linear_reduce_scatter_scaled):  # in which order would they be?
        with pytest.raises(ValueError, match=r"scales have shapes \[\d+, 2\] and \[2, 2\]; wanted"):
            operator(x, w, s.flatten(0, 1), of_w, None, 1, name)
    x, s, y = x[0], s[0], y[0]
    exchanged = torch.cat([y.chunk(ranks)[rank]] * ranks)
    assert torch.equal(OPS.all_to_all_linear_scaled(x, w, s, of_w, b, name), exchanged + b)
    alone = dist.new_group([rank], use_local_synchronization=True).group_name
    for operator, dims in SCALED:  # by PyTorch
        given = getattr(OPS, operator)(x[:, None], w, s[:, None], of_w, b, *(0 for _ in dims), alone)
        assert torch.equal(given, y[:, None] + b), operator


def case_opcheck_of_fp8() -> None:
    """NOTE PyTorch's test of the schema compares copies of the inputs, which it cannot in fp8."""
    name, ranks, _ = world()
    tests = "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"
    for operator, dims in SCALED if ALL else SCALED[:2]:
        given = (*_blocks(ranks, 2 * ranks), None, *dims, name)
        torch.library.opcheck(getattr(OPS, operator).default, given, {"out_dtype": torch.float32}, test_utils=tests)


def case_full_graphs_of_fp8() -> None:
    name, ranks, _ = world()
    x, w, s, of_w = _blocks(2, 2 * ranks)

    def layer(x: Tensor) -> Tensor:
        y = OPS.linear_reduce_scatter_scaled(x, w, s, of_w, None, 1, name) * 2
        return OPS.all_gather_linear_scaled(x, w, s, of_w, None, 1, name, out_dtype=torch.float32).sum() + y.float()

    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if ALL else "aot_eager")
    assert torch.equal(compiled(x), layer(x))


def case_fp8_has_no_gradient() -> None:
    name, ranks, _ = world()
    b = torch.ones(160, dtype=torch.bfloat16, requires_grad=True)
    for operator, dims in SCALED:
        y = getattr(OPS, operator)(*_blocks(ranks, 2 * ranks), b, *dims, name)
        with pytest.raises(UsageError, match=f"ficco::{operator} has no gradient: fp8 is forward only"):
            y.sum().backward()


def case_wrong_arguments_of_fp8() -> None:
    name, _, _ = world()
    x, w, s, of_w = _blocks(8)
    ones = torch.ones(3)
    scales = "scales have shapes [3] and [2, 2]; wanted 1 or [8, 1] and 1 or [160, 1], or of blocks [8, 2] and [2, 2]"
    wrong = {
        "input is torch.float32, wanted torch.float8_e4m3fn or torch.float8_e5m2": (x.float(), w, s, of_w, None),
        "weight is torch.bfloat16, wanted": (x, w.bfloat16(), s, of_w, None),
        "input and weight are torch.float8_e5m2; one of them": (x.to(E5M2), w.to(E5M2), s, of_w, None),
        "scales are torch.float64 and torch.float32, wanted torch.float32": (x, w, s.double(), of_w, None),
        scales: (x, w, ones, of_w, None),
        "bias is torch.float32 of shape [160], wanted torch.bfloat16 of [160]": (x, w, s, of_w, torch.ones(160)),
        "input has shape [8, 8], wanted two dimensions or more, the last one of 144": (x[:, :8], w, s, of_w, None),
    }
    for said, given in wrong.items():
        with pytest.raises(ValueError, match=re.escape(f"linear_all_reduce_scaled: {said}")):
            OPS.linear_all_reduce_scaled(*given, name)
    with pytest.raises(ValueError, match=r"out_dtype is torch.float64, wanted torch.bfloat16 or torch.float16 or"):
        OPS.linear_all_reduce_scaled(x, w, s, of_w, None, name, out_dtype=torch.float64)


def case_uninstall_closes_workspaces_without_an_installation() -> None:
    for _ in range(2):
        case_the_operation_adds_the_bias_of_rank_0()
        of = groups.operations(world()[0], torch.device("cpu"))
        assert of._workspace is not None
        uninstall()
        uninstall()
        assert of._workspace is None


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(K, N), nn.Linear(N, K)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


class Twice(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def _mlp() -> tuple[Mlp, Tensor, Tensor]:
    """With its output and gradients on all rows."""
    _, ranks, _ = world()
    whole, x = Mlp(), torch.randn(4 * ranks, K)
    y = whole(x)
    y.square().sum().backward()
    return whole, x, y.detach()


def _parallel(whole: Mlp) -> nn.Module:
    made = copy.deepcopy(whole)
    made.zero_grad()
    mesh = init_device_mesh("cpu", (world()[1],))
    return parallelize_module(made, mesh, {"up": parallel.ColumnParallel(), "down": parallel.RowParallel()})


def _as_whole(
    made: nn.Module, whole: Mlp, x: Tensor, y: Tensor, call: Callable[[Tensor], Tensor] | None = None
) -> None:
    _, ranks, rank = world()
    out = (made if call is None else call)(x.chunk(ranks)[rank].clone().requires_grad_())
    torch.testing.assert_close(out, y.chunk(ranks)[rank])
    out.square().sum().backward()
    wanted = dict(whole.named_parameters())
    for name, parameter in made.named_parameters():
        torch.testing.assert_close(parameter.grad.full_tensor(), wanted[name].grad)


def case_parallelize_module() -> None:
    whole, x, y = _mlp()
    _as_whole(_parallel(whole), whole, x, y)


def case_a_copy_has_weights_of_its_own() -> None:
    whole, x, y = _mlp()
    made = _parallel(whole)
    copied = copy.deepcopy(made)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    _as_whole(copied, whole, x, y)
    assert not made(x).any()


def case_full_graphs_of_the_compiler() -> None:
    whole, x, y = _mlp()
    made = _parallel(whole)
    _as_whole(made, whole, x, y, torch.compile(made, fullgraph=True, backend="inductor" if ALL else "aot_eager"))


def case_activation_checkpointing() -> None:
    whole, x, y = _mlp()
    made = _parallel(whole)
    _as_whole(made, whole, x, y, lambda x: checkpoint(made, x, use_reentrant=False))


def case_modules_are_shards_of_whole_ones() -> None:
    _, ranks, rank = world()
    whole, x, y = _mlp()
    up = parallel.ColumnParallelLinear.from_linear(whole.up)
    for scatter_dim, wanted, factor in ((0, y.chunk(ranks)[rank], 1), (None, y, ranks)):
        down = parallel.RowParallelLinear.from_linear(whole.down, scatter_dim=scatter_dim)
        out = down(torch.relu(up(x.chunk(ranks)[rank])))
        torch.testing.assert_close(out, wanted)
        up.zero_grad()
        out.square().sum().backward()
        torch.testing.assert_close(down.weight.grad, whole.down.weight.grad.chunk(ranks, 1)[rank])
        torch.testing.assert_close(down.bias.grad, whole.down.bias.grad)
        if scatter_dim == 0:
            torch.testing.assert_close(up.weight.grad, whole.up.weight.grad.chunk(ranks)[rank])
        assert factor in (1, ranks)


def case_data_parallel() -> None:
    """Two halves of the ranks have a model each, of which each half's ranks have shards."""
    _, ranks, _ = world()
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("data", "tensor"))
    tensor, data = mesh["tensor"].get_group(), mesh["data"].get_group()
    whole, x, _ = _mlp()
    up = parallel.ColumnParallelLinear.from_linear(whole.up, tensor)
    made = DistributedDataParallel(
        nn.Sequential(up, nn.ReLU(), parallel.RowParallelLinear.from_linear(whole.down, tensor)), process_group=data
    )
    made(x.chunk(ranks)[mesh["data"].get_local_rank() * (ranks // 2) + tensor.rank()]).square().sum().backward()
    right = whole.up.weight.grad.chunk(tensor.size())[tensor.rank()] / 2  # DDP takes the mean
    torch.testing.assert_close(up.weight.grad, right)


def case_wrong_tensors_leave_the_group_usable() -> None:
    name, ranks, _ = world()
    x, w, b = integers(8, K), integers(N, K), integers(N)
    wrong = {
        "input has shape [8, 8], wanted two dimensions or more, the last one of 7": (x, integers(N, 7), None),
        "weight has 1 dimensions, wanted 2": (x, b, None),
        "input is torch.float32 and weight torch.bfloat16": (x, w.bfloat16(), None),
        "bias is torch.float32 of shape [8], wanted torch.float32 of [12]": (x, w, integers(K)),
    }
    for said, (given, weight, bias) in wrong.items():
        for call in (lambda *t: OPS.all_gather_linear(*t, 0, name), lambda *t: OPS.linear_all_reduce(*t, name)):
            with pytest.raises(ValueError, match=re.escape(said)):
                call(given, weight, bias)
    with pytest.raises(ValueError, match="not the same number for each"):
        OPS.linear_reduce_scatter(integers(8 * ranks + 1, K), w, b, 0, name)
    with pytest.raises(ValueError, match="dimension 1 of an input with 2"):
        OPS.all_gather_linear(x, w, b, 1, name)
    with pytest.raises(UsageError, match="out_features is 13, which is not the same number for each of"):
        parallel.ColumnParallelLinear(K, 13)
    with pytest.raises(UsageError, match="in_features is 0; wanted at least 1"):
        parallel.RowParallelLinear(0, K)
    with pytest.raises(UsageError, match=r"RowParallelLinear is for nn\.Linear; given ReLU"):
        parallel.RowParallelLinear.from_linear(nn.ReLU())
    with pytest.raises(UsageError, match=r"ColumnParallel is for nn\.Linear; given ReLU"):
        parallelize_module(nn.ReLU(), init_device_mesh("cpu", (ranks,)), parallel.ColumnParallel())
    said = r" is for nn\.Linear; Twice has a forward of its own, .* or call torch\.ops\.ficco in that forward"
    with pytest.raises(UsageError, match="ColumnParallel" + said):
        parallelize_module(Twice(K, N), init_device_mesh("cpu", (ranks,)), parallel.ColumnParallel())
    with pytest.raises(UsageError, match="RowParallelLinear" + said):
        parallel.RowParallelLinear.from_linear(Twice(K, N))
    case_results_and_gradients_are_those_of_one_layer()


def everything() -> None:
    """All cases, in one start."""
    for name in list(globals()):
        if name.startswith("case_") and name != "case_data_parallel":
            _run(name)


def four() -> None:
    """What more ranks may change."""
    for name in ("case_results_and_gradients_are_those_of_one_layer", "case_data_parallel", "case_fp8_with_scales"):
        _run(name)


def _run(name: str) -> None:
    torch.manual_seed(1)  # the same tensors in all processes
    globals()[name]()
