"""`ficco-run`: compile, run and verify a schedule, and report its correctness and speed."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from ..driver.api import GPUS, DriverName
from ..errors import UsageError
from ..files.atomic import PAGE, PICTURE, TRACE, check_outputs, write_atomic
from ..report.account_words import times_of
from ..report.job import Job, compile_job
from ..report.request import Request, Source, machine_at_hand, machine_of, of_stdin, read, read_stdin
from .choose import chosen, default_of, is_operation, settings_of
from .console import Progress, Style
from .intermediate import emit, refuse_device_plan_options
from .job_runs import modelled_run, real_runs
from .messages import error_text, print_json, say, warn
from .options import Options
from .result import Result, record, report

if TYPE_CHECKING:
    from ..process.group import Group
    from ..select.choose import Choice

BACKENDS = ("auto", *GPUS, "host", "sim")
SKETCHED = 16  # the most streams that are sketched under a report


def run(options: Options, group: Group | None = None) -> int:
    """The whole command; 4 if the numbers are wrong. `group`: the processes that run the plan together; the first of
    them reports."""
    reports = group is None or group.rank == 0
    processes = 1 if group is None else group.size
    options, choice = _named(options, processes)
    if options.emit:
        return emit(options) if reports else 0
    refuse_device_plan_options(options)
    if options.backend not in BACKENDS:
        raise UsageError(
            f"there is no backend '{options.backend}' in this version; there is: auto, "
            "cuda (NVIDIA GPUs), hip (AMD GPUs), host (numpy on this machine's CPU, times modelled for --machine), "
            "sim (modelled times alone, any size)"
        )
    if options.backend == "sim" and (options.iters is not None or options.warmup):
        raise UsageError("--iters and --warmup repeat a run, and sim runs nothing: its times are the same every time")
    if options.exact and (options.no_verify or options.backend == "sim"):
        other = "--no-verify compares nothing" if options.no_verify else "sim runs nothing"
        raise UsageError(f"--exact says on what a run is verified, and {other}")
    if options.backend == "sim" and options.order is not None:
        raise UsageError("--order is how the host backend steps, and sim runs nothing: its times know no order")
    _order(options.order)  # before the long work; only the plan can say whether the stream exists
    source = _source(options.target, group)
    check_outputs([(TRACE, options.trace), (PICTURE, options.timeline), (PAGE, options.report)], [source.file])
    progress = Progress(None if reports else sys.stdout)
    request = Request(source, options.gpus, options.settings, options.machine, options.trust)
    backend = _backend_of(options)
    found = machine_at_hand(backend, options.ranks_per_gpu, processes, options.node)
    if found is not None and not (request.source.is_plan and request.gpus is None):
        found(request.gpus)  # report a missing GPU, or too few, before anything is compiled
    job = replace(compile_job(request, progress.step, found), choice=choice)
    order = _order(options.order, job)
    if reports:
        warn(job.warnings, job.texts)
    if backend == "sim":
        result = modelled_run(job, options.seed, progress)
    else:
        result = real_runs(job, options, backend, order or "fifo", progress, group)
    if not reports:
        return 4 if result.error else 0
    result = write_outputs(result, options, progress)
    if options.as_json:
        print_json(record(result))
    else:
        _tell(result, options)
    if result.error is None:
        return 0
    if not options.as_json:
        say(error_text(result.error, "ficco-run"))
    return 4


def _source(target: str, group: Group | None) -> Source:
    """The target as read. Standard input of several processes is process 0's: launchers give it to no other."""
    if group is None or target != "-":
        return read(target)
    return of_stdin(group.exchange(read_stdin() if group.rank == 0 else b"", None, "standard input")[0])


def _named(options: Options, processes: int) -> tuple[Options, Choice | None]:
    """Replace an operation by the schedule chosen for it, with the values of its params and, on GPUs, the mode of the
    choice."""
    if not is_operation(options.target):
        if options.by is not None:
            raise UsageError(f"--by says what chooses for an operation, such as ag_gemm; {options.target} is none")
        return options, None
    from ..driver.registry import has_gemms

    backend = "sim" if options.emit else _backend_of(options)
    found = machine_at_hand(backend, options.ranks_per_gpu, processes, options.node)
    machine = machine_of(options.machine, options.gpus) if found is None else found(options.gpus)
    each = options.ranks_per_gpu
    by = options.by or default_of(options.target, options.settings, machine)
    library, timer = backend not in GPUS or has_gemms(backend), None
    if backend in GPUS and processes == 1:  # others may measure otherwise
        from ..calibrate.alone import times

        timer = partial(times, driver=backend)
    choice = chosen(options.target, options.settings, machine, by, ranks_per_gpu=each, vendor=library, timer=timer)
    graph = choice.mode == "graph" if options.graph is None and backend in GPUS else options.graph
    settings = settings_of(choice, options.settings)
    return replace(options, target=choice.schedule, gpus=machine.ranks, settings=settings, graph=graph), choice


def _backend_of(options: Options) -> DriverName | Literal["sim"]:
    """The backend to use. `auto` means that of the GPUs, if there are any and no option asks for the host."""
    backend = options.backend
    asked = {
        "--graph": options.graph,
        "--ranks-per-gpu": options.ranks_per_gpu != 1,
        "--node": options.node,
        "--collectives": options.collectives == "library",
    }
    for_gpus = next((name for name, given in asked.items() if given), "")
    if backend == "auto":
        from ..driver.registry import first_gpus

        hosts = options.order is not None or options.machine is not None
        backend = "cuda" if for_gpus else "host"
        if for_gpus or not hosts:
            backend = first_gpus() or backend
    if backend in GPUS:
        if options.order is not None:
            raise UsageError("--order steps the host backend; GPUs run in the order that the plan leaves them")
        return backend
    if for_gpus:
        raise UsageError(f"{for_gpus} is for GPUs: --backend cuda, or hip")
    return "sim" if backend == "sim" else "host"


def _order(text: str | None, job: Job | None = None) -> str | None:
    """`--order` as the driver takes it. With a job, a stream named there must be one of the job's plan."""
    if text is None:
        return None
    from ..driver.host.order import host_order, order_form

    try:
        return order_form(text) if job is None else host_order(text, job.plan)
    except UsageError as error:
        raise UsageError(f"--{error}") from error


def _tell(result: Result, options: Options) -> None:
    style = Style(sys.stdout)
    sys.stdout.write(report(result, style) + sketched(result, style))
    for path in (options.trace, options.timeline, options.report):
        if path:
            sys.stdout.write(f"wrote {path}\n")


def sketched(result: Result, style: Style) -> str:
    """A sketch of the run, to stand under its report; empty where it has too many streams."""
    if len(result.trace.lanes) > SKETCHED or not result.trace.spans:
        return ""
    from .timeline import sketch

    return "\n" + sketch(result.trace, style)


# ---------------------------------------------------------------- files that options name


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
    """A measured result with what the model says of the same plan."""
    from ..compiler import compilation
    from ..exec.ideal import ideal
    from ..sim.simulate import simulate

    plan, machine = result.job.plan, result.job.machine
    with progress.step("modelling the run"), compilation(plan.ranks):
        trace = simulate(plan, machine, "graph" if result.graph else "streams")
    return replace(result, modelled=times_of(trace, plan, machine, ideal(plan, machine)))
