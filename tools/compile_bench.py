"""What compiling costs: from text to a checked plan, by ranks and chunks, in time and memory.

    python tools/compile_bench.py                # the table, about a minute
    python tools/compile_bench.py --check        # exit 1 if a bound of docs/results/compile-cost.md is broken
    python tools/compile_bench.py --shipped      # every shipped schedule at 8, 64 and 256 ranks, about an hour

Every row runs in a process of its own: the first compilation, grammar tables and all, is the figure.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True)
class Row:
    """A compilation to measure, and what it may cost: seconds and MiB (None: no bound)."""

    schedule: str
    ranks: int
    chunks: int
    seconds: float | None = None
    memory: int | None = None


ROWS = (
    Row("ag_gemm/hetero_unfused_1d", 8, 8, seconds=0.15),
    Row("ag_gemm/hetero_fused_1d", 8, 8, seconds=0.15),
    Row("ag_gemm/streamed", 8, 8, seconds=0.15),
    Row("gemm_rs/chunked", 8, 8, seconds=0.15),
    Row("ag_gemm/hetero_unfused_1d", 8, 16),
    Row("ag_gemm/hetero_unfused_1d", 16, 16),
    Row("ag_gemm/hetero_unfused_1d", 32, 16),
    Row("ag_gemm/hetero_unfused_1d", 64, 16, seconds=20, memory=2048),
)
HELP_SECONDS = 0.25
MANY_RANKS = (8, 64, 256)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if a bound is broken")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="processes a row; the median counts")
    parser.add_argument("--shipped", action="store_true", help="every shipped schedule, in pieces as large as may be")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(Row(**json.loads(options.one)))))
        return 0
    rows = shipped() if options.shipped else ROWS
    print(f"{'schedule':<28}{'ranks':>6}{'chunks':>7}{'ops':>9}{'total s':>9}{'µs/op':>7}", end="")
    print("".join(f"{part:>8}" for part in PARTS) + f"{'MiB':>7}")
    broken = sum([over_its_bound(row, options.repeat) for row in rows])
    if options.shipped:
        return 0
    seconds = median(help_time() for _ in range(5))
    broken += seconds > HELP_SECONDS
    print(f"ficco-run --help: {seconds:.3f} s")
    return 1 if options.check and broken else 0


def shipped() -> tuple[Row, ...]:
    from ficco_rt.files import shipped

    return tuple(Row(entry.name, ranks, 1) for entry in shipped.entries() for ranks in MANY_RANKS)


def over_its_bound(row: Row, repeat: int) -> bool:
    """Measure a row and print it. Does it cost more than it may?"""
    runs = [in_a_process(row) for _ in range(repeat)]
    figure = {key: median(run[key] for run in runs) for key in runs[0]}
    late = row.seconds is not None and figure["total"] > row.seconds
    large = row.memory is not None and figure["memory"] > row.memory
    parts = "".join(f"{figure[part]:8.3f}" for part in PARTS)
    print(
        f"{row.schedule:<28}{row.ranks:>6}{row.chunks:>7}{figure['ops']:>9.0f}{figure['total']:9.3f}"
        f"{1e6 * figure['total'] / figure['ops']:7.0f}{parts}{figure['memory']:7.0f}"
        f"{'  over its bound' if late or large else ''}",
        flush=True,
    )
    return late or large


PARTS = ("parse", "build", "prove", "lower", "check")


def in_a_process(row: Row) -> dict[str, float]:
    fields = {"schedule": row.schedule, "ranks": row.ranks, "chunks": row.chunks}
    command = [sys.executable, str(Path(__file__)), "--one", json.dumps(fields)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(row: Row) -> dict[str, float]:
    """CPU seconds of each stage, which keeps one core busy; ops; the process's peak memory in MiB."""
    from ficco_rt import compiler
    from ficco_rt.graph.prove import prove
    from ficco_rt.machine.profiles import DEFAULT, profile
    from ficco_rt.plan.check import check
    from ficco_rt.plan.lower import lower

    wide = 64 * max(64, row.ranks)
    sizes: dict[str, object] = {"M": 64 * row.ranks * row.ranks, "N": wide, "K": wide, "chunks": row.chunks}
    if row.chunks == 1:
        sizes |= {name: [1] for name in ("taper", "first", "middle", "last")}
    machine = profile(DEFAULT, row.ranks)
    start = time.process_time()
    schedule = compiler.load(row.schedule)
    params = {p.name: sizes[p.name] for p in schedule.params if p.name in sizes}
    parsed = time.process_time()
    with compiler.compilation(row.ranks):
        graph = compiler.build(schedule, row.ranks, params)
        built = time.process_time()
        prove(graph)
        proven = time.process_time()
        plan = lower(graph, machine)
        lowered = time.process_time()
        check(plan)
    end = time.process_time()
    marks = (start, parsed, built, proven, lowered, end)
    times = dict(zip(PARTS, (b - a for a, b in pairwise(marks)), strict=True))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {**times, "total": end - start, "ops": len(graph.ops), "memory": memory}


def help_time() -> float:
    start = time.perf_counter()
    subprocess.run([str(Path(sys.executable).with_name("ficco-run")), "--help"], check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
