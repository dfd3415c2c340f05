"""Turns the first `+=` on uninitialised memory into `=`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ficco_dsl.diagnostics import Diagnostic, Span

from ..geometry.region import BoxMap, describe
from . import ir
from .budget import SUMS, Budget
from .evaluate import refuse


def begin_sums(ops: Sequence[ir.Op], tensors: Mapping[str, ir.Tensor]) -> tuple[ir.Op, ...]:
    """Turns the first `+=` on an element, which starts from zero, into `=`."""
    summed = {g.out.tensor for op in ops if isinstance(g := op.body, ir.Gemm) and g.accumulate}
    if not summed:
        return tuple(ops)
    begun = {(t, rank): BoxMap(shape, False) for t in summed for rank, shape in enumerate(tensors[t].shapes)}
    budget = Budget(SUMS)
    mistakes: dict[Span, Diagnostic] = {}
    out: list[ir.Op] = []
    for op in ops:
        new, body = op, op.body
        if isinstance(body, ir.Gemm) and body.accumulate:
            pieces = [p for box in body.out.boxes for p in begun[body.out.tensor, body.out.rank].items(box)]
            budget.spend(len(pieces), op.where.origin)
            states = {state for _, state in pieces}
            if len(states) == 2 and op.where.origin not in mistakes:
                first = next(describe(box) for box, state in pieces if not state)
                second = next(describe(box) for box, state in pieces if state)
                mistakes[op.where.origin] = Diagnostic(
                    op.where.origin,
                    f"'+=' on rank {op.where.rank} finds {body.out.tensor} {second} begun and {first} not",
                    help="give the parts statements of their own, or begin the whole with '='",
                )
            if states == {False}:
                new = ir.Op(op.where, replace(body, accumulate=False))
        for region in op.writes:
            if region.tensor in summed:
                for box in region.boxes:
                    budget.spend(begun[region.tensor, region.rank].update(box, lambda _: True), op.where.origin)
        out.append(new)
    refuse(mistakes.values())
    return tuple(out)
