"""Measured times beside modelled ones: read from what `python -m tools.bench --json` writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import UsageError
from ..files import read_text
from .scenarios import Settings, read_value
from .summary import Pair
from .table import Row

MODES = ("streams", "graph")  # the virtual clock's mode first
_What: TypeAlias = tuple[str, int, Settings, str, Settings]  # operation, ranks, sizes, schedule, params


def load(path: Path | str) -> dict[_What, float]:
    """Median microseconds of single runs by candidate; of its modes, streams if it was measured there. Raises
    UsageError."""
    text = read_text(path)
    try:
        data = json.loads(text)
        ranks = int(data["settings"]["ranks"])
        found: dict[_What, float] = {}
        for row in data["rows"]:
            for key, entry in row["contestants"].items():
                figure = entry.get("single") or {}
                time = figure.get("median") or entry.get("screened")
                if entry["side"] == "ours" and time:
                    _take(found, row, ranks, key, float(time))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: is no report of `python -m tools.bench --json`: {error!r}") from error
    return found


def _take(found: dict[_What, float], row: Mapping[str, Any], ranks: int, key: str, time: float) -> None:
    name, *words = key.split()
    params = sorted((n, _value(v)) for n, _, v in (word.partition("=") for word in words if "=" in word))
    sizes = tuple((n, int(row[n])) for n in ("K", "M", "N"))
    what = (str(row["operation"]), ranks, sizes, f"{row['operation']}/{name}", tuple(params))
    if what not in found or MODES[0] in words:
        found[what] = time


def _value(text: str) -> Any:
    """`4`, or `1:1:1:1` for a list."""
    return tuple(int(part) for part in text.split(":")) if ":" in text else read_value(text)


def pairs(rows: Iterable[Row], measured: Mapping[_What, float]) -> tuple[Pair, ...]:
    """The rows of which there is a measured time. Of the sizes M, N and K count."""
    found = []
    for row in rows:
        sizes = tuple(sorted((n, v) for n, v in row.sizes if n in ("M", "N", "K")))
        time = measured.get((row.operation, row.ranks, sizes, row.schedule, tuple(sorted(row.params))))
        if time is not None and row.time is not None:
            found.append(Pair(row, time))
    return tuple(found)
