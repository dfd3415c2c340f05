"""`quantize`: rounds a tensor, a sum, or a function of one to fp8, with scales."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ficco_dsl import verbs
from ficco_dsl.diagnostics import Span

from ...geometry.region import Box, Region, called, shape_words, summary
from ...machine.model import Machine
from ...types import ACCUMULATOR, BLOCKS, TYPES, Dtype, numpy_dtype
from .. import ir, scales
from ..evaluate import Scope
from ..functions import FunctionName
from ..symbolic import Algebra, Pieces
from .kind import Make, Named, Names, Noises, OpKind, Read, Resolve, Size, Tensors, Twin
from .reduce import ReduceKind, function_fits, sum_of, term_fits, text_of, value_of

Array = npt.NDArray[Any]
LEAST = 1e-10  # of a block's largest magnitude, and of a scale that becomes a power of two
OF_MEMORY = 0.9  # of a copy's rate: 0.84 to 0.95 on an H200, of 29 MB and more (tests/gpu/test_quantize.py)
LEAST_OF_ROWS = 512  # the scale of a row is at least 1 / (512 · the largest number of the type)


def quantized(
    x: Array, dtype: Dtype, across: int, by: float | None = None, *, pow2: bool = False
) -> tuple[Array, Array]:
    """A matrix in fp32, or several, [..., rows, columns]: its values in fp8, and their scales without padding, one for
    `across` elements of a row (0: for all).

    It is what vLLM's kernels compute, bit for bit: of 1x128 per_token_group_quant_fp8, of rows
    dynamic_per_token_scaled_fp8_quant, and with a scale that is given, `by`, static_scaled_fp8_quant. In a block, NaN
    becomes the least number, elsewhere the largest.
    """
    largest, of_blocks = np.float32(TYPES[dtype].largest), across > 0
    *lead, columns = x.shape
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        if by is not None:
            wide = -(-columns // across) if of_blocks else 1
            found = np.full((*lead, wide), by, np.float32)
            quotient = x * (np.float32(1) / np.float32(by))
        else:
            width = across or max(columns, 1)
            sizes = np.where(np.isnan(x), np.float32(0), np.abs(x))  # NOTE np.fmax returns NaN of a signalling one
            sizes = np.pad(sizes, [*((0, 0) for _ in lead), (0, -columns % width)])
            size = sizes.reshape(*lead, -1, width).max(-1, initial=np.float32(0))
            if of_blocks:
                found = np.fmax(size, np.float32(LEAST)) / largest
            else:
                found = np.fmax(size / largest, np.float32(1) / (largest * np.float32(LEAST_OF_ROWS)))
            if pow2:
                digits = np.log2(np.fmax(found, np.float32(LEAST)).astype(np.float64)).astype(np.float32)
                found = np.exp2(np.ceil(digits.astype(np.float64))).astype(np.float32)
            quotient = x / np.repeat(found, width, -1)[..., :columns]
        if of_blocks and by is None:
            quotient = np.fmin(np.fmax(quotient, -largest), largest)
        else:
            quotient = np.fmax(np.fmin(quotient, largest), -largest)
        return quotient.astype(numpy_dtype(dtype)), found


_SUM = ReduceKind()


def _alone(one: Callable[[Scope], Region]) -> Callable[[Scope], tuple[Region, ...]]:
    """A region that is no term of a sum: a set in it makes pieces."""
    return lambda scope: (one(scope),)


class QuantizeKind(OpKind[ir.Quantize]):
    body, node = ir.Quantize, verbs.Quantize
    word = span = "quantize"
    noun = "quantization"
    stored = "QuantizeWork"

    def maker(self, s: verbs.Quantize, names: Names) -> Make:
        out, terms = names.one(s.out), names.each(s.terms) if s.summed else _alone(names.one(s.terms[0]))
        factor, by = ((lambda _: None) if ref is None else names.one(ref) for ref in (s.factor, s.by))
        function, tensor = cast("FunctionName | None", s.function), names.tensors[s.out.tensor]
        across = 0 if tensor.scaling is None else BLOCKS[tensor.scaling][1]

        def make(scope: Scope, where: ir.Where) -> ir.Op:
            to, scale = out(scope), by(scope)
            whole = tensor.scaling is not None and len(to.shape) > 1 and scales.cut(to, tensor) is None
            of, pow2 = names.scales.of(to) if whole else to, where.resources.scale == "pow2" and scale is None
            reads = terms(scope), function, factor(scope)
            return ir.Op(where, ir.Quantize(to, *reads, scales=of, across=across, by=scale, pow2=pow2))

        return make

    def check_layout(self, s: verbs.Quantize, names: Names) -> None:
        names.alike(self.word, (s.out, *s.terms, *((s.factor,) if s.factor else ())))

    def fits(self, body: ir.Quantize, rank: int, tensors: Tensors) -> str | None:
        """The result is scaled by row or by 128 elements of one, or as a whole if the scale is given. It is made of
        matrices without scales, whose columns are one piece."""
        out, of = body.out, tensors[body.out.tensor]
        if of.scaling is None:
            return f"quantize: {of.name} is {of.dtype}, without scales; declare it fp8_e4m3 scaled 1x128, or scaled row"
        if of.scaling == "128x128" or (of.scaling == "tensor" and body.by is None):
            way = "scale it 1x128 or row" + (", or give the scale: / S" if of.scaling == "tensor" else "")
            return f"quantize: {of.name} is scaled {of.scaling}, and scales are computed within a row; {way}"
        if len(out.shape) < 2:
            return f"quantize: {out.tensor} has one dimension here; quantize whole rows, such as {out.tensor}[0:1]"
        if message := scales.cut(out, of):
            return f"quantize: {message}"
        types = tuple(t.name for t in TYPES.values() if not t.quantised)
        for term in body.terms:
            if message := term_fits("quantize", out, term, tensors, types):
                return message
        if message := function_fits("quantize", body, tensors, types):
            return message
        for region in (out, *body.terms, *((body.factor,) if body.factor else ())):
            if len(region.axes[region.kept[-1]].segments) > 1:
                return f"quantize: the columns of {region.tensor} are several pieces; quantize one piece at a time"
        if not body.terms:
            return "quantize: there is no term to sum"
        if out.rank != rank:
            return "a quantize writes its own rank's memory"
        if body.by is not None and (
            body.by.shape != (1,) or body.by.rank != rank or tensors[body.by.tensor].dtype != ACCUMULATOR
        ):
            found = f"{tensors[body.by.tensor].dtype}, {shape_words(body.by.shape)}"
            return f"quantize: the scale {body.by.tensor} is {found} here; it is one number of fp32, such as S[1]"
        written = scales.region_of(out, of), BLOCKS[of.scaling][1]
        if (body.scales, body.across) != written or (body.pow2 and body.by is not None):
            return "quantize: the scales that it writes are not those of its result"
        return None

    def text(self, body: ir.Quantize) -> str:
        by = f" / {body.by}" if body.by else " with powers of two" if body.pow2 else ""
        return f"quantize {body.out} = {text_of(body, ' + '.join(map(str, body.terms)))}{by}"

    def values(self, body: ir.Quantize, algebra: Algebra, read: Read) -> Iterable[Pieces]:
        (pieces,) = value_of(body, algebra, [read(term) for term in body.terms], read)
        given = () if body.by is None else tuple(id(value) for _, value in read(body.by))
        return scales.computed(algebra, body.out, pieces, body.scales, (body.pow2, *given))

    def sources(self, body: ir.Quantize, box: Box) -> Iterator[tuple[Region, Box]]:
        return _SUM.sources(body, box)

    def noise(self, body: ir.Quantize, noises: Noises, origin: Span) -> None:
        _SUM.noise(body, noises, origin)

    def time(self, body: ir.Quantize, machine: Machine, rank: int, size: Size, sms: int | None) -> float:
        return _SUM.time(body, machine, rank, size, sms) / OF_MEMORY

    def label(self, body: ir.Quantize, rank: int | None, part: Named = summary) -> str:
        return f"{body.out.tensor if rank is None else called(body.out, rank)} {part(body.out)}"

    def bind(self, body: ir.Quantize, place: Span, resolve: Resolve) -> Twin:
        out, to = resolve(body.out), resolve(body.scales)
        by = None if body.by is None else resolve(body.by)
        dtype = cast("Dtype", next(name for name in TYPES if numpy_dtype(name) == out.dtype))

        def store(total: Array) -> None:
            given = None if by is None else by.load32().item()
            values, found = quantized(total, dtype, body.across, given, pow2=body.pow2)
            out.store(values)
            to.store(np.pad(found, [*((0, 0) for _ in found.shape[1:]), (0, to.shape[-1] - found.shape[-1])]))

        return sum_of(body, place, resolve, store)
