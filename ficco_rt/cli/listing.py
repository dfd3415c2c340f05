"""`ficco list`."""

from __future__ import annotations

import sys
from itertools import groupby

from .console import Style, table
from .report import print_json


def list_library(as_json: bool) -> int:
    """The shipped schedules, by operation."""
    from .. import library

    entries = library.entries()
    if as_json:
        records = [{"name": e.name, "title": e.title, "right": e.right, "path": str(e.path)} for e in entries]
        print_json({"schedules": records})
        return 0
    style = Style(sys.stdout)
    if not entries:
        sys.stdout.write(f"no schedules in {library.root()}\n")
    groups = []
    for operation, members in groupby(entries, key=lambda e: e.name.rpartition("/")[0]):
        rows = [row for e in members for row in ((e.name, e.title), ("", style(e.right, "dim")))]
        groups.append(style(operation or "others", "bold") + "\n" + table(rows))
    sys.stdout.write("\n\n".join(groups) + "\n" if groups else "")
    return 0
