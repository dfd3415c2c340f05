"""Compares measured with modelled times. Reads what `python -m tools.bench --json` stores."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import UsageError
from ..files.atomic import read_text
from .scenarios import Settings, frozen
from .summary import Pair
from .table import Row

_What: TypeAlias = tuple[str, int, Settings, str, Settings]  # operation, ranks, sizes, schedule, params
_SIZES = ("K", "M", "N")
_LAYOUT = ("transb", 1)  # of the weight, where it is not the usual one


def load(path: Path | str) -> dict[_What, float]:
    """Median microseconds of single runs by trial. Of several rows of one, those on streams come first, as the
    virtual clock has them, then those of rounds, then those on as many GPUs as ranks. Raises UsageError."""
    text = read_text(path)
    try:
        rows = [row for row in json.loads(text)["rows"] if "/" in row["schedule"] and row.get("single")]
        found: dict[_What, float] = {}
        for row in sorted(rows, key=_rank):
            time = row["single"]["median"] if isinstance(row["single"], dict) else row["single"]
            params = tuple(sorted((str(name), frozen(value)) for name, value in row["params"].items()))
            sizes = tuple((name, int(row[name])) for name in _SIZES) + ((_LAYOUT,) if row.get("transb") else ())
            what = str(row["operation"]), int(row["ranks"]), sizes, str(row["schedule"]), params
            found.setdefault(what, float(time))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path}: holds no measurements as `python -m tools.bench --json` keeps them") from error
    return found


def _rank(row: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    return row["mode"] != "streams", bool(row.get("screening")), bool(row.get("on_two"))


def pairs(rows: Iterable[Row], measured: Mapping[_What, float]) -> tuple[Pair, ...]:
    """The rows of which there is a measured time. Of the sizes M, N and K count, and how the weight is stored."""
    found = []
    for row in rows:
        sizes = tuple(sorted((n, v) for n, v in row.sizes if n in _SIZES or (n, v) == _LAYOUT))
        time = measured.get((row.operation, row.ranks, sizes, row.schedule, tuple(sorted(row.params))))
        if time is not None and row.time is not None:
            found.append(Pair(row, time))
    return tuple(found)
