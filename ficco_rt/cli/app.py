"""Declares the command line for click: names, options, help. The code of a command is imported when it runs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from .declare import EXITS, MANY, SETTINGS, Decorator, all_of, flag, number, option, target

# ---------------------------------------------------------------- options of several commands


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from .. import __version__

        click.echo(f"ficco {__version__}")
        context.exit()


def gpus_option(or_else: str = "8, or those of a machine's file if it has fewer") -> Decorator:
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
        type=click.Choice(["streams", "apart", "graph", "embedded", "traced", "gated"]),
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


# ---------------------------------------------------------------- commands


def _run(**options: Any) -> int:
    from .options import Options
    from .together import together

    return together(Options(**options))


@click.command("ficco-run", context_settings=SETTINGS, epilog=EXITS, no_args_is_help=True)
@run_options
@version_option
def run(**options: Any) -> int:
    """Compile a schedule, run it, and say how right and how fast it is.

    SCHEDULE is a .ficco file, a name in the library (see `ficco list`) such as ag_gemm/hetero_fused_1d, or `-`
    for standard input, which may hold a plan, too. For an OPERATION, such as ag_gemm, the schedule is chosen
    (see `ficco choose`).

    Under torchrun (-m ficco_rt.run), mpirun or srun the processes run one plan together, each its own ranks, and
    process 0 reports.
    """
    return _run(**options)


@click.group("ficco", context_settings=SETTINGS, epilog=EXITS, no_args_is_help=True)
@version_option
def ficco() -> None:
    """Schedules that overlap computation and communication: check, run, explain and draw them."""


@ficco.command("run", epilog=EXITS, no_args_is_help=True)
@run_options
def run_verb(**options: Any) -> int:
    """The same as `ficco-run`."""
    return _run(**options)


def verb(short: str | None, *options: Decorator, alone: bool = False, **words: Any) -> Decorator:
    """A command of `ficco`. It has the name of what is decorated, whose docstring is its help, and calls the function
    of this name in the module of this name. `alone`: it does something without arguments."""

    def declare(described: Callable[[], None]) -> click.Command:
        name = described.__name__.rstrip("_")

        def call(**given: Any) -> int:
            return int(getattr(import_module(f".{name}", __package__), name)(**given))

        call.__doc__ = described.__doc__
        return ficco.command(name, short_help=short, no_args_is_help=not alone, **words)(all_of(*options)(call))

    return declare


schedule_target = target("SCHEDULE", "schedules files")
candidates_option = option(
    "--candidates FILE.json",
    "Choose among these: a list of schedules, or of {schedule, params}.",
    or_else="the shipped ones",
)


def backend_option(words: str, help: str, or_else: str = "") -> Decorator:
    return option(f"--backend {words}", help, "auto", or_else=or_else)


def output_option(file: str, help: str, or_else: str = "", **more: Any) -> Decorator:
    return option(f"--output -o {file}", help, or_else=or_else, **more)


@verb(
    "Write a first schedule.",
    target("FILE.ficco", name="file"),
    option("--like SCHEDULE", "Copy this one, such as ag_gemm/streamed.", complete="schedules files"),
)
def init() -> None:
    """Write a first schedule to a new file, to be changed and run."""


@verb(
    "Prove schedules, check their plans, warn of slow text.",
    target("SCHEDULE|plan.json...", "schedules files", "targets", nargs=-1, required=True),
    option(
        "--gpus -n N,N,...",
        "Numbers of ranks to check at.",
        or_else="8, those of a machine's file if it has fewer, or the plan's own",
    ),
    set_option,
    machine_option,
    trust_option,
    json_option,
)
def check() -> None:
    """Prove schedules, check their plans, and warn of text that is probably slow, or keeps partial sums in types too
    narrow for them, as a linter does. Nothing runs. `-` is standard input."""


@verb(
    "Serve editors: mistakes, hovers, definitions, names.",
    number("--tcp PORT", (1, 65535), "Serve one editor on a port of this machine."),
    alone=True,
)
def lsp() -> None:
    """A language server on standard input and output: syntax and names as you type, the proof behind them."""


@verb(
    "Format schedules.",
    target("FILE...", name="files", nargs=-1, required=True),
    flag("--check check_only", "Change nothing; exit with 1 if a file would change."),
)
def fmt() -> None:
    """Format schedules in place; `-` formats standard input to standard output."""


@verb(
    "Write a schedule's plan as JSON.",
    schedule_target,
    bound_options,
    output_option("plan.json", "The file to write.", "standard output"),
)
def compile_() -> None:
    """Write the proven, checked plan of a schedule as JSON; `-` is standard input."""


@verb(None, target("[OPERATION]", "operations", "operation", required=False), json_option, alone=True)
def list_() -> None:
    """The schedules that come with ficco, or those of one operation, such as ag_gemm."""


@verb("Tell in plain words what a schedule does.", schedule_target, bound_options, json_option)
def explain() -> None:
    """Tell in plain words what a schedule does: stages, bytes a link, operations, memory, what waits for what.

    `-` is standard input.
    """


@verb(
    "Measure this machine's GPUs.",
    gpus_option("all GPUs, 8 at most"),
    backend_option("auto|cuda|hip", "Whose GPUs are measured."),
    number("--seconds N", (5, 3600), "How long it may take.", 110),
    option("--name NAME", "What the machine is called.", or_else="by its GPUs"),
    output_option("FILE.toml", "Write the machine to a file, for --machine."),
    json_option,
    alone=True,
    epilog=EXITS,
)
def calibrate() -> None:
    """Measure this machine's GPUs: copies, launches, signals, GEMMs, sums, and what they cost one another.

    Small schedules are run that each cost one thing; their times, and the figures that explain them, are printed beside
    what the GPUs' data sheets let expect.
    """


@verb(
    "Show a machine and where its numbers come from.",
    target("[NAME|FILE.toml]", "machines files", required=False),
    output_option("FILE.toml", "Write it to a file instead, to be changed."),
    json_option,
    alone=True,
)
def machine() -> None:
    """Show a machine: its numbers with the source of each, and what was not measured. Without a name, list those that
    come with ficco."""


@verb(
    "Say which schedule an operation should get, and why.",
    target("OPERATION", "operations", "operation"),
    bound_options,
    option(
        "--by rules|model|measured",
        "What chooses: closed rules, simulation, or times that `ficco tune` measured.",
        or_else="rules; the model on a mesh, where no rule was measured",
    ),
    candidates_option,
    option("--measured FILE.json", "Measured times to go by.", or_else="your own"),
    json_option,
)
def choose() -> None:
    """Say which schedule, with which pieces, an operation such as ag_gemm should get for its sizes on a machine.

    Prints the choice, its predicted time, the reasons, and what comes next (docs/choose.md).
    """


@verb(
    "Measure an operation's best schedules and remember.",
    target("OPERATION|FILE...", "operations", "targets", nargs=-1, required=True),
    gpus_option("all GPUs"),
    set_option,
    backend_option("auto|cuda|hip", "The GPUs to measure on."),
    number("--ranks-per-gpu N", (1, 1024), "Ranks that share a GPU.", 1),
    number("--best N", (1, 100), "Candidates of the model's ranking.", 4),
    number("--rounds N", (1, 1000), "Passes over them.", 3),
    number("--iters N", (1, MANY), "Runs of a pass.", 10),
    flag("--no-verify", "Do not compare the candidates' results with a reference."),
    candidates_option,
    flag("--merge", "Put files of measured times together in one, -o; nothing is measured."),
    output_option("FILE.json", "The file to add the times to.", "your own"),
    json_option,
)
def tune() -> None:
    """Measure the model's best few schedules of an operation on this machine's GPUs, and remember their times, which
    `ficco choose --by measured` goes by."""


@verb(
    "Draw a trace.",
    target("trace.json", name="trace"),
    output_option("FILE.svg|html", "The picture to write.", "a sketch on the terminal"),
    flag("--works", "Print when the works inside streamed launches waited, began and ended."),
    option("--against trace.json", "With --works: the same works of another trace beside them."),
)
def timeline() -> None:
    """Draw a trace that `ficco-run --trace` wrote."""


@verb(
    "Write a page on one run, or on several side by side.",
    target("RUN.json...", name="runs", nargs=-1, required=True),
    output_option("FILE.html", "The page to write.", required=True),
)
def report() -> None:
    """Write one page that needs nothing else on runs that have ended: several stand side by side.

    RUN.json is what `ficco-run --trace FILE.json` wrote, or, for a page without a timeline, what `ficco-run --json`
    printed.
    """


@verb(
    "Prove and model a schedule again whenever it is saved.",
    schedule_target,
    bound_options,
    output_option("FILE.html", "Write a report page, too, which reloads itself.", "none"),
    epilog=EXITS,
)
def watch() -> None:
    """Prove a schedule, check its plan and model a run, now and whenever its file is saved, until Ctrl-C.

    A wrong schedule is answered with its messages, and the next save has its turn.
    """


@verb(
    "Show the JSON Schema of what a command prints with --json.",
    target("[NAME]", name="name", required=False),
    alone=True,
)
def schema() -> None:
    """Print the JSON Schema of what a command prints with --json: run, check, choose, … Without a name, list them."""


@verb(
    "Model many schedules on many sizes and machines.",
    target("OPERATION|TABLE", "operations files"),
    option("--scenarios FILE.json", "Sizes under names.", or_else="ficco's own, unless --set gives all sizes"),
    option("--only TEXT", "Only scenarios with this in their names. Repeatable.", multiple=True),
    option(
        "--set settings NAME=VALUES",
        "Values of a size or type: M=1024,4096, M=1024..16384*2 or M=1024..4096+1024. All combinations are scenarios, "
        "or are made of each scenario of a file. Repeatable.",
        multiple=True,
    ),
    option(
        "--schedules PATTERN",
        "Schedules of the operation, such as uniform_*, or a .ficco file; the serial one always takes part. "
        "Repeatable.",
        or_else="all",
        multiple=True,
    ),
    option(
        "--param params NAME=VALUES",
        "Values of a param that schedules leave open. Repeatable.",
        or_else="chunks=1,2,4,8",
        multiple=True,
    ),
    option("--gpus -n N,N,...", "Numbers of ranks.", or_else="8, or those of a machine's file if it has fewer"),
    option(
        "--machine machines NAME|FILE.toml",
        "A machine to model time on, stored or a file's. Repeatable.",
        or_else="h200-switch",
        multiple=True,
        complete="machines files",
    ),
    output_option(
        "FILE.csv|json", "The table, written row by row. Rows that are there, made by this version, are not made again."
    ),
    option("--plot FOLDER", "Draw speed-ups, winners and losses into a folder, as SVG."),
    option("--measured FILE.json", "Compare with what `python -m tools.bench --json FILE.json` has measured."),
    number("--jobs -j N", (1, 1024), "Processes.", or_else="one a core"),
    json_option,
)
def explore() -> None:
    """Model an operation's schedules, with several values of their params, on many sizes, numbers of ranks and
    machines: a table of all, and the best schedule of each. No GPU is needed, and no time is measured. The exit code is
    2 if all schedules that were asked for are refused.

    OPERATION is one of `ficco list`, such as ag_gemm; a table that an earlier sweep has written is summed up and drawn
    without modelling anything.
    """


@verb(
    "Find how many resources GEMMs should leave to concurrent kernels.",
    schedule_target,
    gpus_option("all GPUs, 8 without any"),
    option(
        "--set given NAME=VALUE", "A param's value, or what a queue says, in all settings. Repeatable.", multiple=True
    ),
    option(
        "--sweep NAME=VALUES",
        "Try these instead: all combinations of compute.sms=100,116,132, vendor.priority=none,high, chunks=1,2. "
        "Repeatable.",
        or_else="each control that the schedule has, with priority and without",
        multiple=True,
    ),
    backend_option("auto|cuda|hip|sim", "What measures; sim models.", "auto, GPUs if there are any"),
    machine_option,
    number("--iters N", (1, 10_000), "Runs of a setting.", 3),
    number("--timeout SECONDS", (1, MANY), "How long a run may take before its setting is given up.", 20),
    flag("--graph/--no-graph", "Measure replays of graphs."),
    option(
        "--collectives", "What makes the collectives on GPUs.", "auto", type=click.Choice(["auto", "library", "copies"])
    ),
    option(
        "--rows rows_file FILE.json",
        "The table, written after each setting. Settings that are there are not tried again.",
    ),
    option("--plot FILE.svg", "Draw time over sequential against what was left free."),
    output_option("COPY.ficco", "Write a copy of the schedule that says the best setting."),
    json_option,
)
def shape() -> None:
    """Try what a schedule's queues may say of shared memory, residency, multiprocessors, priority, and the blocks and
    threads of the vendor's collectives; show time over sequential for each, and name the best (docs/shaping.md).

    On GPUs each setting is verified and measured in turn with the same work done one after the other; without GPUs it
    is modelled.
    """


@verb(
    "Show what cutting GEMMs into pieces and overlapping them costs.",
    machine_option,
    gpus_option(),
    option(
        "--set settings NAME=VALUES",
        "Sizes of a GPU's GEMM, M, N and K, and its type T: M=256..16384*2.",
        or_else="M=256..16384*2 N=4096 K=8192 T=bf16",
        multiple=True,
    ),
    option("--pieces N,N,...", "Numbers of pieces.", "2,4,8,16"),
    output_option("FILE.svg", "Draw it instead of printing it."),
    json_option,
    alone=True,
)
def characterise() -> None:
    """The two losses that decide how finely work is worth cutting, by the size of a GPU's GEMM: what pieces of rows or
    of K cost (decomposition), and what GEMMs and copies cost each other (contention). They are the machine's measured
    ones if it has been measured, else the model's.
    """
