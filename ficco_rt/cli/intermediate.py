"""`ficco-run --emit`: print the graph, the plan, the device plan or the run plan instead of running."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from .. import env
from ..errors import UsageError
from ..report.job import Job, compile_job
from ..report.request import Request, read, resolve
from ..report.sources import sourced
from .console import Progress
from .messages import warn
from .options import Options

if TYPE_CHECKING:
    from ..device.ir import Mode


def emit(options: Options) -> int:
    """Print an intermediate form instead of running."""
    if options.as_json:
        raise UsageError("--json describes a run and --emit does not run; --emit plan-json prints the plan as JSON")
    for name in ("order", "trace", "timeline", "report", "node"):
        if getattr(options, name):
            raise UsageError(f"--{name} needs a run and --emit does not run")
    if options.emit not in ("device-plan", "device-plan-json", "run-plan"):
        refuse_device_plan_options(options)
        if options.graph:
            raise UsageError(f"--graph needs a run or --emit device-plan; --emit {options.emit} is the same with it")
    progress = Progress()
    source = read(options.target)
    request = Request(source, options.gpus, options.settings, options.machine, options.trust)
    if options.emit == "graph":
        if source.is_plan:
            raise UsageError(f"{source.name}: a plan has no graph any more; --emit graph works on a schedule")
        from ..graph.text import to_text as graph_text

        # not proven: a reader of the graph often looks for the reason of a failed proof
        with sourced(source.texts):
            sys.stdout.write(graph_text(resolve(request, progress.step).graph()))
        return 0
    job = compile_job(request, progress.step)
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
    """Print the device plan for the devices of the machine, with so many ranks on each device and in each process; or
    the calls by which each process makes a first run."""
    from ..compiler import compilation
    from ..device import codec, text
    from ..device.build import device_plan, layout_of
    from ..device.check import checked
    from ..device.collectives import ONE_EACH
    from ..device.features import here, library_of, queue_switch
    from ..device.ir import Placement
    from ..device.multi_node import nodes_of
    from ..device.run_plan import first_runs
    from ..plan import kernel_files
    from ..plan.codec import content_hash

    if options.ranks_per_gpu < 1:
        raise UsageError(f"--ranks-per-gpu {options.ranks_per_gpu}: at least one rank runs on a GPU")
    mode: Mode = options.mode or ("graph" if options.graph else "streams")
    if options.graph and mode != "graph":
        raise UsageError(f"--graph is --mode graph; given --mode {mode}")
    device, each = job.machine.device, options.ranks_per_process
    if each is not None and each % options.ranks_per_gpu and options.ranks_per_gpu % each:
        raise UsageError(
            f"--ranks-per-process {each}: a process has whole GPUs, or a GPU whole processes; "
            f"take a multiple or a divisor of {options.ranks_per_gpu}"
        )
    ranks = range(job.plan.ranks)
    processes = tuple(rank // each for rank in ranks) if each else ()
    gpus = tuple(rank // options.ranks_per_gpu for rank in ranks)
    shared = each is not None and each < options.ranks_per_gpu  # processes that share a GPU have a device each
    devices = processes if shared else gpus
    placement = Placement(devices, processes, nodes_of(processes, job.machine.node), gpus if shared else ())
    features = here(device.arch, env.others(queue_switch(device.arch).name))
    if options.collectives == "library":
        features = replace(features, collectives=library_of(device.arch))
    with compilation(job.plan.ranks):
        layout = layout_of(job.plan, device, placement, features, content_hash(job.plan))
        if options.collectives == "library" and layout.own_way:
            raise UsageError(f"--collectives library: {layout.own_way}")
        if mode == "embedded" and layout.communicators and not placement.each_alone:
            raise UsageError(f"--mode embedded: {ONE_EACH} (--ranks-per-process 1)")
        if mode == "embedded" and not layout.features.embeds:
            raise UsageError(f"--mode embedded: the driver of {device.name} embeds no graphs in callers' graphs")
        made = checked(device_plan(layout, mode))
    if options.emit == "run-plan":
        sys.stdout.write("\n".join(map(str, first_runs(made))))
    elif options.emit == "device-plan":
        sys.stdout.write(text.to_text(made))
    else:
        sys.stdout.write(codec.to_json(made, kernel_files.relative(job.plan, Path())))


def refuse_device_plan_options(options: Options) -> None:
    for name in ("mode", "ranks_per_process"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for --emit device-plan")
