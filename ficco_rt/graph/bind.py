"""Binds sizes: the values of params and types, and every tensor's shape on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, cast

from ficco_dsl import nodes as n
from ficco_dsl.diagnostics import Diagnostic, Span

from ..errors import SizesError, UsageError
from ..types import TYPES, Dtype
from . import ir
from .budget import EXPRESSIONS, LISTS, NAMES, TENSORS, Budget
from .evaluate import (
    DEEPEST,
    LARGEST,
    LONGEST,
    STEPS,
    Mistake,
    Scope,
    base_scope,
    compile_condition,
    compile_expr,
    number,
    refuse,
    show,
    size,
)
from .evaluate import describe as describe_value

MOST_RANKS = 1024
MOST_EXTENT = 2**31 - 1  # kernels count elements of a dimension in 32 bits
MOST_BYTES = 2**46  # of one tensor on one rank


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a schedule on `ranks` ranks: every param and type, every tensor's shape, and the scope of
    expressions."""

    values: Mapping[str, Any]  # of params
    types: Mapping[str, Dtype]
    scopes: Sequence[Scope]  # by rank
    tensors: tuple[ir.Tensor, ...]  # as they are stored
    transposed: frozenset[str]  # tensors whose last two dimensions are stored the other way round
    expressions: Budget

    @property
    def params(self) -> tuple[tuple[str, Any], ...]:
        """The values of params, then of types."""
        return (*self.values.items(), *self.types.items())


def bind(schedule: n.Schedule, ranks: int, given: Mapping[str, object]) -> Sizes:
    """All sizes of a schedule, with the given values in place of the text's defaults. Raises ScheduleError,
    UsageError."""
    if not 1 <= ranks <= MOST_RANKS:
        raise UsageError(f"{ranks} ranks; a schedule runs on 1 to {MOST_RANKS}")
    values, types = bind_params(schedule, ranks, given)
    budget, expressions = Budget(LISTS), Budget(EXPRESSIONS)
    Budget(NAMES).spend(ranks * (ranks + len(values) + 2 * len(schedule.tensors)), schedule.span)
    scopes = [{**base_scope(rank, ranks, budget), **values} for rank in range(ranks)]
    return Sizes(values, types, scopes, *build_tensors(schedule, scopes, types, expressions), expressions)


def bind_params(
    schedule: n.Schedule, ranks: int, given: Mapping[str, object]
) -> tuple[dict[str, Any], dict[str, Dtype]]:
    """The value of every param and the dtype of every type."""
    known = {p.name: p for p in schedule.params}
    types: dict[str, Dtype] = {t.name: cast(Dtype, t.dtype) for t in schedule.types}
    bound: dict[str, Any] = {}
    budget = Budget(LISTS)
    for name, value in given.items():
        if name in types:
            if value not in TYPES:
                raise UsageError(f"type {name} = {value}: the types are {', '.join(TYPES)}")
            types[name] = cast(Dtype, value)
        elif name in known:
            try:
                bound[name] = _frozen(value, name, known[name].span, budget)
            except Mistake as m:
                raise UsageError(m.diagnostic.message) from None
        else:
            has = ", ".join([*known, *types]) or "none"
            raise UsageError(f"schedule {schedule.name} has no param '{name}'; its params are {has}")
    scope: Scope = {"ranks": ranks, "all": tuple(range(ranks)), STEPS: budget, **bound}
    mistakes: list[Diagnostic] = []
    failed: set[str] = set()  # and those made from them, of which nothing can be said
    uses = {p.name: n.names_in(p.value).keys() & known.keys() for p in schedule.params}
    for name in TopologicalSorter(uses).static_order():  # the parser has refused circles
        param = known[name]
        if name in bound:
            continue
        if failed & uses[name]:
            failed.add(param.name)
            continue
        try:
            value = compile_expr(param.value)(scope)
            scope[param.name] = _frozen(value, param.name, param.value.span, budget)
        except Mistake as m:
            mistakes.append(m.diagnostic)
            failed.add(param.name)
    for param in schedule.params:
        if param.check is None or failed & {param.name, *n.names_in(param.check)}:
            continue
        value = scope[param.name]
        try:
            if not compile_condition(param.check)(scope):
                raise Mistake(param.check.span, f"{param.name} = {show(value)} breaks its check: {param.check_text}")
        except Mistake as m:
            mistakes.append(m.diagnostic)
    refuse(mistakes, SizesError)
    return {p.name: scope[p.name] for p in schedule.params}, types


def _frozen(value: object, name: str, span: Span, budget: Budget, depth: int = 0) -> Any:
    """The value of a param: a number, or a (nested) tuple of numbers."""
    if type(value) is int:
        if abs(value) < LARGEST:
            return value
        raise Mistake(span, f"param {name} = {value} is too large; numbers stay below 2^62")
    if isinstance(value, range | list | tuple) and depth < DEEPEST:
        if len(value) > LONGEST:
            raise Mistake(span, f"param {name}: a list of {len(value)} members; the most is {LONGEST}")
        budget.spend(len(value), span)
        return tuple(_frozen(v, name, span, budget, depth + 1) for v in value)
    if isinstance(value, range | list | tuple):
        raise Mistake(span, f"param {name}: lists nest more than {DEEPEST} deep")
    found = describe_value(value) if isinstance(value, bool) else repr(value)
    raise Mistake(span, f"param {name}: a whole number or a list of them is needed, this is {found}")


def build_tensors(
    schedule: n.Schedule, scopes: Sequence[Scope], types: Mapping[str, Dtype], expressions: Budget
) -> tuple[tuple[ir.Tensor, ...], frozenset[str]]:
    """Every tensor that there is, as each rank stores it, and the names of those that are stored transposed. Puts
    ("rows", name) and ("cols", name), which do not depend on either, into the scopes."""
    mistakes: list[Diagnostic] = []
    tensors = []
    transposed = set()
    budget = Budget(TENSORS)
    for decl in schedule.tensors:
        budget.spend(len(scopes), decl.span)
        expressions.spend(len(scopes) * size(decl.shape), decl.span)
        dtype = cast(Dtype, types.get(decl.dtype, decl.dtype))
        dims = [number(compile_expr(e), e.span) for e in decl.shape]
        shapes = []
        try:
            for scope in scopes:
                shape = tuple(f(scope) for f in dims)
                _check_shape(decl, shape, dtype, scope["rank"])
                shapes.append(shape)
                scope["rows", decl.name] = shape[-2] if len(shape) > 1 else shape[0]
                scope["cols", decl.name] = shape[-1]
            for i, e in enumerate(decl.shape):  # a rank may hold no element, as an expert without tokens; not all ranks
                if not any(shape[i] for shape in shapes):
                    raise Mistake(e.span, f"dimension {i} of {decl.name} is 0 on rank 0; sizes start at 1")
            if decl.condition is not None and not _holds(decl, decl.condition, scopes, "there"):
                continue
            if decl.transposed and (
                isinstance(decl.transposed, bool) or _holds(decl, decl.transposed, scopes, "transposed")
            ):
                transposed.add(decl.name)
                shapes = [(*shape[:-2], shape[-1], shape[-2]) for shape in shapes]
        except Mistake as m:
            mistakes.append(m.diagnostic)
            continue
        tensors.append(ir.Tensor(decl.name, decl.kind, dtype, tuple(shapes), decl.unproven, decl.span))
    refuse(mistakes, SizesError)
    return tuple(tensors), frozenset(transposed)


def _holds(decl: n.TensorDecl, e: n.Expr, scopes: Sequence[Scope], what: str) -> bool:
    """A condition of a declaration, which is that of all ranks."""
    condition = compile_condition(e)
    found = [condition(scope) for scope in scopes]
    if len(set(found)) > 1:
        other = found.index(not found[0])
        message = f"{decl.name} is {what} on rank {other if found[other] else 0} and not on all ranks"
        raise Mistake(e.span, message, "all ranks declare tensors alike; let params decide")
    return found[0]


def _check_shape(decl: n.TensorDecl, shape: tuple[int, ...], dtype: Dtype, rank: int) -> None:
    size = TYPES[dtype].bytes
    for i, extent in enumerate(shape):
        size *= extent
        if not 0 <= extent <= MOST_EXTENT:
            limit = "sizes start at 1" if extent < 0 else f"the largest is {MOST_EXTENT}"
            raise Mistake(decl.shape[i].span, f"dimension {i} of {decl.name} is {extent} on rank {rank}; {limit}")
    if size > MOST_BYTES:
        gib = 2**30
        raise Mistake(
            decl.span,
            f"{decl.name} takes {size / gib:,.0f} GiB on rank {rank}; the most for one tensor is {MOST_BYTES // gib:,}",
        )
