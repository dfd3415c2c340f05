"""Parses text into a syntax tree: `parse(text, path) -> Schedule`.

lark's LALR(1) parser (`grammar`) drives `builder`, which makes the nodes bottom-up. A parse stops at its first mistake.
`syntax_errors` writes the message for this mistake. `parse_syntax` then looks for the next declaration and continues
there, so that several mistakes are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from . import names
from .builder import builder
from .diagnostics import Diagnostic, Note, ScheduleError, Span
from .grammar import ITEM_WORDS, SCAN, load_parser
from .nodes import (
    Binary,
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
    Item,
    KernelDecl,
    ListOf,
    Param,
    QueueDecl,
    Range,
    RegionRef,
    Schedule,
    StageDecl,
    StageStep,
    Step,
    TensorDecl,
    TypeName,
    Unary,
)
from .syntax_errors import at_end_of, explain
from .verbs import Launch

MAX_BYTES = 1 << 20
MAX_TOKENS = 100_000  # some 10,000 lines; keeps the answer to a hostile file within two seconds
MAX_DEPTH = 64  # of expressions and of blocks: later stages walk the tree by recursion
MAX_MISTAKES = 20


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
        raise ScheduleError((at_end_of(before, path, message, "save the file as UTF-8"),)) from None
    return parse(text, path)


def _refusal(path: str, message: str, help: str | None = None) -> ScheduleError:
    return ScheduleError((Diagnostic(Span(path, 1, 1, 1, 1), message, help=help),))


# ---------------------------------------------------------------- stretches of a file

_NOT_BLANK = re.compile(r"[^\s#]|#[^\n]*")
_BRACKETS = re.compile(r"#[^\n]*|\"[^\"\n]*\"|[()\[\]{}]")
_ITEM = re.compile(rf"^(?:{'|'.join(ITEM_WORDS)})\b", re.MULTILINE)


def parse_syntax(text: str, path: str) -> Schedule:
    """`parse` without the checks of names: what the formatter needs."""
    _refuse_unreadable(text, path)
    items: list[Any] = []
    mistakes: list[Diagnostic] = []
    begin, line, recovering = 0, 1, False
    for _ in range(2 * MAX_MISTAKES):  # a stretch may break off without adding a mistake
        broke, at = _parse_from(text[begin:], path, line, recovering, mistakes, items)
        if not broke:
            break
        # go on at the next declaration; the mistake itself may be a declaration in the wrong place
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
        raise ScheduleError((at_end_of(text[:nul], path, message, "a schedule is plain UTF-8 text"),))
    if alone := re.search(r"\r(?!\n)", text):
        message = "a carriage return that no line feed follows ends no line"
        raise ScheduleError((at_end_of(text[: alone.start()], path, message, "save the file with LF or CRLF"),))
    if all(m[0].startswith("#") for m in _NOT_BLANK.finditer(text)):
        message = "the file holds only comments" if "#" in text else "the file is empty"
        raise _refusal(path, message, "a schedule begins with: schedule NAME")
    depth = 0
    for m in _BRACKETS.finditer(text):
        depth += 1 if m[0] in "([{" else -1 if m[0] in ")]}" else 0
        if depth > MAX_DEPTH:
            raise ScheduleError(
                (at_end_of(text[: m.start()], path, f"brackets nest more than {MAX_DEPTH} levels deep"),)
            )
    if len(text) > MAX_TOKENS:
        tokens = 0
        for m in SCAN.finditer(text):
            tokens += m[0][0] != "#"
            if tokens > MAX_TOKENS:
                message = f"the schedule has more than {MAX_TOKENS:,} words and signs"
                raise ScheduleError((at_end_of(text[: m.start()], path, message, "write loops instead of copies"),))


def _parse_from(
    text: str, path: str, line: int, recovering: bool, mistakes: list[Diagnostic], items: list[Any]
) -> tuple[bool, int]:
    """Parse one stretch of the text and add to `mistakes` and `items`. Returns whether the parse broke off, and at
    which offset."""
    from lark.exceptions import UnexpectedInput

    builder.begin(path, text, line)
    try:
        items += cast(list[Any], load_parser().parse(text))  # what `Builder.start` returns
        broke, at = False, len(text)
    except UnexpectedInput as error:
        broke, at = True, error.pos_in_stream if error.pos_in_stream is not None else len(text)
        token = getattr(error, "token", None)
        if token is not None and token.type == "$END":
            at = len(text)
        # after a mistake, the closing brace of the broken declaration is no second mistake
        if not (recovering and token is not None and token.type == "RBRACE"):
            mistakes.append(explain(error, text, at, path, line - 1))
    for reach in builder.reaches.values():
        help = "regions stand in statements and in launch(...)"
        builder.mistake(reach, "a region cannot be part of an expression", help)
    mistakes += builder.mistakes
    return broke, at


def _assemble(items: list[Any], path: str, mistakes: list[Diagnostic]) -> Schedule:
    """The schedule made of the items. Adds a mistake for what is nested too deep or said twice."""
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
    """The mistake of a node below MAX_DEPTH levels, if there is one. A loop: the tree may be too deep for recursion."""
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


_EXPRESSIONS = frozenset({
    Unary, Binary, Range, ListOf, Comprehension, Item, Call, ClaimProduct, ClaimSum, ClaimFunction, ClaimCollective,
})  # fmt: skip
_LEAVES = frozenset({str, int, bool, type(None), Span})
