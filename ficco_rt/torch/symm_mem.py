"""`torch.ops.symm_mem.fused_all_gather_matmul` and `fused_matmul_reduce_scatter` by ficco's operations. What these do
not serve goes to PyTorch's own implementation.

NOTE a CPU kernel is added, which PyTorch lacks: there its own implementation is its fallback, on any backend of
`torch.distributed`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
import torch.distributed._symmetric_memory as symmetric

from ..errors import UsageError
from ..files.arguments import of_kind
from . import groups
from .groups import Operations, Settings, T, place

GATHER, SCATTER = "fused_all_gather_matmul", "fused_matmul_reduce_scatter"
LEAST = (2, 11)  # PyTorch's version

_LOCK = threading.Lock()
_library: torch.library.Library | None = None


def install(settings: Settings | None = None, **changes: Any) -> None:
    """From now on ficco's operations serve the two operators, on CUDA and, through the host driver, on CPU. All
    processes install at the same step, with the same `settings`; `changes` are fields of `Settings`. Installing again
    with the same settings does nothing.

    The logger `ficco_rt.torch` has a line (INFO) for each new shape.

    Raises UsageError: PyTorch is older than 2.11, there is no such setting or value, or it is installed with other
    settings.

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
        before = groups.configure(wanted)
        if _library is not None:
            if before != wanted:
                groups.configure(before)
                raise UsageError("ficco is installed with other settings: call uninstall() first, in all processes")
            return
        made = torch.library.Library("symm_mem", "IMPL")
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of a kernel that is there
            for key in ("CUDA", "CPU"):
                made.impl(GATHER, _all_gather_matmul, key, allow_override=True)
                made.impl(SCATTER, _matmul_reduce_scatter, key, allow_override=True)
        _library = made


def uninstall() -> None:
    """PyTorch's own kernels serve the operators again, and the workspaces are closed; all processes do it at the same
    step. Without an installation nothing happens.

    Raises DeviceError (the devices still run something that does not end).
    """
    global _library
    with _LOCK:
        if _library is None:
            return
        _library._destroy()
        _library = None
        groups.configure(Settings())
    groups.close()


@contextmanager
def installed(settings: Settings | None = None, **changes: Any) -> Iterator[None]:
    """`install` at the beginning of a `with`, `uninstall` at its end. Raises as they do."""
    install(settings, **changes)
    try:
        yield
    finally:
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
        own: Any = symmetric._fused_all_gather_matmul_fallback if A.is_cpu else symmetric._fused_all_gather_matmul
        return own(A, list(Bs), gather_dim, group_name, return_A=return_A)

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
        own: Any = (
            symmetric._fused_matmul_reduce_scatter_fallback if A.is_cpu else symmetric._fused_matmul_reduce_scatter
        )
        return own(A, B, reduce_op, scatter_dim, group_name)

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
    ranks = of.ranks
    if not 0 <= dim < A.dim() - 1:
        return "the dimension is the last one" if dim in (-1, A.dim() - 1) else "there is no such dimension"
    if A.dim() < 2 or not Bs or any(B.dim() != 2 or B.shape[0] != A.shape[-1] for B in Bs):
        return "the shapes are not those of products"
    if why := of.refused(A, Bs):
        return why
    if name == SCATTER:
        if A.shape[dim] % ranks:
            return f"{A.shape[dim]} rows cannot be scattered over {ranks} processes"
        if more not in ("sum", "avg"):
            return f"{more} is neither sum nor avg"
        if more == "avg" and ranks & (ranks - 1):
            return f"the average over {ranks} processes would be rounded twice"
    return ""
