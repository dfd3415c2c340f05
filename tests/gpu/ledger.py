"""The ledger: of each machine the latest whole run of the tests of this folder, a line of a page's table."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from ficco_rt.files.atomic import write_atomic
from tests.gpu.apart import ROOT
from tests.gpu.here import Here

HEAD = (
    "| date | commit | machine | driver | passed | failed | skipped | seconds |",
    "|---|---|---|---|--:|--:|--:|--:|",
)


def machine_of(here: Here) -> str:
    return f"{here.gpus} × {here.device}"


def entry(here: Here, counts: Mapping[str, int], seconds: float) -> str:
    """The line of a run."""
    numbers = [str(counts.get(name, 0)) for name in ("passed", "failed", "skipped")]
    cells = [date.today().isoformat(), commit(), machine_of(here), here.driver, *numbers, f"{seconds:.0f}"]
    return f"| {' | '.join(cells)} |"


def commit() -> str:
    """Of this checkout; `-dirty` if files have changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=8", "--match", ""]
    try:
        told = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False
        )
    except OSError:
        return "unknown"
    return told.stdout.strip() or "unknown"


def merged(page: str, line: str) -> str:
    """The page with this line in the place of the machine's own, or below the others, or with a table at its end."""
    lines = page.rstrip("\n").split("\n") if page.strip() else []
    if HEAD[1] not in lines:
        lines += ["", *HEAD] if lines else [*HEAD]
    begin = lines.index(HEAD[1]) + 1
    end = next((i for i in range(begin, len(lines)) if not lines[i].startswith("|")), len(lines))
    rows = [row for row in lines[begin:end] if _machine(row) != _machine(line)]
    return "\n".join([*lines[:begin], *sorted([*rows, line], key=_machine), *lines[end:]]) + "\n"


def write(path: Path, line: str) -> None:
    """Who reads the page sees it before or after."""
    write_atomic(path, merged(path.read_text(encoding="utf-8") if path.exists() else "", line))


def _machine(row: str) -> str:
    return re.split(r"\s*\|\s*", row)[3]
