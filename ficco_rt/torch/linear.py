"""Linear layers with the communication of tensor parallelism, as PyTorch operators `torch.ops.ficco.*` with gradients.

Weights are as nn.Linear stores them, [features, width]. A rank has a shard of the features, or of the width, or (in
`all_to_all_linear`) a layer of its own. Outputs have the layout of PyTorch's own fused operators: contiguous once the
gathered or scattered dimension is moved to the front.

| operator | input | weight | output |
|---|---|---|---|
| `all_gather_linear` | [rows, K] | [N / ranks, K] | [rows · ranks, N / ranks] |
| `linear_reduce_scatter` | [rows, K / ranks] | [N, K / ranks] | [rows / ranks, N] |
| `linear_all_reduce` | [rows, K / ranks] | [N, K / ranks] | [rows, N] |
| `all_to_all_linear` | [rows, K], piece r for rank r | [N, K] | [rows, N], piece r from rank r |

Inputs may have more dimensions; `gather_dim` and `scatter_dim` say which of them is sharded across the ranks.
Gradients are those of the sum of all ranks' losses, where each rank has a loss of its own outputs; the gradients of
`linear_all_reduce` are those of one rank's loss, since all ranks have the same outputs. A backward pass gathers again,
and computes the weight's gradient while data moves.

Source: sequence parallelism, Korthikanti et al. (arXiv 2205.05198), section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed.distributed_c10d as c10d
from torch import Tensor
from torch._library.autograd import Info, make_autograd_impl
from torch.amp.autocast_mode import _cast
from torch.autograd import forward_ad

from ..errors import UsageError
from ..types import Scaling
from . import groups, scaled
from .groups import DTYPES, Operations, T, place
from .scaled import FP8, Scaled

_LIBRARY = torch.library.Library("ficco", "DEF")


# ---------------------------------------------------------------- rows


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """[rows, last dimension], contiguous, with the elements of dimension `dim` one behind the other."""
    return tensor.movedim(dim, 0).flatten(0, -2).contiguous()


def _like(rows: Tensor, tensor: Tensor, dim: int, extent: int) -> Tensor:
    """`rows` itself, with the dimensions of `tensor`, of which `dim` has `extent`. NOTE no view: autograd forbids to
    change one in place that an operator returns."""
    others = [n for i, n in enumerate(tensor.shape[:-1]) if i != dim]
    made = rows.view(extent, *others, rows.shape[-1]).movedim(0, dim)
    return rows.as_strided_(made.shape, made.stride())


def _checked(name: str, tensor: Tensor, weight: Tensor, bias: Tensor | None, dim: int) -> None:
    """Raises ValueError. The same for real and for fake tensors."""
    _checked_shapes(name, tensor, weight, dim)
    if tensor.dtype != weight.dtype:
        raise ValueError(f"{name}: input is {tensor.dtype} and weight {weight.dtype}; they must be of one type")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype):
        shape = list(bias.shape)
        raise ValueError(f"{name}: bias is {bias.dtype} of shape {shape}, wanted {weight.dtype} of [{weight.shape[0]}]")


def _checked_shapes(name: str, tensor: Tensor, weight: Tensor, dim: int) -> None:
    if weight.dim() != 2:
        raise ValueError(f"{name}: weight has {weight.dim()} dimensions, wanted 2: [features, width] as in nn.Linear")
    if tensor.dim() < 2 or tensor.shape[-1] != weight.shape[1]:
        shape, width = list(tensor.shape), weight.shape[1]
        raise ValueError(f"{name}: input has shape {shape}, wanted two dimensions or more, the last one of {width}")
    if not 0 <= dim < tensor.dim() - 1:
        raise ValueError(f"{name}: dimension {dim} of an input with {tensor.dim()}; wanted one before the last")


def _shard(name: str, extent: int, ranks: int) -> int:
    if extent % ranks:
        raise ValueError(f"{name}: {extent} rows are not the same number for each of {ranks} ranks")
    return extent // ranks


def _served(
    name: str,
    rows: Tensor,
    weight: Tensor,
    group_name: str,
    ours: Callable[[Operations], T],
    pytorch: Callable[[], T],
    bias: Tensor | None = None,
) -> T:
    """What an operation makes, or PyTorch where there is a reason."""
    of = groups.operations(group_name, rows.device)
    stored = [weight] if bias is None else [weight, bias]
    return of.serve(
        (name, rows.shape, rows.dtype, weight.shape, weight.dtype, *(t.device for t in stored)),
        lambda: f"ficco::{name} of input {groups.words(rows)}, weight {groups.words(weight)}",
        lambda: of.refused(rows, stored),
        lambda: ours(of),
        pytorch,
    )


def _ranks(group_name: str) -> int:
    return int(c10d._get_group_size_by_name(group_name))


# ---------------------------------------------------------------- PyTorch's collectives, where no schedule serves

_COLLECTIVES = torch.ops._c10d_functional


def _gathered(rows: Tensor, group_name: str) -> Tensor:
    made = _COLLECTIVES.all_gather_into_tensor(_bytes(rows), _ranks(group_name), group_name)
    return _COLLECTIVES.wait_tensor(made).view(rows.dtype)


def _scattered(rows: Tensor, group_name: str) -> Tensor:
    made = _COLLECTIVES.reduce_scatter_tensor(rows, "sum", _ranks(group_name), group_name)
    return _COLLECTIVES.wait_tensor(made)


def _summed(tensor: Tensor, group_name: str) -> Tensor:
    return _COLLECTIVES.wait_tensor(_COLLECTIVES.all_reduce(tensor, "sum", group_name))


def _exchanged(rows: Tensor, group_name: str) -> Tensor:
    ranks = _ranks(group_name)
    pieces = [rows.shape[0] // ranks] * ranks
    made = _COLLECTIVES.all_to_all_single(_bytes(rows), pieces, pieces, group_name)
    return _COLLECTIVES.wait_tensor(made).view(rows.dtype)


def _bytes(rows: Tensor) -> Tensor:
    """NOTE gloo moves no fp8."""
    return rows.view(torch.uint8) if rows.itemsize == 1 else rows


def _moved(move: Callable[[Tensor, str], Tensor], x: Scaled, group_name: str) -> Scaled:
    return x._replace(values=move(x.values, group_name), scales=move(x.scales, group_name))


# ---------------------------------------------------------------- all_gather_linear


def _all_gather_linear(tensor: Tensor, weight: Tensor, bias: Tensor | None, gather_dim: int, group_name: str) -> Tensor:
    _checked("all_gather_linear", tensor, weight, bias, gather_dim)
    ranks, x = _ranks(group_name), _rows(tensor, gather_dim)
    y = _served(
        *("all_gather_linear", x, weight, group_name),
        lambda of: of.all_gather_matmul(x, weight, bias, turned=True)[0],
        lambda: _plus(_gathered(x, group_name) @ weight.t(), bias),
        bias,
    )
    return _like(y, tensor, gather_dim, tensor.shape[gather_dim] * ranks)


def _all_gather_linear_fake(
    tensor: Tensor, weight: Tensor, bias: Tensor | None, gather_dim: int, group_name: str
) -> Tensor:
    _checked("all_gather_linear", tensor, weight, bias, gather_dim)
    extent, ranks = tensor.shape[gather_dim], _ranks(group_name)
    y = tensor.new_empty(_rows(tensor, gather_dim).shape[0] * ranks, weight.shape[0])
    return _like(y, tensor, gather_dim, extent * ranks)


def _all_gather_linear_backward(
    grad: Tensor, tensor: Tensor, weight: Tensor, gather_dim: int, group_name: str
) -> tuple[Tensor, Tensor]:
    dy, x = _rows(grad, gather_dim), _rows(tensor, gather_dim)
    dx, dw = _served(
        *("all_gather_linear_backward", x, weight, group_name),
        lambda of: of.gradients("ag_gemm_backward", x.shape[0], x, weight, dy),
        lambda: (_scattered(dy @ weight, group_name), dy.t() @ _gathered(x, group_name)),
    )
    return _like(dx, tensor, gather_dim, tensor.shape[gather_dim]), dw


def _backward_fake(grad: Tensor, tensor: Tensor, weight: Tensor, dim: int, group_name: str) -> tuple[Tensor, Tensor]:
    dx = tensor.new_empty(_rows(tensor, dim).shape)
    return _like(dx, tensor, dim, tensor.shape[dim]), torch.empty_like(weight, memory_format=torch.contiguous_format)


def _backward_of_gathered(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tensor, weight, of_tensor, of_weight, of_bias = _kept("all_gather_linear", ctx)
    dx = dw = None
    if of_weight:
        dx, dw = torch.ops.ficco.all_gather_linear_backward(grad, tensor, weight, ctx.dim, ctx.group_name)
    elif of_tensor:
        dx = torch.ops.ficco.linear_reduce_scatter(grad, weight.t(), None, ctx.dim, ctx.group_name)
    return dx if of_tensor else None, dw, _of_bias(grad) if of_bias else None, None, None


# ---------------------------------------------------------------- linear_reduce_scatter


def _linear_reduce_scatter(
    tensor: Tensor, weight: Tensor, bias: Tensor | None, scatter_dim: int, group_name: str
) -> Tensor:
    _checked("linear_reduce_scatter", tensor, weight, bias, scatter_dim)
    ranks = _ranks(group_name)
    extent = _shard("linear_reduce_scatter", tensor.shape[scatter_dim], ranks)
    x = _rows(tensor, scatter_dim)
    y = _served(
        *("linear_reduce_scatter", x, weight, group_name),
        lambda of: of.matmul_reduce_scatter(x, weight, bias, turned=True),
        lambda: _plus(_scattered(x @ weight.t(), group_name), bias),
        bias,
    )
    return _like(y, tensor, scatter_dim, extent)


def _linear_reduce_scatter_fake(
    tensor: Tensor, weight: Tensor, bias: Tensor | None, scatter_dim: int, group_name: str
) -> Tensor:
    _checked("linear_reduce_scatter", tensor, weight, bias, scatter_dim)
    ranks = _ranks(group_name)
    extent = _shard("linear_reduce_scatter", tensor.shape[scatter_dim], ranks)
    y = tensor.new_empty(_rows(tensor, scatter_dim).shape[0] // ranks, weight.shape[0])
    return _like(y, tensor, scatter_dim, extent)


def _linear_reduce_scatter_backward(
    grad: Tensor, tensor: Tensor, weight: Tensor, scatter_dim: int, group_name: str
) -> tuple[Tensor, Tensor]:
    dy, x = _rows(grad, scatter_dim), _rows(tensor, scatter_dim)

    def pytorch() -> tuple[Tensor, Tensor]:
        whole = _gathered(dy, group_name)
        return whole @ weight, whole.t() @ x

    dx, dw = _served(
        *("linear_reduce_scatter_backward", x, weight, group_name),
        lambda of: of.gradients("gemm_rs_backward", dy.shape[0], x, weight, dy),
        pytorch,
    )
    return _like(dx, tensor, scatter_dim, tensor.shape[scatter_dim]), dw


def _backward_of_scattered(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tensor, weight, of_tensor, of_weight, of_bias = _kept("linear_reduce_scatter", ctx)
    dx = dw = None
    if of_weight:
        dx, dw = torch.ops.ficco.linear_reduce_scatter_backward(grad, tensor, weight, ctx.dim, ctx.group_name)
    elif of_tensor:
        dx = torch.ops.ficco.all_gather_linear(grad, weight.t(), None, ctx.dim, ctx.group_name)
    db = _summed(_of_bias(grad), ctx.group_name) if of_bias else None  # each rank has some of the rows
    return dx if of_tensor else None, dw, db, None, None


# ---------------------------------------------------------------- linear_all_reduce


def _linear_all_reduce(tensor: Tensor, weight: Tensor, bias: Tensor | None, group_name: str) -> Tensor:
    _checked("linear_all_reduce", tensor, weight, bias, 0)
    x = _rows(tensor, 0)
    y = _served(
        *("linear_all_reduce", x, weight, group_name),
        lambda of: of.matmul_all_reduce(x, weight, bias, turned=True),
        lambda: _summed(_plus(x @ weight.t(), _of_first(bias, group_name)), group_name),
        bias,
    )
    return _like(y, tensor, 0, tensor.shape[0])


def _linear_all_reduce_fake(tensor: Tensor, weight: Tensor, bias: Tensor | None, group_name: str) -> Tensor:
    _checked("linear_all_reduce", tensor, weight, bias, 0)
    return tensor.new_empty(*tensor.shape[:-1], weight.shape[0])


def _backward_of_reduced(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tensor, weight, of_tensor, of_weight, of_bias = _kept("linear_all_reduce", ctx)
    dx = grad @ weight if of_tensor else None
    dw = grad.flatten(0, -2).t() @ tensor.flatten(0, -2) if of_weight else None
    return dx, dw, _of_bias(grad) if of_bias else None, None


# ---------------------------------------------------------------- all_to_all_linear


def _all_to_all_linear(tensor: Tensor, weight: Tensor, bias: Tensor | None, group_name: str) -> Tensor:
    _checked("all_to_all_linear", tensor, weight, bias, 0)
    _shard("all_to_all_linear", tensor.shape[0], _ranks(group_name))
    x = _rows(tensor, 0)
    y = _served(
        *("all_to_all_linear", x, weight, group_name),
        lambda of: of.all_to_all_matmul(x, weight, bias, turned=True),
        lambda: _plus(_exchanged(x, group_name) @ weight.t(), bias),
        bias,
    )
    return _like(y, tensor, 0, tensor.shape[0])


def _all_to_all_linear_fake(tensor: Tensor, weight: Tensor, bias: Tensor | None, group_name: str) -> Tensor:
    _checked("all_to_all_linear", tensor, weight, bias, 0)
    _shard("all_to_all_linear", tensor.shape[0], _ranks(group_name))
    return tensor.new_empty(*tensor.shape[:-1], weight.shape[0])


def _all_to_all_linear_backward(grad: Tensor, tensor: Tensor, weight: Tensor, group_name: str) -> tuple[Tensor, Tensor]:
    dy, x = _rows(grad, 0), _rows(tensor, 0)
    dx, dw = _served(
        *("all_to_all_linear_backward", x, weight, group_name),
        lambda of: of.gradients("a2a_gemm_backward", x.shape[0] // of.ranks, x, weight, dy),
        lambda: (_exchanged(dy @ weight, group_name), dy.t() @ _exchanged(x, group_name)),
    )
    return _like(dx, tensor, 0, tensor.shape[0]), dw


def _all_to_all_linear_backward_fake(
    grad: Tensor, tensor: Tensor, weight: Tensor, group_name: str
) -> tuple[Tensor, Tensor]:
    return _backward_fake(grad, tensor, weight, 0, group_name)


def _backward_of_exchanged(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tensor, weight, of_tensor, of_weight, of_bias = _kept("all_to_all_linear", ctx)
    dx = dw = None
    if of_tensor or of_weight:
        dx, dw = torch.ops.ficco.all_to_all_linear_backward(grad, tensor, weight, ctx.group_name)
    db = _of_bias(grad) if of_bias else None
    return dx if of_tensor else None, dw if of_weight else None, db, None


# ---------------------------------------------------------------- what they share


def _plus(rows: Tensor, bias: Tensor | None) -> Tensor:
    return rows if bias is None else rows.add_(bias)


def _of_first(bias: Tensor | None, group_name: str) -> Tensor | None:
    """The bias of rank 0, which alone adds one."""
    return None if c10d._resolve_process_group(group_name).rank() else bias


def _of_bias(grad: Tensor) -> Tensor:
    return grad.flatten(0, -2).sum(0)


def _keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    """Inputs of every operator: the tensor, the weight, the bias, a dimension if it has one, and the group's name."""
    tensor, weight, _bias, *dim, ctx.group_name = inputs
    ctx.dim = dim[0] if dim else 0
    ctx.save_for_backward(tensor, weight)


def _kept(name: str, ctx: Any) -> tuple[Any, ...]:
    """The tensor and the weight; whether they and the bias need gradients. Raises UsageError (create_graph=True)."""
    if torch.is_grad_enabled():
        raise UsageError(
            f"ficco::{name} has no second derivative, because autograd cannot follow its backward pass to other "
            "processes: call backward without create_graph=True, or use PyTorch's own layers"
        )
    return *ctx.saved_tensors, *ctx.needs_input_grad[:3]


_Function = Callable[..., Any]


def _quick(name: str, kernel: _Function) -> _Function:
    """The kernel, whose call is known when it comes again on the same tensors."""

    def quick(*arguments: Any, **keyword: Any) -> Any:
        tensors = [given for given in arguments if isinstance(given, Tensor)]
        of = groups.operations(arguments[-1], tensors[0].device)
        call = name, *[place(given) if isinstance(given, Tensor) else given for given in arguments], *keyword.values()
        made = of.again(call)
        if made is None:
            result = kernel(*arguments, **keyword)
            of.learn(call, tensors, [result] if isinstance(result, Tensor) else result)
            return result
        return made[0] if len(made) == 1 else tuple(made)

    return quick


def _has_tangent(given: object) -> bool:
    return isinstance(given, Tensor) and forward_ad.unpack_dual(given).tangent is not None


def _without_gradients(device: str, kernel: _Function, usual: _Function) -> _Function:
    """For tensors that need no gradient the kernel alone, which takes half as long as PyTorch's `usual` way to it: once
    more through the dispatcher, for modes and subclasses of tensors, which have more keys."""
    keys = torch._C.DispatchKey
    plain = torch._C.DispatchKeySet(getattr(keys, device)).add(getattr(keys, f"Autograd{device}")).raw_repr()

    def called(keys: Any, *arguments: Any, **keyword: Any) -> Any:
        if forward_ad._current_level >= 0 and any(map(_has_tangent, arguments)):
            raise UsageError(
                "operators of ficco have no forward-mode derivative: use backward, or PyTorch's own layers"
            )
        needed = torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)
        if needed or keys.raw_repr() != plain:
            return usual(keys, *arguments, **keyword)
        with torch._C._AutoDispatchBelowAutograd():
            return kernel(*arguments, **keyword)

    return called


def _autocast(name: str, device: str) -> _Function:
    """The operator on tensors of the type of torch.autocast, as F.linear. NOTE `register_autocast` takes one type."""
    called, kind = getattr(torch.ops.ficco, name).default, device.lower()
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device}"))

    def cast(*arguments: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return called(*_cast(arguments, kind, torch.get_autocast_dtype(kind)))

    return cast


def _define(
    schema: str, kernel: _Function, fake: _Function, backward: _Function | None = None, keep: _Function = _keep
) -> None:
    name = schema[: schema.index("(")]
    _LIBRARY.define(schema, tags=[torch.Tag.needs_fixed_stride_order])
    kernels = {"CPU": kernel, "CUDA": _quick(name, kernel)}
    for device, of_device in kernels.items():
        _LIBRARY.impl(name, of_device, device)
    torch.library.register_fake(f"ficco::{name}", fake, lib=_LIBRARY)
    if backward is not None:
        torch.library.register_autograd(f"ficco::{name}", backward, setup_context=keep, lib=_LIBRARY)
        usual = make_autograd_impl(getattr(torch.ops.ficco, name).default, Info(backward, keep))
        for device, of_device in kernels.items():
            _LIBRARY.impl(name, _without_gradients(device, of_device, usual), f"Autograd{device}", with_keyset=True)
            if keep is _keep:
                _LIBRARY.impl(name, _autocast(name, device), f"Autocast{device}")


_GRADIENTS = "(Tensor grad, Tensor input, Tensor weight, "
_LAYER = "(Tensor input, Tensor weight, Tensor? bias, "
_define(
    f"all_gather_linear{_LAYER}int gather_dim, str group_name) -> Tensor",
    _all_gather_linear,
    _all_gather_linear_fake,
    _backward_of_gathered,
)
_define(
    f"all_gather_linear_backward{_GRADIENTS}int gather_dim, str group_name) -> (Tensor, Tensor)",
    _all_gather_linear_backward,
    _backward_fake,
)
_define(
    f"linear_reduce_scatter{_LAYER}int scatter_dim, str group_name) -> Tensor",
    _linear_reduce_scatter,
    _linear_reduce_scatter_fake,
    _backward_of_scattered,
)
_define(
    f"linear_reduce_scatter_backward{_GRADIENTS}int scatter_dim, str group_name) -> (Tensor, Tensor)",
    _linear_reduce_scatter_backward,
    _backward_fake,
)
_define(
    f"linear_all_reduce{_LAYER}str group_name) -> Tensor",
    _linear_all_reduce,
    _linear_all_reduce_fake,
    _backward_of_reduced,
)
_define(
    f"all_to_all_linear{_LAYER}str group_name) -> Tensor",
    _all_to_all_linear,
    _all_to_all_linear_fake,
    _backward_of_exchanged,
)
_define(
    f"all_to_all_linear_backward{_GRADIENTS}str group_name) -> (Tensor, Tensor)",
    _all_to_all_linear_backward,
    _all_to_all_linear_backward_fake,
)


# ---------------------------------------------------------------- of fp8 with scales


class _Given(NamedTuple):
    """Checked arguments of an operator on fp8. `rows`: the input as a matrix; `scales`: those of the rows and of the
    weight; `extent`: that of dimension `dim` of the output."""

    rows: Tensor
    weight: Tensor
    scales: tuple[Tensor, Tensor]
    scalings: tuple[Scaling, Scaling]
    bias: Tensor | None
    dim: int
    extent: int
    group_name: str
    out: torch.dtype


def _given(
    name: str, extent: Callable[[int, int], int], x: Tensor, weight: Tensor, of_x: Tensor, of_weight: Tensor,
    bias: Tensor | None, *rest: Any, out_dtype: torch.dtype | None = None,
) -> _Given:  # fmt: skip
    """`extent`: see `_scaled_layer`. Raises ValueError. The same for real and for fake tensors."""
    *dims, group_name = rest
    dim, out = dims[0] if dims else 0, torch.bfloat16 if out_dtype is None else out_dtype
    _checked_shapes(name, x, weight, dim)
    for what, of, known in (("input", x.dtype, FP8), ("weight", weight.dtype, FP8), ("out_dtype", out, DTYPES)):
        if of not in known:
            raise ValueError(f"{name}: {what} is {of}, wanted {' or '.join(map(str, known))}")
    if x.dtype == weight.dtype == torch.float8_e5m2:
        raise ValueError(f"{name}: input and weight are {x.dtype}; one of them must be torch.float8_e4m3fn")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != out):
        shape = list(bias.shape)
        raise ValueError(f"{name}: bias is {bias.dtype} of shape {shape}, wanted {out} of [{weight.shape[0]}]")
    if of_x.dtype != torch.float32 or of_weight.dtype != torch.float32:
        raise ValueError(f"{name}: scales are {of_x.dtype} and {of_weight.dtype}, wanted torch.float32")
    rows = _rows(x, dim)
    one, whole = of_x.numel() == 1, of_x.shape[:-1] == x.shape[:-1]
    of_rows = of_x.movedim(dim, 0).flatten(0, -2) if whole and not one else of_x
    ordered = one or whole or dim == 0  # otherwise scales of a matrix would be those of other rows
    scalings = scaled.scalings(rows.shape, weight.shape, of_rows, of_weight) if ordered else None
    if scalings is None:
        (*lead, k), n = x.shape, weight.shape[0]
        raise ValueError(
            f"{name}: scales have shapes {list(of_x.shape)} and {list(of_weight.shape)}; wanted 1 or {[*lead, 1]} and "
            f"1 or {[n, 1]}, or of blocks {[*lead, -(-k // 128)]} and {[-(-n // 128), -(-k // 128)]}"
        )
    size = extent(x.shape[dim], _ranks(group_name))
    return _Given(rows, weight, (of_rows, of_weight), scalings, bias, dim, size, group_name, out)


def _scaled_layer(
    name: str,
    dims: str,
    extent: Callable[[int, int], int],
    ours: Callable[[Operations, Scaled, Scaled, Tensor | None, torch.dtype], Tensor],
    pytorch: Callable[[Scaled, Scaled, Tensor | None, torch.dtype, str], Tensor],
) -> None:
    """Defines an operator. `extent`: that of the dimension in the output, by the input's and the number of ranks;
    `ours`, `pytorch`: the output's rows."""

    def kernel(tensor: Tensor, *more: Any, **keyword: Any) -> Tensor:
        rows, weight, scales, scalings, bias, dim, size, group_name, out = _given(
            name, extent, tensor, *more, **keyword
        )
        of, others = groups.operations(group_name, rows.device), [weight, *scales, *([] if bias is None else [bias])]
        x, w = map(scaled.scaled, (rows, weight), scales, scalings)
        y = of.serve(
            (name, rows.shape, rows.dtype, weight.shape, weight.dtype, scalings, out, *(t.device for t in others)),
            lambda: f"ficco::{name} of input {groups.words(rows)}, weight {groups.words(weight)}",
            lambda: scaled.refused(of, rows, others, out),
            lambda: ours(of, x, w, bias, out),
            lambda: pytorch(x, w, bias, out, group_name),
        )
        return _like(y, tensor, dim, size)

    def fake(tensor: Tensor, *more: Any, **keyword: Any) -> Tensor:
        given = _given(name, extent, tensor, *more, **keyword)
        others = prod(n for i, n in enumerate(tensor.shape[:-1]) if i != given.dim)
        y = tensor.new_empty(given.extent * others, given.weight.shape[0], dtype=given.out)
        return _like(y, tensor, given.dim, given.extent)

    def backward(ctx: Any, grad: Tensor) -> Any:
        raise UsageError(
            f"ficco::{name} has no gradient: fp8 is forward only, because the gradient of a weight needs other scales "
            "of both operands; call it under torch.no_grad(), or train with the operators of bf16"
        )

    scales = "Tensor input_scale, Tensor weight_scale, Tensor? bias"
    schema = f"{name}(Tensor input, Tensor weight, {scales}, {dims}str group_name, *, ScalarType? out_dtype=None)"
    _define(f"{schema} -> Tensor", kernel, fake, backward, lambda ctx, inputs, keyword_only_inputs, output: None)


_scaled_layer(
    *("all_gather_linear_scaled", "int gather_dim, ", lambda extent, ranks: extent * ranks),
    lambda *of: scaled.all_gather_matmul(*of)[0],
    lambda x, w, bias, out, name: scaled.plain(_moved(_gathered, x, name), w, bias, out),
)
_scaled_layer(
    *("linear_reduce_scatter_scaled", "int scatter_dim, ", partial(_shard, "linear_reduce_scatter_scaled")),
    scaled.matmul_reduce_scatter,
    lambda x, w, bias, out, name: _plus(_scattered(scaled.plain(x, w, None, out), name), bias),
)
_scaled_layer(
    *("linear_all_reduce_scaled", "", lambda extent, _: extent),
    scaled.matmul_all_reduce,
    lambda x, w, bias, out, name: _summed(scaled.plain(x, w, _of_first(bias, name), out), name),
)
_scaled_layer(
    *("all_to_all_linear_scaled", "", lambda extent, ranks: _shard("all_to_all_linear_scaled", extent, ranks) * ranks),
    scaled.all_to_all_matmul,
    lambda x, w, bias, out, name: scaled.plain(_moved(_exchanged, x, name), w, bias, out),
)
