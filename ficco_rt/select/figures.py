"""The figures that rules of choosing rest on, each with its source."""

from __future__ import annotations

from dataclasses import dataclass

from ..machine.cost import STORES

BENCH, PAGE = "docs/results/bench.md", "docs/choose.md"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that rules rest on."""

    name: str
    value: float
    source: str


SMALL = Figure(
    "small",
    1.5,
    f"{PAGE}: `oneshot` is within 2 % of the best in 38 of 39 cases of such shards, of the first run",
)
FEW = Figure(
    "few",
    2.0,
    f"{PAGE}: where stores take 2 copies longer than what uncut tiles save, or more, `oneshot` is 6 to 34 % behind "
    "`streamed`",
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
    f"{BENCH}, 'Which schedule wins where': of the reduce-scatters of four H200; of all-reduces it was not measured",
)
LONG = Figure(
    "long",
    3200.0,
    f"{PAGE}: from 3.4 ms on plain launches are 0.7 to 3.6 % ahead of `streamed` in 7 of 7 cases; of 2.3 to 2.9 ms "
    "they are 0.5 % ahead to 1.7 % behind",
)
LARGER = Figure(
    "larger",
    3.0,
    f"{PAGE}: plain launches of long GEMMs are ahead from 7.2 times the copies on, with 2.8 times a draw",
)
BOUND = Figure(
    "bound",
    0.95,
    f"{PAGE}: `stationary_c` is ahead by up to 51 % where copies and a shard's product take longer than the GEMM, "
    "a draw with 0.98 and 1.0 times it",
)
SAVED = Figure(
    "saved",
    3.0,
    f"{PAGE}: `stationary_a` takes 40 to 44 µs more than its copies' time, `streamed` 14 to 27: two to four copies",
)
DIRECT = Figure(
    "direct",
    5.0,
    f"stores reach {STORES:g} of a link's rate, so a shard's bytes cost a quarter more, which below four times what a "
    f"copy costs besides is less than the copy; {PAGE}: at 3.6 times `direct` is still 8 % ahead",
)
WAITED = Figure(
    "waited",
    1.5,
    f"{PAGE}: `direct` is 8 to 13 % ahead with copies of 2.1 and 3.4 times the GEMM, 10 % behind with 1.2",
)
RELAY = Figure(
    "relay",
    1.2,
    f"{PAGE}: where the GEMM takes 1.1 times as long as the copies, `relay` is 6 % ahead of `streamed`; with 1.2 times "
    "it is 0.2 and 0.4 % behind",
)
TIGHT = Figure(
    "tight",
    1.5,
    f"{PAGE}: whole shards are within 0.4 % of the best pieces in all 23 cases from 1.8 times on; with 1.03 times they "
    "are 6 % behind",
)
PIECE = Figure(
    "piece",
    3.5,
    f"{BENCH}, 'Which schedule wins where': the best pieces are of 8.4 MB, whose bytes take 22 µs on an H200 where a "
    "copy costs 6 µs besides",
)
FILLED = Figure(
    "filled",
    1.1,
    f"{PAGE}: pieces of 375 rows, which take tiles of 512, are 14 to 40 % behind larger ones; pieces of 128 rows are "
    "16 and 17 % behind those of 256",
)
FINE = Figure(
    "fine",
    512.0,
    f"{PAGE}: where the GEMM takes at most 1.6 times as long as the copies, quarters and eighths of 256 rows are 11 to "
    "33 % behind larger pieces in 4 of 4 cases; halves of 256 rows are 6 % ahead in one",
)
MOST = Figure("most", 8, f"{BENCH}: no schedule but `direct` is faster on any row with more pieces of a shard")
UNEVEN = Figure(
    "uneven",
    2.5,
    f"{BENCH}, 'Which schedule wins where': `tapered` is best with 4:2:1:1 up to 1.6 times the copies, with 3:1 from "
    "3 times on (at 17 times the other way round)",
)
COMMAND = Figure("command", 2.75, f"{BENCH}, 'Back to back': on streams the host takes 2.5 to 3 µs a command of a run")

DRAW = 0.005  # of a time: formulas are no more exact

FIGURES = (
    SMALL,
    FEW,
    NOTHING,
    MANY,
    LONG,
    LARGER,
    BOUND,
    SAVED,
    DIRECT,
    WAITED,
    RELAY,
    TIGHT,
    PIECE,
    FILLED,
    FINE,
    MOST,
    UNEVEN,
    COMMAND,
)

TOO_SMALL = (  # why small shards are not cut
    "a shard's bytes take {f.shard:.3g} µs and a copy costs {f.c.copy_time:.3g} µs besides: pieces would cost more "
    "than they hide"
)
