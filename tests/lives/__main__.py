"""The failure campaign: executors through their lives, in one process and in groups, with one thing that goes wrong.

    python -m tests.lives --alone 16000 --groups 4000 --seed 1 --jobs 2    # all of it; prints the table of testing.md
    python -m tests.lives --part late --part ring                          # every case of a kind
    python -m tests.lives --only groups-1-17                               # one life again, with what it does

Exit code 1 if anything is objected to: a run that ended well with wrong numbers (WRONG), or without a process that had
not called it (UNTOLD); a write to an output before its rank had called the run (WROTE); a call that did not come back
within its limit and some seconds (HUNG); a process that broke (CRASH); a call that nobody may make (VIOLATION);
something left behind (LEFT); an error where nothing was wrong (FALSE).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain

from ficco_rt.driver.gpu import binding
from tests.cases import checked_in_few
from tests.lives.life import KINDS, PARTS, Life, drawn, named
from tests.lives.server import Server, Verdict

OBJECTIONS = ("WRONG", "WROTE", "HUNG", "UNTOLD", "CRASH", "VIOLATION", "LEFT", "FALSE")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lives", description=__doc__.partition("\n")[0])
    parser.add_argument("--alone", type=int, default=0, help="so many lives in one process")
    parser.add_argument("--groups", type=int, default=0, help="so many in groups of two to four")
    parser.add_argument("--part", action="append", default=[], choices=sorted(PARTS), help="every case of a kind")
    parser.add_argument("--every", type=int, default=1, help="of the parts, one case in so many")
    parser.add_argument("--only", default="", help="one life, by its name")
    parser.add_argument("--seed", type=int, default=1, help="another campaign")
    parser.add_argument("--jobs", type=int, default=1, help="processors to use")
    parser.add_argument("--few-checks", action="store_true", help="check some device plans alone")
    parser.add_argument("--driver", default="cuda", choices=["cuda", "hip", "host"])
    options = parser.parse_args()
    begun = time.monotonic()
    if options.few_checks:
        vars(binding)["checked"] = checked_in_few
    server = Server(options.driver, options.jobs, bool(options.only))
    found: list[Verdict] = []
    for verdict in server.run(_lives(options)):
        found.append(verdict)
        for kind, text in verdict.objections:
            print(f"{kind}: {verdict.life.name}, {verdict.life.event}: {text}", flush=True)
        if options.only:
            print(f"{verdict.end}{verdict.again}", *verdict.told, sep="\n")
        elif len(found) % 1000 == 0:
            print(f"{len(found)} lives in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    left = server.left()
    print(table(found), f"{len(found)} lives, {time.monotonic() - begun:.0f} s", *left, sep="\n")
    return 1 if left or any(verdict.objections for verdict in found) else 0


def _lives(options: argparse.Namespace) -> Iterator[Life]:
    if options.only:
        yield named(options.only, options.driver)
        return
    for part in options.part:
        yield from (life for i, life in enumerate(PARTS[part](options.driver)) if i % options.every == 0)
    alone = (drawn(options.driver, False, options.seed, i) for i in range(options.alone))
    groups = (drawn(options.driver, True, options.seed, i) for i in range(options.groups))
    yield from chain(alone, groups)


def table(found: list[Verdict]) -> str:
    """How lives ended, by what went wrong: right everywhere; told, and of these right again in the same executor, or
    in a new one; objected to."""
    rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for verdict in found:
        row = rows["alone" if verdict.life.processes == 1 else "groups", verdict.life.event.kind]
        row["lives"] += 1
        row[verdict.end] += 1
        row["same"] += "same: right" in verdict.again
        row["new"] += "new: right" in verdict.again
        for kind in {kind for kind, _ in verdict.objections}:
            row[kind] += 1
    columns = ["lives", "right", "told", "same", "new", *OBJECTIONS]
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for (where, kind), row in sorted(rows.items(), key=lambda item: (item[0][0], KINDS.index(item[0][1]))):  # type: ignore[arg-type]
        lines.append(f"| {where}, {kind} | {' | '.join(str(row[c] or '') for c in columns)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
