"""The command line as click sees it: names, options, help. What the commands do is imported when they run."""

from __future__ import annotations

from typing import Any

import click

from .shared_options import (
    EXITS,
    SETTINGS,
    complete_explored,
    complete_machines,
    complete_operations,
    complete_schedules,
    complete_words,
    gpus_option,
    json_option,
    machine_option,
    run_options,
    set_option,
    trust_option,
    version_option,
    whole_number,
)


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


@ficco.command("init", short_help="Write a first schedule.", no_args_is_help=True)
@click.argument("file", metavar="FILE.ficco")
@click.option(
    "--like", metavar="SCHEDULE", help="Copy this one, such as ag_gemm/streamed.", shell_complete=complete_schedules
)
def init(**options: Any) -> int:
    """Write a first schedule to a new file, to be changed and run."""
    from .init import init

    return init(**options)


@ficco.command("check", short_help="Prove schedules, check their plans, warn of slow text.", no_args_is_help=True)
@click.argument("targets", nargs=-1, required=True, metavar="SCHEDULE|plan.json...", shell_complete=complete_schedules)
@click.option(
    "--gpus",
    "-n",
    default=None,
    metavar="N,N,...",
    help="Numbers of ranks to check at.  [default: 8, those of a machine's file if it has fewer, or the plan's own]",
)
@set_option
@machine_option
@trust_option
@json_option
def check(**options: Any) -> int:
    """Prove schedules, check their plans, and warn of text that is probably slow, or keeps partial sums in types too
    narrow for them, as a linter does. Nothing runs. `-` is standard input."""
    from .check import check

    return check(**options)


@ficco.command("lsp", short_help="Serve editors: mistakes, hovers, definitions, names.")
@click.option("--tcp", type=whole_number(1, 65535), metavar="PORT", help="Serve one editor on a port of this machine.")
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
@click.argument("target", metavar="SCHEDULE", shell_complete=complete_schedules)
@gpus_option()
@set_option
@machine_option
@click.option("--output", "-o", metavar="plan.json", help="The file to write.  [default: standard output]")
def compile_verb(**options: Any) -> int:
    """Write the proven, checked plan of a schedule as JSON; `-` is standard input."""
    from .compile import compile_plan

    return compile_plan(**options)


@ficco.command("list")
@click.argument("operation", required=False, metavar="[OPERATION]", shell_complete=complete_operations)
@json_option
def list_verb(**options: Any) -> int:
    """The schedules that come with ficco, or those of one operation, such as ag_gemm."""
    from .listing import list_library

    return list_library(**options)


@ficco.command("explain", short_help="Tell in plain words what a schedule does.", no_args_is_help=True)
@click.argument("target", metavar="SCHEDULE", shell_complete=complete_schedules)
@gpus_option()
@set_option
@machine_option
@json_option
def explain(**options: Any) -> int:
    """Tell in plain words what a schedule does: stages, bytes a link, operations, memory, what waits for what.

    `-` is standard input.
    """
    from .explain import explain

    return explain(**options)


@ficco.command("calibrate", short_help="Measure this machine's GPUs.", epilog=EXITS)
@gpus_option("all GPUs, 8 at most")
@click.option(
    "--backend",
    default="auto",
    metavar="auto|cuda|hip",
    shell_complete=complete_words,
    help="Whose GPUs are measured.  [default: auto]",
)
@click.option(
    "--seconds", type=whole_number(5, 3600), default=110, metavar="N", help="How long it may take.  [default: 110]"
)
@click.option("--name", metavar="NAME", help="What the machine is called.  [default: by its GPUs]")
@click.option("--output", "-o", metavar="FILE.toml", help="Write the machine to a file, for --machine.")
@json_option
def calibrate(**options: Any) -> int:
    """Measure this machine's GPUs: copies, launches, signals, GEMMs, sums, and what they cost one another.

    Small schedules are run that each cost one thing; their times, and the figures that explain them, are printed beside
    what the GPUs' data sheets let expect.
    """
    from .calibrate import calibrate

    return calibrate(**options)


@ficco.command("machine", short_help="Show a machine and where its numbers come from.")
@click.argument("target", required=False, metavar="[NAME|FILE.toml]", shell_complete=complete_machines)
@click.option("--output", "-o", metavar="FILE.toml", help="Write it to a file instead, to be changed.")
@json_option
def machine_verb(**options: Any) -> int:
    """Show a machine: its numbers with the source of each, and what was not measured. Without a name, list those that
    come with ficco."""
    from .machine import show_machine

    return show_machine(**options)


_by = click.option(
    "--by",
    metavar="rules|model|measured",
    help="What chooses: closed rules, simulation, or times that `ficco tune` measured.  [default: rules; the model on "
    "a mesh, where no rule was measured]",
)
_candidates = click.option(
    "--candidates",
    metavar="FILE.json",
    help="Choose among these: a list of schedules, or of {schedule, params}.  [default: the shipped ones]",
)


@ficco.command("choose", short_help="Say which schedule an operation should get, and why.", no_args_is_help=True)
@click.argument("operation", metavar="OPERATION", shell_complete=complete_operations)
@gpus_option()
@set_option
@machine_option
@_by
@_candidates
@click.option("--measured", metavar="FILE.json", help="Measured times to go by.  [default: your own]")
@json_option
def choose(**options: Any) -> int:
    """Say which schedule, with which pieces, an operation such as ag_gemm should get for its sizes on a machine.

    Prints the choice, its predicted time, the reasons, and what comes next (docs/choose.md).
    """
    from .choosing import choose

    return choose(**options)


@ficco.command("tune", short_help="Measure an operation's best schedules and remember.", no_args_is_help=True)
@click.argument("targets", nargs=-1, required=True, metavar="OPERATION|FILE...", shell_complete=complete_operations)
@gpus_option("all GPUs")
@set_option
@click.option(
    "--backend",
    default="auto",
    metavar="auto|cuda|hip",
    shell_complete=complete_words,
    help="The GPUs to measure on.  [default: auto]",
)
@click.option(
    "--ranks-per-gpu", type=whole_number(1, 1024), default=1, metavar="N", help="Ranks that share a GPU.  [default: 1]"
)
@click.option(
    "--best", type=whole_number(1, 100), default=4, metavar="N", help="Candidates of the model's ranking.  [default: 4]"
)
@click.option("--rounds", type=whole_number(1, 1000), default=3, metavar="N", help="Passes over them.  [default: 3]")
@click.option(
    "--iters", type=whole_number(1, 1_000_000), default=10, metavar="N", help="Runs of a pass.  [default: 10]"
)
@click.option("--no-verify", is_flag=True, help="Do not compare the candidates' results with a reference.")
@_candidates
@click.option("--merge", is_flag=True, help="Put files of measured times together in one, -o; nothing is measured.")
@click.option("--output", "-o", metavar="FILE.json", help="The file to add the times to.  [default: your own]")
@json_option
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


@ficco.command("report", short_help="Write a page on one run, or on several side by side.", no_args_is_help=True)
@click.argument("runs", nargs=-1, required=True, metavar="RUN.json...")
@click.option("--output", "-o", required=True, metavar="FILE.html", help="The page to write.")
def report(**options: Any) -> int:
    """Write one page that needs nothing else on runs that have ended: several stand side by side.

    RUN.json is what `ficco-run --trace FILE.json` wrote, or, for a page without a timeline, what `ficco-run --json`
    printed.
    """
    from .page.write import report

    return report(**options)


@ficco.command(
    "watch", short_help="Prove and model a schedule again whenever it is saved.", epilog=EXITS, no_args_is_help=True
)
@click.argument("target", metavar="SCHEDULE", shell_complete=complete_schedules)
@gpus_option()
@set_option
@machine_option
@click.option(
    "--output", "-o", metavar="FILE.html", help="Write a report page, too, which reloads itself.  [default: none]"
)
def watch(**options: Any) -> int:
    """Prove a schedule, check its plan and model a run, now and whenever its file is saved, until Ctrl-C.

    A wrong schedule is answered with its messages, and the next save has its turn.
    """
    from .watch import watch

    return watch(**options)


@ficco.command("schema", short_help="Show the JSON Schema of what a command prints with --json.")
@click.argument("name", required=False, metavar="[NAME]")
def schema(name: str | None) -> int:
    """Print the JSON Schema of what a command prints with --json: run, check, choose, … Without a name, list them."""
    from .schema import show_schema

    return show_schema(name)


@ficco.command("explore", short_help="Model many schedules on many sizes and machines.", no_args_is_help=True)
@click.argument("target", metavar="OPERATION|TABLE", shell_complete=complete_explored)
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
@click.option(
    "--gpus",
    "-n",
    metavar="N,N,...",
    help="Numbers of ranks.  [default: 8, or those of a machine's file if it has fewer]",
)
@click.option(
    "--machine",
    "machines",
    multiple=True,
    metavar="NAME|FILE.toml",
    shell_complete=complete_machines,
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
@click.option("--jobs", "-j", type=whole_number(1, 1024), metavar="N", help="Processes.  [default: one a core]")
@json_option
def explore(**options: Any) -> int:
    """Model an operation's schedules, with several values of their params, on many sizes, numbers of ranks and
    machines: a table of all, and the best schedule of each. No GPU is needed, and no time is measured. The exit code is
    2 if all schedules that were asked for are refused.

    OPERATION is ag_gemm, gemm_rs, gemm_ar or a2a_gemm; a table that an earlier sweep has written is summed up and
    drawn without modelling anything.
    """
    from .explore import explore

    return explore(**options)


@ficco.command("shape", short_help="Find what products should leave to what runs beside them.", no_args_is_help=True)
@click.argument("target", metavar="SCHEDULE", shell_complete=complete_schedules)
@gpus_option("all GPUs, 8 without any")
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A param's value, or what a queue says, in all settings. Repeatable.",
)
@click.option(
    "--sweep",
    multiple=True,
    metavar="NAME=VALUES",
    help="Try these instead: all combinations of compute.sms=100,116,132, vendor.priority=none,high, chunks=1,2. "
    "Repeatable.  [default: each control that the schedule has, with priority and without]",
)
@click.option(
    "--backend",
    default="auto",
    metavar="auto|cuda|hip|sim",
    shell_complete=complete_words,
    help="What measures; sim models.  [default: auto, GPUs if there are any]",
)
@machine_option
@click.option("--iters", type=whole_number(1, 10_000), default=3, metavar="N", help="Runs of a setting.  [default: 3]")
@click.option(
    "--timeout",
    type=whole_number(1, 1_000_000),
    default=20,
    metavar="SECONDS",
    help="How long a run may take before its setting is given up.  [default: 20]",
)
@click.option("--graph/--no-graph", default=False, help="Measure replays of graphs.")
@click.option(
    "--collectives",
    type=click.Choice(["auto", "library", "copies"]),
    default="auto",
    help="What makes the collectives on GPUs.  [default: auto]",
)
@click.option(
    "--rows",
    "rows_file",
    metavar="FILE.json",
    help="The table, written after each setting. Settings that are there are not tried again.",
)
@click.option("--plot", metavar="FILE.svg", help="Draw time over sequential against what was left free.")
@click.option("--output", "-o", metavar="COPY.ficco", help="Write a copy of the schedule that says the best setting.")
@json_option
def shape(**options: Any) -> int:
    """Try what a schedule's queues may say of shared memory, residency, multiprocessors, priority, and the blocks and
    threads of the vendor's collectives; show time over sequential for each, and name the best (docs/shaping.md).

    On GPUs each setting is verified and measured in turn with the same work done one after the other; without GPUs it
    is modelled.
    """
    from .shape import shape

    return shape(**options)


@ficco.command("characterise", short_help="What cutting work and overlapping it loses.")
@machine_option
@gpus_option()
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
@json_option
def characterise(**options: Any) -> int:
    """The two losses that decide how finely work is worth cutting, by the size of a GPU's GEMM: what pieces of rows or
    of K cost (decomposition), and what GEMMs and copies cost each other (contention). They are the machine's measured
    ones if it has been measured, else the model's.
    """
    from .characterise import characterise

    return characterise(**options)
