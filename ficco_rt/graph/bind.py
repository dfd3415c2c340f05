"""Binds sizes: the values of params and types, and every tensor's shape on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from ficco_dsl import nodes as n
from ficco_dsl.diagnostics import Diagnostic, Span
from ficco_dsl.uses import spot

from ..errors import SizesError, UsageError
from ..types import TYPES, dtype_and_scaling
from . import ir, scales
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
    types: Mapping[str, str]  # in words, such as `fp8_e4m3 scaled row`
    following: frozenset[str]  # types that are another one, of which nothing is said
    scopes: Sequence[Scope]  # by rank
    tensors: tuple[ir.Tensor, ...]  # as they are stored, and scales behind the tensor that they belong to
    transposed: frozenset[str]  # tensors whose last two dimensions are stored the other way round
    expressions: Budget

    @property
    def params(self) -> tuple[tuple[str, Any], ...]:
        """The values of params, then of types, but for those that follow another type."""
        return (*self.values.items(), *((name, of) for name, of in self.types.items() if name not in self.following))


def bind(schedule: n.Schedule, ranks: int, given: Mapping[str, object]) -> Sizes:
    """All sizes of a schedule, with the given values in place of the text's defaults. Raises ScheduleError,
    UsageError."""
    if not 1 <= ranks <= MOST_RANKS:
        raise UsageError(f"{ranks} ranks; a schedule runs on 1 to {MOST_RANKS}")
    values, types = bind_params(schedule, ranks, given)
    budget, expressions = Budget(LISTS), Budget(EXPRESSIONS)
    Budget(NAMES).spend(ranks * (ranks + len(values) + 2 * len(schedule.tensors)), schedule.span)
    scopes = [{**base_scope(rank, ranks, budget), **values} for rank in range(ranks)]
    following = frozenset(t.name for t in schedule.types if t.dtype in types and t.name not in given)
    return Sizes(values, types, following, scopes, *build_tensors(schedule, scopes, types, expressions), expressions)


def bind_params(schedule: n.Schedule, ranks: int, given: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, str]]:
    """The value of every param and of every type."""
    known = {p.name: p for p in schedule.params}
    types = _types(schedule, given)
    bound: dict[str, Any] = {}
    budget = Budget(LISTS)
    for name, value in given.items():
        if name in types:
            continue
        if name in known:
            try:
                made = _frozen(value, name, known[name].span, budget)
                bound[name] = (made,) if type(made) is int and isinstance(known[name].value, n.ListOf) else made
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


def _types(schedule: n.Schedule, given: Mapping[str, object]) -> dict[str, str]:
    """Every type in words."""
    types: dict[str, str] = {}
    mistakes = []
    for decl in schedule.types:
        if decl.name in given:
            value = given[decl.name]
            if not isinstance(value, str) or dtype_and_scaling(value) is None:
                raise UsageError(
                    f"type {decl.name} = {value}: the types are {', '.join(TYPES)}, and of fp8 those with a scaling, "
                    "such as fp8_e4m3 scaled 1x128"
                )
            types[decl.name] = value
            continue
        try:
            types[decl.name] = _type(decl, types)
        except Mistake as m:
            mistakes.append(m.diagnostic)
    refuse(mistakes)
    return types


def _type(decl: n.TypeName | n.TensorDecl, types: Mapping[str, str]) -> str:
    """What a declaration says of a type, in words."""
    of = types.get(decl.dtype, decl.dtype)
    if decl.scaling is None:
        return of
    span = spot(decl.scaling, decl.span)
    if " scaled " in of:
        raise Mistake(span, f"{decl.name} is scaled twice: {decl.dtype} is {of}", f"drop 'scaled {decl.scaling}'")
    if not TYPES[of].quantised:
        help = "declare it fp8_e4m3 or fp8_e5m2, or drop the scaling"
        raise Mistake(span, f"{decl.name} is {of}, which takes no scales", help)
    return f"{of} scaled {decl.scaling}"


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
    schedule: n.Schedule, scopes: Sequence[Scope], types: Mapping[str, str], expressions: Budget
) -> tuple[tuple[ir.Tensor, ...], frozenset[str]]:
    """Every tensor that there is, as each rank stores it, with its scales, and the names of those that are stored
    transposed. Puts ("rows", name) and ("cols", name), which do not depend on that, into the scopes."""
    mistakes: list[Diagnostic] = []
    tensors = []
    transposed = set()
    budget = Budget(TENSORS)
    for decl in schedule.tensors:
        budget.spend(len(scopes), decl.span)
        expressions.spend(len(scopes) * size(decl.shape), decl.span)
        dims = [number(compile_expr(e), e.span) for e in decl.shape]
        shapes = []
        try:
            found = dtype_and_scaling(_type(decl, types))
            assert found is not None  # the parser knows the words
            dtype, scaling = found
            for scope in scopes:
                shape = tuple(f(scope) for f in dims)
                _check_shape(decl, shape, dtype, scope["rank"])
                shapes.append(shape)
                scope["rows", decl.name] = shape[-2] if len(shape) > 1 else shape[0]
                scope["cols", decl.name] = shape[-1]
            for i, e in enumerate(decl.shape):  # a rank may hold no element, as an expert without tokens; not all ranks
                if not any(shape[i] for shape in shapes):
                    raise Mistake(e.span, f"dimension {i} of {decl.name} is 0 on all ranks; sizes start at 1")
            if decl.condition is not None and not _holds(decl, decl.condition, scopes, "there"):
                continue
            if scaling is not None:
                _check_scaled(decl)
            if decl.transposed and (
                isinstance(decl.transposed, bool) or _holds(decl, decl.transposed, scopes, "transposed")
            ):
                transposed.add(decl.name)
                shapes = [(*shape[:-2], shape[-1], shape[-2]) for shape in shapes]
        except Mistake as m:
            mistakes.append(m.diagnostic)
            continue
        made = ir.Tensor(decl.name, decl.kind, dtype, tuple(shapes), decl.unproven, decl.span, scaling)
        tensors += [made] if scaling is None else [made, scales.tensor_of(made)]
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


def _check_scaled(decl: n.TensorDecl) -> None:
    """A tensor can have scales: a matrix, or several; an output is one."""
    if decl.kind == "output" and len(decl.shape) != 2:
        raise Mistake(decl.span, f"output {decl.name} has {len(decl.shape)} dimensions; a scaled one has two")
    if len(decl.shape) < 2:
        raise Mistake(decl.span, f"{decl.name} has one dimension; what is scaled has two or more")


def _check_shape(decl: n.TensorDecl, shape: tuple[int, ...], dtype: str, rank: int) -> None:
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
