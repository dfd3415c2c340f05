"""`reduce`: an elementwise sum of terms, which may lie on other ranks."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ficco_dsl import verbs
from ficco_dsl.diagnostics import Span

from ...errors import malformed
from ...geometry.region import Region, overlap, shape_words
from ...machine import durations
from ...machine.model import Machine
from ...types import TYPES
from .. import ir
from ..symbolic import Algebra, Pieces, added
from .kind import Noises, OpKind, Read, Resolve, Size, Tensors, Twin


def term_fits(what: str, out: Region, term: Region, tensors: Tensors, types: tuple[str, ...]) -> str | None:
    """Why a term cannot be added to make `out`, if so."""
    if term.shape != out.shape:
        return f"{what}: {out.tensor} is {shape_words(out.shape)}, the term {term.tensor} is {shape_words(term.shape)}"
    own, other = tensors[out.tensor].dtype, tensors[term.tensor].dtype
    if other not in types:
        wanted = " or ".join(dict.fromkeys(types))
        return f"{what}: {out.tensor} is {own}, the term {term.tensor} is {other}; a term is {wanted}"
    if overlap(out, term) and out != term:
        return f"{what}: a term overlaps the part of {out.tensor} that is written"
    return None


class ReduceKind(OpKind[ir.Reduce]):
    body, node = ir.Reduce, verbs.Reduce
    word = span = "reduce"
    noun = "sum"
    stored = "ReduceWork"

    def fits(self, total: ir.Reduce, rank: int, tensors: Tensors) -> str | None:
        """All terms have the shape of the result; a term may be the result itself, not a shifted part of it."""
        own = tensors[total.out.tensor].dtype
        types = tuple(TYPES) if own == TYPES[own].accumulator else (own, TYPES[own].accumulator)
        for term in total.terms:
            message = term_fits("reduce", total.out, term, tensors, types)
            if message is not None:
                return message
        if not total.terms:
            return "reduce: there is no term to sum"
        if total.out.rank != rank:
            return "a reduce writes its own rank's memory"
        return None

    def text(self, total: ir.Reduce) -> str:
        return f"reduce {total.out} = {' + '.join(map(str, total.terms))}"

    def values(self, total: ir.Reduce, algebra: Algebra, read: Read) -> Iterable[Pieces]:
        return (added(algebra, [read(term) for term in total.terms], total.out.shape),)

    def noise(self, total: ir.Reduce, noises: Noises, origin: Span) -> None:
        noises.store(total.out, [noises.read(term) for term in total.terms], origin)

    def bind(self, total: ir.Reduce, place: Span, resolve: Resolve) -> Twin:
        out = resolve(total.out)
        first, *rest = [resolve(t) for t in total.terms]
        if any(t.shape != out.shape for t in (first, *rest)):
            raise malformed(place, f"the terms of a sum must have the shape of {total.out}")

        def run() -> None:
            result = first.load().astype(np.float32)  # a copy, whatever the dtype
            for term in rest:
                result += term.load32()
            out.store(result)

        return run

    def time(self, total: ir.Reduce, machine: Machine, rank: int, size: Size, sms: int | None) -> float:
        far = [(t.rank, size(t)) for t in total.terms if t.rank != rank]
        alone = super().time(total, machine, rank, size, sms)
        return max(alone, durations.read_time(machine, rank, far)) + durations.until_read(machine.device, len(far))
