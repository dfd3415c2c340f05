"""What a command is run on: a schedule or a stored plan, with everything that binds its sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..files import atomic
from .settings import parse_settings
from .sources import sourced

if TYPE_CHECKING:
    from ficco_dsl.diagnostics import Diagnostic, Span
    from ficco_dsl.nodes import Schedule

    from ..machine.model import Machine
    from ..select.defaults import Resolved
    from ..select.tune import Step

DEFAULT_GPUS = 8
STDIN = "<stdin>"  # what messages call it
PLAN_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Source:
    """The schedule or plan that a target's name refers to, as read. `texts` are kept for messages if it cannot be read
    again."""

    name: str  # for messages, plans and traces
    file: Path | str | int  # where it was read: a path, or 0 for standard input
    data: bytes
    is_plan: bool
    texts: Mapping[str, str]

    @property
    def is_device_plan(self) -> bool:
        """A stored device plan, which `ficco check` reads."""
        return self.is_plan and b'"ficco_device_plan"' in self.data[:100]

    @property
    def lines(self) -> list[str]:
        """The text's lines."""
        return self.data.decode("utf-8", "replace").splitlines()


@dataclass(frozen=True, slots=True)
class Request:
    """The work as the command line names it: a schedule (or a stored plan) and everything that binds its sizes."""

    source: Source
    gpus: int | None
    settings: tuple[str, ...]
    machine: str | None
    trust: bool = False  # whether a stored plan may name files anywhere
    rules: bool = True  # whether rules give a shipped schedule what is left open

    @classmethod
    def of(
        cls, target: str, gpus: int | None, settings: tuple[str, ...], machine: str | None, why: str = ""
    ) -> Request:
        """A request for a schedule, as a command line names it. `why`: what a stored plan in its place is told."""
        source = read(target)
        if source.is_plan and why:
            raise UsageError(f"{source.name}: is a plan{why}")
        return cls(source, gpus, settings, machine)


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


def resolve(
    request: Request, step: Step = lambda _: nullcontext(), found: Callable[[int | None], Machine] | None = None
) -> Resolved:
    """The schedule with its machine, its ranks and the values of its params. `found` gives the machine at hand, of so
    many ranks or of all, where the request names none."""
    from ..select import defaults

    source = request.source
    with step("importing and parsing"):
        schedule = parse(source)
    try:
        settings = parse_settings(request.settings)
    except UsageError as error:
        raise UsageError(f"{error}\n{describe_params(schedule, source.lines)}") from error
    at_hand = found if request.machine is None else None
    machine = machine_of(request.machine, request.gpus) if at_hand is None else at_hand(request.gpus)
    file = source.file if request.rules and not isinstance(source.file, int) else None
    with step("binding sizes"):
        return defaults.resolve(schedule, file, machine.ranks, settings, machine)


def machine_at_hand(
    backend: str, ranks_per_gpu: int = 1, processes: int = 1, node: int | None = None
) -> Callable[[int | None], Machine] | None:
    """Finds the machine of the GPUs at hand, of which each of several processes may see its own alone: with so many
    ranks, or with those that all GPUs have. None: the backend takes no GPUs."""
    from ..driver.api import GPUS

    if backend not in GPUS:
        return None
    from ..driver.registry import device_count, discover

    def found(ranks: int | None) -> Machine:
        number = ranks or max(1, device_count(backend)) * ranks_per_gpu
        return discover(backend, number, ranks_per_gpu, processes, node)

    return found


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


def too_few(source: Source, machine: Machine) -> tuple[Diagnostic, ...]:
    """`joins_more` as a warning, at the schedule's name."""
    from ficco_dsl.diagnostics import Diagnostic, Span

    more = joins_more(machine)
    if more is None:
        return ()
    lines = source.lines
    at = next((i for i, line in enumerate(lines) if line.startswith("schedule")), 0)
    span = Span(source.name, at + 1, 1, at + 1, len(lines[at]) + 1)
    return (Diagnostic(span, more[0], help=more[1]),)


def describe_params(schedule: Schedule, lines: Sequence[str]) -> str:
    """The params and types of a schedule with their defaults, as its lines write them."""

    def text(span: Span) -> str:
        stop = span.end_column - 1 if span.end_line == span.line else None
        return lines[span.line - 1][span.column - 1 : stop] + (" …" if stop is None else "")

    entries = [f"{p.name} = {text(p.value.span)}" for p in schedule.params]
    entries += [f"{t.name} = {t.dtype}" for t in schedule.types]
    return f"{schedule.name} has the params {', '.join(entries)}" if entries else f"{schedule.name} has no params"
