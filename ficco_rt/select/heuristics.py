"""Chooses a schedule by rules on static sizes, without a search, after the heuristics of FiCCO (arXiv 2512.10236).

A rule is data: its condition, its choice, a sentence with the reason, and the source of its figures. Rules are tried in
order, and the first whose condition holds decides. `docs/choose.md` lists the same rules; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..kernels.families import tuned
from ..machine.durations import gemm_rate
from ..machine.profiles import DEFAULT, stored
from ..machine.units import TOLD
from .candidates import streams_products
from .facts import TILE, Facts
from .operations import OPERATIONS
from .params import BENCH, CASES, MEASURED, SMALL, WORTH, Given, sent

DEVICE, GPUS, LINKS = "NVIDIA H200", 2, "switch"  # on which choices were compared with measurements
ALIKE = 1.25  # … as are machines whose links and products are so many times as fast or as slow, at most

MODELLED = "the virtual clock (docs/choose.md, 'Which schedule')"
BY_LIBRARY = (
    "the vendor's library makes the products, as no GEMM of ours is made for {f.device.arch}; it takes no pieces"
)
ROOM = (
    "a GEMM that waits leaves {f.leave} of {f.device.sms} multiprocessors to other libraries and would take "
    "{f.lost:.3g} µs longer; plain launches do not wait"
)
PRODUCTS = "rules were fitted to products of 16-bit types, and of fp8 with transb=1, in rows of whole 16 bytes"
SLOWER = 3  # how many of the library's times a GEMM of ours for an earlier architecture takes in addition
TOO_SMALL = (  # why small shards are not cut
    "a shard's bytes take {f.shard:.3g} µs and a copy costs {f.links.copy_time:.3g} µs besides: pieces would cost more "
    "than they hide"
)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of schedules. `schedules`: what it says, by operation. `says` is filled in with the facts as `f`.
    `measured`: the operations whose measurements on H200 the source tells; none, if the rule follows from what the
    machine's links can do."""

    name: str
    schedules: Mapping[str, str]
    holds: Callable[[Facts], bool]
    says: str
    source: str
    measured: tuple[str, ...] = MEASURED

    def why(self, f: Facts) -> str:
        """The sentence, with the facts' numbers."""
        return TOLD.format(self.says, f=f)


def _pushed(f: Facts) -> bool:
    """Whether shards of A are so small, and the GEMM beside them, that multiprocessors push them sooner."""
    few = f.rows <= TILE and f.stored <= f.ragged * f.gemm + 2 * f.links.copy_time
    return f.shard <= SMALL * f.links.copy_time and (few or f.stored + f.gemm <= f.copies)


def _at_once(f: Facts) -> bool:
    """Whether products that are stored at peers as they are made come sooner than copies of them."""
    return f.copies >= 1.5 * f.gemm and f.shard <= 5 * f.links.copy_time


def _held(f: Facts) -> bool:
    """Whether a streamed GEMM loses more by the multiprocessors that it leaves than launches cost."""
    return f.lost >= 4 * f.links.copy_time


RULES: tuple[Rule, ...] = (
    Rule(
        "alone",
        dict.fromkeys(OPERATIONS, "serial"),
        lambda f: f.ranks == 1,
        "one rank sends nothing, so there is nothing to overlap",
        "by definition",
        (),
    ),
    Rule(
        "several nodes",
        {**dict.fromkeys(("a2a_gemm", "ag_gemm", "gemm_rs"), "hierarchical"), "gemm_ar": "serial"},
        lambda f: f.nodes > 1,
        "{f.nodes} nodes of {f.node} GPUs reach each other by messages alone, and no other schedule sends messages",
        "machine.model: the reach of a machine's tiers",
        (),
    ),
    Rule(
        "small",
        dict.fromkeys(("ag_gemm", "ag_gemm_kept"), "oneshot"),
        _pushed,
        TOO_SMALL + ", and a GEMM in shards of {f.rows:.3g} rows would wait for memory or for the copies",
        f"{CASES}: of such shards, within 2 % of the best in 32 of 34 cases",
    ),
    Rule(
        "small products",
        {"gemm_rs": "oneshot"},
        lambda f: f.shard <= SMALL * f.links.copy_time and not (f.rows >= 2 * TILE and _at_once(f)),
        TOO_SMALL,
        f"{CASES}: of such shards, within 2 % of the best in 20 of 20 cases",
    ),
    Rule(
        "small all-reduce",
        {"gemm_ar": "oneshot"},
        lambda f: f.everything <= f.two_passes,
        "reading every peer's whole product takes {f.everything:.3g} µs, no longer than an all-reduce in two passes "
        "({f.two_passes:.3g} µs)",
        f"{BENCH}, 'All-reduce', two H200: `oneshot` is the fastest up to 512 rows, not at 2048",
        ("gemm_ar",),
    ),
    Rule(
        "small shards, whole collectives",
        dict.fromkeys(("a2a_gemm", "gemm_ar", "gemm_rs_backward"), "serial"),
        lambda f: f.shard <= SMALL * f.links.copy_time,
        TOO_SMALL,
        "the rules of small shards of all-gathers and reduce-scatters",
    ),
    Rule(
        "ring",
        {"ag_gemm": "shard_ring", "gemm_rs": "relay", "gemm_ar": "serial"},
        lambda f: f.links.kind == "ring" and f.ranks > 3,
        "links form a ring: only schedules that talk to neighbours do not cross several of them",
        "machine.model: a copy further away keeps every link between busy",
        (),
    ),
    Rule(
        "ragged shards",
        {
            **dict.fromkeys(("ag_gemm", "ag_gemm_kept", "gemm_rs"), "oneshot"),
            "gemm_a2a": "serial",
        },
        lambda f: f.ragged * f.gemm > f.copies and (f.operation == "gemm_rs" or f.rows <= TILE),
        "shards of {f.rows:.4g} rows do not fill their tiles, or wait for memory: in shards the GEMM ({f.gemm:.4g} µs) "
        "would take {f.ragged:.2g} of its time longer, which is more than all copies take ({f.copies:.3g} µs)",
        f"{CASES}: with shards of 375 rows (tiles of 512) `oneshot` and `serial` are 11 and 9 % ahead of all others",
    ),
    Rule(
        "few rows",
        dict.fromkeys(("a2a_gemm_backward", "ag_gemm_backward", "gemm_rs_backward"), "serial"),
        lambda f: f.ragged > 0 and f.rows <= TILE and f.ratio >= 1,
        "shards of {f.rows:.4g} rows do not fill their tiles, or wait for memory, and a whole product takes longer "
        "({f.gemm:.4g} µs) than all copies ({f.copies:.3g} µs)",
        MODELLED,
    ),
    Rule(
        "inputs are smaller",
        {"gemm_rs": "stationary_c"},
        lambda f: f.copies + f.own >= 0.95 * f.gemm and f.smaller * f.copies <= f.copies + f.own / 2,
        "a shard's product and the copies ({f.own:.3g} + {f.copies:.3g} µs) take about as long as the GEMM "
        "({f.gemm:.4g} µs) or longer, and the inputs, which are there at once, are {f.smaller:.2f} times as large as "
        "the products",
        f"{CASES}: within 2 % of the best in all 9 cases where it holds, by up to 51 % ahead of all others",
    ),
    Rule(
        "something smaller",
        {"ag_gemm": "stationary_a"},
        lambda f: f.saved >= 3 * f.links.copy_time,
        "copies ({f.copies:.3g} µs) take {f.saved:.3g} µs longer than the GEMM ({f.gemm:.4g} µs), and than copies of B "
        "and of what B makes, which are {f.smaller:.2f} times as large",
        f"{CASES}: 23 and 54 % ahead of `streamed` in the 2 cases where it holds",
    ),
    Rule(
        "few rows by the library",
        dict.fromkeys(("ag_gemm", "gemm_ar", "gemm_rs"), "serial"),
        lambda f: not tuned(f.device.arch) and f.ragged > 0 and f.rows <= TILE,
        BY_LIBRARY + ". Shards of {f.rows:.4g} rows do not fill its tiles, or wait for memory",
        MODELLED,
        (),
    ),
    Rule(
        "long by the library",
        {"ag_gemm": "hetero_fused_1d"},
        lambda f: not tuned(f.device.arch) and f.ratio >= 2,
        BY_LIBRARY
        + ". The GEMM takes {f.gemm:.4g} µs, {f.ratio:.3g} times as long as the copies: a few large launches "
        "hide them",
        MODELLED,
        (),
    ),
    Rule(
        "by the library",
        {"ag_gemm": "shard_p2p", "ag_gemm_kept": "serial", "gemm_ar": "serial", "gemm_rs": "shard"},
        lambda f: not tuned(f.device.arch),
        BY_LIBRARY + ": whole shards are multiplied as they come, or sent as they are made",
        MODELLED,
        (),
    ),
    Rule(
        "few launches leave room",
        {"ag_gemm": "hetero_fused_1d"},
        lambda f: _held(f) and f.ratio >= 3,
        ROOM + ". The GEMM takes {f.ratio:.3g} times as long as the copies: a few large launches hide them",
        MODELLED,
    ),
    Rule(
        "plain launches leave room",
        {"ag_gemm": "shard_p2p", "ag_gemm_kept": "serial", "gemm_ar": "overlapped", "gemm_rs": "chunked"},
        lambda f: (
            _held(f)
            and (f.operation != "ag_gemm_kept" or f.lost > f.copies)
            and (f.operation != "gemm_rs" or sent(f) > 1)
        ),
        ROOM,
        MODELLED,
    ),
    Rule(
        "long",
        {"gemm_rs": "chunked", "gemm_ar": "overlapped"},
        lambda f: f.gemm >= 3200 and f.ratio >= 3,
        "the GEMM takes {f.gemm:.4g} µs, {f.ratio:.3g} times as long as the copies: a few large launches hide them, "
        "and so long a GEMM is faster in plain launches than in one that adds what peers send",
        f"{CASES}: from 3.4 ms on `chunked` is 0.7 to 2.9 % ahead of `streamed` in 4 of 4 reduce-scatters; all-reduces "
        "of this length were not measured",
    ),
    Rule(
        "stored at once",
        {"gemm_rs": "direct"},
        _at_once,
        "copies ({f.copies:.3g} µs) take longer than the GEMM ({f.gemm:.4g} µs), and much of that is not bytes: a "
        "shard's take {f.shard:.3g} µs, a copy costs {f.links.copy_time:.3g} µs besides, which stores at peers do not",
        f"{CASES}: `direct` is 8 to 13 % ahead with copies of 2.1 and 3.4 times the GEMM, 10 % behind with 1.2",
    ),
    Rule(
        "whole shards",
        {"gemm_rs": "shard"},
        lambda f: sent(f) == 1 and (f.ratio <= 1 or f.shard < 2 * WORTH * f.links.copy_time or _held(f)),
        "halves of shards of {f.rows:.4g} rows, whose bytes take {f.shard:.3g} µs, would not fill their tiles or "
        "not be worth a copy each: whole shards are sent, and added when all have come",
        f"{CASES}: 10 % ahead of all others in one of 2 such cases, 2.6 % behind the best in the other",
    ),
    Rule(
        "in order of arrival",
        {
            **dict.fromkeys(OPERATIONS, "overlapped"),
            **dict.fromkeys(("ag_gemm", "ag_gemm_kept", "gemm_ar", "gemm_rs"), "streamed"),
        },
        lambda f: True,
        "pieces are multiplied as they arrive, and results are sent as they are computed: the GEMM takes "
        "{f.gemm:.4g} µs, the copies of a rank one after another {f.copies:.3g} µs",
        f"{CASES}: `streamed` is within 2 % of the best in 16 of 18 cases that come to this rule",
    ),
)


def deciding(f: Facts) -> Rule:
    """The rule that decides on the schedule. On GPUs for which no GEMM of ours is made, none that streams products,
    unless these are small beside the copies."""
    ours = tuned(f.device.arch) or (f.rows <= TILE and SLOWER * f.gemm <= f.copies)
    rules = (rule for rule in RULES if f.operation in rule.schedules and rule.holds(f))
    return next(r for r in rules if ours or not streams_products(f"{f.operation}/{r.schedules[f.operation]}"))


def on_measured(f: Facts) -> bool:
    """Whether machine and product are like those on which the rules were fitted: links and products are as fast."""
    machine, fitted = f.machine, stored(DEFAULT)
    inside = machine.tiers[: machine.tier(0, f.ranks - 1) + 1]
    if not f.usual or machine.device.name != DEVICE or {links.kind for links in inside} != {LINKS}:
        return False
    rates = [(links.rate, fitted.links.rate) for links in inside]
    rates += [(machine.device.sms, fitted.device.sms), (f.gemm_rate, gemm_rate(fitted.device, f.dtype))]
    return all(1 / ALIKE <= mine / its <= ALIKE for mine, its in rates)


def cited(f: Facts, rules: Iterable[Rule | Given]) -> list[str]:
    """The sources of rules, but measurements only where they are of this operation and of such a machine."""
    return [r.source for r in rules if not r.measured or (f.operation in r.measured and on_measured(f))]


def unfitted(f: Facts) -> str:
    """What the rules were fitted on, where measurements stand behind the rule that decides and the machine is no such
    one; empty where the rule holds."""
    if not tuned(f.device.arch):
        return f"rules were fitted to GEMMs of ours, and none is made for {f.device.arch}"
    if deciding(f).measured and not on_measured(f):
        return PRODUCTS if not f.usual else "rules were fitted on H200 behind a switch"
    return ""
