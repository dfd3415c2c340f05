"""A row: contestants made ready, checked, screened, and then measured in turns.

NOTE large GPUs are held by their power: a GEMM of milliseconds that follows 60 ms of full load runs 10 % slower than
one that follows copies. So a round has a pass of single runs and then a pass of loops; all rest after a turn for as
long as it took, and each pass has an order of its own, so that nobody always follows the same neighbour.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .scenarios import Scenario
from .stats import Spread, Work, slowest, spread, tolerance, work
from .workers import Turn

LOOP_TIME = 60_000.0  # microseconds that a loop takes at most; slow contestants get fewer runs in it
LOOP_LEAST = 3
LOOP_WARM = 10_000.0  # microseconds of runs before a loop is timed
REST = 0.1  # seconds without load before a pass
GEMM, COPIES = "limit gemm", "limit copies"


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

    side: str  # ours, peers, limit
    screened: float | None = None
    single: Spread | None = None
    loop: Spread | None = None
    loop_length: int = 0
    own: Spread | None = None
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

    def limit(self, back_to_back: bool = False) -> float | None:
        """The longer of the whole GEMM alone and the copies alone."""
        both = self.time(GEMM, back_to_back), self.time(COPIES, back_to_back)
        return None if both[0] is None or both[1] is None else max(both[0], both[1])


class Asked(Protocol):
    """Worker processes, as `workers.Crew` has them."""

    def ask(self, method: str, *values: object) -> list[object]: ...


def measure(
    scenario: Scenario,
    pieces: Mapping[str, int],
    settings: Settings,
    crews: Mapping[str, Asked],
    say: Callable[[str], None],
    rest: float = REST,
) -> Row:
    """Measure a scenario with the crews "ours" and "peers".

    `pieces` says, by contestant, in how many pieces K may be summed; before a pass all rest for `rest` seconds.
    """
    most = max(pieces.values(), default=1)
    of_two = settings.ranks if settings.gpus < settings.ranks else None
    worked, tolerated = work(scenario, settings.ranks), tolerance(settings.ranks, most, scenario.k)
    row = Row(scenario, worked, tolerated, of_two=of_two)
    crew_of: dict[str, Asked] = {}
    for name, crew in crews.items():
        for answer in crew.ask("load", scenario):
            assert isinstance(answer, dict)
            for key, why in answer.items():
                side = "limit" if key in (GEMM, COPIES) else name
                entry = row.entries.setdefault(key, Entry(side))
                entry.failed = entry.failed or why
                crew_of[key] = crew
    _check(row, crews, crew_of, settings.seed)
    time.sleep(rest)
    for key in shuffled(_alive(row), settings.seed, "screening"):
        entry = row.entries[key]
        first, *_ = _rested(crew_of[key], key, settings.warmup, max(2, settings.singles), 0, rest)
        entry.screened = spread(first).median
        entry.loop_length = loop_length(entry.screened, settings.loop)
    kept = finalists(row, settings.finalists)
    for crew in crews.values():
        crew.ask("keep", tuple(key for key in kept if crew_of[key] is crew))
    singles: dict[str, list[float]] = {key: [] for key in kept}
    loops: dict[str, list[float]] = {key: [] for key in kept}
    own: dict[str, list[float]] = {key: [] for key in kept}
    for i in range(settings.rounds):
        time.sleep(rest)
        for key in shuffled(kept, settings.seed, f"singles {i}"):
            alone, _, clock = _rested(crew_of[key], key, settings.warmup, settings.singles, 0, rest)
            singles[key] += alone
            own[key] += clock
        time.sleep(rest)
        for key in shuffled(kept, settings.seed, f"loops {i}"):
            entry = row.entries[key]
            warm = loop_warmup(entry.screened or 0.0, settings.warmup)
            loops[key] += _rested(crew_of[key], key, warm, 0, entry.loop_length, rest)[1]
    _check(row, crews, crew_of, settings.seed + 1, kept)
    for key in kept:
        entry = row.entries[key]
        if entry.failed is None:
            entry.single, entry.loop = spread(singles[key]), spread(loops[key])
            entry.own = spread(own[key]) if own[key] else None
    for key, entry in row.entries.items():
        if entry.wrong:
            say(f"{row.label}: {key}: WRONG: {entry.failed}")
    return row


def _check(
    row: Row, crews: Mapping[str, Asked], crew_of: Mapping[str, Asked], seed: int, keys: Sequence[str] | None = None
) -> None:
    """New operands, one run of everybody on poisoned outputs, compared."""
    for crew in crews.values():
        crew.ask("data", seed)
    for key in _alive(row) if keys is None else keys:
        entry = row.entries[key]
        if entry.failed is not None:
            continue
        errors = [_number(x) for x in crew_of[key].ask("check", key) if x is not None]
        if not errors:
            continue
        error = max(errors)
        entry.rel_err = error if entry.rel_err is None else max(error, entry.rel_err)
        if not error <= row.tolerance:
            entry.wrong = True
            entry.failed = f"relative error {error:.2e}, tolerance {row.tolerance:.2e}, seed {seed}"


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value


def _alive(row: Row) -> list[str]:
    return [key for key, entry in row.entries.items() if entry.failed is None]


def _turn(crew: Asked, key: str, warmup: int, singles: int, loop: int) -> tuple[list[float], list[float], list[float]]:
    """Single runs, the loop and the own clock of a turn: the slowest GPU's."""
    alone: list[list[float]] = []
    together: list[float] = []
    own: list[float] = []
    for turn in crew.ask("turn", key, warmup, singles, loop):
        assert isinstance(turn, Turn)
        alone += turn.singles
        together += turn.loop
        own += turn.own
    return slowest(alone), [max(together)] if together else [], own


def _rested(
    crew: Asked, key: str, warmup: int, singles: int, loop: int, rest: float
) -> tuple[list[float], list[float], list[float]]:
    """A turn; then a rest as long, `rest` seconds at most."""
    begun = time.monotonic()
    turn = _turn(crew, key, warmup, singles, loop)
    time.sleep(min(rest, time.monotonic() - begun))
    return turn


def loop_length(time: float, most: int) -> int:
    """Runs in a loop of a contestant that takes `time` microseconds."""
    return max(LOOP_LEAST, min(most, int(LOOP_TIME / time)))


def loop_warmup(time: float, least: int) -> int:
    """Runs before a loop of a contestant that takes `time` microseconds."""
    return max(least, int(LOOP_WARM / time) if time else 0)


def finalists(row: Row, count: int) -> list[str]:
    """Who takes part in the rounds: the `count` fastest of ours, the fastest one in its other form, too; all others."""
    alive = _alive(row)
    ours = [key for key in alive if row.entries[key].side == "ours"]
    fastest = sorted(ours, key=lambda key: row.entries[key].screened or 0.0)[:count]
    forms = {key.rsplit(" ", 1)[0] for key in fastest[:1]}
    return [key for key in alive if key not in ours or key in fastest or key.rsplit(" ", 1)[0] in forms]


def shuffled(keys: Sequence[str], seed: int, what: str) -> list[str]:
    """The contestants in the order of a pass, the same for the same seed."""
    order = list(keys)
    random.Random(f"{seed} {what}").shuffle(order)
    return order
