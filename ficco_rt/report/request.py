"""What a command is asked for: a schedule or a stored plan, and all that binds its sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..files import atomic
from .settings import parse_settings
from .sources import Sources, sourced

if TYPE_CHECKING:
    from ficco_dsl.diagnostics import Diagnostic, Span
    from ficco_dsl.nodes import Schedule

    from ..graph.ir import Graph
    from ..machine.model import Machine
    from ..select.params import Given
    from ..select.tune import Step

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


def build_graph(request: Request, step: Step, found: Callable[[int], Machine] | None = None) -> Built:
    """Parse and bind for `request.gpus` ranks. `found` gives the machine of so many ranks that is at hand, where the
    request names none."""
    from ..compiler import build
    from ..select.defaults import open_values

    with step("importing and parsing"):
        schedule = parse(request.source)
    try:
        settings = parse_settings(request.settings)
    except UsageError as error:
        raise UsageError(f"{error}\n{describe_params(schedule, request.source.texts)}") from error
    at_hand = found if request.machine is None else None
    gpus = request.gpus
    machine = machine_of(request.machine, gpus) if at_hand is None else at_hand(gpus or DEFAULT_GPUS)
    ranks = machine.ranks
    with step("binding sizes"):
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
