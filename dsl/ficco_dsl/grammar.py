"""Loads the grammar: lark's parser from its stored tables (grammar.json), and the words and signs of the language."""

from __future__ import annotations

import functools
import hashlib
import json
import os.path
import re
from typing import TYPE_CHECKING, Any, cast

from .builder import builder

if TYPE_CHECKING:
    from lark import Lark, Token

SCAN = re.compile(r"#[^\n]*|\"[^\"\n]*\"|\w+|[^\w\s]")
ITEM_WORDS = (
    "schedule", "param", "type", "input", "output", "scratch", "computes", "queue", "kernel", "stage", "step",
)  # fmt: skip


def build_parser() -> Lark:
    """Builds the parser from its grammar. This takes 100 ms, so it is only for development and for writing
    grammar.json."""
    import lark

    return lark.Lark(_read(_GRAMMAR), parser="lalr", lexer="basic", transformer=builder)


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

    data, memo = build_parser().memo_serialize([TerminalDef, Rule])
    data["options"]["transformer"] = None
    return json.dumps({"key": _grammar_key(), "data": data, "memo": memo}, separators=(",", ":"), default=sorted) + "\n"


def write_tables() -> None:
    """Write grammar.json. To be run after every change of grammar.lark."""
    with open(_TABLES, "w", encoding="utf-8") as file:
        file.write(tables_text())


@functools.cache
def load_parser() -> Lark:
    """Loads the parser from grammar.json, or builds it from the grammar if the file was made for another grammar or
    lark."""
    import lark

    tables: dict[str, Any] = json.loads(_read(_TABLES)) if os.path.exists(_TABLES) else {}
    if tables.get("key") != _grammar_key():
        return build_parser()

    # JSON has no integer keys
    table = tables["data"]["parser"]["parser"]
    table["tokens"] = {int(number): name for number, name in table["tokens"].items()}
    table["states"] = {
        int(state): {int(token): action for token, action in actions.items()}
        for state, actions in table["states"].items()
    }
    memo = {int(number): value for number, value in tables["memo"].items()}
    load: Any = lark.Lark._load_from_dict  # lark's own way to load a standalone parser; it has no types
    return cast("Lark", load(tables["data"], memo, transformer=builder))


def tokens(text: str) -> list[Token]:
    """The words and signs of a text that parses; what lies between them is blanks and comments."""
    return list(load_parser().lex(text))


@functools.cache
def terminal_texts() -> dict[str, str]:
    """The text of every terminal that matches only one text."""
    return {t.name: t.pattern.value for t in load_parser().terminals if t.pattern.type == "str"}
