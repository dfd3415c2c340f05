"""Does a run compute what the schedule claims? Fresh inputs, poisoned buffers, an independent reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isqrt, sqrt
from typing import Literal, TypeAlias

import numpy as np

from ..driver.api import Array, OnProgress
from ..errors import NumbersError
from ..graph.ir import Claim, Gemm, Reduce
from ..plan.ir import CollectiveCall, Plan, Work
from ..region import Box, Region, describe
from ..types import ACCUMULATOR, TYPES, Dtype, numpy_dtype
from .executor import Executor
from .reference import Inputs, evaluate, extent, take

InputValues: TypeAlias = Literal["normal", "exact"]


@dataclass(frozen=True, slots=True)
class Worst:
    """The element that is furthest off; NaN where nothing was written."""

    tensor: str
    rank: int
    index: tuple[int, ...]
    got: float
    wanted: float | None  # None where nothing is claimed

    def __str__(self) -> str:
        where = f"{self.tensor} of rank {self.rank}, {describe(Box(self.index, tuple(i + 1 for i in self.index)))}"
        if np.isnan(self.got):
            return f"{where}: NaN, never written" + ("" if self.wanted is None else f"; wanted {self.wanted:.6g}")
        return f"{where}: {self.got:.6g}, wanted {self.wanted:.6g}"


@dataclass(frozen=True, slots=True)
class Verification:
    """`rel_err` is max|C − R| / max|R| over all ranks of the claim that comes closest to its tolerance, or
    passes it furthest; inf if an element was never written, None if nothing is claimed. `unproven` outputs
    have no claim: they were looked through for NaN and not compared."""

    ok: bool
    rel_err: float | None
    tolerance: float
    worst: Worst | None  # None if nothing was compared
    unproven: tuple[str, ...]


def verified_run(
    executor: Executor, *, seed: int = 0, values: InputValues = "normal", progress: OnProgress | None = None
) -> Verification:
    """Run the executor's plan on fresh inputs in the executor's own buffers, and compare.

    Outputs and scratch are filled with NaN before: what is never written, or read too early, shows.
    `values` is "normal" (see `fresh_inputs`), or "exact": small integers with which no order of summing and
    no storing rounds, so that the tolerance is 0. That is for tests: it tells a missing product of many.

    Raises what `Executor.run` raises. Wrong numbers are no error here but a result.
    """
    plan = executor.plan
    inputs = fresh_inputs(plan, seed, values)
    for name, arrays in inputs.items():
        for rank, array in enumerate(arrays):
            executor.write(name, rank, array)
    executor.poison()
    executor.run(progress=progress)
    outputs = {
        t.name: [executor.read(t.name, r) for r in range(plan.ranks)] for t in plan.tensors if t.kind == "output"
    }
    return compare(plan, inputs, outputs, values)


def check_replay(executor: Executor) -> None:
    """Run the plan once more, on the same inputs and poisoned outputs, as a graph: NumbersError unless every bit of
    every output is as the last run on streams left it. Kernels sum in a fixed order, so nothing may differ."""
    plan = executor.plan
    names = [(t.name, rank) for t in plan.tensors if t.kind == "output" for rank in range(plan.ranks)]
    before = {key: executor.read(*key) for key in names}
    executor.poison()
    executor.graph = True
    executor.run()
    for (name, rank), wanted in before.items():
        got = executor.read(name, rank)
        bits = np.uint16 if got.dtype.itemsize == 2 else np.uint32
        differs = got.view(bits) != wanted.view(bits)
        if differs.any():
            index = tuple(int(i) for i in np.unravel_index(int(differs.argmax()), differs.shape))
            worst = Worst(name, rank, index, float(got[index]), float(wanted[index]))
            raise NumbersError(f"the replayed graph differs from the run on streams: {worst}")


def fresh_inputs(plan: Plan, seed: int = 0, values: InputValues = "normal") -> dict[str, list[Array]]:
    """Random inputs, the same for the same seed.

    normal: the standard normal distribution, scaled so that claimed products come out of the order of 1.
    exact: integers. Where n products are summed into an element, they are so small that the sum of absolute
    values cannot pass what the plan's narrowest dtype stores exactly; for an n that allows no such
    integer but 0 they are −1, 0 and 1, with zeros so many that six standard deviations stay below it.
    """
    terms = max((extent(c.value).terms for c in plan.claims), default=1)
    limit = min((TYPES[t.dtype].exact for t in plan.tensors), default=1)
    inputs: dict[str, list[Array]] = {}
    for number, tensor in enumerate(plan.tensors):
        if tensor.kind != "input":
            continue
        arrays = []
        for rank, shape in enumerate(tensor.shapes):
            rng = np.random.default_rng((seed, number, rank))
            array: Array
            if values == "normal":
                array = rng.standard_normal(shape, np.float32)
                array *= np.float32(terms**-0.25)
            elif terms <= limit:
                bound = min(8, isqrt(limit // terms))
                array = rng.integers(-bound, bound, shape, np.int8, endpoint=True)
            else:
                density = limit / (6 * sqrt(terms))
                signs = rng.integers(0, 2, shape, np.int8) * np.int8(2) - np.int8(1)
                array = np.where(rng.random(shape, np.float32) < density, signs, np.int8(0))
            arrays.append(array.astype(numpy_dtype(tensor.dtype)))
        inputs[tensor.name] = arrays
    return inputs


def compare(
    plan: Plan, inputs: Inputs, outputs: Mapping[str, Sequence[Array]], values: InputValues = "normal"
) -> Verification:
    """The outputs (one array a rank) against the claims."""
    claimed = {target.tensor for claim in plan.claims for target in claim.targets}
    unproven = tuple(t.name for t in plan.tensors if t.kind == "output" and t.name not in claimed)
    hole = next(_never_written(outputs), None)
    if hole is not None:
        return Verification(False, inf, 0.0, hole, unproven)
    result = Verification(True, None, 0.0, None, unproven)
    for claim in plan.claims:
        rel_err, worst, largest = _worst(claim, inputs, outputs)
        dtype = plan.tensor(claim.targets[0].tensor).dtype
        exact = values == "exact" and largest <= min(TYPES[t.dtype].exact for t in plan.tensors)
        limit = 0.0 if exact else tolerance(plan, claim, dtype)
        found = Verification(rel_err <= limit, rel_err, limit, worst, unproven)
        if result.rel_err is None or (result.ok, -_share(result)) > (found.ok, -_share(found)):
            result = found
    return result


def tolerance(plan: Plan, claim: Claim, dtype: Dtype) -> float:
    """What max|C − R| / max|R| may be.

    2 · u · √r: an element is rounded to the dtype (unit roundoff u, see `types`) r times:
    once at the end, once for each partial sum that is stored before: at every `+=` on the same region, and
    at every rank where partial results are summed. Partial sums are no larger than the result, by and
    large, and their errors are independent, so they add up like √r; twice that is allowed.
    4 · 2⁻²⁴ · √n: the same for the n products that are summed in fp32, in any order, here and there.
    """
    unit = TYPES[dtype].unit_roundoff
    accumulated: Counter[Region] = Counter()
    reduces = False
    for part in plan.parts():
        match part:
            case Work(body=Gemm(out=out, accumulate=True)):
                accumulated[out] += 1
            case Work(body=Gemm(addends=(_, *_)) | Reduce()) | CollectiveCall(kind="all_reduce" | "reduce_scatter"):
                reduces = True
    roundings = 1 + max(accumulated.values(), default=0) + (plan.ranks if reduces else 0)
    return 2 * unit * sqrt(roundings) + 4 * TYPES[ACCUMULATOR].unit_roundoff * sqrt(extent(claim.value).terms)


def _share(verification: Verification) -> float:
    """How much of the tolerance is used."""
    assert verification.rel_err is not None
    return verification.rel_err / verification.tolerance if verification.tolerance else verification.rel_err


def _never_written(outputs: Mapping[str, Sequence[Array]]) -> Iterator[Worst]:
    for name, arrays in outputs.items():
        for rank, array in enumerate(arrays):
            nan = np.isnan(array)
            if nan.any():
                index = np.unravel_index(int(np.argmax(nan)), array.shape)
                yield Worst(name, rank, tuple(map(int, index)), float("nan"), None)


def _worst(claim: Claim, inputs: Inputs, outputs: Mapping[str, Sequence[Array]]) -> tuple[float, Worst, float]:
    """The relative error, its place, and max|R|."""
    error, largest = -1.0, 0.0
    worst: Worst | None = None
    for rank, (target, wanted) in enumerate(zip(claim.targets, evaluate(claim.value, inputs), strict=True)):
        got = take(outputs[target.tensor][target.rank], target)
        if not wanted.size:
            continue
        off = np.subtract(got, wanted, dtype=wanted.dtype)
        np.abs(off, out=off)
        at = np.unravel_index(int(off.argmax()), off.shape)
        largest = max(largest, float(wanted.max()), -float(wanted.min()))
        if float(off[at]) > error:
            error = float(off[at])
            index = _index(target, tuple(map(int, at)))
            worst = Worst(target.tensor, rank, index, float(got[at]), float(wanted[at]))
    if worst is None:  # a claim on nothing
        return 0.0, Worst(claim.targets[0].tensor, 0, (), 0.0, 0.0), 0.0
    relative = error / largest if largest else (0.0 if error == 0 else inf)
    return relative, worst, largest


def _index(region: Region, logical: tuple[int, ...]) -> tuple[int, ...]:
    """Where an element of the region's logical coordinates lies in the tensor."""
    index = []
    kept = iter(logical)
    for axis in region.axes:
        if axis.dropped:
            index.append(axis.segments[0].start)
            continue
        i = next(kept)
        for s in axis.segments:
            if i < s.size:
                index.append(s.start + i)
                break
            i -= s.size
    return tuple(index)
