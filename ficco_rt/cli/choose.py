"""`ficco choose`: choose a schedule for an operation. Commands that take an operation in place of a schedule use it,
too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..errors import UsageError
from ..files import atomic, shipped
from ..files.records import NEWER, PAIRS, Count, Micros, Params, Reader, decoded, filled
from ..machine.profiles import is_file
from ..report.job import Job, given_words
from ..report.request import Request, joins_more, machine_of, read, resolve
from ..report.settings import parse_settings
from ..report.sources import show_path
from ..report.wording import count, set_text, show_time
from .console import Progress, Style, table
from .messages import say, tell, warn

if TYPE_CHECKING:
    from ..kernels.families import Timer
    from ..machine.model import Machine
    from ..select.candidates import Candidate
    from ..select.choose import Choice

LOOKED_AT = 64  # ranks of a schedule whose warnings are told: to make it for more takes seconds
_MEASURE = {
    "rules": "modelled for {machine}, not measured",
    "model": "modelled for {machine}, not measured",
    "measured": "measured on {device}",
}


def is_operation(target: str) -> bool:
    """Whether a target is an operation, such as ag_gemm, and not the name of a file."""
    return target in shipped.operations() and not Path(target).is_file()


def choose(
    operation: str,
    gpus: int | None,
    settings: tuple[str, ...],
    machine: str | None,
    by: str | None,
    candidates: str | None,
    measured: str | None,
    as_json: bool,
) -> int:
    """Print which schedule an operation gets, and why."""
    from ..compiler import lint

    on = machine_of(machine, gpus)
    with Progress().step("choosing"):
        made = chosen(operation, settings, on, by, candidates, measured)
    if (more := joins_more(on)) is not None and not is_file(machine or ""):
        say(f"warning: {more[0]}\n  help: {more[1]}")
    if on.ranks <= LOOKED_AT:
        source = read(made.schedule)
        asked = resolve(Request(source, on.ranks, settings_of(made, settings), machine, rules=False))
        warn(lint(asked.graph(), asked.machine), source.texts)
    return tell(as_json, lambda: record(made), lambda style: report(made, style))


def chosen(
    operation: str,
    settings: tuple[str, ...],
    machine: Machine,
    by: str | None,
    candidates: str | None = None,
    measured: str | None = None,
    ranks_per_gpu: int = 1,
    vendor: bool = True,
    timer: Timer | None = None,
) -> Choice:
    """The choice for what a command line says, on all ranks of the machine. `vendor`: the vendor's library is there, or
    nothing runs on GPUs; `timer` as for `choose`."""
    from ..select import measurements
    from ..select.choose import BY, choose

    if by is not None and by not in BY:
        raise UsageError(f"--by {by[:40]}: a choice is made by {', '.join(BY)}")
    if measured is not None and by != "measured":
        raise UsageError("--measured names a file of measured times, which --by measured goes by")
    known = None if measured is None else measurements.load(measured)
    own = None if candidates is None else candidates_of(candidates)
    sizes = parse_settings(settings)
    by_: Any = by
    return choose(operation, machine.ranks, machine, by_, own, known, sizes, ranks_per_gpu, vendor, timer=timer)


def default_of(operation: str, settings: tuple[str, ...], machine: Machine) -> str:
    """The chooser (rules or model) for a command line without --by."""
    from ..select.choose import default, question

    return default(question(operation, machine.ranks, machine, sizes=parse_settings(settings)))


def candidates_of(path: str) -> list[object]:
    """The candidates of a file: a JSON list of schedules' names or paths, or of objects with `schedule` and `params`.

    Raises UsageError with the entry that is wrong."""
    reader = Reader(path, way_out=f'; a list is needed, such as ["ag_gemm/serial", {_EXAMPLE}]')
    entries = reader.read(tuple[str | OwnCandidate, ...], decoded(atomic.read_text(path), path), "candidates")
    return [entry if isinstance(entry, str) else (entry.schedule, dict(entry.params)) for entry in entries]


@dataclass(frozen=True, slots=True)
class OwnCandidate:
    """A candidate of a file."""

    schedule: str
    params: Annotated[tuple[tuple[str, object], ...], PAIRS] = ()


_EXAMPLE = '{"schedule": "ag_gemm/streamed", "params": {"chunks": 4}}'


def settings_of(choice: Choice, given: Sequence[str]) -> tuple[str, ...]:
    """`--set`s that make a schedule's run the chosen one: the caller's, and what was chosen."""
    said = parse_settings(given)
    return (*given, *(f"{name}={set_text(value)}" for name, value in choice.params.items() if name not in said))


# ---------------------------------------------------------------- words


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRecord:
    """A schedule that could have been chosen.

    predicted_us: Microseconds; null: nothing predicts it.
    """

    schedule: str = ""
    params: Params = NEWER
    predicted: Micros | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRecord:
    """What `ficco choose --json` prints.

    operation: Such as ag_gemm.
    by: What chose.
    schedule: The chosen one.
    mode: How it should run.
    kernel: Whose GEMM makes the products.
    predicted_us: Microseconds. By rules: an estimate by a closed formula; by model: modelled; by measured: measured.
    why: Reasons, a sentence each.
    sources: What the reasons rest on.
    candidates: The chosen one first.
    """

    operation: str = ""
    ranks: Count = 0
    machine: str = ""
    by: Literal["rules", "model", "measured"] = "rules"
    schedule: str = ""
    params: Params = NEWER
    mode: Literal["streams", "graph"] = "streams"
    kernel: Literal["ours", "vendor"] = "ours"
    predicted: Micros | None = None
    why: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    candidates: tuple[CandidateRecord, ...] = ()


def record(choice: Choice) -> ChoiceRecord:
    """What --json prints."""
    kernel = "vendor" if choice.vendored else "ours"
    candidates = tuple(filled(CandidateRecord, option, params=dict(option.params)) for option in choice.options)
    return filled(ChoiceRecord, choice, machine=choice.machine.name, kernel=kernel, candidates=candidates)


def reasons(job: Job) -> tuple[str, ...]:
    """Why a run is of this schedule with these values."""
    if job.choice is not None:
        first, *others = job.choice.why
        return (f"chosen for {job.choice.operation} by {_BY[job.choice.by]}: {first}", *others)
    return (f"named on the command line ({show_path(job.path)})", *given_words(job))


_BY = {"rules": "rules", "model": "the model", "measured": "measured times"}


def how_words(mode: str) -> str:
    return "as a graph" if mode == "graph" else "on streams"


def report(choice: Choice, style: Style) -> str:
    """The choice for people."""
    best, machine = choice.options[0], choice.machine
    given = ", ".join(f"{n} = {set_text(v)}" for n, v in choice.params.items() if n not in dict(best.params))
    measure = _MEASURE[choice.by].format(machine=machine.name, device=machine.device.name)
    if best.predicted is None:
        measure = "too much to be modelled beside a choice by rules; --by model models it"
    rows = [
        ("for", f"{choice.operation} on {count(choice.ranks, 'GPU')}: {given}"),
        ("kernel", _kernel(choice)),
        ("predicted", f"{style(_time(best), 'bold')}, {measure}"),
        *(("why" if i == 0 else "", sentence) for i, sentence in enumerate(choice.why)),
        *(("rests on" if i == 0 else "", source) for i, source in enumerate(choice.sources)),
    ]
    text = f"{style(f'{best.label}, {how_words(choice.mode)}', 'bold')}\n{table(rows)}\n"
    if choice.runners_up:
        others = [(o.label, _time(o), _beside(o, best)) for o in choice.runners_up]
        text += f"next\n{table(others, right=frozenset({1, 2}))}\n"
    return text


def _kernel(choice: Choice) -> str:
    """Whose GEMM makes the products."""
    from ..kernels.families import tuned
    from ..kernels.target import compute_capability
    from ..select.candidates import streams_products

    arch = choice.machine.device.arch
    library = "hipBLASLt" if compute_capability(arch) is None else "cuBLASLt"
    if choice.vendored:
        reason = "" if tuned(arch) else f", as none of ours is made for {arch}"
        return f"the vendor's GEMM ({library}){reason}; docs/gpus.md says how to install it"
    if tuned(arch):
        return "ours"
    streams = streams_products(choice.schedule)
    missing = f"{library} takes no streamed stage" if streams else f"{library} is not installed"
    return f"ours for an earlier architecture, as none is made for {arch}; {missing}"


def _time(option: Candidate) -> str:
    return "unknown" if option.predicted is None else show_time(option.predicted)


def _beside(option: Candidate, best: Candidate) -> str:
    if not option.predicted or not best.predicted:
        return ""
    return f"{100 * (option.predicted / best.predicted - 1):+.1f} %"
