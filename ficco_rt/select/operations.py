"""The operations: what `choose` and the benchmark need to know about a folder of `schedules/`.

A folder whose `serial` declares the sizes is an operation: its schedules, sizes and types are found in the texts. A row
of `OPERATIONS` adds what the texts do not say. An operation without a row has no rules; the model chooses for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..graph.ir import CollectiveKind

Sizes = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Shape:
    """The work of the busiest rank of an operation: an [m, k] · [k, n] product, and the elements that it sends to a
    peer."""

    m: int
    n: int
    k: int
    sent: float
    instead: float | None = None  # the elements that a stationary schedule sends a peer
    out: float | None = None  # those of them that wait for a product


def _number(sizes: Sizes, name: str) -> int:
    value = sizes[name]
    assert isinstance(value, int)  # bound by the language before any rule is asked
    return value


def _mnk(sizes: Sizes) -> tuple[int, int, int]:
    return _number(sizes, "M"), _number(sizes, "N"), _number(sizes, "K")


def _gathered(ranks: int, sizes: Sizes) -> Shape:
    m, n, k = _mnk(sizes)
    out = m * n / ranks**2
    return Shape(m, n // ranks, k, sent=m * k / ranks, instead=k * n / ranks + out, out=out)


def _reduced(ranks: int, sizes: Sizes) -> Shape:
    m, n, k = _mnk(sizes)
    return Shape(m, n, k // ranks, sent=m * n / ranks, instead=(m / ranks + n) * k / ranks, out=0.0)


def _counts(ranks: int, sizes: Sizes) -> tuple[int, int, float]:
    """The most rows that a rank has, that come to one, and that one sends a peer on average."""
    counts = sizes["counts"]
    assert isinstance(counts, Sequence)
    rows = [[int(c) for c in row] for row in counts]
    out = max((sum(row) - row[i] for i, row in enumerate(rows)), default=0)
    inward = max(sum(row[e] for row in rows) for e in range(ranks))
    return max(map(sum, rows)), inward, out / max(1, ranks - 1)


def _exchanged(ranks: int, sizes: Sizes) -> Shape:
    n, k = _number(sizes, "N"), _number(sizes, "K")
    _, inward, sent = _counts(ranks, sizes)
    return Shape(inward, n, k, sent=sent * k)


def _returned(ranks: int, sizes: Sizes) -> Shape:
    n, k = _number(sizes, "N"), _number(sizes, "K")
    own, _, sent = _counts(ranks, sizes)
    return Shape(own, n, k, sent=sent * n)


# Of a backward pass, the gradient of the inputs, which the copies hide behind; that of the weights takes as long again.


def _gathered_back(ranks: int, sizes: Sizes) -> Shape:
    m, n, k = _mnk(sizes)
    return Shape(m, k, n // ranks, sent=m * k / ranks)


def _reduced_back(ranks: int, sizes: Sizes) -> Shape:
    m, n, k = _mnk(sizes)
    return Shape(m, k // ranks, n, sent=m * n / ranks)


def _exchanged_back(ranks: int, sizes: Sizes) -> Shape:
    n, k = _number(sizes, "N"), _number(sizes, "K")
    _, inward, sent = _counts(ranks, sizes)
    return Shape(inward, k, n, sent=sent * k)


@dataclass(frozen=True, slots=True)
class Declared:
    """`collective`: the one that brings the GEMM's left operand, or takes its result. `short`: how tables of the
    benchmark call the operation; None: it is not measured there. `passes`: how often `Shape.sent` travels."""

    collective: CollectiveKind
    shape: Callable[[int, Sizes], Shape]
    short: str | None = None
    passes: int = 1


OPERATIONS: Mapping[str, Declared] = {
    "ag_gemm": Declared("all_gather", _gathered, "ag"),
    "gemm_rs": Declared("reduce_scatter", _reduced, "rs"),
    "gemm_ar": Declared("all_reduce", _reduced, "ar", passes=2),
    "a2a_gemm": Declared("all_to_all", _exchanged),
    "ag_gemm_kept": Declared("all_gather", _gathered),
    "gemm_a2a": Declared("all_to_all", _returned),
    "ag_gemm_backward": Declared("all_gather", _gathered_back, passes=2),
    "gemm_rs_backward": Declared("all_gather", _reduced_back),
    "a2a_gemm_backward": Declared("all_to_all", _exchanged_back, passes=2),
}
