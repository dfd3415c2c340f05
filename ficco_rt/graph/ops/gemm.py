"""`gemm`: a matrix product, optionally with a sum added to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import cast

import numpy as np
import numpy.typing as npt

from ficco_dsl import verbs
from ficco_dsl.diagnostics import Span

from ...errors import malformed
from ...geometry.region import Box, Region, overlap, shape_words
from ...types import BLOCKS, TYPES
from .. import ir, scales
from ..evaluate import Scope
from ..functions import FunctionName
from ..symbolic import Algebra, Pieces, added, multiply, transposed
from .kind import Make, Memory, Names, Noises, OpKind, Read, Resolve, Tensors, Twin
from .reduce import function_fits, part_of, term_fits, text_of, twin_of, value_of


class GemmKind(OpKind[ir.Gemm]):
    body, node = ir.Gemm, verbs.Gemm
    word = span = "gemm"
    noun = "GEMM"
    side = "computes"
    tiled = True
    stored, stored_as = "GemmWork", {"addends": "terms"}

    def maker(self, s: verbs.Gemm, names: Names) -> Make:
        operands, added = [names.one(r) for r in (s.out, s.left, s.right)], names.each(s.terms)
        left_turned, right_turned = (ref.transposed != names.turned(ref) for ref in (s.left, s.right))
        out_turned = names.turned(s.out)
        factor = (lambda _: None) if s.factor is None else names.one(s.factor)
        function = cast("FunctionName | None", s.function)

        def gemm(scope: Scope, where: ir.Where) -> ir.Op:
            out, left, right = (operand(scope) for operand in operands)
            if out_turned:  # (L · R).T = R.T · L.T
                product = (out, right, left, not right_turned, not left_turned)
            else:
                product = (out, left, right, left_turned, right_turned)
            tensors = names.tensors
            scaled = [(r, tensors[r.tensor]) for r in product[1:3] if tensors[r.tensor].scaling is not None]
            read = tuple(names.scales.of(r) for r, t in scaled if scales.cut(r, t) is None)
            fast = bool(where.resources.fast)
            return ir.Op(where, ir.Gemm(*product, s.accumulate, added(scope), function, factor(scope), read, fast))

        return gemm

    def check_layout(self, s: verbs.Gemm, names: Names) -> None:
        names.alike(self.word, (s.out, *s.terms, *((s.factor,) if s.factor else ())))

    def fits(self, gemm: ir.Gemm, rank: int, tensors: Tensors) -> str | None:
        """[m, k] · [k, n] = [m, n], one operand type, the result in it or in fp32, not over its own operands. The
        operands are the rank's own, the result may lie on a peer. Terms are those of a reduce, but of the operands'
        type or fp32; `+=` has none, and adds on the own rank."""
        out, left, right = gemm.out, gemm.left, gemm.right
        for region in (out, left, right):
            if len(region.shape) != 2:
                dims = f"{len(region.shape)} dimension{'' if len(region.shape) == 1 else 's'}"
                return f"gemm takes matrices; {region.tensor} has {dims} here: {shape_words(region.shape)}"
        m, k = left.shape[::-1] if gemm.left_transposed else left.shape
        k2, n = right.shape[::-1] if gemm.right_transposed else right.shape
        product = f"{left.tensor} is {m} × {k} and {right.tensor} is {k2} × {n}"
        if k != k2:
            return f"{product}: the inner sizes differ"
        if out.shape != (m, n):
            return f"{product}, so the product is {m} × {n}, but {out.tensor} is {shape_words(out.shape)}"
        if k == 0 and m and n and not gemm.accumulate:
            return f"{product}: nothing to add up; the inner size is 0: leave such a piece out with 'if'"
        a, b, c = (tensors[r.tensor].dtype for r in (left, right, out))
        coarse = TYPES[a].quantised and TYPES[b].quantised
        if a != b and not coarse:
            return f"{left.tensor} is {a} and {right.tensor} is {b}; a gemm takes one type, or two of fp8"
        if a == b == "fp8_e5m2":
            return f"{left.tensor} and {right.tensor} are {a}; of the operands of a gemm one at least is fp8_e4m3"
        if gemm.tf32 and a != "fp32":
            return f"gemm: {left.tensor} is {a}, and only fp32 is rounded to TF32"
        wide = TYPES[a].accumulator
        types: tuple[str, ...] = tuple(TYPES) if coarse else (a, wide)
        if c not in types:
            return f"a product of {a} goes to {' or '.join(dict.fromkeys(types))}; {out.tensor} is {c}"
        if gemm.fast and not coarse:
            return f"gemm: fast = 1 is for products of fp8, and {left.tensor} is {a}: leave it out"
        if message := _scales_fit(gemm, tensors):
            return message
        for operand in (left, right):
            if overlap(out, operand):
                return f"gemm writes the part of {out.tensor} that it reads"
        if not rank == left.rank == right.rank:
            return "a gemm reads its operands in its own rank's memory"
        if gemm.accumulate and out.rank != rank:
            return (
                f"'+=' adds to {out.tensor} on rank {out.rank}; a gemm adds in its own rank's memory: store there "
                "with '=', each product in its own place, and sum those"
            )
        if gemm.accumulate and (gemm.addends or gemm.function):
            return f"'+=' takes no {'sum' if gemm.addends else gemm.function}"
        for addend in gemm.addends:
            message = term_fits("gemm", out, addend, tensors, (c, wide) if coarse else types)
            if message is not None:
                return message
        return function_fits("gemm", gemm, tensors, (c, wide) if coarse else types)

    def text(self, gemm: ir.Gemm) -> str:
        left, right = (f"{r}{'.T' if t else ''}" for r, t in _operands(gemm))
        addends = "".join(f" + {a}" for a in gemm.addends)
        value = text_of(gemm, f"{left} · {right}{addends}")
        return f"gemm {gemm.out} {'+=' if gemm.accumulate else '='} {value}{' in TF32' if gemm.tf32 else ''}"

    def values(self, gemm: ir.Gemm, algebra: Algebra, read: Read) -> Iterable[Pieces]:
        left, right = read(gemm.left), read(gemm.right)
        for operand, pieces, of in zip((gemm.left, gemm.right), (left, right), gemm.scales, strict=False):
            if not scales.belong(algebra, operand, pieces, of, read(of)):
                other = algebra.opaque(f"a product of {operand.tensor} by the scales of other values")
                return ([(Box((0, 0), gemm.out.shape), other)],)
        if gemm.left_transposed:
            left = transposed(algebra, left)
        if gemm.right_transposed:
            right = transposed(algebra, right)
        m, n = gemm.out.shape
        result = multiply(algebra, left, right, (m, n))
        if gemm.accumulate:
            return (added(algebra, [read(gemm.out), result], (m, n)),)
        return value_of(gemm, algebra, [result, *map(read, gemm.addends)], read)

    def sources(self, gemm: ir.Gemm, box: Box) -> Iterator[tuple[Region, Box]]:
        for axis, (region, turned) in enumerate(_operands(gemm)):
            edge = [[0, n] for n in region.shape]
            edge[1 - axis if turned else axis] = [box.start[axis], box.stop[axis]]
            yield region, Box(tuple(a for a, _ in edge), tuple(b for _, b in edge))
        others = gemm.reads[2 : len(gemm.reads) - len(gemm.scales)]
        yield from ((region, part_of(region, gemm.out, box)) for region in others)

    def noise(self, gemm: ir.Gemm, noises: Noises, origin: Span) -> None:
        noises.multiply(gemm, origin)

    def bind(self, gemm: ir.Gemm, place: Span, resolve: Resolve) -> Twin:
        out, left, right = resolve(gemm.out), resolve(gemm.left), resolve(gemm.right)
        rows, inner = left.shape[-2:] if not gemm.left_transposed else left.shape[:-3:-1]
        inner2, columns = right.shape[-2:] if not gemm.right_transposed else right.shape[:-3:-1]
        if inner != inner2 or out.shape[-2:] != (rows, columns):
            raise malformed(place, f"shapes do not fit: {gemm.out} = {gemm.left} · {gemm.right}")
        addends = [resolve(t) for t in ((gemm.out,) if gemm.accumulate else gemm.addends)]
        if any(t.shape not in (out.shape, out.shape[-1:]) for t in addends):
            raise malformed(place, f"what is added to a product must have the shape of {gemm.out}")
        by: list[Memory | None] = [resolve(region) for region in gemm.scales] or [None, None]
        a, b = _operand(left, gemm.left_transposed, by[0]), _operand(right, gemm.right_transposed, by[1])
        target = out.one
        if addends or gemm.function:
            store = twin_of(gemm, place, resolve)

            def add() -> None:
                total = np.matmul(a(), b())
                for addend in addends:
                    total += addend.load32()
                store(total)

            return add
        if target is not None and target.dtype == np.float32:
            return lambda: _matmul_into(a(), b(), target)
        return lambda: out.store(np.matmul(a(), b()))


def _scales_fit(gemm: ir.Gemm, tensors: Tensors) -> str | None:
    """Both operands have scales or none has. Along K scales change every 128 elements in both, or in none."""
    of = [tensors[operand.tensor] for operand in (gemm.left, gemm.right)]
    if all(t.scaling is None for t in of):
        return "gemm: there are scales, and its operands are not scaled" if gemm.scales else None
    for (operand, _), t, other in zip(_operands(gemm), of, reversed(of), strict=True):
        if t.scaling is None:
            by = {"1x128": "128x128", "128x128": "1x128"}.get(other.scaling or "", "tensor")
            return (
                f"gemm: {other.name} is scaled {other.scaling} and {t.name} is not: scale both, such as "
                f"{t.name} : {t.dtype} scaled {by}"
            )
        if message := scales.cut(operand, t):
            return f"gemm: {message}"
    for i, ((_, turned), t) in enumerate(zip(_operands(gemm), of, strict=True)):
        if turned == (i == 0) and t.scaling != "128x128":
            return (
                f"gemm: {t.name} is scaled {t.scaling} as it is stored, and its rows lie along K here: its scales "
                "would change with every element of K; store it with K as its columns"
            )
    blocked = [BLOCKS[t.scaling][1] for t in of if t.scaling is not None]
    if blocked[0] != blocked[1]:
        return (
            f"gemm: {of[0].name} is scaled {of[0].scaling} and {of[1].name} is scaled {of[1].scaling}: along K scales "
            "change every 128 elements on both sides or on none; scale both by blocks, or both by tensor or row"
        )
    if gemm.fast and blocked[0]:
        return (
            f"gemm: fast = 1: {of[0].name} and {of[1].name} are scaled by blocks, whose scales are applied in fp32 "
            "after every 128 of K: leave it out, or scale both by tensor or row"
        )
    if gemm.scales != tuple(scales.region_of(r, t) for r, t in zip((gemm.left, gemm.right), of, strict=True)):
        return "gemm: the scales that it reads are not those of its operands"
    return None


def _operands(gemm: ir.Gemm) -> tuple[tuple[Region, bool], tuple[Region, bool]]:
    return (gemm.left, gemm.left_transposed), (gemm.right, gemm.right_transposed)


def _operand(view: Memory, turned: bool, by: Memory | None = None) -> Callable[[], npt.NDArray[np.generic]]:
    """The operand in fp32, multiplied by its scales."""
    if by is not None:
        plain = _operand(view, turned=False)

        def scaled() -> npt.NDArray[np.generic]:
            found: npt.NDArray[np.generic] = plain() * scales.spread(by.load32(), view.shape)
            return found.swapaxes(-1, -2) if turned else found

        return scaled
    if view.one is None:
        return (lambda: view.load32().swapaxes(-1, -2)) if turned else view.load32
    array = view.one.swapaxes(-1, -2) if turned else view.one
    return (lambda: array) if array.dtype == np.float32 else (lambda: array.astype(np.float32))


def _matmul_into(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], out: npt.NDArray[np.generic]) -> None:
    np.matmul(a, b, out=out)
