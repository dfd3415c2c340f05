"""What MkDocs does to a page of docs/ before it is rendered: `mkdocs.yml` names this file.

The first line of a code block may carry words for the tests, such as `ficco in=file`. The site gets the language alone.
"""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page, with nothing but the language on the first line of each code block."""
    return re.sub(r"^( *```\w+) [^\n`]+$", r"\1", markdown, flags=re.MULTILINE)
