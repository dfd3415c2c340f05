"""Options that commands share, and all of `ficco-run`: their types, what shells may complete them to, their help."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ..errors import UsageError
from ..report.request import MAX_GPUS

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EXITS = (
    "Exit codes: 0 ok, 1 the schedule is wrong, 2 usage, 3 device or driver, 4 the numbers are wrong, 5 a bug of ours, "
    "130 interrupted."
)


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


def all_of(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    def add(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from .. import __version__

        click.echo(f"ficco {__version__}")
        context.exit()


version_option = click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version and exit."
)


def gpus_option(default: str = "8, or those of a machine's file if it has fewer") -> Callable[[Any], Any]:
    return click.option(
        "--gpus", "-n", type=whole_number(1, 1024), metavar="N", help=f"Ranks, one a GPU.  [default: {default}]"
    )


def complete_machines(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may complete a machine's name to: the stored ones, and files."""
    from ..machine.profiles import NAMES

    return [*(CompletionItem(name) for name in NAMES if name.startswith(begun)), CompletionItem(begun, type="file")]


def complete_words(_context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may complete an option to whose words its metavar lists."""
    words = str(getattr(parameter, "metavar", "")).split("|")
    return [CompletionItem(word) for word in words if word.startswith(begun)]


set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Give a param a value: a number, a list such as [4,2,1], or a type such as fp32. QUEUE.ATTRIBUTE=VALUE says "
    "an attribute of a queue, such as compute.sms=100. Repeatable.",
)
machine_option = click.option(
    "--machine",
    metavar="NAME|FILE.toml",
    shell_complete=complete_machines,
    help="The machine to compile for and to model time on: a stored one (see `ficco machine`) or a file's.  "
    "[default: h200-switch]",
)
trust_option = click.option(
    "--trust", is_flag=True, help="Let a stored plan name kernels' files outside of its folder (docs/trust.md)."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else.")


def complete_schedules(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may complete a schedule's name to: those of the library, and files."""
    from ..files import shipped

    names = [entry.name for entry in shipped.entries() if entry.name.startswith(begun)]
    return [*map(CompletionItem, names), CompletionItem(begun, type="file")]


def complete_operations(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may complete an operation's name to."""
    from ..files import shipped

    return [CompletionItem(name) for name in shipped.operations() if name.startswith(begun)]


def complete_targets(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may complete what is run to: operations, too."""
    return [*complete_operations(context, parameter, begun), *complete_schedules(context, parameter, begun)]


def complete_explored(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may complete what is explored to: operations, and tables' files."""
    return [*complete_operations(context, parameter, begun), CompletionItem(begun, type="file")]


run_options = all_of(
    click.argument("target", metavar="SCHEDULE|OPERATION|plan.json", shell_complete=complete_targets),
    gpus_option("all GPUs, 8 without any, or the plan's own"),
    set_option,
    click.option(
        "--backend",
        default="auto",
        metavar="auto|cuda|hip|host|sim",
        shell_complete=complete_words,
        help="What runs it; auto takes GPUs if there are any, sim models time alone.  [default: auto]",
    ),
    click.option(
        "--ranks-per-gpu",
        type=whole_number(1, 1024),
        default=1,
        metavar="N",
        help="Ranks that share a GPU, so that fewer GPUs do.  [default: 1]",
    ),
    click.option(
        "--node",
        type=whole_number(1, 1 << 16),
        default=None,
        metavar="N",
        help="GPUs that reach each other's memory; an NVLink domain may hold several machines.  [default: those of the "
        "processes that the launcher has started on this machine]",
    ),
    click.option(
        "--graph/--no-graph",
        default=None,
        help="Replay the plan as captured graphs, one a GPU; checked against the same run on streams.",
    ),
    click.option(
        "--collectives",
        type=click.Choice(["auto", "library", "copies"]),
        default="auto",
        help="What makes those of the plan on GPUs: NCCL or RCCL, or copies and sums of ours.  [default: auto, the "
        "library where it is installed and each rank has a GPU of its own]",
    ),
    click.option(
        "--timeout",
        type=whole_number(1, 1_000_000),
        default=60,
        metavar="SECONDS",
        help="How long a run on GPUs may take before it is given up.  [default: 60]",
    ),
    machine_option,
    click.option(
        "--order",
        default=None,
        metavar="ORDER",
        help="What the host backend takes first: fifo, random:SEED, adversarial or lazy:STREAM.  [default: fifo]",
    ),
    click.option(
        "--iters",
        type=whole_number(1, 1_000_000),
        default=None,
        metavar="N",
        help="Timed runs besides the verified one; the median counts.  [default: 3 on GPUs with baselines, else the "
        "verified run is timed]",
    ),
    click.option(
        "--warmup",
        type=whole_number(0, 1_000_000),
        default=0,
        metavar="N",
        help="Runs before the timed ones.  [default: 0]",
    ),
    click.option(
        "--baselines/--no-baselines",
        default=True,
        help="On GPUs, measure serial and ideal in turn with the timed runs, or have them modelled.  "
        "[default: --baselines]",
    ),
    click.option(
        "--exact",
        is_flag=True,
        help="Verify on integers alone, which nothing rounds: results must be equal.  [default: random data, too]",
    ),
    click.option("--no-verify", is_flag=True, help="Do not compare the result with a reference."),
    click.option(
        "--seed",
        type=whole_number(0, 2**63 - 1),
        default=0,
        metavar="N",
        help="Seed of the random inputs.  [default: 0]",
    ),
    click.option(
        "--trace", metavar="FILE.json", help="Write what happened when, for ui.perfetto.dev and `ficco timeline`."
    ),
    click.option("--timeline", metavar="FILE.svg|html", help="Draw what happened when."),
    click.option(
        "--report",
        metavar="FILE.html",
        help="Write a page with all of it: what ran and why, verdicts, timeline, where the time went, stages.",
    ),
    click.option(
        "--emit",
        type=click.Choice(["graph", "plan", "plan-json", "device-plan", "device-plan-json", "run-plan"]),
        help="Print this instead of running.",
    ),
    click.option(
        "--mode",
        type=click.Choice(["streams", "graph", "embedded", "traced", "latched"]),
        default=None,
        help="With --emit device-plan: of which mode; embedded graphs are parts of callers' own.  [default: streams]",
    ),
    click.option(
        "--ranks-per-process",
        type=whole_number(1, 1024),
        default=None,
        metavar="N",
        help="With --emit device-plan: for processes with so many ranks each.  [default: one process]",
    ),
    click.option(
        "--by",
        metavar="rules|model|measured",
        help="With an OPERATION: what chooses its schedule.  [default: rules; the model on a mesh]",
    ),
    trust_option,
    json_option,
)


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
