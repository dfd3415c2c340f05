"""`ficco compile`."""

from __future__ import annotations

import sys

from ..errors import UsageError
from .check import operations, proof_words
from .common import Request, compile_job, count, is_plan
from .console import Progress
from .files import check_target, write_atomic
from .report import warn


def compile_plan(
    target: str, gpus: int | None, settings: tuple[str, ...], machine: str | None, output: str | None
) -> int:
    """Write the plan as JSON to a file or to standard output."""
    if is_plan(target):
        raise UsageError(f"{target}: is a plan already; 'ficco check' checks it, 'ficco-run' runs it")
    if output:
        check_target(output)
    progress = Progress()
    job = compile_job(Request(target, gpus, settings, machine), progress)
    from ..plan.codec import content_hash, to_json

    with progress.step("writing the plan"):
        text = to_json(job.plan)
    warn(job.warnings)
    if output is None:
        sys.stdout.write(text)
        return 0
    write_atomic(output, text)
    plan = job.plan
    sys.stdout.write(
        f"{output}: {plan.schedule} for {count(plan.ranks, 'GPU')} of {plan.machine}, {proof_words(plan)}, "
        f"{count(operations(plan), 'operation')}, hash {content_hash(plan)}\n"
    )
    return 0
