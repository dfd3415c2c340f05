"""Chooses the parameters of schedules, such as the number of pieces of a shard, by rules that need no search.

The rules of a parameter are tried in order, and the first whose condition holds gives the value. If none holds, the
default of the text is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, log2, sqrt

from ..machine.units import TOLD
from .facts import TILE, Facts

MEASURED = ("ag_gemm", "gemm_rs")  # operations of which choices were compared with measurements
BENCH, CASES = "docs/results/bench.md", "docs/results/choice.md"
CLOCK = "the virtual clock of h200-switch"
DRAW = 0.005  # of a time: formulas are no more exact
MOST = 8  # pieces of a shard: more are no faster in any row of the bench
SMALL = 1.5  # a shard's bytes, in times of what a copy costs besides: smaller ones are not worth a copy
WORTH = 2.5  # the same of a piece of products
PIECE = 3.5  # the same of a piece of what is multiplied
TIGHT = 1.5  # times as long as a shard comes it is multiplied: then pieces hide nothing more
FILLED = 1.1  # times as long for its operations as the whole shard: pieces that fill their tiles
FINE = 512  # rows of a piece where a shard has more than two

# Shares of a shard, or of K, that are worth trying, by parameter, the most promising ones first. `tools/bench` measures
# these, too.
SHARES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "deep": ((1,), (1, 1, 1, 1), (1, 1)),
    "taper": ((4, 2, 1, 1), (3, 1), (6, 3, 2, 1)),
    "first": ((1, 1, 2), (1,)),
    "last": ((2, 1, 1), (1, 1, 1, 1)),
}


@dataclass(frozen=True, slots=True)
class ParamRule:
    """A rule of schedules' parameters, by their names. `value` may ask for the facts, the schedule and the parameter.
    `schedules`: those that it speaks for; () is all that have the parameter. `measured`: the operations whose
    measurements on H200 the source tells."""

    name: str
    value: Callable[[Facts, str, str], object]
    says: str
    source: str
    params: tuple[str, ...] = ("chunks",)
    schedules: tuple[str, ...] = ()
    holds: Callable[[Facts], bool] = lambda f: True
    measured: tuple[str, ...] = MEASURED

    def why(self, f: Facts) -> str:
        """The sentence, with the facts' numbers."""
        return TOLD.format(self.says, f=f, more="1 more copy" if f.turns == 1 else f"{f.turns} more copies")


def pieces(value: object) -> Sequence[object]:
    """The pieces of a parameter's value: a number of equal ones, or a list of shares; one of no rows is none."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [share for share in value if share]
    return range(value) if isinstance(value, int) else range(1)


def _power(number: float) -> int:
    """The largest power of two up to `number` and `MOST`, 1 at least."""
    return 1 << int(log2(max(1.0, min(number, MOST))))


def _per(time: float, cost: float) -> float:
    """How often a cost goes into a time; a machine may have costs of 0."""
    return time / cost if cost else inf


def _fitting(f: Facts, number: int) -> int:
    """So many pieces, or as many fewer as fill their tiles, and more than two have rows enough."""
    while number > 1 and not (
        f.stretch(f.rows / number) <= FILLED * f.stretch(f.rows) and (number <= 2 or f.rows >= FINE * number)
    ):
        number //= 2
    return number


def _filled(f: Facts, number: int) -> int:
    """So many pieces, or as many fewer as have the rows of the smaller tiles."""
    while number > 1 and f.rows < TILE // 2 * number:
        number //= 2
    return number


def _large(f: Facts) -> int:
    """The pieces of a shard whose bytes take at least `PIECE` times what a copy costs besides."""
    return _fitting(f, _power(_per(f.shard * 1.05, PIECE * f.links.copy_time)))


def _balanced(f: Facts) -> int:
    """The pieces for which what the copies cost besides and what is left behind the last one are least together."""
    return _fitting(f, _power(sqrt(_per(f.abreast * f.own, f.turns * f.links.copy_time)))) if f.peers else 1


def _fewest(f: Facts, takes: Callable[[int], float]) -> int:
    """The fewest pieces worth a copy that take least."""
    possible = [n for n in (1, 2, 4) if n == 1 or f.shard / n >= WORTH * f.links.copy_time]
    least = min(map(takes, possible))
    return next(n for n in possible if takes(n) <= (1 + DRAW) * least)


def sent(f: Facts) -> int:
    """The fewest pieces that take least: the first one's product, all copies and the last one's sum; or the peers'
    products, the last piece's copy beside the other own ones, and the last own one."""

    def takes(number: int) -> float:
        own = f.own * max(1.0, f.stretch(f.rows / number) / f.stretch(f.rows))
        piece = own / number
        last = max(own - piece, f.shard / number + f.links.copy_time)
        first = (1 + f.abreast) * piece  # on a mesh all peers' first pieces are made before the last of them goes
        return max(first + f.turns * (f.shard + number * f.links.copy_time), f.peers * own + last + piece)

    return _fewest(f, takes)


def _gathered(f: Facts) -> int:
    """The fewest pieces that take least if a piece of all peers' shards is one product: all copies and the last piece's
    product, or all products."""

    def takes(number: int) -> float:
        own = f.own * f.stretch(f.rows / number) / f.stretch(f.rows)
        copies = f.turns * (f.shard + number * f.links.copy_time)
        return max(f.ranks * own, copies + f.peers * own / number)

    return _fewest(f, takes)


def _messages(f: Facts) -> int:
    """As `_balanced`, for messages between nodes, of which each brings rows for a whole node; 1 where the GEMM hides
    all of them."""
    cost, behind = f.links.copy_time + 2 * f.links.signal_time, f.own * f.node
    if (f.nodes - 1) * (f.shard + cost) + behind <= f.gemm:
        return 1
    return min(4, _power(sqrt(_per(behind, (f.nodes - 1) * cost))))


HIERARCHICAL = ("a2a_gemm/hierarchical", "ag_gemm/hierarchical", "gemm_rs/hierarchical")
FIXED = {"gemm_rs/direct": 4, "gemm_rs/stationary_c": 2}
FEW = {  # pieces at most: each one costs a launch, or a pass over C
    "ag_gemm/hetero_fused_1d": 2,
    "ag_gemm/uniform_fused_1d": 4,
    "ag_gemm/uniform_fused_2d": 2,
    "gemm_ar/overlapped": 2,
    "gemm_ar/streamed": 4,
}

PARAM_RULES: tuple[ParamRule, ...] = (
    ParamRule(
        "nodes of the machine",
        lambda f, *_: f.node,
        "the machine's nodes have {f.node} GPUs",
        "machine.model: the reach of a machine's tiers",
        params=("node",),
        schedules=HIERARCHICAL,
        measured=(),
    ),
    ParamRule(
        "alone",
        lambda *_: 1,
        "one rank sends nothing",
        "by definition",
        holds=lambda f: f.ranks == 1,
        measured=(),
    ),
    ParamRule(
        "messages",
        lambda f, *_: _messages(f),
        "each further piece costs more messages on {f.nodes} nodes, and shortens the GEMM that stands behind the last "
        "one; a shard's bytes take {f.shard:.4g} µs on the network",
        "the virtual clock; no machine of several nodes was measured",
        schedules=HIERARCHICAL,
        holds=lambda f: f.nodes > 1,
        measured=(),
    ),
    ParamRule(
        "products that are given",
        lambda f, *_: 2 if f.way(f.shape.out or 0.0) >= 2 * f.links.copy_time else 1,
        "a peer's products go in halves if half of their bytes takes as long as a copy costs besides "
        "({f.links.copy_time:.3g} µs), else whole",
        f"{CASES}: halves are 0.7 % ahead where their bytes take 1.1 times what a copy costs besides, 5 % behind where "
        "they take 0.7 times it",
        schedules=("ag_gemm/stationary_a",),
    ),
    ParamRule(
        "products to be sent",
        lambda f, *_: sent(f),
        "copies begin behind the first piece of a shard and the last one is added behind them (a shard's GEMM takes "
        "{f.own:.3g} µs, its bytes {f.shard:.3g}): as few pieces as hide both",
        f"{CASES}: within 2 % of the best pieces in 24 of 28 cases, 6.6 % behind at most",
        schedules=("gemm_rs/streamed", "gemm_rs/chunked"),
        holds=lambda f: f.ranks > 1,
    ),
    ParamRule(
        "fixed",
        lambda f, schedule, _: _filled(f, FIXED[schedule]) if schedule == "gemm_rs/direct" else FIXED[schedule],
        "pieces cost no copy of their own, or the next one hides what the one before waits for: their number matters "
        "little while they fill tiles",
        f"{CASES}: `direct` in quarters or eighths is within 2 % of its best pieces in 21 of 25 cases",
        schedules=tuple(FIXED),
    ),
    ParamRule(
        "behind a whole product",
        lambda *_: 1,
        "whole shards: the copies hide behind another whole product, and a piece more costs {more}",
        f"{CLOCK}: choices of these operations are within 2 % of the best in 148 of 153 cases",
        schedules=("a2a_gemm_backward/overlapped", "ag_gemm_backward/overlapped", "gemm_a2a/overlapped"),
        measured=(),
    ),
    ParamRule(
        "gathered pieces",
        lambda f, *_: _gathered(f),
        "the product of a piece of all shards begins when that piece has come from all peers (whole shards take "
        "{f.copies:.4g} µs, and their product {f.gemm:.4g} µs): as few pieces as hide both",
        f"{CLOCK}: choices of `gemm_rs_backward` are within 2 % of the best in 82 of 96 cases, 8 % behind at most",
        schedules=("gemm_rs_backward/overlapped",),
        holds=lambda f: f.ranks > 1,
    ),
    ParamRule(
        "few steps",
        lambda f, schedule, _: min(FEW[schedule], _large(f)),
        "each step costs a launch, a copy or a pass over C, so there are few",
        f"{BENCH}, 'Which schedule wins where' and 'All-reduce'",
        schedules=tuple(FEW),
    ),
    ParamRule(
        "ahead",
        lambda *_: 1,
        "whole shards: one is multiplied in {f.pace:.2g} times the time that the next one takes to come, so pieces "
        "would hide nothing more",
        f"{CASES}: whole shards are within 0.4 % of the best pieces in all 23 cases from 1.8 times on; with 1.03 times "
        "they are 6 % behind",
        holds=lambda f: f.pace >= TIGHT,
    ),
    ParamRule(
        "tight",
        lambda f, *_: _large(f),
        "a shard is multiplied in {f.pace:.2g} times the time that the next one takes to come, which is tight: pieces "
        "are as fine as copies allow (a shard's bytes take {f.shard:.3g} µs, a copy costs {f.links.copy_time:.3g} µs "
        "besides)",
        f"{BENCH}, 'Which schedule wins where', four H200: the best pieces are of 8.4 MB, whose bytes take 22 µs where "
        "a copy costs 6 µs besides",
        holds=lambda f: f.pace >= 1,
    ),
    ParamRule(
        "balanced",
        lambda f, *_: _balanced(f),
        "shards arrive more slowly than they are multiplied, so pieces only shorten the GEMM after the last copy, "
        "{f.own:.3g} µs with whole shards; each further piece costs {more} of {f.links.copy_time:.3g} µs",
        "pieces n for which peers · n · copy_time + own / n is least: n = √(own / (peers · copy_time)), rounded down "
        "to a power of two",
        measured=(),
    ),
    ParamRule(
        "shares",
        lambda f, _, param: SHARES[param][0],
        "the ratio of parts that was the fastest in most measurements",
        f"{BENCH}, 'Which schedule wins where'",
        params=tuple(SHARES),
    ),
)


@dataclass(frozen=True, slots=True)
class Given:
    """A value that rules give a parameter, and why."""

    param: str
    value: object
    rule: str
    why: str
    source: str
    measured: tuple[str, ...]


def given(f: Facts, schedule: str, param: str) -> Given | None:
    """The value of a schedule's parameter by the rules; None: the default of the text is equally good."""
    for rule in PARAM_RULES:
        if param in rule.params and (not rule.schedules or schedule in rule.schedules) and rule.holds(f):
            value = rule.value(f, schedule, param)
            return Given(param, value, rule.name, rule.why(f), rule.source, rule.measured)
    return None
