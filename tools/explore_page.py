"""The tables of docs/reproduce/ficco.md, made anew: from a table of `ficco explore`, and from the model's losses.

    ficco explore ag_gemm --schedules shard_p2p --schedules 'uniform_*' --schedules 'hetero_*' --param chunks=2,4,8 \\
        --machine h200-switch --machine mi300x-mesh -o space.csv
    python -m tools.explore_page space.csv

Each block of the page between `<!-- begin NAME -->` and `<!-- end NAME -->` is replaced. `--check` changes nothing and
says which blocks would change (exit code 1).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "dsl")]

from ficco_rt.errors import UsageError
from ficco_rt.explore.losses import Losses, Operator, losses
from ficco_rt.explore.scenarios import SHIPPED, load
from ficco_rt.explore.summary import cases, fastest
from ficco_rt.explore.table import Row, read
from ficco_rt.files.atomic import read_text, write_atomic
from ficco_rt.machine.profiles import profile
from ficco_rt.report.wording import show_time
from tools.bench.stats import geomean

PAGE = ROOT / "docs" / "reproduce" / "ficco.md"
SERIAL, SHARDS = "ag_gemm/serial", "ag_gemm/shard_p2p"
FINER = tuple(
    f"ag_gemm/{name}" for name in ("uniform_fused_1d", "hetero_fused_1d", "hetero_unfused_1d", "uniform_fused_2d")
)
SHOWN = 8  # scenarios that are shown one by one: those of docs/results/bench.md, which come first
OPERATORS = tuple(Operator(m, 4096, 8192) for m in (256, 1024, 4096, 16384))


@dataclass(frozen=True, slots=True)
class Found:
    """A scenario on one machine: its yardsticks, and the best row of each schedule."""

    name: str
    serial: float
    ideal: float
    best: Mapping[str, Row]

    def speedup(self, names: Iterable[str]) -> tuple[float, str]:
        """The best of these schedules: times as fast as serial, and its name."""
        return max((self.best[name].speedup or 0.0, name) for name in names)


def found(rows: Sequence[Row], machine: str) -> list[Found]:
    """The scenarios of a machine on which all schedules have a time; ficco's own in their order, then others."""
    wanted = {SERIAL, SHARDS, *FINER}
    order = {scenario.name: i for i, scenario in enumerate(load(SHIPPED, rows[0].operation))}
    listed = []
    for (_, scenario, _, _, where), members in cases(rows).items():
        best = fastest(members)
        if where == machine and wanted <= set(best):
            first = best[SERIAL]
            listed.append(Found(scenario, first.serial or 0.0, first.ideal or 0.0, best))
    if not listed:
        raise UsageError(f"the table has no scenario of {machine} with all of {', '.join(sorted(wanted))}")
    return sorted(listed, key=lambda of: order.get(of.name, len(order)))


def speedups(of: Sequence[Found]) -> str:
    """Times as fast as serial: scenarios one by one, and the mean over all."""
    columns = (SHARDS, *FINER)
    cells = [["scenario", "serial", *(name.rpartition("/")[2] for name in columns), "ideal"]]
    for scenario in of[:SHOWN]:
        speeds = [f"{scenario.speedup([name])[0]:.2f}" for name in columns]
        cells.append([scenario.name, show_time(scenario.serial), *speeds, f"{scenario.serial / scenario.ideal:.2f}"])
    means = [f"{geomean([s.speedup([name])[0] for s in of]):.2f}" for name in columns]
    cells.append([f"geometric mean of all {len(of)}", "", *means, f"{geomean([s.serial / s.ideal for s in of]):.2f}"])
    wins = [max((s.speedup([name])[0], name) for name in columns)[1] for s in of]
    cells.append(["fastest of these in", "", *(str(wins.count(name)) for name in columns), ""])
    return markdown(cells)


def statements(machines: Mapping[str, Sequence[Found]], lost: Mapping[str, Losses]) -> str:
    """What the paper says, and what the table says of it."""
    cells = [["the paper", "the figure", *machines]]
    for says, figure, of in STATEMENTS:
        cells.append([says, figure, *(of(machines[name], lost[name]) for name in machines)])
    return markdown(cells, left=2)


def _verdict(holds: bool, words: str) -> str:
    return f"{words}: {'comes out' if holds else 'does not come out'}"


def _left(of: Sequence[Found], _: Losses) -> str:
    most = max(s.serial / s.ideal for s in of)
    return _verdict(most >= 1.7, f"{most:.2f}")


def _finer(of: Sequence[Found], _: Losses) -> str:
    ahead = sum(s.speedup(FINER)[0] > s.speedup([SHARDS])[0] for s in of)
    ratio = geomean([s.speedup(FINER)[0] / s.speedup([SHARDS])[0] for s in of])
    return _verdict(2 * ahead > len(of), f"{ahead} of {len(of)}, {ratio:.2f} times as fast")


def _gain(of: Sequence[Found], _: Losses) -> str:
    most = max(s.speedup(FINER)[0] for s in of)
    return _verdict(most >= 1.6, f"{most:.2f}")


def _several(of: Sequence[Found], _: Losses) -> str:
    wins = [s.speedup(FINER)[1] for s in of]
    counted = sorted(((wins.count(name), name) for name in set(wins)), reverse=True)
    words = ", ".join(f"{name.rpartition('/')[2]} {number}" for number, name in counted)
    return _verdict(sum(10 * number >= len(of) for number, _ in counted) > 1, words)


def _cutting(_: Sequence[Found], lost: Losses) -> str:
    shares = {d.of.m: d.share for d in lost.decomposition if d.axis == "rows" and d.pieces == 8}
    small, large = shares[min(shares)], shares[max(shares)]
    return _verdict(small < large < 1, f"{small:.2f} at M = {min(shares)}, {large:.2f} at {max(shares)}")


def _beside(_: Sequence[Found], lost: Losses) -> str:
    least = {s: min(c.share for c in lost.contention if c.subject == s) for s in ("gemm", "copies")}
    return _verdict(min(least.values()) < 0.995, f"GEMM {least['gemm']:.2f}, copies {least['copies']:.2f}")


STATEMENTS: tuple[tuple[str, str, Callable[[Sequence[Found], Losses], str]], ...] = (
    ("without overlap a run takes up to 1.7 times as long as the ideal", "serial over ideal, the most", _left),
    ("one level finer than shards is ahead of overlap by shards", "its best over shard_p2p", _finer),
    ("chosen schedules are up to 1.6 times as fast as serial", "the best of the four, the most", _gain),
    ("which schedule is best depends on the sizes", "scenarios that each of the four wins", _several),
    ("cutting costs more the smaller the GEMM", "whole over 8 pieces of rows", _cutting),
    ("GEMMs and copies slow each other", "alone over beside, the least", _beside),
)


def markdown(cells: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table whose first `left` columns are flush left."""
    rule = "|" + "|".join("---" if i < left else "--:" for i in range(len(cells[0]))) + "|"
    lines = ["| " + " | ".join(line) + " |" for line in cells]
    return "\n".join([lines[0], rule, *lines[1:]])


def blocks(rows: Sequence[Row], names: Sequence[str]) -> dict[str, str]:
    """The page's tables by name."""
    machines = {name: found(rows, name) for name in names}
    ranks = rows[0].ranks
    lost = {name: losses(profile(name, ranks), OPERATORS) for name in names}
    made = {f"speedups {name}": speedups(of) for name, of in machines.items()}
    return made | {"statements": statements(machines, lost)}


def filled(page: str, made: Mapping[str, str]) -> tuple[str, list[str]]:
    """The page with these blocks, and the names of those that differ. Raises UsageError: a block that is not there."""
    changed = []
    for name, text in made.items():
        pattern = re.compile(rf"(<!-- begin {re.escape(name)} -->\n).*?(<!-- end {re.escape(name)} -->)", re.DOTALL)
        if not pattern.search(page):
            raise UsageError(f"the page has no block '{name}'")
        new = pattern.sub(lambda m, text=text: f"{m[1]}{text}\n{m[2]}", page)  # type: ignore[misc]
        if new != page:
            changed.append(name)
        page = new
    return page, changed


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", help="what `ficco explore -o` has written")
    parser.add_argument("--page", type=Path, default=PAGE, help="default: docs/reproduce/ficco.md")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if the page would change")
    options = parser.parse_args(arguments)
    try:
        rows = read(options.table)
        page, changed = filled(read_text(options.page), blocks(rows, sorted({row.machine for row in rows})))
        if not options.check:
            write_atomic(options.page, page)
    except UsageError as error:
        print(f"explore_page: {error}", file=sys.stderr)
        return 2
    print(f"{options.page}: {', '.join(changed) or 'nothing'} {'would change' if options.check else 'changed'}")
    return 1 if options.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
