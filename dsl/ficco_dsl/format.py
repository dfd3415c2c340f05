"""The formatter (lands after the parser)."""

from __future__ import annotations


def format_text(text: str, path: str) -> str:
    """`text` in the one layout."""
    raise NotImplementedError
