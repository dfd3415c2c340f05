"""Which schedule, with which pieces: rules that need no search.

A rule is data: when it holds, what it says, the sentence that tells why, the figures that it rests on and the source of
these. Rules of schedules are asked from the first to the last, and the first that holds decides. `docs/choose.md`
tells the same rules as one would tell a colleague; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, log2, sqrt

from .facts import Facts

BENCH = "docs/results/bench.md"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that rules rest on."""

    name: str
    value: float
    source: str


SMALL = Figure(
    "small",
    1.5,
    f"{BENCH}, 'Decode and small sizes', four H200: `oneshot` is the fastest up to 512 rows, where a shard's bytes "
    "take 0.9 (all-gather) and 1.1 times (reduce-scatter) what a copy costs besides; at 1024 rows, 1.8 and 2.3 times, "
    "it is not",
)
NOTHING = Figure(
    "nothing",
    0.01,
    f"{BENCH}, 'Figures', four H200: where the GEMM takes 4.5 times as long as the copies or more, the best schedule "
    "is 0.3 to 3.8 % behind the GEMM alone, so cutting costs more than a hundredth",
)
MANY = Figure(
    "many",
    6.0,
    f"{BENCH}, 'Which schedule wins where', four H200: at 8.5 to 17 times the copies a launch a piece is 0.2 to 6 % "
    "ahead of `streamed`, at 4.5 times 0.5 to 0.7 % behind; two H200: `chunked` is the fastest from 6.8 times on",
)
BOUND = Figure(
    "bound",
    0.8,
    f"{BENCH}, 'What travels' and 'A rank of four': with copies of 0.93 to 1.9 times the GEMM the stationary schedules "
    "are ahead by up to 37 %; with 0.71 times it is a draw",
)
SMALLER = Figure("smaller", 0.8, f"{BENCH}, 'What travels': ahead with 0.19 to 0.75 of the usual bytes")
SMALLER_OF_TWO = Figure(
    "smaller of two",
    0.5,
    f"{BENCH}, 'What travels': among two ranks `stationary_a` with 0.56 and 0.75 of the usual bytes is behind by 4 and "
    "10 %, for the run ends behind its last copy",
)
TIGHT = Figure(
    "tight",
    1.5,
    f"{BENCH}, 'Which schedule wins where': a shard that is multiplied in 1.2 times the time that it comes in wants "
    "pieces, at 2.2 times whole shards are as fast",
)
PIECE = Figure(
    "piece",
    3.5,
    f"{BENCH}, 'Which schedule wins where': the best pieces are of 8.4 MB, whose bytes take 22 µs on an H200 where a "
    "copy costs 6 µs besides",
)
MOST = Figure("most", 8, f"{BENCH}: no schedule but `direct` is faster on any row with more pieces of a shard")
UNEVEN = Figure(
    "uneven",
    2.5,
    f"{BENCH}, 'Which schedule wins where': `tapered` is best with 4:2:1:1 up to 1.6 times the copies, with 3:1 from "
    "3 times on (at 17 times the other way round)",
)
COMMAND = Figure("command", 2.75, f"{BENCH}, 'Back to back': on streams the host takes 2.5 to 3 µs a command of a run")

FIGURES = (SMALL, NOTHING, MANY, BOUND, SMALLER, SMALLER_OF_TWO, TIGHT, PIECE, MOST, UNEVEN, COMMAND)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of schedules. `schedules`: what it says, by operation. `says` is filled in with the facts as `f`."""

    name: str
    schedules: Mapping[str, str]
    holds: Callable[[Facts], bool]
    says: str
    source: str
    figures: tuple[Figure, ...] = ()

    def why(self, f: Facts) -> str:
        """The sentence, with the facts' numbers."""
        return self.says.format(f=f)


def _smaller(f: Facts) -> bool:
    most = SMALLER_OF_TWO if f.ranks == 2 and f.operation == "ag_gemm" else SMALLER
    return f.copies >= BOUND.value * f.gemm and f.smaller <= most.value


RULES: tuple[Rule, ...] = (
    Rule(
        "alone",
        dict.fromkeys(("a2a_gemm", "ag_gemm", "gemm_ar", "gemm_rs"), "serial"),
        lambda f: f.ranks == 1,
        "one rank sends nothing, so there is nothing to overlap",
        "by definition",
    ),
    Rule(
        "small",
        {"ag_gemm": "oneshot", "gemm_rs": "oneshot", "a2a_gemm": "serial"},
        lambda f: f.shard <= SMALL.value * f.c.copy_time,
        "a shard's bytes take {f.shard:.3g} µs and a copy costs {f.c.copy_time:.3g} µs besides: pieces would cost more "
        "than they hide",
        SMALL.source,
        (SMALL,),
    ),
    Rule(
        "small all-reduce",
        {"gemm_ar": "oneshot"},
        lambda f: f.everything <= f.two_passes,
        "reading every peer's whole product takes {f.everything:.3g} µs, no longer than an all-reduce in two passes "
        "({f.two_passes:.3g} µs)",
        f"{BENCH}, 'All-reduce', two H200: `oneshot` is the fastest up to 512 rows, not at 2048",
    ),
    Rule(
        "all-reduce of small shards",
        {"gemm_ar": "serial"},
        lambda f: f.shard <= SMALL.value * f.c.copy_time,
        "a shard's bytes take {f.shard:.3g} µs and a copy costs {f.c.copy_time:.3g} µs besides, and reading every "
        "peer's product would take {f.everything:.3g} µs: the vendor's all-reduce is quicker ({f.two_passes:.3g} µs)",
        SMALL.source,
        (SMALL,),
    ),
    Rule(
        "ring",
        {"ag_gemm": "shard_ring", "gemm_rs": "relay", "gemm_ar": "serial"},
        lambda f: f.c.links == "ring" and f.ranks > 3,
        "links form a ring: only schedules that talk to neighbours do not cross several of them",
        "machine.model: a copy further away keeps every link between busy",
    ),
    Rule(
        "nothing to hide",
        dict.fromkeys(("a2a_gemm", "ag_gemm", "gemm_ar", "gemm_rs"), "serial"),
        lambda f: f.copies <= NOTHING.value * f.gemm,
        "copies ({f.copies:.3g} µs) take at most a hundredth of the GEMM ({f.gemm:.4g} µs): hiding them gains less "
        "than cutting the GEMM costs",
        NOTHING.source,
        (NOTHING,),
    ),
    Rule(
        "many times the copies",
        {"ag_gemm": "hetero_fused_1d", "gemm_rs": "chunked", "gemm_ar": "overlapped"},
        lambda f: f.ratio >= MANY.value,
        "the GEMM ({f.gemm:.4g} µs) takes {f.ratio:.3g} times as long as the copies ({f.copies:.3g} µs): a few large "
        "launches hide them, and such a GEMM is faster in plain launches than in one whose tiles wait",
        MANY.source,
        (MANY,),
    ),
    Rule(
        "something smaller",
        {"ag_gemm": "stationary_a", "gemm_rs": "stationary_c"},
        _smaller,
        "copies ({f.copies:.3g} µs) take about as long as the GEMM ({f.gemm:.4g} µs), and something that is "
        "{f.smaller:.2f} times as large can be sent in place of what is usually sent",
        f"{BENCH}, 'What travels'",
        (BOUND, SMALLER, SMALLER_OF_TWO),
    ),
    Rule(
        "links bound",
        {"gemm_rs": "relay"},
        lambda f: f.ranks > 2 and f.copies > f.gemm,
        "copies ({f.copies:.3g} µs) take longer than the GEMM ({f.gemm:.4g} µs): sums that go from rank to rank come "
        "in evenly, and nobody receives from two",
        f"{BENCH}, 'Which schedule wins where': on `o8b_16k` of four H200 `relay` takes 353 µs, `tapered` 362, "
        "`streamed` 389",
    ),
    Rule(
        "of one order",
        {"ag_gemm": "streamed", "gemm_rs": "streamed", "gemm_ar": "streamed", "a2a_gemm": "overlapped"},
        lambda f: True,
        "the GEMM ({f.gemm:.4g} µs) and the copies ({f.copies:.3g} µs) are of one order: pieces are multiplied as they "
        "come, and what is sent goes out as it is made",
        f"{BENCH}, 'Which schedule wins where'",
    ),
)


@dataclass(frozen=True, slots=True)
class ParamRule:
    """A rule of a schedule's parameter. `schedules`: those that it speaks for, by name; () is all that have the
    parameter. `holds` and `value` may ask for the facts. The first that holds gives the value."""

    name: str
    param: str
    schedules: tuple[str, ...]
    holds: Callable[[Facts], bool]
    value: Callable[[Facts], object]
    says: str
    source: str
    figures: tuple[Figure, ...] = ()

    def why(self, f: Facts) -> str:
        """The sentence, with the facts' numbers."""
        return self.says.format(f=f)


def _power(number: float, most: float) -> int:
    """The nearest power of two, from 1 to `most`."""
    return 1 << min(round(log2(max(1.0, number))), int(log2(max(1.0, most))))


def _large(f: Facts) -> int:
    """The pieces of a shard whose bytes take at least `PIECE` times what a copy costs besides."""
    return _power(MOST.value, min(MOST.value, f.shard * 1.05 / (PIECE.value * f.c.copy_time)))


def _balanced(f: Facts) -> int:
    """The pieces for which what the copies cost besides and what is left behind the last one are least together."""
    return _power(sqrt(f.own / (f.peers * f.c.copy_time)), MOST.value) if f.peers else 1


def _hidden(f: Facts) -> int:
    """The steps of which the first is hidden by the own shard's product, if pieces stay large."""
    return _power(ceil(f.copies / f.own), _large(f))


def _pays(f: Facts) -> bool:
    """Whether the last piece's product, of which three quarters are hidden, takes longer than three more copies."""
    piece = f.own / (_large(f) if f.pace >= 1 else _balanced(f))
    return f.pace < TIGHT.value and piece / 4 > f.c.copy_time * 0.9 and f.shape.k >= 1024


PARAM_RULES: tuple[ParamRule, ...] = (
    ParamRule("alone", "chunks", (), lambda f: f.ranks == 1, lambda f: 1, "one rank sends nothing", "by definition"),
    ParamRule(
        "stationary",
        "chunks",
        ("ag_gemm/stationary_a", "gemm_rs/stationary_c"),
        lambda f: True,
        lambda f: 2,
        "halves: the next piece's sums hide what the one before waits for",
        f"{BENCH}, 'What travels': measured in halves",
    ),
    ParamRule(
        "stored at peers",
        "chunks",
        ("gemm_rs/direct",),
        lambda f: True,
        lambda f: 16 if f.copies > f.gemm else 4,
        "pieces that are stored at peers cost no copy: many where links bound, few where the GEMM does",
        f"{BENCH}, 'Multiprocessors in place of copy engines'",
    ),
    ParamRule(
        "steps of all shards",
        "chunks",
        ("ag_gemm/hetero_fused_1d",),
        lambda f: True,
        _hidden,
        "the own shard's GEMM ({f.own:.3g} µs) hides about one step's copies (all copies: {f.copies:.3g} µs)",
        f"{BENCH}, 'Which schedule wins where'",
        (PIECE, MOST),
    ),
    ParamRule(
        "steps of all of C",
        "chunks",
        ("ag_gemm/uniform_fused_2d",),
        lambda f: True,
        lambda f: min(2, _large(f)),
        "every step reads and writes all of C, so there are few",
        f"{BENCH}, 'Which schedule wins where': at most two intervals of K are best",
        (PIECE,),
    ),
    ParamRule(
        "steps without an own shard first",
        "chunks",
        ("ag_gemm/uniform_fused_1d",),
        lambda f: True,
        lambda f: max(min(4, 2 * _large(f)), 1),
        "nothing hides the first step's copies, so steps are fine as far as copies allow",
        f"{BENCH}, 'Which schedule wins where': two to eight steps are best",
        (PIECE,),
    ),
    ParamRule(
        "products to be sent",
        "chunks",
        ("gemm_rs/streamed", "gemm_rs/chunked"),
        lambda f: f.ratio >= 1,
        lambda f: min(2, _large(f)),
        "copies begin behind the first piece and the last piece's GEMM stands behind them; halves are enough where the "
        "GEMM takes longer than the copies",
        f"{BENCH}, 'Which schedule wins where': halves are best on five of six rows",
        (PIECE,),
    ),
    ParamRule(
        "sums that go back",
        "chunks",
        ("gemm_ar/overlapped",),
        lambda f: True,
        lambda f: min(2, _large(f)),
        "each piece costs a launch, so there are few",
        f"{BENCH}, 'All-reduce'",
        (PIECE,),
    ),
    ParamRule(
        "sums that go back beside the GEMM",
        "chunks",
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
        "chunks",
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
        "chunks",
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
        "chunks",
        (),
        lambda f: True,
        _balanced,
        "shards come slower than they are multiplied: what each further piece costs {f.peers} copies "
        "({f.c.copy_time:.3g} µs each) is weighed against the last piece's part of a shard's GEMM ({f.own:.3g} µs)",
        "pieces n for which peers · n · copy_time + own / n is least: n = √(own / (peers · copy_time)), rounded to a "
        "power of two",
        (MOST,),
    ),
    ParamRule(
        "last piece in pieces of K",
        "deep",
        ("ag_gemm/streamed",),
        _pays,
        lambda f: (1, 1, 1, 1),
        "the last piece comes in quarters of K, so that little of its GEMM stands behind the copies",
        f"{BENCH}, 'Which schedule wins where': best where a quarter of the last piece's GEMM takes longer than a copy "
        "costs besides",
        (TIGHT,),
    ),
    ParamRule(
        "last piece whole",
        "deep",
        (),
        lambda f: True,
        lambda f: (1,),
        "pieces come with all of K: quarters would cost more copies than they hide",
        f"{BENCH}, 'Which schedule wins where'",
        (TIGHT,),
    ),
    ParamRule(
        "two uneven pieces",
        "taper",
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
        "taper",
        (),
        lambda f: True,
        lambda f: (4, 2, 1, 1),
        "the smallest piece comes last, so that little of the GEMM stands behind the copies",
        UNEVEN.source,
        (UNEVEN, PIECE),
    ),
    ParamRule(
        "small shards go whole",
        "first",
        (),
        lambda f: f.shard < 4 * f.c.copy_time,
        lambda f: (1,),
        "a quarter of a shard takes less time for its bytes ({f.shard:.3g} µs for all of it) than a copy costs besides",
        PIECE.source,
        (PIECE,),
    ),
    ParamRule(
        "small pieces first",
        "first",
        (),
        lambda f: True,
        lambda f: (1, 1, 2),
        "copies begin when the first quarter is made",
        f"{BENCH}, 'Which schedule wins where': measured with 1:1:2",
    ),
    ParamRule(
        "small shards go whole at last",
        "last",
        (),
        lambda f: f.shard < 4 * f.c.copy_time,
        lambda f: (1,),
        "a quarter of a shard takes less time for its bytes ({f.shard:.3g} µs for all of it) than a copy costs besides",
        PIECE.source,
        (PIECE,),
    ),
    ParamRule(
        "small pieces last",
        "last",
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


def deciding(f: Facts) -> Rule:
    """The rule that decides on the schedule."""
    return next(rule for rule in RULES if f.operation in rule.schedules and rule.holds(f))


def given(f: Facts, schedule: str, param: str) -> Given | None:
    """The value of a schedule's parameter by the rules, or None: then the text's own default is as good as any."""
    for rule in PARAM_RULES:
        if rule.param == param and (not rule.schedules or schedule in rule.schedules) and rule.holds(f):
            return Given(param, rule.value(f), rule.name, rule.why(f), rule.source)
    return None


def mode(commands: float, predicted: float) -> tuple[str, str]:
    """`graph` or `streams` for a run of so many commands over all ranks that takes so many microseconds, and why."""
    host = COMMAND.value * commands
    if host > predicted:
        return "graph", (
            f"a graph: on streams the host would take some {host:.0f} µs to issue a run, more than the run takes "
            f"({COMMAND.value} µs a command)"
        )
    return "streams", (
        f"streams: the host issues a run in some {host:.0f} µs, while the run before is under way, and streams are as "
        "fast as a graph within 1 %"
    )
