"""What the project weighs, and may weigh: `.ci/budget.toml`.

python -m tests.weight    # a line for each number; exit code 1 if one is over its budget
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGET: dict[str, dict[str, int]] = tomllib.loads((ROOT / ".ci" / "budget.toml").read_text(encoding="utf-8"))
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """Lines that hold code: no blank lines, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, HAVE_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            doc = node.body[0]
            lines.difference_update(range(doc.lineno, (doc.end_lineno or doc.lineno) + 1))
    return len(lines)


def weights() -> Iterator[tuple[str, str, int]]:
    """Of each number of the budget its table, its name, and what it is now."""
    for folder in ("ficco_rt", "tools"):
        texts = [path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py")]
        yield "code", folder, sum(map(code_lines, texts))
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    yield "docs", "words", sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!---|word )", glossary, re.MULTILINE)
    yield "docs", "glossary", len(rows)
    yield "layout", "top", len([path for path in (ROOT / "ficco_rt").glob("*.py") if path.name != "__init__.py"])


def over(part: str, name: str, found: int) -> str:
    """What is wrong, if the budget is not kept."""
    most = BUDGET[part][name]
    return "" if found <= most else f"{name}: {found}, and .ci/budget.toml allows {most}"


if __name__ == "__main__":
    for part, name, found in weights():
        print(f"{name}: {found} of {BUDGET[part][name]}")
    sys.exit(any(over(*weight) for weight in weights()))
