"""Text to syntax tree: `parse(text, path) -> Schedule`.

lark's LALR(1) parser drives `_Builder`, which makes the nodes bottom-up. A parse stops at its first
mistake; `parse_syntax` has it worded, looks for the next declaration and parses on from there, so that several
mistakes are reported at once. The grammar's tables come from grammar.json (see `_load_parser`).
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os.path
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from . import names
from .diagnostics import Diagnostic, Note, ScheduleError, Span
from .nodes import (
    Attribute,
    Binary,
    Binding,
    Call,
    ClaimCollective,
    ClaimProduct,
    Collective,
    Comprehension,
    Computes,
    Copy,
    Expr,
    For,
    Gemm,
    If,
    Int,
    Item,
    KernelDecl,
    KernelParam,
    Launch,
    Let,
    ListOf,
    Name,
    Param,
    Part,
    Pieces,
    QueueDecl,
    Range,
    Reduce,
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

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput

MAX_BYTES = 1 << 20
MAX_TOKENS = 100_000  # some 10,000 lines; keeps the answer to a hostile file within two seconds
MAX_DEPTH = 64  # of expressions and of blocks: later stages walk the tree by recursion
MAX_DIGITS = 18  # fits 64 bits
MAX_BITS = 62  # units included
MAX_MISTAKES = 20

_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def parse(text: str, path: str) -> Schedule:
    """The syntax tree of a `.ficco` file's text; `path` is what messages call it.

    Raises ScheduleError with every syntax mistake that was found or, when there is none, with every
    mistake of names.
    """
    schedule = parse_syntax(text, path)
    mistakes = names.check(schedule)
    if mistakes:
        raise ScheduleError(tuple(mistakes))
    return schedule


def parse_bytes(data: bytes, path: str) -> Schedule:
    """`parse` for a file as read from disk: UTF-8, at most 1 MiB, without NUL bytes."""
    if len(data) > MAX_BYTES:
        raise _refusal(path, f"the file has {len(data):,} bytes; a schedule has at most {MAX_BYTES:,}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # the offset counts from after the mark that "utf-8-sig" drops
        mark = 3 if data.startswith(b"\xef\xbb\xbf") else 0
        before = data[mark : mark + error.start].decode("utf-8")
        message = f"byte 0x{data[mark + error.start]:02x} at offset {mark + error.start} is not UTF-8"
        raise ScheduleError((_at_end_of(before, path, message, "save the file as UTF-8"),)) from None
    return parse(text, path)


def _refusal(path: str, message: str, help: str | None = None) -> ScheduleError:
    return ScheduleError((Diagnostic(Span(path, 1, 1, 1, 1), message, help=help),))


def _at_end_of(before: str, path: str, message: str, help: str | None = None) -> Diagnostic:
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    return Diagnostic(Span(path, line, column, line, column + 1), message, help=help)


# ---------------------------------------------------------------- the parser itself


def _build_parser() -> Lark:
    """The parser from its grammar: slow (100 ms), for development and for writing grammar.json."""
    import lark

    return lark.Lark(_read(_GRAMMAR), parser="lalr", lexer="basic", transformer=_builder)


_GRAMMAR = os.path.join(os.path.dirname(__file__), "grammar.lark")
_TABLES = os.path.join(os.path.dirname(__file__), "grammar.json")


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:  # pathlib would cost a third of a cold parse
        return file.read()


def _grammar_key() -> dict[str, str]:
    import lark

    return {"lark": lark.__version__, "grammar": hashlib.sha256(_read(_GRAMMAR).encode()).hexdigest()}


def tables_text() -> str:
    """The text of grammar.json: the parser's tables, under the grammar and the lark they belong to."""
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    data, memo = _build_parser().memo_serialize([TerminalDef, Rule])
    data["options"]["transformer"] = None
    return json.dumps({"key": _grammar_key(), "data": data, "memo": memo}, separators=(",", ":"), default=sorted) + "\n"


def write_tables() -> None:
    """Write grammar.json. To be run after every change of grammar.lark."""
    with open(_TABLES, "w", encoding="utf-8") as file:
        file.write(tables_text())


@functools.cache
def _load_parser() -> Lark:
    """The parser from grammar.json, or from the grammar if the file belongs to another grammar or lark."""
    import lark

    tables: dict[str, Any] = json.loads(_read(_TABLES)) if os.path.exists(_TABLES) else {}
    if tables.get("key") != _grammar_key():
        return _build_parser()

    # JSON has no integer keys
    table = tables["data"]["parser"]["parser"]
    table["tokens"] = {int(number): name for number, name in table["tokens"].items()}
    table["states"] = {
        int(state): {int(token): action for token, action in actions.items()}
        for state, actions in table["states"].items()
    }
    memo = {int(number): value for number, value in tables["memo"].items()}
    load: Any = lark.Lark._load_from_dict  # lark's own way to load a standalone parser; it has no types
    return cast("Lark", load(tables["data"], memo, transformer=_builder))


def tokens(text: str) -> list[Token]:
    """The words and signs of a text that parses; what lies between them is blanks and comments."""
    return list(_load_parser().lex(text))


# ---------------------------------------------------------------- nodes from rules


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
    """An argument of a launch: its reading as an expression (if it has one) and as a region (if it has one)."""

    expr: Expr | None
    region: RegionRef | None
    span: Span = field(compare=False)


class _Builder(threading.local):
    """One method a grammar rule: takes its children, returns its node.

    lark ties the callbacks to the parser, which is shared; what belongs to one parse is thread-local.
    Methods never raise: they note mistakes and go on.
    """

    def begin(self, path: str, text: str, first_line: int) -> None:
        self.path = path
        self.text = text
        self.lines: list[str] | None = None
        self.before = first_line - 1  # lines above `text` in the file
        self.mistakes: list[Diagnostic] = []
        self.reaches: dict[int, _Reach] = {}  # by id, those that no launch has taken

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
        keyword, name, dtype = c
        return TypeName(self.word(name), self.word(dtype), self.span(keyword, dtype))

    def tensor(self, c: list[Any]) -> TensorDecl:
        kind, name, *shape, _, dtype, unproven = c
        span = self.span(kind, dtype if unproven is None else unproven)
        return TensorDecl(kind.value, self.word(name), tuple(shape), self.word(dtype), unproven is not None, span)

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
        if isinstance(value, str):  # a token: a string or the word `copy`
            value = value[1:-1] if value.startswith('"') else Name(str(value), self.span(value))
        return Attribute(self.word(name), value, span)

    # Statements

    def block(self, c: list[Any]) -> _Block:
        return _Block(tuple(c[:-1]), c[-1])

    def copy(self, c: list[Any]) -> Copy:
        keyword, dst, src, attributes = c
        return Copy(dst, src, attributes or (), self.span(keyword, attributes[-1] if attributes else src))

    def gemm(self, c: list[Any]) -> Gemm:
        keyword, out, sign, left, right, terms, attributes = c
        last = right if terms is None else terms[-1]
        span = self.span(keyword, attributes[-1] if attributes else last)
        regions = () if terms is None else self._terms(terms, "+", "a gemm adds a sum")
        if regions and sign == "+=":
            help = "write '=' and make the result a term, as in gemm Y = X * W + sum(Y, ...), or add with reduce"
            self.mistake(sign, "a gemm with '+=' takes no sum(...)", help)
        return Gemm(out, left, right, sign == "+=", regions, attributes or (), span)

    def reduce(self, c: list[Any]) -> Reduce:
        keyword, out, terms, attributes = c
        span = self.span(keyword, attributes[-1] if attributes else terms[-1])
        return Reduce(out, self._terms(terms, "=", "reduce only sums"), attributes or (), span)

    def terms(self, c: list[Any]) -> list[Any]:
        return c

    def _terms(self, c: list[Any], sign: str, help: str) -> tuple[RegionRef, ...]:
        function, *regions, _ = c
        if function != "sum":  # not a keyword: a stage may well be called sum
            self.mistake(function, f"expected sum(...) after '{sign}', found '{function}'", help)
        return tuple(regions)

    def collective(self, c: list[Any]) -> Collective:
        kind, dst, src, attributes = c
        span = self.span(kind, attributes[-1] if attributes else src)
        return Collective(kind.value, dst, src, attributes or (), span)

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
            self.mistakes.append(_not_an_accessor(name, self.span(name)))
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
        if len(digits) > MAX_DIGITS:
            self.mistake(token, f"the number has {len(digits)} digits; at most {MAX_DIGITS} are allowed")
            return Int(0, span)
        value = int(digits) * unit
        if value >= 1 << MAX_BITS:
            self.mistake(token, f"the number is too large; numbers stay below 2^{MAX_BITS}")
            return Int(0, span)
        return Int(value, span)

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
        self.reaches.pop(id(base), None)  # one mistake for the whole of it
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


_builder = _Builder()

# ---------------------------------------------------------------- a whole file

_NOT_BLANK = re.compile(r"[^\s#]|#[^\n]*")
_SCAN = re.compile(r"#[^\n]*|\"[^\"\n]*\"|\w+|[^\w\s]")
_BRACKETS = re.compile(r"#[^\n]*|\"[^\"\n]*\"|[()\[\]{}]")
_ITEM_WORDS = (
    "schedule", "param", "type", "input", "output", "scratch", "computes", "queue", "kernel", "stage", "step",
)  # fmt: skip
_ITEM = re.compile(rf"^(?:{'|'.join(_ITEM_WORDS)})\b", re.MULTILINE)


def parse_syntax(text: str, path: str) -> Schedule:
    """`parse` without the checks of names: what the formatter needs."""
    _refuse_unreadable(text, path)
    items: list[Any] = []
    mistakes: list[Diagnostic] = []
    begin, line, recovering = 0, 1, False
    for _ in range(2 * MAX_MISTAKES):  # a stretch may break off without a mistake of its own
        broke, at = _parse_from(text[begin:], path, line, recovering, mistakes, items)
        if not broke:
            break
        # go on at the next declaration; the mistake itself may be one that came too early
        following = _ITEM.search(text, max(begin + at, begin + 1))
        if following is None or len(mistakes) >= MAX_MISTAKES:
            break
        line += text.count("\n", begin, following.start())
        begin, recovering = following.start(), True
    if not mistakes:
        schedule = _assemble(items, path, mistakes)
        if not mistakes:
            return schedule
    mistakes.sort(key=lambda m: (m.span.line, m.span.column))
    raise ScheduleError(tuple(mistakes[:MAX_MISTAKES]))


def _refuse_unreadable(text: str, path: str) -> None:
    if len(text) > MAX_BYTES:
        raise _refusal(path, f"the file has {len(text):,} characters; a schedule has at most {MAX_BYTES:,}")
    nul = text.find("\0")
    if nul >= 0:
        message = f"a NUL byte at offset {len(text[:nul].encode())}"
        raise ScheduleError((_at_end_of(text[:nul], path, message, "a schedule is plain UTF-8 text"),))
    if all(m[0].startswith("#") for m in _NOT_BLANK.finditer(text)):
        message = "the file holds only comments" if "#" in text else "the file is empty"
        raise _refusal(path, message, "a schedule begins with: schedule NAME")
    depth = 0
    for m in _BRACKETS.finditer(text):
        depth += 1 if m[0] in "([{" else -1 if m[0] in ")]}" else 0
        if depth > MAX_DEPTH:
            raise ScheduleError(
                (_at_end_of(text[: m.start()], path, f"brackets nest more than {MAX_DEPTH} levels deep"),)
            )
    if len(text) > MAX_TOKENS:
        tokens = 0
        for m in _SCAN.finditer(text):
            tokens += m[0][0] != "#"
            if tokens > MAX_TOKENS:
                message = f"the schedule has more than {MAX_TOKENS:,} words and signs"
                raise ScheduleError((_at_end_of(text[: m.start()], path, message, "write loops instead of copies"),))


def _parse_from(
    text: str, path: str, line: int, recovering: bool, mistakes: list[Diagnostic], items: list[Any]
) -> tuple[bool, int]:
    """Parse one stretch, adding to `mistakes` and `items`. Returns whether it broke off, and at which offset."""
    from lark.exceptions import UnexpectedInput

    _builder.begin(path, text, line)
    try:
        items += cast(list[Any], _load_parser().parse(text))  # what `_Builder.start` returns
        broke, at = False, len(text)
    except UnexpectedInput as error:
        broke, at = True, error.pos_in_stream if error.pos_in_stream is not None else len(text)
        token = getattr(error, "token", None)
        if token is not None and token.type == "$END":
            at = len(text)
        # after a mistake, the brace that closed the broken declaration is no second one
        if not (recovering and token is not None and token.type == "RBRACE"):
            mistakes.append(_explain(error, text, at, path, line - 1))
    for reach in _builder.reaches.values():
        help = "regions stand in statements and in launch(...)"
        _builder.mistake(reach, "a region cannot be part of an expression", help)
    mistakes += _builder.mistakes
    return broke, at


def _assemble(items: list[Any], path: str, mistakes: list[Diagnostic]) -> Schedule:
    """The schedule of the items; adds what is nested too deep or said twice to `mistakes`."""
    too_deep = _too_deep(items)
    if too_deep is not None:
        mistakes.append(too_deep)
        return _NO_SCHEDULE
    kinds: dict[type, list[Any]] = {}
    for item in items:
        kinds.setdefault(type(item), []).append(item)
    head, *more = kinds.get(Schedule, [replace(_NO_SCHEDULE, span=Span(path, 1, 1, 1, 1))])
    for second in more:
        note = Note(f"'{head.name}' is named here", head.span)
        mistakes.append(Diagnostic(second.span, "a file holds one schedule", (note,)))
    if head.name and items[0] is not head:
        mistakes.append(Diagnostic(head.span, "the schedule line comes first, before all declarations"))

    tensors = tuple(kinds.get(TensorDecl, ()))
    declared = {tensor.name for tensor in tensors}
    program = tuple(_with_arguments(item, declared) for item in items if isinstance(item, (StageDecl, StageStep)))
    return Schedule(
        name=head.name,
        path=path,
        params=tuple(kinds.get(Param, ())),
        types=tuple(kinds.get(TypeName, ())),
        tensors=tensors,
        claims=tuple(kinds.get(Computes, ())),
        queues=tuple(kinds.get(QueueDecl, ())),
        kernels=tuple(kinds.get(KernelDecl, ())),
        program=program,
        span=head.span,
    )


_NO_SCHEDULE = Schedule("", "", (), (), (), (), (), (), (), Span("", 1, 1, 1, 1))


def _with_arguments(node: Any, tensors: set[str]) -> Any:
    """`node` with every argument of its launches decided: region or expression."""
    if isinstance(node, Launch):
        chosen: list[RegionRef | Expr] = []
        arguments: tuple[Any, ...] = node.arguments  # of _Argument still
        for a in arguments:
            chosen.append(a.region if a.expr is None or (a.region and a.region.tensor in tensors) else a.expr)
        return replace(node, arguments=tuple(chosen))
    if isinstance(node, If):
        body = tuple(_with_arguments(x, tensors) for x in node.body)
        return replace(node, body=body, otherwise=tuple(_with_arguments(x, tensors) for x in node.otherwise))
    if isinstance(node, _BLOCKS):
        return replace(cast(Any, node), body=tuple(_with_arguments(x, tensors) for x in node.body))
    return node


_BLOCKS = (StageDecl, StageStep, For, Step, If)


def _too_deep(items: Sequence[Any]) -> Diagnostic | None:
    """Says so if a node lies below MAX_DEPTH levels. A loop: the tree may be too deep to recurse."""
    stack: list[tuple[Any, int, Any]] = [(item, 0, None) for item in reversed(items)]
    while stack:
        node, depth, outermost = stack.pop()
        if type(node) in _EXPRESSIONS:
            outermost = outermost or node
        elif type(node) in _BLOCKS:
            outermost = None
        if depth > MAX_DEPTH:
            if outermost is None:
                return Diagnostic(node.span, f"blocks nest more than {MAX_DEPTH} levels deep")
            message = f"an expression has more than {MAX_DEPTH} levels; every operator and call is one"
            return Diagnostic(outermost.span, message, help="name a part of it with let or param")
        for name in node.__slots__:
            child = getattr(node, name)
            if type(child) is tuple:
                stack += [(x, depth + 1, outermost) for x in reversed(child)]
            elif type(child) not in _LEAVES:
                stack.append((child, depth + 1, outermost))
    return None


_EXPRESSIONS = frozenset({Unary, Binary, Range, ListOf, Comprehension, Item, Call, ClaimProduct, ClaimCollective})
_LEAVES = frozenset({str, int, bool, type(None), Span})

# ---------------------------------------------------------------- messages

_WORDS = {
    "NAME": "a name", "INT": "a number", "STRING": 'a "string"', "$END": "the end of the file",
}  # fmt: skip
# What follows when the rule is at a given place: (nearest keyword before, terminal) -> words. The first that fits.
_PLACES: tuple[tuple[str, str, str], ...] = (
    ("COPY", "ARROW", "'<-' after the destination of copy"),
    ("GEMM", "EQUAL", "'=' or '+=' after the result of gemm"),
    ("GEMM", "STAR", "'*' between the operands of gemm"),
    ("GEMM", "LPAR", "sum(...) after '+'"),
    ("REDUCE", "EQUAL", "'=' after the result of reduce"),
    ("REDUCE", "LPAR", "sum(...) after '='"),
    ("ALL_REDUCE", "ARROW", "'<-' after the destination of all_reduce"),
    ("ALL_GATHER", "ARROW", "'<-' after the destination of all_gather"),
    ("REDUCE_SCATTER", "ARROW", "'<-' after the destination of reduce_scatter"),
    ("ALL_TO_ALL", "ARROW", "'<-' after the destination of all_to_all"),
    ("LAUNCH", "LPAR", "'(' after the kernel's name"),
    ("LET", "EQUAL", "'=' after the name"),
    ("FOR", "IN", "'in' after the loop variable"),
    ("STEP", "IN", "'in' after the loop variable"),
    ("FOR", "LBRACE", "'{' or another binding"),
    ("STEP", "LBRACE", "'{'"),
    ("IF", "LBRACE", "'{' after the condition"),
    ("ELSE", "LBRACE", "'{' or if after else"),
    ("ROWS", "OF", "'of', as in rows(i of n)"),
    ("COLS", "OF", "'of', as in cols(i of n)"),
    ("PARAM", "EQUAL", "'=' after the param's name"),
    ("TYPE", "EQUAL", "'=' after the type's name"),
    ("INPUT", "LSQB", "'[' and the shape after the input's name"),
    ("OUTPUT", "LSQB", "'[' and the shape after the output's name"),
    ("SCRATCH", "LSQB", "'[' and the shape after the scratch's name"),
    ("INPUT", "COLON", "':' and the type after the shape"),
    ("OUTPUT", "COLON", "':' and the type after the shape"),
    ("SCRATCH", "COLON", "':' and the type after the shape"),
    ("COMPUTES", "EQUAL", "'=' after what is computed"),
    ("COMPUTES", "ALL_GATHER", "what is computed, such as all_gather(A, rows) * B"),
    ("WITHIN", "NAME", "a type, as in within bf16"),
    ("QUEUE", "LBRACE", "'{' after the queue's name"),
    ("STAGE", "ON", "'on' and the queue after the stage's name"),
    ("STAGE", "LBRACE", "'{' and the statements of the stage"),
    ("KERNEL", "LPAR", "'(' and the arguments after the kernel's name"),
    ("KERNEL", "FROM", 'from "file" after the arguments'),
    ("KERNEL", "ENTRY", 'entry "name" after the file'),
)
_HELP_FOR_CHARACTER = {
    '"': ("this string has no closing '\"' on its line", None),
    "'": ('unexpected character "\'"', "strings stand in double quotes"),
    ";": ("unexpected character ';'", "statements need nothing between them"),
    "&": ("unexpected character '&'", "write 'and'"),
    "|": ("unexpected character '|'", "write 'or'"),
    "!": ("unexpected character '!'", "write 'not'"),
    "^": ("unexpected character '^'", "there is no power; write a product"),
}
_STATEMENTS = "statements stand in stages: stage NAME on QUEUE { ... }"
# What could stand where a whole statement or declaration is expected, and what to do about what stands there.
_WHOLES: dict[str, dict[str, str]] = {
    "a statement or '}'": {
        **dict.fromkeys(
            ("SCHEDULE", "PARAM", "TYPE", "INPUT", "OUTPUT", "SCRATCH", "COMPUTES", "QUEUE", "KERNEL", "STAGE"),
            "declarations stand outside of stages",
        ),
        "ELSE": "else follows the '}' of an if",
        "STAR": "a gemm has two operands; multiply the next in a gemm of its own",
        "DOT": "nothing follows .T in a region",
    },
    "a declaration": {
        **dict.fromkeys(
            ("COPY", "GEMM", "REDUCE", "ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL", "LAUNCH", "FOR"),
            _STATEMENTS,
        ),
        "RBRACE": "no '{' is open here",
    },
}
_UNITS_HELP = "bytes may be given in KiB, MiB or GiB"
_AFTER_NUMBER = re.compile(r"[0-9][ \t]+[A-Za-z_]\w*\s*\Z")
_CLOSES = {"(": "RPAR", "[": "RSQB", "{": "RBRACE"}


def _explain(error: UnexpectedInput, text: str, at: int, path: str, before: int) -> Diagnostic:
    """A parse error in the words of the language: place, fact, way out."""
    token: Token | None = getattr(error, "token", None)
    if token is None:
        span = Span(path, error.line + before, error.column, error.line + before, error.column + 1)
        character = text[at]
        message, help = _HELP_FOR_CHARACTER.get(character, (f"unexpected character {character!r}", None))
        return Diagnostic(span, message, help=help)
    at_end = token.type == "$END"
    if at_end:
        stop = _at_end_of(text.rstrip(), path, "")
        span = replace(stop.span, line=stop.span.line + before, end_line=stop.span.end_line + before)
    else:
        span = _builder.token_span(token)

    parser: Any = error.interactive_parser
    accepted: set[str] = parser.accepts()
    stack: list[Any] = parser.parser_state.value_stack
    opener = _innermost_open(text[:at])
    found = "the end of the file" if at_end else f"'{_shown(token)}'"

    # A declaration inside braces, or the end of the file: a bracket was left open
    if opener is not None and (at_end or (token.value in _ITEM_WORDS and token.column == 1)):
        line, column, bracket = opener
        open_span = Span(path, line + before, column, line + before, column + 1)
        note = Note(f"{found} comes before its end", None if at_end else span)
        return Diagnostic(open_span, f"this '{bracket}' is never closed", (note,))

    if len(stack) > 1 and getattr(stack[-2], "type", "") == "DOT" and stack[-1] != "T":
        return _not_an_accessor(stack[-1], _builder.token_span(stack[-1]))
    if token.type == "INT" and stack and stack[-1] == "." and text[at - 2 : at - 1].isdigit():
        return Diagnostic(span, "numbers are whole: no fraction can follow the '.'")
    if token.type == "NAME" and text[at - 1 : at].isdigit():
        return Diagnostic(span, f"unknown unit '{_shown(token)}'", help=_UNITS_HELP)
    if "EQUAL" in accepted and getattr(stack[-1], "type", "") == "NAME" and _AFTER_NUMBER.search(text[:at]):
        return Diagnostic(_builder.token_span(stack[-1]), f"unknown unit '{_shown(stack[-1])}'", help=_UNITS_HELP)

    meant = _meant(token, span, stack, accepted)
    if meant is not None:
        return meant

    terminals = _terminals()
    words = {terminals[t] for t in accepted if terminals.get(t, "").isidentifier()}
    expected = _expected(accepted, stack)
    last = None if at_end or expected in _WHOLES else _before(text, at, before)
    if not at_end and token.value in terminals.values() and token.value.isidentifier() and "NAME" in accepted:
        found = f"the keyword {found}" if last is None else found
    if last is not None:  # something is missing at the end of a line, not wrong on the next
        span, found = (
            replace(span, line=last[0], column=last[1], end_line=last[0], end_column=last[1] + 1),
            (f"{found} on line {span.line}"),
        )
    notes: tuple[Note, ...] = ()
    if opener is not None and opener[2] != "{" and _CLOSES[opener[2]] in accepted:
        line, column, bracket = opener
        notes = (Note(f"'{bracket}' is opened here", Span(path, line + before, column, line + before, column + 1)),)
    help = None
    if not at_end and token.type == "NAME":
        close = difflib.get_close_matches(token.value[:30], sorted(words), 1, 0.7)
        help = f"did you mean '{close[0]}'?" if close else None
    elif token.type == "EQUAL" and "SAME" in accepted:
        help = "'==' compares"
    elif token.type == "ARROW" and "LESS" in accepted and not notes:
        help = "'<-' is one sign; write '< -' to compare with a negative number"
    elif token.type == "DOT_DOT" and _keyword_before(stack) is not None:
        help = "a range has two ends: 0..n"
    elif found.startswith("the keyword") and "INT" not in accepted:
        help = "keywords cannot be names; choose another"
    elif expected.startswith("sum(") and getattr(stack[-1], "type", "") == "NAME" and stack[-1] != "sum":
        help = f"write the terms as sum({_shown(stack[-1])}, ...)"
    if not at_end and help is None:
        help = _WHOLES.get(expected, {}).get(token.type)
    return Diagnostic(span, f"expected {expected}, found {found}", notes, help)


_COLLECTIVES = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
_IN_BRACKETS = "values of one variable stand in brackets: {} p in [0, 1, 2]"


def _meant(token: Token, span: Span, stack: list[Any], accepted: set[str]) -> Diagnostic | None:
    """A mistake behind which it is plain what is meant."""
    keyword = _keyword_before(stack)
    kind = None if keyword is None else keyword.type
    top = stack[-1] if stack else None
    if token.type in ("STREAMED", "AFTER") and kind == "STAGE" and token.type not in accepted:
        option = "streamed" if token.type == "STREAMED" else "after OTHER"
        return Diagnostic(span, f"'{token}' stands before 'with'", help=f"stage NAME on QUEUE {option} with ...")
    called = token.type == "LPAR" and getattr(top, "type", "") == "NAME"
    if called and any(getattr(x, "type", "") == "COMPUTES" for x in stack):
        near = difflib.get_close_matches(str(top)[:30], _COLLECTIVES, 1, 0.5)
        return Diagnostic(
            _builder.token_span(cast("Token", top)),
            f"'{_shown(cast('Token', top))}' is no collective; a claim may have {', '.join(_COLLECTIVES[:-1])} and "
            f"{_COLLECTIVES[-1]}",
            help=f"did you mean '{near[0]}'?" if near else None,
        )
    if token.type == "NAME" and {"PARAM", "STAGE"} <= accepted:
        near = difflib.get_close_matches(token[:30], ("copy", "gemm", "reduce", "launch", *_COLLECTIVES), 1, 0.7)
        if near:
            found = f"expected a declaration, found '{_shown(token)}'"
            return Diagnostic(span, found, help=f"{_STATEMENTS}; is it '{near[0]}'?")
    if kind == "FOR" and (
        (token.type == "INT" and top == ",")
        or (token.type in ("COMMA", "LBRACE") and accepted == {"IN"} and "," in stack)
    ):
        return Diagnostic(
            span,
            f"expected the next variable and its values after ',', found '{_shown(token)}'",
            help=_IN_BRACKETS.format("for"),
        )
    if kind == "STEP" and token.type == "COMMA" and "LBRACE" in accepted:
        return Diagnostic(span, "expected '{', found ','", help=_IN_BRACKETS.format("step"))
    return None


def _before(text: str, at: int, before: int) -> tuple[int, int] | None:
    """Line and column of the end of the word or sign before `at`, if that is on an earlier line."""
    ends = [m.end() for m in _SCAN.finditer(text, 0, at) if m[0][0] != "#"]
    if not ends or "\n" not in text[ends[-1] : at]:
        return None
    end = ends[-1]
    return text.count("\n", 0, end) + 1 + before, end - (text.rfind("\n", 0, end) + 1) + 1


def _not_an_accessor(name: str, span: Span) -> Diagnostic:
    close = difflib.get_close_matches(name[:30], ("rows", "cols", "T"), 1, 0.4) or (["T"] if name == "t" else [])
    help = f"did you mean '{close[0]}'?" if close else None
    return Diagnostic(span, f"expected rows, cols or T after '.', found '{name}'", help=help)


@functools.cache
def _terminals() -> dict[str, str]:
    """The text of every terminal that has only one."""
    return {t.name: t.pattern.value for t in _load_parser().terminals if t.pattern.type == "str"}


def _shown(token: Token) -> str:
    return str(token) if len(token) <= 30 else token[:27] + "..."


_OPERATORS = frozenset({
    "PLUS", "MINUS", "STAR", "SLASH", "SLASH_SLASH", "PERCENT", "LESS", "LESS_EQUAL", "MORE", "MORE_EQUAL",
    "SAME", "OTHER", "AND", "OR", "DOT_DOT", "DOT", "LSQB", "LPAR", "AT",
})  # fmt: skip


def _expected(accepted: set[str], stack: list[Any]) -> str:
    """What could stand here, in words."""
    keyword = _keyword_before(stack)
    if keyword is not None and "INT" not in accepted:
        for place, terminal, words in _PLACES:
            if place == keyword.type and terminal in accepted:
                return words
    if {"COPY", "GEMM"} <= accepted:
        return "a statement or '}'"
    if {"PARAM", "STAGE"} <= accepted:
        return "a declaration"
    if "INT" in accepted:
        return "an expression"
    if accepted == {"NAME"}:
        if (keyword, stack[-1]) in (("reduce", "="), ("gemm", "+")):
            return f"sum(...) after '{stack[-1]}'"
        return f"{'a type' if stack[-1] == ':' else 'a name'} after '{stack[-1]}'"
    rest = accepted - _OPERATORS or accepted
    texts = [_WORDS.get(t) or f"'{_terminals()[t]}'" for t in rest]
    texts.sort(key=lambda w: (w[0] == "'", w))
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


def _keyword_before(stack: list[Any]) -> Token | None:
    """The keyword whose rule the parser is in: the nearest one on its stack, if no open bracket lies between."""
    closed = 0
    for i in range(len(stack) - 1, -1, -1):
        kind = getattr(stack[i], "type", "NAME")
        if kind in ("RPAR", "RSQB", "RBRACE"):
            closed += 1
        elif kind in ("LPAR", "LSQB", "LBRACE"):
            if not closed:
                is_piece = kind == "LPAR" and stack[i - 1] in ("rows", "cols")
                return stack[i - 1] if is_piece else None
            closed -= 1
        elif kind in _KEYWORDS and not closed:
            return stack[i]  # type: ignore[no-any-return]
    return None


_KEYWORDS = frozenset(place for place, _, _ in _PLACES) | {"SCHEDULE"}


def _innermost_open(text: str) -> tuple[int, int, str] | None:
    """Line, column and sign of the last bracket that is still open at the end of `text`."""
    opened: list[tuple[int, str]] = []
    for m in _SCAN.finditer(text):
        sign = m[0]
        if sign in ("(", "[", "{"):
            opened.append((m.start(), sign))
        elif sign in (")", "]", "}") and opened:
            opened.pop()
    if not opened:
        return None
    at, sign = opened[-1]
    return text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1, sign
