"""Random inputs for runs that are compared. The same seed gives the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, log, prod
from typing import Any, Literal, TypeAlias

import numpy as np

from ..driver.api import Array
from ..graph.claim_values import functions, operands, walk
from ..graph.functions import FUNCTIONS
from ..graph.ir import Added, Applied, ClaimValue, Combined, Gemm, Operand, Product, Quantize
from ..graph.scales import is_scales, name_of, spread
from ..plan.ir import Plan
from ..types import TYPES, numpy_dtype
from .reference import extent

InputValues: TypeAlias = Literal["normal", "exact", "one-signed"]

# How often, at most, chance may make a right run look wrong.
CHANCE = 1e-9

NOISE = 1 << 20  # elements that `noise` repeats


@dataclass(frozen=True, slots=True)
class Integers:
    """Integers with which no order of summing and no store of a plan rounds: from −`bound` to `bound`, never 0, but in
    the tensors `sparse`, of whose elements only the share `density` is not 0."""

    bound: int
    density: float
    sparse: frozenset[str]


def deviation(elements: int) -> float:
    """How many standard deviations a normal value stays below: all of so many, but for a chance of `CHANCE`."""
    return float((2 * log(2 * max(1, elements) / CHANCE)) ** 0.5)


def scale(plan: Plan) -> float:
    """The standard deviation of normal inputs. It makes the values of claimed products about 1 in size."""
    return float(max((extent(c.value).terms for c in plan.claims), default=1) ** -0.25)


def integers(plan: Plan) -> Integers:
    """Where n products are summed into an element, and the narrowest type stores integers up to L exactly: if n ≤ L,
    the largest bound with n · bound² ≤ L, so that every product counts in every element. If not, −1 and 1, with
    zeros so many that sums stay below L (Bernstein's inequality, for all claimed elements together). The zeros are
    in the larger operand of each product: there the fewest elements of the result miss a product."""
    terms = max((extent(c.value).terms for c in plan.claims), default=1)
    limit = exact_limit(plan)
    if terms <= limit:
        most = 1 if quantizations(plan) else 8  # of which all elements with one scale are as large as the largest
        return Integers(min(most, isqrt(limit // terms)), 1.0, frozenset())
    elements = sum(region.elements for claim in plan.claims for region in claim.targets)
    variance = max(1.0, limit**2 / deviation(elements) ** 2 - limit / 3)
    products = [part for c in plan.claims for part in walk(c.value) if isinstance(part, Product)]
    whole: list[ClaimValue] = [*products] or [c.value for c in plan.claims]
    sparse = frozenset(max(operands(value), key=_size).regions[0].tensor for value in whole)
    return Integers(1, min(1.0, variance / terms), sparse)


def quantizations(plan: Plan) -> list[Quantize]:
    """What the plan rounds to fp8 with scales that it computes, or is given."""
    return [work.body for _, launch in plan.launches() for work in launch.works if isinstance(work.body, Quantize)]


def exact_limit(plan: Plan) -> int:
    """The integers up to here are stored without rounding in all of the plan's tensors, but for those of fp8 that hold
    no sums, and so are products of two if claims have a function with a factor. Sums that tensor cores add up alone
    (`Gemm.fast`) keep 14 digits."""
    coarse = any(TYPES[dtype].quantised for claim in plan.claims for dtype in claim.within)
    scaled = (t for t in plan.tensors if t.scaling is None)
    sums = (t for t in scaled if (coarse and t.kind != "input") or not TYPES[t.dtype].quantised)
    types = [TYPES[t.dtype] for t in sums]
    limit = min((t.exact for t in types), default=1)
    if any(claim.tf32 for claim in plan.claims):  # sums may be operands again
        limit = min(limit, 1 << 11)
    if any(FUNCTIONS[f.function].factor for c in plan.claims for f in functions(c.value)):
        limit = min(limit, isqrt(int(min(t.largest for t in types))))
    alone = any(isinstance(w.body, Gemm) and w.body.fast for _, launch in plan.launches() for w in launch.works)
    return min(limit, 1 << 13) if alone else limit


def largest_one_signed(plan: Plan) -> float:
    """The largest of one-signed inputs: 1, or where a claimed result would pass the end of its type, the power of two
    that keeps it below."""
    types = {t.name: t.dtype for t in plan.tensors}
    ends = [  # of the result's type, and of fp8 on the way to it
        min(TYPES[t].largest for t in (types[c.targets[0].tensor], *(t for t in c.within if TYPES[t].quantised)))
        for c in plan.claims
    ]
    most = 1.0
    while any(largest(c.value, most) > end for c, end in zip(plan.claims, ends, strict=True)):
        most /= 2
    return most


def largest(value: ClaimValue, most: float) -> float:
    """What a value is, at most, where all inputs are `most` and positive."""
    match value:
        case Operand():
            return most
        case Product(left=left, right=right):
            return largest(left, most) * largest(right, most) * max(x[-1] for x in extent(left).shapes)
        case Added(left=left, right=right):
            return largest(left, most) + largest(right, most)
        case Applied(arguments=arguments):
            return prod(largest(a, most) for a in arguments)
        case Combined(kind=kind, operand=operand):
            inside = largest(operand, most)
            return inside * len(extent(operand).shapes) if kind in ("all_reduce", "reduce_scatter") else inside


def fresh_inputs(plan: Plan, seed: int = 0, values: InputValues = "normal") -> dict[str, list[Array]]:
    """Random inputs: of the normal distribution, with the deviation `scale`, or the `integers` of the plan, or spread
    evenly over the upper quarter of what is up to `largest_one_signed`."""
    chosen = integers(plan) if values == "exact" else None
    most = largest_one_signed(plan) if values == "one-signed" else 0.0
    inputs: dict[str, list[Array]] = {}
    given = {body.by.tensor for body in quantizations(plan) if body.by is not None}
    for number, tensor in enumerate(plan.tensors):
        if tensor.kind != "input":
            continue
        dtype, deviation = numpy_dtype(tensor.dtype), scale(plan)
        if tensor.scaling is not None:  # of which the scales have the rest
            deviation = 1.0
        arrays = []
        for rank, shape in enumerate(tensor.shapes):
            rng = np.random.default_rng((seed, number, rank))
            if is_scales(tensor.name):
                arrays.append(_scales(rng, shape, values, deviation, one=_one(plan, tensor.name)))
            elif tensor.name in given:  # NOTE nothing is larger than 448 after it was divided by such a scale
                arrays.append(rng.choice(np.array([1, 2], np.float32), shape))
            elif chosen is not None:
                table = _table(chosen.bound, chosen.density if tensor.name in chosen.sparse else 1.0, dtype)
                arrays.append(table[rng.integers(0, table.size, shape, np.uint16)])
            elif most:
                table = _upper_quarter(most, dtype)
                arrays.append(table[rng.integers(0, table.size, shape, np.uint16)])
            else:
                array = rng.standard_normal(shape, np.float32)
                array *= np.float32(deviation)
                arrays.append(array.astype(dtype))
        inputs[tensor.name] = arrays
    return inputs


def plain(plan: Plan, inputs: Mapping[str, Sequence[Array]]) -> Mapping[str, Sequence[Array]]:
    """Tensors of which those that are scaled are multiplied by their scales, in fp32."""
    scaled = [t.name for t in plan.tensors if t.name in inputs and t.scaling is not None]
    by = {name: zip(inputs[name], inputs[name_of(name)], strict=True) for name in scaled}
    made = {name: [a.astype(np.float32) * spread(s, a.shape) for a, s in pairs] for name, pairs in by.items()}
    return {**inputs, **made}


def _one(plan: Plan, name: str) -> bool:
    """Whether scales are one number for each rank."""
    return any(t.scaling == "tensor" and name_of(t.name) == name for t in plan.tensors)


def _scales(rng: np.random.Generator, shape: tuple[int, ...], values: InputValues, most: float, one: bool) -> Array:
    """Scales: signs where nothing may be rounded; from three quarters of 1 to 1 where all have one sign; else half of
    them powers of two, and none above `most`."""
    drawn = (1, 1) if one else shape
    if values == "exact":
        found = rng.choice(np.array([-1, 1], np.float32), drawn)
    elif values == "one-signed":
        found = rng.uniform(0.75, 1, drawn)
    else:
        found = np.where(rng.random(drawn) < 0.5, 2.0 ** np.floor(np.log2(most)), most * rng.uniform(0.5, 1, drawn))
    return np.ascontiguousarray(np.broadcast_to(found, shape), np.float32)


@lru_cache(16)
def _table(bound: int, density: float, dtype: np.dtype[Any]) -> Array:
    """65,536 values, each as often as it is to be drawn; read-only, as all who ask for it share it."""
    table = np.zeros(2**16, np.int8)
    signed = [sign * n for n in range(1, bound + 1) for sign in (1, -1)]
    drawn = max(len(signed), round(density * table.size))
    table[:drawn] = np.resize(np.array(signed, np.int8), drawn)
    made = table.astype(dtype)
    made.flags.writeable = False
    return made


@lru_cache(4)
def _upper_quarter(most: float, dtype: np.dtype[Any]) -> Array:
    """65,536 values, evenly from three quarters of `most` to all of it."""
    made = np.linspace(0.75 * most, most, 2**16, dtype=np.float32).astype(dtype)
    made.flags.writeable = False
    return made


def _size(operand: Operand) -> int:
    return sum(region.elements for region in operand.regions)


def noise(plan: Plan) -> Iterator[tuple[str, int, Array]]:
    """Inputs (name, rank, array) for runs whose results are not checked: normal values, a million of them repeated.
    Zeros would not do, because a GPU that multiplies zeros needs less power, which changes the time of a run."""
    values = np.random.default_rng(0).standard_normal(NOISE, np.float32)
    for tensor in plan.tensors:
        if tensor.kind == "input":
            mine = values.astype(numpy_dtype(tensor.dtype))
            for rank, shape in enumerate(tensor.shapes):
                yield tensor.name, rank, np.resize(mine, shape)
