"""The model's choice: candidates simulated on the virtual clock, from the fastest to the slowest, and kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from .. import compiler, env
from ..errors import ScheduleError, UsageError
from ..exec.operation import require_operation
from ..files import atomic, shipped
from ..files.records import Reader
from ..kernels.tiles import DEPTH
from ..machine.cost import vendor_gemm
from ..machine.model import Machine
from ..sim.simulate import simulate
from .candidates import (
    BASELINE,
    Candidate,
    ShippedOperation,
    by_rules,
    by_vendor,
    streams_products,
    text_of,
    variations,
    within_reach,
)
from .estimates import estimate, pieces
from .facts import Facts
from .rules import deciding

FORM = 1  # of the cache's files
SLOW = 1.4  # times the best closed form: a schedule above it is not worth a simulation
NEAR = 1.15  # and other values of its parameters above this
VARIED = 3  # schedules of which other values are tried
VENDORED = 3  # schedules that are tried with the vendor's GEMM, beside the baseline
WORK = 2000  # copies and products of all candidates, over all ranks: some 0.2 ms each
LEAST = 64  # rows of a piece: pieces of 39 rows take up to 40 % longer than modelled (docs/internals/model.md)
FEWEST = 4  # schedules that are simulated whatever the closed forms say


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate with its modelled time in microseconds and the commands of its plan, over all ranks."""

    candidate: Candidate
    predicted: float
    commands: int


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates from the fastest to the slowest, and those that could not be compiled, with the reason."""

    ranked: tuple[Ranked, ...]
    refused: tuple[tuple[Candidate, str], ...] = ()


def shortlist(operation: ShippedOperation, f: Facts | None) -> tuple[Candidate, ...]:
    """The candidates that are worth a simulation: schedules with the values of the rules, then other values of the
    best; the schedule that the rules choose first, and the baseline always."""
    if f is None:
        return tuple(Candidate(name) for name in operation.schedules)
    baseline = f"{operation.name}/{BASELINE}"
    first = f"{operation.name}/{deciding(f).schedules[operation.name]}"
    fitting = within_reach(operation, f)
    priced = [(estimate(f, c.schedule, dict(c.params)), c) for c in (by_rules(f, s)[0] for s in fitting)]
    best = min((time for time, _ in priced if time is not None), default=0.0)
    ordered = sorted(((time or 0.0, c) for time, c in priced), key=lambda p: (p[1].schedule != first, p[0]))
    kept = [(time, c) for i, (time, c) in enumerate(ordered) if i < FEWEST or time <= SLOW * best]
    others = [
        (time, v)
        for _, c in kept[:VARIED]
        for v in variations(c)
        if sensible(f, v) and (time := estimate(f, v.schedule, dict(v.params))) is not None and time <= NEAR * best
    ]
    found = [c for _, c in kept] + [c for _, c in sorted(others, key=lambda p: p[0])]
    chosen: list[Candidate] = [c for _, c in priced if c.schedule == baseline]
    work = sum(_work(f, c) for c in chosen)
    for candidate in found:
        work += _work(f, candidate)
        if candidate not in chosen and (work <= WORK or len(chosen) < FEWEST):
            chosen.append(candidate)
    return tuple(chosen)


def sensible(f: Facts, candidate: Candidate) -> bool:
    """Whether pieces are none that kernels are slow with: of K no whole steps, or of fewer rows than the smallest
    tile."""
    params = dict(candidate.params)
    whole = f.shape.k % (DEPTH * pieces(params.get("deep", 1)).count) == 0
    return (whole or "deep" not in params) and f.rows >= LEAST * pieces(params.get("chunks", 1)).count


def _work(f: Facts, candidate: Candidate) -> int:
    """Copies and products of a candidate, about."""
    return 2 * f.ranks * f.peers * max([1, *(pieces(value).count for _, value in candidate.params)])


def rank(
    operation: str, candidates: Sequence[Candidate], ranks: int, sizes: Mapping[str, object], machine: Machine
) -> Ranking:
    """Simulate the candidates. The operation's shipped schedules are compiled without proof, for tests prove them and
    whoever runs the chosen one proves it again; others are proven, and must be of the operation. Raises UsageError:
    none of the candidates can be chosen."""
    ranked, refused = [], []
    for candidate in candidates:
        given = {**sizes, **dict(candidate.params)}
        try:
            name = shipped.shipped_name(shipped.find(candidate.schedule))
            if name is not None and name.startswith(f"{operation}/"):
                plan = compiler.plan_of(
                    compiler.build(text_of(candidate.schedule), ranks, given), machine, trusted=True
                )
            else:
                plan = compiler.compile_schedule(candidate.schedule, ranks, given, machine)
                baseline = compiler.build(text_of(f"{operation}/{BASELINE}"), ranks, sizes)
                require_operation(plan, operation, baseline)
        except (ScheduleError, UsageError) as error:
            refused.append((candidate, str(error).splitlines()[0]))
            continue
        commands = sum(len(stream.commands) for stream in plan.streams)
        ranked.append(Ranked(candidate, simulate(plan, machine).duration, commands))
    if not ranked:
        reasons = "\n".join(f"  {candidate.label}: {reason}" for candidate, reason in refused)
        raise UsageError(f"none of the candidates can be chosen for these sizes:\n{reasons}")
    order = {c: i for i, c in enumerate(candidates)}
    return Ranking(tuple(sorted(ranked, key=lambda r: (r.predicted, order[r.candidate]))), tuple(refused))


def with_variations(found: Ranking, f: Facts, sizes: Mapping[str, object], machine: Machine) -> Ranking:
    """The ranking with half and twice the pieces of its best few schedules, as modelled, then of what is best after
    that. `WORK` limits these simulations too; the best schedule's come first."""
    known = {r.candidate for r in found.ranked} | {c for c, _ in found.refused}
    work = 0
    for few in (VARIED, 1):
        near: dict[str, Candidate] = {}  # the best of each schedule
        for r in found.ranked:
            if r.predicted <= NEAR * found.ranked[0].predicted:
                near.setdefault(r.candidate.schedule, r.candidate)
        others = []
        for best in list(near.values())[:few]:
            for other in sorted(variations(best, ("chunks",)), key=lambda c: _work(f, c)):
                if other not in known and sensible(f, other) and work + _work(f, other) <= WORK:
                    work += _work(f, other)
                    others.append(other)
        known.update(others)
        with suppress(UsageError):  # none is left, or none can be compiled
            more = rank(f.operation, others, f.ranks, sizes, machine).ranked
            found = replace(found, ranked=tuple(sorted((*found.ranked, *more), key=lambda r: r.predicted)))
    return found


def with_vendor(
    found: Ranking, operation: ShippedOperation, ranks: int, sizes: Mapping[str, object], machine: Machine
) -> Ranking:
    """The ranking with the best schedules once more, their products by the vendor's library, if the machine has a price
    of it: those that stream no product, and the baseline. What the library does not make is left out."""
    if vendor_gemm(machine.device) is None:
        return found
    plain = [r.candidate for r in found.ranked if not streams_products(r.candidate)]
    baseline = [c for c in plain if c.schedule == f"{operation.name}/{BASELINE}"]
    twins = dict.fromkeys(by_vendor(c) for c in (*plain[:VENDORED], *baseline))
    try:
        more = rank(operation.name, tuple(twins), ranks, sizes, machine).ranked
    except UsageError:  # the library makes none of them
        return found
    both = {r.candidate: r for r in (*found.ranked, *more)}
    return Ranking(tuple(sorted(both.values(), key=lambda r: r.predicted)), found.refused)


# ---------------------------------------------------------------- kept answers


@dataclass(frozen=True, slots=True)
class Key:
    """What an answer is for. The cache's file is named after its hash."""

    operation: str
    ranks: int
    sizes: tuple[tuple[str, object], ...]
    machine: str  # the hash of all that the model knows of it
    version: str  # of this package: its files, as they were changed last
    candidates: tuple[str, ...] | None = None  # the caller's own, with their texts' hashes
    vendor: bool = True  # whether the vendor's library may make the products

    @property
    def digest(self) -> str:
        """64 hexadecimal digits."""
        return _hash(asdict(self))


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def machine_hash(machine: Machine) -> str:
    """A hash of all that a machine says, but for its name and the source of its numbers."""
    return _hash(asdict(replace(machine, name="", source="", sources=())))[:16]


@cache
def version() -> str:
    """A hash of what decides on an answer: when the package's files and the shipped schedules were changed last."""
    package = Path(__file__).resolve().parents[1]
    found = []
    for path in sorted((*package.rglob("*.py"), *shipped.root().rglob(f"*{shipped.SUFFIX}"))):
        state = path.stat()
        found.append((path.name, state.st_mtime_ns, state.st_size))
    return _hash(found)[:16]


def own_texts(candidates: Iterable[Candidate]) -> tuple[str, ...]:
    """What tells the caller's candidates from any others: their parameters, and what their files say."""
    return tuple(
        f"{c.label} {hashlib.sha256(atomic.read_bytes(shipped.find(c.schedule))).hexdigest()}" for c in candidates
    )


_KEPT: dict[Key, Ranking] = {}  # answers of this process; a lost one is only made again


def kept(key: Key) -> Ranking | None:
    """The answer to a question that was asked before, in this process or in another one."""
    if key not in _KEPT:
        with suppress(OSError, ValueError, RecursionError, UsageError):  # none, or a file that somebody else wrote
            _KEPT[key] = _decoded(json.loads(_file(key).read_text(encoding="utf-8")), str(_file(key)))
    return _KEPT.get(key)


def keep(key: Key, ranking: Ranking) -> None:
    """Keep an answer; where the cache's folder cannot be written, in this process alone."""
    _KEPT[key] = ranking
    path = _file(key)
    with suppress(OSError, UsageError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic.write_atomic(path, _encoded(ranking))


def _file(key: Key) -> Path:
    return env.cache_folder() / "choices" / f"{key.digest[:32]}.json"


def _encoded(ranking: Ranking) -> str:
    ranked = [[r.candidate.schedule, r.candidate.params, r.predicted, r.commands] for r in ranking.ranked]
    refused = [[c.schedule, c.params, reason] for c, reason in ranking.refused]
    return json.dumps({"ficco_choices": FORM, "ranked": ranked, "refused": refused})


@dataclass(frozen=True, slots=True)
class _Kept:
    """The file of an answer."""

    ficco_choices: int
    ranked: tuple[tuple[str, tuple[tuple[str, object], ...], float, int], ...]
    refused: tuple[tuple[str, tuple[tuple[str, object], ...], str], ...]


def _decoded(value: object, path: str) -> Ranking:
    found: _Kept = Reader(path).read(_Kept, value, "")
    if found.ficco_choices != FORM or not found.ranked:
        raise ValueError("of another form")
    ranked = tuple(Ranked(Candidate(s, p), t, n) for s, p, t, n in found.ranked)
    return Ranking(ranked, tuple((Candidate(s, p), reason) for s, p, reason in found.refused))
