"""Binds `computes` lines: from the text to exact regions, with checks of the shapes and that outputs are covered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar, cast

from ficco_dsl import nodes as n
from ficco_dsl.diagnostics import Diagnostic

from ..geometry.region import Box, BoxMap, Region, describe, shape_words
from ..types import Dtype
from . import evaluate, ir
from .budget import Budget
from .claim_values import (
    Misfit,
    Shapes,
    applied_shapes,
    check_functions,
    combined_shapes,
    product_shapes,
    regions_of,
    sum_shapes,
    transposed,
)
from .evaluate import shares as checked_shares
from .functions import FunctionName
from .ops.kind import Names
from .scales import is_scales

T = TypeVar("T")
TF32 = "tf32"  # no element type: fp32 operands of products are rounded to it


def build_claims(
    schedule: n.Schedule,
    scopes: Sequence[evaluate.Scope],
    names: Names,
    types: Mapping[str, str],
    pieces: Budget,
    expressions: Budget,
) -> tuple[tuple[ir.Claim, ...], list[Diagnostic]]:
    """All claims, and the mistakes found in them. `pieces` pays for the boxes of their regions, `expressions` for
    what is worked out."""
    claims: list[ir.Claim] = []
    mistakes: list[Diagnostic] = []
    for line in schedule.claims:
        try:
            admitted = [types.get(name, name).split()[0] for name in line.within]
            within = tuple(cast(Dtype, dtype) for dtype in admitted if dtype != TF32)
            there = replace(line, value=_there(line.value, names))
            for claim in _line(there, scopes, names, pieces, expressions):
                text = f"{claim.text} within {', '.join(admitted)}" if admitted else claim.text
                claims.append(replace(claim, within=within, tf32=TF32 in admitted, text=text))
                pieces.spend(sum(len(region.boxes) for region in regions_of(claim)), line.span)
        except evaluate.Mistake as m:
            mistakes.append(m.diagnostic)
    if not mistakes:
        mistakes = list(_uncovered(claims, names.tensors, pieces))
    return tuple(claims), mistakes


def _line(
    line: n.Computes,
    scopes: Sequence[evaluate.Scope],
    names: Names,
    pieces: Budget,
    expressions: Budget,
) -> Iterator[ir.Claim]:
    ranks = len(scopes)
    cost = 20 * evaluate.size(line) + 2 * ranks * evaluate.size(line) + 8 * ranks * ranks * _collectives(line.value)
    expressions.spend(cost, line.span)
    if line.binding is None:
        yield _claim(line, scopes, names)
        return
    name, span = line.binding.name, line.binding.domain.span
    domain = evaluate.sequence(evaluate.compile_expr(line.binding.domain), span)
    members = [domain(scope) for scope in scopes]
    if evaluate.first_other(members) is not None:
        raise evaluate.Mistake(span, f"the values of {name} differ from rank to rank; a claim speaks of all ranks")
    pieces.foresee(8 * len(scopes) * len(members[0]), span)  # a claim takes much longer than an access
    for v in members[0]:
        expressions.spend(cost, line.span)
        yield _claim(line, [evaluate.copied(s, span) | {name: v} for s in scopes], names)


def _there(e: n.ClaimExpr, names: Names) -> n.ClaimExpr:
    """Without the terms of sums that name tensors that there are not."""
    match e:
        case n.ClaimSum(left=left, right=n.RegionRef(tensor=tensor)) if tensor not in names.tensors:
            return _there(left, names)
        case n.ClaimSum() | n.ClaimProduct():
            return replace(e, left=_there(e.left, names), right=_there(e.right, names))
        case n.ClaimFunction():
            return replace(e, arguments=tuple(_there(a, names) for a in e.arguments))
        case n.ClaimCollective():
            return replace(e, operand=_there(e.operand, names))
    return e


def _collectives(e: n.ClaimExpr) -> int:
    """How many collectives a claim has: each is cut on every rank, for every rank."""
    return sum(isinstance(x, n.ClaimCollective) for x in evaluate.nodes_of(e))


def _claim(line: n.Computes, scopes: Sequence[evaluate.Scope], names: Names) -> ir.Claim:
    turned = names.turned(line.target)
    targets, target_shapes = _regions(line.target, scopes, names, turned)
    value, shapes = _value(line.value, scopes, names)
    _fitting(line.value, check_functions, value)
    for rank, (target, shape) in enumerate(zip(target_shapes, shapes, strict=True)):
        if target != shape:
            raise evaluate.Mistake(
                line.span,
                f"{text_of(line.value)} is {shape_words(shape)} on rank {rank}, "
                f"but {text_of(line.target)} is {shape_words(target)}",
            )
    if turned:
        value = _fitting(line.value, transposed, value)
    return ir.Claim(targets, value, f"{text_of(line.target, names)} = {text_of(line.value, names)}", line.span)


def _regions(
    ref: n.RegionRef, scopes: Sequence[evaluate.Scope], names: Names, turned: bool
) -> tuple[tuple[Region, ...], Shapes]:
    """The regions as they are stored, and the shapes of what they hold, or of its transpose."""
    one = names.one(ref)
    regions = tuple(one(scope) for scope in scopes)
    if turned and len(regions[0].shape) != 2:
        stored = f", and {ref.tensor} is stored transposed" if names.turned(ref) else ""
        raise evaluate.Mistake(ref.span, f"{text_of(ref)}: only a matrix has a transpose{stored}")
    return regions, tuple(r.shape[::-1] if turned else r.shape for r in regions)


def _value(e: n.ClaimExpr, scopes: Sequence[evaluate.Scope], names: Names) -> tuple[ir.ClaimValue, Shapes]:
    match e:
        case n.RegionRef():
            if names.tensors[e.tensor].kind != "input":
                raise evaluate.Mistake(e.span, f"{e.tensor} is no input; a claim speaks of inputs")
            turned = e.transposed != names.turned(e)
            regions, shapes = _regions(e, scopes, names, turned)
            return ir.Operand(regions, turned), shapes
        case n.ClaimProduct():
            if any(isinstance(x, n.ClaimProduct) for x in evaluate.nodes_of((e.left, e.right))):
                raise evaluate.Mistake(
                    e.span,
                    f"{text_of(e)} is a product of products; the proof follows one product",
                    "mark the output 'unproven', without a computes line",
                )
            left, a = _value(e.left, scopes, names)
            right, b = _value(e.right, scopes, names)
            return ir.Product(left, right), _fitting(e, product_shapes, a, b)
        case n.ClaimSum():
            left, a = _value(e.left, scopes, names)
            right, b = _value(e.right, scopes, names)
            return ir.Added(left, right), _fitting(e, sum_shapes, a, b)
        case n.ClaimFunction():
            found = [_value(a, scopes, names) for a in e.arguments]
            function = cast(FunctionName, e.function)
            shapes = _fitting(e, applied_shapes, function, [s for _, s in found])
            return ir.Applied(function, tuple(value for value, _ in found)), shapes
        case n.ClaimCollective():
            return _collective(e, scopes, names)


def _collective(e: n.ClaimCollective, scopes: Sequence[evaluate.Scope], names: Names) -> tuple[ir.ClaimValue, Shapes]:
    operand, shapes = _value(e.operand, scopes, names)
    ranks = len(scopes)
    dims = len(shapes[0])
    axis = 1 if e.axis == "cols" else 0
    if dims == 0 or (axis == 1 and dims < 2):
        raise evaluate.Mistake(e.span, f"{text_of(e)}: the operand has {dims} dimensions")
    dim = dims - 2 + axis if dims > 1 else 0
    cut = e.kind in ("reduce_scatter", "all_to_all")
    shares = tuple(_lengths(e, scopes[r], shapes[r][dim], ranks) for r in range(ranks)) if cut else None
    combined = ir.Combined(e.kind, operand, axis, shares)
    return combined, _fitting(e, combined_shapes, combined, shapes)


def _fitting(e: n.ClaimExpr, shapes: Callable[..., T], *of: object) -> T:
    """The shapes of what the text claims. Raises Mistake where parts do not fit."""
    try:
        return shapes(*of)
    except Misfit as misfit:
        raise evaluate.Mistake(e.span, f"{text_of(e)}: {misfit}") from None


def _lengths(e: n.ClaimCollective, scope: evaluate.Scope, extent: int, ranks: int) -> tuple[int, ...]:
    span = e.span if e.shares is None else e.shares.span
    whole = ranks if e.shares is None else evaluate.compile_expr(e.shares)(scope)
    piece = evaluate.Cutter(span).of(whole, scope[evaluate.STEPS])
    cut = checked_shares(whole, span)
    count = cut if isinstance(cut, int) else len(cut)
    if count != ranks:
        raise evaluate.Mistake(span, f"{text_of(e)} needs a piece for each of {ranks} ranks, not {count}")
    return tuple(piece(i, extent).size for i in range(ranks))


def _uncovered(claims: Sequence[ir.Claim], tensors: Mapping[str, ir.Tensor], pieces: Budget) -> Iterator[Diagnostic]:
    """The first mistake of each output: every element is claimed once, or the output says `unproven`."""
    for tensor in tensors.values():
        if tensor.kind == "output" and not tensor.unproven and not is_scales(tensor.name):
            yield from islice(_not_once(tensor, [c for c in claims if c.targets[0].tensor == tensor.name], pieces), 1)


def _not_once(tensor: ir.Tensor, claims: Sequence[ir.Claim], pieces: Budget) -> Iterator[Diagnostic]:
    """The parts of an output that are claimed twice, or not at all."""
    for rank, shape in enumerate(tensor.shapes):
        seen = BoxMap(shape, False)
        for claim in claims:
            for box in claim.targets[rank].boxes:
                if any(there for _, there in seen.items(box)):
                    yield Diagnostic(claim.origin, f"{tensor.name} {describe(box)} is claimed twice")
                pieces.spend(seen.update(box, lambda _: True), claim.origin)
        for box, there in seen.items(Box((0,) * len(shape), shape)):
            if not there:
                yield Diagnostic(
                    tensor.origin,
                    f"no computes line claims {tensor.name} {describe(box)} (rank {rank})",
                    help="claim the rest, or mark the output 'unproven'",
                )


def text_of(e: n.ClaimExpr, stored: Names | None = None) -> str:
    """A claim as a schedule writes it, without indices (they differ from rank to rank); or as one that declares tensors
    as they are stored would."""
    match e:
        case n.RegionRef():
            cut = "".join("[…]" if isinstance(a, n.Subscript) else f".{a.axis}(…)" for a in e.accessors)
            turned = e.transposed != (stored is not None and stored.turned(e))
            return f"{e.tensor}{cut}{'.T' if turned else ''}"
        case n.ClaimProduct():
            sides = (
                f"({text_of(x, stored)})" if isinstance(x, n.ClaimSum) else text_of(x, stored)
                for x in (e.left, e.right)
            )
            return " * ".join(sides)
        case n.ClaimSum():
            return f"{text_of(e.left, stored)} + {text_of(e.right, stored)}"
        case n.ClaimFunction():
            return f"{e.function}({', '.join(text_of(a, stored) for a in e.arguments)})"
        case n.ClaimCollective():
            of = f", {e.axis}" if e.axis else ""
            return f"{e.kind}({text_of(e.operand, stored)}{of}{' of …' if e.shares is not None else ''})"
