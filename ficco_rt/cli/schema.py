"""`ficco schema`: the JSON Schemas of what commands print with --json."""

from __future__ import annotations

import json
import sys
from importlib.resources import files

from ..errors import UsageError
from .common import join_words
from .console import table


def show_schema(name: str | None) -> int:
    """Print a schema, or list them."""
    folder = files(__package__).joinpath("schemas")
    found = {
        entry.name.removesuffix(".json"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".json")
    }
    if name is None:
        rows = [(known, json.loads(text)["title"]) for known, text in found.items()]
        sys.stdout.write(table(rows, indent="") + "\n")
        return 0
    if name not in found:
        raise UsageError(f"there is no schema '{name[:40]}'; there is: {join_words(found)}")
    sys.stdout.write(found[name])
    return 0
