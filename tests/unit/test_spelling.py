"""Words of the pages are spelled right, as far as a small list can tell.

A word counts as known if the pages or the sources have it elsewhere, too. Every other word stands in `words.txt`. So a
slip of the pen shows, and a new rare word costs a line there: `pytest tests/unit/test_spelling.py --update-golden`
writes the list, and its diff is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.unit import pages
from tests.unit.pages import ROOT

LIST = Path(__file__).with_name("words.txt")
NO_WORDS = re.compile(r"`[^`]*`|\]\([^)]*\)|https?://\S+|<!--.*?-->|<[^>]+>", re.DOTALL)


def words(page: str) -> list[str]:
    """Words of a page outside of code and addresses. Names with inner capitals, digits or marks are no words."""
    return re.findall(r"(?<![\w'’])[A-Za-z][a-z]+(?![\w'’])", NO_WORDS.sub(" ", pages.prose(page)))


def rare(texts: Iterable[str]) -> set[str]:
    """Words that the texts have once, and the sources never."""
    said = Counter(word.lower() for text in texts for word in words(text))
    sources = (path for folder in ("ficco_rt", "dsl", "tools") for path in (ROOT / folder).rglob("*.py"))
    in_sources = {word for path in sources for word in re.findall(r"[a-z]+", path.read_text(encoding="utf-8").lower())}
    return {word for word, times in said.items() if times == 1 and word not in in_sources}


def test_rare_words_are_known(update_golden: bool) -> None:
    texts = [page.read_text(encoding="utf-8") for page in (*pages.PAGES, *pages.OTHERS)]
    if update_golden:
        LIST.write_text("\n".join(sorted(rare(texts))) + "\n", encoding="utf-8")
    known = set(LIST.read_text(encoding="utf-8").split())
    assert rare(texts) - known == set(), "spelled wrongly, or a rare word that tests/unit/words.txt lacks"
    slips = "A Wiat is `wait_vlaue`, [lnik](adress.md) and h200-swich."
    assert rare([*texts, slips]) - known == {"wiat", "lnik", "swich"}
