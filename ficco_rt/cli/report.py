"""`ficco report`: write a report page on finished runs."""

from __future__ import annotations

import sys

from ..files.atomic import PAGE, check_outputs, write_atomic
from ..report.wording import count
from .page.page_run import read_run
from .page.write import page


def report(runs: tuple[str, ...], output: str) -> int:
    """Write the page of the runs that files tell of."""
    check_outputs([(PAGE, output)], runs)
    found = [read_run(path) for path in runs]
    write_atomic(output, page(found))
    names = ", ".join(dict.fromkeys(run.schedule for run in found))
    sys.stdout.write(f"{output}: {count(len(found), 'run')} of {names}\n")
    return 0
