"""What several commands need: the thing they work on, loaded and compiled, and the words for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UsageError
from .console import Progress, Sources
from .files import read_text
from .settings import parse_settings

if TYPE_CHECKING:
    from ficco_dsl.diagnostics import Diagnostic, Span
    from ficco_dsl.nodes import Schedule

    from ..graph.ir import Graph
    from ..machine.model import Machine
    from ..plan.ir import Plan

MAX_GPUS = 1024
DEFAULT_GPUS = 8


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line says of the work: a schedule (or a stored plan) and all that binds its sizes."""

    target: str
    gpus: int | None
    settings: tuple[str, ...]
    machine: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """A compiled request. A stored plan has no graph any more."""

    path: str
    title: str
    machine: Machine
    plan: Plan
    graph: Graph | None
    warnings: tuple[Diagnostic, ...]


def is_plan(target: str) -> bool:
    """Whether the name is that of a stored plan rather than a schedule."""
    return target.endswith(".json")


def load(target: str) -> Schedule:
    """The schedule of a path or a library name."""
    from .. import compiler

    try:
        return compiler.load(target)
    except OSError as error:  # a name too long, a folder that may not be entered
        raise UsageError(f"{target[:200]}: cannot be read: {error.strerror}") from error


def load_plan(target: str) -> Plan:
    """A stored plan, read and checked."""
    from ..plan import codec
    from ..plan.check import check

    plan = codec.from_json(read_text(target), target)
    check(plan)
    return plan


def build_graph(request: Request, progress: Progress) -> tuple[Schedule, Graph]:
    """Parse and bind: the schedule's graph on `request.gpus` ranks, not yet proven."""
    from ..compiler import build

    with progress.step("importing and parsing"):
        schedule = load(request.target)
    try:
        settings = parse_settings(request.settings)
    except UsageError as error:
        raise UsageError(f"{error}\n{describe_params(schedule)}") from error
    with progress.step("binding sizes"):
        return schedule, build(schedule, request.gpus or DEFAULT_GPUS, settings)


def machine_of(name: str | None, ranks: int) -> Machine:
    """The machine to compile for."""
    from ..machine.profiles import DEFAULT, profile

    return profile(name or DEFAULT, ranks)


def compile_job(request: Request, progress: Progress, found: Callable[[int], Machine] | None = None) -> Job:
    """Everything from text (or stored plan) to a proven, checked plan. `found` gives the machine of so many ranks
    that is at hand, where the request names none."""
    if is_plan(request.target):
        return _stored(request, progress, found)
    from .. import compiler, library
    from ..graph.prove import prove
    from ..plan.check import check
    from ..plan.lower import lower

    schedule, graph = build_graph(request, progress)
    at_hand = found is not None and request.machine is None
    machine = found(graph.ranks) if found is not None and at_hand else machine_of(request.machine, graph.ranks)
    with compiler.no_collection():
        with progress.step("proving"):
            prove(graph)
        with progress.step("lowering"):
            plan = lower(graph, machine)
        with progress.step("checking the plan"):
            check(plan)
    title = library.title(library.located(schedule.path))
    return Job(schedule.path, title, machine, plan, graph, compiler.lint(graph, machine))


def _stored(request: Request, progress: Progress, found: Callable[[int], Machine] | None) -> Job:
    with progress.step("reading and checking the plan"):
        plan = load_plan(request.target)
    if request.settings:
        raise UsageError(f"{request.target}: a plan has its sizes bound; --set belongs to a schedule")
    if request.gpus not in (None, plan.ranks):
        raise UsageError(f"{request.target}: is a plan for {count(plan.ranks, 'GPU')}, not for {request.gpus}")
    if request.machine not in (None, plan.machine):
        raise UsageError(f"{request.target}: is a plan for {plan.machine}, not for {request.machine}")
    machine = machine_of(plan.machine, plan.ranks) if found is None else found(plan.ranks)
    return Job(request.target, "", machine, plan, None, ())


def describe_params(schedule: Schedule) -> str:
    """The params and types of a schedule with their defaults, as it writes them."""
    sources = Sources()
    entries = [f"{p.name} = {_text(p.value.span, sources)}" for p in schedule.params]
    entries += [f"{t.name} = {t.dtype}" for t in schedule.types]
    if not entries:
        return f"{schedule.name} has no params"
    return f"{schedule.name} has the params {', '.join(entries)}"


def _text(span: Span, sources: Sources) -> str:
    line = sources.line(span)
    if line is None:
        return "…"
    return line[span.column - 1 : span.end_column - 1] if span.end_line == span.line else line[span.column - 1 :] + " …"


def unproven_outputs(plan: Plan) -> tuple[str, ...]:
    """The outputs that no `computes` line speaks for."""
    return tuple(t.name for t in plan.tensors if t.kind == "output" and t.unproven)


def count(number: int, noun: str) -> str:
    """`1 GPU`, `8 GPUs`, `3 copies`."""
    if number == 1:
        return f"1 {noun}"
    plural = {"copy": "copies", "launch": "launches"}.get(noun, noun + "s")
    return f"{number:,} {plural}".replace(",", "\u202f") if number >= 10_000 else f"{number} {plural}"


def gpu_list(text: str) -> tuple[int, ...]:
    """`1,2,4,8` as numbers."""
    numbers = []
    for part in text.split(","):
        if not part.strip().isdecimal() or not 1 <= int(part[:12]) <= MAX_GPUS:
            raise UsageError(
                f"--gpus {text}: expected numbers from 1 to {MAX_GPUS} with commas between, such as 1,2,4,8"
            )
        numbers.append(int(part))
    return tuple(dict.fromkeys(numbers))


def join_words(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    listed = list(words)
    return " and ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else "".join(listed)
