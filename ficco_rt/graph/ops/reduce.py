"""`reduce`: an elementwise sum of terms, which may lie on other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from ficco_dsl import verbs
from ficco_dsl.diagnostics import Span

from ...errors import malformed
from ...geometry.region import Box, Region, overlap, shape_words
from ...machine import durations
from ...machine.model import Machine
from ...types import TYPES
from .. import ir
from ..functions import FUNCTIONS, FunctionName
from ..symbolic import Algebra, Pieces, added, applied, repeated
from .kind import Make, Names, Noises, OpKind, Read, Resolve, Size, Tensors, Twin

Store: TypeAlias = Callable[[npt.NDArray[Any]], None]


def is_row(term: Region, out: Region) -> bool:
    """Whether a term is one row, which is added to every row."""
    return len(term.shape) == 1 < len(out.shape)


def part_of(term: Region, out: Region, box: Box) -> Box:
    """The part of a term of which `box` of the result is made."""
    return Box(box.start[-1:], box.stop[-1:]) if is_row(term, out) else box


def term_fits(what: str, out: Region, term: Region, tensors: Tensors, types: tuple[str, ...]) -> str | None:
    """Why a term cannot be added to make `out`, if so."""
    if term.shape != (out.shape[-1:] if is_row(term, out) else out.shape):
        return f"{what}: {out.tensor} is {shape_words(out.shape)}, the term {term.tensor} is {shape_words(term.shape)}"
    own, other = tensors[out.tensor].dtype, tensors[term.tensor].dtype
    if other not in types:
        wanted = " or ".join(dict.fromkeys(types))
        return f"{what}: {out.tensor} is {own}, the term {term.tensor} is {other}; a term is {wanted}"
    if overlap(out, term) and out != term:
        return f"{what}: a term overlaps the part of {out.tensor} that is written"
    return None


def function_fits(what: str, body: ir.Gemm | ir.Reduce, tensors: Tensors, types: tuple[str, ...]) -> str | None:
    """Why the function of a sum has not the factor that it takes, if so."""
    takes = body.function is not None and FUNCTIONS[body.function].factor
    if takes != (body.factor is not None):
        return f"{what}: {body.function or 'a sum'} takes {'a' if takes else 'no'} factor"
    if body.factor is None:
        return None
    if body.factor.shape != body.out.shape:
        of = f"the factor {body.factor.tensor} is {shape_words(body.factor.shape)}"
        return f"{what}: {body.out.tensor} is {shape_words(body.out.shape)}, {of}"
    return term_fits(what, body.out, body.factor, tensors, types)


def value_of(body: ir.Gemm | ir.Reduce, algebra: Algebra, terms: list[Pieces], read: Read) -> tuple[Pieces]:
    """What a sum of these terms, or a function of it, stores."""
    shape = body.out.shape
    arguments = [added(algebra, [repeated(algebra, pieces, shape) for pieces in terms], shape)]
    if body.factor is not None:
        arguments.append(read(body.factor))
    return (applied(algebra, body.function, arguments, shape),)


def twin_of(
    body: ir.Gemm | ir.Reduce, place: Span, resolve: Resolve, store: Store | None = None
) -> Callable[[npt.NDArray[Any]], None]:
    """Stores a function of a sum, or the sum, in numpy memory, or gives it to `store`."""
    out, factor = resolve(body.out), None if body.factor is None else resolve(body.factor)
    store = store or out.store
    if body.function is None:
        return store
    of = FUNCTIONS[body.function].of
    if factor is None:
        return lambda total: store(of(total))
    if factor.shape != out.shape:
        raise malformed(place, f"the factor must have the shape of {body.out}")
    return lambda total: store(of(total) * factor.load32())


def sum_of(total: ir.Reduce, place: Span, resolve: Resolve, store: Store | None = None) -> Twin:
    """Adds up terms in numpy memory, and stores what is made of the sum."""
    out = resolve(total.out)
    first, *rest = [resolve(t) for t in total.terms]
    if any(t.shape not in (out.shape, out.shape[-1:]) for t in (first, *rest)):
        raise malformed(place, f"the terms of a sum must have the shape of {total.out}")
    made = twin_of(total, place, resolve, store)

    def run() -> None:
        result = np.empty(out.shape, np.float32)
        result[...] = first.load()
        for term in rest:
            result += term.load32()
        made(result)

    return run


def text_of(body: ir.Gemm | ir.Reduce, total: str) -> str:
    """A function of a sum in words, or the sum."""
    arguments = ", ".join((total, *((str(body.factor),) if body.factor else ())))
    return f"{body.function}({arguments})" if body.function else total


class ReduceKind(OpKind[ir.Reduce]):
    body, node = ir.Reduce, verbs.Reduce
    word = span = "reduce"
    noun = "sum"
    stored = "ReduceWork"

    def maker(self, s: verbs.Reduce, names: Names) -> Make:
        out, terms = names.one(s.out), names.each(s.terms)
        factor = (lambda _: None) if s.factor is None else names.one(s.factor)
        function = cast("FunctionName | None", s.function)
        return lambda scope, where: ir.Op(where, ir.Reduce(out(scope), terms(scope), function, factor(scope)))

    def fits(self, total: ir.Reduce, rank: int, tensors: Tensors) -> str | None:
        """All terms have the shape of the result or are one row of it; a term may be the result itself, not a shifted
        part of it."""
        own = tensors[total.out.tensor].dtype
        if found := next((tensors[r.tensor] for r in total.reads if tensors[r.tensor].scaling is not None), None):
            return (
                f"reduce: {found.name} is scaled {found.scaling}, and a reduce takes no scaled tensors; keep what is "
                "summed in bf16, fp16 or fp32"
            )
        types = tuple(TYPES)
        if own != TYPES[own].accumulator:
            coarse = (t.name for t in TYPES.values() if t.quantised)
            types = tuple(dict.fromkeys((own, TYPES[own].accumulator, *coarse)))
        for term in total.terms:
            message = term_fits("reduce", total.out, term, tensors, types)
            if message is not None:
                return message
        if not total.terms:
            return "reduce: there is no term to sum"
        if total.out.rank != rank:
            return "a reduce writes its own rank's memory"
        return function_fits("reduce", total, tensors, types)

    def text(self, total: ir.Reduce) -> str:
        return f"reduce {total.out} = {text_of(total, ' + '.join(map(str, total.terms)))}"

    def values(self, total: ir.Reduce, algebra: Algebra, read: Read) -> Iterable[Pieces]:
        return value_of(total, algebra, [read(term) for term in total.terms], read)

    def sources(self, total: ir.Reduce, box: Box) -> Iterator[tuple[Region, Box]]:
        yield from ((region, part_of(region, total.out, box)) for region in total.reads)

    def noise(self, total: ir.Reduce, noises: Noises, origin: Span) -> None:
        noises.store(total, [noises.read(term) for term in total.terms], origin)

    def bind(self, total: ir.Reduce, place: Span, resolve: Resolve) -> Twin:
        return sum_of(total, place, resolve)

    def time(self, total: ir.Reduce, machine: Machine, rank: int, size: Size, sms: int | None) -> float:
        far = [(t.rank, size(t)) for t in total.reads if t.rank != rank]
        alone = super().time(total, machine, rank, size, sms)
        return max(alone, durations.read_time(machine, rank, far)) + durations.until_read(machine.device, len(far))
