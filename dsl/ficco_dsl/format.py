"""Formats `.ficco` text: one fixed layout, made from the tokens as gofmt does.

The author's line breaks, comments and blank lines (at most one in a row) are kept. The formatter decides the
indentation, the spaces within a line, and the alignment of tensors, queues and trailing comments. Apart from line
breaks, the result does not depend on the whitespace of the input, so formatting twice changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .grammar import ITEM_WORDS, tokens
from .parser import parse_syntax
from .verbs import COLLECTIVES, TERMINALS

if TYPE_CHECKING:
    from lark import Token

_INDENT = 2  # of a block
_CONTINUATION = 4  # of a line that goes on with what the line before began
_WIDEST = 100  # longer lines and cells are in no column

_DECLARATIONS = frozenset(map(str.upper, ITEM_WORDS))
_STATEMENTS = frozenset({"STAGE", "STEP", *TERMINALS, "LET", "FOR", "IF", "ELSE"})
_TENSORS = frozenset({"INPUT", "OUTPUT", "SCRATCH"})
_OPENERS = frozenset({"LPAR", "LSQB", "LBRACE"})
_CLOSERS = frozenset({"RPAR", "RSQB", "RBRACE"})
_OPERAND_ENDS = frozenset({"NAME", "INT", "STRING", "RPAR", "RSQB"})
# `(` follows these without a space; `[` follows a name or a bracket
_CALLED = frozenset({"NAME", "ROWS", "COLS", *map(str.upper, COLLECTIVES)})
# a NAME with `=` behind it is an attribute, if one of these stands before: another's value
_VALUE_ENDS = _OPERAND_ENDS | {"COPY", "SMS"}


def format_text(text: str, path: str) -> str:
    """`text` in the fixed layout; the result ends with one newline.

    Raises ScheduleError for mistakes of syntax, as `parse` does; names are not checked.

    >>> format_text("schedule s stage a on q{copy G@p<-A}", "s.ficco")
    'schedule s stage a on q { copy G @ p <- A }\\n'
    """
    parse_syntax(text, path)
    lines = _lines(text)
    _lay_out(lines)
    _align_cells(lines)
    _align_comments(lines)
    out = []
    for line in lines:
        if line.blank_before:
            out.append("")
        out.append(line.text())
    return "\n".join(out) + "\n"


@dataclass(slots=True)
class _Line:
    """A line of the input, then of the output."""

    tokens: list[Token]
    comment: str | None
    blank_before: bool
    indent: int = 0
    cells: list[str] = field(default_factory=list)  # the text of the tokens, broken where columns may align
    columns: str | None = None  # neighbours with the same word here align their cells
    comment_at: int = 0

    def code(self) -> str:
        return " " * self.indent + "".join(self.cells) if self.cells else ""

    def text(self) -> str:
        if self.comment is None:
            return self.code()
        if not self.cells:
            return " " * self.indent + self.comment
        return self.code().ljust(self.comment_at) + self.comment


def _lines(text: str) -> list[_Line]:
    """The tokens and comments by line, blank lines as marks on the line after them."""
    lines: list[_Line] = []
    current: list[Token] = []
    blank = False
    end = 0

    def close(comment: str | None) -> None:
        nonlocal current, blank
        if current or comment is not None:
            lines.append(_Line(current, comment, blank and bool(lines)))
            blank = False
        else:
            blank = True
        current = []

    for token in [*tokens(text), None]:
        start = len(text) if token is None else token.start_pos
        assert start is not None
        for piece in text[end:start].split("\n")[:-1]:
            close(piece.strip() or None)
        if token is not None:
            current.append(token)
            assert token.end_pos is not None
            end = token.end_pos
        else:
            close(text[end:].rpartition("\n")[2].strip() or None)  # a last line without a newline
    for before, after in itertools.pairwise(lines):
        opens = before.tokens and before.tokens[-1].type in _OPENERS
        closes = after.tokens and after.tokens[0].type in _CLOSERS
        if opens or closes:
            after.blank_before = False
    return lines


@dataclass(slots=True)
class _Open:
    """A bracket that is open: its kind, and the indentation of what opened it."""

    kind: str
    indent: int
    attributes: bool  # the braces of a queue or kernel


def _lay_out(lines: list[_Line]) -> None:
    """Set the indentation and the cells of every line."""
    stack: list[_Open] = []
    base = 0  # the indentation of the declaration or statement at hand
    opened_by = ""  # the keyword of the declaration at hand
    last: Token | None = None  # of the lines above
    for line in lines:
        inside = stack[-1].indent + _INDENT if stack else 0
        if not line.tokens:
            line.indent = inside
            continue
        first = line.tokens[0]
        if first.type in _CLOSERS:
            closing = 0
            while closing < len(line.tokens) and line.tokens[closing].type in _CLOSERS:
                closing += 1
            line.indent = stack[-closing].indent
            if first.type == "RBRACE":
                base = line.indent
        elif first.type == "LBRACE":
            line.indent = base
        elif stack and stack[-1].kind != "LBRACE":
            line.indent = inside
        elif _begins(first, stack, last):
            line.indent = base = inside
        else:
            line.indent = base + _CONTINUATION

        starts: list[str] = []
        text = ""
        for i, token in enumerate(line.tokens):
            previous = line.tokens[i - 1] if i else None
            before = line.tokens[i - 2] if i > 1 else last
            following = line.tokens[i + 1] if i + 1 < len(line.tokens) else None
            is_colon_of_tensor = token.type == "COLON" and not stack
            if previous is not None:
                space = _space(previous, token, following, stack, before)
                is_cell = (
                    is_colon_of_tensor
                    or (token.type == "NAME" and previous.type in _TENSORS)
                    or (opened_by == "QUEUE" and (token.type == "LBRACE" or len(space) == 2))
                )
                if is_cell:
                    line.cells.append(text + space)
                    text = ""
                else:
                    text += space
            if not stack and token.type in _DECLARATIONS:
                opened_by = token.type
                starts.append(token.type)
            text += _written(token)
            if token.type in _OPENERS:
                is_block = token.type == "LBRACE"
                indent = base if is_block else line.indent
                stack.append(_Open(token.type, indent, is_block and opened_by in ("QUEUE", "KERNEL")))
            elif token.type in _CLOSERS:
                stack.pop()
        line.cells.append(text)
        last = line.tokens[-1]
        if len(starts) == 1 and first.type == starts[0] and not stack:
            line.columns = "tensor" if first.type in _TENSORS else "queue" if first.type == "QUEUE" else None


def _begins(token: Token, stack: list[_Open], before: Token | None) -> bool:
    """Whether a line that begins with `token` begins a declaration, a statement or an attribute."""
    if before is not None and before.type in ("EQUAL", "COMMA"):
        return bool(stack) and stack[-1].attributes and before.type == "COMMA"
    if not stack:
        return token.type in _DECLARATIONS
    return (stack[-1].attributes and token.type == "NAME") or token.type in _STATEMENTS


def _space(a: Token, b: Token, after: Token | None, stack: list[_Open], before: Token | None) -> str:
    """The blanks between neighbours `a` and `b` of a line."""
    left, right = a.type, b.type
    if left in ("LPAR", "LSQB", "DOT", "DOT_DOT") or right in ("RPAR", "RSQB", "COMMA", "DOT", "DOT_DOT"):
        return ""
    in_subscript = bool(stack) and stack[-1].kind == "LSQB"
    if in_subscript and ((right == "COLON" and left != "COMMA") or left == "COLON"):
        return ""
    if left == "MINUS" and (before is None or before.type not in _OPERAND_ENDS):
        return ""
    if right == "LPAR":
        return "" if left in _CALLED else " "
    if right == "LSQB":
        return "" if left in ("NAME", "RPAR", "RSQB") else " "
    is_attribute = right == "NAME" and after is not None and after.type == "EQUAL"
    return "  " if is_attribute and left in _VALUE_ENDS else " "


def _written(token: Token) -> str:
    """A token's text: its own, but one blank before a unit."""
    text = str(token)
    if token.type == "SMS":
        return " ".join(text.split())
    if token.type == "INT" and text.endswith("B"):
        return f"{text[:-3].rstrip()} {text[-3:]}"
    return text


def _align_cells(lines: list[_Line]) -> None:
    """Give the cells of neighbouring tensors, and of neighbouring queues, common widths."""
    for group in _runs(lines, lambda a, b: a.columns is not None and a.columns == b.columns):
        if group[0].columns is None:
            continue
        for column in range(max(len(line.cells) for line in group) - 1):
            fitting = [x for x in group if len(x.cells) > column + 1 and len(x.cells[column]) <= _WIDEST]
            width = max((len(line.cells[column]) for line in fitting), default=0)
            for line in fitting:
                line.cells[column] = line.cells[column].ljust(width)


def _align_comments(lines: list[_Line]) -> None:
    """Put the trailing comments of neighbouring lines into one column.

    Between declarations a line without a comment may lie between; inside a block it ends the column.
    """

    def together(a: _Line, b: _Line) -> bool:
        if not a.tokens or not b.tokens or a.indent != b.indent:
            return False
        return a.indent == 0 or (a.comment is not None and b.comment is not None)

    for group in _runs(lines, together):
        commented = [line for line in group if line.tokens and line.comment is not None]
        widths = [len(line.code()) for line in commented]
        width = max((w for w in widths if w <= _WIDEST), default=0)
        for line, own in zip(commented, widths, strict=True):
            line.comment_at = max(width, own) + 2


def _runs(lines: list[_Line], together: Callable[[_Line, _Line], bool]) -> list[list[_Line]]:
    """The lines in runs without blank lines, in which all neighbours belong together."""
    runs: list[list[_Line]] = []
    for line in lines:
        if runs and not line.blank_before and together(runs[-1][-1], line):
            runs[-1].append(line)
        else:
            runs.append([line])
    return runs
