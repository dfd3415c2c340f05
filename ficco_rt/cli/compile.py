"""`ficco compile`: write the plan of a schedule as JSON."""

from __future__ import annotations

import sys
from pathlib import Path

from ..files.atomic import PLAN, check_outputs, write_atomic
from ..report.job import compile_job, given_words, operations, proof_words
from ..report.request import Request
from ..report.wording import count
from .console import Progress
from .messages import warn


def compile(target: str, gpus: int | None, settings: tuple[str, ...], machine: str | None, output: str | None) -> int:
    """Write the plan as JSON to a file or to standard output."""
    request = Request.of(target, gpus, settings, machine, " already; 'ficco check' checks it, 'ficco-run' runs it")
    check_outputs([(PLAN, output)], [request.source.file])
    progress = Progress()
    job = compile_job(request, progress.step)
    from ..compiler import stored
    from ..plan.codec import content_hash

    with progress.step("writing the plan"):
        text = stored(job.plan, Path(output or "").parent)
    warn(job.warnings, job.texts)
    if output is None:
        sys.stdout.write(text)
        return 0
    write_atomic(output, text)
    plan = job.plan
    sys.stdout.write(
        f"{output}: {plan.schedule} for {count(plan.ranks, 'GPU')} of {plan.machine}, {proof_words(job)}, "
        f"{count(operations(plan), 'operation')}, hash {content_hash(plan)}\n"
        + "".join(f"  {words}\n" for words in given_words(job))
    )
    return 0
