"""`torch.ops.symm_mem.fused_all_gather_matmul` and `fused_matmul_reduce_scatter`, and those of scaled fp8, by ficco's
operations. What these do not serve goes to PyTorch's own implementation.

NOTE a CPU kernel is added, which PyTorch lacks: there its own implementation is its fallback, on any backend of
`torch.distributed` (of fp8, gloo gathers none).
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed._symmetric_memory as symmetric

from ..errors import UsageError
from ..exec.device_arrays import Key
from ..files.arguments import of_kind
from ..types import Scaling
from . import groups, scaled
from .groups import DTYPES, Operations, Settings, T, place

GATHER, SCATTER = "fused_all_gather_matmul", "fused_matmul_reduce_scatter"
SCALED_GATHER, SCALED_SCATTER = "fused_all_gather_scaled_matmul", "fused_scaled_matmul_reduce_scatter"
LEAST = (2, 11)  # PyTorch's version

_LOCK = threading.Lock()
_library: torch.library.Library | None = None


def install(settings: Settings | None = None, **changes: Any) -> None:
    """From now on ficco's operations serve the four operators, on CUDA and, through the host driver, on CPU. All
    processes install at the same step, with the same `settings`; `changes` are fields of `Settings`. Installing again
    with the same settings does nothing.

    The logger `ficco_rt.torch` has a line (INFO) for each new shape.

    Raises UsageError: PyTorch is older than 2.11, there is no such setting or value, or it is installed with other
    settings, or operators of `torch.ops.ficco` have run with others.

    Example: `ficco_rt.torch.install(leave=16, limit=2 << 30)`.
    """
    global _library
    unknown = sorted(changes.keys() - {field.name for field in fields(Settings)})
    if unknown:
        known = ", ".join(field.name for field in fields(Settings))
        raise UsageError(f"install has no setting {unknown[0]!r}; it has {known}")
    wanted = Settings(**changes) if settings is None else of_kind(settings, Settings, "install takes Settings")
    if settings is not None and changes:
        raise UsageError("give install Settings, or their fields")
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < LEAST:
        raise UsageError(f"PyTorch {torch.__version__} is installed, and install needs {LEAST[0]}.{LEAST[1]} or later")
    with _LOCK:
        if _library is None:
            groups.settle(wanted)
        before = groups.configure(wanted)
        if _library is not None:
            if before != wanted:
                groups.configure(before)
                raise UsageError("ficco is installed with other settings: call uninstall() first, in all processes")
            return
        made = torch.library.Library("symm_mem", "IMPL")
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of a kernel that is there
            for key in ("CUDA", "CPU"):
                for name, kernel in _KERNELS.items():
                    made.impl(name, kernel, key, allow_override=True)
        _library = made


def uninstall() -> None:
    """PyTorch's own kernels serve the operators again, and the workspaces are closed, also those of `torch.ops.ficco`
    without an installation; all processes do it at the same step.

    Raises DeviceError (the devices still run something that does not end).
    """
    global _library
    with _LOCK:
        if _library is not None:
            _library._destroy()
        _library = None
        groups.configure(Settings())
    groups.close()


@contextmanager
def installed(settings: Settings | None = None, **changes: Any) -> Iterator[None]:
    """`install` at the beginning of a `with`, `uninstall` at its end, unless it was installed before. Raises as they
    do."""
    before = _library is not None
    install(settings, **changes)
    try:
        yield
    finally:
        if not before:
            uninstall()


# ---------------------------------------------------------------- the operators


def _all_gather_matmul(
    A: torch.Tensor, Bs: Sequence[torch.Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    of, call = groups.operations(group_name, A.device), (GATHER, gather_dim, return_A, place(A), *map(place, Bs))
    known = None if symmetric._is_test_mode else of.again(call)
    if known is not None:
        return known[1] if return_A else None, known[:1]

    def pytorch() -> Any:
        return _pytorch(GATHER, A)(A, list(Bs), gather_dim, group_name, return_A=return_A)

    def ours() -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """The largest product beside the copies; the others, if any, on the gathered rows behind it."""
        sizes = [B.shape[1] for B in Bs]
        largest = sizes.index(max(sizes))
        product, gathered = of.all_gather_matmul(_rows(A, gather_dim), Bs[largest], keep=return_A or len(Bs) > 1)
        products = [product if gathered is None or i == largest else gathered.mm(B) for i, B in enumerate(Bs)]
        restored = [_restored(y, A, gather_dim) for y in products]
        whole = None if gathered is None or not return_A else _restored(gathered, A, gather_dim)
        if len(Bs) == 1:
            of.learn(call, (A, *Bs), restored if whole is None else [*restored, whole])
        return whole, restored

    return _served(of, GATHER, A, Bs, gather_dim, f"return_A={return_A}", ours, pytorch)  # type: ignore[no-any-return]


def _matmul_reduce_scatter(
    A: torch.Tensor, B: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str
) -> torch.Tensor:
    of, call = groups.operations(group_name, A.device), (SCATTER, reduce_op, scatter_dim, place(A), place(B))
    known = None if symmetric._is_test_mode else of.again(call)
    if known is not None:
        return known[0]

    def pytorch() -> Any:
        return _pytorch(SCATTER, A)(A, B, reduce_op, scatter_dim, group_name)

    def ours() -> torch.Tensor:
        y = of.matmul_reduce_scatter(_rows(A, scatter_dim), B)
        restored = _restored(y, A, scatter_dim).contiguous()
        if reduce_op == "avg":
            return restored.div_(of.ranks)
        of.learn(call, (A, B), [restored])
        return restored

    return _served(of, SCATTER, A, (B,), scatter_dim, reduce_op, ours, pytorch)


def _rows(A: torch.Tensor, dim: int) -> torch.Tensor:
    """A as a matrix, with the rows of `dim` outermost."""
    return A if A.dim() == 2 else A.movedim(dim, 0).flatten(0, -2)


def _restored(rows: torch.Tensor, A: torch.Tensor, dim: int) -> torch.Tensor:
    """Rows in that order with the dimensions of A, of which `dim` has another size."""
    if A.dim() == 2:
        return rows
    return rows.view(-1, *A.shape[:dim], *A.shape[dim + 1 : -1], rows.shape[1]).movedim(0, dim)


def _all_gather_scaled_matmul(
    A: torch.Tensor, Bs: Sequence[torch.Tensor], A_scale: torch.Tensor, B_scales: Sequence[torch.Tensor],
    gather_dim: int, group_name: str, biases: Sequence[torch.Tensor | None],
    result_scales: Sequence[torch.Tensor | None], out_dtypes: Sequence[Any], use_fast_accum: Sequence[bool],
) -> tuple[torch.Tensor, list[torch.Tensor]]:  # fmt: skip
    lists = list(Bs), list(B_scales), list(biases), list(result_scales), list(out_dtypes), list(use_fast_accum)
    outs = symmetric._maybe_convert_scalar_types_to_dtypes(lists[4])
    products = [_Product(*of_each) for of_each in zip(*lists[:4], outs, lists[5], strict=False)]
    of, call = groups.operations(group_name, A.device), _call(SCALED_GATHER, A, A_scale, products, gather_dim)
    known = None if symmetric._is_test_mode else of.again(call)
    if known is not None:
        return known[0], known[1:2]

    def pytorch() -> Any:
        return _pytorch(SCALED_GATHER, A)(A, lists[0], A_scale, lists[1], gather_dim, group_name, *lists[2:])

    def refused() -> str:
        if not 0 <= gather_dim < A.dim() - 1:
            return _no_dimension(A.dim(), gather_dim)
        if len({*map(len, lists)}) > 1:
            return "the lists have other lengths than Bs"
        whole = [n * of.ranks if i == gather_dim else n for i, n in enumerate(A.shape[:-1])]
        return _scaled_refused(of, A, A_scale, products, ([*A.shape[:-1], 1], [*whole, 1]))

    def ours() -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The largest product that an operation makes beside the copies; the others, if any, behind it."""
        scaling, by = _scales(of, A, A_scale, gather_dim)
        largest = max((p for p in products if not p.unmade), key=lambda p: p.B.shape[1])
        x, weight = largest.operands(_rows(A, gather_dim), by, scaling)
        assert largest.out is not None
        bias, out, fast = largest.bias, largest.out, bool(largest.fast)
        y, kept = scaled.all_gather_matmul(of, x, weight, bias, out, keep=True, fast=fast)
        assert kept is not None
        by = kept.scales if scaling == "row" else A_scale
        made = [y if p is largest else torch._scaled_mm(kept.values, p.B, by, *p[1:5], bool(p.fast)) for p in products]
        gathered, *restored = (_restored(each, A, gather_dim) for each in (kept.values, *made))
        if len(products) == 1:
            of.learn(call, _inputs(A, A_scale, products), [gathered, *restored, kept.scales])
        return gathered, restored

    given = A, A_scale, products, gather_dim
    return _served_scaled(of, SCALED_GATHER, *given, refused, ours, pytorch)  # type: ignore[no-any-return]


def _scaled_matmul_reduce_scatter(
    A: torch.Tensor, B: torch.Tensor, A_scale: torch.Tensor, B_scale: torch.Tensor, reduce_op: str,
    orig_scatter_dim: int, scatter_dim_after_maybe_reshape: int, group_name: str, output_shape: Sequence[int] | None,
    bias: torch.Tensor | None = None, result_scale: torch.Tensor | None = None, out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> torch.Tensor:  # fmt: skip
    """The result is scattered along a dimension of `output_shape`, that of the product before the scattering; A has its
    leading dimensions, or is flattened."""
    *lead, columns = output_shape or (0,)
    product, dim = _Product(B, B_scale, bias, result_scale, out_dtype, use_fast_accum), orig_scatter_dim
    more = dim, reduce_op, *lead, columns
    of, call = groups.operations(group_name, A.device), _call(SCALED_SCATTER, A, A_scale, [product], *more)
    known = None if symmetric._is_test_mode else of.again(call)
    if known is not None:
        return known[0]

    def pytorch() -> Any:
        shape = None if output_shape is None else [*output_shape]  # NOTE which PyTorch changes
        dims = dim, scatter_dim_after_maybe_reshape
        return _pytorch(SCALED_SCATTER, A)(A, B, A_scale, B_scale, reduce_op, *dims, group_name, shape, *product[2:])

    def refused() -> str:
        if prod(lead) * A.shape[-1] != A.numel() or columns != B.shape[-1]:
            return "output_shape is not that of the product"
        if not 0 <= dim < len(lead):
            return _no_dimension(len(lead) + 1, dim)
        if bias is not None:
            return "each process adds its own bias"
        why = _scaled_refused(of, A, A_scale, [product], ([*A.shape[:-1], 1],))
        return why or _reduction_refused(of.ranks, lead[dim], reduce_op)

    def ours() -> torch.Tensor:
        whole = A.reshape(*lead, A.shape[-1])
        scaling, by = _scales(of, whole, A_scale if A_scale.numel() == 1 else A_scale.reshape(*lead, 1), dim)
        x, weight = product.operands(_rows(whole, dim), by, scaling)
        assert out_dtype is not None
        y = scaled.matmul_reduce_scatter(of, x, weight, None, out_dtype, fast=bool(use_fast_accum))
        restored = _restored(y, whole, dim).contiguous()
        if reduce_op == "avg":
            return restored.div_(of.ranks)
        of.learn(call, _inputs(A, A_scale, [product]), [restored])
        return restored

    return _served_scaled(of, SCALED_SCATTER, A, A_scale, [product], dim, refused, ours, pytorch, more)


_KERNELS = {
    GATHER: _all_gather_matmul,
    SCATTER: _matmul_reduce_scatter,
    SCALED_GATHER: _all_gather_scaled_matmul,
    SCALED_SCATTER: _scaled_matmul_reduce_scatter,
}


def _served(
    of: Operations,
    name: str,
    A: torch.Tensor,
    Bs: Sequence[torch.Tensor],
    dim: int,
    more: str,
    ours: Callable[[], T],
    pytorch: Callable[[], T],
) -> T:
    if symmetric._is_test_mode:
        return pytorch()

    def said() -> str:
        weights = " and ".join(map(groups.words, Bs))
        return f"symm_mem::{name} of A {groups.words(A)}, B {weights}, dimension {dim}, {more}"

    call = name, A.shape, A.dtype, dim, more, *[(B.shape, B.dtype, B.device) for B in Bs]
    return of.serve(call, said, lambda: _refused(of, name, A, Bs, dim, more), ours, pytorch)


def _refused(of: Operations, name: str, A: torch.Tensor, Bs: Sequence[torch.Tensor], dim: int, more: str) -> str:
    """Why no operation serves these, by facts that all processes of the group have alike; empty if one does."""
    if not 0 <= dim < A.dim() - 1:
        return _no_dimension(A.dim(), dim)
    if _no_products(A, Bs):
        return "the shapes are not those of products"
    return of.refused(A, Bs) or (_reduction_refused(of.ranks, A.shape[dim], more) if name == SCATTER else "")


def _no_dimension(dims: int, dim: int) -> str:
    return "the dimension is the last one" if dim in (-1, dims - 1) else "there is no such dimension"


def _no_products(A: torch.Tensor, Bs: Sequence[torch.Tensor]) -> bool:
    return A.dim() < 2 or not Bs or any(B.dim() != 2 or B.shape[0] != A.shape[-1] for B in Bs)


def _reduction_refused(ranks: int, rows: int, reduce_op: str) -> str:
    if rows % ranks:
        return f"{rows} rows cannot be scattered over {ranks} processes"
    if reduce_op not in ("sum", "avg"):
        return f"{reduce_op} is neither sum nor avg"
    if reduce_op == "avg" and ranks & (ranks - 1):
        return f"the average over {ranks} processes would be rounded twice"
    return ""


# ---------------------------------------------------------------- of scaled ones


class _Product(NamedTuple):
    """A product of a call, as `torch._scaled_mm` takes it."""

    B: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None
    result_scale: torch.Tensor | None
    out: torch.dtype | None
    fast: bool

    @property
    def unmade(self) -> str:
        """Why no operation makes it; empty if one does."""
        if self.result_scale is not None:
            return "the result is scaled"
        if self.out not in DTYPES:
            return f"the result is of {'fp8' if self.out is None or self.out in scaled.FP8 else self.out}"
        held = [self.out, *(DTYPES if self.out == torch.float32 else ())]
        return "" if self.bias is None or self.bias.dtype in held else "the bias has another type than the result"

    def operands(self, x: torch.Tensor, by: torch.Tensor, scaling: Scaling) -> tuple[scaled.Scaled, scaled.Scaled]:
        """`x` [m, k] with its scales `by`, and the weight. Scales of two tensors are multiplied by each other first, as
        cuBLASLt does: then results are the same to the last bit where k is short."""
        weight, scale = self.B.t(), self.scale
        if scaling == "row":
            return scaled.scaled(x, by, scaling), scaled.scaled(weight, scale, scaling)
        both = scale.reshape(1, 1).expand(weight.shape[0], 1) * by.reshape(())
        ones = by.new_ones(x.shape[0], 1)
        return scaled.Scaled(groups.dense(x), ones, scaling), scaled.Scaled(groups.dense(weight), both, scaling)


def _pytorch(name: str, A: torch.Tensor) -> Any:
    """PyTorch's own implementation."""
    return getattr(symmetric, f"_{name}_fallback" if A.is_cpu else f"_{name}")


def _inputs(A: torch.Tensor, A_scale: torch.Tensor, products: Sequence[_Product]) -> list[torch.Tensor]:
    return [A, A_scale, *(part for product in products for part in product if isinstance(part, torch.Tensor))]


def _call(name: str, A: torch.Tensor, A_scale: torch.Tensor, products: Sequence[_Product], *more: object) -> Key:
    """For `Operations.again`."""
    parts = [A, A_scale, *(part for product in products for part in product)]
    return name, *more, *[place(part) if isinstance(part, torch.Tensor) else part for part in parts]


def _served_scaled(
    of: Operations, name: str, A: torch.Tensor, A_scale: torch.Tensor, products: Sequence[_Product], dim: int,
    refused: Callable[[], str], ours: Callable[[], T], pytorch: Callable[[], T], more: tuple[object, ...] = (),
) -> T:  # fmt: skip
    if symmetric._is_test_mode:
        return pytorch()

    def said() -> str:
        weights = " and ".join(groups.words(p.B) for p in products)
        by = groups.words(A_scale)
        return f"symm_mem::{name} of A {groups.words(A)} with scales {by}, B {weights}, dimension {dim}"

    facts = [(t.shape, t.dtype, t.device) for t in _inputs(A, A_scale, products)]
    said_of = [(p.bias is None, p.result_scale is None, p.out, p.fast) for p in products]
    return of.serve((name, dim, *more, *facts, *said_of), said, refused, ours, pytorch)


def _scales(of: Operations, A: torch.Tensor, scale: torch.Tensor, dim: int) -> tuple[Scaling, torch.Tensor]:
    """Whether A is scaled by rows, and the scales of its rows, of which `scale` has this rank's or those of all."""
    if scale.shape != (*A.shape[:-1], 1):
        if scale.numel() == 1:
            return "tensor", scale
        scale = scale.chunk(of.ranks, dim)[of.group.rank()]
    return "row", _rows(scale, dim)


def _scaled_refused(
    of: Operations,
    A: torch.Tensor,
    A_scale: torch.Tensor,
    products: Sequence[_Product],
    by_rows: Sequence[list[int]],
) -> str:
    """As `_refused`. `by_rows`: the shapes that scales of rows may have."""
    if _no_products(A, [p.B for p in products]):
        return "the shapes are not those of products"
    rows = [*A_scale.shape] in by_rows
    fits = [p.scale.shape == (1, p.B.shape[1]) if rows else A_scale.numel() == p.scale.numel() == 1 for p in products]
    if not all(fits):
        return "the scales are neither all of tensors nor all of rows"
    unmade = [p.unmade for p in products]
    if all(unmade):
        return unmade[0]
    out = products[unmade.index("")].out
    found = (scaled.refused(of, A, [t for t in (*p[:1], A_scale, *p[1:3]) if t is not None], out) for p in products)
    return next(filter(None, found), "")
