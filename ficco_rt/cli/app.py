"""The command line as click sees it: names, options, help. What the commands do is imported when they run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_EXITS = (
    "Exit codes: 0 ok, 1 the schedule is wrong, 2 usage, 3 device or driver, 4 the numbers are wrong, 5 a bug of ours, "
    "130 interrupted."
)


def _number(least: int, most: int) -> Callable[[object], int]:
    """An option's type: a whole number in a range, without click's own words for it in every help line."""

    def convert(text: object) -> int:
        written = str(text).strip()
        digits = re.fullmatch(r"[+-]?[0-9]+(_[0-9]+)*", written) and len(written) < 30
        number = int(written) if digits else least - 1
        if not least <= number <= most:
            raise click.BadParameter(f"'{text}' is not a whole number from {least} to {most}")
        return number

    return convert


def _options(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
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


_version_option = click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version and exit."
)


def _gpus(default: str) -> Callable[[Any], Any]:
    return click.option(
        "--gpus", "-n", type=_number(1, 1024), metavar="N", help=f"Ranks, one a GPU.  [default: {default}]"
    )


def _machines(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may complete a machine's name to: the stored ones, and files."""
    from ..machine.profiles import NAMES

    return [*(CompletionItem(name) for name in NAMES if name.startswith(begun)), CompletionItem(begun, type="file")]


_set = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Give a param a value: a number, a list such as [4,2,1], or a type such as fp32. Repeatable.",
)
_machine = click.option(
    "--machine",
    metavar="NAME|FILE.toml",
    shell_complete=_machines,
    help="The machine to compile for and to model time on: a stored one (see `ficco machine`) or a file's.  "
    "[default: h200-switch]",
)
_trust = click.option(
    "--trust", is_flag=True, help="Let a stored plan name kernels' files outside of its folder (docs/trust.md)."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else.")


def _schedules(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may complete a schedule's name to: those of the library, and files."""
    from .. import library

    names = [entry.name for entry in library.entries() if entry.name.startswith(begun)]
    return [*map(CompletionItem, names), CompletionItem(begun, type="file")]


def _operations(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may complete an operation's name to."""
    from .. import library

    return [CompletionItem(name) for name in library.operations() if name.startswith(begun)]


def _targets(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may complete what is run to: operations, too."""
    return [*_operations(context, parameter, begun), *_schedules(context, parameter, begun)]


def _explored(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """What a shell may complete what is explored to: operations, and tables' files."""
    return [*_operations(context, parameter, begun), CompletionItem(begun, type="file")]


_run_options = _options(
    click.argument("target", metavar="SCHEDULE|OPERATION|plan.json", shell_complete=_targets),
    _gpus("all GPUs, 8 without any, or the plan's own"),
    _set,
    click.option(
        "--backend",
        default="auto",
        metavar="auto|cuda|hip|host|sim",
        help="What runs it; auto takes GPUs if there are any, sim models time alone.  [default: auto]",
    ),
    click.option(
        "--ranks-per-gpu",
        type=_number(1, 1024),
        default=1,
        metavar="N",
        help="Ranks that share a GPU, so that fewer GPUs do.  [default: 1]",
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
        type=_number(1, 1_000_000),
        default=60,
        metavar="SECONDS",
        help="How long a run on GPUs may take before it is given up.  [default: 60]",
    ),
    _machine,
    click.option(
        "--order",
        default=None,
        metavar="ORDER",
        help="What the host backend takes first: fifo, random:SEED, adversarial or lazy:STREAM.  [default: fifo]",
    ),
    click.option(
        "--iters",
        type=_number(1, 1_000_000),
        default=None,
        metavar="N",
        help="Timed runs besides the verified one; the median counts.  [default: 3 on GPUs with baselines, else the "
        "verified run is timed]",
    ),
    click.option(
        "--warmup",
        type=_number(0, 1_000_000),
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
    click.option("--no-verify", is_flag=True, help="Do not compare the result with a reference."),
    click.option(
        "--seed",
        type=_number(0, 2**63 - 1),
        default=0,
        metavar="N",
        help="Seed of the random inputs.  [default: 0]",
    ),
    click.option(
        "--trace", metavar="FILE.json", help="Write what happened when, for ui.perfetto.dev and `ficco timeline`."
    ),
    click.option("--timeline", metavar="FILE.svg|html", help="Draw what happened when."),
    click.option(
        "--emit",
        type=click.Choice(["graph", "plan", "plan-json", "device-plan", "device-plan-json"]),
        help="Print this instead of running.",
    ),
    click.option(
        "--mode",
        type=click.Choice(["streams", "graph", "embedded", "traced"]),
        default=None,
        help="With --emit device-plan: of which mode; embedded graphs are parts of callers' own.  [default: streams]",
    ),
    click.option(
        "--ranks-per-process",
        type=_number(1, 1024),
        default=None,
        metavar="N",
        help="With --emit device-plan: for processes with so many ranks each.  [default: one process]",
    ),
    click.option(
        "--by",
        metavar="rules|model|measured",
        help="With an OPERATION: what chooses its schedule.  [default: rules]",
    ),
    _trust,
    _json,
)


def _run(**options: Any) -> int:
    from ..graph.budget import one_meter
    from .common import DEFAULT_GPUS
    from .options import Options
    from .run import run

    with one_meter(options["gpus"] or DEFAULT_GPUS):  # of the plan and of what is made of it, together
        return run(Options(**options))


@click.command("ficco-run", context_settings=_SETTINGS, epilog=_EXITS, no_args_is_help=True)
@_run_options
@_version_option
def run(**options: Any) -> int:
    """Compile a schedule, run it, and say how right and how fast it is.

    SCHEDULE is a .ficco file, a name in the library (see `ficco list`) such as ag_gemm/hetero_fused_1d, or `-`
    for standard input, which may hold a plan, too. For an OPERATION, such as ag_gemm, the schedule is chosen
    (see `ficco choose`).
    """
    return _run(**options)


@click.group("ficco", context_settings=_SETTINGS, epilog=_EXITS, no_args_is_help=True)
@_version_option
def ficco() -> None:
    """Schedules that overlap computation and communication: check, run, explain and draw them."""


@ficco.command("run", epilog=_EXITS, no_args_is_help=True)
@_run_options
def run_verb(**options: Any) -> int:
    """The same as `ficco-run`."""
    return _run(**options)


@ficco.command("init", short_help="Write a first schedule.", no_args_is_help=True)
@click.argument("file", metavar="FILE.ficco")
@click.option("--like", metavar="SCHEDULE", help="Copy this one, such as ag_gemm/streamed.", shell_complete=_schedules)
def init(**options: Any) -> int:
    """Write a first schedule to a new file, to be changed and run."""
    from .init import init

    return init(**options)


@ficco.command("check", short_help="Prove schedules and check their plans.", no_args_is_help=True)
@click.argument("targets", nargs=-1, required=True, metavar="SCHEDULE|plan.json...", shell_complete=_schedules)
@click.option(
    "--gpus",
    "-n",
    default=None,
    metavar="N,N,...",
    help="Numbers of ranks to check at.  [default: 8, or the plan's own]",
)
@_set
@_machine
@_trust
@_json
def check(**options: Any) -> int:
    """Prove schedules and check their plans, without running them; `-` is standard input."""
    from .check import check

    return check(**options)


@ficco.command("lsp", short_help="Serve editors: mistakes, hovers, definitions, names.")
@click.option("--tcp", type=_number(1, 65535), metavar="PORT", help="Serve one editor on a port of this machine.")
def lsp(**options: Any) -> int:
    """A language server on standard input and output: syntax and names as you type, the proof behind them."""
    from .lsp import lsp

    return lsp(**options)


@ficco.command("fmt", short_help="Format schedules.", no_args_is_help=True)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--check", "check_only", is_flag=True, help="Change nothing; exit with 1 if a file would change.")
def fmt(**options: Any) -> int:
    """Format schedules in place; `-` formats standard input to standard output."""
    from .fmt import fmt

    return fmt(**options)


@ficco.command("compile", short_help="Write a schedule's plan as JSON.", no_args_is_help=True)
@click.argument("target", metavar="SCHEDULE", shell_complete=_schedules)
@_gpus("8")
@_set
@_machine
@click.option("--output", "-o", metavar="plan.json", help="The file to write.  [default: standard output]")
def compile_verb(**options: Any) -> int:
    """Write the proven, checked plan of a schedule as JSON; `-` is standard input."""
    from .compile import compile_plan

    return compile_plan(**options)


@ficco.command("list")
@_json
def list_verb(**options: Any) -> int:
    """The schedules that come with ficco."""
    from .listing import list_library

    return list_library(**options)


@ficco.command("explain", short_help="Tell in plain words what a schedule does.", no_args_is_help=True)
@click.argument("target", metavar="SCHEDULE", shell_complete=_schedules)
@_gpus("8")
@_set
@_machine
@_json
def explain(**options: Any) -> int:
    """Tell in plain words what a schedule does: stages, bytes a link, operations, memory, what waits for what.

    `-` is standard input.
    """
    from .explain import explain

    return explain(**options)


@ficco.command("calibrate", short_help="Measure this machine's GPUs.", epilog=_EXITS)
@_gpus("all GPUs, 8 at most")
@click.option("--backend", default="auto", metavar="auto|cuda|hip", help="Whose GPUs are measured.  [default: auto]")
@click.option(
    "--seconds", type=_number(5, 3600), default=110, metavar="N", help="How long it may take.  [default: 110]"
)
@click.option("--name", metavar="NAME", help="What the machine is called.  [default: by its GPUs]")
@click.option("--output", "-o", metavar="FILE.toml", help="Write the machine to a file, for --machine.")
@_json
def calibrate(**options: Any) -> int:
    """Measure this machine's GPUs: copies, launches, signals, GEMMs, sums, and what they cost one another.

    Small schedules are run that each cost one thing; their times, and the figures that explain them, are printed beside
    what the GPUs' data sheets let expect.
    """
    from .calibrate import calibrate

    return calibrate(**options)


@ficco.command("machine", short_help="Show a machine and where its numbers come from.")
@click.argument("target", required=False, metavar="[NAME|FILE.toml]", shell_complete=_machines)
@click.option("--output", "-o", metavar="FILE.toml", help="Write it to a file instead, to be changed.")
@_json
def machine_verb(**options: Any) -> int:
    """Show a machine: its numbers with the source of each, and what was not measured. Without a name, list those that
    come with ficco."""
    from .machine import show_machine

    return show_machine(**options)


_by = click.option(
    "--by",
    default="rules",
    metavar="rules|model|measured",
    help="What chooses: closed rules, simulation, or times that `ficco tune` measured.  [default: rules]",
)
_candidates = click.option(
    "--candidates",
    metavar="FILE.json",
    help="Choose among these: a list of schedules, or of {schedule, params}.  [default: the shipped ones]",
)


@ficco.command("choose", short_help="Say which schedule an operation should get, and why.", no_args_is_help=True)
@click.argument("operation", metavar="OPERATION", shell_complete=_operations)
@_gpus("8")
@_set
@_machine
@_by
@_candidates
@click.option("--measured", metavar="FILE.json", help="Measured times to go by.  [default: your own]")
@_json
def choose(**options: Any) -> int:
    """Say which schedule, with which pieces, an operation such as ag_gemm should get for its sizes on a machine.

    Prints the choice, its predicted time, the reasons, and what comes next (docs/choose.md).
    """
    from .choosing import choose

    return choose(**options)


@ficco.command("tune", short_help="Measure an operation's best schedules and remember.", no_args_is_help=True)
@click.argument("targets", nargs=-1, required=True, metavar="OPERATION|FILE...", shell_complete=_operations)
@_gpus("all GPUs")
@_set
@click.option("--backend", default="auto", metavar="auto|cuda|hip", help="The GPUs to measure on.  [default: auto]")
@click.option(
    "--ranks-per-gpu", type=_number(1, 1024), default=1, metavar="N", help="Ranks that share a GPU.  [default: 1]"
)
@click.option(
    "--best", type=_number(1, 100), default=4, metavar="N", help="Candidates of the model's ranking.  [default: 4]"
)
@click.option("--rounds", type=_number(1, 1000), default=3, metavar="N", help="Passes over them.  [default: 3]")
@click.option("--iters", type=_number(1, 1_000_000), default=10, metavar="N", help="Runs of a pass.  [default: 10]")
@click.option("--no-verify", is_flag=True, help="Do not compare the candidates' results with a reference.")
@_candidates
@click.option("--merge", is_flag=True, help="Put files of measured times together in one, -o; nothing is measured.")
@click.option("--output", "-o", metavar="FILE.json", help="The file to add the times to.  [default: your own]")
@_json
def tune(**options: Any) -> int:
    """Measure the model's best few schedules of an operation on this machine's GPUs, and remember their times, which
    `ficco choose --by measured` goes by."""
    from .choosing import tune

    return tune(**options)


@ficco.command("timeline", short_help="Draw a trace.", no_args_is_help=True)
@click.argument("trace", metavar="trace.json")
@click.option(
    "--output", "-o", metavar="FILE.svg|html", help="The picture to write.  [default: a sketch on the terminal]"
)
@click.option("--works", is_flag=True, help="Print when the works inside streamed launches waited, began and ended.")
@click.option("--against", metavar="trace.json", help="With --works: the same works of another trace beside them.")
def timeline(**options: Any) -> int:
    """Draw a trace that `ficco-run --trace` wrote."""
    from .timeline import draw_file

    return draw_file(**options)


@ficco.command("explore", short_help="Model many schedules on many sizes and machines.", no_args_is_help=True)
@click.argument("target", metavar="OPERATION|TABLE", shell_complete=_explored)
@click.option(
    "--scenarios", metavar="FILE.json", help="Sizes under names.  [default: ficco's own, unless --set gives all sizes]"
)
@click.option("--only", multiple=True, metavar="TEXT", help="Only scenarios with this in their names. Repeatable.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUES",
    help="Values of a size or type: M=1024,4096, M=1024..16384*2 or M=1024..4096+1024. All combinations are "
    "scenarios, or are made of each scenario of a file. Repeatable.",
)
@click.option(
    "--schedules",
    multiple=True,
    metavar="PATTERN",
    help="Schedules of the operation, such as uniform_*, or a .ficco file; the serial one always takes part. "
    "Repeatable.  [default: all]",
)
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=VALUES",
    help="Values of a param that schedules leave open. Repeatable.  [default: chunks=1,2,4,8]",
)
@click.option("--gpus", "-n", default="8", metavar="N,N,...", help="Numbers of ranks.  [default: 8]")
@click.option(
    "--machine",
    "machines",
    multiple=True,
    metavar="NAME|FILE.toml",
    shell_complete=_machines,
    help="A machine to model time on, stored or a file's. Repeatable.  [default: h200-switch]",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE.csv|json",
    help="The table, written row by row. Rows that are there, made by this version, are not made again.",
)
@click.option("--plot", metavar="FOLDER", help="Draw speed-ups, winners and losses into a folder, as SVG.")
@click.option(
    "--measured", metavar="FILE.json", help="Compare with what `python -m tools.bench --json FILE.json` has measured."
)
@click.option("--jobs", "-j", type=_number(1, 1024), metavar="N", help="Processes.  [default: one a core]")
@_json
def explore(**options: Any) -> int:
    """Model an operation's schedules, with several values of their params, on many sizes, numbers of ranks and
    machines: a table of all, and the best schedule of each. No GPU is needed, and no time is measured.

    OPERATION is ag_gemm, gemm_rs, gemm_ar or a2a_gemm; a table that an earlier sweep has written is summed up and
    drawn without modelling anything.
    """
    from .explore import explore

    return explore(**options)


@ficco.command("characterise", short_help="What cutting work and overlapping it loses.")
@_machine
@_gpus("8")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUES",
    help="Sizes of a GPU's GEMM, M, N and K, and its type T: M=256..16384*2.  [default: M=256..16384*2 N=4096 K=8192 "
    "T=bf16]",
)
@click.option("--pieces", default="2,4,8,16", metavar="N,N,...", help="Numbers of pieces.  [default: 2,4,8,16]")
@click.option("--output", "-o", metavar="FILE.svg", help="Draw it instead of printing it.")
@_json
def characterise(**options: Any) -> int:
    """The two losses that decide how finely work is worth cutting, by the size of a GPU's GEMM: what pieces of rows or
    of K cost (decomposition), and what GEMMs and copies cost each other (contention). They are the machine's measured
    ones if it has been measured, else the model's.
    """
    from .characterise import characterise

    return characterise(**options)
