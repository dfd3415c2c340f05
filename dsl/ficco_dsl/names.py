"""Name checks (placeholder until the checks land)."""

from __future__ import annotations

from .diagnostics import Diagnostic
from .nodes import Schedule


def check(schedule: Schedule) -> list[Diagnostic]:
    """Every static mistake of a schedule, in the order of the text."""
    return []
