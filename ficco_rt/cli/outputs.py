"""Writes the files that the options of a run name: its trace, its picture, its report page."""

from __future__ import annotations

from dataclasses import replace

from ..files.atomic import write_atomic
from .console import Progress
from .options import Options
from .result import Result, record


def write_outputs(result: Result, options: Options, progress: Progress) -> Result:
    """Write the files; the result comes back with what they needed besides: arrows, and a measured run's model."""
    if not (options.trace or options.timeline or options.report):
        return result
    from ..report.tracefile import kept, to_json

    result = with_arrows(result)
    if result.trace.clock != "virtual" and (options.trace or options.report):
        result = _with_model(result, progress)
    if options.trace:
        write_atomic(options.trace, to_json(result.trace, record(result)))
    if options.timeline:
        from .timeline import write_picture

        write_picture(result.trace, options.timeline)
    if options.report:
        from .page.page_run import of_run
        from .page.write import page

        write_atomic(options.report, page([of_run(result.job.path, record(result), kept(result.trace))]))
    return result


def with_arrows(result: Result) -> Result:
    """The result whose trace says which span waited for which."""
    from ..analysis.causes import arrows

    trace = result.trace
    return replace(result, trace=replace(trace, arrows=arrows(result.job.plan, trace)))


def _with_model(result: Result, progress: Progress) -> Result:
    """A measured result with the same plan on the virtual clock."""
    from ..compiler import compilation
    from ..sim.simulate import simulate

    job = result.job
    with progress.step("modelling the run"), compilation(job.plan.ranks):
        return replace(result, modelled=simulate(job.plan, job.machine, "graph" if result.graph else "streams"))
