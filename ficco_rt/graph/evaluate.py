"""Evaluates expressions of a schedule: each expression is compiled into a function of the names in scope.

Compiling an expression once and calling it often keeps the expansion of large schedules fast; a loop variable costs one
dictionary look-up.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

from ficco_dsl import nodes as n
from ficco_dsl.diagnostics import Diagnostic, ScheduleError, Span

from ..geometry.region import Interval
from .budget import LISTS, Budget

# Names, and ("rows", name) / ("cols", name) for the extents of a region, and STEPS for the budget.
Scope: TypeAlias = dict[Any, Any]
Value: TypeAlias = Any  # int, or a (nested) tuple or range of ints
Function: TypeAlias = Callable[[Scope], Value]

LARGEST = 2**62
LONGEST = 65_536  # members of one list or set
MOST_MISTAKES = 20
DEEPEST = 4  # lists in lists
STEPS = ("steps",)  # the scope's key for the budget of list members; no name of a schedule


class Mistake(Exception):
    """An expression without a value, at a place; the caller adds what it knows and goes on."""

    def __init__(self, span: Span, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(span, message, help=help)
        self.placed = False  # the message says on which rank and in which turn of the loops


def refuse(mistakes: Collection[Diagnostic], kind: type[ScheduleError] = ScheduleError) -> None:
    """Raises an error of this kind with the first mistakes, if there are any."""
    if mistakes:
        raise kind(first_of(mistakes))


def first_of(mistakes: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The mistakes that come first in the text."""
    return tuple(sorted(mistakes, key=lambda d: (d.span.line, d.span.column))[:MOST_MISTAKES])


def base_scope(rank: int, ranks: int, budget: Budget | None = None) -> Scope:
    """The names that every schedule has, on one rank; ranks share the budget for lists."""
    peers = tuple((rank + i) % ranks for i in range(1, ranks))
    return {"rank": rank, "ranks": ranks, "peers": peers, "all": tuple(range(ranks)), STEPS: budget or Budget(LISTS)}


def walk(value: Value, budget: Budget, span: Span, depth: int = 0) -> None:
    """Spend a step for every member, however deep: what is repeated in lists of lists is counted each time."""
    if isinstance(value, int):
        return
    if depth == DEEPEST:
        raise Mistake(span, f"lists nest more than {DEEPEST} deep")
    budget.spend(len(value), span)
    if isinstance(value, tuple):
        for member in value:
            if not isinstance(member, int):
                walk(member, budget, span, depth + 1)


def shares(whole: Value, span: Span) -> tuple[int, ...] | int:
    """Check the right side of `of`: a number of pieces, or a list of shares."""
    if isinstance(whole, bool):
        raise Mistake(span, "what follows 'of' is a number of pieces or a list of shares, this is a condition")
    if isinstance(whole, int):
        if whole < 1:
            raise Mistake(span, f"cannot cut into {whole} pieces; there must be at least one")
        return whole
    if len(whole) > LONGEST:
        raise Mistake(span, f"{len(whole)} shares; the most is {LONGEST}")
    total = 0
    for share in whole:
        if type(share) is not int or share < 0:
            raise Mistake(span, f"the shares {show(whole)} are not all numbers ≥ 0")
        total += share
    if not len(whole):
        raise Mistake(span, "there are no shares to cut into")
    return tuple(whole)


def cutter(whole: Value, span: Span) -> Callable[[int, int], Interval]:
    """Piece `index` of an extent, for any index and extent. Equal pieces differ by at most one element; listed
    shares are exact where they add up to the extent, else in proportion. Bounds are floors of the exact cuts. Shares
    that are all 0 cut an extent of 0."""
    cut = shares(whole, span)
    count = cut if isinstance(cut, int) else len(cut)
    ends = None if isinstance(cut, int) else list(accumulate(cut, initial=0))

    def piece_at(index: int, extent: int) -> Interval:
        if not 0 <= index < count:
            raise Mistake(span, f"there is no piece {index} of {count}; pieces count from 0 to {count - 1}")
        if ends is None:
            return Interval(index * extent // count, (index + 1) * extent // count)
        if ends[-1] == 0:  # of nothing there are shares of nothing
            if extent:
                raise Mistake(span, f"the shares {show(cut)} add up to 0, and there are {extent} to be shared out")
            return Interval(0, 0)
        return Interval(ends[index] * extent // ends[-1], ends[index + 1] * extent // ends[-1])

    return piece_at


class Cutter:
    """`cutter` at one place of the text: a list of shares is walked, and paid for, when it is not the last one."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._whole: Value = None
        self._piece: Callable[[int, int], Interval]

    def of(self, whole: Value, budget: Budget) -> Callable[[int, int], Interval]:
        """What cuts into `whole`."""
        if whole is not self._whole:
            if isinstance(whole, tuple | range):
                budget.spend(min(len(whole), LONGEST), self._span)
            self._piece = cutter(whole, self._span)
            self._whole = whole
        return self._piece


def show(value: Value, depth: int = 0) -> str:
    """A value as a schedule writes it, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | str):
        return str(value)
    if depth == 2 and len(value):
        return "[…]"
    items = [show(v, depth + 1) for v in value[:8]]
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
        way = f"; a range is written 0..{v}, a list [{v}]" if type(v) is int else ""
        raise Mistake(span, f"a list or set is needed here, this is {describe(v)}{way}")

    return g


def first_other(domains: Sequence[Sequence[Value]]) -> int | None:
    """The first rank whose set is not rank 0's. Long ranges are compared by their ends."""
    first = domains[0]
    for rank, domain in enumerate(domains):
        if domain != first:
            ranges = isinstance(domain, range) and isinstance(first, range)  # perhaps too long to be listed
            if ranges or len(domain) != len(first) or tuple(domain) != tuple(first):
                return rank
    return None


def describe(value: Value) -> str:
    if isinstance(value, bool):
        return "a condition"
    if isinstance(value, int):
        return f"the number {value}"
    return f"the list {show(value)}"


_FOLDS: dict[str, Callable[[Iterable[int]], int]] = {"sum": sum, "min": min, "max": max}
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
            c = compile_condition(inner)
            return lambda scope: not c(scope)
        case n.Binary():
            return _binary(e)
        case n.Range(start=start, stop=stop):
            a, b = number(compile_expr(start), start.span), number(compile_expr(stop), stop.span)
            return lambda scope: range(a(scope), b(scope))
        case n.ListOf(items=items):
            fs = [compile_expr(i) for i in items]
            return lambda scope: _listed([f(scope) for f in fs], scope, e.span)
        case n.Comprehension():
            return _comprehension(e)
        case n.Item():
            return _item(e)
        case n.Call():
            return _call(e)
        case n.Part():
            raise Mistake(e.span, "'of' makes pieces of rows and columns; it has no value by itself")


def _listed(members: list[Value], scope: Scope, span: Span) -> tuple[Value, ...]:
    """A list of lists costs all that is in it: lists that hold a list twice could grow without end."""
    value = tuple(members)
    if not set(map(type, value)) <= {int}:
        walk(value, scope[STEPS], span)
    return value


def compile_condition(e: n.Expr) -> Callable[[Scope], bool]:
    """The function that decides `e`."""
    f = compile_expr(e)

    def g(scope: Scope) -> bool:
        v = f(scope)
        if isinstance(v, bool):
            return v
        raise Mistake(e.span, f"a condition is needed here, this is {describe(v)}")

    return g


def _same(a: Value, b: Value, scope: Scope, span: Span) -> bool:
    """Numbers or lists are alike; a set is alike to the list of its members."""
    if isinstance(a, int) or isinstance(b, int):
        return type(a) is type(b) and bool(a == b)
    if isinstance(a, range) and isinstance(b, range):
        return a == b
    scope[STEPS].spend(min(len(a), len(b)), span)
    return len(a) == len(b) and all(_same(x, y, scope, span) for x, y in zip(a, b, strict=True))


def _binary(e: n.Binary) -> Function:
    op, span = e.op, e.span
    if op in ("and", "or"):
        p, q = compile_condition(e.left), compile_condition(e.right)
        return (lambda scope: p(scope) and q(scope)) if op == "and" else (lambda scope: p(scope) or q(scope))
    if op in ("==", "!="):
        left, right = compile_expr(e.left), compile_expr(e.right)

        def equal(scope: Scope) -> bool:
            a, b = left(scope), right(scope)
            return _same(a, b, scope, span) == (op == "==")

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

    by_ranks = isinstance(e.right, n.Name) and e.right.id == "ranks"

    def divide(scope: Scope) -> int:
        x, y = a(scope), b(scope)
        if y == 0:
            raise Mistake(span, f"{x} {op} 0: division by zero")
        if op == "%":
            return x % y
        if op == "/" and x % y:
            low = x - x % y
            near = f"{low} or {low + abs(y)}" if low > 0 else str(abs(y))
            ways = f"choose sizes that divide ({near} would), use '//' to round down"
            if by_ranks:
                ways += f", or give each rank its own size with part({x}, rank of {y})"
            raise Mistake(span, f"{x} / {y} is not a whole number", ways)
        return x // y

    return divide


def _comprehension(e: n.Comprehension) -> Function:
    domain, body, name = sequence(compile_expr(e.domain), e.domain.span), compile_expr(e.body), e.name
    cost = size(e.body)

    def f(scope: Scope) -> Value:
        members = domain(scope)
        _check_length(members, scope, e.span, cost)
        inner = copied(scope, e.span)
        out = []
        for v in members:
            inner[name] = v
            out.append(body(inner))
        return _listed(out, scope, e.span)

    return f


def copied(scope: Scope, span: Span) -> Scope:
    """A new scope for the body of a loop."""
    scope[STEPS].spend(1 + len(scope) // 8, span)
    return dict(scope)


def _check_length(members: Sequence[Value], scope: Scope, span: Span, cost: int = 1) -> None:
    if len(members) > LONGEST:
        raise Mistake(span, f"a list of {len(members)} members; the most is {LONGEST}")
    scope[STEPS].spend(len(members) * cost, span)


def nodes_of(e: object) -> Iterator[object]:
    """The nodes of a piece of the syntax tree."""
    todo = [e]
    while todo:
        x = todo.pop()
        if isinstance(x, tuple):
            todo.extend(x)
        elif hasattr(x, "__dataclass_fields__") and not isinstance(x, Span):
            yield x
            todo.extend(getattr(x, f) for f in x.__dataclass_fields__)


def size(e: object) -> int:
    """What it costs to evaluate a piece of the syntax tree once: its nodes."""
    return sum(1 for _ in nodes_of(e))


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
        cut = Cutter(span)
        return lambda scope: cut.of(whole(scope), scope[STEPS])(index(scope), extent(scope)).size
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
        many, pick = [number(f, span) for f in fs], _FOLDS[name]
        return lambda scope: pick(f(scope) for f in many)
    one = sequence(fs[0], span)
    if name == "reversed":

        def turned(scope: Scope) -> Value:
            values = one(scope)
            if not isinstance(values, range):
                _check_length(values, scope, span)
            return values[::-1]

        return turned
    if name == "len":
        return lambda scope: len(one(scope))

    def fold(scope: Scope) -> int:
        values = one(scope)
        _check_length(values, scope, span)
        if not all(type(v) is int for v in values):
            raise Mistake(span, f"{name}() takes a list of numbers, this is {describe(values)}")
        if not values and name != "sum":
            raise Mistake(span, f"{name}() of an empty list has no value")
        total = _FOLDS[name](values)
        if not -LARGEST < total < LARGEST:
            raise Mistake(span, "this number is too large; numbers stay below 2^62")
        return total

    return fold
