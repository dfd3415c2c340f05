"""What several commands need: the thing they work on, loaded and compiled, and the words for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..files import atomic
from .console import Progress, Sources, sourced
from .settings import parse_settings

if TYPE_CHECKING:
    from ficco_dsl.diagnostics import Diagnostic, Span
    from ficco_dsl.nodes import Schedule

    from ..graph.ir import Graph
    from ..machine.model import Machine
    from ..plan.ir import Plan
    from ..select.choose import Choice
    from ..select.params import Given

MAX_GPUS = 1024
DEFAULT_GPUS = 8
STDIN = "<stdin>"  # what messages call it
PLAN_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Source:
    """What a target's name has led to, as read. `texts` are kept for messages where it cannot be read again."""

    name: str  # for messages, plans and traces
    file: Path | str | int  # where it was read: a path, or 0 for standard input
    data: bytes
    is_plan: bool
    texts: Mapping[str, str]

    @property
    def is_device_plan(self) -> bool:
        """A stored device plan, which `ficco check` reads."""
        return self.is_plan and b'"ficco_device_plan"' in self.data[:100]


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line says of the work: a schedule (or a stored plan) and all that binds its sizes."""

    source: Source
    gpus: int | None
    settings: tuple[str, ...]
    machine: str | None
    trust: bool = False  # whether a stored plan may name files anywhere
    rules: bool = True  # whether rules give a shipped schedule what is left open


@dataclass(frozen=True, slots=True)
class Job:
    """A compiled request. A stored plan has no graph any more."""

    path: str
    title: str
    machine: Machine
    plan: Plan
    graph: Graph | None
    warnings: tuple[Diagnostic, ...]
    texts: Mapping[str, str]
    proof_time: float  # µs
    given: tuple[Given, ...] = ()  # what rules gave
    choice: Choice | None = None  # which has named the schedule

    @property
    def unproven(self) -> tuple[str, ...]:
        """The outputs that no claim speaks for, or not for all of them."""
        from ..plan.prove import unproven

        return unproven(self.plan)

    @property
    def short_sums(self) -> tuple[str, ...]:
        """The tensors that keep partial sums in a type that ends early."""
        from ..graph.noise import short_sums
        from ..graph.prove import meaning
        from ..plan.check import walk
        from ..plan.prove import steps

        done = meaning(self.graph) if self.graph is not None else list(steps(self.plan, walk(self.plan)))
        return short_sums(self.plan.tensors, self.plan.claims, done)

    @property
    def proven(self) -> bool:
        """Whether the proof, which the plan has passed, covers everything that the plan computes. A plan without claims
        has no proof."""
        return bool(self.plan.claims) and not self.unproven


def read(target: str) -> Source:
    """A schedule or a stored plan: `-` for standard input, a path (a pipe, too), or a library name."""
    if target == "-":
        return of_stdin(read_stdin())
    if target.endswith(PLAN_SUFFIX):  # no library name
        return _source(target, atomic.read_bytes(target), target)
    from ..files import shipped

    path = shipped.find(target)
    return _source(shipped.shown(path), atomic.read_bytes(path), path)


def of_stdin(data: bytes) -> Source:
    """What standard input has held."""
    return _source(STDIN, data, 0)


def _source(name: str, data: bytes, file: Path | str | int) -> Source:
    # a plan is a JSON object; no schedule begins like one
    is_plan = name.endswith(PLAN_SUFFIX) or data.lstrip()[:1] == b"{"
    again = not isinstance(file, int) and Path(file).is_file()
    return Source(name, file, data, is_plan, {} if again else {name: data.decode("utf-8", "replace")})


def read_stdin() -> bytes:
    """All of standard input."""
    if sys.stdin is None:
        raise UsageError(f"{STDIN}: standard input is closed")
    try:
        return sys.stdin.buffer.read()
    except OSError as error:  # a folder
        raise UsageError(f"{STDIN}: cannot be read: {error.strerror}") from error


def parse(source: Source) -> Schedule:
    """The source's syntax tree."""
    import ficco_dsl

    with sourced(source.texts):
        return ficco_dsl.parse_bytes(source.data, source.name)


@dataclass(frozen=True, slots=True)
class Built:
    """A schedule's graph, not yet proven, and the machine to compile it for."""

    graph: Graph
    machine: Machine
    given: tuple[Given, ...]


def build_graph(request: Request, progress: Progress, found: Callable[[int], Machine] | None = None) -> Built:
    """Parse and bind for `request.gpus` ranks. `found` gives the machine of so many ranks that is at hand, where the
    request names none."""
    from ..compiler import build
    from ..select.defaults import open_values

    with progress.step("importing and parsing"):
        schedule = parse(request.source)
    try:
        settings = parse_settings(request.settings)
    except UsageError as error:
        raise UsageError(f"{error}\n{describe_params(schedule, request.source.texts)}") from error
    at_hand = found if request.machine is None else None
    gpus = request.gpus
    machine = machine_of(request.machine, gpus) if at_hand is None else at_hand(gpus or DEFAULT_GPUS)
    ranks = machine.ranks
    with progress.step("binding sizes"):
        file = request.source.file
        given = open_values(file, ranks, settings, machine) if request.rules and not isinstance(file, int) else ()
        values = {**settings, **{value.param: value.value for value in given}}
        return Built(build(schedule, ranks, values), machine, given)


def machine_of(name: str | None, gpus: int | None) -> Machine:
    """The machine to compile for: a stored one, or a file's. It has `gpus` ranks; if the caller gives none, 8, or those
    of the file if these are fewer."""
    from ..machine.profiles import DEFAULT, chosen, is_file, read

    name = name or DEFAULT
    if gpus is None:
        gpus = min(DEFAULT_GPUS, read(name).ranks) if is_file(name) else DEFAULT_GPUS
    return chosen(name, gpus)


def joins_more(machine: Machine) -> tuple[str, str] | None:
    """A stored machine that is taken for more ranks than it has: the fact, and the way out. None: it has as many."""
    from ..machine.profiles import NAMES, stored

    if machine.name not in NAMES or machine.ranks <= (known := stored(machine.name)).ranks:
        return None
    larger = [n for n in NAMES if stored(n).device == known.device and stored(n).ranks >= machine.ranks]
    named = f"take --machine {larger[0]}, --gpus {known.ranks}" if larger else f"take --gpus {known.ranks}"
    last = known.tiers[-1]
    joins = f"its {last.kind} of tier '{last.name}'" if len(known.tiers) > 1 else f"its {last.kind}"
    return (
        f"machine {machine.name} has {known.ranks} GPUs; {machine.ranks} are modelled as if {joins} joined them all",
        f"{named}, or a machine's file that says what joins {machine.ranks} (docs/machines.md)",
    )


def _too_few(source: Source, machine: Machine) -> tuple[Diagnostic, ...]:
    """`joins_more` as a warning, at the schedule's name."""
    from ficco_dsl.diagnostics import Diagnostic, Span

    more = joins_more(machine)
    if more is None:
        return ()
    lines = source.data.decode("utf-8", "replace").splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith("schedule")), 0)
    span = Span(source.name, at + 1, 1, at + 1, len(lines[at]) + 1)
    return (Diagnostic(span, more[0], help=more[1]),)


def compile_job(request: Request, progress: Progress, found: Callable[[int], Machine] | None = None) -> Job:
    """Everything from text (or stored plan) to a proven, checked plan; `found` as of `build_graph`."""
    if request.source.is_plan:
        return _stored(request, progress, found)
    from .. import compiler
    from ..files import shipped
    from ..graph.prove import prove
    from ..machine.profiles import is_file
    from ..plan import kernel_files
    from ..plan.check import check
    from ..plan.lower import lower

    source = request.source
    with sourced(source.texts), compiler.compilation(request.gpus or DEFAULT_GPUS):
        built = build_graph(request, progress, found)
        graph, machine = built.graph, built.machine
        begin = time.perf_counter()
        with progress.step("proving"):
            prove(graph)
        proof_time = 1e6 * (time.perf_counter() - begin)
        with progress.step("lowering"):
            plan = kernel_files.sealed(lower(graph, machine))
        with progress.step("checking the plan"):
            check(plan)
    title = shipped.title(source.data.decode("utf-8", "replace"))
    warnings = compiler.lint(graph, machine)
    if found is None and not is_file(request.machine or ""):
        warnings = (*_too_few(source, machine), *warnings)
    return Job(source.name, title, machine, plan, graph, warnings, source.texts, proof_time, built.given)


def _stored(request: Request, progress: Progress, found: Callable[[int], Machine] | None) -> Job:
    from ..compiler import checked_plan, compilation
    from ..graph.noise import coarse
    from ..plan.prove import prove, steps

    source = request.source
    if source.is_device_plan:
        raise UsageError(f"{source.name}: is a device plan, which runs on no other memory; `ficco check` reads it")
    # the file states a number of ranks, which may be wrong: --gpus counts
    with sourced(source.texts), compilation(request.gpus or 1):
        with progress.step("reading and checking the plan"):
            plan, order = checked_plan(source.data, source.name, request.trust)
        begin = time.perf_counter()
        with progress.step("proving the plan"):
            prove(plan, order)
        proof_time = 1e6 * (time.perf_counter() - begin)
    if request.settings:
        raise UsageError(f"{source.name}: a plan has its sizes bound; --set belongs to a schedule")
    if request.gpus not in (None, plan.ranks):
        raise UsageError(f"{source.name}: is a plan for {count(plan.ranks, 'GPU')}, not for {request.gpus}")
    if request.machine is not None and (asked := machine_of(request.machine, plan.ranks)) != plan.target:
        if asked.name != plan.machine:
            raise UsageError(f"{source.name}: is a plan for {plan.machine}, not for {request.machine}")
        raise UsageError(
            f"{source.name}: is a plan for {plan.machine} with other numbers than {request.machine} has now; "
            "compile it again, or leave out --machine"
        )
    machine = plan.target if found is None else found(plan.ranks)
    found_coarse = {d.span: d for d in coarse(plan.tensors, plan.claims, list(steps(plan, order)))}
    return Job(source.name, "", machine, plan, None, tuple(found_coarse.values()), {}, proof_time)


def describe_params(schedule: Schedule, texts: Mapping[str, str]) -> str:
    """The params and types of a schedule with their defaults, as it writes them."""
    sources = Sources(texts)
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


def count(number: int, noun: str) -> str:
    """`1 GPU`, `8 GPUs`, `3 copies`, `2 launches`."""
    if number == 1:
        return f"1 {noun}"
    plural = noun[:-1] + "ies" if noun.endswith("py") else noun + ("es" if noun.endswith("ch") else "s")
    return f"{number:,} {plural}".replace(",", "\u202f") if number >= 10_000 else f"{number} {plural}"


def gpu_list(text: str) -> tuple[int, ...]:
    """`1,2,4,8` as numbers."""
    numbers = []
    for part in text.split(","):
        if not (part.isascii() and part.strip().isdecimal()) or not 1 <= int(part[:12]) <= MAX_GPUS:
            raise UsageError(
                f"--gpus {text}: expected numbers from 1 to {MAX_GPUS} with commas between, such as 1,2,4,8"
            )
        numbers.append(int(part))
    return tuple(dict.fromkeys(numbers))


def join_words(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    listed = list(words)
    return " and ".join([", ".join(listed[:-1]), listed[-1]]) if len(listed) > 1 else "".join(listed)
