"""The pages of the documentation as tests read them: links, headings, blocks, and the commands in blocks.

The first line of a block says what happens to it:

    sh            the commands run, one after another, in one folder a page; a text block right behind one is its output
    sh fails      the same, and the commands end with exit code 1; their messages count as output
    sh parsed     the command lines of ficco are read and not run: they need GPUs, or take long
    text          the whole output of the block before it
    text part     lines of it, in their order
    ficco FILE    written to that file of the folder; python FILE and toml FILE too
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
OTHERS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
OTHERS += [ROOT / "tests" / "README.md", ROOT / "editors" / "README.md"]


@dataclass(frozen=True)
class Block:
    language: str
    words: tuple[str, ...]  # behind the language
    text: str
    start: int  # of the text, in the page
    end: int
    line: int  # of the first line of the text, in the page


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page's text, in order."""
    found = []
    for m in re.finditer(r"^```(\w*)([^\n`]*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        line = page.count("\n", 0, m.start(3)) + 1
        found.append(Block(m[1], tuple(m[2].split()), m[3], m.start(3), m.end(3), line))
    return found


def prose(page: str) -> str:
    """A page's text without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)


def sentences(page: str) -> Iterator[str]:
    """Sentences of paragraphs, points of lists and cells of tables; code counts as one word. A colon or a semicolon
    ends a sentence too, for a reader may rest there."""
    text = re.sub(r"(?s:<!--.*?-->)|^#.*$", "", prose(page), flags=re.MULTILINE)
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )|\n(?=\|)", text):
        for cell in part.strip("| ").split("|") if part.lstrip().startswith("|") else [part]:
            words = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", cell))
            yield from re.split(r"(?<=[.;:!?])\s+", " ".join(words.split()))


def links(page: str) -> list[str]:
    """Targets of links and pictures that lead to files or headings."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def headings(page: str) -> list[str]:
    return re.findall(r"^#{1,6} (.+?)\s*$", prose(page), re.MULTILINE)


def anchor(heading: str) -> str:
    """What GitHub and the site make of a heading, where they agree: letters, digits, spaces and hyphens."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")


def commands(block: str) -> Iterator[list[str]]:
    """The command lines of a shell block as words; `&&` parts two, `\\` joins lines, `#` begins a comment."""
    for line in block.replace("\\\n", " ").splitlines():
        words: list[str] = []
        for word in shlex.split(line, comments=True):
            if word == "&&":
                yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words
