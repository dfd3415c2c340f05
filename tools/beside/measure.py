"""Turns of both sides, and what they say: the ratio of the other checkout's time to this one's, above 1 if this one is
faster.

Ratios are taken within a round, so that clocks and power that change from minute to minute meet both sides alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tools.bench.scenarios import Scenario
from tools.bench.stats import ITEM, geomean, slowest, spread

from .cases import GRAPH, Case, Compilation
from .pair import Both, Refused

REST = 0.1  # seconds without load before a turn
WARMUP = 3
SINGLES = 8  # single runs a turn
LOOP_TIME = 40_000.0  # microseconds that a loop takes
LOOP_LEAST, LOOP_MOST = 2, 20
HOST_ROUNDS, HOST_RUNS = 8, 300
HOST_WARMUP = 100  # a process that was idle meanwhile needs some milliseconds to issue as fast as it can
COMPILE_ROUNDS = 5


class Asked(Protocol):
    """Both sides, as `pair.Pair` has them."""

    def at_once(self, what: str, **values: object) -> Both: ...

    def by_turns(self, number: int, rest: float, what: str, **values: object) -> Both: ...


@dataclass(frozen=True, slots=True)
class Compared:
    """The time of each side, their ratio, and the ratio of every round."""

    this: float
    other: float
    ratio: float
    ratios: tuple[float, ...]

    @property
    def spread(self) -> float:
        """p90 − p10 of the rounds' ratios."""
        figure = spread(self.ratios)
        return figure.p90 - figure.p10


@dataclass(frozen=True, slots=True)
class Row:
    """A case. Microseconds: of single runs, and of a run in a loop; `failed` says why there are none."""

    case: Case
    same_plan: bool | None = None
    single: Compared | None = None
    loop: Compared | None = None
    wrong: bool = False
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class HostRow:
    """Microseconds that the host takes to issue a run, and the plan's commands."""

    case: Case
    commands: Both | None = None
    issue: Compared | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class CompileRow:
    """Seconds of the CPU that a compilation takes."""

    compilation: Compilation
    same_plan: bool | None = None
    time: Compared | None = None
    failed: str | None = None


def by_medians(rounds: Sequence[Both]) -> Compared:
    """Of samples: the median of all of a side; the median of the rounds' ratios of medians."""
    ratios = tuple(statistics.median(r.other) / statistics.median(r.this) for r in rounds)
    this = statistics.median([x for r in rounds for x in r.this])
    other = statistics.median([x for r in rounds for x in r.other])
    return Compared(this, other, statistics.median(ratios), ratios)


def by_best(rounds: Sequence[Both]) -> Compared:
    """Of one time a round: the least of each side, and the ratio of these."""
    this, other = min(r.this for r in rounds), min(r.other for r in rounds)
    return Compared(this, other, other / this, tuple(r.other / r.this for r in rounds))


def measure(case: Case, ranks: int, rounds: int, pair: Asked, free: int, rest: float = REST) -> Row:
    """A row. `free` is the memory, in bytes, that both sides may take for a rank. Raises DeviceError."""
    scenario = case.scenario
    needed = memory(scenario, ranks)
    if needed > free:
        return Row(case, failed=f"both sides need {needed / 2**30:.1f} GiB a rank; {free / 2**30:.1f} are free")
    try:
        made = _load(case, ranks, pair)
        same = _same(made)
        wrong = pair.at_once("check", collective=scenario.collective, k=scenario.k)
        if wrong.this or wrong.other:
            told = f"wrong elements of C: {wrong.this} of this checkout's, {wrong.other} of the other one's"
            return Row(case, same, wrong=True, failed=told)
        pair.at_once("fill", k=scenario.k)
        first = pair.by_turns(0, rest, "turn", warmup=WARMUP, singles=2, loop=0)
        loop = loop_length(max(slowest(first.this["singles"]) + slowest(first.other["singles"])))
        turns = [pair.by_turns(i, rest, "turn", warmup=WARMUP, singles=SINGLES, loop=loop) for i in range(rounds)]
    except Refused as error:
        return Row(case, failed=str(error))
    singles = [Both(slowest(t.this["singles"]), slowest(t.other["singles"])) for t in turns]
    loops = [Both([max(t.this["loop"])], [max(t.other["loop"])]) for t in turns]
    return Row(case, same, by_medians(singles), by_medians(loops))


def measure_host(case: Case, ranks: int, pair: Asked) -> HostRow:
    """What the host takes. Raises DeviceError."""
    try:
        made = _load(case, ranks, pair)
        rounds = [pair.by_turns(i, 0, "host", warmup=HOST_WARMUP, runs=HOST_RUNS) for i in range(HOST_ROUNDS)]
    except Refused as error:
        return HostRow(case, failed=str(error))
    return HostRow(case, Both(made.this["commands"], made.other["commands"]), by_medians(rounds))


def over_starts(rows: Sequence[HostRow]) -> HostRow:
    """A case in several pairs of processes: the ratios are theirs, the ratio is these ratios' geometric mean."""
    found = [row.issue for row in rows if row.issue is not None]
    if len(found) < len(rows):
        return next(row for row in rows if row.issue is None)
    this, other = (statistics.median(times) for times in zip(*((f.this, f.other) for f in found), strict=True))
    ratios = tuple(f.ratio for f in found)
    return replace(rows[0], issue=Compared(this, other, geomean(ratios), ratios))


def measure_compile(compilation: Compilation, rounds: int, pair: Asked) -> CompileRow:
    """What compiling takes: the best of 5, or of `rounds` if they are fewer. Raises DeviceError."""
    asked = {
        "schedule": compilation.variant.schedule,
        "ranks": compilation.ranks,
        "arguments": compilation.arguments,
    }
    try:
        answers = [pair.by_turns(i, 0, "compile", **asked) for i in range(min(rounds, COMPILE_ROUNDS))]
    except Refused as error:
        return CompileRow(compilation, failed=str(error))
    times = [Both(a.this["seconds"], a.other["seconds"]) for a in answers]
    return CompileRow(compilation, _same(answers[0]), by_best(times))


def memory(scenario: Scenario, ranks: int) -> int:
    """Bytes that both sides need for a rank at their fullest, which is while the result is checked; rather too many.

    A, B and C in bf16, C again, poisoned and the executor's own; A, B and two results in fp32; and scratch, which
    holds gathered rows of A or partial products.
    """
    a, b, c = (rows * columns for rows, columns in (scenario.shapes(ranks)[name] for name in "ABC"))
    scratch = scenario.m * max(scenario.n, scenario.k)
    return 2 * ((ITEM + 4) * (a + b + 2 * c) + ITEM * scratch)


def loop_length(time: float) -> int:
    """Runs in a loop, of runs that take `time` microseconds."""
    return max(LOOP_LEAST, min(LOOP_MOST, int(LOOP_TIME / time)))


def _load(case: Case, ranks: int, pair: Asked) -> Both:
    """Both sides make the case ready, when both have given back the one before."""
    pair.at_once("drop")
    return pair.at_once(
        "load",
        schedule=case.form.variant.schedule,
        arguments=case.form.variant.arguments(case.scenario),
        shapes=case.scenario.shapes(ranks),
        graph=case.form.mode == GRAPH,
    )


def _same(answers: Both) -> bool:
    return bool(answers.this["hash"] == answers.other["hash"])
