"""Share of the limit as bars, a group a scenario. Needs matplotlib, which is imported when a picture is asked for."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from ficco_rt.errors import UsageError

from .measure import Row
from .report import RIVALS, our_time, rival_time

COLOURS = {"nccl": "#b0b0b0", "asynctp": "#e0a458", "nccl-ce": "#7fb069", "ours": "#2660a4"}


def check_available() -> None:
    """UsageError where there is no matplotlib."""
    if find_spec("matplotlib") is None:
        raise UsageError("--svg draws with matplotlib, which is not installed: pip install matplotlib")


def shares(rows: Sequence[Row]) -> dict[str, list[float]]:
    """By contestant, limit over its time for each row; 0 where it has none. Who has none at all is left out."""
    found: dict[str, list[float]] = {}
    for kind in (*RIVALS, "ours"):
        times = [our_time(row)[1] if kind == "ours" else rival_time(row, kind) for row in rows]
        if any(times):
            found[kind] = [
                limit / time if limit and time else 0.0
                for limit, time in zip([row.limit() for row in rows], times, strict=True)
            ]
    return found


def svg(rows: Sequence[Row], title: str) -> str:
    """The picture's text."""
    matplotlib = import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "ficco"  # the same picture for the same figures
    pyplot = import_module("matplotlib.pyplot")

    bars = shares(rows)
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.0 * len(rows)), 4.2))
    breadth = 0.8 / max(1, len(bars))
    for i, (kind, values) in enumerate(bars.items()):
        at = [x + (i - (len(bars) - 1) / 2) * breadth for x in range(len(rows))]
        axes.bar(at, values, breadth, label=kind, color=COLOURS[kind])
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(rows)), [row.scenario.label for row in rows], rotation=35, ha="right")
    axes.set_ylabel("share of the limit")
    axes.set_title(title)
    axes.legend(ncols=max(1, len(bars)), loc="lower center", fontsize="small")
    figure.tight_layout()
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()
