"""Messages for syntax errors: `explain` turns lark's exception into a place, the mistake and a way to fix it."""

from __future__ import annotations

import difflib
import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .builder import builder, not_an_accessor, not_in_a_claim
from .diagnostics import Diagnostic, Note, Span
from .grammar import ITEM_WORDS, SCAN, terminal_texts
from .verbs import TERMINALS, VERBS

if TYPE_CHECKING:
    from lark import Token
    from lark.exceptions import UnexpectedInput

_WORDS = {
    "NAME": "a name", "INT": "a number", "STRING": 'a "string"', "SMS": "a number of sms",
    "BLOCK": "a block, such as 1x128",
    "$END": "the end of the file",
}  # fmt: skip
# What is expected at a place of a rule: (nearest keyword before, expected terminal) -> words. The first match counts.
_PLACES: tuple[tuple[str, str, str], ...] = (
    *(
        (word.upper(), sign, words.format(word))
        for verb in VERBS
        for word in verb.keywords
        for sign, words in verb.signs
    ),
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
    ("SCALED", "BLOCK", "a scaling after 'scaled': tensor, row, 1x128 or 128x128"),
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
# Where a whole statement or declaration is expected: help for a token that often stands there instead.
_WHOLES: dict[str, dict[str, str]] = {
    "a statement or '}'": {
        **dict.fromkeys(map(str.upper, ITEM_WORDS), "declarations stand outside of stages"),
        "ELSE": "else follows the '}' of an if",
        "STAR": "a gemm has two operands; multiply the next in a gemm of its own",
        "DOT": "nothing follows .T in a region",
    },
    "a declaration": {
        **dict.fromkeys((*TERMINALS, "FOR"), _STATEMENTS),
        "RBRACE": "no '{' is open here",
    },
}
_UNITS_HELP = "bytes may be given in KiB, MiB or GiB"
_BEHIND_A_CLAIM = {
    "MINUS": ("a claim has no difference, found '-'", (), "claim a sum, or mark the output unproven"),
    "DOT": (
        "a claim transposes tensors alone, found '.'",
        (),
        "transpose what is gathered, and gather it along the other side: all_gather(A.T, cols)",
    ),
}
_AFTER_NUMBER = re.compile(r"[0-9][ \t]+[A-Za-z_]\w*\s*\Z")
_CLOSES = {"(": "RPAR", "[": "RSQB", "{": "RBRACE"}


def explain(error: UnexpectedInput, text: str, at: int, path: str, before: int) -> Diagnostic:
    """Explains a parse error in the terms of the language: place, mistake, and a way to fix it."""
    token: Token | None = getattr(error, "token", None)
    if token is None:
        span = Span(path, error.line + before, error.column, error.line + before, error.column + 1)
        character = text[at]
        message, help = _HELP_FOR_CHARACTER.get(character, (f"unexpected character {character!r}", None))
        return Diagnostic(span, message, help=help)
    at_end = token.type == "$END"
    if at_end:
        stop = at_end_of(text.rstrip(), path, "")
        span = replace(stop.span, line=stop.span.line + before, end_line=stop.span.end_line + before)
    else:
        span = builder.token_span(token)

    parser: Any = error.interactive_parser
    accepted: set[str] = parser.accepts()
    stack: list[Any] = parser.parser_state.value_stack
    opener = _innermost_open(text[:at])
    found = "the end of the file" if at_end else f"'{_shown(token)}'"

    # A declaration inside braces, or the end of the file: a bracket was left open
    if opener is not None and (at_end or (token.value in ITEM_WORDS and token.column == 1)):
        line, column, bracket = opener
        open_span = Span(path, line + before, column, line + before, column + 1)
        note = Note(f"{found} comes before its end", None if at_end else span)
        return Diagnostic(open_span, f"this '{bracket}' is never closed", (note,))

    if len(stack) > 1 and getattr(stack[-2], "type", "") == "DOT" and stack[-1] != "T":
        return not_an_accessor(stack[-1], builder.token_span(stack[-1]))
    if token.type == "INT" and stack and stack[-1] == "." and text[at - 2 : at - 1].isdigit():
        return Diagnostic(span, "numbers are whole: no fraction can follow the '.'")
    if token.type == "NAME" and text[at - 1 : at].isdigit():
        return Diagnostic(span, f"unknown unit '{_shown(token)}'", help=_UNITS_HELP)
    if "EQUAL" in accepted and getattr(stack[-1], "type", "") == "NAME" and _AFTER_NUMBER.search(text[:at]):
        return Diagnostic(builder.token_span(stack[-1]), f"unknown unit '{_shown(stack[-1])}'", help=_UNITS_HELP)

    begun = text[text.rfind("\n", 0, at) + 1 : at]
    if token.type in _BEHIND_A_CLAIM and {"PARAM", "STAGE"} <= accepted and begun.lstrip().startswith("computes"):
        return Diagnostic(span, *_BEHIND_A_CLAIM[token.type])
    meant = _meant(token, span, stack, accepted)
    if meant is not None:
        return meant

    terminals = terminal_texts()
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


_IN_BRACKETS = "values of one variable stand in brackets: {} p in [0, 1, 2]"


def _meant(token: Token, span: Span, stack: list[Any], accepted: set[str]) -> Diagnostic | None:
    """A mistake whose intention is plain, with the way to write it; None otherwise."""
    keyword = _keyword_before(stack)
    kind = None if keyword is None else keyword.type
    top = stack[-1] if stack else None
    if token.type in ("STREAMED", "AFTER") and kind == "STAGE" and token.type not in accepted:
        option = "streamed" if token.type == "STREAMED" else "after OTHER"
        return Diagnostic(span, f"'{token}' stands before 'with'", help=f"stage NAME on QUEUE {option} with ...")
    if token.type in ("ROWS", "COLS") and any(getattr(x, "type", "") == "COMPUTES" for x in stack):
        opened = [a for a, b in itertools.pairwise(stack) if b == "(" and getattr(a, "type", "") == "NAME"]
        if opened:  # a collective by a wrong name reads as a function
            return not_in_a_claim(opened[-1], builder.token_span(opened[-1]))
    if token.type == "NAME" and {"PARAM", "STAGE"} <= accepted:
        near = difflib.get_close_matches(token[:30], map(str.lower, TERMINALS), 1, 0.7)
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
    ends = [m.end() for m in SCAN.finditer(text, 0, at) if m[0][0] != "#"]
    if not ends or "\n" not in text[ends[-1] : at]:
        return None
    end = ends[-1]
    return text.count("\n", 0, end) + 1 + before, end - (text.rfind("\n", 0, end) + 1) + 1


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
    texts = [_WORDS.get(t) or f"'{terminal_texts()[t]}'" for t in rest]
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
    for m in SCAN.finditer(text):
        sign = m[0]
        if sign in ("(", "[", "{"):
            opened.append((m.start(), sign))
        elif sign in (")", "]", "}") and opened:
            opened.pop()
    if not opened:
        return None
    at, sign = opened[-1]
    return text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1, sign


def at_end_of(before: str, path: str, message: str, help: str | None = None) -> Diagnostic:
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    return Diagnostic(Span(path, line, column, line, column + 1), message, help=help)
