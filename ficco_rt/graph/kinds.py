"""The list of kinds of operation. A new kind needs a line here; its module in `ops` has everything that the levels
need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ficco_dsl import nodes as n

from ..geometry.region import Region, between_ranks
from . import ir
from .ops.collective import CollectiveKind
from .ops.copy import CopyKind
from .ops.gemm import GemmKind
from .ops.kernel_call import KernelCallKind
from .ops.kind import OpKind, Side, Size
from .ops.quantize import QuantizeKind
from .ops.reduce import ReduceKind

KINDS: tuple[OpKind[Any], ...] = (
    GemmKind(), ReduceKind(), QuantizeKind(), CopyKind(), CollectiveKind(), KernelCallKind(),
)  # fmt: skip


class _ByBody(dict[type[ir.Body], OpKind[Any]]):
    """A plan's transfers and calls are bodies as well: their kind is that of the class above."""

    def __missing__(self, body: type[ir.Body]) -> OpKind[Any]:
        self[body] = self[body.__mro__[1]]
        return self[body]


BY_BODY = _ByBody({kind.body: kind for kind in KINDS})
BY_NODE: Mapping[type[n.Operation], OpKind[Any]] = {kind.node: kind for kind in KINDS}
STREAMING = tuple(kind.word for kind in KINDS if kind.verb.streams)
SIDE_OF_SPAN: Mapping[str, Side] = {kind.span: kind.side for kind in KINDS}


def kind_of(body: ir.Body) -> OpKind[Any]:
    return BY_BODY[type(body)]


def settings(body: ir.Body) -> tuple[object, ...]:
    """What bodies of one kind may differ in beside the regions that they read and write."""
    values = [getattr(body, f.name) for f in fields(body)]
    return (type(body), *(v for v in values if not isinstance(v[0] if isinstance(v, tuple) and v else v, Region)))


def likeness(body: ir.Body, rank: int, shapes: Mapping[str, Sequence[tuple[int, ...]]]) -> tuple[object, ...]:
    """A key that is equal for bodies that no kernel can tell apart: ranks take the same parts of equal tensors. NOTE
    the graph holds the axes of each part once."""
    regions = ((r.tensor, shapes[r.tensor][r.rank], id(r.axes), r.rank == rank) for r in (*body.reads, *body.writes))
    return (*settings(body), *regions)


def done(body: ir.Body, rank: int, size: Size) -> tuple[int, int, int | None, int]:
    """Bytes and operations of a work of the rank, the one other rank that it copies to or from, and, if it is no copy,
    its bytes in other ranks' memory."""
    moved = kind_of(body).moved(body, size)
    if kind_of(body).side == "moves":
        return moved, 0, next((r.rank for r in (*body.reads, *body.writes) if r.rank != rank), None), 0
    far = sum(size(region) for _, _, region in between_ranks(rank, body.reads, body.writes))
    return moved, body.flops if isinstance(body, ir.Gemm) else 0, None, far
