"""What schedules' parameters should be: into which pieces a shard goes, by rules that need no search.

The rules of a parameter are asked from the first to the last, and the first that holds gives the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2, sqrt

from ..machine.units import TOLD
from .estimates import two_levels
from .facts import Facts
from .figures import BENCH, DRAW, FILLED, FINE, LONG, MOST, PAGE, PIECE, SMALL, TIGHT, TOO_SMALL, UNEVEN, Figure


@dataclass(frozen=True, slots=True)
class ParamRule:
    """A rule of schedules' parameters, by their names. `schedules`: those that it speaks for; () is all that have the
    parameter. `holds` and `value` may ask for the facts. The first that holds gives the value."""

    name: str
    params: tuple[str, ...]
    schedules: tuple[str, ...]
    holds: Callable[[Facts], bool]
    value: Callable[[Facts], object]
    says: str
    source: str
    figures: tuple[Figure, ...] = ()

    def why(self, f: Facts) -> str:
        """The sentence, with the facts' numbers."""
        return TOLD.format(self.says, f=f, more="1 more copy" if f.turns == 1 else f"{f.turns} more copies")


def filled(f: Facts, pieces: int) -> bool:
    """Whether so many pieces of a shard fill their tiles nearly as well as the whole shard."""
    return f.stretch(f.rows / pieces) <= FILLED.value * f.stretch(f.rows)


def _power(number: float, most: float) -> int:
    """The largest power of two up to `number` and `most`, 1 at least."""
    return 1 << int(log2(max(1.0, min(number, most))))


def _fitting(f: Facts, pieces: int) -> int:
    """So many pieces, or as many fewer as fill their tiles, and more than two have rows enough."""
    while pieces > 1 and not (filled(f, pieces) and (pieces <= 2 or f.rows >= FINE.value * pieces)):
        pieces //= 2
    return pieces


def _large(f: Facts) -> int:
    """The pieces of a shard whose bytes take at least `PIECE` times what a copy costs besides."""
    return _fitting(f, _power(MOST.value, min(MOST.value, f.shard * 1.05 / (PIECE.value * f.c.copy_time))))


def _balanced(f: Facts) -> int:
    """The pieces for which what the copies cost besides and what is left behind the last one are least together."""
    return _fitting(f, _power(sqrt(f.abreast * f.own / (f.turns * f.c.copy_time)), MOST.value)) if f.peers else 1


def _hidden(f: Facts) -> int:
    """The steps of which the first is hidden by the own shard's product, if pieces stay large."""
    least = 2 if f.gemm >= LONG.value else 1
    return max(least, _power(ceil(f.copies / f.own), _large(f)))


def sent(f: Facts) -> int:
    """The fewest pieces that take least: the first one's product, all copies and the last one's sum; or the peers'
    products, the last piece's copy beside the other own ones, and the last own one."""

    def takes(pieces: int) -> float:
        own = f.own * max(1.0, f.stretch(f.rows / pieces) / f.stretch(f.rows))
        piece = own / pieces
        last = max(own - piece, f.shard / pieces + f.c.copy_time)
        first = (1 + f.abreast) * piece  # on a mesh all peers' first pieces are made before the last of them goes
        return max(first + f.turns * (f.shard + pieces * f.c.copy_time), f.peers * own + last + piece)

    possible = [n for n in (1, 2, 4) if n == 1 or f.shard / n >= SMALL.value * f.c.copy_time]
    least = min(map(takes, possible))
    return next(n for n in possible if takes(n) <= (1 + DRAW) * least)


def _halved(f: Facts) -> bool:
    """Whether shards come slower than they are multiplied, half of the last piece's product takes longer than one more
    copy, and halves of K are whole steps of the kernels."""
    pieces, k = _balanced(f), f.shape.k
    return f.pace < 1 and f.own / pieces / 2 >= f.c.copy_time and k >= 1024 and k % 128 == 0


HIERARCHICAL = ("a2a_gemm/hierarchical", "ag_gemm/hierarchical", "gemm_rs/hierarchical")


def _messages(f: Facts) -> int:
    """The pieces of a shard for which messages, copies inside the node and what is left behind the last message take
    least, by the closed formula."""
    return min((1, 2, 4), key=lambda pieces: two_levels(f, {"chunks": pieces}))


PARAM_RULES: tuple[ParamRule, ...] = (
    ParamRule(
        "nodes of the machine",
        ("node",),
        HIERARCHICAL,
        lambda f: True,
        lambda f: f.c.node,
        "the machine's nodes have {f.c.node} GPUs",
        "machine.model: the reach of a machine's tiers",
    ),
    ParamRule("alone", ("chunks",), (), lambda f: f.ranks == 1, lambda f: 1, "one rank sends nothing", "by definition"),
    ParamRule(
        "messages",
        ("chunks",),
        HIERARCHICAL,
        lambda f: f.nodes > 1,
        _messages,
        "each further piece costs more messages and copies on {f.nodes} nodes, and shortens the GEMM that stands "
        "behind the last message; a shard's bytes take {f.shard:.4g} µs on the network",
        "the closed formula of hierarchical schedules; in 10 cases of the model, none measured, its pieces are 2 % "
        "behind the best on average, 11 % at most",
    ),
    ParamRule(
        "products that are given",
        ("chunks",),
        ("ag_gemm/stationary_a",),
        lambda f: f.way(f.shape.out or 0.0) >= 2 * f.c.copy_time,
        lambda f: 2,
        "halves of a peer's product: their bytes take as long as a copy costs besides ({f.c.copy_time:.3g} µs)",
        f"{PAGE}: halves are 0.7 % ahead where their bytes take 1.1 times what a copy costs besides, 5 % behind where "
        "they take 0.7 times it",
    ),
    ParamRule(
        "products that are given whole",
        ("chunks",),
        ("ag_gemm/stationary_a",),
        lambda f: True,
        lambda f: 1,
        "whole products of a peer: halves would take less time than a copy costs besides ({f.c.copy_time:.3g} µs)",
        f"{PAGE}: halves are 0.7 % ahead where their bytes take 1.1 times what a copy costs besides, 5 % behind where "
        "they take 0.7 times it",
    ),
    ParamRule(
        "stationary",
        ("chunks",),
        ("gemm_rs/stationary_c",),
        lambda f: True,
        lambda f: 2,
        "halves: the next piece's sums hide what the one before waits for",
        f"{BENCH}, 'What travels': measured in halves",
    ),
    ParamRule(
        "stored at peers",
        ("chunks",),
        ("gemm_rs/direct",),
        lambda f: True,
        lambda f: 8 if f.copies > f.gemm and filled(f, 8) else 4,
        "pieces that are stored at peers cost no copy: eight where links bound and fill their tiles, else four",
        f"{PAGE}: within 2 % of the best pieces in 21 of 25 cases",
        (FILLED,),
    ),
    ParamRule(
        "steps of all shards",
        ("chunks",),
        ("ag_gemm/hetero_fused_1d",),
        lambda f: True,
        _hidden,
        "the own shard's GEMM ({f.own:.3g} µs) hides about one step's copies (all copies: {f.copies:.3g} µs)",
        f"{BENCH}, 'Which schedule wins where'",
        (PIECE, MOST),
    ),
    ParamRule(
        "steps of all of C",
        ("chunks",),
        ("ag_gemm/uniform_fused_2d",),
        lambda f: True,
        lambda f: min(2, _large(f)),
        "every step reads and writes all of C, so there are few",
        f"{BENCH}, 'Which schedule wins where': at most two intervals of K are best",
        (PIECE,),
    ),
    ParamRule(
        "steps without an own shard first",
        ("chunks",),
        ("ag_gemm/uniform_fused_1d",),
        lambda f: True,
        lambda f: max(min(4, 2 * _large(f)), 1),
        "nothing hides the first step's copies, so steps are fine as far as copies allow",
        f"{BENCH}, 'Which schedule wins where': two to eight steps are best",
        (PIECE,),
    ),
    ParamRule(
        "products to be sent",
        ("chunks",),
        ("gemm_rs/streamed",),
        lambda f: f.ranks > 1,
        sent,
        "copies begin behind the first piece of a shard and the last one is added behind them (a shard's GEMM takes "
        "{f.own:.3g} µs, its bytes {f.shard:.3g}): as few pieces as hide both",
        f"{PAGE}: within 2 % of the best pieces in 24 of 28 cases, 6.6 % behind at most",
        (SMALL, FILLED),
    ),
    ParamRule(
        "products of launches",
        ("chunks",),
        ("gemm_rs/chunked",),
        lambda f: f.ranks > 1,
        lambda f: min(2, sent(f)),
        "each piece costs a launch, so there are at most two",
        f"{PAGE}: within 2 % of the best pieces in 27 of 28 cases",
    ),
    ParamRule(
        "sums that go back",
        ("chunks",),
        ("gemm_ar/overlapped",),
        lambda f: True,
        lambda f: min(2, _large(f)),
        "each piece costs a launch, so there are few",
        f"{BENCH}, 'All-reduce'",
        (PIECE,),
    ),
    ParamRule(
        "sums that go back beside the GEMM",
        ("chunks",),
        ("gemm_ar/streamed",),
        lambda f: True,
        lambda f: min(4, _large(f)),
        "pieces are as fine as copies allow: a piece's bytes ({f.shard:.3g} µs for a whole shard) take some times what "
        "a copy costs besides ({f.c.copy_time:.3g} µs)",
        f"{BENCH}, 'All-reduce'",
        (PIECE,),
    ),
    ParamRule(
        "ahead",
        ("chunks",),
        (),
        lambda f: f.pace >= TIGHT.value,
        lambda f: 1,
        "whole shards: one is multiplied in {f.pace:.2g} times the time that the next one takes to come, so pieces "
        "would hide nothing more",
        TIGHT.source,
        (TIGHT,),
    ),
    ParamRule(
        "tight",
        ("chunks",),
        (),
        lambda f: f.pace >= 1,
        _large,
        "a shard is multiplied in {f.pace:.2g} times the time that the next one takes to come, which is tight: pieces "
        "are as fine as copies allow (a shard's bytes take {f.shard:.3g} µs, a copy costs {f.c.copy_time:.3g} µs "
        "besides)",
        PIECE.source,
        (TIGHT, PIECE, MOST),
    ),
    ParamRule(
        "balanced",
        ("chunks",),
        (),
        lambda f: True,
        _balanced,
        "shards come slower than they are multiplied. Each further piece costs {more} of {f.c.copy_time:.3g} µs and "
        "shortens the GEMM that stands behind the last copy: {f.own:.3g} µs if shards are whole",
        "pieces n for which peers · n · copy_time + own / n is least: n = √(own / (peers · copy_time)), rounded down "
        "to a power of two",
        (MOST,),
    ),
    ParamRule(
        "last piece in pieces of K",
        ("deep",),
        ("ag_gemm/streamed",),
        _halved,
        lambda f: (1, 1),
        "shards come slower than they are multiplied, so the last piece comes in halves of K: then half of its GEMM "
        "stands behind the copies",
        f"{PAGE}: where half of the last piece's GEMM takes longer than one more copy, halves are 0.5 to 2.1 % "
        "ahead in 4 of 4 cases; elsewhere up to 10 % behind, and 392 % where a piece of K is no multiple of 64",
    ),
    ParamRule(
        "last piece whole",
        ("deep",),
        (),
        lambda f: True,
        lambda f: (1,),
        "pieces come with all of K: parts of it would cost more copies than they hide",
        f"{PAGE}: within 1 % of the best parts of K wherever shards do not come slower than they are multiplied",
    ),
    ParamRule(
        "two uneven pieces",
        ("taper",),
        (),
        lambda f: f.ratio >= UNEVEN.value or _large(f) < 4,
        lambda f: (3, 1),
        "two pieces: the GEMM takes {f.ratio:.2g} times as long as the copies, or smaller pieces would cost more than "
        "they hide",
        UNEVEN.source,
        (UNEVEN, PIECE),
    ),
    ParamRule(
        "four uneven pieces",
        ("taper",),
        (),
        lambda f: True,
        lambda f: (4, 2, 1, 1),
        "the smallest piece comes last, so that little of the GEMM stands behind the copies",
        UNEVEN.source,
        (UNEVEN, PIECE),
    ),
    ParamRule(
        "small shards go whole",
        ("first", "last"),
        (),
        lambda f: f.shard <= SMALL.value * f.c.copy_time,
        lambda f: (1,),
        TOO_SMALL,
        SMALL.source,
        (SMALL,),
    ),
    ParamRule(
        "small pieces first",
        ("first",),
        (),
        lambda f: True,
        lambda f: (1, 1, 2),
        "copies begin when the first quarter is made",
        f"{PAGE}: `relay` with whole shards is 34 % behind quarters; no other shares were measured",
    ),
    ParamRule(
        "small pieces last",
        ("last",),
        (),
        lambda f: True,
        lambda f: (2, 1, 1),
        "a quarter of a shard is left when the last copy ends",
        f"{BENCH}, 'Which schedule wins where': 2:1:1 is best on most rows",
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


def given(f: Facts, schedule: str, param: str) -> Given | None:
    """The value of a schedule's parameter by the rules, or None: then the text's own default is as good as any."""
    for rule in PARAM_RULES:
        if param in rule.params and (not rule.schedules or schedule in rule.schedules) and rule.holds(f):
            return Given(param, rule.value(f), rule.name, rule.why(f), rule.source)
    return None
