"""`ficco-run`: compile, run, verify, and say how right and how fast it is."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from .. import env
from ..errors import UsageError
from ..files import PICTURE, TRACE, check_outputs, write_atomic
from .baselines import UNASKED, Baselines, baseline_plans, modelled, turns_among
from .choosing import chosen, is_operation, settings_of
from .common import DEFAULT_GPUS, Job, Request, build_graph, compile_job, machine_of, read
from .console import Progress, Style, sourced
from .report import error_text, print_json, say, warn
from .result import GPUS, Result, record, report

if TYPE_CHECKING:
    from ..device.ir import Mode
    from ..exec.executor import Executor
    from ..select.choose import Choice

BACKENDS = ("auto", *GPUS, "host", "sim")
SKETCHED = 16  # the most streams that are sketched under a report


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    target: str
    gpus: int | None
    settings: tuple[str, ...]
    backend: str
    ranks_per_gpu: int
    graph: bool | None  # None: as is chosen, or on streams
    timeout: int
    machine: str | None
    order: str | None
    iters: int | None
    warmup: int
    baselines: bool
    no_verify: bool
    seed: int
    trace: str | None
    timeline: str | None
    emit: str | None
    mode: Mode | None
    ranks_per_process: int | None
    trust: bool
    by: str | None
    as_json: bool


def run(options: Options) -> int:
    """The whole command; 4 if the numbers are wrong."""
    options, choice = _named(options)
    if options.emit:
        return _emit(options)
    _of_device_plans_alone(options)
    if options.backend not in BACKENDS:
        raise UsageError(
            f"there is no backend '{options.backend}' in this version; there is: auto, "
            "cuda (NVIDIA GPUs), hip (AMD GPUs), host (numpy on this machine's CPU, times modelled for --machine), "
            "sim (modelled times alone, any size)"
        )
    if options.backend == "sim" and (options.iters is not None or options.warmup):
        raise UsageError("--iters and --warmup repeat a run, and sim runs nothing: its times are the same every time")
    if options.backend == "sim" and options.order is not None:
        raise UsageError("--order is how the host backend steps, and sim runs nothing: its times know no order")
    _order(options.order)  # before the long work; whether the stream exists the plan will say
    source = read(options.target)
    check_outputs([(TRACE, options.trace), (PICTURE, options.timeline)], [source.file])
    progress = Progress()
    request = Request(source, options.gpus, options.settings, options.machine, options.trust)
    backend = _backend_of(options)
    if backend == "cuda" or backend == "hip":
        job = _gpu_job(request, options, backend, progress)
    else:
        job = compile_job(request, progress)
    job = replace(job, choice=choice)
    order = _order(options.order, job)
    warn(job.warnings, job.texts)
    if backend == "sim":
        result = _simulate(job, options, progress)
    else:
        result = _execute(job, options, backend, order or "fifo", progress)
    if options.trace:
        from .tracefile import to_json

        write_atomic(options.trace, to_json(result.trace))
    if options.timeline:
        from .timeline import write_picture

        write_picture(result.trace, options.timeline)
    if options.as_json:
        print_json(record(result))
    else:
        _tell(result, options)
    if result.error is None:
        return 0
    if not options.as_json:
        say(error_text(result.error, "ficco-run"))
    return 4


def _named(options: Options) -> tuple[Options, Choice | None]:
    """An operation in place of a schedule: the chosen one, with the values and, on GPUs, the mode of the choice."""
    if not is_operation(options.target):
        if options.by is not None:
            raise UsageError(f"--by says what chooses for an operation, such as ag_gemm; {options.target} is none")
        return options, None
    backend, ranks = "sim" if options.emit else _backend_of(options), options.gpus or DEFAULT_GPUS
    if backend in GPUS:
        from ..driver.registry import device_count, discover

        ranks = options.gpus or max(1, device_count(backend)) * options.ranks_per_gpu
        machine = discover(backend, ranks, options.ranks_per_gpu)
    else:
        machine = machine_of(options.machine, ranks)
    each = options.ranks_per_gpu
    choice = chosen(options.target, ranks, options.settings, machine, options.by or "rules", ranks_per_gpu=each)
    graph = choice.mode == "graph" if options.graph is None and backend in GPUS else options.graph
    settings = settings_of(choice, options.settings)
    return replace(options, target=choice.schedule, gpus=ranks, settings=settings, graph=graph), choice


def _backend_of(options: Options) -> Literal["cuda", "hip", "host", "sim"]:
    """The backend that is meant: auto is that of the GPUs, where there are some and nothing else asks for the host."""
    backend = options.backend
    for_gpus = bool(options.graph) or options.ranks_per_gpu != 1
    if backend == "auto":
        from ..driver.registry import device_count

        hosts = options.order is not None or options.machine is not None
        backend = "cuda" if for_gpus else "host"
        if for_gpus or not hosts:
            backend = next((name for name in GPUS if device_count(name)), backend)
    if backend in GPUS:
        if options.order is not None:
            raise UsageError("--order steps the host backend; GPUs run in the order that the plan leaves them")
        return "hip" if backend == "hip" else "cuda"
    if for_gpus:
        name = "--graph" if options.graph else "--ranks-per-gpu"
        raise UsageError(f"{name} is for GPUs: --backend cuda, or hip")
    return "sim" if backend == "sim" else "host"


def _gpu_job(request: Request, options: Options, backend: Literal["cuda", "hip"], progress: Progress) -> Job:
    """Compiled for the GPUs at hand."""
    from ..driver.registry import device_count, discover

    if request.gpus is None and not request.source.is_plan:
        request = replace(request, gpus=max(1, device_count(backend)) * options.ranks_per_gpu)
    ranks = request.gpus
    if ranks is not None:
        discover(backend, ranks, options.ranks_per_gpu)  # no GPU, or too few: said before anything is compiled
    return compile_job(request, progress, lambda n: discover(backend, n, options.ranks_per_gpu))


def _order(text: str | None, job: Job | None = None) -> str | None:
    """`--order` in the driver's own form; with a job, a stream that it names is one of the job's plan."""
    if text is None:
        return None
    from ..exec.order import host_order, order_form

    try:
        return order_form(text) if job is None else host_order(text, job.plan)
    except UsageError as error:
        raise UsageError(f"--{error}") from error


def _of_device_plans_alone(options: Options) -> None:
    for name in ("mode", "ranks_per_process"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for --emit device-plan")


def _emit(options: Options) -> int:
    """Print an intermediate form instead of running."""
    if options.as_json:
        raise UsageError("--json describes a run and --emit does not run; --emit plan-json prints the plan as JSON")
    for name in ("order", "trace", "timeline"):
        if getattr(options, name):
            raise UsageError(f"--{name} needs a run and --emit does not run")
    if options.emit not in ("device-plan", "device-plan-json"):
        _of_device_plans_alone(options)
        if options.graph:
            raise UsageError(f"--graph needs a run or --emit device-plan; --emit {options.emit} is the same with it")
    progress = Progress()
    source = read(options.target)
    request = Request(source, options.gpus, options.settings, options.machine, options.trust)
    if options.emit == "graph":
        if source.is_plan:
            raise UsageError(f"{source.name}: a plan has no graph any more; --emit graph works on a schedule")
        from ..graph.text import to_text as graph_text

        # not proven: who wants to see the graph often wants to see why
        with sourced(source.texts):
            sys.stdout.write(graph_text(build_graph(request, progress).graph))
        return 0
    job = compile_job(request, progress)
    warn(job.warnings, job.texts)
    if options.emit == "plan":
        from ..plan.text import to_text as plan_text

        sys.stdout.write(plan_text(job.plan))
    elif options.emit == "plan-json":
        from ..compiler import stored

        sys.stdout.write(stored(job.plan, Path()))
    else:
        _emit_device_plan(job, options)
    return 0


def _emit_device_plan(job: Job, options: Options) -> None:
    """What the devices of the machine would be given, with so many ranks on each and in each process."""
    from ..compiler import compilation
    from ..device import codec, text
    from ..device.build import device_plan, layout_of
    from ..device.check import checked
    from ..device.features import here, queue_switch
    from ..device.ir import Placement
    from ..plan.codec import content_hash

    if options.ranks_per_gpu < 1:
        raise UsageError(f"--ranks-per-gpu {options.ranks_per_gpu}: at least one rank runs on a GPU")
    mode: Mode = options.mode or ("graph" if options.graph else "streams")
    if options.graph and mode != "graph":
        raise UsageError(f"--graph is --mode graph; given --mode {mode}")
    device, each = job.machine.device, options.ranks_per_process
    if each is not None and each % options.ranks_per_gpu:
        raise UsageError(
            f"--ranks-per-process {each}: a GPU with {options.ranks_per_gpu} ranks belongs to one process; "
            f"take a multiple of {options.ranks_per_gpu}"
        )
    ranks = range(job.plan.ranks)
    placement = Placement(
        tuple(rank // options.ranks_per_gpu for rank in ranks), tuple(rank // each for rank in ranks) if each else ()
    )
    switch = env.others(queue_switch(device.arch).name)
    with compilation(job.plan.ranks):
        layout = layout_of(job.plan, device, placement, here(device.arch, switch), content_hash(job.plan))
        if mode == "embedded" and not layout.features.embeds:
            raise UsageError(f"--mode embedded: the driver of {device.name} embeds no graphs in callers' graphs")
        made = checked(device_plan(layout, mode))
    sys.stdout.write(text.to_text(made) if options.emit == "device-plan" else codec.to_json(made))


def _simulate(job: Job, options: Options, progress: Progress) -> Result:
    """No data, no numbers: what would happen when on the machine."""
    with progress.step("modelling the run"):
        from ..compiler import compilation
        from ..plan.codec import content_hash
        from ..sim.simulate import simulate

        start = time.perf_counter()
        with compilation(job.plan.ranks):
            trace = simulate(job.plan, job.machine)
        host = (time.perf_counter() - start) * 1e6
        yardsticks = modelled(job.plan, job.machine)
    return Result(
        job=job,
        backend="sim",
        devices="",
        graph=False,
        plan_hash=content_hash(job.plan),
        seed=options.seed,
        order=options.order,
        verification=None,
        trace=trace,
        times=(trace.duration,),
        host=(host,),
        yardsticks=yardsticks,
    )


def _execute(
    job: Job, options: Options, backend: Literal["cuda", "hip", "host"], order: str, progress: Progress
) -> Result:
    """One verified run, then the timed ones, on GPUs in turn with the baselines; without --iters, and without
    baselines, the verified run is the timed one."""
    with progress.step("preparing the run"):
        from ..exec.executor import Executor
        from ..exec.inputs import fresh_inputs
        from ..exec.verify import check_replay, verified_run
        from ..plan.codec import content_hash

        plan_hash = content_hash(job.plan)

    host: list[float] = []

    class Timed(Executor):
        """Keeps how long each run took on this machine."""

        def run(self, *given: Any, **words: Any) -> None:
            start = time.perf_counter()
            super().run(*given, **words)
            # the host is through with a run on GPUs when all of it is issued
            host.append(self.issued_in if backend in GPUS else (time.perf_counter() - start) * 1e6)

    shared, timeout = options.ranks_per_gpu, float(options.timeout)
    with ExitStack() as opened:
        executor = opened.enter_context(
            Timed(job.plan, backend, machine=job.machine, order=order, ranks_per_gpu=shared, timeout=timeout)
        )
        verification = None
        if options.no_verify:
            with progress.step("making inputs"):
                for name, arrays in fresh_inputs(job.plan, options.seed).items():
                    for rank, array in enumerate(arrays):
                        executor.write(name, rank, array)
        else:
            with progress.step("running and verifying"):
                verification = verified_run(executor, seed=options.seed, progress=progress.report)
                del host[:-1]  # the run on normal data is the timed one
        right = verification is None or verification.ok
        times = [executor.duration] if verification else []
        executor.graph = bool(options.graph)
        if options.graph and verification is not None and right:
            with progress.step("comparing the replayed graph"):
                check_replay(executor)
        baselines = None
        if backend != "host" and options.baselines and right:
            baselines = _baselines(job, options, backend, executor, opened, progress)
        timed = options.iters or (UNASKED if baselines else 0 if verification and not options.warmup else 1)
        turns = turns_among(timed) if baselines else frozenset()
        for number in range(-options.warmup, timed):
            if number == 0:
                times.clear()
                host.clear()
            with progress.step(f"run {number + 1 + options.warmup} of {options.warmup + timed}"):
                executor.run(progress=progress.report)
            times.append(executor.duration)
            if baselines and number in turns:
                with progress.step("running the baselines"):
                    baselines.turn()
        if baselines:  # before the run with timestamps: streams of other executors may share its hardware queues
            baselines.close()
        if backend != "host":  # timestamps cost time, so a run of its own has them, when all is warm
            with progress.step("tracing a run"):
                executor.traced = True
                executor.run(progress=progress.report)
                host.pop()
        trace = executor.trace
        devices = executor.driver.describe()
        yardsticks = baselines.yardsticks(median(times)) if baselines else modelled(job.plan, job.machine, shared)
    return Result(
        job=job,
        backend=backend,
        devices=devices,
        graph=bool(options.graph),
        plan_hash=plan_hash,
        seed=options.seed,
        order=order if backend == "host" else None,
        verification=verification,
        trace=trace,
        times=tuple(times),
        host=tuple(host),
        yardsticks=yardsticks,
    )


def _baselines(
    job: Job,
    options: Options,
    backend: Literal["cuda", "hip"],
    executor: Executor,
    opened: ExitStack,
    progress: Progress,
) -> Baselines | None:
    """What runs in turn with the schedule, if it has an operation, and if there is memory for it."""
    with progress.step("preparing the baselines"):
        plans = baseline_plans(job.plan, job.machine, options.ranks_per_gpu)
        if plans is None:
            return None
        why = plans.overfill(executor.driver.pools())
        if why:
            say(f"warning: serial and ideal are modelled, as there is no room to measure them: {why} (--no-baselines)")
            return None
        found = Baselines(plans, backend, job.machine, options.ranks_per_gpu, float(options.timeout))
        opened.enter_context(found)
        found.warm(graph=bool(options.graph))
    return found


def _tell(result: Result, options: Options) -> None:
    style = Style(sys.stdout)
    sys.stdout.write(report(result, style))
    if len(result.trace.lanes) <= SKETCHED and result.trace.spans:
        from .timeline import sketch

        sys.stdout.write("\n" + sketch(result.trace, style))
    for path in (options.trace, options.timeline):
        if path:
            sys.stdout.write(f"wrote {path}\n")
