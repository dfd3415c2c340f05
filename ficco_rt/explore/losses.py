"""The two losses that decide how finely work is worth cutting, by the size of a GPU's GEMM. Source: FiCCO (arXiv
2512.10236), which calls the curve of losses over a range of sizes an operator's signature.

decomposition: the time of a GEMM in one launch ÷ that of the same GEMM as pieces of rows, or of K, one after another.
contention: the time of a GEMM alone ÷ that of one beside copies, and of copies alone ÷ those beside a GEMM.

All are shares: 1 where nothing is lost. They come from a machine's own measurements if it has any, else from the model:
small schedules are compiled and simulated on the virtual clock, so the losses agree with the prices that sweeps use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from ficco_dsl.nodes import Schedule

from .. import compiler
from ..calibrate.probes import schedule
from ..files.records import INLINE, AtLeast, Count, Named
from ..machine.measured_tables import Contention, GemmRates
from ..machine.model import Machine
from ..sim.simulate import simulate
from ..trace.model import Trace

Axis: TypeAlias = Literal["rows", "K"]
Subject: TypeAlias = Literal["gemm", "copies"]
PIECES = (2, 4, 8, 16)

_CONTENTION = Path(__file__).with_name("contention.ficco")


@dataclass(frozen=True, slots=True)
class Operator:
    """A GPU's own GEMM: [m, k] · [k, n], in elements."""

    m: Annotated[int, AtLeast(0), Named("M")]
    n: Annotated[int, AtLeast(0), Named("N")]
    k: Annotated[int, AtLeast(0), Named("K")]

    @property
    def operations(self) -> float:
        """A multiplication and its addition are two."""
        return 2.0 * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Decomposition:
    """What is left of a GEMM's speed in pieces.

    share: Whole ÷ pieces, with their launches; 1: nothing is lost.
    """

    of: Annotated[Operator, INLINE]
    axis: Axis
    pieces: Count
    share: float


@dataclass(frozen=True, slots=True)
class Contending:
    """What is left of the speed of a GEMM beside copies, or of copies beside a GEMM.

    share: Alone ÷ beside the other; 1: nothing is lost.
    """

    of: Annotated[Operator, INLINE]
    subject: Subject
    share: float


@dataclass(frozen=True, slots=True)
class Losses:
    """What `ficco characterise --json` prints: both losses of a machine."""

    machine: str
    ranks: Count
    source: Literal["modelled", "measured"]
    decomposition: tuple[Decomposition, ...]
    contention: tuple[Contending, ...]


def losses(
    machine: Machine, operators: Sequence[Operator], pieces: Sequence[int] = PIECES, dtype: str = "bf16"
) -> Losses:
    """Both losses of a machine over these operators, of which `operators` says nothing where the machine was measured:
    measurements have sizes of their own.

    Copies are an all-gather's of the GEMM's A, in equal parts from all ranks; alone and beside, they are timed from the
    first one's start to the last one's end. Raises ScheduleError for sizes that no schedule can have.
    """
    return measured(machine) or modelled(machine, operators, pieces, dtype)


def modelled(machine: Machine, operators: Sequence[Operator], pieces: Sequence[int], dtype: str) -> Losses:
    """The losses by the virtual clock."""
    cut: list[Decomposition] = []
    beside: list[Contending] = []
    product, contention = schedule("product"), compiler.load(_CONTENTION)
    ranks = min(machine.ranks, machine.node)  # copy engines reach no other node

    def run(of: Schedule, ranks: int, operator: Operator, **params: int) -> Trace:
        sizes = {"M": operator.m, "N": operator.n, "K": operator.k, "T": dtype}
        return simulate(compiler.plan_of(compiler.build(of, ranks, sizes | params), machine, trusted=True), machine)

    for operator in operators:
        whole = run(product, 1, operator).duration
        ways: tuple[tuple[Axis, str, int], ...] = (("rows", "pieces", operator.m), ("K", "deep", operator.k))
        for axis, param, extent in ways:
            for count in pieces:
                if count <= extent:
                    share = whole / run(product, 1, operator, **{param: count}).duration
                    cut.append(Decomposition(operator, axis, count, share))
        if ranks > 1:
            gemm = run(contention, ranks, operator, copies=0)
            copies = run(contention, ranks, operator, products=0)
            both = run(contention, ranks, operator)
            beside.append(Contending(operator, "gemm", _span(gemm, "gemm") / _span(both, "gemm")))
            beside.append(Contending(operator, "copies", _span(copies, "copy") / _span(both, "copy")))
    return Losses(machine.name, ranks, "modelled", tuple(cut), tuple(beside))


def _span(trace: Trace, kind: str) -> float:
    """From the first span of a kind to the end of the last one."""
    spans = [span for span in trace.spans if span.kind == kind]
    return max(span.stop for span in spans) - min(span.start for span in spans)


def measured(machine: Machine) -> Losses | None:
    """From the tables of a machine that has them, or None."""
    if machine.measured is None:
        return None
    cut, beside = tuple(_rates(machine.measured.gemms)), tuple(_factors(machine.measured.contention))
    return Losses(machine.name, machine.ranks, "measured", cut, beside) if cut or beside else None


def _rates(tables: Sequence[GemmRates]) -> Iterator[Decomposition]:
    """Of tables of rates by shape and pieces: each cut one beside the whole one of the same kernel and conditions."""
    whole = {
        (t.kernel, t.dtype, t.layout, t.sms, *point[:3]): point[3]
        for t in tables
        if t.row_pieces == t.k_pieces == 1
        for point in t.points
    }
    for t in tables:
        if (t.row_pieces > 1) == (t.k_pieces > 1):
            continue
        for m, n, k, rate in t.points:
            base = whole.get((t.kernel, t.dtype, t.layout, t.sms, m, n, k))
            if base:
                axis: Axis = "rows" if t.row_pieces > 1 else "K"
                yield Decomposition(Operator(m, n, k), axis, max(t.row_pieces, t.k_pieces), rate / base)


def _factors(tables: Sequence[Contention]) -> Iterator[Contending]:
    """Of tables of times beside over times alone: copies by copy engines."""
    for t in tables:
        subject: Subject = "gemm" if t.what == "gemm" else "copies"
        if t.engine == "copy" and {t.what, t.beside} == {"gemm", "copy"}:
            yield from (Contending(Operator(m, n, k), subject, 1 / factor) for m, n, k, _, factor in t.points)
