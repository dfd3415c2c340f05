"""Values of a schedule's expressions: each expression becomes a function of the names in scope.

Compiling once and calling often keeps the expansion of large schedules fast; a loop variable costs
one dictionary look-up.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ficco_dsl import nodes as n
from ficco_dsl.diagnostics import Diagnostic, Span

from ..region import Interval

Scope: TypeAlias = dict[Any, Any]  # names, and ("rows", name) / ("cols", name) for the extents of a region
Value: TypeAlias = Any  # int, or a (nested) tuple or range of ints
Function: TypeAlias = Callable[[Scope], Value]

LARGEST = 2**62
LONGEST = 65_536  # members of one list or set


class Mistake(Exception):
    """An expression without a value, at a place; the caller adds what it knows and goes on."""

    def __init__(self, span: Span, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(span, message, help=help)


def base_scope(rank: int, ranks: int) -> Scope:
    """The names that every schedule has, on one rank."""
    peers = tuple((rank + i) % ranks for i in range(1, ranks))
    return {"rank": rank, "ranks": ranks, "peers": peers, "all": tuple(range(ranks))}


def shares(whole: Value, extent: int, span: Span) -> tuple[int, ...] | int:
    """Check the right side of `of`: a number of pieces, or a list of shares."""
    if isinstance(whole, int):
        if whole < 1:
            raise Mistake(span, f"cannot cut {extent} into {whole} pieces; there must be at least one")
        return whole
    total = 0
    for share in whole:
        if not isinstance(share, int) or share < 0:
            raise Mistake(span, f"the shares {show(whole)} are not all numbers ≥ 0")
        total += share
    if total == 0:
        raise Mistake(span, f"the shares {show(whole)} add up to 0")
    return tuple(whole)


def piece(index: int, whole: Value, extent: int, span: Span) -> Interval:
    """Piece `index` of an extent. Equal pieces differ by at most one element; listed shares are exact
    where they add up to the extent, else in proportion. Bounds are floors of the exact cuts."""
    cut = shares(whole, extent, span)
    count = cut if isinstance(cut, int) else len(cut)
    if not 0 <= index < count:
        raise Mistake(span, f"there is no piece {index} of {count}; pieces count from 0 to {count - 1}")
    if isinstance(cut, int):
        return Interval(index * extent // cut, (index + 1) * extent // cut)
    before, total = sum(cut[:index]), sum(cut)
    return Interval(before * extent // total, (before + cut[index]) * extent // total)


def show(value: Value) -> str:
    """A value as a schedule writes it, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | str):
        return str(value)
    items = [show(v) for v in value[:8]]
    return "[" + ", ".join(items) + (", …" if len(value) > 8 else "") + "]"


def number(f: Function, span: Span) -> Callable[[Scope], int]:
    """`f`, which must give one number."""

    def g(scope: Scope) -> int:
        v = f(scope)
        if type(v) is int:
            return v
        raise Mistake(span, f"a number is needed here, this is {describe(v)}")

    return g


def sequence(f: Function, span: Span) -> Callable[[Scope], Sequence[Value]]:
    """`f`, which must give a list or set."""

    def g(scope: Scope) -> Sequence[Value]:
        v = f(scope)
        if isinstance(v, tuple | range):
            return v
        raise Mistake(span, f"a list or set is needed here, this is {describe(v)}")

    return g


def describe(value: Value) -> str:
    if isinstance(value, bool):
        return "a condition"
    if isinstance(value, int):
        return f"the number {value}"
    return f"the list {show(value)}"


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compile_expr(e: n.Expr | n.Part) -> Function:
    """The function that computes `e` from the names in scope."""
    match e:
        case n.Int(value=value):
            return lambda scope: value
        case n.Name(id=name):
            return operator.itemgetter(name)
        case n.Unary(op="-", operand=inner):
            f = number(compile_expr(inner), inner.span)
            return lambda scope: -f(scope)
        case n.Unary(operand=inner):
            c = _condition(inner)
            return lambda scope: not c(scope)
        case n.Binary():
            return _binary(e)
        case n.Range(start=start, stop=stop):
            a, b = number(compile_expr(start), start.span), number(compile_expr(stop), stop.span)
            return lambda scope: range(a(scope), b(scope))
        case n.ListOf(items=items):
            fs = [compile_expr(i) for i in items]
            return lambda scope: tuple(f(scope) for f in fs)
        case n.Comprehension():
            return _comprehension(e)
        case n.Item():
            return _item(e)
        case n.Call():
            return _call(e)
        case n.Part():
            raise Mistake(e.span, "'of' makes pieces of rows and columns; it has no value by itself")


def _condition(e: n.Expr) -> Callable[[Scope], bool]:
    f = compile_expr(e)

    def g(scope: Scope) -> bool:
        v = f(scope)
        if isinstance(v, bool):
            return v
        raise Mistake(e.span, f"a condition is needed here, this is {describe(v)}")

    return g


compile_condition = _condition


def _binary(e: n.Binary) -> Function:
    op, span = e.op, e.span
    if op in ("and", "or"):
        p, q = _condition(e.left), _condition(e.right)
        return (lambda scope: p(scope) and q(scope)) if op == "and" else (lambda scope: p(scope) or q(scope))
    if op in ("==", "!="):
        left, right = compile_expr(e.left), compile_expr(e.right)

        def equal(scope: Scope) -> bool:
            a, b = left(scope), right(scope)
            same = a == b if isinstance(a, int) or isinstance(b, int) else tuple(a) == tuple(b)
            return same == (op == "==")

        return equal
    a, b = number(compile_expr(e.left), e.left.span), number(compile_expr(e.right), e.right.span)
    if op in _COMPARE:
        compare = _COMPARE[op]
        return lambda scope: compare(a(scope), b(scope))
    if op in _ARITHMETIC:
        f = _ARITHMETIC[op]

        def arithmetic(scope: Scope) -> int:
            v = f(a(scope), b(scope))
            if -LARGEST < v < LARGEST:
                return v
            raise Mistake(span, "this number is too large; numbers stay below 2^62")

        return arithmetic

    def divide(scope: Scope) -> int:
        x, y = a(scope), b(scope)
        if y == 0:
            raise Mistake(span, f"{x} {op} 0: division by zero")
        if op == "%":
            return x % y
        if op == "/" and x % y:
            low = x - x % y
            near = f"{low} or {low + abs(y)}" if low > 0 else str(abs(y))
            raise Mistake(
                span,
                f"{x} / {y} is not a whole number",
                f"choose sizes that divide ({near} would), use '//' to round down, "
                f"or give each rank its own size with part({x}, rank of {y})",
            )
        return x // y

    return divide


def _comprehension(e: n.Comprehension) -> Function:
    domain, body, name = sequence(compile_expr(e.domain), e.domain.span), compile_expr(e.body), e.name

    def f(scope: Scope) -> Value:
        members = domain(scope)
        if len(members) > LONGEST:
            raise Mistake(e.span, f"a list of {len(members)} members; the most is {LONGEST}")
        inner = dict(scope)
        out = []
        for v in members:
            inner[name] = v
            out.append(body(inner))
        return tuple(out)

    return f


def _item(e: n.Item) -> Function:
    base, index = sequence(compile_expr(e.base), e.base.span), number(compile_expr(e.index), e.index.span)

    def f(scope: Scope) -> Value:
        values, i = base(scope), index(scope)
        if 0 <= i < len(values):
            return values[i]
        raise Mistake(e.span, f"there is no member {i} in a list of {len(values)}")

    return f


def _call(e: n.Call) -> Function:
    name, span = e.function, e.span
    if name in ("rows", "cols"):
        (of,) = e.arguments
        if not isinstance(of, n.Name):
            raise Mistake(span, f"{name}() takes the name of a tensor or of a kernel's argument")
        return operator.itemgetter((name, of.id))
    if name == "part":
        extent_of, part = e.arguments
        if not isinstance(part, n.Part) or isinstance(extent_of, n.Part):
            raise Mistake(span, "part() takes an extent and a piece: part(M, rank of ranks)")
        extent = number(compile_expr(extent_of), extent_of.span)
        index, whole = number(compile_expr(part.index), part.index.span), compile_expr(part.whole)
        return lambda scope: piece(index(scope), whole(scope), extent(scope), span).size
    for argument in e.arguments:
        if isinstance(argument, n.Part):
            raise Mistake(argument.span, f"{name}() takes no piece; 'of' belongs in rows, cols or part()")
    fs = [compile_expr(a) for a in e.arguments]
    if name == "ceil":
        a, b = number(fs[0], span), number(fs[1], span)

        def ceil(scope: Scope) -> int:
            x, y = a(scope), b(scope)
            if y <= 0:
                raise Mistake(span, f"ceil({x}, {y}): the divisor must be positive")
            return -(-x // y)

        return ceil
    if name in ("min", "max") and len(fs) > 1:
        many = [number(f, span) for f in fs]
        pick = min if name == "min" else max
        return lambda scope: pick(f(scope) for f in many)
    one = sequence(fs[0], span)
    if name == "reversed":
        return lambda scope: tuple(reversed(one(scope)))
    if name == "len":
        return lambda scope: len(one(scope))

    def fold(scope: Scope) -> int:
        values = one(scope)
        if len(values) > LONGEST or not all(type(v) is int for v in values):
            raise Mistake(span, f"{name}() takes a list of at most {LONGEST} numbers")
        if not values and name != "sum":
            raise Mistake(span, f"{name}() of an empty list has no value")
        total: int = sum(values) if name == "sum" else min(values) if name == "min" else max(values)
        if not -LARGEST < total < LARGEST:
            raise Mistake(span, "this number is too large; numbers stay below 2^62")
        return total

    return fold
