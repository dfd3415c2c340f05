"""Tables of measurements of a machine, beyond the few numbers of its devices and tiers, as `ficco calibrate` writes
them.

Each table is a list of records of one kind. A record holds the conditions of the measurement and points: sizes, then
the values measured there. Every record may name its origin (`source`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from .units import Count, CountOrNone, Factor, OperationRate, Seconds, SomeBytes, Time

Mover: TypeAlias = Literal["copy", "sm"]  # copy engines; loads and stores of multiprocessors
Pattern: TypeAlias = Literal["one", "both_ways", "staggered", "incast"]
Layout: TypeAlias = Literal["nn", "nt", "tn", "tt"]  # of the left and the right operand: n as it is, t transposed
Activity: TypeAlias = Literal["gemm", "copy", "reduce"]
CostName: TypeAlias = Literal[
    "copy", "copy_of_batch", "raise_flag", "wait_flag", "change_word", "record_event", "wait_event", "launch", "graph"
]
CostMode: TypeAlias = Literal["streams", "graph"]

SizeAndTime: TypeAlias = tuple[SomeBytes, Time]
ShapeAndRate: TypeAlias = tuple[Count, Count, Count, OperationRate]
ShapeSizeAndFactor: TypeAlias = tuple[Count, Count, Count, SomeBytes, Factor]


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """How long one copy takes by its size, signal not included.

    `where` is `device` for copies inside a device, or a tier's name. Patterns: `one` copy at a time; `both_ways`
    between two ranks; `staggered`, every rank to rank+1, rank+2, … at the same time; `incast`, `senders` ranks to one.
    With engine `sm` the copy is by `sms` multiprocessors (0: all).
    """

    where: str
    engine: Mover
    pattern: Pattern
    points: tuple[SizeAndTime, ...]  # bytes, microseconds
    senders: Count = 1
    sms: CountOrNone = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class GemmRates:
    """What a variant of a kernel reaches by the size of the whole product, cut into so many pieces of rows and of K:
    the rate over all pieces, so that the loss by cutting shows. On `sms` multiprocessors (0: all)."""

    kernel: str
    dtype: str
    layout: Layout
    points: tuple[ShapeAndRate, ...]  # m, n, k, operations a microsecond
    row_pieces: Count = 1
    k_pieces: Count = 1
    sms: CountOrNone = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class ReduceTimes:
    """How long a sum of `terms` operands takes by the size of one of them."""

    dtype: str
    terms: Count
    points: tuple[SizeAndTime, ...]  # bytes, microseconds
    sms: CountOrNone = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Contention:
    """How much longer `what` takes `beside` something else than alone, for a GEMM of m × n × k and copies or sums of so
    many bytes each. Copies are by copy engines or by `sms` multiprocessors."""

    what: Activity
    beside: Activity
    engine: Mover
    points: tuple[ShapeSizeAndFactor, ...]  # m, n, k, bytes, time beside over time alone
    sms: CountOrNone = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one of these takes on its stream beyond what it moves or computes, issued on streams or in a graph. `graph`
    is the launch of a whole graph."""

    what: CostName
    mode: CostMode
    time: Time
    source: str = ""


@dataclass(frozen=True, slots=True)
class Sustained:
    """The GEMM rate after `seconds` of continuous GEMMs, divided by the rate of a single run: what the power limit
    allows."""

    dtype: str
    seconds: Seconds
    factor: Factor
    source: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """A calibration: on which devices, with which driver, when (a date, 2026-11-22), and what was found."""

    devices: tuple[str, ...]
    driver: str
    date: str
    software: str = ""
    copies: tuple[CopyTimes, ...] = ()
    gemms: tuple[GemmRates, ...] = ()
    reductions: tuple[ReduceTimes, ...] = ()
    contention: tuple[Contention, ...] = ()
    costs: tuple[Cost, ...] = ()
    sustained: tuple[Sustained, ...] = ()


# The tables, with what each tells; in this order they are written and shown.
TITLES: dict[str, str] = {
    "copies": "copy time by size",
    "gemms": "GEMM rate by kernel, shape and pieces",
    "reductions": "time of sums by size",
    "contention": "GEMMs beside copies, copies beside GEMMs",
    "costs": "cost of a copy, a flag, a word, an event, a launch, a graph",
    "sustained": "sustained rate over the rate of a single run",
}
