"""docs/glossary.md: few words, each stands once, and the classes that it names are there."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROWS = re.findall(
    r"^\| (?!---|word )(.+?) \| (.+?) \|$", (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE
)
MOST = 40  # entries: a term that the field has needs none


def names() -> set[str]:
    """Classes and aliases of the two packages."""
    found = set()
    for path in (*(ROOT / "ficco_rt").rglob("*.py"), *(ROOT / "dsl").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
    return found


def test_each_word_stands_once() -> None:
    words = Counter(word for row, _ in ROWS for word in row.split(", "))
    assert 0 < len(ROWS) <= MOST
    assert [word for word, count in words.items() if count > 1] == []


def test_the_classes_are_there() -> None:
    named = {name.split(".")[-1] for _, text in ROWS for name in re.findall(r"`([\w.]*[A-Z]\w+)`", text)}
    assert len(named) > 15
    assert named - names() == set()
