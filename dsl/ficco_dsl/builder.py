"""Builds the nodes of the syntax tree: lark calls one method of `Builder` for each grammar rule, bottom-up."""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .diagnostics import Diagnostic, Span
from .nodes import (
    Attribute,
    Binary,
    Binding,
    Call,
    ClaimCollective,
    ClaimFunction,
    ClaimProduct,
    ClaimSum,
    Comprehension,
    Computes,
    Expr,
    For,
    If,
    Int,
    Item,
    KernelDecl,
    KernelParam,
    Let,
    ListOf,
    Multiprocessors,
    Name,
    Operation,
    Param,
    Part,
    Pieces,
    QueueDecl,
    Range,
    RegionRef,
    Schedule,
    Slice,
    StageDecl,
    StageStep,
    Statement,
    Step,
    Subscript,
    TensorDecl,
    TypeName,
    Unary,
    Word,
)
from .verbs import COLLECTIVES, NODE_OF, Collective, Gemm, Launch, Quantize, Reduce
from .vocabulary import OF_SUMS

if TYPE_CHECKING:
    from lark import Token

MAX_DIGITS = 18  # fits 64 bits
MAX_BITS = 62  # units included

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class _Block(NamedTuple):
    statements: tuple[Statement, ...]
    end: Token


@dataclass(frozen=True, slots=True)
class _Reach:
    """`x.rows(...)`, `x[a:b]`, `x.T` where an expression stands: right as a launch argument only."""

    base: Any  # Expr or _Reach
    accessor: Pieces | Subscript | None
    transposed: bool
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Argument:
    """An argument of a launch: its reading as an expression and as a region, each if it has one. `parser` chooses when
    the tensors are known."""

    expr: Expr | None
    region: RegionRef | None
    span: Span = field(compare=False)


class Builder(threading.local):
    """One method for each grammar rule: it takes the children of the rule and returns its node.

    lark ties these methods to the parser, which all threads share. So the state of one parse is thread-local. Methods
    never raise: they record mistakes and continue.
    """

    def begin(self, path: str, text: str, first_line: int) -> None:
        self.path = path
        self.text = text
        self.lines: list[str] | None = None
        self.before = first_line - 1  # lines above `text` in the file
        self.mistakes: list[Diagnostic] = []
        self.reaches: dict[int, _Reach] = {}  # by id: those that are not part of a launch argument

    # Helpers

    def span(self, first: Any, last: Any | None = None) -> Span:
        """From the first character of `first` to the last of `last`; each is a token or a node."""
        a = self.token_span(first) if isinstance(first, str) else first.span
        if last is None:
            return a
        b = self.token_span(last) if isinstance(last, str) else last.span
        return Span(self.path, a.line, a.column, b.end_line, b.end_column)

    def token_span(self, token: Any) -> Span:
        before = self.before
        return Span(self.path, token.line + before, token.column, token.end_line + before, token.end_column)

    def word(self, token: Any) -> Word:
        return Word.at(str(token), self.token_span(token))

    def mistake(self, where: Any, message: str, help: str | None = None) -> None:
        self.mistakes.append(Diagnostic(self.span(where), message, help=help))

    def text_of(self, span: Span) -> str:
        """The text of a span, on one line."""
        if self.lines is None:
            self.lines = self.text.split("\n")
        lines = self.lines[span.line - 1 - self.before : span.end_line - self.before]
        lines[-1] = lines[-1][: span.end_column - 1]
        lines[0] = lines[0][span.column - 1 :]
        return " ".join(" ".join(re.sub(r"#.*", "", line) for line in lines).split())

    # Declarations

    def start(self, c: list[Any]) -> list[Any]:
        return c

    def schedule(self, c: list[Any]) -> Schedule:
        keyword, name = c
        span = self.span(keyword, name)
        return Schedule(str(name), self.path, (), (), (), (), (), (), (), span)

    def param(self, c: list[Any]) -> Param:
        keyword, name, value, _, check = c
        text = self.text_of(check.span) if check is not None else None
        return Param(self.word(name), value, check, text, self.span(keyword, value if check is None else check))

    def type(self, c: list[Any]) -> TypeName:
        keyword, name, dtype, scaling = c
        span = self.span(keyword, scaling or dtype)
        return TypeName(self.word(name), self.word(dtype), scaling and self.word(scaling), span)

    def scaling(self, c: list[Any]) -> Token:
        scaling: Token = c[1]
        return scaling

    def tensor(self, c: list[Any]) -> TensorDecl:
        kind, name, *shape, _, dtype, scaling, unproven, transposed, _, condition = c
        span = self.span(kind, condition or transposed or unproven or scaling or dtype)
        stored = transposed is not None if transposed is None or condition is None else condition
        return TensorDecl(
            kind.value,
            self.word(name),
            tuple(shape),
            self.word(dtype),
            scaling and self.word(scaling),
            unproven is not None,
            stored,
            span,
            condition if transposed is None else None,
        )

    def computes(self, c: list[Any]) -> Computes:
        keyword, target, value, within, _, binding = c
        types = () if within is None else tuple(self.word(name) for name in within)
        last = binding or (value if within is None else within[-1])
        return Computes(target, value, types, binding, self.span(keyword, last))

    def within(self, c: list[Any]) -> list[Any]:
        return c[1:]

    def claim_product(self, c: list[Any]) -> ClaimProduct:
        left, right = c
        return ClaimProduct(left, right, self.span(left, right))

    def claim_sum(self, c: list[Any]) -> ClaimSum:
        left, right = c
        return ClaimSum(left, right, self.span(left, right))

    def claim_function(self, c: list[Any]) -> ClaimFunction:
        function, *arguments, end = c
        if function not in OF_SUMS:
            self.mistakes.append(not_in_a_claim(function, self.span(function)))
        else:
            self._arguments(function, len(arguments))
        return ClaimFunction(str(function), tuple(arguments), self.span(function, end))

    def claim_collective(self, c: list[Any]) -> ClaimCollective:
        kind, operand, axis, shares, end = c
        if kind == "all_reduce":
            if axis is not None:
                self.mistake(axis, "all_reduce takes no axis: every rank gets all of the sum", "write all_reduce(X)")
        elif axis is None:
            self.mistake(end, f"expected ',' and the axis in {kind}, found ')'", f"write {kind}(X, rows)")
        elif axis == "cols" and kind != "all_gather":
            self.mistake(axis, f"{kind} cuts rows, not cols", f"write {kind}(X, rows)")
        if shares is not None and kind in ("all_gather", "reduce_scatter"):
            self.mistake(shares, f"{kind} cuts equally and takes no 'of'", "only all_to_all takes shares")
        return ClaimCollective(kind.value, operand, None if axis is None else axis.value, shares, self.span(kind, end))

    def queue(self, c: list[Any]) -> QueueDecl:
        keyword, name, *attributes, end = c
        return QueueDecl(self.word(name), _present(attributes), self.span(keyword, end))

    def kernel(self, c: list[Any]) -> KernelDecl:
        keyword, name = c[0], c[1]
        params = tuple(x for x in c if isinstance(x, KernelParam))
        attributes = tuple(x for x in c if isinstance(x, Attribute))
        file, entry = [x for x in c if isinstance(x, str) and x.type == "STRING"]  # type: ignore[attr-defined]
        end = entry if c[-1] is None else c[-1]
        return KernelDecl(self.word(name), params, file[1:-1], entry[1:-1], attributes, self.span(keyword, end))

    def kernel_param(self, c: list[Any]) -> KernelParam:
        mode, name = c
        return KernelParam(mode.value, self.word(name), self.span(mode, name))

    def stage(self, c: list[Any]) -> StageDecl:
        keyword, name, _, queue, *options, attributes, block = c
        streamed = False
        after: tuple[Name, ...] = ()
        seen = set()
        for option in options:
            if option[0].value in seen:
                self.mistake(option[0], f"'{option[0]}' stands twice on stage '{name}'", "once is enough")
            seen.add(option[0].value)
            if len(option) == 1:
                streamed = True
            else:
                after += tuple(Name(str(token), self.span(token)) for token in option[1:])
        span = self.span(keyword, block.end)
        return StageDecl(self.word(name), self.word(queue), streamed, after, attributes or (), block.statements, span)

    def stage_option(self, c: list[Any]) -> list[Any]:
        return c

    def stage_step(self, c: list[Any]) -> StageStep:
        keyword, binding, *stages, end = c
        return StageStep(binding, tuple(stages), self.span(keyword, end))

    def with_(self, c: list[Any]) -> tuple[Attribute, ...]:
        return tuple(c)

    def attribute(self, c: list[Any]) -> Attribute:
        name, value = c
        span = self.span(name, value)
        if getattr(value, "type", "") == "SMS":
            value = Multiprocessors(self._digits(value, value.split()[0].replace("_", "")), self.span(value))
        elif isinstance(value, str):  # a token: a string or the word `copy`
            value = value[1:-1] if value.startswith('"') else Name(str(value), self.span(value))
        return Attribute(self.word(name), value, span)

    # Statements

    def block(self, c: list[Any]) -> _Block:
        return _Block(tuple(c[:-1]), c[-1])

    def operation(self, c: list[Any]) -> Operation:
        """Builds the node of a verb whose regions follow one another."""
        keyword, *regions, attributes = c
        node, span = NODE_OF[keyword.type], self.span(keyword, attributes[-1] if attributes else regions[-1])
        kind = (keyword.value,) if node is Collective else ()
        return node(*kind, *regions, attributes or (), span)

    def gemm(self, c: list[Any]) -> Gemm:
        keyword, out, sign, *applied, attributes = c
        (left, right, terms), function, factor, end = self._applied(applied)
        last = end or (right if terms is None else terms[-1])
        span = self.span(keyword, attributes[-1] if attributes else last)
        regions = () if terms is None else self._terms(terms, "+", "a gemm adds a sum")
        if sign == "+=" and (regions or function):
            help = "write '=' and make the result a term, as in gemm Y = X * W + sum(Y, ...), or add with reduce"
            what = "sum(...)" if regions else f"{function}(...)"
            self.mistake(sign, f"a gemm with '+=' takes no {what}", help)
        return Gemm(out, left, right, sign == "+=", regions, attributes or (), span, function, factor)

    def matmul(self, c: list[Any]) -> list[Any]:
        return c

    def reduce(self, c: list[Any]) -> Reduce:
        keyword, out, *applied, attributes = c
        terms, function, factor, end = self._applied(applied)
        span = self.span(keyword, attributes[-1] if attributes else end or terms[-1])
        sign = "=" if function is None else "("
        return Reduce(out, self._terms(terms, sign, "reduce only sums"), attributes or (), span, function, factor)

    def quantize(self, c: list[Any]) -> Quantize:
        keyword, out, *applied, by, attributes = c
        terms, function, factor, end = self._applied(applied)
        one = isinstance(terms, RegionRef)
        regions = (terms,) if one else self._terms(terms, "=" if function is None else "(", "or quantize one tensor")
        last = by or end or (terms if one else terms[-1])
        span = self.span(keyword, attributes[-1] if attributes else last)
        return Quantize(out, regions, attributes or (), span, function, factor, by, not one)

    def _applied(self, c: list[Any]) -> tuple[Any, str | None, RegionRef | None, Any]:
        """A sum; the function that is applied to it, what that is multiplied by, and its closing bracket, if any."""
        if len(c) == 1:
            return c[0], None, None, None
        function, total, *factors, end = c
        if function not in OF_SUMS:
            near = difflib.get_close_matches(str(function)[:30], OF_SUMS, 1, 0.5)
            help = f"did you mean '{near[0]}'?" if near else None
            self.mistake(function, f"'{function}' is no function of a sum; there are {', '.join(OF_SUMS)}", help)
        else:
            self._arguments(function, 1 + len(factors))
        return total, str(function), factors[0] if factors else None, end

    def _arguments(self, function: Token, count: int) -> None:
        if count != OF_SUMS[function].count(",") + 1:
            self.mistake(function, f"{function} has {count} argument{'' if count == 1 else 's'}", OF_SUMS[function])

    def terms(self, c: list[Any]) -> list[Any]:
        return c

    def _terms(self, c: list[Any], sign: str, help: str) -> tuple[RegionRef, ...]:
        function, *regions, _ = c
        if function != "sum":  # not a keyword: a stage may well be called sum
            help = f"write {function}(sum(...))" if function in OF_SUMS else help
            self.mistake(function, f"expected sum(...) after '{sign}', found '{function}'", help)
        return tuple(regions)

    def launch(self, c: list[Any]) -> Launch:
        keyword, kernel, *arguments, end, attributes = c
        span = self.span(keyword, attributes[-1] if attributes else end)
        # _Argument until `_assemble` knows the tensors
        return Launch(self.word(kernel), _present(arguments), attributes or (), span)

    def let(self, c: list[Any]) -> Let:
        keyword, name, value = c
        return Let(self.word(name), value, self.span(keyword, value))

    def for_(self, c: list[Any]) -> For:
        keyword, *bindings, block = c
        return For(tuple(bindings), block.statements, self.span(keyword, block.end))

    def step(self, c: list[Any]) -> Step:
        keyword, binding, block = c
        return Step(binding, block.statements, self.span(keyword, block.end))

    def if_(self, c: list[Any]) -> If:
        # IF, condition, block; any number of times ELSE, IF, condition, block; then ELSE, block or None, None
        otherwise: tuple[Statement, ...] = c[-1].statements if c[-1] is not None else ()
        end = next(x for x in reversed(c) if x is not None).end
        for i in range(len(c) - 5, 0, -4):
            keyword, condition, block = c[i : i + 3]
            otherwise = (If(condition, block.statements, otherwise, self.span(keyword, end)),)
        return If(c[1], c[2].statements, otherwise, self.span(c[0], end))

    def binding(self, c: list[Any]) -> Binding:
        name, domain = c
        return Binding(self.word(name), domain, self.span(name, domain))

    def launch_argument(self, c: list[Any]) -> _Argument:
        value, _, at = c
        accessors: list[Pieces | Subscript] = []
        transposed = misplaced = False
        root = value
        while isinstance(root, (Item, _Reach)):
            if isinstance(root, Item):
                start = root.base.span
                inside = Span(self.path, start.end_line, start.end_column, root.span.end_line, root.span.end_column)
                accessors.append(Subscript((root.index,), inside))
            else:
                self.reaches.pop(id(root), None)
                misplaced = misplaced or (root.transposed and root is not value)
                transposed = transposed or root.transposed
                if root.accessor is not None:
                    accessors.append(root.accessor)
            root = root.base
        if misplaced:
            self.mistake(value, "nothing follows .T in a region")
        span = self.span(value, value if at is None else at)
        is_region = isinstance(value, _Reach) or at is not None
        if not isinstance(root, Name):
            if is_region:
                self.mistake(value, "a region begins with the name of a tensor")
            return _Argument(value, None, span)
        region = RegionRef(root.id, tuple(reversed(accessors)), transposed, at, span)
        return _Argument(None if is_region else value, region, span)

    # Regions

    def region(self, c: list[Any]) -> RegionRef:
        ref, at = c
        assert isinstance(ref, RegionRef)
        return ref if at is None else replace(ref, at=at, span=self.span(ref, at))

    def ref(self, c: list[Any]) -> RegionRef:
        name, *accessors = c
        last = accessors[-1] if accessors else name
        transposed = isinstance(last, _Transposed)
        span = self.span(name, last)
        return RegionRef(str(name), tuple(accessors[: len(accessors) - transposed]), transposed, None, span)

    def transposed(self, c: list[Any]) -> _Transposed:
        dot, name = c
        if name != "T":
            self.mistakes.append(not_an_accessor(name, self.span(name)))
        return _Transposed(self.span(dot, name))

    def pieces(self, c: list[Any]) -> Pieces:
        dot, axis, *parts, end = c
        return Pieces(axis.value, tuple(parts), self.span(dot, end))

    def subscript(self, c: list[Any]) -> Subscript:
        start, *entries, end = c
        return Subscript(tuple(entries), self.span(start, end))

    def slice(self, c: list[Any]) -> Slice:
        colon = next(i for i, x in enumerate(c) if isinstance(x, str))
        start = c[0] if colon > 0 else None
        stop = c[-1] if colon < len(c) - 1 else None
        return Slice(start, stop, self.span(c[0], c[-1]))

    def part(self, c: list[Any]) -> Part:
        index, whole = c
        return Part(index, whole, self.span(index, whole))

    # Expressions

    def range(self, c: list[Any]) -> Range:
        start, stop = c
        return Range(start, stop, self.span(start, stop))

    def binary(self, c: list[Any]) -> Binary:
        left, op, right = c
        return Binary(op.value, left, right, self.span(left, right))

    def unary(self, c: list[Any]) -> Unary:
        op, operand = c
        return Unary(op.value, operand, self.span(op, operand))

    def number(self, c: list[Any]) -> Int:
        (token,) = c
        span = self.span(token)
        digits, unit = token.replace("_", ""), 1
        if digits.endswith("iB"):
            digits, unit = digits[:-3].rstrip(), _UNITS[digits[-3:]]
        value = self._digits(token, digits) * unit
        if value >= 1 << MAX_BITS:
            self.mistake(token, f"the number is too large; numbers stay below 2^{MAX_BITS}")
            return Int(0, span)
        return Int(value, span)

    def _digits(self, token: Any, digits: str) -> int:
        if len(digits) > MAX_DIGITS:
            self.mistake(token, f"the number has {len(digits)} digits; at most {MAX_DIGITS} are allowed")
            return 0
        return int(digits)

    def name(self, c: list[Any]) -> Name:
        return Name(str(c[0]), self.span(c[0]))

    def parenthesized(self, c: list[Any]) -> Any:
        start, inner, end = c
        if isinstance(inner, _Reach):
            return inner
        return replace(inner, span=self.span(start, end))  # so that the text of `(a + b) * c` is whole

    def item(self, c: list[Any]) -> Any:
        base, subscript = c
        if not isinstance(base, _Reach) and len(subscript.entries) == 1 and not isinstance(subscript.entries[0], Slice):
            return Item(base, subscript.entries[0], self.span(base, subscript))
        return self.reach(c)

    def reach(self, c: list[Any]) -> _Reach:
        base, accessor = c
        self.reaches.pop(id(base), None)  # a chain of accessors is one mistake
        transposed = isinstance(accessor, _Transposed)
        node = _Reach(base, None if transposed else accessor, transposed, self.span(base, accessor))
        self.reaches[id(node)] = node
        return node

    def list_of(self, c: list[Any]) -> ListOf:
        start, *items, end = c
        return ListOf(_present(items), self.span(start, end))

    def comprehension(self, c: list[Any]) -> Comprehension:
        start, body, _, name, domain, end = c
        return Comprehension(body, self.word(name), domain, self.span(start, end))

    def call(self, c: list[Any]) -> Call:
        function, *arguments, end = c
        return Call(self.word(function), _present(arguments), self.span(function, end))


@dataclass(frozen=True, slots=True)
class _Transposed:
    span: Span = field(compare=False)


def _present(children: Iterable[Any]) -> tuple[Any, ...]:
    """Children without lark's placeholder for an absent option."""
    return tuple(x for x in children if x is not None)


def not_in_a_claim(name: str, span: Span) -> Diagnostic:
    near = difflib.get_close_matches(name[:30], (*COLLECTIVES, *OF_SUMS), 1, 0.5)
    shown = str(name) if len(name) <= 30 else f"{name[:27]}..."
    may = f"a claim may have {', '.join(COLLECTIVES)}, and the functions {', '.join(OF_SUMS)}"
    help = f"did you mean '{near[0]}'?" if near else None
    return Diagnostic(span, f"'{shown}' is no collective; {may}", help=help)


def not_an_accessor(name: str, span: Span) -> Diagnostic:
    close = difflib.get_close_matches(name[:30], ("rows", "cols", "T"), 1, 0.4) or (["T"] if name == "t" else [])
    help = f"did you mean '{close[0]}'?" if close else None
    return Diagnostic(span, f"expected rows, cols or T after '.', found '{name}'", help=help)


builder = Builder()
