"""Which schedule, with which pieces: rules that need no search.

A rule is data: when it holds, what it says, the sentence that tells why, the figures that it rests on and the source of
these. Rules of schedules are asked from the first to the last, and the first that holds decides. `docs/choose.md`
tells the same rules as one would tell a colleague; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..machine.model import TopologyKind
from ..machine.units import TOLD
from .facts import TILE, Facts
from .figures import (
    BENCH,
    BOUND,
    COMMAND,
    DIRECT,
    FEW,
    FILLED,
    LARGER,
    LONG,
    MANY,
    NOTHING,
    PAGE,
    PIECE,
    RELAY,
    SAVED,
    SMALL,
    TOO_SMALL,
    WAITED,
    Figure,
)
from .params import sent


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of schedules. `schedules`: what it says, by operation. `says` is filled in with the facts as `f`.
    `measured`: whether the rule rests on measurements, and not on what the machine's links can do."""

    name: str
    schedules: Mapping[str, str]
    holds: Callable[[Facts], bool]
    says: str
    source: str
    figures: tuple[Figure, ...] = ()
    measured: bool = True

    def why(self, f: Facts) -> str:
        """The sentence, with the facts' numbers."""
        return TOLD.format(self.says, f=f)


def _pushed(f: Facts) -> bool:
    """Whether shards of A are so small, and the GEMM beside them, that multiprocessors push them sooner."""
    few = f.rows <= TILE and f.stored <= f.ragged * f.gemm + FEW.value * f.c.copy_time
    return f.shard <= SMALL.value * f.c.copy_time and (few or f.stored + f.gemm <= f.copies)


def _at_once(f: Facts) -> bool:
    """Whether products that are stored at peers as they are made come sooner than copies of them."""
    return f.copies >= WAITED.value * f.gemm and f.shard <= DIRECT.value * f.c.copy_time


RULES: tuple[Rule, ...] = (
    Rule(
        "alone",
        dict.fromkeys(("a2a_gemm", "ag_gemm", "gemm_ar", "gemm_rs"), "serial"),
        lambda f: f.ranks == 1,
        "one rank sends nothing, so there is nothing to overlap",
        "by definition",
        measured=False,
    ),
    Rule(
        "several nodes",
        {**dict.fromkeys(("a2a_gemm", "ag_gemm", "gemm_rs"), "hierarchical"), "gemm_ar": "serial"},
        lambda f: f.nodes > 1,
        "{f.nodes} nodes of {f.c.node} GPUs reach each other by messages alone, and no other schedule sends messages",
        "machine.model: the reach of a machine's tiers",
        measured=False,
    ),
    Rule(
        "small",
        {"ag_gemm": "oneshot"},
        _pushed,
        TOO_SMALL + ", and a GEMM in shards of {f.rows:.3g} rows would wait for memory or for the copies",
        SMALL.source,
        (SMALL, FEW),
    ),
    Rule(
        "small products",
        {"gemm_rs": "oneshot"},
        lambda f: f.shard <= SMALL.value * f.c.copy_time and not (f.rows >= 2 * TILE and _at_once(f)),
        TOO_SMALL,
        SMALL.source,
        (SMALL,),
    ),
    Rule(
        "small all-to-all",
        {"a2a_gemm": "serial"},
        lambda f: f.shard <= SMALL.value * f.c.copy_time,
        TOO_SMALL,
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
        measured=False,
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
        "ragged shards, ragged waves",
        {"gemm_rs": "serial"},
        lambda f: f.ragged * f.gemm > f.copies and f.unfilled * f.gemm > f.copies / 2,
        "shards of {f.rows:.4g} rows do not fill their tiles, or wait for memory: in shards the GEMM ({f.gemm:.4g} µs) "
        "would take {f.ragged:.2g} of its time longer, which is more than all copies take ({f.copies:.3g} µs); nor do "
        "its tiles fill their last wave, unless they are cut, which a GEMM that raises flags does not do",
        "the virtual clock, on sizes that nobody measured: `oneshot` is 3 to 25 % behind `serial` in 4 of 6 such cases",
    ),
    Rule(
        "ragged shards",
        {"ag_gemm": "oneshot", "gemm_rs": "oneshot"},
        lambda f: f.ragged * f.gemm > f.copies and (f.operation == "gemm_rs" or f.rows <= TILE),
        "shards of {f.rows:.4g} rows do not fill their tiles, or wait for memory: in shards the GEMM ({f.gemm:.4g} µs) "
        "would take {f.ragged:.2g} of its time longer, which is more than all copies take ({f.copies:.3g} µs)",
        f"{PAGE}: with shards of 375 rows (tiles of 512) `oneshot` and `serial` are 11 and 9 % ahead of all others",
    ),
    Rule(
        "inputs are smaller",
        {"gemm_rs": "stationary_c"},
        lambda f: f.copies + f.own >= BOUND.value * f.gemm and f.smaller * f.copies <= f.copies + f.own / 2,
        "a shard's product and the copies ({f.own:.3g} + {f.copies:.3g} µs) take about as long as the GEMM "
        "({f.gemm:.4g} µs) or longer, and the inputs, which are there at once, are {f.smaller:.2f} times as large as "
        "the products",
        f"{PAGE}: within 2 % of the best in all 9 cases where it holds, the fastest in 8",
        (BOUND,),
    ),
    Rule(
        "something smaller",
        {"ag_gemm": "stationary_a"},
        lambda f: f.saved >= SAVED.value * f.c.copy_time,
        "copies ({f.copies:.3g} µs) take {f.saved:.3g} µs longer than the GEMM ({f.gemm:.4g} µs), and than copies of B "
        "and of what B makes, which are {f.smaller:.2f} times as large",
        f"{PAGE}: 23 and 54 % ahead of `streamed` in the 2 cases where it holds",
        (SAVED,),
    ),
    Rule(
        "many times the copies",
        {"gemm_ar": "overlapped"},
        lambda f: f.ratio >= MANY.value,
        "the GEMM ({f.gemm:.4g} µs) takes {f.ratio:.3g} times as long as the copies ({f.copies:.3g} µs): a few large "
        "launches hide them",
        MANY.source,
        (MANY,),
    ),
    Rule(
        "long",
        {"ag_gemm": "hetero_fused_1d", "gemm_rs": "chunked"},
        lambda f: f.gemm >= LONG.value and f.ratio >= LARGER.value,
        "the GEMM takes {f.gemm:.4g} µs, {f.ratio:.3g} times as long as the copies: a few large launches hide them, "
        "and so long a GEMM is faster in plain launches than in one whose tiles wait",
        LONG.source,
        (LONG, LARGER),
    ),
    Rule(
        "stored at once",
        {"gemm_rs": "direct"},
        _at_once,
        "copies ({f.copies:.3g} µs) take longer than the GEMM ({f.gemm:.4g} µs), and much of that is not bytes: a "
        "shard's take {f.shard:.3g} µs, a copy costs {f.c.copy_time:.3g} µs besides, which stores at peers do not",
        WAITED.source,
        (WAITED, DIRECT),
    ),
    Rule(
        "links bound",
        {"gemm_rs": "relay"},
        lambda f: f.ranks > 2 and f.ratio <= RELAY.value and f.stretch(f.rows / 4) <= FILLED.value,
        "copies ({f.copies:.3g} µs) take about as long as the GEMM ({f.gemm:.4g} µs), and quarters of shards fill "
        "their tiles: sums that go from rank to rank come in evenly, and nobody receives from two",
        RELAY.source,
        (RELAY, FILLED),
    ),
    Rule(
        "whole shards",
        {"gemm_rs": "shard"},
        lambda f: sent(f) == 1 and (f.ratio <= 1 or f.shard < PIECE.value * f.c.copy_time),
        "halves of shards of {f.rows:.4g} rows, whose bytes take {f.shard:.3g} µs, would not fill their tiles or "
        "not be worth a copy each: whole shards are sent, and added when all have come",
        f"{PAGE}: 10 % ahead of all others in one of 2 such cases, 2.6 % behind the best in the other",
        (FILLED, SMALL, PIECE),
    ),
    Rule(
        "of one order",
        {"ag_gemm": "streamed", "gemm_rs": "streamed", "gemm_ar": "streamed", "a2a_gemm": "overlapped"},
        lambda f: True,
        "pieces are multiplied as they come, and what is sent goes out as it is made: the GEMM takes {f.gemm:.4g} "
        "µs, the copies of a rank one after another {f.copies:.3g} µs",
        f"{PAGE}: `streamed` is within 2 % of the best in 37 of 38 cases that come to this rule",
    ),
)


def deciding(f: Facts) -> Rule:
    """The rule that decides on the schedule."""
    return next(rule for rule in RULES if f.operation in rule.schedules and rule.holds(f))


FITTED: Mapping[TopologyKind, str] = {"switch": "H200 behind a switch"}  # links that kept measurements are of


def fitted(f: Facts) -> bool:
    """Whether measurements of such links stand behind the rule that decides, or none are needed."""
    return not deciding(f).measured or all(kind in FITTED for kind in f.c.kinds)


def unfitted(f: Facts) -> str:
    """What the rules were fitted on, where that is no machine such as this one."""
    return "" if fitted(f) else f"rules were fitted on {' and '.join(FITTED.values())}"


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
