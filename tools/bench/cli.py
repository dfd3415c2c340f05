"""The command line, and the run from workers started to files written."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.files.atomic import REPORT, check_outputs
from ficco_rt.process.group import Group
from ficco_rt.process.transports import launched

from . import crews, kept, report
from .crews import KINDS, Join
from .gpus import ended, find_gpus
from .measure import PROCESSES, Row, Settings, measure
from .scenarios import DECODE_FEW, DEFAULT_FILE, OPERATIONS, SCALES, Scenario, chosen, decode, load
from .variants import CHOSEN, MODES, Variant, variants

QUICK_ROWS = ("qkv70b_2k", "qkv8b_16k", "o8b_16k", "decode_64")  # of `--processes --quick`

DESCRIPTION = """\
The shipped schedules beside NCCL then cuBLAS, PyTorch's async TP, NCCL's copy-engine collectives, and the limit: the
longer of the whole cuBLAS GEMM alone and staggered copies alone. One run, all GPUs, contestants in turns. cuBLASMp,
QuACK and FlashInfer take part where they are installed.

    python -m tools.bench                                  # the 14 rows of tools/bench/scenarios.json
    python -m tools.bench --decode                         # M = 16 … 2048
    python -m tools.bench --only qkv70b --quick            # a first look
    python -m tools.bench --scales 1x128                   # fp8 with scales of blocks
    python -m tools.bench --ranks 8                        # on two GPUs: what a rank of eight takes
    python -m tools.bench --processes                      # a process a GPU beside one process: 14 rows and decode
    torchrun --nproc-per-node 2 -m tools.bench --processes # the same in the processes of a launcher (mpirun, srun)
    python -m tools.bench --scenarios mine.json --json out.json
    python -m tools.bench campaign --help                  # many measurements, cheap ones, for models and choices

Exit codes: 0, 2 wrong arguments, 3 no PyTorch, no GPUs or a device failed, 4 wrong numbers, 130 interrupted."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--scenarios", type=Path, metavar="FILE", help="sizes to measure (default: tools/bench/scenarios.json)")
    add("--decode", action="store_true", help="sizes of a few tokens, instead of a file")
    add("--only", action="append", default=[], metavar="TEXT", help="scenarios whose name contains TEXT; repeatable")
    add("--transb", action="store_true", help="weights stored transposed, as nn.Linear stores them")
    add(
        "--scales",
        choices=tuple(SCALES),
        help="fp8_e4m3 with such scales, 1x128 beside 128x128; weights as by --transb",
    )
    add("--gpus", type=_from(2), metavar="N", help="GPUs, one a rank (default: all)")
    add("--ranks", type=_from(2), metavar="R", help="on two GPUs, what a rank of R takes; ours and the limit")
    add("--processes", action="store_true", help="ours also in a process a GPU, as it is chosen for the sizes")
    add("--rounds", type=_from(1), metavar="N", help="turns of every contestant (10; --processes: 3)")
    add("--singles", type=_from(1), default=3, metavar="N", help="single runs a turn (3)")
    add("--loop", type=_from(3), metavar="N", help="runs back to back, fewer if they are long (20; --processes: 1000)")
    add("--warmup", type=_from(1), default=2, metavar="N", help="runs before a turn is timed (2)")
    add("--finalists", type=_from(1), metavar="N", help="of ours, that take part in the rounds (3; --processes: 1)")
    add("--quick", action="store_true", help="3 rounds, 2 finalists, 2 values of a parameter; --processes: few rows")
    add("--skip", action="append", default=[], choices=KINDS, metavar="PEER", help=f"leave out: {', '.join(KINDS)}")
    add("--seed", type=_from(0), default=1, metavar="N", help="of the operands (1)")
    add("--json", type=Path, metavar="FILE", help="keep what is measured; after each row what there is so far")
    return parser.parse_args(arguments, argparse.Namespace(said=tuple(arguments)))


def _from(least: int) -> Callable[[str], int]:
    """A whole number that is no less."""

    def number(text: str) -> int:
        value = int(text) if text.isascii() and text.isdigit() else -1
        if value < least:
            raise argparse.ArgumentTypeError(f"wanted a whole number from {least}, given '{text}'")
        return value

    return number


def main(arguments: Sequence[str]) -> int:
    """The process's exit code."""
    options = parse(arguments)

    def start() -> int:
        if options.processes and launched()[1] > 1:
            from . import members

            members.launched(partial(run, options), Group.from_env())
        return bench(options)

    return ended("bench", start)


def run(options: argparse.Namespace, join: Join) -> int:
    """The exit code. `join` makes the crew of processes that a launcher has started."""
    return ended("bench", lambda: bench(options, join))


def bench(options: argparse.Namespace, join: Join | None = None) -> int:
    """Measure and report. Raises UsageError, DeviceError."""
    processes = options.processes
    if options.decode and options.scenarios:
        raise UsageError("--decode and --scenarios both say what to measure; give one of them")
    if processes and options.ranks:
        raise UsageError("--processes has a GPU a rank: leave --ranks out")
    check_outputs([(REPORT, options.json)], [options.scenarios or DEFAULT_FILE])
    scenarios, notes = _scenarios(options)
    gpus = find_gpus(options.gpus)
    ranks = _ranks(options.ranks, gpus)
    if options.transb or options.scales:
        changed = {"transb": 1} | ({"scales": options.scales} if options.scales else {})
        scenarios = tuple(replace(scenario, **changed) for scenario in scenarios)
    picked = chosen(scenarios, options.only, ranks)
    if gpus < ranks and any(scenario.scales for scenario in picked):
        raise UsageError(f"--ranks {ranks} on {gpus} GPUs: they stand for more ranks on bf16 alone; leave scales out")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    rounds, loop, finalists = (3, 1000, 1) if processes else (10, 20, 3)
    rounds, finalists = options.rounds or rounds, options.finalists or finalists
    settings = Settings(
        ranks=ranks,
        gpus=gpus,
        rounds=min(3, rounds) if options.quick else rounds,
        singles=options.singles,
        loop=options.loop or loop,
        warmup=options.warmup,
        finalists=min(2, finalists) if options.quick else finalists,
        seed=options.seed,
    )
    values = CHOSEN if processes else 2 if options.quick else None
    skip = [*options.skip, "nccl-ce"] if processes else options.skip
    rows: list[Row] = []
    about = {"source": "run", "date": date.today().isoformat(), "command": kept.command(options.said)}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ficco-bench.") as folder:
        started = crews.crews(picked, settings, values, skip, folder)
        try:
            if processes:
                started[PROCESSES] = crews.members(ranks, join)
            up, told = crews.ready(started)
            about |= told
            if gpus < ranks:
                about["ranks"] = f"{ranks}, for which two GPUs stand: numbers are not verified, peers not measured"
            print("\n".join(f"{name}: {value}" for name, value in about.items()), flush=True)
            for scenario in picked:
                pieces = _pieces(variants(scenario.operation, values or None))
                rows.append(measure(scenario, pieces, settings, up, _say))
                _say(_line(rows[-1], time.monotonic() - begun))
                if options.json:
                    kept.write(options.json, kept.of_run(rows, settings, about, complete=len(rows) == len(picked)))
        except (DeviceError, KeyboardInterrupt):
            _tell(rows)  # what is measured is measured
            raise
        finally:
            for crew in started.values():
                crew.close()
    _tell(rows)
    return 4 if any(entry.wrong for row in rows for entry in row.entries.values()) else 0


def _scenarios(options: argparse.Namespace) -> tuple[tuple[Scenario, ...], tuple[str, ...]]:
    """What is measured, and notes. Raises UsageError."""
    if not options.processes:
        return (decode(), ()) if options.decode else load(options.scenarios or DEFAULT_FILE)
    few = decode(DECODE_FEW, OPERATIONS)
    found, notes = ((), ()) if options.decode else load(options.scenarios or DEFAULT_FILE)
    found = found if options.scenarios else found + few
    if options.quick and not options.only and not options.scenarios:
        found = tuple(scenario for scenario in found if scenario.name in QUICK_ROWS)
    return found, notes


def _ranks(wanted: int | None, gpus: int) -> int:
    """How many ranks are measured: one a GPU, or more, for which two GPUs stand. Raises UsageError."""
    if wanted is None or wanted == gpus:
        return gpus
    if wanted < gpus:
        raise UsageError(f"--ranks {wanted} of {gpus} GPUs: --gpus {wanted} takes as many GPUs as ranks")
    if gpus != 2:
        raise UsageError(f"--ranks {wanted} on {gpus} GPUs: only two GPUs can stand for more ranks; add --gpus 2")
    return wanted


def _tell(rows: Sequence[Row]) -> None:
    """The tables."""
    if not rows:
        return
    if any(row.of(PROCESSES) for row in rows):
        print(f"\nA process a GPU beside one process, µs\n\n{report.processes_table(rows)}")
        for title, some in report.races(rows):
            print(f"\nA process a GPU, back to back, µs a run: {title}\n\n{report.race_table(some)}")
    else:
        _tell_limits(rows)
    told = report.failures(rows)
    if told:
        print("\nNot measured\n\n" + "\n".join(f"- {line}" for line in told))


def _tell_limits(rows: Sequence[Row]) -> None:
    """The tables beside the limit."""
    print(f"\nSingle runs, µs\n\n{report.main_table(rows)}")
    print(f"\nBack to back, µs a run\n\n{report.loop_table(rows)}")
    print(f"\nSingle runs: spreads, rates\n\n{report.detail_table(rows)}")
    for operation in dict.fromkeys(row.scenario.operation for row in rows):
        ours = [row for row in rows if row.scenario.operation == operation]
        print(f"\nOurs, {operation}: each schedule at its best (screening; parameters, g: graph, s: streams), µs\n")
        print(report.schedules_table(ours))


def _pieces(found: Sequence[Variant]) -> dict[str, int]:
    return {f"{variant.label} {mode}": variant.pieces for variant in found for mode in MODES}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _line(row: Row, seconds: float) -> str:
    if row.of(PROCESSES):
        single, loop = (report.short(row, back_to_back) for back_to_back in (False, True))
        return f"[{seconds:5.0f} s] {row.label}: single runs {single}; back to back {loop}"
    key, ours = report.our_time(row)
    shown = report.microseconds
    return (
        f"[{seconds:5.0f} s] {row.label}: ours {shown(ours)} ({key}), nccl "
        f"{shown(report.rival_time(row, 'nccl'))}, asynctp {shown(report.rival_time(row, 'asynctp'))}, limit "
        f"{shown(row.limit())}"
    )
