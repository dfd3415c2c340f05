"""`ficco list`."""

from __future__ import annotations

import sys
from itertools import groupby

from ..errors import UsageError
from .console import Style, table
from .messages import print_json


def list(operation: str | None, as_json: bool) -> int:
    """The shipped schedules, by operation, or those of one."""
    from ..files import shipped

    entries = shipped.entries()
    if operation is not None:
        known = dict.fromkeys(_folder(e.name) for e in entries)
        if operation not in known:
            raise UsageError(f"there is no operation '{operation[:80]}'; there are {', '.join(known)}")
        entries = tuple(e for e in entries if _folder(e.name) == operation)
    if as_json:
        records = [{"name": e.name, "title": e.title, "right": e.right, "path": str(e.path)} for e in entries]
        print_json({"schedules": records})
        return 0
    style = Style(sys.stdout)
    if not entries:
        sys.stdout.write(f"no schedules in {shipped.root()}\n")
    groups = []
    for operation, members in groupby(entries, key=lambda e: _folder(e.name)):
        rows = [row for e in members for row in ((e.name, e.title), ("", style(e.right, "dim")))]
        groups.append(style(operation or "others", "bold") + "\n" + table(rows))
    sys.stdout.write("\n\n".join(groups) + "\n" if groups else "")
    return 0


def _folder(name: str) -> str:
    """`ag_gemm` of `ag_gemm/serial`."""
    return name.rpartition("/")[0]
