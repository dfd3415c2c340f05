"""The editors' files know the language's words, and nothing that is none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ficco_dsl import vocabulary
from ficco_dsl.verbs import VERBS
from ficco_rt.lsp.syntax import WORDS

EDITORS = Path(__file__).parents[2] / "editors"
PAGE = Path(__file__).parents[2] / "docs" / "language.md"


def reserved() -> set[str]:
    """As the page of the language lists them."""
    text = PAGE.read_text(encoding="utf-8").split("## Reserved words", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`]*)`", text))))


def textmate() -> set[str]:
    grammar = json.loads((EDITORS / "vscode/syntaxes/ficco.tmLanguage.json").read_text())
    found: set[str] = set()
    for pattern in grammar["patterns"]:
        re.compile(pattern["match"])
        for group in re.findall(r"\(([A-Za-z_0-9|]+)\)", pattern["match"]):
            found |= set(group.split("|"))
    return found


def vim() -> set[str]:
    text = (EDITORS / "vim/syntax/ficco.vim").read_text()
    words = re.findall(r"^syntax keyword \w+ (.*)$", text, re.MULTILINE) + re.findall(r"<\(([\w|]+)\)>", text)
    return {word for line in words for word in re.split(r"[ |]", line)}


def test_all_words_are_known() -> None:
    wanted = reserved() | set(vocabulary.FUNCTIONS) | set(vocabulary.BUILTINS)
    assert wanted > set(vocabulary.DTYPES)
    wanted -= set(vocabulary.DTYPES)
    assert wanted - textmate() == set()
    assert wanted - vim() == set()


STATEMENTS = {
    "vscode/syntaxes/ficco.tmLanguage.json": (
        r'(?<="match": "\\\\b\()[a-z_|]+(?=\)\\\\b",\n      "name": "keyword.other.ficco")',
        "|",
    ),
    "vim/syntax/ficco.vim": (r"(?<=syntax keyword ficcoStatement )[a-z_ ]+", " "),
}


@pytest.mark.parametrize("file", STATEMENTS)
def test_statements_are_the_verbs(file: str, golden: Callable[[Path, str], None]) -> None:
    pattern, between = STATEMENTS[file]
    words = between.join(word for verb in VERBS for word in verb.keywords)
    wanted, count = re.subn(pattern, words, (EDITORS / file).read_text(encoding="utf-8"))
    assert count == 1
    golden(EDITORS / file, wanted)


def test_types_are_known_by_how_they_are_called() -> None:
    patterns = json.loads((EDITORS / "vscode/syntaxes/ficco.tmLanguage.json").read_text())["patterns"]
    (textmate_types,) = (p["match"] for p in patterns if p.get("name") == "storage.type.ficco")
    found = re.search(
        r'^syntax match ficcoType "\\v<(.*)>"$', (EDITORS / "vim/syntax/ficco.vim").read_text(), re.MULTILINE
    )
    assert found is not None
    for name in (*vocabulary.DTYPES, "fp8_e4m3", "fp8_e5m2"):
        assert re.fullmatch(textmate_types, name)
        assert re.fullmatch(found[1], name)
    for name in ("bf", "fp16x", "P16", "peers", "fp8_e4m3b"):
        assert not re.fullmatch(textmate_types, name)
        assert not re.fullmatch(found[1], name)


def test_both_know_the_same() -> None:
    assert textmate() ^ vim() == set()


def test_hovers_are_of_words_of_the_language() -> None:
    assert set(WORDS) - textmate() == set()


def test_the_extension_says_what_the_server_takes() -> None:
    package = json.loads((EDITORS / "vscode/package.json").read_text())
    assert set(package["contributes"]["configuration"]["properties"]) == {
        f"ficco.{name}" for name in ("command", "ranks", "set", "machine")
    }
