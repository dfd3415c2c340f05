"""The command line, and the run from workers started to files written."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ficco_rt.errors import DeviceError, UsageError
from ficco_rt.files.atomic import REPORT, check_outputs, write_atomic
from tools.bench.gpus import ended, find_gpus

from . import report
from .cases import COMPILATIONS, HOST, Case, Compilation, rows
from .measure import measure, measure_compile, measure_host, over_starts
from .pair import Pair, start
from .report import Results

ROOT = Path(__file__).resolve().parents[2]

DESCRIPTION = """\
Is this checkout slower than another one? Both run on the same GPUs, in two processes that take turns: A B B A …
Runs of tools/bench/scenarios.json, the host's time to issue a run, and the time to compile.

    git worktree add ../before COMMIT
    python -m tools.beside ../before                                  # all of it, on two GPUs
    python -m tools.beside ../before --rows qkv70b_2k,o8b_16k         # these scenarios
    python -m tools.beside ../before --host-only --starts 8           # the host's time, in 8 pairs of processes
    python -m tools.beside ../before --gpus 1 --ranks-per-gpu 2       # on one GPU, which two ranks share
    python -m tools.beside ../before --compile-only                   # needs no GPU

Ratios are the other checkout's time / this one's: above 1 this one is faster.

Exit codes: 0, 1 this checkout is slower than it may be, 2 wrong arguments, 3 no PyTorch, no GPUs, a device failed or a
row was not measured, 4 wrong numbers, 130 interrupted."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.beside", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("other", type=Path, metavar="OTHER_CHECKOUT", help="the root of another checkout, such as the state before")
    add("--gpus", type=int, default=2, metavar="N", help="GPUs (2, for which the variants are chosen)")
    add("--ranks-per-gpu", type=int, default=1, metavar="R", help="that share a GPU (1)")
    add("--rounds", type=int, default=8, metavar="N", help="turns of each side for a row (8); compilations: 5 at most")
    add("--rows", metavar="NAME,…", help="scenarios to run (default: all)")
    add("--compile-only", action="store_true", help="compare what compiling takes, and nothing else")
    add("--host-only", action="store_true", help="compare the host's time to issue a run, and nothing else")
    add(
        "--starts",
        type=int,
        default=1,
        metavar="N",
        help="pairs of processes for the host's time (1): it depends on where a process's memory lies, by some percent",
    )
    add("--json", type=Path, metavar="FILE", help="write all figures; after every row, all so far")
    options = parser.parse_args(arguments)
    if min(options.gpus, options.ranks_per_gpu, options.rounds, options.starts) < 1:
        parser.error("--gpus, --ranks-per-gpu, --rounds and --starts are numbers from 1")
    if options.gpus * options.ranks_per_gpu < 2:
        parser.error("--gpus 1 has one rank, and schedules have two or more: add --ranks-per-gpu 2")
    if options.compile_only and (options.rows is not None or options.host_only or options.starts > 1):
        parser.error("--rows, --host-only and --starts are of runs on GPUs, and --compile-only has none")
    if options.host_only and options.rows is not None:
        parser.error("--rows names runs, and --host-only times none; give one of them")
    return options


def main(arguments: Sequence[str]) -> int:
    """The process's exit code."""
    options = parse(arguments)
    return ended("beside", lambda: beside(options))


def beside(options: argparse.Namespace) -> int:
    """Measure and report. Raises UsageError, DeviceError."""
    other = checkout(options.other)
    check_outputs([(REPORT, options.json)])
    picked: tuple[Case, ...] = ()
    if not (options.compile_only or options.host_only):
        names = None if options.rows is None else [name.strip() for name in options.rows.split(",")]
        picked = rows(names, options.gpus * options.ranks_per_gpu)
    each: int = options.ranks_per_gpu
    gpus = 0 if options.compile_only else find_gpus(options.gpus)
    about: dict[str, object] = {
        "this": revision(ROOT),
        "other": revision(other),
        "python": platform.python_version(),
        "rounds": options.rounds,
    }
    results = Results()
    pair = start((ROOT, other), gpus, each)
    try:
        made = pair.ready()
        free = min(int(side.get("free", 0)) for side in (made.this, made.other)) // each
        about |= {key: value for key, value in made.this.items() if key not in ("checkout", "free")}
        print("\n".join(f"{name}: {value}" for name, value in about.items()), flush=True)
        compilations = () if options.host_only else COMPILATIONS
        for results in steps(pair, picked, compilations, gpus * each, options.rounds, free):
            if options.json is not None:
                _write_json(options.json, results, about, complete=False)
        hosts = [results.host]
        for number in range(1, options.starts):
            pair.close()
            pair = start((ROOT, other), gpus, each, other_first=number % 2 == 1)
            pair.ready()
            hosts.append(tuple(measure_host(case, gpus * each, pair) for case in HOST))
            results = replace(results, host=tuple(map(over_starts, zip(*hosts, strict=True))))
    except (DeviceError, KeyboardInterrupt):
        _tell(results)  # what is measured is measured
        raise
    finally:
        pair.close()
    _tell(results)
    if options.json is not None:
        _write_json(options.json, results, about, complete=True)
    return _code(results)


def steps(
    pair: Pair, picked: Sequence[Case], compilations: Sequence[Compilation], ranks: int, rounds: int, free: int
) -> Iterator[Results]:
    """All that is measured so far, after every step: rows, the host's time, compilations."""
    begun = time.monotonic()
    results = Results()

    def told(label: str) -> None:
        print(f"[{time.monotonic() - begun:5.0f} s] {label}", file=sys.stderr, flush=True)

    for case in picked:
        results = replace(results, rows=(*results.rows, measure(case, ranks, rounds, pair, free)))
        told(case.label)
        yield results
    for case in HOST if ranks else ():
        results = replace(results, host=(*results.host, measure_host(case, ranks, pair)))
        told(f"host, {case.label}")
        yield results
    for compilation in compilations:
        results = replace(results, compiled=(*results.compiled, measure_compile(compilation, rounds, pair)))
        told(f"compile {compilation.label}")
        yield results


def checkout(path: Path) -> Path:
    """The root of a checkout, as a whole path. Raises UsageError."""
    way = "give the root of a checkout, such as `git worktree add ../before COMMIT` makes"
    if not path.is_dir():
        raise UsageError(f"{path}: there is no such directory; {way}")
    if not (path / "ficco_rt" / "__init__.py").is_file() or not (path / "dsl").is_dir():
        raise UsageError(f"{path}: has no ficco_rt and dsl in it; {way}")
    return path.resolve()


def revision(path: Path) -> str:
    """What git calls the state of a checkout, or its path where git cannot tell."""
    try:
        command = ["git", "-C", str(path), "describe", "--always", "--dirty", "--abbrev=12"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return str(path)
    return done.stdout.strip() or str(path)


def _tell(results: Results) -> None:
    """Tables, then verdicts."""
    tables = report.tables(results)
    if tables:
        verdicts = [*report.failures(results), *report.slower(results)] or ["nothing is slower"]
        print("\n" + tables + "\n\n" + "\n".join(verdicts))


def _code(results: Results) -> int:
    if any(row.wrong for row in results.rows):
        return 4
    if report.failures(results):
        return 3
    return 1 if report.slower(results) else 0


def _write_json(path: Path, results: Results, about: dict[str, object], complete: bool) -> None:
    write_atomic(path, json.dumps(report.record(results, about, complete), indent=1, allow_nan=False) + "\n")
