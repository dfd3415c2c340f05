"""The command line: read, model, print."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ficco_rt.errors import UsageError, exit_code
from ficco_rt.files.atomic import REPORT, check_outputs, write_atomic
from ficco_rt.machine.profiles import DEFAULT
from tools.bench import kept
from tools.bench.report import markdown, microseconds

from .cases import Case, Pair, cases, on_two_pairs, split_of
from .choosers import choosers
from .figures import NEAR, Always, Figures, figures

VERSION = 1

DESCRIPTION = """\
The model of time beside kept measurements, as python -m tools.bench --json writes them: errors, ranks of variants, what
choices lose. Needs no GPU.

    python -m tools.model_check                        # all of tools/bench/measured
    python -m tools.model_check out.json --worst 20    # a run's own file
    python -m tools.model_check --machine here.toml     # the model of a machine that `ficco calibrate` has measured

A variant's measured time is the median of single runs in the better of its modes. "unseen" are scenarios to which
nothing may be fitted (tools/bench/scenarios_wide.json); all others count as fitted.

Exit codes: 0, 2 wrong arguments or files."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.model_check",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("files", nargs="*", type=Path, metavar="FILE", help="measurements, or folders (default: tools/bench/measured)")
    add("--machine", default=DEFAULT, metavar="NAME|FILE", help=f"the machine of the model ({DEFAULT})")
    add("--only", action="append", default=[], metavar="TEXT", help="cases whose label contains TEXT; repeatable")
    add("--worst", type=int, default=10, metavar="N", help="rows with the greatest errors, and misses, to list (10)")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes that model (one a core)")
    add("--json", type=Path, metavar="FILE", help="write all figures and every variant")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """The process's exit code."""
    options = parse(arguments)
    try:
        return check(options)
    except UsageError as error:
        print(f"model_check: {error}", file=sys.stderr)
        return exit_code(error)


def check(options: argparse.Namespace) -> int:
    """Compare and report. Raises UsageError."""
    paths = list(kept.files(options.files or [kept.FOLDER]))
    check_outputs([(REPORT, options.json)], paths)
    found, notes = cases(paths, options.only, options.machine, max(1, options.jobs))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    if not found:
        raise UsageError("no shipped schedule was measured in these files, or in no case of --only")
    ways = choosers(options.machine)
    parts = {name: figures(members, ways) for name, members in split_of(found).items()}
    print(f"Modelled on {options.machine}, measured in {len(paths)} files\n\n{table(parts)}")
    print(f"\nGreatest errors\n\n{worst_table(found, options.worst)}")
    if pairs := on_two_pairs(paths):
        print(f"\nA rank of R on two GPUs, beside R GPUs (single runs, µs)\n\n{pairs_table(pairs)}")
    whole = list(parts.values())[-1]
    for name, lost in whole.choices.items():
        if lost.misses:
            print(f"\nMore than {100 * NEAR:.0f} % behind the best, {name}\n")
            for miss in lost.misses[: options.worst]:
                print(f"- {miss.case}: {miss.chosen} loses {_percent(miss.loss)} to {miss.best}")
    if options.json:
        write_atomic(options.json, json.dumps(record(options.machine, paths, parts, found), indent=1) + "\n")
    return 0


def table(parts: Mapping[str, Figures]) -> str:
    """The figures, a column a part of the cases."""
    lines: list[tuple[str, list[str]]] = []

    def line(name: str, values: Sequence[str]) -> None:
        lines.append((name, list(values)))

    of = list(parts.values())
    line("variants, cases", [f"{f.errors.variants}, {f.errors.cases}" for f in of])
    line("modelled against measured: median error", [_percent(f.errors.median) for f in of])
    line("p90 error", [_percent(f.errors.p90) for f in of])
    line("median with its sign (above 0: too slow)", [f"{100 * f.errors.signed:+.1f} %" for f in of])
    line(
        "rank correlation of a case's variants, median (cases that differ by more than 5 %)",
        [f"{f.ranks.median:.2f} ({f.ranks.cases})" if f.ranks.median is not None else "–" for f in of],
    )
    for name in of[0].choices:
        lost = [f.choices[name] for f in of]
        line(f"{name}: within {100 * NEAR:.0f} % of the best", [f"{c.near} of {c.cases}" for c in lost])
        line(f"{name}: loses, mean and most", [f"{_percent(c.mean)}, {_percent(c.most)}" for c in lost])
        if any(c.unmeasured for c in lost):
            line(f"{name}: chose what was not measured", [str(c.unmeasured) for c in lost])
    for operation in dict.fromkeys(a.operation for f in of for a in f.always):
        line(f"always one schedule at its best, {operation}: loses", [_always(f.always, operation) for f in of])
    return markdown([["", *parts], *([name, *values] for name, values in lines)], left=(0,))


def _always(found: Sequence[Always], operation: str) -> str:
    one = next((a for a in found if a.operation == operation), None)
    return "–" if one is None else f"{_percent(one.mean)} ({one.schedule})"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def worst_table(found: Sequence[Case], count: int) -> str:
    """The variants with the greatest errors."""
    rows = sorted(((case, v) for case in found for v in case.variants), key=lambda row: -abs(row[1].error))[:count]
    cells = [["case", "variant", "measured", "modelled", "error", "file"]]
    for case, v in rows:
        shown = f"{v.variant.label} {v.mode or ''}".strip()
        times = (microseconds(v.measured), microseconds(v.modelled), f"{100 * v.error:+.1f} %")
        cells.append([case.label, shown, *times, case.file])
    return markdown(cells, left=(0, 1, 5))


def pairs_table(pairs: Sequence[Pair]) -> str:
    """How far two GPUs that stand for all are off."""
    cells = [["case", "what", "on two", "on as many", "difference"]]
    for pair in pairs:
        times = (microseconds(pair.on_two), microseconds(pair.whole), f"{100 * (pair.on_two / pair.whole - 1):+.1f} %")
        cells.append([pair.case, pair.what, *times])
    return markdown(cells, left=(0, 1))


def record(
    machine: str, paths: Sequence[Path], parts: Mapping[str, Figures], found: Sequence[Case]
) -> dict[str, object]:
    """All of it. Times in microseconds, errors and losses as shares."""
    return {
        "version": VERSION,
        "machine": machine,
        "files": [path.name for path in paths],
        "figures": {name: asdict(part) for name, part in parts.items()},
        "cases": [asdict(case) for case in found],
    }
