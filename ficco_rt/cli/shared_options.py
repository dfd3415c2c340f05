"""Options of commands: how options are declared, their shell completion, and the options that several commands
share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EXITS = (
    "Exit codes: 0 ok, 1 the schedule is wrong, 2 usage, 3 device or driver, 4 the numbers are wrong, 5 a bug of ours, "
    "130 interrupted."
)
MANY = 1_000_000


def whole_number(least: int, most: int) -> Callable[[object], int]:
    """An option's type: a whole number in a range, without click's own words for it in every help line."""

    def convert(text: object) -> int:
        written = str(text).strip()
        digits = re.fullmatch(r"[+-]?[0-9]+(_[0-9]+)*", written) and len(written) < 30
        number = int(written) if digits else least - 1
        if not least <= number <= most:
            raise click.BadParameter(f"'{text}' is not a whole number from {least} to {most}")
        return number

    return convert


def option(
    form: str, help: str, default: str | int | None = None, *, or_else: str = "", complete: str = "", **more: Any
) -> Callable[[F], F]:
    """An option. `form`: its names with blanks between, then what it takes, as in `--gpus -n N`. The help ends with the
    default, or with what happens without the option: `or_else`. Shells complete words that are listed, `auto|cuda`, or
    those of `complete`."""
    *names, takes = form.split()
    if (takes.islower() and takes.isidentifier()) or takes.startswith("-"):
        names, takes = form.split(), ""
    words = or_else or default
    text = help if words is None else f"{help}  [default: {words}]"
    if complete or re.fullmatch(r"[a-z]+(\|[a-z]+)+", takes):
        more["shell_complete"] = complete_from(complete or takes.split("|"))
    return click.option(*names, metavar=takes or None, help=text, default=default, **more)


def number(
    form: str, limits: tuple[int, int], help: str, default: int | None = None, *, or_else: str = ""
) -> Callable[[F], F]:
    """An option that takes a whole number."""
    return option(form, help, default, or_else=or_else, type=whole_number(*limits))


def target(metavar: str, complete: str = "", name: str = "target", **more: Any) -> Callable[[F], F]:
    """What a command works on; shells complete the words of `complete`."""
    return click.argument(name, metavar=metavar, shell_complete=complete_from(complete) if complete else None, **more)


def flag(names: str, help: str, default: bool | None = False, *, or_else: str = "") -> Callable[[F], F]:
    """An option that is on or off."""
    text = f"{help}  [default: {or_else}]" if or_else else help
    return click.option(*names.split(), help=text, default=default, is_flag="/" not in names or None)


def all_of(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    def add(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


# ---------------------------------------------------------------- what shells complete


def complete_from(lists: str | list[str]) -> Complete:
    """The words of a list; or of the lists that are called so, with blanks between, which are made when a shell asks.
    `files` is any file."""

    def complete(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        words = lists if isinstance(lists, list) else [word for name in lists.split() for word in _known(name)]
        found = [CompletionItem(word) for word in words if word.startswith(begun)]
        return [*found, CompletionItem(begun, type="file")] if "files" in lists else found

    return complete


def _known(what: str) -> Iterable[str]:
    from ..files import shipped
    from ..machine.profiles import NAMES

    return {"machines": NAMES, "schedules": shipped.shipped(), "operations": shipped.operations(), "files": ()}[what]


# ---------------------------------------------------------------- options of several commands


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from .. import __version__

        click.echo(f"ficco {__version__}")
        context.exit()


def gpus_option(or_else: str = "8, or those of a machine's file if it has fewer") -> Callable[[F], F]:
    return number("--gpus -n N", (1, 1024), "Ranks, one a GPU.", or_else=or_else)


version_option = click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version and exit."
)
set_option = option(
    "--set settings NAME=VALUE",
    "Give a param a value: a number, a list such as [4,2,1], or a type such as fp32. QUEUE.ATTRIBUTE=VALUE says "
    "an attribute of a queue, such as compute.sms=100. Repeatable.",
    multiple=True,
)
machine_option = option(
    "--machine NAME|FILE.toml",
    "The machine to compile for and to model time on: a stored one (see `ficco machine`) or a file's.",
    or_else="h200-switch",
    complete="machines files",
)
trust_option = flag("--trust", "Let a stored plan name kernels' files outside of its folder (docs/trust.md).")
json_option = flag("--json as_json", "Print one JSON object on stdout and nothing else.")
bound_options = all_of(gpus_option(), set_option, machine_option)  # what binds the sizes of a schedule
ranks_per_gpu = number("--ranks-per-gpu N", (1, 1024), "Ranks that share a GPU, so that fewer GPUs do.", 1)

run_options = all_of(
    target("SCHEDULE|OPERATION|plan.json", "operations schedules files"),
    gpus_option("all GPUs, 8 without any, or the plan's own"),
    set_option,
    option(
        "--backend auto|cuda|hip|host|sim",
        "What runs it; auto takes GPUs if there are any, sim models time alone.",
        "auto",
    ),
    ranks_per_gpu,
    number(
        "--node N",
        (1, 1 << 16),
        "GPUs that reach each other's memory; an NVLink domain may hold several machines.",
        or_else="those of the processes that the launcher has started on this machine",
    ),
    flag(
        "--graph/--no-graph",
        "Replay the plan as captured graphs, one a GPU; checked against the same run on streams.",
        None,
    ),
    option(
        "--collectives",
        "What makes those of the plan on GPUs: NCCL or RCCL, or copies and sums of ours.",
        "auto",
        or_else="auto, the library where it is installed and each rank has a GPU of its own",
        type=click.Choice(["auto", "library", "copies"]),
    ),
    number("--timeout SECONDS", (1, MANY), "How long a run on GPUs may take before it is given up.", 60),
    machine_option,
    option(
        "--order ORDER",
        "What the host backend takes first: fifo, random:SEED, adversarial or lazy:STREAM.",
        or_else="fifo",
    ),
    number(
        "--iters N",
        (1, MANY),
        "Timed runs besides the verified one; the median counts.",
        or_else="3 on GPUs with baselines, else the verified run is timed",
    ),
    number("--warmup N", (0, MANY), "Runs before the timed ones.", 0),
    flag(
        "--baselines/--no-baselines",
        "On GPUs, measure serial and ideal in turn with the timed runs, or have them modelled.",
        True,
        or_else="--baselines",
    ),
    flag(
        "--exact", "Verify on integers alone, which nothing rounds: results must be equal.", or_else="random data, too"
    ),
    flag("--no-verify", "Do not compare the result with a reference."),
    number("--seed N", (0, 2**63 - 1), "Seed of the random inputs.", 0),
    option("--trace FILE.json", "Write what happened when, for ui.perfetto.dev and `ficco timeline`."),
    option("--timeline FILE.svg|html", "Draw what happened when."),
    option(
        "--report FILE.html",
        "Write a page with all of it: what ran and why, verdicts, timeline, where the time went, stages.",
    ),
    option(
        "--emit",
        "Print this instead of running.",
        type=click.Choice(["graph", "plan", "plan-json", "device-plan", "device-plan-json", "run-plan"]),
    ),
    option(
        "--mode",
        "With --emit device-plan: of which mode; embedded graphs are parts of callers' own.",
        or_else="streams",
        type=click.Choice(["streams", "graph", "embedded", "traced", "gated"]),
    ),
    number(
        "--ranks-per-process N",
        (1, 1024),
        "With --emit device-plan: for processes with so many ranks each.",
        or_else="one process",
    ),
    option(
        "--by rules|model|measured",
        "With an OPERATION: what chooses its schedule.",
        or_else="rules; the model on a mesh",
    ),
    trust_option,
    json_option,
)
