"""`ficco schema`: print the JSON Schemas of what commands print with --json, generated from the record classes."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

from ..errors import UsageError
from ..files.records import schema_of
from ..report.wording import join_words
from .console import table

# Where the record of each output stands.
_RECORDS = {
    "calibrate": "calibrate.Calibration",
    "characterise": "characterise.Losses",
    "check": "check.Checked",
    "choose": "choose.ChoiceRecord",
    "error": "messages.Failure",
    "explain": "explain.Explanation",
    "explore": "explore.Exploration",
    "list": "list.Listing",
    "machine": "machine.Told",
    "run": "result.Run",
    "shape": "shape.Shaped",
    "tune": "tune.Told",
}
NAMES = tuple(_RECORDS)


def made(name: str) -> dict[str, Any]:
    """The schema of this name."""
    module, record = _RECORDS[name].split(".")
    return schema_of(getattr(import_module(f".{module}", __package__), record))


def schema(name: str | None) -> int:
    """Print a schema, or list them."""
    if name is None:
        rows = [(known, made(known)["title"]) for known in NAMES]
        sys.stdout.write(table(rows, indent="") + "\n")
        return 0
    if name not in NAMES:
        raise UsageError(f"there is no schema '{name[:40]}'; there is: {join_words(NAMES)}")
    sys.stdout.write(json.dumps(made(name), indent=2, ensure_ascii=False) + "\n")
    return 0
