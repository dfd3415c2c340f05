"""A row: contestants made ready, checked, screened, and then measured in turns.

NOTE large GPUs are held by their power: a GEMM of milliseconds that follows 60 ms of full load runs 10 % slower than
one that follows copies. So a round has a pass of single runs and then a pass of loops; all rest after a turn for as
long as it took, and each pass has an order of its own, so that nobody always follows the same neighbour.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ficco_rt.errors import DeviceError

from .scenarios import Scenario
from .stats import Spread, Work, slowest, spread, tolerance, work
from .workers import Turn

LOOP_TIME = 60_000.0  # microseconds that a loop takes at most; slow contestants get fewer runs in it
LOOP_LEAST = 3
LOOP_WARM = 10_000.0  # microseconds of runs before a loop is timed
REST = 0.1  # seconds without load before a pass
REVIVED = 90.0  # seconds for the workers of a crew that failed to come up again
LIMIT = "limit "
GEMM, COPIES = LIMIT + "gemm", LIMIT + "copies"  # by one of several libraries: "limit gemm cuBLASLt"
OURS, PROCESSES = "ours", "processes"  # crews: one process drives all GPUs, a process a GPU
TWIN = "processes: "  # before a contestant's key: the same, in a process a GPU


@dataclass(frozen=True, slots=True)
class Settings:
    """How much is measured; `finalists` of ours, after a screening of all, take part in the rounds. Two `gpus` may
    stand for more ranks."""

    ranks: int
    gpus: int
    rounds: int
    singles: int
    loop: int
    warmup: int
    finalists: int
    seed: int


@dataclass(slots=True)
class Entry:
    """A contestant of a row. Times in microseconds; `failed` says why it has none."""

    side: str  # the crew: ours, processes, peers, cublasmp; or limit
    screened: float | None = None
    single: Spread | None = None
    loop: Spread | None = None
    loop_length: int = 0
    own: Spread | None = None
    by_round: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})  # True: back to back
    rel_err: float | None = None
    failed: str | None = None
    wrong: bool = False


@dataclass(slots=True)
class Row:
    """All of a scenario. `of_two`: as many ranks, for which two GPUs stand."""

    scenario: Scenario
    work: Work
    tolerance: float
    entries: dict[str, Entry] = field(default_factory=dict)
    of_two: int | None = None

    @property
    def label(self) -> str:
        return self.scenario.label if self.of_two is None else f"{self.scenario.label}, rank of {self.of_two} on two"

    def time(self, key: str, back_to_back: bool = False) -> float | None:
        """A contestant's median, if it has one."""
        entry = self.entries.get(key)
        figure = None if entry is None else entry.loop if back_to_back else entry.single
        return None if figure is None else figure.median

    def best(self, keys: Sequence[str], back_to_back: bool = False) -> str | None:
        """The fastest of these that has been measured."""
        timed = [(time, key) for key in keys if (time := self.time(key, back_to_back)) is not None]
        return min(timed)[1] if timed else None

    def of(self, side: str) -> list[str]:
        return [key for key, entry in self.entries.items() if entry.side == side]

    def quotients(self, above: str | None, below: str | None, back_to_back: bool = False) -> list[float]:
        """A contestant's time over another's, round by round, as the machine's state changes with time."""
        if above is None or below is None or self.time(above, back_to_back) is None:
            return []
        a, b = (self.entries[key].by_round[back_to_back] for key in (above, below))
        return [x / y for x, y in zip(a, b, strict=True)]

    def gemm(self, back_to_back: bool = False) -> str:
        """The whole GEMM alone, by the fastest library."""
        return self.best([key for key in self.entries if key.startswith(GEMM)], back_to_back) or GEMM

    def limit(self, back_to_back: bool = False) -> float | None:
        """The longer of the whole GEMM alone and the copies alone."""
        both = self.time(self.gemm(back_to_back), back_to_back), self.time(COPIES, back_to_back)
        return None if both[0] is None or both[1] is None else max(both[0], both[1])


class Asked(Protocol):
    """Worker processes, as `workers.Crew` has them."""

    def ask(self, method: str, *values: object) -> list[object]: ...

    def revive(self, timeout: float) -> None: ...

    def close(self) -> None: ...


class Asking:
    """Asks the crews of a row. When a crew but ours fails, its contestants have no time and the row goes on."""

    def __init__(self, row: Row, crews: Mapping[str, Asked]) -> None:
        self.row = row
        self.crews = crews
        self.crew_of: dict[str, str] = {}

    def load(self, name: str, *values: object) -> None:
        """Contestants of a crew. A crew that fails gets a second try with workers of its own."""
        answers, why = self._loaded(name, *values)
        if answers is None and name != OURS:
            answers, again = self._loaded(name, *values)
            why = f"{why}; started again: {again}"
        if answers is None:
            self.row.entries[name] = Entry(name, failed=why)
            return
        for answer in answers:
            assert isinstance(answer, dict)
            for key, failed in answer.items():
                side = "limit" if key.startswith(LIMIT) else name
                entry = self.row.entries.setdefault(key, Entry(side))
                entry.failed = entry.failed or failed
                self.crew_of[key] = name

    def _loaded(self, name: str, *values: object) -> tuple[list[object] | None, str]:
        crew = self.crews[name]
        try:
            crew.revive(REVIVED)
            return crew.ask("load", *values), ""
        except DeviceError as error:
            if name == OURS:
                raise
            crew.close()
            return None, first_line(error)

    def ask(self, name: str, method: str, *values: object) -> list[object]:
        """Every worker's answer; none, where the crew fails."""
        try:
            return self.crews[name].ask(method, *values)
        except DeviceError as error:
            if name == OURS:
                raise
            self.crews[name].close()
            for key in self.of(name):
                self.row.entries[key].failed = self.row.entries[key].failed or first_line(error)
            return []

    def of(self, name: str) -> list[str]:
        """The contestants of a crew."""
        return [key for key, its in self.crew_of.items() if its == name]

    def alive(self, keys: Iterable[str]) -> list[str]:
        return [key for key in keys if key in self.crew_of and self.row.entries[key].failed is None]

    def turn(self, key: str, warmup: int, singles: int, loop: int, rest: float) -> Turn | None:
        """A turn, as the slowest GPU took it; then a rest as long, `rest` seconds at most. None: it failed."""
        begun = time.monotonic()
        answers = self.ask(self.crew_of[key], "turn", key, warmup, singles, loop)
        time.sleep(min(rest, time.monotonic() - begun))
        if not answers:
            return None
        turns = [turn for turn in answers if isinstance(turn, Turn)]
        together = [time for turn in turns for time in turn.loop]
        return Turn(
            [slowest([times for turn in turns for times in turn.singles])],
            [max(together)] if together else [],
            [time for turn in turns for time in turn.own],
        )


def measure(
    scenario: Scenario,
    pieces: Mapping[str, int],
    settings: Settings,
    crews: Mapping[str, Asked],
    say: Callable[[str], None],
    rest: float = REST,
) -> Row:
    """Measure a scenario with the crews: `OURS`, and others beside it. `PROCESSES` takes part with the finalists of
    ours, each next to its twin in every pass.

    `pieces` says, by contestant, in how many pieces K may be summed; before a pass all rest for `rest` seconds.
    """
    most = max(pieces.values(), default=1)
    of_two = settings.ranks if settings.gpus < settings.ranks else None
    worked, tolerated = work(scenario, settings.ranks), tolerance(settings.ranks, most, scenario.k)
    row = Row(scenario, worked, tolerated, of_two=of_two)
    asking = Asking(row, crews)
    for name in crews:
        if name != PROCESSES:
            asking.load(name, scenario)
    _check(asking, settings.seed, asking.crew_of)
    time.sleep(rest)
    for key in shuffled(asking.alive(row.entries), settings.seed, "screening"):
        if asking.alive([key]) and (first := asking.turn(key, settings.warmup, max(2, settings.singles), 0, rest)):
            entry = row.entries[key]
            entry.screened = spread(first.singles[0]).median
            entry.loop_length = loop_length(entry.screened, settings.loop)
    kept = finalists(row, settings.finalists)
    for name in dict.fromkeys(asking.crew_of.values()):
        asking.ask(name, "keep", tuple(key for key in kept if asking.crew_of[key] == name))
    if PROCESSES in crews:
        kept += _twins(asking, kept, settings.seed)
    singles: dict[str, list[float]] = {key: [] for key in kept}
    loops: dict[str, list[float]] = {key: [] for key in kept}
    own: dict[str, list[float]] = {key: [] for key in kept}
    for i in range(settings.rounds):
        time.sleep(rest)
        for key in in_turn(kept, settings.seed, "singles", i):
            if asking.alive([key]) and (turn := asking.turn(key, settings.warmup, settings.singles, 0, rest)):
                singles[key] += turn.singles[0]
                own[key] += turn.own
                row.entries[key].by_round[False].append(spread(turn.singles[0]).median)
        time.sleep(rest)
        for key in in_turn(kept, settings.seed, "loops", i):
            entry = row.entries[key]
            warm = loop_warmup(entry.screened or 0.0, settings.warmup)
            if asking.alive([key]) and (turn := asking.turn(key, warm, 0, entry.loop_length, rest)):
                loops[key] += turn.loop
                entry.by_round[True] += turn.loop
    _check(asking, settings.seed + 1, kept)
    for key in asking.alive(kept):
        entry = row.entries[key]
        entry.single, entry.loop = spread(singles[key]), spread(loops[key])
        entry.own = spread(own[key]) if own[key] else None
    for key, entry in row.entries.items():
        if entry.wrong:
            say(f"{row.label}: {key}: WRONG: {entry.failed}")
    return row


def _twins(asking: Asking, kept: Sequence[str], seed: int) -> list[str]:
    """The finalists of ours in a process a GPU, ready and checked."""
    row = asking.row
    asking.load(PROCESSES, row.scenario, tuple(key for key in kept if row.entries[key].side == OURS))
    twins = asking.of(PROCESSES)
    _check(asking, seed, twins)
    for key in twins:
        entry, of = row.entries[key], row.entries[key.removeprefix(TWIN)]
        entry.screened, entry.loop_length = of.screened, of.loop_length
    return asking.alive(twins)


def _check(asking: Asking, seed: int, keys: Iterable[str]) -> None:
    """New operands, one run of everybody on poisoned outputs, compared."""
    row = asking.row
    for name in dict.fromkeys(asking.crew_of[key] for key in keys):
        asking.ask(name, "data", seed)
    for key in keys:
        if not asking.alive([key]):
            continue
        errors = [_number(x) for x in asking.ask(asking.crew_of[key], "check", key) if x is not None]
        if not errors:
            continue
        entry, error = row.entries[key], max(errors)
        entry.rel_err = error if entry.rel_err is None else max(error, entry.rel_err)
        if not error <= row.tolerance:
            entry.wrong = True
            entry.failed = f"relative error {error:.2e}, tolerance {row.tolerance:.2e}, seed {seed}"


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value


def loop_length(time: float, most: int) -> int:
    """Runs in a loop of a contestant that takes `time` microseconds."""
    return max(LOOP_LEAST, min(most, int(LOOP_TIME / time)))


def loop_warmup(time: float, least: int) -> int:
    """Runs before a loop of a contestant that takes `time` microseconds."""
    return max(least, int(LOOP_WARM / time) if time else 0)


def finalists(row: Row, count: int) -> list[str]:
    """Who takes part in the rounds: the `count` fastest of ours, the fastest one in its other form, too; all others."""
    alive = [key for key, entry in row.entries.items() if entry.failed is None]
    ours = [key for key in alive if row.entries[key].side == OURS]
    fastest = sorted(ours, key=lambda key: row.entries[key].screened or 0.0)[:count]
    forms = {key.rsplit(" ", 1)[0] for key in fastest[:1]}
    return [key for key in alive if key not in ours or key in fastest or key.rsplit(" ", 1)[0] in forms]


def first_line(error: Exception) -> str:
    """What a table has room for."""
    return str(error).partition("\n")[0]


def in_turn(keys: Sequence[str], seed: int, what: str, number: int) -> list[str]:
    """The contestants in the order of a pass; a contestant and its twin one after the other, each first by turns."""
    order: list[str] = []
    for key in shuffled([key for key in keys if not key.startswith(TWIN)], seed, f"{what} {number}"):
        pair = [key for key in (key, TWIN + key) if key in keys]
        order += pair if number % 2 == 0 else reversed(pair)
    return order


def shuffled(keys: Sequence[str], seed: int, what: str) -> list[str]:
    """The contestants in the order of a pass, the same for the same seed."""
    order = list(keys)
    random.Random(f"{seed} {what}").shuffle(order)
    return order
