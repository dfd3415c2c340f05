"""The model's choice: simulates candidates on the virtual clock, ranks them from fastest to slowest, and caches the
result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import inf
from pathlib import Path

from .. import compiler, env
from ..errors import ScheduleError, UsageError
from ..exec.operation import require_operation
from ..files import atomic, shipped
from ..files.records import Reader, json_text
from ..graph.ir import Gemm
from ..kernels.families import AloneTimes, Timer, beside_library, tuned
from ..kernels.tiles import DEPTH
from ..machine.durations import vendor_gemm, was_measured
from ..machine.model import Machine
from ..sim.simulate import simulate
from .candidates import (
    BASELINE,
    Candidate,
    ShippedOperation,
    by_kernel,
    by_rules,
    leaving,
    streams_products,
    text_of,
    variations,
    within_reach,
)
from .facts import Facts
from .heuristics import RULES, deciding
from .lower_bound import bound
from .params import SHARES, pieces

FORM = 3  # of the cache's files
NEAR = 1.15  # times the best: a schedule above it is not worth other values of its parameters
VARIED = 4  # schedules of which other values are tried
VENDORED = 2  # schedules that are tried with the vendor's GEMM, beside the baseline
WORK = 2000  # ops of all candidates, over all ranks: some 0.2 ms each
LEAST = 64  # rows of a piece: pieces of 39 rows take up to 40 % longer than modelled (docs/internals/model.md)
FEWEST, MORE = 4, 2  # schedules that are simulated whatever the work, and other values or kernels of these


@dataclass(frozen=True, slots=True)
class Question:
    """A request for a choice, with all sizes bound."""

    operation: ShippedOperation
    ranks: int
    machine: Machine
    sizes: Mapping[str, object]
    facts: Facts | None
    own: tuple[Candidate, ...] | None  # the caller's own candidates
    ranks_per_gpu: int = 1
    vendor: bool = True  # whether the vendor's library may make the products
    leave: int = 0  # multiprocessors that launches which wait leave to other libraries
    timer: Timer | None = None  # measures products that nothing runs beside

    @property
    def baseline(self) -> str:
        """The operation's schedule without overlap."""
        return f"{self.operation.name}/{BASELINE}"

    @property
    def ruled(self) -> str | None:
        """The schedule that the rules choose."""
        f = self.facts
        return None if f is None else f"{f.operation}/{deciding(f).schedules[f.operation]}"

    def candidates(self) -> tuple[Candidate, ...]:
        """The caller's own; or each shipped schedule with the values of the rules: what the rules say first, then the
        baseline, then what they say most often."""
        if self.own is not None:
            return self.own
        usual = RULES[-1].schedules.get(self.operation.name, BASELINE)
        first = (self.ruled, self.baseline, f"{self.operation.name}/{usual}")
        fitting = within_reach(self.operation, self.facts)
        order = sorted(fitting, key=lambda s: first.index(s) if s in first else len(first))
        return tuple(by_rules(self.facts, schedule)[0] for schedule in order)

    def knows(self, candidate: Candidate) -> bool:
        """Whether a candidate is one that is asked about."""
        if self.own is not None:
            return candidate in self.own
        return candidate.schedule in self.operation.schedules and (self.vendor or not candidate.vendored)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Candidates from the fastest to the slowest, and those that could not be compiled, with the reason."""

    ranked: tuple[Candidate, ...]
    refused: tuple[tuple[Candidate, str], ...] = ()

    def joined(self, others: Iterable[Candidate]) -> Ranking:
        """This ranking with other options added."""
        return replace(self, ranked=tuple(sorted((*self.ranked, *others), key=lambda o: o.time)))


def rank(
    asked: Question, candidates: Sequence[Candidate], few: int | None = None, best: float = inf, fewest: int = FEWEST
) -> Ranking:
    """Simulate candidates: the first and the baseline, then the others in the order of their bounds. Of these one whose
    bound is above the `best` time so far is left out unless it is the caller's own. So is all beyond `few`, or beyond
    `fewest` where work is more than `WORK`.

    The operation's shipped schedules are compiled without proof, for tests prove them and whoever runs the chosen one
    proves it again; others are proven, and must be of the operation."""
    built, refused, work = [], [], 0
    for i, candidate in enumerate(candidates):
        if asked.own is None and i >= fewest and work > 2 * WORK:
            break
        try:
            graph = compiler.build(text_of(candidate.schedule), asked.ranks, {**asked.sizes, **dict(candidate.params)})
            trusted = candidate.schedule in asked.operation.schedules
            if not trusted:
                baseline = compiler.build(text_of(asked.baseline), asked.ranks, asked.sizes)
                require_operation(graph, asked.operation.name, baseline)
            work += len(graph.ops)
            certain = i == 0 or candidate.schedule == asked.baseline
            built.append((0.0 if certain else bound(graph, asked.machine), candidate, graph, trusted))
        except (ScheduleError, UsageError) as error:
            refused.append((candidate, _words(error)))
    ranked: list[Candidate] = []
    work = 0
    for least, candidate, graph, trusted in sorted(built, key=lambda b: b[0]):
        work += len(graph.ops)
        enough = len(ranked) >= fewest and work > WORK
        if asked.own is None and (least > best or enough or len(ranked) == few):
            continue
        try:
            plan = leaving(compiler.plan_of(graph, asked.machine, trusted=trusted), asked.leave)
        except (ScheduleError, UsageError) as error:
            refused.append((candidate, _words(error)))
            continue
        time = simulate(plan, asked.machine, vendor=asked.vendor).duration
        commands = sum(1 for _ in plan.commands())
        best = min(best, time)
        ranked.append(replace(candidate, predicted=time, commands=commands))
    return Ranking((), tuple(refused)).joined(ranked)


def _words(error: ScheduleError | UsageError) -> str:
    """The first mistake, and the way out of it."""
    help = error.diagnostics[0].help if isinstance(error, ScheduleError) and error.diagnostics else None
    return "; ".join(filter(None, (str(error).splitlines()[0], help)))


def sensible(f: Facts, candidate: Candidate) -> bool:
    """Whether pieces are none that kernels are slow with: of K no whole steps, or of fewer rows than the smallest
    tile."""
    params = dict(candidate.params)
    whole = f.shape.k % (DEPTH * len(pieces(params.get("deep", 1)))) == 0
    return (whole or "deep" not in params) and f.rows >= LEAST * len(pieces(params.get("chunks", 1)))


def ranked(asked: Question) -> Ranking:
    """The model's ranking, kept from before or made now: schedules with the values of the rules, then the best by the
    vendor's library, then other values of the best."""
    return _kept(asked, "all", lambda: _made(asked))


def beside(asked: Question, best: Candidate, few: int) -> tuple[Candidate, ...]:
    """A candidate that needs no model, and a few others, from the fastest on; where a run is too much to be modelled at
    once, the candidate alone, without a time. Raises UsageError: the candidate cannot be compiled."""
    if _work(asked, best) > WORK:
        return (best,)
    candidates = (best, *(c for c in asked.candidates() if c != best))
    found = _kept(asked, f"{few} beside {best.label}", lambda: rank(asked, candidates, 1 + few))
    for candidate, reason in found.refused:
        if candidate == best:
            raise UsageError(f"{best.label} cannot be chosen for these sizes: {reason}")
    first = next((o for o in found.ranked if o == best), best)
    return (first, *(o for o in found.ranked if o != best))


def _work(asked: Question, candidate: Candidate) -> int:
    """Copies and products of a candidate, about."""
    cut = ("chunks", *SHARES)
    most = max([1, *(len(pieces(value)) for name, value in candidate.params if name in cut)])
    return 2 * asked.ranks * (asked.ranks - 1) * most


def _made(asked: Question) -> Ranking:
    found = rank(asked, asked.candidates())
    if not found.ranked:
        reasons = "\n".join(f"  {candidate.label}: {reason}" for candidate, reason in found.refused)
        raise UsageError(f"none of the candidates can be chosen for these sizes:\n{reasons}")
    if asked.own is not None:
        return found
    found = _with_vendor(asked, found)
    return _with_neighbours(asked, found) if _work(asked, found.ranked[0]) <= WORK else found


def _offered(asked: Question) -> bool:
    """Whether `kernel = vendor` is worth trying. Where no GEMM of ours is made for the GPUs, all prices are the
    library's already. Where ours was measured and the library was not, its price says nothing of a difference."""
    device = asked.machine.device
    known = vendor_gemm(device) is not None or not was_measured(device.arch)
    return asked.vendor and known and tuned(device.arch)


def alone(asked: Question, candidate: Candidate) -> AloneTimes | None:
    """The times of a rank's products, where they run alone and a candidate may have them by our kernels or by the
    vendor's library; None otherwise. NOTE beside copies nobody has compared them."""
    usual = asked.own is None and asked.ranks_per_gpu == 1 and not asked.leave and asked.vendor
    if not usual or candidate.vendored or candidate.schedule != asked.baseline:
        return None
    try:
        graph = compiler.build(text_of(candidate.schedule), asked.ranks, {**asked.sizes, **dict(candidate.params)})
    except (ScheduleError, UsageError):  # which whoever compiles it says
        return None
    dtypes = {tensor.name: tensor.dtype for tensor in graph.tensors}
    gemms = (op.body for op in graph.ops if isinstance(op.body, Gemm) and op.body.left.rank == 0)
    products = [(g, dtypes[g.left.tensor], dtypes[g.out.tensor]) for g in gemms]
    return beside_library(products, asked.machine.device, asked.timer)


def _with_vendor(asked: Question, found: Ranking) -> Ranking:
    """The ranking with the best schedules that stream no product once more, and the baseline, their products by the
    vendor's library; what it does not make is left out."""
    if not _offered(asked):
        return found
    plain = [o for o in found.ranked if not streams_products(o.schedule)]
    baseline = [c for c in plain if c.schedule == asked.baseline]
    # a schedule that our kernels are too slow for may come first by the library
    plain += [c for c in asked.candidates() if c not in plain and not streams_products(c.schedule)]
    tried = dict.fromkeys(map(by_kernel, (*baseline, *plain[:VENDORED])))
    return found.joined(rank(asked, list(tried), fewest=MORE).ranked)


def _with_neighbours(asked: Question, found: Ranking) -> Ranking:
    """The ranking with other values and the other kernel of its best few schedules, until none of these is among the
    best few; what cannot be compiled is left out."""
    known, varied = set(found.ranked), set[Candidate]()
    while True:
        limit = NEAR * found.ranked[0].time
        near: dict[str, Candidate] = {}
        for option in found.ranked:
            if option.time <= limit:
                near.setdefault(option.schedule, option)
        best = [o for o in list(near.values())[:VARIED] if o not in varied]
        if not best:
            return found
        varied.update(best)
        tried = [v for o in best for v in _neighbours(asked, o) if v not in known]
        known.update(tried)
        others = sorted(dict.fromkeys(tried), key=lambda c: _work(asked, c))
        found = found.joined(rank(asked, others, best=limit, fewest=MORE).ranked)


def _neighbours(asked: Question, option: Candidate) -> Iterator[Candidate]:
    yield from (v for v in variations(option) if asked.facts is None or sensible(asked.facts, v))
    if _offered(asked) and not option.vendored and not streams_products(option.schedule):
        yield by_kernel(option)


# ---------------------------------------------------------------- kept answers


@dataclass(frozen=True, slots=True)
class _File:
    """The file of an answer."""

    ficco_choices: int
    ranking: Ranking


_KEPT: dict[str, Ranking] = {}  # answers of this process; a lost one is only made again


def _kept(asked: Question, what: str, make: Callable[[], Ranking]) -> Ranking:
    """The answer to a question that was asked before, in this process or in another one; or made now and kept. `what`:
    which candidates. The cache's file is named after a hash of all that decides on the answer: of the machine what the
    model knows, of the package and of the caller's own candidates their files."""
    own = None if asked.own is None else own_texts(asked.own)
    sizes = tuple(asked.sizes.items())
    where = (asked.operation.name, asked.ranks, sizes, machine_hash(asked.machine))
    key = _hash((what, *where, version(), own, asked.vendor, asked.leave))[:32]
    path = env.cache_folder() / "choices" / f"{key}.json"
    if key not in _KEPT:
        with suppress(OSError, ValueError, RecursionError, UsageError):  # none, or a file that somebody else wrote
            stored: _File = Reader(str(path)).read(_File, json.loads(path.read_text(encoding="utf-8")), "")
            if stored.ficco_choices == FORM and stored.ranking.ranked:
                _KEPT[key] = stored.ranking
    found = _KEPT.get(key)
    if found is None or not all(asked.knows(o) for o in found.ranked):
        found = _KEPT[key] = make()
        with suppress(OSError, UsageError):  # where the folder cannot be written, it is kept in this process alone
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic.write_atomic(path, json_text(_File(FORM, found)))
    return found


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def machine_hash(machine: Machine) -> str:
    """A hash of all values of a machine, except its name and the sources of its numbers."""
    return _hash(asdict(replace(machine, name="", source="", sources=())))[:16]


@cache
def version() -> str:
    """A hash of what may change an answer: the modification times of the package's files and of the shipped
    schedules."""
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
