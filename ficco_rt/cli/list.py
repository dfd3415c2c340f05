"""`ficco list`: list the shipped schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from ..errors import UsageError
from ..files import shipped
from ..files.shipped import ShippedSchedule
from .console import Style, table
from .messages import tell


@dataclass(frozen=True, slots=True)
class Listing:
    """What `ficco list --json` prints."""

    schedules: tuple[ShippedSchedule, ...]


def list(operation: str | None, as_json: bool) -> int:
    """The shipped schedules, by operation, or those of one."""
    entries = shipped.entries()
    if operation is not None:
        known = dict.fromkeys(_folder(e.name) for e in entries)
        if operation not in known:
            raise UsageError(f"there is no operation '{operation[:80]}'; there are {', '.join(known)}")
        entries = tuple(e for e in entries if _folder(e.name) == operation)
    return tell(as_json, lambda: Listing(entries), lambda style: _text(entries, style))


def _text(entries: Sequence[ShippedSchedule], style: Style) -> str:
    groups = []
    for operation, members in groupby(entries, key=lambda e: _folder(e.name)):
        rows = [row for e in members for row in ((e.name, e.title), ("", style(e.right, "dim")))]
        groups.append(style(operation or "others", "bold") + "\n" + table(rows))
    return "\n\n".join(groups) + "\n" if groups else f"no schedules in {shipped.root()}\n"


def _folder(name: str) -> str:
    """`ag_gemm` of `ag_gemm/serial`."""
    return name.rpartition("/")[0]
